//! What all parts share: sizes, the ledger, the audit after each run, and which pool suits which rival.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::ensure;
use sqlx::Executor as _;
use uuid::Uuid;

use super::figures::{Ledger, PartName};
use super::load::{Counted, Span, Tide, flow};
use super::rival::{Kind, Rival, stock_up};
use super::size::Size;
use super::stand::{self, Stand};
use crate::audit::{self, Case, Facts, Violation};
use crate::load::{Outcome, Peer, Record, Refusal};
use crate::progress::Progress;
use crate::report::Latency;
use crate::world::{Needs, Place, Provider, Setting, World};

/// Units of a sale that can't be sold out.
pub(super) const PLENTY: u32 = 1_000_000;
/// Buyers where nothing else is said.
pub(super) const BUYERS: u32 = 512;
/// Longer than the engine's grace for reservations without an order and two passes of its reaper.
const REAPED_WITHIN: Duration = Duration::from_secs(45);
/// Between two looks meanwhile.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// Settings without which a commit isn't durable.
const DURABILITY: [&str; 3] = ["fsync", "synchronous_commit", "full_page_writes"];
/// Pools that a per-request server is tried with.
pub(super) const POOLS: [u32; 4] = [4, 8, 16, 32];

/// Whose books are looked through after a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Books {
    /// The engine's, while orders are open.
    Engine,
    /// The engine's, when all orders have come to their end.
    EngineSettled,
    /// The engine's, in a sale that was filled with orders of nobody.
    EngineFilled,
    /// Those of a rival of this kind. It has a gate of its own; the engine's knows nothing of what it sold.
    Rival(Kind),
}

impl Books {
    fn settled(self) -> bool {
        matches!(self, Self::EngineSettled | Self::Rival(Kind::Life))
    }

    /// Whether a check is one that this side can pass.
    fn has_to_pass(self, check: &str) -> bool {
        match self {
            Self::Engine | Self::EngineSettled => true,
            Self::EngineFilled => check != "order-nobody-asked-for",
            // Without stock rows there is nothing that could match.
            Self::Rival(kind) => kind.keeps_stock() || !check.starts_with("stock-"),
        }
    }
}

/// Something that an audit has found, and after which run.
#[derive(Debug, Clone)]
pub(super) struct Found {
    /// The run.
    pub(super) run: String,
    /// What.
    pub(super) violation: Violation,
}

/// A benchmark under way.
pub(super) struct Bench<'a> {
    place: &'a Place,
    seed: u64,
    /// Sizes and times.
    pub(super) size: Size,
    /// Figures.
    pub(super) ledger: Ledger,
    /// What audits have found.
    pub(super) found: Vec<Found>,
    /// Postgres' settings of durability.
    pub(super) postgres: BTreeMap<&'static str, String>,
    pools: BTreeMap<Kind, u32>,
    bar: Progress,
    runs: u64,
}

/// What a rate of accepted orders and its latencies come to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate {
    /// Accepted orders per second.
    pub(super) per_second: f64,
    /// What their buyers waited.
    pub(super) latency: Latency,
}

impl<'a> Bench<'a> {
    pub(super) fn new(place: &'a Place, seed: u64, size: Size) -> Self {
        Self {
            place,
            seed,
            size,
            ledger: Ledger::default(),
            found: Vec::new(),
            postgres: BTreeMap::new(),
            pools: BTreeMap::new(),
            bar: Progress::new(0, "bench"),
            runs: 0,
        }
    }

    /// Plays a part in a world that is made for it. What the world's programs logged is printed when it can't be played.
    ///
    /// # Errors
    /// The part's own.
    pub(super) async fn in_world(
        &mut self,
        label: &str,
        settings: &[Setting],
        provider: Provider,
        play: impl AsyncFnOnce(&mut Self, &mut World) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let needs = Needs {
            settings: settings.to_vec(),
            provider,
            guard_off: false,
            webhooks: None,
            ..Needs::default()
        };
        let mut world = World::open(self.place, &needs, &format!("bench-{label}"), self.seed).await?;
        self.postgres = durability(&world).await?;
        let played = play(self, &mut world).await;
        if played.is_err() {
            world.print_logs();
        }
        let closed = world.close().await;
        played.and(closed)
    }

