//! Releases that the gate has still to be told of.

use std::time::Duration;

use uuid::Uuid;

use super::{Error, Store};
use crate::domain::{OrderId, SaleId};
use crate::metrics::Pool;

impl Store {
    /// Releases noted longer than `min_age` ago: those that a crash or an outage left. Of each sale a thousand at most.
    pub async fn pending_releases(
        &self,
        min_age: Duration,
        limit: i64,
    ) -> Result<Vec<(SaleId, OrderId)>, Error> {
        self.asked(Pool::Read, async |conn| {
            // So many of each sale: those of one that can't be loaded mustn't stand in the way of the others'.
            let rows = sqlx::query_as::<_, (Uuid, Uuid)>(
                "SELECT note.sale_id, note.order_id
             FROM (SELECT DISTINCT sale_id FROM gate_releases) sale
             CROSS JOIN LATERAL (
                SELECT sale_id, order_id FROM gate_releases WHERE sale_id = sale.sale_id
                  AND created_at < clock_timestamp() - $1 * interval '1 millisecond' LIMIT 1000
             ) note LIMIT $2",
            )
            .bind(min_age.as_millis() as i64)
            .bind(limit)
            .fetch_all(&mut *conn)
            .await?;
            Ok(rows
                .into_iter()
                .map(|(sale, order)| (SaleId(sale), OrderId(order)))
                .collect())
        })
        .await
    }

    /// Takes the notes away of releases that the gate has carried out under `epoch`.
    ///
    /// Where the sale has moved to another epoch the notes stay: a load that is on its way may have been read before these
    /// releases, and would bring back what they gave back.
    pub async fn releases_done(&self, sale: SaleId, orders: &[OrderId], epoch: i64) -> Result<(), Error> {
        self.decided(Pool::Settle, async |conn| {
            sqlx::query(
                "DELETE FROM gate_releases WHERE sale_id = $1 AND order_id = ANY($2)
             AND EXISTS (SELECT FROM inventory WHERE sale_id = $1 AND epoch = $3)",
            )
            .bind(sale.0)
            .bind(orders.iter().map(|order| order.0).collect::<Vec<_>>())
            .bind(epoch)
            .execute(&mut *conn)
            .await?;
            Ok(())
        })
        .await
    }

    /// How many releases the gate has still to be told of.
    pub async fn count_pending_releases(&self) -> Result<i64, Error> {
        self.asked(Pool::Read, async |conn| {
            Ok(sqlx::query_scalar("SELECT count(*) FROM gate_releases")
                .fetch_one(&mut *conn)
                .await?)
        })
        .await
    }

    /// The sales whose keys have been loaded into the gate at least once, with their epoch and the units available.
    pub async fn loaded_sales(&self) -> Result<Vec<(SaleId, i64, i64)>, Error> {
        self.asked(Pool::Read, async |conn| {
            let rows = sqlx::query_as::<_, (Uuid, i64, i64)>(
                "SELECT sale_id, epoch, available::bigint FROM inventory WHERE epoch > 1",
            )
            .fetch_all(&mut *conn)
            .await?;
            Ok(rows
                .into_iter()
                .map(|(sale, epoch, available)| (SaleId(sale), epoch, available))
                .collect())
        })
        .await
    }
}
