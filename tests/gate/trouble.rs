//! Redis forgetful, full, silent, away, or cut off.

use std::time::{Duration, Instant};

use fluxbuy::domain::SaleId;
use fluxbuy::gate::Verdict::Admitted;
use fluxbuy::gate::{Error, Gate, Pulse, Reserve, Settings};
use nix::sys::signal::Signal;

use crate::support::proxy::Proxy;
use crate::support::{
    GENEROUS, Redis, available, forget, gate, held, limited, load, loaded, open, prime, release, release_of,
    request, reserve, stranger,
};

#[tokio::test]
async fn s13_a_forgotten_script_is_told_again() {
    let redis = Redis::start();
    let gate = redis.gate();
    let sale = prime(&gate, open(3)).await;
    for left in (0..3).rev() {
        redis.command(&["SCRIPT", "FLUSH"]);
        assert_eq!(reserve(&gate, sale, &[stranger(1)]).await, (vec![Admitted], left));
    }
}

#[tokio::test]
async fn s13_a_flushed_sale_is_unprimed_and_can_be_loaded_under_any_epoch() {
    let redis = Redis::start();
    let gate = redis.gate();
    let sale = prime(&gate, open(3)).await;
    redis.command(&["FLUSHALL"]);
    assert_eq!(
        gate.reserve(sale, &[stranger(1)]).await.unwrap(),
        Reserve::Unprimed
    );
    load(&gate, sale, 2, &[], open(3)).await;

    // In the middle of a load as well: what is left of it doesn't count.
    assert!(gate.begin_load(sale, 3).await.unwrap());
    redis.command(&["FLUSHALL"]);
    assert!(
        !gate
            .load_orders(sale, 3, &[loaded(&stranger(1), true)])
            .await
            .unwrap()
    );
    assert!(!gate.finish_load(sale, 3, &open(3)).await.unwrap());
    assert_eq!(
        gate.reserve(sale, &[stranger(1)]).await.unwrap(),
        Reserve::Unprimed
    );
}

#[tokio::test]
async fn at_full_memory_a_reservation_is_refused_whole_and_a_release_works() {
    let redis = Redis::start();
    let gate = redis.gate();
    let sale = prime(&gate, limited(10, 5)).await;
    let order = request("ann", "1", 2);
    reserve(&gate, sale, std::slice::from_ref(&order)).await;
    let state = format!("{{sale:{sale}}}:state");
    let before = redis.command(&["HGETALL", &state]);

    redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = gate
        .reserve(sale, &[request("ann", "2", 1), stranger(1)])
        .await
        .unwrap_err();
    assert_eq!(error, Error::OutOfMemory);
    assert!(error.nothing_happened());
    assert_eq!(redis.command(&["HGETALL", &state]), before);
    assert_eq!(held(&gate, sale).await.len(), 1);
    assert_eq!(available(&gate, sale).await, 8);

    assert_eq!(
        release(&gate, sale, &[forget(&order), release_of(&stranger(1))]).await,
        (10, 2, 1)
    );

    // A load may begin, for that frees memory, but not fill it.
    assert!(gate.begin_load(sale, 2).await.unwrap());
    let orders = [loaded(&order, true)];
    assert_eq!(gate.load_orders(sale, 2, &orders).await, Err(Error::OutOfMemory));

    redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(gate.load_orders(sale, 2, &orders).await.unwrap());
    assert!(gate.finish_load(sale, 2, &limited(10, 5)).await.unwrap());
}

#[tokio::test]
async fn s14_an_evicting_policy_is_refused() {
    let redis = Redis::start();
    let gate = redis.gate();
    gate.check_policy().await.unwrap();
    for policy in ["allkeys-lru", "volatile-ttl", "allkeys-random"] {
        redis.command(&["CONFIG", "SET", "maxmemory-policy", policy]);
        assert_eq!(
            gate.check_policy().await,
            Err(Error::EvictingPolicy { found: policy.into() })
        );
    }
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    gate.check_policy().await.unwrap();
}

