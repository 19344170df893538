//! The whole life of a sale behind `PgBouncer` in transaction mode: nothing that the engine does lives longer than a transaction.

use serde_json::json;

use crate::support::{Bed, Setup, eventually};

/// How often something of a session was left on a server process: a lock, a prepared statement, a setting.
async fn left_behind(bed: &Bed) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    )
    .fetch_one(&bed.db)
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn p18_all_of_it_works_behind_a_pooler_in_transaction_mode() {
    let bed = Setup::default()
        .pooled()
        .engines(2)
        .cutoff_ms(3000)
        .latency_ms(10, 200)
        .decline_percent(20)
        .start()
        .await;
    // A crowd, also more than there is, with a limit per buyer; each asks twice.
    let limited = bed.list(150, json!({"per_buyer_limit": 1})).await;
    let buyers: Vec<String> = (0..200).map(|n| format!("b{n}")).collect();
    for _ in 0..2 {
        let buys = buyers
            .iter()
            .enumerate()
            .map(|(n, buyer)| bed.buy_at(n % 2, &limited, buyer, "k", 1));
        let replies = futures_util::future::join_all(buys).await;
        assert!(
            replies
                .iter()
                .all(|reply| reply.status == 201 || reply.problem() == "sold_out"),
            "{replies:?}"
        );
        assert!(replies.iter().filter(|reply| reply.status == 201).count() >= 150);
    }
    // Whoever has been declined meanwhile may try again.
    let again = bed.buy(&limited, "b0", "another", 1).await;
    assert!(
        again.status == 201 || ["limit_exceeded", "sold_out"].contains(&again.problem().as_str()),
        "{}",
        again.text()
    );
    let held = "SELECT count(*) FROM orders WHERE sale_id = $1 AND buyer = 'b0' AND status <> 'FAILED'";
    assert!(bed.count(held, &limited).await <= 1);

    // Refunds, a cancellation, and a sale that is called off in the middle.
    let sale = bed.sale(30).await;
    bed.crowd(&sale, 20).await;
    eventually("some are paid", || async { bed.stock(&sale).await.2 >= 3 }).await;
    let paid: Vec<String> = sqlx::query_scalar(
        "SELECT id::text FROM orders WHERE sale_id = $1::uuid AND status = 'PAID' LIMIT 3",
    )
    .bind(&sale)
    .fetch_all(&bed.db)
    .await
    .unwrap();
    for order in &paid {
        let url = format!("{}/v1/orders/{order}/refund", bed.url());
        let reply = bed
            .client
            .post(&url, &[("idempotency-key", "r")], &json!({"amount_minor": 400}))
            .await;
        assert_eq!(reply.status, 202, "{}", reply.text());
    }
    let url = format!("{}/v1/sales/{sale}/cancel", bed.url());
    assert_eq!(bed.client.post(&url, &[], &json!({})).await.status, 202);
    eventually("the sale's end is done", || async {
        bed.client.get(&url, &[]).await.json()["done_at"].is_string()
    })
    .await;

    // Claims whose provider goes away, and the sweeper that finds out.
    let doubtful = bed.sale(10).await;
    bed.fault(json!({"mode": "answer_lost"})).await;
    bed.crowd(&doubtful, 10).await;
    for sale in [&limited, &sale, &doubtful] {
        bed.settled(sale).await;
        bed.audit(sale).await;
    }
    assert_eq!(left_behind(&bed).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn p18_two_engines_share_five_connections_and_a_statement_of_one_is_never_taken_for_the_others() {
    let bed = Setup::default()
        .pooled()
        .engines(2)
        .set("postgres.read_connections", 20)
        .start()
        .await;
    let sale = bed.sale(200).await;
    let orders: Vec<String> = bed
        .crowd(&sale, 100)
        .await
        .iter()
        .map(|reply| reply.json()["id"].as_str().unwrap().to_owned())
        .collect();
    for _ in 0..3 {
        let reads = orders.iter().enumerate().map(|(n, order)| {
            let bed = &bed;
            async move {
                let url = format!("{}/v1/orders/{order}", bed.engines[n % 2].url);
                let buyer = format!("b{n}");
                let reply = bed.client.get(&url, &[("x-buyer-id", &buyer)]).await;
                assert_eq!(reply.status, 200, "{}", reply.text());
                assert_eq!(reply.json()["id"], **order);
            }
        });
        futures_util::future::join_all(reads).await;
    }
    bed.settled(&sale).await;
    bed.audit(&sale).await;
}
