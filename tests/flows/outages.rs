//! What machines and operators do to Postgres, Redis and the provider while a sale is on.

use futures_util::future::join_all;
use serde_json::json;
use sqlx::Executor;

use crate::crashes::own_services;
use crate::support::{Setup, eventually};

async fn connect(url: &str) -> redis::aio::MultiplexedConnection {
    let client = redis::Client::open(url).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

async fn redis_does(connection: &mut redis::aio::MultiplexedConnection, words: &[&str]) {
    let mut command = redis::cmd(words[0]);
    words[1..].iter().for_each(|word| {
        command.arg(word);
    });
    let () = command.query_async(connection).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_told_to_evict_is_noticed_while_it_runs() {
    let services = own_services().await;
    let url = services.addresses().redis_url.clone();
    let bed = Setup::default().set("redis.url", &url).start().await;
    let evicting = async |wanted| {
        eventually("the engine has noticed", || async {
            bed.metric("fluxbuy_gate_evicting", &[]).await == wanted
        })
        .await;
    };
    let mut redis = connect(&url).await;
    redis_does(&mut redis, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    evicting(1).await;
    redis_does(&mut redis, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    evicting(0).await;
    services.stop().await.unwrap();
}

/// It refuses every write then, and says MISCONF.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_cant_write_its_disk_doesnt_end_the_sale() {
    let services = own_services().await;
    let url = services.addresses().redis_url.clone();
    let bed = Setup::default().set("redis.url", &url).start().await;
    let sale = bed.sale(30).await;
    bed.order(&sale, "before", 1).await;
    let mut redis = connect(&url).await;
    let in_the_way = services.addresses().directory.join("dump.rdb");
    std::fs::create_dir(&in_the_way).unwrap();
    redis_does(&mut redis, &["CONFIG", "SET", "save", "3600 1"]).await;
    redis_does(&mut redis, &["BGSAVE"]).await;
    eventually("the engine misses its gate", || async {
        bed.metric("fluxbuy_gate_degraded", &[]).await == 1
    })
    .await;
    for n in 0..10 {
        let reply = bed.buy(&sale, &format!("b{n}"), "k", 1).await;
        assert_eq!(reply.status, 201, "{}", reply.text());
    }
    std::fs::remove_dir(&in_the_way).unwrap();
    redis_does(&mut redis, &["BGSAVE"]).await;
    eventually("the gate is back", || async {
        bed.metric("fluxbuy_gate_degraded", &[]).await == 0
    })
    .await;
    let rest = bed.buy(&sale, "after", "k", 19).await;
    assert_eq!(rest.status, 201, "{}", rest.text());
    bed.settled(&sale).await;
    eventually("the gate has what is free", || async {
        let mut redis = redis.clone();
        let free: Option<i64> = redis::cmd("HGET")
            .arg(format!("{{sale:{sale}}}:state"))
            .arg("available")
            .query_async(&mut redis)
            .await
            .unwrap();
        free == Some(0)
    })
    .await;
    bed.audit(&sale).await;
    services.stop().await.unwrap();
}

/// Somebody has a transaction open on the hot row and went to lunch.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_somebody_holds_stops_its_own_sale_and_no_other() {
    let bed = Setup::default()
        .set("postgres.statement_timeout_ms", 500)
        .set("sweeper.reaper_grace_ms", 1600)
        .start()
        .await;
    let (held_up, other) = (bed.sale(50).await, bed.sale(50).await);
    let mut lunch = bed.db.begin().await.unwrap();
    lunch
        .execute(sqlx::query("SELECT 1 FROM inventory WHERE sale_id = $1::uuid FOR UPDATE").bind(&held_up))
        .await
        .unwrap();
    let everybody = async || {
        let buyers: Vec<String> = (0..30).map(|n| format!("b{n}")).collect();
        join_all(buyers.iter().map(|buyer| bed.buy(&held_up, buyer, "k", 1))).await
    };
    let elsewhere = async {
        for n in 0..10 {
            let buyer = format!("c{n}");
            eventually("another sale sells", || async {
                bed.buy(&other, &buyer, "k", 1).await.status == 201
            })
            .await;
        }
    };
    let (replies, ()) = futures_util::future::join(everybody(), elsewhere).await;
    for reply in replies {
        let honest = ["unavailable", "outcome_unknown", "overloaded"];
        assert!(honest.contains(&reply.problem().as_str()), "{}", reply.text());
    }
    lunch.rollback().await.unwrap();
    eventually("everybody is served under the same key", || async {
        everybody().await.iter().all(|reply| reply.status == 201)
    })
    .await;
    for sale in [&held_up, &other] {
        bed.settled(sale).await;
        bed.audit(sale).await;
    }
    assert_eq!(bed.stock(&held_up).await, (20, 0, 30));
}

/// The money is taken, and for longer than the cutoff there is nobody to write it down to.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_provider_takes_while_postgres_is_away_is_written_down_once() {
    let bed = Setup::default()
        .linked()
        .latency_ms(500, 700)
        .cutoff_ms(1500)
        .start()
        .await;
    let sale = bed.sale(20).await;
    assert!(bed.crowd(&sale, 20).await.iter().all(|reply| reply.status == 201));
    eventually("all are being charged", || async {
        bed.count("SELECT count(*) FROM payments WHERE sale_id = $1", &sale)
            .await
            == 20
    })
    .await;
    let link = bed.link.as_ref().unwrap();
    link.cut();
    eventually(
        "the provider has taken everything, and the cutoff is long past",
        || async {
            let book = bed.book().await;
            let late = "SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'PROCESSING'
                    AND claimed_at < clock_timestamp() - interval '3 seconds'";
            book["totals"]["succeeded"] == json!(20) && bed.count(late, &sale).await == 20
        },
    )
    .await;
    link.mend();
    bed.settled(&sale).await;
    assert_eq!(bed.stock(&sale).await, (0, 0, 20));
    bed.audit(&sale).await;
    assert_eq!(bed.book().await["refunds"], json!([]));
}

/// The order is there when its purchase is tried again inside the engine, by nobody's wish but the engine's own: for the buyer it is the first answer.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_whose_commit_went_unanswered_is_no_replay() {
    let bed = Setup::default().linked().start_without_charging().await;
    let sale = bed.sale(10).await;
    let link = bed.link.as_ref().unwrap();
    link.lose_answers_to_commits(true);
    let (reply, ()) = tokio::join!(bed.buy(&sale, "ann", "k", 1), async {
        eventually("the order is committed", || async {
            bed.count("SELECT count(*) FROM orders WHERE sale_id = $1", &sale)
                .await
                == 1
        })
        .await;
        link.lose_answers_to_commits(false);
    });
    assert_eq!(
        (reply.status, reply.headers.get("idempotency-replayed")),
        (201, None),
        "{}",
        reply.text()
    );
    let again = bed.buy(&sale, "ann", "k", 1).await;
    assert_eq!(
        (again.status, again.headers["idempotency-replayed"].as_bytes()),
        (201, &b"true"[..])
    );
    assert_eq!(again.body, reply.body);
    assert_eq!(bed.stock(&sale).await, (9, 1, 0));
}

