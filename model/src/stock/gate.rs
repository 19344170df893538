//! The gate in Redis: each script is one step. What the scripts promise is in their headers (`src/gate/scripts/`).

use super::rows::Snapshot;
use super::{Set, buyer_of};

/// What Redis has of the sale. It may lose all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Gate {
    pub keys: Keys,
    /// Orders that must never reserve. Loads leave them.
    pub tombs: Set,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Keys {
    None,
    /// Being loaded, for this epoch.
    Loading(u8),
    Loaded(Loaded),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Loaded {
    pub epoch: u8,
    pub available: i8,
    /// Orders that hold a unit here.
    pub held: Set,
    /// The orders that purchases are known by.
    pub known: Set,
}

/// What the gate says of a batch.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Verdicts {
    pub epoch: u8,
    pub admitted: Set,
    /// Orders by which the gate knows the purchases that were asked for under other ids.
    pub replays: Set,
    pub sold_out: Set,
    /// Their ids were released, or must never reserve.
    pub released: Set,
}

impl Gate {
    pub const EMPTY: Self = Self {
        keys: Keys::None,
        tombs: Set::EMPTY,
    };

    /// `reserve.lua`; `None` when the sale isn't loaded.
    pub fn reserve(&mut self, orders: Set) -> Option<Verdicts> {
        let Keys::Loaded(loaded) = &mut self.keys else {
            return None;
        };
        let mut said = Verdicts {
            epoch: loaded.epoch,
            ..Verdicts::default()
        };
        for id in orders.ids() {
            let stored = loaded.known.ids().find(|known| buyer_of(*known) == buyer_of(id));
            match stored {
                Some(known) if known == id && loaded.held.has(id) => said.admitted.add(id),
                Some(known) if known == id => said.released.add(id),
                Some(known) => said.replays.add(known),
                None if self.tombs.has(id) => said.released.add(id),
                None if loaded.available < 1 => said.sold_out.add(id),
                None => {
                    loaded.available -= 1;
                    loaded.held.add(id);
                    loaded.known.add(id);
                    said.admitted.add(id);
                }
            }
        }
        Some(said)
    }

    /// `release.lua`: the epoch that the sale is loaded under; `None` when it isn't loaded, and nothing is done.
    pub fn release(&mut self, orders: Set, forget: bool) -> Option<u8> {
        let Keys::Loaded(loaded) = &mut self.keys else {
            return None;
        };
        for id in orders.ids() {
            let held = loaded.held.has(id);
            if held {
                loaded.held.remove(id);
                loaded.available += 1;
                if forget {
                    loaded.known.remove(id);
                }
            }
            if forget || !held {
                self.tombs.add(id);
            }
        }
        Some(loaded.epoch)
    }

    /// `load_begin.lua`: whether the load is the caller's.
    pub fn begin_load(&mut self, epoch: u8) -> bool {
        let newer = match self.keys {
            Keys::None => false,
            Keys::Loading(theirs) => theirs > epoch,
            Keys::Loaded(loaded) => loaded.epoch >= epoch,
        };
        if !newer {
            self.keys = Keys::Loading(epoch);
        }
        !newer
    }

    /// `load_orders.lua` and `load_finish.lua`: whether the load was still the caller's.
    pub fn finish_load(&mut self, snapshot: Snapshot) -> bool {
        let Snapshot {
            epoch,
            available,
            holders,
            known,
        } = snapshot;
        let ours = self.keys == Keys::Loading(epoch);
        if ours {
            self.keys = Keys::Loaded(Loaded {
                epoch,
                available,
                held: holders,
                known,
            });
        }
        ours
    }
}
