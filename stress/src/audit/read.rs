//! Reading the facts: rows over SQL, one key of Redis, the provider's book over HTTP.

use std::collections::HashSet;

use anyhow::Context as _;
use serde::Deserialize;
use sqlx::{Executor, Row};
use uuid::Uuid;

use super::facts::{Charge, Facts, Inventory, LedgerEntry, Order, Owed, Payment, Refund, Status, StockEntry};
use crate::world::World;

/// Reads everything about a sale. Rows are of one instant; the gate and the provider are asked right after, so the three fit
/// together once nothing moves.
///
/// # Errors
/// When somebody can't be asked, or says something unheard of.
pub async fn read(world: &World, sale: Uuid) -> anyhow::Result<Facts> {
    let mut facts = rows(world, sale).await.context("the rows could not be read")?;
    facts.gate_available = redis::cmd("HGET")
        .arg(format!("{{sale:{sale}}}:state"))
        .arg("available")
        .query_async(&mut world.redis())
        .await
        .context("the gate's state could not be read")?;
    book(world, &mut facts).await?;
    Ok(facts)
}

async fn rows(world: &World, sale: Uuid) -> anyhow::Result<Facts> {
    let mut tx = world.database().begin().await?;
    tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .await?;
    let mut facts = Facts::default();

    let row = sqlx::query(
        "SELECT quantity::bigint, available::bigint, held::bigint, sold::bigint FROM inventory WHERE sale_id = $1",
    )
    .bind(sale)
    .fetch_one(&mut *tx)
    .await?;
    facts.inventory = Inventory {
        quantity: row.try_get(0)?,
        available: row.try_get(1)?,
        held: row.try_get(2)?,
        sold: row.try_get(3)?,
    };

    let rows = sqlx::query(
        "SELECT id, buyer, quantity::bigint, amount_minor, status::text, failure_reason, attempt
         FROM orders WHERE sale_id = $1",
    )
    .bind(sale)
    .fetch_all(&mut *tx)
    .await?;
    for row in rows {
        let status: &str = row.try_get(4)?;
        facts.orders.push(Order {
            id: row.try_get(0)?,
            buyer: row.try_get(1)?,
            quantity: row.try_get(2)?,
            amount_minor: row.try_get(3)?,
            status: Status::from_sql(status).with_context(|| format!("a status {status:?}"))?,
            failure_reason: row.try_get(5)?,
            attempt: row.try_get(6)?,
        });
    }

    facts.entries =
        sqlx::query_as("SELECT order_id, kind, delta::bigint FROM stock_entries WHERE sale_id = $1")
            .bind(sale)
            .fetch_all(&mut *tx)
            .await?
            .into_iter()
            .map(|(order, kind, delta)| StockEntry { order, kind, delta })
            .collect();
    facts.allotments =
        sqlx::query_as("SELECT buyer, used::bigint FROM buyer_allotments WHERE sale_id = $1 AND used > 0")
            .bind(sale)
            .fetch_all(&mut *tx)
            .await?;
    facts.payments = sqlx::query_as("SELECT order_id, status FROM payments WHERE sale_id = $1")
        .bind(sale)
        .fetch_all(&mut *tx)
        .await?
        .into_iter()
        .map(|(order, status)| Payment { order, status })
        .collect();
    facts.ledger = sqlx::query_as(
        "SELECT order_id, kind, amount_minor, currency FROM ledger_entries WHERE sale_id = $1",
    )
    .bind(sale)
    .fetch_all(&mut *tx)
    .await?
    .into_iter()
    .map(|(order, kind, amount_minor, currency)| LedgerEntry {
        order,
        kind,
        amount_minor,
        currency,
    })
    .collect();
    let (gate_releases, provider_tasks, dead_letters) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM gate_releases WHERE sale_id = $1),
                (SELECT count(*) FROM provider_tasks WHERE sale_id = $1),
                (SELECT count(*) FROM dead_letters WHERE sale_id = $1)",
    )
    .bind(sale)
    .fetch_one(&mut *tx)
    .await?;
    facts.owed = Owed {
        gate_releases,
        provider_tasks,
        dead_letters,
    };
    tx.rollback().await?;
    Ok(facts)
}

#[derive(Deserialize)]
struct Book {
    charges: Vec<Charge>,
    refunds: Vec<Refund>,
}

/// Takes what belongs to this sale, and what belongs to nobody: a charge for an order that doesn't exist must not be overlooked.
async fn book(world: &World, facts: &mut Facts) -> anyhow::Result<()> {
    let mut book: Book = world.provider().get_json("/book").await?;
    for charge in &mut book.charges {
        charge.order = order_of(&charge.reference);
    }
    for refund in &mut book.refunds {
        refund.order = order_of(&refund.charge);
    }
    let ours: HashSet<Uuid> = facts.orders.iter().map(|order| order.id).collect();
    let others: Vec<Uuid> = book
        .charges
        .iter()
        .filter_map(|charge| charge.order)
        .chain(book.refunds.iter().filter_map(|refund| refund.order))
        .filter(|order| !ours.contains(order))
        .collect();
    let elsewhere: HashSet<Uuid> = sqlx::query_scalar("SELECT id FROM orders WHERE id = ANY($1)")
        .bind(&others)
        .fetch_all(world.database())
        .await?
        .into_iter()
        .collect();
    // A provider that serves others as well may have charges with names of another kind.
    let concerns_us = |order: Option<Uuid>| match order {
        Some(order) => !elsewhere.contains(&order),
        None => world.is_private(),
    };
    facts.charges = book
        .charges
        .into_iter()
        .filter(|charge| concerns_us(charge.order))
        .collect();
    facts.refunds = book
        .refunds
        .into_iter()
        .filter(|refund| concerns_us(refund.order))
        .collect();
    Ok(())
}

/// A charge is named `<order>:<attempt>`.
fn order_of(reference: &str) -> Option<Uuid> {
    let (order, attempt) = reference.split_once(':')?;
    attempt.parse::<u32>().ok()?;
    order.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_names_its_order() {
        let id = Uuid::from_u128(9);
        assert_eq!(order_of(&format!("{id}:1")), Some(id));
        for wrong in [id.to_string(), format!("{id}:x"), "x:1".to_owned(), String::new()] {
            assert_eq!(order_of(&wrong), None, "{wrong}");
        }
    }
}
