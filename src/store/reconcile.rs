//! What reconciling asks of Postgres, and the repairs that it may make there. Each repair is conditional and idempotent.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use sqlx::{Connection, Row};
use uuid::Uuid;

use super::{Error, Store, commit, timestamp};
use crate::domain::reconcile::gate::Fate;
use crate::domain::reconcile::money::{Dossier, Movement, Owed, Payment, Refund};
use crate::domain::reconcile::stock::{Counters, OrderUnits};
use crate::domain::{Buyer, Currency, OrderId, OrderStatus, PaymentStatus, SaleId, Stock};
use crate::metrics::Pool;

/// A sale as reconciling begins with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandingSale {
    /// The sale.
    pub sale: SaleId,
    /// Its epoch.
    pub epoch: i64,
    /// Units available.
    pub available: i64,
    /// Another text whenever the inventory row has been written to.
    pub version: String,
    /// Buyers are limited.
    pub limited: bool,
    /// It was loaded into the gate once, and can be bought from, now or later.
    pub on_offer: bool,
}

/// An order that holds or owns units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldingOrder {
    /// The order.
    pub order: OrderId,
    /// Its units.
    pub quantity: i32,
    /// Where the next page begins.
    pub cursor: Uuid,
}

/// A row whose order doesn't exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stray {
    /// In which table it is.
    pub table: String,
    /// The order that it names.
    pub order: OrderId,
    /// The sale that it names.
    pub sale: SaleId,
}

/// Whether an order holds or owns its units; `o` is the order.
macro_rules! holds_sql {
    () => {
        "(o.status IN ('PENDING', 'PROCESSING', 'CAPTURING', 'PAID') OR (o.status = 'REFUNDED' AND NOT EXISTS (
            SELECT FROM stock_entries e WHERE e.sale_id = o.sale_id AND e.order_id = o.id AND e.kind = 'RELEASE')))"
    };
}

/// All of an order's money in one row; `$rest` chooses the orders `o`. One statement, so that all of it is of one instant.
macro_rules! dossiers_sql {
    ($rest:literal) => {
        concat!(
            "SELECT o.id, o.sale_id, o.status::text AS status, o.attempt, o.amount_minor, s.currency,
                    micros(o.created_at) AS created_at_us,
                    coalesce(o.idempotency_digest, o.id) AS digest,
                    EXISTS (SELECT FROM stock_entries e WHERE e.sale_id = o.sale_id AND e.order_id = o.id AND e.kind = 'RELEASE') AS released,
                    EXISTS (SELECT FROM gate_releases g WHERE g.sale_id = o.sale_id AND g.order_id = o.id) AS release_noted,
                    (SELECT json_agg(json_build_array(attempt, status, refunded_minor)) FROM payments p WHERE p.order_id = o.id) AS payments,
                    (SELECT json_agg(json_build_array(attempt, CASE kind WHEN 'REFUND' THEN refund END, amount_minor, currency))
                     FROM ledger_entries l WHERE l.order_id = o.id) AS movements,
                    (SELECT json_agg(json_build_array(attempt, number, amount_minor, status = 'DONE')) FROM refunds r WHERE r.order_id = o.id) AS refunds,
                    (SELECT json_agg(json_build_array(attempt, CASE kind WHEN 'REFUND' THEN refund END)) FROM provider_tasks t WHERE t.order_id = o.id) AS tasks,
                    (SELECT json_agg(json_build_array(attempt, CASE kind WHEN 'REFUND' THEN refund END)) FROM dead_letters d WHERE d.order_id = o.id) AS dead_letters,
                    EXISTS (SELECT FROM provider_events v WHERE v.order_id = o.id AND v.state = 'DUE') AS events_due
             FROM orders o JOIN sales s ON s.id = o.sale_id WHERE o.status <> 'REJECTED' AND ",
            $rest
        )
    };
}

/// Which orders' dossiers are read.
#[derive(Debug, Clone)]
pub enum Which {
    /// A sale's, after this place.
    OfSale(SaleId, Option<Uuid>),
    /// Those whose ids come after this one: the oldest first, whatever their sale.
    After(OrderId),
    /// These.
    These(Vec<OrderId>),
}

