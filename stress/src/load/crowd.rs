//! A crowd: clients that connect beforehand and are let go all at once, or that come one after the other until they are told to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::link::{Answer, Link, Lost};
use super::purchase::{Till, retry_after_secs};
use super::{Ask, Outcome, Peer, Record, Refusal};

/// Connections that are opened at a time, below what a listener's queue takes.
const CONNECTS_AT_A_TIME: usize = 64;
/// A request without an answer by then has an unknown outcome.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// How long a buyer goes on asking when it is told to come again.
const INSISTS_FOR: Duration = Duration::from_mins(1);
/// Pause before a request that came too early, or without an answer, is sent again.
const SHORT_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause that a Retry-After is followed for: a buyer in a flash sale has no more patience.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What one client does: purchases one after the other, each until it is decided.
pub type Errand = Vec<Ask>;

/// Buyers that keep coming.
pub struct Wishes {
    /// What the buyer with this number in the row wants, and whether it cancels its order as soon as it has one.
    pub wish: fn(seed: u64, number: u32) -> (Ask, bool),
    /// Chooses.
    pub seed: u64,
    /// Between a client's buyers.
    pub pause: Duration,
    /// After so long without an answer a buyer asks again, by another connection.
    pub answer_within: Duration,
}

/// Clients with open connections.
pub struct Crowd {
    peers: Arc<[Peer]>,
    links: Vec<Link>,
}

impl Crowd {
    /// Opens as many connections, spread over the engines.
    ///
    /// # Errors
    /// When one can't be opened.
    pub async fn gather(engines: &[Peer], clients: usize) -> anyhow::Result<Self> {
        let links = stream::iter(engines.iter().cycle().take(clients))
            .map(|peer| async move {
                Link::open(peer)
                    .await
                    .with_context(|| format!("a buyer could not connect to {}", peer.address()))
            })
            .buffered(CONNECTS_AT_A_TIME)
            .try_collect()
            .await?;
        Ok(Self {
            peers: engines.into(),
            links,
        })
    }

    fn shoppers(self, sale: Uuid, opening: Instant) -> anyhow::Result<impl Iterator<Item = Shopper>> {
        let Self { peers, links } = self;
        let tills = peers
            .iter()
            .map(|peer| Till::new(peer, sale))
            .collect::<anyhow::Result<Arc<[Till]>>>()?;
        Ok(links.into_iter().enumerate().map(move |(number, link)| Shopper {
            at: number % peers.len(),
            peers: Arc::clone(&peers),
            tills: Arc::clone(&tills),
            link,
            origin: opening,
            answer_within: ANSWER_WITHIN,
            keep_bodies: false,
            records: Vec::new(),
        }))
    }

    /// Lets everybody go at `opening`, one errand each, and waits until all have come back. Times are told from then on.
    ///
    /// # Errors
    /// When a client panicked.
    pub async fn rush(
        self,
        sale: Uuid,
        errands: Vec<Errand>,
        opening: Instant,
        keep_bodies: bool,
    ) -> anyhow::Result<Vec<Record>> {
        let (gate, opened) = watch::channel(false);
        let mut shoppers = JoinSet::new();
        for (mut shopper, errand) in self.shoppers(sale, opening)?.zip(errands) {
            shopper.keep_bodies = keep_bodies;
            shopper.records.reserve(errand.len() + 1);
            let mut opened = opened.clone();
            shoppers.spawn(async move {
                opened.wait_for(|open| *open).await.ok();
                for ask in errand {
                    shopper.insist(ask).await;
                }
                shopper.records
            });
        }
        tokio::time::sleep_until(opening.into()).await;
        gate.send_replace(true);
        all_records(shoppers).await
    }

