//! Starts an engine for a test: the real program as a process of its own, on a fresh database of private real servers, with a
//! mock provider of its own. Servers are shared by the tests of one process and end with it.

mod engine;
mod http;
mod link;
mod pooler;
pub mod stripe;

use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};

use fluxbuy::mock_provider;
use fluxbuy::services::{Args, DatabaseUrls, Services};
use redis::AsyncCommands;
use serde_json::{Value, json};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::OnceCell;
use uuid::Uuid;

pub use engine::Engine;
pub use http::{Client, Reply};
pub use link::Link;
use pooler::Pooler;

/// How long a condition may take to come true. Generous: it only bounds a failure.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// The program under test.
pub fn fluxbuy() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_fluxbuy"))
}

/// The servers that the tests of this process share.
pub async fn shared_services() -> &'static Services {
    static SERVICES: OnceCell<Services> = OnceCell::const_new();
    let args = Args {
        no_provider: true,
        ..Args::default()
    };
    SERVICES
        .get_or_init(|| async move { Services::start(fluxbuy(), &args).await.expect("private services") })
        .await
}

/// A fresh migrated database on the shared server.
pub async fn fresh_database() -> DatabaseUrls {
    let name = format!("t_{}", Uuid::new_v4().simple());
    shared_services()
        .await
        .create_database(&name)
        .await
        .expect("a database")
}

/// A pool as the schema's owner.
pub async fn pool(url: &str) -> PgPool {
    PgPoolOptions::new()
        .max_connections(4)
        .connect(url)
        .await
        .expect("a connection")
}

/// A connection to the shared Redis, to tamper with what is in it.
pub async fn redis_connection() -> redis::aio::MultiplexedConnection {
    let client = redis::Client::open(shared_services().await.addresses().redis_url.as_str()).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

/// Waits until `holds` is true.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < deadline, "did not come true: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// How an engine is to be set up for a test.
pub struct Setup {
    latency_ms: (u64, u64),
    decline_percent: u8,
    settings: Vec<(String, String)>,
    engines: usize,
    linked: bool,
    pooled: bool,
}

/// An engine (or several), its database and its provider.
pub struct Bed {
    pub engines: Vec<Engine>,
    /// As the owner.
    pub db: PgPool,
    pub provider_url: String,
    pub client: Client,
    /// The environment of the engines that are started from now on.
    pub settings: Vec<(String, String)>,
    /// Between the engines and Postgres, where it was asked for.
    pub link: Option<Link>,
    _pooler: Option<Pooler>,
    /// The database as the engine's role, not through the link.
    pub engine_url: String,
    provider: tokio::task::JoinHandle<()>,
}

impl Default for Setup {
    /// A provider that answers at once and never declines; a sweeper that looks often, with a cutoff out of reach.
    fn default() -> Self {
        let setup = Self {
            latency_ms: (0, 0),
            decline_percent: 0,
            settings: Vec::new(),
            engines: 1,
            linked: false,
            // To have all of these tests behind a pooler.
            pooled: std::env::var_os("FLUXBUY_TEST_POOLED").is_some(),
        };
        setup
            .set("sweeper.period_ms", 200)
            .set("sweeper.reaper_period_ms", 200)
            .set("payment.scan_period_ms", 200)
            .set("log.filter", "info")
    }
}

impl Setup {
    pub fn latency_ms(mut self, min: u64, max: u64) -> Self {
        self.latency_ms = (min, max);
        self
    }

    pub fn decline_percent(mut self, percent: u8) -> Self {
        self.decline_percent = percent;
        self
    }

    pub fn engines(mut self, engines: usize) -> Self {
        self.engines = engines;
        self
    }

    /// Postgres is reached through a link that can fail.
    pub fn linked(mut self) -> Self {
        self.linked = true;
        self
    }

    /// Postgres is reached through a pooler that works transaction by transaction.
    pub fn pooled(mut self) -> Self {
        self.pooled = true;
        self
    }

    /// Postgres is reached without a pooler, whatever the others do.
    pub fn direct(mut self) -> Self {
        self.pooled = false;
        self
    }

    /// A setting by its name in the configuration, such as `sweeper.cutoff_ms`.
    #[allow(clippy::needless_pass_by_value)]
    pub fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.settings.push((variable(name), value.to_string()));
        self
    }

    /// A variable of the engine's environment that is no setting.
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A cutoff of so many milliseconds, and payment times that fit below it.
    pub fn cutoff_ms(self, cutoff_ms: u64) -> Self {
        self.set("sweeper.cutoff_ms", cutoff_ms)
            .set("payment.give_up_ms", cutoff_ms * 3 / 4)
            .set("payment.charge_timeout_ms", cutoff_ms / 2)
    }

    /// Nobody is charged: orders stay PENDING. The provider can't be reached, and each engine's breaker stays open.
    pub async fn start_without_charging(self) -> Bed {
        let bed = self
            .set("provider.url", "http://127.0.0.1:1")
            .set("payment.max_in_flight", 1)
            .set("payment.breaker_failures", 1)
            .set("payment.breaker_open_ms", 600_000)
            .start()
            .await;
        // An order of another sale, for each engine to find that out with.
        for engine in 0..bed.engines.len() {
            let sale = bed.sale(1).await;
            assert_eq!(bed.buy_at(engine, &sale, "probe", "k", 1).await.status, 201);
            eventually("the breaker is open", || async {
                bed.engines[engine]
                    .metric(&bed.client, "fluxbuy_provider_breakers_open", &[])
                    .await
                    == 1
            })
            .await;
        }
        bed
    }

    pub async fn start(self) -> Bed {
        let database = fresh_database().await;
        let listener = fluxbuy::sockets::listen(([127, 0, 0, 1], 0).into()).unwrap();
        let provider_url = format!("http://{}", listener.local_addr().unwrap());
        let args = mock_provider::Args {
            listen: ([127, 0, 0, 1], 0).into(),
            seed: 1,
            latency_min_ms: self.latency_ms.0,
            latency_max_ms: self.latency_ms.1,
            decline_percent: self.decline_percent,
        };
        let provider = tokio::spawn(async move { mock_provider::serve(&args, listener).await });
        let (link, engine_url) = if self.linked {
            let (link, url) = Link::to(&database.engine_url).await;
            (Some(link), url)
        } else {
            (None, database.engine_url.clone())
        };
        let (pooler, engine_url) = if self.pooled && !self.linked {
            let (pooler, url) = Pooler::before(&engine_url).await;
            (Some(pooler), url)
        } else {
            (None, engine_url)
        };
        let mut settings = vec![
            (variable("postgres.url"), engine_url),
            (variable("postgres.behind_pooler"), pooler.is_some().to_string()),
            (
                variable("redis.url"),
                shared_services().await.addresses().redis_url.clone(),
            ),
            (variable("provider.url"), provider_url.clone()),
        ];
        settings.extend(self.settings);
        let mut engines = Vec::new();
        for _ in 0..self.engines {
            engines.push(Engine::start(&settings).await);
        }
        let db = pool(&database.owner_url).await;
        Bed {
            engines,
            db,
            provider_url,
            client: Client::default(),
            settings,
            link,
            _pooler: pooler,
            engine_url: database.engine_url,
            provider,
        }
    }
}