impl Store {
    /// The sales that there are to reconcile: all, or one, or with `lately` those that are on offer, have open orders, or closed within that time.
    pub async fn standing_sales(
        &self,
        sale: Option<SaleId>,
        lately: Option<Duration>,
    ) -> Result<Vec<StandingSale>, Error> {
        self.asked(Pool::Read, async |conn| {
            let rows = sqlx::query(
                "SELECT i.sale_id, i.epoch, i.available::bigint AS available, i.xmin::text AS version,
                        s.per_buyer_limit IS NOT NULL AS limited,
                        i.epoch > 1 AND NOT i.cancelled AND coalesce(s.closes_at > clock_timestamp(), true) AS on_offer
                 FROM inventory i JOIN sales s ON s.id = i.sale_id
                 WHERE ($1::uuid IS NULL OR i.sale_id = $1)
                   AND ($2::bigint IS NULL OR i.held > 0
                        OR coalesce(s.closes_at > clock_timestamp() - $2 * interval '1 millisecond', true))
                 ORDER BY i.sale_id",
            )
            .bind(sale.map(|sale| sale.0))
            .bind(lately.map(|lately| lately.as_millis() as i64))
            .fetch_all(&mut *conn)
            .await?;
            rows.iter().map(standing).collect()
        })
        .await
    }

    /// The counters of these sales (of all, when `None`) beside the sums over their orders and, if asked for, their stock entries. All of one
    /// instant, and without the usual limit: it reads every order of the sales, about a second for a million.
    pub async fn counters(
        &self,
        sales: Option<&[SaleId]>,
        with_entries: bool,
    ) -> Result<Vec<Counters>, Error> {
        self.asked_at_length(async |conn| {
            let rows = sqlx::query(concat!(
                "SELECT i.sale_id, i.quantity, i.available, i.held, i.sold,
                        coalesce(u.held, 0) AS order_held, coalesce(u.sold, 0) AS order_sold, n.entries
                 FROM inventory i
                 LEFT JOIN (
                    SELECT o.sale_id,
                           coalesce(sum(o.quantity) FILTER (WHERE o.status IN ('PENDING', 'PROCESSING', 'CAPTURING')), 0)::bigint AS held,
                           coalesce(sum(o.quantity) FILTER (WHERE o.status NOT IN ('PENDING', 'PROCESSING', 'CAPTURING') AND ", holds_sql!(), "), 0)::bigint AS sold
                    FROM orders o WHERE ($1::uuid[] IS NULL OR o.sale_id = ANY($1)) AND o.idempotency_digest IS NOT NULL
                    GROUP BY o.sale_id
                 ) u ON u.sale_id = i.sale_id
                 LEFT JOIN (
                    SELECT e.sale_id, sum(e.delta)::bigint AS entries FROM stock_entries e
                    WHERE $2 AND ($1::uuid[] IS NULL OR e.sale_id = ANY($1)) GROUP BY e.sale_id
                 ) n ON n.sale_id = i.sale_id
                 WHERE $1::uuid[] IS NULL OR i.sale_id = ANY($1)"
            ))
            .bind(sales.map(|sales| sales.iter().map(|sale| sale.0).collect::<Vec<_>>()))
            .bind(with_entries)
            .fetch_all(&mut *conn)
            .await?;
            rows.iter().map(|row| counters(row, with_entries)).collect()
        })
        .await
    }

