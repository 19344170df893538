//! Bounds of size, number and time, and what happens at them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fluxbuy::http::{MAX_HEADER_BYTES, Settings};
use tokio::sync::Semaphore;

use crate::support::*;

/// Short enough to be waited for, long enough for a busy machine to do something in it.
const SHORT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn heads_that_are_too_large_get_431() {
    let door = Door::open(roomy()).await;
    let with = |headers: &str| get("/livez").replace("\r\n\r\n", &format!("\r\n{headers}\r\n"));
    let long = with(&format!("X-Long: {}\r\n", "x".repeat(MAX_HEADER_BYTES)));
    assert_eq!(door.ask(&long).await.status, 431);
    let many = "X-One: y\r\n".repeat(101);
    assert_eq!(door.ask(&with(&many)).await.status, 431);
    // One that never ends is cut at the same size.
    let mut endless = door.connect().await;
    endless
        .send(format!(
            "GET /livez HTTP/1.1\r\nX-Long: {}",
            "x".repeat(MAX_HEADER_BYTES)
        ))
        .await;
    assert_eq!(endless.next().await.unwrap().status, 431);

    let fitting = with(&format!("X-Long: {}\r\n", "x".repeat(MAX_HEADER_BYTES - 200)));
    assert_eq!(door.ask(&fitting).await.status, 200);
}

