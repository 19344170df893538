//! Runs of the checker: a whole state space in which everything holds, or a counterexample that must be found.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::time::{Duration, Instant};

use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// What a run saw.
#[derive(Debug, Clone, Copy)]
pub struct Explored {
    /// States that differ.
    pub unique: usize,
    /// Steps on the longest of the shortest ways there, as far as several threads find them.
    pub depth: usize,
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

/// Goes through the whole state space: every property must hold, and everything that may happen sometimes must have been seen. With a
/// limit it may stop before its end, and says so.
///
/// # Panics
/// With the way there, when something doesn't hold.
pub fn explore<M>(name: &str, model: M, limit: Option<Duration>) -> Explored
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let started = Instant::now();
    let mut builder = model
        .checker()
        .threads(threads())
        .finish_when(HasDiscoveries::AnyFailures);
    if let Some(limit) = limit {
        builder = builder.timeout(limit);
    }
    let checker = builder.spawn_bfs().join();
    let explored = Explored {
        unique: checker.unique_state_count(),
        depth: checker.max_depth(),
    };
    println!(
        "{name}: {} states ({} with repeats), depth {}, {:.1} s",
        explored.unique,
        checker.state_count(),
        explored.depth,
        started.elapsed().as_secs_f64()
    );
    let discoveries = checker.discoveries();
    let mut unseen = BTreeSet::new();
    for property in checker.model().properties() {
        match (property.expectation, discoveries.get(property.name)) {
            (Expectation::Always | Expectation::Eventually, Some(path)) => panic!(
                "{name}: not so: {}\n{path}\nwhich ends in {:#?}",
                property.name,
                path.last_state()
            ),
            (Expectation::Sometimes, None) => {
                unseen.insert(property.name);
            }
            _ => {}
        }
    }
    if limit.is_none_or(|limit| started.elapsed() < limit) {
        assert!(checker.is_done(), "{name}: not all of it was seen");
        assert!(unseen.is_empty(), "{name}: never seen: {unseen:?}");
    } else {
        println!("{name}: stopped after {limit:?}, before its end");
    }
    explored
}

/// A counterexample to what a guard keeps away has at most so many states.
const DEEPEST: usize = 18;

/// A guard was taken away: the checker must find that `property` doesn't hold any more. Prints a shortest way there.
///
/// # Panics
/// When it finds nothing.
pub fn must_break<M>(name: &str, model: &M, property: &'static str)
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    for depth in 2..=DEEPEST {
        // One thread: then it is the same way each time. Deeper and deeper: then it is a shortest one.
        let checker = model
            .clone()
            .checker()
            .threads(1)
            .target_max_depth(depth)
            .finish_when(HasDiscoveries::AnyOf([property].into()))
            .spawn_bfs()
            .join();
        if let Some(path) = checker.discovery(property) {
            println!(
                "{name} breaks: {property}\n{path}which ends in {:?}\n",
                path.last_state()
            );
            return;
        }
    }
    panic!("{name}: nothing breaks {property:?} within {DEEPEST} states");
}
