//! Where purchases of a sale are left for its actor, so that it is called once per batch and not once per purchase.
//!
//! Waking an actor's thread costs more than all that is done for a purchase there. While the actor can't do anything for a
//! newcomer (all batches that may be in flight are), it isn't called at all: it comes by itself when one of them ends. A sale
//! that is known to be sold out refuses right here.

use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashSet;

use crate::domain::IdempotencyDigest;

/// Digests of purchases.
pub type Digests = FxHashSet<IdempotencyDigest>;

/// What is to be done about something that was left.
#[derive(Debug, PartialEq, Eq)]
pub enum Left<T> {
    /// The actor sleeps: call it.
    CallActor,
    /// The actor will come.
    Fine,
    /// The actor has died and won't come.
    Closed(T),
}

/// What lies between the front door and a sale's actor. Bounded by the places that the handle gives out.
#[derive(Debug)]
pub struct Intake<T>(Mutex<State<T>>);

#[derive(Debug)]
struct State<T> {
    left: Vec<T>,
    /// The actor has been called, or is busy and will look by itself.
    called: bool,
    closed: bool,
    /// There is nothing to be had: all purchases that are known, or may be under way. Everybody else is refused.
    sold_out: Option<Digests>,
}

impl<T> Default for Intake<T> {
    fn default() -> Self {
        Self(Mutex::new(State {
            left: Vec::new(),
            called: false,
            closed: false,
            sold_out: None,
        }))
    }
}

impl<T> Intake<T> {
    /// Whether this purchase can be refused at once: the sale is sold out, and the purchase isn't a replay.
    pub fn refuses(&self, digest: &IdempotencyDigest) -> bool {
        let state = self.state();
        state
            .sold_out
            .as_ref()
            .is_some_and(|known| !known.contains(digest))
    }

    /// Leaves something for the actor.
    pub fn leave(&self, what: T) -> Left<T> {
        let mut state = self.state();
        if state.closed {
            return Left::Closed(what);
        }
        state.left.push(what);
        if mem::replace(&mut state.called, true) {
            Left::Fine
        } else {
            Left::CallActor
        }
    }

    /// All that was left, for the actor. From now on it counts as awake, and isn't called until it has gone to [`Self::sleep`].
    pub fn take(&self) -> Vec<T> {
        let mut state = self.state();
        state.called = true;
        mem::take(&mut state.left)
    }

    /// The actor has nothing to do: the next one who leaves something must call it. False when something was left meanwhile.
    pub fn sleep(&self) -> bool {
        let mut state = self.state();
        state.called = !state.left.is_empty();
        !state.called
    }

    /// Refuses from now on whatever isn't in `known`, nor here already.
    pub fn refuse_all_but(&self, mut known: Digests, digest: impl Fn(&T) -> IdempotencyDigest) {
        let mut state = self.state();
        known.extend(state.left.iter().map(digest));
        state.sold_out = Some(known);
    }

    /// Refuses nobody any more.
    pub fn welcome(&self) {
        self.state().sold_out = None;
    }

    /// The actor is gone, and with it whatever was left for it.
    pub fn close(&self) {
        let left = {
            let mut state = self.state();
            state.closed = true;
            state.sold_out = None;
            mem::take(&mut state.left)
        };
        drop(left);
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        // Nothing that could panic runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Buyer;

    fn digest(key: &str) -> IdempotencyDigest {
        IdempotencyDigest::of(&Buyer::parse("ann").unwrap(), key)
    }

    #[test]
    fn the_actor_is_called_once_until_it_sleeps_again() {
        let intake = Intake::default();
        assert_eq!(intake.leave(1), Left::CallActor);
        assert_eq!(intake.leave(2), Left::Fine);
        assert_eq!(intake.take(), [1, 2]);
        assert_eq!(intake.leave(3), Left::Fine, "it is awake");
        assert!(!intake.sleep(), "something was left meanwhile");
        assert_eq!(intake.take(), [3]);
        assert!(intake.sleep());
        assert_eq!(intake.leave(4), Left::CallActor);
    }

    #[test]
    fn an_actor_that_comes_by_itself_needn_t_be_called() {
        let intake = Intake::default();
        assert!(intake.take().is_empty());
        assert_eq!(intake.leave(1), Left::Fine);
        assert!(!intake.sleep());
    }

    #[test]
    fn what_is_sold_out_is_refused_but_for_what_is_known_or_on_its_way() {
        let intake = Intake::default();
        assert!(!intake.refuses(&digest("new")));
        intake.leave(digest("waits"));
        intake.refuse_all_but([digest("known")].into_iter().collect(), |waits| *waits);
        assert!(intake.refuses(&digest("new")));
        assert!(!intake.refuses(&digest("known")));
        assert!(!intake.refuses(&digest("waits")));
        intake.welcome();
        assert!(!intake.refuses(&digest("new")));
    }

    #[test]
    fn what_was_left_goes_with_the_actor() {
        let intake = Intake::default();
        let held = std::sync::Arc::new(());
        intake.leave(held.clone());
        intake.refuse_all_but(Digests::default(), |_| digest("x"));
        intake.close();
        assert_eq!(std::sync::Arc::strong_count(&held), 1);
        assert!(matches!(intake.leave(held), Left::Closed(_)));
        assert!(
            !intake.refuses(&digest("new")),
            "nobody may be told what nobody knows"
        );
    }
}
