//! The process dies at each boundary between two effects, and another one takes over: what was promised is kept, nothing is lost, and
//! everything adds up without anybody's help.
//!
//! Needs a build that can die there: `cargo test --features test-switches --test crash_points`.

#[path = "../flows/support/mod.rs"]
#[allow(dead_code)]
mod support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fluxbuy::crash::Point;
use futures_util::future::join_all;
use serde_json::{Value, json};

use support::{Bed, PATIENCE, Reply, Setup, eventually};

const BUYERS: usize = 40;
const UNITS: u32 = 30;
/// Base64 of 24 bytes.
const SECRET: &str = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz";

/// What is done until the process dies.
struct Plan {
    /// The boundaries, one for each engine in turn, and how often each is passed before.
    dies: Vec<(Point, u32)>,
    two_step: bool,
    /// What the provider does wrong meanwhile.
    fault: Value,
    reaper_period_ms: u32,
}

impl Plan {
    fn dying_at(point: Point, passes: u32) -> Self {
        Self {
            dies: vec![(point, passes)],
            two_step: false,
            fault: json!({"mode": "none"}),
            reaper_period_ms: 200,
        }
    }

    fn in_two_steps(mut self) -> Self {
        self.two_step = true;
        self
    }

    fn with_fault(mut self, fault: Value) -> Self {
        self.fault = fault;
        self
    }

    /// The first look at what was left comes when it is old enough to be given back; a second one would have the sale loaded anew.
    fn looked_through_late(mut self) -> Self {
        self.reaper_period_ms = 2000;
        self
    }

    fn and_then(mut self, point: Point, passes: u32) -> Self {
        self.dies.push((point, passes));
        self
    }
}

fn armed(dies: (Point, u32)) -> String {
    let (point, passes) = dies;
    format!("{}={passes}*off->return", point.name())
}

/// Has the provider tell the engine that runs now.
async fn talk(bed: &Bed) {
    let plan = json!({
        "url": format!("{}/v1/webhooks/mock", bed.engines[0].url), "secret": SECRET, "copies_min": 1, "copies_max": 3,
        "gap_min_ms": 10, "gap_max_ms": 50,
    });
    bed.client
        .post(&format!("{}/webhooks", bed.provider_url), &[], &plan)
        .await;
}

/// Lists a sale under this name, if it can.
async fn list(bed: &Bed, name: &str) -> Option<String> {
    let body = json!({
        "name": name, "quantity": UNITS, "unit_price_minor": 1000, "currency": "EUR", "per_buyer_limit": 1,
        "opens_at": "2020-01-01T00:00:00Z",
    });
    let url = format!("{}/v1/sales", bed.engines[0].url);
    let reply = bed.client.try_post(&url, &[], &body).await.ok()?;
    (reply.status == 201).then(|| reply.json()["id"].as_str().unwrap().to_owned())
}

async fn buy(bed: &Bed, sale: &str, buyer: &str) -> Result<Reply, String> {
    let url = format!("{}/v1/sales/{sale}/orders", bed.engines[0].url);
    let headers = [("x-buyer-id", buyer), ("idempotency-key", "k")];
    bed.client.try_post(&url, &headers, &json!({"quantity": 1})).await
}

/// A buyer's order, once there was an answer.
fn accepted(reply: &Reply) -> Option<String> {
    (reply.status == 201).then(|| reply.json()["id"].as_str().unwrap().to_owned())
}

