//! The gate in front of the database: Redis admits a purchase in microseconds, or refuses it before it costs a
//! transaction.
//!
//! What it holds is a disposable copy: it is rebuilt from the database under a raised epoch whenever it is lost, and
//! the database decides again whatever was admitted here. Every operation may be repeated at will, because a lost connection
//! makes that necessary: a reservation is named by its order, a release gives back what the order still holds, and a
//! load is named by its epoch and its loader.
//!
//! Architecture invariant: nobody else builds a key of Redis or sends it a command. Nothing in here knows the database, and
//! nothing in here records metrics.

mod error;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod keys;
mod link;
mod load;
mod release;
mod reply;
mod reserve;
mod scan;
mod script;

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use crate::domain::SaleId;

pub use error::Error;
pub use load::{LoadedOrder, SaleFacts};
pub use release::{Release, Released};
pub use reserve::{MAX_BATCH_REQUESTS, Reservation, Reserve, Verdict};
pub use scan::{HeldReservation, Pulse, Standing};

use link::Link;

/// How to reach Redis.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `redis://[user:password@]host:port/db`, or `unix:///path`.
    pub url: String,
    /// How long an answer may take. After it the outcome is unknown and the connection is given up.
    pub response_timeout: Duration,
    /// How long a connection may take to come about, greeting included.
    pub connect_timeout: Duration,
}

/// The gate. Cheap to clone; all clones share one connection, which comes about with the first call and again after
/// each loss.
///
/// A call waits for a connection at most the connect timeout, and then for the answer at most the response timeout. A
/// connection that is lost before the answer came is replaced, and the call repeated on the new one, once: at
/// worst a call takes both timeouts twice. While Redis can't be reached, calls fail within about 20 ms.
#[derive(Clone)]
pub struct Gate {
    link: Link,
    loads: Arc<Loads>,
}

/// The loads that this process has under way, so that a delayed command of an earlier one can't touch a later one.
struct Loads {
    /// Tells this gate from those of other processes.
    instance: Uuid,
    next: AtomicU64,
    current: Mutex<HashMap<SaleId, u64>>,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

impl Gate {
    /// A gate that will connect to `settings.url` with the first call, which must be made inside a tokio runtime
    /// that lives as long as the gate.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`].
    pub fn new(settings: &Settings) -> Result<Self, Error> {
        let loads = Loads {
            instance: Uuid::new_v4(),
            next: AtomicU64::new(1),
            current: Mutex::new(HashMap::new()),
        };
        Ok(Self {
            link: Link::new(settings)?,
            loads: Arc::new(loads),
        })
    }

    /// The time by Redis' own clock, the one that reservations are dated by.
    ///
    /// # Errors
    /// What is in the way.
    pub async fn now(&self) -> Result<Timestamp, Error> {
        let answer = self.link.call(&redis::cmd("TIME")).await?;
        let (seconds, micros): (i64, i64) =
            redis::from_redis_value(answer).map_err(|e| Error::Other(format!("TIME: {e}")))?;
        Timestamp::from_microsecond(seconds * 1_000_000 + micros)
            .map_err(|e| Error::Other(format!("TIME: {e}")))
    }

    /// Whether Redis answers.
    ///
    /// # Errors
    /// What is in the way.
    pub async fn ping(&self) -> Result<(), Error> {
        self.link.call(&redis::cmd("PING")).await.map(drop)
    }

    /// Makes sure that Redis refuses writes when its memory is full, instead of throwing keys away: a sale whose
    /// keys are evicted one by one goes on with false stock, and nobody notices.
    ///
    /// Asks INFO, which works where CONFIG is forbidden.
    ///
    /// # Errors
    /// [`Error::EvictingPolicy`] for any policy but `noeviction`; otherwise what is in the way.
    pub async fn check_policy(&self) -> Result<(), Error> {
        let reply = self.link.call(redis::cmd("INFO").arg("memory")).await?;
        let info = reply::text(&reply)?;
        let found = info
            .lines()
            .find_map(|line| line.strip_prefix("maxmemory_policy:"))
            .ok_or_else(|| Error::Other("INFO memory tells no maxmemory_policy".into()))?
            .trim();
        if found == "noeviction" {
            Ok(())
        } else {
            Err(Error::EvictingPolicy { found: found.into() })
        }
    }
}
