//! Transitions: batched conditional updates, with all that belongs to them in the same transaction.

use std::collections::{BTreeMap, HashMap};

use sqlx::{Connection, Postgres, Row, Transaction};
use uuid::Uuid;

use super::{Error, Store, commit};
use crate::crash::{self, Point};
use crate::domain::{
    Effect, Event, FailureReason, Money, OrderId, OrderStatus, PaymentMethod, PaymentStatus, RequestId,
    SaleId, Transition, transition,
};
use crate::metrics::{By, Pool};
use crate::provider::Reference;

/// When a provider that has confirmed a void is asked once more: longer than a charge under way takes.
const VERIFY_VOID_AFTER_MS: i64 = 5_000;

/// A wish to move an order on. It names the status that it expects, and the fence where the caller holds a claim.
#[derive(Debug, Clone)]
pub struct Change {
    /// The order.
    pub order: OrderId,
    /// Its sale.
    pub sale: SaleId,
    /// What happened to it.
    pub event: Event,
    /// The status it must still have.
    pub expect: OrderStatus,
    /// The fence it must still have; `None` where nobody has claimed it.
    pub fence: Option<i32>,
    /// Who wants it.
    pub by: By,
    /// For a claim: its charge only sets money aside, until it is captured.
    pub two_step: bool,
    /// The provider's word, for a declined payment.
    pub decline_code: Option<String>,
    /// The provider's event that brought it about, if one did.
    pub provider_event: Option<String>,
    /// Leaves the status condition out, as the bug did that this design exists against.
    #[cfg(feature = "test-switches")]
    pub without_guard: bool,
}

/// What became of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It happened.
    Applied(Applied),
    /// Somebody got there first; nothing was done.
    Stale {
        /// What the order is now.
        status: OrderStatus,
        /// Its fence now.
        fence: i32,
        /// The request that brought it.
        request_id: Option<RequestId>,
    },
    /// There is no such order.
    NotFound,
}

/// An order as a change left it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// Its status now.
    pub status: OrderStatus,
    /// Its fence now.
    pub fence: i32,
    /// Its attempt now.
    pub attempt: i32,
    /// Its units.
    pub quantity: i32,
    /// What they cost together.
    pub amount: Money,
    /// What the buyer pays with, where the purchase said so.
    pub payment_method: Option<PaymentMethod>,
    /// The request that brought it.
    pub request_id: Option<RequestId>,
}

/// What a batch did besides.
#[derive(Debug, Default)]
pub struct Written {
    /// One outcome per change, in the order of the batch.
    pub outcomes: Vec<Outcome>,
    /// Orders whose units must now be released in the gate as well; durably noted.
    pub released: Vec<(SaleId, OrderId)>,
}

/// An order that has just moved, with what the rest of its transaction needs.
struct Moved<'a> {
    change: &'a Change,
    transition: Transition,
    after: Applied,
    buyer: String,
}

impl Moved<'_> {
    fn has(&self, effect: Effect) -> bool {
        self.transition.effects.contains(&effect)
    }
}

impl Store {
    /// Applies a batch of changes to distinct orders: each is applied, or answered with what the order is instead.
    ///
    /// When the database refuses one of them for itself, none is applied; a smaller batch finds the culprit.
    ///
    /// # Errors
    /// [`Error::OutcomeUnknown`]: whether the batch was applied must be found out by looking at the orders.
    /// Otherwise nothing was committed.
    pub async fn apply(&self, changes: &[Change]) -> Result<Written, Error> {
        self.run_again(|| self.try_apply(changes)).await
    }

    async fn try_apply(&self, changes: &[Change]) -> Result<Written, Error> {
        self.decided(Pool::Settle, async |conn| {
            let mut tx = conn.begin().await?;
            let written = apply_in(&mut tx, changes).await?;
            let settles = changes.iter().any(|change| change.event != Event::Claim);
            if settles {
                crash::at(Point::SettleBeforeCommit);
            }
            commit(tx).await?;
            if settles {
                crash::at(Point::SettleCommitted);
            }
            Ok(written)
        })
        .await
    }
}

