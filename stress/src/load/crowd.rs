//! A crowd: clients that connect beforehand and are let go all at once.

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

/// Clients with open connections.
pub struct Crowd {
    clients: Vec<Client>,
}

struct Client {
    peer: Peer,
    link: Link,
}

impl Crowd {
    /// Opens as many connections, spread over the engines.
    ///
    /// # Errors
    /// When one can't be opened.
    pub async fn gather(engines: &[Peer], clients: usize) -> anyhow::Result<Self> {
        let clients = stream::iter(engines.iter().cycle().take(clients))
            .map(|peer| async move {
                let link = Link::open(peer)
                    .await
                    .with_context(|| format!("a buyer could not connect to {}", peer.address()))?;
                anyhow::Ok(Client {
                    peer: peer.clone(),
                    link,
                })
            })
            .buffered(CONNECTS_AT_A_TIME)
            .try_collect()
            .await?;
        Ok(Self { clients })
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
        for (client, errand) in self.clients.into_iter().zip(errands) {
            let mut shopper = Shopper {
                till: Till::new(&client.peer, sale)?,
                client,
                origin: opening,
                keep_bodies,
                records: Vec::with_capacity(errand.len() + 1),
            };
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
        let mut records = Vec::new();
        while let Some(shopper) = shoppers.join_next().await {
            records.extend(shopper.context("a buyer's client died")?);
        }
        records.sort_by_key(|record| record.started);
        Ok(records)
    }
}

struct Shopper {
    till: Till,
    client: Client,
    origin: Instant,
    keep_bodies: bool,
    records: Vec<Record>,
}

impl Shopper {
    /// Asks under the same key until it is told yes or no.
    async fn insist(&mut self, ask: Ask) {
        let give_up = Instant::now() + INSISTS_FOR;
        loop {
            let (outcome, asked_pause) = self.once(ask).await;
            let again = match outcome {
                Outcome::Accepted { .. } => false,
                Outcome::Refused(refusal) => refusal.is_passing(),
                Outcome::Unknown(_) => true,
            };
            if !again || Instant::now() >= give_up {
                return;
            }
            if matches!(outcome, Outcome::Unknown(_) | Outcome::Refused(Refusal::NotSent))
                && let Ok(link) = Link::open(&self.client.peer).await
            {
                self.client.link = link;
            }
            tokio::time::sleep(asked_pause.unwrap_or(SHORT_PAUSE).min(LONGEST_PAUSE)).await;
        }
    }

    async fn once(&mut self, ask: Ask) -> (Outcome, Option<Duration>) {
        let request = self.till.request(&ask);
        let started = self.origin.elapsed();
        let answer: Result<Answer, Lost> =
            tokio::time::timeout(ANSWER_WITHIN, self.client.link.call(request))
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
}
