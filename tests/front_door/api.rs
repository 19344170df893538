//! What is answered to what.

use std::time::Duration;

use fluxbuy::actors::desk::{CancelError, DeskError, Health};
use fluxbuy::domain::{Accepted, IdempotencyDigest, LateRefund, OrderStatus, OrderView, Refusal};

use crate::support::*;

#[tokio::test]
async fn a_purchase_gets_201_and_its_replay_the_same_bytes() {
    let door = Door::open(roomy()).await;
    let mut client = door.connect().await;
    let first = client.ask(&purchase()).await;
    assert_eq!(first.status, 201);
    assert_eq!(
        first.header("location"),
        Some(format!("/v1/orders/{ORDER}").as_str())
    );
    assert_eq!(first.header("idempotency-replayed"), None);
    let expected = format!(
        r#"{{"id":"{ORDER}","sale_id":"{SALE}","buyer":"ann","quantity":2,"amount_minor":9998,"currency":"EUR","status":"pending","created_at":"2026-12-01T09:00:00.25Z"}}"#
    );
    assert_eq!(first.body, expected);

    door.fake.plan_purchase(Plan::Answer(Ok(Accepted {
        replayed: true,
        ..accepted()
    })));
    let replay = client.ask(&purchase()).await;
    assert_eq!((replay.status, &replay.body), (201, &first.body));
    assert_eq!(replay.header("location"), first.header("location"));
    assert_eq!(replay.header("idempotency-replayed"), Some("true"));

    let asked = door.fake.purchases.lock().unwrap().clone();
    assert_eq!(asked.len(), 2);
    assert_eq!((asked[0].sale, asked[0].quantity), (SALE.parse().unwrap(), 2));
    assert_eq!(asked[0].digest, IdempotencyDigest::of(&asked[0].buyer, "k1"));
}

