//! What all scenarios do alike: list a sale, let the crowd in at its opening, wait until all is quiet, audit.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::Run;
use super::watch::Watch;
use crate::audit::{self, Case, Facts, Findings, Terms};
use crate::load::{Ask, Crowd, Outcome, Record, Wishes, workload, workload::Errand};
use crate::progress::Progress;
use crate::report::{self, ClaimsLost, Latency, Orders, Provider, Report, Stock};
use crate::world::{Metrics, World};

/// From listing to opening: time for the crowd to stand ready.
const LEAD: Duration = Duration::from_millis(700);
/// Price of a unit: one whose multiples are not round.
pub const UNIT_PRICE_MINOR: i64 = 4_999;
/// Between two looks at how far things are.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// When nothing has moved for so long, nothing will: longer than every cutoff and period of an engine as it ships.
const PATIENCE: Duration = Duration::from_secs(90);
/// The same while something is owed: what the provider has turned away again and again comes up after 5 minutes at the latest.
const OWED_PATIENCE: Duration = Duration::from_secs(330);

/// A sale that has been listed.
#[derive(Debug, Clone)]
pub(super) struct Stall {
    /// Its id.
    pub sale: Uuid,
    /// What is on sale.
    pub terms: Terms,
    /// When it opens, on this machine's clock.
    pub opening: Instant,
    /// The latest that may be on the database's clock, in microseconds.
    pub opening_us: i64,
}

/// Lists a sale that opens after a short while, on the database's clock.
///
/// # Errors
/// When the engine doesn't list it.
async fn list_sale(
    world: &World,
    name: &str,
    units: u32,
    per_buyer_limit: Option<u32>,
) -> anyhow::Result<Stall> {
    let terms = Terms {
        units: units.into(),
        unit_price_minor: UNIT_PRICE_MINOR,
        currency: "EUR".to_owned(),
        per_buyer_limit: per_buyer_limit.map(i64::from),
    };
    let asked = Instant::now();
    let now_micros: i64 =
        sqlx::query_scalar("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
            .fetch_one(world.database())
            .await?;
    // The clock was read somewhere between question and answer.
    let error = asked.elapsed() / 2;
    let opening = asked + error + LEAD;
    let opening_us = now_micros + LEAD.as_micros() as i64;
    let opens_at = Timestamp::from_microsecond(opening_us)?;
    let body = json!({
        "name": name,
        "quantity": units,
        "unit_price_minor": UNIT_PRICE_MINOR,
        "currency": terms.currency,
        "per_buyer_limit": per_buyer_limit,
        "opens_at": opens_at.to_string(),
    });
    let listed: Listed = world.engines()[0].post_json("/v1/sales", &body, 201).await?;
    Ok(Stall {
        sale: listed.id,
        terms,
        opening,
        opening_us: opening_us + error.as_micros() as i64,
    })
}

#[derive(Deserialize)]
struct Listed {
    id: Uuid,
}

/// Webhooks that are still on their way.
#[derive(Deserialize)]
struct Unfinished {
    unfinished: i64,
}

/// A scenario under way.
pub(super) struct Stage<'a> {
    run: &'a Run,
    world: &'a World,
    before: Metrics,
    origin: Instant,
    records: Vec<Record>,
    scene: Option<(Stall, Watch)>,
}

/// What a scenario may look at when it adds checks of its own.
pub(super) struct Scene<'a> {
    /// What is left.
    pub(super) facts: &'a Facts,
    /// Conditional updates that came too late.
    pub(super) claims_lost: ClaimsLost,
    before: &'a Metrics,
    after: &'a Metrics,
}

impl Scene<'_> {
    /// What the engines have counted during the run.
    pub(super) fn counted(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        self.after.counted_since(self.before, name, labels)
    }
}

/// How far things are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::FromRow)]
struct State {
    open: i64,
    decided: i64,
    owed: i64,
    #[sqlx(default)]
    queued: i64,
    #[sqlx(default)]
    charging: i64,
    available: i64,
    #[sqlx(default)]
    gate_available: Option<i64>,
}

impl State {
    fn is_quiet(&self) -> bool {
        self.open + self.owed + self.queued + self.charging == 0
    }
}

