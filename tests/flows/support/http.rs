//! A small HTTP client.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Method, Request};
use hyper_util::client::legacy::Client as Legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

#[derive(Clone)]
pub struct Client(Legacy<HttpConnector, Full<Bytes>>);

#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Default for Client {
    fn default() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self(
            Legacy::builder(TokioExecutor::new())
                .retry_canceled_requests(false)
                .build(connector),
        )
    }
}

impl Client {
    pub async fn get(&self, url: &str, headers: &[(&str, &str)]) -> Reply {
        self.send(Method::GET, url, headers, Bytes::new())
            .await
            .expect("an answer")
    }

    pub async fn post(&self, url: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
        self.try_post(url, headers, body).await.expect("an answer")
    }

    pub async fn try_post(&self, url: &str, headers: &[(&str, &str)], body: &Value) -> Result<Reply, String> {
        let body = if body.is_null() {
            Bytes::new()
        } else {
            body.to_string().into()
        };
        self.send(Method::POST, url, headers, body).await
    }

    pub async fn post_raw(&self, url: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        self.send(Method::POST, url, headers, body.to_owned().into())
            .await
            .expect("an answer")
    }

    pub async fn send(
        &self,
        method: Method,
        url: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Reply, String> {
        let mut request = Request::builder().method(method).uri(url);
        if headers.iter().all(|(name, _)| *name != "content-type") {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self
            .0
            .request(request.body(Full::new(body)).unwrap())
            .await
            .map_err(|e| format!("{e:?}"))?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(|e| e.to_string())?.to_bytes();
        Ok(Reply {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body,
        })
    }
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("not JSON ({e}): {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The kind of a problem.
    pub fn problem(&self) -> String {
        let body = self.json();
        let kind = body["type"].as_str().unwrap_or_default();
        kind.strip_prefix("urn:fluxbuy:problem:")
            .unwrap_or(kind)
            .to_owned()
    }
}
