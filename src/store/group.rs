//! Group commit: the batches of several sales in one transaction, made for the usual case that nothing is in their way.
//!
//! What could be in the way (a purchase that is known already, a sale that has moved to another epoch, too few units, a row
//! that is refused) is not looked for beforehand and not sorted out here: the constraints notice it, the
//! transaction is rolled back, and each batch takes the careful way alone, [`Store::reserve`]. Measured beside it, the plain
//! inserts cost Postgres a third less; see docs/decisions/0008-group-commit-across-sales.md.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use rustc_hash::FxBuildHasher;
use sqlx::{Connection, Postgres, Transaction};
use uuid::Uuid;

use super::{Error, NewOrder, Store, commit, timestamp};
use crate::crash::{self, Point};
use crate::domain::{SaleId, Stock};
use crate::metrics::Pool;

/// The orders of one sale that the gate has admitted together.
#[derive(Debug, Clone)]
pub struct SaleBatch {
    /// The sale.
    pub sale: SaleId,
    /// Units that one buyer may hold or own in it.
    pub per_buyer_limit: Option<i32>,
    /// The gate's epoch; when the sale has moved on since, nothing may be committed.
    pub epoch: i64,
    /// The orders, at least one.
    pub orders: Arc<Vec<NewOrder>>,
}

/// What was committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupPlaced {
    /// When all of these orders were made.
    pub created_at: Timestamp,
    /// The stock of each sale afterwards.
    pub stocks: HashMap<SaleId, Stock, FxBuildHasher>,
}

impl Store {
    /// Makes all orders of these batches durable in one commit, each of another sale; or none of them: then the answer is
    /// `None`, and each batch is to be taken through [`Store::reserve`].
    ///
    /// # Errors
    /// [`Error::OutcomeUnknown`]: run each batch through [`Store::reserve`], with the same ids, to find out. Otherwise nothing
    /// was committed.
    pub async fn place_group(&self, batches: &[SaleBatch]) -> Result<Option<GroupPlaced>, Error> {
        let placed = self.try_place_group(batches).await;
        match placed {
            Err(error) if error.is_bad_data() || matches!(error, Error::RunAgain(_)) => {
                tracing::debug!(%error, batches = batches.len(), "a group of batches is taken apart");
                Ok(None)
            }
            placed => placed,
        }
    }

    async fn try_place_group(&self, batches: &[SaleBatch]) -> Result<Option<GroupPlaced>, Error> {
        let Some(allotments) = allotments(batches) else {
            return Ok(None);
        };
        self.decided(Pool::Reserve, async |conn| {
            let mut tx = conn.begin().await?;
            let created_at = insert_orders(&mut tx, batches).await?;
            if !allotments.is_empty() && !grant(&mut tx, &allotments).await? {
                return Ok(None);
            }
            let Some(stocks) = take_units(&mut tx, batches).await? else {
                return Ok(None);
            };
            crash::at(Point::ReserveBeforeCommit);
            commit(tx).await?;
            crash::at(Point::ReserveCommitted);
            Ok(Some(GroupPlaced { created_at, stocks }))
        })
        .await
    }
}

/// Units by sale and buyer, in the order in which their rows are locked. `None` when a buyer asks for more than the limit.
fn allotments(batches: &[SaleBatch]) -> Option<BTreeMap<(SaleId, &str), i32>> {
    let mut units = BTreeMap::new();
    for batch in batches {
        let Some(limit) = batch.per_buyer_limit else {
            continue;
        };
        for order in batch.orders.iter() {
            let asked: &mut i32 = units.entry((batch.sale, order.buyer.as_str())).or_default();
            *asked = asked
                .checked_add(order.quantity)
                .filter(|units| *units <= limit)?;
        }
    }
    Some(units)
}

async fn insert_orders(
    tx: &mut Transaction<'_, Postgres>,
    batches: &[SaleBatch],
) -> Result<Timestamp, Error> {
    let mut orders: Vec<(SaleId, &NewOrder)> = batches
        .iter()
        .flat_map(|batch| batch.orders.iter().map(|order| (batch.sale, order)))
        .collect();
    // In the order of the unique key, so that two engines with the same purchases wait for each other in one order; it also brings
    // neighbours in the index together.
    orders.sort_unstable_by_key(|(sale, order)| (*sale, order.digest));
    let created_at_us: i64 = sqlx::query_scalar(
        "WITH placed AS (
            INSERT INTO orders (id, sale_id, idempotency_digest, amount_minor, quantity, buyer, payment_method, request_id)
            SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[], $5::int[], $6::text[], $7::text[], $8::text[])
        ), entries AS (
            INSERT INTO stock_entries (sale_id, order_id, kind, delta)
            SELECT o.sale_id, o.id, 'RESERVE', -o.quantity
            FROM unnest($1::uuid[], $2::uuid[], $5::int[]) AS o (id, sale_id, quantity)
        )
        SELECT micros(now())",
    )
    .bind(orders.iter().map(|(_, order)| order.order.0).collect::<Vec<_>>())
    .bind(orders.iter().map(|(sale, _)| sale.0).collect::<Vec<_>>())
    .bind(orders.iter().map(|(_, order)| order.digest.0).collect::<Vec<_>>())
    .bind(
        orders
            .iter()
            .map(|(_, order)| order.amount_minor)
            .collect::<Vec<_>>(),
    )
    .bind(orders.iter().map(|(_, order)| order.quantity).collect::<Vec<_>>())
    .bind(
        orders
            .iter()
            .map(|(_, order)| order.buyer.as_str())
            .collect::<Vec<_>>(),
    )
    .bind(
        orders
            .iter()
            .map(|(_, order)| order.payment_method())
            .collect::<Vec<_>>(),
    )
    .bind(orders.iter().map(|(_, order)| order.request_id()).collect::<Vec<_>>())
    .fetch_one(&mut **tx)
    .await?;
    Ok(timestamp(created_at_us))
}

