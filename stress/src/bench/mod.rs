//! How many durable orders per second the engine accepts, beside a server that asks Redis and Postgres for each request.
//!
//! Both get the same load from the same generator, on the same services at Postgres' default durability, in turns. The
//! buyers are as many as there are connections, and each sends its next purchase when it has its answer: so a slower side is
//! asked less often, and latencies are those under its own full load.

mod baseline;
mod results;
mod tide;

use std::time::Duration;

use anyhow::ensure;
use sqlx::Executor as _;

use baseline::Baseline;
use results::{Results, Round, Side};

use crate::audit::{self, Case};
use crate::load::{Peer, Record};
use crate::progress::Progress;
use crate::report::{self, Latency};
use crate::scenarios::list_sale;
use crate::world::{Needs, Place, Provider, World};

/// Units of each round's sale: more than can be sold.
const UNITS: u32 = 1_000_000;
/// Settings without which a commit isn't durable.
const DURABILITY: [&str; 3] = ["fsync", "synchronous_commit", "full_page_writes"];

/// Command line of the benchmark.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Args {
    /// One short round of each: to see that it works, not to quote.
    #[arg(long)]
    pub quick: bool,
    /// Rounds of each side.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100), conflicts_with = "quick")]
    rounds: u32,
    /// Measured seconds of a round.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600), conflicts_with = "quick")]
    seconds: u64,
    /// Buyers, each with a kept connection.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    buyers: u32,
}

/// Runs the rounds, engine and baseline in turns, and audits after each.
///
/// # Errors
/// When it can't be run, or Postgres isn't durable.
pub async fn run(args: &Args, seed: u64, place: &Place) -> anyhow::Result<Results> {
    let (rounds, warm_up, measured) = if args.quick {
        (1, Duration::from_millis(500), Duration::from_secs(2))
    } else {
        (
            args.rounds,
            Duration::from_secs(1),
            Duration::from_secs(args.seconds),
        )
    };
    let world = World::open(place, &needs(), "bench", seed).await?;
    let durability = durability(&world).await?;
    let baseline = Baseline::start(&world).await?;
    let span = tide::Span { warm_up, measured };
    let bar = Progress::new(u64::from(rounds) * 2, "bench");
    let mut all = Vec::new();
    for number in 1..=rounds {
        for side in [Side::Engine, Side::Baseline] {
            bar.set(all.len() as u64, format!("round {number}, {}", side.name()));
            let played = play(&world, &baseline, side, number, args.buyers, span).await;
            match played {
                Ok(round) => all.push(round),
                Err(error) => {
                    world.print_logs();
                    return Err(error);
                }
            }
        }
    }
    drop((bar, baseline));
    world.close().await?;
    Ok(Results::new(all, args.buyers, durability))
}

/// Charges are kept out of the way, so that accepting is all that is measured: one at a time, no look for others, no sweep. All
/// else is the engine as it ships.
fn needs() -> Needs {
    let settings = [
        ("payment.max_in_flight", 1),
        ("payment.scan_period_ms", 600_000),
        ("sweeper.cutoff_ms", 86_400_000),
    ];
    Needs {
        settings: settings.map(|(name, value)| (name, value.to_string())).to_vec(),
        provider: Provider {
            decline_percent: 0,
            ..Provider::default()
        },
        guard_off: false,
    }
}

async fn durability(world: &World) -> anyhow::Result<Vec<(&'static str, String)>> {
    let mut found = Vec::new();
    for name in DURABILITY {
        let value: String = sqlx::query_scalar("SELECT current_setting($1)")
            .bind(name)
            .fetch_one(world.database())
            .await?;
        ensure!(
            value == "on",
            "postgres has {name} = {value}: what it commits isn't durable, and the figures mean nothing"
        );
        found.push((name, value));
    }
    Ok(found)
}

async fn play(
    world: &World,
    baseline: &Baseline,
    side: Side,
    number: u32,
    buyers: u32,
    span: tide::Span,
) -> anyhow::Result<Round> {
    // Every round begins with the same distance to the next checkpoint.
    world.database().execute("CHECKPOINT").await?;
    let stall = list_sale(world, &format!("bench round {number}, {}", side.name()), UNITS).await?;
    let peer: &Peer = match side {
        Side::Engine => &world.engines()[0],
        Side::Baseline => {
            baseline.stock_up(&stall).await?;
            baseline.peer()
        }
    };
    let records = tide::run(peer, &stall, buyers, span).await?;

    let mut facts = audit::read(world, stall.sale).await?;
    if side == Side::Baseline {
        // It has a gate of its own; the engine's knows nothing of what it sold.
        facts.gate_available = None;
    }
    let case = Case {
        terms: &stall.terms,
        facts: &facts,
        records: &records,
        settled: false,
    };
    let violations = audit::audit(&case).into_violations();
    let in_time = |ended: Duration| (span.warm_up..span.warm_up + span.measured).contains(&ended);
    let accepted = || {
        records
            .iter()
            .filter(|record| record.order().is_some() && in_time(record.ended))
    };
    Ok(Round {
        number,
        side,
        orders_per_second: accepted().count() as f64 / span.measured.as_secs_f64(),
        latency_ms: Latency::of(accepted().map(Record::waited)),
        outcomes: report::outcomes(&records),
        violations,
    })
}
