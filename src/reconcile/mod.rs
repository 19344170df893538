//! Reconciling: looks at Postgres, the gate and the provider's book, has the differences told (`domain::reconcile`), and repairs what may be
//! repaired. `fluxbuy reconcile` goes through everything once; the engine's periodic pass through what has moved; the reaper through the gate alone.
//!
//! Safe beside any number of engines and of itself: a difference is one that stands still, and every repair is conditional and idempotent.

pub mod gate;
mod money;
pub mod pass;
mod repair;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::json;

use crate::domain::reconcile::{Finding, Found, Kind, Outcome, Repair, stock};
use crate::domain::{Sale, SaleId};
use crate::gate::{Gate, Standing};
use crate::loading;
use crate::provider::PaymentProvider;
use crate::store::{self, StandingSale, Store, Which};

use gate::GateSide;
use money::Book;

/// Between the two looks at the gate that a run takes: a load, or a batch that doesn't hang, is over by then.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// What can't be asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Postgres.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// Redis.
    #[error(transparent)]
    Gate(#[from] crate::gate::Error),
    /// The provider.
    #[error("the provider's book can't be read: {0}")]
    Provider(String),
}

/// One of the three that are held against each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The truth.
    Postgres,
    /// The gate.
    Redis,
    /// The provider's book.
    Provider,
}

impl Side {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Postgres, Self::Redis, Self::Provider];

    /// Its name in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Redis => "redis",
            Self::Provider => "provider",
        }
    }
}

impl Error {
    fn side(&self) -> Side {
        match self {
            Self::Store(_) => Side::Postgres,
            Self::Gate(_) => Side::Redis,
            Self::Provider(_) => Side::Provider,
        }
    }
}

/// What a run has found, and what became of it.
#[derive(Debug, Default)]
pub struct Report {
    /// Sales that were looked at.
    pub sales: u64,
    /// Orders whose money was looked at.
    pub orders: u64,
    /// The differences.
    pub rows: Vec<(Finding, Outcome)>,
    /// Orders and reservations on their way, which were left alone.
    pub in_flight: u64,
    /// What couldn't be looked at, and why.
    pub away: Vec<(Side, String)>,
}

impl Report {
    /// Differences that are still there.
    pub fn left(&self) -> usize {
        self.count(|outcome| outcome != Outcome::Repaired)
    }

    /// Differences that were repaired.
    pub fn repaired(&self) -> usize {
        self.count(|outcome| outcome == Outcome::Repaired)
    }

    fn count(&self, which: impl Fn(Outcome) -> bool) -> usize {
        self.rows.iter().filter(|(_, outcome)| which(*outcome)).count()
    }

    /// In a few words, for the last line.
    pub fn summary(&self) -> String {
        match (self.away.len(), self.left()) {
            (0, 0) => "ok".to_owned(),
            (0, 1) => "1 difference left".to_owned(),
            (0, left) => format!("{left} differences left"),
            (_, left) => {
                let sides: Vec<&str> = self.away.iter().map(|(side, _)| side.as_str()).collect();
                format!(
                    "{left} differences left, and {} could not be looked at",
                    sides.join(" and ")
                )
            }
        }
    }

    /// All of it, for machines.
    pub fn as_json(&self) -> serde_json::Value {
        let rows = self.rows.iter().map(|(finding, outcome)| {
            json!({
                "kind": finding.kind.as_str(),
                "sale": finding.sale,
                "of": finding.of,
                "what": finding.what,
                "repair": finding.repair.as_ref().map(Repair::as_words),
                "result": outcome.as_str().replace(' ', "_"),
            })
        });
        let sides = Side::ALL.map(|side| {
            let error = self.away.iter().find(|(other, _)| *other == side);
            (side.as_str(), error.map_or("ok", |(_, error)| error))
        });
        json!({
            "differences": rows.collect::<Vec<_>>(),
            "sales": self.sales,
            "orders": self.orders,
            "in_flight": self.in_flight,
            "repaired": self.repaired(),
            "left": self.left(),
            "sides": sides.into_iter().collect::<BTreeMap<_, _>>(),
            "summary": self.summary(),
        })
    }

    /// 0: nothing is left. 1: differences are. 2: not everything could be looked at.
    pub fn exit_code(&self) -> u8 {
        match (self.away.is_empty(), self.left()) {
            (false, _) => 2,
            (true, 0) => 0,
            (true, _) => 1,
        }
    }

    fn missed(&mut self, error: &Error) {
        let side = error.side();
        if self.away.iter().all(|(other, _)| *other != side) {
            self.away.push((side, error.to_string()));
        }
    }
}

/// Who loads a sale into the gate anew. Returns whether the gate has it, by this load or another.
pub trait Loads: Send + Sync + 'static {
    /// Loads it, unless the gate has moved on from the epoch `stale`.
    fn load(&self, sale: SaleId, stale: i64) -> BoxFuture<'_, bool>;
}

/// Loads sales itself, one at a time: for a command, which sells nothing.
pub struct LoadsAlone {
    /// Where they are read.
    pub store: Store,
    /// What is loaded.
    pub gate: Gate,
}

impl Loads for LoadsAlone {
    fn load(&self, sale: SaleId, stale: i64) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let loaded = async {
                let Some(view) = self.store.sale(sale).await? else {
                    return Err(loading::Error::NoSuchSale);
                };
                let sale: Sale = view.sale;
                loading::anew(&self.store, &self.gate, &sale, stale).await
            };
            let loaded = loaded.await;
            if let Err(error) = &loaded {
                tracing::warn!(sale_id = %sale, %error, "a sale could not be loaded into the gate");
            }
            loaded.is_ok()
        })
    }
}

