//! Signatures of webhooks: whatever the headers are, only what was signed with one of the keys is believed, and only as it was signed.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use sha2::Sha256;

use crate::signature::{Key, Scheme, Unverified, Verifier, sign};

/// When the requests come, in seconds since 1970.
pub(super) const NOW_SECS: i64 = 1_796_115_600;
/// How far off a clock may be.
const TOLERANCE_SECS: i64 = 300;

/// The secrets, as both schemes can read them: two that are set, and one that is somebody else's.
const SECRETS: [&str; 3] = [
    "whsec_MDAwMDAwMDAwMDAwMDAwMA==",
    "whsec_AQID",
    "whsec_c29tZWJvZHkgZWxzZQ==",
];

const BOTH: [Scheme; 2] = [Scheme::Stripe, Scheme::Standard];

/// A verifier that knows some of the secrets.
pub(super) fn verifier(scheme: Scheme, nths: &[usize]) -> Verifier {
    let keys = nths.iter().map(|nth| key(scheme, *nth)).collect();
    Verifier::new(scheme, keys, Duration::from_secs(TOLERANCE_SECS as u64))
}

pub(super) fn key(scheme: Scheme, nth: usize) -> Key {
    Key::parse(scheme, SECRETS[nth]).expect("these are secrets of both schemes")
}

/// Headers, one on each line, and the body after an empty line. In a header `@0`, `@1` and `@2` stand for what the key of this number signs of
/// these headers and this body: no fuzzer guesses that.
pub(super) fn any_headers(data: &[u8]) {
    let (head, body) = match data.windows(2).position(|pair| pair == b"\n\n") {
        Some(end) => (&data[..end], &data[end + 2..]),
        None => (data, &b""[..]),
    };
    for scheme in BOTH {
        let request = Request::read(scheme, head, body);
        request.is_believed_by_its_signers_only(scheme, body);
        what_is_signed_is_believed(scheme, body);
    }
}

/// Headers, and what there is to know of them without the code under test.
struct Request {
    headers: HeaderMap,
    /// By each of the three keys, as text.
    signatures: [String; 3],
}

impl Request {
    fn read(scheme: Scheme, head: &[u8], body: &[u8]) -> Self {
        let lines = head.split(|b| *b == b'\n');
        let raw: Vec<(HeaderName, Vec<u8>)> = lines
            .filter_map(|line| {
                let colon = line.iter().position(|b| *b == b':')?;
                let name = HeaderName::from_bytes(&line[..colon]).ok()?;
                Some((name, line[colon + 1..].trim_ascii().to_vec()))
            })
            .collect();
        let first = |wanted: &str| {
            let value = raw.iter().find(|(name, _)| name == wanted);
            value.map_or("", |(_, value)| std::str::from_utf8(value).unwrap_or_default())
        };
        let signed: Vec<&[u8]> = match scheme {
            Scheme::Stripe => {
                let items = first("stripe-signature").split(',');
                let timestamp = items
                    .filter_map(|item| item.split_once('='))
                    .find(|(name, _)| name.trim() == "t")
                    .map_or("", |(_, value)| value.trim());
                vec![timestamp.as_bytes(), b".", body]
            }
            Scheme::Standard => {
                let (id, timestamp) = (first("webhook-id"), first("webhook-timestamp"));
                vec![id.as_bytes(), b".", timestamp.as_bytes(), b".", body]
            }
        };
        let signatures = [0, 1, 2].map(|nth| hmac(scheme, nth, &signed));
        let mut headers = HeaderMap::new();
        for (name, value) in &raw {
            let value = with_signatures(value, &signatures);
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                headers.append(name, value);
            }
        }
        Self { headers, signatures }
    }

    fn is_believed_by_its_signers_only(&self, scheme: Scheme, body: &[u8]) {
        let verify =
            |nths: &[usize], body: &[u8]| verifier(scheme, nths).verify(&self.headers, body, NOW_SECS);
        assert_eq!(verify(&[], body), Err(Unverified::NoSecret));
        for nth in 0..SECRETS.len() {
            if verify(&[nth], body).is_ok() {
                assert!(
                    self.carries(scheme, &self.signatures[nth]),
                    "believed, and not signed with key {nth}"
                );
            }
        }
        let one_of_two = verify(&[0], body).is_ok() || verify(&[1], body).is_ok();
        assert_eq!(verify(&[0, 1], body).is_ok(), one_of_two);
        if one_of_two {
            for other in other_bodies(body) {
                assert_eq!(verify(&[0, 1], &other), Err(Unverified::Mismatch));
            }
            for later in [
                NOW_SECS + 2 * TOLERANCE_SECS + 1,
                NOW_SECS - 2 * TOLERANCE_SECS - 1,
            ] {
                let then = verifier(scheme, &[0, 1]).verify(&self.headers, body, later);
                assert!(
                    matches!(then, Err(Unverified::TooOld | Unverified::TooFarAhead)),
                    "{then:?}"
                );
            }
        }
    }

    /// Whether the scheme's header holds this signature, and is there once.
    fn carries(&self, scheme: Scheme, signature: &str) -> bool {
        let name = match scheme {
            Scheme::Stripe => "stripe-signature",
            Scheme::Standard => "webhook-signature",
        };
        let values: Vec<&HeaderValue> = self.headers.get_all(name).iter().collect();
        let [value] = values.as_slice() else {
            return false;
        };
        let text = value.to_str().unwrap_or_default();
        match scheme {
            Scheme::Stripe => text.to_ascii_lowercase().contains(signature),
            Scheme::Standard => text.contains(signature),
        }
    }
}

