//! One actor per sale: collects purchases while a batch is under way, and sends the next one off when there is room.
//!
//! Architecture invariants: no I/O and no timer that matters runs on the actors' own threads (batches run on the shared
//! runtime); the mailbox is bounded by the places that the handle gives out, never by the mailbox itself.

mod batch;
mod decide;
mod handle;
mod messages;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler};
use tokio::runtime;

pub use decide::{Decided, Decider, Parts};
pub use handle::{Limits, Sales};

use batch::{Arrival, Batcher};
use messages::{BatchDecided, Buy, Flush, Freed, Reload, SoldOutKnown, StillSoldOut, Waiter};

use crate::domain::{IdempotencyDigest, Refusal};
use crate::gate::Pulse;

/// How long a sale may be taken for sold out without asking the gate again.
const SOLD_OUT_FOR: Duration = Duration::from_millis(100);

/// The shell around a [`Batcher`] and a [`Decider`].
pub struct SaleActor {
    batcher: Batcher<Waiter>,
    decider: Arc<Decider>,
    parts: Arc<Parts>,
    sale: crate::domain::SaleId,
    runtime: runtime::Handle,
    /// A flush is in the mailbox already.
    flush_due: bool,
    sold_out: SoldOut,
}

/// What the actor remembers of a sale without stock, so that refusals cost the gate nothing.
enum SoldOut {
    No,
    /// The gate is being asked for the purchases it knows.
    Asking,
    /// Refuse from memory, but for purchases that are known: those are replays.
    Yes {
        pulse: Pulse,
        known: HashSet<IdempotencyDigest>,
    },
}

impl Actor for SaleActor {
    type Context = Context<Self>;
}

impl SaleActor {
    fn send_batches(&mut self, ctx: &mut Context<Self>) {
        while let Some(entries) = self.batcher.next_batch() {
            let (decider, addr) = (self.decider.clone(), ctx.address());
            let digests: Vec<_> = entries.iter().map(|entry| entry.purchase.digest).collect();
            // A task of its own: nobody's hang-up or time-out may cut a transaction.
            let deciding = self.runtime.spawn(async move { decider.decide(entries).await });
            self.runtime.spawn(async move {
                let (decided, available) = deciding.await.unwrap_or_else(|panic| {
                    tracing::error!(%panic, "a batch died while it was decided");
                    let unknown = || {
                        Err(Refusal::OutcomeUnknown {
                            retry_after: SOLD_OUT_FOR,
                        })
                    };
                    (
                        digests
                            .into_iter()
                            .map(|digest| Decided {
                                digest,
                                answer: unknown(),
                            })
                            .collect(),
                        None,
                    )
                });
                addr.do_send(BatchDecided(decided, available));
            });
        }
    }

    fn ask_what_is_known(&mut self, ctx: &mut Context<Self>) {
        self.sold_out = SoldOut::Asking;
        let (gate, sale, addr) = (self.parts.gate.clone(), self.sale, ctx.address());
        self.runtime.spawn(async move {
            let asked = async {
                let Some(before) = gate.pulse(sale).await? else {
                    return Ok(None);
                };
                if before.available > 0 {
                    return Ok(None);
                }
                Ok::<_, crate::gate::Error>(Some((before, gate.known_keys(sale).await?)))
            };
            addr.do_send(SoldOutKnown(asked.await.unwrap_or(None)));
        });
    }

    fn ask_whether_still_sold_out(&self, ctx: &mut Context<Self>) {
        let (gate, sale, addr) = (self.parts.gate.clone(), self.sale, ctx.address());
        self.runtime.spawn(async move {
            tokio::time::sleep(SOLD_OUT_FOR / 2).await;
            addr.do_send(StillSoldOut(gate.pulse(sale).await.unwrap_or(None)));
        });
    }
}

impl Handler<Buy> for SaleActor {
    type Result = ();

    fn handle(&mut self, Buy { purchase, waiter }: Buy, ctx: &mut Self::Context) {
        if let SoldOut::Yes { known, .. } = &self.sold_out
            && !known.contains(&purchase.digest)
            && !self.batcher.knows(&purchase.digest)
        {
            waiter.tell(Err(Refusal::SoldOut));
            return;
        }
        match self.batcher.arrive(purchase, waiter) {
            Arrival::Queued => {}
            Arrival::Joined => return,
            Arrival::KeyReused(waiter) => {
                waiter.tell(Err(Refusal::KeyReused));
                return;
            }
        }
        if self.batcher.is_full() {
            self.send_batches(ctx);
        } else if !self.flush_due {
            // Behind everything that is in the mailbox now: the batch takes it all along.
            self.flush_due = true;
            ctx.notify(Flush);
        }
    }
}

impl Handler<Flush> for SaleActor {
    type Result = ();

    fn handle(&mut self, _: Flush, ctx: &mut Self::Context) {
        self.flush_due = false;
        self.send_batches(ctx);
    }
}

impl Handler<BatchDecided> for SaleActor {
    type Result = ();

    fn handle(&mut self, BatchDecided(decided, available): BatchDecided, ctx: &mut Self::Context) {
        self.batcher.batch_ended();
        self.send_batches(ctx);
        for decision in decided {
            let mut answer = decision.answer;
            for waiter in self.batcher.take_waiters(&decision.digest) {
                let told = answer.clone();
                if let Ok(accepted) = &mut answer {
                    accepted.replayed = true; // for whoever joined the first
                }
                waiter.tell(told);
            }
        }
        if available == Some(0) && matches!(self.sold_out, SoldOut::No) {
            self.ask_what_is_known(ctx);
        }
    }
}

impl Handler<SoldOutKnown> for SaleActor {
    type Result = ();

    fn handle(&mut self, SoldOutKnown(known): SoldOutKnown, ctx: &mut Self::Context) {
        // Freed meanwhile: what was read may be old.
        if !matches!(self.sold_out, SoldOut::Asking) {
            return;
        }
        self.sold_out = match known {
            Some((pulse, known)) => {
                self.ask_whether_still_sold_out(ctx);
                SoldOut::Yes { pulse, known }
            }
            None => SoldOut::No,
        };
    }
}

impl Handler<StillSoldOut> for SaleActor {
    type Result = ();

    fn handle(&mut self, StillSoldOut(now): StillSoldOut, ctx: &mut Self::Context) {
        let SoldOut::Yes { pulse, .. } = &self.sold_out else {
            return;
        };
        match now {
            Some(now) if now == *pulse => self.ask_whether_still_sold_out(ctx),
            // Still nothing there, but other purchases are known than before.
            Some(now) if now.available == 0 => self.ask_what_is_known(ctx),
            _ => self.sold_out = SoldOut::No,
        }
    }
}

impl Handler<Freed> for SaleActor {
    type Result = ();

    fn handle(&mut self, _: Freed, _: &mut Self::Context) {
        self.sold_out = SoldOut::No;
    }
}

impl Handler<Reload> for SaleActor {
    type Result = ();

    fn handle(&mut self, Reload { stale }: Reload, _: &mut Self::Context) {
        self.sold_out = SoldOut::No;
        let decider = self.decider.clone();
        self.runtime.spawn(async move { decider.reload(stale).await });
    }
}

impl Waiter {
    fn tell(self, answer: Result<crate::domain::Accepted, Refusal>) {
        drop(self.place);
        // Whoever asked may be gone; the order is there all the same.
        self.answer.send(answer).ok();
    }
}
