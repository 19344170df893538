//! Signatures of webhooks, over the raw bytes of the body. Two schemes: Stripe's, and that of Standard Webhooks.
//!
//! A leaf: the engine verifies with it, and the mock provider signs with it.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use hyper::HeaderMap;
use sha2::Sha256;

/// What a Standard Webhooks secret begins with; the key comes after it, in base64.
const STANDARD_SECRET_PREFIX: &str = "whsec_";
/// Signatures that one request may carry: one for each secret while secrets take turns, and room.
const MAX_SIGNATURES: usize = 16;

/// How a request is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// `Stripe-Signature: t=<seconds>,v1=<hex>[,v1=<hex>]`, over `<t>.<body>`, keyed with the whole secret's text.
    Stripe,
    /// `webhook-id`, `webhook-timestamp`, and `webhook-signature: v1,<base64>[ v1,<base64>]`, over `<id>.<timestamp>.<body>`,
    /// keyed with the secret's bytes: base64, after `whsec_` where that is there.
    Standard,
}

/// A secret that nobody gets to see.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Vec<u8>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(***)")
    }
}

impl Key {
    /// The key of a secret as the provider shows it.
    ///
    /// # Errors
    /// When it is empty, or (Standard Webhooks) isn't base64.
    pub fn parse(scheme: Scheme, secret: &str) -> Result<Self, BadSecret> {
        let key = match scheme {
            Scheme::Stripe => secret.as_bytes().to_vec(),
            Scheme::Standard => {
                let text = secret.strip_prefix(STANDARD_SECRET_PREFIX).unwrap_or(secret);
                BASE64_STANDARD.decode(text).map_err(|_| BadSecret)?
            }
        };
        if key.is_empty() {
            Err(BadSecret)
        } else {
            Ok(Self(key))
        }
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        // HMAC takes keys of any length.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length will do");
        for part in parts {
            mac.update(part);
        }
        mac
    }
}

/// A secret that can't be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("isn't a secret of this scheme")]
pub struct BadSecret;

/// Why a request isn't taken for the provider's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Unverified {
    /// No secret is set: nobody can be believed.
    #[error("no secret is set")]
    NoSecret,
    /// A header that must be there isn't.
    #[error("it isn't signed")]
    Missing,
    /// A header can't be read.
    #[error("its signature's headers can't be read")]
    Malformed,
    /// There are signatures, but none of a scheme that is known.
    #[error("it has no signature of a known scheme")]
    UnknownScheme,
    /// It was signed longer ago than is tolerated.
    #[error("it was signed too long ago")]
    TooOld,
    /// It was signed later than now, by more than is tolerated.
    #[error("it was signed in the future")]
    TooFarAhead,
    /// No signature fits any secret.
    #[error("no signature fits")]
    Mismatch,
}

/// Tells the provider's requests from others.
#[derive(Debug, Clone)]
pub struct Verifier {
    scheme: Scheme,
    /// Several while one takes the other's place.
    keys: Vec<Key>,
    tolerance: Duration,
}

/// What a request says of its signature.
struct Claimed<'h> {
    /// Standard Webhooks sign the message's id as well.
    id: Option<&'h str>,
    /// As it was signed, byte for byte.
    timestamp: &'h str,
    signatures: Vec<Vec<u8>>,
}

impl Verifier {
    /// A verifier that believes whoever holds one of these keys, and whose clock is off by no more than `tolerance` either way.
    pub fn new(scheme: Scheme, keys: Vec<Key>, tolerance: Duration) -> Self {
        Self {
            scheme,
            keys,
            tolerance,
        }
    }

    /// Verifies a request that came at `now_secs` since 1970. Every comparison takes the same time wherever the difference is.
    ///
    /// # Errors
    /// [`Unverified`]: it must not be believed.
    pub fn verify(&self, headers: &HeaderMap, body: &[u8], now_secs: i64) -> Result<(), Unverified> {
        if self.keys.is_empty() {
            return Err(Unverified::NoSecret);
        }
        let claimed = match self.scheme {
            Scheme::Stripe => stripe_claim(headers)?,
            Scheme::Standard => standard_claim(headers)?,
        };
        let signed_at: i64 = claimed.timestamp.parse().map_err(|_| Unverified::Malformed)?;
        let tolerance = i64::try_from(self.tolerance.as_secs()).unwrap_or(i64::MAX);
        if signed_at < now_secs.saturating_sub(tolerance) {
            return Err(Unverified::TooOld);
        }
        if signed_at > now_secs.saturating_add(tolerance) {
            return Err(Unverified::TooFarAhead);
        }
        let fits = self.keys.iter().any(|key| {
            claimed.signatures.iter().any(|signature| {
                mac(key, claimed.id, claimed.timestamp, body)
                    .verify_slice(signature)
                    .is_ok()
            })
        });
        if fits { Ok(()) } else { Err(Unverified::Mismatch) }
    }
}

