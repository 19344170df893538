//! What processes have used, by `/proc`.

use std::time::Duration;

use anyhow::Context as _;

use crate::world::Pids;

/// Ticks per second in which Linux tells CPU time to programs, whatever its own clock is.
const TICKS_PER_SECOND: u64 = 100;

/// CPU time of a world's processes and of this one, which makes the load.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Cpu {
    /// The engine, or the rival in its place.
    pub(super) server: Duration,
    /// Redis.
    pub(super) redis: Duration,
    /// Postgres with all of its backends.
    pub(super) postgres: Duration,
    /// The load generator.
    pub(super) load: Duration,
}

impl Cpu {
    /// Up to now. `server` is the process that answers buyers.
    ///
    /// # Errors
    /// When one of them is gone.
    pub(super) fn read(pids: &Pids, server: u32) -> anyhow::Result<Self> {
        Ok(Self {
            server: Stat::read(server)?.own(),
            redis: Stat::read(pids.redis)?.own(),
            postgres: family(pids.postgres)?,
            load: Stat::read(std::process::id())?.own(),
        })
    }

    /// Since an earlier reading.
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            server: self.server.saturating_sub(before.server),
            redis: self.redis.saturating_sub(before.redis),
            postgres: self.postgres.saturating_sub(before.postgres),
            load: self.load.saturating_sub(before.load),
        }
    }
}

/// What `/proc/<pid>/stat` tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    parent: u32,
    own_ticks: u64,
    /// Of children that have ended.
    buried_ticks: u64,
}

impl Stat {
    fn read(pid: u32) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .with_context(|| format!("process {pid} is gone"))?;
        Self::parse(&text).with_context(|| format!("/proc/{pid}/stat is {text:?}"))
    }

    /// The program's name, in parentheses, may have anything in it: fields are counted after the last one.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |place: usize| fields.get(place)?.parse::<u64>().ok();
        Some(Self {
            parent: number(1)? as u32,
            own_ticks: number(11)? + number(12)?,
            buried_ticks: number(13)? + number(14)?,
        })
    }

    fn own(&self) -> Duration {
        time(self.own_ticks)
    }
}

fn time(ticks: u64) -> Duration {
    Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND)
}

/// A process with its children, also those that have ended.
fn family(pid: u32) -> anyhow::Result<Duration> {
    let parent = Stat::read(pid)?;
    let mut ticks = parent.own_ticks + parent.buried_ticks;
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(child) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // One that ends meanwhile is among its parent's buried ones the next time.
        if let Ok(stat) = Stat::read(child)
            && stat.parent == pid
        {
            ticks += stat.own_ticks;
        }
    }
    Ok(time(ticks))
}

/// Resident bytes of a process.
///
/// # Errors
/// When it is gone.
pub(super) fn resident_bytes(pid: u32) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("process {pid} is gone"))?;
    resident(&text).with_context(|| format!("/proc/{pid}/status has no VmRSS"))
}

fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_anything_in_it() {
        let text = "42 (post) gres (x) S 7 42 42 0 -1 4194560 1 2 3 4 150 50 30 20 20 0 1 0 99 0 0";
        let stat = Stat {
            parent: 7,
            own_ticks: 200,
            buried_ticks: 50,
        };
        assert_eq!(Stat::parse(text), Some(stat));
        assert_eq!(stat.own(), Duration::from_secs(2));
        assert_eq!(Stat::parse("42 (x) S 7"), None);
    }

    #[test]
    fn we_use_time_and_memory_ourselves() {
        assert!(Stat::read(std::process::id()).is_ok());
        assert!(family(std::process::id()).is_ok());
        assert!(resident_bytes(std::process::id()).unwrap() > 0);
    }

    #[test]
    fn resident_memory_is_told_in_kilobytes() {
        assert_eq!(
            resident("Name:\tx\nVmRSS:\t    2048 kB\nVmData: 1 kB\n"),
            Some(2 << 20)
        );
        assert_eq!(resident("VmData: 1 kB\n"), None);
    }

    #[test]
    fn time_is_told_from_reading_to_reading() {
        let at = |ms| Cpu {
            server: Duration::from_millis(ms),
            ..Cpu::default()
        };
        assert_eq!(at(700).since(&at(200)), at(500));
    }
}
