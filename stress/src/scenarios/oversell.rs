//! Fifty buyers for each unit.

use super::{Run, Stage};
use crate::load::workload;
use crate::report::Report;
use crate::world::{Needs, Provider, World};

pub(super) const ABOUT: &str = "5,000 buyers for 100 units, each wants 1 to 5, all at the opening instant. Never more than 100 are \
     promised, all 100 are sold, and who was refused has no order and no charge.";

const MAX_QUANTITY: u32 = 5;

/// Nothing is declined, so nothing comes back: what was refused was refused for good.
pub(super) fn needs() -> Needs {
    let provider = Provider {
        latency_min_ms: 50,
        latency_max_ms: 200,
        decline_percent: 0,
    };
    Needs {
        provider,
        ..Needs::default()
    }
}

pub(super) async fn play(run: &Run, world: &World) -> anyhow::Result<Report> {
    let mut stage = Stage::open(run, world).await?;
    let errands = workload::one_each(run.seed, run.buyers, MAX_QUANTITY);
    // Among so many there is always somebody left who wants a single unit.
    let enough_for_all = run.buyers >= run.units * 10 / MAX_QUANTITY;
    stage.rush(errands, false).await?;
    stage.settle().await?;
    stage
        .report(|scene, findings| {
            let left = scene.facts.inventory.available;
            // A provider that was not ours may have declined, and units have come back.
            let came_back = scene
                .facts
                .orders
                .iter()
                .any(|order| !order.status.is_open() && order.failure_reason.is_some());
            findings.require(
                left == 0 || came_back || !enough_for_all,
                "all-units-are-sold",
                || format!("{left} units are left, and buyers were refused"),
            );
        })
        .await
}
