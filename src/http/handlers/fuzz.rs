//! Bodies and queries that are any bytes at all: what is taken is within its bounds and means the same when it is written down
//! again, and what is refused says why, by a field that exists.

use http_body_util::BodyExt;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{orders, sales};
use crate::domain::{IdempotencyDigest, NewSale, PaymentMethod};
use crate::http::problem::Problem;

/// The largest answer to a body: twenty errors of bounded length.
const MAX_ANSWER_BYTES: usize = 32 * 1024;

/// The body of a purchase.
pub(in crate::http) fn purchase(body: &[u8]) {
    let read = orders::wanted(body);
    assert_eq!(
        read,
        orders::wanted_by_form(body),
        "the two ways of reading differ"
    );
    let known = ["quantity", "payment_method"];
    match read {
        Ok(wanted) => {
            let object = only(body, &known);
            assert!((1..=orders::MAX_UNITS).contains(&wanted.quantity));
            assert_eq!(object["quantity"], json!(wanted.quantity));
            let method = wanted.payment_method.as_ref().map(PaymentMethod::as_str);
            assert_eq!(object.get("payment_method").and_then(Value::as_str), method);
            assert!(method.is_none_or(|method| {
                (1..=PaymentMethod::MAX_CHARS).contains(&method.len())
                    && method.bytes().all(|b| b.is_ascii_graphic())
            }));
            let again = json!({"quantity": wanted.quantity, "payment_method": method}).to_string();
            assert_eq!(orders::wanted(again.as_bytes()), Ok(wanted));
        }
        Err(problem) => refused(problem, body, &known),
    }
}

/// The body of a refund.
pub(in crate::http) fn refund(body: &[u8]) {
    let digest = IdempotencyDigest(Uuid::from_u128(1));
    let known = ["amount_minor", "return_units"];
    match orders::refund_ask(body, digest) {
        Ok(ask) => {
            let object = only(body, &known);
            assert!(ask.amount_minor.is_none_or(|amount| amount > 0));
            assert_eq!(
                object.get("amount_minor").and_then(Value::as_i64),
                ask.amount_minor
            );
            let returns = object.get("return_units").and_then(Value::as_bool);
            assert_eq!(returns.unwrap_or(false), ask.return_units);
            let again =
                json!({"amount_minor": ask.amount_minor, "return_units": ask.return_units}).to_string();
            assert_eq!(orders::refund_ask(again.as_bytes(), digest), Ok(ask));
        }
        Err(problem) => refused(problem, body, &known),
    }
}

/// The body of a listing.
pub(in crate::http) fn listing(body: &[u8]) {
    let known = [
        "name",
        "quantity",
        "unit_price_minor",
        "currency",
        "opens_at",
        "closes_at",
        "per_buyer_limit",
        "max_per_order",
    ];
    match sales::terms(body) {
        Ok(terms) => {
            let object = only(body, &known);
            within_bounds(&terms);
            assert_eq!(object["quantity"], json!(terms.quantity));
            assert_eq!(object["unit_price_minor"], json!(terms.unit_price_minor));
            let again = json!({
                "name": terms.name, "quantity": terms.quantity, "unit_price_minor": terms.unit_price_minor,
                "currency": terms.currency.as_str(), "opens_at": terms.opens_at, "closes_at": terms.closes_at,
                "per_buyer_limit": terms.per_buyer_limit, "max_per_order": terms.max_per_order,
            })
            .to_string();
            let read = sales::terms(again.as_bytes()).expect("what is listed can be listed again");
            assert_eq!(format!("{read:?}"), format!("{terms:?}"));
        }
        Err(problem) => refused(problem, body, &known),
    }
}

/// As docs/api.md has them, and as the database can keep them.
fn within_bounds(terms: &NewSale) {
    assert!((1..=200).contains(&terms.name.chars().count()) && !terms.name.chars().any(char::is_control));
    assert!((1..=10_000_000).contains(&terms.quantity));
    assert!((1..=1_000_000_000_000).contains(&terms.unit_price_minor));
    assert!(
        terms.currency.as_str().len() == 3 && terms.currency.as_str().bytes().all(|b| b.is_ascii_uppercase())
    );
    assert!(
        terms
            .per_buyer_limit
            .is_none_or(|limit| (1..=10_000_000).contains(&limit))
    );
    assert!((1..=10_000_000).contains(&terms.max_per_order));
    let dearest = terms.unit_price_minor.checked_mul(terms.max_per_order.into());
    assert!(dearest.is_some(), "an order whose price can't be written down");
    assert!(terms.opens_at >= Timestamp::UNIX_EPOCH);
    assert!(terms.closes_at.is_none_or(|end| end > terms.opens_at));
}

/// The query of a page of sales.
pub(in crate::http) fn page(query: &[u8]) {
    let Ok(query) = std::str::from_utf8(query) else {
        return; // hyper hands out no such URI
    };
    match sales::Page::parse(query) {
        Ok(page) => {
            assert!((1..=100).contains(&page.limit));
            let after = page
                .after
                .map(|sale| format!("&after={sale}"))
                .unwrap_or_default();
            let again = format!("limit={}{after}", page.limit);
            assert_eq!(sales::Page::parse(&again), Ok(page));
        }
        Err(Problem::InvalidField(errors)) => {
            assert!((1..=20).contains(&errors.len()));
            for error in errors {
                let named = matches!(&*error.field, "limit" | "after") || query.contains(&*error.field);
                assert!(named, "{:?} is no parameter", error.field);
            }
        }
        Err(other) => panic!("{other:?}"),
    }
}

/// What was taken is an object without any other field, whoever reads it.
fn only(body: &[u8], known: &[&str]) -> Map<String, Value> {
    let object: Map<String, Value> = serde_json::from_slice(body).expect("what is taken is an object");
    for name in object.keys() {
        assert!(
            known.contains(&name.as_str()),
            "{name} was taken, and is no field"
        );
    }
    object
}

/// What was refused names at least one field, each known or one of the body's, and makes an answer of bounded size.
fn refused(problem: Problem, body: &[u8], known: &[&str]) {
    let Problem::InvalidField(errors) = &problem else {
        panic!("a body is refused by its fields, and not by {problem:?}");
    };
    assert!((1..=20).contains(&errors.len()));
    let object: Option<Map<String, Value>> = serde_json::from_slice(body).ok();
    for error in errors {
        assert!(!error.allowed.is_empty());
        let field: &str = &error.field;
        let of_the_body = object.as_ref().is_some_and(|object| {
            object.keys().any(|name| {
                name == field
                    || field
                        .strip_suffix("...")
                        .is_some_and(|start| name.starts_with(start))
            })
        });
        let whole = field == "body" && errors.len() == 1;
        assert!(
            known.contains(&field) || of_the_body || whole,
            "{field:?} is no field"
        );
        assert!(field.chars().count() <= 64 + 3);
    }
    if object.is_none() {
        assert_eq!(problem, Problem::field("body", "a JSON object"));
    }
    let response = problem.into_response();
    assert_eq!(response.status(), 400);
    let answer = futures_util::FutureExt::now_or_never(response.into_body().collect())
        .expect("an answer lies ready")
        .expect("an answer has no error")
        .to_bytes();
    assert!(answer.len() <= MAX_ANSWER_BYTES, "{} bytes", answer.len());
    let answer: Value = serde_json::from_slice(&answer).expect("an answer is JSON");
    assert_eq!(answer["type"], "urn:fluxbuy:problem:invalid_field");
}
