//! What a run comes to: for people as a table, for programs as JSON, and as a verdict.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::process::ExitCode;
use std::time::Duration;

use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::audit::{ChargeStatus, Facts, Status, Violation};
use crate::load::{Outcome, Record};

/// A run of a scenario.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Which scenario.
    pub scenario: &'static str,
    /// What chose everything that was random.
    pub seed: u64,
    /// Buyers.
    pub buyers: u32,
    /// Units on sale.
    pub units: u32,
    /// From the first request to the audit, in seconds.
    pub seconds: f64,
    /// Requests by what they came to; `accepted` are orders made, `replayed` those told of again.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// What buyers waited for, in milliseconds.
    pub latency_ms: Latency,
    /// Orders by status.
    pub orders: Orders,
    /// Orders that the sweeper failed.
    pub swept: u64,
    /// Conditional updates that came too late, by who wanted them.
    pub claims_lost: ClaimsLost,
    /// The stock, and what the gate would still sell.
    pub stock: Stock,
    /// The provider's side.
    pub provider: Provider,
    /// Faults that have struck, by kind.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub faults: BTreeMap<&'static str, u64>,
    /// Orders that were open when the fault struck.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_at_fault: Option<u64>,
    /// Purchases decided in the two seconds after the last fault, over those in the two seconds before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_after_over_before: Option<f64>,
    /// From the last buyer's answer until nothing was open and nothing owed, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled_after_s: Option<f64>,
    /// The longest time from the end of a fault to the first answer that decided a purchase made after it, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers_again_ms: Option<f64>,
    /// What is wrong.
    pub violations: Vec<Violation>,
    /// The check that this run is there to make fail.
    #[serde(skip)]
    pub must_fail: Option<&'static str>,
}

/// Percentiles, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Half of all requests were answered by then.
    pub p50: f64,
    /// 95 of 100.
    pub p95: f64,
    /// 99 of 100.
    pub p99: f64,
    /// All.
    pub max: f64,
}

/// Orders by status.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Orders {
    pending: u64,
    processing: u64,
    capturing: u64,
    paid: u64,
    failed: u64,
    refunded: u64,
}

/// Lost claims by who lost them.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct ClaimsLost {
    /// The payment worker.
    pub payment: u64,
    /// The sweeper.
    pub sweeper: u64,
    /// A webhook.
    pub webhook: u64,
}

/// The stock at the end.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Stock {
    quantity: i64,
    available: i64,
    held: i64,
    sold: i64,
    gate_available: Option<i64>,
}

/// What the provider has in its book.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Provider {
    charges: u64,
    declines: u64,
    refunds: u64,
    double_charges: u64,
    orphan_charges: u64,
}

impl Latency {
    /// Of these times.
    pub fn of(times: impl Iterator<Item = Duration>) -> Self {
        // Three digits from a microsecond to ten minutes.
        let Ok(mut histogram) = Histogram::<u64>::new_with_bounds(1, 600_000_000, 3) else {
            return Self::default();
        };
        for time in times {
            histogram.saturating_record(time.as_micros() as u64);
        }
        let ms = |micros: u64| micros as f64 / 1_000.0;
        Self {
            p50: ms(histogram.value_at_quantile(0.50)),
            p95: ms(histogram.value_at_quantile(0.95)),
            p99: ms(histogram.value_at_quantile(0.99)),
            max: ms(histogram.max()),
        }
    }
}

/// Requests by what they came to.
pub fn outcomes(records: &[Record]) -> BTreeMap<&'static str, u64> {
    let mut outcomes = BTreeMap::from([("accepted", 0), ("replayed", 0), ("sold_out", 0), ("unknown", 0)]);
    for record in records {
        let name = match &record.outcome {
            Outcome::Accepted { replayed: false, .. } => "accepted",
            Outcome::Accepted { replayed: true, .. } => "replayed",
            Outcome::Refused(refusal) => refusal.name(),
            Outcome::Unknown(_) => "unknown",
        };
        *outcomes.entry(name).or_default() += 1;
    }
    outcomes
}

