//! The sale's rows in Postgres. A transaction happens in one step; one whose COMMIT went unanswered may land later, or never, and whoever
//! needs its locks waits for that.

use fluxbuy::domain::{Effect, Event, OrderStatus, transition};

use super::{Guards, IDS, Set, buyer_of};

/// What the database has of the sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Rows {
    pub orders: [Option<OrderStatus>; IDS],
    pub available: i8,
    pub held: i8,
    pub sold: i8,
    pub epoch: u8,
    /// Releases that the gate has still to be told of.
    pub notes: Set,
    /// A transaction whose COMMIT was sent, and of which nobody has heard since. It has the inventory's row.
    pub in_flight: Option<Batch>,
}

/// Orders to be made, and the epoch under which the gate has admitted them; `None`: it wasn't asked, and the epoch is raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Batch {
    pub orders: Set,
    pub under: Option<u8>,
}

/// What the gate must know, read with the epoch that was raised for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Snapshot {
    pub epoch: u8,
    pub available: i8,
    pub holders: Set,
    pub known: Set,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placed {
    Stale,
    Done {
        /// Orders that exist now under the ids of the batch.
        made: Set,
        /// Of which another order of the same purchase exists.
        existing: Set,
        sold_out: Set,
        /// Ids that are occupied.
        bad: Set,
    },
}

impl Rows {
    pub fn new(quantity: i8) -> Self {
        Self {
            orders: [None; IDS],
            available: quantity,
            held: 0,
            sold: 0,
            epoch: 1,
            notes: Set::EMPTY,
            in_flight: None,
        }
    }

    pub fn with(&self, wanted: impl Fn(OrderStatus) -> bool) -> Set {
        let mut found = Set::EMPTY;
        for (id, status) in self.orders.iter().enumerate() {
            if status.is_some_and(&wanted) {
                found.add(id);
            }
        }
        found
    }

    /// Orders of a purchase: rows that only occupy an id are none.
    pub fn of_buyer(&self, buyer: usize) -> Set {
        let orders = self.with(|status| status != OrderStatus::Rejected);
        orders.filter(|id| buyer_of(id) == buyer)
    }

    /// Orders that hold or own their unit.
    pub fn holders(&self) -> Set {
        self.with(|status| status.is_open() || status == OrderStatus::Paid)
    }

    /// `Store::reserve`.
    pub fn place(&mut self, guards: Guards, batch: Batch) -> Placed {
        let (mut made, mut existing, mut bad, mut fresh) = (Set::EMPTY, Set::EMPTY, Set::EMPTY, Set::EMPTY);
        for id in batch.orders.ids() {
            let before = self.of_buyer(buyer_of(id));
            if before.has(id) {
                made.add(id);
            } else if self.orders[id].is_some() {
                bad.add(id);
            } else if !before.is_empty() && guards.unique_key {
                existing.add(id);
            } else {
                fresh.add(id);
            }
        }
        let mut sold_out = Set::EMPTY;
        if !fresh.is_empty() {
            if guards.epoch && batch.under.is_some_and(|epoch| epoch != self.epoch) {
                return Placed::Stale;
            }
            for id in fresh.ids() {
                if self.available < 1 && guards.check {
                    sold_out.add(id);
                } else {
                    self.orders[id] = Some(OrderStatus::Pending);
                    self.available -= 1;
                    self.held += 1;
                    made.add(id);
                }
            }
            if batch.under.is_none() && sold_out != fresh {
                self.epoch += 1;
            }
        }
        Placed::Done {
            made,
            existing,
            sold_out,
            bad,
        }
    }

    /// `Store::apply`, for an order that must be `expect`.
    pub fn apply(&mut self, id: usize, expect: OrderStatus, event: Event) {
        let Ok(planned) = transition(expect, event) else {
            return;
        };
        if self.orders[id] != Some(expect) {
            return;
        }
        self.orders[id] = Some(planned.to);
        for effect in planned.effects {
            match effect {
                Effect::SellUnits => {
                    self.held -= 1;
                    self.sold += 1;
                }
                Effect::ReleaseUnits => {
                    self.held -= 1;
                    self.available += 1;
                    self.notes.add(id);
                }
                Effect::ReturnUnits => {
                    self.sold -= 1;
                    self.available += 1;
                    self.notes.add(id);
                }
                _ => {}
            }
        }
    }

    /// `Store::occupy`: which of these ids can't become orders any more.
    pub fn occupy(&mut self, guards: Guards, ids: Set) -> Set {
        let mut occupied = Set::EMPTY;
        for id in ids.ids() {
            match self.orders[id] {
                None => {
                    occupied.add(id);
                    if guards.occupy {
                        self.orders[id] = Some(OrderStatus::Rejected);
                    }
                }
                Some(OrderStatus::Rejected) => occupied.add(id),
                Some(_) => {}
            }
        }
        occupied
    }

    /// `Store::raise_epoch`.
    pub fn raise_epoch(&mut self) -> Snapshot {
        self.epoch += 1;
        self.notes = Set::EMPTY;
        Snapshot {
            epoch: self.epoch,
            available: self.available,
            holders: self.holders(),
            known: self.with(|status| status != OrderStatus::Rejected),
        }
    }

    /// `Store::releases_done`.
    pub fn release_done(&mut self, guards: Guards, id: usize, epoch: u8) {
        if epoch == self.epoch || !guards.note_epoch {
            self.notes.remove(id);
        }
    }

    /// The counters say what the orders say, and nothing is out of bounds.
    pub fn add_up(&self, quantity: i8) -> bool {
        let count = |set: Set| set.ids().count() as i8;
        let open = count(self.with(OrderStatus::is_open));
        let sold = count(self.with(|status| status == OrderStatus::Paid));
        (self.held, self.sold, self.available) == (open, sold, quantity - open - sold) && self.available >= 0
    }
}
