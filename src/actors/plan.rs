//! What is done next about a charge, by what has been answered so far: by the holder of a claim, by the sweeper, by the worker that finds
//! out about charges whose order is over, and by whoever comes too late.
//!
//! Pure: no clock, no provider, no database. Whoever asks them calls this, and so does the model in `model/`, which goes through
//! all the orders in which the answers may come.

use crate::domain::{Effect, Event, OrderStatus, PaymentStatus, transition};
use crate::provider::{ChargeOutcome, Lookup, VoidOutcome};

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

/// What to do next about a charge that is being made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Send it, under its reference.
    Send,
    /// Ask what became of it.
    LookUp,
    /// It has ended.
    End(ChargeEnd),
}

/// What to do next about an order whose charge was heard of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// The provider is asked to make sure that the charge can't succeed.
    Void,
    /// The order moves on by this event, under the claim's fence.
    Settle {
        /// What happened to it.
        event: Event,
        /// The provider's word for why, for a charge that was declined.
        code: Option<String>,
    },
    /// The money is set aside: that it is going to be captured is written down, and then it is captured.
    Capture,
    /// Nobody knows.
    Unknown,
}

/// What a lost claim still owes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owed {
    /// Money was taken for an order that failed: it goes back.
    Refund,
    /// Money was set aside for an order that failed: it is let go.
    Void,
}

/// What has been learned about a charge whose order is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolved {
    /// The money came: it goes back.
    MoneyCame,
    /// No money came, and none can come any more.
    NoMoney {
        /// What the payment is then.
        status: PaymentStatus,
        /// The provider's word for why, for a charge that was declined.
        code: Option<String>,
    },
    /// Not known: the provider is asked to make sure that it can't succeed.
    Void,
    /// The provider couldn't be asked.
    Later {
        /// What was seen, for logs.
        what: String,
    },
}

/// How often a charge that the provider doesn't know is sent again under its reference.
const MAX_SENDS_IN_DOUBT: u8 = 3;

/// What the holder of a claim has learned about its charge: tells the next step from the answers so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Plan {
    /// A request may have reached the provider.
    may_have_arrived: bool,
    sends_in_doubt: u8,
}

impl Plan {
    /// What follows from the answer to a charge.
    pub fn after_send(&mut self, outcome: ChargeOutcome) -> Step {
        match outcome {
            ChargeOutcome::Succeeded => Step::End(ChargeEnd::Succeeded),
            ChargeOutcome::Authorised => Step::End(ChargeEnd::Authorised),
            ChargeOutcome::Declined { code } => Step::End(ChargeEnd::Declined { code }),
            ChargeOutcome::NotSent { .. } => Step::Send,
            ChargeOutcome::Unknown { .. } => {
                self.may_have_arrived = true;
                self.sends_in_doubt = self.sends_in_doubt.saturating_add(1);
                Step::LookUp
            }
        }
    }

