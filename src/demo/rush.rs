//! The buyers: each waits on a connection of its own and asks for a unit at the very instant the sale opens.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::wire::{Answer, Connection};
use crate::domain::{OrderId, SaleId};

/// Connections that are being made at a time.
const DIALLING: usize = 64;
/// How often a buyer asks before it gives up. Always with the same key, so that none of it is a second purchase.
const MAX_TRIES: u32 = 10;
/// How long a buyer waits before it asks again, where the engine doesn't say.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest that a buyer waits because the engine says so.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Somebody with the sale's page open.
pub(super) struct Buyer {
    name: String,
    connection: Connection,
}

/// How a buyer's purchase ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    /// A unit is held for this order.
    Accepted(OrderId),
    /// Refused, for a reason that has a name (`sold_out`).
    Refused(String),
    /// No usable answer in all tries: there may be an order or not.
    Unanswered(String),
}

/// A purchase, as its buyer saw it.
#[derive(Debug, Clone)]
pub(super) struct Purchase {
    /// Who bought.
    pub(super) buyer: String,
    /// How it ended.
    pub(super) ended: Ended,
    /// From the first request to the last answer.
    pub(super) took: Duration,
}

/// Connects so many buyers.
///
/// # Errors
/// When the engine can't be reached.
pub(super) async fn connect(url: &str, buyers: u32) -> anyhow::Result<Vec<Buyer>> {
    stream::iter(1..=buyers)
        .map(|number| async move {
            let connection = Connection::open(url).await?;
            let name = format!("buyer-{number:05}");
            anyhow::Ok(Buyer { name, connection })
        })
        .buffer_unordered(DIALLING)
        .try_collect()
        .await
}

/// Has each look at the sale's page, so that every connection is in use before the rush.
///
/// # Errors
/// When one doesn't get to see it.
pub(super) async fn look(buyers: Vec<Buyer>, sale: SaleId) -> anyhow::Result<Vec<Buyer>> {
    let path = &format!("/v1/sales/{sale}");
    stream::iter(buyers)
        .map(|mut buyer| async move {
            let answer = buyer.connection.send(Method::GET, path, &[], None).await?;
            answer
                .expect(StatusCode::OK)
                .context("a buyer doesn't get to see the sale")?;
            anyhow::Ok(buyer)
        })
        .buffer_unordered(DIALLING)
        .try_collect()
        .await
}

/// All ask for a unit at the instant `at`. Ends when the last has its answer.
pub(super) async fn rush(buyers: Vec<Buyer>, sale: SaleId, at: Instant) -> Vec<Purchase> {
    let mut under_way = JoinSet::new();
    for buyer in buyers {
        under_way.spawn(async move {
            sleep_until(at).await;
            buyer.buy(sale).await
        });
    }
    under_way.join_all().await
}

/// Purchases by how they ended; refusals by their name.
pub(super) fn tally(purchases: &[Purchase]) -> BTreeMap<&str, u64> {
    let mut tally = BTreeMap::new();
    for purchase in purchases {
        let name = match &purchase.ended {
            Ended::Accepted(_) => "accepted",
            Ended::Refused(kind) => kind,
            Ended::Unanswered(_) => "unanswered",
        };
        *tally.entry(name).or_default() += 1;
    }
    tally
}

/// What a buyer does about an answer.
enum Next {
    End(Ended),
    AskAgain { after: Duration, because: String },
}

impl Buyer {
    async fn buy(mut self, sale: SaleId) -> Purchase {
        let started = Instant::now();
        let path = format!("/v1/sales/{sale}/orders");
        let body = json!({ "quantity": 1 });
        // One intention to buy, one key, however often it is sent.
        let headers = [
            ("x-buyer-id", self.name.as_str()),
            ("idempotency-key", "my-one-purchase"),
        ];
        let mut tries = 0;
        let ended = loop {
            tries += 1;
            let next = match self
                .connection
                .send(Method::POST, &path, &headers, Some(&body))
                .await
            {
                Ok(answer) => next(&answer),
                Err(error) => Next::AskAgain {
                    after: PAUSE,
                    because: format!("{error:#}"),
                },
            };
            match next {
                Next::End(ended) => break ended,
                Next::AskAgain { because, .. } if tries == MAX_TRIES => break Ended::Unanswered(because),
                Next::AskAgain { after, .. } => sleep(after).await,
            }
        };
        Purchase {
            took: started.elapsed(),
            buyer: self.name,
            ended,
        }
    }
}

fn next(answer: &Answer) -> Next {
    #[derive(Deserialize)]
    struct Accepted {
        id: OrderId,
    }
    #[derive(Deserialize)]
    struct Problem {
        r#type: String,
    }
    let ask_again = |because: String| Next::AskAgain {
        after: answer.retry_after.unwrap_or(PAUSE).min(LONGEST_PAUSE),
        because,
    };
    if answer.status == StatusCode::CREATED {
        return match answer.json::<Accepted>() {
            Ok(order) => Next::End(Ended::Accepted(order.id)),
            Err(error) => Next::End(Ended::Unanswered(format!("{error:#}"))),
        };
    }
    let kind = match answer.json::<Problem>() {
        Ok(problem) => problem.r#type.rsplit(':').next().unwrap_or_default().to_owned(),
        Err(error) => return ask_again(format!("{error:#}")),
    };
    // 503 says "not now" by definition. The engine's clock decides when the sale opens; a buyer's may be ahead of it.
    if answer.status == StatusCode::SERVICE_UNAVAILABLE || kind == "not_open" {
        ask_again(kind)
    } else {
        Next::End(Ended::Refused(kind))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn answer(status: u16, retry_after: Option<u64>, body: &str) -> Answer {
        Answer {
            status: StatusCode::from_u16(status).unwrap(),
            retry_after: retry_after.map(Duration::from_secs),
            body: Bytes::copy_from_slice(body.as_bytes()),
        }
    }

    #[test]
    fn an_order_and_a_refusal_are_final() {
        let id = OrderId::fresh();
        let accepted = answer(201, None, &json!({ "id": id, "status": "pending" }).to_string());
        assert!(matches!(next(&accepted), Next::End(Ended::Accepted(order)) if order == id));
        let sold_out = answer(409, None, r#"{"type":"urn:fluxbuy:problem:sold_out"}"#);
        assert!(matches!(next(&sold_out), Next::End(Ended::Refused(kind)) if kind == "sold_out"));
    }

    #[test]
    fn a_buyer_who_is_told_to_wait_waits_but_not_for_ever() {
        let busy = |seconds| answer(503, Some(seconds), r#"{"type":"urn:fluxbuy:problem:overloaded"}"#);
        for (asked, waited) in [(1, 1), (3600, 5)] {
            let Next::AskAgain { after, because } = next(&busy(asked)) else {
                panic!("503 is not final");
            };
            assert_eq!(
                (after, because.as_str()),
                (Duration::from_secs(waited), "overloaded")
            );
        }
    }
}
