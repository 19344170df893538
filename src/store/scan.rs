//! Scans for open orders. They start at a horizon below which no order is open, and are served by the block-range index on
//! the creation time, so that finished orders cost nothing and transitions no index.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{Connection, Row};

use super::{Error, Store, commit};
use crate::domain::{Currency, OrderId, OrderStatus, SaleId};
use crate::metrics::Pool;

/// Longer than any transaction lives that may still insert an order: the horizon keeps this distance from now.
const HORIZON_DISTANCE: &str = "10 minutes";

/// An order that waits to be charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOrder {
    /// The order.
    pub order: OrderId,
    /// Its sale.
    pub sale: SaleId,
    /// In which it is to be charged.
    pub currency: Currency,
}

/// An order that is open for longer than the cutoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StuckOrder {
    /// The order.
    pub order: OrderId,
    /// Its sale.
    pub sale: SaleId,
    /// PENDING, PROCESSING or CAPTURING.
    pub status: OrderStatus,
    /// Its fence when it was seen.
    pub fence: i32,
}

impl Store {
    /// PENDING orders that are older than `min_age`: left by a crash, by another replica, or by a queue that was full.
    /// Rows that somebody is working on just now are skipped, and those in currencies of which none are wanted.
    pub async fn pending_orders(
        &self,
        min_age: Duration,
        limit: i64,
        unwanted: &[Currency],
    ) -> Result<Vec<OpenOrder>, Error> {
        self.asked(Pool::Read, async |conn| {
            let rows = sqlx::query(
                "SELECT o.id, o.sale_id, s.currency FROM orders o JOIN sales s ON s.id = o.sale_id
             WHERE o.created_at >= (SELECT starts_at FROM open_orders_horizon)
               AND o.created_at <= clock_timestamp() - $1 * interval '1 millisecond' AND o.status = 'PENDING'
               AND s.currency <> ALL ($3)
             LIMIT $2 FOR UPDATE OF o SKIP LOCKED",
            )
            .bind(min_age.as_millis() as i64)
            .bind(limit)
            .bind(unwanted.iter().map(Currency::as_str).collect::<Vec<_>>())
            .fetch_all(&mut *conn)
            .await?;
            rows.iter()
                .map(|row| {
                    Ok(OpenOrder {
                        order: OrderId(row.try_get("id")?),
                        sale: SaleId(row.try_get("sale_id")?),
                        currency: super::read::currency(row.try_get("currency")?)?,
                    })
                })
                .collect()
        })
        .await
    }

    /// PENDING orders that were made longer than the cutoff ago.
    pub async fn stuck_pending(&self, cutoff: Duration, limit: i64) -> Result<Vec<StuckOrder>, Error> {
        self.asked(Pool::Read, async |conn| {
            let rows = sqlx::query(
                "SELECT id, sale_id, status::text AS status, fence FROM orders
             WHERE created_at >= (SELECT starts_at FROM open_orders_horizon)
               AND created_at <= clock_timestamp() - $1 * interval '1 millisecond' AND status = 'PENDING'
             LIMIT $2",
            )
            .bind(cutoff.as_millis() as i64)
            .bind(limit)
            .fetch_all(&mut *conn)
            .await?;
            rows.iter().map(stuck_order).collect()
        })
        .await
    }

