//! What operators would have seen: the series that alerts look at, watched while things go wrong. (When an alert fires by them is tested beside
//! the rules.)

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::load::Peer;
use crate::world::Metrics;

/// Between two looks, and how long one may take.
const PERIOD: Duration = Duration::from_millis(100);
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// Looks until it is dropped.
pub(super) struct Signals {
    highest: Arc<Mutex<BTreeMap<&'static str, f64>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Signals {
    /// Watches these series of each engine. One that doesn't answer is asked again.
    pub(super) fn watch(engines: &[Peer], series: &'static [&'static str]) -> Self {
        // None of them was seen yet: what is never read is silent, too.
        let unseen: BTreeMap<&str, f64> = series.iter().map(|name| (*name, 0.0)).collect();
        let highest = Arc::new(Mutex::new(unseen));
        let tasks = engines
            .iter()
            .map(|engine| {
                let (engine, highest) = (engine.clone(), Arc::clone(&highest));
                tokio::spawn(async move {
                    loop {
                        if let Ok(Ok(answer)) =
                            tokio::time::timeout(ANSWER_WITHIN, engine.get("/metrics")).await
                        {
                            let mut metrics = Metrics::default();
                            metrics.add(&String::from_utf8_lossy(&answer.body));
                            let mut highest = highest.lock().unwrap_or_else(PoisonError::into_inner);
                            for name in series {
                                let seen = highest.entry(name).or_default();
                                *seen = seen.max(metrics.sum(name, &[]));
                            }
                        }
                        tokio::time::sleep(PERIOD).await;
                    }
                })
            })
            .collect();
        Self { highest, tasks }
    }

    /// Those that never were above 0.
    pub(super) fn silent(&self) -> Vec<&'static str> {
        let highest = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
        let silent = highest.iter().filter(|(_, highest)| **highest <= 0.0);
        silent.map(|(name, _)| *name).collect()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_nobody_could_read_is_silent() {
        let nobody = Peer::from_url("http://127.0.0.1:1").unwrap();
        let signals = Signals::watch(&[nobody], &["fluxbuy_gate_degraded"]);
        assert_eq!(signals.silent(), ["fluxbuy_gate_degraded"]);
    }
}