fn variable(name: &str) -> String {
    format!("FLUXBUY__{}", name.to_uppercase().replace('.', "__"))
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.provider.abort();
    }
}

impl Bed {
    /// The first engine's address.
    pub fn url(&self) -> &str {
        &self.engines[0].url
    }

    /// A setting for the engines that are started from now on.
    pub fn set(&mut self, name: &str, value: &str) {
        self.settings.push((variable(name), value.to_owned()));
    }

    /// Another engine on the same services; also after the first was killed.
    pub async fn start_engine(&mut self) {
        self.engines.push(Engine::start(&self.settings).await);
    }

    /// Lists a sale that is open, with what `terms` adds or replaces.
    pub async fn list(&self, quantity: u32, terms: Value) -> String {
        let mut body = json!({
            "name": "test sale", "quantity": quantity, "unit_price_minor": 1000, "currency": "EUR",
            "opens_at": "2020-01-01T00:00:00Z",
        });
        for (name, value) in terms.as_object().cloned().unwrap_or_default() {
            body[name] = value;
        }
        let reply = self
            .client
            .post(&format!("{}/v1/sales", self.url()), &[], &body)
            .await;
        assert_eq!(reply.status, 201, "{}", reply.text());
        reply.json()["id"].as_str().unwrap().to_owned()
    }

    pub async fn sale(&self, units: u32) -> String {
        self.list(units, json!({})).await
    }

    /// Asks the first engine for units.
    pub async fn buy(&self, sale: &str, buyer: &str, key: &str, quantity: u32) -> Reply {
        self.buy_at(0, sale, buyer, key, quantity).await
    }

