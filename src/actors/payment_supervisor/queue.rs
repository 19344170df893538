//! The queues of orders that wait to be charged, one for each currency: what can't be charged in one stands in nobody else's way. Only a
//! convenience: the PENDING rows are the queue that lasts.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;

use crate::domain::{Currency, OrderId};
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

/// A queue for each currency that there was an order in, each with bounds of its own.
#[derive(Debug)]
pub struct Queues {
    max_queued: usize,
    max_in_flight: usize,
    by_currency: BTreeMap<Currency, Queue>,
}

impl Queues {
    /// None yet; each will take `max_queued` orders, of which `max_in_flight` may be charged at a time.
    pub fn new(max_queued: usize, max_in_flight: usize) -> Self {
        Self {
            max_queued,
            max_in_flight,
            by_currency: BTreeMap::new(),
        }
    }

    /// Takes an order in that came at `now`.
    pub fn offer(&mut self, order: OpenOrder, now: Instant) -> Offer {
        self.by_currency
            .entry(order.currency)
            .or_insert_with(|| Queue::new(self.max_queued, self.max_in_flight))
            .offer(order, now)
    }

    /// Each queue, with its currency.
    pub fn each(&mut self) -> impl Iterator<Item = (Currency, &mut Queue)> {
        self.by_currency
            .iter_mut()
            .map(|(currency, queue)| (*currency, queue))
    }

    /// An order's charge has ended, however.
    pub fn ended(&mut self, order: OpenOrder) {
        if let Some(queue) = self.by_currency.get_mut(&order.currency) {
            queue.ended(order.order);
        }
    }

    /// Orders that wait.
    pub fn len(&self) -> usize {
        self.by_currency.values().map(Queue::len).sum()
    }

    /// Currencies that no more orders find room in.
    pub fn full(&self) -> impl Iterator<Item = Currency> {
        self.by_currency
            .iter()
            .filter(|(_, queue)| queue.room() == 0)
            .map(|(currency, _)| *currency)
    }

    /// How long the first of them has waited.
    pub fn oldest(&self, now: Instant) -> Option<Duration> {
        self.by_currency
            .values()
            .filter_map(|queue| queue.oldest(now))
            .max()
    }
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
    use crate::domain::{Currency, SaleId};

    fn order() -> OpenOrder {
        OpenOrder {
            order: OrderId::fresh(),
            sale: SaleId::fresh(),
            currency: Currency::parse("EUR").unwrap(),
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
    fn a_currency_that_is_full_leaves_the_others_their_room_and_their_places() {
        let now = Instant::now();
        let mut queues = Queues::new(1, 1);
        let in_currency = |code: &str| OpenOrder {
            currency: Currency::parse(code).unwrap(),
            ..order()
        };
        let (first, second, third) = (in_currency("USD"), in_currency("USD"), in_currency("EUR"));
        assert_eq!(queues.offer(first, now), Offer::Queued);
        assert_eq!(queues.offer(second, now), Offer::Full);
        assert_eq!(queues.full().collect::<Vec<_>>(), [first.currency]);
        assert_eq!(queues.offer(third, now), Offer::Queued);
        let next: Vec<_> = queues.each().filter_map(|(_, queue)| queue.next()).collect();
        assert_eq!(next, [third, first], "each has a place");
        assert_eq!(queues.len(), 0);
        queues.ended(third);
        assert_eq!(queues.offer(third, now), Offer::Queued, "it is known no more");
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
