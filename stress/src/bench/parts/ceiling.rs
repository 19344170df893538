//! What Postgres makes durable when it has the machine to itself: the engine's own transaction, again and again, by one client on
//! one connection, without HTTP, gate or load beside it.

use std::time::{Duration, Instant};

use anyhow::ensure;
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use crate::bench::context::{BUYERS, Bench, Books, PLENTY};
use crate::bench::stand::{self, Stand};
use crate::load::{Ask, Outcome, Record};
use crate::world::World;

/// Orders per commit: as many as the engine takes at most.
const BATCH: u32 = 256;

/// The engine's insert.
const PLACE: &str = "WITH ins AS (
        INSERT INTO orders (id, sale_id, idempotency_digest, amount_minor, quantity, buyer)
        SELECT o.id, $1, o.digest, o.amount_minor, o.quantity, o.buyer
        FROM unnest($2::uuid[], $3::uuid[], $4::bigint[], $5::int[], $6::text[])
            AS o (id, digest, amount_minor, quantity, buyer)
        ON CONFLICT ON CONSTRAINT orders_idempotency DO UPDATE SET touch = orders.touch + 1
        RETURNING id, idempotency_digest, quantity, amount_minor, created_at, (xmax = 0) AS fresh
    ), entries AS (
        INSERT INTO stock_entries (sale_id, order_id, kind, delta)
        SELECT $1, id, 'RESERVE', -quantity FROM ins WHERE fresh
    )
    SELECT id, idempotency_digest, quantity, amount_minor, micros(created_at) AS created_at_us, fresh FROM ins";
/// The engine's update of the hot row.
const TAKE: &str = "UPDATE inventory SET available = available - $2, held = held + $2, epoch = epoch + $4
    WHERE sale_id = $1 AND ($3::bigint IS NULL OR epoch = $3)
    RETURNING quantity, available, held, sold";

/// Orders per second.
pub(super) async fn measure(bench: &mut Bench<'_>, world: &World, run: &str) -> anyhow::Result<f64> {
    bench.next(world, run).await?;
    let stand = stand::list(world, run, PLENTY).await?;
    let epoch: i64 = sqlx::query_scalar("SELECT epoch FROM inventory WHERE sale_id = $1")
        .bind(stand.sale)
        .fetch_one(world.database())
        .await?;
    let mut connection = PgConnection::connect(&world.target().postgres_url).await?;
    let span = bench.size.span;
    let (begin, mut records) = (Instant::now(), Vec::new());
    while begin.elapsed() < span.whole() {
        let started = begin.elapsed();
        let orders = batch(records.len() as u32);
        commit(&mut connection, &stand, epoch, &orders).await?;
        let ended = begin.elapsed();
        records.extend(orders.into_iter().map(|order| order.record(started, ended)));
    }
    connection.close().await?;
    bench
        .audit(
            world,
            run,
            Books::Rival(crate::bench::rival::Kind::Baseline),
            &stand,
            &records,
        )
        .await?;
    let measured = records.iter().filter(|record| span.has(record.ended)).count();
    Ok(measured as f64 / span.measured.as_secs_f64())
}

struct Planned {
    id: Uuid,
    digest: Uuid,
    ask: Ask,
}

impl Planned {
    fn record(self, started: Duration, ended: Duration) -> Record {
        Record {
            ask: self.ask,
            started,
            ended,
            outcome: Outcome::Accepted {
                order: self.id,
                replayed: false,
            },
            body: None,
        }
    }
}

/// In the order of the digests, as the engine sorts them.
fn batch(first_key: u32) -> Vec<Planned> {
    let mut orders: Vec<Planned> = (first_key..first_key + BATCH)
        .map(|key| Planned {
            id: Uuid::now_v7(),
            digest: Uuid::from_u128(rand::random()),
            ask: Ask {
                buyer: key % BUYERS,
                key,
                quantity: 1,
            },
        })
        .collect();
    orders.sort_unstable_by_key(|order| order.digest);
    orders
}

async fn commit(
    connection: &mut PgConnection,
    stand: &Stand,
    epoch: i64,
    orders: &[Planned],
) -> anyhow::Result<()> {
    let each = |value: i64| vec![value; orders.len()];
    let mut tx = connection.begin().await?;
    let rows = sqlx::query(PLACE)
        .bind(stand.sale)
        .bind(orders.iter().map(|order| order.id).collect::<Vec<_>>())
        .bind(orders.iter().map(|order| order.digest).collect::<Vec<_>>())
        .bind(each(stand.terms.unit_price_minor))
        .bind(vec![1_i32; orders.len()])
        .bind(
            orders
                .iter()
                .map(|order| order.ask.buyer_name())
                .collect::<Vec<_>>(),
        )
        .fetch_all(&mut *tx)
        .await?;
    ensure!(
        rows.len() == orders.len(),
        "{} of {} orders",
        rows.len(),
        orders.len()
    );
    sqlx::query(TAKE)
        .bind(stand.sale)
        .bind(orders.len() as i32)
        .bind(Some(epoch))
        .bind(0_i64)
        .fetch_one(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(())
}
