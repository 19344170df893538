//! What the engine does on this machine, beside servers that do without its batches, and beside what the machine can do at all.
//!
//! All sides get the same load from the same generator, on services of their own at Postgres' default durability, in turns: the
//! machine drifts, so that only neighbours compare. In a closed loop the buyers are as many as there are connections, and
//! each sends its next purchase when it has its answer: a slower side is asked less often, and latencies are those under its own
//! full load. Orders and refusals are counted apart, never together.

mod bounds;
mod context;
mod figures;
mod fill;
mod load;
mod parts;
mod process;
mod results;
mod rival;
mod size;
mod stand;

use anyhow::Context as _;

use context::Bench;
use parts::Part;
use results::Results;
use size::Size;

use crate::world::Place;

pub use rival::{Args as RivalArgs, run as run_rival};

/// Command line of the benchmark.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// One short round of each part, with small sizes: to see that it works, not to quote.
    #[arg(long)]
    pub quick: bool,
    /// Rounds of each side.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100), conflicts_with = "quick")]
    rounds: u32,
    /// Measured seconds of a load.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=60), conflicts_with = "quick")]
    seconds: u64,
    /// Only these parts, separated by commas.
    #[arg(long, value_name = "PART", value_delimiter = ',', value_enum)]
    only: Vec<Part>,
}

/// Plays the parts, each in a world of its own, and audits after each run.
///
/// # Errors
/// When a part can't be played, or Postgres isn't durable.
pub async fn run(args: &Args, seed: u64, place: &Place) -> anyhow::Result<Results> {
    let size = if args.quick {
        Size::quick()
    } else {
        Size::full(args.rounds, args.seconds)
    };
    let mut bench = Bench::new(place, seed, size);
    for part in Part::ALL {
        if args.only.is_empty() || args.only.contains(&part) {
            let begun = std::time::Instant::now();
            part.play(&mut bench)
                .await
                .with_context(|| format!("part {}", part.name()))?;
            eprintln!(
                "bench: {} took {:.0} s",
                part.name(),
                begun.elapsed().as_secs_f64()
            );
        }
    }
    Ok(Results::of(bench))
}
