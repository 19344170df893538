//! The open batch: purchases that wait for the next group commit, and everybody who waits for their answers.

use std::collections::HashMap;
use std::mem;

use rustc_hash::FxBuildHasher;

use crate::domain::{IdempotencyDigest, OrderId, Purchase};

/// So many full batches waiting are a crowd.
const CROWD_BATCHES: usize = 8;
/// So many times as many batches may be in flight then. More of them slow each other down, but in a crowd they also get
/// their share of the machine beside the turning away of those who find no place: half as many orders more are accepted
/// under twice the load that can be.
const CROWD_FACTOR: usize = 4;

/// A purchase with the id that its order will have.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The order's id: minted here, unless the gate knows one for this purchase.
    pub order: OrderId,
    /// This request has had it committed once already, and wasn't told how that ended: the order may be its own.
    pub tried: bool,
    /// The purchase.
    pub purchase: Purchase,
}

/// What became of a purchase that arrived.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is in the open batch.
    Queued,
    /// The same purchase is under way already; it will be answered together with it.
    Joined,
    /// The same key is under way with another body. Which of the two is right can't be told before that one is decided.
    Postponed,
}

/// Collects purchases and hands them out in batches. Pure: it knows no clock and no I/O.
#[derive(Debug)]
pub struct Batcher<W> {
    max_batch: usize,
    max_in_flight: usize,
    open: Vec<Entry>,
    in_flight: usize,
    waiting: HashMap<IdempotencyDigest, Waiting<W>, FxBuildHasher>,
}

#[derive(Debug)]
struct Waiting<W> {
    quantity: i32,
    waiters: Vec<W>,
    /// The same key with another body; they come up when this is decided.
    postponed: Vec<(Purchase, W)>,
}

impl<W> Batcher<W> {
    /// Batches of at most `max_batch`, at most `max_in_flight` of them under way unless there is a crowd.
    pub fn new(max_batch: usize, max_in_flight: usize) -> Self {
        Self {
            max_batch,
            max_in_flight,
            open: Vec::new(),
            in_flight: 0,
            waiting: HashMap::default(),
        }
    }

    /// Takes a purchase in.
    pub fn arrive(&mut self, purchase: Purchase, waiter: W) -> Arrival {
        if let Some(waiting) = self.waiting.get_mut(&purchase.digest) {
            if waiting.quantity != purchase.quantity {
                waiting.postponed.push((purchase, waiter));
                return Arrival::Postponed;
            }
            waiting.waiters.push(waiter);
            return Arrival::Joined;
        }
        self.waiting.insert(
            purchase.digest,
            Waiting {
                quantity: purchase.quantity,
                waiters: vec![waiter],
                postponed: Vec::new(),
            },
        );
        self.open.push(Entry {
            order: OrderId::fresh(),
            tried: false,
            purchase,
        });
        Arrival::Queued
    }

    /// The purchases that are under way.
    pub fn under_way(&self) -> impl Iterator<Item = IdempotencyDigest> {
        self.waiting.keys().copied()
    }

    /// Whether as many batches are in flight as may be: whoever comes now waits for one of them to end.
    pub fn is_busy(&self) -> bool {
        let crowd = self.open.len() >= CROWD_BATCHES * self.max_batch;
        let factor = if crowd { CROWD_FACTOR } else { 1 };
        self.in_flight >= factor * self.max_in_flight
    }

    /// The next batch, if anything waits and there is room for one in flight.
    pub fn next_batch(&mut self) -> Option<Vec<Entry>> {
        if self.open.is_empty() || self.is_busy() {
            return None;
        }
        self.in_flight += 1;
        if self.open.len() <= self.max_batch {
            return Some(mem::take(&mut self.open));
        }
        let rest = self.open.split_off(self.max_batch);
        Some(mem::replace(&mut self.open, rest))
    }

    /// A batch that was handed out has ended.
    pub fn batch_ended(&mut self) {
        self.in_flight -= 1;
    }

    /// Everybody who waits for this purchase, which is decided now, the one who asked first in front. Who was postponed for it
    /// arrives anew.
    pub fn decided(&mut self, digest: &IdempotencyDigest) -> Vec<W> {
        let Some(waiting) = self.waiting.remove(digest) else {
            return Vec::new();
        };
        for (purchase, waiter) in waiting.postponed {
            self.arrive(purchase, waiter);
        }
        waiting.waiters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Buyer, SaleId};

