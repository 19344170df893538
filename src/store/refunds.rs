//! Refunds: asked for, written down with what is promised, and noted when the provider has paid them.

use sqlx::{Connection, Postgres, Row, Transaction};

use super::tasks::{TaskKind, delete_task};
use super::transition::{Change, Outcome, apply_in};
use super::{Error, Store, commit};
use crate::crash::{self, Point};
use crate::domain::{Event, OrderId, OrderStatus, RefundAsk, RefundRefusal, RefundView, SaleId};
use crate::metrics::{By, Pool};

/// The news that the provider has paid a refund.
#[derive(Debug, Clone, Copy)]
pub struct PaidRefund<'a> {
    /// Whose money it was.
    pub order: OrderId,
    /// The order's sale.
    pub sale: SaleId,
    /// Which charge.
    pub attempt: i32,
    /// Which of its refunds; 0 for money that came too late.
    pub number: i32,
    /// The provider's event that said so; `None` where its answer did.
    pub provider_event: Option<&'a str>,
}

/// What became of the news that a refund has been paid.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RefundNoted {
    /// This call was the one that noted it.
    pub noted: bool,
    /// All of the order's money is back with it: the order is REFUNDED now.
    pub order_refunded: bool,
    /// Orders whose units must now be released in the gate as well; durably noted.
    pub released: Vec<(SaleId, OrderId)>,
}

impl Store {
    /// Promises a refund: what it takes of the payment, its row, and the work that is due to the provider, in one commit. A request
    /// with the same key finds the refund that the first one made.
    ///
    /// # Errors
    /// [`Error::OutcomeUnknown`]: the same request again finds out.
    pub async fn request_refund(
        &self,
        order: OrderId,
        ask: &RefundAsk,
    ) -> Result<Result<RefundView, RefundRefusal>, Error> {
        self.run_again(|| self.try_request_refund(order, ask)).await
    }

    async fn try_request_refund(
        &self,
        order: OrderId,
        ask: &RefundAsk,
    ) -> Result<Result<RefundView, RefundRefusal>, Error> {
        self.decided(Pool::Settle, async |conn| {
            let mut tx = conn.begin().await?;
            // The order's row is what refunds of an order wait for each other at.
            let row = sqlx::query(
                "SELECT o.sale_id, o.status::text AS status, o.attempt, s.currency
                 FROM orders o JOIN sales s ON s.id = o.sale_id
                 WHERE o.id = $1 AND o.status <> 'REJECTED' FOR UPDATE OF o",
            )
            .bind(order.0)
            .fetch_optional(&mut *tx)
            .await?;
            let Some(row) = row else {
                return Ok(Err(RefundRefusal::NotFound));
            };
            let sale = SaleId(row.try_get("sale_id")?);
            let attempt: i32 = row.try_get("attempt")?;
            let currency: String = row.try_get("currency")?;
            if let Some(found) = existing(&mut tx, order, ask, &currency).await? {
                return Ok(found);
            }
            let status: &str = row.try_get("status")?;
            match OrderStatus::from_sql(status) {
                Some(OrderStatus::Paid) => {}
                Some(status) => return Ok(Err(RefundRefusal::NotRefundable { status })),
                None => return Err(Error::Unexpected(format!("unknown status {status}"))),
            }
            let (charged, promised): (i64, i64) = sqlx::query_as(
                "SELECT amount_minor, refunded_minor FROM payments
                 WHERE order_id = $1 AND attempt = $2 AND sale_id = $3 AND status = 'SUCCEEDED'",
            )
            .bind(order.0)
            .bind(attempt)
            .bind(sale.0)
            .fetch_one(&mut *tx)
            .await?;
            let left_minor = charged - promised;
            let amount_minor = ask.amount_minor.unwrap_or(left_minor);
            if amount_minor > left_minor || left_minor == 0 {
                return Ok(Err(RefundRefusal::Exceeds { left_minor }));
            }
            if ask.return_units && amount_minor < left_minor {
                return Ok(Err(RefundRefusal::ReturnNeedsAll));
            }
            let number = write(&mut tx, order, sale, attempt, ask, amount_minor).await?;
            commit(tx).await?;
            crash::at(Point::RefundPromised);
            Ok(Ok(RefundView {
                order,
                number,
                amount: super::read::money(amount_minor, &currency)?,
                return_units: ask.return_units,
                done: false,
                replayed: false,
            }))
        })
        .await
    }