/// The body with a byte changed, added, and taken away.
fn other_bodies(body: &[u8]) -> Vec<Vec<u8>> {
    let mut others = vec![[body, b" "].concat()];
    if let Some(last) = body.len().checked_sub(1) {
        others.push(body[..last].to_vec());
        for place in [0, last / 2, last] {
            let mut changed = body.to_vec();
            changed[place] ^= 1;
            others.push(changed);
        }
    }
    others
}

fn what_is_signed_is_believed(scheme: Scheme, body: &[u8]) {
    for nth in 0..SECRETS.len() {
        let mut headers = HeaderMap::new();
        for (name, value) in sign(scheme, &key(scheme, nth), "msg_1", NOW_SECS, body) {
            headers.insert(
                name,
                HeaderValue::from_str(&value).expect("a signature is visible ASCII"),
            );
        }
        let known = verifier(scheme, &[0, 1]).verify(&headers, body, NOW_SECS);
        let expected = if nth < 2 {
            Ok(())
        } else {
            Err(Unverified::Mismatch)
        };
        assert_eq!(known, expected, "{scheme:?}, key {nth}");
    }
}

/// As RFC 2104 and the two schemes have it, and not as `signature.rs` does.
fn hmac(scheme: Scheme, nth: usize, parts: &[&[u8]]) -> String {
    let secret = match scheme {
        Scheme::Stripe => SECRETS[nth].as_bytes().to_vec(),
        Scheme::Standard => BASE64_STANDARD
            .decode(&SECRETS[nth]["whsec_".len()..])
            .expect("the secrets are base64"),
    };
    let mut mac = Hmac::<Sha256>::new_from_slice(&secret).expect("a key of any length will do");
    mac.update(&parts.concat());
    let bytes = mac.finalize().into_bytes();
    match scheme {
        Scheme::Stripe => hex::encode(bytes),
        Scheme::Standard => BASE64_STANDARD.encode(bytes),
    }
}

fn with_signatures(value: &[u8], signatures: &[String; 3]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = value;
    while let Some((&byte, after)) = rest.split_first() {
        match after.split_first() {
            Some((nth @ b'0'..=b'2', after)) if byte == b'@' => {
                out.extend_from_slice(signatures[usize::from(nth - b'0')].as_bytes());
                rest = after;
            }
            _ => {
                out.push(byte);
                rest = after;
            }
        }
    }
    out
}
