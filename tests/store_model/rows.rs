//! All that a life has left in the database, as lines of text; and the same lines as the model has them.

use std::collections::BTreeMap;
use std::fmt::Display;

use fluxbuy::domain::{FailureReason, OrderStatus, PaymentStatus as P};
use sqlx::{AssertSqlSafe, PgPool};
use uuid::Uuid;

use crate::model::Model;

/// The lines of each table, in order.
pub(crate) type Rows = BTreeMap<&'static str, Vec<String>>;

/// Each table's columns, and what tells whose row it is.
const TABLES: [(&str, &[&str], &str); 11] = [
    (
        "inventory",
        &[
            "sale_id",
            "quantity",
            "available",
            "held",
            "sold",
            "epoch",
            "cancelled",
        ],
        "sale_id",
    ),
    (
        "orders",
        &[
            "id",
            "sale_id",
            "buyer",
            "idempotency_digest",
            "quantity",
            "amount_minor",
            "status",
            "failure_reason",
            "attempt",
            "fence",
        ],
        "sale_id",
    ),
    // A buyer whose share went back keeps a row that says 0.
    (
        "buyer_allotments",
        &["sale_id", "buyer", "used"],
        "CASE WHEN used > 0 THEN sale_id END",
    ),
    (
        "stock_entries",
        &["sale_id", "kind", "order_id", "delta"],
        "sale_id",
    ),
    (
        "payments",
        &[
            "order_id",
            "attempt",
            "status",
            "amount_minor",
            "refunded_minor",
            "provider_id",
            "two_step",
            "reference",
        ],
        "sale_id",
    ),
    (
        "ledger_entries",
        &[
            "order_id",
            "attempt",
            "kind",
            "refund",
            "amount_minor",
            "currency",
        ],
        "sale_id",
    ),
    (
        "refunds",
        &[
            "order_id",
            "number",
            "attempt",
            "amount_minor",
            "asked_minor",
            "return_units",
            "status",
        ],
        "sale_id",
    ),
    ("gate_releases", &["sale_id", "order_id", "forget"], "sale_id"),
    (
        "provider_tasks",
        &["order_id", "attempt", "kind", "refund", "tries", "last_error"],
        "sale_id",
    ),
    (
        "dead_letters",
        &["order_id", "attempt", "kind", "refund", "tries", "last_error"],
        "sale_id",
    ),
    (
        "order_transitions",
        &[
            "order_id",
            "row_number() OVER (PARTITION BY order_id ORDER BY at)",
            "event",
            "applied",
            "status",
            "fence",
        ],
        "(SELECT o.sale_id FROM orders o WHERE o.id = order_id)",
    ),
];

/// What the database has of the model's sales.
pub(crate) async fn read(db: &PgPool, model: &Model) -> Rows {
    let sales: Vec<Uuid> = model.sales.keys().map(|sale| sale.0).collect();
    let mut rows = Rows::new();
    for (table, columns, sale) in TABLES {
        let cells: Vec<String> = columns
            .iter()
            .map(|cell| format!("coalesce(({cell})::text, '-')"))
            .collect();
        let cells = cells.join(", ");
        let sql = format!("SELECT concat_ws(' ', {cells}) FROM {table} WHERE {sale} = ANY($1)");
        let lines = sqlx::query_scalar(AssertSqlSafe(sql))
            .bind(&sales)
            .fetch_all(db)
            .await;
        rows.insert(
            table,
            sorted(lines.unwrap_or_else(|error| panic!("{table}: {error}"))),
        );
    }
    rows
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}

fn or_none(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// What it should have.
pub(crate) fn expected(model: &Model) -> Rows {
    let mut rows: Rows = TABLES.iter().map(|(table, ..)| (*table, Vec::new())).collect();
    let mut line = |table: &str, line: String| rows.get_mut(table).expect("a table that is read").push(line);
    for (id, sale) in &model.sales {
        let ((held, sold), available) = (model.taken(*id), model.available(*id));
        line(
            "inventory",
            format!(
                "{id} {} {available} {held} {sold} {} {}",
                sale.quantity, sale.epoch, sale.cancelled
            ),
        );
        line("stock_entries", format!("{id} LIST - {}", sale.quantity));
    }
    for ((sale, buyer), units) in model.shares() {
        line("buyer_allotments", format!("{sale} {buyer} {units}"));
    }
    for (id, order) in &model.orders {
        let (sale, units, attempt) = (order.sale, order.quantity, order.attempt());
        line(
            "orders",
            format!(
                "{id} {sale} {} {} {units} {} {} {} {attempt} {}",
                order.buyer,
                or_none(order.digest.map(|digest| digest.0)),
                order.amount,
                order.status.as_sql(),
                or_none(order.reason.map(FailureReason::as_str)),
                order.fence
            ),
        );
        if order.status != OrderStatus::Rejected {
            line("stock_entries", format!("{sale} RESERVE {id} -{units}"));
        }
        if order.released {
            line("stock_entries", format!("{sale} RELEASE {id} {units}"));
        }
        if let Some(payment) = &order.payment {
            line(
                "payments",
                format!(
                    "{id} 1 {} {} {} {} {} {id}:1",
                    payment.status.as_sql(),
                    order.amount,
                    order.promised(),
                    or_none(payment.name.as_ref()),
                    payment.two_step
                ),
            );
            if matches!(payment.status, P::Succeeded | P::RefundDue | P::Refunded) {
                line("ledger_entries", format!("{id} 1 CHARGE 0 {} EUR", order.amount));
            }
            if payment.status == P::Refunded {
                line("ledger_entries", format!("{id} 1 REFUND 0 {} EUR", order.amount));
            }
        }
        for (number, refund) in (1..).zip(&order.refunds) {
            let status = if refund.done { "DONE" } else { "DUE" };
            let asked = or_none(refund.ask.amount_minor);
            let units = refund.ask.return_units;
            line(
                "refunds",
                format!("{id} {number} 1 {} {asked} {units} {status}", refund.amount),
            );
            if refund.done {
                line(
                    "ledger_entries",
                    format!("{id} 1 REFUND {number} {} EUR", refund.amount),
                );
            }
        }
        for (number, (event, applied, status, fence)) in (1..).zip(&order.history) {
            line(
                "order_transitions",
                format!(
                    "{id} {number} {} {applied} {} {fence}",
                    event.as_str(),
                    status.as_sql()
                ),
            );
        }
    }
    for (sale, order) in &model.notes {
        line("gate_releases", format!("{sale} {order} false"));
    }
    for ((order, attempt, kind, refund), (tries, seen)) in &model.tasks {
        line(
            "provider_tasks",
            format!(
                "{order} {attempt} {kind} {refund} {tries} {}",
                or_none(seen.as_ref())
            ),
        );
    }
    for ((order, attempt, kind, refund), (tries, seen)) in &model.dead {
        line(
            "dead_letters",
            format!("{order} {attempt} {kind} {refund} {tries} {seen}"),
        );
    }
    rows.into_iter()
        .map(|(table, lines)| (table, sorted(lines)))
        .collect()
}
