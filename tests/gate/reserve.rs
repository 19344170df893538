//! Reserving units.

use std::collections::HashSet;

use fluxbuy::domain::SaleId;
use fluxbuy::gate::Verdict::{Admitted, Closed, KeyReused, LimitExceeded, NotOpen, Replay, SoldOut};
use fluxbuy::gate::{Error, MAX_BATCH_REQUESTS, Pulse, Reserve, SaleFacts};
use jiff::{SignedDuration, Timestamp};

use crate::support::{
    available, forget, gate, held, limited, load, loaded, open, prime, release, release_of, request, reserve,
    stranger,
};

#[tokio::test]
async fn units_are_taken_and_the_reservation_is_written_down() {
    let gate = gate();
    let sale = prime(&gate, open(10)).await;
    let before = Timestamp::now();
    let wanted = request("user:42:x", "k", 3);

    let decided = gate.reserve(sale, std::slice::from_ref(&wanted)).await.unwrap();
    assert_eq!(
        decided,
        Reserve::Decided {
            epoch: 1,
            available: 7,
            verdicts: vec![Admitted]
        }
    );

    let held = held(&gate, sale).await;
    assert_eq!(held.len(), 1);
    let entry = &held[&wanted.order];
    assert_eq!(
        (&entry.buyer, entry.digest, entry.quantity),
        (&wanted.buyer, wanted.digest, 3)
    );
    // Redis runs on this machine's clock.
    assert!(
        (before..=Timestamp::now()).contains(&entry.reserved_at),
        "{entry:?}"
    );
    assert_eq!(
        gate.pulse(sale).await.unwrap(),
        Some(Pulse {
            epoch: 1,
            available: 7,
            keys: 1,
            changes: 1,
        })
    );
    assert_eq!(
        gate.known_keys(sale).await.unwrap(),
        [wanted.digest].into_iter().collect()
    );
}

#[tokio::test]
async fn an_empty_batch_tells_the_stock() {
    let gate = gate();
    let sale = prime(&gate, open(10)).await;
    assert_eq!(reserve(&gate, sale, &[]).await, (vec![], 10));
    assert_eq!(release(&gate, sale, &[]).await, (10, 0, 0));
}

#[tokio::test]
async fn a_repeated_call_takes_nothing_more() {
    let gate = gate();
    let sale = prime(&gate, open(10)).await;
    let batch = [stranger(3), stranger(4), stranger(9)];
    let first = reserve(&gate, sale, &batch).await;
    assert_eq!(first, (vec![Admitted, Admitted, SoldOut], 3));
    assert_eq!(reserve(&gate, sale, &batch).await, first);
}

#[tokio::test]
async fn a_known_key_finds_its_order_and_another_quantity_is_refused() {
    let gate = gate();
    let sale = prime(&gate, open(10)).await;
    let first = request("ann", "k", 2);
    assert_eq!(
        reserve(&gate, sale, std::slice::from_ref(&first)).await,
        (vec![Admitted], 8)
    );

    let batch = [
        request("ann", "k", 2),
        request("ann", "k", 3),
        request("bob", "k", 2),
    ];
    assert_eq!(
        reserve(&gate, sale, &batch).await,
        (vec![Replay(first.order), KeyReused, Admitted], 6)
    );
}

#[tokio::test]
async fn the_same_key_twice_in_one_batch_is_one_purchase() {
    let gate = gate();
    let sale = prime(&gate, open(10)).await;
    let batch = [
        request("ann", "k", 2),
        request("ann", "k", 2),
        request("ann", "k", 1),
    ];
    assert_eq!(
        reserve(&gate, sale, &batch).await,
        (vec![Admitted, Replay(batch[0].order), KeyReused], 8)
    );

    // The very same request twice is still itself.
    let twice = request("bob", "k", 1);
    assert_eq!(
        reserve(&gate, sale, &[twice.clone(), twice]).await,
        (vec![Admitted, Admitted], 7)
    );
}

#[tokio::test]
async fn a_refusal_is_not_pinned_to_its_key() {
    let gate = gate();
    let sale = prime(&gate, open(1)).await;
    let holder = stranger(1);
    let wanted = request("ann", "k", 1);
    assert_eq!(
        reserve(&gate, sale, &[holder.clone(), wanted]).await,
        (vec![Admitted, SoldOut], 0)
    );
    release(&gate, sale, &[release_of(&holder)]).await;
    assert_eq!(
        reserve(&gate, sale, &[request("ann", "k", 1)]).await,
        (vec![Admitted], 0)
    );
}

