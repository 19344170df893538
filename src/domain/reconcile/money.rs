//! An order's money: its payments, ledger, refunds and owed work against each other, and against the provider's book.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::{Finding, Found, Kind, Repair};
use crate::domain::{
    Account, BookEntry, ChargeName, Currency, OrderId, OrderStatus, PaymentStatus, SaleId, ledger,
};

/// All that Postgres has of an order's money. All of one instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dossier {
    /// The order.
    pub order: OrderId,
    /// Its sale.
    pub sale: SaleId,
    /// When it was made, by the database's clock.
    pub created_at: Timestamp,
    /// Where it stands.
    pub status: OrderStatus,
    /// The attempt that counts; 0 before the first.
    pub attempt: i32,
    /// What it costs.
    pub amount_minor: i64,
    /// In which currency.
    pub currency: Currency,
    /// It has given its units back, by the stock entries.
    pub released: bool,
    /// The gate is still to be told of that.
    pub release_noted: bool,
    /// Each attempt at charging it.
    pub payments: Vec<Payment>,
    /// Its rows in the ledger.
    pub movements: Vec<Movement>,
    /// Refunds that were asked for.
    pub refunds: Vec<Refund>,
    /// Work that somebody will do.
    pub tasks: Vec<Owed>,
    /// Work that is out of tries.
    pub dead_letters: Vec<Owed>,
    /// The provider has told something of it that isn't applied yet.
    pub events_due: bool,
}

/// An attempt at charging an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payment {
    /// Which.
    pub attempt: i32,
    /// Where it stands.
    pub status: PaymentStatus,
    /// What of it was promised back.
    pub promised_minor: i64,
}

/// A row of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Movement {
    /// Of which charge.
    pub attempt: i32,
    /// Money paid back, and by which refund; `None`: money taken.
    pub refund: Option<i32>,
    /// How much.
    pub amount_minor: i64,
    /// In which currency.
    pub currency: Currency,
}

/// A refund that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refund {
    /// Of which charge.
    pub attempt: i32,
    /// Its number.
    pub number: i32,
    /// How much.
    pub amount_minor: i64,
    /// The provider has paid it.
    pub done: bool,
}

/// Work for the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owed {
    /// Of which charge.
    pub attempt: i32,
    /// Which refund is to be paid, 0 for money that came too late; `None`: the question what became of the charge.
    pub refund: Option<i32>,
}

impl Dossier {
    /// Whether something is under way, so that the provider may be a step ahead of the rows, or a step behind.
    pub fn is_on_its_way(&self) -> bool {
        self.status.is_open() || !self.tasks.is_empty() || self.events_due
    }

    /// What the rows say against each other, and against what the provider's book has of this order. `None`: the book couldn't be read.
    pub fn differences(&self, book: Option<&[&BookEntry]>) -> Found {
        let mut found = Found::default();
        self.compare_stock(&mut found);
        self.compare_payments(&mut found);
        self.compare_refunds(&mut found);
        let explained = !self.dead_letters.is_empty()
            || found.findings.iter().any(|finding| {
                let money = !matches!(finding.kind, Kind::ReleaseEntry | Kind::ReleaseNote);
                money && finding.repair.is_some()
            });
        if self.is_on_its_way() {
            // What the provider has of it is left alone.
            found.in_flight += 1;
        } else if !explained {
            self.compare_ledger(&mut found);
            if let Some(book) = book {
                self.compare_book(book, &mut found);
            }
        }
        found
    }

    fn finding(&self, kind: Kind, what: String, repair: Option<Repair>) -> Finding {
        Finding {
            kind,
            sale: Some(self.sale),
            of: format!("order {}", self.order),
            what,
            repair,
        }
    }

    fn has_work(&self, work: Owed) -> bool {
        self.tasks.contains(&work) || self.dead_letters.contains(&work)
    }

    fn payment(&self, attempt: i32) -> Option<&Payment> {
        self.payments.iter().find(|payment| payment.attempt == attempt)
    }