/// Everybody's wishes, again and again, until the process is dead: purchases in two sales, refunds, and the end of one of the sales.
/// Returns what was promised: the orders that buyers know of.
async fn live(bed: &mut Bed, names: [&str; 2]) -> BTreeMap<(String, String), String> {
    let deadline = Instant::now() + PATIENCE;
    let mut known = BTreeMap::new();
    let mut sales: [Option<String>; 2] = [None, None];
    let mut rounds = 0;
    loop {
        if bed.engines[0].child.try_wait().unwrap().is_some() {
            return known;
        }
        assert!(Instant::now() < deadline, "it never came to that boundary");
        for (sale, name) in sales.iter_mut().zip(names) {
            if sale.is_none() {
                *sale = list(bed, name).await;
            }
        }
        for sale in sales.iter().flatten() {
            let bought = join_all((0..BUYERS).map(|n| {
                let bed = &*bed;
                async move {
                    let buyer = format!("b{n}");
                    let reply = buy(bed, sale, &buyer).await.ok()?;
                    Some((buyer, accepted(&reply)?))
                }
            }))
            .await;
            for (buyer, order) in bought.into_iter().flatten() {
                let before = known.insert((sale.clone(), buyer), order.clone());
                assert!(
                    before.is_none_or(|before| before == order),
                    "a replay is another order"
                );
            }
        }
        let paid: Vec<String> =
            sqlx::query_scalar("SELECT id::text FROM orders WHERE status = 'PAID' ORDER BY id LIMIT 3")
                .fetch_all(&bed.db)
                .await
                .unwrap();
        for (n, order) in paid.iter().enumerate() {
            let url = format!("{}/v1/orders/{order}/refund", bed.engines[0].url);
            let body = json!({"return_units": n == 0, "amount_minor": (n == 1).then_some(400)});
            bed.client
                .try_post(&url, &[("idempotency-key", "r")], &body)
                .await
                .ok();
        }
        rounds += 1;
        if rounds > 5
            && let [_, Some(sale)] = &sales
        {
            let url = format!("{}/v1/sales/{sale}/cancel", bed.engines[0].url);
            bed.client.try_post(&url, &[], &json!({})).await.ok();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Nothing is open, owed, due or on its way.
async fn quiet(bed: &Bed) {
    eventually("all is quiet", || async {
        let left: i64 = sqlx::query_scalar(
            "SELECT (SELECT count(*) FROM orders WHERE status IN ('PENDING', 'PROCESSING', 'CAPTURING'))
                + (SELECT count(*) FROM gate_releases) + (SELECT count(*) FROM provider_tasks)
                + (SELECT count(*) FROM provider_events WHERE state = 'DUE')
                + (SELECT count(*) FROM refunds WHERE status = 'DUE')
                + (SELECT count(*) FROM sales WHERE cancelled_at IS NOT NULL AND cancellation_done_at IS NULL)",
        )
        .fetch_one(&bed.db)
        .await
        .unwrap();
        left == 0
    })
    .await;
}

async fn survives(plan: Plan) {
    let mut bed = Setup::default()
        .cutoff_ms(1500)
        .latency_ms(20, 200)
        .decline_percent(20)
        .set("provider.two_step", plan.two_step)
        .set("webhooks.secrets", SECRET)
        .set("webhooks.scan_period_ms", 100)
        .set("postgres.statement_timeout_ms", 1000)
        .set("postgres.acquire_timeout_ms", 500)
        .set("sweeper.reaper_grace_ms", 1600)
        .set("sweeper.reaper_period_ms", plan.reaper_period_ms)
        .environment("FAILPOINTS", &armed(plan.dies[0]))
        .start()
        .await;
    bed.fault(plan.fault.clone()).await;
    talk(&bed).await;
    let mut promised = BTreeMap::new();
    for engine in 0..plan.dies.len() {
        if engine > 0 {
            bed.settings
                .push(("FAILPOINTS".to_owned(), armed(plan.dies[engine])));
            bed.engines.clear();
            bed.start_engine().await;
            talk(&bed).await;
        }
        let names = [format!("one, {engine}"), format!("two, {engine}")];
        promised.extend(live(&mut bed, [&names[0], &names[1]]).await);
        let log = bed.engines[0].log();
        let last = format!("dies at {}", plan.dies[engine].0.name());
        assert!(log.contains(&last), "it died otherwise:\n{log}");
    }

    bed.settings.push(("FAILPOINTS".to_owned(), String::new()));
    bed.engines.clear();
    bed.start_engine().await;
    talk(&bed).await;
    bed.fault(json!({"mode": "none"})).await;
    let sales: Vec<String> = sqlx::query_scalar("SELECT id::text FROM sales")
        .fetch_all(&bed.db)
        .await
        .unwrap();
    // Whoever has no answer asks again under the same key, and gets one.
    for sale in &sales {
        for n in 0..BUYERS {
            let buyer = format!("b{n}");
            let deadline = Instant::now() + PATIENCE;
            let reply = loop {
                let reply = buy(&bed, sale, &buyer).await.expect("an answer");
                if reply.status != 503 {
                    break reply;
                }
                assert!(Instant::now() < deadline, "{}", reply.text());
                tokio::time::sleep(Duration::from_millis(50)).await;
            };
            if let Some(before) = promised.get(&(sale.clone(), buyer.clone())) {
                assert_eq!(
                    accepted(&reply).as_ref(),
                    Some(before),
                    "{buyer}: {}",
                    reply.text()
                );
            } else {
                let fair = ["sold_out", "limit_exceeded", "closed"];
                assert!(
                    reply.status == 201 || fair.contains(&reply.problem().as_str()),
                    "{}",
                    reply.text()
                );
            }
        }
    }
    quiet(&bed).await;
    for sale in &sales {
        bed.audit(sale).await;
        let called_off = bed.get_sale(sale).await["cancelled_at"].is_string();
        let free = bed.stock(sale).await.0;
        if !called_off {
            eventually("the gate has what is free", || async {
                bed.gate_available(sale).await == Some(free)
            })
            .await;
        }
    }
    let out = tokio::process::Command::new(support::fluxbuy())
        .args(["ledger", "verify"])
        .env("FLUXBUY__POSTGRES__URL", &bed.engine_url)
        .env("FLUXBUY__PROVIDER__URL", &bed.provider_url)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
}

macro_rules! boundaries {
    ($($test:ident: $plan:expr;)+) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                survives($plan).await;
            }
        )+

        #[test]
        fn every_boundary_has_its_crash() {
            let tried: Vec<Point> = [$($plan),+].into_iter().flat_map(|plan| plan.dies).map(|(point, _)| point).collect();
            for point in Point::ALL {
                assert!(tried.contains(&point), "nobody dies at {}", point.name());
            }
        }
    };
}

