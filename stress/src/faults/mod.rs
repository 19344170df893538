//! What is done to engines and to what they stand on. Each fault is begun, lasts for a while, and is healed again by what an operator's
//! machinery would do anyway: a supervisor that starts what has died, a network that comes back. Nobody helps the engine beyond that.

mod slow_clients;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tokio::time::sleep;

use crate::world::{Private, Server, Trouble, World};

/// A way of things to go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// An engine is killed outright, and started again.
    KillEngine,
    /// An engine sleeps for longer than the cutoff with all that it has in hand, and wakes up.
    PauseEngine,
    /// One of Postgres' processes is killed, which takes all of its connections down and has it recover.
    CrashPostgres,
    /// Postgres is killed as a whole, and started again.
    KillPostgres,
    /// Postgres is stopped in order, and started again.
    RestartPostgres,
    /// Redis is killed, and started again empty.
    KillRedis,
    /// Redis is emptied.
    FlushRedis,
    /// Redis comes back from an older snapshot of itself.
    StaleRedis,
    /// Redis forgets its scripts.
    FlushScripts,
    /// An engine's link to Postgres is slow.
    SlowPostgres,
    /// It says nothing.
    SilentPostgres,
    /// It is cut.
    CutPostgres,
    /// It is cut at each COMMIT, before its answer.
    CutCommits,
    /// An engine's link to Redis is slow.
    SlowRedis,
    /// It says nothing.
    SilentRedis,
    /// It is cut.
    CutRedis,
    /// The provider is away for longer than the cutoff.
    ProviderDown,
    /// The provider does things and doesn't say so, or stores errors, or hangs.
    ProviderDoubtful,
    /// The provider takes no more requests.
    ProviderBusy,
    /// The engines' wall clocks jump by an hour, there or back.
    ClockJump,
    /// Postgres' disk is full.
    FullDisk,
    /// Hundreds of clients that hold connections and hardly say a word, or far too much.
    SlowClients,
}

/// How far the engines' clocks jump, in seconds.
const JUMP_S: i64 = 3600;
/// No fault within a fault's own time is shorter, in milliseconds.
const SHORTEST_MS: u64 = 50;

/// What strikes need to know of the world.
pub struct Field<'a> {
    /// Where they strike.
    pub world: &'a World,
    /// Orders that are open for longer are looked into.
    pub cutoff: Duration,
}

impl Fault {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::KillEngine => "kill-engine",
            Self::PauseEngine => "pause-engine",
            Self::CrashPostgres => "crash-postgres",
            Self::KillPostgres => "kill-postgres",
            Self::RestartPostgres => "restart-postgres",
            Self::KillRedis => "kill-redis",
            Self::FlushRedis => "flush-redis",
            Self::StaleRedis => "stale-redis",
            Self::FlushScripts => "script-flush",
            Self::SlowPostgres => "slow-postgres",
            Self::SilentPostgres => "silent-postgres",
            Self::CutPostgres => "cut-postgres",
            Self::CutCommits => "cut-at-commit",
            Self::SlowRedis => "slow-redis",
            Self::SilentRedis => "silent-redis",
            Self::CutRedis => "cut-redis",
            Self::ProviderDown => "provider-down",
            Self::ProviderDoubtful => "provider-doubtful",
            Self::ProviderBusy => "provider-busy",
            Self::ClockJump => "clock-jump",
            Self::FullDisk => "disk-full",
            Self::SlowClients => "slow-clients",
        }
    }

    /// Whether it needs a link that can be troubled.
    pub fn is_of_a_link(self) -> bool {
        use Fault as F;
        matches!(
            self,
            F::SlowPostgres
                | F::SilentPostgres
                | F::CutPostgres
                | F::CutCommits
                | F::SlowRedis
                | F::SilentRedis
                | F::CutRedis
        )
    }

    /// Begins it, lets it last, and heals it. What is random comes from `rng`, so that a seed plays the same plan again.
    ///
    /// # Errors
    /// When it can't be done, or something doesn't come back.
    pub async fn strike(self, field: &Field<'_>, rng: &mut ChaCha8Rng) -> anyhow::Result<()> {
        use {Server as S, Trouble as T};
        let Field { world, cutoff } = field;
        let private = world.private()?;
        let Private { fleet, services, .. } = private;
        let mut lasts = |up_to_ms: u64| Duration::from_millis(rng.random_range(SHORTEST_MS..=up_to_ms));
        let (short, long) = (lasts(500), lasts(2_500));
        let engine = rng.random_range(0..fleet.len());
        let on = |to, trouble, lasts| on_link(private, engine, to, trouble, lasts);
        match self {
            Self::KillEngine => {
                fleet.kill(engine).await?;
                sleep(short).await;
                fleet.start(engine).await?;
            }
            Self::PauseEngine => {
                fleet.pause(engine).await?;
                sleep(*cutoff + long).await;
                fleet.resume(engine).await?;
            }
            Self::CrashPostgres => crash_postgres(world).await?,
            Self::KillPostgres => {
                services.kill(Server::Postgres).await?;
                sleep(short).await;
                services.start_again(Server::Postgres).await?;
            }
            Self::RestartPostgres => {
                services.stop_one(Server::Postgres).await?;
                sleep(short).await;
                services.start_again(Server::Postgres).await?;
            }
            Self::KillRedis => {
                services.kill(Server::Redis).await?;
                sleep(long).await;
                services.start_again(Server::Redis).await?;
            }
            Self::FlushRedis => redis_does(world, &["FLUSHALL"]).await?,
            Self::FlushScripts => redis_does(world, &["SCRIPT", "FLUSH"]).await?,
            Self::StaleRedis => {
                redis_does(world, &["SAVE"]).await?;
                sleep(long).await;
                services.kill(Server::Redis).await?;
                services.start_again(Server::Redis).await?;
                let snapshot = redis_folder(world).await?.join("dump.rdb");
                fs::remove_file(&snapshot).context("the snapshot could not be removed")?;
            }
            Self::SlowPostgres => on(S::Postgres, T::Slow(short / 4), long).await?,
            Self::SilentPostgres => on(S::Postgres, T::Silent, long).await?,
            Self::CutPostgres => on(S::Postgres, T::Cut, short).await?,
            Self::CutCommits => on(S::Postgres, T::CutAtCommit, long).await?,
            Self::SlowRedis => on(S::Redis, T::Slow(short / 4), long).await?,
            Self::SilentRedis => on(S::Redis, T::Silent, long).await?,
            Self::CutRedis => on(S::Redis, T::Cut, short).await?,
            Self::ProviderDown => provider(world, "down", 100, *cutoff + long).await?,
            Self::ProviderDoubtful => {
                let modes = ["answer_lost", "error_after_charge", "stored_error", "hang"];
                let mode = modes[rng.random_range(0..modes.len())];
                provider(world, mode, 50, long).await?;
            }
            Self::ProviderBusy => provider(world, "rate_limited", 70, long).await?,
            Self::ClockJump => {
                fleet.set_clock(if rng.random() { JUMP_S } else { -JUMP_S })?;
                sleep(long).await;
                fleet.set_clock(0)?;
            }
            Self::FullDisk => full_disk(private, long).await?,
            Self::SlowClients => slow_clients::pester(&world.engines()[engine], long, rng).await?,
        }
        Ok(())
    }
}