/// Applies changes to distinct orders within a transaction that may do more. It is the caller who commits.
pub(super) async fn apply_in(
    tx: &mut Transaction<'_, Postgres>,
    changes: &[Change],
) -> Result<Written, Error> {
    let planned: Vec<Transition> = changes
        .iter()
        .map(|change| transition(change.expect, change.event))
        .collect::<Result<_, _>>()
        .map_err(|illegal| Error::Unexpected(illegal.to_string()))?;

    let mut found = update_orders(tx, changes, &planned).await?;

    let mut outcomes = Vec::with_capacity(changes.len());
    let mut moved = Vec::with_capacity(changes.len());
    for (change, transition) in changes.iter().zip(planned) {
        let Some(met) = found.remove(&change.order) else {
            outcomes.push(Outcome::NotFound);
            continue;
        };
        outcomes.push(met.outcome.clone());
        if let Outcome::Applied(after) = met.outcome {
            moved.push(Moved {
                change,
                transition,
                after,
                buyer: met.buyer,
            });
        }
    }

    write_log(tx, changes, &outcomes).await?;
    write_payments(tx, &moved).await?;
    write_ledger(tx, &moved).await?;
    let released = write_releases(tx, &moved).await?;
    write_inventory(tx, &moved).await?;
    Ok(Written { outcomes, released })
}

struct Met {
    outcome: Outcome,
    buyer: String,
}

