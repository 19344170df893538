//! The money of one order: claims, charges in one step and in two, captures, voids, sweeps, webhooks, refunds, and what is owed to the
//! provider. Covered:
//!
//! - a number of [hands](hands) at the same time, of whichever kind and engine, each of which may sleep for any time at any step, and die there;
//! - time: an order may be past the cutoff as soon as it is there, a charge out of time at any step, a loan run out at any time;
//! - a provider whose answers are lost, to whom requests come late or never, which declines, lets authorisations expire, and can't be asked;
//! - a provider that confirms a void and doesn't keep to it, on request;
//! - webhooks that come early, late, any number of times, in any order, or never, applied by what was true when they were looked at;
//! - commits whose answer is lost: the change is run again, as the transition writer does.
//!
//! Left out: charges that are opened first, partial refunds, dead letters (a task is tried for ever), the buyers' limits, and several orders: what
//! orders share is stock, and that is the other model. Reserving and the gate are there as well.

mod hands;
mod heal;
mod provider;
mod rows;

use fluxbuy::domain::{Event, News, OrderStatus, PaymentStatus};
use stateright::{Model, Property};

pub use hands::{How, Task};

use crate::landmarks::Landmarks;
use hands::{Hand, Stage};
use provider::{Account, Book, Charge};
use rows::{Asked, Change, Rows};

/// Charges of one order. One is all that the engine ever makes; without its guards it makes more.
const ATTEMPTS: usize = 2;
/// The most hands that a configuration may have.
pub const MAX_HANDS: usize = 5;

/// The model with its configuration.
#[derive(Debug, Clone)]
pub struct Money {
    /// Things under way at the same time, at most [`MAX_HANDS`].
    pub hands: usize,
    /// Charges only set money aside, until it is captured.
    pub two_step: bool,
    /// The operator's switch: orders in doubt fail at the cutoff, and late money goes back.
    pub fail_in_doubt: bool,
    /// Somebody may ask for the money of a paid order.
    pub refunds: bool,
    /// What the provider has set aside may be let go by itself.
    pub expiry: bool,
    /// The provider keeps to the voids that it confirms. Otherwise a charge that is under way then may go through all the same, of which only
    /// its events tell: each is written down, and applied once.
    pub kept_voids: bool,
    /// What keeps it right.
    pub guards: Guards,
    /// What has happened on the way, in any of the states.
    pub landmarks: Landmarks<{ Landmark::ALL.len() }>,
}

/// What keeps it right; each can be taken away to see that it is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guards {
    /// The update names the status that it expects.
    pub status: bool,
    /// And the fence of the claim.
    pub fence: bool,
    /// Units are released for the rows that the update returned, and no others.
    pub returned_rows: bool,
    /// The provider is asked before an order that was claimed is failed.
    pub ask_provider: bool,
    /// "Not found" isn't believed: the reference is voided.
    pub confirmed_void: bool,
    /// Nothing is captured before CAPTURING is committed.
    pub capture_written: bool,
    /// What an order that fails leaves to be found out is written in the commit that fails it.
    pub owed_in_commit: bool,
    /// A refund has one name at the provider.
    pub refund_name: bool,
    /// A refund that was paid goes from due to done, once.
    pub refund_noted_once: bool,
    /// A task that was noted once more since it was taken is not taken away.
    pub loan: bool,
}

impl Guards {
    /// As the engine has them.
    pub const ALL: Self = Self {
        status: true,
        fence: true,
        returned_rows: true,
        ask_provider: true,
        confirmed_void: true,
        capture_written: true,
        owed_in_commit: true,
        refund_name: true,
        refund_noted_once: true,
        loan: true,
    };
}

