//! What the gate promises, in plain Rust and on purpose without its ways of doing it.

use std::collections::{BTreeMap, BTreeSet};

use fluxbuy::domain::{Buyer, IdempotencyDigest, OrderId};
use fluxbuy::gate::{LoadedOrder, Release, Reservation, Verdict};

/// One sale that is open.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub available: i64,
    pub limit: Option<i32>,
    /// Every purchase that is known, by the order made of it.
    pub orders: BTreeMap<IdempotencyDigest, Reservation>,
    pub holding: BTreeSet<OrderId>,
    pub never: BTreeSet<OrderId>,
}

impl Model {
    pub(crate) fn new(available: i64, limit: Option<i32>) -> Self {
        Self {
            available,
            limit,
            orders: BTreeMap::new(),
            holding: BTreeSet::new(),
            never: BTreeSet::new(),
        }
    }

    pub(crate) fn reserve(&mut self, request: &Reservation) -> Verdict {
        if let Some(known) = self.orders.get(&request.digest) {
            return match (known.order == request.order, known.quantity == request.quantity) {
                (true, _) if self.holding.contains(&request.order) => Verdict::Admitted,
                (true, _) => Verdict::Released,
                (false, true) => Verdict::Replay(known.order),
                (false, false) => Verdict::KeyReused,
            };
        }
        if self.never.contains(&request.order) {
            return Verdict::Released;
        }
        if self
            .limit
            .is_some_and(|limit| self.used(&request.buyer) + request.quantity > limit)
        {
            return Verdict::LimitExceeded;
        }
        if self.available < i64::from(request.quantity) {
            return Verdict::SoldOut;
        }
        self.available -= i64::from(request.quantity);
        self.holding.insert(request.order);
        self.orders.insert(request.digest, request.clone());
        Verdict::Admitted
    }

    /// The units given back; `None` when the order held nothing.
    pub(crate) fn release(&mut self, release: Release) -> Option<i64> {
        let held = self
            .orders
            .values()
            .find(|known| known.order == release.order)
            .cloned();
        let held = held.filter(|_| self.holding.remove(&release.order));
        if release.forget || held.is_none() {
            self.never.insert(release.order);
        }
        let held = held?;
        if release.forget {
            self.orders.remove(&held.digest);
        }
        self.available += i64::from(held.quantity);
        Some(held.quantity.into())
    }

    /// What a load of this very state would bring.
    pub(crate) fn loaded(&self) -> Vec<LoadedOrder> {
        let load = |known: &Reservation| LoadedOrder {
            order: known.order,
            buyer: known.buyer.clone(),
            digest: known.digest,
            quantity: known.quantity,
            holds: self.holding.contains(&known.order),
        };
        self.orders.values().map(load).collect()
    }

    fn used(&self, buyer: &Buyer) -> i32 {
        let holds = |known: &&Reservation| known.buyer == *buyer && self.holding.contains(&known.order);
        self.orders
            .values()
            .filter(holds)
            .map(|known| known.quantity)
            .sum()
    }
}
