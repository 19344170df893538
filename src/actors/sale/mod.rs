//! One actor per sale: collects purchases while a batch is under way, and sends the next one off when there is room.
//!
//! Architecture invariants: no I/O and no timer that matters runs on the actors' own threads (batches run on the shared
//! runtime); what waits is bounded by the places that the handle gives out, never by a mailbox; nobody is answered on the actors'
//! threads, since each answer wakes a connection's task.

mod batch;
mod committer;
mod decide;
mod handle;
mod intake;
mod lookups;
mod messages;

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler};
use tokio::runtime;

pub use committer::{Committer, Limits as CommitLimits};
pub use decide::{Decided, Decider, Parts};
pub use handle::{Limits, Sales};

use batch::Batcher;
use intake::Intake;
use messages::{BatchDecided, Buy, Called, Freed, Reload, SoldOutKnown, StillSoldOut, Waiter};

use crate::domain::{Accepted, Refusal};
use crate::gate::Pulse;

/// How long a sale may be taken for sold out without asking the gate again.
const SOLD_OUT_FOR: Duration = Duration::from_millis(100);

/// The shell around a [`Batcher`] and a [`Decider`].
pub struct SaleActor {
    intake: Arc<Intake<Buy>>,
    batcher: Batcher<Waiter>,
    decider: Arc<Decider>,
    parts: Arc<Parts>,
    sale: crate::domain::SaleId,
    runtime: runtime::Handle,
    sold_out: SoldOut,
}

/// What the actor remembers of a sale without stock, so that refusals cost the gate nothing.
enum SoldOut {
    No,
    /// The gate is being asked for the purchases it knows.
    Asking,
    /// The intake refuses, but for purchases that are known: those are replays.
    Yes(Pulse),
}

impl Actor for SaleActor {
    type Context = Context<Self>;
}

impl Drop for SaleActor {
    fn drop(&mut self) {
        self.intake.close();
    }
}

impl SaleActor {
    /// Takes in what was left, and sends off what may go. While all batches are in flight it counts as awake: it will be here
    /// again when one of them ends.
    fn look_after_intake(&mut self, ctx: &mut Context<Self>) {
        loop {
            for Buy { purchase, waiter } in self.intake.take() {
                self.batcher.arrive(purchase, waiter);
            }
            self.send_batches(ctx);
            if self.batcher.is_busy() || self.intake.sleep() {
                return;
            }
        }
    }

    fn no_longer_sold_out(&mut self) {
        self.sold_out = SoldOut::No;
        self.intake.welcome();
    }

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

impl Handler<Called> for SaleActor {
    type Result = ();

    fn handle(&mut self, _: Called, ctx: &mut Self::Context) {
        self.look_after_intake(ctx);
    }
}

impl Handler<BatchDecided> for SaleActor {
    type Result = ();

    fn handle(&mut self, BatchDecided(decided, available): BatchDecided, ctx: &mut Self::Context) {
        self.batcher.batch_ended();
        let answers: Vec<_> = decided
            .into_iter()
            .map(|decision| (self.batcher.decided(&decision.digest), decision.answer))
            .collect();
        self.runtime.spawn(async move { tell_all(answers) });
        self.look_after_intake(ctx);
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
            Some((pulse, mut known)) => {
                self.ask_whether_still_sold_out(ctx);
                // Whatever is under way may still get a unit that comes back.
                known.extend(self.batcher.under_way());
                self.intake.refuse_all_but(known, |buy| buy.purchase.digest);
                SoldOut::Yes(pulse)
            }
            None => SoldOut::No,
        };
    }
}

impl Handler<StillSoldOut> for SaleActor {
    type Result = ();

    fn handle(&mut self, StillSoldOut(now): StillSoldOut, ctx: &mut Self::Context) {
        let SoldOut::Yes(pulse) = &self.sold_out else {
            return;
        };
        match now {
            Some(now) if now == *pulse => self.ask_whether_still_sold_out(ctx),
            // Still nothing there, but other purchases are known than before.
            Some(now) if now.available == 0 => self.ask_what_is_known(ctx),
            _ => self.no_longer_sold_out(),
        }
    }
}

impl Handler<Freed> for SaleActor {
    type Result = ();

    fn handle(&mut self, _: Freed, _: &mut Self::Context) {
        self.no_longer_sold_out();
    }
}

impl Handler<Reload> for SaleActor {
    type Result = ();

    fn handle(&mut self, Reload { stale }: Reload, _: &mut Self::Context) {
        self.no_longer_sold_out();
        let decider = self.decider.clone();
        self.runtime.spawn(async move { decider.reload(stale).await });
    }
}

/// Answers everybody of a batch.
fn tell_all(answers: Vec<(Vec<Waiter>, Result<Accepted, Refusal>)>) {
    for (mut waiters, mut answer) in answers {
        let last = waiters.pop();
        for waiter in waiters {
            waiter.tell(answer.clone());
            if let Ok(accepted) = &mut answer {
                accepted.replayed = true; // for whoever joined the first
            }
        }
        if let Some(last) = last {
            last.tell(answer);
        }
    }
}

impl Waiter {
    fn tell(self, answer: Result<Accepted, Refusal>) {
        drop(self.place);
        // Whoever asked may be gone; the order is there all the same.
        self.answer.send(answer).ok();
    }
}
