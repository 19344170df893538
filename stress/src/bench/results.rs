//! What all of it comes to: two tables for people, JSON for programs, and the audit's verdict.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use serde::Serialize;

use super::context::{Bench, Found};
use super::figures::{Figure, Row, Summary};
use crate::audit::Violation;
use crate::report::Verdict;

/// All figures, and all that is held against a bound.
#[derive(Debug, Serialize)]
pub struct Results {
    /// Whether a commit was durable.
    postgres: BTreeMap<&'static str, String>,
    /// Connections of each rival.
    pools: BTreeMap<&'static str, u32>,
    rows: Vec<Row>,
    figures: Vec<Figure>,
    /// By run.
    violations: Vec<String>,
    #[serde(skip)]
    found: Vec<Violation>,
}

impl Results {
    pub(super) fn of(bench: Bench<'_>) -> Self {
        let (postgres, pools) = (bench.postgres.clone(), bench.pools());
        let (figures, rows) = bench.ledger.close();
        let told = |found: &Found| format!("{}: {}", found.run, found.violation);
        Self {
            postgres,
            pools,
            rows,
            figures,
            violations: bench.found.iter().map(told).collect(),
            found: bench.found.into_iter().map(|found| found.violation).collect(),
        }
    }

    /// Holds when every run's audit does. A bound is a figure, not a test.
    pub fn verdict(&self) -> Verdict {
        Verdict::of(&self.found)
    }
}

/// Three digits, and the whole of what is before the point.
fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn table(header: &[&str], numbers: &[usize], rows: impl Iterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(header.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    for column in numbers {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn listed(pairs: &BTreeMap<&'static str, impl Display>) -> String {
    let pairs: Vec<_> = pairs
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    pairs.join(", ")
}

impl Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = self.figures.iter().map(|figure| {
            let Summary { median, min, max } = Summary::of(&figure.runs);
            vec![
                figure.part.to_owned(),
                figure.name.clone(),
                figure.unit.to_owned(),
                digits(median),
                digits(min),
                digits(max),
            ]
        });
        let header = ["part", "figure", "unit", "median", "min", "max"];
        writeln!(f, "{}", table(&header, &[3, 4, 5], figures))?;
        writeln!(f, "postgres: {}", listed(&self.postgres))?;
        if !self.pools.is_empty() {
            writeln!(f, "best pools: {}", listed(&self.pools))?;
        }
        let rows = self.rows.iter().map(|row| {
            vec![
                row.name.to_owned(),
                digits(row.value),
                format!("{} {}", if row.at_most { "<=" } else { ">=" }, row.bound),
                format!("{:.0} %", row.spread * 100.0),
                row.runs
                    .iter()
                    .map(|run| digits(*run))
                    .collect::<Vec<_>>()
                    .join(" "),
                if row.holds { "met" } else { "missed" }.to_owned(),
            ]
        });
        let header = ["bound", "median", "wanted", "spread", "rounds", ""];
        write!(f, "{}", table(&header, &[1, 2, 3], rows))?;
        for row in &self.rows {
            for unmet in &row.unmet {
                write!(f, "\n{}: {unmet}", row.name)?;
            }
        }
        for violation in &self.violations {
            write!(f, "\n{violation}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::bounds::{BYTES_PER_OPEN_ORDER, SALES_10000_OVER_1};
    use crate::bench::size::Size;
    use crate::world::{Place, Programs};

    fn results(fill: impl FnOnce(&mut Bench<'_>)) -> Results {
        let place = Place::Private(Programs {
            engine: None,
            guard_off_engine: None,
            logs: None,
        });
        let mut bench = Bench::new(&place, 1, Size::quick());
        fill(&mut bench);
        Results::of(bench)
    }

    #[test]
    fn a_missed_bound_is_a_figure_and_no_violation() {
        let results = results(|bench| {
            bench.ledger.ratio(&SALES_10000_OVER_1, 1.0, 4.0);
            bench.ledger.bounded(&BYTES_PER_OPEN_ORDER, 1_500.0);
            bench
                .ledger
                .require(&BYTES_PER_OPEN_ORDER, false, || "too few were open".to_owned());
        });
        let text = results.to_string();
        assert!(results.verdict().is_success());
        let line = |name: &str| text.lines().find(|line| line.contains(name)).unwrap().to_owned();
        assert!(line("sales_10000_over_1").contains("missed"), "{text}");
        assert!(line("bytes_per_open_order").contains("<= 2048"), "{text}");
        assert!(
            text.ends_with("bytes_per_open_order: too few were open"),
            "{text}"
        );
        let json = serde_json::to_value(&results).unwrap();
        assert_eq!(json["rows"][0]["value"], 0.25);
        assert_eq!(json["rows"][0]["holds"], false);
        assert_eq!(json["rows"][1]["at_most"], true);
    }

    #[test]
    fn one_run_that_does_not_hold_spoils_all() {
        let results = results(|bench| {
            bench.found.push(Found {
                run: "round 1".to_owned(),
                violation: Violation {
                    check: "gate-agrees",
                    count: 1,
                    examples: vec!["one too many".to_owned()],
                },
            });
        });
        assert!(!results.verdict().is_success());
        let text = results.to_string();
        assert!(text.ends_with("round 1: gate-agrees (1): one too many"), "{text}");
    }

    #[test]
    fn numbers_are_as_long_as_they_are_exact() {
        assert_eq!(
            [21_212.3, 45.67, 1.234, 0.0456].map(digits),
            ["21212", "45.7", "1.23", "0.046"]
        );
    }
}