fn mac(key: &Key, id: Option<&str>, timestamp: &str, body: &[u8]) -> Hmac<Sha256> {
    match id {
        Some(id) => key.mac(&[id.as_bytes(), b".", timestamp.as_bytes(), b".", body]),
        None => key.mac(&[timestamp.as_bytes(), b".", body]),
    }
}

/// The one value of a header: of two, somebody on the way may have seen the other.
fn header<'h>(headers: &'h HeaderMap, name: &str) -> Result<&'h str, Unverified> {
    let mut values = headers.get_all(name).into_iter();
    match (values.next(), values.next()) {
        (None, _) => Err(Unverified::Missing),
        (Some(value), None) => value.to_str().map_err(|_| Unverified::Malformed),
        (Some(_), Some(_)) => Err(Unverified::Malformed),
    }
}

fn stripe_claim(headers: &HeaderMap) -> Result<Claimed<'_>, Unverified> {
    let mut timestamp = None;
    let mut signatures = Vec::new();
    for item in header(headers, "stripe-signature")?.split(',') {
        let (name, value) = item.split_once('=').ok_or(Unverified::Malformed)?;
        match name.trim() {
            "t" if timestamp.is_none() => timestamp = Some(value.trim()),
            "v1" => signatures.push(hex::decode(value.trim()).map_err(|_| Unverified::Malformed)?),
            _ => {}
        }
    }
    let timestamp = timestamp.ok_or(Unverified::Malformed)?;
    known(None, timestamp, signatures)
}

fn standard_claim(headers: &HeaderMap) -> Result<Claimed<'_>, Unverified> {
    let id = header(headers, "webhook-id")?;
    let timestamp = header(headers, "webhook-timestamp")?;
    let mut signatures = Vec::new();
    for item in header(headers, "webhook-signature")?.split_ascii_whitespace() {
        let (version, value) = item.split_once(',').ok_or(Unverified::Malformed)?;
        if version == "v1" {
            signatures.push(BASE64_STANDARD.decode(value).map_err(|_| Unverified::Malformed)?);
        }
    }
    known(Some(id), timestamp, signatures)
}

fn known<'h>(
    id: Option<&'h str>,
    timestamp: &'h str,
    signatures: Vec<Vec<u8>>,
) -> Result<Claimed<'h>, Unverified> {
    match signatures.len() {
        0 => Err(Unverified::UnknownScheme),
        1..=MAX_SIGNATURES => Ok(Claimed {
            id,
            timestamp,
            signatures,
        }),
        _ => Err(Unverified::Malformed),
    }
}

