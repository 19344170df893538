//! SIGKILL at peak load, with thousands of open orders.

use std::time::{Duration, Instant};

use anyhow::ensure;
use tokio::time::sleep;

use super::{Run, Stage, storm};
use crate::faults::Fault;
use crate::load::{Ask, Wishes};
use crate::report::Report;
use crate::world::{Needs, Provider, World};

pub(super) const ABOUT: &str = "512 clients buy without a pause until --buyers orders (10,000) are open; then the engine is killed (SIGKILL) and started again \
     at once. It decides purchases again, and settles all that was open; how soon is in the report.";

const CLIENTS: usize = 512;
/// The original's times through ten.
const CUTOFF_MS: u64 = 6_000;
const PERIOD_MS: u64 = 1_000;
/// More than anybody asks for.
const NO_LIMIT: u32 = 1_000_000;
/// How long anything here may take.
const PATIENCE: Duration = Duration::from_mins(2);

pub(super) fn needs() -> Needs {
    Needs {
        // As slow as can be, so that orders stay open.
        provider: Provider {
            latency_min_ms: 1_500,
            latency_max_ms: 1_900,
            ..Provider::default()
        },
        settings: [
            ("sweeper.cutoff_ms", CUTOFF_MS),
            ("sweeper.period_ms", PERIOD_MS),
            ("sweeper.reaper_period_ms", PERIOD_MS),
            ("sweeper.reaper_grace_ms", 5_600),
            ("payment.give_up_ms", 4_500),
            ("payment.charge_timeout_ms", 2_000),
        ]
        .map(|(name, value)| (name, value.to_string()))
        .into(),
        ..Needs::default()
    }
}

pub(super) async fn play(run: &Run, world: &World) -> anyhow::Result<Report> {
    let fleet = &world.private()?.fleet;
    let mut stage = Stage::open(run, world).await?;
    let wishes = Wishes {
        wish: |_, number| {
            let ask = Ask {
                buyer: number,
                key: number,
                quantity: 1,
            };
            (ask, false)
        },
        seed: run.seed,
        pause: Duration::ZERO,
        answer_within: PATIENCE,
    };
    let mut killed = Duration::ZERO;
    let mut open = 0;
    let opening = Instant::now();
    let kill = async {
        let began = Instant::now();
        loop {
            open = orders_open(world).await?;
            if open >= i64::from(run.buyers) {
                break;
            }
            ensure!(
                opening.elapsed() < PATIENCE,
                "there were never so many open orders: {open}"
            );
            sleep(Duration::from_millis(5)).await;
        }
        fleet.kill(0).await?;
        killed = began.elapsed();
        fleet.start(0).await?;
        let known = orders(world).await?;
        while orders(world).await? == known {
            ensure!(opening.elapsed() < PATIENCE, "nothing was accepted any more");
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    };
    stage.keep_buying(wishes, CLIENTS, NO_LIMIT, kill).await?;
    let stopped = Instant::now();
    stage.settle_with_gate().await?;
    let settled = stopped.elapsed();
    let answers_again = storm::answers_again([killed], stage.records());
    let mut report = stage.report(|_, _| {}).await?;
    report.faults.insert(Fault::KillEngine.name(), 1);
    report.open_at_fault = Some(open as u64);
    report.answers_again_ms = Some(answers_again.as_secs_f64() * 1_000.0);
    report.settled_after_s = Some(settled.as_secs_f64());
    Ok(report)
}

async fn orders_open(world: &World) -> anyhow::Result<i64> {
    Ok(
        sqlx::query_scalar("SELECT coalesce(sum(held), 0)::bigint FROM inventory")
            .fetch_one(world.database())
            .await?,
    )
}

async fn orders(world: &World) -> anyhow::Result<i64> {
    Ok(sqlx::query_scalar("SELECT count(*) FROM orders")
        .fetch_one(world.database())
        .await?)
}
