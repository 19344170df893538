//! Things that must have happened somewhere on the way. They are no part of a state: remembered there, they would only multiply the states.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Which of `N` things have happened. Clones share it.
#[derive(Debug, Clone)]
pub struct Landmarks<const N: usize>(Arc<[AtomicBool; N]>);

impl<const N: usize> Default for Landmarks<N> {
    fn default() -> Self {
        Self(Arc::new([const { AtomicBool::new(false) }; N]))
    }
}

impl<const N: usize> Landmarks<N> {
    /// It happens.
    pub fn pass(&self, landmark: usize) {
        let passed = &self.0[landmark];
        // Threads would fight for the line if each wrote each time.
        if !passed.load(Ordering::Relaxed) {
            passed.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it has happened.
    pub fn passed(&self, landmark: usize) -> bool {
        self.0[landmark].load(Ordering::Relaxed)
    }
}
