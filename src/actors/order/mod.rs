//! One actor per order that somebody is working on: it serialises the order's transitions in this process. (Between processes,
//! and after a crash, the conditional updates do.)
//!
//! Architecture invariants: the actor holds no status; it is alive only while there is something to do, and stops afterwards. A
//! charge never runs inside a handler: between claim and settlement the actor can be asked.

mod charge;
mod logic;
mod messages;
mod registry;

use actix::fut::wrap_future;
use actix::{
    Actor, ActorContext, ActorFutureExt, AsyncContext, AtomicResponse, Context, Handler, Recipient,
    WrapFuture,
};
use tokio::runtime;

pub use logic::Parts;
pub use messages::{ChargePlace, Heard, Swept, Told};
pub use registry::Orders;

use charge::ChargeEnd;
use logic::Logic;
use messages::{Cancel, CancelWithSale, Charge, ChargeEnded, Rest, Sweep};

use crate::actors::transition_writer::WriteError;
use crate::store::Outcome;

/// The shell around a [`Logic`].
pub struct OrderActor {
    logic: Logic,
    runtime: runtime::Handle,
    orders: Orders,
    generation: u64,
    /// What is under way: steps that have begun, and a charge. The actor doesn't stop before all have ended.
    busy: u32,
}

impl Actor for OrderActor {
    type Context = Context<Self>;

    fn stopped(&mut self, _: &mut Self::Context) {
        self.orders.forget(self.logic.order, self.generation);
    }
}

impl OrderActor {
    /// Something has ended. When nothing else is under way, nor in the mailbox, the actor stops.
    fn ended(&mut self, ctx: &mut Context<Self>) {
        self.busy -= 1;
        if self.busy == 0 {
            ctx.notify(Rest);
        }
    }
}

impl Handler<Rest> for OrderActor {
    type Result = ();

    fn handle(&mut self, _: Rest, ctx: &mut Self::Context) {
        if self.busy == 0 {
            // First nobody finds it any more: whoever asks from now on asks a fresh actor.
            self.orders.forget(self.logic.order, self.generation);
            ctx.stop();
        }
    }
}

/// What a charge's task owes the actor. Should it die, it is told all the same, and nobody knows what was sent.
struct ChargeReport(Option<(Recipient<ChargeEnded>, ChargeEnded)>);

impl ChargeReport {
    fn of(&mut self, end: ChargeEnd) {
        if let Some((_, ended)) = &mut self.0 {
            ended.end = end;
        }
    }
}

impl Drop for ChargeReport {
    fn drop(&mut self) {
        if let Some((addr, ended)) = self.0.take() {
            addr.do_send(ended);
        }
    }
}

impl Handler<Charge> for OrderActor {
    type Result = ();

    fn handle(&mut self, Charge(place): Charge, ctx: &mut Self::Context) {
        self.busy += 1;
        let logic = self.logic.clone();
        let claimed = wrap_future::<_, Self>(async move { logic.claim().await });
        ctx.wait(claimed.map(move |claimed, actor, ctx| {
            let Some(claim) = claimed else {
                drop(place);
                actor.ended(ctx);
                return;
            };
            // Busy until the charge is settled.
            let logic = actor.logic.clone();
            let mut report = ChargeReport(Some((
                ctx.address().recipient(),
                ChargeEnded {
                    fence: claim.fence,
                    attempt: claim.attempt,
                    end: ChargeEnd::InDoubt,
                    place,
                },
            )));
            actor.runtime.spawn(async move {
                report.of(logic.charge(claim.attempt, claim.amount).await);
            });
        }));
    }
}

impl Handler<ChargeEnded> for OrderActor {
    type Result = ();

    fn handle(&mut self, ended: ChargeEnded, ctx: &mut Self::Context) {
        let logic = self.logic.clone();
        let settled = async move {
            logic.charge_ended(ended.fence, ended.attempt, ended.end).await;
            drop(ended.place);
        };
        ctx.wait(settled.into_actor(self).map(|(), actor: &mut Self, ctx| {
            actor.ended(ctx);
        }));
    }
}

impl OrderActor {
    /// Answers when `step` has ended; nothing else is begun meanwhile.
    fn atomically<T: 'static>(&mut self, step: impl Future<Output = T> + 'static) -> AtomicResponse<Self, T> {
        self.busy += 1;
        AtomicResponse::new(Box::pin(step.into_actor(self).map(
            |outcome, actor: &mut Self, ctx| {
                actor.ended(ctx);
                outcome
            },
        )))
    }
}

impl Handler<Sweep> for OrderActor {
    type Result = AtomicResponse<Self, Swept>;

    fn handle(&mut self, Sweep(stuck): Sweep, _: &mut Self::Context) -> Self::Result {
        let logic = self.logic.clone();
        self.atomically(async move { logic.sweep(stuck).await })
    }
}

impl Handler<Cancel> for OrderActor {
    type Result = AtomicResponse<Self, Result<Outcome, WriteError>>;

    fn handle(&mut self, _: Cancel, _: &mut Self::Context) -> Self::Result {
        let logic = self.logic.clone();
        self.atomically(async move { logic.cancel().await })
    }
}

impl Handler<CancelWithSale> for OrderActor {
    type Result = AtomicResponse<Self, Result<Outcome, WriteError>>;

    fn handle(&mut self, _: CancelWithSale, _: &mut Self::Context) -> Self::Result {
        let logic = self.logic.clone();
        self.atomically(async move { logic.cancel_with_sale().await })
    }
}

impl Handler<Told> for OrderActor {
    type Result = AtomicResponse<Self, Heard>;

    fn handle(&mut self, told: Told, _: &mut Self::Context) -> Self::Result {
        let logic = self.logic.clone();
        self.atomically(async move { logic.told(told).await })
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    struct Listener(mpsc::UnboundedSender<ChargeEnd>);

    impl Actor for Listener {
        type Context = Context<Self>;
    }

    impl Handler<ChargeEnded> for Listener {
        type Result = ();

        fn handle(&mut self, ended: ChargeEnded, _: &mut Self::Context) {
            self.0.send(ended.end).ok();
        }
    }

    #[actix::test]
    async fn a_charge_whose_task_dies_is_in_doubt() {
        let (heard, mut told) = mpsc::unbounded_channel();
        let listener = Listener(heard).start();
        let report = || {
            let ended = ChargeEnded {
                fence: 1,
                attempt: 1,
                end: ChargeEnd::InDoubt,
                place: ChargePlace::new(|| ()),
            };
            ChargeReport(Some((listener.clone().recipient(), ended)))
        };
        let mut ends_well = report();
        let well = tokio::spawn(async move { ends_well.of(ChargeEnd::Succeeded) });
        well.await.unwrap();
        assert_eq!(told.recv().await, Some(ChargeEnd::Succeeded));

        let dies = report();
        let died = tokio::spawn(async move {
            let _report = dies;
            panic!("while it charges");
        });
        assert!(died.await.unwrap_err().is_panic());
        assert_eq!(told.recv().await, Some(ChargeEnd::InDoubt));
    }
}
