//! Webhooks: believed only when signed, written down before they are answered, and applied once, whenever and however often they come.

use std::time::SystemTime;

use fluxbuy::signature::{Key, Scheme, sign};
use futures_util::future::join_all;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Bed, Reply, Setup, eventually, fluxbuy};

/// Base64 of 24 bytes.
const SECRET: &str = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz";

fn setup() -> Setup {
    Setup::default()
        .set("webhooks.secrets", SECRET)
        .set("webhooks.scan_period_ms", 100)
}

/// A provider that does what it is asked and never answers charges: only its webhooks tell.
async fn silent(setup: Setup, plan: Value) -> Bed {
    let bed = setup.start().await;
    bed.fault(json!({"mode": "hang"})).await;
    talk(&bed, plan).await;
    bed
}

/// Has the provider send webhooks by this plan.
async fn talk(bed: &Bed, mut plan: Value) {
    plan["url"] = json!(format!("{}/v1/webhooks/mock", bed.url()));
    plan["secret"] = json!(SECRET);
    let reply = bed
        .client
        .post(&format!("{}/webhooks", bed.provider_url), &[], &plan)
        .await;
    assert_eq!(reply.status, 200, "{}", reply.text());
}

/// What the provider has sent, once it has no more to send.
async fn sent(bed: &Bed, prefix: &str) -> Vec<Value> {
    let url = format!("{}/webhooks/{prefix}", bed.provider_url);
    eventually("all webhooks are delivered", || async {
        bed.client.get(&url, &[]).await.json()["unfinished"] == 0
    })
    .await;
    let log = bed.client.get(&url, &[]).await.json();
    log["events"].as_array().unwrap().clone()
}

fn event(id: &str, kind: &str, reference: &str, amount_minor: i64) -> Value {
    json!({
        "id": id, "type": kind, "reference": reference, "amount_minor": amount_minor, "currency": "EUR",
    })
}

/// Sends an event as the provider would, in this test's own words.
async fn deliver(bed: &Bed, event: &Value) -> Result<Reply, String> {
    let body = event.to_string();
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs() as i64;
    let key = Key::parse(Scheme::Standard, SECRET).unwrap();
    let headers = sign(
        Scheme::Standard,
        &key,
        event["id"].as_str().unwrap(),
        now,
        body.as_bytes(),
    );
    let headers: Vec<(&str, &str)> = headers
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let engine = bed.engines.last().unwrap();
    bed.client
        .try_post(&format!("{}/v1/webhooks/mock", engine.url), &headers, event)
        .await
}