    /// What the ledger has of a charge: taken, and paid back.
    fn booked_here(&self, attempt: i32) -> (i64, i64) {
        let sum = |back: bool| {
            let of = self
                .movements
                .iter()
                .filter(|m| m.attempt == attempt && m.refund.is_some() == back);
            of.map(|m| m.amount_minor).sum()
        };
        (sum(false), sum(true))
    }

    fn compare_stock(&self, found: &mut Found) {
        let Self { status, released, .. } = *self;
        let wrong = match status {
            OrderStatus::Failed => !released,
            OrderStatus::Refunded => false,
            _ => released,
        };
        if wrong {
            let what = if released {
                format!("it is {status}, and its units went back")
            } else {
                format!("it is {status}, and its units never went back")
            };
            found.findings.push(self.finding(Kind::ReleaseEntry, what, None));
        }
        if self.release_noted && !released {
            let what =
                format!("it is {status} and holds its units, and the gate is to be told to release it");
            // One that is over, and whose entry is missing, is for a person: the note may be right.
            let repair = (status != OrderStatus::Failed).then_some(Repair::DropNote { order: self.order });
            found.findings.push(self.finding(Kind::ReleaseNote, what, repair));
        }
    }

    fn compare_payments(&self, found: &mut Found) {
        use OrderStatus as S;
        use PaymentStatus as P;

        let Self { status, attempt, .. } = *self;
        let current = self.payment(attempt).map(|payment| payment.status);
        let fits = match (status, current) {
            (S::Pending | S::Failed, None) => attempt == 0,
            (S::Processing, Some(P::Initiated | P::InDoubt))
            | (S::Capturing, Some(P::Authorised))
            | (S::Paid | S::Refunded, Some(P::Succeeded))
            | (S::Failed, Some(_)) => true,
            _ => false,
        };
        if !fits {
            let current = current.map_or("nothing", P::as_sql);
            let what = format!("it is {status} at attempt {attempt}, and that payment is {current}");
            found.findings.push(self.finding(Kind::PaymentStatus, what, None));
        }
        for payment in &self.payments {
            // Lost are all payments of an order that failed, and those of attempts that don't count.
            if status == S::Failed || payment.attempt != attempt {
                self.compare_lost_payment(*payment, found);
            }
        }
    }

    fn compare_lost_payment(&self, payment: Payment, found: &mut Found) {
        use PaymentStatus as P;

        let (order, attempt) = (self.order, payment.attempt);
        let (charged, refunded) = self.booked_here(attempt);
        let ask = Owed {
            attempt,
            refund: None,
        };
        let pay_back = Owed {
            attempt,
            refund: Some(0),
        };
        let status = payment.status.as_sql();
        let finding = match payment.status {
            P::Initiated | P::InDoubt | P::Authorised if !self.has_work(ask) => self.finding(
                Kind::UnresolvedPayment,
                format!(
                    "it is {}, payment {attempt} is {status}, and nobody is told to ask what became of it",
                    self.status
                ),
                Some(Repair::Ask { order, attempt }),
            ),
            P::RefundDue if !self.has_work(pay_back) => self.finding(
                Kind::RefundWork,
                format!("{charged} came too late for it and are due back, and nobody is told to pay them"),
                Some(Repair::PayBack {
                    order,
                    attempt,
                    refund: 0,
                }),
            ),
            // The books have taken money for an order that came to nothing. Where the ledger has the charge and nothing was promised back
            // of it, all of it is due.
            P::Succeeded => {
                let untouched = charged > 0 && refunded == 0 && payment.promised_minor == 0;
                self.finding(
                    Kind::RefundWork,
                    format!(
                        "it is {}, payment {attempt} is {status} with {charged} taken and {refunded} paid back, and nobody is told to pay it back",
                        self.status
                    ),
                    untouched.then_some(Repair::PayBackLate { order, attempt }),
                )
            }
            _ => return,
        };
        found.findings.push(finding);
    }