    fn purchase(buyer: &str, key: &str, quantity: i32) -> Purchase {
        let buyer = Buyer::parse(buyer).unwrap();
        let digest = IdempotencyDigest::of(&buyer, key);
        Purchase {
            sale: SaleId::fresh(),
            buyer,
            digest,
            quantity,
            payment_method: None,
            request_id: None,
        }
    }

    #[test]
    fn a_crowd_has_more_batches_in_flight_until_it_is_served() {
        let mut batcher = Batcher::new(2, 1);
        for n in 0..19 {
            batcher.arrive(purchase("ann", &n.to_string(), 1), n);
        }
        assert!(batcher.next_batch().is_some());
        assert!(batcher.next_batch().is_some(), "17 wait, and 16 are a crowd");
        assert!(batcher.next_batch().is_none(), "15 are none");
        for n in 19..40 {
            batcher.arrive(purchase("ann", &n.to_string(), 1), n);
        }
        assert!(batcher.next_batch().is_some());
        assert!(batcher.next_batch().is_some());
        assert!(batcher.next_batch().is_none(), "four times as many, and no more");
    }

    #[test]
    fn batches_are_bounded_in_size_and_number() {
        let mut batcher = Batcher::new(2, 2);
        for n in 0..5 {
            assert_eq!(
                batcher.arrive(purchase("ann", &n.to_string(), 1), n),
                Arrival::Queued
            );
        }
        assert_eq!(batcher.next_batch().unwrap().len(), 2);
        assert!(!batcher.is_busy());
        assert_eq!(batcher.next_batch().unwrap().len(), 2);
        assert!(batcher.next_batch().is_none(), "two are in flight");
        assert!(batcher.is_busy());
        batcher.batch_ended();
        assert_eq!(batcher.next_batch().unwrap().len(), 1);
        batcher.batch_ended();
        assert!(batcher.next_batch().is_none(), "nothing waits");
    }

    #[test]
    fn the_same_purchase_is_in_a_batch_once_and_answers_everybody() {
        let mut batcher = Batcher::new(10, 1);
        let same = purchase("ann", "k", 1);
        assert_eq!(batcher.arrive(same.clone(), 1), Arrival::Queued);
        assert_eq!(batcher.under_way().collect::<Vec<_>>(), [same.digest]);
        assert_eq!(batcher.arrive(same.clone(), 2), Arrival::Joined);
        assert_eq!(batcher.next_batch().unwrap().len(), 1);
        assert_eq!(
            batcher.arrive(same.clone(), 3),
            Arrival::Joined,
            "also while its batch is in flight"
        );
        assert_eq!(
            batcher.arrive(purchase("bob", "k", 2), 5),
            Arrival::Queued,
            "another buyer's key"
        );
        assert_eq!(batcher.decided(&same.digest), [1, 2, 3]);
        assert!(batcher.under_way().all(|digest| digest != same.digest));
    }

    #[test]
    fn another_body_under_the_same_key_waits_until_the_one_under_way_is_decided() {
        let mut batcher = Batcher::new(10, 2);
        let (wrong, right) = (purchase("ann", "k", 2), purchase("ann", "k", 1));
        batcher.arrive(wrong.clone(), 1);
        assert_eq!(batcher.next_batch().unwrap().len(), 1);
        assert_eq!(batcher.arrive(right.clone(), 2), Arrival::Postponed);
        assert_eq!(batcher.arrive(wrong.clone(), 3), Arrival::Joined);
        assert_eq!(batcher.arrive(right.clone(), 4), Arrival::Postponed);
        assert!(batcher.next_batch().is_none());
        assert_eq!(batcher.decided(&wrong.digest), [1, 3]);
        let next = batcher.next_batch().unwrap();
        assert_eq!(next.len(), 1, "one batch holds a key once");
        assert_eq!(next[0].purchase.quantity, 1);
        assert_eq!(batcher.decided(&right.digest), [2, 4]);
        assert_eq!(batcher.under_way().count(), 0);
    }
}
