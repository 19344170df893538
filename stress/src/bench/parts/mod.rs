//! The parts: what is measured.

mod accept;
mod backlog;
mod ceiling;
mod cost;
mod life;
mod many_sales;
mod memory;
mod opening;
mod overload;
mod refuse;
mod start;

use clap::ValueEnum;

use super::context::Bench;

/// Which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    /// Durable orders per second and what buyers wait for them.
    Accept,
    /// Sold-out answers per second.
    Refuse,
    /// Orders per second while they are charged and settled.
    Life,
    /// Everybody at the same instant.
    Opening,
    /// The same load at one sale and at many.
    ManySales,
    /// Millions of orders in the table.
    Backlog,
    /// What orders and sales take of the engine's memory.
    Memory,
    /// Twice the load that can be accepted.
    Overload,
    /// CPU time per order.
    Cost,
}

impl Part {
    /// All of them.
    pub(super) const ALL: [Self; 9] = [
        Self::Accept,
        Self::Refuse,
        Self::Life,
        Self::Opening,
        Self::ManySales,
        Self::Backlog,
        Self::Memory,
        Self::Overload,
        Self::Cost,
    ];

    /// Its name in the figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Accept => accept::PART,
            Self::Refuse => refuse::PART,
            Self::Life => life::PART,
            Self::Opening => opening::PART,
            Self::ManySales => many_sales::PART,
            Self::Backlog => backlog::PART,
            Self::Memory => memory::PART,
            Self::Overload => overload::PART,
            Self::Cost => cost::PART,
        }
    }

    /// Measures it.
    ///
    /// # Errors
    /// When it can't be played. What is wrong with the engine is among the findings.
    pub(super) async fn play(self, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        match self {
            Self::Accept => accept::play(bench).await,
            Self::Refuse => refuse::play(bench).await,
            Self::Life => life::play(bench).await,
            Self::Opening => opening::play(bench).await,
            Self::ManySales => many_sales::play(bench).await,
            Self::Backlog => backlog::play(bench).await,
            Self::Memory => memory::play(bench).await,
            Self::Overload => overload::play(bench).await,
            Self::Cost => cost::play(bench).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_knows_all_parts() {
        assert_eq!(Part::value_variants(), Part::ALL);
        for part in Part::ALL {
            let on_the_command_line = part.to_possible_value().unwrap().get_name().replace('-', "_");
            assert_eq!(on_the_command_line, part.name());
        }
    }
}
