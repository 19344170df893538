//! The database: what it guarantees. An update happens in one step, with all of its effects, when the row is as the update expects it, and
//! otherwise not at all. Walls (CHECKs, unique keys) only take note here: that nothing ever runs into one of them is a property, and a
//! counterexample goes on behind it to what the wall keeps away.

use fluxbuy::domain::{Effect, Event, OrderStatus, PaymentStatus, Transition, transition};

use super::{ATTEMPTS, Guards};

/// The rows of one order of one unit, of which the sale has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Rows {
    pub status: OrderStatus,
    /// Which charge counts; 0 before the first claim.
    pub attempt: u8,
    pub payments: [Option<Payment>; ATTEMPTS],
    pub available: i8,
    pub held: i8,
    pub sold: i8,
    /// How often the order's unit went back.
    pub releases: u8,
    /// Something ran into a wall.
    pub wall: bool,
    /// A claim that had been taken over has moved the order.
    pub overtaken_wrote: bool,
}

/// A charge as the books have it, with what is owed because of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Payment {
    pub status: PaymentStatus,
    /// Entries of the ledger.
    pub charged: u8,
    pub refunded: u8,
    /// Work owed to the provider: to find out what became of the charge, and to pay late money back.
    pub resolve: bool,
    pub late_refund: bool,
    /// The refund that somebody asked for.
    pub asked: Asked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Asked {
    Not,
    Due,
    Done,
}

/// A change as its author wants it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Change {
    pub event: Event,
    pub expect: OrderStatus,
    /// Whether the author's claim still has the order's fence; `None` where nobody has claimed it.
    pub fence: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It happened, and raised the fence or not.
    Applied {
        raised: bool,
    },
    Stale,
}

impl Rows {
    pub fn new() -> Self {
        Self {
            status: OrderStatus::Pending,
            attempt: 0,
            payments: [None; ATTEMPTS],
            available: 0,
            held: 1,
            sold: 0,
            releases: 0,
            wall: false,
            overtaken_wrote: false,
        }
    }

    pub fn payment(&self, attempt: u8) -> Option<&Payment> {
        self.payments[usize::from(attempt.checked_sub(1)?)].as_ref()
    }

    pub fn payment_mut(&mut self, attempt: u8) -> Option<&mut Payment> {
        self.payments[usize::from(attempt.checked_sub(1)?)].as_mut()
    }

    /// `store::transition`.
    pub fn apply(&mut self, guards: Guards, change: Change) -> Outcome {
        let Ok(planned) = transition(change.expect, change.event) else {
            self.wall = true;
            return Outcome::Stale;
        };
        let as_expected = self.status == change.expect || !guards.status;
        let overtaken = change.fence == Some(false);
        if !as_expected || (overtaken && guards.fence) {
            if !guards.returned_rows && planned.effects.contains(&Effect::ReleaseUnits) {
                self.release(1);
            }
            return Outcome::Stale;
        }
        self.overtaken_wrote |= overtaken;
        self.moved(guards, change.event, &planned)
    }

    fn moved(&mut self, guards: Guards, event: Event, planned: &Transition) -> Outcome {
        self.status = planned.to;
        let mut raised = false;
        for effect in planned.effects {
            match effect {
                Effect::BeginPayment => {
                    raised = true;
                    if usize::from(self.attempt) == ATTEMPTS {
                        self.wall = true;
                        continue;
                    }
                    self.payments[usize::from(self.attempt)] = Some(Payment {
                        status: PaymentStatus::Initiated,
                        charged: 0,
                        refunded: 0,
                        resolve: false,
                        late_refund: false,
                        asked: Asked::Not,
                    });
                    self.attempt += 1;
                }
                Effect::RaiseFence => raised = true,
                Effect::BeginCapture | Effect::ClosePayment => self.move_payment(event),
                Effect::ResolvePaymentLater => {
                    self.move_payment(event);
                    self.resolve_later(guards);
                }
                Effect::VerifyVoidLater => self.resolve_later(guards),
                Effect::RecordCharge => {
                    let attempt = self.attempt;
                    let known = self.payment_mut(attempt).map(|payment| {
                        payment.charged += 1;
                        payment.charged > 1
                    });
                    self.wall |= known != Some(false);
                }
                Effect::SellUnits => {
                    self.held -= 1;
                    self.sold += 1;
                }
                Effect::ReleaseUnits => self.release(1),
                Effect::ReturnUnits => {
                    self.release(0);
                    self.sold -= 1;
                }
                // What a lost claim owes: `plan::owed`.
                Effect::RefundLateCharge | Effect::VoidLateAuthorisation => {}
            }
        }
        Outcome::Applied { raised }
    }

