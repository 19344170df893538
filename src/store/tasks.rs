//! Work owed to the provider, written down before it is done: refunds of late money, and charges whose fate is unknown.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{Connection, Row};
use uuid::Uuid;

use super::{Error, Store, commit};
use crate::domain::{Money, OrderId, PaymentStatus, SaleId};
use crate::metrics::Pool;
use crate::provider::{Charge, Reference};

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskKind {
    /// Pay a charge back, or a part of it.
    Refund,
    /// Find out what became of a charge whose order is over.
    Resolve,
}

impl TaskKind {
    /// Its name in the database.
    pub fn as_sql(self) -> &'static str {
        match self {
            Self::Refund => "REFUND",
            Self::Resolve => "RESOLVE",
        }
    }

    fn from_sql(name: &str) -> Option<Self> {
        [Self::Refund, Self::Resolve]
            .into_iter()
            .find(|kind| kind.as_sql() == name)
    }
}

/// One piece of work, on loan until it is due again.
#[derive(Debug, Clone)]
pub struct Task {
    /// The order whose charge it is about.
    pub order: OrderId,
    /// Its sale.
    pub sale: SaleId,
    /// Which charge.
    pub attempt: i32,
    /// What is to be done.
    pub kind: TaskKind,
    /// Which refund of the charge; 0 for money that came too late.
    pub refund: i32,
    /// How often it was tried, this time included.
    pub tries: i32,
    /// The amount of the refund, or of the charge.
    pub amount: Money,
    /// The charge as the provider knows it.
    pub charge: Charge,
    /// When its loan ends. Another time in its row: somebody has noted it once more, or it was taken again.
    loan_ends_us: i64,
}

/// A charge that was begun, as the rows have it.
#[derive(Debug, Clone)]
pub struct BegunCharge {
    /// As the provider knows it.
    pub charge: Charge,
    /// It only sets money aside: nothing is taken before it is captured.
    pub two_step: bool,
}

/// Work out of tries.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    /// The order whose charge it is about.
    pub order: OrderId,
    /// Its sale.
    pub sale: SaleId,
    /// Which charge.
    pub attempt: i32,
    /// Its kind, as in the database.
    pub kind: String,
    /// Which refund of the charge; 0 for money that came too late.
    pub refund: i32,
    /// How often it was tried.
    pub tries: i32,
    /// What was seen last.
    pub last_error: String,
}

