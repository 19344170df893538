//! The opening instant of a sale, and then what the payments make of it.

use super::{Run, Stage};
use crate::report::Report;
use crate::world::{Needs, World};

pub(super) const ABOUT: &str = "900 buyers for 900 units, all at the opening instant; then wait until all is settled. \
     Each gets a unit, pays once or gets it back into stock, and both sets of books agree.";

/// The engine as it ships, and the provider that fails one in five.
pub(super) fn needs(_: &Run) -> Needs {
    Needs::default()
}

pub(super) async fn play(run: &Run, world: &World) -> anyhow::Result<Report> {
    let mut stage = Stage::open(run, world).await?;
    stage.rush_once_each(1).await?;
    stage.settle().await?;
    let (expected, accepted) = (u64::from(run.buyers.min(run.units)), stage.accepted());
    stage
        .report(|_, findings| {
            // A unit that came back meanwhile may have been sold again, but nobody may have been sent away before that.
            findings.require(accepted >= expected, "everybody-is-served", || {
                format!(
                    "{accepted} orders were accepted of {} buyers for {} units",
                    run.buyers, run.units
                )
            });
        })
        .await
}
