//! Counts each call to a provider, and how long it took. A call may take several requests, which `wire` counts, or none.

use std::time::Instant;

use futures_util::future::BoxFuture;
use jiff::Timestamp;

use super::{
    CaptureOutcome, Charge, ChargeOutcome, Lookup, OpenOutcome, PaymentProvider, Reference, RefundOutcome,
    VoidOutcome,
};
use crate::domain::{BookEntry, Money};
use crate::metrics::{self, ProviderOp, ProviderOutcome as Seen};

/// A provider whose calls are counted.
pub struct Metered<P>(pub P);

/// Makes a call, and counts it by what `seen` makes of its outcome.
fn counted<'a, T: Send + 'a>(
    op: ProviderOp,
    call: BoxFuture<'a, T>,
    seen: fn(&T) -> Seen,
) -> BoxFuture<'a, T> {
    let since = Instant::now();
    Box::pin(async move {
        let outcome = call.await;
        metrics::provider_request(op, seen(&outcome));
        metrics::provider_seconds(op, since.elapsed());
        outcome
    })
}

impl<P: PaymentProvider> PaymentProvider for Metered<P> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn two_step(&self) -> bool {
        self.0.two_step()
    }

    fn needs_payment_method(&self) -> bool {
        self.0.needs_payment_method()
    }

    fn opens_charges(&self) -> bool {
        self.0.opens_charges()
    }

    fn open<'a>(&'a self, charge: &'a Charge) -> BoxFuture<'a, OpenOutcome> {
        counted(ProviderOp::Open, self.0.open(charge), |outcome| match outcome {
            OpenOutcome::Opened(_) => Seen::Succeeded,
            OpenOutcome::Declined { .. } => Seen::Declined,
            OpenOutcome::Unreachable {
                retry_after: Some(_), ..
            } => Seen::RateLimited,
            OpenOutcome::Unreachable { .. } => Seen::Unknown,
        })
    }

    fn charge<'a>(&'a self, charge: &'a Charge) -> BoxFuture<'a, ChargeOutcome> {
        counted(
            ProviderOp::Charge,
            self.0.charge(charge),
            |outcome| match outcome {
                ChargeOutcome::Succeeded => Seen::Succeeded,
                ChargeOutcome::Authorised => Seen::Authorised,
                ChargeOutcome::Declined { .. } => Seen::Declined,
                ChargeOutcome::NotSent { retry_after: Some(_) } => Seen::RateLimited,
                ChargeOutcome::NotSent { retry_after: None } => Seen::NotSent,
                ChargeOutcome::Unknown { .. } => Seen::Unknown,
            },
        )
    }

    fn capture<'a>(&'a self, charge: &'a Charge) -> BoxFuture<'a, CaptureOutcome> {
        counted(
            ProviderOp::Capture,
            self.0.capture(charge),
            |outcome| match outcome {
                CaptureOutcome::Captured => Seen::Succeeded,
                CaptureOutcome::Unknown { .. } => Seen::Unknown,
            },
        )
    }

    fn lookup<'a>(&'a self, charge: &'a Charge) -> BoxFuture<'a, Lookup> {
        counted(ProviderOp::Lookup, self.0.lookup(charge), |found| match found {
            Lookup::Succeeded => Seen::Succeeded,
            Lookup::Authorised => Seen::Authorised,
            Lookup::Declined { .. } | Lookup::Voided => Seen::Declined,
            Lookup::Pending => Seen::Pending,
            Lookup::NotFound => Seen::NotFound,
            Lookup::Unreachable { .. } => Seen::Unknown,
        })
    }

    fn void<'a>(&'a self, charge: &'a Charge) -> BoxFuture<'a, VoidOutcome> {
        counted(ProviderOp::Void, self.0.void(charge), |outcome| match outcome {
            VoidOutcome::Voided => Seen::Succeeded,
            VoidOutcome::AlreadySucceeded | VoidOutcome::AlreadyDeclined { .. } => Seen::Declined,
            VoidOutcome::Unreachable { .. } => Seen::Unknown,
        })
    }

    fn refund<'a>(
        &'a self,
        charge: &'a Charge,
        refund: &'a Reference,
        amount: Money,
    ) -> BoxFuture<'a, RefundOutcome> {
        counted(
            ProviderOp::Refund,
            self.0.refund(charge, refund, amount),
            |outcome| match outcome {
                RefundOutcome::Refunded => Seen::Succeeded,
                RefundOutcome::Refused { .. } => Seen::Declined,
                RefundOutcome::Unreachable { .. } => Seen::Unknown,
            },
        )
    }

    fn book(&self, since: Option<Timestamp>) -> BoxFuture<'_, Result<Vec<BookEntry>, String>> {
        self.0.book(since)
    }
}
