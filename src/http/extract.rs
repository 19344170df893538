//! What a request says about itself, each in one place.

use hyper::HeaderMap;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue};
use uuid::Uuid;

use super::problem::Problem;
use crate::domain::Buyer;

/// Who asks.
pub(super) const X_BUYER_ID: HeaderName = HeaderName::from_static("x-buyer-id");
/// The client's name for a purchase.
pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The longest idempotency key, in characters.
const MAX_KEY_CHARS: usize = 255;

/// Who asks. All handlers learn it from here, so that a signed token can take the header's place.
pub(super) fn buyer(headers: &HeaderMap) -> Result<Buyer, Problem> {
    match single(headers, &X_BUYER_ID) {
        Single::None => Err(Problem::BuyerMissing),
        Single::Several => Err(Problem::BuyerInvalid),
        Single::One(value) => {
            let text = value.to_str().map_err(|_| Problem::BuyerInvalid)?;
            Buyer::parse(text).ok_or(Problem::BuyerInvalid)
        }
    }
}

/// The client's name for this purchase: 1 to 255 visible ASCII characters, taken as they are.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<&str, Problem> {
    match single(headers, &IDEMPOTENCY_KEY) {
        Single::None => Err(Problem::IdempotencyKeyMissing),
        Single::Several => Err(Problem::IdempotencyKeyInvalid),
        Single::One(value) => {
            let fits = (1..=MAX_KEY_CHARS).contains(&value.len())
                && value.as_bytes().iter().all(u8::is_ascii_graphic);
            let key = value.to_str().ok().filter(|_| fits);
            key.ok_or(Problem::IdempotencyKeyInvalid)
        }
    }
}

/// An id in a path or a parameter, spelled as we spell them.
pub(super) fn uuid(text: &str) -> Option<Uuid> {
    // `Uuid` also reads braces, URNs and bare digits; one id has one address here.
    (text.len() == 36).then(|| Uuid::try_parse(text).ok()).flatten()
}

/// The body is JSON as far as its headers say. Without a `Content-Type` it is taken for JSON: nothing else is spoken here.
pub(super) fn json(headers: &HeaderMap) -> Result<(), Problem> {
    let is_json = match single(headers, &CONTENT_TYPE) {
        Single::None => true,
        Single::One(value) => value.to_str().is_ok_and(is_json_type),
        Single::Several => false,
    };
    let is_plain = match single(headers, &CONTENT_ENCODING) {
        Single::None => true,
        Single::One(value) => value.as_bytes().eq_ignore_ascii_case(b"identity"),
        Single::Several => false,
    };
    if is_json && is_plain {
        Ok(())
    } else {
        Err(Problem::UnsupportedMediaType)
    }
}

fn is_json_type(value: &str) -> bool {
    let mut parts = value.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default();
    essence.eq_ignore_ascii_case("application/json")
        && parts.all(|parameter| match parameter.split_once('=') {
            Some((name, charset)) if name.eq_ignore_ascii_case("charset") => {
                charset.trim_matches('"').eq_ignore_ascii_case("utf-8")
            }
            _ => true,
        })
}

/// A header that means something only when it is there once: of two, somebody on the way may have seen the other.
enum Single<'h> {
    None,
    One(&'h HeaderValue),
    Several,
}

fn single<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Single<'h> {
    let mut values = headers.get_all(name).into_iter();
    match (values.next(), values.next()) {
        (None, _) => Single::None,
        (Some(value), None) => Single::One(value),
        (Some(_), Some(_)) => Single::Several,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &HeaderName, values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    }

    #[test]
    fn a_buyer_is_there_once_and_plain() {
        let of = |values: &[&str]| buyer(&headers(&X_BUYER_ID, values));
        assert_eq!(of(&["ann@shop"]).unwrap().as_str(), "ann@shop");
        assert_eq!(of(&[]), Err(Problem::BuyerMissing));
        for bad in [&[""][..], &["a b"], &["ä"], &["ann", "ann"]] {
            assert_eq!(of(bad), Err(Problem::BuyerInvalid), "{bad:?}");
        }
    }

    #[test]
    fn a_key_is_there_once_and_visible() {
        let of = |values: &[&str]| {
            let headers = headers(&IDEMPOTENCY_KEY, values);
            idempotency_key(&headers).map(str::to_owned)
        };
        assert_eq!(of(&["\"a\"~!"]).unwrap(), "\"a\"~!");
        assert!(of(&[&"k".repeat(255)]).is_ok());
        assert_eq!(of(&[]), Err(Problem::IdempotencyKeyMissing));
        for bad in [
            &[""][..],
            &["a b"],
            &["ö"],
            &["a\tb"],
            &[&"k".repeat(256)],
            &[&"k".repeat(300)],
            &["a", "a"],
        ] {
            assert_eq!(of(bad), Err(Problem::IdempotencyKeyInvalid), "{bad:?}");
        }
    }

    #[test]
    fn an_id_has_one_spelling() {
        let id = "019aa3f2-7c00-7000-8000-000000000001";
        assert!(uuid(id).is_some());
        for bad in [
            "",
            "1",
            &id[1..],
            &format!("{{{id}}}"),
            &id.replace('-', ""),
            &id.replace('9', "%"),
        ] {
            assert_eq!(uuid(bad), None, "{bad}");
        }
    }

    #[test]
    fn json_is_the_only_content() {
        let of = |values: &[&str]| json(&headers(&CONTENT_TYPE, values)).is_ok();
        for good in [
            "application/json",
            "Application/JSON",
            "application/json; charset=utf-8",
            "application/json;charset=\"UTF-8\"",
        ] {
            assert!(of(&[good]), "{good}");
        }
        assert!(of(&[]));
        for bad in [
            "",
            "text/plain",
            "application/json-patch+json",
            "application/json; charset=latin1",
        ] {
            assert!(!of(&[bad]), "{bad}");
        }
        assert!(!of(&["application/json", "application/json"]));
        assert!(json(&headers(&CONTENT_ENCODING, &["gzip"])).is_err());
        assert!(json(&headers(&CONTENT_ENCODING, &["identity"])).is_ok());
    }
}
