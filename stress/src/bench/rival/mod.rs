//! What the engine is held against: servers that make do without batches. Each runs in a process of its own, as the engine does.

mod bare;
mod program;
mod serve;
mod settle;
mod shop;

use std::process::Stdio;

use anyhow::{Context as _, ensure};
use tokio::process::Child;

use crate::bench::stand::Stand;
use crate::load::Peer;
use crate::world::{World, mortal_command, ready_line};

pub use program::{Args, run};

pub(super) use bare::Canned;

/// What a per-request server does in its transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Kind {
    /// Order, stock entry and inventory row.
    Baseline,
    /// The order alone.
    Lean,
    /// As the baseline, and each order is claimed, charged and settled after its answer.
    Life,
}

impl Kind {
    /// Its name on the command line and in the figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Lean => "lean",
            Self::Life => "baseline_life",
        }
    }

    /// Whether the transaction keeps the books of the stock.
    pub(super) fn keeps_stock(self) -> bool {
        self != Self::Lean
    }
}

/// A running rival. Killed when it is dropped.
pub(super) struct Rival {
    peer: Peer,
    child: Child,
}

impl Rival {
    /// A per-request server on a world's services, with a pool of so many connections (and as many workers that settle).
    ///
    /// # Errors
    /// When it doesn't come up.
    pub(super) async fn shop(world: &World, kind: Kind, pool: u32) -> anyhow::Result<Self> {
        let at = world.target();
        let kind = match kind {
            Kind::Baseline => "baseline",
            Kind::Lean => "lean",
            Kind::Life => "life",
        };
        Self::start(&[
            "shop",
            "--kind",
            kind,
            "--pool",
            &pool.to_string(),
            "--postgres-url",
            &at.postgres_url,
            "--redis-url",
            &at.redis_url,
            "--provider-url",
            &at.provider_url,
        ])
        .await
    }

    /// A server that reads each request and gives one answer.
    ///
    /// # Errors
    /// When it doesn't come up.
    pub(super) async fn bare(answer: &Canned) -> anyhow::Result<Self> {
        Self::start(&["bare", "--answer", &serde_json::to_string(answer)?]).await
    }

    async fn start(arguments: &[&str]) -> anyhow::Result<Self> {
        let ourselves = std::env::current_exe().context("the program's own file is unknown")?;
        let mut child = mortal_command(&ourselves)
            .arg("rival")
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .context("a rival could not be started")?;
        let stdout = child.stdout.take().context("the rival has no output")?;
        let line = ready_line(&mut child, stdout, "the rival").await?;
        let url = line
            .strip_prefix(program::READY)
            .with_context(|| format!("the rival said {line:?}"))?;
        Ok(Self {
            peer: Peer::from_url(url)?,
            child,
        })
    }

    /// Where it is.
    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Its process.
    pub(super) fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().context("the rival has ended")
    }

    /// Ends it, and waits until it is gone.
    ///
    /// # Errors
    /// When it had ended before.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        ensure!(self.child.try_wait()?.is_none(), "the rival had ended");
        self.child.kill().await.context("the rival could not be stopped")
    }
}

/// Puts a sale's units into the per-request servers' own place in Redis.
///
/// # Errors
/// When Redis doesn't take them.
pub(super) async fn stock_up(world: &World, stand: &Stand) -> anyhow::Result<()> {
    let [state, ..] = shop::keys(stand.sale);
    redis::cmd("HSET")
        .arg(state)
        .arg("available")
        .arg(stand.terms.units)
        .arg("opens_at_us")
        .arg(stand.opens_at.as_microsecond())
        .query_async::<()>(&mut world.redis().await?)
        .await
        .context("a rival's stock could not be put into redis")
}