/// A crowd comes for a sale that was listed at another engine, while the database is slow to answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_at_a_sale_that_its_engine_has_not_seen_is_one_look_into_the_database() {
    const CROWD: usize = 200;
    let bed = Setup::default()
        .engines(2)
        .direct()
        .start_without_charging()
        .await;
    let sale = bed.sale(CROWD as u32).await;
    let mut lock = bed.db.begin().await.unwrap();
    sqlx::query("LOCK TABLE sales IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *lock)
        .await
        .unwrap();
    let buyers: Vec<String> = (0..CROWD).map(|n| format!("b{n}")).collect();
    let buying =
        futures_util::future::join_all(buyers.iter().map(|buyer| bed.buy_at(1, &sale, buyer, "k", 1)));
    let looking = async {
        eventually("all have come", || async {
            bed.engines[1]
                .metric(&bed.client, "fluxbuy_connections", &[])
                .await
                >= CROWD as i64
        })
        .await;
        // Whatever else the engine asks of this table by itself doesn't ask for one sale.
        let looks = || async {
            sqlx::query_scalar::<_, i64>(
                "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%WHERE s.id = $1%'",
            )
            .fetch_one(&bed.db)
            .await
            .unwrap()
        };
        eventually("the sale is looked up", || async { looks().await > 0 }).await;
        let looks = looks().await;
        lock.rollback().await.unwrap();
        looks
    };
    let (replies, looks) = tokio::join!(buying, looking);
    assert_eq!(looks, 1);
    assert!(replies.iter().all(|reply| reply.status == 201), "{replies:?}");
    assert_eq!(bed.stock(&sale).await, (0, CROWD as i64, 0));
}