#[tokio::test]
async fn bodies_that_are_too_large_get_413() {
    let door = Door::open(Settings {
        max_body_bytes: 256,
        ..roomy()
    })
    .await;
    let headers = "X-Buyer-Id: ann\r\nIdempotency-Key: k1\r\n";
    let padded = |spaces: usize| format!("{}{}", r#"{"quantity":2}"#, " ".repeat(spaces));
    assert_eq!(
        door.ask(&purchase_with(headers, &padded(256 - 14))).await.status,
        201
    );
    let answer = door.ask(&purchase_with(headers, &padded(256 - 13))).await;
    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (413, "payload_too_large")
    );

    // Announced too large: answered before any of it is sent.
    let mut client = door.connect().await;
    client
        .send(purchase_with(headers, "").replace("Length: 0", "Length: 1000000"))
        .await;
    assert_eq!(client.next().await.unwrap().status, 413);

    // Without a length it shows only as it comes.
    let chunked = |body: &str| {
        let head = purchase_with(headers, "").replace("Content-Length: 0", "Transfer-Encoding: chunked");
        format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
    };
    assert_eq!(door.ask(&chunked(&padded(100))).await.status, 201);
    assert_eq!(door.ask(&chunked(&padded(300))).await.status, 413);
    assert_eq!(door.fake.purchases.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn a_body_that_does_not_come_gets_408() {
    let door = Door::open(Settings {
        body_read_timeout: SHORT,
        ..roomy()
    })
    .await;
    let whole = purchase();
    let mut client = door.connect().await;
    client.send(&whole[..whole.len() - 1]).await;
    let answer = client.next().await.unwrap();
    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (408, "request_timeout")
    );
    assert!(client.is_closed().await);
    assert!(door.fake.purchases.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_body_may_come_in_pieces() {
    let door = Door::open(roomy()).await;
    let mut client = door.connect().await;
    client.stream.set_nodelay(true).unwrap();
    for byte in purchase().as_bytes() {
        client.send([*byte]).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(client.next().await.unwrap().status, 201);

    let head = purchase().replace("\r\n\r\n{\"quantity\":2}", "\r\nExpect: 100-continue\r\n\r\n");
    client.send(head).await;
    assert_eq!(client.next().await.unwrap().status, 100);
    client.send("{\"quantity\":2}").await;
    assert_eq!(client.next().await.unwrap().status, 201);
}

#[tokio::test]
async fn a_silent_client_and_half_a_head_are_cut() {
    let door = Door::open(Settings {
        header_read_timeout: SHORT,
        ..roomy()
    })
    .await;
    let mut silent = door.connect().await;
    let mut half = door.connect().await;
    half.send("GET /livez HTTP/1.1\r\nX-Slow: ").await;
    let dripping = door.connect().await;
    assert!(silent.is_closed().await);
    assert!(half.is_closed().await);
    // More bytes don't buy more time.
    let started = Instant::now();
    let mut sent = 0;
    while dripping.stream.try_write(b"G").is_ok() && started.elapsed() < PATIENCE {
        sent += 1;
        tokio::time::sleep(SHORT / 10).await;
    }
    assert!(started.elapsed() < PATIENCE, "still open after {sent} bytes");
    assert_eq!(door.ask(&get("/livez")).await.status, 200);
}

#[tokio::test]
async fn an_idle_connection_outlives_the_time_for_a_head_and_ends_in_its_own() {
    let idle = SHORT * 6;
    let settings = Settings {
        header_read_timeout: SHORT,
        connection_idle_timeout: idle,
        ..roomy()
    };
    let door = Door::open(settings).await;
    let mut client = door.connect().await;
    assert_eq!(client.ask(&get("/livez")).await.status, 200);
    // The time that passes is what is tested here: longer than a head may take, shorter than idling may.
    tokio::time::sleep(SHORT * 2).await;
    assert_eq!(client.ask(&get("/livez")).await.status, 200);
    let answered = Instant::now();
    assert!(client.is_closed().await);
    assert!(answered.elapsed() + SHORT >= idle, "{:?}", answered.elapsed());

    // The second request's head is as limited as the first one's.
    let mut client = door.connect().await;
    assert_eq!(client.ask(&get("/livez")).await.status, 200);
    client.send("GET /liv").await;
    let begun = Instant::now();
    assert!(client.is_closed().await);
    assert!(begun.elapsed() < idle, "{:?}", begun.elapsed());
}

/// Health checks and webhooks must get through, whoever sits on the connections.
#[tokio::test]
async fn where_all_places_are_taken_whoever_waits_longest_makes_room() {
    let door = Door::open(Settings {
        max_connections: 3,
        ..roomy()
    })
    .await;
    let (mut buyer, gate) = purchase_under_way(&door).await;

    // One dribbles its head, one its body; neither gets anywhere.
    let mut dribbles_head = door.connect().await;
    dribbles_head.send("GET /liv").await;
    let mut dribbles_body = door.connect().await;
    dribbles_body
        .send("POST /v1/sales HTTP/1.1\r\nHost: shop\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        .await;

    let mut first = door.connect().await;
    assert_eq!(first.ask(&get("/livez")).await.status, 200);
    let mut second = door.connect().await;
    assert_eq!(second.ask(&get("/livez")).await.status, 200);
    assert!(dribbles_head.is_closed().await && dribbles_body.is_closed().await);

    // Who has been answered longest ago is the next; who has asked for something stays until the answer.
    let mut third = door.connect().await;
    assert_eq!(third.ask(&get("/livez")).await.status, 200);
    assert!(first.is_closed().await);
    gate.add_permits(1);
    assert_eq!(buyer.next().await.unwrap().status, 201);
    assert_eq!(second.ask(&get("/livez")).await.status, 200);
}

#[tokio::test]
async fn where_everybody_is_being_served_the_next_one_waits() {
    let door = Door::open(Settings {
        max_connections: 1,
        ..roomy()
    })
    .await;
    let (mut buyer, gate) = purchase_under_way(&door).await;
    let mut next = door.connect().await;
    next.send(get("/livez")).await;
    assert!(
        tokio::time::timeout(SHORT, next.next()).await.is_err(),
        "a second connection was served"
    );
    gate.add_permits(1);
    assert_eq!(buyer.next().await.unwrap().status, 201);
    assert_eq!(next.next().await.unwrap().status, 200);
}

#[tokio::test]
async fn a_purchase_without_an_answer_in_time_has_an_unknown_outcome_and_goes_on() {
    let door = Door::open(Settings {
        request_timeout: SHORT,
        ..roomy()
    })
    .await;
    let gate = Arc::new(Semaphore::new(0));
    door.fake.plan_purchase(Plan::Wait(gate.clone(), Ok(accepted())));
    let mut client = door.connect().await;
    let answer = client.ask(&purchase()).await;
    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (503, "outcome_unknown")
    );
    assert_eq!(answer.header("retry-after"), Some("1"));
    // The connection lives on, and so does the purchase.
    assert_eq!(client.ask(&get("/livez")).await.status, 200);
    assert_eq!(*door.fake.ended.borrow(), 0);
    gate.add_permits(1);
    reached(&door.fake.ended, 1).await;

    *door.fake.on_sale.lock().unwrap() = Plan::Wait(gate.clone(), Ok(sale_view()));
    let answer = client.ask(&get(&format!("/v1/sales/{SALE}"))).await;
    assert_eq!((answer.status, answer.problem().as_str()), (503, "unavailable"));
    *door.fake.on_cancel.lock().unwrap() = Plan::Wait(gate, Ok(cancelled()));
    let cancel = post(&format!("/v1/orders/{ORDER}/cancel"), "X-Buyer-Id: ann\r\n", "");
    let answer = client.ask(&cancel).await;
    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (503, "outcome_unknown")
    );
}

#[tokio::test]
async fn a_panic_is_answered_and_the_connection_lives_on() {
    let door = Door::open(roomy()).await;
    let mut client = door.connect().await;
    *door.fake.on_sale.lock().unwrap() = Plan::Panic;
    let answer = client.ask(&get(&format!("/v1/sales/{SALE}"))).await;
    assert_eq!((answer.status, answer.problem().as_str()), (500, "internal"));
    // A purchase that panicked may have been committed before.
    door.fake.plan_purchase(Plan::Panic);
    let answer = client.ask(&purchase()).await;
    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (503, "outcome_unknown")
    );
    assert_eq!(client.ask(&get("/livez")).await.status, 200);
}

#[tokio::test]
async fn r5_a_client_that_hangs_up_does_not_take_its_purchase_along() {
    let door = Door::open(Settings {
        max_connections: 1,
        ..roomy()
    })
    .await;
    let (client, gate) = purchase_under_way(&door).await;
    drop(client);
    // Only one connection may be open: this one is served once the other is over and forgotten.
    assert_eq!(door.ask(&get("/livez")).await.status, 200);
    assert_eq!(*door.fake.ended.borrow(), 0);
    gate.add_permits(1);
    reached(&door.fake.ended, 1).await;
    assert_eq!(door.fake.purchases.lock().unwrap().len(), 1);
}
