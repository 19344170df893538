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
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};

use super::{Addresses, Args, postgres, programs, redis};

/// How long a server may take to stop before it is killed.
const STOP_WITHIN: Duration = Duration::from_secs(10);
/// How long the mock provider may take to say where it is.
const PROVIDER_UP_WITHIN: Duration = Duration::from_secs(15);

/// Starts the servers, prints one line of JSON, stays until standard input closes or a signal comes, and takes all away again.
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
            if announce(&addresses).is_ok() {
                tokio::select! {
                    () = leash_ends() => {}
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

/// Waits until standard input closes: its other end is held by the owner, and the kernel lets go of it however the owner ends.
async fn leash_ends() {
    let mut stdin = tokio::io::stdin();
    let mut ignored = [0; 256];
    while matches!(stdin.read(&mut ignored).await, Ok(read) if read > 0) {}
}

/// Tells the owner where the servers are.
///
/// # Errors
/// When it is no longer there.
fn announce(addresses: &Addresses) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{}", serde_json::to_string(addresses)?)?;
    Ok(stdout.flush()?)
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