impl Orders {
    /// Counts them.
    pub fn of(facts: &Facts) -> Self {
        let mut orders = Self::default();
        for order in &facts.orders {
            match order.status {
                Status::Pending => orders.pending += 1,
                Status::Processing => orders.processing += 1,
                Status::Capturing => orders.capturing += 1,
                Status::Paid => orders.paid += 1,
                Status::Failed => orders.failed += 1,
                Status::Refunded => orders.refunded += 1,
                Status::Rejected => {}
            }
        }
        orders
    }
}

impl Stock {
    /// As it is.
    pub fn of(facts: &Facts) -> Self {
        let stock = facts.inventory;
        Self {
            quantity: stock.quantity,
            available: stock.available,
            held: stock.held,
            sold: stock.sold,
            gate_available: facts.gate_available,
        }
    }
}

impl Provider {
    /// As the book has it. How many charges are one too many is what the audit has counted.
    pub fn of(facts: &Facts, violations: &[Violation]) -> Self {
        let with = |status| {
            facts
                .charges
                .iter()
                .filter(|charge| charge.status == status)
                .count() as u64
        };
        let found = |check| {
            let found = violations.iter().find(|violation| violation.check == check);
            found.map_or(0, |violation| violation.count as u64)
        };
        Self {
            charges: with(ChargeStatus::Succeeded),
            declines: with(ChargeStatus::Declined),
            refunds: facts.refunds.len() as u64,
            double_charges: found("no-double-charge"),
            orphan_charges: found("no-orphan-charge"),
        }
    }
}

impl Report {
    /// Whether it came out as it must.
    pub fn verdict(&self) -> Verdict {
        let verdict = Verdict::of(&self.violations);
        let Some(check) = self.must_fail else {
            return verdict;
        };
        let seen = self.violations.iter().any(|violation| violation.check == check);
        if self.violations.is_empty() {
            let note = "the harness is blind: the bug was let loose and the audit saw nothing".to_owned();
            return Verdict {
                success: false,
                note: Some(note),
                ..verdict
            };
        }
        Verdict {
            success: seen,
            ..verdict
        }
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        let listed = |pairs: &[(&str, String)]| {
            pairs
                .iter()
                .map(|(name, value)| format!("{name} {value}"))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let outcomes: Vec<_> = self
            .outcomes
            .iter()
            .map(|(name, count)| (*name, count.to_string()))
            .collect();
        let ms = |value: f64| format!("{value:.1}");
        let Latency { p50, p95, p99, max } = self.latency_ms;
        let Orders {
            pending,
            processing,
            capturing,
            paid,
            failed,
            refunded,
        } = self.orders;
        let ClaimsLost {
            payment,
            sweeper,
            webhook,
        } = self.claims_lost;
        let Stock {
            quantity,
            available,
            held,
            sold,
            gate_available,
        } = self.stock;
        let Provider {
            charges,
            declines,
            refunds,
            double_charges,
            orphan_charges,
        } = self.provider;
        let gate = gate_available.map_or("unknown".to_owned(), |units| units.to_string());
        table.set_header([
            self.scenario,
            &format!("seed {}, {:.1} s", self.seed, self.seconds),
        ]);
        table.add_row([
            "sale",
            &format!("{} buyers for {} units", self.buyers, self.units),
        ]);
        table.add_row(["requests", &listed(&outcomes)]);
        table.add_row([
            "latency, ms",
            &listed(&[
                ("p50", ms(p50)),
                ("p95", ms(p95)),
                ("p99", ms(p99)),
                ("max", ms(max)),
            ]),
        ]);
        let counts = |pairs: &[(&str, u64)]| {
            pairs
                .iter()
                .map(|(name, count)| format!("{name} {count}"))
                .collect::<Vec<_>>()
                .join(", ")
        };
        table.add_row([
            "orders",
            &counts(&[
                ("pending", pending),
                ("processing", processing),
                ("capturing", capturing),
                ("paid", paid),
                ("failed", failed),
                ("refunded", refunded),
                ("of them swept", self.swept),
            ]),
        ]);
        table.add_row([
            "claims lost",
            &counts(&[("payment", payment), ("sweeper", sweeper), ("webhook", webhook)]),
        ]);
        table.add_row([
            "stock",
            &format!(
                "{available} available + {held} held + {sold} sold = {quantity}; the gate would sell {gate}"
            ),
        ]);
        table.add_row([
            "provider",
            &counts(&[
                ("charges", charges),
                ("declines", declines),
                ("refunds", refunds),
                ("double charges", double_charges),
                ("orphan charges", orphan_charges),
            ]),
        ]);
        if !self.faults.is_empty() {
            let faults: Vec<_> = self.faults.iter().map(|(name, times)| (*name, *times)).collect();
            let open = self
                .open_at_fault
                .map_or(String::new(), |open| format!("; {open} orders were open"));
            table.add_row(["faults", &format!("{}{open}", counts(&faults))]);
        }
        if let Some(after) = self.answers_again_ms {
            table.add_row([
                "decides again",
                &format!("at most {} ms after a fault", ms(after)),
            ]);
        }
        if let Some(ratio) = self.decided_after_over_before {
            table.add_row([
                "throughput",
                &format!("{:.0}% of what it was before", ratio * 100.0),
            ]);
        }
        if let Some(after) = self.settled_after_s {
            table.add_row(["all settled", &format!("{after:.1} s after the last buyer")]);
        }
        write!(f, "{table}")?;
        for violation in &self.violations {
            write!(f, "\n{violation}")?;
        }
        Ok(())
    }
}

/// How it ends: the last line on stdout, and the exit status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    note: Option<String>,
    line: Option<String>,
    success: bool,
}

