//! Giving units back.

use fluxbuy::domain::OrderId;
use fluxbuy::gate::Verdict;
use fluxbuy::gate::Verdict::{Admitted, KeyReused, Replay};
use jiff::{SignedDuration, Timestamp};

use crate::support::{
    forget, gate, limited, open, prime, release, release_of, request, reserve, shared, stranger,
};

#[tokio::test]
async fn s8_s9_a_release_gives_back_once_and_the_units_sell_again() {
    let gate = gate();
    let sale = prime(&gate, open(5)).await;
    let order = stranger(5);
    assert_eq!(
        reserve(&gate, sale, std::slice::from_ref(&order)).await,
        (vec![Admitted], 0)
    );

    let once = [release_of(&order)];
    let (one, other) = tokio::join!(release(&gate, sale, &once), release(&gate, sale, &once));
    assert_eq!(one.1 + other.1, 5);
    assert_eq!(release(&gate, sale, &[release_of(&order)]).await, (5, 0, 1));
    assert_eq!(reserve(&gate, sale, &[stranger(5)]).await, (vec![Admitted], 0));
}

#[tokio::test]
async fn a_released_order_is_still_found_by_its_key_and_never_holds_again() {
    let gate = gate();
    let sale = prime(&gate, open(5)).await;
    let order = request("ann", "k", 2);
    reserve(&gate, sale, std::slice::from_ref(&order)).await;
    release(&gate, sale, &[release_of(&order)]).await;
    let batch = [request("ann", "k", 2), order.clone()];
    assert_eq!(
        reserve(&gate, sale, &batch).await,
        (vec![Replay(order.order), Verdict::Released], 5)
    );
}

#[tokio::test]
async fn forgetting_frees_the_key_but_not_the_order() {
    let gate = gate();
    let sale = prime(&gate, limited(5, 2)).await;
    let order = request("ann", "k", 2);
    reserve(&gate, sale, std::slice::from_ref(&order)).await;
    assert_eq!(release(&gate, sale, &[forget(&order)]).await, (5, 2, 0));
    assert_eq!(gate.pulse(sale).await.unwrap().unwrap().keys, 0);

    // A delayed copy of the reservation, before and after the buyer's next try.
    assert_eq!(
        reserve(&gate, sale, std::slice::from_ref(&order)).await,
        (vec![Verdict::Released], 5)
    );
    let retry = request("ann", "k", 1);
    assert_eq!(
        reserve(&gate, sale, std::slice::from_ref(&retry)).await,
        (vec![Admitted], 4)
    );
    assert_eq!(
        reserve(&gate, sale, std::slice::from_ref(&order)).await,
        (vec![KeyReused], 4)
    );

    // Forgetting it again doesn't take the key from its new order.
    assert_eq!(release(&gate, sale, &[forget(&order)]).await, (4, 0, 1));
    assert_eq!(
        reserve(&gate, sale, &[request("ann", "k", 1)]).await,
        (vec![Replay(retry.order)], 4)
    );
}

#[tokio::test]
async fn a_release_that_overtakes_its_reservation_keeps_it_from_ever_holding() {
    let gate = gate();
    let sale = prime(&gate, open(5)).await;
    let order = request("ann", "k", 2);
    assert_eq!(release(&gate, sale, &[release_of(&order)]).await, (5, 0, 1));
    let batch = [order, request("ann", "k", 2)];
    assert_eq!(
        reserve(&gate, sale, &batch).await,
        (vec![Verdict::Released, Admitted], 3)
    );
}

#[tokio::test]
async fn what_is_remembered_of_unknown_orders_goes_away_after_an_hour() {
    let gate = gate();
    let sale = prime(&gate, open(5)).await;
    let tombs = format!("{{sale:{sale}}}:tombs");
    let old = OrderId::fresh().to_string();
    let long_ago = (Timestamp::now() - SignedDuration::from_mins(61))
        .as_microsecond()
        .to_string();
    shared().command(&["ZADD", &tombs, &long_ago, &old]);

    release(&gate, sale, &[release_of(&stranger(1))]).await;
    assert_eq!(shared().command(&["ZCARD", &tombs]), redis::Value::Int(1));
    let redis::Value::Int(ttl) = shared().command(&["PTTL", &tombs]) else {
        panic!("no number")
    };
    assert!((1..=3_600_000).contains(&ttl), "{ttl}");
}