/// Moves the orders that are as expected, in the order of their ids, and tells what each of them is.
///
/// They are met in that order because the list is gone through row by row, each order found by its key: other ways to join are switched off. Locked
/// beforehand, each order would cost an entry more in the log. Should two batches ever meet crosswise, the database has one of them run again.
///
/// What was moved comes straight out of the update. Joined back to the list of what was wanted it would cost four times as much:
/// the planner knows no sizes here and compares everything with everything.
async fn update_orders(
    tx: &mut Transaction<'_, Postgres>,
    changes: &[Change],
    planned: &[Transition],
) -> Result<HashMap<OrderId, Met>, Error> {
    let steps = |effects: &[Effect]| {
        let begins = effects.contains(&Effect::BeginPayment);
        let raises = begins || effects.contains(&Effect::RaiseFence);
        (i32::from(begins), i32::from(raises))
    };
    let moved = sqlx::query(
        "WITH wanted AS MATERIALIZED (
            SELECT *
            FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::int[], $5::text[], $6::text[], $7::int[], $8::int[])
                AS w (id, sale_id, expect, expect_fence, to_status, reason, attempt_step, fence_step)
            ORDER BY w.id
        )
        UPDATE orders o
        SET status = w.to_status::order_status, failure_reason = w.reason,
            attempt = o.attempt + w.attempt_step, fence = o.fence + w.fence_step,
            claimed_at = CASE WHEN w.attempt_step > 0 THEN clock_timestamp() ELSE o.claimed_at END,
            updated_at = clock_timestamp()
        FROM wanted w
        WHERE o.id = w.id AND o.sale_id = w.sale_id
          AND (w.expect IS NULL OR o.status = w.expect::order_status)
          AND (w.expect_fence IS NULL OR o.fence = w.expect_fence)
        RETURNING o.id, o.status::text AS status, o.fence, o.attempt, o.quantity, o.amount_minor, o.buyer, o.payment_method, o.request_id,
            (SELECT s.currency FROM sales s WHERE s.id = o.sale_id) AS currency",
    )
    .bind(changes.iter().map(|c| c.order.0).collect::<Vec<_>>())
    .bind(changes.iter().map(|c| c.sale.0).collect::<Vec<_>>())
    .bind(changes.iter().map(expected_status).collect::<Vec<_>>())
    .bind(changes.iter().map(expected_fence).collect::<Vec<_>>())
    .bind(planned.iter().map(|t| t.to.as_sql()).collect::<Vec<_>>())
    .bind(planned.iter().map(|t| t.reason.map(FailureReason::as_str)).collect::<Vec<_>>())
    .bind(planned.iter().map(|t| steps(t.effects).0).collect::<Vec<_>>())
    .bind(planned.iter().map(|t| steps(t.effects).1).collect::<Vec<_>>())
    .fetch_all(&mut **tx)
    .await?;
    let mut met = moved
        .into_iter()
        .map(|row| {
            let applied = Applied {
                status: status(row.try_get("status")?)?,
                fence: row.try_get("fence")?,
                attempt: row.try_get("attempt")?,
                quantity: row.try_get("quantity")?,
                amount: super::read::money(row.try_get("amount_minor")?, row.try_get("currency")?)?,
                payment_method: row
                    .try_get::<Option<&str>, _>("payment_method")?
                    .and_then(PaymentMethod::parse),
                request_id: row.try_get::<Option<&str>, _>("request_id")?.map(RequestId::new),
            };
            Ok((
                OrderId(row.try_get("id")?),
                Met {
                    outcome: Outcome::Applied(applied),
                    buyer: row.try_get("buyer")?,
                },
            ))
        })
        .collect::<Result<HashMap<_, _>, Error>>()?;

    // The others are looked at once more: they are what the update met, or what they have become since.
    let left: Vec<&Change> = changes
        .iter()
        .filter(|change| !met.contains_key(&change.order))
        .collect();
    if !left.is_empty() {
        let found: Vec<(Uuid, String, i32, String, Option<String>)> = sqlx::query_as(
            "SELECT o.id, o.status::text, o.fence, o.buyer, o.request_id
             FROM unnest($1::uuid[], $2::uuid[]) AS w (id, sale_id)
             JOIN orders o ON o.id = w.id AND o.sale_id = w.sale_id",
        )
        .bind(left.iter().map(|c| c.order.0).collect::<Vec<_>>())
        .bind(left.iter().map(|c| c.sale.0).collect::<Vec<_>>())
        .fetch_all(&mut **tx)
        .await?;
        for (id, found, fence, buyer, request_id) in found {
            let outcome = Outcome::Stale {
                status: status(&found)?,
                fence,
                request_id: request_id.as_deref().map(RequestId::new),
            };
            met.insert(OrderId(id), Met { outcome, buyer });
        }
    }
    Ok(met)
}

fn status(name: &str) -> Result<OrderStatus, Error> {
    OrderStatus::from_sql(name).ok_or_else(|| Error::Unexpected(format!("unknown status {name}")))
}

/// The condition that makes the status a lock. `None` leaves it out, which only a build for tests can do.
#[allow(clippy::unnecessary_wraps)]
fn expected_status(change: &Change) -> Option<&'static str> {
    #[cfg(feature = "test-switches")]
    if change.without_guard {
        return None;
    }
    Some(change.expect.as_sql())
}

/// The condition that shuts out whoever slept through a claim; as [`expected_status`].
fn expected_fence(change: &Change) -> Option<i32> {
    #[cfg(feature = "test-switches")]
    if change.without_guard {
        return None;
    }
    change.fence
}

