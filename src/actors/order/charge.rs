//! A charge: sent once, and then found out about; and the capture of what a charge has only set aside. Under one reference all the
//! time, so that whatever is repeated can't become a second charge.

use std::time::{Duration, Instant};

use crate::actors::breaker::Breaker;
use crate::crash::{self, Point};
use crate::provider::{CaptureOutcome, Charge, ChargeOutcome, Lookup, OpenOutcome, PaymentProvider};

/// How a claim's charge ended, or the capture after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChargeEnd {
    /// The provider has set the money aside; nothing is taken.
    Authorised,
    /// The provider has the money.
    Succeeded,
    /// The provider said no.
    Declined {
        /// Its word for why.
        code: String,
    },
    /// Time is up, and certainly nothing was ever sent.
    NotSent,
    /// Time is up, and nobody knows.
    InDoubt,
}

/// What to do next about a charge.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Send,
    LookUp,
    End(ChargeEnd),
}

/// Pauses between tries: they double from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// The longest pause that a provider's Retry-After is followed for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(10);
/// How often a charge that the provider doesn't know is sent again under its reference.
const MAX_SENDS_IN_DOUBT: u32 = 3;

/// What has been learned about a charge. Pure: tells the next step from the answers so far.
#[derive(Debug, Default)]
struct Plan {
    /// A request may have reached the provider.
    may_have_arrived: bool,
    sends_in_doubt: u32,
}

impl Plan {
    fn after_send(&mut self, outcome: ChargeOutcome) -> Step {
        match outcome {
            ChargeOutcome::Succeeded => Step::End(ChargeEnd::Succeeded),
            ChargeOutcome::Authorised => Step::End(ChargeEnd::Authorised),
            ChargeOutcome::Declined { code } => Step::End(ChargeEnd::Declined { code }),
            ChargeOutcome::NotSent { .. } => Step::Send,
            ChargeOutcome::Unknown { .. } => {
                self.may_have_arrived = true;
                self.sends_in_doubt += 1;
                Step::LookUp
            }
        }
    }

    fn after_lookup(&self, found: Lookup) -> Step {
        match found {
            Lookup::Succeeded => Step::End(ChargeEnd::Succeeded),
            Lookup::Authorised => Step::End(ChargeEnd::Authorised),
            Lookup::Declined { code } => Step::End(ChargeEnd::Declined { code }),
            // Somebody has made sure that it can't succeed.
            Lookup::Voided => Step::End(voided()),
            // The same reference again is safe, and not endless.
            Lookup::NotFound if self.sends_in_doubt < MAX_SENDS_IN_DOUBT => Step::Send,
            Lookup::NotFound => Step::End(ChargeEnd::InDoubt),
            Lookup::Pending | Lookup::Unreachable { .. } => Step::LookUp,
        }
    }

    fn out_of_time(&self) -> ChargeEnd {
        if self.may_have_arrived {
            ChargeEnd::InDoubt
        } else {
            ChargeEnd::NotSent
        }
    }
}

fn voided() -> ChargeEnd {
    ChargeEnd::Declined {
        code: "voided".to_owned(),
    }
}

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
        match provider.lookup(charge).await {
            Lookup::Succeeded => return ChargeEnd::Succeeded,
            Lookup::Declined { code } => return ChargeEnd::Declined { code },
            Lookup::Voided => return voided(),
            Lookup::Authorised | Lookup::Pending | Lookup::NotFound | Lookup::Unreachable { .. } => {}
        }
        if Instant::now() + pause >= deadline {
            return ChargeEnd::InDoubt;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown() -> ChargeOutcome {
        ChargeOutcome::Unknown {
            what: "time-out".to_owned(),
        }
    }

    #[test]
    fn an_unknown_answer_is_looked_up_before_anything_is_sent_again() {
        let mut plan = Plan::default();
        assert_eq!(plan.after_send(unknown()), Step::LookUp);
        assert_eq!(plan.after_lookup(Lookup::Pending), Step::LookUp);
        assert_eq!(
            plan.after_lookup(Lookup::Succeeded),
            Step::End(ChargeEnd::Succeeded)
        );
        assert_eq!(plan.out_of_time(), ChargeEnd::InDoubt);
    }

    #[test]
    fn a_charge_that_never_left_is_known_not_to_have_happened() {
        let mut plan = Plan::default();
        assert_eq!(
            plan.after_send(ChargeOutcome::NotSent { retry_after: None }),
            Step::Send
        );
        assert_eq!(plan.out_of_time(), ChargeEnd::NotSent);
        plan.after_send(unknown());
        plan.after_send(ChargeOutcome::NotSent { retry_after: None });
        assert_eq!(
            plan.out_of_time(),
            ChargeEnd::InDoubt,
            "an earlier one may have arrived"
        );
    }

    #[test]
    fn sending_into_the_dark_ends() {
        let mut plan = Plan::default();
        for _ in 1..MAX_SENDS_IN_DOUBT {
            plan.after_send(unknown());
            assert_eq!(plan.after_lookup(Lookup::NotFound), Step::Send);
        }
        plan.after_send(unknown());
        assert_eq!(plan.after_lookup(Lookup::NotFound), Step::End(ChargeEnd::InDoubt));
    }

    #[test]
    fn a_voided_charge_is_a_no() {
        let code = "voided".to_owned();
        assert_eq!(
            Plan::default().after_lookup(Lookup::Voided),
            Step::End(ChargeEnd::Declined { code })
        );
    }
}
