//! Room for who comes, when all places are taken: whoever has waited longest without asking for anything is sent away. Without that, clients
//! that hold connections and say nothing, or dribble, would keep out everybody else, health checks and webhooks included.

use std::sync::{Arc, Weak};

use tokio::time::Instant;

use super::watch::Watch;

/// One in so many is sent away at a time, so that a full house isn't looked through for each newcomer.
const SHARE: usize = 64;

/// The connections that are in.
#[derive(Debug, Default)]
pub(super) struct Room {
    inside: Vec<Weak<Watch>>,
    swept_at: usize,
}

impl Room {
    /// One has come in. Its task holds the watch for as long as the connection lives.
    pub(super) fn enter(&mut self, watch: &Arc<Watch>) {
        // Those that have gone are forgotten now and then, at a cost that doesn't grow.
        if self.inside.len() >= 2 * self.swept_at.max(SHARE) {
            self.inside.retain(|watch| watch.strong_count() > 0);
            self.swept_at = self.inside.len();
        }
        self.inside.push(Arc::downgrade(watch));
    }

    /// Asks some of those that wait to leave, the ones that have waited longest. Whoever has handed in a request by then stays. Tells how
    /// many were asked.
    pub(super) fn make(&mut self) -> usize {
        let mut waiting: Vec<(Instant, Arc<Watch>)> = Vec::new();
        self.inside.retain(|watch| {
            let Some(watch) = watch.upgrade() else {
                return false;
            };
            if let Some(since) = watch.waits_since() {
                waiting.push((since, watch));
            }
            true
        });
        self.swept_at = self.inside.len();
        let leave = (self.inside.len() / SHARE).max(1).min(waiting.len());
        if leave == 0 {
            return 0;
        }
        waiting.select_nth_unstable_by_key(leave - 1, |(since, _)| *since);
        for (_, watch) in &waiting[..leave] {
            watch.ask_to_leave();
        }
        leave
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::http::Settings;

    fn settings() -> Settings {
        let second = Duration::from_secs(1);
        Settings {
            max_connections: 10,
            max_body_bytes: 1000,
            header_read_timeout: 5 * second,
            body_read_timeout: 5 * second,
            request_timeout: 10 * second,
            connection_idle_timeout: 75 * second,
            drain_timeout: second,
        }
    }

    #[tokio::test]
    async fn who_has_waited_longest_goes_and_who_has_asked_stays() {
        let mut room = Room::default();
        let come = |room: &mut Room| {
            let watch = Arc::new(Watch::new(&settings()));
            room.enter(&watch);
            watch
        };
        let busy = come(&mut room);
        busy.begin(Instant::now() + Duration::from_secs(10));
        let answered = come(&mut room);
        let silent = come(&mut room);
        answered.end(Instant::now() + Duration::from_secs(1));
        let gone = come(&mut room);
        drop(gone);
        assert_eq!(room.make(), 1);
        let asked = |watch: &Watch| watch.is_asked_to_leave();
        assert!(asked(&silent) && !asked(&answered) && !asked(&busy));
    }

    #[tokio::test]
    async fn nobody_goes_where_all_have_asked() {
        let mut room = Room::default();
        let busy = Arc::new(Watch::new(&settings()));
        room.enter(&busy);
        busy.begin(Instant::now() + Duration::from_secs(10));
        assert_eq!(room.make(), 0);
        assert!(!busy.is_asked_to_leave());
    }

    #[tokio::test]
    async fn those_that_have_gone_are_forgotten() {
        let mut room = Room::default();
        for _ in 0..10_000 {
            room.enter(&Arc::new(Watch::new(&settings())));
        }
        assert!(room.inside.len() <= 2 * SHARE, "{}", room.inside.len());
    }
}