    /// PROCESSING and CAPTURING orders that were claimed longer than the cutoff ago, those that were looked into longest ago first. Those that were looked into
    /// less than `retry_after` ago are left out.
    pub async fn stuck_claims(
        &self,
        cutoff: Duration,
        retry_after: Duration,
        limit: i64,
    ) -> Result<Vec<StuckOrder>, Error> {
        self.asked(Pool::Read, async |conn| {
            // clock_timestamp, the time of the statement: a transaction's own time may lie before the claims it looks at.
            let rows = sqlx::query(
                "SELECT id, sale_id, status::text AS status, fence FROM orders
             WHERE created_at >= (SELECT starts_at FROM open_orders_horizon)
               AND created_at <= clock_timestamp() - $1 * interval '1 millisecond' AND status IN ('PROCESSING', 'CAPTURING')
               AND claimed_at <= clock_timestamp() - $1 * interval '1 millisecond'
               AND updated_at <= clock_timestamp() - $2 * interval '1 millisecond'
             ORDER BY updated_at LIMIT $3",
            )
            .bind(cutoff.as_millis() as i64)
            .bind(retry_after.as_millis() as i64)
            .bind(limit)
            .fetch_all(&mut *conn)
            .await?;
            rows.iter().map(stuck_order).collect()
        })
        .await
    }

    /// How many orders are in doubt (claimed longer than the cutoff ago) and the age of the oldest claim among them.
    pub async fn in_doubt(&self, cutoff: Duration) -> Result<(i64, Duration), Error> {
        self.asked(Pool::Read, async |conn| {
            let (count, oldest_us): (i64, Option<i64>) = sqlx::query_as(
                "SELECT count(*), micros(clock_timestamp()) - micros(min(claimed_at)) FROM orders
             WHERE created_at >= (SELECT starts_at FROM open_orders_horizon)
               AND status IN ('PROCESSING', 'CAPTURING') AND claimed_at <= clock_timestamp() - $1 * interval '1 millisecond'",
            )
            .bind(cutoff.as_millis() as i64)
            .fetch_one(&mut *conn)
            .await?;
            Ok((count, Duration::from_micros(oldest_us.unwrap_or(0).max(0) as u64)))
        })
        .await
    }

    /// Looks for the oldest open order in the whole table, and puts the horizon there, also further back than it was: an order may
    /// have come to light below it, after a commit that took very long or a database whose clock was set back. Takes seconds
    /// with millions of orders, so it is for starts and now and then.
    pub async fn find_horizon(&self) -> Result<(), Error> {
        // Without the usual limit: it takes as long as it takes.
        self.conversation(Pool::Settle, async |conn| {
            let mut tx = conn.begin().await?;
            sqlx::raw_sql("SET LOCAL statement_timeout = '10min'; SET LOCAL enable_seqscan = on")
                .execute(&mut *tx)
                .await?;
            sqlx::query(sqlx::AssertSqlSafe(format!(
                "UPDATE open_orders_horizon
             SET starts_at = least(clock_timestamp() - interval '{HORIZON_DISTANCE}',
                (SELECT min(created_at) FROM orders WHERE status IN ('PENDING', 'PROCESSING', 'CAPTURING')))"
            )))
            .execute(&mut *tx)
            .await?;
            commit(tx).await
        })
        .await
    }

    /// Moves the horizon up to the oldest open order, keeping its distance from now.
    pub async fn raise_horizon(&self) -> Result<(), Error> {
        self.decided(Pool::Settle, async |conn| {
            sqlx::query(sqlx::AssertSqlSafe(format!(
                "UPDATE open_orders_horizon h
                 SET starts_at = greatest(h.starts_at, least(clock_timestamp() - interval '{HORIZON_DISTANCE}',
                    (SELECT min(created_at) FROM orders
                     WHERE created_at >= (SELECT starts_at FROM open_orders_horizon) AND status IN ('PENDING', 'PROCESSING', 'CAPTURING'))))"
            )))
            .execute(&mut *conn)
            .await?;
            Ok(())
        })
        .await
    }
}

fn stuck_order(row: &PgRow) -> Result<StuckOrder, Error> {
    let status: &str = row.try_get("status")?;
    Ok(StuckOrder {
        order: OrderId(row.try_get("id")?),
        sale: SaleId(row.try_get("sale_id")?),
        status: OrderStatus::from_sql(status)
            .ok_or_else(|| Error::Unexpected(format!("unknown status {status}")))?,
        fence: row.try_get("fence")?,
    })
}
