//! Purchases as requests, and their answers as outcomes.

use std::io::Write as _;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, RETRY_AFTER};
use hyper::{Method, Request, Uri};
use uuid::Uuid;

use super::link::{Answer, Lost};
use super::{Ask, Outcome, Peer, Refusal};

const BUYER: HeaderName = HeaderName::from_static("x-buyer-id");
const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const PROBLEM: &[u8] = b"\"urn:fluxbuy:problem:";

/// Where purchases of one sale are made at one engine. What all requests share is made once.
#[derive(Debug, Clone)]
pub struct Till {
    uri: Uri,
    headers: HeaderMap,
}

impl Till {
    /// A sale at an engine.
    ///
    /// # Errors
    /// Never for a sale's id; the path is parsed all the same.
    pub fn new(peer: &Peer, sale: Uuid) -> anyhow::Result<Self> {
        let mut headers = HeaderMap::with_capacity(8);
        headers.insert(HOST, peer.host().clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(Self {
            uri: format!("/v1/sales/{sale}/orders").parse()?,
            headers,
        })
    }

    /// The request for a purchase.
    pub fn request(&self, ask: &Ask) -> Request<Full<Bytes>> {
        let body = match ask.quantity {
            1 => Bytes::from_static(b"{\"quantity\":1}"),
            quantity => Bytes::from(format!("{{\"quantity\":{quantity}}}")),
        };
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        let headers = request.headers_mut();
        headers.clone_from(&self.headers);
        headers.insert(BUYER, numbered("buyer-", ask.buyer));
        headers.insert(KEY, numbered("key-", ask.key));
        request
    }
}

impl Till {
    /// The request that cancels an order of this buyer.
    pub fn cancellation(&self, order: Uuid, ask: &Ask) -> Request<Full<Bytes>> {
        let mut request = self.request(ask);
        // A path of our own making is one.
        *request.uri_mut() = format!("/v1/orders/{order}/cancel").parse().unwrap_or_default();
        *request.body_mut() = Full::new(Bytes::from_static(b"{}"));
        request
    }
}

fn numbered(prefix: &str, number: u32) -> HeaderValue {
    let mut text = [0_u8; 32];
    let mut rest = &mut text[..];
    let written = write!(rest, "{prefix}{number}")
        .map(|()| 32 - rest.len())
        .unwrap_or_default();
    HeaderValue::from_bytes(&text[..written]).unwrap_or_else(|_| HeaderValue::from_static("-"))
}

impl Outcome {
    /// What an answer, or its absence, tells the buyer.
    pub fn of(answer: &Result<Answer, Lost>) -> Self {
        let answer = match answer {
            Ok(answer) => answer,
            Err(Lost::NotSent) => return Self::Refused(Refusal::NotSent),
            Err(Lost::MaybeSent(why)) => return Self::Unknown(format!("no answer: {why}")),
        };
        let header = |name: &HeaderName| answer.headers.get(name).map(HeaderValue::as_bytes);
        let parts = Told {
            status: answer.status,
            location: header(&LOCATION),
            replayed: answer.headers.contains_key(REPLAYED),
            body: &answer.body,
        };
        Self::told(&parts)
    }

    /// What an answer tells the buyer.
    pub fn told(answer: &Told<'_>) -> Self {
        if answer.status == 201 {
            return match answer.location.and_then(order_of) {
                Some(order) => Self::Accepted {
                    order,
                    replayed: answer.replayed,
                },
                None => Self::Unknown("201 without the order's place".to_owned()),
            };
        }
        match refusal(answer.status, answer.body) {
            Some(refusal) => Self::Refused(refusal),
            None => Self::Unknown(format!(
                "{} {}",
                answer.status,
                String::from_utf8_lossy(answer.body)
            )),
        }
    }
}

/// What of an answer matters to a buyer.
#[derive(Debug, Clone, Copy)]
pub struct Told<'a> {
    /// Status code.
    pub status: u16,
    /// Header `Location`.
    pub location: Option<&'a [u8]>,
    /// It is an answer that was given before.
    pub replayed: bool,
    /// Body.
    pub body: &'a [u8],
}

