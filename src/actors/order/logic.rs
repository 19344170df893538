//! What an order's actor decides, without the actor. It keeps no status in memory: each step names the status that it
//! expects, and the row answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{Instrument, Span};

use super::charge;
use super::messages::{Heard, Swept, Told};
use crate::actors::breaker::{Breaker, Breakers};
use crate::actors::plan::{self, ChargeEnd, Next, Owed};
use crate::actors::provider_tasks::TaskWaker;
use crate::actors::refunds::Refunds;
use crate::actors::transition_writer::{TransitionWriter, WriteError};
use crate::crash::{self, Point};
use crate::domain::{Event, OrderId, OrderStatus, Projection, RequestId, SaleId};
use crate::metrics::{self, By, LateRefund};
use crate::provider::{Charge, PaymentProvider, Reference};
use crate::store::{Applied, BegunCharge, Change, Outcome, PaidRefund, Store, StuckOrder};

/// How long a settlement is tried again while the database is away; after that the sweeper finds the order.
const SETTLE_FOR: Duration = Duration::from_secs(30);
const SETTLE_PAUSE: Duration = Duration::from_millis(200);

/// What all orders share.
pub struct Parts {
    /// Where transitions go.
    pub writer: TransitionWriter,
    /// Who takes the money.
    pub provider: Arc<dyn PaymentProvider>,
    /// Each is open while the provider doesn't answer charges in its currency.
    pub provider_breakers: Arc<Breakers>,
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
    /// What is logged under it says which order it is about, which charge, whose request brought the order, and which of the provider's events
    /// is looked at.
    pub fn span(&self, attempt: i32, request_id: Option<&str>, event_id: Option<&str>) -> Span {
        tracing::info_span!("order", order_id = %self.order, request_id, attempt, event_id)
    }

    /// The span of what is done under a claim.
    pub fn span_of(&self, claim: &Applied) -> Span {
        let request_id = claim.request_id.as_ref().map(RequestId::as_str);
        self.span(claim.attempt, request_id, None)
    }