impl Store {
    /// Writes down that money came for an order that had failed, or for an attempt that isn't the one that counts: payment, ledger
    /// and the refund that is due, together. `provider_event` is the event that said so, if one did.
    ///
    /// Returns whether this call was the one that did it; `false` means that it was known already, or that the order
    /// stands otherwise. Takes the place of a task that was to find out what became of the charge.
    pub async fn record_late_charge(
        &self,
        order: OrderId,
        sale: SaleId,
        attempt: i32,
        provider_event: Option<&str>,
    ) -> Result<bool, Error> {
        self.decided(Pool::Settle, async |conn| {
            let mut tx = conn.begin().await?;
            let failed: Option<i32> = sqlx::query_scalar(
                "SELECT 1 FROM orders
                 WHERE id = $1 AND sale_id = $2 AND (status = 'FAILED' OR attempt <> $3) FOR UPDATE",
            )
            .bind(order.0)
            .bind(sale.0)
            .bind(attempt)
            .fetch_optional(&mut *tx)
            .await?;
            if failed.is_none() {
                return Ok(false);
            }
            let recorded = sqlx::query(
                "WITH late AS (
                UPDATE payments SET status = 'REFUND_DUE', updated_at = clock_timestamp()
                WHERE order_id = $1 AND sale_id = $2 AND attempt = $3
                  AND status IN ('INITIATED', 'IN_DOUBT', 'AUTHORISED', 'VOIDED', 'NOT_SENT', 'DECLINED')
                RETURNING order_id, sale_id, attempt, amount_minor, currency
            ), money AS (
                INSERT INTO ledger_entries (order_id, sale_id, attempt, kind, amount_minor, currency, provider_event_id)
                SELECT order_id, sale_id, attempt, 'CHARGE', amount_minor, currency, $4 FROM late
            )
            INSERT INTO provider_tasks (order_id, sale_id, attempt, kind)
            SELECT order_id, sale_id, attempt, 'REFUND' FROM late",
            )
            .bind(order.0)
            .bind(sale.0)
            .bind(attempt)
            .bind(provider_event)
            .execute(&mut *tx)
            .await?
            .rows_affected();
            if recorded == 1 {
                delete_task(&mut tx, order, sale, attempt, TaskKind::Resolve, 0).await?;
            }
            commit(tx).await?;
            Ok(recorded == 1)
        })
        .await
    }

    /// Writes down the provider's name for the charge of an order that is being charged. Returns the name that it has now, which is the first
    /// that was written; `None` when the order was decided meanwhile, and the charge may not be gone on with.
    pub async fn name_charge(
        &self,
        order: OrderId,
        sale: SaleId,
        attempt: i32,
        provider_id: &str,
    ) -> Result<Option<String>, Error> {
        self.decided(Pool::Settle, async |conn| {
            Ok(sqlx::query_scalar(
                "UPDATE payments SET provider_id = coalesce(provider_id, $4), updated_at = clock_timestamp()
                 WHERE order_id = $1 AND sale_id = $2 AND attempt = $3 AND status IN ('INITIATED', 'IN_DOUBT')
                   AND EXISTS (SELECT FROM orders o WHERE o.id = $1 AND o.sale_id = $2 AND o.status = 'PROCESSING'
                               AND o.attempt = $3)
                 RETURNING provider_id",
            )
            .bind(order.0)
            .bind(sale.0)
            .bind(attempt)
            .bind(provider_id)
            .fetch_optional(&mut *conn)
            .await?)
        })
        .await
    }

    /// A charge that was begun; `None` when there is none.
    pub async fn begun_charge(
        &self,
        order: OrderId,
        sale: SaleId,
        attempt: i32,
    ) -> Result<Option<BegunCharge>, Error> {
        self.asked(Pool::Read, async |conn| {
            let row = sqlx::query(
                "SELECT amount_minor AS charge_minor, currency, provider_id, two_step FROM payments
                 WHERE order_id = $1 AND sale_id = $2 AND attempt = $3",
            )
            .bind(order.0)
            .bind(sale.0)
            .bind(attempt)
            .fetch_optional(&mut *conn)
            .await?;
            row.map(|row| {
                Ok(BegunCharge {
                    charge: charge(&row, order, attempt)?,
                    two_step: row.try_get("two_step")?,
                })
            })
            .transpose()
        })
        .await
    }

    /// Writes down that money was set aside for an order that had failed, or for an attempt that isn't the one that counts, and is to be
    /// let go. Returns whether there is anything to let go.
    pub async fn void_later(&self, order: OrderId, sale: SaleId, attempt: i32) -> Result<bool, Error> {
        self.decided(Pool::Settle, async |conn| {
            let noted = sqlx::query(
                "INSERT INTO provider_tasks (order_id, sale_id, attempt, kind)
                 SELECT p.order_id, p.sale_id, p.attempt, 'RESOLVE'
                 FROM orders o JOIN payments p ON p.order_id = o.id AND p.sale_id = o.sale_id
                 WHERE o.id = $1 AND o.sale_id = $2 AND p.attempt = $3 AND (o.status = 'FAILED' OR o.attempt <> $3)
                   AND p.status NOT IN ('SUCCEEDED', 'REFUND_DUE', 'REFUNDED')
                 ON CONFLICT (order_id, attempt, kind, refund, sale_id) DO UPDATE SET due_at = clock_timestamp()",
            )
            .bind(order.0)
            .bind(sale.0)
            .bind(attempt)
            .execute(&mut *conn)
            .await?
            .rows_affected();
            Ok(noted == 1)
        })
        .await
    }

    /// Notes on an open payment that its outcome is in doubt.
    pub async fn mark_in_doubt(&self, order: OrderId, sale: SaleId, attempt: i32) -> Result<(), Error> {
        self.decided(Pool::Settle, async |conn| {
            sqlx::query(
                "UPDATE payments SET status = 'IN_DOUBT', updated_at = clock_timestamp()
             WHERE order_id = $1 AND sale_id = $2 AND attempt = $3 AND status = 'INITIATED'",
            )
            .bind(order.0)
            .bind(sale.0)
            .bind(attempt)
            .execute(&mut *conn)
            .await?;
            Ok(())
        })
        .await
    }

    /// Takes tasks that are due. Each is due again after `loan` and a pause that doubles with every try (1 s to
    /// 5 min), so that one whose worker dies is taken up by another, and none while its worker may still be at it.
    pub async fn take_due_tasks(&self, limit: i64, loan: Duration) -> Result<Vec<Task>, Error> {
        self.decided(Pool::Settle, async |conn| {
            let rows = sqlx::query(
                "WITH due AS MATERIALIZED (
                    SELECT order_id, sale_id, attempt, kind, refund FROM provider_tasks
                    WHERE due_at <= clock_timestamp() ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED
                )
                UPDATE provider_tasks t
                SET tries = t.tries + 1,
                    due_at = clock_timestamp() + $2 * interval '1 millisecond'
                        + least(300, power(2, least(t.tries, 20))) * interval '1 second'
                FROM due d, payments p
                WHERE t.order_id = d.order_id AND t.sale_id = d.sale_id AND t.attempt = d.attempt AND t.kind = d.kind
                  AND t.refund = d.refund
                  AND p.order_id = t.order_id AND p.sale_id = t.sale_id AND p.attempt = t.attempt
                RETURNING t.order_id, t.sale_id, t.attempt, t.kind, t.refund, t.tries, micros(t.due_at) AS loan_ends_us,
                    p.currency, p.provider_id, p.amount_minor AS charge_minor,
                    coalesce((SELECT r.amount_minor FROM refunds r
                              WHERE r.order_id = t.order_id AND r.number = t.refund AND r.sale_id = t.sale_id),
                             p.amount_minor) AS amount_minor",
            )
            .bind(limit)
            .bind(loan.as_millis() as i64)
            .fetch_all(&mut *conn)
            .await?;
            rows.iter()
                .map(|row| {
                    let kind: &str = row.try_get("kind")?;
                    let (order, attempt) = (OrderId(row.try_get("order_id")?), row.try_get("attempt")?);
                    Ok(Task {
                        order,
                        sale: SaleId(row.try_get("sale_id")?),
                        attempt,
                        charge: charge(row, order, attempt)?,
                        kind: TaskKind::from_sql(kind)
                            .ok_or_else(|| Error::Unexpected(format!("unknown task {kind}")))?,
                        refund: row.try_get("refund")?,
                        tries: row.try_get("tries")?,
                        loan_ends_us: row.try_get("loan_ends_us")?,
                        amount: super::read::money(row.try_get("amount_minor")?, row.try_get("currency")?)?,
                    })
                })
                .collect()
        })
        .await
    }

    /// A charge whose order is over can't succeed any more: closes its payment, and the task. A task that was noted once more since it was
    /// taken stays: what was found out may be older than what was noted.
    pub async fn resolved_without_money(
        &self,
        task: &Task,
        status: PaymentStatus,
        decline_code: Option<&str>,
    ) -> Result<(), Error> {
        self.decided(Pool::Settle, async |conn| {
            let mut tx = conn.begin().await?;
            sqlx::query(
                "UPDATE payments SET status = $4, decline_code = $5, updated_at = clock_timestamp()
             WHERE order_id = $1 AND sale_id = $2 AND attempt = $3
               AND (status IN ('INITIATED', 'IN_DOUBT') OR (status = 'AUTHORISED' AND EXISTS (SELECT FROM orders o
                    WHERE o.id = $1 AND o.sale_id = $2 AND (o.status = 'FAILED' OR o.attempt <> $3))))",
            )
            .bind(task.order.0)
            .bind(task.sale.0)
            .bind(task.attempt)
            .bind(status.as_sql())
            .bind(decline_code)
            .execute(&mut *tx)
            .await?;
            end_loan(&mut tx, task).await?;
            commit(tx).await
        })
        .await
    }

    /// There is nothing left to do about a task, unless it was noted once more since it was taken.
    pub async fn task_done(&self, task: &Task) -> Result<(), Error> {
        self.decided(Pool::Settle, async |conn| {
            let mut tx = conn.begin().await?;
            end_loan(&mut tx, task).await?;
            commit(tx).await
        })
        .await
    }

    /// Notes what went wrong with a task; its loan is over, and its pause begins.
    pub async fn task_failed(&self, task: &Task, error: &str) -> Result<(), Error> {
        self.decided(Pool::Settle, async |conn| {
            sqlx::query(
                "UPDATE provider_tasks SET last_error = $6,
                due_at = clock_timestamp() + least(300, power(2, least(tries - 1, 20))) * interval '1 second'
             WHERE order_id = $1 AND sale_id = $2 AND attempt = $3 AND kind = $4 AND refund = $5",
            )
            .bind(task.order.0)
            .bind(task.sale.0)
            .bind(task.attempt)
            .bind(task.kind.as_sql())
            .bind(task.refund)
            .bind(error)
            .execute(&mut *conn)
            .await?;
            Ok(())
        })
        .await
    }

    /// Moves a task that is out of tries to the dead letters.
    pub async fn bury(&self, task: &Task, error: &str) -> Result<(), Error> {
        self.decided(Pool::Settle, async |conn| {
            sqlx::query(
                "WITH dead AS (
                DELETE FROM provider_tasks
                WHERE order_id = $1 AND sale_id = $2 AND attempt = $3 AND kind = $4 AND refund = $5
                RETURNING order_id, sale_id, attempt, kind, refund, tries
            )
            INSERT INTO dead_letters (order_id, sale_id, attempt, kind, refund, tries, last_error)
            SELECT order_id, sale_id, attempt, kind, refund, tries, $6 FROM dead
            ON CONFLICT (order_id, attempt, kind, refund, sale_id) DO UPDATE
                SET tries = dead_letters.tries + excluded.tries, last_error = excluded.last_error",
            )
            .bind(task.order.0)
            .bind(task.sale.0)
            .bind(task.attempt)
            .bind(task.kind.as_sql())
            .bind(task.refund)
            .bind(error)
            .execute(&mut *conn)
            .await?;
            Ok(())
        })
        .await
    }

    /// All dead letters, oldest first.
    pub async fn dead_letters(&self) -> Result<Vec<DeadLetter>, Error> {
        self.asked(Pool::Read, async |conn| {
            let rows = sqlx::query_as::<_, (Uuid, Uuid, i32, String, i32, i32, String)>(
                "SELECT order_id, sale_id, attempt, kind, refund, tries, last_error FROM dead_letters ORDER BY created_at",
            )
            .fetch_all(&mut *conn)
            .await?;
            Ok(rows
                .into_iter()
                .map(|(order, sale, attempt, kind, refund, tries, last_error)| DeadLetter {
                    order: OrderId(order),
                    sale: SaleId(sale),
                    attempt,
                    kind,
                    refund,
                    tries,
                    last_error,
                })
                .collect())
        })
        .await
    }

    /// How many dead letters there are.
    pub async fn count_dead_letters(&self) -> Result<i64, Error> {
        self.asked(Pool::Read, async |conn| {
            Ok(sqlx::query_scalar("SELECT count(*) FROM dead_letters")
                .fetch_one(&mut *conn)
                .await?)
        })
        .await
    }

    /// Gives dead letters back to the workers, with fresh tries: all, or those of one order. Returns how many.
    pub async fn requeue(&self, order: Option<OrderId>) -> Result<u64, Error> {
        self.decided(Pool::Settle, async |conn| {
            Ok(sqlx::query(
                "WITH back AS (
                DELETE FROM dead_letters WHERE $1::uuid IS NULL OR order_id = $1
                RETURNING order_id, sale_id, attempt, kind, refund
            )
            INSERT INTO provider_tasks (order_id, sale_id, attempt, kind, refund)
            SELECT order_id, sale_id, attempt, kind, refund FROM back
            ON CONFLICT DO NOTHING",
            )
            .bind(order.map(|id| id.0))
            .execute(&mut *conn)
            .await?
            .rows_affected())
        })
        .await
    }
}

