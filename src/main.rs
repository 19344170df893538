//! The command line, nothing else.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use fluxbuy::config::{self, Config, LogFormat, Need};
use fluxbuy::domain::{OrderId, SaleId};
use fluxbuy::store::{Store, migrate};
use fluxbuy::{app, demo, ledger, mock_provider, services, tables};
use jiff::Timestamp;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// Purchases come and go on two runtimes' threads. glibc's allocator takes a seventh of the engine's time then, and this one
/// hardly any; see docs/decisions/0010-where-the-time-goes.md.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// A flash-sale engine: stock is never oversold, no unit is ever lost, and no buyer pays for a unit they don't get.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the engine until SIGTERM or SIGINT.
    Serve(Configured),
    /// Bring the database's schema up to date, as its owner (`postgres.owner_url`).
    Migrate(Configured),
    /// Print every setting with its default and what it means.
    Config,
    /// Work owed to the payment provider that is out of tries.
    DeadLetters {
        #[command(flatten)]
        configured: Configured,
        #[command(subcommand)]
        action: DeadLetters,
    },
    /// The movements of money.
    Ledger {
        #[command(flatten)]
        configured: Configured,
        #[command(subcommand)]
        action: Ledger,
    },
    /// Hold Postgres, the gate and the provider's book against each other, explain every difference, and repair what may be repaired. Safe beside
    /// running engines. Ends with 0 when nothing is left, 1 when differences are (or would be repaired), 2 when not everything could be looked at.
    Reconcile {
        #[command(flatten)]
        configured: Configured,
        /// Only this sale.
        #[arg(long)]
        sale: Option<SaleId>,
        /// Repair nothing; say what would be done.
        #[arg(long)]
        dry_run: bool,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// What the payment provider tells by itself.
    Webhooks {
        #[command(flatten)]
        configured: Configured,
        #[command(subcommand)]
        action: Webhooks,
    },
    /// Print everything that the database knows of an order, in the order in which it happened.
    Trace {
        #[command(flatten)]
        configured: Configured,
        /// The order.
        order: OrderId,
    },
    /// Sell 900 units to 900 buyers at once, on private servers, and audit every unit and every cent.
    Demo(demo::Args),
    /// Run a payment provider for demonstrations and tests, with a book of its own.
    MockProvider(mock_provider::Args),
    /// Run private `PostgreSQL`, Redis and mock provider until standard input closes; prints where they are as a line of JSON.
    Services(services::Args),
}

#[derive(clap::Args)]
struct Configured {
    /// A TOML file; environment variables `FLUXBUY__SECTION__KEY` come on top of it.
    #[arg(long)]
    config: Option<PathBuf>,
}

#[derive(Subcommand)]
enum DeadLetters {
    /// Print them.
    List,
    /// Give them back to the workers: all, or those of one order.
    Requeue {
        /// Only this order's.
        #[arg(long)]
        order: Option<OrderId>,
    },
}

#[derive(Subcommand)]
enum Ledger {
    /// Add the ledger up per order and per sale, hold it against the orders and the provider's book, and print every difference. Ends
    /// with 1 when there is any.
    Verify {
        /// Only this sale's.
        #[arg(long)]
        sale: Option<SaleId>,
    },
}

