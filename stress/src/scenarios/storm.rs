//! Faults under load: buyers keep coming while things go wrong. Once they are right again everybody is decided, and everything adds up.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tokio::time::sleep;

use super::signals::Signals;
use super::{Run, Scenario, Stage};
use crate::faults::{Fault, Field};
use crate::load::{Ask, Outcome, Record, Wishes};
use crate::report::Report;
use crate::world::{Conditions, Needs, Provider, World};

/// The original's cutoff through twenty.
const CUTOFF: Duration = Duration::from_secs(3);
/// Connections at which buyers come one after the other.
const CLIENTS: usize = 32;
const BUYERS_COME_EVERY: Duration = Duration::from_millis(60);
/// A buyer that has no answer by then asks again, wherever there is an engine.
const BUYERS_WAIT: Duration = Duration::from_secs(3);
/// Purchases that each buyer tries. With the limit, some of them are too many.
const ASKS_PER_BUYER: u32 = 3;
const MAX_QUANTITY: u32 = 3;
const PER_BUYER_LIMIT: u32 = 5;
/// One order in so many is cancelled by its buyer at once.
const CANCELS_ONE_IN: u32 = 10;
/// Between two faults.
const CALM_MS: std::ops::RangeInclusive<u64> = 300..=1_000;
/// Before the first fault and after the last: long enough to tell how much is sold.
const LONG_CALM: Duration = Duration::from_secs(2);
/// How long the engines may take until they say that they are ready.
const READY_WITHIN: Duration = Duration::from_mins(1);
/// So few that connections of buyers and of others compete.
const FEW_FILES: u32 = 200;
/// Room for a small database, and not much more.
const DISK_MIB: u32 = 512;
/// How long `chaos` lasts when nobody says.
const CHAOS_LASTS: Duration = Duration::from_secs(25);

/// What goes wrong in a scenario.
pub(super) struct Storm {
    /// What is done, and what must hold.
    pub(super) about: &'static str,
    engines: usize,
    /// Each list is gone through on its own, at the same time as the others; its faults come one after the other, in an order drawn
    /// from the seed.
    lanes: Vec<Vec<Fault>>,
    ends: End,
    open_files: Option<u32>,
    disk_mib: Option<u32>,
    /// Series by which operators must have noticed.
    signals: &'static [&'static str],
}

/// When the faults have an end.
#[derive(Debug, Clone, Copy)]
enum End {
    /// Each fault has struck so many times.
    Times(usize),
    /// So much time has passed.
    After(Duration),
}

