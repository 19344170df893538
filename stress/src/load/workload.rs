//! What the buyers want, drawn from a seed: the same seed makes the same plan.

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Ask;
pub use super::crowd::Errand;

/// Everybody wants one purchase of `1..=max_quantity` units, in an order drawn from the seed.
pub fn one_each(seed: u64, buyers: u32, max_quantity: u32) -> Vec<Errand> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut errands: Vec<Errand> = (0..buyers)
        .map(|buyer| {
            vec![Ask {
                buyer,
                key: buyer,
                quantity: rng.random_range(1..=max_quantity),
            }]
        })
        .collect();
    errands.shuffle(&mut rng);
    errands
}

/// Everybody wants one purchase, and sends it 1 to 5 times: some of the copies at the same instant over another connection,
/// some later over the same one, and one in four with another body.
pub fn repeated(seed: u64, buyers: u32, max_quantity: u32) -> Vec<Errand> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut errands = Vec::new();
    for buyer in 0..buyers {
        let ask = Ask {
            buyer,
            key: buyer,
            quantity: rng.random_range(1..=max_quantity),
        };
        let mut own = vec![ask];
        for _ in 1..rng.random_range(1..=5_u32) {
            let other_body = rng.random_ratio(1, 4);
            let quantity = if other_body {
                ask.quantity % max_quantity.max(2) + 1
            } else {
                ask.quantity
            };
            let copy = Ask { quantity, ..ask };
            if rng.random_ratio(1, 2) {
                errands.push(vec![copy]);
            } else {
                own.push(copy);
            }
        }
        errands.push(own);
    }
    errands.shuffle(&mut rng);
    errands
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_plan() {
        assert_eq!(one_each(7, 100, 5), one_each(7, 100, 5));
        assert_ne!(one_each(7, 100, 5), one_each(8, 100, 5));
        assert_eq!(repeated(7, 100, 3), repeated(7, 100, 3));
    }

    #[test]
    fn repeats_are_of_every_kind() {
        let errands = repeated(1, 300, 3);
        let mut copies: HashMap<u32, Vec<Ask>> = HashMap::new();
        for ask in errands.iter().flatten() {
            assert!((1..=3).contains(&ask.quantity));
            copies.entry(ask.key).or_default().push(*ask);
        }
        assert_eq!(copies.len(), 300);
        let mut counts: Vec<usize> = copies.values().map(Vec::len).collect();
        counts.sort_unstable();
        counts.dedup();
        assert_eq!(counts, [1, 2, 3, 4, 5]);
        assert!(
            copies
                .values()
                .any(|copies| copies.iter().any(|copy| copy.quantity != copies[0].quantity))
        );
        assert!(errands.iter().any(|errand| errand.len() > 1), "some come later");
        assert!(errands.len() > 300, "some come at once");
    }

    #[test]
    fn another_body_is_another_one_even_where_only_single_units_are_sold() {
        let asks: Vec<Ask> = repeated(1, 100, 1).into_iter().flatten().collect();
        assert!(asks.iter().any(|ask| ask.quantity == 2));
    }
}
