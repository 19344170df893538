//! Scenarios: what is done to an engine, and what must hold afterwards.

mod cancel_sale;
mod flood;
mod guard_off;
mod in_doubt;
mod oversell;
mod race;
mod recover;
mod refund_race;
mod replay;
mod signals;
mod stage;
mod storm;
mod twins_unguarded;
mod two_step;
mod watch;
mod webhook_storm;
mod webhook_twins;

use anyhow::ensure;
use clap::ValueEnum;

use stage::Stage;
use storm::Storm;

use crate::report::Report;
use crate::world::{Conditions, Place, SmallDisk, World};

pub use stage::UNIT_PRICE_MINOR;

/// Which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// As many buyers as units, all at the opening instant.
    Flood,
    /// The payment queue starved, so that the sweeper overtakes it.
    Race,
    /// The race against an engine whose claim has lost its guard.
    GuardOff,
    /// Far more buyers than units, with random quantities.
    Oversell,
    /// Every request sent several times.
    Replay,
    /// Every webhook twice.
    WebhookTwins,
    /// Webhooks repeated, reordered, early, late, lost and forged.
    WebhookStorm,
    /// Twin webhooks against an engine and a database without their guards.
    TwinsUnguarded,
    /// A provider that takes money without saying so, and then is away.
    InDoubt,
    /// The same in two steps: charges that are authorised, and then captured.
    TwoStep,
    /// Refunds of the same orders from two windows at once.
    RefundRace,
    /// A sale that is called off in the middle.
    CancelSale,
    /// The engine is killed again and again.
    KillEngine,
    /// The engine is killed at peak load, with thousands of open orders.
    Recover,
    /// An engine sleeps through its claims.
    PauseEngine,
    /// Postgres dies.
    KillPostgres,
    /// Postgres is restarted.
    RestartPostgres,
    /// Redis dies.
    KillRedis,
    /// Redis is emptied.
    FlushRedis,
    /// Redis comes back from an older snapshot.
    StaleRedis,
    /// Redis forgets its scripts.
    ScriptFlush,
    /// Links to Postgres are slow, silent or cut, also at COMMIT.
    SlowPostgres,
    /// Links to Redis are slow, silent or cut.
    SlowRedis,
    /// The provider is away, in doubt or too busy.
    ProviderDown,
    /// The engine's clock jumps.
    ClockJump,
    /// Postgres' disk is full.
    DiskFull,
    /// The engine runs out of files.
    FdLimit,
    /// Clients that dribble, and clients that never stop.
    SlowClients,
    /// Two engines, and every fault.
    TwoEngines,
    /// Three engines, and every fault.
    ThreeEngines,
    /// A random mix of all faults, for --minutes N.
    Chaos,
}

