//! What was measured, and what that comes to: medians, spreads, and ratios held against their bounds.

use serde::{Serialize, Serializer};

use super::bounds::Bound;

/// A part of the benchmark, by its name on the command line.
pub(super) type PartName = &'static str;

/// Middle and ends of what was measured, in the figure's own unit.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Summary {
    /// Half are below, half above.
    pub(super) median: f64,
    /// The smallest.
    pub(super) min: f64,
    /// The largest.
    pub(super) max: f64,
}

impl Summary {
    /// Of these; all zero when there are none.
    pub(super) fn of(runs: &[f64]) -> Self {
        let mut sorted = runs.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(min), Some(max)) = (sorted.first(), sorted.last()) else {
            return Self::default();
        };
        Self {
            median: f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]),
            min: *min,
            max: *max,
        }
    }

    /// From the smallest to the largest, as a share of the median.
    pub(super) fn spread(&self) -> f64 {
        if self.median > 0.0 {
            (self.max - self.min) / self.median
        } else {
            0.0
        }
    }
}

/// Something that was measured, once in each round.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figure {
    /// In which part.
    pub(super) part: PartName,
    /// What.
    pub(super) name: String,
    /// In which unit.
    pub(super) unit: &'static str,
    /// Round by round.
    pub(super) runs: Vec<f64>,
}

impl Serialize for Figure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown<'a> {
            part: &'a str,
            name: &'a str,
            unit: &'a str,
            median: f64,
            min: f64,
            max: f64,
            runs: &'a [f64],
        }
        let Summary { median, min, max } = Summary::of(&self.runs);
        Shown {
            part: self.part,
            name: &self.name,
            unit: self.unit,
            median,
            min,
            max,
            runs: &self.runs,
        }
        .serialize(serializer)
    }
}

/// A figure held against its bound.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Row {
    /// Its name.
    pub(super) name: &'static str,
    /// The median of the runs.
    pub(super) value: f64,
    /// What it is held against.
    pub(super) bound: f64,
    /// The bound is an upper one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) at_most: bool,
    /// The bound is kept, and so is everything else that it depends on.
    pub(super) holds: bool,
    /// From the smallest run to the largest, as a share of the median.
    pub(super) spread: f64,
    /// Ratios of neighbours in the same round, or what else there is one of in each.
    pub(super) runs: Vec<f64>,
    /// Why it doesn't hold though its bound is kept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) unmet: Vec<String>,
}

impl Row {
    fn of(bound: &Bound, runs: &[f64], unmet: &[String]) -> Self {
        let summary = Summary::of(runs);
        let kept = if bound.at_most {
            summary.median <= bound.value
        } else {
            summary.median >= bound.value
        };
        Self {
            name: bound.name,
            value: summary.median,
            bound: bound.value,
            at_most: bound.at_most,
            holds: kept && unmet.is_empty(),
            spread: summary.spread(),
            runs: runs.to_vec(),
            unmet: unmet.to_vec(),
        }
    }
}

/// Gathers figures and what bounds are held against, in the order in which they come.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    figures: Vec<Figure>,
    bounded: Vec<(&'static Bound, Vec<f64>, Vec<String>)>,
}

impl Ledger {
    /// One more run of a figure.
    pub(super) fn figure(&mut self, part: PartName, name: impl Into<String>, unit: &'static str, value: f64) {
        let name = name.into();
        let known = self
            .figures
            .iter_mut()
            .find(|figure| figure.part == part && figure.name == name);
        if let Some(known) = known {
            known.runs.push(value);
        } else {
            let runs = vec![value];
            self.figures.push(Figure {
                part,
                name,
                unit,
                runs,
            });
        }
    }

    /// One more run of what a bound is for.
    pub(super) fn bounded(&mut self, bound: &'static Bound, value: f64) {
        self.entry(bound).1.push(value);
    }

    /// The ratio of two neighbours, for a bound. Nothing over nothing is nothing.
    pub(super) fn ratio(&mut self, bound: &'static Bound, ours: f64, theirs: f64) {
        self.bounded(bound, if theirs > 0.0 { ours / theirs } else { 0.0 });
    }

