//! Twice as many purchases as can be accepted, whether they are answered or not.

use std::time::Duration;

use crate::bench::bounds::OVERLOAD_ACCEPT_OVER_PEAK;
use crate::bench::context::{BUYERS, Bench, Books, PLENTY, charges_out_of_the_way, provider};
use crate::bench::load::{Arrivals, Counted, arrive};
use crate::bench::stand;
use crate::load::{Outcome, Refusal};

pub(super) const PART: &str = "overload";

/// More buyers, for the peak.
const MANY: u32 = 2_048;
/// Connections that purchases arrive over: more than may wait at the engine.
const CONNECTIONS: u32 = 8_192;
/// Arrivals over what was accepted at the peak.
const FACTOR: f64 = 2.0;
/// Half of those that are turned away are told so within so many milliseconds.
const REFUSED_WITHIN_MS: f64 = 50.0;

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
                    let mut peak = 0.0_f64;
                    for buyers in [BUYERS, MANY] {
                        let run = format!("overload round {round}, {buyers} buyers");
                        peak = peak.max(bench.engine_load(world, &run, buyers, span).await?.per_second);
                    }
                    let run = format!("overload round {round}, arrivals");
                    bench.next(world, &run).await?;
                    let stand = stand::list(world, &run, PLENTY).await?;
                    let arrivals = Arrivals {
                        per_second: FACTOR * peak,
                        connections: CONNECTIONS,
                    };
                    let arrived = arrive(&world.engines()[0], stand.sale, arrivals, span).await?;
                    let records = arrived.records;
                    bench.audit(world, &run, Books::Engine, &stand, &records).await?;

                    let sent = records.iter().filter(|record| span.has(record.started)).count();
                    let sent = sent as f64 / span.measured.as_secs_f64();
                    let accepted = Counted::accepted(&records, span);
                    let refused = Counted::of(&records, span, |outcome| {
                        *outcome == Outcome::Refused(Refusal::Overloaded)
                    });
                    let turned_away = refused.latency();
                    for (name, unit, value) in [
                        ("peak orders", "orders/s", peak),
                        ("arrivals wanted", "requests/s", arrivals.per_second),
                        ("arrivals sent", "requests/s", sent),
                        ("accepted orders", "orders/s", accepted.per_second()),
                        ("refusals", "refusals/s", refused.per_second()),
                        ("refusals p50", "ms", turned_away.p50),
                        ("refusals p99", "ms", turned_away.p99),
                        ("accepted p50", "ms", accepted.latency().p50),
                        (
                            "refusals without Retry-After",
                            "refusals",
                            f64::from(arrived.without_retry_after),
                        ),
                    ] {
                        bench.ledger.figure(PART, name, unit, value);
                    }
                    let bound = &OVERLOAD_ACCEPT_OVER_PEAK;
                    bench.ledger.ratio(bound, accepted.per_second(), peak);
                    bench.ledger.require(bound, refused.count() > 0, || {
                        format!("round {round}: nobody was turned away, so the mailbox was never full")
                    });
                    bench
                        .ledger
                        .require(bound, turned_away.p50 <= REFUSED_WITHIN_MS, || {
                            format!(
                                "round {round}: half of those turned away waited longer than {:.1} ms",
                                turned_away.p50
                            )
                        });
                    bench.ledger.require(bound, arrived.without_retry_after == 0, || {
                        format!("round {round}: some were turned away without a Retry-After")
                    });
                }
                Ok(())
            },
        )
        .await
}
