//! Everybody at the same instant, one purchase each, and a unit for everybody.

use std::time::Duration;

use crate::bench::bounds::OPENING_P99_OVER_BASELINE;
use crate::bench::context::{Bench, Books, charges_out_of_the_way, provider};
use crate::bench::load::surge;
use crate::bench::rival::{Kind, Rival, stock_up};
use crate::bench::stand;
use crate::load::{Outcome, Peer, Record};
use crate::report::Latency;
use crate::world::World;

pub(super) const PART: &str = "opening";

/// Buyers of the opening that is compared, and of a larger one.
const CROWD: u32 = 900;
const LARGE_CROWD: u32 = 5_000;

pub(super) async fn play(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let settings = charges_out_of_the_way();
    bench
        .in_world(
            PART,
            &settings,
            provider(Duration::from_secs(2)),
            async |bench, world| {
                let pool = bench.best_pool(world, Kind::Baseline).await?;
                for round in 1..=bench.size.rounds {
                    for buyers in [CROWD, LARGE_CROWD] {
                        let run = format!("opening round {round}, engine, {buyers} buyers");
                        let engine =
                            open(bench, world, &world.engines()[0], &run, Books::Engine, buyers).await?;
                        bench.note_latency(PART, &format!("engine, {buyers} buyers,"), &engine);

                        let run = format!("opening round {round}, baseline, {buyers} buyers");
                        let rival = Rival::shop(world, Kind::Baseline, pool).await?;
                        let books = Books::Rival(Kind::Baseline);
                        let baseline = open(bench, world, rival.peer(), &run, books, buyers).await?;
                        rival.stop().await?;
                        bench.note_latency(PART, &format!("baseline, {buyers} buyers,"), &baseline);
                        if buyers == CROWD {
                            bench
                                .ledger
                                .ratio(&OPENING_P99_OVER_BASELINE, engine.p99, baseline.p99);
                        }
                    }
                }
                Ok(())
            },
        )
        .await
}

async fn open(
    bench: &mut Bench<'_>,
    world: &World,
    peer: &Peer,
    run: &str,
    books: Books,
    buyers: u32,
) -> anyhow::Result<Latency> {
    bench.next(world, run).await?;
    let stand = stand::list(world, run, buyers).await?;
    if matches!(books, Books::Rival(_)) {
        stock_up(world, &stand).await?;
    }
    let records = surge(peer, stand.sale, buyers).await?;
    bench.audit(world, run, books, &stand, &records).await?;
    let without = records.iter().filter(|record| record.order().is_none()).count();
    let who = if matches!(books, Books::Rival(_)) {
        "baseline"
    } else {
        "engine"
    };
    // There is a unit for everybody: whoever got none was turned away.
    bench.ledger.figure(
        PART,
        format!("{who}, {buyers} buyers, turned away"),
        "buyers",
        without as f64,
    );
    if who == "engine" && buyers == CROWD {
        bench
            .ledger
            .require(&OPENING_P99_OVER_BASELINE, without == 0, || {
                format!("{run}: {without} buyers got no unit")
            });
    }
    let accepted = |record: &&Record| matches!(record.outcome, Outcome::Accepted { .. });
    Ok(Latency::of(records.iter().filter(accepted).map(Record::waited)))
}
