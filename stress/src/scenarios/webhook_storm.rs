//! Webhooks as bad as they get.

use serde_json::json;

use super::{Run, Stage};
use crate::report::Report;
use crate::world::{Needs, Provider, World};

pub(super) const ABOUT: &str = "600 orders whose webhooks come 1 to 20 times, up to 2 s late and out of order, a third before the charge is answered, \
     two events for each success, one in ten never, and one in ten beside a forgery that says the opposite; every third answer is lost. \
     Books agree to the cent, and no forgery is believed.";

pub(super) fn needs() -> Needs {
    Needs {
        provider: Provider {
            latency_min_ms: 20,
            latency_max_ms: 500,
            ..Provider::default()
        },
        webhooks: Some(json!({
            "copies_min": 1, "copies_max": 20, "gap_min_ms": 0, "gap_max_ms": 120, "at_once_percent": 30,
            "delay_max_ms": 2_000, "early_percent": 30, "lost_percent": 10, "forged_percent": 10, "echo": true,
        })),
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
            let forged: usize = scene.facts.sent.iter().map(|sent| sent.forged.len()).sum();
            let refused = scene.counted("fluxbuy_webhooks_refused_total", &[]);
            findings.require(
                forged > 0 && refused == forged as u64,
                "refusals-are-counted",
                || format!("{forged} forgeries were sent, and {refused} refusals were counted"),
            );
        })
        .await
}