/// What must have happened somewhere, or the model would show nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Landmark {
    /// A worker wanted an order that somebody else had got first.
    ClaimLost,
    /// A sweeper found that the order had moved since it was looked at.
    SweepLost,
    /// A claim was taken over.
    TakenOver,
    /// The holder of a claim that was taken over wanted to write.
    Overtaken,
    /// A webhook was applied.
    SettledByWebhook,
    /// A webhook came again, or too late to matter.
    WebhookTwiceOrLate,
    /// A charge arrived when its reference had been voided.
    ChargeAfterVoid,
    /// Money came for an order that had failed.
    LateMoney,
    /// A void that was confirmed was not kept.
    VoidNotKept,
    /// A hand died in the middle.
    Crash,
}

impl Landmark {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::ClaimLost,
        Self::SweepLost,
        Self::TakenOver,
        Self::Overtaken,
        Self::SettledByWebhook,
        Self::WebhookTwiceOrLate,
        Self::ChargeAfterVoid,
        Self::LateMoney,
        Self::VoidNotKept,
        Self::Crash,
    ];
}

/// Rows, provider, and what hands hold in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct State {
    rows: Rows,
    book: Book,
    /// In order, so that hands which do the same are the same wherever they stand.
    hands: [Hand; MAX_HANDS],
    /// The provider refused a refund.
    dead_letter: bool,
    /// Money was taken while the order wasn't written down as CAPTURING.
    early_capture: bool,
}

