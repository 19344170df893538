//! Millions of orders in the table: does accepting more of them still go as fast?

use std::time::Duration;

use super::start;
use crate::bench::bounds::BACKLOG_OVER_EMPTY;
use crate::bench::context::{BUYERS, Bench, charges_out_of_the_way, provider};
use crate::bench::fill::{self, Fill};
use crate::world::World;

pub(super) const PART: &str = "backlog";

/// Sales that the orders belong to.
const PAID_SALES: u32 = 100;
const PENDING_SALES: u32 = 10;
const HOUR: Duration = Duration::from_hours(1);
/// PENDING orders are younger than the longest cutoff that there is, or they would be swept; PAID ones are older than those.
const PENDING_SINCE: Duration = HOUR.saturating_mul(12);
const PAID_SINCE: Duration = HOUR.saturating_mul(240);
/// Between two looks at the engine.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

pub(super) async fn play(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let settings = charges_out_of_the_way();
    let slow = provider(Duration::from_secs(2));
    bench
        .in_world("backlog-empty", &settings, slow, async |bench, empty| {
            let settings = charges_out_of_the_way();
            bench
                .in_world(PART, &settings, slow, async |bench, full| {
                    fill_up(bench, full).await?;
                    rounds(bench, empty, full).await
                })
                .await
        })
        .await?;
    start::play(bench).await
}

async fn fill_up(bench: &mut Bench<'_>, world: &mut World) -> anyhow::Result<()> {
    let fills = [
        Fill {
            status: "PAID",
            orders: bench.size.paid,
            sales: PAID_SALES,
            since: PAID_SINCE,
            until: PENDING_SINCE,
            spare_units: 0,
        },
        Fill {
            status: "PENDING",
            orders: bench.size.pending,
            sales: PENDING_SALES,
            since: PENDING_SINCE,
            until: Duration::ZERO,
            spare_units: 0,
        },
    ];
    fill::fill(world, &fills).await?;
    world.restart_engine(&charges_out_of_the_way()).await?;
    // At a start the whole table is looked through once; what is measured comes after it.
    while world
        .metrics()
        .await?
        .sum("fluxbuy_sweeper_passes_total", &[("result", "ok")])
        < 1.0
    {
        tokio::time::sleep(LOOK_PERIOD).await;
    }
    Ok(())
}

async fn rounds(bench: &mut Bench<'_>, empty: &World, full: &World) -> anyhow::Result<()> {
    let span = bench.size.span;
    for round in 1..=bench.size.rounds {
        let run = format!("backlog round {round}, empty table");
        let without = bench.engine_load(empty, &run, BUYERS, span).await?;
        let run = format!("backlog round {round}, full table");
        let with = bench.engine_load(full, &run, BUYERS, span).await?;
        bench.note(PART, "empty table", &without);
        bench.note(PART, "full table", &with);
        bench
            .ledger
            .ratio(&BACKLOG_OVER_EMPTY, with.per_second, without.per_second);
    }
    Ok(())
}
