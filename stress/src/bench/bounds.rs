//! What the engine is held to. Ratios of neighbours wherever the machine's own speed would show otherwise.

/// A bound of one figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bound {
    /// The figure's name.
    pub(super) name: &'static str,
    /// The bound.
    pub(super) value: f64,
    /// It is an upper one.
    pub(super) at_most: bool,
}

impl Bound {
    pub(super) const fn at_least(name: &'static str, value: f64) -> Self {
        Self {
            name,
            value,
            at_most: false,
        }
    }

    pub(super) const fn at_most(name: &'static str, value: f64) -> Self {
        Self {
            name,
            value,
            at_most: true,
        }
    }
}

/// Accepted orders per second, engine over baseline.
pub(super) static ACCEPT_OVER_BASELINE: Bound = Bound::at_least("accept_over_baseline", 14.0);
/// The same over the server whose transaction is the order alone.
pub(super) static ACCEPT_OVER_LEAN: Bound = Bound::at_least("accept_over_lean", 3.0);
/// The same over what Postgres makes durable with the machine to itself.
pub(super) static ACCEPT_OVER_CEILING: Bound = Bound::at_least("accept_over_ceiling", 0.42);
/// Sold-out answers per second, engine over a server that decides nothing.
pub(super) static REFUSE_OVER_BARE: Bound = Bound::at_least("refuse_over_bare", 0.80);
/// Accepted orders per second, while orders are charged and settled over while they aren't.
pub(super) static LIFE_OVER_ACCEPT: Bound = Bound::at_least("life_over_accept", 0.70);
/// Orders per second from purchase to settlement, engine over baseline.
pub(super) static LIFE_OVER_BASELINE: Bound = Bound::at_least("life_over_baseline", 8.0);
/// 99 of 100 of 900 buyers at one instant have waited no longer, engine over baseline.
pub(super) static OPENING_P99_OVER_BASELINE: Bound = Bound::at_most("opening_p99_over_baseline", 0.15);
/// Purchases per second at 10,000 sales over those at one.
pub(super) static SALES_10000_OVER_1: Bound = Bound::at_least("sales_10000_over_1", 0.50);
/// Accepted orders per second, with millions of orders in the table over none.
pub(super) static BACKLOG_OVER_EMPTY: Bound = Bound::at_least("backlog_over_empty", 0.85);
/// Resident bytes of the engine per open order.
pub(super) static BYTES_PER_OPEN_ORDER: Bound = Bound::at_most("bytes_per_open_order", 2_048.0);
/// Resident bytes of the engine per sale that nobody buys from.
pub(super) static BYTES_PER_IDLE_SALE: Bound = Bound::at_most("bytes_per_idle_sale", 4_096.0);
/// Accepted orders per second, at twice the load that can be accepted over that load.
pub(super) static OVERLOAD_ACCEPT_OVER_PEAK: Bound = Bound::at_least("overload_accept_over_peak", 0.85);
