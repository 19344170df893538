//! Lives of sales: what may be asked of the store, in any order. Orders are drawn from a pool, in which each has its buyer, key and
//! quantity once and for all; several share a key, and some an id.

use fluxbuy::domain::{Buyer, Event, IdempotencyDigest, OrderId, OrderStatus, SaleId};
use fluxbuy::store::NewOrder;
use proptest::prelude::*;
use uuid::Uuid;

/// Sales of a life: without a limit, with one, and one that is called off easily or not open yet.
pub(crate) const SALES: usize = 3;
/// Orders of a sale's pool.
const POOL: u8 = 24;
/// Of one unit, in minor units.
pub(crate) const PRICE_MINOR: i64 = 100;

/// A life's sales, and what happens to them.
#[derive(Debug, Clone)]
pub(crate) struct Life {
    /// Units, a buyer's limit, and whether the sale is open.
    pub sales: [(i32, Option<i32>, bool); SALES],
    pub steps: Vec<Step>,
}

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Reserve(usize, Vec<u8>, Under),
    /// Batches of different sales.
    Group(Vec<(usize, Vec<u8>, bool)>),
    Apply(Vec<Wish>),
    LateCharge(Pick, i32),
    VoidLater(Pick, i32),
    InDoubt(Pick),
    Name(Pick, u8),
    /// A part of the amount in percent, or all that is left; whether the units go back; under which key.
    Refund(Pick, Option<u8>, bool, u8),
    /// Attempt and number.
    RefundPaid(Pick, i32, i32),
    Occupy(usize, Vec<u8>),
    RaiseEpoch(usize),
    /// Under the right epoch, or the one before.
    ReleasesDone(usize, bool),
    /// All tasks are taken, and something becomes of one.
    Work(u8, End),
    Requeue,
    CallOff(usize),
}

/// One of the orders that exist, or one that doesn't.
pub(crate) type Pick = u8;

/// By whose word a batch is admitted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Under {
    RightEpoch,
    EpochBefore,
    Nobody,
    NobodyAgain,
}

/// A change. `event` picks one of those that the expected status knows.
#[derive(Debug, Clone)]
pub(crate) struct Wish {
    pub order: Pick,
    /// Another status than the order has.
    pub expect: Option<OrderStatus>,
    /// So much off the order's fence; `None` where nobody holds a claim.
    pub fence: Option<i32>,
    pub event: u8,
}

/// What becomes of a task.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    Done,
    Failed,
    Buried,
    /// The charge can't succeed any more.
    NoMoney,
}

fn members() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(0..POOL, 1..7)
}

