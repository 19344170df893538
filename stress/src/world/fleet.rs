//! The engines of a private world. Each keeps its address through all of its lives, as it would behind a load balancer.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::Mutex;

use super::Setting;
use super::children::Logs;
use super::engine::{Conditions, Engine};
use super::ports;

/// Engines, by their numbers from 0.
pub struct Fleet {
    program: PathBuf,
    logs: Logs,
    conditions: Conditions,
    /// What the engines' clocks follow, where they can be moved: a line that says by how many seconds they are off.
    clock: PathBuf,
    members: Vec<Member>,
}

struct Member {
    url: String,
    listen: String,
    settings: Mutex<Vec<Setting>>,
    /// `None` while it is stopped or dead.
    engine: Mutex<Option<Engine>>,
    /// How often it was started; each time has a log of its own.
    lives: AtomicUsize,
}

impl Fleet {
    /// None yet.
    pub(super) fn new(program: PathBuf, logs: Logs, conditions: Conditions) -> anyhow::Result<Self> {
        let fleet = Self {
            program,
            clock: logs.folder().join("clock"),
            logs,
            conditions,
            members: Vec::new(),
        };
        fleet.set_clock(0)?;
        Ok(fleet)
    }

    /// Has the engines' wall clocks be off by so many seconds, from now on.
    ///
    /// # Errors
    /// When their file can't be written.
    pub fn set_clock(&self, by_s: i64) -> anyhow::Result<()> {
        // In one step: it may be read at any moment.
        let new = self.clock.with_extension("new");
        fs::write(&new, format!("{by_s:+}\n"))
            .and_then(|()| fs::rename(&new, &self.clock))
            .with_context(|| format!("{} can't be written", self.clock.display()))
    }

    /// One more, started with these settings.
    pub(super) async fn add(&mut self, settings: Vec<Setting>) -> anyhow::Result<()> {
        let listen = format!("127.0.0.1:{}", ports::free()?);
        self.members.push(Member {
            url: format!("http://{listen}"),
            listen,
            settings: Mutex::new(settings),
            engine: Mutex::new(None),
            lives: AtomicUsize::new(0),
        });
        self.start(self.members.len() - 1).await?;
        Ok(())
    }

    /// How many there are, dead ones included.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Where they are.
    pub(super) fn urls(&self) -> Vec<String> {
        self.members.iter().map(|member| member.url.clone()).collect()
    }

    fn member(&self, number: usize) -> anyhow::Result<&Member> {
        self.members
            .get(number)
            .with_context(|| format!("there is no engine {number}"))
    }

    /// Has it start with other settings from now on.
    pub(super) async fn set(&self, number: usize, settings: Vec<Setting>) -> anyhow::Result<()> {
        *self.member(number)?.settings.lock().await = settings;
        Ok(())
    }

    /// Starts one that isn't running. Tells how long it took from its spawn to its ready line.
    ///
    /// # Errors
    /// When it doesn't come up.
    pub async fn start(&self, number: usize) -> anyhow::Result<Duration> {
        let member = self.member(number)?;
        let mut engine = member.engine.lock().await;
        let mut settings = member.settings.lock().await.clone();
        settings.push(("http.listen", member.listen.clone()));
        let life = member.lives.fetch_add(1, Ordering::Relaxed) + 1;
        let log = format!("engine-{number}-life-{life}");
        let spawned = Instant::now();
        *engine = Some(
            Engine::start(
                &self.program,
                &settings,
                &self.conditions,
                &self.clock,
                &self.logs,
                &log,
            )
            .await?,
        );
        Ok(spawned.elapsed())
    }

    /// SIGTERM, and waits for the drain.
    ///
    /// # Errors
    /// When it doesn't end well.
    pub async fn stop(&self, number: usize) -> anyhow::Result<()> {
        match self.member(number)?.engine.lock().await.take() {
            Some(engine) => engine.stop().await,
            None => Ok(()),
        }
    }

    /// SIGKILL: what a drain would wait for is left as it is.
    ///
    /// # Errors
    /// When it can't be killed.
    pub async fn kill(&self, number: usize) -> anyhow::Result<()> {
        match self.member(number)?.engine.lock().await.take() {
            Some(engine) => engine.kill().await,
            None => Ok(()),
        }
    }

    /// SIGSTOP: it sleeps with all that it has in hand.
    ///
    /// # Errors
    /// When there is no process to be stopped.
    pub async fn pause(&self, number: usize) -> anyhow::Result<()> {
        self.signal(number, Signal::SIGSTOP).await
    }

    /// SIGCONT: it goes on, and believes that no time has passed.
    ///
    /// # Errors
    /// When there is no process any more.
    pub async fn resume(&self, number: usize) -> anyhow::Result<()> {
        self.signal(number, Signal::SIGCONT).await
    }

    async fn signal(&self, number: usize, signal: Signal) -> anyhow::Result<()> {
        let pid = self.pid(number).await?;
        kill(Pid::from_raw(pid as i32), signal).with_context(|| format!("engine {number} has no process"))
    }

    /// Its process.
    ///
    /// # Errors
    /// When it is stopped or dead.
    pub async fn pid(&self, number: usize) -> anyhow::Result<u32> {
        let engine = self.member(number)?.engine.lock().await;
        let pid = engine.as_ref().and_then(Engine::pid);
        pid.with_context(|| format!("engine {number} is stopped"))
    }

    pub(super) fn logs(&self) -> &Logs {
        &self.logs
    }

    /// Stops all of them.
    pub(super) async fn stop_all(&self) -> anyhow::Result<()> {
        let mut first = Ok(());
        for number in 0..self.members.len() {
            let stopped = self.stop(number).await;
            if first.is_ok() {
                first = stopped;
            }
        }
        first
    }
}
