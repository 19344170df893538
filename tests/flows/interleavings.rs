//! Interleavings that are hard to meet by chance: states that a crash or an outage leaves, made by hand. Each test states what
//! must hold all the same.

use std::time::{Duration, Instant};

use fluxbuy::domain::{
    Buyer, Event, IdempotencyDigest, OrderId, OrderStatus, PaymentStatus, RequestId, SaleId,
};
use fluxbuy::gate::{Gate, Release, Reservation, Settings};
use fluxbuy::store::{Change, Epoch, Error, NewOrder, Placed, Reserve, Store, TaskKind};
use serde_json::json;
use uuid::Uuid;

use crate::support::{Bed, Setup, eventually, shared_services};

fn store(bed: &Bed) -> Store {
    let settings = serde_json::from_value(json!({
        "url": bed.engine_url, "owner_url": "", "reserve_connections": 2, "settle_connections": 2, "read_connections": 2,
        "acquire_timeout_ms": 5000, "statement_timeout_ms": 1000, "behind_pooler": false,
    }))
    .unwrap();
    Store::new(&settings).unwrap()
}

async fn gate() -> Gate {
    Gate::new(&Settings {
        url: shared_services().await.addresses().redis_url.clone(),
        response_timeout: Duration::from_secs(5),
        connect_timeout: Duration::from_secs(5),
    })
    .unwrap()
}

async fn redis() -> redis::aio::MultiplexedConnection {
    redis::Client::open(shared_services().await.addresses().redis_url.as_str())
        .unwrap()
        .get_multiplexed_async_connection()
        .await
        .unwrap()
}

/// A sale's keys in Redis, as a snapshot would have them.
async fn remember(sale: &str) -> Vec<(String, Vec<u8>)> {
    let mut redis = redis().await;
    let mut keys = Vec::new();
    for key in ["state", "keys", "held"] {
        let name = format!("{{sale:{sale}}}:{key}");
        let dump = redis::cmd("DUMP")
            .arg(&name)
            .query_async(&mut redis)
            .await
            .unwrap();
        keys.push((name, dump));
    }
    keys
}

/// Redis comes back with what it had then.
async fn restore(keys: Vec<(String, Vec<u8>)>) {
    let mut redis = redis().await;
    for (name, dump) in keys {
        let () = redis::cmd("RESTORE")
            .arg(name)
            .arg(0)
            .arg(dump)
            .arg("REPLACE")
            .query_async(&mut redis)
            .await
            .unwrap();
    }
}

fn cancelled(order: &str, sale: &str) -> Change {
    Change {
        order: order.parse().unwrap(),
        sale: sale.parse().unwrap(),
        event: Event::Cancelled,
        expect: OrderStatus::Pending,
        fence: None,
        by: fluxbuy::metrics::By::Buyer,
        two_step: false,
        decline_code: None,
        provider_event: None,
        #[cfg(feature = "test-switches")]
        without_guard: false,
    }
}

fn new_order(buyer: &str, digest: u128) -> NewOrder {
    NewOrder {
        order: OrderId::fresh(),
        buyer: Buyer::parse(buyer).unwrap(),
        digest: IdempotencyDigest(Uuid::from_u128(digest)),
        quantity: 1,
        amount_minor: 1000,
        payment_method: None,
        request_id: None,
    }
}

