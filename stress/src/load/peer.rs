//! Somebody who is spoken to over HTTP.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Uri};
use serde::de::DeserializeOwned;

use super::link::{Answer, Link, Lost};

/// How long a single question may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// `http://HOST:PORT`.
#[derive(Debug, Clone)]
pub struct Peer {
    url: String,
    address: String,
    host: HeaderValue,
}

impl Peer {
    /// Reads its address.
    ///
    /// # Errors
    /// When it isn't `http://HOST[:PORT]`.
    pub fn from_url(url: &str) -> anyhow::Result<Self> {
        let uri: Uri = url.parse().with_context(|| format!("{url:?} is no URL"))?;
        let Some(authority) = uri.authority() else {
            bail!("{url:?} is not http://HOST:PORT")
        };
        ensure!(
            uri.scheme_str() == Some("http") && uri.path() == "/" && uri.query().is_none(),
            "{url:?} is not http://HOST:PORT"
        );
        Ok(Self {
            url: url.trim_end_matches('/').to_owned(),
            address: format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80)),
            host: HeaderValue::from_str(authority.as_str())?,
        })
    }

    /// `HOST:PORT`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The value of the header `Host`.
    pub(super) fn host(&self) -> &HeaderValue {
        &self.host
    }

    /// `GET`, over a connection of its own.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn get(&self, path: &str) -> anyhow::Result<Answer> {
        self.ask(Method::GET, path, Bytes::new()).await
    }

    /// `GET` of JSON.
    ///
    /// # Errors
    /// When there is no answer, or it isn't 200 with JSON of this shape.
    pub async fn get_json<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        let answer = self.get(path).await?;
        self.read(path, 200, &answer)
    }

    /// `POST` of JSON.
    ///
    /// # Errors
    /// When there is no answer, or it hasn't `expected` as its status and JSON of this shape.
    pub async fn post_json<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &serde_json::Value,
        expected: u16,
    ) -> anyhow::Result<T> {
        let answer = self
            .ask(Method::POST, path, serde_json::to_vec(body)?.into())
            .await?;
        self.read(path, expected, &answer)
    }

    /// `POST` of JSON with an idempotency key.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn post_keyed(
        &self,
        path: &str,
        key: &str,
        body: &serde_json::Value,
    ) -> anyhow::Result<Answer> {
        let body = serde_json::to_vec(body)?.into();
        self.send(Method::POST, path, body, Some(HeaderValue::from_str(key)?))
            .await
    }

    fn read<T: DeserializeOwned>(&self, path: &str, expected: u16, answer: &Answer) -> anyhow::Result<T> {
        let text = || String::from_utf8_lossy(&answer.body);
        ensure!(
            answer.status == expected,
            "{}{path}: {} {}",
            self.url,
            answer.status,
            text()
        );
        serde_json::from_slice(&answer.body).with_context(|| format!("{}{path}: {}", self.url, text()))
    }

    async fn ask(&self, method: Method, path: &str, body: Bytes) -> anyhow::Result<Answer> {
        self.send(method, path, body, None).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        key: Option<HeaderValue>,
    ) -> anyhow::Result<Answer> {
        let what = || format!("{method} {}{path}", self.url);
        let mut request = Request::builder()
            .method(&method)
            .uri(path)
            .header(HOST, &self.host)
            .header(CONTENT_TYPE, "application/json");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let request = request.body(Full::new(body))?;
        let exchange = async {
            let mut link = Link::open(self).await.context("no connection")?;
            link.call(request).await.map_err(|lost| match lost {
                Lost::NotSent => anyhow::anyhow!("the connection was closed"),
                Lost::MaybeSent(why) => anyhow::anyhow!(why),
            })
        };
        tokio::time::timeout(ANSWER_WITHIN, exchange)
            .await
            .with_context(|| format!("{}: no answer within {} s", what(), ANSWER_WITHIN.as_secs()))?
            .with_context(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_address_of_a_front_door_will_do() {
        let peer = Peer::from_url("http://127.0.0.1:8080/").unwrap();
        assert_eq!(
            (peer.address(), peer.url.as_str()),
            ("127.0.0.1:8080", "http://127.0.0.1:8080")
        );
        for wrong in [
            "",
            "127.0.0.1:8080",
            "https://a:1",
            "http://a:1/v1",
            "http://a:1?x",
            "http:///",
        ] {
            assert!(Peer::from_url(wrong).is_err(), "{wrong}");
        }
    }
}
