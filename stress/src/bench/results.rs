//! What the rounds come to.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use serde::Serialize;

use crate::audit::Violation;
use crate::report::{Latency, Verdict};

/// The ratio that group commit is there for.
const TARGET_RATIO: f64 = 10.0;

/// Who was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Side {
    Engine,
    Baseline,
}

impl Side {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Baseline => "baseline",
        }
    }
}

/// One round of one side.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Round {
    #[serde(rename = "round")]
    pub(super) number: u32,
    pub(super) side: Side,
    pub(super) orders_per_second: f64,
    pub(super) latency_ms: Latency,
    pub(super) outcomes: BTreeMap<&'static str, u64>,
    pub(super) violations: Vec<Violation>,
}

/// Orders per second over all rounds of one side.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Summary {
    median: f64,
    min: f64,
    max: f64,
}

impl Summary {
    fn of(rounds: &[Round], side: Side) -> Self {
        let mut rates: Vec<f64> = rounds
            .iter()
            .filter(|round| round.side == side)
            .map(|round| round.orders_per_second)
            .collect();
        rates.sort_by(f64::total_cmp);
        let (Some(min), Some(max)) = (rates.first(), rates.last()) else {
            return Self {
                median: 0.0,
                min: 0.0,
                max: 0.0,
            };
        };
        let median = f64::midpoint(rates[(rates.len() - 1) / 2], rates[rates.len() / 2]);
        Self {
            median,
            min: *min,
            max: *max,
        }
    }

    /// From the slowest round to the fastest, in percent of the median.
    fn spread_percent(&self) -> f64 {
        if self.median > 0.0 {
            (self.max - self.min) / self.median * 100.0
        } else {
            0.0
        }
    }
}

/// All rounds, and what they come to.
#[derive(Debug, Serialize)]
pub struct Results {
    buyers: u32,
    postgres: BTreeMap<&'static str, String>,
    rows: Vec<Round>,
    engine: Summary,
    baseline: Summary,
    ratio: f64,
}

impl Results {
    pub(super) fn new(rows: Vec<Round>, buyers: u32, postgres: Vec<(&'static str, String)>) -> Self {
        let (engine, baseline) = (
            Summary::of(&rows, Side::Engine),
            Summary::of(&rows, Side::Baseline),
        );
        let ratio = if baseline.median > 0.0 {
            engine.median / baseline.median
        } else {
            0.0
        };
        Self {
            buyers,
            postgres: postgres.into_iter().collect(),
            rows,
            engine,
            baseline,
            ratio,
        }
    }

    /// Holds when every round's audit does. The ratio is a figure, not a test.
    pub fn verdict(&self) -> Verdict {
        let all: Vec<Violation> = self
            .rows
            .iter()
            .flat_map(|round| round.violations.clone())
            .collect();
        Verdict::of(&all)
    }
}

impl Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        table.set_header([
            "round",
            "side",
            "orders/s",
            "p50 ms",
            "p99 ms",
            "max ms",
            "not accepted",
            "audit",
        ]);
        for round in &self.rows {
            let others: u64 = round
                .outcomes
                .iter()
                .filter(|(outcome, _)| **outcome != "accepted")
                .map(|(_, count)| count)
                .sum();
            let latency = round.latency_ms;
            table.add_row([
                round.number.to_string(),
                round.side.name().to_owned(),
                format!("{:.0}", round.orders_per_second),
                format!("{:.1}", latency.p50),
                format!("{:.1}", latency.p99),
                format!("{:.1}", latency.max),
                others.to_string(),
                if round.violations.is_empty() {
                    "ok"
                } else {
                    "VIOLATION"
                }
                .to_owned(),
            ]);
        }
        for column in [2, 3, 4, 5, 6] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let settings: Vec<_> = self
            .postgres
            .iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        writeln!(f, "{table}")?;
        writeln!(
            f,
            "{} buyers on kept connections; postgres: {}",
            self.buyers,
            settings.join(", ")
        )?;
        for (name, side) in [("engine", &self.engine), ("baseline", &self.baseline)] {
            writeln!(
                f,
                "{name}: median {:.0} orders/s, {:.0} to {:.0} (spread {:.0}%)",
                side.median,
                side.min,
                side.max,
                side.spread_percent()
            )?;
        }
        let met = if self.ratio >= TARGET_RATIO {
            "met"
        } else {
            "missed"
        };
        write!(
            f,
            "ratio {:.1} (at least {TARGET_RATIO:.0} is wanted: {met})",
            self.ratio
        )?;
        for (round, violation) in self
            .rows
            .iter()
            .flat_map(|round| round.violations.iter().map(move |violation| (round, violation)))
        {
            write!(f, "\nround {}, {}: {violation}", round.number, round.side.name())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(side: Side, orders_per_second: f64) -> Round {
        Round {
            number: 1,
            side,
            orders_per_second,
            latency_ms: Latency::default(),
            outcomes: BTreeMap::new(),
            violations: Vec::new(),
        }
    }

    #[test]
    fn medians_are_compared() {
        let rows = [30_000.0, 20_000.0, 40_000.0, 26_000.0].map(|rate| round(Side::Engine, rate));
        let others = [1_000.0, 3_000.0, 2_000.0].map(|rate| round(Side::Baseline, rate));
        let results = Results::new(rows.into_iter().chain(others).collect(), 512, Vec::new());
        assert_eq!(
            results.engine,
            Summary {
                median: 28_000.0,
                min: 20_000.0,
                max: 40_000.0
            }
        );
        assert_eq!(
            results.baseline,
            Summary {
                median: 2_000.0,
                min: 1_000.0,
                max: 3_000.0
            }
        );
        assert!((results.ratio - 14.0).abs() < 1e-9);
        assert!((results.baseline.spread_percent() - 100.0).abs() < 1e-9);
        assert!(
            results
                .to_string()
                .contains("ratio 14.0 (at least 10 is wanted: met)")
        );
    }

    #[test]
    fn one_round_that_does_not_hold_spoils_all() {
        let mut rows = vec![round(Side::Engine, 1.0), round(Side::Baseline, 1.0)];
        assert!(Results::new(rows.clone(), 1, Vec::new()).verdict().is_success());
        rows[1].violations.push(Violation {
            check: "gate-agrees",
            count: 1,
            examples: Vec::new(),
        });
        assert!(!Results::new(rows, 1, Vec::new()).verdict().is_success());
    }
}
