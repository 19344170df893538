//! A private Redis that keeps nothing on disk by itself and throws no key away.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::process::Child;

use super::programs;

/// How long a server may take to answer.
const UP_WITHIN: Duration = Duration::from_secs(15);

/// Ports that are tried.
const TRIES: usize = 5;

/// A server that can be started again where it was.
pub(super) struct Redis {
    /// Its process, while there is one.
    pub(super) child: Child,
    /// Where it is.
    pub(super) url: String,
    directory: PathBuf,
    port: u16,
}

/// Starts a server that lives below `directory`.
pub(super) async fn start(directory: &Path) -> anyhow::Result<Redis> {
    let mut last = None;
    for _ in 0..TRIES {
        let port = programs::free_port()?;
        match launch(directory, port).await {
            Ok((child, url)) => {
                return Ok(Redis {
                    child,
                    url,
                    directory: directory.to_owned(),
                    port,
                });
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| anyhow::anyhow!("no port was tried"))).context("redis did not come up")
}

impl Redis {
    /// Starts it where it was, after it has ended. It has what a `dump.rdb` in its directory says, and is empty without one.
    pub(super) async fn start_again(&mut self) -> anyhow::Result<()> {
        (self.child, _) = launch(&self.directory, self.port)
            .await
            .context("redis did not come up again")?;
        Ok(())
    }
}

async fn launch(directory: &Path, port: u16) -> anyhow::Result<(Child, String)> {
    let log = directory.join("redis.log");
    let mut command = programs::server(&programs::redis_server()?, "SIGTERM");
    command
        .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
        .args(["--save", "", "--appendonly", "no"])
        .args(["--maxmemory-policy", "noeviction", "--dir"])
        .arg(directory);
    let output = File::options().create(true).append(true).open(&log)?;
    let mut child = command
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .context("redis-server could not be started")?;
    let url = format!("redis://127.0.0.1:{port}/0");
    match wait_until_up(&mut child, &url).await {
        Ok(()) => Ok((child, url)),
        Err(error) => {
            child.kill().await.ok();
            Err(error.context(std::fs::read_to_string(&log).unwrap_or_default()))
        }
    }
}

/// Waits for our own server: another one may have taken the port.
async fn wait_until_up(child: &mut Child, url: &str) -> anyhow::Result<()> {
    let client = redis::Client::open(url)?;
    let deadline = Instant::now() + UP_WITHIN;
    loop {
        if let Some(status) = child.try_wait()? {
            bail!("it ended at once: {status}");
        }
        if let Ok(mut connection) = client.get_multiplexed_async_connection().await {
            let info: String = redis::cmd("INFO")
                .arg("server")
                .query_async(&mut connection)
                .await?;
            let pid = info
                .lines()
                .find_map(|line| line.strip_prefix("process_id:")?.trim().parse::<u32>().ok());
            anyhow::ensure!(pid == child.id(), "another server has taken the port");
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < deadline, "it doesn't answer");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
