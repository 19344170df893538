//! A circuit breaker: stops asking somebody who doesn't answer, and lets one question through now and then.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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
    fn a_probe_that_never_answers_is_replaced() {
        let start = Instant::now();
        let breaker = Breaker::new(1, PAUSE);
        breaker.record(start, false);
        assert!(breaker.allows(start + PAUSE));
        assert!(!breaker.allows(start + PAUSE));
        assert!(breaker.allows(start + PAUSE * 2));
    }
}
