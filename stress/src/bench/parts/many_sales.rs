//! The same load at one sale and spread over many: each purchase at the next one, round robin.

use std::time::Duration;

use anyhow::ensure;

use crate::bench::bounds::SALES_10000_OVER_1;
use crate::bench::context::{BUYERS, Bench, Books, PLENTY, charges_out_of_the_way, provider};
use crate::bench::load::{Counted, Span, Tide, flow};
use crate::bench::stand::{self, Stand};
use crate::load::Record;
use crate::world::World;

pub(super) const PART: &str = "many_sales";

/// Sales, and units of each.
const SALES: [(u32, u32); 3] = [(1, PLENTY), (100, 100_000), (10_000, 10_000)];
/// Longer than it takes to buy once at each of them.
const TOUCH_WITHIN: Span = Span {
    warm_up: Duration::ZERO,
    measured: Duration::from_mins(1),
};

/// Sales that a load is spread over, with all that was bought from them so far.
struct Street {
    stands: Vec<Stand>,
    tide: Tide,
    records: Vec<Record>,
}

pub(super) async fn play(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let settings = charges_out_of_the_way();
    bench
        .in_world(
            PART,
            &settings,
            provider(Duration::from_secs(2)),
            async |bench, world| {
                let mut streets = Vec::new();
                for (count, units) in SALES {
                    streets.push(Street::open(bench, world, count, units).await?);
                }
                let span = bench.size.span;
                for round in 1..=bench.size.rounds {
                    let mut rates = Vec::new();
                    for street in &mut streets {
                        let count = street.stands.len();
                        let run = format!("many_sales round {round}, {count} sales");
                        bench.next(world, &run).await?;
                        let records = street.load(world, span).await?;
                        let accepted = Counted::accepted(&records, span);
                        let rate = accepted.per_second();
                        bench
                            .ledger
                            .figure(PART, format!("{count} sales orders"), "orders/s", rate);
                        bench.note_latency(PART, &format!("{count} sales"), &accepted.latency());
                        rates.push(rate);
                        street.records.extend(records);
                        street.audit(bench, world, &run).await?;
                    }
                    if let [one, .., most] = rates[..] {
                        bench.ledger.ratio(&SALES_10000_OVER_1, most, one);
                    }
                }
                Ok(())
            },
        )
        .await
}

impl Street {
    /// Lists the sales, and buys once from each: what the first purchase costs is a figure of its own.
    async fn open(bench: &mut Bench<'_>, world: &World, count: u32, units: u32) -> anyhow::Result<Self> {
        let stands = stand::list_many(world, &format!("one of {count}"), units, count).await?;
        let tide = Tide {
            sales: stands.iter().map(|stand| stand.sale).collect(),
            buyers: BUYERS,
            first: 0,
            at_most: count.div_ceil(BUYERS),
        };
        let mut street = Self {
            stands,
            tide,
            records: Vec::new(),
        };
        let records = street.load(world, TOUCH_WITHIN).await?;
        let last = records
            .iter()
            .map(|record| record.ended)
            .max()
            .unwrap_or_default();
        ensure!(
            last < TOUCH_WITHIN.whole(),
            "{count} sales could not be bought from in time"
        );
        if count > BUYERS {
            let rate = records.len() as f64 / last.as_secs_f64();
            bench
                .ledger
                .figure(PART, format!("{count} sales first purchases"), "orders/s", rate);
        }
        street.records = records;
        street.tide.at_most = u32::MAX;
        Ok(street)
    }

    async fn load(&mut self, world: &World, span: Span) -> anyhow::Result<Vec<Record>> {
        let records = flow(&world.engines()[0], &self.tide, span).await?;
        self.tide.first = self.tide.after(&records);
        Ok(records)
    }

    async fn audit(&self, bench: &mut Bench<'_>, world: &World, run: &str) -> anyhow::Result<()> {
        let mut by_sale = vec![Vec::new(); self.stands.len()];
        for record in &self.records {
            by_sale[self.tide.place(record.ask.key)].push(record.clone());
        }
        let all = bench.facts(world, run, &self.tide.sales, &self.records).await?;
        for ((stand, facts), records) in self.stands.iter().zip(all).zip(by_sale) {
            bench.judge(run, Books::Engine, stand, facts, &records);
        }
        Ok(())
    }
}
