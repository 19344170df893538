//! Larger runs, for minutes and in a release build (`make model`): more hands, more buyers, more faults. Each stops after a while, done or not.

use std::time::Duration;

use model::money::Money;
use model::run;
use model::stock::Stock;

/// How long one of them may go on.
const LIMIT: Option<Duration> = Some(Duration::from_mins(3));

#[test]
#[ignore = "takes minutes: make model"]
fn money_in_one_step() {
    let model = Money {
        refunds: true,
        ..Money::new(5)
    };
    run::explore("money in one step, 5 hands", model, LIMIT);
}

#[test]
#[ignore = "takes minutes: make model"]
fn money_in_one_step_when_the_operator_has_orders_in_doubt_failed() {
    let model = Money {
        fail_in_doubt: true,
        refunds: true,
        ..Money::new(5)
    };
    run::explore("money in one step, in doubt failed, 5 hands", model, LIMIT);
}

#[test]
#[ignore = "takes minutes: make model"]
fn money_in_two_steps() {
    let model = Money {
        two_step: true,
        expiry: true,
        refunds: true,
        ..Money::new(5)
    };
    run::explore("money in two steps, 5 hands", model, LIMIT);
}

#[test]
#[ignore = "takes minutes: make model"]
fn money_in_two_steps_when_voids_are_not_kept() {
    let model = Money {
        two_step: true,
        kept_voids: false,
        ..Money::new(4)
    };
    run::explore("money in two steps, voids not kept, 4 hands", model, LIMIT);
}

#[test]
#[ignore = "takes minutes: make model"]
fn stock_of_two_buyers_and_three_things_at_a_time() {
    run::explore("stock, 2 buyers, 3 at a time", Stock::new(2, 1, 3), LIMIT);
}

#[test]
#[ignore = "takes minutes: make model"]
fn stock_of_two_buyers_that_comes_back() {
    let model = Stock {
        eager_reloads: true,
        returns: true,
        ..Stock::new(2, 1, 2)
    };
    run::explore("stock, 2 buyers, units that come back", model, LIMIT);
}

#[test]
#[ignore = "takes minutes: make model"]
fn stock_of_three_buyers_and_two_units() {
    run::explore("stock, 3 buyers, 2 units", Stock::new(3, 2, 2), LIMIT);
}
