//! The engine's periodic pass: the same looks as a run's, at what has moved since the last pass. What a pass remembers only spares it work.

use std::collections::HashMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::money::{self, MARGIN, Scope};
use super::{Error, Reconciler, Report};
use crate::domain::reconcile::{Finding, Found, Outcome};
use crate::domain::{OrderId, SaleId};
use crate::gate::Standing;
use crate::store::{StandingSale, Which};

/// Orders whose money one pass looks at; the next one goes on from there.
const MAX_ORDERS: u64 = 100_000;
/// Every so many passes, the first one included, all sales are looked at, whether they have moved or not.
const PASSES_PER_LOOK_AT_ALL: u64 = 12;
/// Orders whose money was left different that are remembered.
const MAX_LEFT: usize = 10_000;

/// What the passes of one engine remember.
#[derive(Debug, Default)]
pub struct Memory {
    passes: u64,
    sales: HashMap<SaleId, Remembered>,
    /// Where the walk through orders goes on; `None`: from the beginning.
    walk: Option<Which>,
    /// Money that the last pass has found different and left. It is looked at until it isn't, however old it gets.
    left: Option<Left>,
}

#[derive(Debug, Clone)]
struct Left {
    /// Whose.
    orders: Vec<OrderId>,
    /// Since when the orders were made, at most so long ago.
    since: Timestamp,
}

/// A sale as the last pass left it.
#[derive(Debug)]
struct Remembered {
    epoch: i64,
    available: i64,
    standing: Standing,
    /// All of it was compared as it stands, and nothing was wrong.
    compared: bool,
    /// The version of the inventory row under which the counters were right.
    counted: Option<String>,
}

impl Reconciler {
    /// One pass: sales that are on offer, have open orders, or closed within `lookback`, and orders that were made within it. Repairs what may be repaired.
    pub async fn pass(&self, memory: &mut Memory, lookback: Duration) -> Report {
        let mut report = Report::default();
        if memory.passes.is_multiple_of(PASSES_PER_LOOK_AT_ALL) {
            for sale in memory.sales.values_mut() {
                (sale.compared, sale.counted) = (false, None);
            }
        }
        memory.passes += 1;
        let sales = match self.store.standing_sales(None, Some(lookback)).await {
            Ok(sales) => sales,
            Err(error) => {
                report.missed(&error.into());
                return report;
            }
        };
        report.sales = sales.len() as u64;
        let left_before = memory.left.clone();
        let mut found = Found::default();
        for looked in [
            self.look_at_gate_of_moved(&sales, memory).await,
            self.look_at_stock_of_moved(&sales, memory).await,
            self.look_at_recent_money(memory, lookback, &mut report).await,
        ] {
            match looked {
                Ok(more) => found.merge(more),
                Err(error) => report.missed(&error),
            }
        }
        self.settle(found, false, &mut report).await;
        if !report.away.is_empty() {
            // Whether it is still so couldn't be seen.
            memory.left = left_before;
            return report;
        }
        memory.left = memory.left.take().filter(|_| {
            let is_money = |finding: &Finding| finding.sale.is_none() || money::order_of(finding).is_some();
            report
                .rows
                .iter()
                .any(|(finding, outcome)| *outcome == Outcome::Left && is_money(finding))
        });
        if let Some(left) = &mut memory.left {
            let rows = report
                .rows
                .iter()
                .filter(|(_, outcome)| *outcome == Outcome::Left);
            left.orders = rows
                .filter_map(|(finding, _)| money::order_of(finding))
                .take(MAX_LEFT)
                .collect();
        }
        report
    }

    /// Sales that stand as they did at the last pass, and weren't compared like this. While a sale moves, the reaper looks at it.
    async fn look_at_gate_of_moved(
        &self,
        sales: &[StandingSale],
        memory: &mut Memory,
    ) -> Result<Found, Error> {
        let mut found = Found::default();
        let old = self.gate.now().await? - self.grace;
        let mut before = std::mem::take(&mut memory.sales);
        for sale in sales {
            let standing = self.gate.standing(sale.sale).await?;
            let mut now = Remembered {
                epoch: sale.epoch,
                available: sale.available,
                standing,
                compared: false,
                counted: None,
            };
            if let Some(last) = before.remove(&sale.sale) {
                now.counted = last.counted;
                if (last.epoch, last.available, last.standing) == (now.epoch, now.available, now.standing) {
                    now.compared = last.compared;
                    if !now.compared {
                        let looked = self.gate.look(sale, standing, true, old).await?;
                        now.compared = looked == Found::default();
                        found.merge(looked);
                    }
                } else {
                    found.in_flight += 1;
                }
            }
            memory.sales.insert(sale.sale, now);
        }
        Ok(found)
    }

