//! What is listed, and what is shown.

use jiff::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{Connection, Row};
use uuid::Uuid;

use super::{Error, Store, commit, timestamp};
use crate::domain::{
    Buyer, Currency, FailureReason, LateRefund, Money, NewSale, OrderId, OrderStatus, OrderView, Sale,
    SaleId, SaleView, Stock,
};
use crate::metrics::Pool;

pub(super) fn currency(code: &str) -> Result<Currency, Error> {
    Currency::parse(code).ok_or_else(|| Error::Unexpected(format!("unknown currency {code}")))
}

pub(super) fn money(amount_minor: i64, code: &str) -> Result<Money, Error> {
    Ok(Money {
        amount_minor,
        currency: currency(code)?,
    })
}

/// The columns of a sale as all statements in here read them.
macro_rules! sale_view_sql {
    ($rest:literal) => {
        concat!(
            "SELECT s.id, s.name, s.unit_price_minor, s.currency, s.per_buyer_limit, s.max_per_order,
                    micros(s.opens_at) AS opens_at_us, micros(s.closes_at) AS closes_at_us,
                    micros(s.cancelled_at) AS cancelled_at_us,
                    i.quantity, i.available, i.held, i.sold, micros(clock_timestamp()) AS now_us
             FROM sales s JOIN inventory i ON i.sale_id = s.id ",
            $rest
        )
    };
}

impl Store {
    /// Lists a sale: the sale, its inventory and its first stock entry in one transaction.
    pub async fn list_sale(&self, terms: &NewSale) -> Result<SaleView, Error> {
        self.decided(Pool::Settle, async |conn| {
            let id = SaleId::fresh();
            let mut tx = conn.begin().await?;
            sqlx::query(
                "INSERT INTO sales (id, name, unit_price_minor, currency, per_buyer_limit, max_per_order, opens_at, closes_at)
                 VALUES ($1, $2, $3, $4, $5, $6, from_micros($7), from_micros($8))",
            )
            .bind(id.0)
            .bind(&terms.name)
            .bind(terms.unit_price_minor)
            .bind(terms.currency.as_str())
            .bind(terms.per_buyer_limit)
            .bind(terms.max_per_order)
            .bind(terms.opens_at.as_microsecond())
            .bind(terms.closes_at.map(Timestamp::as_microsecond))
            .execute(&mut *tx)
            .await?;
            sqlx::query("INSERT INTO inventory (sale_id, quantity, available) VALUES ($1, $2, $2)")
                .bind(id.0)
                .bind(terms.quantity)
                .execute(&mut *tx)
                .await?;
            sqlx::query("INSERT INTO stock_entries (sale_id, kind, delta) VALUES ($1, 'LIST', $2)")
                .bind(id.0)
                .bind(terms.quantity)
                .execute(&mut *tx)
                .await?;
            let row = sqlx::query(sale_view_sql!("WHERE s.id = $1"))
                .bind(id.0)
                .fetch_one(&mut *tx)
                .await?;
            let view = sale_view(&row)?;
            commit(tx).await?;
            Ok(view)
        })
        .await
    }

    /// One sale with its stock.
    pub async fn sale(&self, id: SaleId) -> Result<Option<SaleView>, Error> {
        self.asked(Pool::Read, async |conn| {
            let row = sqlx::query(sale_view_sql!("WHERE s.id = $1"))
                .bind(id.0)
                .fetch_optional(&mut *conn)
                .await?;
            row.as_ref().map(sale_view).transpose()
        })
        .await
    }

    /// Sales in the order in which they were listed.
    pub async fn sales(&self, after: Option<SaleId>, limit: u16) -> Result<Vec<SaleView>, Error> {
        self.asked(Pool::Read, async |conn| {
            let rows = sqlx::query(sale_view_sql!(
            "WHERE $1::uuid IS NULL OR (s.created_at, s.id) > (SELECT created_at, id FROM sales WHERE id = $1)
             ORDER BY s.created_at, s.id LIMIT $2"
        ))
            .bind(after.map(|id| id.0))
            .bind(i64::from(limit))
            .fetch_all(&mut *conn)
            .await?;
            rows.iter().map(sale_view).collect()
        })
        .await
    }

    /// Sales that are not over, the largest first; a hundred at most.
    pub async fn sales_on_offer(&self) -> Result<Vec<SaleView>, Error> {
        self.asked(Pool::Read, async |conn| {
            let rows = sqlx::query(sale_view_sql!(
            "WHERE s.closes_at IS NULL OR s.closes_at > clock_timestamp() ORDER BY i.available DESC LIMIT 100"
        ))
        .fetch_all(&mut *conn)
        .await?;
            rows.iter().map(sale_view).collect()
        })
        .await
    }