    fn compare_refunds(&self, found: &mut Found) {
        for refund in self.refunds.iter().filter(|refund| !refund.done) {
            let Refund {
                attempt,
                number,
                amount_minor,
                ..
            } = *refund;
            let work = Owed {
                attempt,
                refund: Some(number),
            };
            if !self.has_work(work) {
                let what = format!(
                    "{amount_minor} were promised back by refund {number}, and nobody is told to pay them"
                );
                let repair = Repair::PayBack {
                    order: self.order,
                    attempt,
                    refund: number,
                };
                found
                    .findings
                    .push(self.finding(Kind::RefundWork, what, Some(repair)));
            }
        }
        for payment in &self.payments {
            let promised: i64 = self
                .refunds
                .iter()
                .filter(|refund| refund.attempt == payment.attempt)
                .map(|refund| refund.amount_minor)
                .sum();
            if promised != payment.promised_minor {
                let what = format!(
                    "payment {} has promised {} back, and its refunds add up to {promised}",
                    payment.attempt, payment.promised_minor
                );
                found.findings.push(self.finding(Kind::RefundPromise, what, None));
            }
        }
        for letter in &self.dead_letters {
            let what = match letter.refund {
                None => format!(
                    "the question what became of charge {} is out of tries",
                    letter.attempt
                ),
                Some(number) => format!("refund {number} of charge {} is out of tries", letter.attempt),
            };
            found.findings.push(self.finding(Kind::DeadLetter, what, None));
        }
    }

    fn compare_ledger(&self, found: &mut Found) {
        // The charge that counts must be what the order makes of it; of the others nothing must be left.
        let (charged_minor, refunded_minor) = self.booked_here(self.attempt);
        let account = Account {
            order: self.order,
            sale: self.sale,
            status: Some(self.status),
            amount_minor: self.amount_minor,
            currency: self.currency,
            foreign_currency: self.movements.iter().any(|m| m.currency != self.currency),
            charged_minor,
            refunded_minor,
            movements: self.movements.len() as i64,
            owed: !self.tasks.is_empty(),
        };
        let others: BTreeSet<i32> = self.movements.iter().map(|m| m.attempt).collect();
        for attempt in others.into_iter().filter(|attempt| *attempt != self.attempt) {
            let (charged, refunded) = self.booked_here(attempt);
            if charged != refunded {
                let what = format!(
                    "charge {attempt} doesn't count, and the ledger has {charged} taken for it and {refunded} paid back"
                );
                found.findings.push(self.finding(Kind::Ledger, what, None));
            }
        }
        for what in ledger::against_its_order(&account) {
            found.findings.push(self.finding(Kind::Ledger, what, None));
        }
        for refund in self.refunds.iter().filter(|refund| refund.done) {
            let Refund { attempt, number, .. } = *refund;
            let there = |m: &Movement| m.attempt == attempt && m.refund == Some(number);
            if !self.movements.iter().any(there) {
                let what = format!("refund {number} is paid, and the ledger doesn't have it");
                found.findings.push(self.finding(Kind::Ledger, what, None));
            }
        }
    }

    fn compare_book(&self, book: &[&BookEntry], found: &mut Found) {
        // A charge that was opened twice is there twice under one name, and only one of the two may have come to something.
        let mut there: BTreeMap<i32, BookEntry> = BTreeMap::new();
        for entry in book {
            let Some(name) = ChargeName::parse(&entry.reference) else {
                continue;
            };
            there
                .entry(name.attempt)
                .and_modify(|sum| {
                    sum.captured_minor += entry.captured_minor;
                    sum.refunded_minor += entry.refunded_minor;
                    sum.authorised_minor += entry.authorised_minor;
                })
                .or_insert_with(|| (*entry).clone());
        }
        let attempts: BTreeSet<i32> = self
            .payments
            .iter()
            .map(|payment| payment.attempt)
            .chain(there.keys().copied())
            .collect();
        for attempt in attempts {
            if let Some((kind, what, repair)) = self.compare_charge(attempt, there.get(&attempt)) {
                found.findings.push(self.finding(kind, what, repair));
            }
        }
    }

