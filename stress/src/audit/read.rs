//! Reading the facts: rows over SQL, one key of Redis, the provider's book over HTTP.

use std::collections::{HashMap, HashSet};

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use sqlx::{Executor, Row};
use uuid::Uuid;

use super::facts::{
    Charge, Event, Facts, Inventory, LedgerEntry, Order, Owed, Payment, Refund, Sent, Status, StockEntry,
};
use crate::world::World;

/// Reads everything about a sale. Rows are of one instant; the gate and the provider are asked right after, so the three fit
/// together once nothing moves.
///
/// # Errors
/// When somebody can't be asked, or says something unheard of.
pub async fn read(world: &World, sale: Uuid) -> anyhow::Result<Facts> {
    let mut facts = read_many(world, &[sale]).await?;
    facts.pop().context("a sale has no facts")
}

/// The same of several sales at once, in their order.
///
/// # Errors
/// When somebody can't be asked, or says something unheard of.
pub async fn read_many(world: &World, sales: &[Uuid]) -> anyhow::Result<Vec<Facts>> {
    let mut facts = rows(world, sales).await.context("the rows could not be read")?;
    let available = gate_available(world, sales).await?;
    for (facts, available) in facts.iter_mut().zip(available) {
        facts.gate_available = available;
    }
    book(world, &mut facts).await?;
    Ok(facts)
}

/// What the gate would still sell of each; `None` where it knows nothing of a sale.
///
/// # Errors
/// When it can't be asked.
pub async fn gate_available(world: &World, sales: &[Uuid]) -> anyhow::Result<Vec<Option<i64>>> {
    let mut gate = redis::pipe();
    for sale in sales {
        gate.cmd("HGET").arg(World::gate_key(*sale)).arg("available");
    }
    gate.query_async(&mut world.redis().await?)
        .await
        .context("the gate's state could not be read")
}

/// Facts of several sales, found by the sale.
struct BySale {
    place: HashMap<Uuid, usize>,
    facts: Vec<Facts>,
}

impl BySale {
    fn of(&mut self, sale: Uuid) -> anyhow::Result<&mut Facts> {
        let place = self.place.get(&sale).copied();
        let facts = place.and_then(|place| self.facts.get_mut(place));
        facts.with_context(|| format!("sale {sale} was not asked for"))
    }
}

async fn rows(world: &World, sales: &[Uuid]) -> anyhow::Result<Vec<Facts>> {
    let mut tx = world.database().begin().await?;
    tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .await?;
    let mut by_sale = BySale {
        place: sales
            .iter()
            .enumerate()
            .map(|(place, sale)| (*sale, place))
            .collect(),
        facts: vec![Facts::default(); sales.len()],
    };

    let rows = sqlx::query(
        "SELECT sale_id, quantity::bigint, available::bigint, held::bigint, sold::bigint
         FROM inventory WHERE sale_id = ANY($1)",
    )
    .bind(sales)
    .fetch_all(&mut *tx)
    .await?;
    ensure!(
        rows.len() == sales.len(),
        "{} sales have {} inventory rows",
        sales.len(),
        rows.len()
    );
    for row in rows {
        by_sale.of(row.try_get(0)?)?.inventory = Inventory {
            quantity: row.try_get(1)?,
            available: row.try_get(2)?,
            held: row.try_get(3)?,
            sold: row.try_get(4)?,
        };
    }

    let rows = sqlx::query(
        "SELECT sale_id, id, buyer, quantity::bigint, amount_minor, status::text, failure_reason, attempt
         FROM orders WHERE sale_id = ANY($1)",
    )
    .bind(sales)
    .fetch_all(&mut *tx)
    .await?;
    for row in rows {
        let status: &str = row.try_get(5)?;
        by_sale.of(row.try_get(0)?)?.orders.push(Order {
            id: row.try_get(1)?,
            buyer: row.try_get(2)?,
            quantity: row.try_get(3)?,
            amount_minor: row.try_get(4)?,
            status: Status::from_sql(status).with_context(|| format!("a status {status:?}"))?,
            failure_reason: row.try_get(6)?,
            attempt: row.try_get(7)?,
        });
    }

    let rows: Vec<(Uuid, Uuid, i64)> = sqlx::query_as(
        "SELECT o.sale_id, t.order_id, min((extract(epoch FROM t.at) * 1000000)::bigint)
         FROM order_transitions t JOIN orders o ON o.id = t.order_id
         WHERE o.sale_id = ANY($1) AND t.applied AND (t.status = 'FAILED' OR t.event = 'refunded_and_returned')
         GROUP BY 1, 2",
    )
    .bind(sales)
    .fetch_all(&mut *tx)
    .await?;
    for (sale, order, at_us) in rows {
        by_sale.of(sale)?.released_us.insert(order, at_us);
    }
    let rows: Vec<(Uuid, Option<Uuid>, String, i64)> = sqlx::query_as(
        "SELECT sale_id, order_id, kind, delta::bigint FROM stock_entries WHERE sale_id = ANY($1)",
    )
    .bind(sales)
    .fetch_all(&mut *tx)
    .await?;
    for (sale, order, kind, delta) in rows {
        by_sale.of(sale)?.entries.push(StockEntry { order, kind, delta });
    }
    let rows: Vec<(Uuid, String, i64)> = sqlx::query_as(
        "SELECT sale_id, buyer, used::bigint FROM buyer_allotments WHERE sale_id = ANY($1) AND used > 0",
    )
    .bind(sales)
    .fetch_all(&mut *tx)
    .await?;
    for (sale, buyer, used) in rows {
        by_sale.of(sale)?.allotments.push((buyer, used));
    }
    let rows: Vec<(Uuid, Uuid, String, i64)> = sqlx::query_as(
        "SELECT sale_id, order_id, status, refunded_minor FROM payments WHERE sale_id = ANY($1)",
    )
    .bind(sales)
    .fetch_all(&mut *tx)
    .await?;
    for (sale, order, status, promised_minor) in rows {
        by_sale.of(sale)?.payments.push(Payment {
            order,
            status,
            promised_minor,
        });
    }
    let rows: Vec<(Uuid, Uuid, String, i64, String)> = sqlx::query_as(
        "SELECT sale_id, order_id, kind, amount_minor, currency FROM ledger_entries WHERE sale_id = ANY($1)",
    )
    .bind(sales)
    .fetch_all(&mut *tx)
    .await?;
    for (sale, order, kind, amount_minor, currency) in rows {
        by_sale.of(sale)?.ledger.push(LedgerEntry {
            order,
            kind,
            amount_minor,
            currency,
        });
    }
    let rows: Vec<(Uuid, String, i64, String)> = sqlx::query_as(
        "SELECT o.sale_id, e.event_id, e.deliveries::bigint, e.state
         FROM provider_events e JOIN orders o ON o.id = e.order_id WHERE o.sale_id = ANY($1)",
    )
    .bind(sales)
    .fetch_all(&mut *tx)
    .await?;
    for (sale, id, deliveries, state) in rows {
        by_sale.of(sale)?.events.push(Event {
            id,
            deliveries,
            state,
        });
    }
    let rows: Vec<(Uuid, i64, i64, i64)> = sqlx::query_as(
        "WITH owed AS (
            SELECT sale_id, 1 AS release, 0 AS task, 0 AS letter FROM gate_releases
            UNION ALL SELECT sale_id, 0, 1, 0 FROM provider_tasks
            UNION ALL SELECT sale_id, 0, 0, 1 FROM dead_letters
         )
         SELECT sale_id, sum(release), sum(task), sum(letter) FROM owed WHERE sale_id = ANY($1) GROUP BY sale_id",
    )
    .bind(sales)
    .fetch_all(&mut *tx)
    .await?;
    for (sale, gate_releases, provider_tasks, dead_letters) in rows {
        by_sale.of(sale)?.owed = Owed {
            gate_releases,
            provider_tasks,
            dead_letters,
        };
    }
    tx.rollback().await?;
    Ok(by_sale.facts)
}

