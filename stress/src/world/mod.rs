//! Where a scenario takes place: private servers and an engine of its own, or engines that run already.

mod children;
mod engine;
pub mod external;
mod program;
mod services;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection as _, PgConnection, PgPool};
use uuid::Uuid;

pub use children::{mortal_command, ready_line};
pub use engine::Metrics;
pub use external::Target;

use children::Logs;
use engine::Engine;
use services::Services;

use crate::load::Peer;

/// What the provider signs with: base64 of 24 bytes.
const WEBHOOK_SECRET: &str = "whsec_c3RyZXNzIGhhcm5lc3Mgc2VjcmV0ISEh";

/// A setting of the engine, as `section.key` and value.
pub type Setting = (&'static str, String);

/// What a scenario asks of its world.
#[derive(Debug, Clone, Default)]
pub struct Needs {
    /// How the mock provider behaves.
    pub provider: Provider,
    /// Settings of the engine, as `section.key` and value.
    pub settings: Vec<Setting>,
    /// The engine must be the one that can leave its guards out.
    pub guard_off: bool,
    /// The provider talks back by this plan, in the mock's own words; `None`, and it doesn't.
    pub webhooks: Option<serde_json::Value>,
}

/// How the mock provider behaves.
#[derive(Debug, Clone, Copy)]
pub struct Provider {
    /// Shortest time that a charge takes.
    pub latency_min_ms: u64,
    /// Longest.
    pub latency_max_ms: u64,
    /// Share of charges that are declined.
    pub decline_percent: u8,
}

impl Default for Provider {
    /// The mock's own defaults: 1 to 4 s, and one in five fails.
    fn default() -> Self {
        Self {
            latency_min_ms: 1_000,
            latency_max_ms: 4_000,
            decline_percent: 20,
        }
    }
}

/// Where the world comes from.
pub enum Place {
    /// It is made for the scenario, and removed after it.
    Private(Programs),
    /// It is there already, and stays.
    External(Target),
}

/// Programs to start instead of building them, and what to do with what they log.
#[derive(Debug, Clone, clap::Args)]
pub struct Programs {
    /// The engine's program; without it, it is built with cargo.
    #[arg(long, env = "FLUXBUY_ENGINE", value_name = "PATH")]
    pub engine: Option<PathBuf>,
    /// The engine for `guard-off`, built with the feature `test-switches`; without it, it is built.
    #[arg(long, env = "FLUXBUY_GUARD_OFF_ENGINE", value_name = "PATH")]
    pub guard_off_engine: Option<PathBuf>,
    /// Keep the logs of engine and services in this directory.
    #[arg(long, value_name = "DIR")]
    pub logs: Option<PathBuf>,
}

/// Services, engines, and a way into each. What is private is gone when this is dropped.
pub struct World {
    engines: Vec<Peer>,
    provider: Peer,
    redis: redis::aio::MultiplexedConnection,
    database: PgPool,
    target: Target,
    private: Option<Private>,
}

struct Private {
    // Dropped in this order: the engine before what it stands on, the logs last.
    /// `None` while it is stopped.
    engine: Option<Engine>,
    services: Services,
    logs: Logs,
    program: PathBuf,
    /// Engines that were started so far; each has a log of its own.
    started: usize,
}

/// Processes of a private world.
#[derive(Debug, Clone, Copy)]
pub struct Pids {
    /// The engine.
    pub engine: u32,
    /// Redis.
    pub redis: u32,
    /// Postgres' first process, parent of all of its others.
    pub postgres: u32,
}

impl World {
    /// Makes it, or connects to it.
    ///
    /// # Errors
    /// When something can't be built, started or reached; what the programs logged is printed then.
    pub async fn open(place: &Place, needs: &Needs, label: &str, seed: u64) -> anyhow::Result<Self> {
        match place {
            Place::External(target) => Self::connect(target.clone(), None).await,
            Place::Private(programs) => {
                let logs = Logs::new(programs.logs.as_deref(), label)?;
                match Self::open_private(programs, needs, &logs, seed).await {
                    Ok((target, engine, services, program)) => {
                        let private = Private {
                            engine: Some(engine),
                            services,
                            logs,
                            program,
                            started: 1,
                        };
                        Self::connect(target, Some(private)).await
                    }
                    Err(error) => {
                        logs.print();
                        Err(error)
                    }
                }
            }
        }
    }

    async fn open_private(
        programs: &Programs,
        needs: &Needs,
        logs: &Logs,
        seed: u64,
    ) -> anyhow::Result<(Target, Engine, Services, PathBuf)> {
        let program = program::find(programs, needs.guard_off).await?;
        let services = Services::start(&program, &needs.provider, seed, logs).await?;
        let at = services.addresses();
        let mut settings = needs.settings.clone();
        if needs.webhooks.is_some() {
            settings.push(("webhooks.secrets", WEBHOOK_SECRET.to_owned()));
        }
        let engine = Engine::start(&program, &all_settings(at, &settings), logs, "engine").await?;
        if let Some(plan) = &needs.webhooks {
            let mut plan = plan.clone();
            plan["url"] = format!("{}/v1/webhooks/mock", engine.url()).into();
            plan["secret"] = WEBHOOK_SECRET.into();
            plan["seed"] = seed.into();
            let provider = Peer::from_url(&at.provider_url)?;
            provider
                .post_json::<serde_json::Value>("/webhooks", &plan, 200)
                .await?;
        }
        let target = Target {
            engines: vec![engine.url().to_owned()],
            postgres_url: at.postgres_owner_url.clone(),
            redis_url: at.redis_url.clone(),
            provider_url: at.provider_url.clone(),
        };
        Ok((target, engine, services, program))
    }

    async fn connect(target: Target, private: Option<Private>) -> anyhow::Result<Self> {
        let engines = target
            .engines
            .iter()
            .map(|url| Peer::from_url(url))
            .collect::<anyhow::Result<Vec<_>>>()
            .context("--url")?;
        let provider = Peer::from_url(&target.provider_url).context("--provider-url")?;
        // A pool would try for a while and then only say that it timed out.
        let unreachable = "--postgres-url: the database can't be reached";
        PgConnection::connect(&target.postgres_url)
            .await
            .context(unreachable)?
            .close()
            .await?;
        let database = PgPoolOptions::new()
            .max_connections(4)
            .acquire_timeout(Duration::from_secs(30))
            .connect(&target.postgres_url)
            .await
            .context(unreachable)?;
        let redis = redis::Client::open(target.redis_url.as_str())
            .context("--redis-url")?
            .get_multiplexed_async_connection()
            .await
            .context("--redis-url: redis can't be reached")?;
        Ok(Self {
            engines,
            provider,
            redis,
            database,
            target,
            private,
        })
    }

    /// Stops the private engine and waits for its drain; the services stay.
    ///
    /// # Errors
    /// When it doesn't end well.
    pub async fn stop_engine(&mut self) -> anyhow::Result<()> {
        match self.private.as_mut().and_then(|private| private.engine.take()) {
            Some(engine) => engine.stop().await,
            None => Ok(()),
        }
    }

    /// Kills the private engine without a drain; the services stay.
    ///
    /// # Errors
    /// When it can't be killed.
    pub async fn kill_engine(&mut self) -> anyhow::Result<()> {
        match self.private.as_mut().and_then(|private| private.engine.take()) {
            Some(engine) => engine.kill().await,
            None => Ok(()),
        }
    }

    /// Starts an engine with these settings on the same services, stopping the one before it. Tells how long it took from its
    /// spawn to its ready line.
    ///
    /// # Errors
    /// When the world isn't private, or the engine doesn't come up.
    pub async fn restart_engine(&mut self, settings: &[Setting]) -> anyhow::Result<Duration> {
        self.stop_engine().await?;
        let private = self
            .private
            .as_mut()
            .context("only a private engine is started anew")?;
        private.started += 1;
        let log = format!("engine-{}", private.started);
        let all = all_settings(private.services.addresses(), settings);
        let spawned = Instant::now();
        let engine = Engine::start(&private.program, &all, &private.logs, &log).await?;
        let ready_after = spawned.elapsed();
        self.engines = vec![Peer::from_url(engine.url())?];
        private.engine = Some(engine);
        Ok(ready_after)
    }

    /// Its processes.
    ///
    /// # Errors
    /// When the world isn't private, or its engine is stopped.
    pub fn pids(&self) -> anyhow::Result<Pids> {
        let private = self
            .private
            .as_ref()
            .context("the processes of others are unknown")?;
        let engine = private.engine.as_ref().and_then(Engine::pid);
        let at = private.services.addresses();
        Ok(Pids {
            engine: engine.context("the engine is stopped")?,
            redis: at.redis_pid,
            postgres: at.postgres_pid,
        })
    }

    /// Where its servers are.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The engines' front doors; at least one.
    pub fn engines(&self) -> &[Peer] {
        &self.engines
    }

    /// The payment provider.
    pub fn provider(&self) -> &Peer {
        &self.provider
    }

    /// Has the provider misbehave, in the mock's own words.
    ///
    /// # Errors
    /// When it doesn't take it.
    pub async fn fault(&self, fault: &serde_json::Value) -> anyhow::Result<()> {
        self.provider
            .post_json::<serde_json::Value>("/faults", fault, 200)
            .await
            .map(|_| ())
    }

    /// The database, as whoever may read all of it.
    pub fn database(&self) -> &PgPool {
        &self.database
    }

    /// Redis.
    pub fn redis(&self) -> redis::aio::MultiplexedConnection {
        self.redis.clone()
    }

    /// Where the gate keeps what it has of a sale; nothing there, and it knows nothing of it.
    pub fn gate_key(sale: Uuid) -> String {
        format!("{{sale:{sale}}}:state")
    }

    /// Whether this world was made for the scenario alone, so that it may be bent.
    pub fn is_private(&self) -> bool {
        self.private.is_some()
    }

    /// What all engines count together.
    ///
    /// # Errors
    /// When one of them doesn't answer.
    pub async fn metrics(&self) -> anyhow::Result<Metrics> {
        let mut all = Metrics::default();
        for engine in &self.engines {
            let answer = engine.get("/metrics").await?;
            anyhow::ensure!(answer.status == 200, "GET /metrics: {}", answer.status);
            all.add(&String::from_utf8_lossy(&answer.body));
        }
        Ok(all)
    }

    /// Prints what the private programs have logged.
    pub fn print_logs(&self) {
        if let Some(private) = &self.private {
            private.logs.print();
        }
    }

    /// Stops what is private, and waits until it is gone.
    ///
    /// # Errors
    /// When the engine or the services don't end well.
    pub async fn close(mut self) -> anyhow::Result<()> {
        self.database.close().await;
        let Some(Private {
            engine,
            services,
            logs,
            ..
        }) = self.private.take()
        else {
            return Ok(());
        };
        let drained = match engine {
            Some(engine) => engine.stop().await,
            None => Ok(()),
        };
        let stopped = match drained {
            Ok(()) => services.stop().await,
            Err(error) => {
                services.stop().await.ok();
                Err(error)
            }
        };
        if stopped.is_err() {
            logs.print();
        }
        stopped
    }
}

/// A scenario's settings, after those that say where the services are.
fn all_settings(at: &services::Addresses, settings: &[Setting]) -> Vec<Setting> {
    let mut all = vec![
        ("postgres.url", at.postgres_engine_url.clone()),
        ("redis.url", at.redis_url.clone()),
        ("provider.url", at.provider_url.clone()),
        ("http.listen", "127.0.0.1:0".to_owned()),
    ];
    all.extend(settings.iter().cloned());
    all
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_logs();
        }
    }
}

/// Raises the limit of open files as far as it may be raised; children inherit it. A crowd needs a socket for each buyer.
///
/// # Errors
/// When the limits can't be read.
pub fn allow_many_sockets() -> anyhow::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("the limit of open files can't be read")?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).ok();
    }
    Ok(())
}