/// Holds the three against each other. Cheap to clone.
#[derive(Clone)]
pub struct Reconciler {
    store: Store,
    gate: GateSide,
    provider: Arc<dyn PaymentProvider>,
    loads: Arc<dyn Loads>,
    /// A reservation younger than this may still get its order.
    grace: Duration,
}

impl Reconciler {
    /// A reconciler of these three, that has sales loaded by `loads`. A reservation younger than `grace` may still get its order.
    pub fn new(
        store: Store,
        gate: Gate,
        provider: Arc<dyn PaymentProvider>,
        loads: Arc<dyn Loads>,
        grace: Duration,
    ) -> Self {
        Self {
            gate: GateSide::new(store.clone(), gate),
            store,
            provider,
            loads,
            grace,
        }
    }

    /// Goes through one sale, or all of them and all that belongs to none. A dry run repairs nothing.
    pub async fn run(&self, sale: Option<SaleId>, dry_run: bool) -> Report {
        let mut report = Report::default();
        let mut found = Found::default();
        let sales = match self.store.standing_sales(sale, None).await {
            Ok(sales) => sales,
            Err(error) => {
                report.missed(&error.into());
                return report;
            }
        };
        report.sales = sales.len() as u64;
        for looked in [
            self.look_at_gate(sales.clone(), sale).await,
            self.look_at_stock(&sales, sale).await,
            self.look_at_money(sale, &mut report).await,
            self.look_for_strays(sale).await,
        ] {
            match looked {
                Ok(more) => found.merge(more),
                Err(error) => report.missed(&error),
            }
        }
        self.settle(found, dry_run, &mut report).await;
        report
    }

    /// Repairs what was found, and notes what became of each difference.
    async fn settle(&self, found: Found, dry_run: bool, report: &mut Report) {
        report.in_flight += found.in_flight;
        if dry_run {
            report.rows.extend(found.findings.into_iter().map(|finding| {
                let outcome = match finding.repair {
                    Some(_) => Outcome::WouldRepair,
                    None => Outcome::Left,
                };
                (finding, outcome)
            }));
        } else {
            report.rows.extend(self.repair(found.findings).await);
        }
    }

    /// The gate, with a second look after a while.
    async fn look_at_gate(&self, sales: Vec<StandingSale>, sale: Option<SaleId>) -> Result<Found, Error> {
        let mut before: HashMap<SaleId, (StandingSale, Standing)> = HashMap::new();
        for sale in sales {
            let standing = self.gate.standing(sale.sale).await?;
            before.insert(sale.sale, (sale, standing));
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
        let old = self.gate.now().await? - self.grace;
        let mut found = Found::default();
        for sale in self.store.standing_sales(sale, None).await? {
            let standing = self.gate.standing(sale.sale).await?;
            let first = before.remove(&sale.sale);
            let is_quiet = first.is_some_and(|(earlier, stood)| {
                (earlier.epoch, earlier.available, stood) == (sale.epoch, sale.available, standing)
            });
            found.merge(self.gate.look(&sale, standing, is_quiet, old).await?);
        }
        Ok(found)
    }

    async fn look_at_stock(&self, sales: &[StandingSale], sale: Option<SaleId>) -> Result<Found, Error> {
        let mut found = Found::default();
        let one = sale.map(|sale| vec![sale]);
        for counters in self.store.counters(one.as_deref(), true).await? {
            found.findings.extend(counters.differences());
        }
        for sale in sales.iter().filter(|sale| sale.limited) {
            found.findings.extend(self.look_at_allotments(sale.sale).await?);
        }
        Ok(found)
    }

    async fn look_at_allotments(&self, sale: SaleId) -> Result<Option<Finding>, Error> {
        let (count, some) = self.store.allotments_apart(sale).await?;
        Ok(stock::allotments(sale, count, &some))
    }

    /// The money of every order, and the provider's whole book. Without the provider, what Postgres says of itself.
    async fn look_at_money(&self, sale: Option<SaleId>, report: &mut Report) -> Result<Found, Error> {
        let book = self.read_book(None, report).await;
        let start = sale.map_or(Which::After(money::FIRST), |sale| Which::OfSale(sale, None));
        let walked = self.walk(start, money::Scope::Everything, book.as_ref()).await?;
        report.orders += walked.orders;
        let mut found = walked.found;
        if let (Some(book), None) = (&book, sale) {
            found.merge(self.look_at_the_rest(book, &walked.seen).await?);
        }
        self.look_again(found, book.is_some(), None, report).await
    }

    /// The provider's book; `None`, and noted in the report, when it can't be read.
    async fn read_book(&self, since: Option<jiff::Timestamp>, report: &mut Report) -> Option<Book> {
        match self.provider.book(since).await {
            Ok(entries) => Some(Book::of(entries)),
            Err(what) => {
                report.missed(&Error::Provider(what));
                None
            }
        }
    }

    async fn look_for_strays(&self, sale: Option<SaleId>) -> Result<Found, Error> {
        let strays = self.store.strays(sale).await?;
        let findings = strays.into_iter().map(|stray| Finding {
            kind: match stray.table.as_str() {
                "ledger_entries" => Kind::Ledger,
                "gate_releases" => Kind::ReleaseNote,
                _ => Kind::PaymentStatus,
            },
            sale: Some(stray.sale),
            of: format!("order {}", stray.order),
            what: format!("{} has a row of it, and there is no such order", stray.table),
            repair: None,
        });
        Ok(Found {
            findings: findings.collect(),
            in_flight: 0,
        })
    }
}
