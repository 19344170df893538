//! Private Postgres, Redis and mock provider, held by the engine's own program.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use tokio::process::{Child, ChildStdin};

use super::Provider;
use super::children::{self, Logs};

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
pub(super) struct Services {
    addresses: Addresses,
    stdin: ChildStdin,
    child: Child,
}

impl Services {
    pub(super) async fn start(
        program: &Path,
        provider: &Provider,
        seed: u64,
        logs: &Logs,
    ) -> anyhow::Result<Self> {
        let mut child = children::command(program)
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
        let line = children::ready_line(&mut child, stdout, "fluxbuy services").await?;
        let addresses =
            serde_json::from_str(&line).with_context(|| format!("fluxbuy services said {line:?}"))?;
        Ok(Self {
            addresses,
            stdin,
            child,
        })
    }

    pub(super) fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        let Self { stdin, mut child, .. } = self;
        drop(stdin);
        let status = tokio::time::timeout(GONE_WITHIN, child.wait())
            .await
            .with_context(|| format!("the services were not gone within {} s", GONE_WITHIN.as_secs()))??;
        ensure!(status.success(), "the services ended with {status}");
        Ok(())
    }
}