fn wish() -> impl Strategy<Value = Wish> {
    let expect = prop_oneof![
        12 => Just(None),
        1 => prop::sample::select(&OrderStatus::ALL[..3]).prop_map(Some),
    ];
    let fence = prop_oneof![3 => Just(None), 6 => Just(Some(0)), 1 => Just(Some(-1)), 1 => Just(Some(1))];
    (any::<Pick>(), expect, fence, any::<u8>()).prop_map(|(order, expect, fence, event)| Wish {
        order,
        expect,
        fence,
        event,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let sale = || 0..SALES;
    let under = prop_oneof![
        6 => Just(Under::RightEpoch),
        1 => Just(Under::EpochBefore),
        2 => Just(Under::Nobody),
        1 => Just(Under::NobodyAgain),
    ];
    let batch = (sale(), members(), prop::bool::weighted(0.9));
    // Nearly always the attempt that there is.
    let attempt = || prop_oneof![8 => Just(1), 1 => Just(2), 1 => Just(0)];
    let part = prop_oneof![4 => Just(None), 2 => Just(Some(50)), 1 => (1..120_u8).prop_map(Some)];
    let number = prop_oneof![2 => Just(0), 6 => Just(1), 3 => Just(2)];
    let end = prop_oneof![
        Just(End::Done),
        Just(End::Failed),
        Just(End::Buried),
        Just(End::NoMoney)
    ];
    prop_oneof![
        7 => (sale(), members(), under).prop_map(|(sale, members, under)| Step::Reserve(sale, members, under)),
        3 => prop::collection::vec(batch, 1..4).prop_map(Step::Group),
        20 => prop::collection::vec(wish(), 2..10).prop_map(Step::Apply),
        3 => (any::<Pick>(), attempt()).prop_map(|(order, attempt)| Step::LateCharge(order, attempt)),
        2 => (any::<Pick>(), attempt()).prop_map(|(order, attempt)| Step::VoidLater(order, attempt)),
        1 => any::<Pick>().prop_map(Step::InDoubt),
        1 => (any::<Pick>(), any::<u8>()).prop_map(|(order, name)| Step::Name(order, name)),
        9 => (any::<Pick>(), part, any::<bool>(), 0..2_u8)
            .prop_map(|(order, part, units, key)| Step::Refund(order, part, units, key)),
        9 => (any::<Pick>(), attempt(), number).prop_map(|(order, attempt, n)| Step::RefundPaid(order, attempt, n)),
        2 => (sale(), members()).prop_map(|(sale, members)| Step::Occupy(sale, members)),
        1 => sale().prop_map(Step::RaiseEpoch),
        1 => (sale(), any::<bool>()).prop_map(|(sale, right)| Step::ReleasesDone(sale, right)),
        3 => (any::<u8>(), end).prop_map(|(task, end)| Step::Work(task, end)),
        1 => Just(Step::Requeue),
        1 => (2..SALES).prop_map(Step::CallOff),
    ]
}

/// After an opening in which orders are made and paid, so that there is something to which the rest can happen.
pub(crate) fn life() -> impl Strategy<Value = Life> {
    let sales = (
        4..40,
        4..20,
        2..6,
        1..20,
        prop::option::of(1..6),
        prop::bool::weighted(0.7),
    );
    let made =
        (0..SALES, members()).prop_map(|(sale, members)| Step::Reserve(sale, members, Under::RightEpoch));
    let paid = prop::collection::vec(wish(), 2..10).prop_map(Step::Apply);
    let opening = (
        prop::collection::vec(made, 0..6),
        prop::collection::vec(paid, 0..6),
    );
    (sales, opening, prop::collection::vec(step(), 20..55)).prop_map(
        |((free, limited, limit, last, last_limit, open), (made, paid), steps)| Life {
            sales: [
                (free, None, true),
                (limited, Some(limit), true),
                (last, last_limit, open),
            ],
            steps: [made, paid, steps].concat(),
        },
    )
}

/// A member of a sale's pool. `life` makes the ids of this life different from those of others.
pub(crate) fn member(life: u64, sale: SaleId, place: usize, member: u8) -> NewOrder {
    // One in eight has the id of another.
    let id = if member % 8 == 7 { member - 3 } else { member };
    let number = u128::from(life) << 64 | (place as u128) << 8 | u128::from(id);
    let buyer = Buyer::parse(&format!("buyer:{}", member % 3)).expect("a plain name");
    let quantity = 1 + i32::from(member % 2) + i32::from(member.is_multiple_of(7));
    NewOrder {
        order: OrderId(Uuid::from_u128(number)),
        digest: IdempotencyDigest::of(&buyer, &format!("{sale} {}", member / 3 % 5)),
        buyer,
        quantity,
        amount_minor: i64::from(quantity) * PRICE_MINOR,
        payment_method: None,
        request_id: None,
    }
}

/// An event for an order in this status. Those that move an order on come more often; what nothing can happen to is asked for all the
/// same, and the store refuses that before it looks.
pub(crate) fn event(status: OrderStatus, pick: u8) -> Event {
    use Event as E;
    let events: &[Event] = match status {
        OrderStatus::Pending => &[
            E::Claim,
            E::Claim,
            E::Claim,
            E::Claim,
            E::Claim,
            E::Claim,
            E::Claim,
            E::Claim,
            E::Swept,
            E::Cancelled,
            E::SaleCancelled,
        ],
        OrderStatus::Processing => &[
            E::ChargeSucceeded,
            E::ChargeSucceeded,
            E::ChargeSucceeded,
            E::ChargeSucceeded,
            E::ChargeSucceeded,
            E::ChargeSucceeded,
            E::Authorised,
            E::Authorised,
            E::TakeOver,
            E::ChargeDeclined,
            E::ChargeNotSent,
            E::ChargeVoided,
            E::GivenUp,
        ],
        OrderStatus::Capturing => &[
            E::ChargeSucceeded,
            E::ChargeSucceeded,
            E::TakeOver,
            E::ChargeDeclined,
            E::ChargeVoided,
        ],
        OrderStatus::Paid | OrderStatus::Failed | OrderStatus::Refunded | OrderStatus::Rejected => {
            &[E::Claim, E::Swept, E::TakeOver]
        }
    };
    events[usize::from(pick) % events.len()]
}
