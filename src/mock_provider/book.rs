//! The provider's own book: every charge, void and refund by reference. Pure: it knows no clock and no sockets.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;
use sha2::{Digest, Sha256};

/// Where a charge stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Under way.
    Pending,
    /// The money is set aside, and taken by a capture.
    Authorised,
    /// The money was taken.
    Succeeded,
    /// Refused; final.
    Declined,
    /// It can't succeed any more.
    Voided,
}

/// A charge, or the place of one that was voided before it came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Charge {
    /// The customer's name for it.
    pub reference: String,
    /// Where it stands.
    pub status: Status,
    /// Why it was declined.
    pub decline_code: Option<&'static str>,
    /// Its amount; 0 for one that never came.
    pub amount_minor: i64,
    /// Its currency; empty for one that never came.
    pub currency: String,
    /// How often it was asked for.
    pub requests: u32,
    /// What of it was paid back.
    pub refunded_minor: i64,
    /// The money is taken as soon as it is there; otherwise it waits for a capture.
    #[serde(skip)]
    pub capture: bool,
}

/// A refund.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refund {
    /// The customer's name for it.
    pub reference: String,
    /// The charge that it pays back.
    pub charge: String,
    /// Its amount.
    pub amount_minor: i64,
}

/// Sums over the book.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Requests to charge, repeats included.
    pub charge_requests: u64,
    /// Charges that took money.
    pub succeeded: u64,
    /// Charges that were declined.
    pub declined: u64,
    /// Money taken.
    pub captured_minor: i64,
    /// Money paid back.
    pub refunded_minor: i64,
}

/// What a request to charge meets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// It is new: decide it after a while.
    New,
    /// It was asked for before: this is it, maybe still pending.
    Known(Charge),
    /// Another amount or currency under the same reference.
    Contradiction,
}

/// What a refund meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refunded {
    /// Paid back, now or before.
    Done,
    /// No such charge took money.
    NoCharge,
    /// More than was taken, or another amount than before.
    TooMuch,
}

/// A page of the book, to be read by whoever audits.
#[derive(Debug, Serialize)]
pub struct Page<'a> {
    /// Charges.
    pub charges: Vec<&'a Charge>,
    /// Refunds.
    pub refunds: Vec<&'a Refund>,
    /// References that were voided.
    pub voids: Vec<&'a str>,
    /// Sums over what is shown.
    pub totals: Totals,
}

/// All that has ever been asked of the provider.
#[derive(Debug, Default)]
pub struct Book {
    charges: BTreeMap<String, Charge>,
    refunds: BTreeMap<String, Refund>,
    /// Voids that were confirmed and will not be kept (a fault).
    ignored_voids: HashSet<String>,
}

/// Whether this reference is declined: a pure function of seed and reference, so that a run can be repeated.
pub fn declines(seed: u64, reference: &str, percent: u8) -> bool {
    roll(seed, "decline", reference) < percent
}

/// A number from 0 to 99 that depends on nothing but its arguments.
pub fn roll(seed: u64, purpose: &str, reference: &str) -> u8 {
    let hash = Sha256::new_with_prefix(seed.to_le_bytes())
        .chain_update(purpose)
        .chain_update(reference)
        .finalize();
    (u16::from_le_bytes([hash[0], hash[1]]) % 100) as u8
}

impl Book {
    /// A request to charge.
    pub fn begin(&mut self, reference: &str, amount_minor: i64, currency: &str, capture: bool) -> Begun {
        if let Some(charge) = self.charges.get_mut(reference) {
            charge.requests += 1;
            let tombstone = charge.currency.is_empty();
            if !tombstone && (charge.amount_minor != amount_minor || charge.currency != currency) {
                return Begun::Contradiction;
            }
            return Begun::Known(charge.clone());
        }
        self.charges.insert(
            reference.to_owned(),
            Charge {
                reference: reference.to_owned(),
                status: Status::Pending,
                decline_code: None,
                amount_minor,
                currency: currency.to_owned(),
                requests: 1,
                refunded_minor: 0,
                capture,
            },
        );
        Begun::New
    }