/// A charge that was begun is asked about by its names; what it was to be paid with matters no more.
fn charge(row: &PgRow, order: OrderId, attempt: i32) -> Result<Charge, Error> {
    Ok(Charge {
        reference: Reference::of(order, attempt),
        amount: super::read::money(row.try_get("charge_minor")?, row.try_get("currency")?)?,
        payment_method: None,
        provider_id: row.try_get("provider_id")?,
    })
}

/// Takes a task away that is still on the loan under which it was worked off.
async fn end_loan(tx: &mut sqlx::Transaction<'_, sqlx::Postgres>, task: &Task) -> Result<(), Error> {
    sqlx::query(
        "DELETE FROM provider_tasks
         WHERE order_id = $1 AND sale_id = $2 AND attempt = $3 AND kind = $4 AND refund = $5 AND micros(due_at) = $6",
    )
    .bind(task.order.0)
    .bind(task.sale.0)
    .bind(task.attempt)
    .bind(task.kind.as_sql())
    .bind(task.refund)
    .bind(task.loan_ends_us)
    .execute(&mut **tx)
    .await?;
    Ok(())
}

pub(super) async fn delete_task(
    tx: &mut sqlx::Transaction<'_, sqlx::Postgres>,
    order: OrderId,
    sale: SaleId,
    attempt: i32,
    kind: TaskKind,
    refund: i32,
) -> Result<(), Error> {
    sqlx::query(
        "DELETE FROM provider_tasks
         WHERE order_id = $1 AND sale_id = $2 AND attempt = $3 AND kind = $4 AND refund = $5",
    )
    .bind(order.0)
    .bind(sale.0)
    .bind(attempt)
    .bind(kind.as_sql())
    .bind(refund)
    .execute(&mut **tx)
    .await?;
    Ok(())
}
