//! What open orders and idle sales take of the engine's memory: its resident bytes after as many again.

use std::time::Duration;

use anyhow::ensure;

use crate::bench::bounds::{BYTES_PER_IDLE_SALE, BYTES_PER_OPEN_ORDER};
use crate::bench::context::{Bench, Books, PLENTY, provider};
use crate::bench::load::{Span, Tide, flow};
use crate::bench::process::resident_bytes;
use crate::bench::stand;
use crate::world::World;

pub(super) const PART: &str = "memory";

/// Buyers, among whom the orders are divided evenly.
const BUYERS: u32 = 500;
/// Longer than it takes to sell them.
const SELL_WITHIN: Span = Span {
    warm_up: Duration::ZERO,
    measured: Duration::from_secs(30),
};
/// So long that no charge ends while this part is played.
const NEVER: Duration = Duration::from_mins(30);
/// Connections that are open while the engine is asked how many are: the question's own.
const ITS_OWN: f64 = 1.0;
/// Between two looks at the engine.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

pub(super) async fn play(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    for round in 1..=bench.size.rounds {
        bench
            .in_world(PART, &[], provider(NEVER), async |bench, world| {
                idle_sales(bench, world).await?;
                open_orders(bench, world, round).await?;
                // Its charges under way would be waited for.
                world.kill_engine().await
            })
            .await?;
    }
    Ok(())
}

async fn idle_sales(bench: &mut Bench<'_>, world: &World) -> anyhow::Result<()> {
    let count = bench.size.idle_sales;
    // The first ones pay for what listing as such needs.
    stand::list_many(world, "idle, to warm up", 1, count / 5).await?;
    let before = resident(world).await?;
    stand::list_many(world, "idle", 1, count).await?;
    let per_sale = growth(before, resident(world).await?) / f64::from(count);
    bench.ledger.bounded(&BYTES_PER_IDLE_SALE, per_sale);
    bench
        .ledger
        .figure(PART, "bytes per idle sale", "bytes", per_sale);
    Ok(())
}

async fn open_orders(bench: &mut Bench<'_>, world: &World, round: u32) -> anyhow::Result<()> {
    let mut readings = Vec::new();
    let mut sold = Vec::new();
    // The first sale's orders stay as well: memory that they gave back would be taken by the second's.
    for which in ["first", "second"] {
        let run = format!("memory round {round}, {which} sale");
        bench.next(world, &run).await?;
        let stand = stand::list(world, &run, PLENTY).await?;
        let tide = Tide {
            at_most: bench.size.open_orders / BUYERS,
            ..Tide::at(stand.sale, BUYERS)
        };
        let records = flow(&world.engines()[0], &tide, SELL_WITHIN).await?;
        readings.push(resident(world).await?);
        sold.push((run, stand, records));
    }
    for (run, stand, records) in sold {
        let accepted = records.iter().filter(|record| record.order().is_some()).count();
        ensure!(
            accepted == bench.size.open_orders as usize,
            "{run}: {accepted} orders of {} were accepted",
            bench.size.open_orders
        );
        bench.audit(world, &run, Books::Engine, &stand, &records).await?;
    }
    if let [before, after] = readings[..] {
        let per_order = growth(before, after) / f64::from(bench.size.open_orders);
        bench.ledger.bounded(&BYTES_PER_OPEN_ORDER, per_order);
        bench
            .ledger
            .figure(PART, "bytes per open order", "bytes", per_order);
        bench.ledger.figure(
            PART,
            "resident at the end",
            "MiB",
            after as f64 / f64::from(1 << 20),
        );
    }
    Ok(())
}

fn growth(before: u64, after: u64) -> f64 {
    after.saturating_sub(before) as f64
}

/// The engine's resident bytes, once the buyers' connections are closed there as well.
async fn resident(world: &World) -> anyhow::Result<u64> {
    while world.metrics().await?.sum("fluxbuy_connections", &[]) > ITS_OWN {
        tokio::time::sleep(LOOK_PERIOD).await;
    }
    resident_bytes(world.pids().await?.engine)
}
