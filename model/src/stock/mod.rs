//! The stock of one sale: buyers who ask again under the same key, at several engines; the gate that admits; the database that decides;
//! the releases that go back; the reaper; the gate's loss and its loading anew. Covered:
//!
//! - a number of [hands](hands) at the same time, of whichever kind and engine: a batch on its way, a load, a release, a reaper. Each may sleep
//!   for any time between two effects, and die there;
//! - answers of gate and database that are lost, a COMMIT that lands after everybody has given it up, a gate that can't be asked, or is empty;
//! - orders that are paid, that fail, and that are returned, at any time.
//!
//! Left out: quantities other than one, limits per buyer, opening and closing hours, the cancellation of sales, rows that the database refuses for
//! what is in them, and a Redis that goes back to what it was a second ago. How an order is paid is the other model.

mod gate;
mod hands;
mod heal;
mod rows;

use fluxbuy::domain::{Event, OrderStatus};
use stateright::{Model, Property};

pub use hands::How;

use crate::landmarks::Landmarks;
use gate::{Gate, Keys};
use hands::Hand;
use rows::Rows;

/// The most buyers that a configuration may have.
pub const MAX_BUYERS: usize = 3;
/// Ids that may be minted for each buyer's purchase: one for each time it is asked for.
const TRIES: usize = 2;
const IDS: usize = MAX_BUYERS * TRIES;
/// The most hands that a configuration may have.
pub const MAX_HANDS: usize = 4;

fn buyer_of(id: usize) -> usize {
    id / TRIES
}

/// A set of orders, by their ids.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Set(u8);

impl Set {
    const EMPTY: Self = Self(0);

    fn one(id: usize) -> Self {
        Self(1 << id)
    }

    fn add(&mut self, id: usize) {
        self.0 |= 1 << id;
    }

    fn remove(&mut self, id: usize) {
        self.0 &= !(1 << id);
    }

    fn has(self, id: usize) -> bool {
        self.0 & (1 << id) != 0
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    fn ids(self) -> impl Iterator<Item = usize> {
        (0..IDS).filter(move |id| self.has(*id))
    }

    fn filter(self, wanted: impl Fn(usize) -> bool) -> Self {
        let mut rest = Self::EMPTY;
        for id in self.ids().filter(|id| wanted(*id)) {
            rest.add(id);
        }
        rest
    }
}

impl std::fmt::Debug for Set {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.ids()).finish()
    }
}

/// The model with its configuration.
#[derive(Debug, Clone)]
pub struct Stock {
    /// Who wants to buy, at most [`MAX_BUYERS`].
    pub buyers: usize,
    /// Units.
    pub quantity: i8,
    /// Things under way at the same time, at most [`MAX_HANDS`].
    pub hands: usize,
    /// The epoch isn't raised beyond this one, other than to heal: a bound, as every raise makes new states.
    pub max_epoch: u8,
    /// The sale may be loaded anew at any time, and not only when gate and database differ.
    pub eager_reloads: bool,
    /// Orders that were paid may be paid back, and their units returned.
    pub returns: bool,
    /// Holds a gate that was passed by to its word as well: see [`property::REFUSALS`].
    pub any_refusal: bool,
    /// What keeps it right.
    pub guards: Guards,
    /// What has happened on the way, in any of the states.
    pub landmarks: Landmarks<{ Landmark::ALL.len() }>,
}

/// What keeps it right; each can be taken away to see that it is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guards {
    /// The batch's update names the epoch under which the gate has admitted it.
    pub epoch: bool,
    /// The CHECK on what is available.
    pub check: bool,
    /// One order for a purchase.
    pub unique_key: bool,
    /// An id is occupied before its unit is given back.
    pub occupy: bool,
    /// The note of a release goes only when it was carried out under the epoch of the day.
    pub note_epoch: bool,
}

impl Guards {
    /// As the engine has them.
    pub const ALL: Self = Self {
        epoch: true,
        check: true,
        unique_key: true,
        occupy: true,
        note_epoch: true,
    };
}

