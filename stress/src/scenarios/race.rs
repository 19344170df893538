//! The race on record: payment jobs wait so long that the sweeper takes their orders first.

use super::{Run, Stage};
use crate::audit::Race;
use crate::report::Report;
use crate::world::{Needs, Provider, World};

pub(super) const ABOUT: &str = "400 buyers for 400 units with the payment queue starved, so that jobs outwait the cutoff (3 s; \
     60 s with --full). Orders swept before their job came have no payment and no charge, the job lost exactly that many \
     claims and did nothing, and what is left plus what is paid is 400.";

/// So few charges at a time that about 60% of the orders find a place before the cutoff.
pub(super) fn needs(run: &Run) -> Needs {
    let places = (run.units.min(run.buyers) / 40).max(1);
    let mut settings = vec![("payment.max_in_flight", places.to_string())];
    if run.full {
        return Needs {
            settings,
            ..Needs::default()
        };
    }
    // The original's times through twenty.
    settings.extend(
        [
            ("sweeper.cutoff_ms", 3_000),
            ("sweeper.period_ms", 500),
            ("payment.give_up_ms", 2_250),
            ("payment.charge_timeout_ms", 1_000),
            ("payment.scan_period_ms", 2_000),
        ]
        .map(|(name, value)| (name, value.to_string())),
    );
    let provider = Provider {
        latency_min_ms: 50,
        latency_max_ms: 200,
        ..Provider::default()
    };
    Needs {
        provider,
        settings,
        ..Needs::default()
    }
}

pub(super) async fn play(run: &Run, world: &World) -> anyhow::Result<Report> {
    let mut stage = Stage::open(run, world).await?;
    stage.rush_once_each(1).await?;
    stage.settle().await?;
    stage
        .report(|scene, findings| {
            let claims_lost = scene.counted(
                "fluxbuy_claims_lost_total",
                &[("by", "payment"), ("wanted", "processing"), ("found", "failed")],
            );
            Race {
                claims_lost,
                units: i64::from(run.units),
            }
            .check(scene.facts, findings);
        })
        .await
}