/// What may happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A worker claims the order.
    Claim(How),
    /// A sweeper finds it past the cutoff.
    Scan,
    /// A webhook about this charge is delivered.
    Hear(u8, News),
    /// A worker takes up what is owed.
    Take(u8, Task),
    /// A hand does its next step: which, what, and how that goes.
    Go(usize, &'static str, How),
    /// The time of a claim's holder is up, before that step.
    OutOfTime(usize, &'static str),
    /// A hand dies before its next step.
    Crash(usize, &'static str),
    /// A request that was under way arrives.
    Arrive(u8, Request),
    /// It never will.
    Lose(u8, Request),
    /// The provider decides about a charge: yes, or no.
    Decide(u8, bool),
    /// It lets go of what it had set aside.
    Expire(u8),
    /// The buyer cancels.
    Cancel,
    /// Somebody asks for the money of a paid order.
    AskRefund,
}

/// A request on its way to the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// To charge.
    Charge,
    /// To void.
    Void,
    /// To capture.
    Capture,
}

impl Money {
    /// So many hands, all guards, one step, no switches.
    pub fn new(hands: usize) -> Self {
        assert!(hands <= MAX_HANDS);
        Self {
            hands,
            two_step: false,
            fail_in_doubt: false,
            refunds: false,
            expiry: false,
            kept_voids: true,
            guards: Guards::ALL,
            landmarks: Landmarks::default(),
        }
    }

    fn pass(&self, landmark: Landmark) {
        self.landmarks.pass(landmark as usize);
    }

    /// Whether an order may fail while its charge may still succeed: then late money goes back.
    fn late_money_is_possible(&self) -> bool {
        (self.fail_in_doubt && !self.two_step) || !self.kept_voids
    }

    fn step(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        // Whoever does nothing is the first, if there is anybody.
        let idle = 0;
        match action {
            Action::Claim(how) => self.claim(&mut state, idle, how),
            Action::Scan => Self::scan(&mut state, idle),
            Action::Hear(attempt, news) => self.hear(&mut state, idle, attempt, news),
            Action::Take(attempt, task) => Self::take(&mut state, idle, attempt, task),
            Action::Go(hand, _, how) => self.go(&mut state, hand, how),
            Action::OutOfTime(hand, _) => Self::out_of_time(&mut state, hand),
            Action::Crash(hand, _) => {
                self.pass(Landmark::Crash);
                state.hands[hand] = Hand::IDLE;
            }
            Action::Arrive(attempt, request) => self.arrive(&mut state, attempt, request),
            Action::Lose(attempt, request) => {
                let account = &mut state.book[usize::from(attempt) - 1];
                match request {
                    Request::Charge => account.charge_under_way = false,
                    Request::Void => account.void_under_way = false,
                    Request::Capture => account.capture_under_way = false,
                }
            }
            Action::Decide(attempt, yes) => {
                let account = &mut state.book[usize::from(attempt) - 1];
                if account.charge == Charge::VoidedNotKept {
                    self.pass(Landmark::VoidNotKept);
                }
                account.decide(match (yes, self.two_step) {
                    (false, _) => Charge::Declined,
                    (true, false) => Charge::Succeeded,
                    (true, true) => Charge::Authorised,
                });
            }
            Action::Expire(attempt) => state.book[usize::from(attempt) - 1].decide(Charge::Voided),
            Action::Cancel => {
                let change = Change {
                    event: Event::Cancelled,
                    expect: OrderStatus::Pending,
                    fence: None,
                };
                state.rows.apply(self.guards, change);
            }
            Action::AskRefund => state.rows.ask_refund(),
        }
        state.hands.sort_unstable();
        (state != *last).then_some(state)
    }

    fn arrive(&self, state: &mut State, attempt: u8, request: Request) {
        let account = &mut state.book[usize::from(attempt) - 1];
        match request {
            Request::Charge => {
                if account.charge == Charge::Voided {
                    self.pass(Landmark::ChargeAfterVoid);
                }
                account.charge_arrives();
            }
            Request::Void => {
                account.void_under_way = false;
                account.void(self.kept_voids);
            }
            Request::Capture => {
                account.capture_under_way = false;
                let (_, taken) = account.capture();
                state.captured(taken);
            }
        }
    }

    fn all_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let busy = state.hands.iter().filter(|hand| **hand != Hand::IDLE).count();
        if busy < self.hands {
            Self::begin(state, actions);
        }
        for (index, hand) in state.hands.iter().enumerate().skip(MAX_HANDS - busy) {
            // Those that are the same do the same.
            if index > 0 && state.hands[index - 1] == *hand {
                continue;
            }
            let step = hand.stage.name();
            let ways = Self::ways(hand.stage).iter();
            actions.extend(ways.map(|how| Action::Go(index, step, *how)));
            if matches!(
                hand.stage,
                Stage::Send(_) | Stage::LookUp(_) | Stage::CaptureLookUp
            ) {
                actions.push(Action::OutOfTime(index, step));
            }
            actions.push(Action::Crash(index, step));
        }
        for (attempt, account) in (1..).zip(&state.book) {
            for (under_way, request) in [
                (account.charge_under_way, Request::Charge),
                (account.void_under_way, Request::Void),
                (account.capture_under_way, Request::Capture),
            ] {
                if under_way {
                    actions.push(Action::Arrive(attempt, request));
                    actions.push(Action::Lose(attempt, request));
                }
            }
            if account.charge == Charge::Pending {
                actions.push(Action::Decide(attempt, true));
                actions.push(Action::Decide(attempt, false));
            }
            if account.charge == Charge::VoidedNotKept {
                actions.push(Action::Decide(attempt, true));
            }
            if self.expiry && account.charge == Charge::Authorised {
                actions.push(Action::Expire(attempt));
            }
        }
        actions.push(Action::Cancel);
        if self.refunds {
            actions.push(Action::AskRefund);
        }
    }

    /// What a hand that has nothing to do may begin.
    fn begin(state: &State, actions: &mut Vec<Action>) {
        if usize::from(state.rows.attempt) < ATTEMPTS {
            actions.push(Action::Claim(How::Well));
            actions.push(Action::Claim(How::AnswerLost));
        }
        actions.push(Action::Scan);
        for (attempt, account) in (1..).zip(&state.book) {
            let told = account.told;
            for (happened, news) in [
                (told.authorised, News::Authorised),
                (told.succeeded, News::Succeeded),
                (told.declined, News::Declined),
                (told.voided, News::Voided),
                (account.refunded > 0, News::Refunded),
            ] {
                if happened {
                    actions.push(Action::Hear(attempt, news));
                }
            }
            for task in [Task::Resolve, Task::LateRefund, Task::AskedRefund] {
                actions.push(Action::Take(attempt, task));
            }
        }
    }

    fn any_step(&self, state: &State) -> bool {
        let mut actions = Vec::with_capacity(32);
        self.all_actions(state, &mut actions);
        actions
            .into_iter()
            .any(|action| self.step(state, action).is_some())
    }
}