    /// What follows from the answer to a look-up.
    pub fn after_lookup(&self, found: Lookup) -> Step {
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

    /// How it has ended when there is no time left.
    pub fn out_of_time(&self) -> ChargeEnd {
        if self.may_have_arrived {
            ChargeEnd::InDoubt
        } else {
            ChargeEnd::NotSent
        }
    }
}

impl ChargeEnd {
    /// What the end of a charge or of a capture makes of the order.
    pub fn next(self) -> Next {
        match self {
            Self::Authorised => Next::Capture,
            Self::Succeeded => settle(Event::ChargeSucceeded),
            Self::Declined { code } => declined(code),
            Self::NotSent => settle(Event::ChargeNotSent),
            Self::InDoubt => Next::Unknown,
        }
    }
}

/// How a capture has ended that wasn't answered, by what a look-up finds; `None`: it is to be repeated. Only what is final counts.
pub fn after_capture_lookup(found: Lookup) -> Option<ChargeEnd> {
    match found {
        Lookup::Succeeded => Some(ChargeEnd::Succeeded),
        Lookup::Declined { code } => Some(ChargeEnd::Declined { code }),
        Lookup::Voided => Some(voided()),
        Lookup::Authorised | Lookup::Pending | Lookup::NotFound | Lookup::Unreachable { .. } => None,
    }
}

/// What the sweeper does about a claim that it has taken over, by what a look-up finds. "Not found" proves nothing while a request may be
/// under way; only a confirmed void does.
pub fn after_sweep_lookup(found: Lookup) -> Next {
    match found {
        Lookup::Succeeded => settle(Event::ChargeSucceeded),
        Lookup::Authorised => Next::Capture,
        Lookup::Declined { code } => declined(code),
        Lookup::Voided => settle(Event::ChargeVoided),
        Lookup::Pending | Lookup::NotFound => Next::Void,
        Lookup::Unreachable { .. } => Next::Unknown,
    }
}

/// What the sweeper does about a claim whose charge it wanted to have voided.
pub fn after_void(outcome: VoidOutcome) -> Next {
    match outcome {
        VoidOutcome::Voided => settle(Event::ChargeVoided),
        VoidOutcome::AlreadySucceeded => settle(Event::ChargeSucceeded),
        VoidOutcome::AlreadyDeclined { code } => declined(code),
        VoidOutcome::Unreachable { .. } => Next::Unknown,
    }
}

/// What becomes of a PROCESSING order past the cutoff when nobody knows; `None`: it stays in doubt, its units held. In two steps nothing was
/// taken, and nothing will be: whatever was set aside is let go when the provider can be asked.
pub fn undecided(two_step: bool, fail_in_doubt: bool) -> Option<Event> {
    (two_step || fail_in_doubt).then_some(Event::GivenUp)
}

/// Whether an order that is found otherwise than the step to CAPTURING expected was moved there by that very step, in a commit whose answer
/// was lost: under this fence nobody else can have moved it there.
pub fn capture_is_ours(found: OrderStatus, fence: i32, ours: i32) -> bool {
    found == OrderStatus::Capturing && fence == ours
}

/// What is still owed when `event` has come too late and found the order like this.
pub fn owed(found: OrderStatus, event: Event) -> Option<Owed> {
    let effects = transition(found, event).map_or(&[][..], |t| t.effects);
    if effects.contains(&Effect::RefundLateCharge) {
        Some(Owed::Refund)
    } else if effects.contains(&Effect::VoidLateAuthorisation) {
        Some(Owed::Void)
    } else {
        None
    }
}

/// What a look-up tells about a charge whose order is over. What is only set aside is let go.
pub fn resolved_by_lookup(found: Lookup) -> Resolved {
    match found {
        Lookup::Succeeded => Resolved::MoneyCame,
        Lookup::Declined { code } => no_money(PaymentStatus::Declined, Some(code)),
        Lookup::Voided => no_money(PaymentStatus::Voided, None),
        Lookup::Unreachable { what } => Resolved::Later { what },
        Lookup::Pending | Lookup::Authorised | Lookup::NotFound => Resolved::Void,
    }
}

/// What the answer to a void tells about a charge whose order is over.
pub fn resolved_by_void(outcome: VoidOutcome) -> Resolved {
    match outcome {
        VoidOutcome::Voided => no_money(PaymentStatus::Voided, None),
        VoidOutcome::AlreadySucceeded => Resolved::MoneyCame,
        VoidOutcome::AlreadyDeclined { code } => no_money(PaymentStatus::Declined, Some(code)),
        VoidOutcome::Unreachable { what } => Resolved::Later { what },
    }
}

fn settle(event: Event) -> Next {
    Next::Settle { event, code: None }
}

fn declined(code: String) -> Next {
    Next::Settle {
        event: Event::ChargeDeclined,
        code: Some(code),
    }
}

fn no_money(status: PaymentStatus, code: Option<String>) -> Resolved {
    Resolved::NoMoney { status, code }
}

fn voided() -> ChargeEnd {
    ChargeEnd::Declined {
        code: "voided".to_owned(),
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

    #[test]
    fn not_found_alone_fails_no_order() {
        assert_eq!(after_sweep_lookup(Lookup::NotFound), Next::Void);
        assert_eq!(after_sweep_lookup(Lookup::Pending), Next::Void);
        let what = "time-out".to_owned();
        assert_eq!(after_void(VoidOutcome::Unreachable { what }), Next::Unknown);
        assert_eq!(undecided(false, false), None);
    }

    #[test]
    fn only_a_failed_order_owes_anything_to_who_comes_too_late() {
        for status in OrderStatus::ALL {
            for event in Event::ALL {
                let expected = match (status, event) {
                    (OrderStatus::Failed, Event::ChargeSucceeded) => Some(Owed::Refund),
                    (OrderStatus::Failed, Event::Authorised) => Some(Owed::Void),
                    _ => None,
                };
                assert_eq!(owed(status, event), expected, "{status} {event:?}");
            }
        }
    }
}
