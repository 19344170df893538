//! Where a scenario takes place: private servers and an engine of its own, or engines that run already.

mod children;
mod engine;
pub mod external;
mod fleet;
mod ports;
mod program;
mod proxy;
mod services;
mod small_disk;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use redis::AsyncConnectionConfig;
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection as _, PgConnection, PgPool};
use uuid::Uuid;

pub use children::{mortal_command, ready_line};
pub use engine::{Conditions, Metrics};
pub use external::Target;
pub use fleet::Fleet;
pub use proxy::{Proxy, Trouble};
pub use services::{Server, Services};
pub use small_disk::SmallDisk;

use children::Logs;

use crate::load::Peer;

/// What the provider signs with: base64 of 24 bytes.
const WEBHOOK_SECRET: &str = "whsec_c3RyZXNzIGhhcm5lc3Mgc2VjcmV0ISEh";

/// A snapshot that Redis writes while a crowd asks takes its time.
const REDIS_ANSWERS_WITHIN: Duration = Duration::from_secs(20);

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
    /// Engines besides the first, on the same services.
    pub more_engines: usize,
    /// Each engine reaches Postgres and Redis through proxies of its own, so that its links can be troubled.
    pub proxies: bool,
    /// What is done to the engines' surroundings.
    pub conditions: Conditions,
    /// The services' files are on a disk of so many MiB.
    pub disk_mib: Option<u32>,
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
    redis: redis::Client,
    database: PgPool,
    target: Target,
    private: Option<Private>,
}

/// What a world has that was made for it.
pub struct Private {
    // Dropped in this order: the engines before what they stand on.
    /// The engines.
    pub fleet: Fleet,
    /// For each engine, its ways to Postgres and to Redis, where they can be troubled.
    pub links: Vec<Links>,
    /// Postgres, Redis and the provider.
    pub services: Services,
    /// Where the services keep their files, if that is something of its own.
    pub disk: Option<SmallDisk>,
}

