//! Stripe: a `PaymentIntent` per charge, confirmed to set the money aside and captured to take it. Each real send is one HTTP request
//! of ours, and is counted.
//!
//! A `PaymentIntent` is confirmed only after its id was written down, and nothing is confirmed under another id: so a charge can't happen twice,
//! whatever becomes of Stripe's idempotency keys (which are forgotten after a day, and store errors too). Captures and cancellations go without
//! such a key: one intent is captured or cancelled once by what it is, and a stored error would stand in the way of the next try.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::BoxFuture;
use hyper::header::HeaderName;
use hyper::{Method, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::wire::{Ask, MAX_ANSWER_BYTES, Reply, Trouble, Wire};
use super::{
    CaptureOutcome, Charge, ChargeOutcome, Lookup, OpenOutcome, PaymentProvider, Reference, RefundOutcome,
    VoidOutcome,
};
use crate::domain::{BookEntry, ChargeName, Currency, Money, News, PaymentMethod, ProviderEvent, RefundName};

/// The header by which Stripe tells a repeat.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Where our names are, in the metadata of intents and of refunds.
const CHARGE: &str = "fluxbuy_charge";
const REFUND: &str = "fluxbuy_refund";
/// Objects on a page of a list: as many as Stripe allows.
const PAGE: usize = 100;
/// Largest page that is read.
const MAX_PAGE_BYTES: usize = 4 * 1024 * 1024;
/// A charge of which Stripe wants the buyer's presence is cancelled: the buyer isn't there.
const AUTHENTICATION_REQUIRED: &str = "authentication_required";

/// A Stripe account.
pub struct Stripe {
    wire: Wire,
}

#[derive(Debug, Deserialize)]
struct Intent {
    id: String,
    status: String,
    amount: i64,
    amount_received: Option<i64>,
    currency: String,
    #[serde(default)]
    metadata: HashMap<String, String>,
    last_payment_error: Option<Failure>,
}

#[derive(Debug, Deserialize)]
struct Refund {
    id: String,
    status: Option<String>,
    amount: i64,
    payment_intent: Option<String>,
    #[serde(default)]
    metadata: HashMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Page<T> {
    data: Vec<T>,
    has_more: bool,
}

/// Something that has an id, by which lists go on.
trait Listed {
    fn id(&self) -> &str;
}

impl Listed for Intent {
    fn id(&self) -> &str {
        &self.id
    }
}

impl Listed for Refund {
    fn id(&self) -> &str {
        &self.id
    }
}

#[derive(Debug, Default, Deserialize)]
struct Failure {
    code: Option<String>,
    decline_code: Option<String>,
    r#type: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Problem {
    #[serde(default)]
    error: Failure,
}

impl Failure {
    fn code(self) -> String {
        self.decline_code
            .or(self.code)
            .or(self.r#type)
            .unwrap_or_else(|| "unspecified".to_owned())
    }
}

impl Intent {
    fn is_refused(&self) -> bool {
        self.status == "requires_payment_method" && self.last_payment_error.is_some()
    }

    fn code(self) -> String {
        self.last_payment_error.unwrap_or_default().code()
    }

    fn captured_minor(&self) -> i64 {
        match self.status.as_str() {
            "succeeded" => self.amount_received.unwrap_or(self.amount),
            _ => 0,
        }
    }
}

impl Refund {
    fn counts(&self) -> bool {
        !matches!(self.status.as_deref(), Some("failed" | "canceled"))
    }
}

/// Why Stripe turned a request away.
fn problem(reply: &Reply) -> String {
    let problem: Problem = serde_json::from_slice(&reply.body).unwrap_or_default();
    format!("{} {}", reply.status.as_u16(), problem.error.code())
}

fn decline_code(reply: &Reply) -> String {
    let problem: Problem = serde_json::from_slice(&reply.body).unwrap_or_default();
    problem.error.code()
}

fn read<T: DeserializeOwned>(reply: &Reply) -> Result<T, String> {
    if reply.status != StatusCode::OK {
        return Err(format!("it answered {}", problem(reply)));
    }
    serde_json::from_slice(&reply.body).map_err(|error| format!("unreadable answer: {error}"))
}

/// The pause that a 429 asks for.
fn pause(reply: &Reply) -> Duration {
    reply.retry_after.unwrap_or(Duration::from_secs(1))
}

impl Stripe {
    /// The account whose secret key this is, at `url`, whose answers take at most `timeout`, with so many charges in flight.
    ///
    /// # Errors
    /// When the URL or the key can't be used.
    pub fn new(url: &str, secret_key: &str, timeout: Duration, max_in_flight: usize) -> anyhow::Result<Self> {
        Ok(Self {
            wire: Wire::new(url, Some(secret_key), timeout, max_in_flight)?,
        })
    }

    async fn post(
        &self,
        path: &str,
        idempotency_key: Option<&str>,
        fields: &[(&str, &str)],
    ) -> Result<Reply, Trouble> {
        let body = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(fields)
            .finish();
        let key = idempotency_key.map(|key| (IDEMPOTENCY_KEY, key));
        self.wire
            .exchange(Ask {
                method: Method::POST,
                path,
                content_type: "application/x-www-form-urlencoded",
                headers: key.as_slice(),
                body,
                max_answer_bytes: MAX_ANSWER_BYTES,
                timeout: None,
            })
            .await
    }

    async fn get(&self, path: &str, max_answer_bytes: usize) -> Result<Reply, String> {
        self.wire
            .exchange(Ask {
                method: Method::GET,
                path,
                content_type: "application/x-www-form-urlencoded",
                headers: &[],
                body: String::new(),
                max_answer_bytes,
                timeout: None,
            })
            .await
            .map_err(Trouble::what)
    }

    async fn intent(&self, id: &str) -> Result<Intent, String> {
        read(
            &self
                .get(&format!("/v1/payment_intents/{id}"), MAX_ANSWER_BYTES)
                .await?,
        )
    }

    /// All of a list, page by page. `path` has its question already, or none.
    async fn list<T: DeserializeOwned + Listed>(&self, path: &str) -> Result<Vec<T>, String> {
        let mut all: Vec<T> = Vec::new();
        loop {
            let join = if path.contains('?') { '&' } else { '?' };
            let mut page = format!("{path}{join}limit={PAGE}");
            if let Some(last) = all.last() {
                page = format!("{page}&starting_after={}", last.id());
            }
            let Page { data, has_more } = read(&self.get(&page, MAX_PAGE_BYTES).await?)?;
            let end = data.is_empty() || !has_more;
            all.extend(data);
            if end {
                return Ok(all);
            }
        }
    }

    /// Cancels, whatever the intent is; its state tells what came of it.
    async fn cancel(&self, id: &str) -> Result<Intent, String> {
        let path = format!("/v1/payment_intents/{id}/cancel");
        let reply = self.post(&path, None, &[]).await.map_err(Trouble::what)?;
        match reply.status {
            // It can't be cancelled any more, or is: look at what it is instead.
            StatusCode::BAD_REQUEST => self.intent(id).await,
            _ => read(&reply),
        }
    }
}

/// Where an intent's charge stands.
fn standing(intent: Intent) -> Lookup {
    match intent.status.as_str() {
        "requires_capture" => Lookup::Authorised,
        "succeeded" => Lookup::Succeeded,
        "canceled" => Lookup::Voided,
        _ if intent.is_refused() => Lookup::Declined { code: intent.code() },
        // Opened, and never confirmed.
        "requires_confirmation" | "requires_payment_method" => Lookup::NotFound,
        "processing" | "requires_action" => Lookup::Pending,
        other => Lookup::Unreachable {
            what: format!("it is {other}"),
        },
    }
}

impl PaymentProvider for Stripe {
    fn name(&self) -> &'static str {
        "stripe"
    }

    fn two_step(&self) -> bool {
        true
    }

    fn needs_payment_method(&self) -> bool {
        true
    }

    fn opens_charges(&self) -> bool {
        true
    }

    fn open<'a>(&'a self, charge: &'a Charge) -> BoxFuture<'a, OpenOutcome> {
        Box::pin(async move {
            let Some(method) = charge.payment_method.as_ref().map(PaymentMethod::as_str) else {
                return OpenOutcome::Declined {
                    code: "no_payment_method".to_owned(),
                };
            };
            let (amount, currency) = (
                charge.amount.amount_minor.to_string(),
                charge.amount.currency.as_str().to_ascii_lowercase(),
            );
            let fields = [
                ("amount", amount.as_str()),
                ("currency", &currency),
                ("capture_method", "manual"),
                ("payment_method", method),
                ("payment_method_types[]", "card"),
                (&format!("metadata[{CHARGE}]"), charge.reference.as_str()),
            ];
            let key = format!("{}:open", charge.reference.as_str());
            let reply = match self.post("/v1/payment_intents", Some(&key), &fields).await {
                Ok(reply) => reply,
                Err(trouble) => {
                    return OpenOutcome::Unreachable {
                        what: trouble.what(),
                        retry_after: None,
                    };
                }
            };
            match reply.status {
                // It is no charge, and never will be: an unknown payment method, an amount too small.
                StatusCode::BAD_REQUEST | StatusCode::PAYMENT_REQUIRED | StatusCode::NOT_FOUND => {
                    OpenOutcome::Declined {
                        code: decline_code(&reply),
                    }
                }
                StatusCode::TOO_MANY_REQUESTS => OpenOutcome::Unreachable {
                    what: problem(&reply),
                    retry_after: Some(pause(&reply)),
                },
                _ => match read::<Intent>(&reply) {
                    Ok(intent) => OpenOutcome::Opened(intent.id),
                    Err(what) => OpenOutcome::Unreachable {
                        what,
                        retry_after: None,
                    },
                },
            }
        })
    }

    fn charge<'a>(&'a self, charge: &'a Charge) -> BoxFuture<'a, ChargeOutcome> {
        Box::pin(async move {
            let Some(id) = charge.provider_id.as_deref() else {
                return ChargeOutcome::NotSent { retry_after: None };
            };
            let path = format!("/v1/payment_intents/{id}/confirm");
            let key = format!("{}:confirm", charge.reference.as_str());
            let reply = match self.post(&path, Some(&key), &[]).await {
                Ok(reply) => reply,
                Err(Trouble::NotSent) => return ChargeOutcome::NotSent { retry_after: None },
                Err(Trouble::Unknown(what)) => return ChargeOutcome::Unknown { what },
            };
            match reply.status {
                StatusCode::PAYMENT_REQUIRED => ChargeOutcome::Declined {
                    code: decline_code(&reply),
                },
                StatusCode::TOO_MANY_REQUESTS => ChargeOutcome::NotSent {
                    retry_after: Some(pause(&reply)),
                },
                // Whoever asks isn't known there: nothing was done.
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                    ChargeOutcome::NotSent { retry_after: None }
                }
                _ => match read::<Intent>(&reply) {
                    Ok(intent) if intent.status == "requires_capture" => ChargeOutcome::Authorised,
                    Ok(intent) if intent.status == "succeeded" => ChargeOutcome::Succeeded,
                    Ok(intent) if intent.is_refused() => ChargeOutcome::Declined { code: intent.code() },
                    Ok(intent) if intent.status == "requires_action" => match self.cancel(id).await {
                        Ok(intent) if intent.status == "canceled" => ChargeOutcome::Declined {
                            code: AUTHENTICATION_REQUIRED.to_owned(),
                        },
                        Ok(intent) => ChargeOutcome::Unknown {
                            what: format!("it is {}", intent.status),
                        },
                        Err(what) => ChargeOutcome::Unknown { what },
                    },
                    // Also what was confirmed before: only a look can tell.
                    Ok(intent) => ChargeOutcome::Unknown {
                        what: format!("it is {}", intent.status),
                    },
                    Err(what) => ChargeOutcome::Unknown { what },
                },
            }
        })
    }

    fn capture<'a>(&'a self, charge: &'a Charge) -> BoxFuture<'a, CaptureOutcome> {
        Box::pin(async move {
            let unknown = |what| CaptureOutcome::Unknown { what };
            let Some(id) = charge.provider_id.as_deref() else {
                return unknown("it has no name there".to_owned());
            };
            let path = format!("/v1/payment_intents/{id}/capture");
            match self.post(&path, None, &[]).await.map_err(Trouble::what) {
                Ok(reply) => match read::<Intent>(&reply) {
                    Ok(intent) if intent.status == "succeeded" => CaptureOutcome::Captured,
                    Ok(intent) => unknown(format!("it is {}", intent.status)),
                    Err(what) => unknown(what),
                },
                Err(what) => unknown(what),
            }
        })
    }

    fn lookup<'a>(&'a self, charge: &'a Charge) -> BoxFuture<'a, Lookup> {
        Box::pin(async move {
            // Nothing was ever confirmed without its id being written down first.
            let Some(id) = charge.provider_id.as_deref() else {
                return Lookup::NotFound;
            };
            match self.intent(id).await {
                Ok(intent) => standing(intent),
                Err(what) => Lookup::Unreachable { what },
            }
        })
    }

    fn void<'a>(&'a self, charge: &'a Charge) -> BoxFuture<'a, VoidOutcome> {
        Box::pin(async move {
            // An id that comes later is written down only for a payment that is open, and this one is about to be closed.
            let Some(id) = charge.provider_id.as_deref() else {
                return VoidOutcome::Voided;
            };
            match self.cancel(id).await.map(standing) {
                Ok(Lookup::Voided) => VoidOutcome::Voided,
                Ok(Lookup::Succeeded) => VoidOutcome::AlreadySucceeded,
                Ok(Lookup::Declined { code }) => VoidOutcome::AlreadyDeclined { code },
                Ok(other) => VoidOutcome::Unreachable {
                    what: format!("it can't be cancelled: {other:?}"),
                },
                Err(what) => VoidOutcome::Unreachable { what },
            }
        })
    }

    /// Two requests: first it is looked whether the refund is there already, for keys are forgotten, and what is left of the charge.
    fn refund<'a>(
        &'a self,
        charge: &'a Charge,
        refund: &'a Reference,
        amount: Money,
    ) -> BoxFuture<'a, RefundOutcome> {
        Box::pin(async move {
            let unreachable = |what| RefundOutcome::Unreachable { what };
            let refused = |code: &str| RefundOutcome::Refused {
                code: code.to_owned(),
            };
            let Some(id) = charge.provider_id.as_deref() else {
                return refused("it has no name there");
            };
            let made: Vec<Refund> = match self.list(&format!("/v1/refunds?payment_intent={id}")).await {
                Ok(made) => made,
                Err(what) => return unreachable(what),
            };
            let counted = made.iter().filter(|made| made.counts());
            if counted
                .clone()
                .any(|made| made.metadata.get(REFUND).map(String::as_str) == Some(refund.as_str()))
            {
                return RefundOutcome::Refunded;
            }
            let before: i64 = counted.map(|made| made.amount).sum();
            if before.saturating_add(amount.amount_minor) > charge.amount.amount_minor {
                return refused("more than is left");
            }
            let minor = amount.amount_minor.to_string();
            let fields = [
                ("payment_intent", id),
                ("amount", minor.as_str()),
                (&format!("metadata[{REFUND}]"), refund.as_str()),
            ];
            let reply = match self.post("/v1/refunds", Some(refund.as_str()), &fields).await {
                Ok(reply) => reply,
                Err(trouble) => return unreachable(trouble.what()),
            };
            match reply.status {
                StatusCode::BAD_REQUEST | StatusCode::PAYMENT_REQUIRED | StatusCode::NOT_FOUND => {
                    refused(&problem(&reply))
                }
                _ => match read::<Refund>(&reply) {
                    Ok(made) if made.counts() => RefundOutcome::Refunded,
                    Ok(_) => refused("it failed"),
                    Err(what) => unreachable(what),
                },
            }
        })
    }

    fn book(&self, since: Option<Timestamp>) -> BoxFuture<'_, Result<Vec<BookEntry>, String>> {
        Box::pin(async move {
            // Refunds are made after their intents: those of what was begun since were made since.
            let since = since.map_or_else(String::new, |since| {
                format!("?created[gte]={}", since.as_second())
            });
            let intents: Vec<Intent> = self.list(&format!("/v1/payment_intents{since}")).await?;
            let mut refunded: HashMap<String, i64> = HashMap::new();
            for refund in self.list::<Refund>(&format!("/v1/refunds{since}")).await? {
                if let (true, Some(intent)) = (refund.counts(), refund.payment_intent) {
                    *refunded.entry(intent).or_default() += refund.amount;
                }
            }
            // What isn't ours in the account has none of our names.
            Ok(intents
                .into_iter()
                .filter_map(|intent| {
                    Some(BookEntry {
                        captured_minor: intent.captured_minor(),
                        authorised_minor: if intent.status == "requires_capture" {
                            intent.amount
                        } else {
                            0
                        },
                        refunded_minor: refunded.remove(&intent.id).unwrap_or(0),
                        currency: Currency::parse(&intent.currency.to_ascii_uppercase()),
                        reference: intent.metadata.get(CHARGE)?.clone(),
                    })
                })
                .collect())
        })
    }
}