/// Whether all payments that were to be moved on have to be open. Left out with the conditions.
#[allow(clippy::unnecessary_wraps, unused_variables)]
fn all_must_be_open(closed: &[&Moved<'_>]) -> bool {
    #[cfg(feature = "test-switches")]
    if closed.iter().any(|m| m.change.without_guard) {
        return false;
    }
    true
}

/// Who did what, and who came too late. Orders that don't exist have no history.
async fn write_log(
    tx: &mut Transaction<'_, Postgres>,
    changes: &[Change],
    outcomes: &[Outcome],
) -> Result<(), Error> {
    struct Line<'a> {
        change: &'a Change,
        applied: bool,
        status: OrderStatus,
        attempt: Option<i32>,
        fence: i32,
    }
    let lines: Vec<Line<'_>> = changes
        .iter()
        .zip(outcomes)
        .filter_map(|(change, outcome)| match outcome {
            Outcome::Applied(after) => Some(Line {
                change,
                applied: true,
                status: after.status,
                attempt: Some(after.attempt),
                fence: after.fence,
            }),
            Outcome::Stale { status, fence, .. } => Some(Line {
                change,
                applied: false,
                status: *status,
                attempt: None,
                fence: *fence,
            }),
            Outcome::NotFound => None,
        })
        .collect();
    if lines.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "INSERT INTO order_transitions (order_id, by, event, applied, status, attempt, fence)
         SELECT l.order_id, l.by, l.event, l.applied, l.status::order_status, l.attempt, l.fence
         FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bool[], $5::text[], $6::int[], $7::int[])
            AS l (order_id, by, event, applied, status, attempt, fence)",
    )
    .bind(lines.iter().map(|l| l.change.order.0).collect::<Vec<_>>())
    .bind(lines.iter().map(|l| l.change.by.as_str()).collect::<Vec<_>>())
    .bind(lines.iter().map(|l| l.change.event.as_str()).collect::<Vec<_>>())
    .bind(lines.iter().map(|l| l.applied).collect::<Vec<_>>())
    .bind(lines.iter().map(|l| l.status.as_sql()).collect::<Vec<_>>())
    .bind(lines.iter().map(|l| l.attempt).collect::<Vec<_>>())
    .bind(lines.iter().map(|l| l.fence).collect::<Vec<_>>())
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// The payment's row of each order that was claimed, and its outcome where it is known.
async fn write_payments(tx: &mut Transaction<'_, Postgres>, moved: &[Moved<'_>]) -> Result<(), Error> {
    let begun: Vec<_> = moved.iter().filter(|m| m.has(Effect::BeginPayment)).collect();
    if !begun.is_empty() {
        sqlx::query(
            "INSERT INTO payments (order_id, sale_id, attempt, reference, amount_minor, currency, status, two_step)
             SELECT p.order_id, p.sale_id, p.attempt, p.reference, p.amount_minor, p.currency, 'INITIATED', p.two_step
             FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::text[], $5::bigint[], $6::text[], $7::bool[])
                AS p (order_id, sale_id, attempt, reference, amount_minor, currency, two_step)",
        )
        .bind(ids(&begun))
        .bind(sales(&begun))
        .bind(attempts(&begun))
        .bind(
            begun
                .iter()
                .map(|m| Reference::of(m.change.order, m.after.attempt).as_str().to_owned())
                .collect::<Vec<_>>(),
        )
        .bind(
            begun
                .iter()
                .map(|m| m.after.amount.amount_minor)
                .collect::<Vec<_>>(),
        )
        .bind(
            begun
                .iter()
                .map(|m| m.after.amount.currency.as_str().to_owned())
                .collect::<Vec<_>>(),
        )
        .bind(begun.iter().map(|m| m.change.two_step).collect::<Vec<_>>())
        .execute(&mut **tx)
        .await?;
    }

    let closed: Vec<_> = moved
        .iter()
        .filter(|m| {
            m.has(Effect::BeginCapture) || m.has(Effect::ClosePayment) || m.has(Effect::ResolvePaymentLater)
        })
        .collect();
    if closed.is_empty() {
        return Ok(());
    }
    let updated = sqlx::query(
        "UPDATE payments p SET status = c.status, decline_code = c.decline_code, updated_at = clock_timestamp()
         FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::text[], $5::text[])
            AS c (order_id, sale_id, attempt, status, decline_code)
         WHERE p.order_id = c.order_id AND p.attempt = c.attempt AND p.sale_id = c.sale_id
           AND p.status IN ('INITIATED', 'IN_DOUBT', 'AUTHORISED')",
    )
    .bind(ids(&closed))
    .bind(sales(&closed))
    .bind(attempts(&closed))
    .bind(closed.iter().map(|m| PaymentStatus::after(m.change.event).as_sql()).collect::<Vec<_>>())
    .bind(closed.iter().map(|m| m.change.decline_code.as_deref()).collect::<Vec<_>>())
    .execute(&mut **tx)
    .await?
    .rows_affected();
    if updated != closed.len() as u64 && all_must_be_open(&closed) {
        return Err(Error::Refused {
            code: "FB001".to_owned(),
            constraint: "payments_open".to_owned(),
            message: format!(
                "{} payments were to be moved on but {updated} were open",
                closed.len()
            ),
        });
    }

    let later: Vec<_> = moved
        .iter()
        .filter(|m| m.has(Effect::ResolvePaymentLater) || m.has(Effect::VerifyVoidLater))
        .collect();
    if !later.is_empty() {
        sqlx::query(
            "INSERT INTO provider_tasks (order_id, sale_id, attempt, kind, due_at)
             SELECT t.order_id, t.sale_id, t.attempt, 'RESOLVE', clock_timestamp() + t.after_ms * interval '1 millisecond'
             FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::bigint[]) AS t (order_id, sale_id, attempt, after_ms)",
        )
        .bind(ids(&later))
        .bind(sales(&later))
        .bind(attempts(&later))
        .bind(
            later
                .iter()
                .map(|m| if m.has(Effect::VerifyVoidLater) { VERIFY_VOID_AFTER_MS } else { 0 })
                .collect::<Vec<_>>(),
        )
        .execute(&mut **tx)
        .await?;
    }
    Ok(())
}

