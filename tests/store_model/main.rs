//! Anything that may be asked of the store, on a real Postgres, against a model.

mod life;
mod model;
mod rows;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fluxbuy::config::{Config, Need};
use fluxbuy::domain::{
    Currency, IdempotencyDigest, NewSale, OrderId, OrderStatus, PaymentStatus, RefundAsk, RefundReason,
    SaleId,
};
use fluxbuy::metrics::By;
use fluxbuy::services::{Args, Services};
use fluxbuy::store::{
    Change, Epoch, Error, NewOrder, Outcome, PaidRefund, Placed, Reserve, SaleBatch, Store, Task, TaskKind,
};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::life::{End, Life, PRICE_MINOR, Step, Under, Wish};
use crate::model::{Answer, Met, Model, Order, Sale};

/// Longer than a life: what is on loan isn't due again.
const LOAN: Duration = Duration::from_hours(1);
/// More than a life has of anything.
const ALL: i64 = 10_000;

/// A store, and the database behind it as its owner sees it.
struct Ground {
    store: Store,
    db: PgPool,
    /// How often each kind of thing has happened, in all lives.
    seen: RefCell<BTreeMap<String, usize>>,
    _services: Services,
}

impl Ground {
    async fn lay() -> Self {
        let args = Args {
            no_provider: true,
            ..Args::default()
        };
        let services = Services::start(Path::new(env!("CARGO_BIN_EXE_fluxbuy")), &args)
            .await
            .expect("private services");
        let urls = services.create_database("lives").await.expect("a database");
        let settings = [("FLUXBUY__POSTGRES__URL".to_owned(), urls.engine_url)];
        let config = Config::load(Need::Database, None, settings).unwrap();
        let db = PgPoolOptions::new()
            .max_connections(1)
            .connect(&urls.owner_url)
            .await;
        Self {
            store: Store::new(&config.postgres).unwrap(),
            db: db.unwrap(),
            seen: RefCell::default(),
            _services: services,
        }
    }

    fn saw(&self, what: impl Into<String>) {
        *self.seen.borrow_mut().entry(what.into()).or_default() += 1;
    }

    async fn run(&self, sql: &'static str) {
        sqlx::query(sql).execute(&self.db).await.unwrap();
    }
}

/// A life under way.
struct Living<'a> {
    ground: &'a Ground,
    store: &'a Store,
    model: Model,
    sales: Vec<SaleId>,
    number: u64,
}

/// Takes a life's steps on the store and on the model, and compares what they say, and at the end all that is written down.
async fn live(ground: &Ground, life: &Life) -> Result<(), TestCaseError> {
    // What is due belongs to no sale in particular: a life must not find what another has left.
    ground.run("DELETE FROM provider_tasks").await;
    ground.run("DELETE FROM dead_letters").await;
    let mut living = Living {
        ground,
        store: &ground.store,
        model: Model::default(),
        sales: Vec::new(),
        number: rand::random(),
    };
    for (quantity, limit, open) in life.sales {
        living.list(quantity, limit, open).await;
    }
    let mut lived = Ok(());
    for (at, step) in life.steps.iter().enumerate() {
        lived = living.take(step).await;
        if lived.is_ok() {
            lived = living.stock_agrees().await;
        }
        if let Err(TestCaseError::Fail(why)) = lived {
            lived = Err(TestCaseError::fail(format!("step {at}, {step:?}: {why}")));
            break;
        }
    }
    if lived.is_ok() {
        lived = living.rows_agree().await;
    }
    lived
}

