//! Scans for open orders. They start at a horizon below which no order is open, and are served by the block-range index on
//! the creation time, so that finished orders cost nothing and transitions no index.

use std::time::Duration;

use sqlx::Row;

use super::{Error, Store};
use crate::domain::{OrderId, OrderStatus, SaleId};
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
}

/// An order that is open for longer than the cutoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StuckOrder {
    /// The order.
    pub order: OrderId,
    /// Its sale.
    pub sale: SaleId,
    /// PENDING or PROCESSING.
    pub status: OrderStatus,
    /// Its fence when it was seen.
    pub fence: i32,
    /// Its attempt when it was seen.
    pub attempt: i32,
    /// How long ago it was made (PENDING) or claimed (PROCESSING).
    pub age: Duration,
}

impl Store {
    /// PENDING orders that are older than `min_age`: left by a crash, by another replica, or by a queue that was full.
    /// Rows that somebody is working on just now are skipped.
    pub async fn pending_orders(&self, min_age: Duration, limit: i64) -> Result<Vec<OpenOrder>, Error> {
        let mut conn = self.held(Pool::Read).await?;
        let rows = sqlx::query(
            "SELECT id, sale_id FROM orders
             WHERE created_at >= (SELECT starts_at FROM open_orders_horizon)
               AND created_at <= clock_timestamp() - $1 * interval '1 millisecond' AND status = 'PENDING'
             LIMIT $2 FOR UPDATE SKIP LOCKED",
        )
        .bind(min_age.as_millis() as i64)
        .bind(limit)
        .fetch_all(&mut **conn)
        .await?;
        rows.iter()
            .map(|row| {
                Ok(OpenOrder {
                    order: OrderId(row.try_get("id")?),
                    sale: SaleId(row.try_get("sale_id")?),
                })
            })
            .collect()
    }

    /// Age of the oldest PENDING order.
    pub async fn oldest_pending(&self) -> Result<Duration, Error> {
        let mut conn = self.held(Pool::Read).await?;
        let micros: Option<i64> = sqlx::query_scalar(
            "SELECT micros(clock_timestamp()) - micros(min(created_at)) FROM orders
             WHERE created_at >= (SELECT starts_at FROM open_orders_horizon) AND status = 'PENDING'",
        )
        .fetch_one(&mut **conn)
        .await?;
        Ok(Duration::from_micros(micros.unwrap_or(0).max(0) as u64))
    }

    /// Orders that are open for longer than the cutoff: PENDING since they were made, PROCESSING since they were claimed.
    /// A claim that was looked into less than `retry_after` ago is left out.
    pub async fn stuck_orders(
        &self,
        cutoff: Duration,
        retry_after: Duration,
        limit: i64,
    ) -> Result<Vec<StuckOrder>, Error> {
        let mut conn = self.held(Pool::Read).await?;
        // clock_timestamp, the time of the statement: a transaction's own time may lie before the claims it looks at.
        let rows = sqlx::query(
            "SELECT id, sale_id, status::text AS status, fence, attempt,
                    micros(clock_timestamp()) - micros(CASE status WHEN 'PENDING' THEN created_at ELSE claimed_at END) AS age_us
             FROM orders
             WHERE created_at >= (SELECT starts_at FROM open_orders_horizon)
               AND created_at <= clock_timestamp() - $1 * interval '1 millisecond'
               AND (status = 'PENDING'
                    OR (status = 'PROCESSING' AND claimed_at <= clock_timestamp() - $1 * interval '1 millisecond'
                        AND updated_at <= clock_timestamp() - $2 * interval '1 millisecond'))
             LIMIT $3",
        )
        .bind(cutoff.as_millis() as i64)
        .bind(retry_after.as_millis() as i64)
        .bind(limit)
        .fetch_all(&mut **conn)
        .await?;
        rows.iter()
            .map(|row| {
                let status: &str = row.try_get("status")?;
                Ok(StuckOrder {
                    order: OrderId(row.try_get("id")?),
                    sale: SaleId(row.try_get("sale_id")?),
                    status: OrderStatus::from_sql(status)
                        .ok_or_else(|| Error::Unexpected(format!("unknown status {status}")))?,
                    fence: row.try_get("fence")?,
                    attempt: row.try_get("attempt")?,
                    age: Duration::from_micros(row.try_get::<i64, _>("age_us")?.max(0) as u64),
                })
            })
            .collect()
    }

    /// How many orders are in doubt (claimed longer than the cutoff ago) and the age of the oldest claim among them.
    pub async fn in_doubt(&self, cutoff: Duration) -> Result<(i64, Duration), Error> {
        let mut conn = self.held(Pool::Read).await?;
        let (count, oldest_us): (i64, Option<i64>) = sqlx::query_as(
            "SELECT count(*), micros(clock_timestamp()) - micros(min(claimed_at)) FROM orders
             WHERE created_at >= (SELECT starts_at FROM open_orders_horizon)
               AND status = 'PROCESSING' AND claimed_at <= clock_timestamp() - $1 * interval '1 millisecond'",
        )
        .bind(cutoff.as_millis() as i64)
        .fetch_one(&mut **conn)
        .await?;
        Ok((count, Duration::from_micros(oldest_us.unwrap_or(0).max(0) as u64)))
    }

    /// Moves the horizon up to the oldest open order, keeping its distance from now.
    pub async fn raise_horizon(&self) -> Result<(), Error> {
        let mut conn = self.held(Pool::Settle).await?;
        sqlx::query(sqlx::AssertSqlSafe(format!(
            "UPDATE open_orders_horizon h
             SET starts_at = greatest(h.starts_at, least(clock_timestamp() - interval '{HORIZON_DISTANCE}',
                (SELECT min(created_at) FROM orders
                 WHERE created_at >= (SELECT starts_at FROM open_orders_horizon) AND status IN ('PENDING', 'PROCESSING'))))"
        )))
        .execute(&mut **conn)
        .await?;
        Ok(())
    }
}
