//! Sales: listing one, and looking at them.

use std::borrow::Cow;
use std::sync::Arc;

use hyper::StatusCode;
use hyper::body::Incoming;
use serde_json::Value;

use super::Answer;
use crate::domain::{Currency, NewSale, SaleId};
use crate::http::answer::{self, SaleBody, SalesBody};
use crate::http::door::Call;
use crate::http::form::Form;
use crate::http::problem::{FieldError, Problem};
use crate::http::{FrontDesk, extract, time};

/// Bounds of what a seller may list. The database's columns are wider.
const MAX_NAME_CHARS: usize = 200;
const MAX_UNITS: i64 = 10_000_000;
const MAX_PRICE_MINOR: i64 = 1_000_000_000_000;
/// Units per order where the seller doesn't say.
const DEFAULT_MAX_PER_ORDER: i32 = 1_000;

/// Sales per page, where the client doesn't say, and at most.
const DEFAULT_PAGE: u16 = 20;
const MAX_PAGE: u16 = 100;

/// `POST /v1/sales`
pub(super) async fn list<D: FrontDesk>(call: &Call<'_, D>, body: Incoming) -> Answer {
    let terms = terms(&call.json_body(body).await?)?;
    let door = Arc::clone(call.door);
    match call
        .shielded(async move { door.desk.list_sale(terms).await })
        .await
    {
        Ok(listed) => Ok(answer::listed(&listed.map_err(|e| Problem::about_sale(&e))?)),
        Err(_) => Err(Problem::OUTCOME_UNKNOWN),
    }
}

/// `GET /v1/sales/{id}`
pub(super) async fn show<D: FrontDesk>(call: &Call<'_, D>) -> Answer {
    let id = sale_id(call)?;
    let view = call
        .ask(call.door.desk.sale(id))
        .await?
        .map_err(|e| Problem::about_sale(&e))?;
    Ok(answer::ok(&SaleBody::from(&view)))
}

/// `POST /v1/sales/{id}/cancel`
pub(super) async fn cancel<D: FrontDesk>(call: &Call<'_, D>) -> Answer {
    let id = sale_id(call)?;
    let door = Arc::clone(call.door);
    match call
        .shielded(async move { door.desk.cancel_sale(id).await })
        .await
    {
        Ok(view) => Ok(answer::cancellation(
            StatusCode::ACCEPTED,
            &view.map_err(|e| Problem::about_sale(&e))?,
        )),
        Err(_) => Err(Problem::OUTCOME_UNKNOWN),
    }
}

/// `GET /v1/sales/{id}/cancel`
pub(super) async fn cancellation<D: FrontDesk>(call: &Call<'_, D>) -> Answer {
    let view = call
        .ask(call.door.desk.cancellation(sale_id(call)?))
        .await?
        .map_err(|e| Problem::about_sale(&e))?;
    Ok(answer::cancellation(StatusCode::OK, &view))
}

fn sale_id<D: FrontDesk>(call: &Call<'_, D>) -> Result<SaleId, Problem> {
    extract::uuid(call.path_id)
        .map(SaleId)
        .ok_or(Problem::SaleNotFound)
}

/// `GET /v1/sales`
pub(super) async fn page<D: FrontDesk>(call: &Call<'_, D>) -> Answer {
    let Page { limit, after } = Page::parse(call.parts.uri.query().unwrap_or_default())?;
    // One more than shown, to know whether there is a next page.
    let question = call.door.desk.sales(after, limit + 1);
    let mut views = call.ask(question).await?.map_err(|e| Problem::about_sale(&e))?;
    let more = views.len() > usize::from(limit);
    views.truncate(limit.into());
    let next = views.last().filter(|_| more).map(|view| view.sale.id);
    Ok(answer::ok(&SalesBody {
        sales: views.iter().map(SaleBody::from).collect(),
        next,
    }))
}

pub(super) fn terms(body: &[u8]) -> Result<NewSale, Problem> {
    let mut form = Form::parse(body)?;
    let name = form.required("name", "1 to 200 characters, no control characters", name);
    let quantity = form.whole("quantity", 1..=MAX_UNITS);
    let unit_price_minor = form.whole::<i64>("unit_price_minor", 1..=MAX_PRICE_MINOR);
    let currency = form.required("currency", "three capital letters, such as EUR", |value| {
        Currency::parse(value.as_str()?)
    });
    let opens_at = form.required("opens_at", time::ALLOWED, instant);
    let closes_at = form.optional("closes_at", time::ALLOWED, instant);
    let per_buyer_limit = form.optional_whole("per_buyer_limit", 1..=MAX_UNITS);
    let max_per_order = form
        .optional_whole("max_per_order", 1..=MAX_UNITS)
        .unwrap_or(DEFAULT_MAX_PER_ORDER);
    if let (Some(opens), Some(closes)) = (opens_at, closes_at)
        && closes <= opens
    {
        form.refuse("closes_at", "a time after opens_at");
    }
    if let Some(price) = unit_price_minor
        && price.checked_mul(max_per_order.into()).is_none()
    {
        // Sales that keep the default are never concerned: 1,000 units of the highest price are 10^15.
        form.refuse(
            "max_per_order",
            format!("a whole number from 1 to {}", i64::MAX / price),
        );
    }
    form.finish()?;
    let (Some(name), Some(quantity), Some(unit_price_minor), Some(currency), Some(opens_at)) =
        (name, quantity, unit_price_minor, currency, opens_at)
    else {
        return Err(Problem::Internal);
    };
    Ok(NewSale {
        name,
        quantity,
        unit_price_minor,
        currency,
        per_buyer_limit,
        max_per_order,
        opens_at,
        closes_at,
    })
}