#[tokio::test]
async fn a_lost_redis_fails_calls_fast_and_is_found_again() {
    let redis = Redis::start();
    let gate = redis.gate();
    let sale = prime(&gate, open(3)).await;
    redis.kill();

    // Nobody listens, so no timeout is ever waited for.
    let began = Instant::now();
    let first = gate.reserve(sale, &[stranger(1)]).await.unwrap_err();
    // The connection was there when it was sent, as far as anybody could know.
    assert!(
        matches!(first, Error::OutcomeUnknown(_) | Error::Unreachable(_)),
        "{first:?}"
    );
    for _ in 0..20 {
        let error = gate.reserve(sale, &[stranger(1)]).await.unwrap_err();
        assert!(
            matches!(error, Error::Unreachable(_)) && error.nothing_happened(),
            "{error:?}"
        );
    }
    assert!(began.elapsed() < GENEROUS, "{:?}", began.elapsed());

    redis.restart();
    gate.ping().await.unwrap();
    assert_eq!(
        gate.reserve(sale, &[stranger(1)]).await.unwrap(),
        Reserve::Unprimed
    );
    load(&gate, sale, 2, &[], open(3)).await;

    // When it was away between two calls only, nobody notices.
    redis.kill();
    redis.restart();
    assert_eq!(
        gate.reserve(sale, &[stranger(1)]).await.unwrap(),
        Reserve::Unprimed
    );
}

/// A gate whose answers can be cut off, and what is behind the cut.
async fn gate_behind_a_proxy(redis: &Redis) -> (Gate, Proxy) {
    let proxy = Proxy::to(&redis.url()).await;
    let settings = Settings {
        url: proxy.url(),
        response_timeout: GENEROUS,
        connect_timeout: GENEROUS,
    };
    (Gate::new(&settings).unwrap(), proxy)
}

#[tokio::test]
async fn a_call_whose_answer_is_lost_is_repeated_and_happens_once() {
    // A Redis of its own, and every script told: else it could be the word that it doesn't know the script that is cut off.
    let redis = Redis::start();
    let (gate, proxy) = gate_behind_a_proxy(&redis).await;
    let sale = SaleId::fresh();
    load(&gate, sale, 0, &[loaded(&stranger(1), true)], open(5)).await;
    reserve(&gate, sale, &[]).await;
    release(&gate, sale, &[]).await;
    load(&gate, sale, 1, &[], open(5)).await;

    let order = stranger(2);
    proxy.cut_answers(1);
    assert_eq!(
        reserve(&gate, sale, std::slice::from_ref(&order)).await,
        (vec![Admitted], 3)
    );
    proxy.cut_answers(1);
    // Released by the first call; the second finds nothing to give back.
    assert_eq!(release(&gate, sale, &[release_of(&order)]).await, (5, 0, 1));

    proxy.cut_answers(1);
    assert!(gate.begin_load(sale, 2).await.unwrap());
    proxy.cut_answers(1);
    assert!(
        gate.load_orders(sale, 2, &[loaded(&stranger(1), true)])
            .await
            .unwrap()
    );
    proxy.cut_answers(1);
    assert!(gate.finish_load(sale, 2, &open(4)).await.unwrap());
    assert_eq!(
        gate.pulse(sale).await.unwrap(),
        Some(Pulse {
            epoch: 2,
            available: 4,
            keys: 1,
            changes: 0,
        })
    );
}

#[tokio::test]
async fn a_call_whose_answer_is_lost_for_good_has_an_unknown_outcome() {
    let redis = Redis::start();
    let (gate, proxy) = gate_behind_a_proxy(&redis).await;
    let sale = prime(&gate, open(5)).await;
    reserve(&gate, sale, &[]).await;
    let order = stranger(2);
    proxy.close(true);
    proxy.cut_answers(1);
    let error = gate
        .reserve(sale, std::slice::from_ref(&order))
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::OutcomeUnknown(_)) && !error.nothing_happened(),
        "{error:?}"
    );
    let error = gate
        .reserve(sale, std::slice::from_ref(&order))
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::Unreachable(_)) && error.nothing_happened(),
        "{error:?}"
    );
    // It did happen.
    assert_eq!(available(&redis.gate(), sale).await, 3);

    proxy.close(false);
    assert_eq!(reserve(&gate, sale, &[order]).await, (vec![Admitted], 3));
}

