//! Rebuild: what the gate must know of a sale, read under a raised epoch.

use futures_util::TryStreamExt;
use jiff::Timestamp;
use sqlx::{Connection, Row};

use super::{Error, Store, commit, timestamp};
use crate::domain::{Buyer, IdempotencyDigest, OrderId, SaleId};
use crate::metrics::Pool;

/// An order as the gate must know it.
#[derive(Debug, Clone)]
pub struct KnownOrder {
    /// Its name.
    pub order: OrderId,
    /// Its buyer.
    pub buyer: Buyer,
    /// The name of its purchase.
    pub digest: IdempotencyDigest,
    /// Its units.
    pub quantity: i32,
    /// Whether it holds or owns its units; otherwise they went back, and only the purchase's name is still known.
    pub holds: bool,
}

/// A sale at the instant at which its epoch was raised.
#[derive(Debug)]
pub struct Snapshot {
    /// The new epoch.
    pub epoch: i64,
    /// Units available under it.
    pub available: i64,
    /// When the sale closes, as it is now: a sale that is called off closes earlier than it was listed to.
    pub closes_at: Option<Timestamp>,
    /// All of its orders.
    pub orders: Vec<KnownOrder>,
}

impl Store {
    /// Raises the epoch of a sale and reads what the gate must know, all in one transaction.
    ///
    /// From the first statement on no batch admitted by the old keys can commit, and none that has touched the inventory
    /// is still open. Releases that were pending are in the stock that is read, so their notes are taken away; later
    /// ones come with a note of their own, under the new epoch. `None` when there is no such sale.
    ///
    /// The new epoch is above `above` as well, the one that the gate was found at: it is ahead of a database that was restored to an earlier time.
    pub async fn raise_epoch(&self, sale: SaleId, above: i64) -> Result<Option<Snapshot>, Error> {
        self.decided(Pool::Settle, async |conn| {
            let mut tx = conn.begin().await?;
            let Some((epoch, available)) = sqlx::query_as::<_, (i64, i32)>(
                "UPDATE inventory SET epoch = greatest(epoch, $2) + 1 WHERE sale_id = $1 RETURNING epoch, available",
            )
            .bind(sale.0)
            .bind(above)
            .fetch_optional(&mut *tx)
            .await?
            else {
                return Ok(None);
            };
            sqlx::query("DELETE FROM gate_releases WHERE sale_id = $1")
                .bind(sale.0)
                .execute(&mut *tx)
                .await?;
            let closes_at_us: Option<i64> = sqlx::query_scalar("SELECT micros(closes_at) FROM sales WHERE id = $1")
                .bind(sale.0)
                .fetch_one(&mut *tx)
                .await?;
            let mut orders = Vec::new();
            {
                let mut rows = sqlx::query(
                    // What was paid back and not returned into stock is the buyer's share of the sale all the same.
                    "SELECT id, buyer, idempotency_digest, quantity,
                        CASE status WHEN 'REFUNDED' THEN NOT EXISTS (
                            SELECT FROM stock_entries e WHERE e.sale_id = $1 AND e.order_id = o.id AND e.kind = 'RELEASE')
                        ELSE status IN ('PENDING', 'PROCESSING', 'CAPTURING', 'PAID') END AS holds
                 FROM orders o WHERE sale_id = $1 AND idempotency_digest IS NOT NULL",
                )
                .bind(sale.0)
                .fetch(&mut *tx);
                while let Some(row) = rows.try_next().await? {
                    let buyer: &str = row.try_get("buyer")?;
                    orders.push(KnownOrder {
                        order: OrderId(row.try_get("id")?),
                        buyer: Buyer::parse(buyer)
                            .ok_or_else(|| Error::Unexpected(format!("unreadable buyer {buyer}")))?,
                        digest: IdempotencyDigest(row.try_get("idempotency_digest")?),
                        quantity: row.try_get("quantity")?,
                        holds: row.try_get("holds")?,
                    });
                }
            }
            commit(tx).await?;
            Ok(Some(Snapshot {
                epoch,
                available: available.into(),
                closes_at: closes_at_us.map(timestamp),
                orders,
            }))
        })
        .await
    }
}
