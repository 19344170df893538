//! What an order's actor decides, without the actor. It keeps no status in memory: each step names the status that it
//! expects, and the row answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::charge::{self, ChargeEnd};
use super::messages::{Heard, Swept, Told};
use crate::actors::breaker::Breaker;
use crate::actors::provider_tasks::TaskWaker;
use crate::actors::refunds::Refunds;
use crate::actors::transition_writer::{TransitionWriter, WriteError};
use crate::domain::{Effect, Event, Money, OrderId, OrderStatus, Projection, SaleId, transition};
use crate::metrics::{self, By, LateRefund};
use crate::provider::{Lookup, PaymentProvider, Reference, VoidOutcome};
use crate::store::{Applied, Change, Outcome, PaidRefund, Store, StuckOrder};

/// How long a settlement is tried again while the database is away; after that the sweeper finds the order.
const SETTLE_FOR: Duration = Duration::from_secs(30);
const SETTLE_PAUSE: Duration = Duration::from_millis(200);

/// What all orders share.
pub struct Parts {
    /// Where transitions go.
    pub writer: TransitionWriter,
    /// Who takes the money.
    pub provider: Arc<dyn PaymentProvider>,
    /// Open while the provider doesn't answer charges.
    pub provider_breaker: Arc<Breaker>,
    /// For what is no transition: late money, payments in doubt.
    pub store: Store,
    /// To be woken when something is owed.
    pub tasks: TaskWaker,
    /// Who notes refunds that were paid.
    pub refunds: Refunds,
    /// How long a claim's holder goes on trying.
    pub give_up: Duration,
    /// The operator's switch: orders past the cutoff that are in doubt are failed, and late money is paid back.
    pub fail_in_doubt: bool,
    /// Leaves the status condition out of the claim.
    #[cfg(feature = "test-switches")]
    pub claim_without_guard: bool,
    /// Leaves the conditions out of what a webhook settles.
    #[cfg(feature = "test-switches")]
    pub webhooks_without_guard: bool,
}

/// One order.
#[derive(Clone)]
pub struct Logic {
    /// The order.
    pub order: OrderId,
    /// Its sale.
    pub sale: SaleId,
    /// What all share.
    pub parts: Arc<Parts>,
}

impl Logic {
    fn change(&self, event: Event, expect: OrderStatus, fence: Option<i32>, by: By) -> Change {
        Change {
            order: self.order,
            sale: self.sale,
            event,
            expect,
            fence,
            by,
            decline_code: None,
            provider_event: None,
            #[cfg(feature = "test-switches")]
            without_guard: event == Event::Claim && self.parts.claim_without_guard,
        }
    }

    /// Claims the order for a charge. `None`: somebody else got there first, or it isn't known; then the only correct move is to
    /// stop. A claim that was made after all is found by the sweeper.
    pub async fn claim(&self) -> Option<Applied> {
        match self
            .parts
            .writer
            .apply(self.change(Event::Claim, OrderStatus::Pending, None, By::Payment))
            .await
        {
            Ok(Outcome::Applied(claimed)) => Some(claimed),
            Ok(Outcome::Stale { .. }) => None,
            Ok(Outcome::NotFound) => {
                tracing::error!(order_id = %self.order, "an order that was to be charged doesn't exist");
                None
            }
            Err(error) => {
                tracing::warn!(order_id = %self.order, %error, "an order could not be claimed");
                None
            }
        }
    }

    /// Sends the charge of a claim. Holds no lock and no transaction.
    pub async fn charge(&self, attempt: i32, amount: Money) -> ChargeEnd {
        let reference = Reference::of(self.order, attempt);
        let Parts {
            provider,
            provider_breaker,
            give_up,
            ..
        } = &*self.parts;
        charge::charge(&**provider, provider_breaker, &reference, amount, *give_up).await
    }

