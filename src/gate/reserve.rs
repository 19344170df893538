//! Taking units for orders.

use redis::Value;

use super::reply::{self, Readiness, Reply};
use super::script::{self, Columns as _};
use super::{Error, Gate};
use crate::domain::{Buyer, IdempotencyDigest, OrderId, SaleId};

/// Requests in one call. Redis serves nobody else while it works on them: about 7 us each.
pub const MAX_BATCH_REQUESTS: usize = 4096;

/// A request for units, under the name of the order that it may become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// The order, freshly named: repeating the request under the same name takes nothing more. One name must never be
    /// used for two different requests.
    pub order: OrderId,
    /// Who buys.
    pub buyer: Buyer,
    /// The name of the purchase.
    pub digest: IdempotencyDigest,
    /// So many units; positive.
    pub quantity: i32,
}

/// What became of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reserve {
    /// It was decided.
    Decided {
        /// Under which epoch. A commit under another one must not happen.
        epoch: i64,
        /// Units left afterwards.
        available: i64,
        /// One per request, in order.
        verdicts: Vec<Verdict>,
    },
    /// The sale's keys are not there, or nobody has gone on loading them for 2 s: load them and try again.
    Unprimed,
    /// Somebody is loading them just now: try again shortly.
    Loading,
}

/// What became of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The order holds its units: taken now, or by an earlier call under the same order.
    Admitted,
    /// The purchase is known: this order was made of it.
    Replay(OrderId),
    /// The purchase is known with another quantity.
    KeyReused,
    /// The buyer would hold or own more than the sale allows.
    LimitExceeded,
    /// Fewer units are available than were asked for.
    SoldOut,
    /// The sale has not begun.
    NotOpen,
    /// The sale is over.
    Closed,
    /// This very order was released before, so that it can't hold units any more: the request needs a new order.
    Released,
}

impl Gate {
    /// Decides a batch in one step, in the order given, by Redis' clock. Per request: is the purchase known; is the sale
    /// open; is the buyer within the limit; are there units. Purchases and buyers that come up twice in the batch are seen.
    ///
    /// Safe to repeat under the same order ids, also when the outcome of an earlier call is unknown.
    ///
    /// # Errors
    /// [`Error::BatchTooLarge`] above [`MAX_BATCH_REQUESTS`]; otherwise what is in the way. With [`Error::OutcomeUnknown`] units
    /// may be held: repeat, or release the orders.
    pub async fn reserve(&self, sale: SaleId, requests: &[Reservation]) -> Result<Reserve, Error> {
        if requests.len() > MAX_BATCH_REQUESTS {
            return Err(Error::BatchTooLarge {
                given: requests.len(),
                limit: MAX_BATCH_REQUESTS,
            });
        }
        let mut command = script::RESERVE.on(sale);
        command
            .uuids_simple(requests.iter().map(|request| request.digest.0))
            .uuids(requests.iter().map(|request| request.order.0))
            .arg(
                requests
                    .iter()
                    .map(|request| request.quantity)
                    .collect::<Vec<_>>(),
            )
            .arg(
                requests
                    .iter()
                    .map(|request| request.buyer.as_str())
                    .collect::<Vec<_>>(),
            );

        read(script::RESERVE.run(&self.link, &command).await?, requests.len())
    }
}

/// Reads what the script answers to so many requests.
pub(super) fn read(answer: Value, asked: usize) -> Result<Reserve, Error> {
    let mut reply = Reply::new(answer)?;
    match reply.readiness()? {
        Readiness::Unprimed => Ok(Reserve::Unprimed),
        Readiness::Loading => Ok(Reserve::Loading),
        Readiness::Ready => {
            let epoch = reply.parsed()?;
            let available = reply.int()?;
            let letters = reply.value()?;
            let verdicts = verdicts(reply::text(&letters)?, reply.rest())?;
            if verdicts.len() != asked {
                return Err(Error::Other("as many verdicts as requests were expected".into()));
            }
            Ok(Reserve::Decided {
                epoch,
                available,
                verdicts,
            })
        }
    }
}

/// The verdicts behind the script's letters; `replayed` are the orders of the replays.
fn verdicts(letters: &str, mut replayed: impl Iterator<Item = Value>) -> Result<Vec<Verdict>, Error> {
    letters
        .chars()
        .map(|letter| {
            Ok(match letter {
                'A' => Verdict::Admitted,
                'R' => {
                    let order = replayed
                        .next()
                        .ok_or_else(|| Error::Other("a replay without its order".into()))?;
                    Verdict::Replay(reply::parsed(reply::text(&order)?)?)
                }
                'K' => Verdict::KeyReused,
                'L' => Verdict::LimitExceeded,
                'S' => Verdict::SoldOut,
                'N' => Verdict::NotOpen,
                'C' => Verdict::Closed,
                'X' => Verdict::Released,
                other => return Err(Error::Other(format!("unknown verdict {other:?}"))),
            })
        })
        .collect()
}
