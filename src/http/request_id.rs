//! The name of a request in logs, ours and other people's.

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use uuid::Uuid;

/// Its header, in and out.
pub(super) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest that is taken over.
const MAX_CHARS: usize = 128;

/// A request's name: the client's, or a fresh one when the client sent none that is fit for a log line.
#[derive(Debug, Clone)]
pub(super) struct RequestId(HeaderValue);

impl RequestId {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        match headers.get(X_REQUEST_ID) {
            Some(given) if is_fit(given.as_bytes()) => Self(given.clone()),
            _ => Self::fresh(),
        }
    }

    fn fresh() -> Self {
        let mut text = Uuid::encode_buffer();
        let text = Uuid::now_v7().hyphenated().encode_lower(&mut text);
        Self(HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("")))
    }

    pub(super) fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    pub(super) fn into_header(self) -> HeaderValue {
        self.0
    }
}

fn is_fit(id: &[u8]) -> bool {
    let fit = |b: &u8| b.is_ascii_alphanumeric() || b"._:@/+=-".contains(b);
    (1..=MAX_CHARS).contains(&id.len()) && id.iter().all(fit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(given: &[u8]) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(X_REQUEST_ID, HeaderValue::from_bytes(given).unwrap());
        RequestId::of(&headers).as_str().to_owned()
    }

    #[test]
    fn takes_over_what_is_fit_for_a_log_line() {
        assert_eq!(of(b"4bf92f/3577:a=1"), "4bf92f/3577:a=1");
        for unfit in [&b""[..], b"a b", b"a\"b", b"\xff", &[b'x'; 129]] {
            let fresh = of(unfit);
            assert!(Uuid::parse_str(&fresh).is_ok(), "{fresh}");
        }
        assert!(Uuid::parse_str(RequestId::of(&HeaderMap::new()).as_str()).is_ok());
    }
}
