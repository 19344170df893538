//! The names of everything in Redis. The braces make a sale one slot of a cluster.

use crate::domain::SaleId;

/// The keys of one sale.
pub(super) struct SaleKeys {
    /// Hash: `available`, `epoch`, `opens_at_us`, `closes_at_us`, `limit`; while it is being loaded instead of those
    /// `loading` (the epoch) and `loading_since_us`; and `loader` (who loads or has loaded it).
    pub(super) state: String,
    /// Hash: idempotency digest (32 hex digits) to `<order>:<quantity>`.
    pub(super) keys: String,
    /// Hash: order to `<quantity>:<reserved at, us>:<digest>:<buyer>`, for every order that holds or owns units.
    pub(super) held: String,
    /// Hash: buyer to units held or owned. Only in sales with a limit per buyer.
    pub(super) buyers: String,
    /// Sorted set: orders that must never reserve (again), by when that was said in microseconds.
    pub(super) tombs: String,
}

impl SaleKeys {
    pub(super) fn of(sale: SaleId) -> Self {
        let key = |what| format!("{{sale:{sale}}}:{what}");
        Self {
            state: key("state"),
            keys: key("keys"),
            held: key("held"),
            buyers: key("buyers"),
            tombs: key("tombs"),
        }
    }

    /// In the order in which every script takes them.
    pub(super) fn all(&self) -> [&str; 5] {
        [&self.state, &self.keys, &self.held, &self.buyers, &self.tombs]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_of_a_sale_share_one_slot() {
        let sale = SaleId::fresh();
        for key in SaleKeys::of(sale).all() {
            assert!(key.starts_with(&format!("{{sale:{sale}}}:")), "{key}");
        }
    }
}
