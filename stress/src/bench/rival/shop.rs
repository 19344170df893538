//! The usual way to build it: each request asks Redis once (EVALSHA) and makes one transaction of its own, with a pool of
//! connections. On the same schema and with the same promise: a 201 is durable.
//!
//! It is no straw man. The transaction is a single statement, so that there is one round trip to Postgres and the hot row is
//! locked as shortly as can be. What is left is what cannot be avoided that way: each order waits for a flush of its own
//! while it holds the stock's row. The lean kind leaves stock entry and stock row out, and so has no hot row at all.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue, LOCATION};
use hyper::{Request, Response, StatusCode};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::serve::{self, Answers};
use super::{Kind, settle};
use crate::load::Peer;

const LARGEST_BODY: usize = 16_384;

/// Makes the order, its stock entry, and takes its units from the stock.
const PLACE: &str = "WITH placed AS (
        INSERT INTO orders (id, sale_id, idempotency_digest, amount_minor, quantity, buyer)
        VALUES ($1, $2, $3, $4, $5, $6) RETURNING created_at
    ), entry AS (
        INSERT INTO stock_entries (sale_id, order_id, kind, delta) VALUES ($2, $1, 'RESERVE', -$5)
    ), stock AS (
        UPDATE inventory SET available = available - $5, held = held + $5 WHERE sale_id = $2 RETURNING 1
    )
    SELECT micros(placed.created_at) FROM placed, stock";
/// Makes the order alone.
const PLACE_LEAN: &str = "INSERT INTO orders (id, sale_id, idempotency_digest, amount_minor, quantity, buyer)
    VALUES ($1, $2, $3, $4, $5, $6) RETURNING micros(created_at)";

/// Command line of a per-request server.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What it does.
    #[arg(long, value_enum)]
    kind: Kind,
    /// Connections to Postgres, and workers that settle.
    #[arg(long)]
    pool: u32,
    /// The database, as somebody who may write.
    #[arg(long)]
    postgres_url: String,
    /// Redis.
    #[arg(long)]
    redis_url: String,
    /// The payment provider.
    #[arg(long)]
    provider_url: String,
}

/// Checks key, opening and stock, and takes the units. KEYS: state, keys, held. ARGV: key, order, units.
/// Returns the units left, -1 when there are too few, -2 for a key that is known, -3 before the opening.
const RESERVE: &str = "
    if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then return -2 end
    local state = redis.call('HMGET', KEYS[1], 'available', 'opens_at_us')
    local time = redis.call('TIME')
    if time[1] * 1000000 + time[2] < tonumber(state[2]) then return -3 end
    local units = tonumber(ARGV[3])
    if tonumber(state[1]) < units then return -1 end
    redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
    redis.call('HSET', KEYS[3], ARGV[2], ARGV[3] .. ':' .. time[1])
    return redis.call('HINCRBY', KEYS[1], 'available', -units)";

struct Shop {
    kind: Kind,
    database: PgPool,
    redis: redis::aio::MultiplexedConnection,
    script: redis::Script,
    price: i64,
    /// Where accepted orders go to be settled.
    settle: Option<mpsc::UnboundedSender<settle::Accepted>>,
}

/// Connects, listens, and tells where.
pub(super) async fn start(args: Args) -> anyhow::Result<(String, JoinHandle<()>)> {
    let database = PgPoolOptions::new()
        .min_connections(args.pool)
        .max_connections(args.pool)
        .acquire_timeout(Duration::from_secs(30))
        .test_before_acquire(false)
        .connect(&args.postgres_url)
        .await?;
    let redis = redis::Client::open(args.redis_url.as_str())?
        .get_multiplexed_async_connection()
        .await?;
    let provider = Peer::from_url(&args.provider_url)?;
    let settle = (args.kind == Kind::Life).then(|| settle::start(args.pool, &database, &provider));
    serve::start(Shop {
        kind: args.kind,
        database,
        redis,
        script: redis::Script::new(RESERVE),
        price: crate::scenarios::UNIT_PRICE_MINOR,
        settle,
    })
}