    fn change(&self, event: Event, expect: OrderStatus, fence: Option<i32>, by: By) -> Change {
        Change {
            order: self.order,
            sale: self.sale,
            event,
            expect,
            fence,
            by,
            two_step: self.parts.provider.two_step(),
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
            Ok(Outcome::Applied(claimed)) => {
                crash::at(Point::Claimed);
                Some(claimed)
            }
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

    /// The charge that a claim is for.
    pub fn charge_of(&self, claim: &Applied) -> Charge {
        Charge {
            reference: Reference::of(self.order, claim.attempt),
            amount: claim.amount,
            payment_method: claim.payment_method.clone(),
            provider_id: None,
        }
    }

    /// Does at the provider what a claim is for: charges a PROCESSING order, and captures a CAPTURING one. Holds no lock and no transaction.
    pub async fn take_money(&self, claim: &Applied, charge: &mut Charge) -> ChargeEnd {
        let Parts {
            provider,
            provider_breakers,
            give_up,
            ..
        } = &*self.parts;
        let breaker = provider_breakers.of(claim.amount.currency);
        let deadline = Instant::now() + *give_up;
        if claim.status == OrderStatus::Capturing {
            return charge::capture(&**provider, charge, deadline).await;
        }
        if provider.opens_charges() {
            match self.open(claim, charge, &breaker, deadline).await {
                Ok(id) => charge.provider_id = Some(id),
                Err(end) => return end,
            }
        }
        charge::charge(&**provider, &breaker, charge, deadline).await
    }

    /// Has the charge named, and writes the name down: only under a name that is durable is anything charged.
    async fn open(
        &self,
        claim: &Applied,
        charge: &Charge,
        breaker: &Breaker,
        deadline: Instant,
    ) -> Result<String, ChargeEnd> {
        let Parts { provider, store, .. } = &*self.parts;
        let id = charge::open(&**provider, breaker, charge, deadline).await?;
        loop {
            match store.name_charge(self.order, self.sale, claim.attempt, &id).await {
                Ok(Some(id)) => return Ok(id),
                // The order was decided meanwhile. What was opened stays untouched, and comes to nothing.
                Ok(None) => return Err(ChargeEnd::NotSent),
                Err(error) if Instant::now() + SETTLE_PAUSE >= deadline => {
                    tracing::warn!(%error, "the provider's name for a charge could not be noted");
                    return Err(ChargeEnd::NotSent);
                }
                Err(_) => tokio::time::sleep(SETTLE_PAUSE).await,
            }
        }
    }

    /// Moves a claimed order on by how its charge or its capture ended. What is left to be captured is returned.
    pub async fn charge_ended(&self, claim: &Applied, end: ChargeEnd) -> Option<Applied> {
        match self.heard_of_charge(claim, end, By::Payment).await {
            Moved::Capturing(claim) => Some(claim),
            Moved::Swept(_) => None,
        }
    }

    async fn heard_of_charge(&self, claim: &Applied, end: ChargeEnd, by: By) -> Moved {
        match end.next() {
            Next::Capture => self.authorised(claim, by).await,
            Next::Settle { event, code } => Moved::Swept(self.settle(event, claim, code, by).await),
            // Stays as it is: the sweeper asks the provider again and again.
            Next::Void | Next::Unknown => Moved::Swept(self.stays_in_doubt(claim).await),
        }
    }

    async fn stays_in_doubt(&self, claim: &Applied) -> Swept {
        if let Err(error) = self
            .parts
            .store
            .mark_in_doubt(self.order, self.sale, claim.attempt)
            .await
        {
            tracing::warn!(%error, "a payment in doubt could not be marked");
        }
        Swept::InDoubt
    }

    /// The money is set aside: writes down, under the claim's fence, that it is going to be captured. From there on there is no way back.
    async fn authorised(&self, claim: &Applied, by: By) -> Moved {
        let change = self.change(Event::Authorised, claim.status, Some(claim.fence), by);
        match self.write(&change).await {
            Written::Applied(claim) => Moved::Capturing(claim),
            Written::Stale { status, fence } if plan::capture_is_ours(status, fence, claim.fence) => {
                Moved::Capturing(Applied {
                    status,
                    ..claim.clone()
                })
            }
            Written::Stale { status, .. } => {
                self.overtaken(&change, status, claim.attempt).await;
                Moved::Swept(Swept::Lost)
            }
            Written::Not(swept) => Moved::Swept(swept),
        }
    }

    /// Moves a claimed order to its result, under its fence. Goes on for a while when the database is away; gives up to the sweeper.
    async fn settle(&self, event: Event, claim: &Applied, code: Option<String>, by: By) -> Swept {
        let mut change = self.change(event, claim.status, Some(claim.fence), by);
        change.decline_code = code;
        self.settle_by(&change, claim.attempt).await
    }

    async fn settle_by(&self, change: &Change, attempt: i32) -> Swept {
        match self.write(change).await {
            Written::Applied(_) => Swept::Settled,
            Written::Stale { status, .. } => {
                self.overtaken(change, status, attempt).await;
                Swept::Lost
            }
            Written::Not(swept) => swept,
        }
    }

    /// Applies a change, and goes on for a while when the database is away.
    async fn write(&self, change: &Change) -> Written {
        let deadline = Instant::now() + SETTLE_FOR;
        loop {
            match self.parts.writer.apply(change.clone()).await {
                Ok(Outcome::Applied(applied)) => return Written::Applied(applied),
                Ok(Outcome::Stale { status, fence, .. }) => return Written::Stale { status, fence },
                Ok(Outcome::NotFound) => return Written::Not(Swept::Lost),
                Err(WriteError::Unavailable(_) | WriteError::OutcomeUnknown) if Instant::now() < deadline => {
                    tokio::time::sleep(SETTLE_PAUSE).await;
                }
                Err(error) => {
                    let event = change.event;
                    tracing::warn!(?event, %error, "a settlement is left to the sweeper");
                    return Written::Not(Swept::Failed);
                }
            }
        }
    }

    /// The claim is lost. What still matters is money for an order that failed: taken it goes back, and set aside it is let go.
    async fn overtaken(&self, change: &Change, found: OrderStatus, attempt: i32) {
        match plan::owed(found, change.event) {
            Some(Owed::Refund) => {
                self.late_charge(attempt, change.provider_event.as_deref()).await;
            }
            Some(Owed::Void) => {
                self.late_authorisation(attempt).await;
            }
            None => {}
        }
    }

    async fn late_authorisation(&self, attempt: i32) -> Heard {
        match self.parts.store.void_later(self.order, self.sale, attempt).await {
            Ok(true) => {
                tracing::warn!("money was set aside for a failed order, and is let go");
                self.parts.tasks.wake();
                Heard::Applied
            }
            Ok(false) => Heard::NoChange,
            Err(error) => {
                tracing::warn!(%error, "a late authorisation could not be noted");
                Heard::Again
            }
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
                tracing::warn!("money came for a failed order and is paid back");
                self.parts.tasks.wake();
                Heard::Applied
            }
            Ok(false) => Heard::NoChange,
            // The payment is still open in the books. The provider has the money: this must not be forgotten.
            Err(error) => {
                tracing::error!(%error, "late money could not be noted; reconcile finds it");
                Heard::Again
            }
        }
    }

    /// The provider has told something by itself.
    pub async fn told(&self, told: Told) -> Heard {
        let Told {
            projection,
            status,
            fence,
            attempt,
            code,
            refund,
            event_id,
            request_id: _,
        } = told;
        match projection {
            Projection::NoChange => Heard::NoChange,
            Projection::LateCharge => self.late_charge(attempt, Some(&event_id)).await,
            Projection::LateAuthorisation => self.late_authorisation(attempt).await,
            Projection::Settle(event) => {
                let mut change = self.change(event, status, Some(fence), By::Webhook);
                change.decline_code = code;
                change.provider_event = Some(event_id);
                #[cfg(feature = "test-switches")]
                {
                    change.without_guard = self.parts.webhooks_without_guard;
                }
                match self.settle_by(&change, attempt).await {
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
                        tracing::warn!(%error, "a refund could not be noted");
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
            OrderStatus::Processing | OrderStatus::Capturing => self.sweep_claimed(stuck).await,
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
    async fn sweep_claimed(&self, stuck: StuckOrder) -> Swept {
        let take_over = self.change(Event::TakeOver, stuck.status, Some(stuck.fence), By::Sweeper);
        let claim = match self.parts.writer.apply(take_over).await {
            Ok(Outcome::Applied(claim)) => {
                crash::at(Point::TakenOver);
                claim
            }
            Ok(_) => return Swept::Lost,
            Err(_) => return Swept::Failed,
        };
        self.go_on_with(&claim).instrument(self.span_of(&claim)).await
    }

    async fn go_on_with(&self, claim: &Applied) -> Swept {
        let begun = match self
            .parts
            .store
            .begun_charge(self.order, self.sale, claim.attempt)
            .await
        {
            Ok(Some(begun)) => begun,
            Ok(None) => return Swept::Lost,
            Err(error) => {
                tracing::warn!(%error, "a charge could not be read");
                return Swept::Failed;
            }
        };
        if claim.status == OrderStatus::Capturing {
            return self.capture_once_more(claim, &begun.charge).await;
        }
        match self.look_into(claim, &begun).await {
            Moved::Capturing(claim) => self.capture_once_more(&claim, &begun.charge).await,
            Moved::Swept(swept) => swept,
        }
    }

    /// Forward is the only way: once per pass, until the provider answers.
    async fn capture_once_more(&self, claim: &Applied, charge: &Charge) -> Swept {
        let end = charge::capture(&*self.parts.provider, charge, Instant::now()).await;
        match self.heard_of_charge(claim, end, By::Sweeper).await {
            Moved::Swept(swept) => swept,
            Moved::Capturing(_) => Swept::InDoubt,
        }
    }

    /// Finds out what became of a charge, and makes sure that it comes to an end.
    async fn look_into(&self, claim: &Applied, begun: &BegunCharge) -> Moved {
        let BegunCharge { charge, two_step } = begun;
        let provider = &self.parts.provider;
        let mut next = plan::after_sweep_lookup(provider.lookup(charge).await);
        if next == Next::Void {
            next = plan::after_void(provider.void(charge).await);
        }
        match next {
            Next::Settle { event, code } => {
                return Moved::Swept(self.settle(event, claim, code, By::Sweeper).await);
            }
            Next::Capture => return self.authorised(claim, By::Sweeper).await,
            Next::Void | Next::Unknown => {}
        }
        let Some(event) = plan::undecided(*two_step, self.parts.fail_in_doubt) else {
            return Moved::Swept(self.stays_in_doubt(claim).await);
        };
        let given_up = self.settle(event, claim, None, By::Sweeper).await;
        self.parts.tasks.wake();
        Moved::Swept(given_up)
    }
}

/// What became of a claim whose charge was heard of.
enum Moved {
    /// The money is to be captured, under this claim.
    Capturing(Applied),
    /// As for a sweep.
    Swept(Swept),
}

/// What became of a change that was tried for a while.
enum Written {
    Applied(Applied),
    Stale { status: OrderStatus, fence: i32 },
    Not(Swept),
}
