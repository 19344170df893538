//! Charging through Stripe: over HTTP, with its signed webhooks, and with its answers lost.

use fluxbuy::domain::{Currency, Money, OrderId, PaymentMethod};
use fluxbuy::provider::stripe::Stripe as Adapter;
use fluxbuy::provider::{
    CaptureOutcome, Charge, ChargeOutcome, Lookup, OpenOutcome, PaymentProvider, Reference, RefundOutcome,
    VoidOutcome,
};
use futures_util::future::join_all;
use serde_json::json;

use crate::support::stripe::{DECLINED, Fault, SECRET_KEY, Stripe, VISA};
use crate::support::{Bed, PATIENCE, Reply, Setup, eventually, fluxbuy};

async fn buy(bed: &Bed, sale: &str, buyer: &str, with: Option<&str>) -> Reply {
    let url = format!("{}/v1/sales/{sale}/orders", bed.url());
    let headers = [("x-buyer-id", buyer), ("idempotency-key", "k")];
    let body = json!({"quantity": 1, "payment_method": with});
    bed.client.post(&url, &headers, &body).await
}

async fn order(bed: &Bed, sale: &str, buyer: &str, with: &str) -> String {
    let reply = buy(bed, sale, buyer, Some(with)).await;
    assert_eq!(reply.status, 201, "{}", reply.text());
    reply.json()["id"].as_str().unwrap().to_owned()
}

