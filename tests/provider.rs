//! The mock provider and its client, over real sockets: four ways for a charge to end, each told truthfully, whatever goes wrong.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fluxbuy::domain::{Currency, Money, OrderId};
use fluxbuy::mock_provider::{Args, serve};
use fluxbuy::provider::mock::MockProvider;
use fluxbuy::provider::{
    CaptureOutcome, Charge, ChargeOutcome, Lookup, PaymentProvider, Reference, RefundOutcome, VoidOutcome,
};
use fluxbuy::sockets::listen;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// How long a call may take where the test isn't about that.
const GENEROUS: Duration = Duration::from_secs(20);
/// How long it may take where no answer comes.
const SHORT: Duration = Duration::from_millis(300);

struct Bed {
    url: String,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Bed {
    fn start(latency_ms: u64, decline_percent: u8) -> Self {
        let listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let args = Args {
            listen: ([127, 0, 0, 1], 0).into(),
            seed: 1,
            latency_min_ms: latency_ms,
            latency_max_ms: latency_ms,
            decline_percent,
        };
        let server = tokio::spawn(async move { serve(&args, listener).await });
        Self { url, server }
    }

    fn client(&self) -> MockProvider {
        MockProvider::new(&self.url, GENEROUS, 64, false).unwrap()
    }

    fn in_two_steps(&self) -> MockProvider {
        MockProvider::new(&self.url, GENEROUS, 64, true).unwrap()
    }

    fn impatient(&self) -> MockProvider {
        MockProvider::new(&self.url, SHORT, 64, false).unwrap()
    }

    async fn raw(&self, method: Method, path: &str, body: Value) -> Value {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        let response = Client::builder(TokioExecutor::new())
            .build_http()
            .request(request)
            .await
            .unwrap();
        assert!(response.status().is_success(), "{path}: {}", response.status());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice(&body).unwrap()
    }

    async fn fault(&self, fault: Value) {
        self.raw(Method::POST, "/faults", fault).await;
    }

    async fn heal(&self) {
        self.fault(json!({ "mode": "none" })).await;
    }

    async fn book(&self) -> Value {
        self.raw(Method::GET, "/book", Value::Null).await
    }

    /// How often the provider was asked for this charge, and what it took for it.
    async fn taken(&self, charge: &Charge) -> (i64, i64) {
        let path = format!("/book/{}", charge.reference.as_str());
        let book = self.raw(Method::GET, &path, Value::Null).await;
        let totals = &book["totals"];
        let number = |name: &str| totals[name].as_i64().unwrap();
        (
            number("charge_requests"),
            number("captured_minor") - number("refunded_minor"),
        )
    }
}

fn of_order(order: OrderId) -> Charge {
    Charge {
        reference: Reference::of(order, 1),
        amount: euros(500),
        payment_method: None,
        provider_id: None,
    }
}

fn fresh() -> Charge {
    of_order(OrderId::fresh())
}

fn euros(amount_minor: i64) -> Money {
    Money {
        amount_minor,
        currency: Currency::parse("EUR").unwrap(),
    }
}

fn is_unknown(outcome: &ChargeOutcome) -> bool {
    matches!(outcome, ChargeOutcome::Unknown { .. })
}

#[tokio::test]
async fn a_charge_succeeds_or_is_declined_and_stays_so() {
    let yes = Bed::start(0, 0);
    let charge = fresh();
    for _ in 0..3 {
        assert_eq!(yes.client().charge(&charge).await, ChargeOutcome::Succeeded);
    }
    assert_eq!(yes.taken(&charge).await, (3, 500));
    assert_eq!(yes.client().lookup(&charge).await, Lookup::Succeeded);

    let no = Bed::start(0, 100);
    let code = "insufficient_funds".to_owned();
    let declined = no.client().charge(&charge).await;
    assert_eq!(declined, ChargeOutcome::Declined { code: code.clone() });
    assert_eq!(no.client().lookup(&charge).await, Lookup::Declined { code });
    assert_eq!(no.taken(&charge).await, (1, 0));
    assert_eq!(no.client().lookup(&fresh()).await, Lookup::NotFound);
}

#[tokio::test]
async fn the_same_charge_from_many_at_once_is_one() {
    let bed = Bed::start(100, 0);
    let (client, charge) = (Arc::new(bed.client()), fresh());
    let mut under_way = JoinSet::new();
    for _ in 0..32 {
        let (client, charge) = (client.clone(), charge.clone());
        under_way.spawn(async move { client.charge(&charge).await });
    }
    for outcome in under_way.join_all().await {
        assert_eq!(outcome, ChargeOutcome::Succeeded);
    }
    assert_eq!(bed.taken(&charge).await, (32, 500));
}

#[tokio::test]
async fn another_amount_under_a_known_reference_is_no_decline() {
    let bed = Bed::start(0, 0);
    let charge = fresh();
    bed.client().charge(&charge).await;
    let another = Charge {
        amount: euros(600),
        ..charge.clone()
    };
    let outcome = bed.client().charge(&another).await;
    assert!(
        is_unknown(&outcome),
        "there is money under this charge, but: {outcome:?}"
    );
    assert_eq!(bed.taken(&charge).await.1, 500);
}

#[tokio::test]
async fn only_what_certainly_never_left_is_not_sent() {
    let free = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let nobody = MockProvider::new(&url, GENEROUS, 64, false).unwrap();
    assert_eq!(
        nobody.charge(&fresh()).await,
        ChargeOutcome::NotSent { retry_after: None }
    );
    assert!(matches!(
        nobody.lookup(&fresh()).await,
        Lookup::Unreachable { .. }
    ));
    assert!(matches!(
        nobody.void(&fresh()).await,
        VoidOutcome::Unreachable { .. }
    ));
    assert!(matches!(
        nobody.refund(&fresh(), &fresh().reference, euros(500)).await,
        RefundOutcome::Unreachable { .. }
    ));

    let bed = Bed::start(0, 0);
    let charge = fresh();
    bed.fault(json!({ "mode": "rate_limited", "retry_after_secs": 7 }))
        .await;
    let retry_after = Some(Duration::from_secs(7));
    assert_eq!(
        bed.client().charge(&charge).await,
        ChargeOutcome::NotSent { retry_after }
    );
    // Nothing was done, but who sees a closed connection can't know that.
    bed.fault(json!({ "mode": "down" })).await;
    assert!(is_unknown(&bed.client().charge(&charge).await));
    bed.heal().await;
    assert_eq!(bed.taken(&charge).await, (0, 0));
}

#[tokio::test]
async fn a_charge_without_a_true_answer_is_unknown_and_can_be_looked_up() {
    for mode in ["hang", "answer_lost", "error_after_charge", "stored_error"] {
        let bed = Bed::start(0, 0);
        let (client, charge) = (bed.impatient(), fresh());
        bed.fault(json!({ "mode": mode })).await;
        let outcome = client.charge(&charge).await;
        assert!(is_unknown(&outcome), "{mode}: {outcome:?}");
        // Not repeated behind our back.
        assert_eq!(bed.taken(&charge).await, (1, 500), "{mode}");
        assert_eq!(client.lookup(&charge).await, Lookup::Succeeded, "{mode}");
        bed.heal().await;
        let again = client.charge(&charge).await;
        if mode == "stored_error" {
            assert!(is_unknown(&again), "it is stored for good: {again:?}");
        } else {
            assert_eq!(again, ChargeOutcome::Succeeded, "{mode}");
        }
        assert_eq!(
            bed.taken(&charge).await,
            (2, 500),
            "{mode}: never a second charge"
        );
    }
}

#[tokio::test]
async fn a_request_is_sent_once_also_on_a_connection_that_is_closed_under_it() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let requests = tokio::spawn(async move {
        let mut requests = 0;
        let mut buffer = [0; 4096];
        // Reads each request and hangs up. Ends when nobody comes any more.
        while let Ok(Ok((mut stream, _))) = tokio::time::timeout(SHORT, listener.accept()).await {
            requests += usize::from(stream.read(&mut buffer).await.is_ok_and(|read| read > 0));
        }
        requests
    });
    let client = MockProvider::new(&url, GENEROUS, 64, false).unwrap();
    for _ in 0..3 {
        assert!(is_unknown(&client.charge(&fresh()).await));
    }
    assert_eq!(requests.await.unwrap(), 3);
}

