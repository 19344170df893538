//! Faults stop: the provider answers, nobody dies any more, and no webhook comes (those may all have been lost). Only where a provider doesn't
//! keep to what it has said can nothing else tell; there they do come.

use super::hands::{Hand, How, Stage, Task};
use super::provider::Charge;
use super::{Action, Money, Request, State};

/// More steps than it ever takes.
const STEPS: usize = 100;

impl Money {
    /// Where a state gets to when everybody goes on with what they are at, and then whoever looks for what was left does so.
    pub(super) fn heal(&self, state: &State) -> State {
        let mut state = *state;
        for _ in 0..STEPS {
            let Some(next) = self
                .next_without_faults(&state)
                .and_then(|action| self.step(&state, action))
            else {
                break;
            };
            state = next;
        }
        state
    }

    fn next_without_faults(&self, state: &State) -> Option<Action> {
        for (attempt, account) in (1..).zip(&state.book) {
            if account.charge_under_way {
                return Some(Action::Arrive(attempt, Request::Charge));
            }
            if matches!(account.charge, Charge::Pending | Charge::VoidedNotKept) {
                return Some(Action::Decide(attempt, true));
            }
            if account.void_under_way {
                return Some(Action::Arrive(attempt, Request::Void));
            }
            if account.capture_under_way {
                return Some(Action::Arrive(attempt, Request::Capture));
            }
        }
        if let Some(index) = state.hands.iter().position(|hand| *hand != Hand::IDLE) {
            let hand = state.hands[index];
            // What was lost on its way is waited for until the time-out.
            let waits = matches!(hand.stage, Stage::Wait(_))
                && state.book[usize::from(hand.attempt) - 1].charge == Charge::Unseen;
            let how = if waits { How::AnswerLost } else { How::Well };
            return Some(Action::Go(index, hand.stage.name(), how));
        }
        if state.rows.status.is_open() {
            return Some(if state.rows.attempt == 0 {
                Action::Claim(How::Well)
            } else {
                Action::Scan
            });
        }
        for (attempt, payment) in (1..).zip(&state.rows.payments) {
            let Some(payment) = payment else { continue };
            for (due, task) in [
                (payment.resolve, Task::Resolve),
                (payment.late_refund, Task::LateRefund),
                (payment.asked == super::Asked::Due, Task::AskedRefund),
            ] {
                if due {
                    return Some(Action::Take(attempt, task));
                }
            }
        }
        if self.kept_voids {
            return None;
        }
        (1..).zip(&state.book).find_map(|(attempt, account)| {
            let news = account.told.first()?;
            Some(Action::Hear(attempt, news))
        })
    }
}
