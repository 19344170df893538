//! Anything that may happen to a sale, against a model.

use std::collections::{BTreeSet, HashMap};

use fluxbuy::domain::OrderId;
use fluxbuy::gate::{Gate, Release, Reservation, SaleFacts};
use proptest::prelude::*;

use crate::support::model::Model;
use crate::support::{gate, held, load, open, prime, release, request, reserve, shared};

/// A step in the life of a sale. Orders are drawn from a pool, in which each has its buyer, key and quantity once and for all; several
/// share a key, with the same quantity or another.
#[derive(Debug, Clone)]
enum Step {
    Reserve(Vec<usize>),
    Release(Vec<(usize, bool)>),
    Reload,
    ForgetScripts,
}

const POOL: usize = 40;

fn pool() -> Vec<Reservation> {
    let member = |n: usize| {
        let quantity = if n.is_multiple_of(7) {
            3
        } else {
            1 + (n % 2) as i32
        };
        request(
            &format!("buyer:{}", n % 4),
            &format!("key-{}", n / 4 % 4),
            quantity,
        )
    };
    (0..POOL).map(member).collect()
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::collection::vec(0..POOL, 1..8).prop_map(Step::Reserve),
        4 => prop::collection::vec((0..POOL, prop::bool::weighted(0.3)), 1..6).prop_map(Step::Release),
        1 => Just(Step::Reload),
        1 => Just(Step::ForgetScripts),
    ]
}

fn life() -> impl Strategy<Value = (i64, Option<i32>, Vec<Step>)> {
    (
        0..12_i64,
        prop::option::of(1..6),
        prop::collection::vec(step(), 1..25),
    )
}

/// Takes the steps on the real gate and on the model, and compares everything after each.
async fn live(gate: &Gate, stock: i64, limit: Option<i32>, steps: &[Step]) -> Result<(), TestCaseError> {
    let pool = pool();
    let facts = |available| SaleFacts {
        available,
        per_buyer_limit: limit,
        ..open(0)
    };
    let sale = prime(gate, facts(stock)).await;
    let (mut model, mut epoch) = (Model::new(stock, limit), 1);
    let mut last = None;
    for step in steps {
        match step {
            Step::Reserve(members) => {
                let batch: Vec<_> = members.iter().map(|member| pool[*member].clone()).collect();
                let expected: Vec<_> = batch.iter().map(|request| model.reserve(request)).collect();
                prop_assert_eq!(reserve(gate, sale, &batch).await, (expected, model.available));
            }
            Step::Release(members) => {
                let batch: Vec<_> = members
                    .iter()
                    .map(|(member, forget)| Release {
                        order: pool[*member].order,
                        forget: *forget,
                    })
                    .collect();
                // An order named twice is one release, which forgets when either does.
                let mut once: HashMap<OrderId, bool> = HashMap::new();
                for release in &batch {
                    *once.entry(release.order).or_default() |= release.forget;
                }
                let units: Vec<_> = once
                    .iter()
                    .map(|(&order, &forget)| model.release(Release { order, forget }))
                    .collect();
                let given_back = units.iter().flatten().sum();
                let unknown = units.iter().filter(|units| units.is_none()).count();
                prop_assert_eq!(
                    release(gate, sale, &batch).await,
                    (model.available, given_back, unknown)
                );
            }
            Step::Reload => {
                epoch += 1;
                load(gate, sale, epoch, &model.loaded(), facts(model.available)).await;
            }
            Step::ForgetScripts => drop(shared().command(&["SCRIPT", "FLUSH"])),
        }
        let pulse = gate.pulse(sale).await.unwrap().unwrap();
        prop_assert_eq!(
            (pulse.epoch, pulse.available, pulse.keys),
            (epoch, model.available, model.orders.len() as u64)
        );
        // Two equal pulses mean that nothing has changed in between, not even there and back.
        let now_known = (
            model.orders.keys().copied().collect::<BTreeSet<_>>(),
            model.holding.clone(),
        );
        if last.as_ref().is_some_and(|(before, _)| *before == pulse) {
            prop_assert_eq!(last.as_ref().map(|(_, known)| known), Some(&now_known));
        }
        last = Some((pulse, now_known));
        let holding: BTreeSet<_> = held(gate, sale).await.into_keys().collect();
        prop_assert_eq!(&holding, &model.holding);
        prop_assert!(model.available >= 0);
    }
    Ok(())
}

#[test]
fn any_life_of_a_sale_agrees_with_the_model() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let gate = gate();
    proptest!(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() }, |((stock, limit, steps) in life())| {
        runtime.block_on(live(&gate, stock, limit, &steps))?;
    });
}
