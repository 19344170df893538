//! Everybody at the same instant: one purchase each, on connections that are open beforehand.

use std::time::Instant;

use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{ANSWER_WITHIN, Wire, apart, connect, gather};
use crate::load::{Ask, Peer, Record};

/// Lets `buyers` buyers go at once. Times are told from the instant at which they are let go, and so are waiting times: whoever is
/// sent later has waited for it.
pub(in crate::bench) async fn surge(peer: &Peer, sale: Uuid, buyers: u32) -> anyhow::Result<Vec<Record>> {
    let streams = connect(peer, buyers).await?;
    let host = peer.address().to_owned();
    apart(move || async move {
        let (gate, opened) = watch::channel(None::<Instant>);
        let mut tasks = JoinSet::new();
        for (stream, buyer) in streams.into_iter().zip(0..) {
            let mut wire = Wire::new(stream, &host, buyer)?;
            let mut opened = opened.clone();
            tasks.spawn(async move {
                let Ok(Some(begin)) = opened.wait_for(Option::is_some).await.map(|begin| *begin) else {
                    return Vec::new();
                };
                let reply = wire.buy(sale, buyer).await;
                vec![Record {
                    ask: Ask {
                        buyer,
                        key: buyer,
                        quantity: 1,
                    },
                    started: std::time::Duration::ZERO,
                    ended: begin.elapsed(),
                    outcome: reply.outcome,
                    body: None,
                }]
            });
        }
        // All of them wait at the gate before it opens.
        tokio::task::yield_now().await;
        let begin = Instant::now();
        gate.send_replace(Some(begin));
        gather(tasks, begin + ANSWER_WITHIN).await
    })
    .await
}