/// Seconds after which the engine asks to come again.
pub(super) fn retry_after_secs(answer: &Answer) -> Option<u64> {
    answer.headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()
}

fn order_of(location: &[u8]) -> Option<Uuid> {
    Uuid::try_parse_ascii(location.strip_prefix(b"/v1/orders/")?).ok()
}

/// `None` for what doesn't say that nothing was done.
fn refusal(status: u16, body: &[u8]) -> Option<Refusal> {
    let at = body.windows(PROBLEM.len()).position(|window| window == PROBLEM)? + PROBLEM.len();
    let kind = body[at..].split(|byte| *byte == b'"').next()?;
    match (status, kind) {
        (409, b"sold_out") => Some(Refusal::SoldOut),
        (409, b"limit_exceeded") => Some(Refusal::LimitExceeded),
        (409, b"not_open") => Some(Refusal::NotOpen),
        (409, b"closed") => Some(Refusal::Closed),
        (422, b"idempotency_key_reused") => Some(Refusal::KeyReused),
        (503, b"overloaded") => Some(Refusal::Overloaded),
        (503, b"unavailable") => Some(Refusal::Unavailable),
        (400 | 401 | 404 | 405 | 408 | 413 | 415, _) => Some(Refusal::Invalid),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(status: u16, location: Option<&str>, body: &str) -> Outcome {
        let mut headers = HeaderMap::new();
        if let Some(location) = location {
            headers.insert(LOCATION, HeaderValue::from_str(location).unwrap());
        }
        let body = body.to_owned().into();
        Outcome::of(&Ok(Answer {
            status,
            headers,
            body,
        }))
    }

    #[test]
    fn a_request_names_buyer_key_and_units() {
        let peer = Peer::from_url("http://127.0.0.1:1").unwrap();
        let till = Till::new(&peer, Uuid::nil()).unwrap();
        let request = till.request(&Ask {
            buyer: u32::MAX,
            key: 7,
            quantity: 3,
        });
        assert_eq!(request.headers()[BUYER], "buyer-4294967295");
        assert_eq!(request.headers()[KEY], "key-7");
        assert_eq!(request.headers()[HOST], "127.0.0.1:1");
        assert_eq!(
            request.uri().path(),
            "/v1/sales/00000000-0000-0000-0000-000000000000/orders"
        );
    }

    #[test]
    fn only_what_says_so_is_a_refusal() {
        let problem = |kind: &str| format!("{{\"type\":\"urn:fluxbuy:problem:{kind}\",\"title\":\"x\"}}");
        let outcome = |status, kind| told(status, None, &problem(kind));
        assert_eq!(outcome(409, "sold_out"), Outcome::Refused(Refusal::SoldOut));
        assert_eq!(
            outcome(503, "unavailable"),
            Outcome::Refused(Refusal::Unavailable)
        );
        assert_eq!(
            outcome(422, "idempotency_key_reused"),
            Outcome::Refused(Refusal::KeyReused)
        );
        assert_eq!(outcome(400, "invalid_field"), Outcome::Refused(Refusal::Invalid));
        for (status, kind) in [
            (503, "outcome_unknown"),
            (500, "internal"),
            (500, "sold_out"),
            (200, "sold_out"),
        ] {
            assert!(
                matches!(outcome(status, kind), Outcome::Unknown(_)),
                "{status} {kind}"
            );
        }
        assert!(matches!(told(502, None, "<html>"), Outcome::Unknown(_)));
        assert_eq!(
            Outcome::of(&Err(Lost::NotSent)),
            Outcome::Refused(Refusal::NotSent)
        );
        assert!(matches!(
            Outcome::of(&Err(Lost::MaybeSent("cut".to_owned()))),
            Outcome::Unknown(_)
        ));
    }

    #[test]
    fn an_acceptance_names_its_order() {
        let id = Uuid::from_u128(7);
        let accepted = told(201, Some(&format!("/v1/orders/{id}")), "{}");
        assert_eq!(
            accepted,
            Outcome::Accepted {
                order: id,
                replayed: false
            }
        );
        assert!(matches!(told(201, None, "{}"), Outcome::Unknown(_)));
    }
}
