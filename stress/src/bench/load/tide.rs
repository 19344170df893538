//! A steady load: so many buyers, each always waiting for an answer.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{ANSWER_WITHIN, Span, Wire, apart, connect, gather};
use crate::load::{Ask, Peer, Record};

/// Keys of one buyer: more than it can use in all rounds at one sale.
const KEYS_PER_BUYER: u32 = u32::MAX / 10_000;

/// Who buys where.
#[derive(Debug, Clone)]
pub(in crate::bench) struct Tide {
    /// Sales, taken in turns.
    pub(in crate::bench) sales: Vec<Uuid>,
    /// Buyers, each on a connection of its own; at most 10,000.
    pub(in crate::bench) buyers: u32,
    /// The number of each buyer's first purchase: a later tide at the same sales goes on where the last one ended.
    pub(in crate::bench) first: u32,
    /// Purchases of each buyer after which it stops before the span is over.
    pub(in crate::bench) at_most: u32,
}

impl Tide {
    /// All at one sale, from the first key on.
    pub(in crate::bench) fn at(sale: Uuid, buyers: u32) -> Self {
        Self {
            sales: vec![sale],
            buyers,
            first: 0,
            at_most: KEYS_PER_BUYER,
        }
    }

    fn key(&self, buyer: u32, number: u32) -> u32 {
        buyer * KEYS_PER_BUYER + (self.first + number) % KEYS_PER_BUYER
    }

    /// Where a tide begins that comes after these purchases.
    pub(in crate::bench) fn after(&self, records: &[Record]) -> u32 {
        let numbers = records.iter().map(|record| record.ask.key % KEYS_PER_BUYER + 1);
        numbers.max().unwrap_or(self.first).max(self.first)
    }

    /// Where a purchase goes: its place among the sales. Told by the key alone, so that records need not keep it.
    pub(in crate::bench) fn place(&self, key: u32) -> usize {
        let (buyer, number) = (key / KEYS_PER_BUYER, key % KEYS_PER_BUYER);
        (buyer as usize + number as usize * self.buyers as usize) % self.sales.len()
    }
}

/// Sends purchases of one unit from `begin` to the end of the span. Times are told from `begin`, which is as soon as all are
/// connected.
pub(in crate::bench) async fn flow(peer: &Peer, tide: &Tide, span: Span) -> anyhow::Result<Vec<Record>> {
    let (begun, _) = oneshot::channel();
    flow_from(peer, tide, span, begun).await
}

/// The same, and tells when it begins to whoever looks at something meanwhile.
pub(in crate::bench) async fn flow_from(
    peer: &Peer,
    tide: &Tide,
    span: Span,
    begun: oneshot::Sender<Instant>,
) -> anyhow::Result<Vec<Record>> {
    let streams = connect(peer, tide.buyers).await?;
    let (tide, host) = (tide.clone(), peer.address().to_owned());
    apart(move || async move {
        let wires = streams
            .into_iter()
            .zip(0..)
            .map(|(stream, buyer)| Wire::new(stream, &host, buyer))
            .collect::<std::io::Result<Vec<_>>>()?;
        let begin = Instant::now();
        // It is nobody's business when nobody asked.
        begun.send(begin).ok();
        let stop = span.whole();
        let mut buyers = JoinSet::new();
        for (wire, buyer) in wires.into_iter().zip(0..) {
            let tide = tide.clone();
            buyers.spawn(async move { one_buyer(buyer, wire, &tide, begin, stop).await });
        }
        gather(buyers, begin + stop + ANSWER_WITHIN).await
    })
    .await
}

async fn one_buyer(buyer: u32, mut wire: Wire, tide: &Tide, begin: Instant, stop: Duration) -> Vec<Record> {
    let mut records = Vec::with_capacity(256);
    for number in 0..tide.at_most {
        let started = begin.elapsed();
        if started >= stop {
            break;
        }
        let key = tide.key(buyer, number);
        let reply = wire.buy(tide.sales[tide.place(key)], key).await;
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
    records
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purchases_go_round_the_sales() {
        let tide = Tide {
            sales: (0..100).map(Uuid::from_u128).collect(),
            buyers: 8,
            first: 0,
            at_most: 50,
        };
        let mut count = vec![0; 100];
        for buyer in 0..8 {
            for number in 0..50 {
                count[tide.place(tide.key(buyer, number))] += 1;
            }
        }
        assert_eq!(count, vec![4; 100]);
        assert_eq!(tide.after(&[]), 0);
    }

    #[test]
    fn a_later_tide_has_other_keys() {
        let early = Tide::at(Uuid::nil(), 2);
        let late = Tide {
            first: 5,
            ..early.clone()
        };
        assert_eq!(early.key(1, 5), late.key(1, 0));
        assert_ne!(early.key(1, 0), late.key(1, 0));
        assert!(early.key(0, KEYS_PER_BUYER - 1) < early.key(1, 0));
    }
}