/// Whether the unit that the database has free is sold within `patience`.
async fn sells_again(bed: &Bed, sale: &str, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    let mut n = 0;
    while Instant::now() < deadline {
        n += 1;
        let reply = bed.buy(sale, &format!("late{n}"), "k", 1).await;
        if reply.status == 201 {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    false
}

/// One engine cancels and dies before it tells the gate; another dies between raising the epoch (which takes the note away)
/// and beginning the load. The gate goes on under its old epoch, without stock, until somebody compares.
#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_that_dies_before_its_load_takes_no_release_with_it() {
    let bed = Setup::default()
        .set("sweeper.reaper_grace_ms", 6000)
        .start_without_charging()
        .await;
    let sale = bed.sale(1).await;
    let order = bed.order(&sale, "ann", 1).await;
    let store = store(&bed);
    let written = store.apply(&[cancelled(&order, &sale)]).await.unwrap();
    assert_eq!(written.released.len(), 1);
    store
        .raise_epoch(sale.parse().unwrap(), 0)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(bed.stock(&sale).await, (1, 0, 0));
    assert!(
        sells_again(&bed, &sale, Duration::from_secs(20)).await,
        "a unit is free in the database, and everybody is told sold_out; gate {:?}, notes {}",
        bed.gate_available(&sale).await,
        bed.count("SELECT count(*) FROM gate_releases WHERE sale_id = $1", &sale)
            .await,
    );
}

/// A release is done in Redis and its note is gone; then Redis comes back without its last second (a replica is promoted, or the
/// append-only file lost its end).
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_forgets_its_last_second_keeps_no_unit() {
    let bed = Setup::default()
        .set("sweeper.reaper_grace_ms", 6000)
        .start_without_charging()
        .await;
    let sale = bed.sale(1).await;
    let order = bed.order(&sale, "ann", 1).await;
    let before = remember(&sale).await;
    assert_eq!(bed.cancel(&order, "ann").await.status, 200);
    eventually("the gate is told and the note gone", || async {
        bed.gate_available(&sale).await == Some(1)
            && bed
                .count("SELECT count(*) FROM gate_releases WHERE sale_id = $1", &sale)
                .await
                == 0
    })
    .await;
    restore(before).await;
    assert!(
        sells_again(&bed, &sale, Duration::from_secs(20)).await,
        "a unit is free in the database, and everybody is told sold_out"
    );
}

/// An orphan was reaped; Redis forgets that, and the reservation is older than the reaper looks.
#[tokio::test(flavor = "multi_thread")]
async fn an_orphan_that_comes_back_is_given_back_again() {
    let bed = Setup::default()
        .set("sweeper.reaper_grace_ms", 6000)
        .start_without_charging()
        .await;
    let sale = bed.sale(2).await;
    bed.order(&sale, "ann", 1).await;
    let gate = gate().await;
    let buyer = Buyer::parse("ghost").unwrap();
    let reservation = Reservation {
        order: OrderId::fresh(),
        digest: IdempotencyDigest::of(&buyer, "k"),
        buyer,
        quantity: 1,
    };
    gate.reserve(sale.parse().unwrap(), &[reservation]).await.unwrap();
    let before = remember(&sale).await;
    eventually("it is given back", || async {
        bed.gate_available(&sale).await == Some(1)
    })
    .await;
    restore(before).await;
    assert!(
        sells_again(&bed, &sale, Duration::from_secs(20)).await,
        "a unit is free in the database, and everybody is told sold_out"
    );
}

/// Packets to Postgres are dropped on the connections that exist (a failed-over address, a firewall that forgot them); new
/// connections work at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_link_to_postgres_doesnt_end_the_sale() {
    let bed = Setup::default().linked().start().await;
    let sale = bed.sale(100).await;
    assert_eq!(bed.buy(&sale, "ann", "k", 1).await.status, 201);
    // Two batches are under way when it happens: something holds the hot row for a moment.
    let mut lock = bed.db.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM inventory WHERE sale_id = $1 FOR UPDATE")
        .bind(sale.parse::<Uuid>().unwrap())
        .execute(&mut *lock)
        .await
        .unwrap();
    let url = format!("{}/v1/sales/{sale}/orders", bed.url());
    let mut under_way = Vec::new();
    for batch in 1..=2 {
        for n in 0..20 {
            let (client, url) = (bed.client.clone(), url.clone());
            under_way.push(tokio::spawn(async move {
                let buyer = format!("b{batch}-{n}");
                let headers = [("x-buyer-id", buyer.as_str()), ("idempotency-key", "k")];
                client.try_post(&url, &headers, &json!({"quantity": 1})).await
            }));
        }
        eventually("the batch waits for the row", || async {
            let waiting: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                 AND usename = 'fluxbuy_engine' AND wait_event_type = 'Lock'",
            )
            .fetch_one(&bed.db)
            .await
            .unwrap();
            waiting == batch
        })
        .await;
    }
    bed.link.as_ref().unwrap().silence();
    lock.rollback().await.unwrap();
    let begun = Instant::now();
    for task in under_way {
        task.await.unwrap().ok();
    }
    let answered = begun.elapsed();
    let sold = sells_again(&bed, &sale, Duration::from_secs(30)).await;
    let ready = bed.client.get(&format!("{}/readyz", bed.url()), &[]).await.status;
    // The link itself is well again: another sale can be listed and sold.
    let other = bed.sale(1).await;
    let other = bed.buy(&other, "zoe", "k", 1).await.status;
    assert!(
        sold,
        "40 s after the link went silent this sale sells nothing (another one: {other}); those under way were answered \
         after {answered:?}; readyz {ready}"
    );
}

