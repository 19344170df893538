//! Each guard of the stock, taken away: what it keeps away must be found.

use model::run::must_break;
use model::stock::{Guards, Stock, property};

fn without(guards: Guards) -> Stock {
    Stock {
        guards,
        ..Stock::new(2, 1, 3)
    }
}

#[test]
fn without_the_epoch_a_batch_of_old_keys_takes_what_the_new_ones_sell() {
    let guards = Guards {
        epoch: false,
        ..Guards::ALL
    };
    must_break("no epoch", &without(guards), property::GATE);
}

#[test]
fn without_the_check_engines_that_sell_alone_oversell() {
    let guards = Guards {
        check: false,
        ..Guards::ALL
    };
    must_break("no check", &without(guards), property::NEVER_OVERSOLD);
}

#[test]
fn without_the_unique_key_a_purchase_is_two_orders() {
    let model = Stock {
        quantity: 2,
        ..without(Guards {
            unique_key: false,
            ..Guards::ALL
        })
    };
    must_break("no unique key", &model, property::ONE_ORDER);
}

#[test]
fn giving_back_what_may_still_become_an_order_sells_it_twice_in_the_gate() {
    let guards = Guards {
        occupy: false,
        ..Guards::ALL
    };
    must_break("ids are not occupied", &without(guards), property::GATE);
}

#[test]
fn a_note_that_old_keys_have_done_is_missing_under_the_new_ones() {
    let model = Stock {
        buyers: 1,
        eager_reloads: true,
        ..without(Guards {
            note_epoch: false,
            ..Guards::ALL
        })
    };
    must_break("notes go under any epoch", &model, property::HEALS);
}

/// What the engine doesn't keep away: a batch that goes by the database alone raises the epoch, and another engine that still reaches the gate
/// under the old one believes it when it refuses. Should the engine learn better, this test breaks, and goes.
#[test]
fn a_gate_that_was_passed_by_may_send_a_replay_away() {
    let model = Stock {
        any_refusal: true,
        ..without(Guards::ALL)
    };
    must_break("a gate that was passed by", &model, property::REFUSALS);
}
