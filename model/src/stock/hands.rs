//! Hands: a batch of purchases on its way (`src/actors/sale/decide.rs`), the reaper, a releaser, whoever has the sale loaded anew. All that one
//! knows is lost when it dies.

use fluxbuy::domain::OrderStatus;

use super::rows::{Batch, Placed, Rows, Snapshot};
use super::{Landmark, Set, State, Stock, TRIES, buyer_of};

/// What a hand is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Hand {
    Idle,
    /// Asks the gate for these orders.
    AskGate(Set),
    /// Has the database make them.
    Place(Batch),
    /// Occupies ids, so that they can't become orders.
    Occupy(Set),
    /// Gives back what the gate holds for occupied ids.
    GiveBack(Set),
    /// Tells the gate of a release; then takes its note away.
    Release(u8),
    ReleaseDone {
        order: u8,
        epoch: u8,
    },
    /// Loads the gate from what was read under a raised epoch.
    BeginLoad(Snapshot),
    FinishLoad(Snapshot),
}

/// How a step goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It happens and is answered.
    Well,
    /// It happens, at once or later or maybe never, and nobody answers.
    AnswerLost,
    /// Nothing happens: it can't be asked.
    Unreachable,
}

impl Hand {
    /// For whoever reads the way to a state.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "nothing",
            Self::AskGate(_) => "ask the gate",
            Self::Place(_) => "place a batch",
            Self::Occupy(_) => "occupy ids",
            Self::GiveBack(_) => "give back in the gate",
            Self::Release(_) => "release in the gate",
            Self::ReleaseDone { .. } => "take the note away",
            Self::BeginLoad(_) => "begin a load",
            Self::FinishLoad(_) => "finish a load",
        }
    }

    /// How its next step may go. None: it waits for a transaction in flight.
    pub fn ways(self, rows: &Rows, may_raise: bool) -> &'static [How] {
        use How::{AnswerLost, Unreachable, Well};
        let in_flight = rows.in_flight;
        match self {
            Self::Idle => &[],
            Self::AskGate(_) => {
                if may_raise {
                    &[Well, AnswerLost, Unreachable]
                } else {
                    &[Well]
                }
            }
            Self::Place(batch) => {
                if in_flight.is_some() || (batch.under.is_none() && !may_raise) {
                    &[]
                } else {
                    &[Well, AnswerLost]
                }
            }
            Self::Occupy(orders) => {
                if in_flight.is_some_and(|batch| !batch.orders.and(orders).is_empty()) {
                    &[]
                } else {
                    &[Well]
                }
            }
            Self::Release(_) => &[Well, AnswerLost],
            Self::GiveBack(_) | Self::ReleaseDone { .. } | Self::BeginLoad(_) | Self::FinishLoad(_) => {
                &[Well]
            }
        }
    }
}

impl Stock {
    /// Buyers ask, each under a key of their own; an id is minted for every one of them.
    pub(super) fn ask(state: &mut State, hand: usize, buyers: u8) {
        let mut orders = Set::EMPTY;
        for buyer in (0..).take_while(|buyer| buyers >> buyer != 0) {
            if buyers & (1 << buyer) == 0 {
                continue;
            }
            let ids = buyer * TRIES..(buyer + 1) * TRIES;
            let Some(id) = ids.into_iter().find(|id| !state.minted.has(*id)) else {
                return;
            };
            orders.add(id);
        }
        state.minted = state.minted.or(orders);
        state.hands[hand] = Hand::AskGate(orders);
    }

