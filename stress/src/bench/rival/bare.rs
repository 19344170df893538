//! A server that does nothing but HTTP: it reads each request with its body, and gives the answer that the engine gave once. What
//! the engine reaches beside it is what deciding costs.

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, Request, Response, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use super::serve::{self, Answers};

/// Headers that hyper writes itself.
const BY_HYPER: [&str; 2] = ["date", "content-length"];

/// Headers whose values, all of one length, differ from answer to answer.
const OF_ONE_REQUEST: [&str; 2] = ["date", "x-request-id"];

/// An answer, taken apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::bench) struct Canned {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

impl Canned {
    /// From an answer's bytes.
    ///
    /// # Errors
    /// When they are none.
    pub(in crate::bench) fn parse(answer: &[u8]) -> anyhow::Result<Self> {
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut response = httparse::Response::new(&mut headers);
        let httparse::Status::Complete(head) = response.parse(answer)? else {
            anyhow::bail!("half an answer")
        };
        let text = |bytes: &[u8]| Ok::<_, anyhow::Error>(std::str::from_utf8(bytes)?.to_owned());
        let headers = response
            .headers
            .iter()
            .map(|header| Ok((header.name.to_ascii_lowercase(), text(header.value)?)))
            .collect::<anyhow::Result<_>>()?;
        Ok(Self {
            status: response.code.context("no status")?,
            headers,
            body: text(&answer[head..])?,
        })
    }

    /// Holds when another answer is the same to the byte, but for the date and the request's name.
    ///
    /// # Errors
    /// Shows both when it isn't.
    pub(in crate::bench) fn ensure_same(&self, other: &Self) -> anyhow::Result<()> {
        let nameless = |answer: &Self| {
            let mut answer = answer.clone();
            // In whichever order: that costs nobody anything.
            answer.headers.sort();
            for (name, value) in &mut answer.headers {
                if OF_ONE_REQUEST.contains(&name.as_str()) {
                    *value = "-".repeat(value.len());
                }
            }
            answer
        };
        ensure!(
            nameless(self) == nameless(other),
            "the bare server doesn't answer as the engine does: {other:?} instead of {self:?}"
        );
        Ok(())
    }
}

struct Bare {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answers for Bare {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        // As whoever reads an order has to.
        let body = request.into_body().collect().await;
        let mut response = Response::new(Full::new(self.body.clone()));
        *response.status_mut() = if body.is_ok() {
            self.status
        } else {
            StatusCode::BAD_REQUEST
        };
        response.headers_mut().clone_from(&self.headers);
        response
    }
}

/// Listens, and tells where.
pub(super) fn start(answer: &Canned) -> anyhow::Result<(String, JoinHandle<()>)> {
    let mut headers = HeaderMap::new();
    for (name, value) in &answer.headers {
        if !BY_HYPER.contains(&name.as_str()) {
            headers.append(HeaderName::try_from(name)?, HeaderValue::try_from(value)?);
        }
    }
    serve::start(Bare {
        status: StatusCode::from_u16(answer.status)?,
        headers,
        body: answer.body.clone().into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_answer_at_another_time_is_the_same() {
        let answer = |date: &str, body: &str| {
            let bytes = format!("HTTP/1.1 409 Conflict\r\ncontent-type: a/b\r\nDate: {date}\r\n\r\n{body}");
            Canned::parse(bytes.as_bytes()).unwrap()
        };
        assert!(answer("now", "{}").ensure_same(&answer("yet", "{}")).is_ok());
        assert!(answer("now", "{}").ensure_same(&answer("later", "{}")).is_err());
        assert!(answer("now", "{}").ensure_same(&answer("now", "{ }")).is_err());
    }
}
