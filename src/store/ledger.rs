//! The ledger added up, order by order, for whoever verifies it.

use sqlx::Row;

use super::{Error, Store};
use crate::domain::{Account, Currency, OrderId, OrderStatus, SaleId};
use crate::metrics::Pool;

impl Store {
    /// Every order that was ever claimed for a charge, with what the ledger says of it, and every order that the ledger knows and the
    /// orders don't; of one sale, or of all. All of one instant.
    pub async fn accounts(&self, sale: Option<SaleId>) -> Result<Vec<Account>, Error> {
        self.asked(Pool::Read, async |conn| {
            let rows = sqlx::query(
                "WITH money AS (
                    SELECT order_id, min(sale_id::text)::uuid AS sale_id, min(currency) AS currency,
                           count(DISTINCT currency) > 1 AS mixed,
                           coalesce(sum(amount_minor) FILTER (WHERE kind = 'CHARGE'), 0)::bigint AS charged,
                           coalesce(sum(amount_minor) FILTER (WHERE kind = 'REFUND'), 0)::bigint AS refunded,
                           count(*) AS movements
                    FROM ledger_entries WHERE $1::uuid IS NULL OR sale_id = $1
                    GROUP BY order_id
                )
                SELECT coalesce(o.id, m.order_id) AS order_id, coalesce(o.sale_id, m.sale_id) AS sale_id,
                       o.status::text AS status, coalesce(o.amount_minor, 0) AS amount_minor,
                       coalesce(s.currency, m.currency) AS currency,
                       coalesce(m.mixed OR m.currency <> s.currency, false) AS foreign_currency,
                       coalesce(m.charged, 0) AS charged, coalesce(m.refunded, 0) AS refunded,
                       coalesce(m.movements, 0) AS movements,
                       EXISTS (SELECT FROM provider_tasks t WHERE t.order_id = coalesce(o.id, m.order_id)) AS owed
                FROM (SELECT * FROM orders WHERE attempt > 0 AND ($1::uuid IS NULL OR sale_id = $1)) o
                FULL JOIN money m ON m.order_id = o.id
                LEFT JOIN sales s ON s.id = coalesce(o.sale_id, m.sale_id)
                ORDER BY 2, 1",
            )
            .bind(sale.map(|sale| sale.0))
            .fetch_all(&mut *conn)
            .await?;
            rows.iter()
                .map(|row| {
                    let currency: Option<&str> = row.try_get("currency")?;
                    Ok(Account {
                        order: OrderId(row.try_get("order_id")?),
                        sale: SaleId(row.try_get("sale_id")?),
                        status: row
                            .try_get::<Option<&str>, _>("status")?
                            .and_then(OrderStatus::from_sql),
                        amount_minor: row.try_get("amount_minor")?,
                        currency: currency
                            .and_then(Currency::parse)
                            .ok_or_else(|| Error::Unexpected(format!("unknown currency {currency:?}")))?,
                        foreign_currency: row.try_get("foreign_currency")?,
                        charged_minor: row.try_get("charged")?,
                        refunded_minor: row.try_get("refunded")?,
                        movements: row.try_get("movements")?,
                        owed: row.try_get("owed")?,
                    })
                })
                .collect()
        })
        .await
    }
}
