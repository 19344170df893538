//! Sales that are called off.

use jiff::Timestamp;
use sqlx::{Connection, Row};
use uuid::Uuid;

use super::{Error, Store, commit, timestamp};
use crate::crash::{self, Point};
use crate::domain::{CancellationView, OrderId, OrderStatus, SaleId};
use crate::metrics::Pool;

/// An order of a sale that is called off, and has to come to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderToEnd {
    /// Which.
    pub order: OrderId,
    /// PENDING, PROCESSING, CAPTURING or PAID.
    pub status: OrderStatus,
    /// Where the next page begins.
    pub cursor: Uuid,
}

impl Store {
    /// Calls a sale off: from this commit on nothing of it can be sold, whoever has or hasn't heard of it. The rest is done in the
    /// background. Returns the gate's epoch that is worth nothing any more; `None` when the sale was called off before, or isn't there.
    pub async fn cancel_sale(&self, sale: SaleId) -> Result<Option<i64>, Error> {
        self.run_again(|| self.try_cancel_sale(sale)).await
    }

    async fn try_cancel_sale(&self, sale: SaleId) -> Result<Option<i64>, Error> {
        self.decided(Pool::Settle, async |conn| {
            let mut tx = conn.begin().await?;
            let cancelled = sqlx::query(
                "UPDATE sales SET cancelled_at = clock_timestamp(),
                    closes_at = least(coalesce(closes_at, clock_timestamp()), clock_timestamp())
                 WHERE id = $1 AND cancelled_at IS NULL",
            )
            .bind(sale.0)
            .execute(&mut *tx)
            .await?
            .rows_affected();
            if cancelled == 0 {
                return Ok(None);
            }
            // Batches under way end first, and none that was admitted before can commit after.
            let epoch: i64 = sqlx::query_scalar(
                "UPDATE inventory SET cancelled = true, epoch = epoch + 1 WHERE sale_id = $1 RETURNING epoch",
            )
            .bind(sale.0)
            .fetch_one(&mut *tx)
            .await?;
            commit(tx).await?;
            crash::at(Point::SaleCancelled);
            Ok(Some(epoch))
        })
        .await
    }

    /// Sales that are called off and not at their end yet.
    pub async fn sales_being_cancelled(&self) -> Result<Vec<SaleId>, Error> {
        self.asked(Pool::Read, async |conn| {
            let rows: Vec<Uuid> = sqlx::query_scalar(
                "SELECT id FROM sales WHERE cancelled_at IS NOT NULL AND cancellation_done_at IS NULL ORDER BY id",
            )
            .fetch_all(&mut *conn)
            .await?;
            Ok(rows.into_iter().map(SaleId).collect())
        })
        .await
    }

    /// A page of the orders of a sale that have to come to their end, after `after`.
    pub async fn orders_to_end(
        &self,
        sale: SaleId,
        after: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<OrderToEnd>, Error> {
        self.asked(Pool::Read, async |conn| {
            // In the order of an index that is there: each page goes on where the one before it ended.
            let rows: Vec<(Uuid, String, Uuid)> = sqlx::query_as(
                "SELECT id, status::text, idempotency_digest FROM orders
                 WHERE sale_id = $1 AND idempotency_digest > coalesce($2, '00000000-0000-0000-0000-000000000000'::uuid)
                   AND status IN ('PENDING', 'PROCESSING', 'CAPTURING', 'PAID')
                 ORDER BY idempotency_digest LIMIT $3",
            )
            .bind(sale.0)
            .bind(after)
            .bind(limit)
            .fetch_all(&mut *conn)
            .await?;
            rows.into_iter()
                .map(|(order, status, cursor)| {
                    Ok(OrderToEnd {
                        order: OrderId(order),
                        status: OrderStatus::from_sql(&status)
                            .ok_or_else(|| Error::Unexpected(format!("unknown status {status}")))?,
                        cursor,
                    })
                })
                .collect()
        })
        .await
    }

    /// Notes that a sale that is called off has come to its end, if it has. Returns whether this call was the one that did.
    pub async fn cancellation_done(&self, sale: SaleId) -> Result<bool, Error> {
        self.decided(Pool::Settle, async |conn| {
            let done = sqlx::query(
                "UPDATE sales SET cancellation_done_at = clock_timestamp()
                 WHERE id = $1 AND cancelled_at IS NOT NULL AND cancellation_done_at IS NULL
                   AND NOT EXISTS (SELECT FROM orders WHERE sale_id = $1 AND idempotency_digest IS NOT NULL
                                   AND status IN ('PENDING', 'PROCESSING', 'CAPTURING', 'PAID'))",
            )
            .bind(sale.0)
            .execute(&mut *conn)
            .await?
            .rows_affected();
            Ok(done == 1)
        })
        .await
    }

    /// How far the end of a sale is. `None` when there is no such sale.
    pub async fn cancellation(&self, sale: SaleId) -> Result<Option<CancellationView>, Error> {
        self.asked(Pool::Read, async |conn| {
            let row = sqlx::query(
                "SELECT micros(s.cancelled_at) AS cancelled_at_us, micros(s.cancellation_done_at) AS done_at_us,
                        o.open, o.to_refund, o.released, o.refunded
                 FROM sales s, LATERAL (
                    SELECT count(*) FILTER (WHERE status IN ('PENDING', 'PROCESSING', 'CAPTURING')) AS open,
                           count(*) FILTER (WHERE status = 'PAID') AS to_refund,
                           count(*) FILTER (WHERE status = 'FAILED') AS released,
                           count(*) FILTER (WHERE status = 'REFUNDED') AS refunded
                    FROM orders WHERE sale_id = s.id AND idempotency_digest IS NOT NULL
                 ) o WHERE s.id = $1",
            )
            .bind(sale.0)
            .fetch_optional(&mut *conn)
            .await?;
            row.map(|row| {
                let at = |column: &str| -> Result<Option<Timestamp>, Error> {
                    Ok(row.try_get::<Option<i64>, _>(column)?.map(timestamp))
                };
                Ok(CancellationView {
                    sale,
                    cancelled_at: at("cancelled_at_us")?,
                    done_at: at("done_at_us")?,
                    open: row.try_get("open")?,
                    to_refund: row.try_get("to_refund")?,
                    released: row.try_get("released")?,
                    refunded: row.try_get("refunded")?,
                })
            })
            .transpose()
        })
        .await
    }
}