/// Postgres takes the death of any of its processes for a sign that its memory can't be trusted, and starts over.
async fn crash_postgres(world: &World) -> anyhow::Result<()> {
    let victim: Option<i32> =
        sqlx::query_scalar("SELECT pid FROM pg_stat_activity WHERE usename = 'fluxbuy_engine' LIMIT 1")
            .fetch_optional(world.database())
            .await?;
    if let Some(pid) = victim {
        kill(Pid::from_raw(pid), Signal::SIGKILL).context("a process of postgres could not be killed")?;
    }
    Ok(())
}

async fn redis_does(world: &World, words: &[&str]) -> anyhow::Result<()> {
    let mut command = redis::cmd(words[0]);
    for word in &words[1..] {
        command.arg(word);
    }
    command
        .query_async::<()>(&mut world.redis().await?)
        .await
        .with_context(|| format!("redis did not do {words:?}"))
}

async fn redis_folder(world: &World) -> anyhow::Result<PathBuf> {
    let (_, folder): (String, PathBuf) = redis::cmd("CONFIG")
        .arg("GET")
        .arg("dir")
        .query_async::<(String, String)>(&mut world.redis().await?)
        .await
        .map(|(name, folder)| (name, folder.into()))?;
    Ok(folder)
}

async fn on_link(
    private: &Private,
    engine: usize,
    to: Server,
    trouble: Trouble,
    lasts: Duration,
) -> anyhow::Result<()> {
    let links = private
        .links
        .get(engine)
        .context("the engines' links can't be troubled")?;
    let link = match to {
        Server::Postgres => &links.postgres,
        Server::Redis => &links.redis,
    };
    link.trouble(trouble);
    sleep(lasts).await;
    link.trouble(Trouble::None);
    Ok(())
}

async fn provider(world: &World, mode: &str, percent: u8, lasts: Duration) -> anyhow::Result<()> {
    world.fault(&json!({"mode": mode, "percent": percent})).await?;
    sleep(lasts).await;
    world.fault(&json!({"mode": "none"})).await
}

async fn full_disk(private: &Private, lasts: Duration) -> anyhow::Result<()> {
    let disk = private
        .disk
        .as_ref()
        .context("the services have no disk of their own")?;
    disk.fill()?;
    sleep(lasts).await;
    disk.relieve()?;
    // It may have given up, and is started again as whatever watches over it would do.
    if private.services.is_gone(Server::Postgres).await? {
        private.services.start_again(Server::Postgres).await?;
    }
    Ok(())
}
