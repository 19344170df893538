//! A JSON object read field by field, strictly: every field once, of its type, within its bounds, and none that isn't
//! known. All that is wrong is said at once.

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::problem::{FieldError, Problem};

/// The name under which the body as a whole is reported.
const BODY: &str = "body";

/// As many errors as an answer carries.
const MAX_ERRORS: usize = 20;
/// As many characters of an unknown field's name as are repeated to the client.
const MAX_NAME_CHARS: usize = 64;

/// An object on its way to becoming something typed.
pub(super) struct Form {
    fields: Vec<(String, Value)>,
    errors: Vec<FieldError>,
    known: Vec<&'static str>,
}

impl Form {
    /// Takes a body apart.
    pub(super) fn parse(body: &[u8]) -> Result<Self, Problem> {
        let object: Object =
            serde_json::from_slice(body).map_err(|_| Problem::field(BODY, "a JSON object"))?;
        Ok(Self {
            fields: object.0,
            errors: Vec::new(),
            known: Vec::new(),
        })
    }

    /// A field that must be there; `read` takes the values that are `allowed`.
    pub(super) fn required<T>(
        &mut self,
        field: &'static str,
        allowed: impl Into<Cow<'static, str>>,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.take(field).and_then(|value| read(&value));
        if value.is_none() {
            self.refuse(field, allowed);
        }
        value
    }

    /// A field that may be missing or null.
    pub(super) fn optional<T>(
        &mut self,
        field: &'static str,
        allowed: impl Into<Cow<'static, str>>,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.take(field).filter(|value| !value.is_null())?;
        let value = read(&value);
        if value.is_none() {
            self.refuse(field, allowed);
        }
        value
    }

    /// A whole number that must be there.
    pub(super) fn whole<T: TryFrom<i64>>(
        &mut self,
        field: &'static str,
        range: RangeInclusive<i64>,
    ) -> Option<T> {
        self.required(field, whole_allowed(&range), |value| whole_in(value, &range))
    }

    /// A whole number that may be missing or null.
    pub(super) fn optional_whole<T: TryFrom<i64>>(
        &mut self,
        field: &'static str,
        range: RangeInclusive<i64>,
    ) -> Option<T> {
        self.optional(field, whole_allowed(&range), |value| whole_in(value, &range))
    }

    /// Notes that a field is wrong.
    pub(super) fn refuse(&mut self, field: &'static str, allowed: impl Into<Cow<'static, str>>) {
        self.errors.push(FieldError {
            field: field.into(),
            allowed: allowed.into(),
        });
    }

    /// All fields have been asked for: what is left is unknown.
    ///
    /// # Errors
    /// With everything that was wrong.
    pub(super) fn finish(mut self) -> Result<(), Problem> {
        for (name, _) in self.fields {
            let allowed = if self.known.contains(&name.as_str()) {
                "once".into()
            } else {
                format!("no such field; there are {}", self.known.join(", ")).into()
            };
            let field = match name.char_indices().nth(MAX_NAME_CHARS) {
                Some((end, _)) => format!("{}...", &name[..end]),
                None => name,
            };
            self.errors.push(FieldError {
                field: field.into(),
                allowed,
            });
        }
        self.errors.truncate(MAX_ERRORS);
        if self.errors.is_empty() {
            Ok(())
        } else {
            Err(Problem::InvalidField(self.errors))
        }
    }

    /// Takes the first field of this name; a second one is left over, and found by [`Self::finish`].
    fn take(&mut self, field: &'static str) -> Option<Value> {
        self.known.push(field);
        let at = self.fields.iter().position(|(name, _)| name == field)?;
        Some(self.fields.remove(at).1)
    }
}

fn whole_allowed(range: &RangeInclusive<i64>) -> String {
    format!("a whole number from {} to {}", range.start(), range.end())
}

fn whole_in<T: TryFrom<i64>>(value: &Value, range: &RangeInclusive<i64>) -> Option<T> {
    value
        .as_i64()
        .filter(|number| range.contains(number))?
        .try_into()
        .ok()
}

/// An object with its fields in order, repeated ones included: a map would quietly keep one of two.
struct Object(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                    if fields.len() > MAX_FIELDS {
                        return Err(de::Error::custom("too many fields"));
                    }
                }
                Ok(Object(fields))
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

/// More fields than any of our objects has, with room for being wrong.
const MAX_FIELDS: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(result: Result<(), Problem>) -> Vec<(String, String)> {
        let Err(Problem::InvalidField(errors)) = result else {
            panic!("{result:?}")
        };
        errors
            .into_iter()
            .map(|e| (e.field.into_owned(), e.allowed.into_owned()))
            .collect()
    }

    #[test]
    fn says_all_that_is_wrong_at_once() {
        let mut form = Form::parse(br#"{"b":1.0,"c":"3","d":7,"e":null,"extra":1,"d":8}"#).unwrap();
        assert_eq!(form.whole::<i32>("a", 1..=5), None);
        assert_eq!(form.whole::<i32>("b", 1..=5), None);
        assert_eq!(form.optional_whole::<i32>("c", 1..=5), None);
        assert_eq!(form.whole::<i32>("d", 1..=9), Some(7));
        assert_eq!(form.optional_whole::<i32>("e", 1..=9), None);
        let of_five = "a whole number from 1 to 5";
        let expected = [
            ("a", of_five),
            ("b", of_five),
            ("c", of_five),
            ("extra", "no such field; there are a, b, c, d, e"),
            ("d", "once"),
        ];
        assert_eq!(
            errors(form.finish()),
            expected.map(|(f, a)| (f.to_owned(), a.to_owned()))
        );
    }

    #[test]
    fn a_body_is_an_object() {
        for body in [
            "",
            "{",
            "[]",
            "1",
            "null",
            "\"a\"",
            "{}x",
            "{\"a\":}",
            "\u{feff}{}",
        ] {
            assert_eq!(
                Form::parse(body.as_bytes()).err(),
                Some(Problem::field("body", "a JSON object")),
                "{body}"
            );
        }
        assert!(Form::parse(b" {} ").is_ok());
        assert!(Form::parse(b"{\"a\":\"\xff\"}").is_err());
    }

    #[test]
    fn bounds_what_it_repeats() {
        let long = format!(r#"{{"{}":1}}"#, "ä".repeat(100));
        let errors = errors(Form::parse(long.as_bytes()).unwrap().finish());
        assert_eq!(errors[0].0, format!("{}...", "ä".repeat(64)));
        let many: Vec<String> = (0..=MAX_FIELDS).map(|n| format!("\"f{n}\":1")).collect();
        assert!(Form::parse(format!("{{{}}}", many.join(",")).as_bytes()).is_err());
    }
}
