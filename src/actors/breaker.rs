//! A circuit breaker: stops asking somebody who doesn't answer, and lets one question through now and then. Towards the payment provider there
//! is one for each currency.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dashmap::DashMap;

use crate::domain::Currency;

/// Opens after so many failures in a row; once the pause is over a single question is let through, and its answer closes
/// the breaker or opens it again.
#[derive(Debug)]
pub struct Breaker {
    failures_to_open: u32,
    pause: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Closed {
        failures: u32,
    },
    Open {
        until: Instant,
    },
    /// One question is under way. Should its answer never come, another is let through after a pause.
    HalfOpen {
        until: Instant,
    },
}

impl Breaker {
    /// A closed breaker.
    pub fn new(failures_to_open: u32, pause: Duration) -> Self {
        Self {
            failures_to_open,
            pause,
            state: Mutex::new(State::Closed { failures: 0 }),
        }
    }

    /// Whether to ask now. Where the pause has just ended, this call is the one that is let through.
    pub fn allows(&self, now: Instant) -> bool {
        let mut state = self.lock();
        match *state {
            State::Closed { .. } => true,
            State::Open { until } | State::HalfOpen { until } if now < until => false,
            State::Open { .. } | State::HalfOpen { .. } => {
                *state = State::HalfOpen {
                    until: now + self.pause,
                };
                true
            }
        }
    }

    /// Whether it would turn a question away now, without taking the place of the one that is let through.
    pub fn is_open(&self, now: Instant) -> bool {
        match *self.lock() {
            State::Closed { .. } => false,
            State::Open { until } | State::HalfOpen { until } => now < until,
        }
    }

    /// Takes note of an answer.
    pub fn record(&self, now: Instant, answered: bool) {
        let mut state = self.lock();
        *state = match (*state, answered) {
            (_, true) => State::Closed { failures: 0 },
            (State::Closed { failures }, false) if failures + 1 < self.failures_to_open => State::Closed {
                failures: failures + 1,
            },
            (_, false) => State::Open {
                until: now + self.pause,
            },
        };
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is a plain value: a panic elsewhere can't have left it half written.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A breaker for each currency, so that a provider that is down for one doesn't keep the others from being charged. There are as many as
/// currencies that were ever charged.
#[derive(Debug)]
pub struct Breakers {
    failures_to_open: u32,
    pause: Duration,
    by_currency: DashMap<Currency, Arc<Breaker>>,
}

impl Breakers {
    /// Closed breakers, each as [`Breaker::new`] makes it.
    pub fn new(failures_to_open: u32, pause: Duration) -> Self {
        Self {
            failures_to_open,
            pause,
            by_currency: DashMap::new(),
        }
    }

    /// The breaker for this currency.
    pub fn of(&self, currency: Currency) -> Arc<Breaker> {
        if let Some(breaker) = self.by_currency.get(&currency) {
            return breaker.clone();
        }
        let fresh = || Arc::new(Breaker::new(self.failures_to_open, self.pause));
        self.by_currency.entry(currency).or_insert_with(fresh).clone()
    }

    /// The currencies in which nothing would be charged now.
    pub fn open(&self, now: Instant) -> Vec<Currency> {
        self.by_currency
            .iter()
            .filter(|breaker| breaker.is_open(now))
            .map(|breaker| *breaker.key())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(1);

    #[test]
    fn opens_after_failures_in_a_row_and_probes_once() {
        let start = Instant::now();
        let breaker = Breaker::new(2, PAUSE);
        breaker.record(start, false);
        breaker.record(start, true);
        breaker.record(start, false);
        assert!(breaker.allows(start), "two failures, but not in a row");
        breaker.record(start, false);
        assert!(!breaker.allows(start) && breaker.is_open(start));

        let later = start + PAUSE;
        assert!(breaker.allows(later), "the probe");
        assert!(!breaker.allows(later), "only one");
        breaker.record(later, false);
        assert!(!breaker.allows(later + PAUSE / 2));
        assert!(breaker.allows(later + PAUSE));
        breaker.record(later + PAUSE, true);
        assert!(breaker.allows(later + PAUSE) && breaker.allows(later + PAUSE));
    }

    #[test]
    fn each_currency_has_its_own() {
        let now = Instant::now();
        let breakers = Breakers::new(1, PAUSE);
        let (euro, dollar) = (Currency::parse("EUR").unwrap(), Currency::parse("USD").unwrap());
        breakers.of(dollar).record(now, false);
        assert!(breakers.of(euro).allows(now) && !breakers.of(dollar).allows(now));
        assert_eq!(breakers.open(now), [dollar]);
        breakers.of(dollar).record(now + PAUSE, true);
        assert_eq!(breakers.open(now + PAUSE), []);
    }

    #[test]
    fn a_probe_that_never_answers_is_replaced() {
        let start = Instant::now();
        let breaker = Breaker::new(1, PAUSE);
        breaker.record(start, false);
        assert!(breaker.allows(start + PAUSE));
        assert!(!breaker.allows(start + PAUSE));
        assert!(breaker.allows(start + PAUSE * 2));
    }
}
