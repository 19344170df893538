//! The watch: probes the services, and feeds the gauges that nobody else does.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::breaker::{Breaker, Breakers};
use super::desk::Probes;
use super::sale::Sales;
use crate::domain::{SaleId, Stock};
use crate::gate::{self, Gate};
use crate::metrics::{self, Exporter};
use crate::store::Store;

/// How often the services are probed and the stock is read.
const PERIOD: Duration = Duration::from_secs(1);
/// How long a sale that has nothing left to do is still shown.
const SHOWN_AFTER_ITS_END: Duration = Duration::from_mins(15);
/// Sales that are shown at a time, the latest ones: each is six series.
pub(super) const MAX_SHOWN: usize = 1_000;

/// What is watched.
pub struct Watch {
    /// Probed, and asked for the stock.
    pub store: Store,
    /// Probed.
    pub gate: Gate,
    /// Where the findings go.
    pub probes: Arc<Probes>,
    /// Whose stock is shown.
    pub sales: Sales,
    /// Shown.
    pub store_breaker: Arc<Breaker>,
    /// Shown.
    pub provider_breakers: Arc<Breakers>,
    /// Needs a push now and then.
    pub exporter: Exporter,
    /// Whether Redis would throw keys away, as was last seen.
    pub evicts: AtomicBool,
}

impl Watch {
    /// Watches until it is dropped.
    pub async fn run(self) {
        let mut shown = Shown::default();
        let mut said = Vec::new();
        let mut tick = tokio::time::interval(PERIOD);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.exporter.run_upkeep();
            let postgres_up = self.probe().await;
            let now = Instant::now();
            metrics::postgres_breaker_open(self.store_breaker.is_open(now));
            let open = self.provider_breakers.open(now);
            metrics::provider_breakers_open(open.len());
            if !open.is_empty() && said != open {
                tracing::warn!(currencies = ?open, "charges are held back: too many failed in a row");
            }
            said = open;
            let sales = shown.choose(self.sales.active());
            if postgres_up && !sales.is_empty() {
                match self.store.stocks(&sales).await {
                    Ok(stocks) => stocks
                        .iter()
                        .for_each(|(sale, stock)| shown.show(*sale, stock, now)),
                    Err(error) => tracing::warn!(%error, "the stock could not be read for its gauges"),
                }
            }
        }
    }

    async fn probe(&self) -> bool {
        let (postgres, redis) = futures_util::future::join(self.store.ping(), self.gate.ping()).await;
        self.probes.postgres_up.store(postgres.is_ok(), Ordering::Relaxed);
        self.probes.redis_up.store(redis.is_ok(), Ordering::Relaxed);
        metrics::gate_degraded(redis.is_err());
        if redis.is_ok() {
            self.check_policy().await;
        }
        if postgres.is_ok() && self.store_breaker.is_open(Instant::now()) {
            // It answers: the next batch may ask. (Batches alone would not close the breaker where they need no commit.)
            self.store_breaker.record(Instant::now(), true);
        }
        postgres.is_ok()
    }

    /// Its configuration may be changed at any time, or be another one when it comes back.
    async fn check_policy(&self) {
        let evicts = match self.gate.check_policy().await {
            Ok(()) => false,
            Err(error @ gate::Error::EvictingPolicy { .. }) => {
                if !self.evicts.load(Ordering::Relaxed) {
                    tracing::error!(%error, "redis is not fit for selling");
                }
                true
            }
            // It doesn't say; the next probe asks again.
            Err(_) => return,
        };
        self.evicts.store(evicts, Ordering::Relaxed);
        metrics::gate_evicting(evicts);
    }
}

/// Which sales have gauges.
#[derive(Default)]
struct Shown {
    /// Since when a sale has had nothing left to do.
    finished: HashMap<SaleId, Instant>,
    last: Vec<SaleId>,
}

impl Shown {
    /// The latest of the active sales that are not long over; those that fall out lose their gauges.
    fn choose(&mut self, mut active: Vec<SaleId>) -> Vec<SaleId> {
        active.retain(|sale| {
            self.finished
                .get(sale)
                .is_none_or(|since| since.elapsed() < SHOWN_AFTER_ITS_END)
        });
        active.sort_unstable_by(|a, b| b.cmp(a));
        active.truncate(MAX_SHOWN);
        for sale in self.last.iter().filter(|sale| !active.contains(sale)) {
            metrics::forget_sale(*sale);
        }
        self.last.clone_from(&active);
        active
    }

    fn show(&mut self, sale: SaleId, stock: &Stock, now: Instant) {
        metrics::stock(sale, stock);
        if stock.sold == stock.quantity {
            self.finished.entry(sale).or_insert(now);
        } else {
            self.finished.remove(&sale);
        }
    }
}