impl Living<'_> {
    async fn list(&mut self, quantity: i32, limit: Option<i32>, open: bool) {
        let hour = SignedDuration::from_hours(1);
        let now = Timestamp::now();
        let terms = NewSale {
            name: "a sale".to_owned(),
            quantity,
            unit_price_minor: PRICE_MINOR,
            currency: Currency::parse("EUR").unwrap(),
            per_buyer_limit: limit,
            max_per_order: 10,
            opens_at: if open { now - hour } else { now + hour },
            closes_at: None,
        };
        let id = self.store.list_sale(&terms).await.unwrap().sale.id;
        let sale = Sale {
            quantity: quantity.into(),
            limit,
            open,
            cancelled: false,
            epoch: 1,
        };
        self.model.sales.insert(id, sale);
        self.sales.push(id);
    }

    fn member(&self, place: usize, member: u8) -> NewOrder {
        life::member(self.number, self.sales[place], place, member)
    }

    /// Mostly an order to which this can happen, and its sale; now and then any order, or one that doesn't exist.
    fn pick(&self, pick: u8, can: impl Fn(&Order) -> bool) -> (OrderId, SaleId) {
        let orders = self
            .model
            .orders
            .iter()
            .map(|(id, order)| (*id, order.sale, can(order)));
        let mut orders: Vec<_> = orders.collect();
        if !pick.is_multiple_of(8) && orders.iter().any(|(.., can)| *can) {
            orders.retain(|(.., can)| *can);
        } else {
            orders.push((self.member(0, u8::MAX).order, self.sales[0], false));
        }
        let (order, sale, _) = orders[usize::from(pick) % orders.len()];
        (order, sale)
    }

    async fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Reserve(place, members, under) => self.reserve(*place, members, *under).await,
            Step::Group(batches) => self.place_group(batches).await,
            Step::Apply(wishes) => self.apply(wishes).await,
            Step::LateCharge(pick, attempt) => {
                let (order, sale) = self.pick(*pick, is_late);
                let late = self
                    .store
                    .record_late_charge(order, sale, *attempt, None)
                    .await
                    .unwrap();
                prop_assert_eq!(late, self.model.late_charge(order, *attempt));
                self.ground.saw(format!("late charge {late}"));
                Ok(())
            }
            Step::VoidLater(pick, attempt) => {
                let (order, sale) = self.pick(*pick, is_late);
                let later = self.store.void_later(order, sale, *attempt).await.unwrap();
                prop_assert_eq!(later, self.model.void_later(order, *attempt));
                self.ground.saw(format!("void later {later}"));
                Ok(())
            }
            Step::InDoubt(pick) => {
                let (order, sale) = self.pick(*pick, |order| order.status == OrderStatus::Processing);
                self.store.mark_in_doubt(order, sale, 1).await.unwrap();
                if let Some(payment) = self.model.orders.get_mut(&order).and_then(|o| o.payment.as_mut())
                    && payment.status == PaymentStatus::Initiated
                {
                    payment.status = PaymentStatus::InDoubt;
                }
                Ok(())
            }
            Step::Name(pick, name) => self.name(*pick, *name).await,
            Step::Refund(pick, part, units, key) => self.refund(*pick, *part, *units, *key).await,
            Step::RefundPaid(pick, attempt, number) => self.refund_paid(*pick, *attempt, *number).await,
            Step::Occupy(place, members) => self.occupy(*place, members).await,
            Step::RaiseEpoch(place) => self.raise_epoch(*place).await,
            Step::ReleasesDone(place, right) => self.releases_done(*place, *right).await,
            Step::Work(nth, end) => self.work(*nth, *end).await,
            Step::Requeue => {
                let requeued = self.store.requeue(None).await.unwrap();
                let dead = std::mem::take(&mut self.model.dead);
                let fresh = dead
                    .keys()
                    .filter(|name| !self.model.tasks.contains_key(*name))
                    .count();
                prop_assert_eq!(requeued, fresh as u64);
                for name in dead.into_keys() {
                    self.model.tasks.entry(name).or_insert((0, None));
                }
                Ok(())
            }
            Step::CallOff(place) => {
                let id = self.sales[*place];
                let sale = self.model.sales.get_mut(&id).unwrap();
                let expected = (!sale.cancelled).then_some(sale.epoch + 1);
                if let Some(epoch) = expected {
                    (sale.epoch, sale.cancelled) = (epoch, true);
                }
                prop_assert_eq!(self.store.cancel_sale(id).await.unwrap(), expected);
                Ok(())
            }
        }
    }

    async fn reserve(&mut self, place: usize, members: &[u8], under: Under) -> Result<(), TestCaseError> {
        let id = self.sales[place];
        let before = self.model.sales[&id].clone();
        let epoch = match under {
            Under::RightEpoch => Epoch::Exactly(before.epoch),
            Under::EpochBefore => Epoch::Exactly(before.epoch - 1),
            Under::Nobody => Epoch::Raise,
            Under::NobodyAgain => Epoch::RaiseAgain,
        };
        // A sale's open batch has each purchase once.
        let mut digests = BTreeSet::new();
        let batch: Vec<NewOrder> = members
            .iter()
            .map(|member| self.member(place, *member))
            .filter(|new| digests.insert(new.digest))
            .collect();
        let mut after = self.model.clone();
        let expected: Vec<Answer> = batch.iter().map(|new| after.place(id, new, epoch)).collect();
        let taken = expected.contains(&Answer::New);
        match self.store.reserve(id, before.limit, &batch, epoch).await.unwrap() {
            Reserve::StaleEpoch => {
                prop_assert!(
                    matches!(under, Under::EpochBefore),
                    "stale, under the right epoch"
                );
                self.ground.saw("stale epoch");
            }
            Reserve::Done { placed, stock, cut } => {
                let called_off = before.cancelled;
                let placed: Vec<Answer> = (batch.iter().zip(&placed))
                    .map(|(new, placed)| match answer(new, placed) {
                        Answer::SoldOut if called_off => Answer::Bad,
                        answer => answer,
                    })
                    .collect();
                prop_assert_eq!(&placed, &expected);
                prop_assert!(
                    !taken || !matches!(under, Under::EpochBefore),
                    "taken under an old epoch"
                );
                let short = placed
                    .iter()
                    .any(|a| matches!(a, Answer::SoldOut | Answer::LimitExceeded));
                prop_assert!(
                    called_off || cut == (short && epoch.admitted_under().is_some()),
                    "cut: {}",
                    cut
                );
                prop_assert_eq!(
                    stock.map(|stock| stock.available),
                    taken.then(|| after.available(id))
                );
                self.model = after;
                // Once for each part of the batch that was committed by itself, because of a row that was refused.
                let raised = self.epoch(id).await - before.epoch;
                let parts = placed.iter().filter(|answer| **answer == Answer::New).count() as i64;
                let most = if placed.contains(&Answer::Bad) {
                    parts
                } else {
                    parts.min(1)
                };
                let raises = epoch.admitted_under().is_none();
                let allowed = if raises { i64::from(taken)..=most } else { 0..=0 };
                prop_assert!(allowed.contains(&raised), "the epoch was raised by {}", raised);
                self.model.sales.get_mut(&id).unwrap().epoch += raised;
                for answer in placed {
                    self.ground.saw(format!("{answer:?}").split('(').next().unwrap());
                }
            }
        }
        Ok(())
    }

    async fn place_group(&mut self, batches: &[(usize, Vec<u8>, bool)]) -> Result<(), TestCaseError> {
        let mut places = BTreeSet::new();
        let batches: Vec<SaleBatch> = batches
            .iter()
            .filter(|(place, ..)| places.insert(*place))
            .map(|(place, members, right)| {
                let sale = self.sales[*place];
                let terms = &self.model.sales[&sale];
                SaleBatch {
                    sale,
                    per_buyer_limit: terms.limit,
                    epoch: terms.epoch - i64::from(!right),
                    orders: Arc::new(
                        members
                            .iter()
                            .map(|member| self.member(*place, *member))
                            .collect(),
                    ),
                }
            })
            .collect();
        let mut after = self.model.clone();
        let all_new = batches.iter().all(|batch| {
            let admitted = Epoch::Exactly(batch.epoch);
            let current = self.model.sales[&batch.sale].epoch == batch.epoch;
            current
                && batch
                    .orders
                    .iter()
                    .all(|new| after.place(batch.sale, new, admitted) == Answer::New)
        });
        let placed = self.store.place_group(&batches).await.unwrap();
        prop_assert_eq!(placed.is_some(), all_new);
        self.ground.saw(format!("group {all_new}"));
        if let Some(placed) = placed {
            for (sale, stock) in placed.stocks {
                let (held, sold) = after.taken(sale);
                prop_assert_eq!(
                    (stock.available, stock.held, stock.sold),
                    (after.available(sale), held, sold)
                );
            }
            self.model = after;
        }
        Ok(())
    }

    async fn apply(&mut self, wishes: &[Wish]) -> Result<(), TestCaseError> {
        let mut named = BTreeSet::new();
        let changes: Vec<Change> = wishes
            .iter()
            .map(|wish| self.change(wish))
            .filter(|change| named.insert(change.order))
            .collect();
        let illegal = changes
            .iter()
            .any(|change| model::after(change.expect, change.event).is_none());
        let written = self.store.apply(&changes).await;
        if illegal {
            prop_assert!(matches!(written, Err(Error::Unexpected(_))), "{:?}", written);
            self.ground.saw("illegal");
            return Ok(());
        }
        let written = written.unwrap();
        let mut released = BTreeSet::new();
        for (change, outcome) in changes.iter().zip(&written.outcomes) {
            let met = self.model.apply(change);
            let order = self.model.orders.get(&change.order);
            let outcome = match outcome {
                Outcome::Applied(applied) => {
                    let order = order.expect("what was changed exists");
                    prop_assert_eq!(
                        (applied.quantity, applied.amount.amount_minor),
                        (order.quantity, order.amount)
                    );
                    self.ground.saw(format!("{} {:?}", change.expect, change.event));
                    Met::Applied(applied.status, applied.fence, applied.attempt)
                }
                Outcome::Stale { status, fence, .. } => {
                    let which = if *status == change.expect {
                        "fence"
                    } else {
                        "status"
                    };
                    self.ground.saw(format!("another {which}"));
                    Met::Stale(*status, *fence)
                }
                Outcome::NotFound => Met::NotFound,
            };
            prop_assert_eq!(&outcome, &met, "{:?}", change);
            if matches!(met, Met::Applied(OrderStatus::Failed, ..)) {
                released.insert((change.sale, change.order));
            }
        }
        prop_assert_eq!(written.outcomes.len(), changes.len());
        prop_assert_eq!(written.released.into_iter().collect::<BTreeSet<_>>(), released);
        Ok(())
    }

    fn change(&self, wish: &Wish) -> Change {
        let (order, sale) = self.pick(wish.order, |order| order.status.is_open());
        let found = self.model.orders.get(&order);
        let status = found.map_or(OrderStatus::Pending, |order| order.status);
        // What is over is mostly met by somebody who hasn't heard of that.
        let unheard = !status.is_open() && !wish.event.is_multiple_of(16);
        let expect = wish
            .expect
            .unwrap_or(if unheard { OrderStatus::Processing } else { status });
        Change {
            order,
            sale,
            event: life::event(expect, wish.event),
            expect,
            fence: wish.fence.map(|off| found.map_or(0, |order| order.fence) + off),
            by: By::Payment,
            two_step: wish.event.is_multiple_of(2),
            decline_code: None,
            provider_event: None,
            #[cfg(feature = "test-switches")]
            without_guard: false,
        }
    }

    async fn name(&mut self, pick: u8, name: u8) -> Result<(), TestCaseError> {
        let (order, sale) = self.pick(pick, |order| order.status == OrderStatus::Processing);
        let named = self
            .store
            .name_charge(order, sale, 1, &format!("pi_{name}"))
            .await
            .unwrap();
        let found = self.model.orders.get_mut(&order);
        let found = found.filter(|order| order.status == OrderStatus::Processing);
        let expected = found
            .and_then(|order| order.payment.as_mut())
            .map(|payment| payment.name.get_or_insert_with(|| format!("pi_{name}")).clone());
        prop_assert_eq!(named, expected);
        Ok(())
    }

    async fn refund(
        &mut self,
        pick: u8,
        part: Option<u8>,
        units: bool,
        key: u8,
    ) -> Result<(), TestCaseError> {
        let (order, _) = self.pick(pick, |order| {
            order.status == OrderStatus::Paid || !order.refunds.is_empty()
        });
        let amount = self
            .model
            .orders
            .get(&order)
            .map_or(PRICE_MINOR, |order| order.amount);
        let ask = RefundAsk {
            amount_minor: part.map(|percent| (amount * i64::from(percent) / 100).max(1)),
            return_units: units,
            reason: RefundReason::Requested,
            digest: IdempotencyDigest::of_refund(order, &format!("key-{key}")),
        };
        let promised = self.store.request_refund(order, &ask).await.unwrap();
        let promised = promised.map(|view| (view.number, view.amount.amount_minor, view.done, view.replayed));
        prop_assert_eq!(promised, self.model.promise(order, &ask));
        self.ground.saw(match promised {
            Ok((.., replayed)) => format!("refund promised, replayed {replayed}"),
            Err(refusal) => format!("{refusal:?}").split(' ').next().unwrap().to_owned(),
        });
        Ok(())
    }

    async fn refund_paid(&mut self, pick: u8, attempt: i32, number: i32) -> Result<(), TestCaseError> {
        let (order, sale) = self.pick(pick, is_owed);
        let paid = PaidRefund {
            order,
            sale,
            attempt,
            number,
            provider_event: None,
        };
        let noted = self.store.refund_done(&paid).await.unwrap();
        let expected = self.model.refund_paid(order, attempt, number);
        let released = noted.released.contains(&(sale, order));
        prop_assert_eq!((noted.noted, noted.order_refunded, released), expected);
        prop_assert_eq!(noted.released.len(), usize::from(released));
        self.ground.saw(format!("refund paid {expected:?}"));
        Ok(())
    }

    async fn occupy(&mut self, place: usize, members: &[u8]) -> Result<(), TestCaseError> {
        let sale = self.sales[place];
        let members: Vec<NewOrder> = members.iter().map(|member| self.member(place, *member)).collect();
        let ids: Vec<OrderId> = members.iter().map(|new| new.order).collect();
        let fates = self.store.fates(sale, &ids).await.unwrap();
        let without = ids.iter().copied().filter(|order| !fates.contains_key(order));
        let never = |order: &OrderId| {
            let found = self.model.orders.get(order);
            found.is_none_or(|order| order.status == OrderStatus::Rejected)
        };
        let expected: BTreeSet<OrderId> = ids.iter().copied().filter(never).collect();
        prop_assert_eq!(without.collect::<BTreeSet<_>>(), expected);

        // Of two with one id, the first.
        let mut named = BTreeSet::new();
        let members: Vec<NewOrder> = members
            .into_iter()
            .filter(|new| named.insert(new.order))
            .collect();
        let reservations: Vec<_> = members
            .iter()
            .map(|new| (new.order, new.buyer.clone(), new.quantity))
            .collect();
        let occupied = self.store.occupy(sale, &reservations).await.unwrap();
        let expected: BTreeSet<OrderId> = members
            .iter()
            .filter(|new| self.model.occupy(sale, new))
            .map(|new| new.order)
            .collect();
        prop_assert_eq!(occupied.into_iter().collect::<BTreeSet<_>>(), expected);
        Ok(())
    }

    async fn raise_epoch(&mut self, place: usize) -> Result<(), TestCaseError> {
        let id = self.sales[place];
        let snapshot = self
            .store
            .raise_epoch(id, 0)
            .await
            .unwrap()
            .expect("the sale is there");
        let sale = self.model.sales.get_mut(&id).unwrap();
        sale.epoch += 1;
        prop_assert_eq!(snapshot.epoch, sale.epoch);
        prop_assert_eq!(snapshot.closes_at.is_some(), sale.cancelled);
        prop_assert_eq!(snapshot.available, self.model.available(id));
        self.model.notes.retain(|(sale, _)| *sale != id);
        let told: BTreeMap<_, _> = snapshot
            .orders
            .into_iter()
            .map(|order| {
                (
                    order.order,
                    (Some(order.digest), order.buyer, order.quantity, order.holds),
                )
            })
            .collect();
        let known = self
            .model
            .orders
            .iter()
            .filter(|(_, order)| order.sale == id && order.digest.is_some());
        let known: BTreeMap<_, _> = known
            .map(|(id, order)| {
                (
                    *id,
                    (order.digest, order.buyer.clone(), order.quantity, order.holds()),
                )
            })
            .collect();
        prop_assert_eq!(told, known);
        Ok(())
    }

    async fn releases_done(&mut self, place: usize, right: bool) -> Result<(), TestCaseError> {
        let id = self.sales[place];
        let pending = self.store.pending_releases(Duration::ZERO, ALL).await.unwrap();
        let pending: BTreeSet<_> = pending.into_iter().filter(|(sale, _)| *sale == id).collect();
        let noted: BTreeSet<_> = self
            .model
            .notes
            .iter()
            .copied()
            .filter(|(sale, _)| *sale == id)
            .collect();
        prop_assert_eq!(&pending, &noted);
        // The first half of them is done.
        let done: Vec<OrderId> = noted
            .iter()
            .map(|(_, order)| *order)
            .take(noted.len().div_ceil(2))
            .collect();
        let epoch = self.model.sales[&id].epoch - i64::from(!right);
        self.store.releases_done(id, &done, epoch).await.unwrap();
        if right {
            self.model.notes.retain(|(_, order)| !done.contains(order));
        }
        Ok(())
    }

    async fn work(&mut self, nth: u8, end: End) -> Result<(), TestCaseError> {
        // Time passes: everything is due.
        self.ground
            .run("UPDATE provider_tasks SET due_at = clock_timestamp() - interval '1 day'")
            .await;
        let tasks = self.store.take_due_tasks(ALL, LOAN).await.unwrap();
        let again = self.store.take_due_tasks(ALL, LOAN).await.unwrap();
        prop_assert!(again.is_empty(), "taken twice: {:?}", again);
        for (tries, _) in self.model.tasks.values_mut() {
            *tries += 1;
        }
        let taken: BTreeMap<_, _> = tasks
            .iter()
            .map(|task| (name(task), (task.tries, task.amount.amount_minor)))
            .collect();
        let expected = self.model.tasks.iter().map(|(name, (tries, _))| {
            let order = &self.model.orders[&name.0];
            let refund = (name.3 as usize)
                .checked_sub(1)
                .map(|at| order.refunds[at].amount);
            (*name, (*tries, refund.unwrap_or(order.amount)))
        });
        let expected: BTreeMap<_, _> = expected.collect();
        prop_assert_eq!(taken, expected);
        let mut tasks = tasks;
        tasks.sort_by_key(name);
        let Some(task) = tasks.get(usize::from(nth) % tasks.len().max(1)) else {
            return Ok(());
        };
        let name = name(task);
        self.ground.saw(format!("task {} {end:?}", name.2));
        match end {
            End::Done => {
                self.store.task_done(task).await.unwrap();
                self.model.tasks.remove(&name);
            }
            End::Failed => {
                self.store.task_failed(task, "nothing").await.unwrap();
                self.model.tasks.get_mut(&name).unwrap().1 = Some("nothing".to_owned());
            }
            End::Buried => {
                self.store.bury(task, "enough").await.unwrap();
                let (tries, _) = self.model.tasks.remove(&name).unwrap();
                let dead = self.model.dead.entry(name).or_default();
                *dead = (dead.0 + tries, "enough".to_owned());
            }
            End::NoMoney if task.kind == TaskKind::Resolve => {
                self.store
                    .resolved_without_money(task, PaymentStatus::Voided, None)
                    .await
                    .unwrap();
                self.model.tasks.remove(&name);
                let payment = self
                    .model
                    .orders
                    .get_mut(&name.0)
                    .unwrap()
                    .payment
                    .as_mut()
                    .unwrap();
                if matches!(payment.status, PaymentStatus::Initiated | PaymentStatus::InDoubt) {
                    payment.status = PaymentStatus::Voided;
                }
            }
            End::NoMoney => {}
        }
        Ok(())
    }

    async fn epoch(&self, sale: SaleId) -> i64 {
        sqlx::query_scalar("SELECT epoch FROM inventory WHERE sale_id = $1")
            .bind(sale.0)
            .fetch_one(&self.ground.db)
            .await
            .unwrap()
    }

    /// Cheap enough for every step.
    async fn stock_agrees(&self) -> Result<(), TestCaseError> {
        for (sale, stock) in self.store.stocks(&self.sales).await.unwrap() {
            let (held, sold) = self.model.taken(sale);
            let available = self.model.available(sale);
            prop_assert_eq!((stock.available, stock.held, stock.sold), (available, held, sold));
            prop_assert!(available >= 0, "the model itself has oversold");
        }
        Ok(())
    }

    async fn rows_agree(&self) -> Result<(), TestCaseError> {
        let mut expected = rows::expected(&self.model);
        for (table, lines) in rows::read(&self.ground.db, &self.model).await {
            prop_assert_eq!(Some(lines), expected.remove(table), "{}", table);
        }
        // Every movement of stock is an entry, and their sum is what is there.
        let off: Vec<String> = sqlx::query_scalar(
            "SELECT i.sale_id::text FROM inventory i WHERE i.available <>
                (SELECT sum(delta) FROM stock_entries e WHERE e.sale_id = i.sale_id)",
        )
        .fetch_all(&self.ground.db)
        .await
        .unwrap();
        prop_assert_eq!(off, Vec::<String>::new());
        Ok(())
    }
}