#[derive(Deserialize)]
struct Book {
    charges: Vec<Charge>,
    refunds: Vec<Refund>,
}

#[derive(Deserialize)]
struct Log {
    events: Vec<Sent>,
}

/// Takes what belongs to these sales, and what belongs to nobody: a charge for an order that doesn't exist must not be overlooked,
/// and is put to the first of them.
async fn book(world: &World, facts: &mut [Facts]) -> anyhow::Result<()> {
    let mut book: Book = world.provider().get_json("/book").await?;
    for charge in &mut book.charges {
        charge.order = order_of(&charge.reference);
    }
    for refund in &mut book.refunds {
        refund.order = order_of(&refund.charge);
    }
    let ours: HashMap<Uuid, usize> = facts
        .iter()
        .enumerate()
        .flat_map(|(place, facts)| facts.orders.iter().map(move |order| (order.id, place)))
        .collect();
    let others: Vec<Uuid> = book
        .charges
        .iter()
        .filter_map(|charge| charge.order)
        .chain(book.refunds.iter().filter_map(|refund| refund.order))
        .filter(|order| !ours.contains_key(order))
        .collect();
    let elsewhere: HashSet<Uuid> = sqlx::query_scalar("SELECT id FROM orders WHERE id = ANY($1)")
        .bind(&others)
        .fetch_all(world.database())
        .await?
        .into_iter()
        .collect();
    // A provider that serves others as well may have charges with names of another kind.
    let place = |order: Option<Uuid>| match order {
        Some(order) if elsewhere.contains(&order) => None,
        Some(order) => Some(ours.get(&order).copied().unwrap_or_default()),
        None => world.is_private().then_some(0),
    };
    for charge in book.charges {
        if let Some(facts) = place(charge.order).and_then(|place| facts.get_mut(place)) {
            facts.charges.push(charge);
        }
    }
    let log: Log = world.provider().get_json("/webhooks").await?;
    for sent in log.events {
        let order = order_of(&sent.reference);
        if let Some(facts) = order
            .and_then(|order| ours.get(&order))
            .and_then(|place| facts.get_mut(*place))
        {
            facts.sent.push(sent);
        }
    }
    for refund in book.refunds {
        if let Some(facts) = place(refund.order).and_then(|place| facts.get_mut(place)) {
            facts.refunds.push(refund);
        }
    }
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
