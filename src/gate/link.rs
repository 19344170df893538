//! One connection to Redis, shared, made when it is needed and replaced when it is lost.
//!
//! The client's own `ConnectionManager` is deliberately absent: it keeps a connection whose answers time out, stays with a failed log-in
//! for ever, makes callers wait through its backoff, and doesn't tell a call that was never sent from one whose
//! answer was lost.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, RedisError, Value};
use tokio::time::timeout;

use super::{Error, Settings};

/// Calls that may wait for the connection's writer; the client's default of 50 makes callers queue.
const PIPELINE_CALLS: usize = 1024;

/// How long a caller waits for a connection when the previous attempt failed. A Redis that refuses or accepts does so within
/// it; for one that is silent the attempt goes on without the caller.
const PATIENCE_WHILE_DOWN: Duration = Duration::from_millis(20);

#[derive(Clone)]
pub(super) struct Link(Arc<Inner>);

struct Inner {
    client: Client,
    config: AsyncConnectionConfig,
    connect_timeout: Duration,
    state: Mutex<State>,
}

struct State {
    /// Counts the attempts to connect, and so names each connection.
    attempts: u64,
    now: Now,
    /// Whether the latest attempt that ended has failed.
    down: bool,
}

enum Now {
    Idle,
    Connecting(Attempt),
    Connected(Live),
}

type Attempt = Shared<BoxFuture<'static, Result<Live, RedisError>>>;

#[derive(Clone)]
struct Live {
    attempt: u64,
    connection: MultiplexedConnection,
}

/// What came of a command that was handed to a connection.
pub(super) struct Sent {
    pub(super) result: Result<Value, RedisError>,
    /// It was sent before, on a connection that was lost: even when it is refused now, it may have happened then.
    pub(super) in_doubt: bool,
}

impl Sent {
    pub(super) fn into_answer(self) -> Result<Value, Error> {
        self.result.map_err(|error| {
            let error = Error::after_send(&error);
            if self.in_doubt { error.in_doubt() } else { error }
        })
    }
}

impl Link {
    pub(super) fn new(settings: &Settings) -> Result<Self, Error> {
        let invalid = |error: RedisError| Error::InvalidUrl(error.to_string());
        let tcp = TcpSettings::default().set_nodelay(true);
        let info = settings
            .url
            .as_str()
            .into_connection_info()
            .map_err(invalid)?
            .set_tcp_settings(tcp);
        let client = Client::open(info).map_err(invalid)?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(settings.connect_timeout))
            .set_response_timeout(Some(settings.response_timeout))
            .set_pipeline_buffer_size(PIPELINE_CALLS);
        Ok(Self(Arc::new(Inner {
            client,
            config,
            connect_timeout: settings.connect_timeout,
            state: Mutex::new(State {
                attempts: 0,
                now: Now::Idle,
                down: false,
            }),
        })))
    }

    /// Sends a command, which must be safe to repeat, and brings its answer. An error that the server answered with
    /// is an error.
    pub(super) async fn call(&self, command: &Cmd) -> Result<Value, Error> {
        self.send(command).await?.into_answer()
    }

    /// Like [`Self::call`], but leaves the client's own error to a caller who knows better what it means.
    pub(super) async fn send(&self, command: &Cmd) -> Result<Sent, Error> {
        let live = self.connected().await.map_err(Error::Unreachable)?;
        let lost = match self.send_on(&live, command).await {
            Err(error) if error.is_unrecoverable_error() => error,
            result => {
                return Ok(Sent {
                    result,
                    in_doubt: false,
                });
            }
        };
        // The connection had been dead for a while, or it died with this call. Which of the two can't be known, and
        // needn't be: on a new connection the call is repeated. A timeout isn't, for time is what the caller lacks.
        match self.connected().await {
            Ok(live) => Ok(Sent {
                result: self.send_on(&live, command).await,
                in_doubt: true,
            }),
            Err(reason) => Err(Error::OutcomeUnknown(format!("{lost}, and then: {reason}"))),
        }
    }

    async fn send_on(&self, live: &Live, command: &Cmd) -> Result<Value, RedisError> {
        let result = command.query_async(&mut live.connection.clone()).await;
        if let Err(error) = &result
            && (error.is_unrecoverable_error() || error.is_timeout())
        {
            // After a timeout too: the other end may be gone without a word, and then no later answer would come either.
            let mut state = self.state();
            if matches!(&state.now, Now::Connected(current) if current.attempt == live.attempt) {
                state.now = Now::Idle;
            }
        }
        result
    }

    /// The connection, made if need be; all callers share one attempt. Otherwise why there is none.
    async fn connected(&self) -> Result<Live, String> {
        let (attempt, patience) = {
            let mut state = self.state();
            // An attempt may have ended when nobody was waiting any more.
            if let Now::Connecting(attempt) = &state.now
                && let Some(result) = attempt.peek().cloned()
            {
                state.settle(result);
            }
            let attempt = match &state.now {
                Now::Connected(live) => return Ok(live.clone()),
                Now::Connecting(attempt) => attempt.clone(),
                Now::Idle => self.start_attempt(&mut state),
            };
            // The attempt has its own limit; this one is for what could go wrong with that.
            let patience = if state.down {
                PATIENCE_WHILE_DOWN
            } else {
                self.0.connect_timeout * 2
            };
            (attempt, patience)
        };
        let Ok(result) = timeout(patience, attempt.clone()).await else {
            return Err("no connection yet".into());
        };
        let mut state = self.state();
        if matches!(&state.now, Now::Connecting(current) if current.ptr_eq(&attempt)) {
            state.settle(result.clone());
        }
        result.map_err(|error| error.to_string())
    }

    fn start_attempt(&self, state: &mut State) -> Attempt {
        state.attempts += 1;
        let number = state.attempts;
        let (client, config) = (self.0.client.clone(), self.0.config.clone());
        // A task of its own: it goes on when its callers have given up.
        let task =
            tokio::spawn(async move { client.get_multiplexed_async_connection_with_config(&config).await });
        let attempt = async move {
            let connection = task.await.map_err(|ended| {
                let kind = redis::ErrorKind::Client;
                RedisError::from((kind, "the attempt to connect was cut short", ended.to_string()))
            })??;
            Ok(Live {
                attempt: number,
                connection,
            })
        };
        let attempt = attempt.boxed().shared();
        state.now = Now::Connecting(attempt.clone());
        attempt
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that could panic runs under the lock, and every state is a good one to go on from.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn settle(&mut self, result: Result<Live, RedisError>) {
        self.down = result.is_err();
        self.now = result.map_or(Now::Idle, Now::Connected);
    }
}