impl Storm {
    /// Of a scenario that has one.
    pub(super) fn of(scenario: Scenario) -> Option<Self> {
        use Fault as F;
        let one = |about, fault, times| Self {
            about,
            engines: 1,
            lanes: vec![vec![fault]],
            ends: End::Times(times),
            open_files: None,
            disk_mib: None,
            signals: &[],
        };
        let several = |about, faults: &[Fault], times| Self {
            lanes: vec![faults.to_vec()],
            ..one(about, Fault::KillEngine, times)
        };
        let storm = match scenario {
            Scenario::KillEngine => one(
                "Buyers keep coming while the engine is killed again and again (SIGKILL), and started again at the same place.",
                F::KillEngine,
                6,
            ),
            Scenario::PauseEngine => Self {
                engines: 2,
                ..one(
                    "One of two engines sleeps (SIGSTOP) for longer than the cutoff with charges in hand, the other takes them over, and the \
                     sleeper wakes up: its fence must fail.",
                    F::PauseEngine,
                    2,
                )
            },
            Scenario::KillPostgres => several(
                "Postgres is killed as a whole, or one of its processes is, which takes all of its connections down.",
                &[F::KillPostgres, F::CrashPostgres],
                2,
            ),
            Scenario::RestartPostgres => one(
                "Postgres is stopped in order and started again, several times.",
                F::RestartPostgres,
                3,
            ),
            Scenario::KillRedis => one(
                "Redis is killed and comes back empty, several times.",
                F::KillRedis,
                3,
            ),
            Scenario::FlushRedis => one("Redis is emptied, again and again (FLUSHALL).", F::FlushRedis, 8),
            Scenario::StaleRedis => one(
                "Redis is killed and comes back as it was a while ago: with units that are sold, and without orders that are there.",
                F::StaleRedis,
                3,
            ),
            Scenario::ScriptFlush => one("Redis forgets its scripts, again and again.", F::FlushScripts, 8),
            Scenario::SlowPostgres => Self {
                engines: 2,
                ..several(
                    "An engine's link to Postgres is slow, silent or cut, also exactly at COMMIT, so that nobody knows whether it was done; \
                     buyers ask again at the other engine.",
                    &[F::SlowPostgres, F::SilentPostgres, F::CutPostgres, F::CutCommits],
                    2,
                )
            },
            Scenario::SlowRedis => Self {
                engines: 2,
                ..several(
                    "An engine's link to Redis is slow, silent or cut.",
                    &[F::SlowRedis, F::SilentRedis, F::CutRedis],
                    2,
                )
            },
            Scenario::ProviderDown => several(
                "The provider is away for longer than the cutoff, takes money without saying so, stores errors, hangs, or takes no more.",
                &[F::ProviderDown, F::ProviderDoubtful, F::ProviderBusy],
                2,
            ),
            Scenario::ClockJump => one(
                "The engine's wall clock jumps by an hour, there and back, in both directions.",
                F::ClockJump,
                4,
            ),
            Scenario::DiskFull => Self {
                disk_mib: Some(DISK_MIB),
                ..one("Postgres' disk is full, several times.", F::FullDisk, 3)
            },
            Scenario::FdLimit => Self {
                open_files: Some(FEW_FILES),
                ..one(
                    "An engine that may have 200 files open, and 400 clients that want a connection besides its buyers.",
                    F::SlowClients,
                    2,
                )
            },
            Scenario::SlowClients => one(
                "400 clients dribble headers or bodies, say nothing, or send headers and bodies without an end, while buyers keep coming.",
                F::SlowClients,
                3,
            ),
            Scenario::TwoEngines => Self::chaos(
                "Two engines on the same services, and every fault that there is, two at a time.",
                2,
                CHAOS_LASTS,
            ),
            Scenario::ThreeEngines => Self::chaos("The same with three engines.", 3, CHAOS_LASTS),
            Scenario::Chaos => Self::chaos(
                "One to three engines by the seed, and a random mix of every fault, two at a time, for --minutes N.",
                0,
                CHAOS_LASTS,
            ),
            _ => return None,
        };
        // Only what counts, or lasts for longer than the second between two of the engine's own looks: a shorter outage may show nowhere.
        let signals: &[&str] = match scenario {
            Scenario::KillRedis | Scenario::FlushRedis | Scenario::StaleRedis => {
                &["fluxbuy_gate_rebuilds_total"]
            }
            Scenario::ProviderDown => &["fluxbuy_provider_breakers_open", "fluxbuy_orders_in_doubt"],
            Scenario::FdLimit => &["fluxbuy_connections_closed_for_room_total"],
            _ => storm.signals,
        };
        Some(Self { signals, ..storm })
    }

    /// Everything at once, but what needs a disk or a clock of its own. Engines and what they stand on are each struck by one fault at
    /// a time.
    fn chaos(about: &'static str, engines: usize, lasts: Duration) -> Self {
        use Fault as F;
        Self {
            about,
            engines,
            lanes: vec![
                vec![
                    F::KillEngine,
                    F::PauseEngine,
                    F::SlowClients,
                    F::ProviderDown,
                    F::ProviderDoubtful,
                    F::ProviderBusy,
                ],
                vec![
                    F::CrashPostgres,
                    F::KillPostgres,
                    F::RestartPostgres,
                    F::KillRedis,
                    F::FlushRedis,
                    F::StaleRedis,
                    F::FlushScripts,
                    F::SlowPostgres,
                    F::SilentPostgres,
                    F::CutPostgres,
                    F::CutCommits,
                    F::SlowRedis,
                    F::SilentRedis,
                    F::CutRedis,
                ],
            ],
            ends: End::After(lasts),
            open_files: None,
            disk_mib: None,
            signals: &["fluxbuy_gate_rebuilds_total"],
        }
    }

    fn for_run(run: &Run) -> anyhow::Result<Self> {
        let mut storm = Self::of(run.scenario).context("nothing goes wrong in this scenario")?;
        if storm.engines == 0 {
            storm.engines = 1 + (run.seed % 3) as usize;
        }
        if let (Some(minutes), End::After(lasts)) = (run.minutes, &mut storm.ends) {
            *lasts = Duration::from_mins(minutes.into());
        }
        Ok(storm)
    }

