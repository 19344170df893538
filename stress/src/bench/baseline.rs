//! The usual way to build it: each request asks Redis once (EVALSHA) and makes one transaction of its own, with a pool of
//! 32 connections. On the same schema and with the same promise: a 201 is durable.
//!
//! It is no straw man. The transaction is a single statement, so that there is one round trip to Postgres and the hot row is
//! locked as shortly as can be. What is left is what cannot be avoided that way: each order waits for a flush of its own
//! while it holds the stock's row.

use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue, LOCATION};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use uuid::Uuid;

use crate::load::Peer;
use crate::scenarios::Stall;
use crate::world::World;

const POOL: u32 = 32;
const LARGEST_BODY: usize = 16_384;

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

/// A server in this process.
pub(super) struct Baseline {
    peer: Peer,
    redis: redis::aio::MultiplexedConnection,
    server: JoinHandle<()>,
}

struct Shop {
    database: PgPool,
    redis: redis::aio::MultiplexedConnection,
    script: redis::Script,
    price: i64,
}

impl Baseline {
    pub(super) async fn start(world: &World) -> anyhow::Result<Self> {
        let database = PgPoolOptions::new()
            .min_connections(POOL)
            .max_connections(POOL)
            .acquire_timeout(Duration::from_secs(30))
            .test_before_acquire(false)
            .connect_with((*world.database().connect_options()).clone())
            .await?;
        let shop = Arc::new(Shop {
            database,
            redis: world.redis(),
            script: redis::Script::new(RESERVE),
            price: crate::scenarios::UNIT_PRICE_MINOR,
        });
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let peer = Peer::from_url(&format!("http://{}", listener.local_addr()?))?;
        let server = tokio::spawn(serve(listener, shop));
        Ok(Self {
            peer,
            redis: world.redis(),
            server,
        })
    }

    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Puts a sale's units into its own place in Redis.
    pub(super) async fn stock_up(&self, stall: &Stall) -> anyhow::Result<()> {
        let [state, ..] = keys(stall.sale);
        redis::cmd("HSET")
            .arg(state)
            .arg("available")
            .arg(stall.terms.units)
            .arg("opens_at_us")
            .arg(stall.opens_at.as_microsecond())
            .query_async::<()>(&mut self.redis.clone())
            .await
            .context("the baseline's stock could not be put into redis")
    }
}

impl Drop for Baseline {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn keys(sale: Uuid) -> [String; 3] {
    ["state", "keys", "held"].map(|what| format!("{{baseline:{sale}}}:{what}"))
}

async fn serve(listener: TcpListener, shop: Arc<Shop>) {
    // Connections end with the server.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        stream.set_nodelay(true).ok();
        let shop = Arc::clone(&shop);
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let shop = Arc::clone(&shop);
                async move { Ok::<_, Infallible>(shop.answer(request).await) }
            });
            http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await
                .ok();
        });
        while connections.try_join_next().is_some() {}
    }
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

impl Shop {
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
        let created_at_us: i64 = sqlx::query_scalar(
            "WITH placed AS (
                INSERT INTO orders (id, sale_id, idempotency_digest, amount_minor, quantity, buyer)
                VALUES ($1, $2, $3, $4, $5, $6) RETURNING created_at
            ), entry AS (
                INSERT INTO stock_entries (sale_id, order_id, kind, delta) VALUES ($2, $1, 'RESERVE', -$5)
            ), stock AS (
                UPDATE inventory SET available = available - $5, held = held + $5 WHERE sale_id = $2 RETURNING 1
            )
            SELECT micros(placed.created_at) FROM placed, stock",
        )
        .bind(order)
        .bind(sale)
        .bind(digest(buyer, key))
        .bind(amount_minor)
        .bind(quantity)
        .bind(buyer)
        .fetch_one(&self.database)
        .await?;
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