/// A batch is halved for a bad row; the first half commits, the second can't be asked for. The whole has an unknown outcome.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_which_half_was_committed_is_not_called_unavailable() {
    let bed = Setup::default().start_without_charging().await;
    let sale = bed.sale(10).await;
    let id: SaleId = sale.parse().unwrap();
    let store = store(&bed);
    let orders = [
        new_order("good", 1),
        new_order("bad", 2),
        new_order("slow", 3),
        new_order("next", 4),
    ];
    // An id that the reaper has occupied.
    store
        .occupy(id, &[(orders[1].order, orders[1].buyer.clone(), 1)])
        .await
        .unwrap();
    // Another engine's transaction with the same purchase as the third, which hangs.
    let mut other = bed.db.begin().await.unwrap();
    sqlx::query(
        "INSERT INTO orders (id, sale_id, idempotency_digest, amount_minor, quantity, buyer) VALUES ($1, $2, $3, 1000, 1, 'slow')",
    )
    .bind(Uuid::now_v7())
    .bind(id.0)
    .bind(orders[2].digest.0)
    .execute(&mut *other)
    .await
    .unwrap();
    let result = store.reserve(id, None, &orders, Epoch::Raise).await;
    other.rollback().await.unwrap();
    let made = bed
        .count(
            "SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'PENDING'",
            &sale,
        )
        .await;
    assert!(
        !(matches!(result, Err(Error::Unavailable(_))) && made > 0),
        "{made} orders were committed by a call that says that nothing was: {result:?}"
    );
}

/// Notes of a sale that is over and not loaded can't be done, and stand in nobody's way.
#[tokio::test(flavor = "multi_thread")]
async fn notes_that_cant_be_done_dont_starve_those_that_can() {
    notes_of_a_sale_that_is_over(20_000).await;
}

async fn notes_of_a_sale_that_is_over(notes: i32) {
    let bed = Setup::default().start_without_charging().await;
    let sale = bed.sale(1).await;
    let order = bed.order(&sale, "ann", 1).await;
    // An earlier sale was swept while Redis was away, or Redis was flushed after it.
    let over = bed.sale(1).await;
    sqlx::query(
        "INSERT INTO gate_releases (sale_id, order_id, forget, created_at)
         SELECT $1, gen_random_uuid(), false, now() - interval '1 day' FROM generate_series(1, $2)",
    )
    .bind(over.parse::<Uuid>().unwrap())
    .bind(notes)
    .execute(&bed.db)
    .await
    .unwrap();
    // An engine cancels and dies before it tells the gate.
    store(&bed).apply(&[cancelled(&order, &sale)]).await.unwrap();
    assert!(
        sells_again(&bed, &sale, Duration::from_secs(20)).await,
        "the note of the live sale is never reached"
    );
}

/// An order that became visible below the horizon (its commit waited ten minutes for a standby, or the database's clock was
/// stepped back) is found at the next look at the whole table; a start begins with one.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_below_the_horizon_is_found_all_the_same() {
    let mut bed = Setup::default().cutoff_ms(1000).start().await;
    let sale = bed.sale(1).await;
    eventually("the horizon is raised", || async {
        let raised =
            "SELECT count(*) FROM open_orders_horizon WHERE starts_at > '-infinity' AND $1 IS NOT NULL";
        bed.count(raised, &sale).await == 1
    })
    .await;
    let id = Uuid::now_v7();
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "BEGIN;
         INSERT INTO orders (id, sale_id, idempotency_digest, amount_minor, quantity, buyer, created_at)
         VALUES ('{id}', '{sale}', gen_random_uuid(), 1000, 1, 'ann', now() - interval '11 minutes');
         INSERT INTO stock_entries (sale_id, order_id, kind, delta) VALUES ('{sale}', '{id}', 'RESERVE', -1);
         UPDATE inventory SET available = available - 1, held = held + 1 WHERE sale_id = '{sale}';
         COMMIT"
    )))
    .execute(&bed.db)
    .await
    .unwrap();
    bed.start_engine().await;
    eventually("it is charged or swept", || async {
        bed.get_order(&id.to_string(), "ann").await["status"] != "pending"
    })
    .await;
}

