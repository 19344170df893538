//! Hands: whatever works at the order, in whichever engine. A hand is at any time one of: a payment worker with its claim, a sweeper with a
//! claim that it has taken over, whoever applies a webhook, the worker of what is owed to the provider. What it does next is told by the
//! engine's own code (`fluxbuy::actors::plan`, `fluxbuy::domain`). All that it knows is lost when it dies.

use fluxbuy::actors::plan::{self, ChargeEnd, Next, Owed, Plan, Resolved, Step};
use fluxbuy::domain::{Event, Found, News, OrderStatus, PaymentStatus, Projection, project};
use fluxbuy::provider::{CaptureOutcome, ChargeOutcome, Lookup, RefundOutcome, VoidOutcome};

use super::provider::Account;
use super::rows::{Change, Outcome};
use super::{Landmark, Money, State};

/// One of them, and what it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Hand {
    pub stage: Stage,
    /// The charge that it is about.
    pub attempt: u8,
    /// What the order was when it was claimed, or looked at.
    pub status: OrderStatus,
    /// Its claim has the order's fence. A fence only rises: once another has it, it never comes back. So that is all that there is to know.
    /// For whoever finds out about a charge: its task is on the loan under which it was taken.
    pub fresh: bool,
}

/// What it is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Stage {
    Idle,
    /// The holder of a claim: sends the charge, waits for the answer, asks what became of it.
    Send(Plan),
    Wait(Plan),
    LookUp(Plan),
    /// The sweeper: has found the order past the cutoff; asks about the claim that it took over; has it voided.
    Stuck,
    SweepLookUp,
    SweepVoid,
    /// Whoever has heard how a charge ended.
    Settle(Event),
    Authorise,
    Capture,
    CaptureLookUp,
    Doubt,
    /// Whoever came too late; an event says so, or not.
    OweRefund {
        told: bool,
    },
    OweVoid {
        told: bool,
    },
    /// The worker of what is owed to the provider.
    Refund {
        late: bool,
    },
    NoteRefund {
        late: bool,
    },
    Resolve,
    ResolveVoid,
    MoneyCame,
    NoMoney(PaymentStatus),
}

/// How a step goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It happens and is answered.
    Well,
    /// It happens, and the answer is lost.
    AnswerLost,
    /// Nobody answers; the request arrives later, or never.
    Late,
    /// Nothing is done, and nobody can be asked.
    Unreachable,
}

/// Work that is owed to the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// To find out what became of a charge.
    Resolve,
    /// To pay late money back.
    LateRefund,
    /// To pay back what somebody asked back.
    AskedRefund,
}

impl Hand {
    pub const IDLE: Self = Self {
        stage: Stage::Idle,
        attempt: 0,
        status: OrderStatus::Pending,
        fresh: false,
    };

    /// Without a claim.
    fn without_claim(stage: Stage, attempt: u8) -> Self {
        Self {
            stage,
            attempt,
            ..Self::IDLE
        }
    }

    fn at(self, stage: Stage) -> Self {
        Self { stage, ..self }
    }
}

impl Stage {
    /// It is about a task that is to find out what became of a charge.
    pub fn resolves(self) -> bool {
        matches!(
            self,
            Self::Resolve | Self::ResolveVoid | Self::MoneyCame | Self::NoMoney(_)
        )
    }

    /// What a hand at this stage does next, for whoever reads the way to a state.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "nothing",
            Self::Send(_) => "send the charge",
            Self::Wait(_) => "wait for the charge's answer",
            Self::LookUp(_) => "look the charge up",
            Self::Stuck => "sweep",
            Self::SweepLookUp => "look up what was taken over",
            Self::SweepVoid => "void what was taken over",
            Self::Settle(Event::ChargeSucceeded) => "settle as paid",
            Self::Settle(Event::ChargeDeclined) => "settle as declined",
            Self::Settle(Event::ChargeVoided) => "settle as voided",
            Self::Settle(Event::ChargeNotSent) => "settle as never sent",
            Self::Settle(Event::GivenUp) => "give up",
            Self::Settle(_) => "settle",
            Self::Authorise => "write CAPTURING down",
            Self::Capture => "capture",
            Self::CaptureLookUp => "look the capture up",
            Self::Doubt => "mark as in doubt",
            Self::OweRefund { .. } => "note late money",
            Self::OweVoid { .. } => "note a late authorisation",
            Self::Refund { .. } => "refund",
            Self::NoteRefund { .. } => "note a refund",
            Self::Resolve => "look up what is over",
            Self::ResolveVoid => "void what is over",
            Self::MoneyCame => "note that money came",
            Self::NoMoney(_) => "note that no money came",
        }
    }
}

