//! Repairs: conditional and idempotent each, so that whoever comes second changes nothing.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use super::{Error, Reconciler};
use crate::domain::reconcile::{Finding, Kind, Outcome, Repair};
use crate::domain::{Buyer, OrderId, SaleId};
use crate::store::Which;

/// Reservations that are given back at a time.
const AT_A_TIME: usize = 1_000;

impl Reconciler {
    /// Repairs what may be repaired, and tells for each finding what became of it. First reservations are given back, then sales loaded anew, each once,
    /// then the work is written down that is missing.
    pub(super) async fn repair(&self, findings: Vec<Finding>) -> Vec<(Finding, Outcome)> {
        let mut orphans: BTreeMap<SaleId, Vec<(OrderId, Buyer, i32)>> = BTreeMap::new();
        let mut over: BTreeMap<SaleId, Vec<OrderId>> = BTreeMap::new();
        for finding in &findings {
            match (finding.sale, &finding.repair) {
                (
                    Some(sale),
                    Some(Repair::GiveBack {
                        order,
                        buyer,
                        quantity,
                    }),
                ) => {
                    let orphan = (*order, buyer.clone(), *quantity);
                    orphans.entry(sale).or_default().push(orphan);
                }
                (Some(sale), Some(Repair::Release { order })) => over.entry(sale).or_default().push(*order),
                _ => {}
            }
        }
        let mut given_back: HashMap<SaleId, bool> = HashMap::new();
        for (sale, orphans) in orphans {
            let done = self.give_all_back(sale, &orphans).await;
            given_back.insert(sale, told(sale, done));
        }
        let mut released: HashMap<SaleId, bool> = HashMap::new();
        for (sale, orders) in over {
            let done = self.gate.release(sale, orders).await;
            released.insert(sale, told(sale, done.map(|_| true)));
        }
        let mut loaded: HashMap<SaleId, bool> = HashMap::new();
        let mut rows = Vec::with_capacity(findings.len());
        for finding in findings {
            let (Some(sale), Some(repair)) = (finding.sale, &finding.repair) else {
                rows.push((finding, Outcome::Left));
                continue;
            };
            let done = match repair {
                Repair::GiveBack { .. } => given_back.get(&sale).copied().unwrap_or(false),
                Repair::Release { .. } => released.get(&sale).copied().unwrap_or(false),
                Repair::Load { stale } => {
                    if let Entry::Vacant(first) = loaded.entry(sale) {
                        first.insert(self.loads.load(sale, *stale).await);
                    }
                    loaded[&sale]
                }
                other => told(sale, self.write_down(&finding, sale, other).await),
            };
            let outcome = if done { Outcome::Repaired } else { Outcome::Left };
            rows.push((finding, outcome));
        }
        rows
    }

    async fn give_all_back(&self, sale: SaleId, orphans: &[(OrderId, Buyer, i32)]) -> Result<bool, Error> {
        for orphans in orphans.chunks(AT_A_TIME) {
            self.gate.give_back(sale, orphans).await?;
        }
        Ok(true)
    }

    /// What is repaired in Postgres. Whether this call or another has done it makes no difference; whether it is done does.
    async fn write_down(&self, finding: &Finding, sale: SaleId, repair: &Repair) -> Result<bool, Error> {
        let store = &self.store;
        let (order, written) = match *repair {
            Repair::DropNote { order } => (order, store.drop_note(sale, order).await?),
            Repair::Ask { order, attempt } => (order, store.ask_about(order, sale, attempt).await?),
            Repair::PayBack {
                order,
                attempt,
                refund,
            } => (order, store.pay_back_again(order, sale, attempt, refund).await?),
            Repair::PayBackLate { order, attempt } => {
                (order, store.pay_back_late(order, sale, attempt).await?)
            }
            Repair::Load { .. } | Repair::GiveBack { .. } | Repair::Release { .. } => return Ok(false),
        };
        if written {
            return Ok(true);
        }
        let (now, _) = store.dossiers(&Which::These(vec![order]), 1).await?;
        Ok(now.first().is_none_or(|now| {
            // What only the book tells can't be seen from here: there the work must be on its way.
            let only_book_tells =
                matches!(repair, Repair::Ask { .. }) && finding.kind != Kind::UnresolvedPayment;
            let is_there = || {
                now.differences(None)
                    .findings
                    .iter()
                    .any(|f| f.is_same_as(finding))
            };
            now.is_on_its_way() || (!only_book_tells && !is_there())
        }))
    }
}

/// Whether it went well; what didn't is told.
fn told(sale: SaleId, done: Result<bool, Error>) -> bool {
    done.unwrap_or_else(|error| {
        tracing::warn!(sale_id = %sale, %error, "a difference could not be repaired");
        false
    })
}
