//! Crashes and lost services: whatever dies, stock and money add up afterwards, without a person.

use fluxbuy::services::{Args, Services};
use futures_util::future::join_all;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use uuid::Uuid;

use crate::support::{Bed, Reply, Setup, eventually, fluxbuy, shared_services};

/// Sends a burst of purchases whose answers may never come.
async fn burst(bed: &Bed, sale: &str, buyers: usize) -> Vec<(String, Result<Reply, String>)> {
    let url = format!("{}/v1/sales/{sale}/orders", bed.url());
    join_all((0..buyers).map(|n| {
        let (client, url) = (bed.client.clone(), url.clone());
        async move {
            let buyer = format!("b{n}");
            let headers = [("x-buyer-id", buyer.as_str()), ("idempotency-key", "k")];
            let reply = client.try_post(&url, &headers, &json!({"quantity": 1})).await;
            (buyer, reply)
        }
    }))
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn o1_o7_r4_killed_in_the_middle_of_a_burst_nothing_is_lost() {
    let mut bed = Setup::default()
        .set("sweeper.reaper_grace_ms", 6000)
        .start()
        .await;
    let sale = bed.sale(2000).await;
    let kill_it = async {
        eventually("some are accepted", || async {
            bed.count("SELECT count(*) FROM orders WHERE sale_id = $1", &sale)
                .await
                > 100
        })
        .await;
        bed.engines[0].signal(Signal::SIGKILL);
    };
    let (replies, ()) = futures_util::future::join(burst(&bed, &sale, 2000), kill_it).await;
    bed.engines.clear();
    let answered: Vec<_> = replies
        .iter()
        .filter_map(|(buyer, reply)| {
            reply
                .as_ref()
                .ok()
                .filter(|r| r.status == 201)
                .map(|r| (buyer, r.json()))
        })
        .collect();
    bed.start_engine().await;
    // O7: what was answered 201 exists.
    for (buyer, body) in &answered {
        let order = bed.get_order(body["id"].as_str().unwrap(), buyer).await;
        assert_ne!(order["status"], "failed");
    }
    // R4, O8: a retry with the same key gets that order, or makes it now.
    let retries = burst(&bed, &sale, 2000).await;
    for ((buyer, before), (_, after)) in replies.iter().zip(&retries) {
        let after = after.as_ref().expect("the new engine answers");
        assert_eq!(after.status, 201, "{buyer}: {}", after.text());
        if let Ok(before) = before
            && before.status == 201
        {
            assert_eq!(before.json()["id"], after.json()["id"]);
        }
    }
    bed.settled(&sale).await;
    // Whoever was claimed and not charged when it died is failed once the provider has confirmed that no money can come.
    let (available, held, sold) = bed.stock(&sale).await;
    assert_eq!((available + sold, held), (2000, 0), "no unit is lost");
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn o2_killed_with_charges_under_way_nobody_is_failed_and_charged() {
    let mut bed = Setup::default()
        .cutoff_ms(2000)
        .latency_ms(300, 900)
        .decline_percent(20)
        .start()
        .await;
    let sale = bed.sale(200).await;
    for (_, reply) in burst(&bed, &sale, 200).await {
        assert_eq!(reply.unwrap().status, 201);
    }
    eventually("charges are under way", || async {
        bed.book().await["charges"].as_array().unwrap().len() > 50
    })
    .await;
    bed.engines.remove(0).kill().await;
    bed.start_engine().await;
    bed.settled(&sale).await;
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s12_a_reservation_without_an_order_is_given_back_once() {
    let bed = Setup::default()
        .set("sweeper.reaper_grace_ms", 6000)
        // A sale in which nobody buys between two passes may be loaded anew instead, on a machine that stalls.
        .set("sweeper.reaper_period_ms", 2500)
        .start_without_charging()
        .await;
    let sale = bed.sale(5000).await;
    bed.order(&sale, "ann", 1).await;
    // What a crash between the gate and the database leaves behind.
    let url = &shared_services().await.addresses().redis_url;
    let gate = fluxbuy::gate::Gate::new(&fluxbuy::gate::Settings {
        url: url.clone(),
        response_timeout: std::time::Duration::from_secs(5),
        connect_timeout: std::time::Duration::from_secs(5),
    })
    .unwrap();
    let buyer = fluxbuy::domain::Buyer::parse("ghost").unwrap();
    let reservation = fluxbuy::gate::Reservation {
        order: fluxbuy::domain::OrderId::fresh(),
        digest: fluxbuy::domain::IdempotencyDigest::of(&buyer, "k"),
        buyer,
        quantity: 4,
    };
    gate.reserve(sale.parse().unwrap(), &[reservation]).await.unwrap();
    assert_eq!(bed.gate_available(&sale).await, Some(4995));
    // Others go on buying: nothing but the reaper can tell that one reservation from theirs.
    eventually("it is given back", || async {
        let buyer = Uuid::now_v7().to_string();
        assert_eq!(bed.buy(&sale, &buyer, "k", 1).await.status, 201);
        bed.metric("fluxbuy_reservations_reaped_total", &[]).await == 1
    })
    .await;
    assert_eq!(
        bed.buy(&sale, "ghost", "k", 9).await.status,
        201,
        "its key is free"
    );
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s13_o4_a_flushed_gate_is_rebuilt_exactly() {
    // A Redis of its own: others' tests don't like to be flushed.
    let services = own_services().await;
    let url = services.addresses().redis_url.clone();
    let bed = Setup::default().set("redis.url", &url).start().await;
    let sale = bed.sale(900).await;
    for (_, reply) in burst(&bed, &sale, 400).await {
        assert_eq!(reply.unwrap().status, 201);
    }
    let mut connection = redis::Client::open(url.as_str())
        .unwrap()
        .get_multiplexed_async_connection()
        .await
        .unwrap();
    let () = redis::cmd("FLUSHALL").query_async(&mut connection).await.unwrap();
    let () = redis::cmd("SCRIPT")
        .arg("FLUSH")
        .query_async(&mut connection)
        .await
        .unwrap();
    let replies = burst(&bed, &sale, 1000).await;
    let accepted = replies
        .iter()
        .filter(|(_, reply)| reply.as_ref().is_ok_and(|r| r.status == 201))
        .count();
    assert_eq!(accepted, 900, "400 replays and 500 new");
    bed.settled(&sale).await;
    assert_eq!(bed.stock(&sale).await, (0, 0, 900));
    assert!(bed.metric("fluxbuy_gate_rebuilds_total", &["unprimed"]).await >= 1);
    services.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_sales_go_on_and_with_it_again() {
    let services = own_services().await;
    let url = services.addresses().redis_url.clone();
    let redis = Pid::from_raw(services.addresses().redis_pid as i32);
    let bed = Setup::default().set("redis.url", &url).start().await;
    let sale = bed.list(30, json!({"per_buyer_limit": 2})).await;
    assert_eq!(bed.buy(&sale, "ann", "k", 1).await.status, 201);
    // Stopped, not killed: nobody answers, as with a machine that hangs.
    kill(redis, Signal::SIGSTOP).unwrap();
    for n in 0..20 {
        let reply = bed.buy(&sale, &format!("b{n}"), "k", 1).await;
        assert_eq!(reply.status, 201, "{}", reply.text());
    }
    assert_eq!(
        bed.buy(&sale, "ann", "k", 1).await.headers["idempotency-replayed"].as_bytes(),
        b"true"
    );
    assert_eq!(bed.buy(&sale, "ann", "k2", 2).await.problem(), "limit_exceeded");
    let late = bed.sale(1).await;
    assert_eq!(
        bed.buy(&late, "ann", "k", 1).await.status,
        201,
        "listed without a gate"
    );
    let ready = bed.client.get(&format!("{}/readyz", bed.url()), &[]).await;
    assert_eq!(ready.status, 200, "redis alone doesn't stop sales");
    kill(redis, Signal::SIGCONT).unwrap();
    eventually("redis is asked again", || async {
        bed.metric("fluxbuy_gate_degraded", &[]).await == 0
    })
    .await;
    // Its keys don't know of what was sold without it.
    for (_, reply) in burst(&bed, &sale, 60).await {
        let reply = reply.unwrap();
        assert!(
            reply.status == 201 || reply.problem() == "sold_out",
            "{}",
            reply.text()
        );
    }
    bed.settled(&sale).await;
    assert_eq!(bed.stock(&sale).await, (0, 0, 30));
    services.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_postgres_buyers_are_turned_away_and_the_process_lives() {
    let services = own_services().await;
    let postgres = Pid::from_raw(services.addresses().postgres_pid as i32);
    let addresses = services.addresses().clone();
    let bed = Setup::default()
        .set("postgres.url", &addresses.postgres_engine_url)
        .set("postgres.acquire_timeout_ms", 300)
        .start()
        .await;
    let sale = bed.sale(30).await;
    assert_eq!(bed.buy(&sale, "ann", "k", 1).await.status, 201);
    // Every backend goes at once, as in a crash of the server; it comes back by itself.
    let backends = children(postgres);
    kill(backends[0], Signal::SIGKILL).unwrap();
    eventually("it sells again", || async {
        let reply = bed.buy(&sale, "bob", "k", 1).await;
        assert!([201, 503].contains(&reply.status), "{}", reply.text());
        reply.status == 201
    })
    .await;
    bed.settled_in(&addresses.postgres_owner_url, &sale).await;
    services.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_row_in_a_batch_fails_alone() {
    let bed = Setup::default().start().await;
    let sale = bed.sale(300).await;
    sqlx::raw_sql(
        "CREATE FUNCTION refuse_mallory() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'not mallory'; END $$;
         CREATE TRIGGER refuse_mallory BEFORE INSERT ON orders FOR EACH ROW WHEN (NEW.buyer = 'b77' AND NEW.status = 'PENDING')
            EXECUTE FUNCTION refuse_mallory();",
    )
    .execute(&bed.db)
    .await
    .unwrap();
    let replies = burst(&bed, &sale, 256).await;
    let refused: Vec<&str> = replies
        .iter()
        .filter(|(_, reply)| reply.as_ref().unwrap().status != 201)
        .map(|(b, _)| b.as_str())
        .collect();
    assert_eq!(refused, ["b77"]);
    bed.settled(&sale).await;
    assert_eq!(bed.stock(&sale).await, (45, 0, 255));
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_engine_finds_its_claims_fenced() {
    // The engine is stopped with charges under way, another one sweeps, and then the first wakes up.
    let bed = Setup::default()
        .cutoff_ms(1500)
        .latency_ms(400, 400)
        .engines(2)
        .start()
        .await;
    let sale = bed.sale(40).await;
    for (_, reply) in burst(&bed, &sale, 40).await {
        assert_eq!(reply.unwrap().status, 201);
    }
    eventually("charges are under way", || async {
        !bed.book().await["charges"].as_array().unwrap().is_empty()
    })
    .await;
    bed.engines[0].signal(Signal::SIGSTOP);
    bed.settled(&sale).await;
    bed.engines[0].signal(Signal::SIGCONT);
    bed.audit(&sale).await;
    let doubles: i64 = sqlx::query_scalar("SELECT count(*) FROM payments WHERE sale_id = $1 AND attempt > 1")
        .bind(sale.parse::<Uuid>().unwrap())
        .fetch_one(&bed.db)
        .await
        .unwrap();
    assert_eq!(doubles, 0);
}

pub async fn own_services() -> Services {
    Services::start(
        fluxbuy(),
        &Args {
            no_provider: true,
            ..Args::default()
        },
    )
    .await
    .unwrap()
}

/// The backends that serve clients, by their process names.
fn children(parent: Pid) -> Vec<Pid> {
    let tasks = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    tasks
        .split_whitespace()
        .filter(|pid| {
            let title = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&title).contains("fluxbuy_engine")
        })
        .map(|pid| Pid::from_raw(pid.parse().unwrap()))
        .collect()
}

impl Bed {
    async fn settled_in(&self, owner_url: &str, sale: &str) {
        let db = crate::support::pool(owner_url).await;
        eventually("no order is open there", || async {
            sqlx::query_scalar::<_, i64>(
                "SELECT count(*) FROM orders WHERE sale_id = $1 AND status IN ('PENDING', 'PROCESSING', 'CAPTURING')",
            )
            .bind(sale.parse::<Uuid>().unwrap())
            .fetch_one(&db)
            .await
            .unwrap()
                == 0
        })
        .await;
    }
}
