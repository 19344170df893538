//! Orders' money, held against the provider's book page by page.

use std::collections::{HashMap, HashSet};

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::{Error, Reconciler, Report};
use crate::domain::reconcile::money::{Dossier, charge_of_no_order};
use crate::domain::reconcile::{Finding, Found};
use crate::domain::{BookEntry, ChargeName, OrderId};
use crate::store::Which;

/// Before every order.
pub(super) const FIRST: OrderId = OrderId(Uuid::nil());
/// Orders per page.
const PAGE: i64 = 1_000;

/// The provider's book, by order.
pub(super) struct Book {
    of_orders: HashMap<OrderId, Vec<BookEntry>>,
    /// Charges whose names aren't ours.
    strangers: Vec<BookEntry>,
}

impl Book {
    pub(super) fn of(entries: Vec<BookEntry>) -> Self {
        let mut of_orders: HashMap<OrderId, Vec<BookEntry>> = HashMap::new();
        let mut strangers = Vec::new();
        for entry in entries {
            match ChargeName::parse(&entry.reference) {
                Some(name) => of_orders.entry(name.order).or_default().push(entry),
                None => strangers.push(entry),
            }
        }
        Self { of_orders, strangers }
    }

    /// The orders that its charges name.
    pub(super) fn orders(&self) -> impl Iterator<Item = OrderId> {
        self.of_orders.keys().copied()
    }

    /// What it has under names that aren't ours.
    pub(super) fn strangers(&self) -> Found {
        Found {
            findings: self.strangers.iter().filter_map(charge_of_no_order).collect(),
            in_flight: 0,
        }
    }

    fn entries(&self, order: OrderId) -> Vec<&BookEntry> {
        self.of_orders.get(&order).into_iter().flatten().collect()
    }
}

/// How far a walk goes, and which of its orders are held against the book.
#[derive(Debug, Clone, Copy)]
pub(super) enum Scope {
    /// To the end, and all of them.
    Everything,
    /// So many orders at most, and those that were made since then: of older ones the book may not tell.
    Some { orders: u64, since: Timestamp },
}

/// What a walk has found.
#[derive(Default)]
pub(super) struct Walked {
    pub(super) found: Found,
    pub(super) orders: u64,
    /// The orders that were there.
    pub(super) seen: HashSet<OrderId>,
    /// Where the next walk goes on; `None` at the end.
    pub(super) next: Option<Which>,
}

impl Reconciler {
    /// Goes through orders, page by page. Each page is of one instant.
    pub(super) async fn walk(
        &self,
        start: Which,
        scope: Scope,
        book: Option<&Book>,
    ) -> Result<Walked, Error> {
        let mut walked = Walked::default();
        let mut next = Some(start);
        while let Some(which) = next.take() {
            if let Scope::Some { orders, .. } = scope
                && walked.orders >= orders
            {
                walked.next = Some(which);
                break;
            }
            let (page, after) = self.store.dossiers(&which, PAGE).await?;
            for dossier in page {
                walked.orders += 1;
                walked.found.merge(compare(&dossier, book, scope));
                walked.seen.insert(dossier.order);
            }
            next = after;
        }
        Ok(walked)
    }

    /// Charges of the book whose orders no walk has come by: made meanwhile, or never.
    pub(super) async fn look_at_the_rest(
        &self,
        book: &Book,
        seen: &HashSet<OrderId>,
    ) -> Result<Found, Error> {
        let rest: Vec<OrderId> = book.orders().filter(|order| !seen.contains(order)).collect();
        let mut found = self.look_at_these(&rest, Some(book), Scope::Everything).await?;
        found.merge(book.strangers());
        Ok(found)
    }