/// What must have happened somewhere, or the model would show nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Landmark {
    /// A batch was admitted by keys that counted no more.
    StaleEpoch,
    /// A batch went by the database alone.
    Alone,
    /// A COMMIT landed when nobody was waiting for it any more.
    LandedLate,
    /// An id was occupied, and its unit given back.
    GivenBack,
    /// An id could not be occupied: the order exists.
    OrderStands,
    /// The reaper found a reservation without an order.
    Orphan,
    /// The gate knew the purchase by another id, and no order of it existed.
    Adopted,
    /// A buyer was told of the order that an earlier request had made.
    Replayed,
    /// A release found the gate empty or being loaded.
    ReleaseUnprimed,
    /// A release was carried out by keys that counted no more: its note stays.
    NoteKept,
    /// A load was overtaken by a newer one.
    LoadLost,
    /// Somebody was told that it is sold out.
    SoldOut,
    /// A hand died in the middle.
    Crash,
}

impl Landmark {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::StaleEpoch,
        Self::Alone,
        Self::LandedLate,
        Self::GivenBack,
        Self::OrderStands,
        Self::Orphan,
        Self::Adopted,
        Self::Replayed,
        Self::ReleaseUnprimed,
        Self::NoteKept,
        Self::LoadLost,
        Self::SoldOut,
        Self::Crash,
    ];
}

/// Database, gate, and what hands hold in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct State {
    rows: Rows,
    gate: Gate,
    /// In order, so that hands which do the same are the same wherever they stand.
    hands: [Hand; MAX_HANDS],
    /// Ids that were minted.
    minted: Set,
    /// Somebody was told 201 and has no order.
    false_promise: bool,
    /// Somebody was told that it is sold out and has an order.
    false_refusal: bool,
}

