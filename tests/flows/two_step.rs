//! Payments in two steps: money is set aside first, and taken only when the order can't be lost any more.

use serde_json::{Value, json};

use crate::support::{Bed, Setup, eventually};

fn two_step() -> Setup {
    Setup::default().set("provider.two_step", true)
}

/// What the provider has under an order's first attempt.
async fn charge(bed: &Bed, order: &str) -> Value {
    let url = format!("{}/book/{order}:1", bed.provider_url);
    bed.client.get(&url, &[]).await.json()["charges"][0].clone()
}

async fn charge_becomes(bed: &Bed, order: &str, status: &str) {
    eventually(&format!("the charge is {status}"), || async {
        charge(bed, order).await["status"] == status
    })
    .await;
}

/// The provider does nothing that is asked of it under these names.
async fn unreachable_for(bed: &Bed, operations: &[&str]) {
    bed.fault(json!({"mode": "down", "operations": operations})).await;
}

async fn heal(bed: &Bed) {
    bed.fault(json!({"mode": "none"})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn money_is_set_aside_and_then_captured() {
    let bed = two_step().latency_ms(20, 50).start().await;
    let sale = bed.sale(30).await;
    bed.crowd(&sale, 30).await;
    bed.settled(&sale).await;
    assert_eq!(bed.stock(&sale).await, (0, 0, 30));
    let captures = bed
        .metric(
            "fluxbuy_provider_requests_total",
            &["op=\"capture\"", "outcome=\"succeeded\""],
        )
        .await;
    assert_eq!(captures, 30);
    let steps: Vec<String> = sqlx::query_scalar(
        "SELECT DISTINCT string_agg(event || ' ' || status, ', ' ORDER BY at) FROM order_transitions GROUP BY order_id",
    )
    .fetch_all(&bed.db)
    .await
    .unwrap();
    assert_eq!(
        steps,
        ["claim PROCESSING, authorised CAPTURING, charge_succeeded PAID"]
    );
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declined_authorisation_gives_the_unit_back() {
    let bed = two_step().decline_percent(100).start().await;
    let sale = bed.sale(1).await;
    let order = bed.order(&sale, "ann", 1).await;
    let failed = bed.wait_for_status(&order, "ann", "failed").await;
    assert_eq!(failed["failure_reason"], "declined");
    assert_eq!(bed.stock(&sale).await, (1, 0, 0));
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_captured_before_the_capture_is_written_down() {
    let bed = two_step().cutoff_ms(1500).start().await;
    sqlx::raw_sql(
        "CREATE FUNCTION refuse_capture() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            RAISE EXCEPTION 'not now' USING ERRCODE = 'check_violation'; END $$;
         CREATE TRIGGER refuse_capture BEFORE UPDATE ON orders FOR EACH ROW WHEN (NEW.status = 'CAPTURING')
            EXECUTE FUNCTION refuse_capture();",
    )
    .execute(&bed.db)
    .await
    .unwrap();
    let sale = bed.sale(1).await;
    let order = bed.order(&sale, "ann", 1).await;
    // The holder and two passes of the sweeper have tried.
    eventually("the claim was taken over twice", || async {
        let fence: i32 = sqlx::query_scalar("SELECT fence FROM orders WHERE id = $1::uuid")
            .bind(&order)
            .fetch_one(&bed.db)
            .await
            .unwrap();
        fence >= 3
    })
    .await;
    assert_eq!(charge(&bed, &order).await["status"], "authorised");
    let captures = bed
        .metric("fluxbuy_provider_requests_total", &["op=\"capture\""])
        .await;
    assert_eq!(captures, 0);
    sqlx::raw_sql("DROP TRIGGER refuse_capture ON orders")
        .execute(&bed.db)
        .await
        .unwrap();
    bed.wait_for_status(&order, "ann", "paid").await;
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_in_doubt_fails_at_the_cutoff_and_what_was_set_aside_is_let_go() {
    // Without the operator's switch: nothing can have been taken.
    let bed = two_step().cutoff_ms(1200).start().await;
    let sale = bed.sale(1).await;
    bed.fault(json!({"mode": "answer_lost"})).await;
    let order = bed.order(&sale, "ann", 1).await;
    charge_becomes(&bed, &order, "authorised").await;
    bed.fault(json!({"mode": "down"})).await;
    let failed = bed.wait_for_status(&order, "ann", "failed").await;
    assert_eq!(failed["failure_reason"], "swept");
    assert_eq!(charge(&bed, &order).await["status"], "authorised");
    heal(&bed).await;
    eventually("bob gets the unit", || async {
        bed.buy(&sale, "bob", "k", 1).await.status == 201
    })
    .await;
    charge_becomes(&bed, &order, "voided").await;
    bed.settled(&sale).await;
    let book = bed.book().await;
    assert_eq!(
        book["totals"]["captured_minor"], 1000,
        "only bob has paid: {book}"
    );
    assert_eq!(book["refunds"], json!([]));
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn money_that_is_set_aside_after_a_confirmed_void_is_let_go() {
    let bed = two_step().cutoff_ms(1000).latency_ms(2500, 2500).start().await;
    bed.fault(json!({"mode": "ignore_void"})).await;
    let sale = bed.sale(1).await;
    let order = bed.order(&sale, "ann", 1).await;
    bed.wait_for_status(&order, "ann", "failed").await;
    charge_becomes(&bed, &order, "authorised").await;
    charge_becomes(&bed, &order, "voided").await;
    assert_eq!(bed.book().await["totals"]["captured_minor"], 0);
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capture_whose_answer_is_lost_is_looked_up_and_made_once() {
    for mode in ["answer_lost", "stored_error", "hang"] {
        let bed = two_step().cutoff_ms(3000).start().await;
        bed.fault(json!({"mode": mode, "operations": ["capture"]})).await;
        let sale = bed.sale(10).await;
        bed.crowd(&sale, 10).await;
        bed.settled(&sale).await;
        assert_eq!(bed.stock(&sale).await, (0, 0, 10), "{mode}");
        bed.audit(&sale).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn once_money_may_be_captured_time_never_fails_an_order() {
    // Not even with the operator's switch.
    let mut bed = two_step()
        .cutoff_ms(1000)
        .set("sweeper.fail_in_doubt", true)
        .start()
        .await;
    let sale = bed.sale(1).await;
    unreachable_for(&bed, &["capture", "lookup", "void"]).await;
    let order = bed.order(&sale, "ann", 1).await;
    bed.wait_for_status(&order, "ann", "capturing").await;
    eventually("the sweeper has tried", || async {
        bed.metric("fluxbuy_orders_in_doubt", &[]).await == 1
    })
    .await;
    assert_eq!(bed.cancel(&order, "ann").await.problem(), "order_not_cancellable");
    assert_eq!(bed.get_order(&order, "ann").await["status"], "capturing");
    assert_eq!(bed.stock(&sale).await, (0, 1, 0));
    assert_eq!(bed.buy(&sale, "bob", "k", 1).await.problem(), "sold_out");

    // Nor does a crash.
    bed.engines.remove(0).kill().await;
    bed.start_engine().await;
    heal(&bed).await;
    bed.wait_for_status(&order, "ann", "paid").await;
    assert_eq!(charge(&bed, &order).await["requests"], 1);
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_provider_has_let_go_of_fails_the_order() {
    let bed = two_step().cutoff_ms(1000).start().await;
    let sale = bed.sale(1).await;
    unreachable_for(&bed, &["capture"]).await;
    let order = bed.order(&sale, "ann", 1).await;
    bed.wait_for_status(&order, "ann", "capturing").await;
    let url = format!("{}/charges/{order}:1/void", bed.provider_url);
    bed.client.post(&url, &[], &Value::Null).await;
    let failed = bed.wait_for_status(&order, "ann", "failed").await;
    assert_eq!(failed["failure_reason"], "declined");
    eventually("the unit is free", || async { bed.stock(&sale).await.0 == 1 }).await;
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn how_a_charge_was_begun_outlives_the_setting() {
    // Begun in one step, swept by an engine that charges in two: the money may be there, so it stays held.
    let mut bed = Setup::default().cutoff_ms(1200).start().await;
    let sale = bed.sale(1).await;
    bed.fault(json!({"mode": "answer_lost"})).await;
    let order = bed.order(&sale, "ann", 1).await;
    charge_becomes(&bed, &order, "succeeded").await;
    bed.fault(json!({"mode": "down"})).await;
    bed.engines.remove(0).kill().await;
    bed.set("provider.two_step", "true");
    bed.start_engine().await;
    eventually("the sweeper has tried", || async {
        bed.metric("fluxbuy_orders_in_doubt", &[]).await == 1
    })
    .await;
    assert_eq!(bed.get_order(&order, "ann").await["status"], "processing");
    heal(&bed).await;
    bed.wait_for_status(&order, "ann", "paid").await;
    bed.audit(&sale).await;
}