    pub async fn buy_at(&self, engine: usize, sale: &str, buyer: &str, key: &str, quantity: u32) -> Reply {
        let url = format!("{}/v1/sales/{sale}/orders", self.engines[engine].url);
        let headers = [("x-buyer-id", buyer), ("idempotency-key", key)];
        self.client
            .post(&url, &headers, &json!({ "quantity": quantity }))
            .await
    }

    /// So many buyers, `b0` and on, want a unit each at the same instant, spread over the engines; all of them get it.
    pub async fn crowd(&self, sale: &str, buyers: usize) -> Vec<Reply> {
        let engines = self.engines.len();
        let buys = (0..buyers)
            .map(|n| async move { self.buy_at(n % engines, sale, &format!("b{n}"), "k", 1).await });
        let replies = futures_util::future::join_all(buys).await;
        assert!(replies.iter().all(|reply| reply.status == 201));
        replies
    }

    /// For half a second, no transaction of the engine's is open for longer than a batch takes.
    pub async fn keeps_no_transaction_open(&self) {
        for _ in 0..20 {
            let old: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'fluxbuy_engine'
                 AND xact_start < clock_timestamp() - interval '500 milliseconds'",
            )
            .fetch_one(&self.db)
            .await
            .unwrap();
            assert_eq!(old, 0);
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }

    /// Buys, and gives the order's id.
    pub async fn order(&self, sale: &str, buyer: &str, quantity: u32) -> String {
        let reply = self.buy(sale, buyer, "key", quantity).await;
        assert_eq!(reply.status, 201, "{}", reply.text());
        reply.json()["id"].as_str().unwrap().to_owned()
    }

    pub async fn get_order(&self, order: &str, buyer: &str) -> Value {
        let engine = self.engines.last().unwrap();
        let reply = self
            .client
            .get(
                &format!("{}/v1/orders/{order}", engine.url),
                &[("x-buyer-id", buyer)],
            )
            .await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()
    }

    pub async fn cancel(&self, order: &str, buyer: &str) -> Reply {
        let url = format!("{}/v1/orders/{order}/cancel", self.url());
        self.client
            .post(&url, &[("x-buyer-id", buyer)], &Value::Null)
            .await
    }

    pub async fn get_sale(&self, sale: &str) -> Value {
        let reply = self
            .client
            .get(&format!("{}/v1/sales/{sale}", self.url()), &[])
            .await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()
    }

    /// Available, held and sold units.
    pub async fn stock(&self, sale: &str) -> (i64, i64, i64) {
        let sale = self.get_sale(sale).await;
        let units = |name: &str| sale[name].as_i64().unwrap();
        (units("available"), units("held"), units("sold"))
    }

    pub async fn wait_for_status(&self, order: &str, buyer: &str, status: &str) -> Value {
        eventually(&format!("order {order} is {status}"), || async {
            self.get_order(order, buyer).await["status"] == status
        })
        .await;
        self.get_order(order, buyer).await
    }

    /// Waits until no order of the sale is open.
    pub async fn settled(&self, sale: &str) {
        eventually("no order is open", || async {
            self.count(
                "SELECT count(*) FROM orders WHERE sale_id = $1 AND status IN ('PENDING', 'PROCESSING', 'CAPTURING')",
                sale,
            )
            .await
                == 0
        })
        .await;
    }

    /// A number from the database, for a query whose `$1` is a sale.
    pub async fn count(&self, query: &'static str, sale: &str) -> i64 {
        sqlx::query_scalar(query)
            .bind(sale.parse::<Uuid>().unwrap())
            .fetch_one(&self.db)
            .await
            .unwrap()
    }

    /// The sum of a metric's series whose labels contain all of `labels`, at the last engine.
    pub async fn metric(&self, name: &str, labels: &[&str]) -> i64 {
        self.engines
            .last()
            .unwrap()
            .metric(&self.client, name, labels)
            .await
    }

    /// Has the provider misbehave.
    pub async fn fault(&self, fault: Value) {
        let reply = self
            .client
            .post(&format!("{}/faults", self.provider_url), &[], &fault)
            .await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }

    pub async fn behave(&self, latency_min_ms: u64, latency_max_ms: u64, decline_percent: u8) {
        let body = json!({
            "latency_min_ms": latency_min_ms, "latency_max_ms": latency_max_ms, "decline_percent": decline_percent,
        });
        let reply = self
            .client
            .post(&format!("{}/behaviour", self.provider_url), &[], &body)
            .await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }

    /// The provider's book.
    pub async fn book(&self) -> Value {
        self.client
            .get(&format!("{}/book", self.provider_url), &[])
            .await
            .json()
    }

