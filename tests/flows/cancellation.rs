//! A sale that is called off: nothing more is sold, what is open is released, what is paid is paid back.

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{Bed, Reply, Setup, eventually, pool};

async fn cancel(bed: &Bed, engine: usize, sale: &str) -> Reply {
    let url = format!("{}/v1/sales/{sale}/cancel", bed.engines[engine].url);
    bed.client.post(&url, &[], &Value::Null).await
}

async fn progress(bed: &Bed, sale: &str) -> Value {
    let url = format!("{}/v1/sales/{sale}/cancel", bed.engines.last().unwrap().url);
    bed.client.get(&url, &[]).await.json()
}

async fn ended(bed: &Bed, sale: &str) {
    eventually("the sale has come to its end", || async {
        !progress(bed, sale).await["done_at"].is_null()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_that_is_called_off_sells_nothing_more_and_pays_everybody_back() {
    // Charges take a while: at the time some orders are paid, some are being charged, and some wait.
    let bed = Setup::default()
        .latency_ms(50, 600)
        .decline_percent(10)
        .set("payment.max_in_flight", 20)
        .engines(2)
        .start()
        .await;
    let sale = bed.list(200, json!({"per_buyer_limit": 1})).await;
    let replies = bed.crowd(&sale, 100).await;
    eventually("some are paid", || async { bed.stock(&sale).await.2 > 10 }).await;

    let called_off = cancel(&bed, 0, &sale).await;
    assert_eq!(called_off.status, 202, "{}", called_off.text());
    assert!(!called_off.json()["cancelled_at"].is_null());
    // At either engine, from the answer on.
    for engine in 0..2 {
        let late = bed.buy_at(engine, &sale, "late", "k", 1).await;
        assert_eq!((late.status, late.problem().as_str()), (409, "closed"));
    }
    // A replay finds its order all the same.
    let replay = bed.buy_at(1, &sale, "b0", "k", 1).await;
    assert_eq!(
        (replay.status, &replay.json()["id"]),
        (201, &replies[0].json()["id"])
    );

    ended(&bed, &sale).await;
    assert_eq!(cancel(&bed, 1, &sale).await.status, 202, "once more is the same");
    let end = progress(&bed, &sale).await;
    assert_eq!(
        (&end["orders_open"], &end["orders_to_refund"]),
        (&json!(0), &json!(0))
    );
    assert_eq!(
        end["orders_released"].as_i64().unwrap() + end["orders_refunded"].as_i64().unwrap(),
        100
    );
    assert!(end["orders_refunded"].as_i64().unwrap() > 10);
    assert_eq!(bed.stock(&sale).await, (200, 0, 0), "every unit is back");
    let swept = "SELECT count(*) FROM orders WHERE sale_id = $1 AND failure_reason = 'sale_cancelled'";
    assert!(
        bed.count(swept, &sale).await > 0,
        "some were released before they were charged"
    );
    assert_eq!(bed.get_sale(&sale).await["phase"], "closed");
    bed.audit(&sale).await;
    let verified = tokio::process::Command::new(crate::support::fluxbuy())
        .args(["ledger", "verify", "--sale", &sale])
        .env("FLUXBUY__POSTGRES__URL", &bed.engine_url)
        .env("FLUXBUY__PROVIDER__URL", &bed.provider_url)
        .status()
        .await
        .unwrap();
    assert!(verified.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn buyers_and_the_end_of_their_sale_at_the_same_instant() {
    let bed = Setup::default().engines(2).start().await;
    let sale = bed.sale(1000).await;
    let buyers: Vec<String> = (0..300).map(|n| format!("b{n}")).collect();
    let buys = join_all(
        buyers
            .iter()
            .enumerate()
            .map(|(n, buyer)| bed.buy_at(n % 2, &sale, buyer, "k", 1)),
    );
    let (replies, called_off) = futures_util::future::join(buys, cancel(&bed, 0, &sale)).await;
    assert_eq!(called_off.status, 202);
    for reply in &replies {
        assert!(
            reply.status == 201 || reply.problem() == "closed" || reply.problem() == "unavailable",
            "{}",
            reply.text()
        );
    }
    ended(&bed, &sale).await;
    assert_eq!(bed.stock(&sale).await, (1000, 0, 0));
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_called_off_before_its_opening_never_opens() {
    let bed = Setup::default().start().await;
    let sale = bed.list(5, json!({"opens_at": "2099-01-01T00:00:00Z"})).await;
    assert_eq!(bed.buy(&sale, "ann", "k", 1).await.problem(), "not_open");
    assert_eq!(cancel(&bed, 0, &sale).await.status, 202);
    // Nobody could buy before; why not, the gate hears in a moment.
    eventually("it is closed", || async {
        bed.buy(&sale, "ann", "k", 1).await.problem() == "closed"
    })
    .await;
    ended(&bed, &sale).await;
    assert_eq!(bed.get_sale(&sale).await["phase"], "closed");
    let nobody = uuid::Uuid::now_v7().to_string();
    assert_eq!(cancel(&bed, 0, &nobody).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_in_the_middle_of_the_end_only_delays_it() {
    let mut bed = Setup::default()
        .latency_ms(200, 200)
        .set("payment.charge_timeout_ms", 1000)
        .start()
        .await;
    let sale = bed.sale(60).await;
    bed.crowd(&sale, 60).await;
    bed.settled(&sale).await;
    // Refunds are paid and their answers get lost: the end can't come.
    bed.fault(json!({"mode": "answer_lost", "operations": ["refund"]}))
        .await;
    assert_eq!(cancel(&bed, 0, &sale).await.status, 202);
    eventually("refunds are under way", || async {
        !bed.book().await["refunds"].as_array().unwrap().is_empty()
    })
    .await;
    bed.engines.remove(0).kill().await;
    bed.fault(json!({"mode": "none"})).await;
    bed.start_engine().await;
    ended(&bed, &sale).await;
    assert_eq!(bed.book().await["refunds"].as_array().unwrap().len(), 60);
    assert_eq!(bed.stock(&sale).await, (60, 0, 0));
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_sells_nothing_of_a_sale_that_is_called_off() {
    let bed = Setup::default().start().await;
    let sale = bed.sale(5).await;
    assert_eq!(cancel(&bed, 0, &sale).await.status, 202);
    let engine = pool(&bed.engine_url).await;
    let error = sqlx::query(
        "UPDATE inventory SET available = available - 1, held = held + 1 WHERE sale_id = $1::uuid",
    )
    .bind(&sale)
    .execute(&engine)
    .await
    .unwrap_err();
    assert!(error.to_string().contains("is cancelled"), "{error}");
}