impl Money {
    /// How the next step of a hand may go.
    pub(super) fn ways(stage: Stage) -> &'static [How] {
        use How::{AnswerLost, Late, Unreachable, Well};
        match stage {
            Stage::Idle => &[],
            Stage::Wait(_) | Stage::Stuck | Stage::Settle(_) | Stage::Authorise | Stage::Refund { .. } => {
                &[Well, AnswerLost]
            }
            Stage::SweepLookUp => &[Well, Unreachable],
            Stage::SweepVoid | Stage::Capture => &[Well, AnswerLost, Late, Unreachable],
            Stage::ResolveVoid => &[Well, AnswerLost, Late],
            Stage::Send(_)
            | Stage::LookUp(_)
            | Stage::CaptureLookUp
            | Stage::Doubt
            | Stage::OweRefund { .. }
            | Stage::OweVoid { .. }
            | Stage::NoteRefund { .. }
            | Stage::Resolve
            | Stage::MoneyCame
            | Stage::NoMoney(_) => &[Well],
        }
    }

    /// A worker claims the order, whatever it knew of it. A lost answer leaves the claim to the sweeper.
    pub(super) fn claim(&self, state: &mut State, hand: usize, how: How) {
        let change = Change {
            event: Event::Claim,
            expect: OrderStatus::Pending,
            fence: None,
        };
        let Outcome::Applied { .. } = state.rows.apply(self.guards, change) else {
            self.pass(Landmark::ClaimLost);
            return;
        };
        state.fence_out();
        if how == How::Well {
            state.hands[hand] = Hand {
                stage: Stage::Send(Plan::default()),
                attempt: state.rows.attempt,
                status: OrderStatus::Processing,
                fresh: true,
            };
        }
    }

    /// A sweeper finds the order past the cutoff.
    pub(super) fn scan(state: &mut State, hand: usize) {
        if !state.rows.status.is_open() {
            return;
        }
        state.hands[hand] = Hand {
            stage: Stage::Stuck,
            attempt: state.rows.attempt,
            status: state.rows.status,
            fresh: true,
        };
    }

    /// A webhook is delivered, for the first time or once more, and looked at beside the rows. What it is taken for may be old when it
    /// is applied.
    pub(super) fn hear(&self, state: &mut State, hand: usize, attempt: u8, news: News) {
        let rows = &state.rows;
        let Some(payment) = rows.payment(attempt) else {
            return;
        };
        let found = Found {
            status: rows.status,
            current: attempt == rows.attempt,
            payment: payment.status,
        };
        let projection = project(news, found);
        let stage = match projection {
            Projection::Settle(event) => {
                self.pass(Landmark::SettledByWebhook);
                state.hands[hand] = Hand {
                    stage: Stage::Settle(event),
                    attempt,
                    status: rows.status,
                    fresh: true,
                };
                return;
            }
            Projection::LateCharge => Stage::OweRefund { told: true },
            Projection::LateAuthorisation => Stage::OweVoid { told: true },
            // Which of the refunds it is, the event says.
            Projection::RefundDone => {
                let account = &state.book[usize::from(attempt - 1)];
                Stage::NoteRefund {
                    late: account.late_refund,
                }
            }
            Projection::NoChange => {
                self.pass(Landmark::WebhookTwiceOrLate);
                self.event_ends(state, attempt, news);
                return;
            }
        };
        state.hands[hand] = Hand::without_claim(stage, attempt);
    }

    /// An event that was applied isn't applied again. Only of interest where nothing but events can tell: elsewhere each may come back.
    fn event_ends(&self, state: &mut State, attempt: u8, news: News) {
        if self.kept_voids {
            return;
        }
        let told = &mut state.book[usize::from(attempt) - 1].told;
        match news {
            News::Authorised => told.authorised = false,
            News::Succeeded => told.succeeded = false,
            News::Declined => told.declined = false,
            News::Voided => told.voided = false,
            News::Refunded | News::Other => {}
        }
    }

    /// A worker takes a task, also one that another is still at: a loan runs out when it does.
    pub(super) fn take(state: &mut State, hand: usize, attempt: u8, task: Task) {
        let Some(payment) = state.rows.payment(attempt) else {
            return;
        };
        let (due, stage) = match task {
            Task::Resolve => (payment.resolve, Stage::Resolve),
            Task::LateRefund => (payment.late_refund, Stage::Refund { late: true }),
            Task::AskedRefund => (
                payment.asked == super::rows::Asked::Due,
                Stage::Refund { late: false },
            ),
        };
        if due {
            if task == Task::Resolve {
                state.end_loans(attempt);
            }
            state.hands[hand] = Hand {
                fresh: task == Task::Resolve,
                ..Hand::without_claim(stage, attempt)
            };
        }
    }

    /// Time is up for the holder of a claim, between two of its steps.
    pub(super) fn out_of_time(state: &mut State, hand: usize) {
        let own = state.hands[hand];
        let next = match own.stage {
            Stage::Send(plan) | Stage::LookUp(plan) => plan.out_of_time().next(),
            Stage::CaptureLookUp => ChargeEnd::InDoubt.next(),
            _ => return,
        };
        state.hands[hand] = own.at(stage_of(&next));
    }

    /// The next step of a hand.
    pub(super) fn go(&self, state: &mut State, hand: usize, how: How) {
        let own = state.hands[hand];
        let index = usize::from(own.attempt.max(1) - 1);
        let account = &mut state.book[index];
        let reachable = how != How::Unreachable;
        let next = match own.stage {
            Stage::Idle => return,
            Stage::Send(plan) => {
                account.charge_under_way = true;
                own.at(Stage::Wait(plan))
            }
            Stage::Wait(mut plan) => {
                let answer = if how == How::Well {
                    let Some(answer) = account.charge_answer() else {
                        return;
                    };
                    answer
                } else {
                    ChargeOutcome::Unknown { what: String::new() }
                };
                let step = plan.after_send(answer);
                own.at(self.after_step(step, plan))
            }
            Stage::LookUp(plan) => {
                let step = plan.after_lookup(account.lookup());
                own.at(self.after_step(step, plan))
            }
            Stage::Stuck => return self.sweep(state, hand, how),
            Stage::SweepLookUp => {
                let found = if reachable {
                    account.lookup()
                } else {
                    Lookup::Unreachable { what: String::new() }
                };
                own.at(self.after_sweep(&plan::after_sweep_lookup(found)))
            }
            Stage::SweepVoid => {
                let outcome = void(account, how, self.kept_voids);
                own.at(self.after_sweep(&plan::after_void(outcome)))
            }
            Stage::Settle(_) | Stage::Authorise => return self.write(state, hand, how),
            Stage::Capture => {
                let (mut outcome, mut taken) = (CaptureOutcome::Unknown { what: String::new() }, false);
                match how {
                    How::Well => (outcome, taken) = account.capture(),
                    How::AnswerLost => taken = account.capture().1,
                    How::Late => account.capture_under_way = true,
                    How::Unreachable => {}
                }
                state.captured(taken);
                match outcome {
                    CaptureOutcome::Captured => own.at(stage_of(&ChargeEnd::Succeeded.next())),
                    CaptureOutcome::Unknown { .. } => own.at(Stage::CaptureLookUp),
                }
            }
            Stage::CaptureLookUp => match plan::after_capture_lookup(account.lookup()) {
                Some(end) => own.at(stage_of(&end.next())),
                None => own.at(Stage::Capture),
            },
            Stage::Doubt => {
                state.rows.mark_in_doubt(own.attempt);
                Hand::IDLE
            }
            Stage::OweRefund { told } => {
                if state.rows.record_late_charge(own.attempt) {
                    self.pass(Landmark::LateMoney);
                }
                if told {
                    self.event_ends(state, own.attempt, News::Succeeded);
                }
                Hand::IDLE
            }
            Stage::OweVoid { told } => {
                state.rows.void_later(own.attempt);
                state.end_loans(own.attempt);
                if told {
                    self.event_ends(state, own.attempt, News::Authorised);
                }
                Hand::IDLE
            }
            Stage::Refund { late } => match (account.refund(self.guards, late), how) {
                (RefundOutcome::Refunded, How::Well) => own.at(Stage::NoteRefund { late }),
                (RefundOutcome::Refunded | RefundOutcome::Unreachable { .. }, _) => Hand::IDLE,
                (RefundOutcome::Refused { .. }, _) => {
                    state.dead_letter = true;
                    Hand::IDLE
                }
            },
            Stage::NoteRefund { late } => {
                state.rows.refund_done(self.guards, own.attempt, late);
                Hand::IDLE
            }
            Stage::Resolve => resolved(own, &plan::resolved_by_lookup(account.lookup())),
            Stage::ResolveVoid => {
                let outcome = void(account, how, self.kept_voids);
                resolved(own, &plan::resolved_by_void(outcome))
            }
            Stage::MoneyCame => {
                if !state.rows.record_late_charge(own.attempt)
                    && (own.fresh || !self.guards.loan)
                    && let Some(payment) = state.rows.payment_mut(own.attempt)
                {
                    payment.resolve = false;
                }
                Hand::IDLE
            }
            Stage::NoMoney(status) => {
                let on_loan = own.fresh || !self.guards.loan;
                state.rows.resolved_without_money(own.attempt, status, on_loan);
                Hand::IDLE
            }
        };
        state.hands[hand] = next;
    }

    fn after_step(&self, step: Step, plan: Plan) -> Stage {
        match step {
            Step::Send => Stage::Send(plan),
            Step::LookUp => Stage::LookUp(plan),
            Step::End(end) => self.next(&end.next()),
        }
    }

    /// What the sweeper does when the provider couldn't tell.
    fn after_sweep(&self, next: &Next) -> Stage {
        match next {
            Next::Void if !self.guards.confirmed_void => Stage::Settle(Event::ChargeVoided),
            Next::Void => Stage::SweepVoid,
            Next::Unknown => {
                plan::undecided(self.two_step, self.fail_in_doubt).map_or(Stage::Doubt, Stage::Settle)
            }
            next => self.next(next),
        }
    }

    fn next(&self, next: &Next) -> Stage {
        match next {
            Next::Capture if !self.guards.capture_written => Stage::Capture,
            next => stage_of(next),
        }
    }

    /// The sweeper's first step: unclaimed orders fail; a claim is taken over.
    fn sweep(&self, state: &mut State, hand: usize, how: How) {
        let own = state.hands[hand];
        let pending = own.status == OrderStatus::Pending;
        let change = Change {
            event: if pending { Event::Swept } else { Event::TakeOver },
            expect: own.status,
            fence: (!pending).then_some(own.fresh),
        };
        state.hands[hand] = Hand::IDLE;
        let Outcome::Applied { raised } = state.rows.apply(self.guards, change) else {
            self.pass(Landmark::SweepLost);
            return;
        };
        if !raised {
            return;
        }
        self.pass(Landmark::TakenOver);
        state.fence_out();
        if how == How::Well {
            let stage = match own.status {
                OrderStatus::Capturing => Stage::Capture,
                _ if self.guards.ask_provider => Stage::SweepLookUp,
                _ => Stage::Settle(Event::ChargeVoided),
            };
            state.hands[hand] = Hand {
                stage,
                attempt: state.rows.attempt,
                status: own.status,
                fresh: true,
            };
        }
    }

    /// Writes down what was heard, under the claim. When the commit's answer is lost, the same is written once more.
    fn write(&self, state: &mut State, hand: usize, how: How) {
        let own = state.hands[hand];
        let event = match own.stage {
            Stage::Settle(event) => event,
            _ => Event::Authorised,
        };
        let change = Change {
            event,
            expect: own.status,
            fence: Some(own.fresh),
        };
        let outcome = state.rows.apply(self.guards, change);
        if how == How::AnswerLost {
            return;
        }
        let capturing = Hand {
            stage: Stage::Capture,
            status: OrderStatus::Capturing,
            ..own
        };
        state.hands[hand] = if outcome == Outcome::Stale {
            let found = state.rows.status;
            if !own.fresh {
                self.pass(Landmark::Overtaken);
            }
            // Fences are numbers there; here one is the order's own or an older one.
            let (fence, ours) = (1, i32::from(own.fresh));
            if event == Event::Authorised && plan::capture_is_ours(found, fence, ours) {
                capturing
            } else {
                match plan::owed(found, event) {
                    Some(Owed::Refund) => Hand::without_claim(Stage::OweRefund { told: false }, own.attempt),
                    Some(Owed::Void) => Hand::without_claim(Stage::OweVoid { told: false }, own.attempt),
                    None => Hand::IDLE,
                }
            }
        } else if event == Event::Authorised {
            capturing
        } else {
            Hand::IDLE
        };
    }
}

fn stage_of(next: &Next) -> Stage {
    match next {
        Next::Capture => Stage::Authorise,
        Next::Settle { event, .. } => Stage::Settle(*event),
        Next::Void | Next::Unknown => Stage::Doubt,
    }
}

fn resolved(own: Hand, learned: &Resolved) -> Hand {
    match learned {
        Resolved::MoneyCame => own.at(Stage::MoneyCame),
        Resolved::NoMoney { status, .. } => own.at(Stage::NoMoney(*status)),
        Resolved::Void => own.at(Stage::ResolveVoid),
        Resolved::Later { .. } => Hand::IDLE,
    }
}

fn void(account: &mut Account, how: How, kept: bool) -> VoidOutcome {
    match how {
        How::Well => return account.void(kept),
        How::AnswerLost => drop(account.void(kept)),
        How::Late => account.void_under_way = true,
        How::Unreachable => {}
    }
    VoidOutcome::Unreachable { what: String::new() }
}
