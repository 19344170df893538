//! Starting, refusing to start, and stopping.

use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::{Engine, Setup, eventually, fresh_database, shared_services};

async fn settings(more: &[(&str, &str)]) -> Vec<(String, String)> {
    let database = fresh_database().await;
    let mut settings = vec![
        ("FLUXBUY__POSTGRES__URL".to_owned(), database.engine_url),
        (
            "FLUXBUY__REDIS__URL".to_owned(),
            shared_services().await.addresses().redis_url.clone(),
        ),
        (
            "FLUXBUY__PROVIDER__URL".to_owned(),
            "http://127.0.0.1:1".to_owned(),
        ),
    ];
    settings.extend(
        more.iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    );
    settings
}

async fn refusal(more: &[(&str, &str)]) -> String {
    match Engine::try_start(&settings(more).await).await {
        Ok(_) => panic!("it started with {more:?}"),
        Err(log) => log,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_configuration_stops_the_start_with_the_settings_name() {
    for (name, value, setting) in [
        ("FLUXBUY__SALE__MAX_BATCH", "0", "sale.max_batch"),
        ("FLUXBUY__SALE__MAX_BATCH", "many", "sale.max_batch"),
        ("FLUXBUY__SWEEPER__CUTOF_MS", "1", "cutof_ms"),
        ("FLUXBUY__POSTGRES__URL", "mysql://x", "postgres.url"),
        ("FLUXBUY__HTTP__LISTEN", "nowhere", "http.listen"),
    ] {
        let log = refusal(&[(name, value)]).await;
        assert!(log.contains(setting), "{name}={value}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_without_the_schema_stops_the_start() {
    let with_schema = &shared_services().await.addresses().postgres_engine_url;
    let (server, _) = with_schema.rsplit_once('/').unwrap();
    let empty = format!("{server}/postgres");
    let log = refusal(&[("FLUXBUY__POSTGRES__URL", &empty)]).await;
    assert!(log.contains("fluxbuy migrate"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s14_a_redis_that_evicts_stops_the_start() {
    let services = fluxbuy::services::Services::start(
        crate::support::fluxbuy(),
        &fluxbuy::services::Args {
            no_provider: true,
            ..Default::default()
        },
    )
    .await
    .unwrap();
    let url = services.addresses().redis_url.clone();
    let mut connection = redis::Client::open(url.as_str())
        .unwrap()
        .get_multiplexed_async_connection()
        .await
        .unwrap();
    let () = redis::cmd("CONFIG")
        .arg(&["SET", "maxmemory-policy", "allkeys-lru"])
        .query_async(&mut connection)
        .await
        .unwrap();
    let log = refusal(&[("FLUXBUY__REDIS__URL", &url)]).await;
    assert!(
        log.contains("maxmemory-policy") && log.contains("noeviction"),
        "{log}"
    );
    services.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn it_drains_on_sigterm_and_the_next_start_finds_what_is_pending() {
    let mut bed = Setup::default()
        .latency_ms(300, 300)
        .set("payment.max_in_flight", 5)
        .start()
        .await;
    let sale = bed.sale(60).await;
    let buyers: Vec<String> = (0..60).map(|n| format!("b{n}")).collect();
    let replies =
        futures_util::future::join_all(buyers.iter().map(|buyer| bed.buy(&sale, buyer, "k", 1))).await;
    assert!(replies.iter().all(|reply| reply.status == 201));
    let (well, log) = bed.engines.remove(0).terminate().await;
    assert!(well, "{log}");
    let open = "SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'PROCESSING'";
    assert_eq!(
        bed.count(open, &sale).await,
        0,
        "charges under way were waited for"
    );
    bed.start_engine().await;
    bed.settled(&sale).await;
    assert_eq!(bed.stock(&sale).await, (0, 0, 60));
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_a_batch_is_answered_when_it_is_told_to_stop() {
    let bed = Setup::default().start().await;
    let sale = bed.sale(500).await;
    let buyers: Vec<String> = (0..400).map(|n| format!("b{n}")).collect();
    let url = format!("{}/v1/sales/{sale}/orders", bed.url());
    let asked = futures_util::future::join_all(buyers.iter().map(|buyer| {
        let (client, url) = (bed.client.clone(), url.clone());
        async move {
            let headers = [("x-buyer-id", buyer.as_str()), ("idempotency-key", "k")];
            client.try_post(&url, &headers, &json!({"quantity": 1})).await
        }
    }));
    let stop = async {
        eventually("the first are accepted", || async {
            bed.count("SELECT count(*) FROM orders WHERE sale_id = $1", &sale)
                .await
                > 0
        })
        .await;
        bed.engines[0].signal(Signal::SIGTERM);
    };
    let (replies, ()) = futures_util::future::join(asked, stop).await;
    let accepted = replies
        .iter()
        .flatten()
        .filter(|reply| reply.status == 201)
        .count() as i64;
    let answered = replies.iter().filter(|reply| reply.is_ok()).count();
    assert!(accepted > 0);
    // Every order that exists was told to its buyer: none was cut off in its batch.
    let exist = bed
        .count("SELECT count(*) FROM orders WHERE sale_id = $1", &sale)
        .await;
    assert_eq!(exist, accepted, "{answered} of {} were answered", replies.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn health_tells_what_is_away() {
    let bed = Setup::default().start().await;
    let live = bed.client.get(&format!("{}/livez", bed.url()), &[]).await;
    assert_eq!(live.status, 200);
    eventually("both are up", || async {
        let ready = bed.client.get(&format!("{}/readyz", bed.url()), &[]).await;
        ready.status == 200 && ready.json()["postgres"] == "up" && ready.json()["redis"] == "up"
    })
    .await;
}