    /// Notes that the provider has paid a refund. With the last of an order's refunds the order is REFUNDED, and its units go back into
    /// stock where that was asked for, in the same commit.
    pub async fn refund_done(&self, paid: &PaidRefund<'_>) -> Result<RefundNoted, Error> {
        self.run_again(|| self.try_refund_done(paid)).await
    }

    async fn try_refund_done(&self, paid: &PaidRefund<'_>) -> Result<RefundNoted, Error> {
        let PaidRefund {
            order,
            sale,
            attempt,
            number,
            provider_event,
        } = *paid;
        self.decided(Pool::Settle, async |conn| {
            let mut tx = conn.begin().await?;
            sqlx::query("SELECT FROM orders WHERE id = $1 AND sale_id = $2 FOR UPDATE")
                .bind(order.0)
                .bind(sale.0)
                .execute(&mut *tx)
                .await?;
            // Either of the two: a late charge as a whole, or one of the refunds that were asked for.
            let noted = sqlx::query(
                "WITH late AS (
                    UPDATE payments SET status = 'REFUNDED', updated_at = clock_timestamp()
                    WHERE $4 = 0 AND order_id = $1 AND sale_id = $2 AND attempt = $3 AND status = 'REFUND_DUE'
                    RETURNING amount_minor
                ), asked AS (
                    UPDATE refunds SET status = 'DONE', done_at = clock_timestamp()
                    WHERE order_id = $1 AND sale_id = $2 AND attempt = $3 AND number = $4 AND status = 'DUE'
                    RETURNING amount_minor
                )
                INSERT INTO ledger_entries
                    (order_id, sale_id, attempt, kind, refund, amount_minor, currency, provider_event_id)
                SELECT $1, $2, $3, 'REFUND', $4, paid.amount_minor, s.currency, $5
                FROM (SELECT amount_minor FROM late UNION ALL SELECT amount_minor FROM asked) paid
                JOIN sales s ON s.id = $2",
            )
            .bind(order.0)
            .bind(sale.0)
            .bind(attempt)
            .bind(number)
            .bind(provider_event)
            .execute(&mut *tx)
            .await?
            .rows_affected();
            delete_task(&mut tx, order, sale, attempt, TaskKind::Refund, number).await?;
            let mut result = RefundNoted {
                noted: noted == 1,
                ..RefundNoted::default()
            };
            if result.noted && number > 0 {
                result = finish(&mut tx, order, sale, attempt).await?;
            }
            commit(tx).await?;
            crash::at(Point::RefundNoted);
            Ok(result)
        })
        .await
    }
}

/// The refund that an earlier request with this key made.
async fn existing(
    tx: &mut Transaction<'_, Postgres>,
    order: OrderId,
    ask: &RefundAsk,
    currency: &str,
) -> Result<Option<Result<RefundView, RefundRefusal>>, Error> {
    let found = sqlx::query(
        "SELECT number, amount_minor, asked_minor, return_units, status FROM refunds
         WHERE order_id = $1 AND idempotency_digest = $2",
    )
    .bind(order.0)
    .bind(ask.digest.0)
    .fetch_optional(&mut **tx)
    .await?;
    let Some(row) = found else {
        return Ok(None);
    };
    let (asked, return_units): (Option<i64>, bool) =
        (row.try_get("asked_minor")?, row.try_get("return_units")?);
    if (asked, return_units) != (ask.amount_minor, ask.return_units) {
        return Ok(Some(Err(RefundRefusal::KeyReused)));
    }
    Ok(Some(Ok(RefundView {
        order,
        number: row.try_get("number")?,
        amount: super::read::money(row.try_get("amount_minor")?, currency)?,
        return_units,
        done: row.try_get::<&str, _>("status")? == "DONE",
        replayed: true,
    })))
}

