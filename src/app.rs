//! The composition root: the only place that starts actors and knows how they hang together.
//!
//! Start: metrics, Postgres (waited for), Redis (done without, if need be), writer, orders, supervisor, sales, sweeper,
//! workers, front door. Drain: front door, charges under way, pools; what is PENDING by then is found again at the
//! next start.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use actix_rt::{Arbiter, System};
use anyhow::{Context as _, bail};
use tokio::runtime::{Handle, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use crate::actors::breaker::{Breaker, Breakers};
use crate::actors::conservation::Conservation;
use crate::actors::desk::{Desk, Probes};
use crate::actors::inbox::{self, Inbox};
use crate::actors::order::{self, Orders};
use crate::actors::payment_supervisor::{self, Supervisor};
use crate::actors::provider_tasks::{TaskWaker, TaskWorker};
use crate::actors::reconciler::ReconcileWorker;
use crate::actors::refunds::Refunds;
use crate::actors::releaser::Releaser;
use crate::actors::sale::{self, Committer, Sales};
use crate::actors::sale_canceller::{CancelWaker, SaleCanceller};
use crate::actors::sweeper::{self, Reaper, Sweeper};
use crate::actors::transition_writer::TransitionWriter;
use crate::actors::watch::Watch;
use crate::config::{Config, ProviderKind, SignatureScheme};
use crate::gate::{self, Gate};
use crate::http;
use crate::metrics::{self, Exporter, ProviderName};
use crate::provider::PaymentProvider;
use crate::provider::metered::Metered;
use crate::provider::mock::{self, MockProvider};
use crate::provider::stripe::{self, Stripe};
use crate::provider::webhook::{Reader, Webhooks};
use crate::reconcile::{LoadsAlone, Reconciler};
use crate::signature::{Key, Scheme, Verifier};
use crate::sockets;
use crate::store::{self, Store};

/// How long a start waits for Postgres.
const WAIT_FOR_POSTGRES: Duration = Duration::from_secs(30);
/// Failures in a row after which Postgres or Redis is given a rest, and how long it is.
const STORE_FAILURES: u32 = 3;
const STORE_PAUSE: Duration = Duration::from_millis(500);
const GATE_PAUSE: Duration = Duration::from_millis(500);
/// Open files besides connections of buyers, charges, and Postgres: Redis, logs, the runtime's own, connections that are just closing.
const SPARE_FILES: u64 = 48;
/// Connections of buyers, or charges, below which an engine isn't worth starting.
const FEWEST: usize = 16;

/// Runs the engine until SIGTERM or SIGINT, then drains it.
///
/// # Errors
/// When it can't start: a port that is taken, a schema that is missing, a Redis that would throw keys away.
pub fn serve(config: Config) -> anyhow::Result<()> {
    let runtime = Arc::new(Runtime::new().context("the runtime could not be started")?);
    let for_system = runtime.clone();
    // Actors' arbiters share this one runtime: sockets belong to it, and a busy actor stalls no connection.
    let system = System::with_tokio_rt(move || for_system);
    system.block_on(run(config, runtime))
}

async fn run(config: Config, shared: Arc<Runtime>) -> anyhow::Result<()> {
    let runtime = shared.handle().clone();
    let exporter = metrics::install();
    let config = within_open_files(config)?;
    let store = Store::new(&config.postgres)?;
    wait_for_postgres(&store).await?;
    let gate = redis(&config)?;
    match gate.check_policy().await {
        Ok(()) => {}
        Err(error @ gate::Error::EvictingPolicy { .. }) => {
            bail!("{error}: set `maxmemory-policy noeviction`")
        }
        Err(error) => tracing::warn!(%error, "starting without redis: sales go through postgres alone"),
    }
    let provider = payment_provider(&config)?;
    let neighbours = Neighbours {
        webhooks: webhooks(&config)?,
        store,
        gate,
        provider,
    };
    let listener = sockets::listen(config.http.listen)
        .with_context(|| format!("http.listen: {} can't be listened on", config.http.listen))?;
    let address = listener.local_addr()?;

    let arbiter = |shared: Arc<Runtime>| Arbiter::with_tokio_rt(move || shared);
    let arbiters = Arbiters {
        sales: arbiter(shared.clone()),
        orders: arbiter(shared),
    };
    let engine = Engine::start(&config, neighbours, &arbiters, &runtime, exporter);

    match engine.store.sales_on_offer().await {
        Ok(sales) => {
            for sale in &sales {
                engine.desk.warn_of_want_of_capacity(sale);
            }
        }
        // A warning that isn't given is no reason not to sell.
        Err(error) => tracing::warn!(%error, "sales on offer can't be looked at for want of capacity"),
    }

    // Bound and ready: whoever waits for this line may connect.
    println!("fluxbuy ready at http://{}", reachable(address));
    tracing::info!(%address, version = env!("CARGO_PKG_VERSION"), "ready");

    let render = move || exporter.render();
    let report = http::serve(
        listener,
        engine.desk.clone(),
        &config.http,
        render,
        stop_signal()?,
    )
    .await;
    tracing::info!(?report, "the front door is closed");
    engine.drain(config.http.drain_timeout()).await;
    Ok(())
}

/// The settings, with no more connections and charges than the system allows open files for: an engine that runs out of them takes no
/// connections at all, and sends no charges.
///
/// # Errors
/// When hardly any would be left.
fn within_open_files(mut config: Config) -> anyhow::Result<Config> {
    let (connections, charges) = (config.http.max_connections, config.payment.max_in_flight);
    let postgres = &config.postgres;
    let others = u64::from(postgres.reserve_connections)
        + u64::from(postgres.settle_connections)
        + u64::from(postgres.read_connections)
        + SPARE_FILES;
    let wanted = (connections + charges) as u64;
    let allowed = sockets::allow_open_files(wanted + others)?;
    let left = allowed.saturating_sub(others);
    if left >= wanted {
        return Ok(config);
    }
    let share = |of: usize| (of as u64 * left / wanted) as usize;
    config.http.max_connections = share(connections).max(FEWEST);
    config.payment.max_in_flight = share(charges).max(FEWEST);
    let fitting = (config.http.max_connections + config.payment.max_in_flight) as u64;
    if fitting > left {
        bail!(
            "the system allows {allowed} open files, and an engine needs {} at least: raise the limit (ulimit -n)",
            others + 2 * FEWEST as u64
        );
    }
    tracing::warn!(
        allowed,
        needed = wanted + others,
        max_connections = config.http.max_connections,
        max_in_flight = config.payment.max_in_flight,
        "the system allows fewer open files than http.max_connections and payment.max_in_flight need: both are lowered"
    );
    Ok(config)
}

/// The gate in the Redis that is configured.
fn redis(config: &Config) -> Result<Gate, gate::Error> {
    Gate::new(&gate::Settings {
        url: config.redis.url.as_str().to_owned(),
        response_timeout: config.redis.response_timeout(),
        connect_timeout: config.redis.connect_timeout(),
    })
}

/// A reconciler by itself, beside whatever engines there are: for a command.
///
/// # Errors
/// When an address isn't one.
pub fn reconciler(config: &Config) -> anyhow::Result<Reconciler> {
    let (store, gate) = (Store::new(&config.postgres)?, redis(config)?);
    let loads = LoadsAlone {
        store: store.clone(),
        gate: gate.clone(),
    };
    Ok(Reconciler::new(
        store,
        gate,
        payment_provider(config)?,
        Arc::new(loads),
        config.sweeper.reaper_grace(),
    ))
}

/// The client of the payment provider that is configured.
///
/// # Errors
/// When its address isn't one.
pub fn payment_provider(config: &Config) -> anyhow::Result<Arc<dyn PaymentProvider>> {
    Ok(match config.provider.kind {
        ProviderKind::Mock => Arc::new(Metered(MockProvider::new(
            config.provider.url.as_str(),
            config.payment.charge_timeout(),
            config.payment.max_in_flight,
            config.provider.two_step,
        )?)),
        ProviderKind::Stripe => Arc::new(Metered(Stripe::new(
            config.provider.url.as_str(),
            config.provider.secret_key.reveal(),
            config.payment.charge_timeout(),
            config.payment.max_in_flight,
        )?)),
    })
}

/// Who is believed, and how events are read.
fn webhooks(config: &Config) -> anyhow::Result<Webhooks> {
    let scheme = match config.webhooks.scheme {
        SignatureScheme::Standard => Scheme::Standard,
        SignatureScheme::Stripe => Scheme::Stripe,
    };
    let keys = config
        .webhooks
        .secrets
        .each()
        .map(|secret| Key::parse(scheme, secret))
        .collect::<Result<Vec<_>, _>>()
        .context("webhooks.secrets: one of them (allowed with scheme \"standard\": base64, after whsec_ or without)")?;
    let (provider, reader): (_, Reader) = match config.provider.kind {
        ProviderKind::Mock => (ProviderName::Mock, mock::read_event),
        ProviderKind::Stripe => (ProviderName::Stripe, stripe::read_event),
    };
    Ok(Webhooks {
        provider,
        verifier: Verifier::new(scheme, keys, config.webhooks.tolerance()),
        reader,
    })
}

/// Whom the engine talks to.
struct Neighbours {
    store: Store,
    gate: Gate,
    provider: Arc<dyn PaymentProvider>,
    webhooks: Webhooks,
}

/// Threads for actors. Hot sales have one to themselves, without I/O or timers.
struct Arbiters {
    sales: Arbiter,
    orders: Arbiter,
}

/// The running actors.
struct Engine {
    desk: Desk,
    supervisor: Supervisor,
    orders: Orders,
    store: Store,
}

impl Engine {
    fn start(
        config: &Config,
        neighbours: Neighbours,
        arbiters: &Arbiters,
        runtime: &Handle,
        exporter: Exporter,
    ) -> Self {
        let Neighbours {
            store,
            gate,
            provider,
            webhooks,
        } = neighbours;
        let needs_payment_method = provider.needs_payment_method();
        let store_breaker = Arc::new(Breaker::new(STORE_FAILURES, STORE_PAUSE));
        let provider_breakers = Arc::new(Breakers::new(
            config.payment.breaker_failures,
            config.payment.breaker_open(),
        ));
        let releaser = Releaser::start(runtime, store.clone(), gate.clone());
        let writer = TransitionWriter::start(runtime, store.clone(), releaser.clone(), store_breaker.clone());
        let tasks = TaskWaker::default();
        let refunds = Refunds {
            store: store.clone(),
            releaser: releaser.clone(),
        };
        let order_parts = order::Parts {
            writer,
            provider: provider.clone(),
            provider_breakers: provider_breakers.clone(),
            store: store.clone(),
            tasks: tasks.clone(),
            refunds: refunds.clone(),
            give_up: config.payment.give_up(),
            fail_in_doubt: config.sweeper.fail_in_doubt,
            #[cfg(feature = "test-switches")]
            claim_without_guard: config.test.claim_without_guard,
            #[cfg(feature = "test-switches")]
            webhooks_without_guard: config.test.webhooks_without_guard,
        };
        let orders = Orders::new(Arc::new(order_parts), arbiters.orders.handle(), runtime.clone());
        let supervisor = Supervisor::start(
            payment_supervisor::Limits {
                max_in_flight: config.payment.max_in_flight,
                queue_orders: config.payment.queue_orders,
                scan_period: config.payment.scan_period(),
            },
            orders.clone(),
            store.clone(),
            provider_breakers.clone(),
            &arbiters.orders.handle(),
            runtime.clone(),
        );
        let committer = Committer::new(
            store.clone(),
            runtime.clone(),
            sale::CommitLimits {
                max_orders: config.sale.max_batch,
                max_under_way: config.sale.commits_in_flight,
                // One connection stays for batches that take the careful way.
                max_under_way_full: config
                    .sale
                    .commits_in_flight
                    .max(config.postgres.reserve_connections as usize - 1),
                patience: config.postgres.acquire_timeout(),
            },
        );
        let sale_parts = sale::Parts {
            store: store.clone(),
            gate: gate.clone(),
            gate_breaker: Breaker::new(1, GATE_PAUSE),
            store_breaker: store_breaker.clone(),
            committer: Arc::new(committer),
            supervisor: supervisor.clone(),
        };
        let sales = Sales::new(
            Arc::new(sale_parts),
            sale::Limits {
                max_batch: config.sale.max_batch,
                batches_in_flight: config.sale.batches_in_flight,
                mailbox_requests: config.sale.mailbox_requests,
            },
            arbiters.sales.handle(),
            runtime.clone(),
        );
        let selling = sales.clone();
        releaser.tell(move |sale| selling.freed(sale));

        let period = config.sweeper.period();
        Sweeper::launch(
            sweeper::Parts {
                store: store.clone(),
                orders: orders.clone(),
                releaser,
                reaper: Reaper::new(store.clone(), gate.clone(), sales.clone()),
                limits: sweeper::Limits {
                    period,
                    cutoff: config.sweeper.cutoff(),
                    reaper_period: config.sweeper.reaper_period(),
                    reaper_grace: config.sweeper.reaper_grace(),
                },
            },
            &arbiters.orders.handle(),
            runtime.clone(),
        );
        let reconciler = ReconcileWorker {
            reconciler: Reconciler::new(
                store.clone(),
                gate.clone(),
                provider.clone(),
                Arc::new(sales.clone()),
                config.sweeper.reaper_grace(),
            ),
            store: store.clone(),
            tasks: tasks.clone(),
            period: config.reconcile.period(),
            lookback: config.reconcile.lookback(),
        };
        runtime.spawn(reconciler.run());
        let conservation = Conservation {
            store: store.clone(),
            sales: sales.clone(),
            period: config.reconcile.gap_period(),
        };
        runtime.spawn(conservation.run());
        let worker = TaskWorker {
            store: store.clone(),
            refunds,
            provider,
            max_tries: config.payment.task_tries,
            loan: config.payment.charge_timeout() * 3,
            period,
            waker: tasks.clone(),
        };
        runtime.spawn(worker.run());

        let probes = Arc::new(Probes::default());
        let watch = Watch {
            store: store.clone(),
            gate,
            probes: probes.clone(),
            sales: sales.clone(),
            store_breaker,
            provider_breakers,
            exporter,
            evicts: AtomicBool::new(false),
        };
        runtime.spawn(watch.run());
        let cancellations = CancelWaker::default();
        let canceller = SaleCanceller {
            store: store.clone(),
            orders: orders.clone(),
            tasks: tasks.clone(),
            period,
            waker: cancellations.clone(),
        };
        runtime.spawn(canceller.run());
        let inbox = Inbox::start(
            runtime,
            store.clone(),
            orders.clone(),
            inbox::Limits {
                scan_period: config.webhooks.scan_period(),
                event_tries: config.webhooks.event_tries,
                #[cfg(feature = "test-switches")]
                without_guard: config.test.webhooks_without_guard,
            },
        );
        let desk = Desk {
            store: store.clone(),
            sales,
            orders: orders.clone(),
            tasks,
            cancellations,
            webhooks,
            inbox,
            probes,
            runtime: runtime.clone(),
            charges_before_cutoff: config.charges_before_cutoff(),
            needs_payment_method,
        };
        Self {
            desk,
            supervisor,
            orders,
            store,
        }
    }

    /// No new charge, and those under way are waited for, for a while. The rest is PENDING or PROCESSING in the database.
    async fn drain(self, timeout: Duration) {
        self.supervisor.stop_charging();
        let deadline = Instant::now() + timeout;
        while !self.orders.is_empty() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if !self.orders.is_empty() {
            tracing::warn!(
                orders = self.orders.len(),
                "stopping with charges under way; the next start finds them"
            );
        }
        tokio::time::timeout(Duration::from_secs(5), self.store.close())
            .await
            .ok();
    }
}

async fn wait_for_postgres(store: &Store) -> anyhow::Result<()> {
    let deadline = Instant::now() + WAIT_FOR_POSTGRES;
    loop {
        match store.check().await {
            Ok(()) => return Ok(()),
            Err(store::Error::Unavailable(reason)) if Instant::now() < deadline => {
                tracing::warn!(%reason, "waiting for postgres");
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            Err(error) => return Err(error).context("postgres.url"),
        }
    }
}

/// An address that a client on this machine can connect to.
fn reachable(address: SocketAddr) -> SocketAddr {
    let mut address = address;
    if address.ip().is_unspecified() {
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    address
}

fn stop_signal() -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        let (terminate, interrupt) = (pin!(terminate.recv()), pin!(interrupt.recv()));
        futures_util::future::select(terminate, interrupt).await;
    })
}
