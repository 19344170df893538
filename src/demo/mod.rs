//! `fluxbuy demo`: a flash sale from the listing to the audit, on private servers and a real engine, in half a minute.
//!
//! Like the stress harness it is an outsider: it buys over HTTP, and what it then believes is the database and the provider's
//! book, not the engine. So the SQL in here is its own, and so are the checks.

mod audit;
mod evidence;
mod report;
mod rush;
mod stage;
mod wire;

use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::{Context as _, bail};
use hyper::{Method, StatusCode};
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;
use sqlx::{Connection as _, PgConnection};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::domain::SaleId;
use crate::services;
use evidence::{Listing, Progress};
use rush::Buyer;
use stage::Stage;
use wire::Connection;

/// How long buyers wait in front of the door.
const OPENS_IN: Duration = Duration::from_secs(3);
/// What a unit costs.
const UNIT_PRICE_MINOR: i64 = 1990;
const CURRENCY: &str = "EUR";
/// How long payments may take; past it the audit tells what is still open. Above the sweeper's cutoff and a look of its own.
const SETTLED_WITHIN: Duration = Duration::from_mins(3);
/// How often the progress is looked up.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// How often it is printed where there is no terminal to draw a bar on.
const PRINT_PERIOD: Duration = Duration::from_secs(1);
/// How the provider behaves.
const PROVIDER_LATENCY_MS: (u64, u64) = (1000, 4000);
const PROVIDER_DECLINE_PERCENT: u8 = 20;

/// Command line of `fluxbuy demo`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Units on sale.
    #[arg(long, default_value_t = 900, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub units: u32,
    /// Buyers, who all come at once and want one unit each.
    #[arg(long, default_value_t = 900, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub buyers: u32,
    /// Leave everything running after the audit, until Ctrl-C.
    #[arg(long)]
    pub keep: bool,
}

/// Plays the sale and prints the audit. Whatever it has started is gone when it ends, also after Ctrl-C.
///
/// # Errors
/// When something doesn't start, when the audit finds a unit or a cent that isn't accounted for, or when it is interrupted.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let mut stop = Stop::new()?;
    let (fastest, slowest) = PROVIDER_LATENCY_MS;
    println!(
        "{} buyers for {} units; the payment provider takes {} to {} s and declines {PROVIDER_DECLINE_PERCENT}%",
        args.buyers,
        args.units,
        fastest / 1000,
        slowest / 1000
    );
    let started = Instant::now();
    let services = services::Args {
        no_provider: false,
        provider_latency_min_ms: fastest,
        provider_latency_max_ms: slowest,
        provider_decline_percent: PROVIDER_DECLINE_PERCENT,
        provider_seed: 1,
    };
    // Not raced against a signal, which stays to be seen: what is started halfway can't be taken away in an orderly manner.
    let stage = Stage::set(&services, args.buyers).await?;
    println!(
        "started PostgreSQL, Redis, the provider and an engine in {:.1} s; it is at {}",
        started.elapsed().as_secs_f64(),
        stage.engine_url()
    );

    let played = tokio::select! {
        played = play(&stage, &args) => Some(played),
        () = stop.wait() => None,
    };
    if args.keep && matches!(played, Some(Ok(_))) {
        print_addresses(&stage);
        stop.wait().await;
    }
    let struck = stage.strike(played.is_some()).await;
    let Some(played) = played else {
        struck?;
        bail!("interrupted");
    };
    let violations = played?;
    struck?;
    match violations {
        0 => Ok(()),
        _ => bail!("the audit found {violations} violations"),
    }
}

/// SIGTERM or Ctrl-C, also one that came earlier.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Lists, sells, waits for the payments, and audits; gives the number of violations.
async fn play(stage: &Stage, args: &Args) -> anyhow::Result<usize> {
    let engine_url = stage.engine_url();
    let buyers = rush::connect(engine_url, args.buyers).await?;
    let listed = list(engine_url, args.units).await?;
    let listing = Listing {
        sale: listed.id,
        units: i64::from(args.units),
        unit_price_minor: UNIT_PRICE_MINOR,
    };
    println!(
        "listed sale {}: {} units at {}.{:02} {CURRENCY}, opens in {:.1} s; {} buyers wait on open connections",
        listed.id,
        args.units,
        UNIT_PRICE_MINOR / 100,
        UNIT_PRICE_MINOR % 100,
        listed
            .opens
            .saturating_duration_since(Instant::now())
            .as_secs_f64(),
        buyers.len()
    );
    let purchases = sell(buyers, &listed).await?;

    let mut database = PgConnection::connect(&stage.addresses().postgres_owner_url).await?;
    settle(&mut database, listed.id, purchases.len() as u64).await?;
    let settled_after = listed.opens.elapsed();

    let provider_url = stage.addresses().provider_url.as_deref();
    let provider_url = provider_url.context("there is no provider")?;
    let evidence = evidence::collect(&listing, purchases, &mut database, provider_url).await?;
    database.close().await?;
    let outcome = report::Outcome {
        currency: CURRENCY,
        claims_lost: evidence::claims_lost(engine_url).await?,
        settled_after,
    };
    println!("{}", report::table(&evidence, &outcome));
    println!("{}", report::summary(&evidence, CURRENCY));
    let violations = evidence.violations();
    if violations.is_empty() {
        println!("audit: ok, every unit and every cent is accounted for");
    } else {
        println!("audit: VIOLATION");
        for violation in &violations {
            println!("  {violation}");
        }
    }
    Ok(violations.len())
}

