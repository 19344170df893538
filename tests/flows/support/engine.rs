//! The engine as a process.

use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::NamedTempFile;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::http::Client;
use super::{PATIENCE, fluxbuy};

pub struct Engine {
    pub url: String,
    pub child: Child,
    log: NamedTempFile,
}

impl Engine {
    /// Starts one and waits until it is ready.
    pub async fn start(settings: &[(String, String)]) -> Self {
        Self::try_start(settings)
            .await
            .unwrap_or_else(|log| panic!("the engine did not start:\n{log}"))
    }

    /// Starts one; gives what it said when it refused.
    pub async fn try_start(settings: &[(String, String)]) -> Result<Self, String> {
        let log = NamedTempFile::new().unwrap();
        let mut child = Command::new(fluxbuy())
            .arg("serve")
            .env("FLUXBUY__HTTP__LISTEN", "127.0.0.1:0")
            .envs(settings.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.reopen().unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(PATIENCE, lines.next_line())
            .await
            .expect("the engine says something")
            .unwrap();
        if let Some(url) = line
            .as_deref()
            .and_then(|line| line.strip_prefix("fluxbuy ready at "))
        {
            Ok(Self {
                url: url.to_owned(),
                child,
                log,
            })
        } else {
            let status = child.wait().await.unwrap();
            assert!(!status.success(), "an engine that is not ready must not end well");
            Err(std::fs::read_to_string(log.path()).unwrap())
        }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().expect("it runs") as i32)
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// SIGKILL, and gone.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// SIGTERM; gives how it ended and what it logged.
    pub async fn terminate(mut self) -> (bool, String) {
        self.signal(Signal::SIGTERM);
        let status = tokio::time::timeout(Duration::from_secs(30), self.child.wait())
            .await
            .expect("it drains")
            .unwrap();
        (status.success(), self.log())
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log.path()).unwrap()
    }

    pub async fn metric(&self, client: &Client, name: &str, labels: &[&str]) -> i64 {
        let text = client.get(&format!("{}/metrics", self.url), &[]).await.text();
        text.lines()
            .filter(|line| {
                let series = line.strip_prefix(name).unwrap_or("");
                (series.starts_with('{') || series.starts_with(' '))
                    && labels.iter().all(|label| series.contains(label))
            })
            .map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() as i64)
            .sum()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- engine log ---\n{}", self.log());
        }
    }
}