impl State {
    /// Nothing is open or owed, and nobody has paid for what they didn't get.
    fn is_settled(&self) -> bool {
        let Self { rows, book, .. } = self;
        let net: i8 = book.iter().map(Account::net).sum();
        let taken = book
            .iter()
            .filter(|account| account.charge == Charge::Succeeded)
            .count();
        let charged: u8 = rows
            .payments
            .iter()
            .flatten()
            .map(|payment| payment.charged)
            .sum();
        let refunded: u8 = rows
            .payments
            .iter()
            .flatten()
            .map(|payment| payment.refunded)
            .sum();
        let paid_back: u8 = book.iter().map(|account| account.refunded).sum();
        let set_aside = book.iter().any(|account| account.charge == Charge::Authorised);
        let as_it_should = match rows.status {
            OrderStatus::Paid => net == 1 && rows.sold == 1,
            OrderStatus::Failed | OrderStatus::Refunded => net == 0 && rows.available == 1,
            _ => false,
        };
        as_it_should && !set_aside && !rows.owes() && usize::from(charged) == taken && refunded == paid_back
    }

    /// A claim was made or taken over: all others are worth nothing from now on.
    fn fence_out(&mut self) {
        for hand in &mut self.hands {
            hand.fresh = false;
        }
    }

    /// A task was noted once more, or taken: whoever is at it isn't any more on the loan under which it is.
    fn end_loans(&mut self, attempt: u8) {
        for hand in &mut self.hands {
            if hand.attempt == attempt && hand.stage.resolves() {
                hand.fresh = false;
            }
        }
    }

    fn captured(&mut self, taken: bool) {
        self.early_capture |= taken && self.rows.status != OrderStatus::Capturing;
    }

    fn succeeded(&self) -> usize {
        self.book
            .iter()
            .filter(|account| account.charge == Charge::Succeeded)
            .count()
    }
}

/// Names of properties.
pub mod property {
    /// `available + held + sold` is the quantity, each within bounds, and as the order's status says.
    pub const STOCK: &str = "stock is conserved";
    /// A unit goes back once.
    pub const RELEASED_ONCE: &str = "an order releases its unit at most once";
    /// Money taken and not paid back, of all charges of the order.
    pub const ONE_CHARGE: &str = "an order is charged at most once, and never paid back more";
    /// And by the charge that counts.
    pub const PAID_IS_CHARGED: &str = "a paid order is charged once";
    /// Without the operator's switch, or in two steps.
    pub const NO_LATE_MONEY: &str = "no money is taken for an order that failed";
    /// In two steps.
    pub const CAPTURING_FIRST: &str = "nothing is captured before CAPTURING is written down";
    /// A row of the ledger for what happened at the provider, and one only.
    pub const LEDGER: &str = "the ledger says nothing that didn't happen";
    /// By the protocol itself.
    pub const NO_WALL: &str = "nothing runs into a wall of the database";
    /// What the fence is for.
    pub const OVERTAKEN: &str = "a claim that was taken over moves nothing";
    /// All refunds that are asked of it can be paid.
    pub const NO_DEAD_LETTER: &str = "the provider refuses no refund";
    /// Where nothing more can happen.
    pub const QUIET: &str = "where nothing more can happen everything is settled";
    /// From every state, by what is in it alone.
    pub const HEALS: &str =
        "when faults stop everything gets settled, without any webhook where voids are kept";
}