/// Orders, ledger and Stripe's own lists agree to the cent.
async fn verify(bed: &Bed, stripe: &Stripe) {
    let out = tokio::process::Command::new(fluxbuy())
        .args(["ledger", "verify"])
        .env("FLUXBUY__POSTGRES__URL", &bed.engine_url)
        .env("FLUXBUY__PROVIDER__KIND", "stripe")
        .env("FLUXBUY__PROVIDER__URL", &stripe.url)
        .env("FLUXBUY__PROVIDER__SECRET_KEY", SECRET_KEY)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && said.contains("ledger: ok"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_are_paid_through_stripe_and_its_webhooks_are_believed() {
    let stripe = Stripe::start().await;
    let bed = stripe.bed(Setup::default()).await;
    let sale = bed.sale(10).await;
    let buyers: Vec<String> = (0..8).map(|n| format!("b{n}")).collect();
    let orders = join_all(buyers.iter().map(|buyer| order(&bed, &sale, buyer, VISA))).await;
    let declined = order(&bed, &sale, "zoe", DECLINED).await;
    bed.settled(&sale).await;
    assert_eq!(bed.stock(&sale).await, (2, 0, 8));
    for order in &orders {
        assert_eq!(stripe.states(order).await, ["succeeded"]);
    }
    let failed = bed.get_order(&declined, "zoe").await;
    assert_eq!(
        (&failed["status"], &failed["failure_reason"]),
        (&json!("failed"), &json!("declined"))
    );
    let code: Option<String> =
        sqlx::query_scalar("SELECT decline_code FROM payments WHERE order_id = $1::uuid")
            .bind(&declined)
            .fetch_one(&bed.db)
            .await
            .unwrap();
    assert_eq!(code.as_deref(), Some("card_declined"));
    eventually("Stripe has told of all of them, and was believed", || async {
        bed.count(
            "SELECT count(*) FROM provider_events e JOIN orders o ON o.id = e.order_id
             WHERE o.sale_id = $1 AND e.provider = 'stripe' AND e.kind = 'payment_intent.succeeded'
               AND e.state IN ('APPLIED', 'NO_CHANGE')",
            &sale,
        )
        .await
            == 8
    })
    .await;
    // Every request is counted, and the calls are what was done there.
    let sent = bed
        .metric("fluxbuy_provider_sends_total", &["end=\"answered\""])
        .await;
    assert_eq!(sent, stripe.arrived());
    for (op, done) in [("open", 9), ("capture", 8), ("lookup", 0), ("void", 0)] {
        let label = format!("op=\"{op}\"");
        let sent = bed.metric("fluxbuy_provider_requests_total", &[&label]).await;
        assert_eq!(sent, done, "{op}");
    }
    verify(&bed, &stripe).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_paid_with_must_be_said() {
    let stripe = Stripe::start().await;
    let bed = stripe.bed(Setup::default()).await;
    let sale = bed.sale(1).await;
    let refused = buy(&bed, &sale, "ann", None).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert_eq!(refused.json()["errors"][0]["field"], "payment_method");
    // One that Stripe doesn't know is declined, and the unit is free again.
    let order = order(&bed, &sale, "bob", "pm_of_nobody").await;
    let failed = bed.wait_for_status(&order, "bob", "failed").await;
    assert_eq!(failed["failure_reason"], "declined");
    assert_eq!(bed.stock(&sale).await, (1, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_lost_on_the_way_charge_nobody_twice() {
    for keys in [true, false] {
        for (what, fault) in [
            ("confirm", Fault::AnswerLost),
            ("confirm", Fault::StoredError),
            ("capture", Fault::AnswerLost),
            ("capture", Fault::StoredError),
        ] {
            let stripe = Stripe::start().await;
            if !keys {
                stripe.ignore_keys();
            }
            let bed = stripe.bed(Setup::default()).await;
            let sale = bed.sale(1).await;
            stripe.fault(what, fault);
            let order = order(&bed, &sale, "ann", VISA).await;
            bed.wait_for_status(&order, "ann", "paid").await;
            assert_eq!(stripe.states(&order).await, ["succeeded"], "{what} {fault:?}");
            assert_eq!((stripe.done("confirm"), stripe.done("capture")), (1, 1));
            verify(&bed, &stripe).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_charge_that_is_opened_twice_is_confirmed_once() {
    let stripe = Stripe::start().await;
    // Stripe has forgotten the key, so that the repeat opens another.
    stripe.ignore_keys();
    let bed = stripe.bed(Setup::default()).await;
    let sale = bed.sale(1).await;
    stripe.fault("open", Fault::AnswerLost);
    let order = order(&bed, &sale, "ann", VISA).await;
    eventually("it was opened, and the answer lost", || async {
        stripe.done("open") >= 1
    })
    .await;
    stripe.heal();
    bed.wait_for_status(&order, "ann", "paid").await;
    let states = stripe.states(&order).await;
    let (last, others) = states.split_last().unwrap();
    assert_eq!(last, "succeeded");
    assert!(!others.is_empty() && others.iter().all(|state| state == "requires_confirmation"));
    assert_eq!((stripe.done("confirm"), stripe.done("capture")), (1, 1));
    verify(&bed, &stripe).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_while_stripe_is_away_is_settled_under_the_name_that_was_written_down() {
    let stripe = Stripe::start().await;
    stripe.ignore_keys();
    let mut bed = stripe.bed(Setup::default().cutoff_ms(1500)).await;
    let sale = bed.sale(2).await;
    // One dies after its confirmation, and one after its capture; nobody can look.
    stripe.fault("confirm", Fault::AnswerLost);
    stripe.fault("look", Fault::Down);
    let first = order(&bed, &sale, "ann", VISA).await;
    eventually("it is confirmed", || async { stripe.done("confirm") == 1 }).await;
    stripe.heal();
    stripe.fault("capture", Fault::AnswerLost);
    stripe.fault("look", Fault::Down);
    let second = order(&bed, &sale, "bob", VISA).await;
    eventually("it is captured", || async { stripe.done("capture") >= 1 }).await;
    bed.engines.remove(0).kill().await;
    stripe.heal();
    bed.start_engine().await;
    bed.settled(&sale).await;
    assert_eq!(bed.get_order(&second, "bob").await["status"], "paid");
    assert_eq!(stripe.states(&second).await, ["succeeded"]);
    // The other was in time, or was let go: never in between.
    let expected = match bed.get_order(&first, "ann").await["status"].as_str().unwrap() {
        "paid" => "succeeded",
        _ => "canceled",
    };
    eventually("what was set aside is taken or let go", || async {
        stripe.states(&first).await == [expected]
    })
    .await;
    verify(&bed, &stripe).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_set_aside_for_an_order_that_was_lost_is_cancelled() {
    let stripe = Stripe::start().await;
    let bed = stripe.bed(Setup::default().cutoff_ms(1200)).await;
    let sale = bed.sale(1).await;
    stripe.fault("confirm", Fault::AnswerLost);
    stripe.fault("look", Fault::Down);
    stripe.fault("cancel", Fault::Down);
    let order = order(&bed, &sale, "ann", VISA).await;
    let failed = bed.wait_for_status(&order, "ann", "failed").await;
    assert_eq!(failed["failure_reason"], "swept");
    assert_eq!(stripe.states(&order).await, ["requires_capture"]);
    stripe.heal();
    eventually("it is cancelled", || async {
        stripe.states(&order).await == ["canceled"]
    })
    .await;
    assert_eq!(stripe.done("capture"), 0);
    verify(&bed, &stripe).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refunds_through_stripe_are_paid_once() {
    let stripe = Stripe::start().await;
    stripe.ignore_keys();
    let bed = stripe.bed(Setup::default()).await;
    let sale = bed.sale(1).await;
    let order = order(&bed, &sale, "ann", VISA).await;
    bed.wait_for_status(&order, "ann", "paid").await;
    let ask = async |key: &str, amount_minor: Option<i64>| {
        let url = format!("{}/v1/orders/{order}/refund", bed.url());
        let body = json!({"amount_minor": amount_minor});
        let reply = bed.client.post(&url, &[("idempotency-key", key)], &body).await;
        assert_eq!(reply.status, 202, "{}", reply.text());
    };
    stripe.fault("refund", Fault::AnswerLost);
    ask("part", Some(300)).await;
    eventually("it was paid, and the answer lost", || async {
        stripe.done("refund") == 1
    })
    .await;
    stripe.heal();
    ask("rest", None).await;
    bed.wait_for_status(&order, "ann", "refunded").await;
    let mut refunds = stripe.refunds().await;
    refunds.sort_unstable();
    assert_eq!(refunds, [300, 700]);
    verify(&bed, &stripe).await;
}

/// The adapter alone, against a Stripe that ignores idempotency keys and pays back more than it took.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_done_is_not_done_again_whatever_stripe_makes_of_keys() {
    let stripe = Stripe::start().await;
    stripe.ignore_keys();
    let adapter = Adapter::new(&stripe.url, SECRET_KEY, PATIENCE, 8).unwrap();
    let money = |amount_minor| Money {
        amount_minor,
        currency: Currency::parse("EUR").unwrap(),
    };
    let order = OrderId::fresh();
    let mut charge = Charge {
        reference: Reference::of(order, 1),
        amount: money(1000),
        payment_method: PaymentMethod::parse(VISA),
        provider_id: None,
    };
    assert_eq!(adapter.lookup(&charge).await, Lookup::NotFound);
    let OpenOutcome::Opened(id) = adapter.open(&charge).await else {
        panic!("it isn't opened")
    };
    charge.provider_id = Some(id);
    assert_eq!(
        adapter.lookup(&charge).await,
        Lookup::NotFound,
        "nothing is set aside"
    );
    assert_eq!(adapter.charge(&charge).await, ChargeOutcome::Authorised);
    let again = adapter.charge(&charge).await;
    assert!(matches!(again, ChargeOutcome::Unknown { .. }), "{again:?}");
    assert_eq!(adapter.lookup(&charge).await, Lookup::Authorised);
    assert_eq!(adapter.capture(&charge).await, CaptureOutcome::Captured);
    let again = adapter.capture(&charge).await;
    assert!(matches!(again, CaptureOutcome::Unknown { .. }), "{again:?}");
    assert_eq!(adapter.lookup(&charge).await, Lookup::Succeeded);
    assert_eq!(adapter.void(&charge).await, VoidOutcome::AlreadySucceeded);

    let name = |number| Reference::of_refund(order, 1, number);
    for _ in 0..3 {
        assert_eq!(
            adapter.refund(&charge, &name(1), money(600)).await,
            RefundOutcome::Refunded
        );
    }
    let too_much = adapter.refund(&charge, &name(2), money(401)).await;
    assert!(matches!(too_much, RefundOutcome::Refused { .. }), "{too_much:?}");
    assert_eq!(
        adapter.refund(&charge, &name(3), money(400)).await,
        RefundOutcome::Refunded
    );
    assert_eq!(stripe.refunds().await.iter().sum::<i64>(), 1000);
    let book = adapter.book(None).await.unwrap();
    assert_eq!((book[0].captured_minor, book[0].refunded_minor), (1000, 1000));

    // Who isn't known there, does nothing there.
    let stranger = Adapter::new(&stripe.url, "nobody", PATIENCE, 8).unwrap();
    assert_eq!(
        stranger.charge(&charge).await,
        ChargeOutcome::NotSent { retry_after: None }
    );
}

/// More charges than fit on a page of Stripe's lists.
#[tokio::test(flavor = "multi_thread")]
async fn the_book_is_read_page_by_page() {
    let stripe = Stripe::start().await;
    let adapter = Adapter::new(&stripe.url, SECRET_KEY, PATIENCE, 8).unwrap();
    for _ in 0..205 {
        let charge = Charge {
            reference: Reference::of(OrderId::fresh(), 1),
            amount: Money {
                amount_minor: 500,
                currency: Currency::parse("EUR").unwrap(),
            },
            payment_method: PaymentMethod::parse(VISA),
            provider_id: None,
        };
        assert!(matches!(adapter.open(&charge).await, OpenOutcome::Opened(_)));
    }
    let book = adapter.book(None).await.unwrap();
    assert_eq!(book.len(), 205);
    assert!(book.iter().all(|entry| entry.captured_minor == 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn stripe_is_reached_over_tls_and_a_stranger_is_told_nothing() {
    let stripe = Stripe::start_with_tls().await;
    let bed = stripe.bed(Setup::default()).await;
    let sale = bed.sale(1).await;
    let order = order(&bed, &sale, "ann", VISA).await;
    bed.wait_for_status(&order, "ann", "paid").await;
    assert_eq!(stripe.states(&order).await, ["succeeded"]);

    // The same address, with a certificate that nobody vouches for: nothing is sent, and the order stays unharmed.
    let other = Stripe::start_with_tls().await;
    let mut bed = stripe.bed(Setup::default().cutoff_ms(1500)).await;
    bed.set("provider.url", &other.url);
    bed.engines.remove(0).kill().await;
    bed.start_engine().await;
    let sale = bed.sale(1).await;
    let url = format!("{}/v1/sales/{sale}/orders", bed.engines[0].url);
    let headers = [("x-buyer-id", "bob"), ("idempotency-key", "k")];
    let body = json!({"quantity": 1, "payment_method": VISA});
    let reply = bed.client.post(&url, &headers, &body).await;
    let order = reply.json()["id"].as_str().unwrap().to_owned();
    let failed = bed.wait_for_status(&order, "bob", "failed").await;
    assert_eq!(failed["failure_reason"], "provider_unavailable");
    assert_eq!(other.done("open") + other.done("look"), 0);
    assert_eq!(bed.stock(&sale).await, (1, 0, 0));
}
