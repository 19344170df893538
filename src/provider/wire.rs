//! HTTP to a provider: one request per call, never repeated behind the caller's back, with an end to how long it takes and how much is
//! read.

use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::metrics::{self, SendEnd};

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest answer that is read, unless a call says otherwise.
pub(super) const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// A provider's address, and the connections to it.
pub(super) struct Wire {
    links: Links,
    base: String,
    authorization: Option<HeaderValue>,
    timeout: Duration,
}

enum Links {
    Plain(Client<HttpConnector, Full<Bytes>>),
    Secure(Client<HttpsConnector<HttpConnector>, Full<Bytes>>),
}

impl Links {
    fn send(&self, request: Request<Full<Bytes>>) -> ResponseFuture {
        match self {
            Self::Plain(client) => client.request(request),
            Self::Secure(client) => client.request(request),
        }
    }
}

/// A request.
pub(super) struct Ask<'a> {
    pub method: Method,
    /// After the provider's address.
    pub path: &'a str,
    pub content_type: &'static str,
    pub headers: &'a [(HeaderName, &'a str)],
    pub body: String,
    pub max_answer_bytes: usize,
    /// Instead of the provider's usual time.
    pub timeout: Option<Duration>,
}

/// An answer.
pub(super) struct Reply {
    pub status: StatusCode,
    /// The pause that it asks for.
    pub retry_after: Option<Duration>,
    pub body: Bytes,
}

/// An exchange that brought no answer.
#[derive(Debug)]
pub(super) enum Trouble {
    /// There was no connection: nothing left.
    NotSent,
    /// It may have arrived.
    Unknown(String),
}

impl Trouble {
    /// What was seen, for logs.
    pub(super) fn what(self) -> String {
        match self {
            Self::NotSent => "it can't be reached".to_owned(),
            Self::Unknown(what) => what,
        }
    }
}

impl Wire {
    /// To the provider at `url`, whose answers take at most `timeout`. It keeps as many connections as there may be charges in flight:
    /// with fewer, each commit of claims would have it close what it needs again for the next.
    ///
    /// # Errors
    /// When the URL is none, the key can't be sent, or the system has no certificates to believe.
    pub(super) fn new(
        url: &str,
        bearer: Option<&str>,
        timeout: Duration,
        max_in_flight: usize,
    ) -> anyhow::Result<Self> {
        let base = url.trim_end_matches('/').to_owned();
        let secure = base
            .parse::<Uri>()
            .ok()
            .filter(|uri| uri.authority().is_some())
            .and_then(|uri| match uri.scheme_str() {
                Some("http") => Some(false),
                Some("https") => Some(true),
                _ => None,
            })
            .with_context(|| format!("provider.url: {base:?} isn't an http:// or https:// address"))?;
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(max_in_flight)
            // A repeat that nobody decided on, and nobody counted, could be a second charge.
            .retry_canceled_requests(false);
        let links = if secure {
            let certificates = HttpsConnectorBuilder::new()
                .with_native_roots()
                .context("provider.url: the system has no certificates to believe")?;
            Links::Secure(builder.build(certificates.https_only().enable_http1().wrap_connector(connector)))
        } else {
            Links::Plain(builder.build(connector))
        };
        let authorization = bearer
            .map(|key| HeaderValue::try_from(format!("Bearer {key}")))
            .transpose()
            .context("provider.secret_key (allowed: visible ASCII)")?
            .map(|mut value| {
                value.set_sensitive(true);
                value
            });
        Ok(Self {
            links,
            base,
            authorization,
            timeout,
        })
    }

    /// One request, sent once, and counted.
    pub(super) async fn exchange(&self, ask: Ask<'_>) -> Result<Reply, Trouble> {
        let mut request = Request::builder()
            .method(ask.method)
            .uri(format!("{}{}", self.base, ask.path))
            .header(CONTENT_TYPE, ask.content_type);
        for (name, value) in ask.headers {
            request = request.header(name, *value);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request
            .body(Full::new(ask.body.into()))
            .map_err(|_| Trouble::NotSent)?;
        let exchange = async {
            let response = self.links.send(request).await.map_err(|error| {
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
            let body = Limited::new(response.into_body(), ask.max_answer_bytes)
                .collect()
                .await
                .map_err(|error| Trouble::Unknown(error.to_string()))?
                .to_bytes();
            Ok(Reply {
                status,
                retry_after,
                body,
            })
        };
        let timeout = ask.timeout.unwrap_or(self.timeout);
        let ended = tokio::time::timeout(timeout, exchange)
            .await
            .unwrap_or_else(|_| Err(Trouble::Unknown(format!("no answer within {timeout:?}"))));
        metrics::provider_sent(match ended {
            Ok(_) => SendEnd::Answered,
            Err(Trouble::Unknown(_)) => SendEnd::Unanswered,
            Err(Trouble::NotSent) => SendEnd::NotSent,
        });
        ended
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
