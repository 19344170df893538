//! Webhooks: the provider's log of what it sent, against what was received and what became of it.

use std::collections::HashMap;

use super::facts::Event;
use super::{Case, Findings};

pub(super) fn check(case: &Case<'_>, findings: &mut Findings) {
    let events: HashMap<&str, &Event> = case
        .facts
        .events
        .iter()
        .map(|event| (event.id.as_str(), event))
        .collect();
    findings.require(
        events.len() == case.facts.events.len(),
        "one-event-is-one-row",
        || format!("{} rows are {} events", case.facts.events.len(), events.len()),
    );
    for sent in &case.facts.sent {
        let (id, acknowledged) = (&sent.id, sent.acknowledged());
        let taken_in = sent.forged.iter().filter(|(_, status)| *status != 401).count();
        findings.require(taken_in == 0, "forgery-is-refused", || {
            format!(
                "{taken_in} forgeries of event {id} were answered otherwise than with 401: {:?}",
                sent.forged
            )
        });
        let deliveries = events.get(id.as_str()).map_or(0, |event| event.deliveries);
        // One whose answer got lost may be among those that were received.
        findings.require(
            (acknowledged..=sent.requests.len() as i64).contains(&deliveries),
            "acknowledged-is-kept",
            || {
                format!(
                    "event {id} was sent {} times and acknowledged {acknowledged} times, and {deliveries} deliveries are known",
                    sent.requests.len()
                )
            },
        );
        if case.settled {
            findings.require(sent.lost || acknowledged > 0, "delivered-in-the-end", || {
                format!("event {id} was never acknowledged: {:?}", sent.requests)
            });
        }
    }
    if case.settled {
        for event in &case.facts.events {
            let ended = matches!(event.state.as_str(), "APPLIED" | "NO_CHANGE" | "IGNORED");
            findings.require(ended, "events-come-to-an-end", || {
                format!("event {} is {}", event.id, event.state)
            });
        }
    }
}
