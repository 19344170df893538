//! How far a run is, for whoever watches it at a terminal. Elsewhere nothing is shown.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar that is gone when it is dropped.
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar of `total` steps.
    pub fn new(total: u64, what: &str) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(total);
        if let Ok(style) = ProgressStyle::with_template("{prefix} [{elapsed}] {bar:40} {pos}/{len} {msg}") {
            bar.set_style(style);
        }
        bar.set_prefix(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// So many steps are done.
    pub fn set(&self, done: u64, message: String) {
        self.0.set_position(done);
        self.0.set_message(message);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