impl<'a> Stage<'a> {
    pub(super) async fn open(run: &'a Run, world: &'a World) -> anyhow::Result<Self> {
        let before = world.metrics().await?;
        Ok(Self {
            run,
            world,
            before,
            origin: Instant::now(),
            records: Vec::new(),
            scene: None,
        })
    }

    /// Lists the sale and lets everybody in at its opening, one client per errand.
    pub(super) async fn rush(&mut self, errands: Vec<Errand>, keep_bodies: bool) -> anyhow::Result<()> {
        let crowd = Crowd::gather(self.world.engines(), errands.len()).await?;
        let sale = self.list(None).await?;
        self.records = crowd.rush(sale, errands, self.origin, keep_bodies).await?;
        Ok(())
    }

    /// Lists the sale, and lets buyers come from its opening on until `meanwhile` is over.
    pub(super) async fn keep_buying(
        &mut self,
        wishes: Wishes,
        clients: usize,
        per_buyer_limit: u32,
        meanwhile: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let crowd = Crowd::gather(self.world.engines(), clients).await?;
        let sale = self.list(Some(per_buyer_limit)).await?;
        self.records = crowd.keep_coming(sale, wishes, self.origin, meanwhile).await?;
        Ok(())
    }

    async fn list(&mut self, per_buyer_limit: Option<u32>) -> anyhow::Result<Uuid> {
        let name = format!("stress {}, seed {}", self.run.scenario.name(), self.run.seed);
        let stall = list_sale(self.world, &name, self.run.units, per_buyer_limit).await?;
        let watch = Watch::start(self.world.engines()[0].clone(), stall.sale, stall.terms.units);
        self.origin = stall.opening;
        let sale = stall.sale;
        self.scene = Some((stall, watch));
        Ok(sale)
    }

    /// What the buyers remember.
    pub(super) fn records(&self) -> &[Record] {
        &self.records
    }

    /// The usual crowd: everybody wants 1 to `max_quantity` units, once.
    pub(super) async fn rush_once_each(&mut self, max_quantity: u32) -> anyhow::Result<()> {
        let errands = workload::one_each(self.run.seed, self.run.buyers, max_quantity);
        self.rush(errands, false).await
    }

    /// The sale.
    pub(super) fn sale(&self) -> anyhow::Result<Uuid> {
        let (stall, _) = self.scene.as_ref().context("nothing is on sale")?;
        Ok(stall.sale)
    }

    /// One more buyer, now. Tells what that came to.
    pub(super) async fn try_once_more(&mut self) -> anyhow::Result<Outcome> {
        let sale = self.sale()?;
        let ask = Ask {
            buyer: self.run.buyers,
            key: self.run.buyers,
            quantity: 1,
        };
        let crowd = Crowd::gather(self.world.engines(), 1).await?;
        let records = crowd.rush(sale, vec![vec![ask]], Instant::now(), false).await?;
        let outcome = records.last().context("nobody asked")?.outcome.clone();
        self.records.extend(records);
        Ok(outcome)
    }

    /// Orders that buyers know of.
    pub(super) fn accepted(&self) -> u64 {
        let accepted = |record: &&Record| matches!(record.outcome, Outcome::Accepted { replayed: false, .. });
        self.records.iter().filter(accepted).count() as u64
    }

    /// Waits until no order is open, nothing is owed and no job waits; or until nothing moves any more, which the audit will
    /// find then.
    pub(super) async fn settle(&mut self) -> anyhow::Result<()> {
        self.settle_until(State::is_quiet).await
    }

    /// The same, and until the gate would sell what is available: where engines have died, it holds units for nobody for a while.
    pub(super) async fn settle_with_gate(&mut self) -> anyhow::Result<()> {
        self.settle_until(|state| state.is_quiet() && state.gate_available == Some(state.available))
            .await
    }

    async fn settle_until(&mut self, is_over: impl Fn(&State) -> bool) -> anyhow::Result<()> {
        let bar = Progress::new(self.accepted(), self.run.scenario.name());
        let mut last = None;
        let mut moved = Instant::now();
        loop {
            let state = self.state().await?;
            bar.set(
                state.decided as u64,
                format!(
                    "{} open, {} jobs wait, {} owed",
                    state.open,
                    state.queued + state.charging,
                    state.owed
                ),
            );
            if is_over(&state) {
                return Ok(());
            }
            if last != Some(state) {
                (last, moved) = (Some(state), Instant::now());
            } else if moved.elapsed() > if state.owed > 0 { OWED_PATIENCE } else { PATIENCE } {
                return Ok(());
            }
            tokio::time::sleep(LOOK_PERIOD).await;
        }
    }

