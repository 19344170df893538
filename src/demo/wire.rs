//! One kept-alive connection: a buyer's browser has one too.

use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST, RETRY_AFTER};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::TcpStream;

/// How long connecting may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long an answer may take; longer than the engine's own limit for a request.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// Largest answer that is read: a provider's book with some hundred thousand charges.
const MAX_ANSWER_BYTES: usize = 256 * 1024 * 1024;

/// A connection to a server, and its address for when it has to be made again.
pub(super) struct Connection {
    host: String,
    sender: SendRequest<Full<Bytes>>,
}

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    /// Its status.
    pub(super) status: StatusCode,
    /// How long it asks to wait.
    pub(super) retry_after: Option<Duration>,
    /// Its body.
    pub(super) body: Bytes,
}

impl Answer {
    /// The body as JSON.
    ///
    /// # Errors
    /// When it is something else.
    pub(super) fn json<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        serde_json::from_slice(&self.body).with_context(|| format!("unreadable answer: {}", self.text()))
    }

    /// The body as text.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The answer, if its status is the one wanted.
    ///
    /// # Errors
    /// Otherwise, with what it says instead.
    pub(super) fn expect(self, status: StatusCode) -> anyhow::Result<Self> {
        if self.status != status {
            bail!("answered {}: {}", self.status, self.text());
        }
        Ok(self)
    }
}

async fn dial(host: &str) -> anyhow::Result<SendRequest<Full<Bytes>>> {
    let dialling = async {
        let stream = TcpStream::connect(host).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Its end is seen by the sender.
        tokio::spawn(connection);
        anyhow::Ok(sender)
    };
    tokio::time::timeout(CONNECT_WITHIN, dialling)
        .await
        .with_context(|| format!("{host} can't be reached"))?
        .with_context(|| format!("{host} can't be reached"))
}

impl Connection {
    /// Connects to the server at `url` (`http://HOST:PORT`).
    ///
    /// # Errors
    /// When it can't be reached.
    pub(super) async fn open(url: &str) -> anyhow::Result<Self> {
        let host = url.strip_prefix("http://").unwrap_or(url).to_owned();
        let sender = dial(&host).await?;
        Ok(Self { host, sender })
    }

    /// Sends a request, once, and waits for its answer. A connection that was closed meanwhile is made again first.
    ///
    /// # Errors
    /// When there is no answer; what became of the request isn't known then.
    pub(super) async fn send(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> anyhow::Result<Answer> {
        if self.sender.ready().await.is_err() {
            self.sender = dial(&self.host).await?;
        }
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &self.host)
            .header(CONTENT_TYPE, "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body)))?;
        let exchange = async {
            let response = self.sender.send_request(request).await?;
            let status = response.status();
            let retry_after = response
                .headers()
                .get(RETRY_AFTER)
                .and_then(|value| value.to_str().ok()?.parse().ok())
                .map(Duration::from_secs);
            let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES)
                .collect()
                .await
                .map_err(|error| anyhow::anyhow!("{error}"))?;
            Ok(Answer {
                status,
                retry_after,
                body: body.to_bytes(),
            })
        };
        tokio::time::timeout(ANSWER_WITHIN, exchange)
            .await
            .with_context(|| format!("no answer within {ANSWER_WITHIN:?}"))?
    }
}
