//! An engine that starts where another one has stopped: how soon it sells again, and how fast what is stuck is swept. Belongs to the
//! part `backlog`.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::backlog::PART;
use crate::bench::context::{Bench, Books, charges_out_of_the_way, provider};
use crate::bench::fill::{self, Fill};
use crate::bench::load::{Span, Tide, flow};
use crate::bench::stand::Stand;
use crate::load::Record;
use crate::world::{Setting, World};

/// So long ago that all of them are stuck for an engine with a short cutoff, and none for one with the longest.
const SINCE: Duration = Duration::from_hours(2);
const UNTIL: Duration = Duration::from_hours(1);
/// Units that are left for the first purchase.
const SPARE_UNITS: u32 = 1_000;
/// So long that no charge ends while this is played.
const NEVER: Duration = Duration::from_mins(30);
/// Between two looks at the stock.
const LOOK_PERIOD: Duration = Duration::from_millis(20);
/// A pass that takes longer never ends.
const SWEPT_WITHIN: Duration = Duration::from_mins(3);
/// How long the first purchase may take.
const SOLD_WITHIN: Span = Span {
    warm_up: Duration::ZERO,
    measured: Duration::from_secs(30),
};

pub(super) async fn play(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    for round in 1..=bench.size.rounds {
        let settings = charges_out_of_the_way();
        bench
            .in_world(
                "backlog-start",
                &settings,
                provider(NEVER),
                async |bench, world| {
                    let fill = Fill {
                        status: "PENDING",
                        orders: bench.size.stuck,
                        sales: 1,
                        since: SINCE,
                        until: UNTIL,
                        spare_units: SPARE_UNITS,
                    };
                    let stand = fill::fill(world, &[fill])
                        .await?
                        .pop()
                        .context("no sale was filled")?;
                    let records = start(bench, world, &stand).await?;
                    world.kill_engine().await?;
                    sweep(bench, world, &stand).await?;
                    // The order that the payment worker has is about to be swept too: the books are read when nothing moves.
                    world.kill_engine().await?;
                    let run = format!("backlog round {round}, swept");
                    bench
                        .audit(world, &run, Books::EngineFilled, &stand, &records)
                        .await
                },
            )
            .await?;
    }
    Ok(())
}

/// The first purchase is at the very sale that the open orders belong to: the gate knows nothing of them.
async fn start(bench: &mut Bench<'_>, world: &mut World, stand: &Stand) -> anyhow::Result<Vec<Record>> {
    let spawned = Instant::now();
    let ready = world.restart_engine(&charges_out_of_the_way()).await?;
    let tide = Tide {
        at_most: 1,
        ..Tide::at(stand.sale, 1)
    };
    let records = flow(&world.engines()[0], &tide, SOLD_WITHIN).await?;
    let sold = spawned.elapsed();
    ensure!(
        records.iter().all(|record| record.order().is_some()),
        "the first purchase was not accepted: {records:?}"
    );
    for (name, time) in [("ready", ready), ("first order", sold)] {
        let name = format!("start with {} open orders, {name}", bench.size.stuck);
        bench.ledger.figure(PART, name, "s", time.as_secs_f64());
    }
    Ok(records)
}

async fn sweep(bench: &mut Bench<'_>, world: &mut World, stand: &Stand) -> anyhow::Result<()> {
    world.restart_engine(&short_cutoff()).await?;
    let begin = Instant::now();
    loop {
        // The payment worker may have claimed one or the other before the sweeper came; those have a payment.
        let (held, claimed): (i64, i64) = sqlx::query_as(
            "SELECT held::bigint, (SELECT count(*) FROM payments WHERE sale_id = $1) FROM inventory WHERE sale_id = $1",
        )
        .bind(stand.sale)
        .fetch_one(world.database())
        .await?;
        if held <= claimed {
            break;
        }
        ensure!(
            begin.elapsed() < SWEPT_WITHIN,
            "{held} orders are still not swept"
        );
        tokio::time::sleep(LOOK_PERIOD).await;
    }
    let name = format!("sweep of {} stuck orders", bench.size.stuck);
    bench
        .ledger
        .figure(PART, name, "s", begin.elapsed().as_secs_f64());
    Ok(())
}

fn short_cutoff() -> Vec<Setting> {
    [
        ("payment.max_in_flight", 1),
        ("payment.charge_timeout_ms", 500),
        ("payment.give_up_ms", 1_000),
        ("payment.scan_period_ms", 1_500),
        ("sweeper.cutoff_ms", 2_000),
        // The pass is what is measured, not how long it is waited for.
        ("sweeper.period_ms", 100),
    ]
    .map(|(name, value)| (name, value.to_string()))
    .to_vec()
}