boundaries! {
    after_the_gate_has_admitted: Plan::dying_at(Point::ReserveAdmitted, 1);
    before_orders_are_committed: Plan::dying_at(Point::ReserveBeforeCommit, 1);
    between_the_commit_of_orders_and_the_answer: Plan::dying_at(Point::ReserveCommitted, 1);
    after_ids_of_orders_that_never_were_are_occupied:
        Plan::dying_at(Point::ReserveAdmitted, 1).and_then(Point::RejectCommitted, 0).looked_through_late();
    after_a_claim: Plan::dying_at(Point::Claimed, 10);
    before_a_charge_leaves: Plan::dying_at(Point::ChargeBeforeSend, 10);
    after_a_charge_is_answered: Plan::dying_at(Point::ChargeAnswered, 10);
    after_an_authorisation_is_answered: Plan::dying_at(Point::ChargeAnswered, 10).in_two_steps();
    before_a_capture_leaves: Plan::dying_at(Point::CaptureBeforeSend, 5).in_two_steps();
    after_a_capture_is_answered: Plan::dying_at(Point::CaptureAnswered, 5).in_two_steps();
    after_a_claim_is_taken_over: Plan::dying_at(Point::TakenOver, 3).with_fault(json!({"mode": "down"}));
    before_settlements_are_committed: Plan::dying_at(Point::SettleBeforeCommit, 3);
    between_settlements_and_the_gate: Plan::dying_at(Point::SettleCommitted, 3);
    between_the_gate_and_the_notes_of_releases: Plan::dying_at(Point::ReleaseTold, 1);
    before_webhooks_are_committed: Plan::dying_at(Point::InboxBeforeCommit, 3);
    between_the_commit_of_webhooks_and_the_answer: Plan::dying_at(Point::InboxCommitted, 3);
    after_events_are_applied: Plan::dying_at(Point::EventApplied, 3);
    after_a_refund_is_promised: Plan::dying_at(Point::RefundPromised, 1);
    after_a_refund_is_paid: Plan::dying_at(Point::RefundAnswered, 1);
    after_a_refund_is_noted: Plan::dying_at(Point::RefundNoted, 0);
    after_the_fate_of_a_charge_is_known:
        Plan::dying_at(Point::ResolveAnswered, 0).in_two_steps().with_fault(json!({"mode": "down"}));
    between_the_epoch_and_the_gate: Plan::dying_at(Point::EpochRaised, 1);
    after_the_gate_is_loaded: Plan::dying_at(Point::GateLoaded, 1);
    after_a_sale_is_called_off: Plan::dying_at(Point::SaleCancelled, 0);
}
