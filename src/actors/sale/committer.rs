//! Group commit across sales: batches that arrive while others are being committed go into the next transaction together.
//!
//! One hot sale fills its transactions by itself and finds a free slot at once. Of ten thousand sales with one buyer each, all
//! that arrive within a commit share the next one, so that they don't wait for a flush each.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::runtime;
use tokio::sync::oneshot;

use crate::domain::{SaleId, Stock};
use crate::metrics::{self, What};
use crate::store::{self, SaleBatch, Store};

/// What became of a batch: committed (when, and the stock afterwards), or not, because something is in the way of its group.
pub type Answer = Result<Option<(Timestamp, Stock)>, store::Error>;

/// Commits batches of all sales.
pub struct Committer {
    store: Store,
    runtime: runtime::Handle,
    limits: Limits,
    line: Mutex<Line<Waiter>>,
}

/// Bounds of the transactions.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Orders in one of them, unless a single batch has more.
    pub max_orders: usize,
    /// How many may be under way at a time.
    pub max_under_way: usize,
    /// How many may be while orders wait that fill another one.
    pub max_under_way_full: usize,
    /// How long a batch waits until one is begun for it.
    pub patience: Duration,
}

type Waiter = oneshot::Sender<Answer>;

impl Committer {
    /// A committer with nothing to do.
    pub fn new(store: Store, runtime: runtime::Handle, limits: Limits) -> Self {
        Self {
            store,
            runtime,
            limits,
            line: Mutex::new(Line::new(limits)),
        }
    }

    /// Commits a batch together with others that wait. `Ok(None)`: nothing was committed, and the batch is to be decided alone.
    ///
    /// # Errors
    /// As [`Store::place_group`].
    pub async fn commit(self: &Arc<Self>, batch: SaleBatch) -> Answer {
        let (answer, mut answered) = oneshot::channel();
        let (ticket, group) = self.line().arrive(batch, answer);
        self.start(group);
        let in_time = tokio::time::timeout(self.limits.patience, &mut answered).await;
        let told = match in_time {
            Ok(told) => told,
            Err(_) if self.line().leave(ticket) => {
                let waited = format!("no transaction was begun within {:?}", self.limits.patience);
                return Err(store::Error::Unavailable(waited));
            }
            Err(_) => answered.await,
        };
        told.unwrap_or_else(|_| {
            Err(store::Error::OutcomeUnknown(
                "the task that committed it died".to_owned(),
            ))
        })
    }

    fn start(self: &Arc<Self>, group: Option<Group<Waiter>>) {
        let Some(group) = group else { return };
        let slot = Slot(self.clone());
        self.runtime.spawn(async move { slot.0.run(group).await });
    }

    async fn run(&self, (batches, waiters): Group<Waiter>) {
        metrics::batch_size(
            What::Reserve,
            batches.iter().map(|batch| batch.orders.len()).sum(),
        );
        let started = Instant::now();
        let placed = self.store.place_group(&batches).await;
        metrics::commit_seconds(What::Reserve, started.elapsed());
        for (batch, waiter) in batches.iter().zip(waiters) {
            let answer = match &placed {
                Ok(placed) => Ok(placed
                    .as_ref()
                    .and_then(|placed| Some((placed.created_at, *placed.stocks.get(&batch.sale)?)))),
                Err(error) => Err(error.clone()),
            };
            // Whoever asked is a task that nobody cuts; were it gone, its buyers would learn the outcome by their keys.
            waiter.send(answer).ok();
        }
    }