/// What may happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// These buyers, as bits, ask an engine, which makes a batch of it.
    Ask(u8),
    /// A hand does its next step: which, what, and how that goes.
    Go(usize, &'static str, How),
    /// A hand dies before its next step.
    Crash(usize, &'static str),
    /// The COMMIT that went unanswered lands.
    Land,
    /// It never does.
    Abort,
    /// An order is paid.
    Pay(usize),
    /// It fails.
    Fail(usize),
    /// It is paid back, and its unit returned.
    Return(usize),
    /// A releaser takes the note of this order.
    TakeNote(usize),
    /// The reaper finds this reservation without an order.
    Reap(usize),
    /// Somebody has the sale loaded anew.
    Reload,
    /// Redis loses everything.
    Flush,
}

impl Stock {
    /// So many buyers, units and hands, all guards.
    pub fn new(buyers: usize, quantity: i8, hands: usize) -> Self {
        assert!(buyers <= MAX_BUYERS && hands <= MAX_HANDS);
        Self {
            buyers,
            quantity,
            hands,
            max_epoch: 3,
            eager_reloads: false,
            returns: false,
            any_refusal: false,
            guards: Guards::ALL,
            landmarks: Landmarks::default(),
        }
    }

    fn pass(&self, landmark: Landmark) {
        self.landmarks.pass(landmark as usize);
    }

    fn step(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        let idle = 0;
        match action {
            Action::Ask(buyers) => Self::ask(&mut state, idle, buyers),
            Action::Go(hand, _, how) => self.go(&mut state, hand, how),
            Action::Crash(hand, _) => {
                self.pass(Landmark::Crash);
                state.hands[hand] = Hand::Idle;
            }
            Action::Land => {
                let batch = state.rows.in_flight.take()?;
                if !state.hands.contains(&Hand::Place(batch)) {
                    self.pass(Landmark::LandedLate);
                }
                state.rows.place(self.guards, batch);
            }
            Action::Abort => state.rows.in_flight = None,
            Action::Pay(id) => {
                state.rows.apply(id, OrderStatus::Pending, Event::Claim);
                state
                    .rows
                    .apply(id, OrderStatus::Processing, Event::ChargeSucceeded);
            }
            Action::Fail(id) => state.rows.apply(id, OrderStatus::Pending, Event::Swept),
            Action::Return(id) => state
                .rows
                .apply(id, OrderStatus::Paid, Event::RefundedAndReturned),
            Action::TakeNote(id) => state.hands[idle] = Hand::Release(id as u8),
            Action::Reap(id) => {
                self.pass(Landmark::Orphan);
                state.hands[idle] = Hand::Occupy(Set::one(id));
            }
            Action::Reload => state.hands[idle] = Hand::BeginLoad(state.rows.raise_epoch()),
            Action::Flush => state.gate = Gate::EMPTY,
        }
        state.hands.sort_unstable();
        (state != *last).then_some(state)
    }

    fn all_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let State { rows, .. } = state;
        let busy = state.hands.iter().filter(|hand| **hand != Hand::Idle).count();
        let may_raise = rows.epoch < self.max_epoch;
        // Whoever needs the inventory's row waits for the transaction that has it.
        let unlocked = rows.in_flight.is_none();
        if busy < self.hands {
            actions.extend((1..1 << self.buyers).map(Action::Ask));
            actions.extend(rows.notes.ids().map(Action::TakeNote));
            actions.extend(state.orphans().ids().map(Action::Reap));
            if unlocked && may_raise && (self.eager_reloads || !state.gate_agrees()) {
                actions.push(Action::Reload);
            }
        }
        for (index, hand) in state.hands.iter().enumerate().skip(MAX_HANDS - busy) {
            if index > 0 && state.hands[index - 1] == *hand {
                continue;
            }
            let step = hand.name();
            let ways = hand.ways(rows, may_raise).iter();
            actions.extend(ways.map(|how| Action::Go(index, step, *how)));
            actions.push(Action::Crash(index, step));
        }
        if unlocked {
            for (id, order) in rows.orders.iter().enumerate() {
                match order {
                    Some(OrderStatus::Pending) => {
                        actions.push(Action::Pay(id));
                        actions.push(Action::Fail(id));
                    }
                    Some(OrderStatus::Paid) if self.returns => actions.push(Action::Return(id)),
                    _ => {}
                }
            }
        } else {
            actions.push(Action::Land);
            actions.push(Action::Abort);
        }
        if may_raise {
            actions.push(Action::Flush);
        }
    }

    fn any_step(&self, state: &State) -> bool {
        let mut actions = Vec::with_capacity(32);
        self.all_actions(state, &mut actions);
        actions
            .into_iter()
            .any(|action| self.step(state, action).is_some())
    }

    fn is_settled(&self, state: &State) -> bool {
        let State {
            rows, gate, hands, ..
        } = state;
        let gate_is_right = match gate.keys {
            // Its next load takes the notes away: what they are about is in the stock that is loaded.
            Keys::None => true,
            Keys::Loading(_) => false,
            Keys::Loaded(loaded) => {
                rows.notes.is_empty()
                    && loaded.epoch == rows.epoch
                    && loaded.available == rows.available
                    && loaded.held == rows.holders()
            }
        };
        gate_is_right
            && rows.in_flight.is_none()
            && rows.held == 0
            && rows.add_up(self.quantity)
            && hands.iter().all(|hand| *hand == Hand::Idle)
    }
}

impl State {
    /// Reservations that have no order, as far as can be seen: a transaction in flight isn't.
    fn orphans(&self) -> Set {
        match self.gate.keys {
            Keys::Loaded(loaded) => {
                let orders = self.rows.with(|status| status != OrderStatus::Rejected);
                loaded.held.without(orders)
            }
            _ => Set::EMPTY,
        }
    }

    /// Gate and database say the same.
    fn gate_agrees(&self) -> bool {
        match self.gate.keys {
            Keys::Loaded(loaded) => {
                loaded.epoch == self.rows.epoch && loaded.available == self.rows.available
            }
            _ => false,
        }
    }
}