    fn strikes(&self, fault: Fault) -> bool {
        self.lanes.iter().flatten().any(|other| *other == fault)
    }
}

/// Engines with the original's times through twenty, and a provider whose webhooks come twice and late. Every second seed charges in two
/// steps.
pub(super) fn needs(run: &Run) -> anyhow::Result<Needs> {
    let storm = Storm::for_run(run)?;
    let mut settings: Vec<_> = [
        ("sweeper.cutoff_ms", CUTOFF.as_millis() as u64),
        ("sweeper.period_ms", 500),
        ("sweeper.reaper_period_ms", 500),
        ("sweeper.reaper_grace_ms", 1_600),
        ("payment.give_up_ms", 2_250),
        ("payment.charge_timeout_ms", 1_000),
        ("payment.scan_period_ms", 1_000),
        ("payment.expected_charge_ms", 200),
        ("postgres.statement_timeout_ms", 1_000),
        ("webhooks.scan_period_ms", 200),
    ]
    .map(|(name, value)| (name, value.to_string()))
    .into();
    settings.push(("provider.two_step", run.seed.is_multiple_of(2).to_string()));
    let clock = storm.strikes(Fault::ClockJump);
    Ok(Needs {
        provider: Provider {
            latency_min_ms: 50,
            latency_max_ms: 400,
            decline_percent: 20,
        },
        settings,
        // A clock that is an hour off has all webhooks refused: their signatures are too old, or not made yet.
        webhooks: (!clock).then(|| json!({"copies_min": 1, "copies_max": 2, "gap_min_ms": 10, "gap_max_ms": 80, "delay_max_ms": 500})),
        more_engines: storm.engines - 1,
        proxies: storm.lanes.iter().flatten().any(|fault| fault.is_of_a_link()),
        conditions: Conditions {
            open_files: storm.open_files,
            clock,
        },
        disk_mib: storm.disk_mib,
        ..Needs::default()
    })
}

pub(super) async fn play(run: &Run, world: &World) -> anyhow::Result<Report> {
    let storm = Storm::for_run(run)?;
    let mut stage = Stage::open(run, world).await?;
    let wishes = Wishes {
        wish,
        seed: run.seed,
        pause: BUYERS_COME_EVERY,
        answer_within: BUYERS_WAIT,
    };
    let signals = Signals::watch(world.engines(), storm.signals);
    let mut struck = Vec::new();
    let mut ended = Duration::ZERO;
    let raging = async {
        let began = Instant::now();
        sleep(LONG_CALM).await;
        struck = rage(&storm, world, run.seed, began).await?;
        sleep(LONG_CALM).await;
        ended = began.elapsed();
        Ok(())
    };
    stage
        .keep_buying(wishes, CLIENTS, PER_BUYER_LIMIT, raging)
        .await?;
    ready_again(world).await?;
    let silent = signals.silent();
    drop(signals);
    let right_again = Instant::now();
    stage.settle_with_gate().await?;
    let settled_after = right_again.elapsed();
    let records = stage.records();
    let undecided = undecided(records);
    let before = decided_between(Duration::ZERO, LONG_CALM, records);
    let after = decided_between(ended.saturating_sub(LONG_CALM), ended, records);
    let answers_again = answers_again(struck.iter().map(|strike| strike.healed), records);
    let sleeps = storm.strikes(Fault::PauseEngine) && matches!(storm.ends, End::Times(_));
    let mut report = stage
        .report(|scene, findings| {
            findings.require(silent.is_empty(), "operators-notice", || {
                format!("nothing was to be seen in {silent:?}")
            });
            findings.require(undecided.is_empty(), "everybody-is-decided", || {
                format!(
                    "{} purchases never came to a yes or no: {undecided:?}",
                    undecided.len()
                )
            });
            findings.require(
                !sleeps || scene.claims_lost.payment > 0,
                "the-sleeper-is-fenced",
                || "no claim was lost to whoever took over: nothing was tried".to_owned(),
            );
        })
        .await?;
    for strike in &struck {
        *report.faults.entry(strike.fault.name()).or_default() += 1;
    }
    report.answers_again_ms = Some(answers_again.as_secs_f64() * 1_000.0);
    report.settled_after_s = Some(settled_after.as_secs_f64());
    report.decided_after_over_before = (before > 0).then(|| after as f64 / before as f64);
    Ok(report)
}

