//! What the store promises, in plain Rust and on purpose without its ways of doing it: orders with what became of them. Stock, allotments
//! and the ledger aren't kept but counted, from what the orders are.

use std::collections::{BTreeMap, BTreeSet};

use fluxbuy::domain::{
    Buyer, Event, FailureReason, IdempotencyDigest, OrderId, OrderStatus, PaymentStatus, RefundAsk,
    RefundRefusal, SaleId,
};
use fluxbuy::store::{Change, Epoch, NewOrder, TaskKind};

#[derive(Debug, Clone)]
pub(crate) struct Sale {
    pub quantity: i64,
    pub limit: Option<i32>,
    pub open: bool,
    pub cancelled: bool,
    pub epoch: i64,
}

#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub sale: SaleId,
    pub buyer: Buyer,
    /// `None` for an id that is only occupied.
    pub digest: Option<IdempotencyDigest>,
    pub quantity: i32,
    pub amount: i64,
    pub status: OrderStatus,
    pub reason: Option<FailureReason>,
    pub fence: i32,
    pub payment: Option<Payment>,
    pub refunds: Vec<Refund>,
    /// The units went back into stock.
    pub released: bool,
    /// Event, whether it happened, and the status and the fence that it left or met.
    pub history: Vec<(Event, bool, OrderStatus, i32)>,
}

#[derive(Debug, Clone)]
pub(crate) struct Payment {
    pub status: PaymentStatus,
    pub two_step: bool,
    pub name: Option<String>,
}

#[derive(Debug, Clone)]
pub(crate) struct Refund {
    pub ask: RefundAsk,
    pub amount: i64,
    pub done: bool,
}

/// Order, attempt, kind and number of the refund.
pub(crate) type TaskName = (OrderId, i32, &'static str, i32);

#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    pub sales: BTreeMap<SaleId, Sale>,
    pub orders: BTreeMap<OrderId, Order>,
    /// Releases that the gate has to be told of.
    pub notes: BTreeSet<(SaleId, OrderId)>,
    /// Tries, and what was seen last.
    pub tasks: BTreeMap<TaskName, (i32, Option<String>)>,
    pub dead: BTreeMap<TaskName, (i32, String)>,
}

/// What becomes of one order of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    New,
    /// The same order was made before.
    Again,
    /// Another order was made of this purchase: so many units for so much.
    Existing(OrderId, i32, i64),
    SoldOut,
    LimitExceeded,
    NotOpen,
    Closed,
    Bad,
}

/// What becomes of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Met {
    /// Status, fence and attempt now.
    Applied(OrderStatus, i32, i32),
    Stale(OrderStatus, i32),
    NotFound,
}

impl Order {
    pub(crate) fn attempt(&self) -> i32 {
        i32::from(self.payment.is_some())
    }

    /// Whether its units are its buyer's share of the sale.
    pub(crate) fn holds(&self) -> bool {
        self.digest.is_some() && !self.released
    }

    /// What was promised back.
    pub(crate) fn promised(&self) -> i64 {
        self.refunds.iter().map(|refund| refund.amount).sum()
    }
}

/// Where an event takes an order, as docs/order-lifecycle.md has it. (An order is REFUNDED by its last refund only.)
pub(crate) fn after(status: OrderStatus, event: Event) -> Option<(OrderStatus, Option<FailureReason>)> {
    use Event as E;
    use OrderStatus as S;
    let failed = |reason| Some((S::Failed, Some(reason)));
    match (status, event) {
        (S::Pending, E::Claim) => Some((S::Processing, None)),
        (S::Pending, E::Swept) | (S::Processing, E::GivenUp | E::ChargeVoided) => {
            failed(FailureReason::Swept)
        }
        (S::Pending, E::Cancelled) => failed(FailureReason::Cancelled),
        (S::Pending, E::SaleCancelled) => failed(FailureReason::SaleCancelled),
        (S::Processing | S::Capturing, E::TakeOver) => Some((status, None)),
        (S::Processing, E::Authorised) => Some((S::Capturing, None)),
        (S::Processing | S::Capturing, E::ChargeSucceeded) => Some((S::Paid, None)),
        (S::Processing | S::Capturing, E::ChargeDeclined) | (S::Capturing, E::ChargeVoided) => {
            failed(FailureReason::Declined)
        }
        (S::Processing, E::ChargeNotSent) => failed(FailureReason::ProviderUnavailable),
        _ => None,
    }
}

impl Model {
    /// Units of a sale that are held, and that are sold.
    pub(crate) fn taken(&self, sale: SaleId) -> (i64, i64) {
        let (mut held, mut sold) = (0, 0);
        for order in self
            .orders
            .values()
            .filter(|order| order.sale == sale && order.holds())
        {
            let place = if order.status.is_open() {
                &mut held
            } else {
                &mut sold
            };
            *place += i64::from(order.quantity);
        }
        (held, sold)
    }