/// An event as Stripe sends it.
#[derive(Deserialize)]
struct Told {
    id: String,
    r#type: String,
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    object: serde_json::Value,
}

/// Reads an event of Stripe. A payment that failed is only a hint: the answer to the confirmation, or a look, tells for good.
pub fn read_event(body: &[u8]) -> Option<ProviderEvent> {
    let Told { id, r#type, data } = serde_json::from_slice(body).ok()?;
    let money = |amount_minor: i64, currency: &str| {
        Currency::parse(&currency.to_ascii_uppercase()).map(|currency| Money {
            amount_minor,
            currency,
        })
    };
    let mut event = ProviderEvent {
        id,
        kind: r#type,
        news: News::Other,
        charge: None,
        amount: None,
        code: None,
        refund: None,
    };
    let news = match event.kind.as_str() {
        "payment_intent.amount_capturable_updated" => News::Authorised,
        "payment_intent.succeeded" => News::Succeeded,
        "payment_intent.canceled" => News::Voided,
        "refund.created" | "refund.updated" => News::Refunded,
        _ => return Some(event),
    };
    if news == News::Refunded {
        let refund: Refund = serde_json::from_value(data.object).ok()?;
        event.refund = refund
            .metadata
            .get(REFUND)
            .and_then(|name| RefundName::parse(name));
        event.charge = event.refund.map(|refund| refund.charge);
        // One that is under way, or failed, says nothing yet.
        if refund.status.as_deref() == Some("succeeded") && event.refund.is_some() {
            event.news = news;
        }
        return Some(event);
    }
    let intent: Intent = serde_json::from_value(data.object).ok()?;
    event.charge = intent
        .metadata
        .get(CHARGE)
        .and_then(|name| ChargeName::parse(name));
    event.amount = money(
        match news {
            News::Succeeded => intent.amount_received.unwrap_or(intent.amount),
            _ => intent.amount,
        },
        &intent.currency,
    );
    event.news = news;
    Some(event)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::domain::OrderId;

    fn intent(status: &str, error: &Value) -> Intent {
        serde_json::from_value(json!({
            "id": "pi_1", "object": "payment_intent", "status": status, "amount": 500, "currency": "eur",
            "metadata": {}, "last_payment_error": error,
        }))
        .unwrap()
    }

    #[test]
    fn what_an_intent_says_of_its_charge() {
        let none = || Value::Null;
        for (status, error, expected) in [
            ("requires_confirmation", none(), Lookup::NotFound),
            ("requires_payment_method", none(), Lookup::NotFound),
            ("requires_action", none(), Lookup::Pending),
            ("processing", none(), Lookup::Pending),
            ("requires_capture", none(), Lookup::Authorised),
            ("succeeded", none(), Lookup::Succeeded),
            ("canceled", none(), Lookup::Voided),
            (
                "requires_payment_method",
                json!({"code": "card_declined", "decline_code": "insufficient_funds"}),
                Lookup::Declined {
                    code: "insufficient_funds".to_owned(),
                },
            ),
        ] {
            assert_eq!(standing(intent(status, &error)), expected, "{status}");
        }
        assert!(matches!(
            standing(intent("something new", &none())),
            Lookup::Unreachable { .. }
        ));
    }

    fn event(kind: &str, object: &Value) -> ProviderEvent {
        let body = json!({"id": "evt_1", "object": "event", "type": kind, "data": {"object": object}});
        read_event(body.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn events_about_intents() {
        let order = OrderId::fresh();
        let object = json!({
            "id": "pi_1", "object": "payment_intent", "status": "succeeded", "amount": 500, "amount_received": 500,
            "currency": "eur", "metadata": {CHARGE: format!("{order}:1")}, "last_payment_error": null,
        });
        for (kind, news) in [
            ("payment_intent.amount_capturable_updated", News::Authorised),
            ("payment_intent.succeeded", News::Succeeded),
            ("payment_intent.canceled", News::Voided),
        ] {
            let event = event(kind, &object);
            assert_eq!((event.news, event.id.as_str()), (news, "evt_1"), "{kind}");
            assert_eq!(event.charge, Some(ChargeName { order, attempt: 1 }));
            assert_eq!(
                event.amount,
                Some(Money {
                    amount_minor: 500,
                    currency: Currency::parse("EUR").unwrap(),
                })
            );
        }
        for hint in [
            "payment_intent.payment_failed",
            "charge.refunded",
            "customer.created",
        ] {
            let event = event(hint, &object);
            assert_eq!((event.news, event.charge), (News::Other, None), "{hint}");
        }
        assert_eq!(read_event(b"{}"), None);
        assert_eq!(
            read_event(br#"{"id":"e","type":"payment_intent.succeeded","data":{"object":{}}}"#),
            None
        );
    }

    #[test]
    fn events_about_refunds() {
        let order = OrderId::fresh();
        let refund = |status: &str, name: &str| {
            let object = json!({
                "id": "re_1", "object": "refund", "status": status, "amount": 200, "payment_intent": "pi_1",
                "metadata": {REFUND: name},
            });
            let event = event("refund.updated", &object);
            (event.news, event.refund.map(|refund| refund.number))
        };
        let name = format!("{order}:1:refund:2");
        assert_eq!(refund("succeeded", &name), (News::Refunded, Some(2)));
        assert_eq!(refund("pending", &name), (News::Other, Some(2)));
        assert_eq!(refund("failed", &name), (News::Other, Some(2)));
        assert_eq!(refund("succeeded", "somebody else's"), (News::Other, None));
    }
}
