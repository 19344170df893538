//! Purchases, and what becomes of them.

use std::borrow::Cow;
use std::sync::Arc;

use hyper::body::Incoming;
use serde::Deserialize;

use super::Answer;
use crate::domain::{
    IdempotencyDigest, OrderId, OrderStatus, PaymentMethod, Purchase, RefundAsk, RefundReason, RequestId,
    SaleId,
};
use crate::http::door::{Call, Lost};
use crate::http::form::Form;
use crate::http::problem::Problem;
use crate::http::{FrontDesk, answer, extract};
use crate::metrics::{self, Outcome};

/// The largest quantity of a sale, hence of an order of any sale. What this one allows is checked at the sale.
pub(super) const MAX_UNITS: i32 = 10_000_000;

/// What is said of a payment method that can't be taken.
const PAYMENT_METHOD_ALLOWED: &str =
    "the payment provider's name for what is paid with, 1 to 255 visible ASCII characters";

/// The body of a purchase.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OrderBody<'a> {
    quantity: i32,
    #[serde(borrow, default)]
    payment_method: Option<Cow<'a, str>>,
}

/// What is wanted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) quantity: i32,
    pub(super) payment_method: Option<PaymentMethod>,
}

/// `POST /v1/sales/{id}/orders`
pub(super) async fn place<D: FrontDesk>(call: &Call<'_, D>, body: Incoming) -> Answer {
    let purchase = match read(call, body).await {
        Ok(purchase) => purchase,
        Err(problem) => {
            // What gets through to the desk is counted there.
            metrics::purchases(Outcome::Invalid);
            return Err(problem);
        }
    };
    let door = Arc::clone(call.door);
    match call
        .shielded(async move { door.desk.purchase(purchase).await })
        .await
    {
        Ok(Ok(accepted)) => {
            tracing::debug!(order_id = %accepted.order, replayed = accepted.replayed, "accepted");
            Ok(answer::accepted(&accepted))
        }
        Ok(Err(refusal)) => Err(refusal.into()),
        // The desk goes on, and counts the purchase as what it becomes.
        Err(Lost::TimedOut) => Err(Problem::OUTCOME_UNKNOWN),
        Err(Lost::Panicked) => {
            metrics::purchases(Outcome::OutcomeUnknown);
            Err(Problem::OUTCOME_UNKNOWN)
        }
    }
}

/// Everything is checked before anything is used up: neither the key nor a unit is touched by what is refused here.
async fn read<D: FrontDesk>(call: &Call<'_, D>, body: Incoming) -> Result<Purchase, Problem> {
    let headers = &call.parts.headers;
    let sale = extract::uuid(call.path_id)
        .map(SaleId)
        .ok_or(Problem::SaleNotFound)?;
    let buyer = extract::buyer(headers)?;
    let key = extract::idempotency_key(headers)?;
    let digest = IdempotencyDigest::of(&buyer, key);
    let Wanted {
        quantity,
        payment_method,
    } = wanted(&call.json_body(body).await?)?;
    if payment_method.is_none() && call.door.desk.needs_payment_method() {
        return Err(Problem::field("payment_method", PAYMENT_METHOD_ALLOWED));
    }
    Ok(Purchase {
        sale,
        buyer,
        digest,
        quantity,
        payment_method,
        request_id: Some(RequestId::new(call.request_id())),
    })
}

pub(super) fn wanted(body: &[u8]) -> Result<Wanted, Problem> {
    // Serde would take an array of the fields for the object, too.
    if body.trim_ascii_start().starts_with(b"{")
        && let Ok(OrderBody {
            quantity: quantity @ 1..=MAX_UNITS,
            payment_method: method,
        }) = serde_json::from_slice(body)
    {
        let payment_method = method.as_deref().and_then(PaymentMethod::parse);
        if payment_method.is_some() == method.is_some() {
            return Ok(Wanted {
                quantity,
                payment_method,
            });
        }
    }
    // Something is wrong: the slow way says what.
    wanted_by_form(body)
}

pub(super) fn wanted_by_form(body: &[u8]) -> Result<Wanted, Problem> {
    let mut form = Form::parse(body)?;
    let quantity = form.whole("quantity", 1..=i64::from(MAX_UNITS));
    let payment_method = form.optional("payment_method", PAYMENT_METHOD_ALLOWED, |value| {
        PaymentMethod::parse(value.as_str()?)
    });
    form.finish()?;
    Ok(Wanted {
        quantity: quantity.ok_or(Problem::Internal)?,
        payment_method,
    })
}

/// `GET /v1/orders/{id}`
pub(super) async fn show<D: FrontDesk>(call: &Call<'_, D>) -> Answer {
    let buyer = extract::buyer(&call.parts.headers)?;
    let id = order_id(call)?;
    let view = call
        .ask(call.door.desk.order(id, &buyer))
        .await?
        .map_err(|e| Problem::about_order(&e))?;
    if view.status == OrderStatus::Rejected {
        // Such a row only occupies the id; the order never was.
        return Err(Problem::OrderNotFound);
    }
    Ok(answer::order(&view))
}

