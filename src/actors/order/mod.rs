//! One actor per order that somebody is working on: it serialises the order's transitions in this process. (Between processes,
//! and after a crash, the conditional updates do.)
//!
//! Architecture invariants: the actor holds no status; it is alive only while there is something to do, and stops afterwards. A
//! claim's charge and its capture never run inside a handler: between claim and settlement the actor can be asked.

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
use tracing::Instrument;

pub use logic::Parts;
pub use messages::{ChargePlace, Heard, Swept, Told};
pub use registry::Orders;

use logic::Logic;
use messages::{Cancel, CancelWithSale, Charge, ChargeEnded, Rest, Sweep};

use crate::actors::plan::ChargeEnd;
use crate::actors::transition_writer::WriteError;
use crate::provider;
use crate::store::{Applied, Outcome};

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
    fn of(&mut self, charge: provider::Charge, end: ChargeEnd) {
        if let Some((_, ended)) = &mut self.0 {
            ended.charge = charge;
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
            let work = claimed.map(|claim| (actor.logic.charge_of(&claim), claim));
            actor.go_on(work, place, ctx);
        }));
    }
}

impl Handler<ChargeEnded> for OrderActor {
    type Result = ();

    fn handle(&mut self, ended: ChargeEnded, ctx: &mut Self::Context) {
        let logic = self.logic.clone();
        let ChargeEnded {
            claim,
            charge,
            end,
            place,
            span,
        } = ended;
        let settled =
            wrap_future::<_, Self>(async move { logic.charge_ended(&claim, end).instrument(span).await });
        ctx.wait(settled.map(move |to_capture, actor, ctx| {
            actor.go_on(to_capture.map(|claim| (charge, claim)), place, ctx);
        }));
    }
}

impl OrderActor {
    /// Has the provider do what a claim is for, beside the actor: it is busy until that has ended. Without work the order's charge is over.
    fn go_on(
        &mut self,
        work: Option<(provider::Charge, Applied)>,
        place: ChargePlace,
        ctx: &mut Context<Self>,
    ) {
        let Some((mut charge, claim)) = work else {
            drop(place);
            self.ended(ctx);
            return;
        };
        let logic = self.logic.clone();
        let span = logic.span_of(&claim);
        let mut report = ChargeReport(Some((
            ctx.address().recipient(),
            ChargeEnded {
                claim: claim.clone(),
                charge: charge.clone(),
                end: ChargeEnd::InDoubt,
                place,
                span: span.clone(),
            },
        )));
        self.runtime.spawn(async move {
            let end = logic.take_money(&claim, &mut charge).instrument(span).await;
            report.of(charge, end);
        });
    }

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
        self.atomically(async move {
            let span = logic.span(told.attempt, told.request_id.as_deref(), Some(&told.event_id));
            logic.told(told).instrument(span).await
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;
    use tracing::Span;

    use super::*;
    use crate::domain::{Currency, Money, OrderId, OrderStatus};
    use crate::provider::Reference;

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
        let charge = provider::Charge {
            reference: Reference::of(OrderId::fresh(), 1),
            amount: Money {
                amount_minor: 1,
                currency: Currency::parse("EUR").unwrap(),
            },
            payment_method: None,
            provider_id: None,
        };
        let report = || {
            let claim = Applied {
                status: OrderStatus::Processing,
                fence: 1,
                attempt: 1,
                payment_method: None,
                request_id: None,
                quantity: 1,
                amount: charge.amount,
            };
            let ended = ChargeEnded {
                claim,
                charge: charge.clone(),
                end: ChargeEnd::InDoubt,
                place: ChargePlace::new(|| ()),
                span: Span::none(),
            };
            ChargeReport(Some((listener.clone().recipient(), ended)))
        };
        let mut ends_well = report();
        let charged = charge.clone();
        let well = tokio::spawn(async move { ends_well.of(charged, ChargeEnd::Succeeded) });
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