/// A fault that has struck.
struct Struck {
    fault: Fault,
    /// When it was healed, from the opening on.
    healed: Duration,
}

/// Purchases without a yes or no at their end, some of them.
fn undecided(records: &[Record]) -> Vec<Ask> {
    const EXAMPLES: usize = 100;
    let mut last: HashMap<Ask, &Outcome> = HashMap::new();
    // They are sorted by their start.
    for record in records {
        last.insert(record.ask, &record.outcome);
    }
    last.into_iter()
        .filter(|(_, outcome)| !outcome.is_decided())
        .map(|(ask, _)| ask)
        .take(EXAMPLES)
        .collect()
}

/// The longest time from a fault's healing to the first answer that decides a purchase made after it.
pub(super) fn answers_again(healed: impl IntoIterator<Item = Duration>, records: &[Record]) -> Duration {
    let first_after = |healed: Duration| {
        let after = records.iter().filter(|record| record.started >= healed);
        let decided = after.filter(|record| record.outcome.is_decided());
        decided
            .map(|record| record.ended.saturating_sub(healed))
            .min()
            .unwrap_or_default()
    };
    healed.into_iter().map(first_after).max().unwrap_or_default()
}

/// Purchases that came to a yes or no in this time.
fn decided_between(from: Duration, until: Duration, records: &[Record]) -> usize {
    let within = |record: &&Record| (from..until).contains(&record.ended) && record.outcome.is_decided();
    records.iter().filter(within).count()
}

/// Waits until each engine says that it is ready.
async fn ready_again(world: &World) -> anyhow::Result<()> {
    let deadline = Instant::now() + READY_WITHIN;
    for engine in world.engines() {
        loop {
            let said = match engine.get("/readyz").await {
                Ok(answer) if answer.status == 200 => break,
                Ok(answer) => String::from_utf8_lossy(&answer.body).into_owned(),
                Err(error) => format!("{error:#}"),
            };
            ensure!(
                Instant::now() < deadline,
                "an engine didn't get ready again: {said}"
            );
            sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(())
}

/// What each buyer in the row wants. Three in a row are one buyer's, and come at nearly the same instant.
fn wish(seed: u64, number: u32) -> (Ask, bool) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ (u64::from(number) << 32));
    let ask = Ask {
        buyer: number / ASKS_PER_BUYER,
        key: number,
        quantity: rng.random_range(1..=MAX_QUANTITY),
    };
    (ask, rng.random_ratio(1, CANCELS_ONE_IN))
}

/// Plays the faults, from the opening on. Returns what has struck.
async fn rage(storm: &Storm, world: &World, seed: u64, began: Instant) -> anyhow::Result<Vec<Struck>> {
    let field = Field {
        world,
        cutoff: CUTOFF,
    };
    let lanes = storm.lanes.iter().enumerate().map(|(number, faults)| {
        let rng = ChaCha8Rng::seed_from_u64(seed.wrapping_add(1 + number as u64));
        lane(faults, storm.ends, &field, rng, began)
    });
    Ok(try_join_all(lanes).await?.into_iter().flatten().collect())
}

async fn lane(
    faults: &[Fault],
    ends: End,
    field: &Field<'_>,
    mut rng: ChaCha8Rng,
    began: Instant,
) -> anyhow::Result<Vec<Struck>> {
    let mut struck = Vec::new();
    let mut rounds = 0;
    loop {
        let mut round = faults.to_vec();
        round.shuffle(&mut rng);
        for fault in round {
            sleep(Duration::from_millis(rng.random_range(CALM_MS))).await;
            if matches!(ends, End::After(lasts) if began.elapsed() >= lasts) {
                return Ok(struck);
            }
            fault
                .strike(field, &mut rng)
                .await
                .with_context(|| format!("fault {}", fault.name()))?;
            struck.push(Struck {
                fault,
                healed: began.elapsed(),
            });
        }
        rounds += 1;
        if matches!(ends, End::Times(times) if rounds >= times) {
            return Ok(struck);
        }
    }
}
