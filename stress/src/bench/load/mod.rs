//! The load that all sides of the benchmark get. It shares the machine with what it measures, so it is as lean as it can be: a
//! thread of its own, one request's bytes per connection with the key patched in, and one write and one read per purchase.

mod open_loop;
mod pace;
mod surge;
mod tide;
mod wire;

use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::load::{Outcome, Peer, Record};
use crate::report::Latency;

pub(super) use open_loop::{Arrivals, arrive};
pub(super) use surge::surge;
pub(super) use tide::{Tide, flow, flow_from};
pub(super) use wire::{Wire, one_answer};

/// A request that has no answer by then never gets one.
const ANSWER_WITHIN: Duration = Duration::from_mins(1);

/// How long a load lasts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    /// Not measured.
    pub(super) warm_up: Duration,
    /// Measured.
    pub(super) measured: Duration,
}

impl Span {
    /// From the beginning to the last request.
    pub(super) fn whole(&self) -> Duration {
        self.warm_up + self.measured
    }

    /// Whether something fell into what is measured.
    pub(super) fn has(&self, at: Duration) -> bool {
        (self.warm_up..self.whole()).contains(&at)
    }
}

/// Opens connections, one after the other: a listener's queue never overflows that way.
pub(super) async fn connect(peer: &Peer, count: u32) -> anyhow::Result<Vec<TcpStream>> {
    let address = peer.address().to_owned();
    let connected = tokio::task::spawn_blocking(move || {
        (0..count)
            .map(|_| {
                let stream = TcpStream::connect(&address)?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Ok(stream)
            })
            .collect::<std::io::Result<Vec<_>>>()
    });
    connected.await?.context("a buyer could not connect")
}

/// Runs a load on a thread of its own: there is nobody to hand work to, and many answers are found with one look.
async fn apart<T, F>(work: impl FnOnce() -> F + Send + 'static) -> anyhow::Result<T>
where
    T: Send + 'static,
    F: Future<Output = anyhow::Result<T>>,
{
    let (done, result) = oneshot::channel();
    std::thread::Builder::new()
        .name("load".to_owned())
        .spawn(move || {
            let ran = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("the load has no runtime")
                .and_then(|runtime| runtime.block_on(work()));
            // Nobody waits any more when the benchmark was interrupted.
            done.send(ran).ok();
        })?;
    result.await.context("the load died")?
}

/// What all buyers remember, once the last has its answer.
async fn gather(mut buyers: JoinSet<Vec<Record>>, deadline: Instant) -> anyhow::Result<Vec<Record>> {
    let mut records = Vec::new();
    while !buyers.is_empty() {
        let waiting = buyers.len();
        let buyer = tokio::time::timeout_at(deadline.into(), buyers.join_next()).await;
        let late = || {
            format!(
                "{waiting} buyers got no answer within {} s",
                ANSWER_WITHIN.as_secs()
            )
        };
        if let Some(buyer) = buyer.with_context(late)? {
            records.extend(buyer.context("a buyer's client died")?);
        }
    }
    Ok(records)
}

/// Answers of a kind in the measured part of a load.
pub(super) struct Counted<'a> {
    span: Span,
    records: &'a [Record],
    wanted: fn(&Outcome) -> bool,
}

impl<'a> Counted<'a> {
    /// Orders made.
    pub(super) fn accepted(records: &'a [Record], span: Span) -> Self {
        Self::of(records, span, |outcome| {
            matches!(outcome, Outcome::Accepted { .. })
        })
    }

    /// Answers of which `wanted` says so.
    pub(super) fn of(records: &'a [Record], span: Span, wanted: fn(&Outcome) -> bool) -> Self {
        Self {
            span,
            records,
            wanted,
        }
    }

    fn each(&self) -> impl Iterator<Item = &'a Record> {
        let (span, wanted) = (self.span, self.wanted);
        self.records
            .iter()
            .filter(move |record| span.has(record.ended) && wanted(&record.outcome))
    }

    /// How many.
    pub(super) fn count(&self) -> usize {
        self.each().count()
    }

    /// How many per second.
    pub(super) fn per_second(&self) -> f64 {
        self.count() as f64 / self.span.measured.as_secs_f64()
    }

    /// How long their buyers waited.
    pub(super) fn latency(&self) -> Latency {
        Latency::of(self.each().map(Record::waited))
    }
}
