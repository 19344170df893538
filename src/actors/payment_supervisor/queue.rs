//! The queue of orders that wait to be charged. Only a convenience: the PENDING rows are the queue that lasts.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;

use crate::domain::OrderId;
use crate::store::OpenOrder;

/// What became of an order that was offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// It waits now.
    Queued,
    /// It waits or is being charged already.
    Known,
    /// There is no room; the scan finds it later.
    Full,
}

/// Orders in the order in which they came, each once, bounded; and how many of them are being charged.
#[derive(Debug)]
pub struct Queue {
    max_queued: usize,
    max_in_flight: usize,
    waiting: VecDeque<(OpenOrder, Instant)>,
    known: FxHashSet<OrderId>,
    in_flight: usize,
}

impl Queue {
    /// An empty queue for `max_queued` orders, of which `max_in_flight` may be charged at a time.
    pub fn new(max_queued: usize, max_in_flight: usize) -> Self {
        Self {
            max_queued,
            max_in_flight,
            waiting: VecDeque::new(),
            known: FxHashSet::default(),
            in_flight: 0,
        }
    }

    /// Takes an order in that came at `now`.
    pub fn offer(&mut self, order: OpenOrder, now: Instant) -> Offer {
        if self.known.contains(&order.order) {
            return Offer::Known;
        }
        if self.waiting.len() >= self.max_queued {
            return Offer::Full;
        }
        self.known.insert(order.order);
        self.waiting.push_back((order, now));
        Offer::Queued
    }

    /// Whether another charge may begin.
    pub fn has_place(&self) -> bool {
        self.in_flight < self.max_in_flight && !self.waiting.is_empty()
    }

    /// The next order to charge, if there is a place for it.
    pub fn next(&mut self) -> Option<OpenOrder> {
        if self.in_flight >= self.max_in_flight {
            return None;
        }
        let (order, _) = self.waiting.pop_front()?;
        self.in_flight += 1;
        Some(order)
    }

    /// An order's charge has ended, however.
    pub fn ended(&mut self, order: OrderId) {
        self.known.remove(&order);
        self.in_flight -= 1;
    }

    /// Orders that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// How many more would find room.
    pub fn room(&self) -> usize {
        self.max_queued - self.waiting.len()
    }

    /// How long the first of them has waited.
    pub fn oldest(&self, now: Instant) -> Option<Duration> {
        self.waiting
            .front()
            .map(|(_, since)| now.saturating_duration_since(*since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::SaleId;

    fn order() -> OpenOrder {
        OpenOrder {
            order: OrderId::fresh(),
            sale: SaleId::fresh(),
        }
    }

    #[test]
    fn an_order_is_known_until_its_charge_has_ended() {
        let now = Instant::now();
        let mut queue = Queue::new(2, 1);
        let first = order();
        assert_eq!(queue.offer(first, now), Offer::Queued);
        assert_eq!(queue.offer(first, now), Offer::Known);
        assert_eq!(queue.next(), Some(first));
        assert_eq!(queue.offer(first, now), Offer::Known, "it is being charged");
        queue.ended(first.order);
        assert_eq!(queue.offer(first, now), Offer::Queued);
    }

    #[test]
    fn both_bounds_hold() {
        let now = Instant::now();
        let mut queue = Queue::new(2, 1);
        let orders = [order(), order(), order()];
        assert_eq!(
            orders.map(|order| queue.offer(order, now)),
            [Offer::Queued, Offer::Queued, Offer::Full]
        );
        assert_eq!(queue.next(), Some(orders[0]));
        assert_eq!(queue.next(), None, "one is in flight");
        assert!(!queue.has_place());
        queue.ended(orders[0].order);
        assert_eq!(queue.next(), Some(orders[1]));
    }
}