/// `POST /v1/orders/{id}/cancel`
pub(super) async fn cancel<D: FrontDesk>(call: &Call<'_, D>) -> Answer {
    let buyer = extract::buyer(&call.parts.headers)?;
    let id = order_id(call)?;
    let door = Arc::clone(call.door);
    match call
        .shielded(async move { door.desk.cancel(id, &buyer).await })
        .await
    {
        Ok(cancelled) => Ok(answer::order(&cancelled?)),
        Err(_) => Err(Problem::OUTCOME_UNKNOWN),
    }
}

/// `POST /v1/orders/{id}/refund`
pub(super) async fn refund<D: FrontDesk>(call: &Call<'_, D>, body: Incoming) -> Answer {
    let id = order_id(call)?;
    let key = extract::idempotency_key(&call.parts.headers)?;
    let digest = IdempotencyDigest::of_refund(id, key);
    let ask = refund_ask(&call.json_body(body).await?, digest)?;
    let door = Arc::clone(call.door);
    match call
        .shielded(async move { door.desk.refund(id, ask).await })
        .await
    {
        Ok(refund) => Ok(answer::refund(&refund?)),
        Err(_) => Err(Problem::OUTCOME_UNKNOWN),
    }
}

pub(super) fn refund_ask(body: &[u8], digest: IdempotencyDigest) -> Result<RefundAsk, Problem> {
    let mut form = Form::parse(body)?;
    let amount_minor = form.optional_whole("amount_minor", 1..=i64::MAX);
    let return_units = form.optional("return_units", "true or false", serde_json::Value::as_bool);
    form.finish()?;
    Ok(RefundAsk {
        amount_minor,
        return_units: return_units.unwrap_or(false),
        reason: RefundReason::Requested,
        digest,
    })
}

fn order_id<D: FrontDesk>(call: &Call<'_, D>) -> Result<OrderId, Problem> {
    extract::uuid(call.path_id)
        .map(OrderId)
        .ok_or(Problem::OrderNotFound)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn s6_a_quantity_is_a_whole_number_of_units() {
        let allowed = "a whole number from 1 to 10000000";
        for wrong in [
            r#""1""#,
            "1.5",
            "1.0",
            "1e0",
            "-5",
            "0",
            "2147483648",
            "10000001",
            "null",
            "true",
            "[1]",
            "{}",
            "99999999999999999999",
        ] {
            let body = format!(r#"{{"quantity":{wrong}}}"#);
            assert_eq!(
                wanted(body.as_bytes()),
                Err(Problem::field("quantity", allowed)),
                "{wrong}"
            );
        }
        assert_eq!(wanted(b"{}"), Err(Problem::field("quantity", allowed)));
        assert_eq!(
            wanted(b"{\"quantity\":1,\"quantity\":1}"),
            Err(Problem::field("quantity", "once"))
        );
        let unknown = Problem::field("price", "no such field; there are quantity, payment_method");
        assert_eq!(wanted(b"{\"quantity\":1,\"price\":1}"), Err(unknown));
        assert_eq!(wanted(b""), Err(Problem::field("body", "a JSON object")));
        let units = |body: &[u8]| wanted(body).map(|wanted| (wanted.quantity, wanted.payment_method));
        assert_eq!(units(b"{\"quantity\":1}"), Ok((1, None)));
        assert_eq!(units(b" { \"quantity\" : 10000000 } "), Ok((10_000_000, None)));
    }

    #[test]
    fn a_payment_method_is_a_name_of_the_providers() {
        let method = |value: &str| {
            wanted(format!(r#"{{"quantity":1,"payment_method":{value}}}"#).as_bytes())
                .map(|wanted| wanted.payment_method)
        };
        assert_eq!(method(r#""pm_1""#), Ok(PaymentMethod::parse("pm_1")));
        assert_eq!(method("null"), Ok(None));
        for wrong in ["1", r#""""#, r#""a b""#, r#"["pm_1"]"#] {
            assert_eq!(
                method(wrong),
                Err(Problem::field("payment_method", PAYMENT_METHOD_ALLOWED)),
                "{wrong}"
            );
        }
    }

    proptest! {
        /// The quick way and the slow way agree: no body is good for one of them only.
        #[test]
        fn both_ways_of_reading_agree(body in any_body()) {
            let read = wanted(body.as_bytes());
            prop_assert_eq!(&read, &wanted_by_form(body.as_bytes()));
            match read {
                Ok(wanted) => prop_assert!((1..=MAX_UNITS).contains(&wanted.quantity)),
                Err(Problem::InvalidField(errors)) => prop_assert!(!errors.is_empty()),
                Err(other) => prop_assert!(false, "{:?}", other),
            }
        }
    }

    fn any_body() -> impl Strategy<Value = String> {
        let value = prop_oneof![
            any::<i64>().prop_map(|n| n.to_string()),
            (-2_i64..5).prop_map(|n| n.to_string()),
            any::<f64>().prop_map(|n| n.to_string()),
            Just("null".to_owned()),
            Just("[1]".to_owned()),
            "[ -~]{0,6}",
            "\"[ -~]{0,3}\"",
        ];
        let name = prop_oneof![
            Just("quantity".to_owned()),
            Just("payment_method".to_owned()),
            "[a-z]{0,3}"
        ];
        let field = (name, value).prop_map(|(name, value)| format!("\"{name}\":{value}"));
        prop_oneof![
            prop::collection::vec(field, 0..3).prop_map(|fields| format!("{{{}}}", fields.join(","))),
            (0..5_i64).prop_map(|n| format!("[{n}]")),
            ".{0,20}",
        ]
    }
}