/// A money row for each order that was paid.
async fn write_ledger(tx: &mut Transaction<'_, Postgres>, moved: &[Moved<'_>]) -> Result<(), Error> {
    let paid: Vec<_> = moved.iter().filter(|m| m.has(Effect::RecordCharge)).collect();
    if paid.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "INSERT INTO ledger_entries (order_id, sale_id, attempt, kind, amount_minor, currency, provider_event_id)
         SELECT l.order_id, l.sale_id, l.attempt, 'CHARGE', l.amount_minor, l.currency, l.event_id
         FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::bigint[], $5::text[], $6::text[])
            AS l (order_id, sale_id, attempt, amount_minor, currency, event_id)",
    )
    .bind(ids(&paid))
    .bind(sales(&paid))
    .bind(attempts(&paid))
    .bind(
        paid.iter()
            .map(|m| m.after.amount.amount_minor)
            .collect::<Vec<_>>(),
    )
    .bind(
        paid.iter()
            .map(|m| m.after.amount.currency.as_str().to_owned())
            .collect::<Vec<_>>(),
    )
    .bind(
        paid.iter()
            .map(|m| m.change.provider_event.as_deref())
            .collect::<Vec<_>>(),
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// For each order that failed, or whose units came back: the stock entry, the note for the gate, and the buyer's allowance.
async fn write_releases(
    tx: &mut Transaction<'_, Postgres>,
    moved: &[Moved<'_>],
) -> Result<Vec<(SaleId, OrderId)>, Error> {
    let released: Vec<_> = moved
        .iter()
        .filter(|m| m.has(Effect::ReleaseUnits) || m.has(Effect::ReturnUnits))
        .collect();
    if released.is_empty() {
        return Ok(Vec::new());
    }
    sqlx::query(
        "WITH r AS MATERIALIZED (
            SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::int[]) AS r (order_id, sale_id, quantity)
        ), entries AS (
            INSERT INTO stock_entries (sale_id, order_id, kind, delta)
            SELECT sale_id, order_id, 'RELEASE', quantity FROM r
        )
        INSERT INTO gate_releases (sale_id, order_id, forget) SELECT sale_id, order_id, false FROM r",
    )
    .bind(ids(&released))
    .bind(sales(&released))
    .bind(released.iter().map(|m| m.after.quantity).collect::<Vec<_>>())
    .execute(&mut **tx)
    .await?;

    let mut allowances: BTreeMap<(Uuid, &str), i32> = BTreeMap::new();
    for m in &released {
        *allowances.entry((m.change.sale.0, &m.buyer)).or_default() += m.after.quantity;
    }
    // Sales without a limit have no rows here, and then nothing is locked or written.
    sqlx::query(
        "WITH held AS MATERIALIZED (
            SELECT a.sale_id, a.buyer, r.units
            FROM unnest($1::uuid[], $2::text[], $3::int[]) AS r (sale_id, buyer, units)
            JOIN buyer_allotments a ON a.sale_id = r.sale_id AND a.buyer = r.buyer
            ORDER BY a.sale_id, a.buyer FOR UPDATE OF a
        )
        UPDATE buyer_allotments a SET used = a.used - h.units
        FROM held h WHERE a.sale_id = h.sale_id AND a.buyer = h.buyer",
    )
    .bind(allowances.keys().map(|(sale, _)| *sale).collect::<Vec<_>>())
    .bind(allowances.keys().map(|(_, buyer)| *buyer).collect::<Vec<_>>())
    .bind(allowances.values().copied().collect::<Vec<_>>())
    .execute(&mut **tx)
    .await?;
    Ok(released.iter().map(|m| (m.change.sale, m.change.order)).collect())
}