/// An engine's ways to what it stands on.
pub struct Links {
    /// To Postgres.
    pub postgres: Proxy,
    /// To Redis.
    pub redis: Proxy,
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
                let program = program::find(programs, needs.guard_off).await?;
                let disk = needs.disk_mib.map(SmallDisk::mount).transpose()?;
                let folder = disk.as_ref().map(SmallDisk::path);
                let services = Services::start(&program, &needs.provider, seed, folder, &logs).await;
                let services = services.inspect_err(|_| logs.print())?;
                let mut private = Private {
                    fleet: Fleet::new(program, logs, needs.conditions.clone())?,
                    links: Vec::new(),
                    services,
                    disk,
                };
                match private.populate(needs, seed).await {
                    Ok(target) => Self::connect(target, Some(private)).await,
                    Err(error) => {
                        private.fleet.logs().print();
                        Err(error)
                    }
                }
            }
        }
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
        let redis = redis::Client::open(target.redis_url.as_str()).context("--redis-url")?;
        let world = Self {
            engines,
            provider,
            redis,
            database,
            target,
            private,
        };
        world.redis().await.context("--redis-url")?;
        Ok(world)
    }

    /// What was made for it.
    ///
    /// # Errors
    /// When the world is somebody else's.
    pub fn private(&self) -> anyhow::Result<&Private> {
        self.private
            .as_ref()
            .context("this is done only to what is private")
    }

    /// Stops the first private engine and waits for its drain; the services stay.
    ///
    /// # Errors
    /// When it doesn't end well.
    pub async fn stop_engine(&mut self) -> anyhow::Result<()> {
        self.private()?.fleet.stop(0).await
    }

    /// Kills the first private engine without a drain; the services stay.
    ///
    /// # Errors
    /// When it can't be killed.
    pub async fn kill_engine(&mut self) -> anyhow::Result<()> {
        self.private()?.fleet.kill(0).await
    }

    /// Starts the first private engine with these settings on the same services, stopping it first where it runs. Tells how long it took
    /// from its spawn to its ready line.
    ///
    /// # Errors
    /// When the world isn't private, or the engine doesn't come up.
    pub async fn restart_engine(&mut self, settings: &[Setting]) -> anyhow::Result<Duration> {
        let Private { fleet, services, .. } = self.private()?;
        fleet.stop(0).await?;
        fleet
            .set(0, all_settings(services.addresses(), None, settings))
            .await?;
        fleet.start(0).await
    }

    /// Its processes.
    ///
    /// # Errors
    /// When the world isn't private, or its engine is stopped.
    pub async fn pids(&self) -> anyhow::Result<Pids> {
        let Private { fleet, services, .. } = self.private()?;
        let at = services.addresses();
        Ok(Pids {
            engine: fleet.pid(0).await?,
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

    /// Redis, by a connection of its own: those of before may have ended with the server.
    ///
    /// # Errors
    /// When it can't be reached.
    pub async fn redis(&self) -> anyhow::Result<redis::aio::MultiplexedConnection> {
        let patient = AsyncConnectionConfig::new().set_response_timeout(Some(REDIS_ANSWERS_WITHIN));
        let connecting = self.redis.get_multiplexed_async_connection_with_config(&patient);
        connecting.await.context("redis can't be reached")
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
            private.fleet.logs().print();
        }
    }

    /// Stops what is private, and waits until it is gone.
    ///
    /// # Errors
    /// When the engine or the services don't end well.
    pub async fn close(mut self) -> anyhow::Result<()> {
        self.database.close().await;
        let Some(Private {
            fleet,
            links,
            services,
            disk,
        }) = self.private.take()
        else {
            return Ok(());
        };
        let drained = fleet.stop_all().await;
        drop(links);
        let stopped = services.stop().await;
        let ended = drained.and(stopped);
        if ended.is_err() {
            fleet.logs().print();
        }
        disk.map_or(Ok(()), SmallDisk::unmount)?;
        ended
    }
}

impl Private {
    /// Starts its engines, and has the provider talk to them. Returns where everything is.
    async fn populate(&mut self, needs: &Needs, seed: u64) -> anyhow::Result<Target> {
        let mut settings = needs.settings.clone();
        if needs.webhooks.is_some() {
            settings.push(("webhooks.secrets", WEBHOOK_SECRET.to_owned()));
        }
        let at = self.services.addresses();
        for _ in 0..=needs.more_engines {
            let links = if needs.proxies {
                let postgres = Proxy::start(&at.postgres_engine_url).await?;
                let redis = Proxy::start(&at.redis_url).await?;
                Some(Links { postgres, redis })
            } else {
                None
            };
            self.fleet
                .add(all_settings(at, links.as_ref(), &settings))
                .await?;
            self.links.extend(links);
        }
        let urls = self.fleet.urls();
        if let Some(plan) = &needs.webhooks {
            let mut plan = plan.clone();
            plan["url"] = format!("{}/v1/webhooks/mock", urls[0]).into();
            plan["secret"] = WEBHOOK_SECRET.into();
            plan["seed"] = seed.into();
            let provider = Peer::from_url(&at.provider_url)?;
            provider
                .post_json::<serde_json::Value>("/webhooks", &plan, 200)
                .await?;
        }
        Ok(Target {
            engines: urls,
            postgres_url: at.postgres_owner_url.clone(),
            redis_url: at.redis_url.clone(),
            provider_url: at.provider_url.clone(),
        })
    }
}

/// A scenario's settings, after those that say where the services are.
fn all_settings(at: &services::Addresses, links: Option<&Links>, settings: &[Setting]) -> Vec<Setting> {
    let (postgres, redis) = match links {
        Some(links) => (links.postgres.url(), links.redis.url()),
        None => (at.postgres_engine_url.as_str(), at.redis_url.as_str()),
    };
    let mut all = vec![
        ("postgres.url", postgres.to_owned()),
        ("redis.url", redis.to_owned()),
        ("provider.url", at.provider_url.clone()),
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