/// Takes the amount of what is left of the payment, and writes the refund down with the work that it is. Returns its number.
async fn write(
    tx: &mut Transaction<'_, Postgres>,
    order: OrderId,
    sale: SaleId,
    attempt: i32,
    ask: &RefundAsk,
    amount_minor: i64,
) -> Result<i32, Error> {
    // The CHECK on the payment is the wall: whoever comes here by another way can't promise more than was taken.
    let taken = sqlx::query(
        "UPDATE payments SET refunded_minor = refunded_minor + $4, updated_at = clock_timestamp()
         WHERE order_id = $1 AND attempt = $2 AND sale_id = $3 AND status = 'SUCCEEDED'",
    )
    .bind(order.0)
    .bind(attempt)
    .bind(sale.0)
    .bind(amount_minor)
    .execute(&mut **tx)
    .await?
    .rows_affected();
    if taken != 1 {
        return Err(Error::Unexpected(format!(
            "order {order} has no charge to pay back"
        )));
    }
    let number: i32 = sqlx::query_scalar(
        "WITH refund AS (
            INSERT INTO refunds (order_id, sale_id, attempt, number, amount_minor, asked_minor, return_units, reason,
                                 idempotency_digest)
            SELECT $1, $2, $3, 1 + coalesce(max(number), 0), $4, $5, $6, $7, $8 FROM refunds WHERE order_id = $1
            RETURNING order_id, sale_id, attempt, number
        )
        INSERT INTO provider_tasks (order_id, sale_id, attempt, kind, refund)
        SELECT order_id, sale_id, attempt, 'REFUND', number FROM refund
        RETURNING refund",
    )
    .bind(order.0)
    .bind(sale.0)
    .bind(attempt)
    .bind(amount_minor)
    .bind(ask.amount_minor)
    .bind(ask.return_units)
    .bind(ask.reason.as_sql())
    .bind(ask.digest.0)
    .fetch_one(&mut **tx)
    .await?;
    Ok(number)
}

/// Moves the order on when all of its money is back.
async fn finish(
    tx: &mut Transaction<'_, Postgres>,
    order: OrderId,
    sale: SaleId,
    attempt: i32,
) -> Result<RefundNoted, Error> {
    let (all_back, return_units): (bool, bool) = sqlx::query_as(
        "SELECT coalesce(sum(r.amount_minor) FILTER (WHERE r.status = 'DONE'), 0) = p.amount_minor,
                bool_or(r.return_units)
         FROM payments p JOIN refunds r ON r.order_id = p.order_id AND r.sale_id = p.sale_id
         WHERE p.order_id = $1 AND p.attempt = $2 AND p.sale_id = $3
         GROUP BY p.amount_minor",
    )
    .bind(order.0)
    .bind(attempt)
    .bind(sale.0)
    .fetch_one(&mut **tx)
    .await?;
    if !all_back {
        return Ok(RefundNoted {
            noted: true,
            ..RefundNoted::default()
        });
    }
    let change = Change {
        order,
        sale,
        event: if return_units {
            Event::RefundedAndReturned
        } else {
            Event::Refunded
        },
        expect: OrderStatus::Paid,
        two_step: false,
        fence: None,
        by: By::Seller,
        decline_code: None,
        provider_event: None,
        #[cfg(feature = "test-switches")]
        without_guard: false,
    };
    let written = apply_in(tx, &[change]).await?;
    match written.outcomes.as_slice() {
        [Outcome::Applied(_)] => Ok(RefundNoted {
            noted: true,
            order_refunded: true,
            released: written.released,
        }),
        // The order is locked, and only a paid one has refunds.
        other => Err(Error::Unexpected(format!(
            "order {order} is paid back and is {other:?}"
        ))),
    }
}
