//! Faults stop: nobody asks any more, nobody dies, and whoever looks for what was left does so.

use fluxbuy::domain::OrderStatus;

use super::gate::Keys;
use super::hands::{Hand, How};
use super::{Action, State, Stock};

/// More steps than it ever takes.
const STEPS: usize = 100;

impl Stock {
    /// Where a state gets to.
    pub(super) fn heal(&self, state: &State) -> State {
        let mut state = *state;
        for _ in 0..STEPS {
            let Some(action) = next_without_faults(&state) else {
                break;
            };
            let Some(next) = self.step(&state, action) else {
                break;
            };
            state = next;
        }
        state
    }
}

fn next_without_faults(state: &State) -> Option<Action> {
    let State { rows, gate, .. } = state;
    if rows.in_flight.is_some() {
        return Some(Action::Land);
    }
    if let Some(index) = state.hands.iter().position(|hand| *hand != Hand::Idle) {
        let hand = state.hands[index];
        // A batch for which the gate isn't loaded, or not under this epoch, has it loaded; here it goes by the database alone, which leaves
        // as much to be done.
        let loaded = matches!(gate.keys, Keys::Loaded(loaded) if loaded.epoch == rows.epoch);
        let waits = matches!(hand, Hand::AskGate(_)) && !loaded;
        let how = if waits { How::Unreachable } else { How::Well };
        return Some(Action::Go(index, hand.name(), how));
    }
    if let Some(id) = rows.with(|status| status == OrderStatus::Pending).ids().next() {
        return Some(Action::Pay(id));
    }
    // Whatever is loaded under the epoch of the day must get right by itself.
    let outdated = match gate.keys {
        Keys::None => false,
        Keys::Loading(_) => true,
        Keys::Loaded(loaded) => loaded.epoch != rows.epoch,
    };
    if outdated {
        return Some(Action::Reload);
    }
    if let (Some(id), false) = (rows.notes.ids().next(), gate.keys == Keys::None) {
        return Some(Action::TakeNote(id));
    }
    state.orphans().ids().next().map(Action::Reap)
}
