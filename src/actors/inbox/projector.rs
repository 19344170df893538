//! Applies events to their orders, through the orders' actors.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::sync::Notify;

use super::Limits;
use crate::actors::order::{Heard, Orders, Told};
use crate::crash::{self, Point};
use crate::domain::{News, Projection, project};
use crate::metrics;
use crate::store::{DueEvent, EventEnd, Handled, Store};

/// Events taken at a time, and applied at the same time.
const EVENTS: usize = 256;
/// After so long an event is somebody else's too: the worker may have died. One that lives and is at it for longer (a settlement is tried for
/// half a minute while the database is away) only has company then: applied twice is applied once.
const LOAN: Duration = Duration::from_secs(10);

pub(super) struct Projector {
    pub(super) store: Store,
    pub(super) orders: Orders,
    /// Woken when something has just been written down.
    pub(super) waker: Arc<Notify>,
    pub(super) limits: Limits,
}

impl Projector {
    /// Works until it is dropped.
    pub(super) async fn run(self) {
        loop {
            // Woken or not; what matters are the rows.
            tokio::time::timeout(self.limits.scan_period, self.waker.notified())
                .await
                .ok();
            while self.apply_some().await == EVENTS {}
            match self.store.inbox_state().await {
                Ok(state) => metrics::webhook_events_due(state.due.max(0) as usize, state.oldest),
                Err(error) => tracing::warn!(%error, "the inbox could not be counted"),
            }
        }
    }

    async fn apply_some(&self) -> usize {
        let due = match self.store.take_due_events(EVENTS as i64, LOAN).await {
            Ok(due) => due,
            Err(error) => {
                tracing::warn!(%error, "events could not be taken");
                return 0;
            }
        };
        if due.is_empty() {
            return 0;
        }
        let taken = due.len();
        let handled: Vec<Handled> = stream::iter(due)
            .map(|event| self.apply(event))
            .buffer_unordered(EVENTS)
            .collect()
            .await;
        crash::at(Point::EventApplied);
        if let Err(error) = self.store.events_handled(&handled).await {
            // Their loan runs out, and they are taken again: applied twice is applied once.
            tracing::warn!(%error, events = taken, "applied events could not be noted");
            return 0;
        }
        handled.iter().for_each(Self::report);
        taken
    }

    async fn apply(&self, event: DueEvent) -> Handled {
        let (end, note) = self.outcome(&event).await;
        let last_try = event.tries.unsigned_abs() >= self.limits.event_tries;
        Handled {
            end: end.or(last_try.then_some(EventEnd::GivenUp)),
            note,
            event,
        }
    }

    /// What becomes of an event, and what stands in the way; no end means that it is to be tried again.
    async fn outcome(&self, event: &DueEvent) -> (Option<EventEnd>, Option<String>) {
        let note = |text: &str| Some(text.to_owned());
        if event.news == News::Other {
            return (Some(EventEnd::Ignored), None);
        }
        let Some(charge) = event.charge else {
            return (Some(EventEnd::Ignored), note("it is about no charge of ours"));
        };
        let Some(met) = event.met else {
            return (None, note("there is no such charge, or not yet"));
        };
        if event.news == News::Succeeded && event.amount.is_some_and(|amount| amount != met.amount) {
            return (
                Some(EventEnd::GivenUp),
                note("it says another amount than the charge was to be"),
            );
        }
        if event.news == News::Refunded && event.refund.is_none() {
            return (
                Some(EventEnd::GivenUp),
                note("it is a refund that nobody asked for here"),
            );
        }
        let projection = project(event.news, met.found);
        if projection == Projection::NoChange {
            return (Some(EventEnd::NoChange), None);
        }
        let told = Told {
            projection,
            status: met.found.status,
            fence: met.fence,
            attempt: charge.attempt,
            code: event.code.clone(),
            refund: event.refund,
            event_id: event.id.clone(),
            request_id: event.request_id.clone(),
        };
        match self.orders.tell(charge.order, met.sale, told).await {
            Heard::Applied => (Some(EventEnd::Applied), None),
            Heard::NoChange => (Some(EventEnd::NoChange), None),
            // It moved meanwhile, or can't be asked: the next look decides.
            Heard::Again => (None, note("the order moved, or could not be asked")),
        }
    }

    fn report(Handled { event, end, note }: &Handled) {
        let (event_id, order_id) = (&event.id, event.charge.map(|charge| charge.order.to_string()));
        let attempt = event.charge.map(|charge| charge.attempt);
        let (request_id, note) = (event.request_id.as_deref(), note.as_deref().unwrap_or_default());
        match end {
            None => {
                tracing::debug!(%event_id, order_id, attempt, request_id, tries = event.tries, note, "an event is tried again");
            }
            Some(EventEnd::GivenUp) => {
                tracing::error!(%event_id, order_id, attempt, request_id, tries = event.tries, note, "an event is given up");
            }
            Some(end) => {
                tracing::info!(%event_id, order_id, attempt, request_id, news = ?event.news, ?end, note, "an event is handled");
            }
        }
        if let Some(end) = end {
            metrics::webhook_event(match end {
                EventEnd::Applied => metrics::EventEnd::Applied,
                EventEnd::NoChange => metrics::EventEnd::NoChange,
                EventEnd::Ignored => metrics::EventEnd::Ignored,
                EventEnd::GivenUp => metrics::EventEnd::GivenUp,
            });
        }
    }
}