    /// How many buyers of a sale have another allotment than their orders hold, and three of them: what is counted, and what they hold.
    pub async fn allotments_apart(&self, sale: SaleId) -> Result<(i64, Vec<(String, i64, i64)>), Error> {
        self.asked_at_length(async |conn| {
            let rows: Vec<(i64, String, i64, i64)> = sqlx::query_as(concat!(
                "WITH held AS (
                    SELECT o.buyer, sum(o.quantity)::bigint AS units FROM orders o
                    WHERE o.sale_id = $1 AND o.idempotency_digest IS NOT NULL AND ", holds_sql!(), " GROUP BY o.buyer
                 ), apart AS (
                    SELECT coalesce(a.buyer, h.buyer) AS buyer, coalesce(a.used, 0)::bigint AS used, coalesce(h.units, 0) AS units
                    FROM (SELECT buyer, used FROM buyer_allotments WHERE sale_id = $1) a FULL JOIN held h ON h.buyer = a.buyer
                    WHERE coalesce(a.used, 0) <> coalesce(h.units, 0)
                 )
                 SELECT count(*) OVER (), buyer, used, units FROM apart ORDER BY buyer LIMIT 3"
            ))
            .bind(sale.0)
            .fetch_all(&mut *conn)
            .await?;
            let count = rows.first().map_or(0, |row| row.0);
            Ok((count, rows.into_iter().map(|(_, buyer, used, held)| (buyer, used, held)).collect()))
        })
        .await
    }

    /// What became of these orders, for the gate. An order that isn't named in the answer doesn't exist.
    pub async fn fates(&self, sale: SaleId, orders: &[OrderId]) -> Result<HashMap<OrderId, Fate>, Error> {
        self.asked(Pool::Read, async |conn| {
            let rows = sqlx::query(
                "SELECT o.id, o.buyer, o.quantity, o.status IN ('FAILED', 'REFUNDED') AND EXISTS (
                            SELECT FROM gate_releases g WHERE g.sale_id = $1 AND g.order_id = o.id) AS noted,
                        CASE o.status WHEN 'FAILED' THEN true
                            WHEN 'REFUNDED' THEN EXISTS (SELECT FROM stock_entries e
                                WHERE e.sale_id = $1 AND e.order_id = o.id AND e.kind = 'RELEASE')
                            ELSE false END AS over
                 FROM unnest($2::uuid[]) AS r (id) JOIN orders o ON o.id = r.id AND o.sale_id = $1
                 WHERE o.status <> 'REJECTED'",
            )
            .bind(sale.0)
            .bind(uuids(orders))
            .fetch_all(&mut *conn)
            .await?;
            rows.iter()
                .map(|row| {
                    let fate = if row.try_get("over")? {
                        Fate::Over {
                            noted: row.try_get("noted")?,
                        }
                    } else {
                        Fate::Holds {
                            buyer: buyer(row.try_get("buyer")?)?,
                            quantity: row.try_get("quantity")?,
                        }
                    };
                    Ok((OrderId(row.try_get("id")?), fate))
                })
                .collect()
        })
        .await
    }

    /// A page of the orders of a sale that hold or own units, after `after`.
    pub async fn holding_orders(
        &self,
        sale: SaleId,
        after: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<HoldingOrder>, Error> {
        self.asked(Pool::Read, async |conn| {
            let rows: Vec<(Uuid, i32, Uuid)> = sqlx::query_as(concat!(
                "SELECT o.id, o.quantity, o.idempotency_digest FROM orders o
                 WHERE o.sale_id = $1 AND o.idempotency_digest > coalesce($2, '00000000-0000-0000-0000-000000000000'::uuid)
                   AND ", holds_sql!(), "
                 ORDER BY o.idempotency_digest LIMIT $3"
            ))
            .bind(sale.0)
            .bind(after)
            .bind(limit)
            .fetch_all(&mut *conn)
            .await?;
            Ok(rows
                .into_iter()
                .map(|(order, quantity, cursor)| HoldingOrder {
                    order: OrderId(order),
                    quantity,
                    cursor,
                })
                .collect())
        })
        .await
    }

    /// What these buyers of a sale are counted as holding; those without a row hold nothing.
    pub async fn allotments(&self, sale: SaleId, buyers: &[Buyer]) -> Result<HashMap<Buyer, i64>, Error> {
        self.asked(Pool::Read, async |conn| {
            let rows: Vec<(String, i64)> = sqlx::query_as(
                "SELECT buyer, used::bigint FROM buyer_allotments WHERE sale_id = $1 AND buyer = ANY($2)",
            )
            .bind(sale.0)
            .bind(buyers.iter().map(Buyer::as_str).collect::<Vec<_>>())
            .fetch_all(&mut *conn)
            .await?;
            rows.into_iter()
                .map(|(name, used)| Ok((buyer(&name)?, used)))
                .collect()
        })
        .await
    }

    /// A page of the buyers of a sale who are counted as holding units, after `after`, with how many.
    pub async fn buyers_after(
        &self,
        sale: SaleId,
        after: Option<&Buyer>,
        limit: i64,
    ) -> Result<Vec<(Buyer, i64)>, Error> {
        self.asked(Pool::Read, async |conn| {
            let rows: Vec<(String, i64)> = sqlx::query_as(
                "SELECT buyer, used::bigint FROM buyer_allotments
                 WHERE sale_id = $1 AND buyer > coalesce($2, '') AND used > 0 ORDER BY buyer LIMIT $3",
            )
            .bind(sale.0)
            .bind(after.map(Buyer::as_str))
            .bind(limit)
            .fetch_all(&mut *conn)
            .await?;
            rows.into_iter()
                .map(|(name, used)| Ok((buyer(&name)?, used)))
                .collect()
        })
        .await
    }

    /// The dossiers of a page of orders, and where the next page begins: nowhere, when this was the last.
    pub async fn dossiers(&self, which: &Which, limit: i64) -> Result<(Vec<Dossier>, Option<Which>), Error> {
        self.asked(Pool::Read, async |conn| {
            let query = match which {
                Which::OfSale(sale, after) => sqlx::query(dossiers_sql!(
                    "o.sale_id = $1 AND o.idempotency_digest > coalesce($2, '00000000-0000-0000-0000-000000000000'::uuid)
                     ORDER BY o.idempotency_digest LIMIT $3"
                ))
                .bind(sale.0)
                .bind(*after)
                .bind(limit),
                Which::After(order) => sqlx::query(dossiers_sql!("o.id > $1 ORDER BY o.id LIMIT $2"))
                    .bind(order.0)
                    .bind(limit),
                Which::These(orders) => sqlx::query(dossiers_sql!("o.id = ANY($1)")).bind(uuids(orders)),
            };
            let rows = query.fetch_all(&mut *conn).await?;
            let dossiers = rows.iter().map(dossier).collect::<Result<Vec<_>, _>>()?;
            let next = match (which, rows.last()) {
                (Which::OfSale(sale, _), Some(last)) => Some(Which::OfSale(*sale, Some(last.try_get("digest")?))),
                (Which::After(_), Some(last)) => Some(Which::After(OrderId(last.try_get("id")?))),
                _ => None,
            };
            Ok((dossiers, next.filter(|_| rows.len() as i64 == limit)))
        })
        .await
    }

    /// Rows about money, work or releases whose order doesn't exist; a hundred at most.
    pub async fn strays(&self, sale: Option<SaleId>) -> Result<Vec<Stray>, Error> {
        self.asked_at_length(async |conn| {
            let rows: Vec<(String, Uuid, Uuid)> = sqlx::query_as(
                "SELECT DISTINCT r.name, r.order_id, r.sale_id FROM (
                    SELECT 'ledger_entries' AS name, order_id, sale_id FROM ledger_entries
                    UNION ALL SELECT 'payments', order_id, sale_id FROM payments
                    UNION ALL SELECT 'refunds', order_id, sale_id FROM refunds
                    UNION ALL SELECT 'provider_tasks', order_id, sale_id FROM provider_tasks
                    UNION ALL SELECT 'dead_letters', order_id, sale_id FROM dead_letters
                    UNION ALL SELECT 'gate_releases', order_id, sale_id FROM gate_releases WHERE NOT forget
                 ) r
                 WHERE ($1::uuid IS NULL OR r.sale_id = $1)
                   AND NOT EXISTS (SELECT FROM orders o WHERE o.id = r.order_id AND o.sale_id = r.sale_id AND o.status <> 'REJECTED')
                 ORDER BY 1, 2 LIMIT 100",
            )
            .bind(sale.map(|sale| sale.0))
            .fetch_all(&mut *conn)
            .await?;
            Ok(rows
                .into_iter()
                .map(|(table, order, sale)| Stray {
                    table,
                    order: OrderId(order),
                    sale: SaleId(sale),
                })
                .collect())
        })
        .await
    }

    /// Takes the note away that tells the gate to release an order which holds its units. Returns whether there was one.
    pub async fn drop_note(&self, sale: SaleId, order: OrderId) -> Result<bool, Error> {
        self.decided(Pool::Settle, async |conn| {
            let mut tx = conn.begin().await?;
            // Locked, so that it can't be failed, with a note of its own, between the look and the delete.
            let holds: Option<i32> = sqlx::query_scalar(
                "SELECT 1 FROM orders WHERE id = $1 AND sale_id = $2
                   AND status IN ('PENDING', 'PROCESSING', 'CAPTURING', 'PAID') FOR UPDATE",
            )
            .bind(order.0)
            .bind(sale.0)
            .fetch_optional(&mut *tx)
            .await?;
            if holds.is_none() {
                return Ok(false);
            }
            let dropped = sqlx::query("DELETE FROM gate_releases WHERE sale_id = $1 AND order_id = $2")
                .bind(sale.0)
                .bind(order.0)
                .execute(&mut *tx)
                .await?
                .rows_affected();
            commit(tx).await?;
            Ok(dropped == 1)
        })
        .await
    }

    /// Writes down that the provider is to be asked about a charge whose order is over, or whose attempt doesn't count, unless the books have its
    /// money or the question is written down already. Returns whether this call wrote it.
    pub async fn ask_about(&self, order: OrderId, sale: SaleId, attempt: i32) -> Result<bool, Error> {
        self.decided(Pool::Settle, async |conn| {
            let written = sqlx::query(
                "INSERT INTO provider_tasks (order_id, sale_id, attempt, kind)
                 SELECT p.order_id, p.sale_id, p.attempt, 'RESOLVE'
                 FROM orders o JOIN payments p ON p.order_id = o.id AND p.sale_id = o.sale_id
                 WHERE o.id = $1 AND o.sale_id = $2 AND p.attempt = $3 AND (o.status = 'FAILED' OR o.attempt <> $3)
                   AND p.status NOT IN ('SUCCEEDED', 'REFUND_DUE', 'REFUNDED')
                   AND NOT EXISTS (SELECT FROM dead_letters d WHERE d.order_id = $1 AND d.attempt = $3 AND d.kind = 'RESOLVE')
                 ON CONFLICT DO NOTHING",
            )
            .bind(order.0)
            .bind(sale.0)
            .bind(attempt)
            .execute(&mut *conn)
            .await?
            .rows_affected();
            Ok(written == 1)
        })
        .await
    }

    /// Writes down once more the work of paying a refund that is due, unless it is there. Returns whether this call wrote it.
    pub async fn pay_back_again(
        &self,
        order: OrderId,
        sale: SaleId,
        attempt: i32,
        refund: i32,
    ) -> Result<bool, Error> {
        self.decided(Pool::Settle, async |conn| {
            let mut tx = conn.begin().await?;
            // Whoever notes a refund as paid, and takes its work away, holds this lock.
            lock_order(&mut tx, order, sale).await?;
            let written = sqlx::query(
                "INSERT INTO provider_tasks (order_id, sale_id, attempt, kind, refund)
                 SELECT $1, $2, $3, 'REFUND', $4
                 WHERE (($4 = 0 AND EXISTS (SELECT FROM payments
                            WHERE order_id = $1 AND sale_id = $2 AND attempt = $3 AND status = 'REFUND_DUE'))
                     OR EXISTS (SELECT FROM refunds
                            WHERE order_id = $1 AND sale_id = $2 AND attempt = $3 AND number = $4 AND status = 'DUE'))
                   AND NOT EXISTS (SELECT FROM dead_letters
                            WHERE order_id = $1 AND sale_id = $2 AND attempt = $3 AND kind = 'REFUND' AND refund = $4)
                 ON CONFLICT DO NOTHING",
            )
            .bind(order.0)
            .bind(sale.0)
            .bind(attempt)
            .bind(refund)
            .execute(&mut *tx)
            .await?
            .rows_affected();
            commit(tx).await?;
            Ok(written == 1)
        })
        .await
    }

    /// Marks a charge as due back that the books have taken for an order that failed, or for an attempt that doesn't count, and of which nothing was
    /// promised back; with the work of paying it. Returns whether this call did.
    pub async fn pay_back_late(&self, order: OrderId, sale: SaleId, attempt: i32) -> Result<bool, Error> {
        self.decided(Pool::Settle, async |conn| {
            let mut tx = conn.begin().await?;
            lock_order(&mut tx, order, sale).await?;
            let written = sqlx::query(
                "WITH late AS (
                    UPDATE payments p SET status = 'REFUND_DUE', updated_at = clock_timestamp()
                    WHERE p.order_id = $1 AND p.sale_id = $2 AND p.attempt = $3 AND p.status = 'SUCCEEDED' AND p.refunded_minor = 0
                      AND EXISTS (SELECT FROM orders o WHERE o.id = $1 AND o.sale_id = $2 AND (o.status = 'FAILED' OR o.attempt <> $3))
                      AND EXISTS (SELECT FROM ledger_entries l WHERE l.order_id = $1 AND l.sale_id = $2 AND l.attempt = $3 AND l.kind = 'CHARGE')
                      AND NOT EXISTS (SELECT FROM ledger_entries l WHERE l.order_id = $1 AND l.sale_id = $2 AND l.attempt = $3 AND l.kind = 'REFUND')
                    RETURNING p.order_id, p.sale_id, p.attempt
                 )
                 INSERT INTO provider_tasks (order_id, sale_id, attempt, kind)
                 SELECT order_id, sale_id, attempt, 'REFUND' FROM late ON CONFLICT DO NOTHING",
            )
            .bind(order.0)
            .bind(sale.0)
            .bind(attempt)
            .execute(&mut *tx)
            .await?
            .rows_affected();
            commit(tx).await?;
            Ok(written == 1)
        })
        .await
    }

    /// The time by the database's clock.
    pub async fn now(&self) -> Result<Timestamp, Error> {
        self.asked(Pool::Read, async |conn| {
            let now_us: i64 = sqlx::query_scalar("SELECT micros(clock_timestamp())")
                .fetch_one(&mut *conn)
                .await?;
            Ok(timestamp(now_us))
        })
        .await
    }

    /// What tells of each of these sales whether its inventory row has been written to: another text each time.
    pub async fn versions(&self, sales: &[SaleId]) -> Result<HashMap<SaleId, String>, Error> {
        self.asked(Pool::Read, async |conn| {
            let rows: Vec<(Uuid, String)> =
                sqlx::query_as("SELECT sale_id, xmin::text FROM inventory WHERE sale_id = ANY($1)")
                    .bind(sales.iter().map(|sale| sale.0).collect::<Vec<_>>())
                    .fetch_all(&mut *conn)
                    .await?;
            Ok(rows
                .into_iter()
                .map(|(sale, version)| (SaleId(sale), version))
                .collect())
        })
        .await
    }

    /// Takes the lease of the periodic pass, or keeps it. `false`: another engine has it.
    pub async fn take_reconcile_lease(&self, holder: Uuid, lasting: Duration) -> Result<bool, Error> {
        self.decided(Pool::Settle, async |conn| {
            let taken = sqlx::query(
                "UPDATE reconcile_lease SET holder = $1, expires_at = clock_timestamp() + $2 * interval '1 millisecond'
                 WHERE holder = $1 OR expires_at <= clock_timestamp()",
            )
            .bind(holder)
            .bind(lasting.as_millis() as i64)
            .execute(&mut *conn)
            .await?
            .rows_affected();
            Ok(taken == 1)
        })
        .await
    }
}

