//! The provider tells everything twice, a moment apart.

use serde_json::json;

use super::{Run, Stage};
use crate::report::Report;
use crate::world::{Needs, Provider, World};

pub(super) const ABOUT: &str = "2,000 orders whose provider sends every webhook twice, 40 to 120 ms apart or at once, half of them before it has \
     answered the charge; every third answer is lost. Each order is paid once, the ledger has one row for each charge, every delivery is counted.";

/// What the two scenarios about twins have in common.
pub(super) fn twins() -> serde_json::Value {
    json!({"copies_min": 2, "copies_max": 2, "gap_min_ms": 40, "gap_max_ms": 120, "at_once_percent": 50})
}

pub(super) fn needs() -> Needs {
    let mut plan = twins();
    plan["early_percent"] = 50.into();
    Needs {
        provider: Provider {
            latency_min_ms: 20,
            latency_max_ms: 200,
            ..Provider::default()
        },
        webhooks: Some(plan),
        ..Needs::default()
    }
}

pub(super) async fn play(run: &Run, world: &World) -> anyhow::Result<Report> {
    world
        .fault(&json!({"mode": "answer_lost", "percent": 33, "seed": run.seed}))
        .await?;
    let mut stage = Stage::open(run, world).await?;
    stage.rush_once_each(1).await?;
    stage.settle().await?;
    stage
        .report(|scene, findings| {
            let repeats = scene.counted("fluxbuy_webhook_deliveries_total", &[("result", "duplicate")]);
            let sent: u64 = scene
                .facts
                .sent
                .iter()
                .map(|sent| sent.requests.len() as u64)
                .sum();
            // Half of what was taken is a repeat, however the answers went.
            findings.require(
                repeats * 2 >= sent.saturating_sub(100),
                "repeats-are-counted",
                || format!("{sent} requests were sent, and {repeats} repeats were counted"),
            );
            let by_webhook = scene.counted(
                "fluxbuy_order_transitions_total",
                &[("by", "webhook"), ("to", "paid")],
            );
            findings.require(by_webhook > 0, "webhooks-settle", || {
                "no order was paid by a webhook: nothing was tried".to_owned()
            });
        })
        .await
}
