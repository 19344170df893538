//! What the demo plays on: private servers and an engine as a process of its own, set up as in production.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout};

use crate::services::{Addresses, Args, Services, server};
use crate::sockets::allow_open_files;

/// How long the engine may take to be ready.
const READY_WITHIN: Duration = Duration::from_secs(45);
/// How long it may take to drain and end; longer than its own limit for draining.
const DRAINED_WITHIN: Duration = Duration::from_secs(30);
/// Files that a process needs besides its connections.
const SPARE_FILES: u64 = 256;
/// Charges under way at most, by default: so many connections to the provider.
const CHARGES_IN_FLIGHT: u64 = 2048;

/// Private servers and an engine on them.
pub(super) struct Stage {
    services: Services,
    engine: Engine,
}

struct Engine {
    url: String,
    child: Child,
    /// Held, so that whatever it prints has somewhere to go.
    _stdout: BufReader<ChildStdout>,
}

impl Stage {
    /// Starts everything, for so many buyers.
    ///
    /// # Errors
    /// When a program is missing, or something doesn't come up; nothing is left running then.
    pub(super) async fn set(services: &Args, buyers: u32) -> anyhow::Result<Self> {
        // Here, and in the engine, which inherits the limit.
        let needed = u64::from(buyers) + CHARGES_IN_FLIGHT + SPARE_FILES;
        let allowed = allow_open_files(needed)?;
        anyhow::ensure!(
            allowed >= needed,
            "{needed} open files are needed, and the system allows {allowed} (`ulimit -Hn`): take fewer --buyers"
        );
        let fluxbuy = std::env::current_exe().context("the program's own file is unknown")?;
        let services = Services::start(&fluxbuy, services).await?;
        match Engine::start(&fluxbuy, services.addresses(), buyers).await {
            Ok(engine) => Ok(Self { services, engine }),
            Err(error) => {
                services.stop().await?;
                Err(error)
            }
        }
    }

    /// Where the engine is.
    pub(super) fn engine_url(&self) -> &str {
        &self.engine.url
    }

    /// Where its servers are.
    pub(super) fn addresses(&self) -> &Addresses {
        self.services.addresses()
    }

    /// Takes everything away: the engine drains first, unless there is no time for that.
    ///
    /// # Errors
    /// When something doesn't end as it should. It is gone all the same.
    pub(super) async fn strike(mut self, drain: bool) -> anyhow::Result<()> {
        let ended = if drain {
            self.engine.drain().await
        } else {
            self.engine.child.kill().await.context("the engine")
        };
        self.services.stop().await?;
        ended
    }
}

impl Engine {
    async fn start(fluxbuy: &Path, addresses: &Addresses, buyers: u32) -> anyhow::Result<Self> {
        let log = addresses.directory.join("engine.log");
        let provider = addresses
            .provider_url
            .as_deref()
            .context("there is no provider")?;
        let mut command = server(fluxbuy, "SIGKILL");
        // Settings for another engine, which may be around, are none for this one.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("FLUXBUY__") {
                command.env_remove(name);
            }
        }
        let mut child = command
            .arg("serve")
            .env("FLUXBUY__HTTP__LISTEN", "127.0.0.1:0")
            .env("FLUXBUY__HTTP__MAX_CONNECTIONS", (buyers + 1000).to_string())
            .env("FLUXBUY__POSTGRES__URL", &addresses.postgres_engine_url)
            .env("FLUXBUY__REDIS__URL", &addresses.redis_url)
            .env("FLUXBUY__PROVIDER__URL", provider)
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .spawn()
            .context("the engine could not be started")?;
        let mut stdout = BufReader::new(child.stdout.take().context("the engine has no output")?);
        let mut line = String::new();
        let ready = tokio::time::timeout(READY_WITHIN, stdout.read_line(&mut line)).await;
        match line.trim_end().strip_prefix("fluxbuy ready at ") {
            Some(url) if matches!(ready, Ok(Ok(_))) => Ok(Self {
                url: url.to_owned(),
                child,
                _stdout: stdout,
            }),
            _ => {
                child.kill().await.ok();
                bail!(
                    "the engine did not come up: {}",
                    std::fs::read_to_string(&log).unwrap_or_default()
                )
            }
        }
    }

    async fn drain(&mut self) -> anyhow::Result<()> {
        if let Some(pid) = self.child.id() {
            kill(Pid::from_raw(pid as i32), Signal::SIGTERM).ok();
        }
        match tokio::time::timeout(DRAINED_WITHIN, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => bail!("the engine ended with {status}"),
            Ok(Err(error)) => Err(error).context("the engine"),
            Err(_) => {
                self.child.kill().await.ok();
                bail!("the engine did not end within {DRAINED_WITHIN:?}")
            }
        }
    }
}