impl Scenario {
    /// All of them.
    pub const ALL: [Self; 31] = [
        Self::Flood,
        Self::Race,
        Self::GuardOff,
        Self::Oversell,
        Self::Replay,
        Self::WebhookTwins,
        Self::WebhookStorm,
        Self::TwinsUnguarded,
        Self::InDoubt,
        Self::TwoStep,
        Self::RefundRace,
        Self::CancelSale,
        Self::KillEngine,
        Self::Recover,
        Self::PauseEngine,
        Self::KillPostgres,
        Self::RestartPostgres,
        Self::KillRedis,
        Self::FlushRedis,
        Self::StaleRedis,
        Self::ScriptFlush,
        Self::SlowPostgres,
        Self::SlowRedis,
        Self::ProviderDown,
        Self::ClockJump,
        Self::DiskFull,
        Self::FdLimit,
        Self::SlowClients,
        Self::TwoEngines,
        Self::ThreeEngines,
        Self::Chaos,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flood => "flood",
            Self::Race => "race",
            Self::GuardOff => "guard-off",
            Self::Oversell => "oversell",
            Self::Replay => "replay",
            Self::WebhookTwins => "webhook-twins",
            Self::WebhookStorm => "webhook-storm",
            Self::TwinsUnguarded => "twins-unguarded",
            Self::InDoubt => "in-doubt",
            Self::TwoStep => "two-step",
            Self::RefundRace => "refund-race",
            Self::CancelSale => "cancel-sale",
            Self::KillEngine => "kill-engine",
            Self::Recover => "recover",
            Self::PauseEngine => "pause-engine",
            Self::KillPostgres => "kill-postgres",
            Self::RestartPostgres => "restart-postgres",
            Self::KillRedis => "kill-redis",
            Self::FlushRedis => "flush-redis",
            Self::StaleRedis => "stale-redis",
            Self::ScriptFlush => "script-flush",
            Self::SlowPostgres => "slow-postgres",
            Self::SlowRedis => "slow-redis",
            Self::ProviderDown => "provider-down",
            Self::ClockJump => "clock-jump",
            Self::DiskFull => "disk-full",
            Self::FdLimit => "fd-limit",
            Self::SlowClients => "slow-clients",
            Self::TwoEngines => "two-engines",
            Self::ThreeEngines => "three-engines",
            Self::Chaos => "chaos",
        }
    }

    /// What is done, and what must hold.
    pub fn about(self) -> &'static str {
        match self {
            Self::Flood => flood::ABOUT,
            Self::Race => race::ABOUT,
            Self::GuardOff => guard_off::ABOUT,
            Self::Oversell => oversell::ABOUT,
            Self::Replay => replay::ABOUT,
            Self::WebhookTwins => webhook_twins::ABOUT,
            Self::WebhookStorm => webhook_storm::ABOUT,
            Self::TwinsUnguarded => twins_unguarded::ABOUT,
            Self::InDoubt => in_doubt::ABOUT,
            Self::TwoStep => two_step::ABOUT,
            Self::RefundRace => refund_race::ABOUT,
            Self::CancelSale => cancel_sale::ABOUT,
            Self::Recover => recover::ABOUT,
            _ => Storm::of(self).map_or("", |storm| storm.about),
        }
    }

    /// Why it can't be staged on this machine, if it can't.
    pub fn what_is_missing(self) -> Option<&'static str> {
        match self {
            Self::DiskFull if !SmallDisk::is_allowed() => Some("a small disk can be mounted only by root"),
            Self::ClockJump if !Conditions::clocks_can_be_moved() => {
                Some("libfaketime isn't installed (Debian and Ubuntu: libfaketime)")
            }
            _ => None,
        }
    }

    /// Whether it does to its services what nobody would have done to those of others.
    fn bends_its_world(self) -> bool {
        !matches!(self, Self::Flood | Self::Race | Self::Oversell | Self::Replay)
    }

    /// Buyers and units, unless somebody wants others.
    fn size(self) -> (u32, u32) {
        match self {
            Self::Flood => (900, 900),
            Self::Race | Self::GuardOff | Self::RefundRace => (400, 400),
            Self::Oversell => (5_000, 100),
            Self::Replay => (500, 600),
            Self::WebhookTwins => (2_000, 2_000),
            Self::WebhookStorm => (600, 600),
            Self::CancelSale => (600, 1_500),
            Self::TwinsUnguarded | Self::InDoubt | Self::TwoStep => (300, 300),
            Self::Recover => (10_000, 100_000),
            // Buyers come as long as things go wrong.
            _ => (0, 6_000),
        }
    }
}

/// How large a run is; what isn't given is the scenario's own.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct Size {
    /// Buyers; each scenario has its own default.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub buyers: Option<u32>,
    /// Units on sale; each scenario has its own default.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub units: Option<u32>,
    /// The times of the original instead of the scaled ones.
    #[arg(long)]
    pub full: bool,
    /// How long `chaos`, `two-engines` and `three-engines` last.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub minutes: Option<u32>,
}