pub(super) fn keys(sale: Uuid) -> [String; 3] {
    ["state", "keys", "held"].map(|what| format!("{{baseline:{sale}}}:{what}"))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    quantity: i32,
}

#[derive(Serialize)]
struct Accepted<'a> {
    id: Uuid,
    sale_id: Uuid,
    buyer: &'a str,
    quantity: i32,
    amount_minor: i64,
    currency: &'static str,
    status: &'static str,
    created_at: Timestamp,
}

impl Answers for Shop {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        match self.sell(request).await {
            Ok(Some(response)) => response,
            Ok(None) => problem(StatusCode::CONFLICT, "sold_out", ""),
            // Whatever it is, nobody knows what was done.
            Err(error) => problem(
                StatusCode::SERVICE_UNAVAILABLE,
                "outcome_unknown",
                &error.to_string(),
            ),
        }
    }
}

impl Shop {
    async fn sell(&self, request: Request<Incoming>) -> anyhow::Result<Option<Response<Full<Bytes>>>> {
        let (head, body) = request.into_parts();
        let sale: Uuid = head
            .uri
            .path()
            .strip_prefix("/v1/sales/")
            .and_then(|rest| rest.strip_suffix("/orders"))
            .context("no such path")?
            .parse()?;
        let header =
            |name: &str| anyhow::Ok(head.headers.get(name).context("a header is missing")?.to_str()?);
        let (buyer, key) = (header("x-buyer-id")?, header("idempotency-key")?);
        let body = Limited::new(body, LARGEST_BODY)
            .collect()
            .await
            .map_err(|error| anyhow!(error))?
            .to_bytes();
        let Wanted { quantity } = serde_json::from_slice(&body)?;

        let order = Uuid::now_v7();
        let [state, known, held] = keys(sale);
        let left: i64 = self
            .script
            .key(state)
            .key(known)
            .key(held)
            .arg(format!("{buyer}\n{key}"))
            .arg(order.to_string())
            .arg(quantity)
            .invoke_async(&mut self.redis.clone())
            .await?;
        if left < 0 {
            return Ok(None);
        }
        let amount_minor = i64::from(quantity) * self.price;
        let place = if self.kind.keeps_stock() {
            PLACE
        } else {
            PLACE_LEAN
        };
        let created_at_us: i64 = sqlx::query_scalar(place)
            .bind(order)
            .bind(sale)
            .bind(digest(buyer, key))
            .bind(amount_minor)
            .bind(quantity)
            .bind(buyer)
            .fetch_one(&self.database)
            .await?;
        if let Some(settle) = &self.settle {
            settle.send(settle::Accepted { order, sale }).ok();
        }
        let accepted = Accepted {
            id: order,
            sale_id: sale,
            buyer,
            quantity,
            amount_minor,
            currency: "EUR",
            status: "pending",
            created_at: Timestamp::from_microsecond(created_at_us)?,
        };
        let mut response = json(StatusCode::CREATED, serde_json::to_vec(&accepted)?);
        response
            .headers_mut()
            .insert(LOCATION, HeaderValue::try_from(format!("/v1/orders/{order}"))?);
        Ok(Some(response))
    }
}

/// Not the engine's digest, but of the same size and uniqueness as far as a benchmark goes, and cheaper.
fn digest(buyer: &str, key: &str) -> Uuid {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, buyer, key).hash(&mut hasher);
        hasher.finish()
    };
    Uuid::from_u64_pair(half(0), half(1))
}

fn problem(status: StatusCode, kind: &str, detail: &str) -> Response<Full<Bytes>> {
    let body = serde_json::json!({ "type": format!("urn:fluxbuy:problem:{kind}"), "detail": detail });
    json(status, body.to_string())
}

fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
