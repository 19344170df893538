//! An order's whole life: accepted, charged at a provider that answers at once, settled. The engine as it ships.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::bench::bounds::{LIFE_OVER_ACCEPT, LIFE_OVER_BASELINE};
use crate::bench::context::{BUYERS, Bench, Books, PLENTY, POOLS, charges_out_of_the_way, provider};
use crate::bench::load::{Counted, Span, Tide, flow_from};
use crate::bench::rival::{Kind, Rival, stock_up};
use crate::bench::stand::{self, Stand};
use crate::load::Peer;
use crate::world::World;

pub(super) const PART: &str = "life";

/// Share of accepted orders that must be settled when the load ends.
const SETTLED_SHARE: f64 = 0.95;
/// Seconds after which the rest must be.
const BACKLOG_SECONDS: f64 = 1.0;
/// Between two looks at the backlog.
const LOOK_PERIOD: Duration = Duration::from_millis(10);
/// A backlog that is there for longer never vanishes.
const VANISHES_WITHIN: Duration = Duration::from_mins(2);

/// What a load of whole lives comes to.
struct Lives {
    accepted_per_second: f64,
    settled_per_second: f64,
    /// Of the orders accepted in the whole span, settled by its end.
    settled_share: f64,
    /// From the span's end until no order is open.
    backlog: Duration,
    /// Orders settled in the end, over all of that time.
    whole_lives_per_second: f64,
}

pub(super) async fn play(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    bench
        .in_world(PART, &[], provider(Duration::ZERO), async |bench, world| {
            // Another world for the neighbour whose orders stay open: here they would be charged.
            let settings = charges_out_of_the_way();
            let slow = provider(Duration::from_secs(2));
            bench
                .in_world("life-accept", &settings, slow, async |bench, quiet| {
                    rounds(bench, world, quiet).await
                })
                .await
        })
        .await
}

async fn rounds(bench: &mut Bench<'_>, world: &mut World, quiet: &mut World) -> anyhow::Result<()> {
    let span = bench.size.span;
    let calibration = bench.size.calibration;
    quiet.stop_engine().await?;
    // The engine would charge a rival's orders as well, so it is stopped while one runs: sales are listed beforehand.
    world.restart_engine(&[]).await?;
    let tries = POOLS.len() as u32;
    let mut stands = stand::list_many(
        world,
        "life of a rival's orders",
        PLENTY,
        tries + bench.size.rounds,
    )
    .await?;
    world.stop_engine().await?;
    let listed: &World = world;
    let measured = stands.split_off(POOLS.len());
    let untried = RefCell::new(stands);
    let pool = bench
        .best_pool_by(Kind::Life, async |bench, pool| {
            let stand = untried.borrow_mut().pop().context("a pool too many")?;
            let run = format!("{}, pool of {pool}", Kind::Life.name());
            let lives = rival(bench, listed, &run, pool, &stand, calibration).await?;
            Ok(lives.whole_lives_per_second)
        })
        .await?;
    for (round, stand) in (1..=bench.size.rounds).zip(&measured) {
        let run = format!("life round {round}, accept");
        quiet.restart_engine(&charges_out_of_the_way()).await?;
        let accept = bench.engine_load(quiet, &run, BUYERS, span).await?;
        // With a hundred thousand open orders it has something to do even while nobody buys.
        quiet.stop_engine().await?;

        let run = format!("life round {round}, engine");
        world.restart_engine(&[]).await?;
        let own = stand::list(world, &run, PLENTY).await?;
        bench.next(world, &run).await?;
        let engine = live(
            bench,
            world,
            &world.engines()[0],
            &run,
            Books::EngineSettled,
            &own,
            span,
        )
        .await?;
        world.stop_engine().await?;

        let run = format!("life round {round}, baseline");
        let baseline = rival(bench, world, &run, pool, stand, span).await?;

        bench.ledger.figure(
            PART,
            "engine without charges orders",
            "orders/s",
            accept.per_second,
        );
        note(bench, "engine", &engine);
        note(bench, "baseline", &baseline);
        let backlog = engine.backlog.as_secs_f64();
        bench
            .ledger
            .figure(PART, "life_settled_share", "share", engine.settled_share);
        bench.ledger.figure(PART, "life_backlog_seconds", "s", backlog);
        bench
            .ledger
            .ratio(&LIFE_OVER_ACCEPT, engine.accepted_per_second, accept.per_second);
        bench
            .ledger
            .require(&LIFE_OVER_ACCEPT, engine.settled_share >= SETTLED_SHARE, || {
                format!(
                    "round {round}: {:.3} of the orders are settled when the load ends, {SETTLED_SHARE} must be",
                    engine.settled_share
                )
            });
        bench
            .ledger
            .require(&LIFE_OVER_ACCEPT, backlog <= BACKLOG_SECONDS, || {
                format!("round {round}: the last order is settled {backlog:.2} s after the load ends")
            });
        bench.ledger.ratio(
            &LIFE_OVER_BASELINE,
            engine.whole_lives_per_second,
            baseline.whole_lives_per_second,
        );
    }
    Ok(())
}

