//! What the engine counts and measures: every name, label and help text, and a function for each to record it.
//!
//! Callers never write a name or a label as text. The handles behind these functions are made once, at the first use
//! of any of them, and registered with every label combination that is known beforehand: zero shows as zero. Nothing
//! has to be installed first, so nothing can be recorded into the void by being early.
//!
//! Two duties remain with whoever runs the engine: answer scrapes with [`Exporter::render`], and call
//! [`Exporter::run_upkeep`] every few seconds, since histograms keep raw samples until one of the two is called.
//!
//! docs/METRICS.md says what each tells an operator; a test holds it against [`ALL`].

mod labels;
mod registry;
mod sales;

use std::time::Duration;

use jiff::Timestamp;
use metrics::Gauge;

pub use labels::{
    Actor, By, DeliveryResult, EventEnd, GateOp, LateRefund, Outcome, PassResult, Pool, ProviderName,
    ProviderOp, ProviderOutcome, RebuildReason, ReconcileResult, RefundStage, SendEnd, WebhookRefusal, What,
};
pub use registry::{Exporter, describe_and_register, install};

use crate::domain::reconcile::Kind as DifferenceKind;
use crate::domain::{News, OrderStatus, SaleId, Stock};
use registry::registry;

/// How a metric is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only rises.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by size, in buckets.
    Histogram,
}

/// One metric, as scraped.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// How it is kept.
    pub kind: Kind,
    /// Its labels, in the order in which they are listed in docs/METRICS.md.
    pub labels: &'static [&'static str],
    /// Its help text, unit included.
    pub help: &'static str,
}

macro_rules! metrics {
    ($($constant:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $constant: Metric =
                Metric { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };
        )*
        /// All of them, but for those of the process itself (`process_*`).
        pub const ALL: &[&Metric] = &[$(&$constant),*];
    };
}