impl Verdict {
    /// Nothing was audited, and nothing was to be.
    pub fn silent() -> Self {
        Self {
            note: None,
            line: None,
            success: true,
        }
    }

    /// It could not be run; so nothing holds.
    pub fn not_run(error: &anyhow::Error) -> Self {
        let line = format!("audit: VIOLATION not-run: {error:#}").replace('\n', " ");
        Self {
            note: None,
            line: Some(line),
            success: false,
        }
    }

    /// By what the audit found.
    pub fn of(violations: &[Violation]) -> Self {
        let names: Vec<_> = violations
            .iter()
            .map(|violation| format!("{} ({})", violation.check, violation.count))
            .collect();
        let success = names.is_empty();
        let line = if success {
            "audit: ok".to_owned()
        } else {
            format!("audit: VIOLATION {}", names.join(", "))
        };
        Self {
            note: None,
            line: Some(line),
            success,
        }
    }

    /// Of several runs, by their names: each must have come out as it must.
    pub fn of_all(runs: &[(String, Self)]) -> Self {
        let wrong: Vec<_> = runs
            .iter()
            .filter(|(_, verdict)| !verdict.success)
            .map(|(name, verdict)| {
                let line = verdict.note.as_ref().or(verdict.line.as_ref());
                let line = line.map(String::as_str).unwrap_or_default();
                let line = line.strip_prefix("audit: VIOLATION ").unwrap_or(line);
                format!("{name}: {line}")
            })
            .collect();
        let success = wrong.is_empty();
        let line = if success {
            "audit: ok".to_owned()
        } else {
            format!("audit: VIOLATION {}", wrong.join("; "))
        };
        Self {
            note: Some(format!(
                "{} runs, {} not as they must be",
                runs.len(),
                wrong.len()
            )),
            line: Some(line),
            success,
        }
    }

    /// 0 only when all is as it must be.
    pub fn exit_code(&self) -> ExitCode {
        if self.success {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }

    /// Whether all is as it must be.
    pub fn is_success(&self) -> bool {
        self.success
    }
}

impl Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<&str> = [&self.note, &self.line]
            .into_iter()
            .flatten()
            .map(String::as_str)
            .collect();
        f.write_str(&lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(must_fail: Option<&'static str>, checks: &[&'static str]) -> Report {
        Report {
            scenario: "flood",
            seed: 1,
            buyers: 1,
            units: 1,
            seconds: 1.0,
            outcomes: BTreeMap::new(),
            latency_ms: Latency::default(),
            orders: Orders::default(),
            swept: 0,
            claims_lost: ClaimsLost::default(),
            stock: Stock::default(),
            provider: Provider::default(),
            faults: BTreeMap::new(),
            open_at_fault: None,
            settled_after_s: None,
            decided_after_over_before: None,
            answers_again_ms: None,
            violations: checks
                .iter()
                .map(|check| Violation {
                    check,
                    count: 2,
                    examples: vec!["x".to_owned()],
                })
                .collect(),
            must_fail,
        }
    }

