//! Everybody wants their money back, from two windows at once.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::ensure;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::{Run, Stage};
use crate::load::Peer;
use crate::report::Report;
use crate::world::{Needs, Provider, World};

pub(super) const ABOUT: &str = "400 orders; for each that is paid, at the same instant two refunds of 60% under different keys, one of them three times, and \
     then what is left three times under one key, with the units; every third answer to a refund is lost, and each is told by two webhooks. \
     No order gets more back than it paid, one key is one refund, and all units are on sale again.";

/// Orders whose refunds are asked for at a time.
const AT_A_TIME: usize = 32;
/// How long a refund is asked for that can't be taken just now, and the pause before it is asked for again.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(100);

pub(super) fn needs() -> Needs {
    Needs {
        provider: Provider {
            latency_min_ms: 10,
            latency_max_ms: 100,
            ..Provider::default()
        },
        settings: vec![("sweeper.period_ms", 500.to_string())],
        webhooks: Some(json!({"copies_min": 2, "copies_max": 2, "gap_min_ms": 0, "gap_max_ms": 120})),
        ..Needs::default()
    }
}

#[derive(Deserialize)]
struct RefundBody {
    refund: i64,
}

/// What the requests for one order were told.
#[derive(Default)]
struct Told {
    /// The refunds of each key.
    by_key: HashMap<String, Vec<i64>>,
    refused: usize,
}

pub(super) async fn play(run: &Run, world: &World) -> anyhow::Result<Report> {
    let mut stage = Stage::open(run, world).await?;
    stage.rush_once_each(1).await?;
    stage.settle().await?;
    world
        .fault(&json!({"mode": "answer_lost", "operations": ["refund"], "percent": 33, "seed": run.seed}))
        .await?;
    let paid: Vec<(Uuid, i64)> = sqlx::query_as("SELECT id, amount_minor FROM orders WHERE status = 'PAID'")
        .fetch_all(world.database())
        .await?;
    let engine = &world.engines()[0];
    let told: Vec<Told> = stream::iter(&paid)
        .map(|(order, amount)| race(engine, *order, *amount))
        .buffer_unordered(AT_A_TIME)
        .try_collect()
        .await?;
    // A lost answer is lost for good; the question whether it was done finds out.
    world.fault(&json!({"mode": "none"})).await?;
    stage.settle().await?;
    stage
        .report(|scene, findings| {
            for told in &told {
                for (key, refunds) in &told.by_key {
                    findings.require(
                        refunds.iter().all(|refund| *refund == refunds[0]),
                        "one-key-one-refund",
                        || format!("key {key} is the refunds {refunds:?}"),
                    );
                }
            }
            let refused: usize = told.iter().map(|told| told.refused).sum();
            findings.require(refused >= told.len(), "over-refund-is-refused", || {
                format!(
                    "{} orders had two refunds of 60%, and {refused} were refused",
                    told.len()
                )
            });
            let stock = scene.facts.inventory;
            findings.require(
                !told.is_empty() && stock.available == stock.quantity,
                "all-units-come-back",
                || format!("{} orders were paid back, and the stock is {stock:?}", told.len()),
            );
        })
        .await
}

/// All requests for one order.
async fn race(engine: &Peer, order: Uuid, amount: i64) -> anyhow::Result<Told> {
    let most = json!({"amount_minor": amount * 6 / 10});
    let rest = json!({"return_units": true});
    let mut told = Told::default();
    for wave in [
        vec![("a", &most), ("b", &most), ("a", &most), ("a", &most)],
        vec![("rest", &rest); 3],
    ] {
        let asked = wave.into_iter().map(|(key, ask)| async move {
            let path = format!("/v1/orders/{order}/refund");
            let deadline = Instant::now() + PATIENCE;
            loop {
                let answer = engine.post_keyed(&path, key, ask).await?;
                // An honest "not now" is asked again under the same key.
                if answer.status != 503 || Instant::now() >= deadline {
                    return Ok::<_, anyhow::Error>((key, answer));
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
        for answer in futures_util::future::join_all(asked).await {
            let (key, answer) = answer?;
            match answer.status {
                202 => {
                    let body: RefundBody = serde_json::from_slice(&answer.body)?;
                    told.by_key.entry(key.to_owned()).or_default().push(body.refund);
                }
                409 => told.refused += 1,
                status => {
                    let text = String::from_utf8_lossy(&answer.body);
                    ensure!(false, "a refund of order {order} was answered {status}: {text}");
                }
            }
        }
    }
    Ok(told)
}