    fn line(&self) -> MutexGuard<'_, Line<Waiter>> {
        // Nothing that could panic runs under the lock.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the transactions that may be under way. Given back however the task ends, and then the next group starts.
struct Slot(Arc<Committer>);

impl Drop for Slot {
    fn drop(&mut self) {
        let group = self.0.line().ended();
        self.0.start(group);
    }
}

type Group<W> = (Vec<SaleBatch>, Vec<W>);

/// The batches that wait, and how many transactions are under way. Pure: it knows no clock and no I/O.
struct Line<W> {
    limits: Limits,
    under_way: usize,
    waiting: VecDeque<Waiting<W>>,
    waiting_orders: usize,
    tickets: u64,
}

struct Waiting<W> {
    ticket: u64,
    batch: SaleBatch,
    waiter: W,
}

impl<W> Line<W> {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            under_way: 0,
            waiting: VecDeque::new(),
            waiting_orders: 0,
            tickets: 0,
        }
    }

    /// Takes a batch in. Its ticket, and the group that is to be committed now, if there is a slot.
    fn arrive(&mut self, batch: SaleBatch, waiter: W) -> (u64, Option<Group<W>>) {
        self.tickets += 1;
        self.waiting_orders += batch.orders.len();
        self.waiting.push_back(Waiting {
            ticket: self.tickets,
            batch,
            waiter,
        });
        (self.tickets, self.next_group())
    }

    /// Takes a batch out that doesn't want to wait any longer; false when it isn't waiting any more.
    fn leave(&mut self, ticket: u64) -> bool {
        let found = self.waiting.iter().position(|waiting| waiting.ticket == ticket);
        let Some(gone) = found.and_then(|at| self.waiting.remove(at)) else {
            return false;
        };
        self.waiting_orders -= gone.batch.orders.len();
        true
    }

    /// A transaction has ended. The group that takes its slot.
    fn ended(&mut self) -> Option<Group<W>> {
        self.under_way -= 1;
        self.next_group()
    }

    /// First come, first served, as many as fit. A sale's second batch waits for the next group: its units are taken from the same row,
    /// maybe under another epoch.
    fn next_group(&mut self) -> Option<Group<W>> {
        let Limits {
            max_orders,
            max_under_way,
            max_under_way_full,
            ..
        } = self.limits;
        let bound = if self.waiting_orders >= max_orders {
            max_under_way_full
        } else {
            max_under_way
        };
        if self.under_way >= bound || self.waiting.is_empty() {
            return None;
        }
        let (mut batches, mut waiters): Group<W> = (Vec::new(), Vec::new());
        let mut sales: HashSet<SaleId> = HashSet::new();
        let mut passed_over = VecDeque::new();
        let mut orders = 0;
        while let Some(next) = self.waiting.pop_front() {
            let with_it = orders + next.batch.orders.len();
            if !batches.is_empty() && with_it > max_orders {
                self.waiting.push_front(next);
                break;
            }
            if sales.insert(next.batch.sale) {
                orders = with_it;
                batches.push(next.batch);
                waiters.push(next.waiter);
            } else {
                passed_over.push_back(next);
            }
        }
        passed_over.append(&mut self.waiting);
        self.waiting = passed_over;
        self.waiting_orders -= orders;
        self.under_way += 1;
        Some((batches, waiters))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Buyer, IdempotencyDigest, OrderId};
    use crate::store::NewOrder;

    fn batch(sale: SaleId, orders: usize) -> SaleBatch {
        let buyer = Buyer::parse("ann").unwrap();
        let order = || NewOrder {
            order: OrderId::fresh(),
            digest: IdempotencyDigest::of(&buyer, "k"),
            buyer: buyer.clone(),
            quantity: 1,
            amount_minor: 1,
            payment_method: None,
            request_id: None,
        };
        SaleBatch {
            sale,
            per_buyer_limit: None,
            epoch: 1,
            orders: Arc::new((0..orders).map(|_| order()).collect()),
        }
    }

    fn line(max_orders: usize, max_under_way: usize) -> Line<i32> {
        Line::new(Limits {
            max_orders,
            max_under_way,
            max_under_way_full: max_under_way,
            patience: Duration::ZERO,
        })
    }

    #[test]
    fn full_transactions_may_be_more_than_others() {
        let mut line = line(10, 1);
        line.limits.max_under_way_full = 3;
        assert!(line.arrive(batch(SaleId::fresh(), 1), 0).1.is_some());
        assert!(line.arrive(batch(SaleId::fresh(), 9), 1).1.is_none());
        let (waits, filled) = line.arrive(batch(SaleId::fresh(), 1), 2);
        assert_eq!(filled.unwrap().1, [1, 2]);
        assert!(!line.leave(waits));
        let (leaves, _) = line.arrive(batch(SaleId::fresh(), 9), 3);
        assert!(line.leave(leaves));
        assert!(
            line.arrive(batch(SaleId::fresh(), 1), 4).1.is_none(),
            "who left fills nothing"
        );
        assert!(line.arrive(batch(SaleId::fresh(), 9), 5).1.is_some());
        assert!(
            line.arrive(batch(SaleId::fresh(), 10), 6).1.is_none(),
            "three are enough"
        );
        assert!(line.ended().is_some());
    }

    #[test]
    fn who_waits_shares_the_next_transaction() {
        let mut line = line(10, 1);
        let sales: Vec<_> = (0..5).map(|_| SaleId::fresh()).collect();
        assert_eq!(
            line.arrive(batch(sales[0], 1), 0).1.unwrap().1,
            [0],
            "a free slot is taken at once"
        );
        for (sale, size, number) in [(1, 4, 1), (2, 4, 2), (3, 4, 3), (4, 1, 4)] {
            assert!(line.arrive(batch(sales[sale], size), number).1.is_none());
        }
        assert_eq!(
            line.ended().unwrap().1,
            [1, 2],
            "no more than fit, and nobody overtakes"
        );
        assert_eq!(line.ended().unwrap().1, [3, 4]);
        assert!(line.ended().is_none());
        assert_eq!(
            line.arrive(batch(sales[0], 11), 5).1.unwrap().1,
            [5],
            "larger than a group, alone"
        );
    }

    #[test]
    fn a_sale_is_in_a_group_once() {
        let mut line = line(10, 1);
        let (hot, cold, other) = (SaleId::fresh(), SaleId::fresh(), SaleId::fresh());
        line.arrive(batch(other, 1), 0);
        for (sale, number) in [(hot, 1), (hot, 2), (cold, 3), (hot, 4)] {
            assert!(line.arrive(batch(sale, 1), number).1.is_none());
        }
        assert_eq!(line.ended().unwrap().1, [1, 3]);
        assert_eq!(line.ended().unwrap().1, [2]);
        assert_eq!(line.ended().unwrap().1, [4]);
        assert!(line.ended().is_none());
    }

    #[test]
    fn who_has_waited_too_long_may_leave_unless_its_turn_has_come() {
        let mut line = line(10, 1);
        let (begun, _) = line.arrive(batch(SaleId::fresh(), 1), 0);
        let (waits, _) = line.arrive(batch(SaleId::fresh(), 1), 1);
        line.arrive(batch(SaleId::fresh(), 1), 2);
        assert!(!line.leave(begun));
        assert!(line.leave(waits));
        assert_eq!(line.ended().unwrap().1, [2]);
    }

    #[test]
    fn so_many_transactions_and_no_more() {
        let mut line = line(10, 2);
        assert!(line.arrive(batch(SaleId::fresh(), 1), 1).1.is_some());
        assert!(line.arrive(batch(SaleId::fresh(), 1), 2).1.is_some());
        assert!(line.arrive(batch(SaleId::fresh(), 1), 3).1.is_none());
        assert_eq!(line.ended().unwrap().1, [3]);
    }
}
