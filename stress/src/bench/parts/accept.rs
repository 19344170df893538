//! Durable orders per second, and what buyers wait for them, with charges out of the way.

use std::time::Duration;

use super::ceiling;
use crate::bench::bounds::{ACCEPT_OVER_BASELINE, ACCEPT_OVER_CEILING, ACCEPT_OVER_LEAN};
use crate::bench::context::{BUYERS, Bench, charges_out_of_the_way, provider};
use crate::bench::rival::Kind;

pub(super) const PART: &str = "accept";

/// Fewer and more buyers than the one load that is compared.
const FEW: u32 = 64;
const MANY: u32 = 2_048;

pub(super) async fn play(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let settings = charges_out_of_the_way();
    bench
        .in_world(
            PART,
            &settings,
            provider(Duration::from_secs(2)),
            async |bench, world| {
                let span = bench.size.span;
                let baseline = bench.best_pool(world, Kind::Baseline).await?;
                let lean = bench.best_pool(world, Kind::Lean).await?;
                for round in 1..=bench.size.rounds {
                    for buyers in [FEW, MANY] {
                        let run = format!("accept round {round}, engine, {buyers} buyers");
                        let rate = bench.engine_load(world, &run, buyers, span).await?;
                        bench.note(PART, &format!("engine, {buyers} buyers,"), &rate);
                    }
                    let run = format!("accept round {round}, baseline");
                    let by_baseline = bench
                        .rival_load(world, &run, (Kind::Baseline, baseline), span)
                        .await?;
                    let run = format!("accept round {round}, engine");
                    let engine = bench.engine_load(world, &run, BUYERS, span).await?;
                    let run = format!("accept round {round}, lean");
                    let by_lean = bench.rival_load(world, &run, (Kind::Lean, lean), span).await?;
                    let run = format!("accept round {round}, ceiling");
                    let ceiling = ceiling::measure(bench, world, &run).await?;

                    bench.note(PART, &format!("engine, {BUYERS} buyers,"), &engine);
                    bench.note(PART, "baseline", &by_baseline);
                    bench.note(PART, "lean", &by_lean);
                    bench.ledger.figure(PART, "ceiling orders", "orders/s", ceiling);
                    for (bound, theirs) in [
                        (&ACCEPT_OVER_BASELINE, by_baseline.per_second),
                        (&ACCEPT_OVER_LEAN, by_lean.per_second),
                        (&ACCEPT_OVER_CEILING, ceiling),
                    ] {
                        bench.ledger.ratio(bound, engine.per_second, theirs);
                    }
                }
                Ok(())
            },
        )
        .await
}