/// One update per sale, of the hot rows, last.
async fn write_inventory(tx: &mut Transaction<'_, Postgres>, moved: &[Moved<'_>]) -> Result<(), Error> {
    #[derive(Default)]
    struct Units {
        released: i32,
        sold: i32,
        returned: i32,
    }
    let mut by_sale: BTreeMap<Uuid, Units> = BTreeMap::new();
    for m in moved {
        if m.has(Effect::ReleaseUnits) {
            by_sale.entry(m.change.sale.0).or_default().released += m.after.quantity;
        } else if m.has(Effect::SellUnits) {
            by_sale.entry(m.change.sale.0).or_default().sold += m.after.quantity;
        } else if m.has(Effect::ReturnUnits) {
            by_sale.entry(m.change.sale.0).or_default().returned += m.after.quantity;
        }
    }
    if by_sale.is_empty() {
        return Ok(());
    }
    let updated = sqlx::query(
        "WITH hot AS MATERIALIZED (
            SELECT i.sale_id, u.released, u.sold, u.returned
            FROM unnest($1::uuid[], $2::int[], $3::int[], $4::int[]) AS u (sale_id, released, sold, returned)
            JOIN inventory i ON i.sale_id = u.sale_id
            ORDER BY i.sale_id FOR UPDATE OF i
        )
        UPDATE inventory i
        SET available = i.available + h.released + h.returned, held = i.held - h.released - h.sold,
            sold = i.sold + h.sold - h.returned
        FROM hot h WHERE i.sale_id = h.sale_id",
    )
    .bind(by_sale.keys().copied().collect::<Vec<_>>())
    .bind(by_sale.values().map(|units| units.released).collect::<Vec<_>>())
    .bind(by_sale.values().map(|units| units.sold).collect::<Vec<_>>())
    .bind(by_sale.values().map(|units| units.returned).collect::<Vec<_>>())
    .execute(&mut **tx)
    .await?
    .rows_affected();
    if updated != by_sale.len() as u64 {
        return Err(Error::Unexpected(format!(
            "{} inventory rows wanted, {updated} found",
            by_sale.len()
        )));
    }
    Ok(())
}

fn ids(moved: &[&Moved<'_>]) -> Vec<Uuid> {
    moved.iter().map(|m| m.change.order.0).collect()
}

fn sales(moved: &[&Moved<'_>]) -> Vec<Uuid> {
    moved.iter().map(|m| m.change.sale.0).collect()
}

fn attempts(moved: &[&Moved<'_>]) -> Vec<i32> {
    moved.iter().map(|m| m.after.attempt).collect()
}
