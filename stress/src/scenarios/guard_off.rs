//! The proof that the harness can see the bug. Its end is turned round: this run is good when the audit finds a violation.
//!
//! The engine is one whose claim leaves out the status condition, as the original bug did. It alone could do no harm, because
//! the database has walls of its own; so those are taken down first, as their owner, in a database that nobody else uses.

use sqlx::Executor as _;

use super::{Run, Stage, race};
use crate::report::Report;
use crate::world::{Needs, Provider, World};

pub(super) const ABOUT: &str = "The race against an engine whose claim lacks its guard, with the database's own walls taken down. \
     Turned round: exit 0 means that the audit saw orders swept and charged (last line `audit: VIOLATION ...`); \
     a clean audit means that the harness is blind, and exits 1.";

/// The check that must fail.
const BUG: &str = "swept-and-charged";

/// What stands between the bug and its effect.
const WALLS: &str = "
    DROP TRIGGER IF EXISTS orders_legal_transition ON orders;
    ALTER TABLE orders DROP CONSTRAINT IF EXISTS orders_failed_has_reason;
    ALTER TABLE inventory
        DROP CONSTRAINT IF EXISTS inventory_available_in_range,
        DROP CONSTRAINT IF EXISTS inventory_held_not_negative,
        DROP CONSTRAINT IF EXISTS inventory_sold_not_negative,
        DROP CONSTRAINT IF EXISTS inventory_conserved;";

/// Nothing is declined: a second release of the same order would meet a wall that is still there.
pub(super) fn needs(run: &Run) -> Needs {
    let mut needs = race::needs(run);
    needs.provider = Provider {
        decline_percent: 0,
        ..needs.provider
    };
    needs
        .settings
        .push(("test.claim_without_guard", true.to_string()));
    needs.guard_off = true;
    needs
}

pub(super) async fn play(run: &Run, world: &World) -> anyhow::Result<Report> {
    without_walls(run, world, WALLS, BUG).await
}

/// Plays a sale to its end with these walls taken down, for a report in which the check `bug` must have failed.
pub(super) async fn without_walls(
    run: &Run,
    world: &World,
    walls: &'static str,
    bug: &'static str,
) -> anyhow::Result<Report> {
    world.database().execute(walls).await?;
    let mut stage = Stage::open(run, world).await?;
    stage.rush_once_each(1).await?;
    stage.settle().await?;
    let mut report = stage.report(|_, _| {}).await?;
    report.must_fail = Some(bug);
    Ok(report)
}