metrics! {
    PURCHASES = Counter "fluxbuy_purchases_total" ["outcome"]
        "Purchases by how they were answered (requests)";
    TRANSITIONS = Counter "fluxbuy_order_transitions_total" ["from", "to", "by"]
        "Committed changes of an order's status, by who made them (orders)";
    CLAIMS_LOST = Counter "fluxbuy_claims_lost_total" ["by", "wanted", "found"]
        "Conditional updates that matched no row because somebody else got there first, by loser (orders)";
    SWEPT = Counter "fluxbuy_orders_swept_total" ["from"]
        "Orders that the sweeper failed, by the status it found them in (orders)";
    BATCH_SIZE = Histogram "fluxbuy_batch_size" ["what"]
        "Orders that one transaction took (orders)";
    COMMIT_SECONDS = Histogram "fluxbuy_commit_seconds" ["what"]
        "From a batch's first statement to its commit (seconds)";
    GATE_SECONDS = Histogram "fluxbuy_gate_seconds" ["op"]
        "One call to the gate in Redis (seconds)";
    REQUEST_SECONDS = Histogram "fluxbuy_request_seconds" ["route", "status"]
        "From a request's headers to its answer, by route template and status code (seconds)";
    CONNECTION_HELD_SECONDS = Histogram "fluxbuy_connection_held_seconds" ["pool"]
        "How long a database connection was kept out of its pool (seconds)";
    PROVIDER_REQUESTS = Counter "fluxbuy_provider_requests_total" ["op", "outcome"]
        "Calls to the payment provider, by how they ended (calls)";
    PROVIDER_SENDS = Counter "fluxbuy_provider_sends_total" ["end"]
        "HTTP requests to the payment provider, each one counted, by how they ended (requests)";
    PROVIDER_SECONDS = Histogram "fluxbuy_provider_seconds" ["op"]
        "One call to the payment provider (seconds)";
    CHARGES_IN_FLIGHT = Gauge "fluxbuy_charges_in_flight" []
        "Charges under way (orders)";
    PAYMENT_QUEUE_ORDERS = Gauge "fluxbuy_payment_queue_orders" []
        "Orders that wait in memory for their charge (orders)";
    PAYMENT_QUEUE_AGE_SECONDS = Gauge "fluxbuy_payment_queue_age_seconds" []
        "Age of the oldest order that is still pending, 0 when there is none (seconds)";
    PAYMENT_HANDOVERS_DROPPED = Counter "fluxbuy_payment_handovers_dropped_total" []
        "New orders that the full queue didn't take; the scan finds them in Postgres (orders)";
    PROVIDER_BREAKERS_OPEN = Gauge "fluxbuy_provider_breakers_open" []
        "1 while no charge is sent because too many failed in a row";
    ORDERS_IN_DOUBT = Gauge "fluxbuy_orders_in_doubt" []
        "Orders whose charge may or may not have happened (orders)";
    IN_DOUBT_OLDEST_SECONDS = Gauge "fluxbuy_in_doubt_oldest_seconds" []
        "How long the longest of them has been in doubt, 0 when there is none (seconds)";
    LATE_REFUNDS = Counter "fluxbuy_late_refunds_total" ["stage"]
        "Refunds of money that came for an order that had failed: written down as due, and done (orders)";
    REFUNDS = Counter "fluxbuy_refunds_total" ["stage"]
        "Refunds that were asked for: promised as due, and done (refunds)";
    DEAD_LETTERS = Gauge "fluxbuy_dead_letters" []
        "Work out of tries that waits for an operator (tasks)";
    WEBHOOK_DELIVERIES = Counter "fluxbuy_webhook_deliveries_total" ["provider", "kind", "result"]
        "Verified webhooks by what they are about and what became of them (requests)";
    WEBHOOKS_REFUSED = Counter "fluxbuy_webhooks_refused_total" ["reason"]
        "Webhooks that were not believed or could not be read, by why (requests)";
    WEBHOOK_EVENTS = Counter "fluxbuy_webhook_events_total" ["end"]
        "Events of the provider by what came of them (events)";
    WEBHOOK_EVENTS_DUE = Gauge "fluxbuy_webhook_events_due" []
        "Events that are written down and not applied yet, early ones included (events)";
    WEBHOOK_EVENT_OLDEST_SECONDS = Gauge "fluxbuy_webhook_event_oldest_seconds" []
        "Age of the oldest of them, 0 when there is none (seconds)";
    STOCK_UNITS = Gauge "fluxbuy_stock_units" ["sale", "state"]
        "Stock of an active sale by state; they add up to its quantity (units)";
    SALE_QUANTITY_UNITS = Gauge "fluxbuy_sale_quantity_units" ["sale"]
        "All units of an active sale (units)";
    CONSERVATION_GAP_UNITS = Gauge "fluxbuy_conservation_gap_units" ["sale"]
        "Units of an active sale that neither are available nor belong to an order; anything but 0 is a violation (units)";
    GATE_GAP_UNITS = Gauge "fluxbuy_gate_gap_units" ["sale"]
        "Units by which the gate's stock of an active sale is off while nothing moves, 0 while anything does (units)";
    GATE_DEGRADED = Gauge "fluxbuy_gate_degraded" []
        "1 while orders are taken through Postgres alone because Redis doesn't answer";
    GATE_EVICTING = Gauge "fluxbuy_gate_evicting" []
        "1 while Redis is set to throw keys away when its memory is full";
    GATE_REBUILDS = Counter "fluxbuy_gate_rebuilds_total" ["reason"]
        "Times that a sale's stock was loaded into the gate from Postgres, by why (sales)";
    RESERVATIONS_REAPED = Counter "fluxbuy_reservations_reaped_total" []
        "Reservations in the gate that never got an order and were given back (orders)";
    GATE_RELEASES_PENDING = Gauge "fluxbuy_gate_releases_pending" []
        "Releases that are committed and that the gate hasn't been told of yet (orders)";
    SWEEPER_LAST_PASS_TIMESTAMP_SECONDS = Gauge "fluxbuy_sweeper_last_pass_timestamp_seconds" []
        "When the sweeper last got through a pass, 0 before the first (seconds since 1970)";
    SWEEPER_PASSES = Counter "fluxbuy_sweeper_passes_total" ["result"]
        "Passes of the sweeper by how they ended (passes)";
    RECONCILE_DIFFERENCES = Counter "fluxbuy_reconcile_differences_total" ["kind", "result"]
        "Differences between Postgres, gate and provider that periodic passes found, by what became of them (differences)";
    RECONCILE_DIFFERENCES_LEFT = Gauge "fluxbuy_reconcile_differences_left" []
        "Differences that this engine's last whole pass found and could not repair, 0 while another engine makes the passes (differences)";
    RECONCILE_LAST_PASS_TIMESTAMP_SECONDS = Gauge "fluxbuy_reconcile_last_pass_timestamp_seconds" []
        "When this engine last got through a pass that could look at all three sides, 0 before the first (seconds since 1970)";
    POSTGRES_BREAKER_OPEN = Gauge "fluxbuy_postgres_breaker_open" []
        "1 while orders are turned away because Postgres can't be asked";
    ACTOR_RESTARTS = Counter "fluxbuy_actor_restarts_total" ["actor"]
        "Actors that were rebuilt from Postgres after a panic (actors)";
    CONNECTIONS = Gauge "fluxbuy_connections" []
        "Open connections of clients (connections)";
    CONNECTIONS_CLOSED_FOR_ROOM = Counter "fluxbuy_connections_closed_for_room_total" []
        "Connections without a request that were closed because all places were taken (connections)";
    BUILD_INFO = Gauge "fluxbuy_build_info" ["version"]
        "1, with what runs as labels";
}