/// Names of properties.
pub mod property {
    /// By the rows themselves.
    pub const NEVER_OVERSOLD: &str = "never more orders than units";
    /// The counters say what the orders say.
    pub const STOCK: &str = "stock is conserved";
    /// However often it is asked for, and by whichever engine.
    pub const ONE_ORDER: &str = "one purchase, one order";
    /// What was answered 201 exists.
    pub const PROMISES: &str = "who is told 201 has an order";
    /// Nor is anybody sent away who has one: by the database, or by a gate that is loaded under the epoch of the day.
    pub const REFUSALS: &str = "who is told sold out has no order";
    /// Under one epoch.
    pub const GATE: &str = "the gate never has more than the database";
    /// Units there are as many as reservations say.
    pub const GATE_ADDS_UP: &str = "the gate's units and reservations add up";
    /// Where nothing more can happen.
    pub const QUIET: &str = "where nothing more can happen everything is settled";
    /// From every state, by what is in it alone.
    pub const HEALS: &str =
        "when faults stop no unit is missing anywhere, and a gate that is loaded needn't be loaded anew";
}

impl Model for Stock {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            rows: Rows::new(self.quantity),
            gate: Gate::EMPTY,
            hands: [Hand::Idle; MAX_HANDS],
            minted: Set::EMPTY,
            false_promise: false,
            false_refusal: false,
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
            Property::always(property::NEVER_OVERSOLD, |model: &Self, state: &State| {
                state.rows.holders().ids().count() <= model.quantity as usize
            }),
            Property::always(property::STOCK, |model: &Self, state: &State| {
                state.rows.add_up(model.quantity)
            }),
            Property::always(property::ONE_ORDER, |model: &Self, state: &State| {
                (0..model.buyers).all(|buyer| state.rows.of_buyer(buyer).ids().count() <= 1)
            }),
            Property::always(property::PROMISES, |_, state: &State| !state.false_promise),
            Property::always(property::REFUSALS, |_, state: &State| !state.false_refusal),
            Property::always(property::GATE, |_, state: &State| match state.gate.keys {
                Keys::Loaded(loaded) => {
                    loaded.epoch != state.rows.epoch || loaded.available <= state.rows.available
                }
                _ => true,
            }),
            Property::always(
                property::GATE_ADDS_UP,
                |model: &Self, state: &State| match state.gate.keys {
                    Keys::Loaded(loaded) => {
                        loaded.available >= 0
                            && loaded.available + loaded.held.ids().count() as i8 == model.quantity
                    }
                    _ => true,
                },
            ),
            Property::always(property::QUIET, |model: &Self, state: &State| {
                // At the model's bound nobody may have the sale loaded anew.
                let bound = state.rows.epoch >= model.max_epoch;
                bound || model.is_settled(state) || model.any_step(state)
            }),
            Property::always(property::HEALS, |model: &Self, state: &State| {
                model.is_settled(&model.heal(state))
            }),
            Property::sometimes("all sold", |model: &Self, state: &State| {
                state.rows.sold == model.quantity
            }),
            Property::sometimes("an occupied id", |_, state: &State| {
                !state
                    .rows
                    .with(|status| status == OrderStatus::Rejected)
                    .is_empty()
            }),
        ];
        if self.buyers > 1 {
            all.push(Property::sometimes(
                "failed and sold to another",
                |_, state: &State| {
                    let failed = state.rows.with(|status| status == OrderStatus::Failed);
                    !failed.is_empty() && state.rows.sold > 0
                },
            ));
        }
        if self.max_epoch > 2 {
            all.push(Property::sometimes(
                "a commit in flight while the gate is loaded anew",
                |_, state: &State| {
                    state.rows.in_flight.is_some()
                        && state.hands.iter().any(|hand| matches!(hand, Hand::FinishLoad(_)))
                },
            ));
        }
        all
    }
}