    pub(crate) fn available(&self, sale: SaleId) -> i64 {
        let (held, sold) = self.taken(sale);
        self.sales[&sale].quantity - held - sold
    }

    /// Units that each buyer has a share of, in a sale with a limit.
    pub(crate) fn shares(&self) -> BTreeMap<(SaleId, Buyer), i32> {
        let mut shares = BTreeMap::new();
        let limited = |order: &&Order| self.sales[&order.sale].limit.is_some() && order.holds();
        for order in self.orders.values().filter(limited) {
            *shares.entry((order.sale, order.buyer.clone())).or_default() += order.quantity;
        }
        shares
    }

    /// One order of a batch, first come, first served.
    pub(crate) fn place(&mut self, sale: SaleId, new: &NewOrder, epoch: Epoch) -> Answer {
        let known = self
            .orders
            .iter()
            .find(|(_, order)| order.sale == sale && order.digest == Some(new.digest));
        if let Some((id, order)) = known {
            return if *id == new.order {
                Answer::Again
            } else {
                Answer::Existing(*id, order.quantity, order.amount)
            };
        }
        let terms = &self.sales[&sale];
        let gate_asked = matches!(epoch, Epoch::Exactly(_));
        let id_taken = self.orders.contains_key(&new.order);
        let share = self
            .shares()
            .get(&(sale, new.buyer.clone()))
            .copied()
            .unwrap_or(0);
        let fits = i64::from(new.quantity) <= self.available(sale);
        if epoch == Epoch::Raise && terms.cancelled {
            Answer::Closed
        } else if epoch == Epoch::Raise && !terms.open {
            Answer::NotOpen
        } else if gate_asked && id_taken {
            Answer::Bad
        } else if terms.limit.is_some_and(|limit| share + new.quantity > limit) {
            Answer::LimitExceeded
        } else if terms.cancelled {
            Answer::Bad // or sold out: whichever is noticed first
        } else if !gate_asked && !fits {
            Answer::SoldOut
        } else if id_taken {
            Answer::Bad
        } else if !fits {
            Answer::SoldOut
        } else {
            self.insert(sale, new, OrderStatus::Pending);
            Answer::New
        }
    }

    fn insert(&mut self, sale: SaleId, new: &NewOrder, status: OrderStatus) {
        let order = Order {
            sale,
            buyer: new.buyer.clone(),
            digest: (status == OrderStatus::Pending).then_some(new.digest),
            quantity: new.quantity,
            amount: if status == OrderStatus::Pending {
                new.amount_minor
            } else {
                1
            },
            status,
            reason: None,
            fence: 0,
            payment: None,
            refunds: Vec::new(),
            released: false,
            history: Vec::new(),
        };
        self.orders.insert(new.order, order);
    }

    /// Whether the id of an order that never was is occupied now.
    pub(crate) fn occupy(&mut self, sale: SaleId, new: &NewOrder) -> bool {
        if !self.orders.contains_key(&new.order) {
            self.insert(sale, new, OrderStatus::Rejected);
        }
        self.orders[&new.order].status == OrderStatus::Rejected
    }

    pub(crate) fn apply(&mut self, change: &Change) -> Met {
        let Some(order) = self
            .orders
            .get_mut(&change.order)
            .filter(|order| order.sale == change.sale)
        else {
            return Met::NotFound;
        };
        let fenced_out = change.fence.is_some_and(|fence| fence != order.fence);
        if order.status != change.expect || fenced_out {
            order
                .history
                .push((change.event, false, order.status, order.fence));
            return Met::Stale(order.status, order.fence);
        }
        let (status, reason) = after(order.status, change.event).expect("the event fits what was expected");
        if matches!(change.event, Event::Claim | Event::TakeOver) {
            order.fence += 1;
        }
        if change.event == Event::Claim {
            order.payment = Some(Payment {
                status: PaymentStatus::Initiated,
                two_step: change.two_step,
                name: None,
            });
        }
        if let Some(payment) = &mut order.payment {
            payment.status = match change.event {
                Event::Authorised => PaymentStatus::Authorised,
                Event::ChargeSucceeded => PaymentStatus::Succeeded,
                Event::ChargeDeclined => PaymentStatus::Declined,
                Event::ChargeNotSent => PaymentStatus::NotSent,
                Event::ChargeVoided => PaymentStatus::Voided,
                Event::GivenUp => PaymentStatus::InDoubt,
                _ => payment.status,
            };
        }
        (order.status, order.reason) = (status, reason);
        order.history.push((change.event, true, status, order.fence));
        let met = Met::Applied(status, order.fence, order.attempt());
        if matches!(change.event, Event::ChargeVoided | Event::GivenUp) {
            self.tasks
                .insert((change.order, 1, TaskKind::Resolve.as_sql(), 0), (0, None));
        }
        if status == OrderStatus::Failed {
            self.release(change.order);
        }
        met
    }

