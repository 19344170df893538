//! The keeper: `fluxbuy services`.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};

use super::{Addresses, Args, postgres, programs, redis};

/// How long a server may take to stop before it is killed.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// Starts the servers, prints one line of JSON, stays until standard input closes or a signal comes, and takes all away again.
///
/// # Errors
/// When a program is missing, or a server doesn't come up.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let directory = tempfile::Builder::new().prefix("fluxbuy-").tempdir()?;
    // The database's unprivileged user has to get through.
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;

    let mut servers = Servers::default();
    let started = tokio::select! {
        started = servers.start(&args, &directory) => started.map(Some),
        _ = terminate.recv() => Ok(None),
        _ = interrupt.recv() => Ok(None),
    };
    let result = match started {
        Ok(Some(addresses)) => {
            println!("{}", serde_json::to_string(&addresses)?);
            let mut stdin = tokio::io::stdin();
            let mut ignored = [0; 256];
            loop {
                tokio::select! {
                    read = stdin.read(&mut ignored) => if matches!(read, Ok(0) | Err(_)) { break },
                    _ = terminate.recv() => break,
                    _ = interrupt.recv() => break,
                }
            }
            Ok(())
        }
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    servers.stop().await;
    directory
        .close()
        .context("the private services' directory could not be removed")?;
    // A thread of the runtime may still be reading standard input, which would keep it from ending.
    match result {
        Ok(()) => std::process::exit(0),
        Err(error) => Err(error),
    }
}

#[derive(Default)]
struct Servers(Vec<(Child, Signal)>);

impl Servers {
    async fn start(&mut self, args: &Args, directory: &TempDir) -> anyhow::Result<Addresses> {
        let folder = directory.path();
        let redis = redis::start(folder).await?;
        let redis_pid = redis.child.id().unwrap_or_default();
        self.0.push((redis.child, Signal::SIGTERM));
        let (provider_url, provider_pid) = if args.no_provider {
            (None, None)
        } else {
            let (child, url) = provider(args, folder).await?;
            let pid = child.id();
            self.0.push((child, Signal::SIGTERM));
            (Some(url), pid)
        };
        let postgres = postgres::start(folder).await?;
        let postgres_pid = postgres.child.id().unwrap_or_default();
        // SIGINT is PostgreSQL's "fast" shutdown: it doesn't wait for clients.
        self.0.push((postgres.child, Signal::SIGINT));
        Ok(Addresses {
            postgres_owner_url: postgres.owner_url,
            postgres_engine_url: postgres.engine_url,
            redis_url: redis.url,
            provider_url,
            directory: folder.to_owned(),
            postgres_pid,
            redis_pid,
            provider_pid,
        })
    }

    async fn stop(&mut self) {
        for (child, stop) in &self.0 {
            if let Some(pid) = child.id() {
                kill(Pid::from_raw(pid as i32), *stop).ok();
            }
        }
        for (child, _) in &mut self.0 {
            if tokio::time::timeout(STOP_WITHIN, child.wait()).await.is_err() {
                child.kill().await.ok();
            }
        }
    }
}

async fn provider(args: &Args, folder: &Path) -> anyhow::Result<(Child, String)> {
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
        .stderr(std::fs::File::create(folder.join("provider.log"))?)
        .spawn()?;
    let stdout = child.stdout.take().context("the mock provider has no output")?;
    let line = BufReader::new(stdout).lines().next_line().await?;
    let url = line
        .as_deref()
        .and_then(|line| line.strip_prefix("mock provider ready at "))
        .with_context(|| format!("the mock provider said {line:?}"))?
        .to_owned();
    Ok((child, url))
}
