//! A provider that takes the money and doesn't say so, and then can't be asked at all.

use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::json;

use super::{Run, Stage, race};
use crate::report::Report;
use crate::world::{Needs, Provider, World};

pub(super) const ABOUT: &str = "300 orders whose provider stores a 500 for every second charge, cuts the connection on others, is then away for longer \
     than the cutoff, and comes back; half of its webhooks never come. While it is away, orders that may have been charged stay held. \
     At the end none is charged twice, and none failed and charged.";

/// The cutoff of the race's scaled times, and how much longer the provider is away.
const AWAY: Duration = Duration::from_millis(3_000 + 1_500);
/// How long anything here may take.
const PATIENCE: Duration = Duration::from_mins(1);

pub(super) fn needs(run: &Run) -> Needs {
    let mut needs = race::needs(run);
    // As many charges at a time as an engine has as it ships.
    needs
        .settings
        .retain(|(name, _)| *name != "payment.max_in_flight");
    needs.provider = Provider {
        latency_min_ms: 200,
        latency_max_ms: 900,
        ..needs.provider
    };
    needs.webhooks = Some(json!({"lost_percent": 50, "copies_min": 1, "copies_max": 2}));
    needs
}

pub(super) async fn play(run: &Run, world: &World) -> anyhow::Result<Report> {
    while_away(run, world, "PROCESSING").await
}

/// Plays it; what was `held` while the provider was away must be some.
pub(super) async fn while_away(run: &Run, world: &World, held_as: &str) -> anyhow::Result<Report> {
    let fault = |mode: &str, percent: u32| json!({"mode": mode, "percent": percent, "seed": run.seed});
    world.fault(&fault("stored_error", 50)).await?;
    let mut stage = Stage::open(run, world).await?;
    stage.rush_once_each(1).await?;
    world.fault(&fault("answer_lost", 100)).await?;
    // Many charges are made by now, few of them answered. In two steps only those are captured whose authorisation was told by a webhook before
    // the cutoff failed them: with the declined ones hardly more than a third of all.
    let many = u64::from(run.buyers.min(run.units)) / 6;
    until("charges at the provider", || async {
        Ok(charges_made(world).await? >= many)
    })
    .await?;
    world.fault(&fault("down", 100)).await?;
    let away = Instant::now();
    until("an order in doubt", || async {
        Ok(world.metrics().await?.sum("fluxbuy_orders_in_doubt", &[]) > 0.0)
    })
    .await?;
    until("the cutoff", || async { Ok(away.elapsed() >= AWAY) }).await?;
    let held: i64 = sqlx::query_scalar("SELECT count(*) FROM orders WHERE status::text = $1")
        .bind(held_as)
        .fetch_one(world.database())
        .await?;
    world.fault(&fault("none", 0)).await?;
    stage.settle().await?;
    stage
        .report(|_, findings| {
            findings.require(held > 0, "doubt-is-held", || {
                "no order was held while the provider was away: nothing was tried".to_owned()
            });
        })
        .await
}

async fn charges_made(world: &World) -> anyhow::Result<u64> {
    let book: serde_json::Value = world.provider().get_json("/book").await?;
    Ok(book["totals"]["succeeded"].as_u64().unwrap_or_default()
        + book["totals"]["declined"].as_u64().unwrap_or_default())
}

async fn until<F: Future<Output = anyhow::Result<bool>>>(
    what: &str,
    mut holds: impl FnMut() -> F,
) -> anyhow::Result<()> {
    let began = Instant::now();
    while !holds().await? {
        ensure!(began.elapsed() < PATIENCE, "{what} never came in {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
