//! Postgres: where the sentence is defended. All SQL of the engine is in here.
//!
//! Architecture invariants: every change of a status is a conditional update whose outcome is matched on; locks are
//! taken orders first (by id), then buyer allotments, then inventory rows (by sale id); no call in here waits for anything but
//! Postgres. Callers run these in tasks of their own: a cancelled `begin` can leave a transaction open in the pool.

mod cancellation;
mod error;
mod group;
mod inbox;
mod ledger;
pub mod migrate;
mod read;
mod rebuild;
mod reconcile;
mod refunds;
mod releases;
mod reserve;
mod scan;
mod tasks;
mod trace;
mod transition;

use std::ops::{AsyncFnOnce, Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Postgres, Transaction};

pub use cancellation::OrderToEnd;
pub use error::Error;
pub use group::{GroupPlaced, SaleBatch};
pub use inbox::{Delivery, DueEvent, EventEnd, Handled, InboxState, Met, Received, RetriesOfDay};
pub use rebuild::{KnownOrder, Snapshot};
pub use reconcile::{HoldingOrder, StandingSale, Stray, Which};
pub use refunds::{PaidRefund, RefundNoted};
pub use reserve::{Epoch, Existing, NewOrder, Placed, Reserve};
pub use scan::{OpenOrder, StuckOrder};
pub use tasks::{BegunCharge, DeadLetter, Task, TaskKind};
pub use trace::Happened;
pub use transition::{Applied, Change, Outcome, Written};

use crate::config;
use crate::metrics::{self, Pool};

/// The longest that a statement may run which reads every order of a sale, where the engine's own may not run longer anyway.
const LONG_STATEMENT: Duration = Duration::from_mins(2);

/// The engine's handle on Postgres. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    reserve: PgPool,
    settle: PgPool,
    read: PgPool,
    /// How long a conversation may take before its connection is given up: the server's own limit can't be heard of when nothing
    /// is heard.
    limit: Duration,
    /// The longest that a statement may run which reads every order of a sale, or more.
    long_statement: Duration,
    /// How each conversation begins behind a pooler; `None` where the connection is to Postgres itself.
    opening: Option<String>,
}

tokio::task_local! {
    /// Whether the conversation that is running was cut for taking too long.
    static CUT: Arc<AtomicBool>;
}

impl Store {
    /// Prepares three small pools; connects when first asked, and again after every loss.
    ///
    /// # Errors
    /// When the URL can't be read.
    pub fn new(settings: &config::Postgres) -> Result<Self, Error> {
        let options: PgConnectOptions = settings
            .url
            .as_str()
            .parse()
            .map_err(|e: sqlx::Error| Error::Unavailable(format!("postgres.url: {e}")))?;
        let options = options.application_name("fluxbuy");
        let session = [
            (
                "statement_timeout",
                format!("{}ms", settings.statement_timeout_ms),
            ),
            (
                "idle_in_transaction_session_timeout",
                format!("{}ms", settings.statement_timeout_ms),
            ),
            // Hot statements join an array with a table; they must look rows up, however small the table still is. Measured with
            // 10,000 sales: a merge join that reads the whole of an index for each batch sells a tenth.
            ("enable_seqscan", "off".to_owned()),
            ("enable_hashjoin", "off".to_owned()),
            ("enable_mergejoin", "off".to_owned()),
            ("jit", "off".to_owned()),
            // A plan made while the tables were small would be kept while they grow, and scan them whole for each batch.
            ("plan_cache_mode", "force_custom_plan".to_owned()),
        ];
        let (options, opening) = if settings.behind_pooler {
            // Nothing may outlive a transaction: no start-up parameter that a pooler doesn't pass on, no setting, no prepared statement. What
            // another client has prepared on this server process would have the names that are about to be used.
            let local = session.map(|(name, value)| format!("SET LOCAL {name} = '{value}'"));
            let opening = format!("BEGIN; DEALLOCATE ALL; {}", local.join("; "));
            let options = options.extra_float_digits(None).statement_cache_capacity(0);
            (options, Some(opening))
        } else {
            (options.options(session), None)
        };
        let pool = |connections: u32| {
            PgPoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(Duration::from_millis(settings.acquire_timeout_ms))
                // A round trip per batch, so that connections that died with a restart are met here and not in the batch.
                .test_before_acquire(true)
                .connect_lazy_with(options.clone())
        };
        Ok(Self {
            reserve: pool(settings.reserve_connections),
            settle: pool(settings.settle_connections),
            read: pool(settings.read_connections),
            limit: 2 * settings.statement_timeout() + settings.acquire_timeout(),
            long_statement: settings.statement_timeout().max(LONG_STATEMENT),
            opening,
        })
    }