    fn compare_charge(
        &self,
        attempt: i32,
        entry: Option<&BookEntry>,
    ) -> Option<(Kind, String, Option<Repair>)> {
        let (charged, refunded) = self.booked_here(attempt);
        let (captured, paid_back, authorised) = entry.map_or((0, 0, 0), |entry| {
            (entry.captured_minor, entry.refunded_minor, entry.authorised_minor)
        });
        if (charged, refunded, 0) == (captured, paid_back, authorised) {
            let foreign = captured > 0 && entry.is_some_and(|entry| entry.currency != Some(self.currency));
            return foreign.then(|| {
                let what = format!("the provider hasn't taken charge {attempt} in {}", self.currency);
                (Kind::BookAmount, what, None)
            });
        }
        let Some(payment) = self.payment(attempt) else {
            let what = format!(
                "the provider has a charge {attempt} of {captured} taken and {authorised} set aside that was never begun here"
            );
            return Some((Kind::UnknownCharge, what, None));
        };
        // The worker finds out at the provider, and owes back what was taken, or lets go of what is set aside.
        let lost = self.status == OrderStatus::Failed || payment.attempt != self.attempt;
        let ask = (lost && charged == 0).then_some(Repair::Ask {
            order: self.order,
            attempt,
        });
        let (kind, what, repair) = if authorised > 0 {
            let what = format!(
                "it is {}, and the provider has {authorised} set aside for charge {attempt}",
                self.status
            );
            (Kind::AuthorisedForNobody, what, ask)
        } else if charged == 0 && captured > 0 {
            let what = format!(
                "it is {}, and the provider has {captured} taken and {paid_back} paid back for charge {attempt}, which the ledger doesn't know",
                self.status
            );
            // What the provider has paid back already isn't for the worker to pay again.
            (Kind::ChargeOfNobody, what, ask.filter(|_| paid_back == 0))
        } else if captured == 0 && charged > 0 {
            let what =
                format!("the ledger has {charged} taken for charge {attempt}, and the provider has nothing");
            (Kind::MissingCharge, what, None)
        } else if captured == charged && paid_back > refunded {
            let what = format!(
                "the provider has paid back {paid_back} of charge {attempt}, and the ledger {refunded}"
            );
            (Kind::UnknownRefund, what, None)
        } else {
            let what = format!(
                "charge {attempt} is {charged} taken and {refunded} paid back in the ledger, and {captured} and {paid_back} at the provider"
            );
            (Kind::BookAmount, what, None)
        };
        Some((kind, what, repair))
    }
}

