//! Client of the mock provider: one HTTP request per call, never repeated behind the caller's back.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use hyper::{Method, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;

use super::wire::{Ask, MAX_ANSWER_BYTES, Reply, Trouble, Wire};
use super::{
    CaptureOutcome, Charge, ChargeOutcome, Lookup, PaymentProvider, Reference, RefundOutcome, VoidOutcome,
};
use crate::domain::{BookEntry, ChargeName, Currency, Money, News, ProviderEvent, RefundName};

/// Largest book that is read: some two million charges.
const MAX_BOOK_BYTES: usize = 512 * 1024 * 1024;
/// How long reading it may take.
const BOOK_TIMEOUT: Duration = Duration::from_mins(5);

/// The mock provider behind an address.
pub struct MockProvider {
    wire: Wire,
    two_step: bool,
}

/// What an answer says of a charge.
#[derive(Debug, Deserialize)]
struct Answer {
    status: String,
    decline_code: Option<String>,
}

/// The provider's book.
#[derive(Debug, Deserialize)]
struct Book {
    charges: Vec<BookedCharge>,
}

#[derive(Debug, Deserialize)]
struct BookedCharge {
    reference: String,
    status: String,
    amount_minor: i64,
    currency: String,
    refunded_minor: i64,
}

impl MockProvider {
    /// A client of the provider at `url`, whose calls take at most `timeout`, with so many charges in flight. In two steps charges only set
    /// money aside.
    ///
    /// # Errors
    /// When the URL isn't one.
    pub fn new(url: &str, timeout: Duration, max_in_flight: usize, two_step: bool) -> anyhow::Result<Self> {
        Ok(Self {
            wire: Wire::new(url, None, timeout, max_in_flight)?,
            two_step,
        })
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<serde_json::Value>,
    ) -> Result<Reply, Trouble> {
        self.wire
            .exchange(Ask {
                method,
                path,
                content_type: "application/json",
                headers: &[],
                body: body.map(|body| body.to_string()).unwrap_or_default(),
                max_answer_bytes: MAX_ANSWER_BYTES,
                timeout: None,
            })
            .await
    }

    async fn ask(&self, method: Method, path: &str) -> Result<(StatusCode, Bytes), String> {
        let reply = self.exchange(method, path, None).await.map_err(Trouble::what)?;
        Ok((reply.status, reply.body))
    }
}

fn answer(status: StatusCode, body: &Bytes) -> Result<Answer, String> {
    if status != StatusCode::OK {
        return Err(format!("it answered {status}"));
    }
    serde_json::from_slice(body).map_err(|error| format!("unreadable answer: {error}"))
}

fn code(answer: Answer) -> String {
    answer.decline_code.unwrap_or_else(|| "unspecified".to_owned())
}

/// An event as the mock provider sends it.
#[derive(Debug, Deserialize)]
struct Told {
    id: String,
    r#type: String,
    reference: Option<String>,
    amount_minor: Option<i64>,
    currency: Option<String>,
    decline_code: Option<String>,
    refund: Option<String>,
}

/// The longest decline code that is kept, in characters.
const MAX_CODE_CHARS: usize = 100;

/// Reads an event of the mock provider.
pub fn read_event(body: &[u8]) -> Option<ProviderEvent> {
    let told: Told = serde_json::from_slice(body).ok()?;
    let news = match told.r#type.as_str() {
        "charge.authorised" => News::Authorised,
        "charge.succeeded" | "charge.updated" => News::Succeeded,
        "charge.declined" => News::Declined,
        "charge.voided" => News::Voided,
        "refund.succeeded" => News::Refunded,
        _ => News::Other,
    };
    let currency = told.currency.as_deref().and_then(Currency::parse);
    let code = told.decline_code.map(|code| {
        let printable = code.chars().filter(|c| !c.is_control());
        printable.take(MAX_CODE_CHARS).collect()
    });
    Some(ProviderEvent {
        id: told.id,
        kind: told.r#type,
        news,
        charge: told.reference.as_deref().and_then(ChargeName::parse),
        amount: told
            .amount_minor
            .zip(currency)
            .map(|(amount_minor, currency)| Money {
                amount_minor,
                currency,
            }),
        code,
        refund: told.refund.as_deref().and_then(RefundName::parse),
    })
}