/// A purchase was answered.
pub fn purchases(outcome: Outcome) {
    registry().purchases.at(outcome).increment(1);
}

/// An order's status was changed, and the change is committed; `None` is an order that didn't exist before.
pub fn transition(from: Option<OrderStatus>, to: OrderStatus, by: By) {
    transitions(from, to, by, 1);
}

/// The same for `orders` orders of one batch.
pub fn transitions(from: Option<OrderStatus>, to: OrderStatus, by: By, orders: u64) {
    registry().transition(from, to, by).increment(orders);
}

/// `by` wanted an order to become `wanted`, but it was in `found` by then; `None` when there is no such order.
///
/// A row that only occupies an order's id ([`OrderStatus::Rejected`]) counts as no order.
pub fn claim_lost(by: By, wanted: OrderStatus, found: Option<OrderStatus>) {
    registry().claim_lost(by, wanted, found).increment(1);
}

/// The sweeper failed an order that it found in `from`.
pub fn swept(from: OrderStatus) {
    registry().swept(from).increment(1);
}

/// A transaction took `orders` orders.
pub fn batch_size(what: What, orders: usize) {
    registry().batch_size.at(what).record(orders as f64);
}

/// A transaction took so long, from its first statement to its commit.
pub fn commit_seconds(what: What, took: Duration) {
    registry().commit_seconds.at(what).record(took);
}

/// A call to the gate took so long.
pub fn gate_seconds(op: GateOp, took: Duration) {
    registry().gate_seconds.at(op).record(took);
}

/// A request was answered. `route` is its template, never its path: it is kept for ever.
pub fn request(route: &'static str, status: u16, took: Duration) {
    registry().request(route, status, took);
}

/// A database connection was out of its pool for so long.
pub fn connection_held(pool: Pool, held: Duration) {
    registry().connection_held_seconds.at(pool).record(held);
}

/// A request was really sent to the provider, and ended like this.
pub fn provider_request(op: ProviderOp, outcome: ProviderOutcome) {
    registry().provider_request(op, outcome).increment(1);
}

/// An HTTP request to the provider has come to its end.
pub fn provider_sent(end: SendEnd) {
    registry().provider_sends.at(end).increment(1);
}

/// A request to the provider took so long.
pub fn provider_seconds(op: ProviderOp, took: Duration) {
    registry().provider_seconds.at(op).record(took);
}

/// Charges under way. Use it with [`Counted`].
pub fn charges_in_flight() -> &'static Gauge {
    &registry().charges_in_flight
}

/// Open connections of clients. Use it with [`Counted`].
pub fn connections() -> &'static Gauge {
    &registry().connections
}

/// A connection without a request was closed, to make room for another one.
pub fn connection_closed_for_room() {
    registry().connections_closed_for_room.increment(1);
}

/// So many orders wait in memory for their charge.
pub fn payment_queue_orders(orders: usize) {
    registry().payment_queue_orders.set(orders as f64);
}

/// The oldest pending order has this age; `None` when none is pending.
pub fn payment_queue_age(oldest: Option<Duration>) {
    registry()
        .payment_queue_age_seconds
        .set(oldest.unwrap_or_default());
}

/// So many new orders found the queue full; the scan will find them.
pub fn payment_handovers_dropped(orders: usize) {
    registry().payment_handovers_dropped.increment(orders as u64);
}

/// Whether charges are being held back because too many failed in a row.
pub fn provider_breakers_open(open: usize) {
    registry().provider_breakers_open.set(open as f64);
}

/// So many orders are in doubt, the longest for so long; `None` when there is none.
pub fn in_doubt(orders: usize, oldest: Option<Duration>) {
    registry().orders_in_doubt.set(orders as f64);
    registry().in_doubt_oldest_seconds.set(oldest.unwrap_or_default());
}

