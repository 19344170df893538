//! One kept connection to a shop, by hand: the request's bytes are made once, and only key and sale are written over.

use std::io;

use anyhow::{Context as _, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use uuid::Uuid;
use uuid::fmt::Hyphenated;

use crate::load::{Outcome, Peer, Told};

/// Larger than any answer to a purchase, so that one read takes it whole and is known to have taken all.
const BUFFER: usize = 2_048;
/// Headers that an answer may have.
const HEADERS: usize = 32;
/// Digits of a key's number, with leading zeros: the request's length never changes.
const KEY_DIGITS: usize = 10;
const BEFORE_SALE: &str = "POST /v1/sales/";

/// A buyer's connection.
pub(in crate::bench) struct Wire {
    stream: TcpStream,
    request: Request,
    buffer: Vec<u8>,
}

/// The bytes of a purchase of one unit.
#[derive(Debug, Clone)]
struct Request {
    bytes: Vec<u8>,
    key_at: usize,
}

/// What one request came to.
#[derive(Debug)]
pub(in crate::bench) struct Reply {
    /// What the buyer knows now.
    pub(in crate::bench) outcome: Outcome,
    /// The answer said when to come again.
    pub(in crate::bench) has_retry_after: bool,
    /// The connection is of no more use.
    pub(in crate::bench) is_lost: bool,
}

impl Request {
    fn new(host: &str, buyer: u32) -> Self {
        let nobody = Uuid::nil();
        let head = format!(
            "{BEFORE_SALE}{nobody}/orders HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
             content-length: 14\r\nx-buyer-id: buyer-{buyer}\r\nidempotency-key: key-"
        );
        let key_at = head.len();
        let bytes = format!("{head}{:0KEY_DIGITS$}\r\n\r\n{{\"quantity\":1}}", 0).into_bytes();
        Self { bytes, key_at }
    }

    fn patch(&mut self, sale: Uuid, key: u32) {
        sale.hyphenated()
            .encode_lower(&mut self.bytes[BEFORE_SALE.len()..][..Hyphenated::LENGTH]);
        let mut rest = key;
        for digit in self.bytes[self.key_at..][..KEY_DIGITS].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
    }
}

impl Wire {
    /// A buyer on an open connection. To be called within the runtime that uses it.
    pub(in crate::bench) fn new(stream: std::net::TcpStream, host: &str, buyer: u32) -> io::Result<Self> {
        Ok(Self {
            stream: TcpStream::from_std(stream)?,
            request: Request::new(host, buyer),
            buffer: vec![0; BUFFER],
        })
    }

    /// Asks for one unit, and waits for all of the answer.
    pub(in crate::bench) async fn buy(&mut self, sale: Uuid, key: u32) -> Reply {
        self.request.patch(sale, key);
        match self.exchange().await {
            Ok(reply) => reply,
            Err(error) => Reply {
                outcome: Outcome::Unknown(format!("no answer: {error:#}")),
                has_retry_after: false,
                is_lost: true,
            },
        }
    }

    async fn exchange(&mut self) -> anyhow::Result<Reply> {
        self.stream.write_all(&self.request.bytes).await?;
        let mut filled = 0;
        loop {
            if filled == self.buffer.len() {
                self.buffer.resize(filled * 2, 0);
            }
            let read = self.stream.read(&mut self.buffer[filled..]).await?;
            ensure!(read > 0, "the connection was closed");
            filled += read;
            if let Some((reply, length)) = parse(&self.buffer[..filled])? {
                ensure!(length == filled, "more came than an answer");
                return Ok(reply);
            }
        }
    }
}

/// The answer and its length; `None` when there is more to come.
fn parse(bytes: &[u8]) -> anyhow::Result<Option<(Reply, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head) = response.parse(bytes)? else {
        return Ok(None);
    };
    let (mut length, mut location, mut replayed, mut has_retry_after) = (None, None, false, false);
    for header in response.headers.iter() {
        // Lengths first: most headers are told apart by them.
        match header.name.len() {
            14 if header.name.eq_ignore_ascii_case("content-length") => {
                length = Some(std::str::from_utf8(header.value)?.parse::<usize>()?);
            }
            8 if header.name.eq_ignore_ascii_case("location") => location = Some(header.value),
            20 if header.name.eq_ignore_ascii_case("idempotency-replayed") => replayed = true,
            11 if header.name.eq_ignore_ascii_case("retry-after") => has_retry_after = true,
            _ => {}
        }
    }
    let end = head + length.context("an answer without its length")?;
    let Some(body) = bytes.get(head..end) else {
        return Ok(None);
    };
    let outcome = Outcome::told(&Told {
        status: response.code.unwrap_or_default(),
        location,
        replayed,
        body,
    });
    let reply = Reply {
        outcome,
        has_retry_after,
        is_lost: false,
    };
    Ok(Some((reply, end)))
}

/// The bytes of one answer to a purchase, over a connection of its own.
///
/// # Errors
/// When there is none.
pub(in crate::bench) async fn one_answer(
    peer: &Peer,
    sale: Uuid,
    buyer: u32,
    key: u32,
) -> anyhow::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(peer.address()).await?;
    let mut request = Request::new(peer.address(), buyer);
    request.patch(sale, key);
    stream.write_all(&request.bytes).await?;
    let mut answer = Vec::new();
    loop {
        ensure!(
            stream.read_buf(&mut answer).await? > 0,
            "the connection was closed"
        );
        if parse(&answer)?.is_some() {
            return Ok(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_and_sale_are_patched_in() {
        let mut request = Request::new("shop:1", 7);
        let length = request.bytes.len();
        let sale = Uuid::from_u128(0xabc);
        request.patch(sale, u32::MAX);
        let text = String::from_utf8(request.bytes.clone()).unwrap();
        assert!(text.starts_with(&format!(
            "POST /v1/sales/{sale}/orders HTTP/1.1\r\nhost: shop:1\r\n"
        )));
        assert!(text.contains("\r\nx-buyer-id: buyer-7\r\n"));
        assert!(text.ends_with("\r\nidempotency-key: key-4294967295\r\n\r\n{\"quantity\":1}"));
        request.patch(Uuid::nil(), 12);
        let text = String::from_utf8(request.bytes.clone()).unwrap();
        assert!(text.contains("key-0000000012\r\n") && text.len() == length);
    }

    #[test]
    fn an_answer_is_read_when_it_is_whole() {
        let order = Uuid::from_u128(5);
        let whole =
            format!("HTTP/1.1 201 Created\r\nLocation: /v1/orders/{order}\r\ncontent-length: 2\r\n\r\n{{}}");
        for end in 0..whole.len() {
            assert!(parse(&whole.as_bytes()[..end]).unwrap().is_none(), "{end}");
        }
        let (reply, length) = parse(whole.as_bytes()).unwrap().unwrap();
        assert_eq!(length, whole.len());
        let replayed = false;
        assert_eq!(reply.outcome, Outcome::Accepted { order, replayed });
        assert!(!reply.has_retry_after && !reply.is_lost);
        assert!(parse(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }

    #[test]
    fn when_to_come_again_is_seen() {
        let body = r#"{"type":"urn:fluxbuy:problem:overloaded"}"#;
        let answer = format!(
            "HTTP/1.1 503 X\r\nretry-after: 1\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let (reply, _) = parse(answer.as_bytes()).unwrap().unwrap();
        assert!(reply.has_retry_after);
        assert_eq!(reply.outcome, Outcome::Refused(crate::load::Refusal::Overloaded));
    }
}