    /// Settles a claim by how its charge ended.
    pub async fn charge_ended(&self, fence: i32, attempt: i32, end: ChargeEnd) {
        let (event, code) = match end {
            ChargeEnd::Succeeded => (Event::ChargeSucceeded, None),
            ChargeEnd::Declined { code } => (Event::ChargeDeclined, Some(code)),
            ChargeEnd::NotSent => (Event::ChargeNotSent, None),
            ChargeEnd::InDoubt => {
                // Stays PROCESSING: the sweeper asks the provider again and again.
                if let Err(error) = self
                    .parts
                    .store
                    .mark_in_doubt(self.order, self.sale, attempt)
                    .await
                {
                    tracing::warn!(order_id = %self.order, %error, "a payment in doubt could not be marked");
                }
                return;
            }
        };
        self.settle(event, fence, attempt, code, By::Payment).await;
    }

    /// Moves a claimed order to its result, under its fence. Goes on for a while when the database is away; gives up to the sweeper.
    async fn settle(&self, event: Event, fence: i32, attempt: i32, code: Option<String>, by: By) -> Swept {
        let mut change = self.change(event, OrderStatus::Processing, Some(fence), by);
        change.decline_code = code;
        self.settle_by(change, attempt).await
    }

    async fn settle_by(&self, change: Change, attempt: i32) -> Swept {
        let deadline = Instant::now() + SETTLE_FOR;
        loop {
            match self.parts.writer.apply(change.clone()).await {
                Ok(Outcome::Applied(_)) => return Swept::Settled,
                Ok(Outcome::Stale { status, .. }) => {
                    self.overtaken(&change, status, attempt).await;
                    return Swept::Lost;
                }
                Ok(Outcome::NotFound) => return Swept::Lost,
                Err(WriteError::Unavailable(_) | WriteError::OutcomeUnknown) if Instant::now() < deadline => {
                    tokio::time::sleep(SETTLE_PAUSE).await;
                }
                Err(error) => {
                    let event = change.event;
                    tracing::warn!(order_id = %self.order, ?event, %error, "a settlement is left to the sweeper");
                    return Swept::Failed;
                }
            }
        }
    }

    /// The claim is lost. The one thing that still matters: money that came for an order that failed goes back.
    async fn overtaken(&self, change: &Change, found: OrderStatus, attempt: i32) {
        let owed =
            transition(found, change.event).is_ok_and(|t| t.effects.contains(&Effect::RefundLateCharge));
        if owed {
            self.late_charge(attempt, change.provider_event.as_deref()).await;
        }
    }

    async fn late_charge(&self, attempt: i32, provider_event: Option<&str>) -> Heard {
        match self
            .parts
            .store
            .record_late_charge(self.order, self.sale, attempt, provider_event)
            .await
        {
            Ok(true) => {
                metrics::late_refund(LateRefund::Due);
                tracing::warn!(order_id = %self.order, attempt, "money came for a failed order and is paid back");
                self.parts.tasks.wake();
                Heard::Applied
            }
            Ok(false) => Heard::NoChange,
            // The payment is still open in the books. The provider has the money: this must not be forgotten.
            Err(error) => {
                tracing::error!(order_id = %self.order, attempt, %error, "late money could not be noted; reconcile finds it");
                Heard::Again
            }
        }
    }

    /// The provider has told something by itself.
    pub async fn told(&self, told: Told) -> Heard {
        let Told {
            projection,
            fence,
            attempt,
            code,
            refund,
            event_id,
        } = told;
        match projection {
            Projection::NoChange => Heard::NoChange,
            Projection::LateCharge => self.late_charge(attempt, Some(&event_id)).await,
            Projection::Settle(event) => {
                let mut change = self.change(event, OrderStatus::Processing, Some(fence), By::Webhook);
                change.decline_code = code;
                change.provider_event = Some(event_id);
                #[cfg(feature = "test-switches")]
                {
                    change.without_guard = self.parts.webhooks_without_guard;
                }
                match self.settle_by(change, attempt).await {
                    Swept::Settled => Heard::Applied,
                    _ => Heard::Again,
                }
            }
            Projection::RefundDone => {
                let Some(number) = refund else {
                    return Heard::NoChange;
                };
                let paid = PaidRefund {
                    order: self.order,
                    sale: self.sale,
                    attempt,
                    number,
                    provider_event: Some(&event_id),
                };
                match self.parts.refunds.paid(paid).await {
                    Ok(true) => Heard::Applied,
                    Ok(false) => Heard::NoChange,
                    Err(error) => {
                        tracing::warn!(order_id = %self.order, attempt, %error, "a refund could not be noted");
                        Heard::Again
                    }
                }
            }
        }
    }

