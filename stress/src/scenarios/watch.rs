//! Somebody who looks at the sale all the time: the stock must add up in every answer, not only at the end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::audit::Findings;
use crate::load::Peer;

/// Between two looks.
const PERIOD: Duration = Duration::from_millis(25);

/// Looks until it is dropped.
pub(super) struct Watch {
    seen: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

#[derive(Debug, Deserialize)]
struct SaleBody {
    quantity: i64,
    available: i64,
    held: i64,
    sold: i64,
}

impl SaleBody {
    fn is_whole(&self, units: i64) -> bool {
        self.quantity == units
            && self.available + self.held + self.sold == units
            && [self.available, self.held, self.sold]
                .iter()
                .all(|units| *units >= 0)
    }
}

impl Watch {
    pub(super) fn start(engine: Peer, sale: Uuid, units: i64) -> Self {
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let found = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            let path = format!("/v1/sales/{sale}");
            loop {
                // An engine that is too busy to tell is no violation.
                if let Ok(sale) = engine.get_json::<SaleBody>(&path).await
                    && !sale.is_whole(units)
                {
                    found
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(format!("{sale:?}"));
                }
                tokio::time::sleep(PERIOD).await;
            }
        });
        Self { seen, task }
    }

    pub(super) fn tell(&self, findings: &mut Findings) {
        for seen in self.seen.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            findings.add("stock-always-adds-up", seen);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stock_that_does_not_add_up_is_seen() {
        let stock = |available, held, sold| SaleBody {
            quantity: 10,
            available,
            held,
            sold,
        };
        assert!(stock(5, 3, 2).is_whole(10));
        assert!(!stock(5, 3, 2).is_whole(11));
        assert!(!stock(5, 3, 3).is_whole(10));
        assert!(!stock(11, -1, 0).is_whole(10));
    }
}