/// Headers that sign `body`, as a provider sends them. `id` is the message's; Stripe's scheme leaves it out.
pub fn sign(
    scheme: Scheme,
    key: &Key,
    id: &str,
    timestamp_secs: i64,
    body: &[u8],
) -> Vec<(&'static str, String)> {
    let timestamp = timestamp_secs.to_string();
    match scheme {
        Scheme::Stripe => {
            let signature = hex::encode(mac(key, None, &timestamp, body).finalize().into_bytes());
            vec![("stripe-signature", format!("t={timestamp},v1={signature}"))]
        }
        Scheme::Standard => {
            let signature =
                BASE64_STANDARD.encode(mac(key, Some(id), &timestamp, body).finalize().into_bytes());
            vec![
                ("webhook-id", id.to_owned()),
                ("webhook-timestamp", timestamp),
                ("webhook-signature", format!("v1,{signature}")),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use hyper::header::{HeaderName, HeaderValue};
    use serde::Deserialize;

    use super::*;

    const NOW: i64 = 1_796_115_600;
    const BODY: &[u8] = br#"{"id":"evt_1","type":"charge.succeeded"}"#;

    fn secret(scheme: Scheme, nth: u8) -> Key {
        match scheme {
            Scheme::Stripe => Key::parse(scheme, &format!("whsec_secret-{nth}")).unwrap(),
            Scheme::Standard => {
                Key::parse(scheme, &format!("whsec_{}", BASE64_STANDARD.encode([nth; 24]))).unwrap()
            }
        }
    }

    fn headers(pairs: &[(&'static str, String)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(
                HeaderName::from_static(name),
                HeaderValue::from_str(value).unwrap(),
            );
        }
        map
    }

    fn verifier(scheme: Scheme, secrets: &[u8]) -> Verifier {
        let keys = secrets.iter().map(|nth| secret(scheme, *nth)).collect();
        Verifier::new(scheme, keys, Duration::from_mins(5))
    }

    fn signed(scheme: Scheme, nth: u8, at: i64, body: &[u8]) -> HeaderMap {
        headers(&sign(scheme, &secret(scheme, nth), "msg_1", at, body))
    }

    const BOTH: [Scheme; 2] = [Scheme::Stripe, Scheme::Standard];

    #[test]
    fn p13_a_body_is_believed_as_it_was_signed_and_not_otherwise() {
        for scheme in BOTH {
            let verify = |headers: &HeaderMap, body: &[u8]| verifier(scheme, &[1]).verify(headers, body, NOW);
            let good = signed(scheme, 1, NOW, BODY);
            assert_eq!(verify(&good, BODY), Ok(()));
            // The same JSON in another order, and one byte changed.
            let reordered = br#"{"type":"charge.succeeded","id":"evt_1"}"#;
            assert_eq!(verify(&good, reordered), Err(Unverified::Mismatch), "{scheme:?}");
            for place in 0..BODY.len() {
                let mut changed = BODY.to_vec();
                changed[place] ^= 1;
                assert_eq!(verify(&good, &changed), Err(Unverified::Mismatch));
            }
            assert_eq!(verify(&HeaderMap::new(), BODY), Err(Unverified::Missing));
            assert_eq!(
                verifier(scheme, &[]).verify(&good, BODY, NOW),
                Err(Unverified::NoSecret)
            );
        }
    }

    #[test]
    fn p13_a_signature_is_fresh_both_ways() {
        for scheme in BOTH {
            let at = |at| verifier(scheme, &[1]).verify(&signed(scheme, 1, at, BODY), BODY, NOW);
            assert_eq!(at(NOW - 300), Ok(()));
            assert_eq!(at(NOW + 300), Ok(()));
            assert_eq!(at(NOW - 301), Err(Unverified::TooOld));
            assert_eq!(at(NOW + 301), Err(Unverified::TooFarAhead));
            assert_eq!(at(i64::MIN), Err(Unverified::TooOld));
            assert_eq!(at(i64::MAX), Err(Unverified::TooFarAhead));
        }
    }

    #[test]
    fn p13_secrets_take_turns() {
        for scheme in BOTH {
            let while_both_are_good = verifier(scheme, &[1, 2]);
            for nth in [1, 2] {
                assert_eq!(
                    while_both_are_good.verify(&signed(scheme, nth, NOW, BODY), BODY, NOW),
                    Ok(())
                );
            }
            assert_eq!(
                verifier(scheme, &[2]).verify(&signed(scheme, 1, NOW, BODY), BODY, NOW),
                Err(Unverified::Mismatch)
            );
        }
    }

    #[test]
    fn p13_one_right_signature_among_others_is_enough_and_unknown_schemes_are_passed_over() {
        let (old, new) = (
            signed(Scheme::Stripe, 1, NOW, BODY),
            signed(Scheme::Stripe, 2, NOW, BODY),
        );
        let v1 = |from: &HeaderMap| {
            let text = from["stripe-signature"].to_str().unwrap();
            text.split_once(",v1=").unwrap().1.to_owned()
        };
        let of = |value: String| {
            verifier(Scheme::Stripe, &[2]).verify(&headers(&[("stripe-signature", value)]), BODY, NOW)
        };
        assert_eq!(of(format!("t={NOW},v1={},v1={}", v1(&old), v1(&new))), Ok(()));
        assert_eq!(of(format!("t={NOW},v0={},v1={}", v1(&old), v1(&new))), Ok(()));
        assert_eq!(
            of(format!("t={NOW},v0={}", v1(&new))),
            Err(Unverified::UnknownScheme)
        );
        assert_eq!(of(format!("v1={}", v1(&new))), Err(Unverified::Malformed));
        assert_eq!(of(format!("t=soon,v1={}", v1(&new))), Err(Unverified::Malformed));
        assert_eq!(of(format!("t={NOW},v1=xyz")), Err(Unverified::Malformed));
        assert_eq!(
            of(format!("t={NOW},v1={}", &v1(&new)[2..])),
            Err(Unverified::Mismatch)
        );
        let many = format!(",v1={}", v1(&old)).repeat(MAX_SIGNATURES + 1);
        assert_eq!(of(format!("t={NOW}{many}")), Err(Unverified::Malformed));

        let standard = |nth| signed(Scheme::Standard, nth, NOW, BODY)["webhook-signature"].clone();
        let of = |value: String| {
            let mut all = signed(Scheme::Standard, 2, NOW, BODY);
            all.insert("webhook-signature", HeaderValue::from_str(&value).unwrap());
            verifier(Scheme::Standard, &[2]).verify(&all, BODY, NOW)
        };
        let (old, new) = (
            standard(1).to_str().unwrap().to_owned(),
            standard(2).to_str().unwrap().to_owned(),
        );
        assert_eq!(of(format!("{old} {new}")), Ok(()));
        assert_eq!(of(format!("v1a,AAAA {new}")), Ok(()));
        assert_eq!(of(new.replace("v1,", "v2,")), Err(Unverified::UnknownScheme));
        assert_eq!(of("nonsense".to_owned()), Err(Unverified::Malformed));
    }

    #[test]
    fn a_header_that_is_there_twice_is_not_read() {
        let mut twice = signed(Scheme::Standard, 1, NOW, BODY);
        twice.append("webhook-id", HeaderValue::from_static("msg_2"));
        assert_eq!(
            verifier(Scheme::Standard, &[1]).verify(&twice, BODY, NOW),
            Err(Unverified::Malformed)
        );
    }

    #[test]
    fn a_secret_is_read_as_its_scheme_has_it() {
        assert_eq!(Key::parse(Scheme::Stripe, ""), Err(BadSecret));
        assert_eq!(Key::parse(Scheme::Standard, "whsec_"), Err(BadSecret));
        assert_eq!(Key::parse(Scheme::Standard, "whsec_not base64"), Err(BadSecret));
        let with = Key::parse(Scheme::Standard, "whsec_AQID").unwrap();
        assert_eq!(with, Key::parse(Scheme::Standard, "AQID").unwrap());
        assert_eq!(format!("{with:?}"), "Key(***)");
    }

    /// A request that an official library has signed; see the file's first member.
    #[derive(Deserialize)]
    struct Vector {
        scheme: String,
        secret: String,
        id: String,
        timestamp_secs: i64,
        body: String,
        headers: BTreeMap<String, String>,
    }

    #[derive(Deserialize)]
    struct Vectors {
        vectors: Vec<Vector>,
    }

    #[test]
    fn what_the_official_libraries_sign_is_believed_and_what_is_signed_here_is_the_same() {
        let file: Vectors = serde_json::from_str(include_str!("signature/vectors.json")).unwrap();
        assert!(file.vectors.len() >= 6);
        for vector in file.vectors {
            let scheme = if vector.scheme == "stripe" {
                Scheme::Stripe
            } else {
                Scheme::Standard
            };
            let key = Key::parse(scheme, &vector.secret).unwrap();
            let map =
                HeaderMap::try_from(&vector.headers.clone().into_iter().collect::<HashMap<_, _>>()).unwrap();
            let verifier = Verifier::new(scheme, vec![key.clone()], Duration::from_mins(5));
            assert_eq!(
                verifier.verify(&map, vector.body.as_bytes(), vector.timestamp_secs),
                Ok(())
            );
            let ours = sign(
                scheme,
                &key,
                &vector.id,
                vector.timestamp_secs,
                vector.body.as_bytes(),
            );
            let ours: BTreeMap<_, _> = ours
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect();
            assert_eq!(ours, vector.headers);
        }
    }
}
