//! The rest of an order's life, one order at a time: claim it, charge it, settle it. Each step is one statement and one commit, with
//! the conditions and the rows of the engine's own.

use std::sync::Arc;

use anyhow::{Context as _, anyhow, ensure};
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use serde_json::json;
use sqlx::PgPool;
use tokio::sync::{Mutex, mpsc};
use uuid::Uuid;

use crate::load::{Link, Lost, Peer};

/// An order that has been answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Accepted {
    pub(super) order: Uuid,
    pub(super) sale: Uuid,
}

/// Starts workers, and tells where orders are handed to them. They may wait in any number.
pub(super) fn start(workers: u32, database: &PgPool, provider: &Peer) -> mpsc::UnboundedSender<Accepted> {
    let (hand_over, waiting) = mpsc::unbounded_channel();
    let waiting = Arc::new(Mutex::new(waiting));
    for _ in 0..workers {
        let worker = Worker {
            database: database.clone(),
            provider: provider.clone(),
            link: None,
        };
        tokio::spawn(worker.work(Arc::clone(&waiting)));
    }
    hand_over
}

struct Worker {
    database: PgPool,
    provider: Peer,
    // None until it is needed, and once it is closed.
    link: Option<Link>,
}

impl Worker {
    async fn work(mut self, waiting: Arc<Mutex<mpsc::UnboundedReceiver<Accepted>>>) {
        loop {
            let next = waiting.lock().await.recv().await;
            let Some(accepted) = next else { return };
            if let Err(error) = self.settle(accepted).await {
                // It stays open, which the audit will find.
                eprintln!("rival: order {}: {error:#}", accepted.order);
            }
        }
    }

    async fn settle(&mut self, Accepted { order, sale }: Accepted) -> anyhow::Result<()> {
        let (reference, amount_minor, attempt, fence): (String, i64, i32, i32) = sqlx::query_as(
            "WITH claimed AS (
                UPDATE orders SET status = 'PROCESSING', attempt = attempt + 1, fence = fence + 1,
                    claimed_at = clock_timestamp(), updated_at = clock_timestamp()
                WHERE id = $1 AND sale_id = $2 AND status = 'PENDING'
                RETURNING id, sale_id, attempt, fence, amount_minor
            ), begun AS (
                INSERT INTO payments (order_id, sale_id, attempt, reference, amount_minor, currency, status)
                SELECT id, sale_id, attempt, id || ':' || attempt, amount_minor, 'EUR', 'INITIATED' FROM claimed
                RETURNING reference
            )
            SELECT reference, amount_minor, attempt, fence FROM claimed, begun",
        )
        .bind(order)
        .bind(sale)
        .fetch_one(&self.database)
        .await
        .context("it can't be claimed")?;
        self.charge(&reference, amount_minor).await?;
        let settled = sqlx::query(
            "WITH paid AS (
                UPDATE orders SET status = 'PAID', updated_at = clock_timestamp()
                WHERE id = $1 AND sale_id = $2 AND status = 'PROCESSING' AND fence = $3
                RETURNING id, sale_id, quantity, amount_minor
            ), payment AS (
                UPDATE payments SET status = 'SUCCEEDED', updated_at = clock_timestamp()
                WHERE order_id = $1 AND attempt = $4 AND sale_id = $2 AND status IN ('INITIATED', 'IN_DOUBT')
            ), ledger AS (
                INSERT INTO ledger_entries (order_id, sale_id, attempt, kind, amount_minor, currency)
                SELECT id, sale_id, $4, 'CHARGE', amount_minor, 'EUR' FROM paid
            )
            UPDATE inventory i SET held = held - p.quantity, sold = sold + p.quantity
            FROM paid p WHERE i.sale_id = p.sale_id",
        )
        .bind(order)
        .bind(sale)
        .bind(fence)
        .bind(attempt)
        .execute(&self.database)
        .await
        .context("it can't be settled")?;
        ensure!(settled.rows_affected() == 1, "somebody else has moved it");
        Ok(())
    }

    async fn charge(&mut self, reference: &str, amount_minor: i64) -> anyhow::Result<()> {
        let body = json!({ "reference": reference, "amount_minor": amount_minor, "currency": "EUR" });
        let request = Request::builder()
            .method(Method::POST)
            .uri("/charges")
            .header(HOST, self.provider.address())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.to_string())))?;
        let mut link = match self.link.take() {
            Some(link) => link,
            None => Link::open(&self.provider)
                .await
                .context("the provider can't be reached")?,
        };
        let answer = link.call(request).await.map_err(|lost| match lost {
            Lost::NotSent => anyhow!("the provider has hung up"),
            Lost::MaybeSent(why) => anyhow!("no answer of the provider: {why}"),
        })?;
        ensure!(answer.status == 200, "the provider says {}", answer.status);
        self.link = Some(link);
        Ok(())
    }
}