    /// Decides a charge that is under way. One that was voided meanwhile stays so (unless the void was one that isn't kept).
    pub fn decide(&mut self, reference: &str, declined: bool) -> Option<Charge> {
        let charge = self.charges.get_mut(reference)?;
        let ignored = self.ignored_voids.remove(reference) && charge.status == Status::Voided;
        if charge.status == Status::Pending || ignored {
            charge.status = match (declined, charge.capture) {
                (true, _) => Status::Declined,
                (false, true) => Status::Succeeded,
                (false, false) => Status::Authorised,
            };
            charge.decline_code = declined.then_some("insufficient_funds");
        }
        Some(charge.clone())
    }

    /// A charge by its reference.
    pub fn charge(&self, reference: &str) -> Option<&Charge> {
        self.charges.get(reference)
    }

    /// Takes what was set aside, once. Returns the charge as it is then, whatever it is.
    pub fn capture(&mut self, reference: &str) -> Option<Charge> {
        let charge = self.charges.get_mut(reference)?;
        if charge.status == Status::Authorised {
            charge.status = Status::Succeeded;
        }
        Some(charge.clone())
    }

    /// Makes sure that a charge can't succeed any more, if it hasn't; also one that was never seen. With `ignored`, a charge under
    /// way will succeed all the same.
    pub fn void(&mut self, reference: &str, ignored: bool) -> Charge {
        let charge = self
            .charges
            .entry(reference.to_owned())
            .or_insert_with(|| Charge {
                reference: reference.to_owned(),
                status: Status::Voided,
                decline_code: None,
                amount_minor: 0,
                currency: String::new(),
                requests: 0,
                refunded_minor: 0,
                capture: true,
            });
        let under_way = charge.status == Status::Pending;
        if under_way || charge.status == Status::Authorised {
            charge.status = Status::Voided;
            if ignored && under_way {
                self.ignored_voids.insert(reference.to_owned());
            }
        }
        charge.clone()
    }

    /// Pays back.
    pub fn refund(&mut self, charge: &str, reference: &str, amount_minor: i64) -> Refunded {
        if let Some(before) = self.refunds.get(reference) {
            let same = before.charge == charge && before.amount_minor == amount_minor;
            return if same { Refunded::Done } else { Refunded::TooMuch };
        }
        let Some(charge) = self
            .charges
            .get_mut(charge)
            .filter(|charge| charge.status == Status::Succeeded)
        else {
            return Refunded::NoCharge;
        };
        if amount_minor <= 0 || charge.refunded_minor + amount_minor > charge.amount_minor {
            return Refunded::TooMuch;
        }
        charge.refunded_minor += amount_minor;
        let refund = Refund {
            reference: reference.to_owned(),
            charge: charge.reference.clone(),
            amount_minor,
        };
        self.refunds.insert(reference.to_owned(), refund);
        Refunded::Done
    }