/// Another engine exchanges one purchase for another within one pulse: epoch, stock and number of keys are as before.
#[tokio::test(flavor = "multi_thread")]
async fn sold_out_is_never_told_to_who_holds_an_order() {
    let bed = Setup::default().engines(2).start_without_charging().await;
    let sale = bed.sale(1).await;
    let first = bed.order(&sale, "ann", 1).await;
    // The second engine learns that it is sold out. Nothing shows when it answers from memory; a few of its pulses suffice.
    for n in 0..3 {
        bed.buy_at(1, &sale, &format!("x{n}"), "k", 1).await;
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    let id: SaleId = sale.parse().unwrap();
    let (store, gate) = (store(&bed), gate().await);
    let epoch = gate.pulse(id).await.unwrap().unwrap().epoch;
    let buyer = Buyer::parse("bob").unwrap();
    let bobs = NewOrder {
        digest: IdempotencyDigest::of(&buyer, "k"),
        buyer,
        ..new_order("bob", 0)
    };
    // As the first engine would: a reservation whose order never came is forgotten, and the unit is sold at once.
    let _ = first;
    let release = Release {
        order: first.parse().unwrap(),
        forget: true,
    };
    store.apply(&[cancelled(&first, &sale)]).await.unwrap();
    gate.release(id, &[release]).await.unwrap();
    let reservation = Reservation {
        order: bobs.order,
        buyer: bobs.buyer.clone(),
        digest: bobs.digest,
        quantity: 1,
    };
    gate.reserve(id, &[reservation]).await.unwrap();
    store
        .reserve(id, None, &[bobs], Epoch::Exactly(epoch))
        .await
        .unwrap();
    // Within two of its pulses the second engine has noticed that the sale isn't what it was.
    eventually("bob, who holds an order, is told so", || async {
        bed.buy_at(1, &sale, "bob", "k", 1).await.status == 201
    })
    .await;
}

/// A batch that is run again, because nobody knows how its commit ended, finds orders there: its own, or another engine's under the same id.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_runs_again_knows_its_own_orders() {
    let bed = Setup::default().start_without_charging().await;
    let sale: SaleId = bed.sale(2).await.parse().unwrap();
    let store = store(&bed);
    let asked = |request: &str, order: &NewOrder| NewOrder {
        request_id: Some(RequestId::new(request)),
        ..order.clone()
    };
    let order = new_order("ann", 1);
    let run = async |orders: &[NewOrder]| {
        let reserved = store
            .reserve(sale, None, orders, Epoch::RaiseAgain)
            .await
            .unwrap();
        let Reserve::Done { mut placed, .. } = reserved else {
            panic!("{reserved:?}");
        };
        placed.remove(0)
    };
    let first = run(&[asked("r1", &order)]).await;
    assert!(matches!(first, Placed::New { fresh: true, .. }), "{first:?}");
    for (request, own) in [("r1", true), ("r2", false)] {
        let again = run(&[asked(request, &order)]).await;
        assert!(
            matches!(again, Placed::New { fresh: false, same_request, .. } if same_request == own),
            "{again:?}"
        );
    }
    let under_another_id = NewOrder {
        order: OrderId::fresh(),
        ..asked("r2", &order)
    };
    let Placed::Existing(existing) = run(&[under_another_id]).await else {
        panic!("made twice");
    };
    assert_eq!(existing.request_id, Some(RequestId::new("r1")));
    let found = store.find_existing(sale, &[order.digest]).await.unwrap();
    assert_eq!(found[&order.digest], existing);
}

/// Redis was flushed and Postgres is away: a load that fails turns the batch away.
#[tokio::test(flavor = "multi_thread")]
async fn without_both_services_buyers_are_turned_away_soon() {
    let bed = Setup::default().linked().start().await;
    let sale = bed.sale(10).await;
    assert_eq!(bed.buy(&sale, "ann", "k", 1).await.status, 201);
    bed.settled(&sale).await;
    let mut redis = redis().await;
    for key in ["state", "keys", "held"] {
        let () = redis::cmd("DEL")
            .arg(format!("{{sale:{sale}}}:{key}"))
            .query_async(&mut redis)
            .await
            .unwrap();
    }
    bed.link.as_ref().unwrap().mute();
    let mut slowest = Duration::ZERO;
    for n in 0..3 {
        let begun = Instant::now();
        let reply = bed.buy(&sale, &format!("b{n}"), "k", 1).await;
        assert_eq!(reply.status, 503);
        slowest = slowest.max(begun.elapsed());
    }
    assert!(
        slowest < Duration::from_secs(4),
        "a buyer waited {slowest:?} to be turned away"
    );
}