    fn release(&mut self, id: OrderId) {
        let order = self.orders.get_mut(&id).expect("an order that is released");
        assert!(
            !std::mem::replace(&mut order.released, true),
            "units are released once"
        );
        self.notes.insert((order.sale, id));
    }

    /// The payment of this attempt, if what becomes of it can't matter to the order any more.
    fn late(&mut self, id: OrderId, attempt: i32) -> Option<&mut Payment> {
        let order = self.orders.get_mut(&id)?;
        let over = order.status == OrderStatus::Failed || order.attempt() != attempt;
        order.payment.as_mut().filter(|_| over && attempt == 1)
    }

    pub(crate) fn late_charge(&mut self, id: OrderId, attempt: i32) -> bool {
        use PaymentStatus as P;
        let open = [P::Initiated, P::InDoubt, P::Voided, P::NotSent, P::Declined];
        let Some(payment) = self
            .late(id, attempt)
            .filter(|payment| open.contains(&payment.status))
        else {
            return false;
        };
        payment.status = PaymentStatus::RefundDue;
        self.tasks.remove(&(id, attempt, TaskKind::Resolve.as_sql(), 0));
        self.tasks
            .insert((id, attempt, TaskKind::Refund.as_sql(), 0), (0, None));
        true
    }

    pub(crate) fn void_later(&mut self, id: OrderId, attempt: i32) -> bool {
        use PaymentStatus as P;
        let money = [P::Succeeded, P::RefundDue, P::Refunded];
        let found = self
            .late(id, attempt)
            .is_some_and(|payment| !money.contains(&payment.status));
        if found {
            self.tasks
                .entry((id, attempt, TaskKind::Resolve.as_sql(), 0))
                .or_default();
        }
        found
    }

    /// Number and amount of the refund, whether it is paid, and whether it was promised before.
    pub(crate) fn promise(
        &mut self,
        id: OrderId,
        ask: &RefundAsk,
    ) -> Result<(i32, i64, bool, bool), RefundRefusal> {
        let order = self
            .orders
            .get_mut(&id)
            .filter(|order| order.status != OrderStatus::Rejected);
        let order = order.ok_or(RefundRefusal::NotFound)?;
        let known = order
            .refunds
            .iter()
            .enumerate()
            .find(|(_, refund)| refund.ask.digest == ask.digest);
        if let Some((at, refund)) = known {
            let same =
                (refund.ask.amount_minor, refund.ask.return_units) == (ask.amount_minor, ask.return_units);
            let view = (at as i32 + 1, refund.amount, refund.done, true);
            return if same {
                Ok(view)
            } else {
                Err(RefundRefusal::KeyReused)
            };
        }
        let status = order.status;
        if status != OrderStatus::Paid {
            return Err(RefundRefusal::NotRefundable { status });
        }
        let left_minor = order.amount - order.promised();
        let amount = ask.amount_minor.unwrap_or(left_minor);
        if left_minor == 0 || amount > left_minor {
            return Err(RefundRefusal::Exceeds { left_minor });
        }
        if ask.return_units && amount < left_minor {
            return Err(RefundRefusal::ReturnNeedsAll);
        }
        order.refunds.push(Refund {
            ask: *ask,
            amount,
            done: false,
        });
        let number = order.refunds.len() as i32;
        self.tasks
            .insert((id, 1, TaskKind::Refund.as_sql(), number), (0, None));
        Ok((number, amount, false, false))
    }

    /// Whether this noted it, whether the order is REFUNDED by it, and whether its units went back.
    pub(crate) fn refund_paid(&mut self, id: OrderId, attempt: i32, number: i32) -> (bool, bool, bool) {
        self.tasks
            .remove(&(id, attempt, TaskKind::Refund.as_sql(), number));
        let nothing = (false, false, false);
        let Some(order) = self.orders.get_mut(&id).filter(|_| attempt == 1) else {
            return nothing;
        };
        if number == 0 {
            let due = order
                .payment
                .as_mut()
                .filter(|payment| payment.status == PaymentStatus::RefundDue);
            let Some(payment) = due else { return nothing };
            payment.status = PaymentStatus::Refunded;
            return (true, false, false);
        }
        let refund = order.refunds.get_mut(number as usize - 1);
        let Some(refund) = refund.filter(|refund| !refund.done) else {
            return nothing;
        };
        refund.done = true;
        let back: i64 = order
            .refunds
            .iter()
            .filter(|refund| refund.done)
            .map(|refund| refund.amount)
            .sum();
        if back < order.amount {
            return (true, false, false);
        }
        let returned = order.refunds.iter().any(|refund| refund.ask.return_units);
        let event = if returned {
            Event::RefundedAndReturned
        } else {
            Event::Refunded
        };
        order.status = OrderStatus::Refunded;
        order.history.push((event, true, order.status, order.fence));
        if returned {
            self.release(id);
        }
        (true, true, returned)
    }
}
