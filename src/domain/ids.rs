//! Names of things: each makes one effect happen once.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A fresh id: UUIDv7, so that ids made one after the other lie side by side in an index, with 74 random bits.
            pub fn fresh() -> Self {
                Self(Uuid::now_v7())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::from_str(text).map(Self)
            }
        }
    };
}

uuid_id! {
    /// A sale. Every key in the gate and every row of the hot tables names its sale.
    SaleId
}
uuid_id! {
    /// An order, and with it its reservation and its release.
    OrderId
}

/// Who buys: 1 to 64 characters of `A-Z a-z 0-9 . _ : @ -`. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Buyer(Arc<str>);

impl Buyer {
    /// The longest name of a buyer, in characters.
    pub const MAX_CHARS: usize = 64;

    /// Takes a buyer's name; `None` when it is empty, too long or holds other characters than allowed.
    pub fn parse(text: &str) -> Option<Self> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'@' | b'-');
        let fits = (1..=Self::MAX_CHARS).contains(&text.len()) && text.bytes().all(allowed);
        fits.then(|| Self(text.into()))
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Buyer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a buyer pays with, by a name that only the payment provider understands: 1 to 255 visible ASCII characters. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PaymentMethod(Arc<str>);

impl PaymentMethod {
    /// The longest name, in characters.
    pub const MAX_CHARS: usize = 255;

    /// Takes a name; `None` when it is empty, too long or holds other characters than allowed.
    pub fn parse(text: &str) -> Option<Self> {
        let fits = (1..=Self::MAX_CHARS).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
        fits.then(|| Self(text.into()))
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name of a request in logs, ours and other people's. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// Takes a name as the front door has let it in, or as a row has it.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name of a purchase within its sale: the first 128 bits of SHA-256 over buyer, a zero byte, and the
/// idempotency key.
///
/// The same 16 bytes are the gate's field, the database's unique key and the engine's memory of a buyer's request. The buyer
/// is part of it, so the same key from another buyer is another purchase, and only the buyer could collide with
/// themselves (after about 2^64 keys).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdempotencyDigest(pub Uuid);

impl IdempotencyDigest {
    /// The digest of this buyer's key.
    pub fn of(buyer: &Buyer, key: &str) -> Self {
        Self::of_parts(buyer.as_str().as_bytes(), key)
    }

    /// The digest of the key of a refund. It belongs to its order.
    pub fn of_refund(order: OrderId, key: &str) -> Self {
        Self::of_parts(order.0.as_bytes(), key)
    }

    fn of_parts(whose: &[u8], key: &str) -> Self {
        let hash = Sha256::new_with_prefix(whose)
            .chain_update([0])
            .chain_update(key)
            .finalize();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash[..16]);
        Self(Uuid::from_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buyers_are_bounded_and_plain() {
        assert!(Buyer::parse("ann.b_c:d@e-f9").is_some());
        assert!(Buyer::parse(&"x".repeat(64)).is_some());
        for bad in ["", " ", "a b", "a\n", "ä", &"x".repeat(65)] {
            assert_eq!(Buyer::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn payment_methods_are_bounded_and_visible() {
        assert!(PaymentMethod::parse("pm_card_visa").is_some());
        assert!(PaymentMethod::parse(&"x".repeat(255)).is_some());
        for bad in ["", " ", "a b", "a\n", "ä", &"x".repeat(256)] {
            assert_eq!(PaymentMethod::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn digests_keep_buyer_and_key_apart() {
        let (ann, ann1) = (Buyer::parse("ann").unwrap(), Buyer::parse("ann1").unwrap());
        assert_eq!(
            IdempotencyDigest::of(&ann, "1k"),
            IdempotencyDigest::of(&ann, "1k")
        );
        assert_ne!(
            IdempotencyDigest::of(&ann, "1k"),
            IdempotencyDigest::of(&ann1, "k")
        );
        assert_ne!(
            IdempotencyDigest::of(&ann, "1k"),
            IdempotencyDigest::of(&ann, "2k")
        );
    }
}