/// The breaker opened, Postgres is back, and what is asked needs no commit.
#[tokio::test(flavor = "multi_thread")]
async fn replays_are_answered_once_postgres_is_back() {
    let bed = Setup::default().linked().start().await;
    let (sold_out, other) = (bed.sale(1).await, bed.sale(5).await);
    assert_eq!(bed.buy(&sold_out, "ann", "k", 1).await.status, 201);
    bed.settled(&sold_out).await;
    bed.buy(&other, "ann", "k", 1).await;
    bed.settled(&other).await;
    let link = bed.link.as_ref().unwrap();
    link.cut();
    let mut told = Vec::new();
    for n in 0..4 {
        let reply = bed.buy(&other, &format!("b{n}"), "k", 1).await;
        assert_eq!(reply.status, 503);
        told.push(reply.problem());
    }
    let postgres = async || {
        let ready = bed.client.get(&format!("{}/readyz", bed.url()), &[]).await;
        ready.json()["postgres"].as_str().unwrap().to_owned()
    };
    eventually("postgres is missed", || async { postgres().await == "down" }).await;
    link.mend();
    eventually("postgres is up again", || async { postgres().await == "up" }).await;
    for _ in 0..50 {
        let replay = bed.buy(&sold_out, "ann", "k", 1).await;
        assert_eq!(replay.status, 201, "{}", replay.text());
    }
    // What was left reserved in the gate is an order only now, and nobody was told of it before.
    assert!(told.iter().any(|problem| problem == "unavailable"), "{told:?}");
    for (n, problem) in told.iter().enumerate() {
        let first = bed.buy(&other, &format!("b{n}"), "k", 1).await;
        assert_eq!(first.status, 201, "{}", first.text());
        let replayed = first.headers.contains_key("idempotency-replayed");
        assert!(!replayed || problem != "unavailable", "{problem}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_noted_while_its_task_is_worked_off_is_worked_off_once_more() {
    let mut bed = Setup::default().start_without_charging().await;
    let sale = bed.sale(1).await;
    let order = bed.order(&sale, "ann", 1).await;
    // From here on nobody else works anything off.
    bed.engines.remove(0).kill().await;
    let store = store(&bed);
    let (order_id, sale_id) = (order.parse().unwrap(), sale.parse().unwrap());
    let claim = |event, expect, fence| Change {
        event,
        expect,
        fence,
        two_step: true,
        ..cancelled(&order, &sale)
    };
    sqlx::query("DELETE FROM provider_tasks")
        .execute(&bed.db)
        .await
        .unwrap();
    // The charge was voided, and is to be asked about once more.
    for change in [
        claim(Event::Claim, OrderStatus::Pending, None),
        claim(Event::ChargeVoided, OrderStatus::Processing, Some(1)),
    ] {
        store.apply(&[change]).await.unwrap();
    }
    let due = "UPDATE provider_tasks SET due_at = clock_timestamp()";
    sqlx::query(due).execute(&bed.db).await.unwrap();
    let take = async || store.take_due_tasks(10, Duration::from_mins(1)).await.unwrap();
    let first = take().await;
    assert_eq!(first.len(), 1);
    assert_eq!((first[0].order, first[0].kind), (order_id, TaskKind::Resolve));
    // The worker has heard "voided"; then the provider sets the money aside all the same and says so; then the worker notes what it heard.
    assert!(store.void_later(order_id, sale_id, 1).await.unwrap());
    store
        .resolved_without_money(&first[0], PaymentStatus::Voided, None)
        .await
        .unwrap();
    let second = take().await;
    assert_eq!(second.len(), 1, "the authorisation was forgotten");
    // With nothing new in between it is done with.
    store
        .resolved_without_money(&second[0], PaymentStatus::Voided, None)
        .await
        .unwrap();
    sqlx::query(due).execute(&bed.db).await.unwrap();
    assert!(take().await.is_empty());
}