    /// Says what comes next, and puts the same distance to the next checkpoint before every run.
    pub(super) async fn next(&mut self, world: &World, run: &str) -> anyhow::Result<()> {
        self.runs += 1;
        self.bar.set(self.runs, run.to_owned());
        world.database().execute("CHECKPOINT").await?;
        Ok(())
    }

    /// Audits a sale after a run.
    ///
    /// # Errors
    /// When facts can't be read.
    pub(super) async fn audit(
        &mut self,
        world: &World,
        run: &str,
        books: Books,
        stand: &Stand,
        records: &[Record],
    ) -> anyhow::Result<()> {
        for facts in self.facts(world, run, &[stand.sale], records).await? {
            self.judge(run, books, stand, facts, records);
        }
        Ok(())
    }

    /// Facts about sales after a run. Where a machine that stalls has had purchases turned away after the gate had admitted them, their
    /// units are the reaper's: it is waited for.
    ///
    /// # Errors
    /// When facts can't be read.
    pub(super) async fn facts(
        &self,
        world: &World,
        run: &str,
        sales: &[Uuid],
        records: &[Record],
    ) -> anyhow::Result<Vec<Facts>> {
        let turned_away = records
            .iter()
            .filter(|record| {
                matches!(
                    record.outcome,
                    Outcome::Refused(Refusal::Unavailable) | Outcome::Unknown(_)
                )
            })
            .count();
        if turned_away > 0 {
            eprintln!("bench: {run}: {turned_away} purchases were turned away or went unanswered");
        }
        let deadline = Instant::now() + REAPED_WITHIN;
        loop {
            let all = audit::read_many(world, sales).await?;
            let apart = all.iter().any(|facts| {
                facts
                    .gate_available
                    .is_some_and(|gate| gate != facts.inventory.available)
            });
            if !apart || turned_away == 0 || Instant::now() > deadline {
                return Ok(all);
            }
            tokio::time::sleep(LOOK_PERIOD).await;
        }
    }

    /// Judges facts that have been read.
    pub(super) fn judge(
        &mut self,
        run: &str,
        books: Books,
        stand: &Stand,
        mut facts: Facts,
        records: &[Record],
    ) {
        if matches!(books, Books::Rival(_)) {
            facts.gate_available = None;
        }
        let case = Case {
            terms: &stand.terms,
            facts: &facts,
            records,
            settled: books.settled(),
            opening_us: None,
        };
        let violations = audit::audit(&case).into_violations();
        self.found.extend(
            violations
                .into_iter()
                .filter(|violation| books.has_to_pass(violation.check))
                .map(|violation| Found {
                    run: run.to_owned(),
                    violation,
                }),
        );
    }

    /// One steady load at a sale of its own at the engine, with its audit.
    ///
    /// # Errors
    /// When it can't be run.
    pub(super) async fn engine_load(
        &mut self,
        world: &World,
        run: &str,
        buyers: u32,
        span: Span,
    ) -> anyhow::Result<Rate> {
        self.load(world, &world.engines()[0], run, Books::Engine, buyers, span)
            .await
    }

    /// The same at a rival, which is started for it.
    ///
    /// # Errors
    /// When it can't be run.
    pub(super) async fn rival_load(
        &mut self,
        world: &World,
        run: &str,
        (kind, pool): (Kind, u32),
        span: Span,
    ) -> anyhow::Result<Rate> {
        let rival = Rival::shop(world, kind, pool).await?;
        let rate = self
            .load(world, rival.peer(), run, Books::Rival(kind), BUYERS, span)
            .await?;
        rival.stop().await?;
        Ok(rate)
    }

    async fn load(
        &mut self,
        world: &World,
        peer: &Peer,
        run: &str,
        books: Books,
        buyers: u32,
        span: Span,
    ) -> anyhow::Result<Rate> {
        self.next(world, run).await?;
        let stand = stand::list(world, run, PLENTY).await?;
        if matches!(books, Books::Rival(_)) {
            stock_up(world, &stand).await?;
        }
        let records = flow(peer, &Tide::at(stand.sale, buyers), span).await?;
        self.audit(world, run, books, &stand, &records).await?;
        let accepted = Counted::accepted(&records, span);
        Ok(Rate {
            per_second: accepted.per_second(),
            latency: accepted.latency(),
        })
    }

