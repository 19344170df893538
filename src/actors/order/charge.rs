//! A charge: sent once, and then found out about; and the capture of what a charge has only set aside. Under one reference all the
//! time, so that whatever is repeated can't become a second charge.

use std::time::{Duration, Instant};

use crate::actors::breaker::Breaker;
use crate::actors::plan::{self, ChargeEnd, Plan, Step};
use crate::crash::{self, Point};
use crate::provider::{CaptureOutcome, Charge, ChargeOutcome, OpenOutcome, PaymentProvider};

/// Pauses between tries: they double from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// The longest pause that a provider's Retry-After is followed for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(10);

/// Charges, and goes on until it is known how that ended or `deadline` is reached. Each send is one request; while the breaker
/// is open none is made, but look-ups go on.
pub async fn charge(
    provider: &dyn PaymentProvider,
    breaker: &Breaker,
    charge: &Charge,
    deadline: Instant,
) -> ChargeEnd {
    let mut plan = Plan::default();
    let mut step = Step::Send;
    let mut pause = FIRST_PAUSE;
    loop {
        let mut wait = pause;
        step = match step {
            Step::End(end) => return end,
            Step::Send if !breaker.allows(Instant::now()) => Step::Send,
            Step::Send => {
                crash::at(Point::ChargeBeforeSend);
                let outcome = provider.charge(charge).await;
                crash::at(Point::ChargeAnswered);
                breaker.record(
                    Instant::now(),
                    matches!(
                        outcome,
                        ChargeOutcome::Succeeded | ChargeOutcome::Authorised | ChargeOutcome::Declined { .. }
                    ),
                );
                if let ChargeOutcome::NotSent {
                    retry_after: Some(asked),
                } = outcome
                {
                    wait = asked.clamp(pause, LONGEST_RETRY_AFTER);
                }
                if let ChargeOutcome::Unknown { what } = &outcome {
                    tracing::warn!(reference = charge.reference.as_str(), %what, "a charge is in doubt");
                }
                plan.after_send(outcome)
            }
            Step::LookUp => plan.after_lookup(provider.lookup(charge).await),
        };
        if matches!(step, Step::End(_)) {
            continue;
        }
        if Instant::now() + wait >= deadline {
            return plan.out_of_time();
        }
        tokio::time::sleep(wait).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Has the provider name a charge, and goes on until it has or `deadline` is reached. Nothing is taken by that, so that an unknown outcome
/// leaves nothing in doubt.
///
/// # Errors
/// How the charge has ended without a name.
pub async fn open(
    provider: &dyn PaymentProvider,
    breaker: &Breaker,
    charge: &Charge,
    deadline: Instant,
) -> Result<String, ChargeEnd> {
    let mut pause = FIRST_PAUSE;
    loop {
        let mut wait = pause;
        if breaker.allows(Instant::now()) {
            let outcome = provider.open(charge).await;
            breaker.record(
                Instant::now(),
                !matches!(outcome, OpenOutcome::Unreachable { .. }),
            );
            match outcome {
                OpenOutcome::Opened(id) => return Ok(id),
                OpenOutcome::Declined { code } => return Err(ChargeEnd::Declined { code }),
                OpenOutcome::Unreachable { what, retry_after } => {
                    tracing::warn!(reference = charge.reference.as_str(), %what, "a charge could not be opened");
                    wait = retry_after.map_or(pause, |asked| asked.clamp(pause, LONGEST_RETRY_AFTER));
                }
            }
        }
        if Instant::now() + wait >= deadline {
            return Err(ChargeEnd::NotSent);
        }
        tokio::time::sleep(wait).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Takes what a charge has set aside, and goes on until it is known how that ended or `deadline` is reached: there is no way back, so no
/// breaker stops it, and only a look-up can say that nothing is there to be taken.
pub async fn capture(provider: &dyn PaymentProvider, charge: &Charge, deadline: Instant) -> ChargeEnd {
    let mut pause = FIRST_PAUSE;
    loop {
        crash::at(Point::CaptureBeforeSend);
        let outcome = provider.capture(charge).await;
        crash::at(Point::CaptureAnswered);
        let CaptureOutcome::Unknown { what } = outcome else {
            return ChargeEnd::Succeeded;
        };
        tracing::warn!(reference = charge.reference.as_str(), %what, "a capture is in doubt");
        if let Some(end) = plan::after_capture_lookup(provider.lookup(charge).await) {
            return end;
        }
        if Instant::now() + pause >= deadline {
            return ChargeEnd::InDoubt;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}