    /// Asks whether the server answers, and refuses one that would lose what it has confirmed, or that has another schema.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when it can't be asked, [`Error::Unexpected`] when it isn't fit for selling.
    pub async fn check(&self) -> Result<(), Error> {
        self.conversation(Pool::Read, async |conn| {
        let (synchronous_commit, fsync): (String, String) =
            sqlx::query_as("SELECT current_setting('synchronous_commit'), current_setting('fsync')")
                .fetch_one(&mut *conn)
                .await?;
        if synchronous_commit == "off" || fsync == "off" {
            return Err(Error::Unexpected(format!(
                "synchronous_commit is {synchronous_commit} and fsync is {fsync}; both must be on, or a crash loses accepted orders"
            )));
        }
        let applied: Vec<i64> =
            sqlx::query_scalar("SELECT version FROM _sqlx_migrations WHERE success ORDER BY version")
                .fetch_all(&mut *conn)
                .await
                .map_err(|error| {
                    let missing = error::is_about_the_schema(&error);
                    let error = Error::from(error);
                    if missing {
                        Error::Unexpected(format!("the schema is missing ({error}); run `fluxbuy migrate`"))
                    } else {
                        error
                    }
                })?;
        let wanted = migrate::versions();
        if wanted.iter().any(|version| !applied.contains(version)) {
            return Err(Error::Unexpected(format!(
                "the schema has migrations {applied:?} but {wanted:?} are needed; run `fluxbuy migrate`"
            )));
        }
        Ok(())
        })
        .await
    }

    /// Asks whether the server answers.
    pub async fn ping(&self) -> Result<(), Error> {
        self.asked(Pool::Read, async |conn| {
            sqlx::query("SELECT 1").execute(&mut *conn).await?;
            Ok(())
        })
        .await
    }

    /// Closes all connections.
    pub async fn close(&self) {
        futures_util::future::join3(self.reserve.close(), self.settle.close(), self.read.close()).await;
    }