    /// The pool with which a per-request server accepts most, found once. Whole lives are looked for by the part `life`.
    ///
    /// # Errors
    /// When one of them can't be run.
    pub(super) async fn best_pool(&mut self, world: &World, kind: Kind) -> anyhow::Result<u32> {
        if let Some(pool) = self.pools.get(&kind) {
            return Ok(*pool);
        }
        let span = self.size.calibration;
        let mut rates = Vec::new();
        for pool in POOLS {
            let run = format!("{}, pool of {pool}", kind.name());
            let rate = self.rival_load(world, &run, (kind, pool), span).await?;
            rates.push((pool, rate.per_second));
        }
        Ok(self.keep_pool(kind, &rates))
    }

    /// Looks for the best pool with another measure.
    ///
    /// # Errors
    /// The measure's own.
    pub(super) async fn best_pool_by(
        &mut self,
        kind: Kind,
        measure: impl AsyncFn(&mut Self, u32) -> anyhow::Result<f64>,
    ) -> anyhow::Result<u32> {
        let mut rates = Vec::new();
        for pool in POOLS {
            rates.push((pool, measure(self, pool).await?));
        }
        Ok(self.keep_pool(kind, &rates))
    }

    fn keep_pool(&mut self, kind: Kind, rates: &[(u32, f64)]) -> u32 {
        let best = rates.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let pool = best.map_or(POOLS[0], |(pool, _)| *pool);
        self.pools.insert(kind, pool);
        pool
    }

    /// Notes a rate and its latencies.
    pub(super) fn note(&mut self, part: PartName, who: &str, rate: &Rate) {
        self.ledger
            .figure(part, format!("{who} orders"), "orders/s", rate.per_second);
        self.note_latency(part, who, &rate.latency);
    }

    /// Notes what buyers waited.
    pub(super) fn note_latency(&mut self, part: PartName, who: &str, latency: &Latency) {
        let Latency { p50, p95, p99, max } = *latency;
        for (name, value) in [("p50", p50), ("p95", p95), ("p99", p99), ("max", max)] {
            self.ledger.figure(part, format!("{who} {name}"), "ms", value);
        }
    }

    /// Which pools were found best, by the rivals' names.
    pub(super) fn pools(&self) -> BTreeMap<&'static str, u32> {
        self.pools
            .iter()
            .map(|(kind, pool)| (kind.name(), *pool))
            .collect()
    }
}

/// Charges are kept out of the way, so that accepting is all that is measured: one at a time, no look for others, no sweep. All
/// else is the engine as it ships.
pub(super) fn charges_out_of_the_way() -> Vec<Setting> {
    [
        ("payment.max_in_flight", 1),
        ("payment.scan_period_ms", 600_000),
        ("sweeper.cutoff_ms", 86_400_000),
    ]
    .map(|(name, value)| (name, value.to_string()))
    .to_vec()
}

/// A provider that declines nothing, and takes so long for each charge.
pub(super) fn provider(latency: Duration) -> Provider {
    let latency_ms = latency.as_millis() as u64;
    Provider {
        latency_min_ms: latency_ms,
        latency_max_ms: latency_ms,
        decline_percent: 0,
    }
}

async fn durability(world: &World) -> anyhow::Result<BTreeMap<&'static str, String>> {
    let mut found = BTreeMap::new();
    for name in DURABILITY {
        let value: String = sqlx::query_scalar("SELECT current_setting($1)")
            .bind(name)
            .fetch_one(world.database())
            .await?;
        ensure!(
            value == "on",
            "postgres has {name} = {value}: what it commits isn't durable, and the figures mean nothing"
        );
        found.insert(name, value);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_is_held_to_the_books_that_it_keeps() {
        assert!(Books::Engine.has_to_pass("stock-adds-up"));
        assert!(Books::Rival(Kind::Baseline).has_to_pass("stock-adds-up"));
        assert!(!Books::Rival(Kind::Lean).has_to_pass("stock-adds-up"));
        assert!(Books::Rival(Kind::Lean).has_to_pass("accepted-exists"));
        assert!(!Books::EngineFilled.has_to_pass("order-nobody-asked-for"));
        assert!(Books::EngineFilled.has_to_pass("stock-oversold"));
        assert!(Books::EngineSettled.settled() && !Books::Engine.settled());
    }
}