/// Its charge may still come to light.
fn is_late(order: &Order) -> bool {
    order.status == OrderStatus::Failed && order.payment.is_some()
}

/// Something is to be paid back, or was.
fn is_owed(order: &Order) -> bool {
    let due = order
        .payment
        .as_ref()
        .is_some_and(|payment| payment.status == PaymentStatus::RefundDue);
    due || !order.refunds.is_empty()
}

fn name(task: &Task) -> model::TaskName {
    (task.order, task.attempt, task.kind.as_sql(), task.refund)
}

fn answer(new: &NewOrder, placed: &Placed) -> Answer {
    match placed {
        Placed::New { fresh: true, .. } => Answer::New,
        Placed::New { fresh: false, .. } => Answer::Again,
        Placed::Existing(existing) => {
            assert_ne!(existing.order, new.order);
            Answer::Existing(existing.order, existing.quantity, existing.amount_minor)
        }
        Placed::SoldOut => Answer::SoldOut,
        Placed::LimitExceeded => Answer::LimitExceeded,
        Placed::NotOpen => Answer::NotOpen,
        Placed::Closed => Answer::Closed,
        Placed::Bad(_) => Answer::Bad,
    }
}

#[test]
fn any_life_of_the_store_agrees_with_the_model() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ground = runtime.block_on(Ground::lay());
    let config = ProptestConfig {
        cases: 64,
        failure_persistence: None,
        // Each try is a life; a failure is told within a minute or two.
        max_shrink_time: 60_000,
        ..ProptestConfig::default()
    };
    let lived = TestRunner::new(config).run(&life::life(), |life| runtime.block_on(live(&ground, &life)));
    if let Err(failure) = lived {
        panic!("{failure}");
    }
    // Lives in which nothing much happens would prove nothing.
    let seen = ground.seen.borrow();
    println!("{seen:#?}");
    for what in [
        "New",
        "Again",
        "Existing",
        "SoldOut",
        "LimitExceeded",
        "Bad",
        "stale epoch",
        "group true",
        "group false",
        "another status",
        "another fence",
        "illegal",
        "late charge true",
        "void later true",
        "refund promised, replayed false",
        "refund promised, replayed true",
        "Exceeds",
        "refund paid (true, false, false)",
        "refund paid (true, true, true)",
    ] {
        assert!(seen.contains_key(what), "never seen: {what}");
    }
}