/// A sale, and when it opens by our own clock.
struct Listed {
    id: SaleId,
    opens: Instant,
}

async fn list(engine_url: &str, units: u32) -> anyhow::Result<Listed> {
    #[derive(Deserialize)]
    struct Sale {
        id: SaleId,
        opens_at: Timestamp,
        server_time: Timestamp,
    }
    let mut seller = Connection::open(engine_url).await?;
    let sale = json!({
        "name": "fluxbuy demo",
        "quantity": units,
        "unit_price_minor": UNIT_PRICE_MINOR,
        "currency": CURRENCY,
        "opens_at": (Timestamp::now() + OPENS_IN).to_string(),
    });
    let sale: Sale = seller
        .send(Method::POST, "/v1/sales", &[], Some(&sale))
        .await?
        .expect(StatusCode::CREATED)
        .context("the sale could not be listed")?
        .json()?;
    // The engine's clock decides. By ours the time left starts now, a little after it was taken there: nobody comes too early.
    let left = sale.server_time.duration_until(sale.opens_at);
    let left = Duration::try_from(left).unwrap_or_default();
    Ok(Listed {
        id: sale.id,
        opens: Instant::now() + left,
    })
}

/// Has the buyers look at the sale until it opens, and buy.
async fn sell(buyers: Vec<Buyer>, listed: &Listed) -> anyhow::Result<Vec<rush::Purchase>> {
    let buyers = rush::look(buyers, listed.id).await?;
    let purchases = rush::rush(buyers, listed.id, listed.opens).await;
    let answered_within = listed.opens.elapsed();
    let told: Vec<_> = rush::tally(&purchases)
        .into_iter()
        .map(|(kind, buyers)| format!("{buyers} {}", kind.replace('_', " ")))
        .collect();
    println!(
        "all {} buyers have their answer {} ms after the opening: {}",
        purchases.len(),
        answered_within.as_millis(),
        told.join(", ")
    );
    for purchase in &purchases {
        if let rush::Ended::Unanswered(because) = &purchase.ended {
            println!("{} got no answer: {because}", purchase.buyer);
        }
    }
    Ok(purchases)
}

/// Waits until every payment is settled, or the time for it is over, and shows how far it is.
async fn settle(database: &mut PgConnection, sale: SaleId, orders: u64) -> anyhow::Result<()> {
    let deadline = Instant::now() + SETTLED_WITHIN;
    let style = ProgressStyle::with_template("payments [{bar:40}] {pos}/{len} {msg}")?;
    let bar = ProgressBar::new(orders).with_style(style.progress_chars("=> "));
    let drawn = std::io::stderr().is_terminal();
    let mut tick = interval(LOOK_PERIOD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut printed = Instant::now();
    loop {
        tick.tick().await;
        let progress = evidence::progress(database, sale).await?;
        let Progress {
            open, paid, failed, ..
        } = progress;
        bar.set_length((open + paid + failed) as u64);
        bar.set_position((paid + failed) as u64);
        bar.set_message(format!("({paid} paid, {failed} failed)"));
        if progress.is_over() || Instant::now() > deadline {
            bar.finish();
            return Ok(());
        }
        if !drawn && printed.elapsed() >= PRINT_PERIOD {
            printed = Instant::now();
            println!(
                "payments {}/{} ({paid} paid, {failed} failed)",
                paid + failed,
                open + paid + failed
            );
        }
    }
}

fn print_addresses(stage: &Stage) {
    let addresses = stage.addresses();
    println!();
    println!("engine     {}", stage.engine_url());
    println!("metrics    {}/metrics", stage.engine_url());
    println!("postgres   {}", addresses.postgres_owner_url);
    println!("redis      {}", addresses.redis_url);
    println!(
        "provider   {}",
        addresses.provider_url.as_deref().unwrap_or_default()
    );
    println!("logs       {}", addresses.directory.display());
    println!("Everything stays until Ctrl-C.");
}