fn note(bench: &mut Bench<'_>, who: &str, lives: &Lives) {
    for (name, unit, value) in [
        ("accepted", "orders/s", lives.accepted_per_second),
        ("settled", "orders/s", lives.settled_per_second),
        ("whole lives", "orders/s", lives.whole_lives_per_second),
        ("backlog", "s", lives.backlog.as_secs_f64()),
    ] {
        bench.ledger.figure(PART, format!("{who} {name}"), unit, value);
    }
}

async fn rival(
    bench: &mut Bench<'_>,
    world: &World,
    run: &str,
    pool: u32,
    stand: &Stand,
    span: Span,
) -> anyhow::Result<Lives> {
    bench.next(world, run).await?;
    stock_up(world, stand).await?;
    let rival = Rival::shop(world, Kind::Life, pool).await?;
    let lives = live(
        bench,
        world,
        rival.peer(),
        run,
        Books::Rival(Kind::Life),
        stand,
        span,
    )
    .await?;
    rival.stop().await?;
    Ok(lives)
}

async fn live(
    bench: &mut Bench<'_>,
    world: &World,
    peer: &Peer,
    run: &str,
    books: Books,
    stand: &Stand,
    span: Span,
) -> anyhow::Result<Lives> {
    let (begun, begins) = oneshot::channel::<Instant>();
    let look_on = async {
        let begin = begins.await.context("the load never began")?;
        tokio::time::sleep_until((begin + span.warm_up).into()).await;
        let early = Stock::read(world, stand.sale).await?;
        tokio::time::sleep_until((begin + span.whole()).into()).await;
        anyhow::Ok((begin, early.sold, Stock::read(world, stand.sale).await?.sold))
    };
    let tide = Tide::at(stand.sale, BUYERS);
    let (records, (begin, early, late)) = tokio::try_join!(flow_from(peer, &tide, span, begun), look_on)?;
    let settled = loop {
        let stock = Stock::read(world, stand.sale).await?;
        if stock.held == 0 {
            break stock.sold;
        }
        ensure!(
            begin.elapsed() < span.whole() + VANISHES_WITHIN,
            "{run}: {} orders are still open",
            stock.held
        );
        tokio::time::sleep(LOOK_PERIOD).await;
    };
    let all = begin.elapsed();
    bench.audit(world, run, books, stand, &records).await?;
    let accepted = records.iter().filter(|record| record.order().is_some()).count();
    Ok(Lives {
        accepted_per_second: Counted::accepted(&records, span).per_second(),
        settled_per_second: f64::from(late - early) / span.measured.as_secs_f64(),
        settled_share: f64::from(late) / accepted.max(1) as f64,
        backlog: all.saturating_sub(span.whole()),
        whole_lives_per_second: f64::from(settled) / all.as_secs_f64(),
    })
}

/// A sale's stock: of orders of one unit each, so many are open and so many paid. One row, however many orders there are.
#[derive(sqlx::FromRow)]
struct Stock {
    held: i32,
    sold: i32,
}

impl Stock {
    async fn read(world: &World, sale: Uuid) -> anyhow::Result<Self> {
        let stock = sqlx::query_as("SELECT held, sold FROM inventory WHERE sale_id = $1")
            .bind(sale)
            .fetch_one(world.database())
            .await?;
        Ok(stock)
    }
}