    /// The counters of sales whose inventory row was written to since they were right.
    async fn look_at_stock_of_moved(
        &self,
        sales: &[StandingSale],
        memory: &mut Memory,
    ) -> Result<Found, Error> {
        let is_counted = |sale: &&StandingSale| {
            let remembered = memory.sales.get(&sale.sale);
            remembered.and_then(|last| last.counted.as_ref()) == Some(&sale.version)
        };
        let moved: Vec<&StandingSale> = sales.iter().filter(|sale| !is_counted(sale)).collect();
        let mut found = Found::default();
        if moved.is_empty() {
            return Ok(found);
        }
        let ids: Vec<SaleId> = moved.iter().map(|sale| sale.sale).collect();
        let counters = self.store.counters(Some(&ids), true).await?;
        let mut wrong: HashMap<SaleId, usize> = HashMap::new();
        for counters in counters {
            let differences = counters.differences();
            wrong.insert(counters.sale, differences.len());
            found.findings.extend(differences);
        }
        for sale in moved {
            let mut count = wrong.get(&sale.sale).copied().unwrap_or(0);
            if sale.limited {
                let allotments = self.look_at_allotments(sale.sale).await?;
                count += usize::from(allotments.is_some());
                found.findings.extend(allotments);
            }
            if let Some(remembered) = memory.sales.get_mut(&sale.sale) {
                remembered.counted = (count == 0).then(|| sale.version.clone());
            }
        }
        Ok(found)
    }

    /// A stretch of the orders that were made within `lookback`, and what the provider's book has of them.
    async fn look_at_recent_money(
        &self,
        memory: &mut Memory,
        lookback: Duration,
        report: &mut Report,
    ) -> Result<Found, Error> {
        let lookback = SignedDuration::try_from(lookback).unwrap_or(SignedDuration::MAX);
        let recent = self
            .store
            .now()
            .await?
            .checked_sub(lookback)
            .unwrap_or(Timestamp::MIN);
        let left = memory.left.take();
        let since = left.as_ref().map_or(recent, |left| left.since.min(recent));
        let book_since = since.checked_sub(MARGIN).unwrap_or(Timestamp::MIN);
        let book = self.read_book(Some(book_since), report).await;
        let begins_anew = memory.walk.is_none();
        let start = memory
            .walk
            .take()
            .unwrap_or_else(|| Which::After(money::first_made_at(recent)));
        let scope = Scope::Some {
            orders: MAX_ORDERS,
            since,
        };
        let walked = self.walk(start.clone(), scope, book.as_ref()).await?;
        report.orders = walked.orders;
        let mut found = walked.found;
        let mut looked = walked.seen;
        if let Some(book) = &book {
            // The book's charges of the same stretch. Those of older orders are looked at with its beginning.
            let (first, last) = (place(&start), walked.next.as_ref().map(place));
            let rest: Vec<_> = book
                .orders()
                .filter(|order| !looked.contains(order))
                .filter(|order| {
                    (begins_anew || first.is_none_or(|first| *order > first))
                        && last.flatten().is_none_or(|last| *order <= last)
                })
                .collect();
            found.merge(self.look_at_these(&rest, Some(book), scope).await?);
            looked.extend(rest);
            found.merge(book.strangers());
        }
        let left = left.map_or_else(Vec::new, |left| left.orders);
        let left: Vec<OrderId> = left.into_iter().filter(|order| !looked.contains(order)).collect();
        found.merge(self.look_at_these(&left, book.as_ref(), scope).await?);
        let found = self
            .look_again(found, book.is_some(), Some(book_since), report)
            .await?;
        memory.walk = walked.next;
        // Kept by the end of the pass, should something be left.
        memory.left = Some(Left {
            orders: Vec::new(),
            since,
        });
        Ok(found)
    }
}

/// Where a walk by ids is.
fn place(which: &Which) -> Option<OrderId> {
    match which {
        Which::After(order) => Some(*order),
        Which::OfSale(..) | Which::These(_) => None,
    }
}
