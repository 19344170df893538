//! Requests: repeated, contradictory, malformed, abandoned.

use std::collections::HashSet;

use futures_util::future::join_all;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::{Reply, Setup, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn r1_the_same_request_twenty_times_at_once_is_one_order() {
    let bed = Setup::default().start().await;
    let sale = bed.sale(10).await;
    let replies = join_all((0..20).map(|_| bed.buy(&sale, "ann", "k", 2))).await;
    assert!(replies.iter().all(|reply| reply.status == 201), "{replies:?}");
    let bodies: HashSet<_> = replies.iter().map(|reply| reply.body.clone()).collect();
    assert_eq!(bodies.len(), 1, "everybody gets the same answer");
    let first = replies
        .iter()
        .filter(|reply| !reply.headers.contains_key("idempotency-replayed"))
        .count();
    assert_eq!(first, 1, "and all but one are marked as replays");
    bed.settled(&sale).await;
    let later = bed.buy(&sale, "ann", "k", 2).await;
    assert_eq!(
        (later.status, later.headers["idempotency-replayed"].as_bytes()),
        (201, &b"true"[..])
    );
    assert!(bodies.contains(&later.body));
    assert_eq!(bed.stock(&sale).await, (8, 0, 2));
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r1_the_same_request_to_three_engines_at_once_is_one_order() {
    let bed = Setup::default().engines(3).start().await;
    let sale = bed.sale(10).await;
    let replies = join_all((0..30).map(|n| bed.buy_at(n % 3, &sale, "ann", "k", 1))).await;
    let texts = || replies.iter().map(Reply::text).collect::<Vec<_>>();
    assert!(replies.iter().all(|reply| reply.status == 201), "{:#?}", texts());
    let ids: HashSet<_> = replies
        .iter()
        .map(|reply| reply.json()["id"].to_string())
        .collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    bed.settled(&sale).await;
    assert_eq!(bed.stock(&sale).await, (9, 0, 1));
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r2_a_key_belongs_to_its_buyer_and_its_body() {
    let bed = Setup::default().start().await;
    let sale = bed.sale(10).await;
    let ann = bed.buy(&sale, "ann", "k", 1).await.json();
    let other_body = bed.buy(&sale, "ann", "k", 2).await;
    assert_eq!(
        (other_body.status, other_body.problem().as_str()),
        (422, "idempotency_key_reused")
    );
    let bob = bed.buy(&sale, "bob", "k", 1).await;
    assert_eq!(bob.status, 201);
    assert_ne!(ann["id"], bob.json()["id"]);

    let url = format!("{}/v1/sales/{sale}/orders", bed.url());
    let missing = bed
        .client
        .post(&url, &[("x-buyer-id", "ann")], &json!({"quantity": 1}))
        .await;
    assert_eq!(
        (missing.status, missing.problem().as_str()),
        (400, "idempotency_key_missing")
    );
    let long = bed.buy(&sale, "ann", &"k".repeat(300), 1).await;
    assert_eq!(
        (long.status, long.problem().as_str()),
        (400, "idempotency_key_invalid")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn r2_contradicting_requests_at_once_make_one_order() {
    let bed = Setup::default().start().await;
    let sale = bed.sale(10).await;
    let replies = join_all((0..20).map(|n| bed.buy(&sale, "ann", "k", 1 + n % 2))).await;
    assert_eq!(replies.iter().filter(|reply| reply.status == 201).count(), 10);
    assert_eq!(replies.iter().filter(|reply| reply.status == 422).count(), 10);
    assert_eq!(
        bed.count("SELECT count(*) FROM orders WHERE sale_id = $1", &sale)
            .await,
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn r3_a_refusal_is_not_pinned_to_its_key() {
    let bed = Setup::default().start_without_charging().await;
    let sale = bed.sale(1).await;
    let order = bed.order(&sale, "ann", 1).await;
    assert_eq!(bed.buy(&sale, "bob", "k", 1).await.problem(), "sold_out");
    assert_eq!(bed.cancel(&order, "ann").await.status, 200);
    eventually("the same key is judged afresh", || async {
        bed.buy(&sale, "bob", "k", 1).await.status == 201
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r5_a_client_that_goes_away_leaves_no_order_or_a_whole_one() {
    let bed = Setup::default().start().await;
    let sale = bed.sale(100).await;
    let address = bed.url().strip_prefix("http://").unwrap().to_owned();
    for n in 0..40 {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let body = r#"{"quantity":1}"#;
        let request = format!(
            "POST /v1/sales/{sale}/orders HTTP/1.1\r\nhost: x\r\nx-buyer-id: b{n}\r\nidempotency-key: k\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        // Some go in the middle of their request, some right after it.
        let cut = if n % 4 == 0 {
            request.len() - 5
        } else {
            request.len()
        };
        stream.write_all(&request.as_bytes()[..cut]).await.unwrap();
        drop(stream);
    }
    for n in 0..40 {
        let reply = bed.buy(&sale, &format!("b{n}"), "k", 1).await;
        assert_eq!(reply.status, 201, "the key finds the order, or makes it");
    }
    bed.settled(&sale).await;
    assert_eq!(bed.stock(&sale).await, (60, 0, 40));
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s6_o10_quantities_are_positive_whole_numbers_and_nothing_else() {
    let bed = Setup::default().start().await;
    let sale = bed.sale(10).await;
    let url = format!("{}/v1/sales/{sale}/orders", bed.url());
    let bodies = [
        r#"{"quantity":0}"#,
        r#"{"quantity":-5}"#,
        r#"{"quantity":2147483648}"#,
        r#"{"quantity":1.5}"#,
        r#"{"quantity":"1"}"#,
        r#"{"quantity":null}"#,
        r#"{"quantity":1001}"#,
        "{}",
        r#"{"quantity":1,"status":"paid"}"#,
        "[1]",
        "",
    ];
    for (n, body) in bodies.into_iter().enumerate() {
        let key = format!("k{n}");
        let reply = bed
            .client
            .post_raw(&url, &[("x-buyer-id", "ann"), ("idempotency-key", &key)], body)
            .await;
        assert_eq!(
            (reply.status, reply.problem().as_str()),
            (400, "invalid_field"),
            "{body}"
        );
        assert!(
            reply.json()["errors"][0]["allowed"].is_string(),
            "{body}: {}",
            reply.text()
        );
        // O9: validation comes first, so the key is still fresh.
        assert_eq!(
            bed.buy(&sale, &format!("b{n}"), &key, 1).await.status,
            if n < 10 { 201 } else { 409 }
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn o9_a_key_is_free_after_a_refused_body_and_belongs_to_its_sale() {
    let bed = Setup::default().start().await;
    let (one, two) = (bed.sale(10).await, bed.sale(10).await);
    assert_eq!(bed.buy(&one, "ann", "k", 0).await.status, 400);
    let first = bed.buy(&one, "ann", "k", 1).await;
    let second = bed.buy(&two, "ann", "k", 1).await;
    assert_eq!((first.status, second.status), (201, 201));
    assert_ne!(first.json()["id"], second.json()["id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_buyers_order_does_not_exist() {
    let bed = Setup::default().start().await;
    let sale = bed.sale(10).await;
    let order = bed.order(&sale, "ann", 1).await;
    let url = format!("{}/v1/orders/{order}", bed.url());
    let reply = bed.client.get(&url, &[("x-buyer-id", "bob")]).await;
    assert_eq!((reply.status, reply.problem().as_str()), (404, "order_not_found"));
    assert_eq!(bed.cancel(&order, "bob").await.status, 404);
    assert_eq!(bed.client.get(&url, &[]).await.problem(), "buyer_missing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_says_so_at_once() {
    let bed = Setup::default()
        .set("sale.max_batch", 4)
        .set("sale.mailbox_requests", 4)
        .start()
        .await;
    let sale = bed.sale(1000).await;
    let buyers: Vec<String> = (0..300).map(|n| format!("b{n}")).collect();
    let replies = join_all(buyers.iter().map(|buyer| bed.buy(&sale, buyer, "k", 1))).await;
    let full: Vec<_> = replies.iter().filter(|reply| reply.status == 503).collect();
    assert!(!full.is_empty(), "300 at once don't fit into 4 places");
    assert!(
        full.iter()
            .all(|reply| reply.problem() == "overloaded" && reply.headers.contains_key("retry-after"))
    );
    let accepted = replies.iter().filter(|reply| reply.status == 201).count() as i64;
    assert_eq!(accepted as usize + full.len(), 300);
    bed.settled(&sale).await;
    assert_eq!(bed.stock(&sale).await, (1000 - accepted, 0, accepted));
}
