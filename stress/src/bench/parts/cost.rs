//! CPU time per accepted order, and who uses it.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::sync::oneshot;

use crate::bench::context::{BUYERS, Bench, Books, PLENTY, charges_out_of_the_way, provider};
use crate::bench::load::{Counted, Tide, flow_from};
use crate::bench::process::Cpu;
use crate::bench::rival::{Kind, Rival, stock_up};
use crate::bench::stand;
use crate::load::Peer;
use crate::world::World;

pub(super) const PART: &str = "cost";

pub(super) async fn play(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let settings = charges_out_of_the_way();
    bench
        .in_world(
            PART,
            &settings,
            provider(Duration::from_secs(2)),
            async |bench, world| {
                let pool = bench.best_pool(world, Kind::Baseline).await?;
                for round in 1..=bench.size.rounds {
                    let run = format!("cost round {round}, engine");
                    let server = world.pids().await?.engine;
                    measure(bench, world, &world.engines()[0], server, &run, Books::Engine).await?;

                    let run = format!("cost round {round}, baseline");
                    let rival = Rival::shop(world, Kind::Baseline, pool).await?;
                    let books = Books::Rival(Kind::Baseline);
                    measure(bench, world, rival.peer(), rival.pid()?, &run, books).await?;
                    rival.stop().await?;
                }
                Ok(())
            },
        )
        .await
}

async fn measure(
    bench: &mut Bench<'_>,
    world: &World,
    peer: &Peer,
    server: u32,
    run: &str,
    books: Books,
) -> anyhow::Result<()> {
    let span = bench.size.span;
    bench.next(world, run).await?;
    let stand = stand::list(world, run, PLENTY).await?;
    let who = if let Books::Rival(kind) = books {
        stock_up(world, &stand).await?;
        kind.name()
    } else {
        "engine"
    };
    let pids = world.pids().await?;
    let (begun, begins) = oneshot::channel::<Instant>();
    let look_on = async {
        let begin = begins.await.context("the load never began")?;
        tokio::time::sleep_until((begin + span.warm_up).into()).await;
        let before = Cpu::read(&pids, server)?;
        tokio::time::sleep_until((begin + span.whole()).into()).await;
        anyhow::Ok(Cpu::read(&pids, server)?.since(&before))
    };
    let tide = Tide::at(stand.sale, BUYERS);
    let (records, cpu) = tokio::try_join!(flow_from(peer, &tide, span, begun), look_on)?;
    bench.audit(world, run, books, &stand, &records).await?;
    let accepted = Counted::accepted(&records, span).count().max(1) as f64;
    let parts = [
        ("server", cpu.server),
        ("redis", cpu.redis),
        ("postgres", cpu.postgres),
        ("load", cpu.load),
    ];
    let all = parts.iter().map(|(_, time)| *time).sum();
    for (name, time) in parts.into_iter().chain([("all", all)]) {
        let micros = time.as_secs_f64() * 1e6 / accepted;
        bench
            .ledger
            .figure(PART, format!("{who}: {name}"), "us/order", micros);
    }
    Ok(())
}
