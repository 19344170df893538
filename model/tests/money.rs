//! Every interleaving of the payment of an order, in each of the ways in which it can be paid.

use model::money::{Guards, Landmark, Money};
use model::run::{self, Explored};

/// Everything holds, and nothing that is meant to be in it is missing.
fn explore(name: &str, model: Money, but: &[Landmark]) -> Explored {
    assert_eq!(model.guards, Guards::ALL);
    let landmarks = model.landmarks.clone();
    let explored = run::explore(name, model, None);
    for landmark in Landmark::ALL {
        let passed = landmarks.passed(landmark as usize);
        assert_eq!(passed, !but.contains(&landmark), "{name}: {landmark:?}");
    }
    explored
}

#[test]
fn in_one_step() {
    let model = Money {
        refunds: true,
        ..Money::new(4)
    };
    let explored = explore(
        "money in one step",
        model,
        &[Landmark::LateMoney, Landmark::VoidNotKept],
    );
    assert!(explored.unique > 100_000);
}

#[test]
fn in_one_step_when_the_operator_has_orders_in_doubt_failed() {
    let model = Money {
        fail_in_doubt: true,
        ..Money::new(4)
    };
    let explored = explore(
        "money in one step, in doubt failed",
        model,
        &[Landmark::VoidNotKept],
    );
    assert!(explored.unique > 100_000);
}

#[test]
fn in_two_steps() {
    let model = Money {
        two_step: true,
        expiry: true,
        refunds: true,
        ..Money::new(4)
    };
    let explored = explore(
        "money in two steps",
        model,
        &[Landmark::LateMoney, Landmark::VoidNotKept],
    );
    assert!(explored.unique > 500_000);
}

#[test]
fn in_one_step_when_voids_are_not_kept() {
    let model = Money {
        kept_voids: false,
        ..Money::new(4)
    };
    let explored = explore("money in one step, voids not kept", model, &[]);
    assert!(explored.unique > 100_000);
}

#[test]
fn in_two_steps_when_voids_are_not_kept() {
    let model = Money {
        two_step: true,
        kept_voids: false,
        ..Money::new(3)
    };
    let explored = explore("money in two steps, voids not kept", model, &[]);
    assert!(explored.unique > 100_000);
}