#[tokio::test]
async fn a_void_holds_before_during_and_not_after() {
    let bed = Bed::start(150, 0);
    let client = Arc::new(bed.client());
    let voided = ChargeOutcome::Declined {
        code: "voided".to_owned(),
    };

    let before = fresh();
    assert_eq!(client.void(&before).await, VoidOutcome::Voided);
    assert_eq!(client.charge(&before).await, voided);
    assert_eq!(client.lookup(&before).await, Lookup::Voided);

    let during = fresh();
    let charge = {
        let (client, during) = (client.clone(), during.clone());
        tokio::spawn(async move { client.charge(&during).await })
    };
    while client.lookup(&during).await != Lookup::Pending {
        assert!(!charge.is_finished(), "it was to be caught under way");
        tokio::task::yield_now().await;
    }
    assert_eq!(client.void(&during).await, VoidOutcome::Voided);
    assert_eq!(charge.await.unwrap(), voided);

    let after = fresh();
    client.charge(&after).await;
    assert_eq!(client.void(&after).await, VoidOutcome::AlreadySucceeded);

    for (charge, minor) in [(&before, 0), (&during, 0), (&after, 500)] {
        assert_eq!(bed.taken(charge).await.1, minor);
    }
    assert_eq!(bed.book().await["voids"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_void_that_is_not_kept_lets_the_money_through() {
    let bed = Bed::start(150, 0);
    bed.fault(json!({ "mode": "ignore_void" })).await;
    let (client, charge) = (Arc::new(bed.client()), fresh());
    let under_way = {
        let (client, charge) = (client.clone(), charge.clone());
        tokio::spawn(async move { client.charge(&charge).await })
    };
    while client.lookup(&charge).await != Lookup::Pending {
        assert!(!under_way.is_finished(), "it was to be caught under way");
        tokio::task::yield_now().await;
    }
    assert_eq!(client.void(&charge).await, VoidOutcome::Voided);
    assert_eq!(under_way.await.unwrap(), ChargeOutcome::Succeeded);
    assert_eq!(bed.taken(&charge).await.1, 500);
}

#[tokio::test]
async fn a_refund_happens_once_and_its_answer_may_be_lost() {
    let bed = Bed::start(0, 0);
    let order = OrderId::fresh();
    let (client, charge) = (bed.client(), of_order(order));
    let name = Reference::of_refund(order, 1, 1);
    let refused = client.refund(&charge, &name, euros(500)).await;
    assert!(matches!(refused, RefundOutcome::Refused { .. }), "{refused:?}");

    client.charge(&charge).await;
    bed.fault(json!({ "mode": "answer_lost", "operations": ["refund"] }))
        .await;
    let lost = client.refund(&charge, &name, euros(500)).await;
    assert!(matches!(lost, RefundOutcome::Unreachable { .. }), "{lost:?}");
    bed.heal().await;
    assert_eq!(
        client.refund(&charge, &name, euros(500)).await,
        RefundOutcome::Refunded
    );
    assert_eq!(bed.taken(&charge).await.1, 0);
    let another = Reference::of_refund(order, 1, 2);
    let too_much = client.refund(&charge, &another, euros(1)).await;
    assert!(matches!(too_much, RefundOutcome::Refused { .. }), "{too_much:?}");
    assert_eq!(bed.book().await["refunds"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_client_that_hangs_up_does_not_stop_its_charge() {
    let bed = Bed::start(400, 0);
    let charge = fresh();
    assert!(is_unknown(&bed.impatient().charge(&charge).await));
    let deadline = Instant::now() + GENEROUS;
    while bed.client().lookup(&charge).await != Lookup::Succeeded {
        assert!(Instant::now() < deadline, "the charge never came to its end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_charges_are_under_way_at_once() {
    const CHARGES: usize = 2_000;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // Both ends of every connection are ours.
    let files = 2 * CHARGES as u64 + 500;
    assert!(hard >= files, "{hard} open files are too few for this test");
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(files), hard).unwrap();

    let bed = Bed::start(2_000, 20);
    let client = Arc::new(bed.client());
    let started = Instant::now();
    let mut under_way = JoinSet::new();
    for _ in 0..CHARGES {
        let client = client.clone();
        under_way.spawn(async move { client.charge(&fresh()).await });
    }
    let outcomes = under_way.join_all().await;
    let took = started.elapsed();
    // One after the other they would take more than an hour.
    assert!(took < GENEROUS, "{took:?}");
    let succeeded = outcomes
        .iter()
        .filter(|o| **o == ChargeOutcome::Succeeded)
        .count();
    let declined = outcomes
        .iter()
        .filter(|o| matches!(o, ChargeOutcome::Declined { .. }))
        .count();
    assert_eq!(succeeded + declined, CHARGES);
    assert!((300..500).contains(&declined), "about a fifth, but {declined}");
    assert_eq!(bed.book().await["totals"]["succeeded"], succeeded);
}

#[tokio::test]
async fn in_two_steps_nothing_is_taken_before_the_capture() {
    let bed = Bed::start(0, 0);
    let (client, charge) = (bed.in_two_steps(), fresh());
    assert_eq!(client.charge(&charge).await, ChargeOutcome::Authorised);
    assert_eq!(client.charge(&charge).await, ChargeOutcome::Authorised);
    assert_eq!(client.lookup(&charge).await, Lookup::Authorised);
    assert_eq!(bed.taken(&charge).await, (2, 0));

    bed.fault(json!({ "mode": "answer_lost", "operations": ["capture"] }))
        .await;
    let lost = client.capture(&charge).await;
    assert!(matches!(lost, CaptureOutcome::Unknown { .. }), "{lost:?}");
    bed.heal().await;
    assert_eq!(client.capture(&charge).await, CaptureOutcome::Captured);
    assert_eq!(bed.taken(&charge).await, (2, 500));
    assert_eq!(client.void(&charge).await, VoidOutcome::AlreadySucceeded);

    let let_go = fresh();
    client.charge(&let_go).await;
    assert_eq!(client.void(&let_go).await, VoidOutcome::Voided);
    let late = client.capture(&let_go).await;
    assert!(matches!(late, CaptureOutcome::Unknown { .. }), "{late:?}");
    assert_eq!(client.lookup(&let_go).await, Lookup::Voided);
    assert_eq!(bed.taken(&let_go).await.1, 0);
}
