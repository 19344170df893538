//! Refunds: never more than was taken, once for each request, and units only with all of the money.

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{Bed, Reply, Setup, eventually};

async fn refund(bed: &Bed, order: &str, key: &str, ask: Value) -> Reply {
    let url = format!("{}/v1/orders/{order}/refund", bed.url());
    bed.client.post(&url, &[("idempotency-key", key)], &ask).await
}

/// An order of `units` that is paid.
async fn paid(bed: &Bed, sale: &str, buyer: &str, units: u32) -> String {
    let order = bed.order(sale, buyer, units).await;
    bed.wait_for_status(&order, buyer, "paid").await;
    order
}

async fn refunded(bed: &Bed, order: &str, buyer: &str, minor: i64) {
    eventually("the money is back", || async {
        bed.get_order(order, buyer).await["refunded_minor"] == minor
    })
    .await;
}

/// Amounts that the provider has paid back for an order.
async fn paid_back(bed: &Bed, order: &str) -> Vec<i64> {
    let book = bed
        .client
        .get(&format!("{}/book/{order}", bed.provider_url), &[])
        .await
        .json();
    let refunds = book["refunds"].as_array().unwrap();
    refunds
        .iter()
        .map(|refund| refund["amount_minor"].as_i64().unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn p12_two_refunds_at_the_same_instant_never_exceed_what_was_taken() {
    let bed = Setup::default().start().await;
    let sale = bed.list(20, json!({"unit_price_minor": 100})).await;
    for round in 0..20 {
        let order = paid(&bed, &sale, &format!("b{round}"), 1).await;
        let asks = ["left", "right"].map(|key| refund(&bed, &order, key, json!({"amount_minor": 60})));
        let replies = join_all(asks).await;
        let promised: Vec<&Reply> = replies.iter().filter(|reply| reply.status == 202).collect();
        assert_eq!(promised.len(), 1, "{replies:?}");
        let refused = replies.iter().find(|reply| reply.status != 202).unwrap();
        assert_eq!(
            (
                refused.status,
                refused.problem().as_str(),
                &refused.json()["left_minor"]
            ),
            (409, "refund_exceeds", &json!(40))
        );
        // What is left goes back as well, and with it all of it.
        assert_eq!(
            refund(&bed, &order, "rest", json!({})).await.json()["amount_minor"],
            40
        );
        bed.wait_for_status(&order, &format!("b{round}"), "refunded")
            .await;
        let mut amounts = paid_back(&bed, &order).await;
        amounts.sort_unstable();
        assert_eq!(amounts, [40, 60]);
    }
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p12_a_refund_repeated_with_its_key_is_one_refund() {
    let bed = Setup::default().start().await;
    let sale = bed.sale(1).await;
    let order = paid(&bed, &sale, "ann", 1).await;
    let ask = json!({"amount_minor": 300});
    let replies = join_all((0..20).map(|_| refund(&bed, &order, "once", ask.clone()))).await;
    assert!(replies.iter().all(|reply| reply.status == 202), "{replies:?}");
    let replayed = |reply: &&Reply| reply.headers.contains_key("idempotency-replayed");
    assert_eq!(replies.iter().filter(replayed).count(), 19);
    assert!(replies.iter().all(|reply| reply.json()["refund"] == 1));
    refunded(&bed, &order, "ann", 300).await;
    let later = refund(&bed, &order, "once", ask).await;
    assert_eq!((later.status, &later.json()["status"]), (202, &json!("done")));
    let other = refund(&bed, &order, "once", json!({"amount_minor": 301})).await;
    assert_eq!(
        (other.status, other.problem().as_str()),
        (422, "idempotency_key_reused")
    );
    assert_eq!(paid_back(&bed, &order).await, [300]);
    let view = bed.get_order(&order, "ann").await;
    assert_eq!(
        (&view["status"], &view["refund_due_minor"]),
        (&json!("paid"), &json!(0))
    );
    assert_eq!(
        bed.stock(&sale).await,
        (0, 0, 1),
        "a part of the money moves no unit"
    );
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn units_go_back_with_all_of_the_money_and_are_sold_again() {
    let bed = Setup::default().start().await;
    let sale = bed.list(2, json!({"per_buyer_limit": 2})).await;
    let order = paid(&bed, &sale, "ann", 2).await;
    assert_eq!(bed.buy(&sale, "bob", "k", 1).await.problem(), "sold_out");
    let early = refund(
        &bed,
        &order,
        "part",
        json!({"amount_minor": 1, "return_units": true}),
    )
    .await;
    assert_eq!((early.status, early.problem().as_str()), (400, "invalid_field"));
    assert_eq!(
        refund(&bed, &order, "part", json!({"amount_minor": 500}))
            .await
            .status,
        202
    );
    assert_eq!(
        refund(&bed, &order, "rest", json!({"return_units": true}))
            .await
            .status,
        202
    );
    bed.wait_for_status(&order, "ann", "refunded").await;
    assert_eq!(bed.stock(&sale).await, (2, 0, 0));
    bed.audit(&sale).await;
    // Units and allowance are there again, at once.
    eventually("it sells again", || async {
        bed.buy(&sale, "ann", "again", 2).await.status == 201
    })
    .await;
    bed.settled(&sale).await;
    assert_eq!(bed.stock(&sale).await, (0, 0, 2));
    assert_eq!(bed.metric("fluxbuy_refunds_total", &["stage=\"done\""]).await, 2);
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn money_alone_goes_back_and_the_units_stay_sold() {
    let bed = Setup::default().start().await;
    let sale = bed.list(3, json!({"per_buyer_limit": 1})).await;
    let order = paid(&bed, &sale, "ann", 1).await;
    assert_eq!(refund(&bed, &order, "all", json!({})).await.status, 202);
    bed.wait_for_status(&order, "ann", "refunded").await;
    assert_eq!(bed.stock(&sale).await, (2, 0, 1));
    assert_eq!(
        bed.buy(&sale, "ann", "again", 1).await.problem(),
        "limit_exceeded"
    );
    bed.audit(&sale).await;
    let again = refund(&bed, &order, "more", json!({})).await;
    assert_eq!(
        (again.status, again.problem().as_str()),
        (409, "order_not_refundable")
    );
    assert_eq!(again.json()["order_status"], "refunded");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_paid_order_is_paid_back() {
    let bed = Setup::default().decline_percent(100).start().await;
    let sale = bed.sale(1).await;
    let order = bed.order(&sale, "ann", 1).await;
    bed.wait_for_status(&order, "ann", "failed").await;
    let refused = refund(&bed, &order, "k", json!({})).await;
    assert_eq!(
        (refused.status, refused.problem().as_str()),
        (409, "order_not_refundable")
    );
    let nobody = uuid::Uuid::now_v7().to_string();
    assert_eq!(refund(&bed, &nobody, "k", json!({})).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_whose_answer_is_lost_is_paid_once() {
    let bed = Setup::default().start().await;
    let sale = bed.sale(10).await;
    let mut orders = Vec::new();
    for n in 0..10 {
        orders.push(paid(&bed, &sale, &format!("b{n}"), 1).await);
    }
    bed.fault(json!({"mode": "answer_lost", "operations": ["refund"]}))
        .await;
    for order in &orders {
        assert_eq!(
            refund(&bed, order, "k", json!({"return_units": true}))
                .await
                .status,
            202
        );
    }
    eventually("the provider has paid them all", || async {
        bed.book().await["refunds"].as_array().unwrap().len() == 10
    })
    .await;
    assert_eq!(
        bed.stock(&sale).await,
        (0, 0, 10),
        "nothing moves before it is known"
    );
    bed.fault(json!({"mode": "none"})).await;
    for (n, order) in orders.iter().enumerate() {
        bed.wait_for_status(order, &format!("b{n}"), "refunded").await;
    }
    assert_eq!(bed.book().await["refunds"].as_array().unwrap().len(), 10);
    assert_eq!(bed.stock(&sale).await, (10, 0, 0));
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p14_no_transaction_is_open_while_a_refund_is_under_way() {
    let bed = Setup::default().start().await;
    let sale = bed.sale(10).await;
    let mut orders = Vec::new();
    for n in 0..10 {
        orders.push(paid(&bed, &sale, &format!("b{n}"), 1).await);
    }
    bed.fault(json!({"mode": "hang", "operations": ["refund"]})).await;
    for order in &orders {
        assert_eq!(refund(&bed, order, "k", json!({})).await.status, 202);
    }
    eventually("all refunds are under way", || async {
        bed.book().await["refunds"].as_array().unwrap().len() == 10
    })
    .await;
    bed.keeps_no_transaction_open().await;
    bed.fault(json!({"mode": "none"})).await;
    for (n, order) in orders.iter().enumerate() {
        bed.wait_for_status(order, &format!("b{n}"), "refunded").await;
    }
    bed.audit(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_promises_no_more_than_was_taken() {
    let bed = Setup::default().start().await;
    let sale = bed.sale(1).await;
    let order = paid(&bed, &sale, "ann", 1).await;
    let engine = crate::support::pool(&bed.engine_url).await;
    let error =
        sqlx::query("UPDATE payments SET refunded_minor = amount_minor + 1 WHERE order_id = $1::uuid")
            .bind(&order)
            .execute(&engine)
            .await
            .unwrap_err();
    assert!(
        error.to_string().contains("payments_refund_within_charge"),
        "{error}"
    );
}

/// What `fluxbuy ledger verify` prints, and whether it found everything in order.
async fn verify(bed: &Bed, sale: Option<&str>) -> (bool, String) {
    let mut command = tokio::process::Command::new(crate::support::fluxbuy());
    command
        .args(["ledger", "verify"])
        .env("FLUXBUY__POSTGRES__URL", &bed.engine_url)
        .env("FLUXBUY__PROVIDER__URL", &bed.provider_url);
    if let Some(sale) = sale {
        command.args(["--sale", sale]);
    }
    let out = command.output().await.unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    (out.status.success(), said)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ledger_is_verified_to_the_cent_and_every_difference_is_told() {
    let bed = Setup::default().decline_percent(20).start().await;
    let sale = bed.sale(20).await;
    let buyers: Vec<String> = (0..20).map(|n| format!("b{n}")).collect();
    let replies = join_all(buyers.iter().map(|buyer| bed.buy(&sale, buyer, "k", 1))).await;
    bed.settled(&sale).await;
    let mut paid = Vec::new();
    for (buyer, reply) in buyers.iter().zip(&replies) {
        let order = reply.json()["id"].as_str().unwrap().to_owned();
        if bed.get_order(&order, buyer).await["status"] == "paid" {
            paid.push((order, buyer));
        }
    }
    assert!(paid.len() > 4, "most are paid: {}", paid.len());
    let (part, whole) = (&paid[0], &paid[1]);
    assert_eq!(
        refund(&bed, &part.0, "k", json!({"amount_minor": 300}))
            .await
            .status,
        202
    );
    assert_eq!(refund(&bed, &whole.0, "k", json!({})).await.status, 202);
    refunded(&bed, &part.0, part.1, 300).await;
    refunded(&bed, &whole.0, whole.1, 1000).await;
    for of in [None, Some(sale.as_str())] {
        let (ok, said) = verify(&bed, of).await;
        assert!(ok && said.contains("ledger: ok"), "{said}");
    }

    // A cent too much by our books, a charge that our books don't know, and an order that was never there.
    let strike = |statement: &'static str, id: &str| {
        let (db, id) = (bed.db.clone(), id.to_owned());
        async move { sqlx::query(statement).bind(id).execute(&db).await.unwrap() }
    };
    strike(
        "UPDATE ledger_entries SET amount_minor = amount_minor + 1 WHERE order_id = $1::uuid",
        &paid[2].0,
    )
    .await;
    strike("DELETE FROM ledger_entries WHERE order_id = $1::uuid", &paid[3].0).await;
    let charge = json!({"reference": "a stranger's", "amount_minor": 7, "currency": "EUR"});
    bed.client
        .post(&format!("{}/charges", bed.provider_url), &[], &charge)
        .await;
    let (ok, said) = verify(&bed, None).await;
    assert!(!ok && said.contains("the ledger has 5 differences"), "{said}");
    for wrong in [&paid[2].0, &paid[3].0, "a stranger's: the provider has taken 7"] {
        assert!(said.contains(wrong), "{wrong}: {said}");
    }
    let (ok, said) = verify(&bed, Some(&sale)).await;
    assert!(!ok && said.contains("the ledger has 4 differences"), "{said}");
}
