//! The heads of requests, and the bodies behind them, as any bytes at all.

use hyper::HeaderMap;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue};
use uuid::Uuid;

use super::extract::{self, IDEMPOTENCY_KEY, X_BUYER_ID};
use super::handlers;
use super::problem::Problem;
use super::request_id::{RequestId, X_REQUEST_ID};
use super::route::Routes;

pub(crate) fn purchase_body(data: &[u8]) {
    handlers::fuzz::purchase(data);
}

pub(crate) fn refund_body(data: &[u8]) {
    handlers::fuzz::refund(data);
}

pub(crate) fn listing_body(data: &[u8]) {
    handlers::fuzz::listing(data);
}

pub(crate) fn page_query(data: &[u8]) {
    handlers::fuzz::page(data);
}

/// A path, and a header on each further line.
pub(crate) fn request_head(data: &[u8]) {
    let mut lines = data.split(|b| *b == b'\n');
    if let Some(path) = lines.next().and_then(|line| std::str::from_utf8(line).ok()) {
        leads_where_it_says(path);
    }
    let mut headers = HeaderMap::new();
    for line in lines {
        let Some(colon) = line.iter().position(|b| *b == b':') else {
            continue;
        };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    buyer_is_as_sent(&headers);
    key_is_as_sent(&headers);
    content_is_json(&headers);
    name_is_fit(&headers);
}

fn leads_where_it_says(path: &str) {
    let Some((route, named)) = Routes::new().find(path) else {
        return;
    };
    let template = route.template();
    let rebuilt = template.replace("{id}", named).replace("{provider}", named);
    assert_eq!(rebuilt, path, "{route:?}");
    assert_eq!(named.is_empty(), !template.contains('{'), "{route:?}");
    assert!(!named.contains('/'));
    if let Some(id) = extract::uuid(named) {
        assert!(
            id.to_string().eq_ignore_ascii_case(named),
            "{id} has another spelling: {named}"
        );
    }
}

/// All values of a header, as bytes.
fn sent<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Vec<&'h [u8]> {
    headers.get_all(name).iter().map(HeaderValue::as_bytes).collect()
}

fn buyer_is_as_sent(headers: &HeaderMap) {
    let given = sent(headers, &X_BUYER_ID);
    match extract::buyer(headers) {
        Ok(buyer) => {
            assert_eq!(given, [buyer.as_str().as_bytes()]);
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"._:@-".contains(&b);
            assert!((1..=64).contains(&buyer.as_str().len()) && buyer.as_str().bytes().all(plain));
        }
        Err(Problem::BuyerMissing) => assert!(given.is_empty()),
        Err(Problem::BuyerInvalid) => assert!(!given.is_empty()),
        Err(other) => panic!("{other:?}"),
    }
}

fn key_is_as_sent(headers: &HeaderMap) {
    let given = sent(headers, &IDEMPOTENCY_KEY);
    match extract::idempotency_key(headers) {
        Ok(key) => {
            assert_eq!(given, [key.as_bytes()]);
            assert!((1..=255).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic()));
        }
        Err(Problem::IdempotencyKeyMissing) => assert!(given.is_empty()),
        Err(Problem::IdempotencyKeyInvalid) => assert!(!given.is_empty()),
        Err(other) => panic!("{other:?}"),
    }
}

fn content_is_json(headers: &HeaderMap) {
    let (types, encodings) = (sent(headers, &CONTENT_TYPE), sent(headers, &CONTENT_ENCODING));
    match extract::json(headers) {
        Ok(()) => {
            assert!(types.len() <= 1 && encodings.len() <= 1);
            let json = b"application/json";
            assert!(
                types
                    .iter()
                    .all(|t| t.len() >= json.len() && t[..json.len()].eq_ignore_ascii_case(json))
            );
            assert!(encodings.iter().all(|e| e.eq_ignore_ascii_case(b"identity")));
        }
        Err(problem) => {
            assert_eq!(problem, Problem::UnsupportedMediaType);
            assert!(!types.is_empty() || !encodings.is_empty());
        }
    }
}

/// A request's name is fit for a log line, and the client's own where that is.
fn name_is_fit(headers: &HeaderMap) {
    let name = RequestId::of(headers);
    let fit = |id: &[u8]| {
        (1..=128).contains(&id.len())
            && id
                .iter()
                .all(|b| b.is_ascii_alphanumeric() || b"._:@/+=-".contains(b))
    };
    assert!(fit(name.as_str().as_bytes()));
    match sent(headers, &X_REQUEST_ID).first() {
        Some(given) if fit(given) => assert_eq!(name.as_str().as_bytes(), *given),
        _ => assert!(Uuid::parse_str(name.as_str()).is_ok()),
    }
    assert_eq!(name.clone().into_header().as_bytes(), name.as_str().as_bytes());
}