    fn release(&mut self, held: i8) {
        self.held -= held;
        self.available += 1;
        self.releases = self.releases.saturating_add(1).min(2);
        self.wall |= self.releases > 1;
    }

    fn move_payment(&mut self, event: Event) {
        let attempt = self.attempt;
        let moved = self.payment_mut(attempt).is_some_and(|payment| {
            use PaymentStatus::{Authorised, InDoubt, Initiated};
            let open = matches!(payment.status, Initiated | InDoubt | Authorised);
            payment.status = PaymentStatus::after(event);
            open
        });
        self.wall |= !moved;
    }

    fn resolve_later(&mut self, guards: Guards) {
        if !guards.owed_in_commit {
            return;
        }
        let attempt = self.attempt;
        let new = self.payment_mut(attempt).is_some_and(|payment| {
            let new = !payment.resolve;
            payment.resolve = true;
            new
        });
        self.wall |= !new;
    }

    fn lost(&self, attempt: u8) -> bool {
        self.status == OrderStatus::Failed || self.attempt != attempt
    }

    /// `Store::record_late_charge`.
    pub fn record_late_charge(&mut self, attempt: u8) -> bool {
        use PaymentStatus::{Declined, InDoubt, Initiated, NotSent, Voided};
        if !self.lost(attempt) {
            return false;
        }
        let Some(payment) = self.payment_mut(attempt) else {
            return false;
        };
        if !matches!(payment.status, Initiated | InDoubt | Voided | NotSent | Declined) {
            return false;
        }
        payment.status = PaymentStatus::RefundDue;
        payment.charged += 1;
        payment.resolve = false;
        payment.late_refund = true;
        let twice = payment.charged > 1;
        self.wall |= twice;
        true
    }

    /// `Store::void_later`.
    pub fn void_later(&mut self, attempt: u8) -> bool {
        use PaymentStatus::{RefundDue, Refunded, Succeeded};
        if !self.lost(attempt) {
            return false;
        }
        match self.payment_mut(attempt) {
            Some(payment) if !matches!(payment.status, Succeeded | RefundDue | Refunded) => {
                payment.resolve = true;
                true
            }
            _ => false,
        }
    }

    /// `Store::mark_in_doubt`.
    pub fn mark_in_doubt(&mut self, attempt: u8) {
        if let Some(payment) = self.payment_mut(attempt)
            && payment.status == PaymentStatus::Initiated
        {
            payment.status = PaymentStatus::InDoubt;
        }
    }

    /// `Store::resolved_without_money`; the task stays when it isn't on its loan any more.
    pub fn resolved_without_money(&mut self, attempt: u8, status: PaymentStatus, on_loan: bool) {
        if let Some(payment) = self.payment_mut(attempt) {
            if matches!(payment.status, PaymentStatus::Initiated | PaymentStatus::InDoubt) {
                payment.status = status;
            }
            payment.resolve &= !on_loan;
        }
    }

    /// `Store::request_refund`, for all of the money and with the unit.
    pub fn ask_refund(&mut self) {
        let (status, attempt) = (self.status, self.attempt);
        if let Some(payment) = self.payment_mut(attempt)
            && status == OrderStatus::Paid
            && payment.status == PaymentStatus::Succeeded
            && payment.asked == Asked::Not
        {
            payment.asked = Asked::Due;
        }
    }

    /// `Store::refund_done`: of late money, or of the refund that was asked for.
    pub fn refund_done(&mut self, guards: Guards, attempt: u8, late: bool) {
        let Some(payment) = self.payment_mut(attempt) else {
            return;
        };
        let due = if late {
            payment.late_refund = false;
            payment.status == PaymentStatus::RefundDue
        } else {
            payment.asked == Asked::Due
        };
        if !due && guards.refund_noted_once {
            return;
        }
        payment.refunded = (payment.refunded + 1).min(2);
        let twice = payment.refunded > 1;
        if late {
            payment.status = PaymentStatus::Refunded;
        } else {
            payment.asked = Asked::Done;
        }
        self.wall |= twice;
        if !late && due {
            let back = Change {
                event: Event::RefundedAndReturned,
                expect: OrderStatus::Paid,
                fence: None,
            };
            let outcome = self.apply(guards, back);
            self.wall |= outcome == Outcome::Stale;
        }
    }

    /// Whether anything is still owed to the provider.
    pub fn owes(&self) -> bool {
        self.payments
            .iter()
            .flatten()
            .any(|payment| payment.resolve || payment.late_refund || payment.asked == Asked::Due)
    }
}
