//! What checks find, gathered by check.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use serde::{Serialize, Serializer};

/// Examples that are told of one check; the rest is counted.
const EXAMPLES: usize = 3;

/// Gathers what is wrong.
#[derive(Debug, Default)]
pub struct Findings(BTreeMap<&'static str, Violation>);

/// What one check has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The check's name. It doesn't change from run to run.
    pub check: &'static str,
    /// How often.
    pub count: usize,
    /// The first of them.
    pub examples: Vec<String>,
}

impl Findings {
    /// Something is wrong.
    pub fn add(&mut self, check: &'static str, what: impl Display) {
        let violation = self.0.entry(check).or_insert_with(|| Violation {
            check,
            count: 0,
            examples: Vec::new(),
        });
        violation.count += 1;
        if violation.examples.len() < EXAMPLES {
            violation.examples.push(what.to_string());
        }
    }

    /// Something is wrong unless `holds`.
    pub fn require(&mut self, holds: bool, check: &'static str, what: impl FnOnce() -> String) {
        if !holds {
            self.add(check, what());
        }
    }

    /// What was found, by the checks' names.
    pub fn into_violations(self) -> Vec<Violation> {
        self.0.into_values().collect()
    }
}

impl Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.check, self.count, self.examples.join("; "))?;
        if self.count > self.examples.len() {
            write!(f, "; and {} more", self.count - self.examples.len())?;
        }
        Ok(())
    }
}

impl Serialize for Violation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