    /// Units available in the gate, if the sale is loaded there.
    pub async fn gate_available(&self, sale: &str) -> Option<i64> {
        redis_connection()
            .await
            .hget(format!("{{sale:{sale}}}:state"), "available")
            .await
            .unwrap()
    }

    /// Everything adds up: stock, its entries, orders, money here and at the provider. Call it when the sale is settled.
    pub async fn audit(&self, sale: &str) {
        let id = sale.parse::<Uuid>().unwrap();
        let broken: Vec<String> = sqlx::query_scalar(
            "SELECT 'inventory row differs from its orders' FROM inventory i
             WHERE i.sale_id = $1 AND (
                held <> coalesce((SELECT sum(quantity) FROM orders WHERE sale_id = $1 AND status IN ('PENDING', 'PROCESSING', 'CAPTURING')), 0)
                OR sold <> coalesce((SELECT sum(quantity) FROM orders o WHERE sale_id = $1 AND (status = 'PAID' OR status = 'REFUNDED'
                    AND NOT EXISTS (SELECT FROM stock_entries e WHERE e.order_id = o.id AND e.kind = 'RELEASE'))), 0)
                OR available + held + sold <> quantity
                OR available <> (SELECT sum(delta) FROM stock_entries WHERE sale_id = $1))
             UNION ALL
             SELECT 'order ' || o.id || ' is ' || o.status || ' but charged ' || net.minor FROM orders o
             JOIN LATERAL (SELECT coalesce(sum(CASE kind WHEN 'CHARGE' THEN amount_minor ELSE -amount_minor END), 0) AS minor
                           FROM ledger_entries l WHERE l.order_id = o.id) net ON true
             WHERE o.sale_id = $1 AND net.minor <> CASE o.status WHEN 'PAID' THEN o.amount_minor
                - coalesce((SELECT sum(amount_minor) FROM refunds r WHERE r.order_id = o.id AND r.status = 'DONE'), 0) ELSE 0 END
             UNION ALL
             SELECT 'order ' || o.id || ' has no stock entry of its own' FROM orders o
             WHERE o.sale_id = $1 AND o.status <> 'REJECTED' AND NOT EXISTS
                (SELECT FROM stock_entries e WHERE e.order_id = o.id AND e.kind = 'RESERVE' AND e.delta = -o.quantity)
             UNION ALL
             SELECT 'buyer ' || a.buyer || ' has a wrong allowance' FROM buyer_allotments a
             WHERE a.sale_id = $1 AND a.used <> coalesce((SELECT sum(quantity) FROM orders o
                WHERE o.sale_id = $1 AND o.buyer = a.buyer AND (o.status IN ('PENDING', 'PROCESSING', 'CAPTURING', 'PAID') OR o.status = 'REFUNDED'
                    AND NOT EXISTS (SELECT FROM stock_entries e WHERE e.order_id = o.id AND e.kind = 'RELEASE'))), 0)",
        )
        .bind(id)
        .fetch_all(&self.db)
        .await
        .unwrap();
        assert!(broken.is_empty(), "{broken:#?}");

        let orders: Vec<(Uuid, String, i64)> = sqlx::query_as(
            "SELECT id, status::text, amount_minor - coalesce((SELECT sum(amount_minor) FROM refunds r
                WHERE r.order_id = o.id AND r.status = 'DONE'), 0)::bigint FROM orders o WHERE sale_id = $1",
        )
        .bind(id)
        .fetch_all(&self.db)
        .await
        .unwrap();
        let book = self.book().await;
        for (order, status, amount) in orders {
            let prefix = format!("{order}:");
            let taken: Vec<i64> = book["charges"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|c| {
                    c["status"] == "succeeded" && c["reference"].as_str().unwrap().starts_with(&prefix)
                })
                .map(|c| c["amount_minor"].as_i64().unwrap() - c["refunded_minor"].as_i64().unwrap())
                .collect();
            let net: i64 = taken.iter().sum();
            let due = if status == "PAID" { amount } else { 0 };
            assert_eq!(
                net, due,
                "order {order} is {status}, and the provider has {taken:?}"
            );
        }
        let available = self.get_sale_at_last(sale).await;
        eventually("the gate agrees", || async {
            self.gate_available(sale)
                .await
                .is_none_or(|gate| gate == available)
        })
        .await;
    }

    async fn get_sale_at_last(&self, sale: &str) -> i64 {
        self.count("SELECT available::bigint FROM inventory WHERE sale_id = $1", sale)
            .await
    }
}