    /// What is under references that start with `prefix`.
    pub fn page(&self, prefix: &str) -> Page<'_> {
        let starts = |key: &String| key.starts_with(prefix);
        let mut page = Page {
            charges: Vec::new(),
            refunds: Vec::new(),
            voids: Vec::new(),
            totals: Totals::default(),
        };
        for (_, charge) in self
            .charges
            .range(prefix.to_owned()..)
            .take_while(|(key, _)| starts(key))
        {
            page.totals.charge_requests += u64::from(charge.requests);
            match charge.status {
                Status::Succeeded => {
                    page.totals.succeeded += 1;
                    page.totals.captured_minor += charge.amount_minor;
                }
                Status::Declined => page.totals.declined += 1,
                Status::Voided => page.voids.push(&charge.reference),
                Status::Pending | Status::Authorised => {}
            }
            page.charges.push(charge);
        }
        for (_, refund) in self
            .refunds
            .range(prefix.to_owned()..)
            .take_while(|(key, _)| starts(key))
        {
            page.totals.refunded_minor += refund.amount_minor;
            page.refunds.push(refund);
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_charged_once() {
        let mut book = Book::default();
        assert_eq!(book.begin("a:1", 100, "EUR", true), Begun::New);
        assert!(
            matches!(book.begin("a:1", 100, "EUR", true), Begun::Known(c) if c.status == Status::Pending)
        );
        assert_eq!(book.begin("a:1", 200, "EUR", true), Begun::Contradiction);
        assert_eq!(book.decide("a:1", false).unwrap().status, Status::Succeeded);
        assert_eq!(
            book.decide("a:1", true).unwrap().status,
            Status::Succeeded,
            "decided is decided"
        );
        assert_eq!(book.page("").totals.captured_minor, 100);
    }

    #[test]
    fn a_void_holds_before_during_and_not_after() {
        let mut book = Book::default();
        assert_eq!(book.void("before:1", false).status, Status::Voided);
        assert!(
            matches!(book.begin("before:1", 1, "EUR", true), Begun::Known(c) if c.status == Status::Voided)
        );
        book.begin("during:1", 1, "EUR", true);
        assert_eq!(book.void("during:1", false).status, Status::Voided);
        assert_eq!(book.decide("during:1", false).unwrap().status, Status::Voided);
        book.begin("after:1", 1, "EUR", true);
        book.decide("after:1", false);
        assert_eq!(book.void("after:1", false).status, Status::Succeeded);
    }

    #[test]
    fn what_is_set_aside_is_captured_once_or_let_go() {
        let mut book = Book::default();
        for reference in ["taken:1", "left:1"] {
            book.begin(reference, 100, "EUR", false);
            assert_eq!(book.decide(reference, false).unwrap().status, Status::Authorised);
        }
        assert_eq!(book.page("").totals.captured_minor, 0);
        for _ in 0..2 {
            assert_eq!(book.capture("taken:1").unwrap().status, Status::Succeeded);
        }
        assert_eq!(book.void("taken:1", false).status, Status::Succeeded);
        assert_eq!(book.void("left:1", false).status, Status::Voided);
        assert_eq!(book.capture("left:1").unwrap().status, Status::Voided);
        assert_eq!(book.capture("never:1"), None);
        assert_eq!(book.page("").totals.captured_minor, 100);
    }

    #[test]
    fn a_void_that_is_not_kept_lets_the_charge_through() {
        let mut book = Book::default();
        book.begin("a:1", 1, "EUR", true);
        assert_eq!(book.void("a:1", true).status, Status::Voided);
        assert_eq!(book.decide("a:1", false).unwrap().status, Status::Succeeded);
    }

    #[test]
    fn refunds_are_idempotent_and_bounded() {
        let mut book = Book::default();
        assert_eq!(book.refund("a:1", "a:1:refund", 1), Refunded::NoCharge);
        book.begin("a:1", 100, "EUR", true);
        book.decide("a:1", false);
        assert_eq!(book.refund("a:1", "r1", 60), Refunded::Done);
        assert_eq!(book.refund("a:1", "r1", 60), Refunded::Done);
        assert_eq!(book.refund("a:1", "r1", 50), Refunded::TooMuch);
        assert_eq!(book.refund("a:1", "r2", 60), Refunded::TooMuch);
        assert_eq!(book.page("").totals.refunded_minor, 60);
    }

    #[test]
    fn declines_are_a_function_of_seed_and_reference() {
        let share = (0..1000).filter(|n| declines(7, &n.to_string(), 20)).count();
        assert!((150..250).contains(&share), "{share}");
        assert_eq!(declines(7, "x", 20), declines(7, "x", 20));
        assert!(!declines(7, "x", 0) && declines(7, "x", 100));
    }
}