async fn lock_order(
    tx: &mut sqlx::Transaction<'_, sqlx::Postgres>,
    order: OrderId,
    sale: SaleId,
) -> Result<(), Error> {
    sqlx::query("SELECT FROM orders WHERE id = $1 AND sale_id = $2 FOR UPDATE")
        .bind(order.0)
        .bind(sale.0)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

fn uuids(orders: &[OrderId]) -> Vec<Uuid> {
    orders.iter().map(|order| order.0).collect()
}

fn buyer(name: &str) -> Result<Buyer, Error> {
    Buyer::parse(name).ok_or_else(|| Error::Unexpected(format!("unreadable buyer {name}")))
}

fn standing(row: &PgRow) -> Result<StandingSale, Error> {
    Ok(StandingSale {
        sale: SaleId(row.try_get("sale_id")?),
        epoch: row.try_get("epoch")?,
        available: row.try_get("available")?,
        version: row.try_get("version")?,
        limited: row.try_get("limited")?,
        on_offer: row.try_get("on_offer")?,
    })
}

fn counters(row: &PgRow, with_entries: bool) -> Result<Counters, Error> {
    let units = |column| row.try_get::<i32, _>(column).map(i64::from);
    let entries: Option<i64> = row.try_get("entries")?;
    Ok(Counters {
        sale: SaleId(row.try_get("sale_id")?),
        stock: Stock {
            quantity: units("quantity")?,
            available: units("available")?,
            held: units("held")?,
            sold: units("sold")?,
        },
        orders: OrderUnits {
            held: row.try_get("order_held")?,
            sold: row.try_get("order_sold")?,
        },
        entries: with_entries.then(|| entries.unwrap_or(0)),
    })
}

/// Rows of another table, gathered into one value; nothing where there are none.
fn rows<T>(row: &PgRow, column: &str) -> Result<Vec<T>, Error>
where
    T: serde::de::DeserializeOwned + Send + 'static,
{
    let gathered: Option<Json<Vec<T>>> = row.try_get(column)?;
    Ok(gathered.map_or_else(Vec::new, |Json(gathered)| gathered))
}

fn dossier(row: &PgRow) -> Result<Dossier, Error> {
    let name: &str = row.try_get("status")?;
    let owed = |column| -> Result<Vec<Owed>, Error> {
        let all: Vec<(i32, Option<i32>)> = rows(row, column)?;
        Ok(all
            .into_iter()
            .map(|(attempt, refund)| Owed { attempt, refund })
            .collect())
    };
    let payments: Vec<(i32, String, i64)> = rows(row, "payments")?;
    let movements: Vec<(i32, Option<i32>, i64, String)> = rows(row, "movements")?;
    let refunds: Vec<(i32, i32, i64, bool)> = rows(row, "refunds")?;
    Ok(Dossier {
        order: OrderId(row.try_get("id")?),
        sale: SaleId(row.try_get("sale_id")?),
        created_at: timestamp(row.try_get("created_at_us")?),
        status: OrderStatus::from_sql(name)
            .ok_or_else(|| Error::Unexpected(format!("unknown status {name}")))?,
        attempt: row.try_get("attempt")?,
        amount_minor: row.try_get("amount_minor")?,
        currency: super::read::currency(row.try_get("currency")?)?,
        released: row.try_get("released")?,
        release_noted: row.try_get("release_noted")?,
        payments: payments
            .into_iter()
            .map(|(attempt, status, promised_minor)| {
                Ok(Payment {
                    attempt,
                    status: PaymentStatus::from_sql(&status)
                        .ok_or_else(|| Error::Unexpected(format!("unknown payment status {status}")))?,
                    promised_minor,
                })
            })
            .collect::<Result<_, Error>>()?,
        movements: movements
            .into_iter()
            .map(|(attempt, refund, amount_minor, code)| {
                Ok(Movement {
                    attempt,
                    refund,
                    amount_minor,
                    currency: Currency::parse(&code)
                        .ok_or_else(|| Error::Unexpected(format!("unknown currency {code}")))?,
                })
            })
            .collect::<Result<_, Error>>()?,
        refunds: refunds
            .into_iter()
            .map(|(attempt, number, amount_minor, done)| Refund {
                attempt,
                number,
                amount_minor,
                done,
            })
            .collect(),
        tasks: owed("tasks")?,
        dead_letters: owed("dead_letters")?,
        events_due: row.try_get("events_due")?,
    })
}
