//! The proof that the harness can see what twins do where nothing guards against them. Its end is turned round, as `guard-off`'s.
//!
//! Two deliveries read the order's status before either has written it, and both write: the original bug. The engine is one that can leave
//! its conditions out; the database's unique constraints and its other walls are taken down first.

use super::{Run, guard_off, webhook_twins};
use crate::report::Report;
use crate::world::{Needs, Provider, World};

pub(super) const ABOUT: &str = "Twin webhooks against an engine that reads, and then writes without a condition, with the database's unique \
     constraints and walls taken down. Turned round: exit 0 means that the audit saw two ledger rows for one charge; a clean audit exits 1.";

/// The check that must fail.
const BUG: &str = "paid-is-in-the-ledger-once";

/// What stands between the bug and its effect.
const WALLS: &str = "
    ALTER TABLE provider_events DROP CONSTRAINT IF EXISTS provider_events_once;
    ALTER TABLE ledger_entries DROP CONSTRAINT IF EXISTS ledger_entries_once;
    DROP INDEX IF EXISTS ledger_entries_one_per_event;
    DROP TRIGGER IF EXISTS orders_legal_transition ON orders;
    ALTER TABLE inventory
        DROP CONSTRAINT IF EXISTS inventory_available_in_range,
        DROP CONSTRAINT IF EXISTS inventory_held_not_negative,
        DROP CONSTRAINT IF EXISTS inventory_sold_not_negative,
        DROP CONSTRAINT IF EXISTS inventory_conserved;";

/// All twins come at once, before the charge is answered; nothing is declined.
pub(super) fn needs() -> Needs {
    let mut plan = webhook_twins::twins();
    plan["at_once_percent"] = 100.into();
    plan["early_percent"] = 100.into();
    Needs {
        provider: Provider {
            latency_min_ms: 20,
            latency_max_ms: 200,
            decline_percent: 0,
        },
        settings: vec![("test.webhooks_without_guard", true.to_string())],
        guard_off: true,
        webhooks: Some(plan),
        ..Needs::default()
    }
}

pub(super) async fn play(run: &Run, world: &World) -> anyhow::Result<Report> {
    guard_off::without_walls(run, world, WALLS, BUG).await
}