    /// A conversation that only asks.
    async fn asked<T>(
        &self,
        pool: Pool,
        told: impl AsyncFnOnce(&mut PgConnection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.limited(self.limit, self.conversation(pool, told))
            .await
            .unwrap_or_else(|| Err(Error::Unavailable(no_answer(self.limit))))
    }

    /// A conversation that changes something: cut off, nobody knows whether it did.
    async fn decided<T>(
        &self,
        pool: Pool,
        told: impl AsyncFnOnce(&mut PgConnection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.limited(self.limit, self.conversation(pool, told))
            .await
            .unwrap_or_else(|| Err(Error::OutcomeUnknown(no_answer(self.limit))))
    }

    /// A conversation that only asks, and reads much: it may take longer than the engine's usual ones, and plans for few rows don't suit it.
    async fn asked_at_length<T>(
        &self,
        told: impl AsyncFnOnce(&mut PgConnection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let statement = self.long_statement;
        let limit = self.limit + 2 * statement;
        let conversation = self.conversation(Pool::Read, async |conn| {
            let mut tx = conn.begin().await?;
            sqlx::raw_sql(AssertSqlSafe(format!(
                "SET LOCAL statement_timeout = {}; SET LOCAL enable_seqscan = on; SET LOCAL enable_hashjoin = on;
                 SET LOCAL enable_mergejoin = on",
                statement.as_millis()
            )))
            .execute(&mut *tx)
            .await?;
            let answer = told(&mut tx).await?;
            commit(tx).await?;
            Ok(answer)
        });
        self.limited(limit, conversation)
            .await
            .unwrap_or_else(|| Err(Error::Unavailable(no_answer(limit))))
    }

    /// A conversation on a connection of `pool`. Behind a pooler it is one transaction (and those within it are savepoints): the next
    /// statement outside of it might meet another server process.
    async fn conversation<T>(
        &self,
        pool: Pool,
        told: impl AsyncFnOnce(&mut PgConnection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut held = self.held(pool).await?;
        let Some(opening) = &self.opening else {
            return told(&mut held).await;
        };
        let mut tx = held.begin_with(AssertSqlSafe(opening.clone())).await?;
        let answer = told(&mut tx).await?;
        commit(tx).await?;
        Ok(answer)
    }

    /// Runs a whole transaction again while Postgres asks for that: after a deadlock, or when it could not be serialised.
    async fn run_again<T, F>(&self, transaction: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        const MAX_RUNS: usize = 8;
        let mut runs = 0;
        loop {
            match transaction().await {
                Err(Error::RunAgain(reason)) if runs < MAX_RUNS => {
                    runs += 1;
                    tracing::debug!(%reason, "running a transaction again");
                }
                result => return result,
            }
        }
    }

    /// Waits for a conversation within the limit. When it is over, the conversation's connection is closed and never goes back to its pool,
    /// where it would be met with a transaction open, or not at all.
    async fn limited<T>(&self, limit: Duration, conversation: impl Future<Output = T>) -> Option<T> {
        let cut = Arc::new(AtomicBool::new(false));
        let mut conversation = Box::pin(CUT.scope(cut.clone(), conversation));
        if let Ok(result) = tokio::time::timeout(limit, conversation.as_mut()).await {
            return Some(result);
        }
        cut.store(true, Ordering::Release);
        drop(conversation);
        None
    }

    async fn held(&self, pool: Pool) -> Result<Held, Error> {
        let from = match pool {
            Pool::Reserve => &self.reserve,
            Pool::Settle => &self.settle,
            Pool::Read => &self.read,
        };
        let connection = from.acquire().await?;
        Ok(Held {
            connection: Some(connection),
            pool,
            since: Instant::now(),
            cut: CUT.try_with(Clone::clone).unwrap_or_default(),
        })
    }
}

/// A connection on loan; how long is a first-class metric.
struct Held {
    /// There until the loan ends.
    connection: Option<PoolConnection<Postgres>>,
    pool: Pool,
    since: Instant,
    cut: Arc<AtomicBool>,
}

impl Drop for Held {
    fn drop(&mut self) {
        metrics::connection_held(self.pool, self.since.elapsed());
        if self.cut.load(Ordering::Acquire)
            && let Some(connection) = self.connection.take()
        {
            drop(connection.detach());
        }
    }
}

impl Deref for Held {
    type Target = PoolConnection<Postgres>;

    fn deref(&self) -> &Self::Target {
        self.connection
            .as_ref()
            .expect("a loan has its connection until it ends")
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.connection
            .as_mut()
            .expect("a loan has its connection until it ends")
    }
}

fn no_answer(limit: Duration) -> String {
    format!("no answer within {limit:?}; the connection is given up")
}

async fn commit(transaction: Transaction<'_, Postgres>) -> Result<(), Error> {
    transaction.commit().await.map_err(Error::at_commit)
}

/// A `timestamptz` read as microseconds since 1970 (`micros(..)` in the statements).
fn timestamp(micros: i64) -> Timestamp {
    Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MIN)
}
