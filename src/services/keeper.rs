//! The keeper: `fluxbuy services`.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};

use super::{Addresses, Args, postgres, programs, redis};

/// How long a server may take to stop before it is killed.
const STOP_WITHIN: Duration = Duration::from_secs(10);
/// How long the mock provider may take to say where it is.
const PROVIDER_UP_WITHIN: Duration = Duration::from_secs(15);

/// Starts the servers, prints one line of JSON, does what it is told on standard input until that closes or a signal comes, and takes all
/// away again.
///
/// # Errors
/// When a program is missing, or a server doesn't come up.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let directory = tempfile::Builder::new()
        .prefix("fluxbuy-")
        .tempdir_in(postgres::enterable_folder())?;
    // The database's unprivileged user has to get through.
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;

    let mut servers = Servers::default();
    // Not cut short by a signal or a closed pipe, which both stay to be seen afterwards: what has been started halfway could not be
    // stopped in an orderly way, and each step has its own limit in time.
    let result = match servers.start(&args, &directory).await {
        Ok(addresses) => {
            if say(&serde_json::to_string(&addresses)?).is_ok() {
                tokio::select! {
                    () = servers.obey() => {}
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            }
            Ok(())
        }
        Err(error) => Err(error),
    };
    servers.stop().await;
    let removed = directory
        .close()
        .context("the private services' directory could not be removed");
    if let Err(error) = result.and(removed) {
        eprintln!("fluxbuy: {error:#}");
        std::process::exit(1);
    }
    // A thread of the runtime may still be reading standard input, which would keep it from ending.
    std::process::exit(0);
}

/// Says a line to the owner.
///
/// # Errors
/// When it is no longer there.
fn say(line: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}")?;
    Ok(stdout.flush()?)
}

/// The servers that are running.
#[derive(Default)]
struct Servers {
    redis: Option<redis::Redis>,
    postgres: Option<postgres::Postgres>,
    provider: Option<Child>,
}

/// PostgreSQL's "fast" shutdown: it doesn't wait for clients.
const STOP_POSTGRES: Signal = Signal::SIGINT;

impl Servers {
    async fn start(&mut self, args: &Args, directory: &TempDir) -> anyhow::Result<Addresses> {
        let folder = directory.path();
        let redis = self.redis.insert(redis::start(folder).await?);
        let (redis_url, redis_pid) = (redis.url.clone(), redis.child.id().unwrap_or_default());
        let mut provider_url = None;
        if !args.no_provider {
            let (child, url) = provider(args, folder).await?;
            self.provider = Some(child);
            provider_url = Some(url);
        }
        let postgres = self.postgres.insert(postgres::start(folder).await?);
        Ok(Addresses {
            postgres_owner_url: postgres.owner_url.clone(),
            postgres_engine_url: postgres.engine_url.clone(),
            redis_url,
            provider_url,
            directory: folder.to_owned(),
            postgres_pid: postgres.child.id().unwrap_or_default(),
            redis_pid,
            provider_pid: self.provider.as_ref().and_then(Child::id),
        })
    }

    /// Does what the owner says, a line at a time, until standard input closes: its other end is held by the owner, and the kernel lets go
    /// of it however the owner ends. Each line is answered by one: `done` with the server's process, or `failed` with the reason.
    async fn obey(&mut self) {
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let answer = match self.carry_out(line.trim()).await {
                Ok(pid) => format!("done {pid}"),
                Err(error) => format!("failed {error:#}").replace('\n', " "),
            };
            if say(&answer).is_err() {
                return;
            }
        }
    }

    /// `kill`, `stop`, `start` or `show` with `redis` or `postgres`: killed outright, stopped in order, started again where it was, or none
    /// of these. Returns the process, 0 for none.
    async fn carry_out(&mut self, order: &str) -> anyhow::Result<u32> {
        let Self { redis, postgres, .. } = self;
        let redis = redis.as_mut().context("redis was never started")?;
        let postgres = postgres.as_mut().context("postgres was never started")?;
        let (child, stop) = match order.split_once(' ') {
            Some(("start", "redis")) => {
                anyhow::ensure!(running(&mut redis.child)? == 0, "redis is running");
                redis.start_again().await?;
                return Ok(running(&mut redis.child)?);
            }
            Some(("start", "postgres")) => {
                anyhow::ensure!(running(&mut postgres.child)? == 0, "postgres is running");
                postgres.start_again().await?;
                return Ok(running(&mut postgres.child)?);
            }
            Some(("show", "redis")) => return Ok(running(&mut redis.child)?),
            Some(("show", "postgres")) => return Ok(running(&mut postgres.child)?),
            Some(("kill", "redis")) => (&mut redis.child, Signal::SIGKILL),
            Some(("kill", "postgres")) => (&mut postgres.child, Signal::SIGKILL),
            Some(("stop", "redis")) => (&mut redis.child, Signal::SIGTERM),
            Some(("stop", "postgres")) => (&mut postgres.child, STOP_POSTGRES),
            _ => bail!("{order:?} is not kill, stop, start or show with redis or postgres"),
        };
        end(child, stop).await;
        Ok(0)
    }

    async fn stop(&mut self) {
        let ends = [
            self.redis
                .as_mut()
                .map(|redis| (&mut redis.child, Signal::SIGTERM)),
            self.provider.as_mut().map(|provider| (provider, Signal::SIGTERM)),
            self.postgres
                .as_mut()
                .map(|postgres| (&mut postgres.child, STOP_POSTGRES)),
        ];
        let ends = ends.into_iter().flatten().map(|(child, stop)| end(child, stop));
        futures_util::future::join_all(ends).await;
    }
}

/// A server's process; 0 when it has ended.
fn running(child: &mut Child) -> std::io::Result<u32> {
    Ok(match child.try_wait()? {
        None => child.id().unwrap_or_default(),
        Some(_) => 0,
    })
}

/// Ends a server, and waits until it is gone.
async fn end(child: &mut Child, how: Signal) {
    if let Some(pid) = child.id() {
        kill(Pid::from_raw(pid as i32), how).ok();
    }
    if tokio::time::timeout(STOP_WITHIN, child.wait()).await.is_err() {
        child.kill().await.ok();
    }
}

async fn provider(args: &Args, folder: &Path) -> anyhow::Result<(Child, String)> {
    let log = folder.join("provider.log");
    let ourselves = std::env::current_exe().context("the program's own file is unknown")?;
    let mut child = programs::server(&ourselves, "SIGTERM")
        .args([
            "mock-provider",
            "--latency-min-ms",
            &args.provider_latency_min_ms.to_string(),
        ])
        .args(["--latency-max-ms", &args.provider_latency_max_ms.to_string()])
        .args(["--decline-percent", &args.provider_decline_percent.to_string()])
        .args(["--seed", &args.provider_seed.to_string()])
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&log)?)
        .spawn()?;
    let stdout = child.stdout.take().context("the mock provider has no output")?;
    let mut lines = BufReader::new(stdout).lines();
    let line = tokio::time::timeout(PROVIDER_UP_WITHIN, lines.next_line())
        .await
        .context("the mock provider did not come up in time")??;
    let url = line
        .as_deref()
        .and_then(|line| line.strip_prefix("mock provider ready at "));
    let Some(url) = url else {
        child.kill().await.ok();
        bail!(
            "the mock provider did not come up: {}",
            std::fs::read_to_string(&log).unwrap_or_default()
        )
    };
    Ok((child, url.to_owned()))
}