/// A refund of late money was written down as due, or done.
pub fn late_refund(stage: LateRefund) {
    registry().late_refunds.at(stage).increment(1);
}

/// A refund that was asked for was promised, or done.
pub fn refund(stage: RefundStage) {
    registry().refunds.at(stage).increment(1);
}

/// A verified webhook about `news` was answered.
pub fn webhook_delivery(provider: ProviderName, news: News, result: DeliveryResult) {
    registry().webhook_delivery(provider, news, result).increment(1);
}

/// A webhook was not believed, or could not be read.
pub fn webhook_refused(reason: WebhookRefusal) {
    registry().webhooks_refused.at(reason).increment(1);
}

/// An event of the provider has come to its end.
pub fn webhook_event(end: EventEnd) {
    registry().webhook_events.at(end).increment(1);
}

/// So many events wait to be applied, the oldest for so long; `None` when there is none.
pub fn webhook_events_due(events: usize, oldest: Option<Duration>) {
    registry().webhook_events_due.set(events as f64);
    registry()
        .webhook_event_oldest_seconds
        .set(oldest.unwrap_or_default());
}

/// So much work is out of tries.
pub fn dead_letters(tasks: usize) {
    registry().dead_letters.set(tasks as f64);
}

/// The stock of an active sale, all figures of one instant. Once the sale is over, [`forget_sale`].
pub fn stock(sale: SaleId, stock: &Stock) {
    registry().sales.set(sale, *stock);
}

/// Units of an active sale that neither are available nor belong to an order, by one look at the rows. Nothing, once its series have ended.
pub fn conservation_gap(sale: SaleId, units: i64) {
    registry().sales.set_gap(sale, units);
}

/// Units by which the gate's stock of an active sale is off while nothing moves. Nothing, once its series have ended.
pub fn gate_gap(sale: SaleId, units: i64) {
    registry().sales.set_gate_gap(sale, units);
}

/// A periodic pass has found a difference.
pub fn reconcile_difference(kind: DifferenceKind, result: ReconcileResult) {
    registry().reconcile_difference(kind, result).increment(1);
}

/// So many differences are left after a pass of this engine.
pub fn reconcile_left(differences: usize) {
    registry().reconcile_differences_left.set(differences as f64);
}

/// A pass that could look at all three sides ended at `now`.
pub fn reconcile_pass(now: Timestamp) {
    registry()
        .reconcile_last_pass_timestamp_seconds
        .set(now.as_millisecond() as f64 / 1_000.0);
}

/// The sale isn't active any more: its series end, so that their number is bounded by the sales that are.
pub fn forget_sale(sale: SaleId) {
    registry().sales.forget(sale);
}

/// Whether orders are taken through Postgres alone.
pub fn gate_degraded(degraded: bool) {
    registry().gate_degraded.set(f64::from(u8::from(degraded)));
}

/// Redis is set to throw keys away, or it isn't.
pub fn gate_evicting(evicting: bool) {
    registry().gate_evicting.set(f64::from(u8::from(evicting)));
}

/// A sale's stock was loaded into the gate from Postgres.
pub fn gate_rebuilt(reason: RebuildReason) {
    registry().gate_rebuilds.at(reason).increment(1);
}

/// So many reservations without an order were given back.
pub fn reservations_reaped(orders: u64) {
    registry().reservations_reaped.increment(orders);
}

/// So many committed releases wait for the gate.
pub fn gate_releases_pending(orders: usize) {
    registry().gate_releases_pending.set(orders as f64);
}

/// A pass of the sweeper ended at `now`. Only one that got through moves the time of the last pass.
pub fn sweeper_pass(result: PassResult, now: Timestamp) {
    registry().sweeper_passes.at(result).increment(1);
    if result == PassResult::Ok {
        registry()
            .sweeper_last_pass_timestamp_seconds
            .set(now.as_millisecond() as f64 / 1_000.0);
    }
}

/// Whether orders are being turned away because Postgres can't be asked.
pub fn postgres_breaker_open(open: bool) {
    registry().postgres_breaker_open.set(f64::from(u8::from(open)));
}

/// An actor was rebuilt from Postgres after a panic.
pub fn actor_restarted(actor: Actor) {
    registry().actor_restarts.at(actor).increment(1);
}

/// Counts one on a gauge for as long as it lives, also through a panic.
#[derive(Debug)]
#[must_use = "it stops counting when it is dropped"]
pub struct Counted(&'static Gauge);

impl Counted {
    /// One more on this gauge.
    pub fn on(gauge: &'static Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}