impl PaymentProvider for MockProvider {
    fn name(&self) -> &'static str {
        "mock"
    }

    fn two_step(&self) -> bool {
        self.two_step
    }

    fn charge<'a>(&'a self, charge: &'a Charge) -> BoxFuture<'a, ChargeOutcome> {
        Box::pin(async move {
            let body = json!({
                "reference": charge.reference.as_str(),
                "amount_minor": charge.amount.amount_minor,
                "currency": charge.amount.currency.as_str(),
                "capture": !self.two_step,
            });
            let reply = match self.exchange(Method::POST, "/charges", Some(body)).await {
                Ok(reply) => reply,
                Err(Trouble::NotSent) => return ChargeOutcome::NotSent { retry_after: None },
                Err(Trouble::Unknown(what)) => return ChargeOutcome::Unknown { what },
            };
            match reply.status {
                // Turned away before anything was done.
                StatusCode::TOO_MANY_REQUESTS => {
                    return ChargeOutcome::NotSent {
                        retry_after: Some(reply.retry_after.unwrap_or(Duration::from_secs(1))),
                    };
                }
                // It is no request, and never will be: nothing was taken. (422 is another matter: it contradicts an earlier
                // request under this reference, which may have taken money, so only a look-up can tell.)
                StatusCode::BAD_REQUEST => {
                    return ChargeOutcome::Declined {
                        code: "invalid_request".to_owned(),
                    };
                }
                _ => {}
            }
            match answer(reply.status, &reply.body) {
                Ok(answer) if answer.status == "succeeded" => ChargeOutcome::Succeeded,
                Ok(answer) if answer.status == "authorised" => ChargeOutcome::Authorised,
                Ok(answer) if answer.status == "declined" => ChargeOutcome::Declined { code: code(answer) },
                Ok(answer) => ChargeOutcome::Unknown {
                    what: format!("it is {}", answer.status),
                },
                Err(what) => ChargeOutcome::Unknown { what },
            }
        })
    }

    fn capture<'a>(&'a self, charge: &'a Charge) -> BoxFuture<'a, CaptureOutcome> {
        Box::pin(async move {
            let path = format!("/charges/{}/capture", charge.reference.as_str());
            let outcome = self.ask(Method::POST, &path).await;
            match outcome.and_then(|(status, body)| answer(status, &body)) {
                Ok(answer) if answer.status == "succeeded" => CaptureOutcome::Captured,
                Ok(answer) => CaptureOutcome::Unknown {
                    what: format!("it is {}", answer.status),
                },
                Err(what) => CaptureOutcome::Unknown { what },
            }
        })
    }

    fn lookup<'a>(&'a self, charge: &'a Charge) -> BoxFuture<'a, Lookup> {
        Box::pin(async move {
            let found = match self
                .ask(Method::GET, &format!("/charges/{}", charge.reference.as_str()))
                .await
            {
                Ok((StatusCode::NOT_FOUND, _)) => return Lookup::NotFound,
                Ok((status, body)) => answer(status, &body),
                Err(what) => Err(what),
            };
            match found {
                Ok(answer) => match answer.status.as_str() {
                    "succeeded" => Lookup::Succeeded,
                    "authorised" => Lookup::Authorised,
                    "declined" => Lookup::Declined { code: code(answer) },
                    "voided" => Lookup::Voided,
                    "pending" => Lookup::Pending,
                    other => Lookup::Unreachable {
                        what: format!("it is {other}"),
                    },
                },
                Err(what) => Lookup::Unreachable { what },
            }
        })
    }

    fn void<'a>(&'a self, charge: &'a Charge) -> BoxFuture<'a, VoidOutcome> {
        Box::pin(async move {
            let path = format!("/charges/{}/void", charge.reference.as_str());
            let outcome = self
                .ask(Method::POST, &path)
                .await
                .and_then(|(status, body)| answer(status, &body));
            match outcome {
                Ok(answer) => match answer.status.as_str() {
                    "voided" => VoidOutcome::Voided,
                    "succeeded" => VoidOutcome::AlreadySucceeded,
                    "declined" => VoidOutcome::AlreadyDeclined { code: code(answer) },
                    other => VoidOutcome::Unreachable {
                        what: format!("it is {other}"),
                    },
                },
                Err(what) => VoidOutcome::Unreachable { what },
            }
        })
    }

    fn book(&self, _: Option<Timestamp>) -> BoxFuture<'_, Result<Vec<BookEntry>, String>> {
        Box::pin(async move {
            let reply = self
                .wire
                .exchange(Ask {
                    method: Method::GET,
                    path: "/book",
                    content_type: "application/json",
                    headers: &[],
                    body: String::new(),
                    max_answer_bytes: MAX_BOOK_BYTES,
                    timeout: Some(BOOK_TIMEOUT),
                })
                .await
                .map_err(Trouble::what)?;
            let Reply { status, body, .. } = reply;
            if status != StatusCode::OK {
                return Err(format!("it answered {status}"));
            }
            let book: Book =
                serde_json::from_slice(&body).map_err(|error| format!("unreadable book: {error}"))?;
            Ok(book
                .charges
                .into_iter()
                .map(|charge| BookEntry {
                    captured_minor: if charge.status == "succeeded" {
                        charge.amount_minor
                    } else {
                        0
                    },
                    authorised_minor: if charge.status == "authorised" {
                        charge.amount_minor
                    } else {
                        0
                    },
                    refunded_minor: charge.refunded_minor,
                    currency: Currency::parse(&charge.currency),
                    reference: charge.reference,
                })
                .collect())
        })
    }

    fn refund<'a>(
        &'a self,
        charge: &'a Charge,
        refund: &'a Reference,
        amount: Money,
    ) -> BoxFuture<'a, RefundOutcome> {
        Box::pin(async move {
            let path = format!("/charges/{}/refunds", charge.reference.as_str());
            let body = json!({
                "reference": refund.as_str(),
                "amount_minor": amount.amount_minor,
            });
            let status = match self.exchange(Method::POST, &path, Some(body)).await {
                Ok(reply) => reply.status,
                Err(trouble) => return RefundOutcome::Unreachable { what: trouble.what() },
            };
            match status {
                StatusCode::OK => RefundOutcome::Refunded,
                StatusCode::UNPROCESSABLE_ENTITY | StatusCode::NOT_FOUND => RefundOutcome::Refused {
                    code: status.to_string(),
                },
                status => RefundOutcome::Unreachable {
                    what: format!("it answered {status}"),
                },
            }
        })
    }
}
