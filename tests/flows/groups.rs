//! Group commit across sales: all batches of a group are committed, or none; and what is in the way of one holds up nobody else.

use std::sync::Arc;

use fluxbuy::config::{Config, Need};
use fluxbuy::domain::{Buyer, IdempotencyDigest, OrderId, SaleId};
use fluxbuy::store::{NewOrder, SaleBatch, Store};
use futures_util::future::join_all;
use serde_json::json;
use sqlx::PgPool;
use uuid::Uuid;

use crate::support::{Setup, fresh_database, pool};

/// A database with sales of ten units, and a store on it.
struct Ground {
    db: PgPool,
    store: Store,
}

impl Ground {
    async fn lay() -> Self {
        let urls = fresh_database().await;
        let settings = [("FLUXBUY__POSTGRES__URL".to_owned(), urls.engine_url.clone())];
        let config = Config::load(Need::Database, None, settings).unwrap();
        Self {
            db: pool(&urls.owner_url).await,
            store: Store::new(&config.postgres).unwrap(),
        }
    }

    async fn sale(&self, per_buyer_limit: Option<i32>) -> SaleId {
        let sale = SaleId::fresh();
        sqlx::query(
            "INSERT INTO sales (id, name, unit_price_minor, currency, max_per_order, opens_at, per_buyer_limit)
             VALUES ($1, 'x', 1, 'EUR', 10, now(), $2)",
        )
        .bind(sale.0)
        .bind(per_buyer_limit)
        .execute(&self.db)
        .await
        .unwrap();
        sqlx::query("INSERT INTO inventory (sale_id, quantity, available) VALUES ($1, 10, 10)")
            .bind(sale.0)
            .execute(&self.db)
            .await
            .unwrap();
        sale
    }

    /// Places batches as a group; whether it was committed.
    async fn place(&self, batches: &[SaleBatch]) -> bool {
        self.store.place_group(batches).await.unwrap().is_some()
    }

    /// Orders, stock entries and units held of a sale.
    async fn written(&self, sale: SaleId) -> (i64, i64, i32) {
        sqlx::query_as(
            "SELECT (SELECT count(*) FROM orders WHERE sale_id = $1), (SELECT count(*) FROM stock_entries WHERE sale_id = $1),
                    held FROM inventory WHERE sale_id = $1",
        )
        .bind(sale.0)
        .fetch_one(&self.db)
        .await
        .unwrap()
    }
}

fn batch(sale: SaleId, per_buyer_limit: Option<i32>, orders: &[(&str, i32)]) -> SaleBatch {
    let order = |(buyer, quantity): &(&str, i32)| {
        let buyer = Buyer::parse(buyer).unwrap();
        NewOrder {
            order: OrderId::fresh(),
            digest: IdempotencyDigest::of(&buyer, &Uuid::now_v7().to_string()),
            buyer,
            quantity: *quantity,
            amount_minor: i64::from(*quantity),
            payment_method: None,
            request_id: None,
        }
    };
    SaleBatch {
        sale,
        per_buyer_limit,
        epoch: 1,
        orders: Arc::new(orders.iter().map(order).collect()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_of_several_sales_are_one_commit() {
    let ground = Ground::lay().await;
    let (first, second) = (ground.sale(None).await, ground.sale(Some(3)).await);
    let batches = [
        batch(first, None, &[("ann", 1), ("bob", 2)]),
        batch(second, Some(3), &[("ann", 1), ("ann", 2)]),
    ];
    let placed = ground.store.place_group(&batches).await.unwrap().unwrap();
    assert_eq!(
        (placed.stocks[&first].available, placed.stocks[&second].held),
        (7, 3)
    );
    assert_eq!(ground.written(first).await, (2, 2, 3));
    assert_eq!(ground.written(second).await, (2, 2, 3));
    let transactions: i64 = sqlx::query_scalar("SELECT count(DISTINCT xmin::text) FROM orders")
        .fetch_one(&ground.db)
        .await
        .unwrap();
    assert_eq!(transactions, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_with_anything_in_its_way_is_committed_not_at_all() {
    let ground = Ground::lay().await;
    let free = ground.sale(None).await;
    let limited = ground.sale(Some(3)).await;
    let known = batch(free, None, &[("ann", 1)]);
    assert!(ground.place(std::slice::from_ref(&known)).await);
    assert!(ground.place(&[batch(limited, Some(3), &[("ann", 2)])]).await);

    let mut another_epoch = batch(ground.sale(None).await, None, &[("bob", 1)]);
    another_epoch.epoch = 2;
    let mut same_purchase = batch(free, None, &[("ann", 1)]);
    let name = |order: &NewOrder| NewOrder {
        order: OrderId::fresh(),
        ..order.clone()
    };
    same_purchase.orders = Arc::new(known.orders.iter().map(name).collect());
    let in_the_way = [
        ("the sale has moved to another epoch", another_epoch),
        ("the purchase is known under another id", same_purchase),
        ("the order is known", known),
        ("too few units are there", batch(free, None, &[("bob", 10)])),
        (
            "the buyer has units already",
            batch(limited, Some(3), &[("ann", 2)]),
        ),
        (
            "the buyer asks for more than the limit",
            batch(limited, Some(3), &[("bob", 4)]),
        ),
        ("the sale is unknown", batch(SaleId::fresh(), None, &[("bob", 1)])),
    ];
    let bystander = ground.sale(None).await;
    let before = (ground.written(free).await, ground.written(limited).await);
    for (what, wrong) in in_the_way {
        assert!(
            !ground
                .place(&[batch(bystander, None, &[("eve", 1)]), wrong])
                .await,
            "{what}"
        );
        assert_eq!(ground.written(bystander).await, (0, 0, 0), "{what}");
        assert_eq!(
            (ground.written(free).await, ground.written(limited).await),
            before,
            "{what}"
        );
    }
    assert!(ground.place(&[batch(bystander, None, &[("eve", 1)])]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn buyers_of_many_sales_share_commits_and_one_sale_in_the_way_holds_up_nobody() {
    let bed = Setup::default().set("sale.commits_in_flight", 1).start().await;
    let sales = join_all((0..40).map(|_| bed.list(10, json!({"per_buyer_limit": 5})))).await;
    let everywhere = |key: &'static str| {
        let bed = &bed;
        join_all(sales.iter().map(move |sale| bed.buy(sale, "ann", key, 1)))
    };
    for reply in everywhere("first").await {
        assert_eq!(reply.status, 201);
    }
    // Another engine has loaded this sale's keys anew: what the gate admits here can't be committed.
    sqlx::query("UPDATE inventory SET epoch = epoch + 1 WHERE sale_id = $1")
        .bind(sales[7].parse::<Uuid>().unwrap())
        .execute(&bed.db)
        .await
        .unwrap();
    let before = bed
        .metric("fluxbuy_batch_size_count", &["what=\"reserve\""])
        .await;
    for key in ["second", "third"] {
        for reply in everywhere(key).await {
            assert_eq!(reply.status, 201);
        }
    }
    let commits = bed
        .metric("fluxbuy_batch_size_count", &["what=\"reserve\""])
        .await
        - before;
    assert!(commits < 80, "{commits} commits for 80 orders of 40 sales");
    for sale in &sales {
        bed.settled(sale).await;
        bed.audit(sale).await;
    }
}
