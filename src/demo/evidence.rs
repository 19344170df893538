//! Collects what is known when all is over: from the database, as its owner, and from the provider's book. The engine isn't asked.

use std::collections::BTreeMap;

use anyhow::Context as _;
use hyper::{Method, StatusCode};
use serde::Deserialize;
use sqlx::postgres::PgRow;
use sqlx::{Connection as _, PgConnection, Row as _};

use super::audit::{Charge, Evidence, Order, Stock};
use super::rush::Purchase;
use super::wire::Connection;
use crate::domain::{OrderId, SaleId};

/// How far the payments are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) open: i64,
    pub(super) paid: i64,
    pub(super) failed: i64,
    /// Refunds and look-ups that are still to be done.
    pub(super) owed: i64,
}

impl Progress {
    /// Whether nothing will change any more.
    pub(super) fn is_over(self) -> bool {
        self.open == 0 && self.owed == 0
    }
}

/// Asks how far the payments of a sale are.
///
/// # Errors
/// When the database can't be asked.
pub(super) async fn progress(database: &mut PgConnection, sale: SaleId) -> anyhow::Result<Progress> {
    let (open, paid, failed, owed) = sqlx::query_as(
        "SELECT count(*) FILTER (WHERE status IN ('PENDING', 'PROCESSING', 'CAPTURING')),
                count(*) FILTER (WHERE status = 'PAID'),
                count(*) FILTER (WHERE status IN ('FAILED', 'REFUNDED')),
                (SELECT count(*) FROM provider_tasks)
         FROM orders WHERE sale_id = $1",
    )
    .bind(sale.0)
    .fetch_one(database)
    .await?;
    Ok(Progress {
        open,
        paid,
        failed,
        owed,
    })
}

/// What was sold, and what the buyers were told.
pub(super) struct Listing {
    pub(super) sale: SaleId,
    pub(super) units: i64,
    pub(super) unit_price_minor: i64,
}

/// Collects everything about the one sale of a private database and a private provider.
///
/// # Errors
/// When the database or the provider can't be asked.
pub(super) async fn collect(
    listing: &Listing,
    purchases: Vec<Purchase>,
    database: &mut PgConnection,
    provider_url: &str,
) -> anyhow::Result<Evidence> {
    // The book first: money that is taken after it was read is then missing in it, and not in the ledger.
    let charges = book(provider_url).await.context("the provider's book")?;

    // One instant of the database, so that what is added up belongs together.
    let mut instant = database
        .begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .await?;
    let (quantity, available, held, sold, entries) = sqlx::query_as(
        "SELECT quantity::bigint, available::bigint, held::bigint, sold::bigint,
                (SELECT coalesce(sum(delta), 0)::bigint FROM stock_entries e WHERE e.sale_id = i.sale_id)
         FROM inventory i WHERE sale_id = $1",
    )
    .bind(listing.sale.0)
    .fetch_one(&mut *instant)
    .await?;
    let orders = sqlx::query(
        "SELECT o.id, o.buyer, o.status::text, o.failure_reason, o.quantity::bigint, o.amount_minor,
                coalesce(l.charged, 0)::bigint AS charged, coalesce(l.refunded, 0)::bigint AS refunded
         FROM orders o
         LEFT JOIN (SELECT order_id, sum(amount_minor) FILTER (WHERE kind = 'CHARGE') AS charged,
                           sum(amount_minor) FILTER (WHERE kind = 'REFUND') AS refunded
                    FROM ledger_entries GROUP BY order_id) l ON l.order_id = o.id
         WHERE o.sale_id = $1 AND o.status <> 'REJECTED'",
    )
    .bind(listing.sale.0)
    .try_map(|row: PgRow| {
        Ok(Order {
            id: OrderId(row.try_get("id")?),
            buyer: row.try_get("buyer")?,
            status: row.try_get("status")?,
            failure_reason: row.try_get("failure_reason")?,
            quantity: row.try_get("quantity")?,
            amount_minor: row.try_get("amount_minor")?,
            charged_minor: row.try_get("charged")?,
            refunded_minor: row.try_get("refunded")?,
        })
    })
    .fetch_all(&mut *instant)
    .await?;
    let (ledger_charged_minor, ledger_refunded_minor) = sqlx::query_as(
        "SELECT coalesce(sum(amount_minor) FILTER (WHERE kind = 'CHARGE'), 0)::bigint,
                coalesce(sum(amount_minor) FILTER (WHERE kind = 'REFUND'), 0)::bigint
         FROM ledger_entries",
    )
    .fetch_one(&mut *instant)
    .await?;
    let owed = sqlx::query_scalar(
        "SELECT (SELECT count(*) FROM provider_tasks) + (SELECT count(*) FROM dead_letters)",
    )
    .fetch_one(&mut *instant)
    .await?;
    instant.rollback().await?;

    Ok(Evidence {
        units: listing.units,
        unit_price_minor: listing.unit_price_minor,
        purchases,
        stock: Stock {
            quantity,
            available,
            held,
            sold,
            entries,
        },
        orders,
        ledger_charged_minor,
        ledger_refunded_minor,
        owed,
        charges,
    })
}

async fn book(provider_url: &str) -> anyhow::Result<Vec<Charge>> {
    #[derive(Deserialize)]
    struct Book {
        charges: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        reference: String,
        status: String,
        amount_minor: i64,
        refunded_minor: i64,
    }
    let mut provider = Connection::open(provider_url).await?;
    let answer = provider
        .send(Method::GET, "/book", &[], None)
        .await?
        .expect(StatusCode::OK)?;
    let charges = answer.json::<Book>()?.charges;
    Ok(charges
        .into_iter()
        .map(|entry| Charge {
            order: entry
                .reference
                .split_once(':')
                .and_then(|(order, _attempt)| order.parse().ok()),
            reference: entry.reference,
            status: entry.status,
            amount_minor: entry.amount_minor,
            refunded_minor: entry.refunded_minor,
        })
        .collect())
}

/// Claims lost because somebody else was there first, by who lost them. The only thing that just the engine can tell.
///
/// # Errors
/// When its metrics can't be read.
pub(super) async fn claims_lost(engine_url: &str) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut engine = Connection::open(engine_url).await?;
    let metrics = engine
        .send(Method::GET, "/metrics", &[], None)
        .await?
        .expect(StatusCode::OK)?
        .text();
    let mut lost = BTreeMap::new();
    for line in metrics
        .lines()
        .filter(|line| line.starts_with("fluxbuy_claims_lost_total{"))
    {
        let (by, claims) = claims_of(line).with_context(|| format!("unreadable metric: {line}"))?;
        *lost.entry(by.to_owned()).or_default() += claims;
    }
    anyhow::ensure!(
        !lost.is_empty(),
        "the engine has no metric fluxbuy_claims_lost_total"
    );
    Ok(lost)
}

/// `name{by="payment",...} 3` is payment and 3.
fn claims_of(line: &str) -> Option<(&str, u64)> {
    let (series, value) = line.rsplit_once(' ')?;
    let (_, from_by) = series.split_once("by=\"")?;
    let (by, _) = from_by.split_once('"')?;
    Some((by, value.parse().ok()?))
}