#[tokio::test]
async fn s3_a_smaller_request_is_admitted_after_a_larger_one_was_refused() {
    let gate = gate();
    let sale = prime(&gate, open(2)).await;
    assert_eq!(
        reserve(&gate, sale, &[stranger(3), stranger(2)]).await,
        (vec![SoldOut, Admitted], 0)
    );
}

#[tokio::test]
async fn s2_two_want_six_of_ten() {
    let gate = gate();
    let sale = prime(&gate, open(10)).await;
    let (one, other) = (stranger(6), stranger(6));
    let (one, other) = (std::slice::from_ref(&one), std::slice::from_ref(&other));
    let (one, other) = tokio::join!(reserve(&gate, sale, one), reserve(&gate, sale, other));
    let verdicts = HashSet::from([one.0[0], other.0[0]]);
    assert_eq!(verdicts, HashSet::from([Admitted, SoldOut]));
    assert_eq!(available(&gate, sale).await, 4);
}

#[tokio::test]
async fn s4_the_limit_is_checked_before_the_stock() {
    let gate = gate();
    let sale = prime(&gate, limited(10, 1)).await;
    // Eleven calls one by one, and then eleven in one batch.
    for key in 0..11 {
        let wanted = if key == 0 { Admitted } else { LimitExceeded };
        assert_eq!(
            reserve(&gate, sale, &[request("ann", &key.to_string(), 1)]).await,
            (vec![wanted], 9)
        );
    }
    let batch: Vec<_> = (0..11).map(|key| request("bob", &key.to_string(), 1)).collect();
    let (verdicts, left) = reserve(&gate, sale, &batch).await;
    assert_eq!(
        (verdicts[0], &verdicts[1..], left),
        (Admitted, &[LimitExceeded; 10][..], 8)
    );

    // Also where there is no stock either.
    let empty = prime(&gate, limited(1, 1)).await;
    let batch = [
        request("ann", "1", 1),
        request("ann", "2", 1),
        request("bob", "1", 1),
    ];
    assert_eq!(
        reserve(&gate, empty, &batch).await,
        (vec![Admitted, LimitExceeded, SoldOut], 0)
    );
}

#[tokio::test]
async fn s5_the_allowance_comes_back_with_the_units() {
    let gate = gate();
    let sale = prime(&gate, limited(10, 3)).await;
    let first = request("ann", "1", 2);
    assert_eq!(
        reserve(&gate, sale, std::slice::from_ref(&first)).await,
        (vec![Admitted], 8)
    );
    assert_eq!(
        reserve(&gate, sale, &[request("ann", "2", 2)]).await,
        (vec![LimitExceeded], 8)
    );
    assert_eq!(
        reserve(&gate, sale, &[request("ann", "3", 1)]).await,
        (vec![Admitted], 7)
    );

    assert_eq!(
        release(&gate, sale, &[release_of(&first), release_of(&first)]).await,
        (9, 2, 0)
    );
    assert_eq!(release(&gate, sale, &[release_of(&first)]).await, (9, 0, 1));
    assert_eq!(
        reserve(&gate, sale, &[request("ann", "4", 3)]).await,
        (vec![LimitExceeded], 9)
    );
    assert_eq!(
        reserve(&gate, sale, &[request("ann", "5", 2)]).await,
        (vec![Admitted], 7)
    );
}

#[tokio::test]
async fn s1_s5_of_64_at_once_one_gets_the_last_unit() {
    let gate = gate();
    for facts in [open(1), limited(1, 1)] {
        let sale = prime(&gate, facts).await;
        // Under a limit it is one buyer with 64 keys, else 64 buyers.
        let requests = (0..64).map(|number: i32| match facts.per_buyer_limit {
            Some(_) => request("ann", &number.to_string(), 1),
            None => stranger(1),
        });
        let calls = requests.map(|request| {
            let gate = gate.clone();
            tokio::spawn(async move { reserve(&gate, sale, &[request]).await.0[0] })
        });
        let mut admitted = 0;
        for call in calls.collect::<Vec<_>>() {
            admitted += i32::from(call.await.unwrap() == Admitted);
        }
        assert_eq!(admitted, 1);
        assert_eq!(available(&gate, sale).await, 0);
        assert_eq!(held(&gate, sale).await.len(), 1);
    }
}

