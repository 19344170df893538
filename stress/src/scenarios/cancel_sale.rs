//! A seller calls the sale off while the crowd still buys.

use std::time::{Duration, Instant};

use anyhow::ensure;
use serde::Deserialize;
use serde_json::json;

use super::{Run, Stage};
use crate::load::{Outcome, Refusal};
use crate::report::Report;
use crate::world::{Needs, Provider, World};

pub(super) const ABOUT: &str = "600 orders of 1 to 3 units; once a third is decided the seller calls the sale off, three times at the same instant; every third \
     answer to a refund is lost, and each is told by two webhooks. Nothing is sold any more, everybody has their money back, every unit is there.";

const MAX_QUANTITY: u32 = 3;
/// How long the end may take.
const PATIENCE: Duration = Duration::from_mins(1);

pub(super) fn needs() -> Needs {
    Needs {
        provider: Provider {
            latency_min_ms: 100,
            latency_max_ms: 1_500,
            ..Provider::default()
        },
        settings: [
            // A refund whose answer got lost is asked for again after three of these.
            ("payment.charge_timeout_ms", 2_000),
            ("sweeper.period_ms", 500),
            // Some orders still wait for their charge when the end comes.
            ("payment.max_in_flight", 150),
        ]
        .map(|(name, value)| (name, value.to_string()))
        .into(),
        webhooks: Some(json!({"copies_min": 2, "copies_max": 2, "gap_min_ms": 0, "gap_max_ms": 120})),
        ..Needs::default()
    }
}

#[derive(Deserialize)]
struct Progress {
    done_at: Option<String>,
    orders_refunded: u64,
}

pub(super) async fn play(run: &Run, world: &World) -> anyhow::Result<Report> {
    let mut stage = Stage::open(run, world).await?;
    world
        .fault(&json!({"mode": "answer_lost", "operations": ["refund"], "percent": 33, "seed": run.seed}))
        .await?;
    stage.rush_once_each(MAX_QUANTITY).await?;
    let engine = &world.engines()[0];
    let path = format!("/v1/sales/{}/cancel", stage.sale()?);
    let began = Instant::now();
    while decided(world).await? * 3 < stage.accepted() {
        ensure!(began.elapsed() < PATIENCE, "the orders were never decided");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let nothing = json!({});
    let called_off = (0..3).map(|_| engine.post_json::<Progress>(&path, &nothing, 202));
    futures_util::future::try_join_all(called_off).await?;
    let late = stage.try_once_more().await?;
    // Answers that got lost are asked for again.
    world.fault(&json!({"mode": "none"})).await?;
    let progress = loop {
        let progress: Progress = engine.get_json(&path).await?;
        if progress.done_at.is_some() || began.elapsed() > PATIENCE {
            break progress;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    stage.settle().await?;
    stage
        .report(|scene, findings| {
            findings.require(progress.done_at.is_some(), "the-end-comes", || {
                "the sale was called off, and never came to its end".to_owned()
            });
            findings.require(progress.orders_refunded > 0, "somebody-is-paid-back", || {
                "nobody had paid: nothing was tried".to_owned()
            });
            findings.require(
                matches!(late, Outcome::Refused(Refusal::Closed)),
                "nothing-is-sold-after-the-end",
                || format!("a purchase after the sale was called off came to {late:?}"),
            );
            let stock = scene.facts.inventory;
            findings.require(stock.available == stock.quantity, "all-units-come-back", || {
                format!("the sale is at its end, and the stock is {stock:?}")
            });
        })
        .await
}

async fn decided(world: &World) -> anyhow::Result<u64> {
    let decided: i64 = sqlx::query_scalar("SELECT count(*) FROM orders WHERE status IN ('PAID', 'FAILED')")
        .fetch_one(world.database())
        .await?;
    Ok(decided as u64)
}
