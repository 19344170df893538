//! Every interleaving of a small sale.

use model::run::{self, Explored};
use model::stock::{Guards, Landmark, Stock};

/// Everything holds, and nothing that is meant to be in it is missing.
fn explore(name: &str, model: Stock, but: &[Landmark]) -> Explored {
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
fn two_buyers_of_one_unit_and_a_gate_that_is_loaded_twice() {
    let explored = explore("stock, loaded twice", Stock::new(2, 1, 2), &[]);
    assert!(explored.unique > 1_000_000);
}

#[test]
fn two_buyers_of_one_unit_and_three_things_at_a_time() {
    let model = Stock {
        max_epoch: 2,
        ..Stock::new(2, 1, 3)
    };
    let explored = explore("stock, three at a time", model, &[Landmark::LoadLost]);
    assert!(explored.unique > 500_000);
}

#[test]
fn one_buyer_whose_unit_comes_back_and_a_gate_that_is_loaded_at_any_time() {
    let model = Stock {
        max_epoch: 4,
        eager_reloads: true,
        returns: true,
        ..Stock::new(1, 1, 3)
    };
    let explored = explore("stock, loaded at any time", model, &[Landmark::SoldOut]);
    assert!(explored.unique > 100_000);
}
