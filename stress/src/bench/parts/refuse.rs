//! What nearly everybody gets in a flash sale: "sold out". Beside a server that gives the same bytes and decides nothing.

use std::time::Duration;

use anyhow::ensure;

use crate::bench::bounds::REFUSE_OVER_BARE;
use crate::bench::context::{BUYERS, Bench, Books, charges_out_of_the_way, provider};
use crate::bench::load::{Counted, Span, Tide, flow, one_answer};
use crate::bench::rival::{Canned, Rival};
use crate::bench::stand::{self, Stand};
use crate::load::{Outcome, Record, Refusal};
use crate::world::World;

pub(super) const PART: &str = "refuse";

/// Units, all of which are sold before anything is measured.
const UNITS: u32 = 100;
/// Longer than it takes to sell them.
const SELL_WITHIN: Span = Span {
    warm_up: Duration::ZERO,
    measured: Duration::from_secs(30),
};

pub(super) async fn play(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let settings = charges_out_of_the_way();
    bench
        .in_world(
            PART,
            &settings,
            provider(Duration::from_secs(2)),
            async |bench, world| {
                let span = bench.size.span;
                for round in 1..=bench.size.rounds {
                    let run = format!("refuse round {round}, engine");
                    bench.next(world, &run).await?;
                    let (stand, mut records) = sold_out(world, &run).await?;
                    let tide = Tide {
                        first: 1,
                        ..Tide::at(stand.sale, BUYERS)
                    };
                    let refused = flow(&world.engines()[0], &tide, span).await?;
                    let engine = refusals(&refused, span);
                    bench.note_latency(PART, "engine", &engine.latency());
                    let engine = engine.per_second();
                    records.extend(refused);
                    bench.audit(world, &run, Books::Engine, &stand, &records).await?;

                    let rival = Rival::bare(&example(world, &stand).await?).await?;
                    let same = Canned::parse(&one_answer(rival.peer(), stand.sale, BUYERS, 0).await?)?;
                    example(world, &stand).await?.ensure_same(&same)?;
                    let answered = flow(rival.peer(), &tide, span).await?;
                    let bare = refusals(&answered, span).per_second();
                    rival.stop().await?;

                    bench.ledger.figure(PART, "engine refusals", "refusals/s", engine);
                    bench.ledger.figure(PART, "bare refusals", "refusals/s", bare);
                    bench.ledger.ratio(&REFUSE_OVER_BARE, engine, bare);
                }
                Ok(())
            },
        )
        .await
}

fn refusals(records: &[Record], span: Span) -> Counted<'_> {
    Counted::of(records, span, |outcome| {
        *outcome == Outcome::Refused(Refusal::SoldOut)
    })
}

/// A sale without a unit left, and the purchases that took them.
async fn sold_out(world: &World, name: &str) -> anyhow::Result<(Stand, Vec<Record>)> {
    let stand = stand::list(world, name, UNITS).await?;
    let tide = Tide {
        at_most: 1,
        ..Tide::at(stand.sale, UNITS)
    };
    let records = flow(&world.engines()[0], &tide, SELL_WITHIN).await?;
    ensure!(
        records.iter().all(|record| record.order().is_some()),
        "not all units could be sold"
    );
    Ok((stand, records))
}

/// The engine's answer to somebody who comes too late.
async fn example(world: &World, stand: &Stand) -> anyhow::Result<Canned> {
    Canned::parse(&one_answer(&world.engines()[0], stand.sale, BUYERS, 0).await?)
}