async fn one<T>(bed: &Bed, query: &'static str, id: &str) -> T
where
    T: Send + Unpin,
    (T,): for<'r> sqlx::FromRow<'r, sqlx::postgres::PgRow>,
{
    sqlx::query_scalar(query)
        .bind(id)
        .fetch_one(&bed.db)
        .await
        .unwrap()
}

/// What became of an event.
async fn state(bed: &Bed, event: &str) -> String {
    one(
        bed,
        "SELECT state FROM provider_events WHERE event_id = $1",
        event,
    )
    .await
}

async fn ends_as(bed: &Bed, event: &str, wanted: &str) {
    eventually(wanted, || async { state(bed, event).await == wanted }).await;
}

async fn nothing_is_due(bed: &Bed) {
    eventually("nothing is due", || async {
        bed.metric("fluxbuy_webhook_events_due", &[]).await == 0
            && one::<i64>(
                bed,
                "SELECT count(*) FROM provider_events WHERE state = $1",
                "DUE",
            )
            .await
                == 0
    })
    .await;
}

async fn charges_in_ledger(bed: &Bed, order: &str) -> i64 {
    let of = "SELECT count(*) FROM ledger_entries WHERE order_id = $1::uuid AND kind = 'CHARGE'";
    one(bed, of, order).await
}

#[tokio::test(flavor = "multi_thread")]
async fn p7_the_same_webhook_many_times_is_one_effect_and_every_repeat_is_counted() {
    for (copies, gap_min_ms, gap_max_ms) in [(2, 40, 120), (20, 40, 120), (200, 0, 0)] {
        let plan = json!({
            "copies_min": copies, "copies_max": copies, "gap_min_ms": gap_min_ms, "gap_max_ms": gap_max_ms,
        });
        let bed = silent(setup(), plan).await;
        let sale = bed.sale(1).await;
        let order = bed.order(&sale, "ann", 1).await;
        bed.wait_for_status(&order, "ann", "paid").await;
        let events = sent(&bed, &order).await;
        let requests: Vec<&Value> = events
            .iter()
            .flat_map(|event| event["requests"].as_array().unwrap())
            .collect();
        // The charge's beginning, and its success.
        assert_eq!(requests.len(), 2 * copies);
        assert!(requests.iter().all(|request| request[1] == 200), "{requests:?}");
        assert_eq!(charges_in_ledger(&bed, &order).await, 1);
        let seen =
            "SELECT deliveries FROM provider_events WHERE order_id = $1::uuid AND kind = 'charge.succeeded'";
        assert_eq!(one::<i32>(&bed, seen, &order).await, copies as i32);
        let repeats = ["kind=\"succeeded\"", "result=\"duplicate\""];
        assert_eq!(
            bed.metric("fluxbuy_webhook_deliveries_total", &repeats).await,
            copies as i64 - 1
        );
        bed.fault(json!({"mode": "none"})).await;
        bed.audit(&sale).await;
        if copies == 20 {
            the_command_counts_them(&bed, copies as i64).await;
        }
    }
}

/// `fluxbuy webhooks retries` says how often the provider repeated itself, and after how long.
async fn the_command_counts_them(bed: &Bed, copies: i64) {
    let out = tokio::process::Command::new(fluxbuy())
        .args(["webhooks", "retries", "--by", "day", "--json"])
        .env("FLUXBUY__POSTGRES__URL", &bed.engine_url)
        .output()
        .await
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let days: Vec<Value> = serde_json::from_slice(&out.stdout).unwrap();
    let day = days
        .iter()
        .find(|day| day["kind"] == "charge.succeeded")
        .expect("a row for the kind");
    assert_eq!(
        (
            &day["provider"],
            &day["deliveries"],
            &day["events"],
            &day["repeats"]
        ),
        (&json!("mock"), &json!(copies), &json!(1), &json!(copies - 1))
    );
    let gap = day["gap_p50_secs"].as_f64().unwrap();
    assert!((0.02..1.0).contains(&gap), "{gap}");
}

#[tokio::test(flavor = "multi_thread")]
async fn p8_two_different_events_about_one_charge_are_one_ledger_row() {
    let bed = silent(setup(), json!({"echo": true})).await;
    let sale = bed.sale(1).await;
    let order = bed.order(&sale, "ann", 1).await;
    bed.wait_for_status(&order, "ann", "paid").await;
    assert_eq!(sent(&bed, &order).await.len(), 3);
    eventually("both events have come to their end", || async {
        let settled = "SELECT count(*) FROM provider_events
                       WHERE order_id = $1::uuid AND news = 'SUCCEEDED' AND state IN ('APPLIED', 'NO_CHANGE')";
        one::<i64>(&bed, settled, &order).await == 2
    })
    .await;
    assert_eq!(charges_in_ledger(&bed, &order).await, 1);
    bed.fault(json!({"mode": "none"})).await;
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p6_what_comes_late_or_in_the_wrong_order_leaves_a_paid_order_paid() {
    let bed = setup().start().await;
    // Events come late by up to half a second, each by its own time.
    talk(
        &bed,
        json!({"delay_max_ms": 500, "copies_min": 1, "copies_max": 5, "echo": true}),
    )
    .await;
    let sale = bed.sale(30).await;
    let replies = bed.crowd(&sale, 30).await;
    bed.settled(&sale).await;
    sent(&bed, "").await;
    let order = replies[0].json()["id"].as_str().unwrap().to_owned();
    for (id, kind) in [
        ("late_no", "charge.declined"),
        ("late_void", "charge.voided"),
        ("late_yes", "charge.succeeded"),
    ] {
        let told = event(id, kind, &format!("{order}:1"), 1000);
        assert_eq!(deliver(&bed, &told).await.unwrap().status, 200);
        ends_as(&bed, id, "NO_CHANGE").await;
    }
    nothing_is_due(&bed).await;
    assert_eq!(bed.stock(&sale).await, (0, 0, 30));
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p6_the_news_of_an_attempt_that_is_not_the_current_one_moves_nothing() {
    let bed = silent(setup(), json!({"lost_percent": 100})).await;
    let sale = bed.sale(1).await;
    let order = bed.order(&sale, "ann", 1).await;
    bed.wait_for_status(&order, "ann", "processing").await;
    // As if a second attempt were under way: what is told of the first one is old.
    sqlx::query("UPDATE orders SET attempt = 2 WHERE id = $1::uuid")
        .bind(&order)
        .execute(&bed.db)
        .await
        .unwrap();
    let told = event("old_no", "charge.declined", &format!("{order}:1"), 1000);
    assert_eq!(deliver(&bed, &told).await.unwrap().status, 200);
    ends_as(&bed, "old_no", "NO_CHANGE").await;
    assert_eq!(bed.get_order(&order, "ann").await["status"], "processing");
    // Its money is nobody's: it goes back, once, and the order waits for its own attempt.
    for id in ["old_yes", "old_yes_again"] {
        let told = event(id, "charge.succeeded", &format!("{order}:1"), 1000);
        assert_eq!(deliver(&bed, &told).await.unwrap().status, 200);
    }
    eventually("the old attempt's money is back", || async {
        bed.book().await["refunds"].as_array().unwrap().len() == 1
    })
    .await;
    nothing_is_due(&bed).await;
    assert_eq!(charges_in_ledger(&bed, &order).await, 1);
    assert_eq!(bed.get_order(&order, "ann").await["status"], "processing");
}

#[tokio::test(flavor = "multi_thread")]
async fn p9_a_webhook_that_comes_before_its_charge_is_kept_and_applied() {
    // One charge at a time, and the first one hangs: the second order waits, and its webhook comes first.
    let bed = setup().set("payment.max_in_flight", 1).start().await;
    bed.fault(json!({"mode": "hang"})).await;
    let sale = bed.sale(2).await;
    let first = bed.order(&sale, "ann", 1).await;
    bed.wait_for_status(&first, "ann", "processing").await;
    let order = bed.order(&sale, "bob", 1).await;
    let told = event("early", "charge.succeeded", &format!("{order}:1"), 1000);
    assert_eq!(deliver(&bed, &told).await.unwrap().status, 200);
    eventually("it was tried and parked", || async {
        let tries: i32 = one(
            &bed,
            "SELECT tries FROM provider_events WHERE event_id = $1",
            "early",
        )
        .await;
        tries > 1
    })
    .await;
    assert_eq!(state(&bed, "early").await, "DUE");
    bed.fault(json!({"mode": "none"})).await;
    bed.wait_for_status(&order, "bob", "paid").await;
    eventually("it has come to its end", || async {
        ["APPLIED", "NO_CHANGE"].contains(&state(&bed, "early").await.as_str())
    })
    .await;
    assert_eq!(charges_in_ledger(&bed, &order).await, 1);
    bed.settled(&sale).await;
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p9_a_webhook_for_an_order_that_never_existed_is_kept_and_reported() {
    let bed = setup().set("webhooks.event_tries", 3).start().await;
    let nobody = Uuid::now_v7();
    let told = event("stray", "charge.succeeded", &format!("{nobody}:1"), 1000);
    assert_eq!(deliver(&bed, &told).await.unwrap().status, 200);
    ends_as(&bed, "stray", "GIVEN_UP").await;
    assert_eq!(
        bed.metric("fluxbuy_webhook_events_total", &["end=\"given_up\""])
            .await,
        1
    );
    // A kind that nobody knows, and one that is about nothing of ours: stored, and that is all.
    let strange = json!({"id": "strange", "type": "payout.paid", "more": [1, 2]});
    assert_eq!(deliver(&bed, &strange).await.unwrap().status, 200);
    ends_as(&bed, "strange", "IGNORED").await;
    let foreign = event("foreign", "charge.succeeded", "somebody else's", 1000);
    assert_eq!(deliver(&bed, &foreign).await.unwrap().status, 200);
    ends_as(&bed, "foreign", "IGNORED").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_says_another_amount_is_not_believed_blindly() {
    let bed = silent(setup(), json!({"lost_percent": 100})).await;
    let sale = bed.sale(1).await;
    let order = bed.order(&sale, "ann", 1).await;
    bed.wait_for_status(&order, "ann", "processing").await;
    let told = event("cheap", "charge.succeeded", &format!("{order}:1"), 999);
    assert_eq!(deliver(&bed, &told).await.unwrap().status, 200);
    ends_as(&bed, "cheap", "GIVEN_UP").await;
    assert_eq!(charges_in_ledger(&bed, &order).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn p10_what_could_not_be_written_down_is_refused_and_applied_when_it_comes_again() {
    let bed = silent(setup().linked(), json!({"lost_percent": 100})).await;
    let sale = bed.sale(1).await;
    let order = bed.order(&sale, "ann", 1).await;
    bed.wait_for_status(&order, "ann", "processing").await;
    let link = bed.link.as_ref().unwrap();
    link.cut();
    let told = event("again", "charge.succeeded", &format!("{order}:1"), 1000);
    let refused = deliver(&bed, &told).await.unwrap();
    assert_eq!((refused.status, refused.problem().as_str()), (503, "unavailable"));
    link.mend();
    let seen = "SELECT count(*) FROM provider_events WHERE event_id = $1";
    assert_eq!(
        one::<i64>(&bed, seen, "again").await,
        0,
        "nothing is marked as seen"
    );
    eventually("it is taken", || async {
        deliver(&bed, &told).await.unwrap().status == 200
    })
    .await;
    bed.wait_for_status(&order, "ann", "paid").await;
    // The order is paid before the event is noted as applied.
    ends_as(&bed, "again", "APPLIED").await;
    assert_eq!(charges_in_ledger(&bed, &order).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn p11_a_batch_of_deliveries_with_duplicates_is_stored_for_the_rest() {
    let bed = setup().start().await;
    let events: Vec<Value> = (0..200)
        .map(|n| json!({"id": format!("e{}", n % 50), "type": "payout.paid"}))
        .collect();
    let replies = join_all(events.iter().map(|event| deliver(&bed, event))).await;
    let told: Vec<String> = replies
        .into_iter()
        .map(|reply| {
            let reply = reply.unwrap();
            assert_eq!(reply.status, 200, "{}", reply.text());
            reply.json()["received"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(told.iter().filter(|received| *received == "first").count(), 50);
    let deliveries = "SELECT sum(deliveries) FROM provider_events WHERE kind = $1";
    assert_eq!(one::<i64>(&bed, deliveries, "payout.paid").await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn p13_what_is_not_signed_is_refused_and_counted_by_reason() {
    let bed = silent(setup(), json!({"forged_percent": 100})).await;
    let sale = bed.sale(1).await;
    let order = bed.order(&sale, "ann", 1).await;
    bed.wait_for_status(&order, "ann", "paid").await;
    let events = sent(&bed, &order).await;
    for event in &events {
        assert_eq!(event["forged"][0][1], 401, "{event}");
    }
    let refused = |reason| {
        let label = format!("reason=\"{reason}\"");
        let bed = &bed;
        async move { bed.metric("fluxbuy_webhooks_refused_total", &[&label]).await }
    };
    assert_eq!(refused("mismatch").await, events.len() as i64);

    let url = format!("{}/v1/webhooks/mock", bed.url());
    let unsigned = bed.client.post(&url, &[], &json!({"id": "x", "type": "y"})).await;
    assert_eq!(
        (unsigned.status, unsigned.problem().as_str()),
        (401, "webhook_unverified")
    );
    assert_eq!(refused("missing").await, 1);
    let elsewhere = format!("{}/v1/webhooks/nobody", bed.url());
    assert_eq!(bed.client.post(&elsewhere, &[], &json!({})).await.status, 404);
    assert_eq!(refused("unknown_provider").await, 1);
    let told = json!({"id": "two words", "type": "y"});
    assert_eq!(deliver(&bed, &told).await.unwrap().status, 400);
    assert_eq!(refused("unreadable").await, 1);
    bed.fault(json!({"mode": "none"})).await;
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decline_that_only_the_webhook_tells_gives_the_unit_back() {
    let bed = silent(setup().decline_percent(100), json!({})).await;
    let sale = bed.sale(1).await;
    let order = bed.order(&sale, "ann", 1).await;
    let failed = bed.wait_for_status(&order, "ann", "failed").await;
    assert_eq!(failed["failure_reason"], "declined");
    assert_eq!(bed.stock(&sale).await, (1, 0, 0));
    bed.fault(json!({"mode": "none"})).await;
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p5_late_money_that_only_the_webhook_tells_of_goes_back_once() {
    // A provider that confirms a void, takes the money all the same, and tells of it by webhook, four times.
    let setup = setup().cutoff_ms(1200).latency_ms(3000, 3000);
    let bed = setup.start().await;
    bed.fault(json!({"mode": "ignore_void"})).await;
    talk(
        &bed,
        json!({"copies_min": 4, "copies_max": 4, "gap_min_ms": 5, "gap_max_ms": 5}),
    )
    .await;
    let sale = bed.sale(1).await;
    let order = bed.order(&sale, "ann", 1).await;
    bed.wait_for_status(&order, "ann", "failed").await;
    eventually("the money is back", || async {
        bed.get_order(&order, "ann").await["late_refund"] == "done"
    })
    .await;
    sent(&bed, &order).await;
    let book = bed.book().await;
    assert_eq!(book["refunds"].as_array().unwrap().len(), 1, "{book}");
    assert_eq!(
        bed.metric("fluxbuy_late_refunds_total", &["stage=\"done\""])
            .await,
        1
    );
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_a_crash_left_is_applied_by_whoever_comes_next() {
    let mut bed = silent(setup(), json!({"lost_percent": 100})).await;
    let sale = bed.sale(1).await;
    let order = bed.order(&sale, "ann", 1).await;
    bed.wait_for_status(&order, "ann", "processing").await;
    // It was written down, and its engine died with it on loan.
    sqlx::query(
        "INSERT INTO provider_events (provider, event_id, kind, news, order_id, attempt, body, deliveries, tries, due_at)
         VALUES ('mock', 'left', 'charge.succeeded', 'SUCCEEDED', $1::uuid, 1, '{}', 1, 1, clock_timestamp() + interval '1 second')",
    )
    .bind(&order)
    .execute(&bed.db)
    .await
    .unwrap();
    bed.engines.remove(0).kill().await;
    bed.start_engine().await;
    bed.wait_for_status(&order, "ann", "paid").await;
    let by = "SELECT count(*) FROM ledger_entries WHERE provider_event_id = $1";
    assert_eq!(one::<i64>(&bed, by, "left").await, 1);
    bed.settled(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orders_whole_life_can_be_traced() {
    let bed = setup().latency_ms(100, 100).start().await;
    talk(
        &bed,
        json!({"copies_min": 2, "copies_max": 2, "gap_min_ms": 40, "gap_max_ms": 120}),
    )
    .await;
    let sale = bed.sale(2).await;
    let order = bed.order(&sale, "ann", 2).await;
    bed.wait_for_status(&order, "ann", "paid").await;
    // What comes too late is told as well.
    let late = event("late", "charge.declined", &format!("{order}:1"), 2000);
    assert_eq!(deliver(&bed, &late).await.unwrap().status, 200);
    ends_as(&bed, "late", "NO_CHANGE").await;
    let refund = bed
        .client
        .post(
            &format!("{}/v1/orders/{order}/refund", bed.url()),
            &[("idempotency-key", "r")],
            &json!({"return_units": true}),
        )
        .await;
    assert_eq!(refund.status, 202, "{}", refund.text());
    bed.wait_for_status(&order, "ann", "refunded").await;
    sent(&bed, &order).await;
    nothing_is_due(&bed).await;
    let out = tokio::process::Command::new(fluxbuy())
        .args(["trace", &order])
        .env("FLUXBUY__POSTGRES__URL", &bed.engine_url)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let lines: Vec<&str> = said.lines().collect();
    let times: Vec<&str> = lines.iter().map(|line| line.split_once(' ').unwrap().0).collect();
    assert!(times.is_sorted(), "{said}");
    assert!(
        times
            .iter()
            .all(|time| time.len() == "2026-12-02T21:00:00.000Z".len()),
        "{said}"
    );
    let taken = lines.iter().find(|line| line.contains("taken: "));
    assert!(
        taken.is_some_and(|line| line.contains(&format!("in sale {sale}, request "))),
        "{said}"
    );
    for wanted in [
        "taken: 2 units for 2000 by buyer ann",
        "RESERVE -2",
        "claim by payment: PROCESSING, attempt 1, fence 1",
        ": PAID, attempt 1, fence 1",
        "CHARGE 2000 EUR, attempt 1",
        "charge.declined late of mock, request ",
        "charge.declined late: NO_CHANGE after 1 tries",
        "1 promised: 2000, requested, with the units",
        "REFUND 2000 EUR, attempt 1, refund 1",
        "refunded_and_returned by seller: REFUNDED, attempt 1, fence 1",
        "RELEASE +2",
    ] {
        assert_eq!(said.matches(wanted).count(), 1, "{wanted}: {said}");
    }
    assert_eq!(
        said.matches("charge.succeeded evt").count(),
        3,
        "two deliveries and an end: {said}"
    );
    let nobody = tokio::process::Command::new(fluxbuy())
        .args(["trace", &Uuid::now_v7().to_string()])
        .env("FLUXBUY__POSTGRES__URL", &bed.engine_url)
        .output()
        .await
        .unwrap();
    assert!(!nobody.status.success());
}

/// In two steps: an order that failed by a webhook while its charge was under way, with no work left that would look again.
async fn lost_while_charging(bed: &Bed, sale: &str) -> String {
    let order = bed.order(sale, "ann", 1).await;
    bed.wait_for_status(&order, "ann", "processing").await;
    let told = event("let_go", "charge.voided", &format!("{order}:1"), 1000);
    assert_eq!(deliver(bed, &told).await.unwrap().status, 200);
    bed.wait_for_status(&order, "ann", "failed").await;
    sqlx::query("DELETE FROM provider_tasks")
        .execute(&bed.db)
        .await
        .unwrap();
    order
}

async fn charge_is(bed: &Bed, order: &str, status: &str) {
    let url = format!("{}/book/{order}:1", bed.provider_url);
    eventually(&format!("the charge is {status}"), || async {
        bed.client.get(&url, &[]).await.json()["charges"][0]["status"] == status
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_authorisation_comes_for_a_failed_order_lets_it_go() {
    let bed = setup()
        .set("provider.two_step", true)
        .latency_ms(1500, 1500)
        .start()
        .await;
    let sale = bed.sale(1).await;
    let order = lost_while_charging(&bed, &sale).await;
    charge_is(&bed, &order, "voided").await;
    assert_eq!(bed.book().await["totals"]["captured_minor"], 0);
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authorisation_for_a_failed_order_that_only_the_webhook_tells_of_is_let_go() {
    let bed = silent(
        setup().set("provider.two_step", true),
        json!({"lost_percent": 100}),
    )
    .await;
    let sale = bed.sale(1).await;
    let order = lost_while_charging(&bed, &sale).await;
    charge_is(&bed, &order, "authorised").await;
    for (id, applied) in [("first", "APPLIED"), ("second", "APPLIED")] {
        let told = event(id, "charge.authorised", &format!("{order}:1"), 1000);
        assert_eq!(deliver(&bed, &told).await.unwrap().status, 200);
        ends_as(&bed, id, applied).await;
        charge_is(&bed, &order, "voided").await;
    }
    assert_eq!(bed.book().await["totals"]["captured_minor"], 0);
    bed.audit(&sale).await;
}

/// What a line of the log says under this name, in itself or in the spans around it.
fn said<'a>(line: &'a Value, name: &str) -> Option<&'a Value> {
    let spans = line["spans"].as_array().into_iter().flatten();
    spans
        .chain([&line["fields"]])
        .filter_map(|fields| fields.get(name))
        .next_back()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_line_about_an_order_says_which_request_charge_and_event_it_is_about() {
    let bed = setup().set("log.format", "json").start().await;
    talk(&bed, json!({})).await;
    bed.fault(json!({"mode": "answer_lost"})).await;
    let sale = bed.sale(1).await;
    let headers = [
        ("x-buyer-id", "ann"),
        ("idempotency-key", "k"),
        ("x-request-id", "buys/1"),
    ];
    let bought = bed
        .client
        .post(
            &format!("{}/v1/sales/{sale}/orders", bed.url()),
            &headers,
            &json!({"quantity": 1}),
        )
        .await;
    let order = bought.json()["id"].as_str().unwrap().to_owned();
    bed.wait_for_status(&order, "ann", "paid").await;
    sent(&bed, &order).await;
    nothing_is_due(&bed).await;
    bed.fault(json!({"mode": "none"})).await;
    let refund = bed
        .client
        .post(
            &format!("{}/v1/orders/{order}/refund", bed.url()),
            &[("idempotency-key", "r"), ("x-request-id", "refunds/1")],
            &json!({}),
        )
        .await;
    assert_eq!(refund.status, 202, "{}", refund.text());
    bed.wait_for_status(&order, "ann", "refunded").await;

    let log = bed.engines[0].log();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    for line in &lines {
        let time = line["timestamp"].as_str().unwrap();
        assert_eq!(time.len(), "2026-12-02T21:00:00.000Z".len(), "{line}");
        assert!(time.ends_with('Z'), "{line}");
    }
    let about = |message: &str| -> Vec<&Value> {
        let found: Vec<&Value> = lines
            .iter()
            .filter(|line| line["fields"]["message"] == message)
            .collect();
        assert!(!found.is_empty(), "no line says: {message}\n{log}");
        found
    };
    for (message, request, event) in [
        ("a charge is in doubt", Some("buys/1"), false),
        ("an event is handled", None, true),
        ("a refund is due", Some("refunds/1"), false),
    ] {
        for line in about(message) {
            assert_eq!(said(line, "order_id"), Some(&json!(order)), "{line}");
            match request {
                Some(request) => assert_eq!(said(line, "request_id"), Some(&json!(request)), "{line}"),
                None => assert!(said(line, "request_id").is_some(), "{line}"),
            }
            assert!(
                message == "a refund is due" || said(line, "attempt") == Some(&json!(1)),
                "{line}"
            );
            assert_eq!(said(line, "event_id").is_some(), event, "{line}");
        }
    }
    // And whatever else is about the order says so.
    for line in lines.iter().filter(|line| line.to_string().contains(&order)) {
        assert_eq!(said(line, "order_id"), Some(&json!(order)), "{line}");
    }
    let request: String = one(&bed, "SELECT request_id FROM orders WHERE id = $1::uuid", &order).await;
    assert_eq!(request, "buys/1");
}
