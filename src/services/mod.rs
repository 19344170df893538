//! Private `PostgreSQL`, Redis and mock provider: real servers in a temporary directory, on free ports, for the demo, the tests and
//! the stress harness.
//!
//! They belong to a keeper, a process of its own (`fluxbuy services`), which holds them as children and is held itself by a pipe:
//! when the pipe closes, because its owner dropped it, panicked, or was killed outright, the keeper stops the servers
//! and removes the directory. So nothing depends on the owner's last words, and no unsafe code is needed.

mod keeper;
mod postgres;
mod programs;
mod redis;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use sqlx::{Connection as _, PgConnection};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};

pub use keeper::run;
pub(crate) use programs::server;

/// How long the servers may take to be up.
const START_TIMEOUT: Duration = Duration::from_mins(1);
/// How long they may take to be gone.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// A migrated database, to be copied.
const TEMPLATE: &str = "fluxbuy_template";

/// Command line of `fluxbuy services`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Args {
    /// No mock provider.
    #[arg(long)]
    pub no_provider: bool,
    /// Shortest time that a charge takes at the mock provider.
    #[arg(long, default_value_t = 1000)]
    pub provider_latency_min_ms: u64,
    /// Longest time that a charge takes there.
    #[arg(long, default_value_t = 4000)]
    pub provider_latency_max_ms: u64,
    /// Share of charges that are declined there.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub provider_decline_percent: u8,
    /// Chooses which.
    #[arg(long, default_value_t = 1)]
    pub provider_seed: u64,
}

impl Args {
    fn to_command_line(&self) -> Vec<String> {
        let mut line = vec!["services".to_owned()];
        if self.no_provider {
            line.push("--no-provider".to_owned());
        }
        let mut option = |name: &str, value: String| line.extend([name.to_owned(), value]);
        option(
            "--provider-latency-min-ms",
            self.provider_latency_min_ms.to_string(),
        );
        option(
            "--provider-latency-max-ms",
            self.provider_latency_max_ms.to_string(),
        );
        option(
            "--provider-decline-percent",
            self.provider_decline_percent.to_string(),
        );
        option("--provider-seed", self.provider_seed.to_string());
        line
    }
}

/// Where the servers are: the one line of JSON that `fluxbuy services` prints.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Addresses {
    /// A migrated database, as the owner of its schema (a superuser of this private server).
    pub postgres_owner_url: String,
    /// The same database, as the engine's role.
    pub postgres_engine_url: String,
    /// Redis.
    pub redis_url: String,
    /// The mock provider, if there is one.
    pub provider_url: Option<String>,
    /// What belongs to them; removed at the end.
    pub directory: PathBuf,
    /// Process of the `PostgreSQL` server.
    pub postgres_pid: u32,
    /// Process of Redis.
    pub redis_pid: u32,
    /// Process of the mock provider.
    pub provider_pid: Option<u32>,
}

/// A database of a private server.
#[derive(Debug, Clone)]
pub struct DatabaseUrls {
    /// As the owner.
    pub owner_url: String,
    /// As the engine's role.
    pub engine_url: String,
}

/// Servers that live as long as this value (or the process that holds it).
pub struct Services {
    addresses: Addresses,
    keeper: Child,
    /// The pipe whose end is the end of the servers.
    leash: Option<ChildStdin>,
}

impl Services {
    /// Starts servers. `fluxbuy` is the program's own binary.
    ///
    /// # Errors
    /// When a program is missing (it says which package has it), or a server doesn't come up.
    pub async fn start(fluxbuy: &Path, args: &Args) -> anyhow::Result<Self> {
        let mut keeper = Command::new(fluxbuy)
            .args(args.to_command_line())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // In a process group of its own: a Ctrl-C at the terminal is for us, and the servers are needed until we are done.
            .process_group(0)
            .spawn()
            .with_context(|| format!("{} could not be started", fluxbuy.display()))?;
        let leash = keeper.stdin.take();
        let stdout = keeper.stdout.take().context("the keeper has no output")?;
        let mut lines = BufReader::new(stdout).lines();
        let line = tokio::time::timeout(START_TIMEOUT, lines.next_line())
            .await
            .context("the private services did not come up in time")??;
        let Some(line) = line else {
            bail!("the private services did not come up; the reason stands above");
        };
        let addresses = serde_json::from_str(&line).with_context(|| format!("unreadable: {line}"))?;
        Ok(Self {
            addresses,
            keeper,
            leash,
        })
    }

    /// Where the servers are.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// A fresh migrated database with this name on the same server.
    ///
    /// # Errors
    /// When the server can't be asked, or has one of that name.
    pub async fn create_database(&self, name: &str) -> anyhow::Result<DatabaseUrls> {
        let owner_url = with_database(&self.addresses.postgres_owner_url, "postgres");
        let mut connection = PgConnection::connect(&owner_url).await?;
        postgres::copy_template(&mut connection, name).await?;
        connection.close().await?;
        Ok(DatabaseUrls {
            owner_url: with_database(&self.addresses.postgres_owner_url, name),
            engine_url: with_database(&self.addresses.postgres_engine_url, name),
        })
    }

    /// Stops the servers, and waits until nothing is left of them.
    ///
    /// # Errors
    /// When they don't stop in time.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        drop(self.leash.take());
        tokio::time::timeout(STOP_TIMEOUT, self.keeper.wait())
            .await
            .context("the private services did not stop in time")??;
        Ok(())
    }
}

fn with_database(url: &str, name: &str) -> String {
    match url.rsplit_once('/') {
        Some((server, _)) => format!("{server}/{name}"),
        None => url.to_owned(),
    }
}