    /// These orders, and the charges of those that don't exist.
    pub(super) async fn look_at_these(
        &self,
        orders: &[OrderId],
        book: Option<&Book>,
        scope: Scope,
    ) -> Result<Found, Error> {
        let mut found = Found::default();
        for orders in orders.chunks(PAGE as usize) {
            let (page, _) = self.store.dossiers(&Which::These(orders.to_vec()), PAGE).await?;
            let there: HashSet<OrderId> = page.iter().map(|dossier| dossier.order).collect();
            for dossier in &page {
                found.merge(compare(dossier, book, scope));
            }
            for order in orders.iter().filter(|order| !there.contains(order)) {
                let charges = book.and_then(|book| book.of_orders.get(order));
                found
                    .findings
                    .extend(charges.into_iter().flatten().filter_map(charge_of_no_order));
            }
        }
        Ok(found)
    }

    /// Only what a second look finds as well is a difference: the book was read before the orders, and they have moved since. Should the
    /// provider be away by now, what Postgres says of itself is told all the same.
    pub(super) async fn look_again(
        &self,
        mut found: Found,
        with_book: bool,
        since: Option<Timestamp>,
        report: &mut Report,
    ) -> Result<Found, Error> {
        if found.findings.is_empty() {
            return Ok(found);
        }
        let book = if with_book {
            self.read_book(since, report).await
        } else {
            None
        };
        let suspects: HashSet<OrderId> = found.findings.iter().filter_map(order_of).collect();
        let suspects: Vec<OrderId> = suspects.into_iter().collect();
        let scope = since.map_or(Scope::Everything, |since| Scope::Some {
            orders: u64::MAX,
            since: since + MARGIN,
        });
        let mut again: Vec<Finding> = self
            .look_at_these(&suspects, book.as_ref(), scope)
            .await?
            .findings;
        if let Some(book) = &book {
            again.extend(book.strangers().findings);
        }
        let again: HashSet<_> = again
            .iter()
            .map(|f| (f.kind, f.of.as_str(), f.what.as_str()))
            .collect();
        let before = found.findings.len();
        found
            .findings
            .retain(|f| again.contains(&(f.kind, f.of.as_str(), f.what.as_str())));
        found.in_flight += (before - found.findings.len()) as u64;
        Ok(found)
    }
}

/// How far the provider's clock may be behind the database's.
pub(super) const MARGIN: SignedDuration = SignedDuration::from_mins(10);

fn compare(dossier: &Dossier, book: Option<&Book>, scope: Scope) -> Found {
    let tells = match scope {
        Scope::Everything => true,
        Scope::Some { since, .. } => dossier.created_at >= since,
    };
    let entries = book.filter(|_| tells).map(|book| book.entries(dossier.order));
    dossier.differences(entries.as_deref())
}

/// The order that a finding about money is about.
pub(super) fn order_of(finding: &Finding) -> Option<OrderId> {
    let name = finding
        .of
        .strip_prefix("order ")
        .or_else(|| finding.of.strip_prefix("charge "))?;
    name.parse()
        .ok()
        .or_else(|| ChargeName::parse(name).map(|charge| charge.order))
}

/// The first id that an order which was made at `time` can have: ids begin with the time, in milliseconds.
pub(super) fn first_made_at(time: Timestamp) -> OrderId {
    let millis = u128::from(time.as_millisecond().max(0).unsigned_abs());
    OrderId(Uuid::from_u128(millis << 80))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_made_after_an_instant_come_after_its_first() {
        let before = Timestamp::now() - SignedDuration::from_secs(1);
        let fresh = OrderId::fresh();
        assert!(first_made_at(before) < fresh);
        assert!(first_made_at(Timestamp::now() + SignedDuration::from_secs(1)) > fresh);
    }

    #[test]
    fn findings_name_their_orders() {
        let order = OrderId::fresh();
        let finding = |of: String| Finding {
            kind: crate::domain::reconcile::Kind::Ledger,
            sale: None,
            of,
            what: String::new(),
            repair: None,
        };
        assert_eq!(order_of(&finding(format!("order {order}"))), Some(order));
        assert_eq!(order_of(&finding(format!("charge {order}:1"))), Some(order));
        assert_eq!(order_of(&finding("charge a stranger's".to_owned())), None);
    }
}