    /// The stock of these sales, for the gauges.
    pub async fn stocks(&self, sales: &[SaleId]) -> Result<Vec<(SaleId, Stock)>, Error> {
        self.asked(Pool::Read, async |conn| {
            let rows = sqlx::query(
                "SELECT sale_id, quantity, available, held, sold FROM inventory WHERE sale_id = ANY($1)",
            )
            .bind(sales.iter().map(|sale| sale.0).collect::<Vec<_>>())
            .fetch_all(&mut *conn)
            .await?;
            rows.iter()
                .map(|row| Ok((SaleId(row.try_get("sale_id")?), stock(row)?)))
                .collect()
        })
        .await
    }

    /// One order, whoever's it is.
    pub async fn order(&self, id: OrderId) -> Result<Option<OrderView>, Error> {
        self.asked(Pool::Read, async |conn| {
            let row = sqlx::query(
                "SELECT o.id, o.sale_id, o.buyer, o.quantity, o.amount_minor, s.currency, o.status::text AS status,
                        o.failure_reason, o.attempt, micros(o.created_at) AS created_at_us,
                        micros(o.updated_at) AS updated_at_us,
                        (SELECT bool_and(p.status = 'REFUNDED') FROM payments p
                         WHERE p.order_id = o.id AND p.status IN ('REFUND_DUE', 'REFUNDED')) AS refunded,
                        (SELECT coalesce(sum(r.amount_minor), 0)::bigint FROM refunds r
                         WHERE r.order_id = o.id AND r.status = 'DONE') AS refunded_minor,
                        (SELECT coalesce(sum(r.amount_minor), 0)::bigint FROM refunds r
                         WHERE r.order_id = o.id AND r.status = 'DUE') AS refund_due_minor
                 FROM orders o JOIN sales s ON s.id = o.sale_id
                 WHERE o.id = $1 AND o.status <> 'REJECTED'",
            )
            .bind(id.0)
            .fetch_optional(&mut *conn)
            .await?;
            row.as_ref().map(order_view).transpose()
        })
        .await
    }
}

fn stock(row: &PgRow) -> Result<Stock, Error> {
    let units = |column| row.try_get::<i32, _>(column).map(i64::from);
    Ok(Stock {
        quantity: units("quantity")?,
        available: units("available")?,
        held: units("held")?,
        sold: units("sold")?,
    })
}

fn sale_view(row: &PgRow) -> Result<SaleView, Error> {
    let terms = NewSale {
        name: row.try_get("name")?,
        quantity: row.try_get("quantity")?,
        unit_price_minor: row.try_get("unit_price_minor")?,
        currency: money(0, row.try_get("currency")?)?.currency,
        per_buyer_limit: row.try_get("per_buyer_limit")?,
        max_per_order: row.try_get("max_per_order")?,
        opens_at: timestamp(row.try_get("opens_at_us")?),
        closes_at: row.try_get::<Option<i64>, _>("closes_at_us")?.map(timestamp),
    };
    Ok(SaleView {
        sale: Sale {
            id: SaleId(row.try_get("id")?),
            terms,
        },
        stock: stock(row)?,
        cancelled_at: row.try_get::<Option<i64>, _>("cancelled_at_us")?.map(timestamp),
        server_time: timestamp(row.try_get("now_us")?),
    })
}

fn order_view(row: &PgRow) -> Result<OrderView, Error> {
    let status: &str = row.try_get("status")?;
    let buyer: &str = row.try_get("buyer")?;
    Ok(OrderView {
        id: OrderId(row.try_get::<Uuid, _>("id")?),
        sale: SaleId(row.try_get("sale_id")?),
        buyer: Buyer::parse(buyer).ok_or_else(|| Error::Unexpected(format!("unreadable buyer {buyer}")))?,
        quantity: row.try_get("quantity")?,
        amount: money(row.try_get("amount_minor")?, row.try_get("currency")?)?,
        status: OrderStatus::from_sql(status)
            .ok_or_else(|| Error::Unexpected(format!("unknown status {status}")))?,
        failure_reason: row
            .try_get::<Option<&str>, _>("failure_reason")?
            .and_then(FailureReason::from_name),
        attempt: row.try_get("attempt")?,
        late_refund: row
            .try_get::<Option<bool>, _>("refunded")?
            .map(|done| if done { LateRefund::Done } else { LateRefund::Due }),
        refunded_minor: row.try_get("refunded_minor")?,
        refund_due_minor: row.try_get("refund_due_minor")?,
        created_at: timestamp(row.try_get("created_at_us")?),
        updated_at: timestamp(row.try_get("updated_at_us")?),
    })
}
