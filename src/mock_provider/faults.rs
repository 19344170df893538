//! What the provider does wrong when it is told to.

use serde::Deserialize;

use super::book::roll;

/// A way to be faulty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Nothing is wrong.
    None,
    /// It is done, and never answered until the fault is lifted.
    Hang,
    /// It is done, and the connection is cut without an answer.
    AnswerLost,
    /// It is done, and answered 500; the next request gets the true answer.
    ErrorAfterCharge,
    /// It is done, and a 500 is stored and repeated for that reference.
    StoredError,
    /// Nothing is done: 429 with Retry-After.
    RateLimited,
    /// Nothing is done: the connection is closed at once.
    Down,
    /// A void of a charge under way is confirmed, and the charge succeeds all the same.
    IgnoreVoid,
}

/// What can be asked of the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Take money.
    Charge,
    /// Take what a charge has set aside.
    Capture,
    /// Tell what became of it.
    Lookup,
    /// Make sure that it is not taken.
    Void,
    /// Pay it back.
    Refund,
}

/// The fault in force.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Which.
    pub mode: Mode,
    /// Share of references that it hits.
    #[serde(default = "all")]
    pub percent: u8,
    /// Hits only charges in this currency.
    #[serde(default)]
    pub currency: Option<String>,
    /// Requests that it hits; by default all that the mode makes sense for.
    pub operations: Option<Vec<Operation>>,
    /// What a 429 asks for.
    #[serde(default = "one")]
    pub retry_after_secs: u64,
    /// Chooses the references.
    #[serde(default)]
    pub seed: u64,
}

fn all() -> u8 {
    100
}

fn one() -> u64 {
    1
}

impl Default for Fault {
    fn default() -> Self {
        Self {
            mode: Mode::None,
            percent: all(),
            currency: None,
            operations: None,
            retry_after_secs: one(),
            seed: 0,
        }
    }
}

impl Fault {
    /// What is wrong with this request, about a charge in `currency` (where there is such a charge).
    pub fn hits(&self, operation: Operation, reference: &str, currency: Option<&str>) -> Mode {
        use Operation::{Capture, Charge, Lookup, Refund, Void};
        let by_default: &[Operation] = match self.mode {
            Mode::None => &[],
            Mode::Hang | Mode::ErrorAfterCharge | Mode::StoredError => &[Charge],
            Mode::AnswerLost => &[Charge, Capture, Refund],
            Mode::RateLimited | Mode::Down => &[Charge, Capture, Lookup, Void, Refund],
            Mode::IgnoreVoid => &[Void],
        };
        let operations = self.operations.as_deref().unwrap_or(by_default);
        let here = self.currency.is_none() || self.currency.as_deref() == currency;
        if here && operations.contains(&operation) && roll(self.seed, "fault", reference) < self.percent {
            self.mode
        } else {
            Mode::None
        }
    }
}