/// The finding of a charge in the provider's book that belongs to no order of ours, if it took or holds money.
pub fn charge_of_no_order(entry: &BookEntry) -> Option<Finding> {
    let BookEntry {
        captured_minor,
        refunded_minor,
        authorised_minor,
        ..
    } = *entry;
    (captured_minor != 0 || refunded_minor != 0 || authorised_minor != 0).then(|| Finding {
        kind: Kind::UnknownCharge,
        sale: None,
        of: format!("charge {}", entry.reference),
        what: format!(
            "the provider has {captured_minor} taken, {authorised_minor} set aside and {refunded_minor} paid back for no order of ours"
        ),
        repair: None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn eur() -> Currency {
        Currency::parse("EUR").unwrap()
    }

    fn dossier(status: OrderStatus, payment: Option<PaymentStatus>) -> Dossier {
        let charge = |minor| Movement {
            attempt: 1,
            refund: None,
            amount_minor: minor,
            currency: eur(),
        };
        let has_money = matches!(
            payment,
            Some(PaymentStatus::Succeeded | PaymentStatus::RefundDue | PaymentStatus::Refunded)
        );
        let mut movements: Vec<Movement> = has_money.then(|| charge(100)).into_iter().collect();
        if payment == Some(PaymentStatus::Refunded) {
            movements.push(Movement {
                refund: Some(0),
                ..charge(100)
            });
        }
        Dossier {
            order: OrderId::fresh(),
            sale: SaleId::fresh(),
            created_at: Timestamp::UNIX_EPOCH,
            status,
            attempt: i32::from(payment.is_some()),
            amount_minor: 100,
            currency: eur(),
            released: status == OrderStatus::Failed,
            release_noted: false,
            payments: payment
                .map(|status| Payment {
                    attempt: 1,
                    status,
                    promised_minor: 0,
                })
                .into_iter()
                .collect(),
            movements,
            refunds: Vec::new(),
            tasks: Vec::new(),
            dead_letters: Vec::new(),
            events_due: false,
        }
    }

    fn entry(of: &Dossier, attempt: i32, captured: i64, refunded: i64, authorised: i64) -> BookEntry {
        BookEntry {
            reference: format!("{}:{attempt}", of.order),
            captured_minor: captured,
            refunded_minor: refunded,
            authorised_minor: authorised,
            currency: Some(eur()),
        }
    }

    fn told(of: &Dossier, book: &[BookEntry]) -> Vec<(Kind, Option<Repair>)> {
        let book: Vec<&BookEntry> = book.iter().collect();
        let found = of.differences(Some(&book));
        found.findings.into_iter().map(|f| (f.kind, f.repair)).collect()
    }

    fn kinds(of: &Dossier, book: &[BookEntry]) -> Vec<Kind> {
        told(of, book).into_iter().map(|(kind, _)| kind).collect()
    }

    /// Each way in which an order can rightly be, with what the provider has of it.
    fn fine() -> Vec<(Dossier, Vec<BookEntry>)> {
        use OrderStatus as S;
        use PaymentStatus as P;
        let mut all = vec![
            (dossier(S::Pending, None), vec![]),
            (dossier(S::Processing, Some(P::Initiated)), vec![]),
            (dossier(S::Processing, Some(P::InDoubt)), vec![]),
            (dossier(S::Capturing, Some(P::Authorised)), vec![]),
            (dossier(S::Failed, None), vec![]),
        ];
        let paid = dossier(S::Paid, Some(P::Succeeded));
        all.push((paid.clone(), vec![entry(&paid, 1, 100, 0, 0)]));
        for status in [P::Declined, P::Voided, P::NotSent] {
            let failed = dossier(S::Failed, Some(status));
            all.push((failed.clone(), vec![entry(&failed, 1, 0, 0, 0)]));
        }
        let late = dossier(S::Failed, Some(P::Refunded));
        all.push((late.clone(), vec![entry(&late, 1, 100, 100, 0)]));
        for (status, minor, returned) in [
            (S::Paid, 40, false),
            (S::Refunded, 100, false),
            (S::Refunded, 100, true),
        ] {
            let mut back = dossier(status, Some(P::Succeeded));
            back.payments[0].promised_minor = minor;
            back.released = returned;
            back.refunds.push(Refund {
                attempt: 1,
                number: 1,
                amount_minor: minor,
                done: true,
            });
            back.movements.push(Movement {
                attempt: 1,
                refund: Some(1),
                amount_minor: minor,
                currency: eur(),
            });
            all.push((back.clone(), vec![entry(&back, 1, 100, minor, 0)]));
        }
        all
    }

    #[test]
    fn what_adds_up_is_no_difference() {
        for (dossier, book) in fine() {
            assert_eq!(told(&dossier, &book), [], "{dossier:?}");
        }
    }

    proptest! {
        /// While an order is open, or work is owed for it, whatever the provider has of it is in flight.
        #[test]
        fn the_provider_is_left_alone_while_something_is_under_way(
            which in 0..13_usize, captured in 0..200_i64, refunded in 0..200_i64, authorised in 0..200_i64, reason in 0..2,
        ) {
            let (mut dossier, _) = fine().swap_remove(which);
            if !dossier.status.is_open() {
                if reason == 0 {
                    dossier.events_due = true;
                } else {
                    dossier.tasks.push(Owed { attempt: 1, refund: Some(7) });
                }
            }
            let book = [entry(&dossier, 1, captured, refunded, authorised)];
            let found = dossier.differences(Some(&[&book[0]]));
            prop_assert_eq!(found.findings, []);
            prop_assert_eq!(found.in_flight, 1);
        }

        /// Whatever the provider has of an order at its end, only the same amounts are no difference, and nothing but a question is ever asked for.
        #[test]
        fn at_its_end_every_cent_is_told(which in 5..13_usize, captured in 0..3_i64, refunded in 0..3_i64, authorised in 0..2_i64) {
            let (dossier, book) = fine().swap_remove(which);
            let other = entry(&dossier, 1, captured * 50, refunded * 50, authorised * 50);
            let same = book.first().is_some_and(|first| *first == other);
            let told = told(&dossier, &[other]);
            prop_assert_eq!(told.is_empty(), same, "{:?}", told);
            for (_, repair) in told {
                let only_asks = matches!(repair, None | Some(Repair::Ask { attempt: 1, .. }));
                prop_assert!(only_asks);
                prop_assert!(repair.is_none() || dossier.status == OrderStatus::Failed);
            }
        }
    }

    #[test]
    fn work_that_is_missing_is_written_down_again() {
        use OrderStatus as S;
        use PaymentStatus as P;
        for status in [P::Initiated, P::InDoubt, P::Authorised] {
            let mut lost = dossier(S::Failed, Some(status));
            let ask = Repair::Ask {
                order: lost.order,
                attempt: 1,
            };
            assert_eq!(told(&lost, &[]), [(Kind::UnresolvedPayment, Some(ask))]);
            lost.tasks.push(Owed {
                attempt: 1,
                refund: None,
            });
            assert_eq!(told(&lost, &[]), []);
        }
        let mut due = dossier(S::Failed, Some(P::RefundDue));
        let book = [entry(&due, 1, 100, 0, 0)];
        let pay_back = Repair::PayBack {
            order: due.order,
            attempt: 1,
            refund: 0,
        };
        assert_eq!(told(&due, &book), [(Kind::RefundWork, Some(pay_back))]);
        due.dead_letters.push(Owed {
            attempt: 1,
            refund: Some(0),
        });
        assert_eq!(told(&due, &book), [(Kind::DeadLetter, None)]);

        let mut promised = dossier(S::Paid, Some(P::Succeeded));
        promised.payments[0].promised_minor = 30;
        promised.refunds.push(Refund {
            attempt: 1,
            number: 2,
            amount_minor: 30,
            done: false,
        });
        let pay_back = Repair::PayBack {
            order: promised.order,
            attempt: 1,
            refund: 2,
        };
        // The provider may have paid it already: asked under the same name it pays nothing more.
        let book = [entry(&promised, 1, 100, 30, 0)];
        assert_eq!(told(&promised, &book), [(Kind::RefundWork, Some(pay_back))]);
    }

    #[test]
    fn money_taken_for_an_order_that_failed_is_due_back_where_the_books_have_it() {
        let mut taken = dossier(OrderStatus::Failed, Some(PaymentStatus::Succeeded));
        let book = [entry(&taken, 1, 100, 0, 0)];
        let late = Repair::PayBackLate {
            order: taken.order,
            attempt: 1,
        };
        assert_eq!(told(&taken, &book), [(Kind::RefundWork, Some(late))]);
        taken.movements.clear();
        assert_eq!(
            told(&taken, &book),
            [
                (Kind::RefundWork, None),
                (
                    Kind::ChargeOfNobody,
                    Some(Repair::Ask {
                        order: taken.order,
                        attempt: 1
                    })
                )
            ]
        );
    }

    #[test]
    fn contradictions_are_for_a_person() {
        use OrderStatus as S;
        use PaymentStatus as P;
        for (status, payment) in [
            (S::Pending, Some(P::Initiated)),
            (S::Processing, None),
            (S::Processing, Some(P::Declined)),
            (S::Capturing, Some(P::Voided)),
        ] {
            assert_eq!(
                told(&dossier(status, payment), &[]),
                [(Kind::PaymentStatus, None)],
                "{status} {payment:?}"
            );
        }
        let mut unpaid = dossier(S::Paid, Some(P::Succeeded));
        let book = [entry(&unpaid, 1, 100, 0, 0)];
        unpaid.movements.clear();
        assert_eq!(kinds(&unpaid, &book), [Kind::Ledger, Kind::ChargeOfNobody]);
        assert!(
            told(&unpaid, &book).iter().all(|(_, repair)| repair.is_none()),
            "a paid order isn't paid back"
        );

        let mut promised = dossier(S::Paid, Some(P::Succeeded));
        promised.payments[0].promised_minor = 1;
        let book = [entry(&promised, 1, 100, 0, 0)];
        assert_eq!(told(&promised, &book), [(Kind::RefundPromise, None)]);
    }

    #[test]
    fn units_and_notes_follow_the_order() {
        use OrderStatus as S;
        use PaymentStatus as P;
        let mut kept = dossier(S::Failed, None);
        kept.released = false;
        assert_eq!(told(&kept, &[]), [(Kind::ReleaseEntry, None)]);
        let mut open = dossier(S::Processing, Some(P::Initiated));
        open.release_noted = true;
        let drop = Repair::DropNote { order: open.order };
        assert_eq!(told(&open, &[]), [(Kind::ReleaseNote, Some(drop))]);
        let mut over = dossier(S::Failed, None);
        over.release_noted = true;
        assert_eq!(told(&over, &[]), [], "that is what notes are for");
    }

    #[test]
    fn a_charge_of_an_attempt_that_does_not_count_is_asked_about() {
        let mut paid = dossier(OrderStatus::Paid, Some(PaymentStatus::Succeeded));
        paid.attempt = 2;
        paid.payments[0].attempt = 2;
        paid.movements[0].attempt = 2;
        paid.payments.push(Payment {
            attempt: 1,
            status: PaymentStatus::Voided,
            promised_minor: 0,
        });
        let ask = Repair::Ask {
            order: paid.order,
            attempt: 1,
        };
        let book = [entry(&paid, 2, 100, 0, 0), entry(&paid, 1, 100, 0, 0)];
        assert_eq!(told(&paid, &book), [(Kind::ChargeOfNobody, Some(ask.clone()))]);
        let book = [entry(&paid, 2, 100, 0, 0), entry(&paid, 1, 0, 0, 100)];
        assert_eq!(told(&paid, &book), [(Kind::AuthorisedForNobody, Some(ask))]);
        let book = [entry(&paid, 2, 100, 0, 0), entry(&paid, 3, 100, 0, 0)];
        assert_eq!(told(&paid, &book), [(Kind::UnknownCharge, None)]);

        // Once it has gone back, all is well; and not before.
        paid.payments[1].status = PaymentStatus::Refunded;
        let movement = Movement {
            attempt: 1,
            ..paid.movements[0]
        };
        paid.movements.push(movement);
        let book = [entry(&paid, 2, 100, 0, 0), entry(&paid, 1, 100, 0, 0)];
        assert_eq!(told(&paid, &book), [(Kind::Ledger, None)]);
        paid.movements.push(Movement {
            refund: Some(0),
            ..movement
        });
        let book = [entry(&paid, 2, 100, 0, 0), entry(&paid, 1, 100, 100, 0)];
        assert_eq!(told(&paid, &book), []);
    }

    #[test]
    fn a_charge_without_money_belongs_to_nobody_and_that_is_fine() {
        let of = dossier(OrderStatus::Pending, None);
        assert_eq!(charge_of_no_order(&entry(&of, 1, 0, 0, 0)), None);
        let found = charge_of_no_order(&entry(&of, 1, 0, 0, 5)).unwrap();
        assert_eq!(
            (found.kind, found.sale, found.repair),
            (Kind::UnknownCharge, None, None)
        );
    }

    #[test]
    fn the_other_currency_is_told() {
        let paid = dossier(OrderStatus::Paid, Some(PaymentStatus::Succeeded));
        let mut foreign = entry(&paid, 1, 100, 0, 0);
        foreign.currency = Currency::parse("USD");
        assert_eq!(kinds(&paid, &[foreign]), [Kind::BookAmount]);
        let mut mixed = dossier(OrderStatus::Paid, Some(PaymentStatus::Succeeded));
        mixed.movements[0].currency = Currency::parse("USD").unwrap();
        let book = [entry(&mixed, 1, 100, 0, 0)];
        assert_eq!(kinds(&mixed, &book), [Kind::Ledger]);
    }
}