    /// Lets buyers come one after the other at each connection, from `opening` until `meanwhile` is over; everybody who has begun is
    /// decided first. Times are told from the opening.
    ///
    /// # Errors
    /// Those of `meanwhile`; and when a client panicked.
    pub async fn keep_coming(
        self,
        sale: Uuid,
        wishes: Wishes,
        opening: Instant,
        meanwhile: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<Vec<Record>> {
        let (end, ended) = watch::channel(false);
        let (wishes, next) = (Arc::new(wishes), Arc::new(AtomicU32::new(0)));
        let mut shoppers = JoinSet::new();
        for mut shopper in self.shoppers(sale, opening)? {
            shopper.answer_within = wishes.answer_within;
            let (wishes, next, mut ended) = (Arc::clone(&wishes), Arc::clone(&next), ended.clone());
            shoppers.spawn(async move {
                tokio::time::sleep_until(opening.into()).await;
                while !*ended.borrow() {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let (ask, cancels) = (wishes.wish)(wishes.seed, number);
                    let order = shopper.insist(ask).await;
                    if let Some(order) = order.filter(|_| cancels) {
                        shopper.cancel(order, &ask).await;
                    }
                    tokio::time::timeout(wishes.pause, ended.changed()).await.ok();
                }
                shopper.records
            });
        }
        tokio::time::sleep_until(opening.into()).await;
        let done = meanwhile.await;
        end.send_replace(true);
        let records = all_records(shoppers).await?;
        done.map(|()| records)
    }
}

async fn all_records(mut shoppers: JoinSet<Vec<Record>>) -> anyhow::Result<Vec<Record>> {
    let mut records = Vec::new();
    while let Some(shopper) = shoppers.join_next().await {
        records.extend(shopper.context("a buyer's client died")?);
    }
    records.sort_by_key(|record| record.started);
    Ok(records)
}

struct Shopper {
    peers: Arc<[Peer]>,
    tills: Arc<[Till]>,
    /// The engine that the link leads to.
    at: usize,
    link: Link,
    origin: Instant,
    answer_within: Duration,
    keep_bodies: bool,
    records: Vec<Record>,
}

impl Shopper {
    /// Asks under the same key until it is told yes or no. Where a connection is lost, the next engine is asked. Tells which order it got.
    async fn insist(&mut self, ask: Ask) -> Option<Uuid> {
        let give_up = Instant::now() + INSISTS_FOR;
        loop {
            let (outcome, asked_pause) = self.once(ask).await;
            if let Outcome::Accepted { order, .. } = outcome {
                return Some(order);
            }
            if outcome.is_decided() || Instant::now() >= give_up {
                return None;
            }
            if matches!(outcome, Outcome::Unknown(_) | Outcome::Refused(Refusal::NotSent)) {
                self.connect_elsewhere().await;
            }
            tokio::time::sleep(asked_pause.unwrap_or(SHORT_PAUSE).min(LONGEST_PAUSE)).await;
        }
    }

    async fn connect_elsewhere(&mut self) {
        let next = (self.at + 1) % self.peers.len();
        let connecting = tokio::time::timeout(self.answer_within, Link::open(&self.peers[next]));
        if let Ok(Ok(link)) = connecting.await {
            (self.at, self.link) = (next, link);
        }
    }

    async fn once(&mut self, ask: Ask) -> (Outcome, Option<Duration>) {
        let request = self.tills[self.at].request(&ask);
        let started = self.origin.elapsed();
        let answer: Result<Answer, Lost> = tokio::time::timeout(self.answer_within, self.link.call(request))
            .await
            .unwrap_or_else(|_| Err(Lost::MaybeSent("time is up".to_owned())));
        let ended = self.origin.elapsed();
        let outcome = Outcome::of(&answer);
        let answer = answer.ok();
        let pause = answer
            .as_ref()
            .and_then(retry_after_secs)
            .map(Duration::from_secs);
        let body = answer.filter(|_| self.keep_bodies).map(|answer| answer.body);
        self.records.push(Record {
            ask,
            started,
            ended,
            outcome: outcome.clone(),
            body,
        });
        (outcome, pause)
    }

    /// Asks once for an order to be cancelled. Whatever that comes to is fine with the buyer: the order's row tells.
    async fn cancel(&mut self, order: Uuid, ask: &Ask) {
        let request = self.tills[self.at].cancellation(order, ask);
        let answer = tokio::time::timeout(self.answer_within, self.link.call(request)).await;
        if !matches!(answer, Ok(Ok(_))) {
            self.connect_elsewhere().await;
        }
    }
}
