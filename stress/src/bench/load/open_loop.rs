//! An open loop: purchases arrive at a rate, whether those before have been answered or not.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use uuid::Uuid;

use super::pace::Pace;
use super::{ANSWER_WITHIN, Span, Wire, apart, connect, gather};
use crate::load::{Ask, Outcome, Peer, Record, Refusal};

/// Keys of one connection.
const KEYS_PER_BUYER: u32 = u32::MAX / 10_000;

/// How purchases arrive.
#[derive(Debug, Clone, Copy)]
pub(in crate::bench) struct Arrivals {
    /// Per second, all together.
    pub(in crate::bench) per_second: f64,
    /// Connections that they come over. One whose last purchase has no answer yet sends its next when it has.
    pub(in crate::bench) connections: u32,
}

/// What came of them.
pub(in crate::bench) struct Arrived {
    /// Each purchase; times are told from the beginning.
    pub(in crate::bench) records: Vec<Record>,
    /// Answers "overloaded" that didn't say when to come again.
    pub(in crate::bench) without_retry_after: u32,
}

/// Sends purchases of one unit for the span.
pub(in crate::bench) async fn arrive(
    peer: &Peer,
    sale: Uuid,
    arrivals: Arrivals,
    span: Span,
) -> anyhow::Result<Arrived> {
    let streams = connect(peer, arrivals.connections).await?;
    let host = peer.address().to_owned();
    let pace = Pace {
        per_second: arrivals.per_second,
        connections: arrivals.connections,
    };
    apart(move || async move {
        let wires = streams
            .into_iter()
            .zip(0..)
            .map(|(stream, buyer)| Wire::new(stream, &host, buyer))
            .collect::<std::io::Result<Vec<_>>>()?;
        let silent = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
        let begin = Instant::now();
        let mut buyers = JoinSet::new();
        for (wire, buyer) in wires.into_iter().zip(0..) {
            let silent = silent.clone();
            buyers.spawn(async move {
                let (records, without) = one_connection(buyer, wire, sale, pace, begin, span.whole()).await;
                silent.fetch_add(without, std::sync::atomic::Ordering::Relaxed);
                records
            });
        }
        let records = gather(buyers, begin + span.whole() + ANSWER_WITHIN).await?;
        Ok(Arrived {
            records,
            without_retry_after: silent.load(std::sync::atomic::Ordering::Relaxed),
        })
    })
    .await
}

async fn one_connection(
    buyer: u32,
    mut wire: Wire,
    sale: Uuid,
    pace: Pace,
    begin: Instant,
    stop: Duration,
) -> (Vec<Record>, u32) {
    let (mut records, mut without_retry_after) = (Vec::new(), 0);
    for number in 0..KEYS_PER_BUYER {
        let due = pace.due(buyer, number);
        if due >= stop || begin.elapsed() >= stop {
            break;
        }
        if due > begin.elapsed() {
            tokio::time::sleep_until((begin + due).into()).await;
        }
        let key = buyer * KEYS_PER_BUYER + number;
        let started = begin.elapsed();
        let reply = wire.buy(sale, key).await;
        if reply.outcome == Outcome::Refused(Refusal::Overloaded) && !reply.has_retry_after {
            without_retry_after += 1;
        }
        records.push(Record {
            ask: Ask {
                buyer,
                key,
                quantity: 1,
            },
            started,
            ended: begin.elapsed(),
            outcome: reply.outcome,
            body: None,
        });
        if reply.is_lost {
            break; // the outcomes show it
        }
    }
    (records, without_retry_after)
}
