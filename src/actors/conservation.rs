//! Adds the units of active sales up, order by order, for a gauge that must read 0: available units, and those of orders, are all there are. One
//! statement reads both, so that nothing under way shows as a gap.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::sale::Sales;
use super::watch::MAX_SHOWN;
use crate::domain::SaleId;
use crate::metrics;
use crate::store::{self, Store};

/// Adding up reads every order of the sale, about a second for a million. It takes at most one part in so many of the time.
const TIME_SHARE: u32 = 50;
/// Sales in which nothing has moved are added up once in so many times.
const TURNS_PER_LOOK_AT_ALL: u64 = 60;

/// What is added up.
pub struct Conservation {
    /// Where the rows are.
    pub store: Store,
    /// Whose units.
    pub sales: Sales,
    /// How often sales are added up in which something has moved.
    pub period: Duration,
}

impl Conservation {
    /// Works until it is dropped.
    pub async fn run(self) {
        let mut counted: HashMap<SaleId, String> = HashMap::new();
        let mut turns: u64 = 0;
        let mut pause = self.period;
        loop {
            tokio::time::sleep(pause).await;
            if turns.is_multiple_of(TURNS_PER_LOOK_AT_ALL) {
                counted.clear();
            }
            turns += 1;
            let began = Instant::now();
            if let Err(error) = self.add_up(&mut counted).await {
                tracing::warn!(%error, "units could not be added up");
            }
            pause = self.period.max(began.elapsed() * TIME_SHARE);
        }
    }

    async fn add_up(&self, counted: &mut HashMap<SaleId, String>) -> Result<(), store::Error> {
        let mut sales = self.sales.active();
        sales.sort_unstable_by(|a, b| b.cmp(a));
        sales.truncate(MAX_SHOWN);
        if sales.is_empty() {
            return Ok(());
        }
        let versions = self.store.versions(&sales).await?;
        counted.retain(|sale, _| versions.contains_key(sale));
        let moved: Vec<SaleId> = sales
            .into_iter()
            .filter(|sale| versions.get(sale) != counted.get(sale))
            .collect();
        if moved.is_empty() {
            return Ok(());
        }
        for counters in self.store.counters(Some(&moved), false).await? {
            let gap = counters.gap();
            metrics::conservation_gap(counters.sale, gap);
            if gap == 0 {
                if let Some(version) = versions.get(&counters.sale) {
                    counted.insert(counters.sale, version.clone());
                }
            } else {
                // Added up again with every turn, until it is gone.
                counted.remove(&counters.sale);
                tracing::error!(sale_id = %counters.sale, gap, ?counters, "units are unaccounted for");
            }
        }
        Ok(())
    }
}