/// Raises the buyers' allotments; false when one of them would go over its sale's limit.
async fn grant(
    tx: &mut Transaction<'_, Postgres>,
    allotments: &BTreeMap<(SaleId, &str), i32>,
) -> Result<bool, Error> {
    let granted = sqlx::query(
        "INSERT INTO buyer_allotments (sale_id, buyer, used)
         SELECT * FROM unnest($1::uuid[], $2::text[], $3::int[])
         ON CONFLICT (sale_id, buyer) DO UPDATE SET used = buyer_allotments.used + excluded.used
            WHERE buyer_allotments.used + excluded.used
                <= (SELECT s.per_buyer_limit FROM sales s WHERE s.id = buyer_allotments.sale_id)",
    )
    .bind(allotments.keys().map(|(sale, _)| sale.0).collect::<Vec<_>>())
    .bind(allotments.keys().map(|(_, buyer)| *buyer).collect::<Vec<_>>())
    .bind(allotments.values().copied().collect::<Vec<_>>())
    .execute(&mut **tx)
    .await?
    .rows_affected();
    Ok(granted == allotments.len() as u64)
}

/// The hot rows, last and shortest, in the order of their ids. CHECK decides whether there is enough; the epoch whether the gate's word
/// still counts. `None` when it doesn't for one of them.
async fn take_units(
    tx: &mut Transaction<'_, Postgres>,
    batches: &[SaleBatch],
) -> Result<Option<HashMap<SaleId, Stock, FxBuildHasher>>, Error> {
    let units = |batch: &SaleBatch| {
        let sum: i64 = batch.orders.iter().map(|order| i64::from(order.quantity)).sum();
        i32::try_from(sum).ok()
    };
    let Some(units) = batches.iter().map(units).collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let rows: Vec<(Uuid, i32, i32, i32, i32)> = sqlx::query_as(
        "WITH hot AS MATERIALIZED (
            SELECT i.sale_id, u.units, u.epoch
            FROM unnest($1::uuid[], $2::int[], $3::bigint[]) AS u (sale_id, units, epoch)
            JOIN inventory i ON i.sale_id = u.sale_id
            ORDER BY i.sale_id FOR UPDATE OF i
        )
        UPDATE inventory i SET available = i.available - h.units, held = i.held + h.units
        FROM hot h WHERE i.sale_id = h.sale_id AND i.epoch = h.epoch
        RETURNING i.sale_id, i.quantity, i.available, i.held, i.sold",
    )
    .bind(batches.iter().map(|batch| batch.sale.0).collect::<Vec<_>>())
    .bind(units)
    .bind(batches.iter().map(|batch| batch.epoch).collect::<Vec<_>>())
    .fetch_all(&mut **tx)
    .await?;
    if rows.len() != batches.len() {
        return Ok(None);
    }
    let stocks = rows.into_iter().map(|(sale, quantity, available, held, sold)| {
        let stock = Stock {
            quantity: quantity.into(),
            available: available.into(),
            held: held.into(),
            sold: sold.into(),
        };
        (SaleId(sale), stock)
    });
    Ok(Some(stocks.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Buyer, IdempotencyDigest, OrderId};

    fn batch(per_buyer_limit: Option<i32>, orders: &[(&str, i32)]) -> SaleBatch {
        let order = |(buyer, quantity): &(&str, i32)| {
            let buyer = Buyer::parse(buyer).unwrap();
            NewOrder {
                order: OrderId::fresh(),
                digest: IdempotencyDigest::of(&buyer, &OrderId::fresh().to_string()),
                buyer,
                quantity: *quantity,
                amount_minor: 1,
                payment_method: None,
                request_id: None,
            }
        };
        SaleBatch {
            sale: SaleId::fresh(),
            per_buyer_limit,
            epoch: 1,
            orders: Arc::new(orders.iter().map(order).collect()),
        }
    }

    #[test]
    fn allotments_are_added_up_by_sale_and_buyer_where_there_is_a_limit() {
        let free = batch(None, &[("ann", 100)]);
        let (first, second) = (
            batch(Some(3), &[("bob", 1), ("ann", 1), ("bob", 2)]),
            batch(Some(9), &[("ann", 9)]),
        );
        let batches = [free, first.clone(), second.clone()];
        let units: Vec<_> = allotments(&batches).unwrap().into_iter().collect();
        assert_eq!(
            units,
            [
                ((first.sale, "ann"), 1),
                ((first.sale, "bob"), 3),
                ((second.sale, "ann"), 9)
            ]
        );
    }

    #[test]
    fn more_than_the_limit_is_no_matter_for_a_group() {
        assert!(allotments(&[batch(Some(3), &[("bob", 2), ("bob", 2)])]).is_none());
        assert!(allotments(&[batch(Some(i32::MAX), &[("bob", i32::MAX), ("bob", 1)])]).is_none());
    }
}