/// A run of a scenario.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// Which.
    pub scenario: Scenario,
    /// Buyers.
    pub buyers: u32,
    /// Units on sale.
    pub units: u32,
    /// Chooses everything that is random.
    pub seed: u64,
    /// The original's times instead of the scaled ones.
    pub full: bool,
    /// How long a scenario lasts that lasts as long as one wants.
    pub minutes: Option<u32>,
}

impl Run {
    /// A run, of the scenario's own size where none is given.
    pub fn new(scenario: Scenario, size: &Size, seed: u64) -> Self {
        let (own_buyers, own_units) = scenario.size();
        Self {
            scenario,
            buyers: size.buyers.unwrap_or(own_buyers),
            units: size.units.unwrap_or(own_units * size.minutes.unwrap_or(1)),
            seed,
            full: size.full,
            minutes: size.minutes,
        }
    }

    /// Plays it, in a world that is made for it or given.
    ///
    /// # Errors
    /// When it can't be played to its end. What is wrong with the engine is in the report.
    pub async fn play(&self, place: &Place) -> anyhow::Result<Report> {
        ensure!(
            !self.scenario.bends_its_world() || matches!(place, Place::Private(_)),
            "{} takes down walls of its database, or has the provider misbehave, and does so only to those of its own: leave --url out",
            self.scenario.name()
        );
        let needs = match self.scenario {
            Scenario::Flood => flood::needs(self),
            Scenario::Race => race::needs(self),
            Scenario::GuardOff => guard_off::needs(self),
            Scenario::Oversell => oversell::needs(),
            Scenario::Replay => replay::needs(),
            Scenario::WebhookTwins => webhook_twins::needs(),
            Scenario::WebhookStorm => webhook_storm::needs(),
            Scenario::TwinsUnguarded => twins_unguarded::needs(),
            Scenario::InDoubt => in_doubt::needs(self),
            Scenario::TwoStep => two_step::needs(self),
            Scenario::RefundRace => refund_race::needs(),
            Scenario::CancelSale => cancel_sale::needs(),
            Scenario::Recover => recover::needs(),
            _ => storm::needs(self)?,
        };
        let label = format!("{}-seed-{}", self.scenario.name(), self.seed);
        let world = World::open(place, &needs, &label, self.seed).await?;
        let report = self.act(&world).await;
        let as_it_must_be = report.as_ref().is_ok_and(|report| report.verdict().is_success());
        if !as_it_must_be {
            world.print_logs();
        }
        let closed = world.close().await;
        let report = report?;
        closed?;
        Ok(report)
    }

    async fn act(&self, world: &World) -> anyhow::Result<Report> {
        match self.scenario {
            Scenario::Flood => flood::play(self, world).await,
            Scenario::Race => race::play(self, world).await,
            Scenario::GuardOff => guard_off::play(self, world).await,
            Scenario::Oversell => oversell::play(self, world).await,
            Scenario::Replay => replay::play(self, world).await,
            Scenario::WebhookTwins => webhook_twins::play(self, world).await,
            Scenario::WebhookStorm => webhook_storm::play(self, world).await,
            Scenario::TwinsUnguarded => twins_unguarded::play(self, world).await,
            Scenario::InDoubt => in_doubt::play(self, world).await,
            Scenario::TwoStep => two_step::play(self, world).await,
            Scenario::RefundRace => refund_race::play(self, world).await,
            Scenario::CancelSale => cancel_sale::play(self, world).await,
            Scenario::Recover => recover::play(self, world).await,
            _ => storm::play(self, world).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        for scenario in Scenario::ALL {
            assert_eq!(scenario.to_possible_value().unwrap().get_name(), scenario.name());
        }
        assert_eq!(Scenario::value_variants(), Scenario::ALL);
    }

    #[test]
    fn a_given_size_goes_before_the_scenarios_own() {
        let size = Size {
            buyers: Some(3),
            ..Size::default()
        };
        let run = Run::new(Scenario::Flood, &size, 7);
        assert_eq!((run.buyers, run.units, run.seed), (3, 900, 7));
    }
}