#[tokio::test]
async fn every_refusal_has_its_status_and_says_what_helps() {
    let wait = Duration::from_millis(1500);
    let time = at("2026-12-01T09:00:00Z");
    let door = Door::open(roomy()).await;
    for (refusal, status, kind, extra) in [
        (Refusal::SoldOut, 409, "sold_out", None),
        (
            Refusal::LimitExceeded { per_buyer_limit: 4 },
            409,
            "limit_exceeded",
            Some(("per_buyer_limit", "4")),
        ),
        (
            Refusal::NotOpen { opens_at: time },
            409,
            "not_open",
            Some(("opens_at", "\"2026-12-01T09:00:00Z\"")),
        ),
        (
            Refusal::Closed { closes_at: time },
            409,
            "closed",
            Some(("closes_at", "\"2026-12-01T09:00:00Z\"")),
        ),
        (Refusal::KeyReused, 422, "idempotency_key_reused", None),
        (Refusal::SaleNotFound, 404, "sale_not_found", None),
        (
            Refusal::TooMany { max_per_order: 6 },
            400,
            "invalid_field",
            Some((
                "errors",
                r#"[{"allowed":"a whole number from 1 to 6","field":"quantity"}]"#,
            )),
        ),
        (Refusal::Overloaded { retry_after: wait }, 503, "overloaded", None),
        (
            Refusal::Unavailable { retry_after: wait },
            503,
            "unavailable",
            None,
        ),
        (
            Refusal::OutcomeUnknown { retry_after: wait },
            503,
            "outcome_unknown",
            None,
        ),
    ] {
        door.fake.plan_purchase(Plan::Answer(Err(refusal)));
        let answer = door.ask(&purchase()).await;
        assert_eq!((answer.status, answer.problem().as_str()), (status, kind));
        assert_eq!(
            answer.header("retry-after"),
            (status == 503).then_some("2"),
            "{kind}"
        );
        if let Some((name, value)) = extra {
            assert_eq!(answer.json()[name].to_string(), value);
        }
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_purchase_is_said_before_anything_is_used_up() {
    const WHO: &str = "X-Buyer-Id: ann\r\n";
    const KEY: &str = "Idempotency-Key: k1\r\n";
    const BODY: &str = r#"{"quantity":1}"#;
    let both = format!("{WHO}{KEY}");
    let door = Door::open(roomy()).await;
    let key_of_300 = format!("{WHO}Idempotency-Key: {}\r\n", "k".repeat(300));
    for (request, status, kind) in [
        (purchase_with(KEY, BODY), 401, "buyer_missing"),
        (
            purchase_with(&format!("X-Buyer-Id: a b\r\n{KEY}"), BODY),
            400,
            "buyer_invalid",
        ),
        (purchase_with(WHO, BODY), 400, "idempotency_key_missing"),
        (
            purchase_with(&format!("{WHO}Idempotency-Key: a b\r\n"), BODY),
            400,
            "idempotency_key_invalid",
        ),
        (
            purchase_with(&format!("{WHO}Idempotency-Key:\r\n"), BODY),
            400,
            "idempotency_key_invalid",
        ),
        (purchase_with(&key_of_300, BODY), 400, "idempotency_key_invalid"),
        (
            purchase_with(&format!("{both}{KEY}"), BODY),
            400,
            "idempotency_key_invalid",
        ),
        (post("/v1/sales/1/orders", &both, BODY), 404, "sale_not_found"),
        (
            purchase_with(&both, BODY).replace("application/json", "text/plain"),
            415,
            "unsupported_media_type",
        ),
        (
            purchase_with(&format!("{both}Content-Encoding: gzip\r\n"), BODY),
            415,
            "unsupported_media_type",
        ),
        (purchase_with(&both, ""), 400, "invalid_field"),
        (purchase_with(&both, "{"), 400, "invalid_field"),
        (
            purchase_with(&both, r#"{"quantity":1,"price":1}"#),
            400,
            "invalid_field",
        ),
    ] {
        let answer = door.ask(&request).await;
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (status, kind),
            "{request}"
        );
        assert_eq!(answer.header("www-authenticate").is_some(), status == 401);
    }
    for wrong in [r#""1""#, "1.5", "-5", "0", "2147483648", "null"] {
        let answer = door
            .ask(&purchase_with(&both, &format!(r#"{{"quantity":{wrong}}}"#)))
            .await;
        assert_eq!((answer.status, answer.problem().as_str()), (400, "invalid_field"));
        let errors = &answer.json()["errors"];
        assert_eq!(errors[0]["field"], "quantity", "{wrong}");
        assert_eq!(errors[0]["allowed"], "a whole number from 1 to 10000000");
    }
    assert!(door.fake.purchases.lock().unwrap().is_empty());

    let without_type = purchase().replace("Content-Type: application/json\r\n", "");
    assert_eq!(door.ask(&without_type).await.status, 201);
}

#[tokio::test]
async fn paths_and_methods_that_lead_nowhere() {
    let door = Door::open(roomy()).await;
    let mut client = door.connect().await;
    for path in [
        "/",
        "/v1",
        "/v1/sales/",
        "//v1/sales",
        "/v1/%73ales",
        "/v1/sales/../sales",
        "/livez?/x/",
        "/v2/sales",
    ] {
        let answer = client.ask(&get(path)).await;
        let expected = if path.starts_with("/livez") {
            (200, "")
        } else {
            (404, "not_found")
        };
        assert_eq!((answer.status, answer.problem().as_str()), expected, "{path}");
    }
    for (path, kind) in [
        ("/v1/sales/%2e%2e", "sale_not_found"),
        ("/v1/sales/%00", "sale_not_found"),
        ("/v1/sales/{id}", "sale_not_found"),
        ("/v1/orders/1", "order_not_found"),
    ] {
        let answer = client.ask(&get(path)).await;
        assert_eq!((answer.status, answer.problem().as_str()), (404, kind), "{path}");
    }
    for (method, path, allow) in [
        ("GET", format!("/v1/sales/{SALE}/orders"), "POST"),
        ("GET", format!("/v1/orders/{ORDER}/cancel"), "POST"),
        ("DELETE", format!("/v1/orders/{ORDER}"), "GET, HEAD"),
        ("OPTIONS", "/v1/sales".to_owned(), "GET, HEAD, POST"),
        ("PUT", "/v1/sales".to_owned(), "GET, HEAD, POST"),
        ("BREW", "/livez".to_owned(), "GET, HEAD"),
    ] {
        let answer = client
            .ask(&format!("{method} {path} HTTP/1.1\r\nHost: shop\r\n\r\n"))
            .await;
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (405, "method_not_allowed"),
            "{method} {path}"
        );
        assert_eq!(answer.header("allow"), Some(allow));
    }
    let answer = client.ask("OPTIONS * HTTP/1.1\r\nHost: shop\r\n\r\n").await;
    assert_eq!((answer.status, answer.problem().as_str()), (404, "not_found"));
    let whole = client
        .ask("GET http://shop/livez HTTP/1.1\r\nHost: shop\r\n\r\n")
        .await;
    assert_eq!(whole.status, 200);
}

#[tokio::test]
async fn head_is_get_without_its_body() {
    let door = Door::open(roomy()).await;
    let mut client = door.connect().await;
    for path in [
        "/livez",
        "/readyz",
        "/metrics",
        "/v1/sales",
        &format!("/v1/sales/{SALE}"),
        &format!("/v1/orders/{ORDER}"),
    ] {
        let got = client.ask(&get(path)).await;
        let head = client.ask(&get(path).replace("GET", "HEAD")).await;
        assert_eq!((head.status, got.status), (200, 200), "{path}");
        assert_eq!(
            head.header("content-length"),
            Some(got.body.len().to_string().as_str())
        );
        assert_eq!(got.header("cache-control"), Some("no-store"));
    }
}

#[tokio::test]
async fn a_sale_is_listed_and_shown() {
    const BODY: &str = r#"{"name":"Boots","quantity":900,"unit_price_minor":4999,"currency":"EUR","opens_at":"2026-12-01T10:00:00+01:00"}"#;
    let door = Door::open(roomy()).await;
    let mut client = door.connect().await;
    let listed = client.ask(&post("/v1/sales", "", BODY)).await;
    assert_eq!(listed.status, 201);
    let path = format!("/v1/sales/{SALE}");
    assert_eq!(listed.header("location"), Some(path.as_str()));
    let shown = client.ask(&get(&path)).await;
    assert_eq!((shown.status, &shown.body), (200, &listed.body));
    let expected = format!(
        r#"{{"id":"{SALE}","name":"Boots","quantity":900,"available":890,"held":6,"sold":4,"unit_price_minor":4999,"currency":"EUR","per_buyer_limit":null,"max_per_order":1000,"opens_at":"2026-12-01T09:00:00Z","closes_at":null,"cancelled_at":null,"phase":"open","server_time":"2026-12-01T09:00:01Z"}}"#
    );
    assert_eq!(shown.body, expected);
    let terms = door.fake.listed.lock().unwrap()[0].clone();
    assert_eq!(
        (terms.quantity, terms.opens_at),
        (900, at("2026-12-01T09:00:00Z"))
    );

    let wrong = client
        .ask(&post("/v1/sales", "", &BODY.replace("+01:00", "")))
        .await;
    assert_eq!((wrong.status, wrong.problem().as_str()), (400, "invalid_field"));
    assert_eq!(wrong.json()["errors"][0]["field"], "opens_at");
    assert_eq!(door.fake.listed.lock().unwrap().len(), 1);

    for (error, status, kind) in [
        (DeskError::NotFound, 404, "sale_not_found"),
        (DeskError::Unavailable, 503, "unavailable"),
        (DeskError::OutcomeUnknown, 503, "outcome_unknown"),
    ] {
        *door.fake.on_sale.lock().unwrap() = Plan::Answer(Err(error));
        let answer = client.ask(&get(&path)).await;
        assert_eq!((answer.status, answer.problem().as_str()), (status, kind));
        assert_eq!(answer.header("retry-after"), (status == 503).then_some("1"));
    }
}

#[tokio::test]
async fn sales_come_in_pages() {
    let door = Door::open(roomy()).await;
    let mut client = door.connect().await;
    let page = client.ask(&get("/v1/sales?limit=2")).await.json();
    assert_eq!(page["sales"].as_array().unwrap().len(), 2);
    assert_eq!(page["next"], SALE);
    let last = client
        .ask(&get(&format!("/v1/sales?after={SALE}&limit=3")))
        .await
        .json();
    assert_eq!(
        (last["sales"].as_array().unwrap().len(), &last["next"]),
        (3, &serde_json::Value::Null)
    );
    client.ask(&get("/v1/sales")).await;
    assert_eq!(
        *door.fake.pages.lock().unwrap(),
        [(None, 3), (Some(SALE.parse().unwrap()), 4), (None, 21)]
    );
    for query in ["limit=0", "limit=101", "limit=-1", "after=x", "page=2"] {
        let answer = client.ask(&get(&format!("/v1/sales?{query}"))).await;
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (400, "invalid_field"),
            "{query}"
        );
    }
}

#[tokio::test]
async fn an_order_is_shown_to_its_buyer() {
    let door = Door::open(roomy()).await;
    let mut client = door.connect().await;
    let path = format!("/v1/orders/{ORDER}");
    let view = OrderView {
        attempt: 1,
        late_refund: Some(LateRefund::Due),
        updated_at: at("2026-12-01T09:01:00Z"),
        ..cancelled()
    };
    *door.fake.on_order.lock().unwrap() = Plan::Answer(Ok(view));
    let expected = format!(
        r#"{{"id":"{ORDER}","sale_id":"{SALE}","buyer":"ann","quantity":2,"amount_minor":9998,"currency":"EUR","status":"failed","created_at":"2026-12-01T09:00:00.25Z","failure_reason":"cancelled","attempt":1,"late_refund":"due","refunded_minor":0,"refund_due_minor":0,"updated_at":"2026-12-01T09:01:00Z"}}"#
    );
    assert_eq!(client.ask(&get(&path)).await.body, expected);

    let nobody = client.ask(&get(&path).replace("X-Buyer-Id: ann\r\n", "")).await;
    assert_eq!((nobody.status, nobody.problem().as_str()), (401, "buyer_missing"));
    for plan in [Err(DeskError::NotFound), Ok(order_view(OrderStatus::Rejected))] {
        *door.fake.on_order.lock().unwrap() = Plan::Answer(plan);
        let answer = client.ask(&get(&path)).await;
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (404, "order_not_found")
        );
    }
}

#[tokio::test]
async fn an_order_is_cancelled_while_it_is_pending() {
    let door = Door::open(roomy()).await;
    let mut client = door.connect().await;
    let cancel = post(&format!("/v1/orders/{ORDER}/cancel"), "X-Buyer-Id: ann\r\n", "");
    let done = client.ask(&cancel).await;
    assert_eq!(
        (done.status, &done.json()["failure_reason"]),
        (200, &"cancelled".into())
    );
    for (error, status, kind) in [
        (
            CancelError::TooLate(OrderStatus::Paid),
            409,
            "order_not_cancellable",
        ),
        (
            CancelError::TooLate(OrderStatus::Rejected),
            404,
            "order_not_found",
        ),
        (CancelError::Desk(DeskError::NotFound), 404, "order_not_found"),
        (CancelError::Desk(DeskError::Unavailable), 503, "unavailable"),
        (
            CancelError::Desk(DeskError::OutcomeUnknown),
            503,
            "outcome_unknown",
        ),
    ] {
        *door.fake.on_cancel.lock().unwrap() = Plan::Answer(Err(error));
        let answer = client.ask(&cancel).await;
        assert_eq!((answer.status, answer.problem().as_str()), (status, kind));
        if status == 409 {
            assert_eq!(answer.json()["order_status"], "paid");
        }
    }
}

#[tokio::test]
async fn a_refund_is_promised_with_202_and_refused_by_reason() {
    let door = Door::open(roomy()).await;
    let mut client = door.connect().await;
    let path = format!("/v1/orders/{ORDER}/refund");
    let ask = |body: &str| post(&path, "Idempotency-Key: r1\r\n", body);
    let whole = client.ask(&ask(r#"{"return_units":true}"#)).await;
    assert_eq!((whole.status, whole.header("idempotency-replayed")), (202, None));
    assert_eq!(
        whole.body,
        format!(
            r#"{{"order_id":"{ORDER}","refund":1,"amount_minor":9998,"currency":"EUR","return_units":true,"status":"due"}}"#
        )
    );
    let again = client.ask(&ask(r#"{"amount_minor":1}"#)).await;
    assert_eq!(
        (again.status, again.header("idempotency-replayed")),
        (202, Some("true"))
    );
    assert_eq!(again.json()["status"], "done");
    for (amount, status, kind) in [
        (2, 409, "refund_exceeds"),
        (3, 422, "idempotency_key_reused"),
        (4, 400, "invalid_field"),
        (5, 404, "order_not_found"),
        (6, 409, "order_not_refundable"),
        (7, 503, "outcome_unknown"),
    ] {
        let answer = client.ask(&ask(&format!(r#"{{"amount_minor":{amount}}}"#))).await;
        assert_eq!((answer.status, answer.problem().as_str()), (status, kind));
    }
    for wrong in [
        "",
        "[]",
        r#"{"amount_minor":0}"#,
        r#"{"amount_minor":"1"}"#,
        r#"{"return_units":1}"#,
        r#"{"amount":1}"#,
    ] {
        let answer = client.ask(&ask(wrong)).await;
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (400, "invalid_field"),
            "{wrong}"
        );
    }
    let keyless = client.ask(&post(&path, "", "{}")).await;
    assert_eq!(
        (keyless.status, keyless.problem().as_str()),
        (400, "idempotency_key_missing")
    );
}

#[tokio::test]
async fn a_sale_is_called_off_with_202_and_tells_how_far_that_is() {
    let door = Door::open(roomy()).await;
    let mut client = door.connect().await;
    let path = format!("/v1/sales/{SALE}/cancel");
    let body = format!(
        r#"{{"sale_id":"{SALE}","cancelled_at":"2026-12-01T09:00:00Z","done_at":null,"orders_open":1,"orders_to_refund":2,"orders_released":3,"orders_refunded":4}}"#
    );
    let cancelled = client.ask(&post(&path, "", "")).await;
    assert_eq!((cancelled.status, &cancelled.body), (202, &body));
    let asked = client.ask(&get(&path)).await;
    assert_eq!((asked.status, &asked.body), (200, &body));
    let nobody = client
        .ask(&post(&format!("/v1/sales/{ORDER}/cancel"), "", ""))
        .await;
    assert_eq!(
        (nobody.status, nobody.problem().as_str()),
        (404, "sale_not_found")
    );
}

#[tokio::test]
async fn a_webhook_is_taken_whatever_its_content_type_and_refused_by_reason() {
    let door = Door::open(roomy()).await;
    let mut client = door.connect().await;
    for (body, received) in [("first", "first"), ("repeat", "repeat")] {
        let answer = client
            .ask(&post("/v1/webhooks/mock", "Content-Type: text/plain\r\n", body))
            .await;
        assert_eq!(
            (answer.status, &answer.json()["received"]),
            (200, &received.into())
        );
    }
    for (path, body, status, kind) in [
        ("/v1/webhooks/mock", "old", 401, "webhook_unverified"),
        ("/v1/webhooks/mock", "rubbish", 400, "webhook_unreadable"),
        ("/v1/webhooks/mock", "too many", 503, "overloaded"),
        ("/v1/webhooks/mock", "away", 503, "unavailable"),
        ("/v1/webhooks/bank", "first", 404, "not_found"),
    ] {
        let answer = client.ask(&post(path, "", body)).await;
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (status, kind),
            "{body}"
        );
    }
    let huge = "x".repeat(256 * 1024 + 1);
    let answer = client.ask(&post("/v1/webhooks/mock", "", &huge)).await;
    assert_eq!(answer.status, 413);
}

#[tokio::test]
async fn operators_see_what_is_up() {
    let door = Door::open(roomy()).await;
    let mut client = door.connect().await;
    for (postgres_up, redis_up, status, body) in [
        (
            true,
            true,
            200,
            r#"{"postgres":"up","redis":"up","draining":false}"#,
        ),
        (
            true,
            false,
            200,
            r#"{"postgres":"up","redis":"down","draining":false}"#,
        ),
        (
            false,
            true,
            503,
            r#"{"postgres":"down","redis":"up","draining":false}"#,
        ),
    ] {
        *door.fake.health.lock().unwrap() = Health {
            postgres_up,
            redis_up,
        };
        let ready = client.ask(&get("/readyz")).await;
        assert_eq!((ready.status, ready.body.as_str()), (status, body));
        assert_eq!(ready.header("retry-after").is_some(), status == 503);
        assert_eq!(client.ask(&get("/livez")).await.status, 200);
    }
    let metrics = client.ask(&get("/metrics")).await;
    assert_eq!((metrics.status, metrics.body.as_str()), (200, "fluxbuy_up 1\n"));
    assert_eq!(
        metrics.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
}

#[tokio::test]
async fn every_answer_carries_a_request_id() {
    let door = Door::open(roomy()).await;
    let mut client = door.connect().await;
    let with = |id: &str| get("/livez").replace("\r\n\r\n", &format!("\r\nX-Request-Id: {id}\r\n\r\n"));
    assert_eq!(
        client.ask(&with("trace-7")).await.header("x-request-id"),
        Some("trace-7")
    );
    let fresh = client.ask(&with("a b")).await;
    assert_eq!(fresh.header("x-request-id").unwrap().len(), 36);
    let refused = client.ask(&get("/nowhere")).await;
    assert_eq!(refused.header("x-request-id").unwrap().len(), 36);
    assert_ne!(refused.header("x-request-id"), fresh.header("x-request-id"));
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_their_order() {
    let door = Door::open(roomy()).await;
    let mut client = door.connect().await;
    let mut requests = String::new();
    for n in 0..40 {
        let id = format!("\r\nX-Request-Id: r{n}\r\n");
        let request = if n % 3 == 0 { get("/livez") } else { purchase() };
        requests += &request.replacen("\r\n", &id, 1);
    }
    client.send(&requests).await;
    for n in 0..40 {
        let answer = client.next().await.unwrap();
        assert_eq!(answer.status, if n % 3 == 0 { 200 } else { 201 });
        assert_eq!(answer.header("x-request-id"), Some(format!("r{n}").as_str()));
    }
    assert_eq!(door.fake.purchases.lock().unwrap().len(), 26);
}