    #[test]
    fn an_audit_that_holds_ends_well() {
        let verdict = report(None, &[]).verdict();
        assert_eq!(
            (verdict.to_string().as_str(), verdict.success),
            ("audit: ok", true)
        );
        let verdict = report(None, &["gate-agrees"]).verdict();
        assert_eq!(
            (verdict.to_string().as_str(), verdict.success),
            ("audit: VIOLATION gate-agrees (2)", false)
        );
    }

    #[test]
    fn a_bug_that_is_let_loose_must_be_seen() {
        let bug = Some("swept-and-charged");
        let seen = report(bug, &["gate-agrees", "swept-and-charged"]).verdict();
        assert_eq!(
            seen.to_string(),
            "audit: VIOLATION gate-agrees (2), swept-and-charged (2)"
        );
        assert!(seen.success);
        assert!(
            !report(bug, &["gate-agrees"]).verdict().success,
            "something else is not enough"
        );
        let blind = report(bug, &[]).verdict();
        assert!(!blind.success);
        let (note, last) = (blind.note.clone().unwrap(), blind.line.clone().unwrap());
        assert!(note.contains("blind"));
        assert_eq!(last, "audit: ok");
    }

    fn named(report: &Report) -> (String, Verdict) {
        let name = format!("{} with seed {}", report.scenario, report.seed);
        (name, report.verdict())
    }

    #[test]
    fn several_runs_are_as_good_as_the_worst() {
        let fine = report(None, &[]);
        let bug = report(Some("swept-and-charged"), &["swept-and-charged"]);
        let of_all = |reports: &[Report]| Verdict::of_all(&reports.iter().map(named).collect::<Vec<_>>());
        let all = of_all(&[fine.clone(), bug]);
        assert!(all.success && all.to_string().ends_with("\naudit: ok"), "{all}");
        let not_run = (
            "flood with seed 2".to_owned(),
            Verdict::not_run(&anyhow::anyhow!("no room")),
        );
        let all = Verdict::of_all(&[named(&fine), not_run]);
        assert!(
            all.to_string()
                .ends_with("\naudit: VIOLATION flood with seed 2: not-run: no room"),
            "{all}"
        );
        let all = of_all(&[fine, report(None, &["gate-agrees"])]);
        assert!(!all.success);
        assert!(
            all.to_string()
                .ends_with("\naudit: VIOLATION flood with seed 1: gate-agrees (2)"),
            "{all}"
        );
    }

    #[test]
    fn the_json_has_the_agreed_shape() {
        let json = serde_json::to_value(report(None, &["gate-agrees"])).unwrap();
        let keys = |value: &serde_json::Value| {
            value
                .as_object()
                .unwrap()
                .keys()
                .cloned()
                .collect::<std::collections::BTreeSet<_>>()
        };
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(keys(&json["latency_ms"]), set(&["p50", "p95", "p99", "max"]));
        assert_eq!(
            keys(&json["orders"]),
            set(&["pending", "processing", "capturing", "paid", "failed", "refunded"])
        );
        assert_eq!(
            keys(&json["claims_lost"]),
            set(&["payment", "sweeper", "webhook"])
        );
        assert_eq!(
            keys(&json["stock"]),
            set(&["quantity", "available", "held", "sold", "gate_available"])
        );
        let provider = [
            "charges",
            "declines",
            "refunds",
            "double_charges",
            "orphan_charges",
        ];
        assert_eq!(keys(&json["provider"]), set(&provider));
        assert_eq!(json["violations"][0], "gate-agrees (2): x; and 1 more");
        for name in ["scenario", "seed", "buyers", "units", "outcomes", "swept"] {
            assert!(json.get(name).is_some(), "{name}");
        }
    }
}