    /// What a bound depends on besides: once unmet, it doesn't hold.
    pub(super) fn require(&mut self, bound: &'static Bound, met: bool, what: impl FnOnce() -> String) {
        if !met {
            self.entry(bound).2.push(what());
        }
    }

    fn entry(&mut self, bound: &'static Bound) -> &mut (&'static Bound, Vec<f64>, Vec<String>) {
        let place = self
            .bounded
            .iter()
            .position(|(known, ..)| known.name == bound.name);
        let place = place.unwrap_or_else(|| {
            self.bounded.push((bound, Vec::new(), Vec::new()));
            self.bounded.len() - 1
        });
        &mut self.bounded[place]
    }

    /// All figures, and a row for each bound.
    pub(super) fn close(self) -> (Vec<Figure>, Vec<Row>) {
        let rows = self
            .bounded
            .iter()
            .map(|(bound, runs, unmet)| Row::of(bound, runs, unmet))
            .collect();
        (self.figures, rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Bound = Bound::at_least("quick_enough", 2.0);
    const MOST: Bound = Bound::at_most("small_enough", 2.0);

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-9, "{a} is not {b}");
    }

    #[test]
    fn the_median_lies_in_the_middle() {
        assert_eq!(Summary::of(&[]), Summary::default());
        close(Summary::of(&[5.0, 1.0, 3.0]).median, 3.0);
        close(Summary::of(&[4.0, 1.0, 3.0, 2.0]).median, 2.5);
        let summary = Summary::of(&[8.0, 12.0, 10.0]);
        close(summary.spread(), 0.4);
        close(Summary::of(&[0.0, 0.0]).spread(), 0.0);
    }

    #[test]
    fn runs_of_a_figure_are_kept_together() {
        let mut ledger = Ledger::default();
        for (name, value) in [("a", 1.0), ("b", 7.0), ("a", 3.0)] {
            ledger.figure("accept", name, "ms", value);
        }
        ledger.figure("refuse", "a", "ms", 9.0);
        let (figures, _) = ledger.close();
        let runs: Vec<_> = figures
            .iter()
            .map(|figure| (figure.part, figure.runs.clone()))
            .collect();
        assert_eq!(
            runs,
            [
                ("accept", vec![1.0, 3.0]),
                ("accept", vec![7.0]),
                ("refuse", vec![9.0])
            ]
        );
    }

    #[test]
    fn a_ratio_is_that_of_neighbours() {
        // Twice as fast in each round, on a machine that slows down: the ratio of the medians would say the same of any pairing.
        let mut ledger = Ledger::default();
        for (ours, theirs) in [(200.0, 100.0), (160.0, 80.0), (100.0, 50.0)] {
            ledger.ratio(&LEAST, ours, theirs);
        }
        let (_, rows) = ledger.close();
        assert_eq!(rows[0].runs, [2.0, 2.0, 2.0]);
        assert!(rows[0].holds && !rows[0].at_most);
        close(rows[0].spread, 0.0);
    }

    #[test]
    fn bounds_are_lower_or_upper_ones() {
        let row = |bound, value| Row::of(bound, &[value], &[]);
        assert!(row(&LEAST, 2.0).holds && row(&LEAST, 3.0).holds && !row(&LEAST, 1.9).holds);
        assert!(row(&MOST, 2.0).holds && row(&MOST, 1.0).holds && !row(&MOST, 2.1).holds);
        let json = serde_json::to_value(row(&MOST, 1.0)).unwrap();
        assert_eq!(json["at_most"], true);
        assert!(
            serde_json::to_value(row(&LEAST, 1.0))
                .unwrap()
                .get("at_most")
                .is_none()
        );
    }

    #[test]
    fn what_else_must_be_met_spoils_a_row() {
        let mut ledger = Ledger::default();
        ledger.bounded(&LEAST, 5.0);
        ledger.require(&LEAST, true, || "fine".to_owned());
        ledger.require(&LEAST, false, || "nothing was refused".to_owned());
        let (_, rows) = ledger.close();
        assert!(!rows[0].holds);
        assert_eq!(rows[0].unmet, ["nothing was refused"]);
    }

    #[test]
    fn nothing_measured_holds_nothing() {
        let mut ledger = Ledger::default();
        ledger.ratio(&LEAST, 5.0, 0.0);
        assert!(!ledger.close().1[0].holds);
    }
}
