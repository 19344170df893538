//! The payment provider, and the network before it: requests may be lost, and may arrive long after whoever sent them has given up.

use fluxbuy::domain::News;
use fluxbuy::provider::{CaptureOutcome, ChargeOutcome, Lookup, RefundOutcome, VoidOutcome};

use super::{ATTEMPTS, Guards};

/// What the provider knows under each reference.
pub(super) type Book = [Account; ATTEMPTS];

/// A charge as the provider has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Account {
    pub charge: Charge,
    /// How often money was paid back for it. The provider pays back what it is asked for, even more than it has taken.
    pub refunded: u8,
    /// By their names: late money, and the refund that was asked for.
    pub late_refund: bool,
    pub asked_refund: bool,
    /// Requests under way: each kind is idempotent by the reference, so that one of each is as good as many.
    pub charge_under_way: bool,
    pub void_under_way: bool,
    pub capture_under_way: bool,
    /// What it has told of by webhooks. Each of them may be delivered at any time after, any number of times, or never.
    pub told: Told,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Charge {
    Unseen,
    Pending,
    Authorised,
    Succeeded,
    Declined,
    Voided,
    /// Voided, as everybody is told, and going through all the same.
    VoidedNotKept,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Told {
    pub authorised: bool,
    pub succeeded: bool,
    pub declined: bool,
    pub voided: bool,
}

impl Told {
    /// One of the events.
    pub fn first(self) -> Option<News> {
        [
            (self.authorised, News::Authorised),
            (self.succeeded, News::Succeeded),
            (self.declined, News::Declined),
            (self.voided, News::Voided),
        ]
        .into_iter()
        .find_map(|(told, news)| told.then_some(news))
    }
}

impl Account {
    pub fn new() -> Self {
        Self {
            charge: Charge::Unseen,
            refunded: 0,
            late_refund: false,
            asked_refund: false,
            charge_under_way: false,
            void_under_way: false,
            capture_under_way: false,
            told: Told::default(),
        }
    }

    /// Money taken and not paid back.
    pub fn net(&self) -> i8 {
        i8::from(self.charge == Charge::Succeeded) - self.refunded as i8
    }

    pub fn charge_arrives(&mut self) {
        self.charge_under_way = false;
        if self.charge == Charge::Unseen {
            self.charge = Charge::Pending;
        }
    }

    /// Nothing yet when the charge isn't decided.
    pub fn charge_answer(&self) -> Option<ChargeOutcome> {
        match self.charge {
            Charge::Unseen | Charge::Pending => None,
            Charge::Authorised => Some(ChargeOutcome::Authorised),
            Charge::Succeeded => Some(ChargeOutcome::Succeeded),
            Charge::Declined => Some(ChargeOutcome::Declined { code: String::new() }),
            Charge::Voided | Charge::VoidedNotKept => Some(ChargeOutcome::Unknown { what: String::new() }),
        }
    }

    pub fn decide(&mut self, decision: Charge) {
        self.charge = decision;
        match decision {
            Charge::Authorised => self.told.authorised = true,
            Charge::Succeeded => self.told.succeeded = true,
            Charge::Declined => self.told.declined = true,
            Charge::Voided | Charge::VoidedNotKept => self.told.voided = true,
            Charge::Unseen | Charge::Pending => {}
        }
    }

    pub fn lookup(&self) -> Lookup {
        match self.charge {
            Charge::Unseen => Lookup::NotFound,
            Charge::Pending => Lookup::Pending,
            Charge::Authorised => Lookup::Authorised,
            Charge::Succeeded => Lookup::Succeeded,
            Charge::Declined => Lookup::Declined { code: String::new() },
            Charge::Voided | Charge::VoidedNotKept => Lookup::Voided,
        }
    }

    /// Also a reference that was never seen is voided: what comes under it later comes to nothing.
    pub fn void(&mut self, kept: bool) -> VoidOutcome {
        match self.charge {
            Charge::Succeeded => return VoidOutcome::AlreadySucceeded,
            Charge::Declined => return VoidOutcome::AlreadyDeclined { code: String::new() },
            Charge::Pending if !kept => self.decide(Charge::VoidedNotKept),
            Charge::Unseen | Charge::Pending | Charge::Authorised => self.decide(Charge::Voided),
            Charge::Voided | Charge::VoidedNotKept => {}
        }
        VoidOutcome::Voided
    }

    /// Returns the answer, and whether money was taken now.
    pub fn capture(&mut self) -> (CaptureOutcome, bool) {
        let taken = self.charge == Charge::Authorised;
        if taken {
            self.decide(Charge::Succeeded);
        }
        if self.charge == Charge::Succeeded {
            (CaptureOutcome::Captured, taken)
        } else {
            (CaptureOutcome::Unknown { what: String::new() }, false)
        }
    }

    /// Pays back, once under each name.
    pub fn refund(&mut self, guards: Guards, late: bool) -> RefundOutcome {
        if self.charge != Charge::Succeeded {
            return RefundOutcome::Refused { code: String::new() };
        }
        let name = if late {
            &mut self.late_refund
        } else {
            &mut self.asked_refund
        };
        if !*name || !guards.refund_name {
            self.refunded = (self.refunded + 1).min(2);
        }
        *name = true;
        RefundOutcome::Refunded
    }
}
