//! The engine as a process, and what it counts.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;

use super::children::{self, Logs};

/// How long a drain may take.
const GONE_WITHIN: Duration = Duration::from_mins(1);

/// What is done to an engine's surroundings.
#[derive(Debug, Clone, Default)]
pub struct Conditions {
    /// It may have so many files open, and no more.
    pub open_files: Option<u32>,
    /// Its wall clock can be moved while it runs. Needs libfaketime.
    pub clock: bool,
}

/// Where Debian and its like keep libfaketime.
const FAKETIME: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/faketime/libfaketime.so.1",
];

/// The library that moves a program's clock, if it is there.
fn faketime() -> Option<&'static str> {
    FAKETIME.into_iter().find(|path| Path::new(path).is_file())
}

impl Conditions {
    /// Whether what moves clocks is there.
    pub fn clocks_can_be_moved() -> bool {
        faketime().is_some()
    }

    fn command(&self, program: &Path, clock: &Path) -> anyhow::Result<tokio::process::Command> {
        let mut command = match self.open_files {
            Some(files) => {
                let mut command = children::mortal_command(Path::new("prlimit"));
                command
                    .arg(format!("--nofile={files}:{files}"))
                    .arg("--")
                    .arg(program);
                command
            }
            None => children::mortal_command(program),
        };
        if self.clock {
            let library = faketime()
                .context("libfaketime was not found: install it (Debian and Ubuntu: libfaketime)")?;
            command
                .env("LD_PRELOAD", library)
                .env("FAKETIME_TIMESTAMP_FILE", clock)
                // The file is read at each look at the clock, and only the wall clock is off: what measures time goes on.
                .env("FAKETIME_NO_CACHE", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
                .env("DONT_FAKE_MONOTONIC", "1");
        }
        Ok(command)
    }
}

/// A running engine. Killed when it is dropped.
pub(super) struct Engine {
    child: Child,
}

impl Engine {
    /// Starts one and waits until it is ready. Settings are named `section.key`.
    pub(super) async fn start(
        program: &Path,
        settings: &[(&str, String)],
        conditions: &Conditions,
        clock: &Path,
        logs: &Logs,
        log: &str,
    ) -> anyhow::Result<Self> {
        let mut command = conditions.command(program, clock)?;
        command.arg("serve").stdin(Stdio::null()).stderr(logs.file(log)?);
        for (name, value) in settings {
            command.env(
                format!("FLUXBUY__{}", name.to_uppercase().replace('.', "__")),
                value,
            );
        }
        let mut child = command
            .spawn()
            .with_context(|| format!("{} could not be started", program.display()))?;
        let stdout = child.stdout.take().context("the engine has no output")?;
        let line = children::ready_line(&mut child, stdout, "fluxbuy serve").await?;
        ensure!(
            line.starts_with("fluxbuy ready at "),
            "fluxbuy serve said {line:?}"
        );
        Ok(Self { child })
    }

    /// Its process; `None` once it has ended. (`setpriv` becomes the engine, so that it is the child's own.)
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// SIGKILL: what a drain would wait for is left as it is.
    pub(super) async fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("the engine could not be killed")
    }

    /// SIGTERM, and waits for the drain.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        if let Some(pid) = self.child.id() {
            kill(Pid::from_raw(pid as i32), Signal::SIGTERM).ok();
        }
        let status = tokio::time::timeout(GONE_WITHIN, self.child.wait())
            .await
            .with_context(|| format!("the engine was not gone within {} s", GONE_WITHIN.as_secs()))??;
        ensure!(status.success(), "the engine ended with {status}");
        Ok(())
    }
}

/// A page of `/metrics`, or several added up.
#[derive(Debug, Clone, Default)]
pub struct Metrics(Vec<(String, f64)>);

impl Metrics {
    /// Adds what a page in Prometheus' text format says.
    pub fn add(&mut self, page: &str) {
        self.0.extend(
            page.lines()
                .filter(|line| !line.starts_with('#'))
                .filter_map(|line| {
                    let (series, value) = line.rsplit_once(' ')?;
                    Some((series.to_owned(), value.parse().ok()?))
                }),
        );
    }

    /// The sum of all series of this name that have all these labels.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.0
            .iter()
            .filter(|(series, _)| {
                let rest = series.strip_prefix(name);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
                    && labels.iter().all(|(label, value)| {
                        let pair = format!("{label}=\"{value}\"");
                        [format!("{{{pair}"), format!(",{pair}")]
                            .iter()
                            .any(|found| series.contains(found))
                    })
            })
            .map(|(_, value)| value)
            .sum()
    }

    /// The same as a count: what was counted since `before`.
    pub fn counted_since(&self, before: &Self, name: &str, labels: &[(&str, &str)]) -> u64 {
        (self.sum(name, labels) - before.sum(name, labels))
            .max(0.0)
            .round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_added_up_by_name_and_labels() {
        let mut metrics = Metrics::default();
        let page = "# HELP lost_total x\nlost_total{by=\"payment\",wanted=\"paid\"} 3\n\
                    lost_total{by=\"sweeper\",wanted=\"paid\"} 4\nlost_total_else 100\nplain 1.5\n";
        metrics.add(page);
        metrics.add("plain 2\n");
        assert!((metrics.sum("lost_total", &[]) - 7.0).abs() < 1e-9);
        assert!((metrics.sum("lost_total", &[("wanted", "paid"), ("by", "payment")]) - 3.0).abs() < 1e-9);
        assert!((metrics.sum("plain", &[]) - 3.5).abs() < 1e-9);
        assert_eq!(
            metrics.counted_since(&Metrics::default(), "lost_total", &[("by", "sweeper")]),
            4
        );
        assert_eq!(Metrics::default().counted_since(&metrics, "lost_total", &[]), 0);
    }
}