fn name(value: &Value) -> Option<String> {
    let name = value.as_str()?;
    let fits = (1..=MAX_NAME_CHARS).contains(&name.chars().count()) && !name.chars().any(char::is_control);
    fits.then(|| name.to_owned())
}

fn instant(value: &Value) -> Option<jiff::Timestamp> {
    time::parse(value.as_str()?)
}

/// Which sales are asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) limit: u16,
    pub(super) after: Option<SaleId>,
}

impl Page {
    pub(super) fn parse(query: &str) -> Result<Self, Problem> {
        let (mut limit, mut after) = (None, None);
        let mut errors = Vec::new();
        let mut refuse = |field: Cow<'static, str>, allowed: &'static str| {
            errors.push(FieldError {
                field,
                allowed: allowed.into(),
            });
        };
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match name {
                "limit" if limit.is_none() => {
                    limit = value.parse().ok().filter(|limit| (1..=MAX_PAGE).contains(limit));
                    if limit.is_none() {
                        refuse("limit".into(), "a whole number from 1 to 100");
                    }
                }
                "after" if after.is_none() => {
                    after = extract::uuid(value).map(SaleId);
                    if after.is_none() {
                        refuse("after".into(), "the id of a sale");
                    }
                }
                "limit" => refuse("limit".into(), "once"),
                "after" => refuse("after".into(), "once"),
                other => {
                    let name: String = other.chars().take(64).collect();
                    refuse(name.into(), "no such parameter; there are limit, after");
                }
            }
        }
        errors.truncate(20);
        if errors.is_empty() {
            Ok(Self {
                limit: limit.unwrap_or(DEFAULT_PAGE),
                after,
            })
        } else {
            Err(Problem::InvalidField(errors))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"name":"Boots","quantity":900,"unit_price_minor":4999,"currency":"EUR","opens_at":"2026-12-01T10:00:00+01:00"}"#;

    fn wrong(body: &str) -> Vec<(String, String)> {
        let Err(Problem::InvalidField(errors)) = terms(body.as_bytes()) else {
            panic!("{body} was taken")
        };
        errors
            .into_iter()
            .map(|e| (e.field.into_owned(), e.allowed.into_owned()))
            .collect()
    }

    /// `GOOD` with one field more, or another value of it.
    fn with(field: &str, value: &str) -> String {
        let mut object: serde_json::Map<String, Value> = serde_json::from_str(GOOD).unwrap();
        object.insert(field.to_owned(), serde_json::from_str(value).unwrap());
        Value::Object(object).to_string()
    }

    #[test]
    fn takes_a_sale_with_and_without_what_is_optional() {
        let sale = terms(GOOD.as_bytes()).unwrap();
        assert_eq!(
            (sale.name.as_str(), sale.quantity, sale.unit_price_minor),
            ("Boots", 900, 4999)
        );
        assert_eq!(
            (sale.per_buyer_limit, sale.max_per_order, sale.closes_at),
            (None, 1000, None)
        );
        assert_eq!(sale.opens_at.to_string(), "2026-12-01T09:00:00Z");
        let sale = terms(with("per_buyer_limit", "2").as_bytes()).unwrap();
        assert_eq!(sale.per_buyer_limit, Some(2));
        assert!(terms(with("closes_at", "null").as_bytes()).is_ok());
    }

    #[test]
    fn names_every_field_that_is_wrong() {
        let fields = |body: &str| {
            wrong(body)
                .into_iter()
                .map(|(field, _)| field)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            fields("{}"),
            ["name", "quantity", "unit_price_minor", "currency", "opens_at"]
        );
        for (field, value) in [
            ("name", "\"\""),
            ("name", "7"),
            ("name", "\"a\\u0000b\""),
            ("quantity", "\"900\""),
            ("quantity", "0"),
            ("quantity", "10000001"),
            ("unit_price_minor", "49.99"),
            ("unit_price_minor", "1000000000001"),
            ("currency", "\"eur\""),
            ("opens_at", "\"2026-12-01T10:00:00\""),
            ("opens_at", "1764579600"),
            ("closes_at", "\"2026-12-01T09:00:00Z\""),
            ("per_buyer_limit", "0"),
            ("max_per_order", "0"),
            ("max_per_order", "10000001"),
            ("sold", "1"),
        ] {
            assert_eq!(fields(&with(field, value)), [field], "{value}");
        }
        let long = format!("\"{}\"", "ü".repeat(201));
        assert_eq!(fields(&with("name", &long)), ["name"]);
    }

    #[test]
    fn an_order_has_a_price_that_can_be_written_down() {
        let body = r#"{"name":"Jets","quantity":10000000,"unit_price_minor":1000000000000,"currency":"EUR",
                       "opens_at":"2026-12-01T10:00:00Z","max_per_order":10000000}"#;
        let expected = (
            "max_per_order".to_owned(),
            "a whole number from 1 to 9223372".to_owned(),
        );
        assert_eq!(wrong(body), [expected]);
    }

    #[test]
    fn pages_are_bounded_and_parameters_known() {
        let id = SaleId::fresh();
        assert_eq!(
            Page::parse("").unwrap(),
            Page {
                limit: 20,
                after: None
            }
        );
        assert_eq!(
            Page::parse(&format!("after={id}&limit=100")).unwrap(),
            Page {
                limit: 100,
                after: Some(id)
            }
        );
        for (query, field) in [
            ("limit=0", "limit"),
            ("limit=101", "limit"),
            ("limit=ten", "limit"),
            ("limit", "limit"),
            ("limit=1&limit=2", "limit"),
            ("after=", "after"),
            ("after=1", "after"),
            ("offset=1", "offset"),
        ] {
            let Err(Problem::InvalidField(errors)) = Page::parse(query) else {
                panic!("{query}")
            };
            assert_eq!(errors[0].field, field, "{query}");
        }
    }
}