    /// The buyer cancels it, while nobody has claimed it.
    pub async fn cancel(&self) -> Result<Outcome, WriteError> {
        self.parts
            .writer
            .apply(self.change(Event::Cancelled, OrderStatus::Pending, None, By::Buyer))
            .await
    }

    /// Its sale is called off, and nobody has claimed it.
    pub async fn cancel_with_sale(&self) -> Result<Outcome, WriteError> {
        self.parts
            .writer
            .apply(self.change(Event::SaleCancelled, OrderStatus::Pending, None, By::Seller))
            .await
    }

    /// Settles an order that has been open for longer than the cutoff, if that is safe.
    pub async fn sweep(&self, stuck: StuckOrder) -> Swept {
        let swept = match stuck.status {
            OrderStatus::Pending => self.sweep_pending().await,
            OrderStatus::Processing => self.sweep_processing(stuck).await,
            _ => Swept::Lost,
        };
        if swept == Swept::Settled {
            metrics::swept(stuck.status);
        }
        swept
    }

    async fn sweep_pending(&self) -> Swept {
        match self
            .parts
            .writer
            .apply(self.change(Event::Swept, OrderStatus::Pending, None, By::Sweeper))
            .await
        {
            Ok(Outcome::Applied(_)) => Swept::Settled,
            Ok(_) => Swept::Lost,
            Err(_) => Swept::Failed,
        }
    }

    /// Takes the claim over, which fences its holder out, and has the provider decide. Time alone decides nothing.
    async fn sweep_processing(&self, stuck: StuckOrder) -> Swept {
        let take_over = self.change(
            Event::TakeOver,
            OrderStatus::Processing,
            Some(stuck.fence),
            By::Sweeper,
        );
        let claim = match self.parts.writer.apply(take_over).await {
            Ok(Outcome::Applied(claim)) => claim,
            Ok(_) => return Swept::Lost,
            Err(_) => return Swept::Failed,
        };
        let settle = |event, code| self.settle(event, claim.fence, claim.attempt, code, By::Sweeper);
        let reference = Reference::of(self.order, claim.attempt);
        let provider = &self.parts.provider;
        match provider.lookup(&reference).await {
            Lookup::Succeeded => return settle(Event::ChargeSucceeded, None).await,
            Lookup::Declined { code } => return settle(Event::ChargeDeclined, Some(code)).await,
            Lookup::Voided => return settle(Event::ChargeVoided, None).await,
            // "Not found" proves nothing while a request may be under way; only a confirmed void does.
            Lookup::Pending | Lookup::NotFound => match provider.void(&reference).await {
                VoidOutcome::Voided => return settle(Event::ChargeVoided, None).await,
                VoidOutcome::AlreadySucceeded => return settle(Event::ChargeSucceeded, None).await,
                VoidOutcome::AlreadyDeclined { code } => {
                    return settle(Event::ChargeDeclined, Some(code)).await;
                }
                VoidOutcome::Unreachable { .. } => {}
            },
            Lookup::Unreachable { .. } => {}
        }
        if self.parts.fail_in_doubt {
            let swept = settle(Event::GivenUp, None).await;
            self.parts.tasks.wake();
            return swept;
        }
        if let Err(error) = self
            .parts
            .store
            .mark_in_doubt(self.order, self.sale, claim.attempt)
            .await
        {
            tracing::warn!(order_id = %self.order, %error, "a payment in doubt could not be marked");
        }
        Swept::InDoubt
    }
}
