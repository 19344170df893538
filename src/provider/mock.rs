//! Client of the mock provider: one HTTP request per call, never repeated behind the caller's back.

use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::Deserialize;
use serde_json::json;

use super::{ChargeOutcome, Lookup, PaymentProvider, Reference, RefundOutcome, VoidOutcome};
use crate::domain::{BookEntry, ChargeName, Currency, Money, News, ProviderEvent, RefundName};

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest answer that is read.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// Largest book that is read: some two million charges.
const MAX_BOOK_BYTES: usize = 512 * 1024 * 1024;

/// The mock provider behind an address.
pub struct MockProvider {
    client: Client<HttpConnector, Full<Bytes>>,
    base: String,
    timeout: Duration,
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

/// An exchange that brought no usable answer.
#[derive(Debug)]
enum Trouble {
    /// There was no connection: nothing left.
    NotSent,
    /// It may have arrived.
    Unknown(String),
}

impl MockProvider {
    /// A client of the provider at `url`, whose calls take at most `timeout`. It keeps as many connections as there may be
    /// charges in flight: with fewer, each commit of claims would have it close what it needs again for the next.
    ///
    /// # Errors
    /// When the URL isn't one.
    pub fn new(url: &str, timeout: Duration, max_in_flight: usize) -> anyhow::Result<Self> {
        let base = url.trim_end_matches('/').to_owned();
        base.parse::<Uri>()
            .ok()
            .filter(|uri| uri.scheme_str() == Some("http") && uri.authority().is_some())
            .with_context(|| format!("provider.url: {base:?} isn't an http:// address"))?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(max_in_flight)
            // A repeat that nobody decided on, and nobody counted, could be a second charge.
            .retry_canceled_requests(false)
            .build(connector);
        Ok(Self {
            client,
            base,
            timeout,
        })
    }

    /// One request: its status, the pause it asks for, and its body.
    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<serde_json::Value>,
    ) -> Result<(StatusCode, Option<Duration>, Bytes), Trouble> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(
                body.map(|body| body.to_string()).unwrap_or_default().into(),
            ))
            .map_err(|_| Trouble::NotSent)?;
        let exchange = async {
            let response = self.client.request(request).await.map_err(|error| {
                if error.is_connect() {
                    Trouble::NotSent
                } else {
                    Trouble::Unknown(describe(&error))
                }
            })?;
            let status = response.status();
            let retry_after = response
                .headers()
                .get(RETRY_AFTER)
                .and_then(|value| value.to_str().ok()?.parse().ok())
                .map(Duration::from_secs);
            let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES)
                .collect()
                .await
                .map_err(|error| Trouble::Unknown(error.to_string()))?;
            Ok((status, retry_after, body.to_bytes()))
        };
        tokio::time::timeout(self.timeout, exchange)
            .await
            .unwrap_or_else(|_| Err(Trouble::Unknown(format!("no answer within {:?}", self.timeout))))
    }

    async fn ask(&self, method: Method, path: &str) -> Result<(StatusCode, Bytes), String> {
        match self.exchange(method, path, None).await {
            Ok((status, _, body)) => Ok((status, body)),
            Err(Trouble::NotSent) => Err("it can't be reached".to_owned()),
            Err(Trouble::Unknown(what)) => Err(what),
        }
    }
}

fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
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

    fn charge<'a>(&'a self, reference: &'a Reference, amount: Money) -> BoxFuture<'a, ChargeOutcome> {
        Box::pin(async move {
            let body = json!({
                "reference": reference.as_str(),
                "amount_minor": amount.amount_minor,
                "currency": amount.currency.as_str(),
            });
            match self.exchange(Method::POST, "/charges", Some(body)).await {
                Err(Trouble::NotSent) => ChargeOutcome::NotSent { retry_after: None },
                Err(Trouble::Unknown(what)) => ChargeOutcome::Unknown { what },
                // Turned away before anything was done.
                Ok((StatusCode::TOO_MANY_REQUESTS, retry_after, _)) => ChargeOutcome::NotSent {
                    retry_after: Some(retry_after.unwrap_or(Duration::from_secs(1))),
                },
                // It is no request, and never will be: nothing was taken. (422 is another matter: it contradicts an earlier
                // request under this reference, which may have taken money, so only a look-up can tell.)
                Ok((StatusCode::BAD_REQUEST, ..)) => ChargeOutcome::Declined {
                    code: "invalid_request".to_owned(),
                },
                Ok((status, _, body)) => match answer(status, &body) {
                    Ok(answer) if answer.status == "succeeded" => ChargeOutcome::Succeeded,
                    Ok(answer) if answer.status == "declined" => {
                        ChargeOutcome::Declined { code: code(answer) }
                    }
                    Ok(answer) => ChargeOutcome::Unknown {
                        what: format!("it is {}", answer.status),
                    },
                    Err(what) => ChargeOutcome::Unknown { what },
                },
            }
        })
    }

    fn lookup<'a>(&'a self, reference: &'a Reference) -> BoxFuture<'a, Lookup> {
        Box::pin(async move {
            let found = match self
                .ask(Method::GET, &format!("/charges/{}", reference.as_str()))
                .await
            {
                Ok((StatusCode::NOT_FOUND, _)) => return Lookup::NotFound,
                Ok((status, body)) => answer(status, &body),
                Err(what) => Err(what),
            };
            match found {
                Ok(answer) => match answer.status.as_str() {
                    "succeeded" => Lookup::Succeeded,
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

    fn void<'a>(&'a self, reference: &'a Reference) -> BoxFuture<'a, VoidOutcome> {
        Box::pin(async move {
            let path = format!("/charges/{}/void", reference.as_str());
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

    fn book(&self) -> BoxFuture<'_, Result<Vec<BookEntry>, String>> {
        Box::pin(async move {
            let request = Request::builder()
                .uri(format!("{}/book", self.base))
                .body(Full::default())
                .map_err(|error| error.to_string())?;
            let response = self
                .client
                .request(request)
                .await
                .map_err(|error| describe(&error))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_BOOK_BYTES)
                .collect()
                .await
                .map_err(|error| error.to_string())?
                .to_bytes();
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
                    refunded_minor: charge.refunded_minor,
                    currency: Currency::parse(&charge.currency),
                    reference: charge.reference,
                })
                .collect())
        })
    }

    fn refund<'a>(
        &'a self,
        charge: &'a Reference,
        refund: &'a Reference,
        amount: Money,
    ) -> BoxFuture<'a, RefundOutcome> {
        Box::pin(async move {
            let path = format!("/charges/{}/refunds", charge.as_str());
            let body = json!({
                "reference": refund.as_str(),
                "amount_minor": amount.amount_minor,
            });
            match self.exchange(Method::POST, &path, Some(body)).await {
                Ok((StatusCode::OK, ..)) => RefundOutcome::Refunded,
                Ok((status @ (StatusCode::UNPROCESSABLE_ENTITY | StatusCode::NOT_FOUND), ..)) => {
                    RefundOutcome::Refused {
                        code: status.to_string(),
                    }
                }
                Ok((status, ..)) => RefundOutcome::Unreachable {
                    what: format!("it answered {status}"),
                },
                Err(Trouble::NotSent) => RefundOutcome::Unreachable {
                    what: "it can't be reached".to_owned(),
                },
                Err(Trouble::Unknown(what)) => RefundOutcome::Unreachable { what },
            }
        })
    }
}