#[tokio::test]
async fn what_is_refused_after_a_lost_answer_may_have_happened_before() {
    let redis = Redis::start();
    let (gate, proxy) = gate_behind_a_proxy(&redis).await;
    let sale = prime(&gate, open(5)).await;
    reserve(&gate, sale, &[stranger(1)]).await;
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    proxy.cut_answers(1);
    let error = gate.reserve(sale, &[stranger(1)]).await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown(_)), "{error:?}");
    assert_eq!(gate.reserve(sale, &[stranger(1)]).await, Err(Error::OutOfMemory));
}

#[tokio::test]
async fn a_gate_may_come_before_its_redis() {
    let redis = Redis::start();
    redis.kill();
    let gate = redis.gate();
    assert!(matches!(gate.ping().await, Err(Error::Unreachable(_))));
    redis.restart();
    gate.ping().await.unwrap();
}

#[tokio::test]
async fn a_silent_redis_costs_its_timeouts_once_and_is_found_again() {
    let redis = Redis::start();
    let timeout = Duration::from_millis(300);
    let gate = redis.gate_with(timeout, timeout);
    let sale = prime(&gate, open(3)).await;
    let wanted = stranger(1);
    redis.signal(Signal::SIGSTOP);

    let began = Instant::now();
    let error = gate
        .reserve(sale, std::slice::from_ref(&wanted))
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::OutcomeUnknown(_)) && !error.nothing_happened(),
        "{error:?}"
    );
    // The silent connection is given up, and the next one doesn't come about.
    assert!(matches!(gate.ping().await, Err(Error::Unreachable(_))));
    assert!(began.elapsed() >= timeout * 2);
    // From now on nobody waits for the whole timeout.
    let began = Instant::now();
    for _ in 0..5 {
        assert!(matches!(gate.ping().await, Err(Error::Unreachable(_))));
    }
    assert!(began.elapsed() < timeout * 4, "{:?}", began.elapsed());

    redis.signal(Signal::SIGCONT);
    let deadline = Instant::now() + GENEROUS;
    while gate.ping().await.is_err() {
        assert!(Instant::now() < deadline);
    }
    // The call of unknown outcome is settled by repeating it.
    assert_eq!(reserve(&gate, sale, &[wanted]).await, (vec![Admitted], 2));
}

#[tokio::test]
async fn a_call_that_its_caller_gives_up_leaves_the_gate_as_it_was() {
    let gate = gate();
    let sale = prime(&gate, open(100)).await;
    for _ in 0..50 {
        let wanted = [stranger(1)];
        // Polled once, so that it may have been sent.
        let _ = tokio::time::timeout(Duration::ZERO, gate.reserve(sale, &wanted)).await;
        reserve(&gate, sale, &wanted).await;
    }
    assert_eq!(available(&gate, sale).await, 50);
}

#[test]
fn an_address_that_is_none_is_refused_at_once() {
    for url in ["", "nonsense", "http://localhost"] {
        let settings = Settings {
            url: url.into(),
            response_timeout: GENEROUS,
            connect_timeout: GENEROUS,
        };
        assert!(
            matches!(Gate::new(&settings), Err(Error::InvalidUrl(_))),
            "{url:?}"
        );
    }
}

#[tokio::test]
async fn a_wrong_password_says_what_is_wrong_until_it_is_right() {
    let redis = Redis::start();
    redis.command(&["CONFIG", "SET", "requirepass", "right"]);
    let settings = Settings {
        url: redis.url().replace("redis://", "redis://:guess@"),
        response_timeout: GENEROUS,
        connect_timeout: GENEROUS,
    };
    let gate = Gate::new(&settings).unwrap();
    assert!(matches!(gate.ping().await, Err(Error::Unreachable(_))));
    let admin = settings.url.replace("guess", "right");
    let mut admin = redis::Client::open(admin).unwrap().get_connection().unwrap();
    redis::cmd("CONFIG")
        .arg(&["SET", "requirepass", "guess"])
        .exec(&mut admin)
        .unwrap();
    gate.ping().await.unwrap();
}
