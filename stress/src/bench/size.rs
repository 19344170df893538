//! How much of everything.

use std::time::Duration;

use super::load::Span;

/// Sizes and times of all parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    /// Rounds of each side.
    pub(super) rounds: u32,
    /// One measured load.
    pub(super) span: Span,
    /// The load that finds out which pool is best.
    pub(super) calibration: Span,
    /// PENDING orders in the table of the part `backlog`.
    pub(super) pending: u32,
    /// PAID ones.
    pub(super) paid: u32,
    /// Orders that are swept, and that are open at a start.
    pub(super) stuck: u32,
    /// Orders that are left open to see what they take.
    pub(super) open_orders: u32,
    /// Sales that are listed to see what they take.
    pub(super) idle_sales: u32,
}

impl Size {
    /// What is quoted.
    pub(super) fn full(rounds: u32, seconds: u64) -> Self {
        Self {
            rounds,
            span: span(1_000, seconds * 1_000),
            calibration: span(500, 1_500),
            pending: 1_000_000,
            paid: 10_000_000,
            stuck: 100_000,
            open_orders: 100_000,
            idle_sales: 10_000,
        }
    }

    /// To see that it works.
    pub(super) fn quick() -> Self {
        Self {
            rounds: 1,
            span: span(300, 1_500),
            calibration: span(200, 600),
            pending: 20_000,
            paid: 200_000,
            stuck: 20_000,
            open_orders: 20_000,
            idle_sales: 2_000,
        }
    }
}

fn span(warm_up_ms: u64, measured_ms: u64) -> Span {
    Span {
        warm_up: Duration::from_millis(warm_up_ms),
        measured: Duration::from_millis(measured_ms),
    }
}
