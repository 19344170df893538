//! When purchases are due that arrive at a given rate, whatever becomes of those before.

use std::time::Duration;

/// A rate, dealt out evenly to connections in turns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Purchases per second of all connections together.
    pub(super) per_second: f64,
    /// Connections.
    pub(super) connections: u32,
}

impl Pace {
    /// When a connection's purchase of this number is due, from the beginning.
    pub(super) fn due(&self, connection: u32, number: u32) -> Duration {
        let before = f64::from(connection) + f64::from(number) * f64::from(self.connections);
        Duration::from_secs_f64(before / self.per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_evenly_spread() {
        let pace = Pace {
            per_second: 1_000.0,
            connections: 4,
        };
        let mut due: Vec<u128> = (0..4)
            .flat_map(|connection| (0..3).map(move |number| pace.due(connection, number).as_micros()))
            .collect();
        due.sort_unstable();
        assert_eq!(due, (0..12).map(|number| number * 1_000).collect::<Vec<_>>());
    }

    #[test]
    fn more_connections_send_no_more() {
        let within = |connections: u32| {
            let pace = Pace {
                per_second: 500.0,
                connections,
            };
            let sent = |connection| {
                (0..10_000)
                    .take_while(|n| pace.due(connection, *n).as_secs() < 2)
                    .count()
            };
            (0..connections).map(sent).sum::<usize>()
        };
        assert_eq!([within(1), within(7), within(1_000)], [1_000; 3]);
    }
}
