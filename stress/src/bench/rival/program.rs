//! The rivals' side of the command line, which the benchmark alone uses.

use std::future::pending;

use crate::report::Verdict;

use super::bare::{self, Canned};
use super::shop;

/// What a rival says on standard output once it listens, before its URL.
pub(super) const READY: &str = "rival ready at ";

/// Command line of a rival.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    which: Which,
}

#[derive(Debug, clap::Subcommand)]
enum Which {
    /// Asks Redis and Postgres for each request.
    Shop(shop::Args),
    /// Gives one answer to every request.
    Bare {
        /// The answer, as JSON.
        #[arg(long)]
        answer: String,
    },
}

/// Serves until the process is killed.
///
/// # Errors
/// When it can't start.
pub async fn run(args: Args) -> anyhow::Result<Verdict> {
    let (url, _server) = match args.which {
        Which::Shop(args) => shop::start(args).await?,
        Which::Bare { answer } => bare::start(&serde_json::from_str::<Canned>(&answer)?)?,
    };
    println!("{READY}{url}");
    pending().await
}
