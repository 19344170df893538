//! Scenarios: what is done to an engine, and what must hold afterwards.

mod cancel_sale;
mod flood;
mod guard_off;
mod in_doubt;
mod oversell;
mod race;
mod refund_race;
mod replay;
mod stage;
mod twins_unguarded;
mod two_step;
mod watch;
mod webhook_storm;
mod webhook_twins;

use anyhow::ensure;
use clap::ValueEnum;

use stage::Stage;

use crate::report::Report;
use crate::world::{Place, World};

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
}

impl Scenario {
    /// All of them.
    pub const ALL: [Self; 12] = [
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
        }
    }
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
}

impl Run {
    /// A run, of the scenario's own size where none is given.
    pub fn new(scenario: Scenario, buyers: Option<u32>, units: Option<u32>, seed: u64, full: bool) -> Self {
        let (own_buyers, own_units) = scenario.size();
        Self {
            scenario,
            buyers: buyers.unwrap_or(own_buyers),
            units: units.unwrap_or(own_units),
            seed,
            full,
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
        let run = Run::new(Scenario::Flood, Some(3), None, 7, false);
        assert_eq!((run.buyers, run.units, run.seed), (3, 900, 7));
    }
}
