//! Stock: never oversold, never lost.

use futures_util::future::join_all;
use serde_json::json;

use crate::support::{Setup, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn s1_two_buyers_want_the_last_unit() {
    let bed = Setup::default().start().await;
    let sale = bed.sale(1).await;
    let replies = join_all(["ann", "bob"].map(|buyer| bed.buy(&sale, buyer, "k", 1))).await;
    let mut statuses: Vec<u16> = replies.iter().map(|reply| reply.status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 409]);
    let refused = replies.iter().find(|reply| reply.status == 409).unwrap();
    assert_eq!(refused.problem(), "sold_out");
    bed.settled(&sale).await;
    assert_eq!(
        bed.count("SELECT count(*) FROM orders WHERE sale_id = $1", &sale)
            .await,
        1,
        "the loser left no row"
    );
    assert_eq!(
        bed.count("SELECT count(*) FROM payments WHERE sale_id = $1", &sale)
            .await,
        1
    );
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listed_sale_is_in_the_gate_before_its_first_buyer() {
    let bed = Setup::default().start().await;
    let sale = bed.sale(7).await;
    assert_eq!(bed.gate_available(&sale).await, Some(7));
    assert_eq!(bed.buy(&sale, "ann", "k", 1).await.status, 201);
    assert_eq!(bed.gate_available(&sale).await, Some(6));
    assert_eq!(bed.metric("fluxbuy_gate_rebuilds_total", &["listed"]).await, 1);
    assert_eq!(bed.metric("fluxbuy_gate_rebuilds_total", &["unprimed"]).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn s2_two_buyers_want_six_of_ten() {
    let bed = Setup::default().start().await;
    let sale = bed.sale(10).await;
    let replies = join_all(["ann", "bob"].map(|buyer| bed.buy(&sale, buyer, "k", 6))).await;
    assert_eq!(replies.iter().filter(|reply| reply.status == 201).count(), 1);
    assert_eq!(bed.stock(&sale).await.0, 4);
    bed.settled(&sale).await;
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_a_smaller_order_behind_one_that_is_too_large_is_served() {
    let bed = Setup::default().start().await;
    let sale = bed.sale(2).await;
    assert_eq!(bed.buy(&sale, "ann", "k", 3).await.problem(), "sold_out");
    assert_eq!(bed.buy(&sale, "bob", "k", 2).await.status, 201);
    assert_eq!(bed.stock(&sale).await.0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn s4_the_limit_is_checked_before_stock_is_touched() {
    let bed = Setup::default().start().await;
    let sale = bed.list(10, json!({"per_buyer_limit": 1})).await;
    let keys: Vec<String> = (0..11).map(|n| format!("k{n}")).collect();
    let replies = join_all(keys.iter().map(|key| bed.buy(&sale, "ann", key, 1))).await;
    assert_eq!(replies.iter().filter(|reply| reply.status == 201).count(), 1);
    let refused = replies.iter().find(|reply| reply.status != 201).unwrap();
    assert_eq!(
        (
            refused.problem().as_str(),
            refused.json()["per_buyer_limit"].as_i64()
        ),
        ("limit_exceeded", Some(1))
    );
    assert_eq!(bed.stock(&sale).await.0, 9);
    bed.settled(&sale).await;
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s5_a_failed_order_gives_the_allowance_back() {
    let bed = Setup::default().decline_percent(100).start().await;
    let sale = bed.list(5, json!({"per_buyer_limit": 1})).await;
    let first = bed.order(&sale, "ann", 1).await;
    bed.wait_for_status(&first, "ann", "failed").await;
    bed.behave(0, 0, 0).await;
    // The gate learns of the release a moment after the commit.
    eventually("the allowance is back", || async {
        bed.buy(&sale, "ann", "again", 1).await.status == 201
    })
    .await;
    bed.settled(&sale).await;
    assert_eq!(
        bed.buy(&sale, "ann", "third", 1).await.problem(),
        "limit_exceeded",
        "the second was paid"
    );
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s5_sixty_four_at_once_for_one_unit_and_a_limit_of_one() {
    let bed = Setup::default().start().await;
    let sale = bed.list(1, json!({"per_buyer_limit": 1})).await;
    let keys: Vec<String> = (0..64).map(|n| format!("k{n}")).collect();
    let replies = join_all(keys.iter().map(|key| bed.buy(&sale, "ann", key, 1))).await;
    assert_eq!(replies.iter().filter(|reply| reply.status == 201).count(), 1);
    bed.settled(&sale).await;
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s7_not_open_yet_leaves_the_stock_alone() {
    let bed = Setup::default().start().await;
    let opens_at = jiff::Timestamp::now() + jiff::SignedDuration::from_millis(1500);
    let sale = bed.list(1, json!({"opens_at": opens_at.to_string()})).await;
    let early = bed.buy(&sale, "ann", "k", 1).await;
    assert_eq!((early.status, early.problem().as_str()), (409, "not_open"));
    assert!(early.json()["opens_at"].is_string());
    assert_eq!(bed.stock(&sale).await, (1, 0, 0));
    eventually("the sale opens", || async {
        bed.buy(&sale, "ann", "k", 1).await.status == 201
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s8_a_sale_that_was_sold_out_sells_again_at_once() {
    let bed = Setup::default().start_without_charging().await;
    let sale = bed.sale(5).await;
    let buyers: Vec<String> = (0..5).map(|n| format!("b{n}")).collect();
    let mut orders = Vec::new();
    for buyer in &buyers {
        orders.push(bed.order(&sale, buyer, 1).await);
    }
    assert_eq!(bed.buy(&sale, "late", "k", 1).await.problem(), "sold_out");
    for (order, buyer) in orders.iter().zip(&buyers) {
        assert_eq!(bed.cancel(order, buyer).await.status, 200);
    }
    assert_eq!(bed.stock(&sale).await, (5, 0, 0));
    // A refusal isn't pinned to its key, and nobody has to wait for the sweeper.
    eventually("the late buyer gets one", || async {
        bed.buy(&sale, "late", "k", 1).await.status == 201
    })
    .await;
    eventually("the gate has them all", || async {
        bed.gate_available(&sale).await == Some(4)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s9_cancelled_twice_is_released_once() {
    let bed = Setup::default().start_without_charging().await;
    let sale = bed.sale(10).await;
    let order = bed.order(&sale, "ann", 5).await;
    let replies = join_all((0..8).map(|_| bed.cancel(&order, "ann"))).await;
    for reply in replies {
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.json()["failure_reason"], "cancelled");
    }
    assert_eq!(bed.stock(&sale).await, (10, 0, 0));
    eventually("the gate has them back", || async {
        bed.gate_available(&sale).await == Some(10)
    })
    .await;
    assert_eq!(
        bed.count(
            "SELECT count(*) FROM stock_entries WHERE sale_id = $1 AND kind = 'RELEASE'",
            &sale
        )
        .await,
        1
    );
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s10_o5_two_engines_sweep_the_same_orders_once_each() {
    let bed = Setup::default()
        .cutoff_ms(1500)
        .engines(2)
        .start_without_charging()
        .await;
    let sale = bed.sale(200).await;
    let buyers: Vec<String> = (0..200).map(|n| format!("b{n}")).collect();
    let replies = join_all(
        buyers
            .iter()
            .enumerate()
            .map(|(n, buyer)| bed.buy_at(n % 2, &sale, buyer, "k", 1)),
    )
    .await;
    assert!(replies.iter().all(|reply| reply.status == 201));
    bed.settled(&sale).await;
    assert_eq!(bed.stock(&sale).await, (200, 0, 0));
    let swept = "SELECT count(*) FROM orders WHERE sale_id = $1 AND failure_reason = 'swept' AND attempt = 0";
    assert_eq!(bed.count(swept, &sale).await, 200);
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s15_everything_adds_up_at_every_instant_and_what_nobody_could_charge_is_swept() {
    let bed = Setup::default()
        .cutoff_ms(4000)
        .set("payment.max_in_flight", 20)
        .start()
        .await;
    let sale = bed.sale(100).await;
    let buyers: Vec<String> = (0..60).map(|n| format!("b{n}")).collect();
    let replies = join_all(buyers.iter().map(|buyer| bed.buy(&sale, buyer, "k", 1))).await;
    assert!(replies.iter().all(|reply| reply.status == 201));
    eventually("60 are paid", || async { bed.stock(&sale).await.2 == 60 }).await;
    bed.fault(json!({"mode": "down"})).await;
    let buyers: Vec<String> = (60..100).map(|n| format!("b{n}")).collect();
    let replies = join_all(buyers.iter().map(|buyer| bed.buy(&sale, buyer, "k", 1))).await;
    assert!(replies.iter().all(|reply| reply.status == 201));
    assert_eq!(bed.buy(&sale, "late", "k", 1).await.problem(), "sold_out");
    eventually("those that nobody could charge are available", || async {
        let (available, held, sold) = bed.stock(&sale).await;
        assert_eq!(available + held + sold, 100);
        // Whatever was sent into the dark stays held until the provider says what became of it.
        let in_doubt = bed
            .count(
                "SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'PROCESSING'",
                &sale,
            )
            .await;
        sold == 60 && available + in_doubt == 40 && available > 0
    })
    .await;
    bed.fault(json!({"mode": "none"})).await;
    bed.settled(&sale).await;
    assert_eq!(bed.stock(&sale).await, (40, 0, 60));
    bed.audit(&sale).await;
}

/// Whatever its buyer asks meanwhile, a hold ends when it would have ended anyway: if asking made it longer, this would never end.
#[tokio::test(flavor = "multi_thread")]
async fn s16_a_hold_has_an_absolute_end_and_the_next_one_a_fresh_clock() {
    let bed = Setup::default().cutoff_ms(1500).start_without_charging().await;
    let sale = bed.list(2, json!({"per_buyer_limit": 2})).await;
    let first = bed.buy(&sale, "ann", "k", 2).await.json();
    eventually("the hold is over, and the buyer starts afresh", || async {
        let again = bed.buy(&sale, "ann", "k", 2).await;
        assert_eq!(
            again.json()["created_at"],
            first["created_at"],
            "{}",
            again.text()
        );
        let more = bed.buy(&sale, "ann", "other", 2).await;
        let refused = ["limit_exceeded", "sold_out"];
        assert!(
            more.status == 201 || refused.contains(&more.problem().as_str()),
            "{}",
            more.text()
        );
        more.status == 201
    })
    .await;
    let told = bed.get_order(first["id"].as_str().unwrap(), "ann").await;
    assert_eq!(told["failure_reason"], "swept");
    let held: Vec<f64> = sqlx::query_scalar(
        "SELECT extract(epoch FROM coalesce(t.at, clock_timestamp()) - o.created_at)::float8 * 1000
         FROM orders o LEFT JOIN order_transitions t ON t.order_id = o.id WHERE o.sale_id = $1::uuid ORDER BY o.created_at",
    )
    .bind(&sale)
    .fetch_all(&bed.db)
    .await
    .unwrap();
    assert!(
        held.len() == 2 && held[0] >= 1500.0 && held[1] < held[0],
        "{held:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn s17_a_buyer_whose_order_was_swept_is_told_so_and_the_next_one_keeps_the_unit() {
    let bed = Setup::default().cutoff_ms(1500).start_without_charging().await;
    let sale = bed.sale(1).await;
    let lost = bed.order(&sale, "ann", 1).await;
    eventually("the unit is free again", || async {
        bed.buy(&sale, "bob", "k", 1).await.status == 201
    })
    .await;
    let told = bed.get_order(&lost, "ann").await;
    assert_eq!(
        (&told["status"], &told["failure_reason"]),
        (&json!("failed"), &json!("swept"))
    );
    assert_eq!(bed.stock(&sale).await.0, 0, "bob has it");
}

#[tokio::test(flavor = "multi_thread")]
async fn s18_a_sale_that_is_sold_out_changes_nothing_for_another() {
    let bed = Setup::default().start().await;
    let (empty, full) = (bed.sale(1).await, bed.sale(50).await);
    bed.order(&empty, "ann", 1).await;
    let buyers: Vec<String> = (0..50).map(|n| format!("b{n}")).collect();
    let (refused, served) = futures_util::future::join(
        join_all(buyers.iter().map(|buyer| bed.buy(&empty, buyer, "k", 1))),
        join_all(buyers.iter().map(|buyer| bed.buy(&full, buyer, "k", 1))),
    )
    .await;
    assert!(refused.iter().all(|reply| reply.problem() == "sold_out"));
    assert!(served.iter().all(|reply| reply.status == 201));
}

#[tokio::test(flavor = "multi_thread")]
async fn s19_orders_of_two_sales_released_in_both_orders_never_deadlock_visibly() {
    let bed = Setup::default().decline_percent(100).engines(2).start().await;
    let sales = [bed.sale(300).await, bed.sale(300).await];
    let buyers: Vec<String> = (0..300).map(|n| format!("b{n}")).collect();
    let asked = buyers.iter().enumerate().flat_map(|(n, buyer)| {
        let (first, second) = if n % 2 == 0 { (0, 1) } else { (1, 0) };
        [
            bed.buy_at(n % 2, &sales[first], buyer, "k", 1),
            bed.buy_at(n % 2, &sales[second], buyer, "k", 1),
        ]
    });
    assert!(join_all(asked).await.iter().all(|reply| reply.status == 201));
    for sale in &sales {
        bed.settled(sale).await;
        assert_eq!(bed.stock(sale).await, (300, 0, 0));
        bed.audit(sale).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_engines_and_five_units() {
    let bed = Setup::default().engines(3).start().await;
    let sale = bed.sale(5).await;
    let buyers: Vec<String> = (0..60).map(|n| format!("b{n}")).collect();
    let replies = join_all(
        buyers
            .iter()
            .enumerate()
            .map(|(n, buyer)| bed.buy_at(n % 3, &sale, buyer, "k", 1)),
    )
    .await;
    assert_eq!(replies.iter().filter(|reply| reply.status == 201).count(), 5);
    assert!(
        replies
            .iter()
            .filter(|reply| reply.status != 201)
            .all(|reply| reply.problem() == "sold_out")
    );
    bed.settled(&sale).await;
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn o11_whoever_is_told_201_holds_a_unit() {
    let bed = Setup::default().start().await;
    let sale = bed.sale(1).await;
    let buyers: Vec<String> = (0..50).map(|n| format!("b{n}")).collect();
    let replies = join_all(buyers.iter().map(|buyer| bed.buy(&sale, buyer, "k", 1))).await;
    let accepted: Vec<_> = replies.iter().filter(|reply| reply.status == 201).collect();
    assert_eq!(accepted.len(), 1);
    let body = accepted[0].json();
    let paid = bed
        .wait_for_status(
            body["id"].as_str().unwrap(),
            body["buyer"].as_str().unwrap(),
            "paid",
        )
        .await;
    assert_eq!(paid["failure_reason"], json!(null));
    bed.audit(&sale).await;
}
