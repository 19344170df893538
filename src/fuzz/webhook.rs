//! Bodies of webhooks that are signed as they must be: whatever they hold, an event says no more than its body does, and can be
//! written down.

use hyper::HeaderMap;
use hyper::header::HeaderValue;
use serde_json::{Value, json};

use super::signature::{NOW_SECS, key, verifier};
use crate::domain::{ChargeName, News, ProviderEvent, RefundName};
use crate::metrics::ProviderName;
use crate::provider::webhook::{Reader, Refused, Webhooks};
use crate::provider::{mock, stripe};
use crate::signature::{Scheme, sign};

/// Comes in as the provider's own request does.
fn receive(scheme: Scheme, provider: ProviderName, reader: Reader, body: &[u8]) -> Option<ProviderEvent> {
    let webhooks = Webhooks {
        provider,
        verifier: verifier(scheme, &[0, 1]),
        reader,
    };
    let mut headers = HeaderMap::new();
    for (name, value) in sign(scheme, &key(scheme, 1), "msg_1", NOW_SECS, body) {
        headers.insert(
            name,
            HeaderValue::from_str(&value).expect("a signature is visible ASCII"),
        );
    }
    match webhooks.receive(&headers, body, NOW_SECS) {
        Ok(event) => Some(event),
        Err(refused) => {
            assert_eq!(refused, Refused::Unreadable, "it was signed");
            None
        }
    }
}

/// The mock provider's.
pub(super) fn mock(body: &[u8]) {
    let of = |body: &[u8]| receive(Scheme::Standard, ProviderName::Mock, mock::read_event, body);
    let Some(event) = of(body) else {
        return;
    };
    can_be_written_down(&event);
    if let Some(told) = object(body) {
        assert_eq!(told["id"], json!(event.id));
        assert_eq!(told["type"], json!(event.kind));
        assert!(
            event
                .charge
                .is_none_or(|charge| told["reference"] == json!(charge_name(charge)))
        );
        assert!(
            event
                .refund
                .is_none_or(|refund| told["refund"] == json!(refund_name(refund)))
        );
        assert!(
            event
                .amount
                .is_none_or(|money| told["amount_minor"] == json!(money.amount_minor))
        );
    }
    let again = json!({
        "id": event.id, "type": event.kind, "reference": event.charge.map(charge_name),
        "amount_minor": event.amount.map(|money| money.amount_minor),
        "currency": event.amount.map(|money| money.currency.as_str().to_owned()),
        "decline_code": event.code, "refund": event.refund.map(refund_name),
    });
    assert_eq!(of(again.to_string().as_bytes()), Some(event));
}

/// Stripe's.
pub(super) fn stripe(body: &[u8]) {
    let of = |body: &[u8]| receive(Scheme::Stripe, ProviderName::Stripe, stripe::read_event, body);
    let Some(event) = of(body) else {
        return;
    };
    can_be_written_down(&event);
    if let Some(told) = object(body) {
        assert_eq!(told["id"], json!(event.id));
        assert_eq!(told["type"], json!(event.kind));
        let text = told["data"]["object"].to_string();
        assert!(
            event
                .charge
                .is_none_or(|charge| text.contains(&charge_name(charge)))
        );
        assert!(
            event
                .refund
                .is_none_or(|refund| text.contains(&refund_name(refund)))
        );
    }
    assert_eq!(
        event.refund.map(|refund| refund.charge).or(event.charge),
        event.charge
    );
    assert!(
        event.news != News::Refunded || event.refund.is_some(),
        "a refund without its name"
    );
    let about_a_refund = event.kind.starts_with("refund.");
    // A currency that is none is read as no amount.
    let (amount, currency) = event.amount.map_or((0, "none".to_owned()), |money| {
        (money.amount_minor, money.currency.as_str().to_ascii_lowercase())
    });
    let told = if about_a_refund {
        json!({
            "id": "re_1", "amount": 1,
            "status": if event.news == News::Refunded { "succeeded" } else { "pending" },
            "metadata": event.refund.map_or(json!({}), |refund| json!({"fluxbuy_refund": refund_name(refund)})),
        })
    } else {
        json!({
            "id": "pi_1", "status": "any", "amount": amount, "currency": currency,
            "metadata": event.charge.map_or(json!({}), |charge| json!({"fluxbuy_charge": charge_name(charge)})),
        })
    };
    let again = json!({"id": event.id, "type": event.kind, "data": {"object": told}});
    assert_eq!(of(again.to_string().as_bytes()), Some(event));
}

/// What the columns of the inbox take.
fn can_be_written_down(event: &ProviderEvent) {
    let visible = |text: &str| (1..=255).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    assert!(visible(&event.id) && visible(&event.kind));
    assert!(event.charge.is_none_or(|charge| charge.attempt > 0));
    assert!(event.refund.is_none_or(|refund| refund.number >= 0));
    if let Some(code) = &event.code {
        assert!(code.chars().count() <= 100 && !code.chars().any(char::is_control));
    }
    for charge in event
        .charge
        .into_iter()
        .chain(event.refund.map(|refund| refund.charge))
    {
        assert_eq!(ChargeName::parse(&charge_name(charge)), Some(charge));
    }
    if let Some(refund) = event.refund {
        assert_eq!(RefundName::parse(&refund_name(refund)), Some(refund));
    }
}

/// The body as somebody else reads it. What isn't UTF-8 in a field that nobody reads is passed over by one and refused by the other.
fn object(body: &[u8]) -> Option<Value> {
    std::str::from_utf8(body).ok()?;
    let value: Value = serde_json::from_slice(body).expect("an event is JSON");
    assert!(value.is_object(), "{value} was read as an event");
    Some(value)
}

fn charge_name(charge: ChargeName) -> String {
    format!("{}:{}", charge.order, charge.attempt)
}

fn refund_name(refund: RefundName) -> String {
    match refund.number {
        0 => format!("{}:refund", charge_name(refund.charge)),
        number => format!("{}:refund:{number}", charge_name(refund.charge)),
    }
}
