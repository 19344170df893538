//! Whole flows through the real program, on real `PostgreSQL` and Redis, over HTTP. Tests named after a number stand for a case
//! from docs/cases.md.

mod cancellation;
mod crashes;
mod groups;
mod interleavings;
mod outages;
mod payments;
mod pooler;
mod reconcile;
mod refunds;
mod requests;
mod startup;
mod stock;
mod stripe;
mod support;
mod two_step;
mod walls;
mod webhooks;