#[tokio::test]
async fn s7_the_sale_opens_and_closes_and_a_replay_still_finds_its_order() {
    let gate = gate();
    let hour = SignedDuration::from_hours(1);
    let early = SaleFacts {
        opens_at: Timestamp::now() + hour,
        ..open(5)
    };
    let sale = prime(&gate, early).await;
    assert_eq!(reserve(&gate, sale, &[stranger(1)]).await, (vec![NotOpen], 5));

    let closed = SaleFacts {
        closes_at: Some(Timestamp::now() - hour / 2),
        ..open(5)
    };
    let sale = SaleId::fresh();
    let order = request("ann", "k", 1);
    load(&gate, sale, 1, &[loaded(&order, true)], closed).await;
    let batch = [stranger(1), request("ann", "k", 1), request("ann", "k", 2)];
    assert_eq!(
        reserve(&gate, sale, &batch).await,
        (vec![Closed, Replay(order.order), KeyReused], 5)
    );
}

#[tokio::test]
async fn the_opening_instant_is_to_the_microsecond_by_the_clock_of_redis() {
    let gate = gate();
    let opens_at = Timestamp::now() + SignedDuration::from_millis(50);
    let sale = prime(&gate, SaleFacts { opens_at, ..open(1) }).await;
    let wanted = stranger(1);
    loop {
        let before = Timestamp::now();
        let (verdicts, _) = reserve(&gate, sale, std::slice::from_ref(&wanted)).await;
        if verdicts == [Admitted] {
            break;
        }
        assert_eq!(verdicts, [NotOpen]);
        assert!(before < opens_at);
    }
    assert!(held(&gate, sale).await[&wanted.order].reserved_at >= opens_at);
}

#[tokio::test]
async fn a_batch_may_be_large_but_not_endless() {
    let gate = gate();
    let sale = prime(&gate, limited(3000, 2)).await;
    let batch: Vec<_> = (0..MAX_BATCH_REQUESTS).map(|_| stranger(1)).collect();
    let (verdicts, left) = reserve(&gate, sale, &batch).await;
    assert!(verdicts[..3000].iter().all(|verdict| *verdict == Admitted));
    assert!(verdicts[3000..].iter().all(|verdict| *verdict == SoldOut));
    assert_eq!(left, 0);
    assert_eq!(held(&gate, sale).await.len(), 3000);
    assert_eq!(gate.known_keys(sale).await.unwrap().len(), 3000);

    let releases: Vec<_> = batch.iter().map(forget).collect();
    assert_eq!(
        release(&gate, sale, &releases).await,
        (3000, 3000, MAX_BATCH_REQUESTS - 3000)
    );
    let pulse = gate.pulse(sale).await.unwrap().unwrap();
    assert_eq!((pulse.epoch, pulse.available, pulse.keys), (1, 3000, 0));

    let too_many = vec![stranger(1); MAX_BATCH_REQUESTS + 1];
    let error = gate.reserve(sale, &too_many).await.unwrap_err();
    assert!(
        matches!(error, Error::BatchTooLarge { .. }) && error.nothing_happened(),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_quantity_that_is_not_positive_changes_nothing() {
    let gate = gate();
    let sale = prime(&gate, open(5)).await;
    for bad in [0, -5, i32::MIN] {
        let error = gate
            .reserve(sale, &[stranger(1), stranger(bad)])
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Other(_)), "{error:?}");
    }
    assert_eq!(available(&gate, sale).await, 5);
    assert!(held(&gate, sale).await.is_empty());
}

#[tokio::test]
async fn s18_sales_do_not_touch_each_other() {
    let gate = gate();
    let (one, other) = (prime(&gate, open(1)).await, prime(&gate, open(1)).await);
    assert_eq!(
        reserve(&gate, one, &[request("ann", "k", 1)]).await,
        (vec![Admitted], 0)
    );
    assert_eq!(
        reserve(&gate, other, &[request("ann", "k", 1)]).await,
        (vec![Admitted], 0)
    );
}
