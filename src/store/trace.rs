//! Everything that the database knows of an order, in the order in which it happened.

use jiff::Timestamp;
use sqlx::Row;

use super::{Error, Store, timestamp};
use crate::domain::OrderId;
use crate::metrics::Pool;

/// Something that happened to an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Happened {
    /// When, by the database's clock.
    pub at: Timestamp,
    /// What kind of thing.
    pub what: String,
    /// What exactly.
    pub detail: String,
}

impl Store {
    /// An order's timeline: arrival, transitions with who made them, claims that were lost, payments, webhooks with each delivery, ledger,
    /// stock and refunds. Empty when there is no such order.
    pub async fn trace(&self, order: OrderId) -> Result<Vec<Happened>, Error> {
        self.asked(Pool::Read, async |conn| {
            let rows = sqlx::query(
                "SELECT micros(at) AS at_us, what, detail FROM (
                    SELECT created_at AS at, 0 AS place, 'order' AS what,
                           format('taken: %s units for %s by buyer %s in sale %s%s', quantity, amount_minor, buyer, sale_id,
                                  ', request ' || request_id) AS detail
                    FROM orders WHERE id = $1
                    UNION ALL
                    -- An order and what it took were written in one transaction, at one time.
                    SELECT e.created_at, 1, 'stock', format('%s %s', e.kind, e.delta)
                    FROM orders o JOIN stock_entries e ON e.created_at = o.created_at AND e.order_id = o.id
                    WHERE o.id = $1
                    UNION ALL
                    SELECT e.created_at, 1, 'stock', format('%s +%s', e.kind, e.delta)
                    FROM orders o JOIN stock_entries e ON e.sale_id = o.sale_id AND e.order_id = o.id AND e.kind = 'RELEASE'
                    WHERE o.id = $1
                    UNION ALL
                    SELECT at, 2, 'transition', CASE WHEN applied
                        THEN format('%s by %s: %s, attempt %s, fence %s', event, by, status, attempt, fence)
                        ELSE format('%s by %s: claim lost, it was %s under fence %s', event, by, status, fence) END
                    FROM order_transitions WHERE order_id = $1
                    UNION ALL
                    SELECT created_at, 3, 'payment', format('attempt %s begun%s: %s of %s %s', attempt, CASE WHEN two_step THEN ' in two steps' ELSE '' END,
                               reference, amount_minor, currency)
                    FROM payments WHERE order_id = $1
                    UNION ALL
                    SELECT updated_at, 4, 'payment', format('attempt %s%s: %s%s%s', attempt, ' (' || provider_id || ')', status,
                        CASE WHEN decline_code IS NOT NULL THEN ' (' || decline_code || ')' ELSE '' END,
                        CASE WHEN refunded_minor > 0 THEN format(', %s promised back', refunded_minor) ELSE '' END)
                    FROM payments WHERE order_id = $1 AND updated_at > created_at
                    UNION ALL
                    SELECT d.received_at, 5, 'webhook', format('%s %s of %s, request %s', d.kind, d.event_id, d.provider, d.request_id)
                    FROM provider_events e JOIN provider_event_deliveries d ON d.provider = e.provider AND d.event_id = e.event_id
                    WHERE e.order_id = $1
                    UNION ALL
                    SELECT settled_at, 6, 'webhook', format('%s %s: %s after %s tries%s', kind, event_id, state, tries,
                        CASE WHEN last_error IS NOT NULL THEN ' (' || last_error || ')' ELSE '' END)
                    FROM provider_events WHERE order_id = $1 AND settled_at IS NOT NULL
                    UNION ALL
                    SELECT created_at, 7, 'ledger', format('%s %s %s, attempt %s%s%s', kind, amount_minor, currency, attempt,
                        CASE WHEN refund > 0 THEN format(', refund %s', refund) ELSE '' END,
                        CASE WHEN provider_event_id IS NOT NULL THEN ' by event ' || provider_event_id ELSE '' END)
                    FROM ledger_entries WHERE order_id = $1
                    UNION ALL
                    SELECT created_at, 8, 'refund', format('%s promised: %s, %s%s', number, amount_minor, reason,
                        CASE WHEN return_units THEN ', with the units' ELSE '' END)
                    FROM refunds WHERE order_id = $1
                    UNION ALL
                    SELECT done_at, 9, 'refund', format('%s paid', number) FROM refunds WHERE order_id = $1 AND done_at IS NOT NULL
                    UNION ALL
                    SELECT created_at, 10, 'work', format('%s due%s, %s tries%s', kind,
                        CASE WHEN refund > 0 THEN format(' (refund %s)', refund) ELSE '' END, tries,
                        CASE WHEN last_error IS NOT NULL THEN ': ' || last_error ELSE '' END)
                    FROM provider_tasks WHERE order_id = $1
                    UNION ALL
                    SELECT created_at, 11, 'dead letter', format('%s after %s tries: %s', kind, tries, last_error)
                    FROM dead_letters WHERE order_id = $1
                 ) t ORDER BY at, place",
            )
            .bind(order.0)
            .fetch_all(&mut *conn)
            .await?;
            rows.iter()
                .map(|row| {
                    Ok(Happened {
                        at: timestamp(row.try_get("at_us")?),
                        what: row.try_get("what")?,
                        detail: row.try_get("detail")?,
                    })
                })
                .collect()
        })
        .await
    }
}