#[derive(Subcommand)]
enum Webhooks {
    /// Print how often the provider repeated itself: deliveries, events, repeats, and the time between them, per provider and kind.
    Retries {
        /// What a row is for.
        #[arg(long, value_enum, default_value = "day")]
        by: Period,
        /// How many of them, up to today (UTC).
        #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(i32).range(1..=3660))]
        days: i32,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Period {
    /// A day, in UTC.
    Day,
}

impl Configured {
    fn load(&self, need: Need) -> anyhow::Result<Config> {
        let config = Config::load(need, self.config.as_deref(), std::env::vars())?;
        log_to_stderr(&config.log)?;
        Ok(config)
    }
}

fn main() -> ExitCode {
    #[cfg(feature = "test-switches")]
    let _armed = fluxbuy::crash::armed();
    let command = Cli::parse().command;
    // Of a reconciliation 1 means that it has found something.
    let failure = match command {
        Command::Reconcile { .. } => ExitCode::from(COULD_NOT_LOOK),
        _ => ExitCode::FAILURE,
    };
    run(command).unwrap_or_else(|error| {
        eprintln!("fluxbuy: {error:#}");
        failure
    })
}

/// How a reconciliation ends that could not look at everything.
const COULD_NOT_LOOK: u8 = 2;

fn run(command: Command) -> anyhow::Result<ExitCode> {
    let done = match command {
        Command::Serve(configured) => app::serve(configured.load(Need::Serve)?),
        Command::Migrate(configured) => {
            let config = configured.load(Need::Migrate)?;
            block_on(async move { Ok(migrate::migrate(config.postgres.owner_url().as_str()).await?) })
        }
        Command::Config => Ok(std::io::stdout().write_all(config::DEFAULTS.as_bytes())?),
        Command::DeadLetters { configured, action } => {
            let config = configured.load(Need::Database)?;
            block_on(dead_letters(config, action))
        }
        Command::Ledger {
            configured,
            action: Ledger::Verify { sale },
        } => {
            let config = configured.load(Need::Ledger)?;
            block_on(verify_ledger(config, sale))
        }
        Command::Reconcile {
            configured,
            sale,
            dry_run,
            json,
        } => return reconcile(&configured, sale, dry_run, json),
        Command::Webhooks { configured, action } => {
            let config = configured.load(Need::Database)?;
            let Webhooks::Retries {
                by: Period::Day,
                days,
                json,
            } = action;
            block_on(async move {
                let rows = Store::new(&config.postgres)?.webhook_retries(days).await?;
                if json {
                    println!("{}", serde_json::to_string_pretty(&rows)?);
                } else {
                    println!("{}", tables::webhook_retries(&rows));
                }
                Ok(())
            })
        }
        Command::Trace { configured, order } => {
            let config = configured.load(Need::Database)?;
            block_on(async move {
                let timeline = Store::new(&config.postgres)?.trace(order).await?;
                anyhow::ensure!(!timeline.is_empty(), "there is no order {order}");
                for happened in timeline {
                    println!("{:.3} {:<11} {}", happened.at, happened.what, happened.detail);
                }
                Ok(())
            })
        }
        Command::Demo(args) => block_on(demo::run(args)),
        Command::MockProvider(args) => block_on(mock_provider::run(args)),
        Command::Services(args) => block_on(services::run(args)),
    };
    done.map(|()| ExitCode::SUCCESS)
}

async fn dead_letters(config: Config, action: DeadLetters) -> anyhow::Result<()> {
    let store = Store::new(&config.postgres)?;
    match action {
        DeadLetters::List => {
            let letters = store.dead_letters().await?;
            println!("{} dead letters", letters.len());
            for letter in letters {
                println!(
                    "order {} sale {} attempt {} {} {} after {} tries: {}",
                    letter.order,
                    letter.sale,
                    letter.attempt,
                    letter.kind,
                    letter.refund,
                    letter.tries,
                    letter.last_error
                );
            }
        }
        DeadLetters::Requeue { order } => println!("{} requeued", store.requeue(order).await?),
    }
    Ok(())
}

/// A ledger of years is more than what a statement of the engine's may take.
const VERIFY_STATEMENT_TIMEOUT_MS: u64 = 600_000;

async fn verify_ledger(mut config: Config, sale: Option<SaleId>) -> anyhow::Result<()> {
    config.postgres.statement_timeout_ms = VERIFY_STATEMENT_TIMEOUT_MS;
    let store = Store::new(&config.postgres)?;
    let provider = app::payment_provider(&config)?;
    let found = ledger::verify_all(&store, &*provider, sale).await?;
    println!("{}", tables::ledger(&found));
    for difference in &found.differences {
        println!("{difference}");
    }
    let (orders, movements) = (found.orders, found.movements);
    println!(
        "{orders} orders, {movements} movements, {} on their way",
        found.on_their_way
    );
    anyhow::ensure!(
        found.differences.is_empty(),
        "the ledger has {} differences",
        found.differences.len()
    );
    println!("ledger: ok");
    Ok(())
}

fn reconcile(
    configured: &Configured,
    sale: Option<SaleId>,
    dry_run: bool,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let mut config = configured.load(Need::Reconcile)?;
    config.postgres.statement_timeout_ms = VERIFY_STATEMENT_TIMEOUT_MS;
    let report = tokio::runtime::Runtime::new()?.block_on(async {
        let reconciler = app::reconciler(&config)?;
        Ok::<_, anyhow::Error>(reconciler.run(sale, dry_run).await)
    })?;
    if json {
        println!("{}", serde_json::to_string_pretty(&report.as_json())?);
    } else {
        if !report.rows.is_empty() {
            println!("{}", tables::differences(&report));
        }
        println!(
            "{} sales, {} orders, {} on their way, {} repaired",
            report.sales,
            report.orders,
            report.in_flight,
            report.repaired()
        );
        for (side, error) in &report.away {
            println!("{} could not be looked at: {error}", side.as_str());
        }
        println!("reconcile: {}", report.summary());
    }
    Ok(ExitCode::from(report.exit_code()))
}

fn block_on(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Runtime::new()?.block_on(work)
}

/// The time of a line, in UTC and to the millisecond.
struct Milliseconds;

impl FormatTime for Milliseconds {
    fn format_time(&self, line: &mut Writer<'_>) -> std::fmt::Result {
        write!(line, "{}", Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%3fZ"))
    }
}

fn log_to_stderr(log: &config::Log) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&log.filter).map_err(|error| {
        anyhow::anyhow!("log.filter: {error}; allowed are directives such as `info,sqlx=warn`")
    })?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_timer(Milliseconds)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match log.format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().init(),
    }
    Ok(())
}
