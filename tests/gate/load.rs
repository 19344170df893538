//! Filling the gate from the database.

use std::collections::HashSet;

use fluxbuy::domain::SaleId;
use fluxbuy::gate::Verdict::{Admitted, LimitExceeded, Replay};
use fluxbuy::gate::{Error, Pulse, Released, Reserve, Verdict};
use jiff::{SignedDuration, Timestamp};

use crate::support::{
    forget, gate, held, limited, load, loaded, open, prime, release, release_of, request, reserve, shared,
    stranger,
};

#[tokio::test]
async fn a_sale_that_was_never_loaded_says_so() {
    let gate = gate();
    let sale = SaleId::fresh();
    assert_eq!(
        gate.reserve(sale, &[stranger(1)]).await.unwrap(),
        Reserve::Unprimed
    );
    assert_eq!(
        gate.release(sale, &[release_of(&stranger(1))]).await.unwrap(),
        Released::Unprimed
    );
    assert_eq!(gate.pulse(sale).await.unwrap(), None);
    assert_eq!(gate.known_keys(sale).await, Err(Error::Unprimed));
    assert_eq!(gate.reservations(sale, 0).await.unwrap(), (0, vec![]));
    assert!(!gate.load_orders(sale, 1, &[]).await.unwrap());
    assert!(!gate.finish_load(sale, 1, &open(1)).await.unwrap());
}

#[tokio::test]
async fn a_load_brings_keys_holds_and_allowances() {
    let gate = gate();
    let sale = SaleId::fresh();
    let (holding, failed) = (request("ann", "1", 2), request("ann", "2", 1));
    let orders = [loaded(&holding, true), loaded(&failed, false)];
    assert!(gate.begin_load(sale, 7).await.unwrap());
    assert_eq!(
        gate.reserve(sale, &[stranger(1)]).await.unwrap(),
        Reserve::Loading
    );
    // A chunk that is sent twice counts once.
    assert!(gate.load_orders(sale, 7, &orders).await.unwrap());
    assert!(gate.load_orders(sale, 7, &orders).await.unwrap());
    assert_eq!(gate.pulse(sale).await.unwrap(), None);
    assert!(gate.finish_load(sale, 7, &limited(8, 3)).await.unwrap());

    let expected = Pulse {
        epoch: 7,
        available: 8,
        keys: 2,
        changes: 0,
    };
    assert_eq!(gate.pulse(sale).await.unwrap(), Some(expected));
    let batch = [
        request("ann", "1", 2),
        request("ann", "2", 1),
        request("ann", "3", 2),
        request("ann", "4", 1),
        holding.clone(),
        failed.clone(),
    ];
    let verdicts = vec![
        Replay(holding.order),
        Replay(failed.order),
        LimitExceeded,
        Admitted,
        Admitted,
        Verdict::Released,
    ];
    assert_eq!(reserve(&gate, sale, &batch).await, (verdicts, 7));
    assert_eq!(
        release(&gate, sale, &[release_of(&holding), release_of(&failed)]).await,
        (9, 2, 1)
    );
}

#[tokio::test]
async fn a_large_load_arrives_whole() {
    let gate = gate();
    let sale = SaleId::fresh();
    let orders: Vec<_> = (0..5000)
        .map(|number| loaded(&stranger(2), number % 5 != 0))
        .collect();
    load(&gate, sale, 1, &orders, open(3)).await;
    let digests = orders.iter().map(|order| order.digest).collect();
    assert_eq!(gate.known_keys(sale).await.unwrap(), digests);
    let holding: HashSet<_> = orders
        .iter()
        .filter(|order| order.holds)
        .map(|order| order.order)
        .collect();
    assert_eq!(
        held(&gate, sale).await.into_keys().collect::<HashSet<_>>(),
        holding
    );
}

#[tokio::test]
async fn what_must_never_reserve_must_not_after_a_load_either() {
    let gate = gate();
    let sale = prime(&gate, open(5)).await;
    let order = stranger(1);
    release(&gate, sale, &[forget(&order)]).await;
    load(&gate, sale, 2, &[], open(5)).await;
    assert_eq!(reserve(&gate, sale, &[order]).await, (vec![Verdict::Released], 5));
}

#[tokio::test]
async fn a_loaded_epoch_is_not_loaded_again_and_an_older_one_never() {
    let gate = gate();
    let sale = SaleId::fresh();
    load(&gate, sale, 5, &[], open(5)).await;
    reserve(&gate, sale, &[stranger(2)]).await;
    for epoch in [4, 5] {
        assert!(!gate.begin_load(sale, epoch).await.unwrap());
        assert!(!shared().gate().begin_load(sale, epoch).await.unwrap());
    }
    assert_eq!(
        gate.pulse(sale).await.unwrap(),
        Some(Pulse {
            epoch: 5,
            available: 3,
            keys: 1,
            changes: 1,
        })
    );

    load(&gate, sale, 6, &[], open(4)).await;
    assert_eq!(
        gate.pulse(sale).await.unwrap(),
        Some(Pulse {
            epoch: 6,
            available: 4,
            keys: 0,
            changes: 0,
        })
    );
}

