//! Where orders are left for the supervisor, so that it is woken once per burst: ten thousand sales with one buyer each don't wake it
//! ten thousand times.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::store::OpenOrder;

/// Orders that were handed over and not yet taken in. Cheap to clone.
#[derive(Debug, Clone)]
pub struct HandOver {
    orders: Arc<Mutex<Vec<OpenOrder>>>,
    max_orders: usize,
}

/// What is to be done about orders that were left.
#[derive(Debug, PartialEq, Eq)]
pub struct Left {
    /// They are the first: call the supervisor.
    pub call: bool,
    /// How many there was no room for; a scan finds them.
    pub dropped: usize,
}

impl HandOver {
    /// Nothing handed over, and room for so many.
    pub fn new(max_orders: usize) -> Self {
        Self {
            orders: Arc::default(),
            max_orders,
        }
    }

    /// Leaves orders.
    pub fn leave(&self, mut orders: Vec<OpenOrder>) -> Left {
        let mut left = self.lock();
        let room = self.max_orders.saturating_sub(left.len()).min(orders.len());
        let dropped = orders.len() - room;
        orders.truncate(room);
        let call = left.is_empty() && !orders.is_empty();
        left.append(&mut orders);
        Left { call, dropped }
    }

    /// All that was left. Whoever comes next must call again.
    pub fn take(&self) -> Vec<OpenOrder> {
        mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<OpenOrder>> {
        // Nothing that could panic runs under the lock.
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Currency, OrderId, SaleId};

    fn orders(count: usize) -> Vec<OpenOrder> {
        let sale = SaleId::fresh();
        let fresh = || OpenOrder {
            order: OrderId::fresh(),
            sale,
            currency: Currency::parse("EUR").unwrap(),
        };
        (0..count).map(|_| fresh()).collect()
    }

    #[test]
    fn the_supervisor_is_called_by_the_first_and_again_after_it_came() {
        let hand_over = HandOver::new(10);
        assert!(!hand_over.leave(Vec::new()).call, "there is nothing to come for");
        assert!(hand_over.leave(orders(2)).call);
        assert!(!hand_over.leave(orders(1)).call);
        assert_eq!(hand_over.take().len(), 3);
        assert!(hand_over.leave(orders(1)).call);
    }

    #[test]
    fn what_there_is_no_room_for_is_told() {
        let hand_over = HandOver::new(3);
        hand_over.leave(orders(2));
        let more = orders(3);
        let first = more[0].order;
        let left = Left {
            call: false,
            dropped: 2,
        };
        assert_eq!(hand_over.leave(more), left);
        let taken = hand_over.take();
        assert_eq!((taken.len(), taken[2].order), (3, first));
        assert!(hand_over.leave(orders(1)).call, "there is room again");
    }
}
