//! Counts each real send to a provider, and how long it took.

use std::time::Instant;

use futures_util::future::BoxFuture;

use super::{ChargeOutcome, Lookup, PaymentProvider, Reference, RefundOutcome, VoidOutcome};
use crate::domain::{BookEntry, Money};
use crate::metrics::{self, ProviderOp, ProviderOutcome};

/// A provider whose calls are counted. Each call is one request, so the counts are real sends.
pub struct Metered<P>(pub P);

fn count(op: ProviderOp, outcome: ProviderOutcome, since: Instant) {
    metrics::provider_request(op, outcome);
    metrics::provider_seconds(op, since.elapsed());
}

impl<P: PaymentProvider> PaymentProvider for Metered<P> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn charge<'a>(&'a self, reference: &'a Reference, amount: Money) -> BoxFuture<'a, ChargeOutcome> {
        Box::pin(async move {
            let since = Instant::now();
            let outcome = self.0.charge(reference, amount).await;
            let label = match &outcome {
                ChargeOutcome::Succeeded => ProviderOutcome::Succeeded,
                ChargeOutcome::Declined { .. } => ProviderOutcome::Declined,
                ChargeOutcome::NotSent { retry_after: Some(_) } => ProviderOutcome::RateLimited,
                ChargeOutcome::NotSent { retry_after: None } => ProviderOutcome::NotSent,
                ChargeOutcome::Unknown { .. } => ProviderOutcome::Unknown,
            };
            count(ProviderOp::Charge, label, since);
            outcome
        })
    }

    fn lookup<'a>(&'a self, reference: &'a Reference) -> BoxFuture<'a, Lookup> {
        Box::pin(async move {
            let since = Instant::now();
            let found = self.0.lookup(reference).await;
            let label = match &found {
                Lookup::Succeeded => ProviderOutcome::Succeeded,
                Lookup::Declined { .. } | Lookup::Voided => ProviderOutcome::Declined,
                Lookup::Pending => ProviderOutcome::Pending,
                Lookup::NotFound => ProviderOutcome::NotFound,
                Lookup::Unreachable { .. } => ProviderOutcome::Unknown,
            };
            count(ProviderOp::Lookup, label, since);
            found
        })
    }

    fn void<'a>(&'a self, reference: &'a Reference) -> BoxFuture<'a, VoidOutcome> {
        Box::pin(async move {
            let since = Instant::now();
            let outcome = self.0.void(reference).await;
            let label = match &outcome {
                VoidOutcome::Voided => ProviderOutcome::Succeeded,
                VoidOutcome::AlreadySucceeded | VoidOutcome::AlreadyDeclined { .. } => {
                    ProviderOutcome::Declined
                }
                VoidOutcome::Unreachable { .. } => ProviderOutcome::Unknown,
            };
            count(ProviderOp::Void, label, since);
            outcome
        })
    }

    fn book(&self) -> BoxFuture<'_, Result<Vec<BookEntry>, String>> {
        self.0.book()
    }

    fn refund<'a>(
        &'a self,
        charge: &'a Reference,
        refund: &'a Reference,
        amount: Money,
    ) -> BoxFuture<'a, RefundOutcome> {
        Box::pin(async move {
            let since = Instant::now();
            let outcome = self.0.refund(charge, refund, amount).await;
            let label = match &outcome {
                RefundOutcome::Refunded => ProviderOutcome::Succeeded,
                RefundOutcome::Refused { .. } => ProviderOutcome::Declined,
                RefundOutcome::Unreachable { .. } => ProviderOutcome::Unknown,
            };
            count(ProviderOp::Refund, label, since);
            outcome
        })
    }
}
