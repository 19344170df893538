//! Private Postgres, Redis and mock provider, held by the engine's own program.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::Mutex;

use super::Provider;
use super::children::{self, Logs};

/// How long one may take to be back.
const BACK_WITHIN: Duration = Duration::from_secs(30);
/// How long they may take to be gone.
const GONE_WITHIN: Duration = Duration::from_mins(1);

/// Where the servers are: the one line that `fluxbuy services` prints, with its names.
#[derive(Debug, Clone, Deserialize)]
#[allow(clippy::struct_field_names)]
pub(super) struct Addresses {
    pub(super) postgres_owner_url: String,
    pub(super) postgres_engine_url: String,
    pub(super) redis_url: String,
    pub(super) provider_url: String,
    pub(super) postgres_pid: u32,
    pub(super) redis_pid: u32,
}

/// They stop and remove everything as soon as their standard input closes: when this is dropped, and also when the harness is
/// killed.
pub struct Services {
    addresses: Addresses,
    line: Mutex<Line>,
    child: Child,
}

/// What is said to the keeper of the servers, and what it says.
struct Line {
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

/// One of the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// Postgres.
    Postgres,
    /// Redis.
    Redis,
}

impl Server {
    fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Redis => "redis",
        }
    }
}

impl Services {
    pub(super) async fn start(
        program: &Path,
        provider: &Provider,
        seed: u64,
        folder: Option<&Path>,
        logs: &Logs,
    ) -> anyhow::Result<Self> {
        let mut command = children::command(program);
        if let Some(folder) = folder {
            command.env("TMPDIR", folder);
        }
        let mut child = command
            // They must be left to clean up: the end of their standard input is what tells them.
            .kill_on_drop(false)
            .arg("services")
            .args(["--provider-latency-min-ms", &provider.latency_min_ms.to_string()])
            .args(["--provider-latency-max-ms", &provider.latency_max_ms.to_string()])
            .args([
                "--provider-decline-percent",
                &provider.decline_percent.to_string(),
            ])
            .args(["--provider-seed", &seed.to_string()])
            .stdin(Stdio::piped())
            .stderr(logs.file("services")?)
            .spawn()
            .with_context(|| format!("{} could not be started", program.display()))?;
        let stdin = child.stdin.take().context("the services have no input")?;
        let stdout = child.stdout.take().context("the services have no output")?;
        let mut stdout = BufReader::new(stdout).lines();
        let line = children::first_line(&mut child, &mut stdout, "fluxbuy services").await?;
        let addresses =
            serde_json::from_str(&line).with_context(|| format!("fluxbuy services said {line:?}"))?;
        Ok(Self {
            addresses,
            line: Mutex::new(Line { stdin, stdout }),
            child,
        })
    }

    /// Ends a server without a word: SIGKILL.
    ///
    /// # Errors
    /// When it isn't there.
    pub async fn kill(&self, server: Server) -> anyhow::Result<()> {
        self.order("kill", server).await.map(drop)
    }

    /// Ends a server in order.
    ///
    /// # Errors
    /// When it isn't there.
    pub async fn stop_one(&self, server: Server) -> anyhow::Result<()> {
        self.order("stop", server).await.map(drop)
    }

    /// Starts a server again where it was, and waits until it answers. Where it ended without a word, what is left of it may be in the way
    /// for a moment.
    ///
    /// # Errors
    /// When it doesn't come up.
    pub async fn start_again(&self, server: Server) -> anyhow::Result<()> {
        let deadline = Instant::now() + BACK_WITHIN;
        loop {
            match self.order("start", server).await {
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                Ok(_) => return Ok(()),
            }
        }
    }

    /// Whether a server has ended.
    ///
    /// # Errors
    /// When its keeper doesn't say.
    pub async fn is_gone(&self, server: Server) -> anyhow::Result<bool> {
        Ok(self.order("show", server).await? == 0)
    }

    /// Has the keeper do something. Returns the server's process, 0 for none.
    async fn order(&self, what: &str, server: Server) -> anyhow::Result<u32> {
        let mut line = self.line.lock().await;
        let order = format!("{what} {}\n", server.name());
        line.stdin.write_all(order.as_bytes()).await?;
        let answer = line.stdout.next_line().await?.unwrap_or_default();
        let pid = answer.strip_prefix("done ").and_then(|pid| pid.parse().ok());
        pid.with_context(|| format!("{what} {}: {answer:?}", server.name()))
    }

    pub(super) fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        let Self { line, mut child, .. } = self;
        drop(line);
        let status = tokio::time::timeout(GONE_WITHIN, child.wait())
            .await
            .with_context(|| format!("the services were not gone within {} s", GONE_WITHIN.as_secs()))??;
        ensure!(status.success(), "the services ended with {status}");
        Ok(())
    }
}
