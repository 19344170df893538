//! Each guard of the payment, taken away: what it keeps away must be found.

use model::money::{Guards, Money, property};
use model::run::must_break;

fn two_step(guards: Guards) -> Money {
    Money {
        two_step: true,
        guards,
        ..Money::new(3)
    }
}

fn one_step(guards: Guards) -> Money {
    Money {
        guards,
        ..Money::new(3)
    }
}

#[test]
fn without_the_status_an_order_fails_whose_money_is_taken() {
    let guards = Guards {
        status: false,
        ..Guards::ALL
    };
    must_break("no status condition", &one_step(guards), property::NO_LATE_MONEY);
}

#[test]
fn without_the_status_an_order_is_charged_twice() {
    let guards = Guards {
        status: false,
        ..Guards::ALL
    };
    must_break("no status condition", &one_step(guards), property::ONE_CHARGE);
}

#[test]
fn without_the_status_a_unit_goes_back_twice() {
    let guards = Guards {
        status: false,
        ..Guards::ALL
    };
    must_break("no status condition", &one_step(guards), property::RELEASED_ONCE);
}

#[test]
fn without_the_fence_a_claim_that_was_taken_over_moves_the_order() {
    let guards = Guards {
        fence: false,
        ..Guards::ALL
    };
    must_break("no fence", &two_step(guards), property::OVERTAKEN);
}

#[test]
fn releasing_for_rows_that_did_not_move_gives_a_unit_back_twice() {
    let guards = Guards {
        returned_rows: false,
        ..Guards::ALL
    };
    must_break("releases for all", &one_step(guards), property::RELEASED_ONCE);
}

#[test]
fn releasing_for_rows_that_did_not_move_loses_count_of_the_stock() {
    let guards = Guards {
        returned_rows: false,
        ..Guards::ALL
    };
    must_break("releases for all", &one_step(guards), property::STOCK);
}

#[test]
fn without_asking_the_provider_money_is_taken_for_a_failed_order() {
    let guards = Guards {
        ask_provider: false,
        ..Guards::ALL
    };
    must_break("failed on time alone", &one_step(guards), property::NO_LATE_MONEY);
}

#[test]
fn not_found_proves_nothing() {
    let guards = Guards {
        confirmed_void: false,
        ..Guards::ALL
    };
    must_break(
        "not found is believed",
        &one_step(guards),
        property::NO_LATE_MONEY,
    );
}

#[test]
fn a_capture_that_is_not_written_down_first_is_money_for_a_failed_order() {
    let guards = Guards {
        capture_written: false,
        ..Guards::ALL
    };
    must_break("captured at once", &two_step(guards), property::NO_LATE_MONEY);
}

#[test]
fn a_capture_that_is_not_written_down_first_is_early() {
    let guards = Guards {
        capture_written: false,
        ..Guards::ALL
    };
    must_break("captured at once", &two_step(guards), property::CAPTURING_FIRST);
}

#[test]
fn what_is_owed_and_not_written_in_the_same_commit_is_forgotten() {
    let model = Money {
        fail_in_doubt: true,
        guards: Guards {
            owed_in_commit: false,
            ..Guards::ALL
        },
        ..Money::new(3)
    };
    must_break("owed in memory only", &model, property::HEALS);
}

#[test]
fn a_refund_without_its_name_is_paid_twice() {
    let model = Money {
        fail_in_doubt: true,
        guards: Guards {
            refund_name: false,
            ..Guards::ALL
        },
        ..Money::new(3)
    };
    must_break("refunds without a name", &model, property::ONE_CHARGE);
}

#[test]
fn a_refund_that_is_noted_whatever_it_was_is_noted_twice() {
    let model = Money {
        fail_in_doubt: true,
        guards: Guards {
            refund_noted_once: false,
            ..Guards::ALL
        },
        ..Money::new(3)
    };
    must_break("noted twice", &model, property::LEDGER);
}

#[test]
fn a_task_that_is_taken_away_whoever_noted_it_forgets_what_was_set_aside() {
    let model = Money {
        kept_voids: false,
        ..two_step(Guards {
            loan: false,
            ..Guards::ALL
        })
    };
    must_break("tasks go off their loan", &model, property::HEALS);
}