    async fn state(&self) -> anyhow::Result<State> {
        let mut state: State = sqlx::query_as(
            "SELECT count(*) FILTER (WHERE status IN ('PENDING', 'PROCESSING', 'CAPTURING')) AS open,
                    count(*) FILTER (WHERE status IN ('PAID', 'FAILED', 'REFUNDED')) AS decided,
                    (SELECT count(*) FROM gate_releases WHERE sale_id = $1)
                    + (SELECT count(*) FROM provider_tasks WHERE sale_id = $1)
                    + (SELECT count(*) FROM provider_events WHERE state = 'DUE') AS owed,
                    (SELECT available::bigint FROM inventory WHERE sale_id = $1) AS available
             FROM orders WHERE sale_id = $1",
        )
        .bind(self.sale()?)
        .fetch_one(self.world.database())
        .await?;
        // Under no reference begins an event's log: only the count is asked for.
        let provider: Unfinished = self.world.provider().get_json("/webhooks/none").await?;
        state.owed += provider.unfinished;
        let metrics = self.world.metrics().await?;
        state.queued = metrics.sum("fluxbuy_payment_queue_orders", &[]) as i64;
        state.charging = metrics.sum("fluxbuy_charges_in_flight", &[]) as i64;
        state.gate_available = audit::gate_available(self.world, &[self.sale()?]).await?[0];
        Ok(state)
    }

    /// Reads the facts, audits them, and adds what this scenario alone can tell.
    pub(super) async fn report(
        self,
        own_checks: impl FnOnce(&Scene<'_>, &mut Findings),
    ) -> anyhow::Result<Report> {
        let (stall, watch) = self.scene.ok_or_else(|| anyhow::anyhow!("nothing was sold"))?;
        let facts = audit::read(self.world, stall.sale).await?;
        let after = self.world.metrics().await?;
        let case = Case {
            terms: &stall.terms,
            facts: &facts,
            records: &self.records,
            settled: true,
            opening_us: Some(stall.opening_us),
        };
        let mut findings = audit::audit(&case);
        watch.tell(&mut findings);
        let claims_lost = claims_lost(self.world, stall.sale).await?;
        let scene = Scene {
            facts: &facts,
            claims_lost,
            before: &self.before,
            after: &after,
        };
        own_checks(&scene, &mut findings);
        let violations = findings.into_violations();
        Ok(Report {
            scenario: self.run.scenario.name(),
            seed: self.run.seed,
            buyers: self.run.buyers,
            units: self.run.units,
            seconds: self.origin.elapsed().as_secs_f64(),
            outcomes: report::outcomes(&self.records),
            latency_ms: Latency::of(self.records.iter().map(Record::waited)),
            orders: Orders::of(&facts),
            swept: facts.orders.iter().filter(|order| order.was_swept()).count() as u64,
            claims_lost,
            faults: BTreeMap::new(),
            open_at_fault: None,
            settled_after_s: None,
            decided_after_over_before: None,
            answers_again_ms: None,
            stock: Stock::of(&facts),
            provider: Provider::of(&facts, &violations),
            violations,
            must_fail: None,
        })
    }
}

/// By the orders' own history, which outlives the engines that count.
async fn claims_lost(world: &World, sale: Uuid) -> anyhow::Result<ClaimsLost> {
    let lost: Vec<(String, i64)> = sqlx::query_as(
        "SELECT t.by, count(*) FROM order_transitions t JOIN orders o ON o.id = t.order_id
         WHERE o.sale_id = $1 AND NOT t.applied GROUP BY t.by",
    )
    .bind(sale)
    .fetch_all(world.database())
    .await?;
    let by = |who: &str| {
        let found = lost.iter().find(|(by, _)| by == who);
        found.map_or(0, |(_, count)| *count as u64)
    };
    Ok(ClaimsLost {
        payment: by("payment"),
        sweeper: by("sweeper"),
        webhook: by("webhook"),
    })
}