    /// The next step of a hand.
    pub(super) fn go(&self, state: &mut State, hand: usize, how: How) {
        let own = state.hands[hand];
        state.hands[hand] = match own {
            Hand::Idle => Hand::Idle,
            Hand::AskGate(orders) => self.ask_gate(state, orders, how),
            Hand::Place(batch) => self.place(state, batch, how),
            Hand::Occupy(orders) => {
                let occupied = state.rows.occupy(self.guards, orders);
                let stand = orders.without(occupied);
                if !stand.is_empty() {
                    self.pass(Landmark::OrderStands);
                }
                if occupied.is_empty() {
                    Hand::Idle
                } else {
                    Hand::GiveBack(occupied)
                }
            }
            Hand::GiveBack(orders) => {
                if state.gate.release(orders, true).is_some() {
                    self.pass(Landmark::GivenBack);
                }
                Hand::Idle
            }
            Hand::Release(order) => match state.gate.release(Set::one(order.into()), false) {
                Some(epoch) if how == How::Well => Hand::ReleaseDone { order, epoch },
                Some(_) => Hand::Idle,
                None => {
                    self.pass(Landmark::ReleaseUnprimed);
                    Hand::Idle
                }
            },
            Hand::ReleaseDone { order, epoch } => {
                if epoch != state.rows.epoch {
                    self.pass(Landmark::NoteKept);
                }
                state.rows.release_done(self.guards, order.into(), epoch);
                Hand::Idle
            }
            Hand::BeginLoad(snapshot) => {
                if state.gate.begin_load(snapshot.epoch) {
                    Hand::FinishLoad(snapshot)
                } else {
                    self.pass(Landmark::LoadLost);
                    Hand::Idle
                }
            }
            Hand::FinishLoad(snapshot) => {
                if !state.gate.finish_load(snapshot) {
                    self.pass(Landmark::LoadLost);
                }
                Hand::Idle
            }
        };
    }

    /// What the gate refuses is answered; what it knows is looked up; the rest is for the database. Who is told that an id was released asks again.
    fn ask_gate(&self, state: &mut State, orders: Set, how: How) -> Hand {
        let alone = Hand::Place(Batch { orders, under: None });
        if how == How::Unreachable {
            return alone;
        }
        let Some(said) = state.gate.reserve(orders) else {
            // It waits for the gate to be loaded.
            return if how == How::Well {
                Hand::AskGate(orders)
            } else {
                alone
            };
        };
        if how == How::AnswerLost {
            return alone;
        }
        // A gate that was passed by, by a batch that went by the database alone, knows nothing of the orders in that.
        if self.any_refusal || said.epoch == state.rows.epoch {
            state.refuse(said.sold_out);
        }
        if !said.sold_out.is_empty() {
            self.pass(Landmark::SoldOut);
        }
        let made = state.rows.with(|status| status != OrderStatus::Rejected);
        let adopted = said
            .replays
            .filter(|id| state.rows.of_buyer(buyer_of(id)).is_empty());
        if !adopted.is_empty() {
            self.pass(Landmark::Adopted);
        }
        if !said.replays.and(made).is_empty() {
            self.pass(Landmark::Replayed);
        }
        let admitted = said.admitted.or(adopted);
        if admitted.is_empty() {
            return Hand::Idle;
        }
        Hand::Place(Batch {
            orders: admitted,
            under: Some(said.epoch),
        })
    }

    fn place(&self, state: &mut State, batch: Batch, how: How) -> Hand {
        if how == How::AnswerLost {
            // What would be rolled back for itself has nothing to leave in flight.
            let mut after = state.rows;
            if after.place(self.guards, batch) != Placed::Stale {
                state.rows.in_flight = Some(batch);
            }
            // Run again: it waits for the one in flight.
            return Hand::Place(batch);
        }
        let placed = state.rows.place(self.guards, batch);
        let Placed::Done {
            made,
            existing,
            sold_out,
            bad,
        } = placed
        else {
            self.pass(Landmark::StaleEpoch);
            return Hand::AskGate(batch.orders);
        };
        state.promise(made.or(existing));
        if batch.under.is_none() {
            self.pass(Landmark::Alone);
            state.refuse(sold_out);
            return Hand::Idle;
        }
        let refused = existing.or(sold_out).or(bad);
        if refused.is_empty() {
            Hand::Idle
        } else {
            Hand::Occupy(refused)
        }
    }
}

impl State {
    /// These purchases are answered 201.
    fn promise(&mut self, orders: Set) {
        let without = orders.ids().any(|id| self.rows.of_buyer(buyer_of(id)).is_empty());
        self.false_promise |= without;
    }

    /// These are told that it is sold out.
    fn refuse(&mut self, orders: Set) {
        let with = orders
            .ids()
            .any(|id| !self.rows.of_buyer(buyer_of(id)).is_empty());
        self.false_refusal |= with;
    }
}