/// Two processes load the same sale under different epochs; the older one goes so far before the newer one begins, and then goes on.
#[tokio::test]
async fn the_newer_of_two_loads_wins_wherever_the_older_one_stands() {
    let (old, new) = (gate(), gate());
    let stale = loaded(&request("ann", "stale", 1), true);
    let fresh = loaded(&request("bob", "fresh", 1), true);
    for (old_begins, old_loads, old_finishes) in [
        (false, false, false),
        (true, false, false),
        (true, true, false),
        (true, true, true),
    ] {
        let sale = SaleId::fresh();
        let stale = std::slice::from_ref(&stale);
        if old_begins {
            assert!(old.begin_load(sale, 1).await.unwrap());
        }
        if old_loads {
            assert!(old.load_orders(sale, 1, stale).await.unwrap());
        }
        if old_finishes {
            assert!(old.finish_load(sale, 1, &open(9)).await.unwrap());
        }
        assert!(new.begin_load(sale, 2).await.unwrap());
        assert!(!old.begin_load(sale, 1).await.unwrap());
        assert!(!old.load_orders(sale, 1, stale).await.unwrap());
        assert!(!old.finish_load(sale, 1, &open(9)).await.unwrap());

        assert!(
            new.load_orders(sale, 2, std::slice::from_ref(&fresh))
                .await
                .unwrap()
        );
        assert!(!old.begin_load(sale, 1).await.unwrap());
        assert!(new.finish_load(sale, 2, &open(4)).await.unwrap());
        assert!(!old.begin_load(sale, 1).await.unwrap());

        assert_eq!(
            new.pulse(sale).await.unwrap(),
            Some(Pulse {
                epoch: 2,
                available: 4,
                keys: 1,
                changes: 0,
            })
        );
        assert_eq!(
            new.known_keys(sale).await.unwrap(),
            [fresh.digest].into_iter().collect()
        );
    }
}

#[tokio::test]
async fn a_dead_loader_is_taken_over_and_comes_too_late_when_it_wakes() {
    let (dead, heir) = (gate(), gate());
    let sale = SaleId::fresh();
    let orders = [loaded(&stranger(1), true)];
    assert!(dead.begin_load(sale, 3).await.unwrap());
    assert!(dead.load_orders(sale, 3, &orders).await.unwrap());

    // Within 2 s it counts as alive, for its own epoch.
    assert!(!heir.begin_load(sale, 3).await.unwrap());
    assert_eq!(
        heir.reserve(sale, &[stranger(1)]).await.unwrap(),
        Reserve::Loading
    );

    // Three seconds later, as far as Redis can tell.
    let state = format!("{{sale:{sale}}}:state");
    let earlier = (Timestamp::now() - SignedDuration::from_secs(3))
        .as_microsecond()
        .to_string();
    shared().command(&["HSET", &state, "loading_since_us", &earlier]);
    assert_eq!(
        heir.reserve(sale, &[stranger(1)]).await.unwrap(),
        Reserve::Unprimed
    );
    assert!(heir.begin_load(sale, 3).await.unwrap());

    assert!(!dead.load_orders(sale, 3, &orders).await.unwrap());
    assert!(!dead.finish_load(sale, 3, &open(9)).await.unwrap());
    assert!(heir.finish_load(sale, 3, &open(2)).await.unwrap());
    assert_eq!(
        heir.pulse(sale).await.unwrap(),
        Some(Pulse {
            epoch: 3,
            available: 2,
            keys: 0,
            changes: 0,
        })
    );
}

#[tokio::test]
async fn a_loader_may_begin_again_at_once_and_starts_from_nothing() {
    let gate = gate();
    let sale = SaleId::fresh();
    assert!(gate.begin_load(sale, 1).await.unwrap());
    assert!(
        gate.load_orders(sale, 1, &[loaded(&stranger(1), true)])
            .await
            .unwrap()
    );
    assert!(gate.begin_load(sale, 1).await.unwrap());
    assert!(gate.finish_load(sale, 1, &open(2)).await.unwrap());
    assert_eq!(
        gate.pulse(sale).await.unwrap(),
        Some(Pulse {
            epoch: 1,
            available: 2,
            keys: 0,
            changes: 0,
        })
    );
}

/// A connection was lost, the call repeated, and only then did Redis read what was sent on the old one.
#[tokio::test]
async fn a_delayed_copy_of_the_beginning_takes_nothing_away() {
    let gate = gate();
    let sale = SaleId::fresh();
    let begin = redis::Script::new(include_str!("../../src/gate/scripts/load_begin.lua"));
    let mut connection = redis::Client::open(shared().url())
        .unwrap()
        .get_connection()
        .unwrap();
    let state = format!("{{sale:{sale}}}:state");
    let mut delayed = |loader: &str| -> i32 {
        let (instance, number) = loader.split_once(':').unwrap();
        let mut call = begin.prepare_invoke();
        for what in ["state", "keys", "held", "buyers", "tombs"] {
            call.key(format!("{{sale:{sale}}}:{what}"));
        }
        call.arg(1)
            .arg(instance)
            .arg(number)
            .invoke(&mut connection)
            .unwrap()
    };
    let loader = || match shared().command(&["HGET", &state, "loader"]) {
        redis::Value::BulkString(loader) => String::from_utf8(loader).unwrap(),
        other => panic!("{other:?}"),
    };

    // Of an earlier beginning, which was given up for a second one, and of the second one itself.
    assert!(gate.begin_load(sale, 1).await.unwrap());
    let first = loader();
    assert!(gate.begin_load(sale, 1).await.unwrap());
    let second = loader();
    assert!(
        gate.load_orders(sale, 1, &[loaded(&stranger(1), true)])
            .await
            .unwrap()
    );
    assert_eq!(delayed(&first), 0);
    assert_eq!(delayed(&second), 1);
    assert!(gate.finish_load(sale, 1, &open(4)).await.unwrap());
    let expected = Pulse {
        epoch: 1,
        available: 4,
        keys: 1,
        changes: 0,
    };
    assert_eq!(gate.pulse(sale).await.unwrap(), Some(expected));
    assert_eq!(delayed(&second), 0);
    assert_eq!(gate.pulse(sale).await.unwrap(), Some(expected));
}