impl Model for Money {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            rows: Rows::new(),
            book: [Account::new(); ATTEMPTS],
            hands: [Hand::IDLE; MAX_HANDS],
            dead_letter: false,
            early_capture: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.all_actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        self.step(last, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            Property::always(property::STOCK, |_, state: &State| {
                let rows = &state.rows;
                let (open, sold) = (rows.status.is_open(), rows.status == OrderStatus::Paid);
                (rows.held, rows.sold, rows.available)
                    == (i8::from(open), i8::from(sold), i8::from(!open && !sold))
            }),
            Property::always(property::RELEASED_ONCE, |_, state: &State| {
                state.rows.releases <= 1
            }),
            Property::always(property::ONE_CHARGE, |_, state: &State| {
                let net: i8 = state.book.iter().map(Account::net).sum();
                (0..=1).contains(&net) && state.succeeded() <= 1
            }),
            Property::always(property::PAID_IS_CHARGED, |_, state: &State| {
                let rows = &state.rows;
                rows.status != OrderStatus::Paid
                    || (state.succeeded() == 1
                        && rows.attempt > 0
                        && state.book[usize::from(rows.attempt) - 1].charge == Charge::Succeeded)
            }),
            Property::always(property::NO_LATE_MONEY, |model: &Self, state: &State| {
                model.late_money_is_possible()
                    || state.rows.status != OrderStatus::Failed
                    || state.succeeded() == 0
            }),
            // Who lets through what it has confirmed as voided may as well capture it.
            Property::always(property::CAPTURING_FIRST, |model: &Self, state: &State| {
                !state.early_capture || !model.kept_voids
            }),
            Property::always(property::LEDGER, |_, state: &State| {
                state
                    .rows
                    .payments
                    .iter()
                    .zip(&state.book)
                    .filter_map(|(payment, account)| Some((payment.as_ref()?, account)))
                    .all(|(payment, account)| {
                        payment.charged <= u8::from(account.charge == Charge::Succeeded)
                            && payment.refunded <= account.refunded.min(payment.charged)
                    })
            }),
            Property::always(property::NO_WALL, |_, state: &State| !state.rows.wall),
            Property::always(property::OVERTAKEN, |_, state: &State| {
                !state.rows.overtaken_wrote
            }),
            Property::always(property::NO_DEAD_LETTER, |_, state: &State| !state.dead_letter),
            Property::always(property::QUIET, |model: &Self, state: &State| {
                state.is_settled() || model.any_step(state)
            }),
            Property::always(property::HEALS, |model: &Self, state: &State| {
                model.heal(state).is_settled()
            }),
            Property::sometimes("paid", |_, state: &State| state.rows.status == OrderStatus::Paid),
            Property::sometimes("swept or cancelled before it was claimed", |_, state: &State| {
                state.rows.status == OrderStatus::Failed && state.rows.attempt == 0
            }),
            Property::sometimes("declined", |_, state: &State| {
                state.rows.status == OrderStatus::Failed && has(state, PaymentStatus::Declined)
            }),
            Property::sometimes("voided", |_, state: &State| has(state, PaymentStatus::Voided)),
            Property::sometimes("never sent", |_, state: &State| {
                has(state, PaymentStatus::NotSent)
            }),
            Property::sometimes("in doubt", |_, state: &State| has(state, PaymentStatus::InDoubt)),
        ];
        if self.two_step {
            all.push(Property::sometimes("capturing", |_, state: &State| {
                state.rows.status == OrderStatus::Capturing
            }));
        }
        if self.two_step || self.fail_in_doubt {
            all.push(Property::sometimes(
                "given up, and still owed",
                |_, state: &State| {
                    state.rows.status == OrderStatus::Failed
                        && state.rows.owes()
                        && has(state, PaymentStatus::InDoubt)
                },
            ));
        }
        if self.late_money_is_possible() {
            all.push(Property::sometimes("late money paid back", |_, state: &State| {
                has(state, PaymentStatus::Refunded)
            }));
        }
        if self.refunds {
            all.push(Property::sometimes("paid back as asked", |_, state: &State| {
                state.rows.status == OrderStatus::Refunded
                    && state
                        .rows
                        .payments
                        .iter()
                        .flatten()
                        .any(|p| p.asked == Asked::Done)
            }));
        }
        all
    }
}

fn has(state: &State, status: PaymentStatus) -> bool {
    state
        .rows
        .payments
        .iter()
        .flatten()
        .any(|payment| payment.status == status)
}
