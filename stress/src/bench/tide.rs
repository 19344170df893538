//! A steady load: so many buyers, each always waiting for an answer.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::task::JoinSet;

use crate::load::{Ask, Link, Outcome, Peer, Record, Till};
use crate::scenarios::Stall;

/// Connections that are opened at a time.
const CONNECTS_AT_A_TIME: usize = 64;
/// A request that has no answer by then never gets one.
const ANSWER_WITHIN: Duration = Duration::from_mins(1);
/// Keys of one buyer: more than it can use in the longest round.
const KEYS_PER_BUYER: u32 = u32::MAX / 10_000;

/// How long it flows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    /// Not measured.
    pub(super) warm_up: Duration,
    /// Measured.
    pub(super) measured: Duration,
}

/// Sends purchases of one unit from the sale's opening to the end of the span. Times are told from the opening.
pub(super) async fn run(peer: &Peer, stall: &Stall, buyers: u32, span: Span) -> anyhow::Result<Vec<Record>> {
    let till = Till::new(peer, stall.sale)?;
    let links: Vec<Link> = stream::iter(0..buyers)
        .map(|_| Link::open(peer))
        .buffered(CONNECTS_AT_A_TIME)
        .try_collect()
        .await
        .context("a buyer could not connect")?;
    let opening = stall.opening;
    let stop = span.warm_up + span.measured;
    let mut tasks = JoinSet::new();
    for (buyer, link) in (0..buyers).zip(links) {
        let till = till.clone();
        tasks.spawn(async move {
            tokio::time::sleep_until(opening.into()).await;
            one_buyer(buyer, link, &till, opening, stop).await
        });
    }
    let mut records = Vec::new();
    let deadline = opening + stop + ANSWER_WITHIN;
    loop {
        match tokio::time::timeout_at(deadline.into(), tasks.join_next()).await {
            Ok(Some(buyer)) => records.extend(buyer.context("a buyer's client died")?),
            Ok(None) => return Ok(records),
            Err(_) => bail!(
                "{} buyers got no answer within {} s",
                tasks.len(),
                ANSWER_WITHIN.as_secs()
            ),
        }
    }
}

async fn one_buyer(buyer: u32, mut link: Link, till: &Till, opening: Instant, stop: Duration) -> Vec<Record> {
    let mut records = Vec::with_capacity(1_024);
    for number in 0..KEYS_PER_BUYER {
        let started = opening.elapsed();
        if started >= stop {
            break;
        }
        let ask = Ask {
            buyer,
            key: buyer * KEYS_PER_BUYER + number,
            quantity: 1,
        };
        let answer = link.call(till.request(&ask)).await;
        let outcome = Outcome::of(&answer);
        records.push(Record {
            ask,
            started,
            ended: opening.elapsed(),
            outcome,
            body: None,
        });
        if answer.is_err() {
            break; // the connection is gone; the outcomes show it
        }
    }
    records
}
