//! Payments: nobody is charged twice, and nobody pays for what they don't get.

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{Bed, Setup, eventually};

async fn charges(bed: &Bed, order: &str) -> Vec<Value> {
    let book = bed
        .client
        .get(&format!("{}/book/{order}", bed.provider_url), &[])
        .await
        .json();
    book["charges"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_charged_and_paid() {
    let bed = Setup::default().latency_ms(20, 50).start().await;
    let sale = bed.sale(3).await;
    let order = bed.order(&sale, "ann", 2).await;
    let paid = bed.wait_for_status(&order, "ann", "paid").await;
    assert_eq!(
        (&paid["attempt"], &paid["amount_minor"], &paid["late_refund"]),
        (&json!(1), &json!(2000), &json!(null))
    );
    assert_eq!(charges(&bed, &order).await.len(), 1);
    assert_eq!(bed.stock(&sale).await, (1, 0, 2));
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declined_charge_gives_the_unit_back() {
    let bed = Setup::default().decline_percent(100).start().await;
    let sale = bed.sale(3).await;
    let order = bed.order(&sale, "ann", 2).await;
    let failed = bed.wait_for_status(&order, "ann", "failed").await;
    assert_eq!(failed["failure_reason"], "declined");
    assert_eq!(bed.stock(&sale).await, (3, 0, 0));
    assert_eq!(bed.cancel(&order, "ann").await.problem(), "order_not_cancellable");
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p1_sweeper_and_payment_reach_orders_at_the_same_instant() {
    // Charges become possible just when the cutoff is reached: both sides go for the same orders.
    let bed = Setup::default()
        .cutoff_ms(1600)
        .set("payment.max_in_flight", 3)
        .latency_ms(100, 100)
        .start()
        .await;
    let sale = bed.sale(120).await;
    let buyers: Vec<String> = (0..120).map(|n| format!("b{n}")).collect();
    let replies = join_all(buyers.iter().map(|buyer| bed.buy(&sale, buyer, "k", 1))).await;
    assert!(replies.iter().all(|reply| reply.status == 201));
    bed.settled(&sale).await;
    let swept = bed
        .count(
            "SELECT count(*) FROM orders WHERE sale_id = $1 AND failure_reason = 'swept' AND attempt = 0",
            &sale,
        )
        .await;
    assert!(swept > 0, "the race did not happen");
    // The queue works through what was swept, loses every claim, and does nothing.
    eventually("the payment side has lost as many claims", || async {
        let lost = bed
            .metric(
                "fluxbuy_claims_lost_total",
                &["by=\"payment\"", "found=\"failed\""],
            )
            .await;
        lost == swept
    })
    .await;
    let charged = "SELECT count(*) FROM orders o JOIN payments p ON p.order_id = o.id WHERE o.sale_id = $1 AND o.attempt = 0";
    assert_eq!(
        bed.count(charged, &sale).await,
        0,
        "a swept order was never charged"
    );
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_a_charge_whose_answer_is_lost_is_looked_up_and_paid_once() {
    let bed = Setup::default().start().await;
    bed.fault(json!({"mode": "answer_lost"})).await;
    let sale = bed.sale(20).await;
    let buyers: Vec<String> = (0..20).map(|n| format!("b{n}")).collect();
    let replies = join_all(buyers.iter().map(|buyer| bed.buy(&sale, buyer, "k", 1))).await;
    assert!(replies.iter().all(|reply| reply.status == 201));
    bed.settled(&sale).await;
    assert_eq!(bed.stock(&sale).await, (0, 0, 20));
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_a_charge_that_hangs_is_settled_by_asking() {
    let bed = Setup::default().cutoff_ms(3000).start().await;
    bed.fault(json!({"mode": "hang"})).await;
    let sale = bed.sale(1).await;
    let order = bed.order(&sale, "ann", 1).await;
    bed.wait_for_status(&order, "ann", "paid").await;
    assert_eq!(charges(&bed, &order).await.len(), 1);
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p3_a_stored_error_is_looked_up_and_never_looped_on() {
    let bed = Setup::default().start().await;
    bed.fault(json!({"mode": "stored_error"})).await;
    let sale = bed.sale(1).await;
    let order = bed.order(&sale, "ann", 1).await;
    bed.wait_for_status(&order, "ann", "paid").await;
    let charge = &charges(&bed, &order).await[0];
    assert!(charge["requests"].as_u64().unwrap() <= 3, "{charge}");
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p4_an_order_in_doubt_stays_held_until_the_provider_is_back() {
    let bed = Setup::default().cutoff_ms(1500).latency_ms(50, 50).start().await;
    let sale = bed.sale(1).await;
    // The charge is made, its answer lost, and nobody can be asked.
    bed.fault(json!({"mode": "answer_lost"})).await;
    let order = bed.order(&sale, "ann", 1).await;
    eventually("the charge is made", || async {
        !charges(&bed, &order).await.is_empty()
    })
    .await;
    bed.fault(json!({"mode": "down"})).await;
    eventually("it is counted as in doubt", || async {
        bed.metric("fluxbuy_orders_in_doubt", &[]).await == 1
    })
    .await;
    assert_eq!(bed.get_order(&order, "ann").await["status"], "processing");
    assert_eq!(bed.stock(&sale).await, (0, 1, 0));
    assert_eq!(
        bed.buy(&sale, "bob", "k", 1).await.problem(),
        "sold_out",
        "nobody else gets its unit"
    );
    bed.fault(json!({"mode": "none"})).await;
    bed.wait_for_status(&order, "ann", "paid").await;
    eventually("nothing is in doubt", || async {
        bed.metric("fluxbuy_orders_in_doubt", &[]).await == 0
    })
    .await;
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p5_money_that_comes_for_a_failed_order_goes_back_once() {
    // A provider that confirms a void and takes the money all the same.
    let bed = Setup::default()
        .cutoff_ms(1200)
        .latency_ms(4000, 4000)
        .start()
        .await;
    bed.fault(json!({"mode": "ignore_void"})).await;
    let sale = bed.sale(1).await;
    let order = bed.order(&sale, "ann", 1).await;
    bed.wait_for_status(&order, "ann", "failed").await;
    // Its unit is resold meanwhile.
    bed.behave(0, 0, 0).await;
    eventually("bob gets the unit", || async {
        bed.buy(&sale, "bob", "k", 1).await.status == 201
    })
    .await;
    eventually("the money has come", || async {
        charges(&bed, &order).await[0]["status"] == "succeeded"
    })
    .await;
    eventually("the money is back", || async {
        bed.get_order(&order, "ann").await["late_refund"] == "done"
    })
    .await;
    let book = bed.book().await;
    assert_eq!(book["refunds"].as_array().unwrap().len(), 1, "{book}");
    assert_eq!(
        bed.metric("fluxbuy_late_refunds_total", &["stage=\"done\""])
            .await,
        1
    );
    bed.settled(&sale).await;
    assert_eq!(bed.stock(&sale).await, (0, 0, 1), "bob keeps his unit");
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p5_giving_up_on_orders_in_doubt_refunds_what_comes_late() {
    // The operator's switch: past the cutoff nobody waits for the provider.
    let bed = Setup::default()
        .cutoff_ms(1200)
        .set("sweeper.fail_in_doubt", true)
        .start()
        .await;
    let sale = bed.sale(1).await;
    bed.fault(json!({"mode": "answer_lost"})).await;
    let order = bed.order(&sale, "ann", 1).await;
    eventually("the charge is made", || async {
        !charges(&bed, &order).await.is_empty()
    })
    .await;
    bed.fault(json!({"mode": "down"})).await;
    let failed = bed.wait_for_status(&order, "ann", "failed").await;
    assert_eq!(failed["failure_reason"], "swept");
    eventually("the unit is free", || async { bed.stock(&sale).await.0 == 1 }).await;
    bed.fault(json!({"mode": "none"})).await;
    eventually("the money is back", || async {
        bed.get_order(&order, "ann").await["late_refund"] == "done"
    })
    .await;
    let book = bed.book().await;
    assert_eq!(book["refunds"].as_array().unwrap().len(), 1, "{book}");
    assert_eq!(
        bed.metric("fluxbuy_late_refunds_total", &["stage=\"due\""]).await,
        1
    );
    assert_eq!(
        bed.metric("fluxbuy_late_refunds_total", &["stage=\"done\""])
            .await,
        1
    );
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p11_a_batch_with_duplicates_is_applied_for_the_rest() {
    let bed = Setup::default().start().await;
    let sale = bed.sale(100).await;
    let first = bed.buy(&sale, "b0", "k", 1).await.json();
    let buyers: Vec<String> = (0..50).map(|n| format!("b{}", n % 25)).collect();
    let replies = join_all(buyers.iter().map(|buyer| bed.buy(&sale, buyer, "k", 1))).await;
    assert!(replies.iter().all(|reply| reply.status == 201));
    assert!(replies.iter().any(|reply| reply.json()["id"] == first["id"]));
    bed.settled(&sale).await;
    assert_eq!(bed.stock(&sale).await, (75, 0, 25));
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p14_no_transaction_is_open_while_the_provider_is_asked() {
    let bed = Setup::default().latency_ms(1500, 1500).start().await;
    let sale = bed.sale(50).await;
    let buyers: Vec<String> = (0..50).map(|n| format!("b{n}")).collect();
    let replies = join_all(buyers.iter().map(|buyer| bed.buy(&sale, buyer, "k", 1))).await;
    assert!(replies.iter().all(|reply| reply.status == 201));
    eventually("all charges are under way", || async {
        bed.metric("fluxbuy_charges_in_flight", &[]).await == 50
    })
    .await;
    bed.keeps_no_transaction_open().await;
    bed.settled(&sale).await;
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p15_what_must_be_undone_is_written_with_the_change_that_makes_it_due() {
    // Everything that owes a release or a refund has its note in the same commit: they carry one transaction's id.
    // (A pooler's would be the savepoint's.)
    let bed = Setup::default().direct().start_without_charging().await;
    let sale = bed.sale(10).await;
    let order = bed.order(&sale, "ann", 3).await;
    sqlx::query(
        "CREATE TABLE seen AS SELECT o.xmin::text AS orders, o.xmin::text AS note FROM orders o WHERE false",
    )
    .execute(&bed.db)
    .await
    .unwrap();
    // Taken down when the note is made, since the gate is told of it at once.
    sqlx::raw_sql(
        "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
            INSERT INTO seen SELECT o.xmin::text, pg_current_xact_id()::xid::text FROM orders o
            WHERE o.id = NEW.order_id AND o.status = 'FAILED';
            RETURN NEW; END $$;
         CREATE TRIGGER see AFTER INSERT ON gate_releases FOR EACH ROW EXECUTE FUNCTION see();",
    )
    .execute(&bed.db)
    .await
    .unwrap();
    assert_eq!(bed.cancel(&order, "ann").await.status, 200);
    let same: Vec<bool> = sqlx::query_scalar("SELECT orders = note FROM seen")
        .fetch_all(&bed.db)
        .await
        .unwrap();
    assert_eq!(same, [true]);
}

#[tokio::test(flavor = "multi_thread")]
async fn p16_a_provider_that_asks_for_patience_gets_it() {
    let bed = Setup::default().start().await;
    bed.fault(json!({"mode": "rate_limited", "retry_after_secs": 1}))
        .await;
    let sale = bed.sale(5).await;
    let order = bed.order(&sale, "ann", 1).await;
    eventually("it was turned away", || async {
        bed.metric(
            "fluxbuy_provider_requests_total",
            &["op=\"charge\"", "rate_limited"],
        )
        .await
            >= 1
    })
    .await;
    bed.fault(json!({"mode": "none"})).await;
    bed.wait_for_status(&order, "ann", "paid").await;
    assert_eq!(
        charges(&bed, &order).await[0]["requests"],
        1,
        "what was turned away never became a charge"
    );
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p17_a_provider_that_is_down_for_one_currency_is_asked_in_the_others() {
    let bed = Setup::default()
        .set("payment.max_in_flight", 3)
        .set("payment.queue_orders", 8)
        .set("payment.breaker_failures", 3)
        .set("payment.breaker_open_ms", 300)
        .start()
        .await;
    let dollars = bed.list(60, json!({"currency": "USD"})).await;
    let euros = bed.sale(30).await;
    // One is paid, and is going to be paid back while nothing is charged in its currency.
    let paid = bed.order(&dollars, "early", 1).await;
    bed.wait_for_status(&paid, "early", "paid").await;
    bed.fault(json!({"mode": "rate_limited", "currency": "USD", "operations": ["charge"]}))
        .await;
    bed.crowd(&dollars, 40).await;
    eventually("nothing is charged in dollars", || async {
        bed.metric("fluxbuy_provider_breakers_open", &[]).await == 1
    })
    .await;

    // More than fit into their queue: the scan finds them behind all the dollars.
    bed.crowd(&euros, 30).await;
    bed.settled(&euros).await;
    assert_eq!(bed.stock(&euros).await, (0, 0, 30));
    let url = format!("{}/v1/orders/{paid}/refund", bed.url());
    let refund = bed
        .client
        .post(&url, &[("idempotency-key", "r")], &json!({}))
        .await;
    assert_eq!(refund.status, 202, "{}", refund.text());
    bed.wait_for_status(&paid, "early", "refunded").await;
    assert_eq!(bed.stock(&dollars).await, (19, 40, 1), "the dollars wait");

    bed.fault(json!({"mode": "none"})).await;
    bed.settled(&dollars).await;
    assert_eq!(bed.stock(&dollars).await, (19, 0, 41));
    bed.audit(&euros).await;
    bed.audit(&dollars).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p17_look_ups_go_on_while_nothing_is_charged() {
    let bed = Setup::default()
        .cutoff_ms(1500)
        .set("payment.breaker_failures", 2)
        .set("payment.breaker_open_ms", 600_000)
        .start()
        .await;
    let sale = bed.sale(5).await;
    bed.fault(json!({"mode": "answer_lost"})).await;
    bed.crowd(&sale, 5).await;
    // Each is found by a look: the breaker is open for good, and has stopped no look-up.
    eventually("the breaker is open", || async {
        bed.metric("fluxbuy_provider_breakers_open", &[]).await == 1
    })
    .await;
    eventually("what was charged is paid", || async {
        let (_, held, sold) = bed.stock(&sale).await;
        sold >= 2 && held + sold <= 5
    })
    .await;
    bed.settled(&sale).await;
    bed.audit(&sale).await;
}
