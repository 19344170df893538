//! The recorder with its buckets, and a ready-made handle for every series that is known beforehand.

use std::fmt;
use std::sync::LazyLock;
use std::time::Duration;

use dashmap::DashMap;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Level, Metadata, Recorder, SharedString};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use rustc_hash::FxBuildHasher;

use super::labels::{
    Actor, By, DeliveryResult, EventEnd, GateOp, Label, LateRefund, Outcome, PassResult, Pool, ProviderName,
    ProviderOp, ProviderOutcome, RebuildReason, ReconcileResult, RefundStage, SendEnd, WebhookRefusal, What,
};
use super::sales::Sales;
use super::{ALL, Kind, Metric};
use crate::domain::reconcile::Kind as DifferenceKind;
use crate::domain::{Event, News, OrderStatus, transition};

/// Upper bounds for times, in seconds: dense where a purchase is expected (p50 14 ms, p99 24 ms were measured) and
/// where a provider takes its 1 to 4 s, sparse up to the longest time-out.
const SECONDS: [f64; 27] = [
    0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075,
    0.1, 0.15, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 10.0, 30.0,
];

/// Upper bounds for batches: powers of two up to the largest that the settings allow.
const ORDERS: [f64; 11] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

/// What every route answers when all is well, so that its series are there before its first request.
const ROUTES: [(&str, u16); 11] = [
    ("/v1/sales", 200),
    ("/v1/sales", 201),
    ("/v1/sales/{id}", 200),
    ("/v1/sales/{id}/orders", 201),
    ("/v1/sales/{id}/orders", 409),
    ("/v1/sales/{id}/orders", 503),
    ("/v1/orders/{id}", 200),
    ("/v1/orders/{id}/cancel", 200),
    ("/v1/webhooks/{provider}", 200),
    ("/readyz", 200),
    ("/metrics", 200),
];

static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::new);

pub(super) fn registry() -> &'static Registry {
    &REGISTRY
}

/// Makes, describes and registers all metrics now instead of at their first use.
pub fn describe_and_register() {
    LazyLock::force(&REGISTRY);
}

/// Makes sure that all metrics are there, and hands out what scrapes are answered with. Call it as often as you like.
pub fn install() -> Exporter {
    Exporter(registry())
}

/// Answers scrapes. Cheap to clone; all of them show the same process-wide metrics.
#[derive(Clone, Copy)]
pub struct Exporter(&'static Registry);

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exporter")
    }
}

impl Exporter {
    /// All metrics in Prometheus' text format, those of the process itself included.
    pub fn render(&self) -> String {
        self.0.render()
    }

    /// Moves histograms' raw samples into their buckets. Without scrapes they would pile up, so call this every few
    /// seconds.
    pub fn run_upkeep(&self) {
        self.0.handle.run_upkeep();
    }
}

/// One handle for each value of a label.
pub(super) struct Family<H> {
    handles: Vec<H>,
}

impl<H> Family<H> {
    fn new<L: Label>(make: impl Fn(L) -> H) -> Self {
        Self {
            handles: L::VALUES.iter().map(|value| make(*value)).collect(),
        }
    }

    pub(super) fn at<L: Label>(&self, value: L) -> &H {
        &self.handles[value.index()]
    }
}

pub(super) struct Registry {
    recorder: PrometheusRecorder,
    pub(super) handle: PrometheusHandle,
    process: metrics_process::Collector,
    pub(super) sales: Sales,
    pub(super) purchases: Family<Counter>,
    transitions: Vec<Option<Counter>>,
    claims_lost: Vec<Option<Counter>>,
    swept: Vec<Option<Counter>>,
    pub(super) batch_size: Family<Histogram>,
    pub(super) commit_seconds: Family<Histogram>,
    pub(super) gate_seconds: Family<Histogram>,
    requests: DashMap<(&'static str, u16), Histogram, FxBuildHasher>,
    pub(super) connection_held_seconds: Family<Histogram>,
    provider_requests: Vec<Counter>,
    pub(super) provider_sends: Family<Counter>,
    pub(super) provider_seconds: Family<Histogram>,
    pub(super) charges_in_flight: Gauge,
    pub(super) payment_queue_orders: Gauge,
    pub(super) payment_queue_age_seconds: Gauge,
    pub(super) payment_handovers_dropped: Counter,
    pub(super) provider_breakers_open: Gauge,
    pub(super) orders_in_doubt: Gauge,
    pub(super) in_doubt_oldest_seconds: Gauge,
    pub(super) late_refunds: Family<Counter>,
    pub(super) refunds: Family<Counter>,
    pub(super) dead_letters: Gauge,
    webhook_deliveries: Vec<Counter>,
    pub(super) webhooks_refused: Family<Counter>,
    pub(super) webhook_events: Family<Counter>,
    pub(super) webhook_events_due: Gauge,
    pub(super) webhook_event_oldest_seconds: Gauge,
    pub(super) gate_degraded: Gauge,
    pub(super) gate_evicting: Gauge,
    pub(super) gate_rebuilds: Family<Counter>,
    pub(super) reservations_reaped: Counter,
    pub(super) gate_releases_pending: Gauge,
    pub(super) sweeper_last_pass_timestamp_seconds: Gauge,
    pub(super) sweeper_passes: Family<Counter>,
    reconcile_differences: Vec<Counter>,
    pub(super) reconcile_differences_left: Gauge,
    pub(super) reconcile_last_pass_timestamp_seconds: Gauge,
    pub(super) postgres_breaker_open: Gauge,
    pub(super) actor_restarts: Family<Counter>,
    pub(super) connections: Gauge,
    pub(super) connections_closed_for_room: Counter,
}

/// A label's value when there is no order.
const MISSING: &str = "missing";
/// The status that a new order comes from.
const NEW: &str = "new";
const STATUSES: usize = OrderStatus::ALL.len();
const BYS: usize = By::ALL.len();

impl Registry {
    fn new() -> Self {
        let recorder = PrometheusBuilder::new()
            .set_buckets(&SECONDS)
            .and_then(|builder| {
                builder.set_buckets_for_metric(Matcher::Full(super::BATCH_SIZE.name.to_owned()), &ORDERS)
            })
            .expect("buckets are not empty")
            .build_recorder();
        describe(&recorder);
        let process = metrics_process::Collector::default();
        metrics::with_local_recorder(&recorder, || process.describe());
        let make = Maker { recorder: &recorder };
        make.gauge(super::BUILD_INFO, &[env!("CARGO_PKG_VERSION")])
            .set(1.0);
        Self {
            sales: Sales::default(),
            purchases: Family::new(|outcome: Outcome| make.counter(super::PURCHASES, &[outcome.text()])),
            transitions: known_transitions(&make),
            claims_lost: known_lost_claims(&make),
            swept: OrderStatus::ALL
                .map(|from| {
                    from.is_open()
                        .then(|| make.counter(super::SWEPT, &[from.as_str()]))
                })
                .into(),
            batch_size: Family::new(|what: What| make.histogram(super::BATCH_SIZE, &[what.text()])),
            commit_seconds: Family::new(|what: What| make.histogram(super::COMMIT_SECONDS, &[what.text()])),
            gate_seconds: Family::new(|op: GateOp| make.histogram(super::GATE_SECONDS, &[op.text()])),
            requests: ROUTES
                .map(|(route, status)| ((route, status), make.request_seconds(route, status)))
                .into_iter()
                .collect(),
            connection_held_seconds: Family::new(|pool: Pool| {
                make.histogram(super::CONNECTION_HELD_SECONDS, &[pool.text()])
            }),
            provider_requests: ProviderOp::ALL
                .iter()
                .flat_map(|op| ProviderOutcome::ALL.iter().map(move |outcome| (op, outcome)))
                .map(|(op, outcome)| make.counter(super::PROVIDER_REQUESTS, &[op.text(), outcome.text()]))
                .collect(),
            provider_sends: Family::new(|end: SendEnd| make.counter(super::PROVIDER_SENDS, &[end.text()])),
            provider_seconds: Family::new(|op: ProviderOp| {
                make.histogram(super::PROVIDER_SECONDS, &[op.text()])
            }),
            charges_in_flight: make.gauge(super::CHARGES_IN_FLIGHT, &[]),
            payment_queue_orders: make.gauge(super::PAYMENT_QUEUE_ORDERS, &[]),
            payment_queue_age_seconds: make.gauge(super::PAYMENT_QUEUE_AGE_SECONDS, &[]),
            payment_handovers_dropped: make.counter(super::PAYMENT_HANDOVERS_DROPPED, &[]),
            provider_breakers_open: make.gauge(super::PROVIDER_BREAKERS_OPEN, &[]),
            orders_in_doubt: make.gauge(super::ORDERS_IN_DOUBT, &[]),
            in_doubt_oldest_seconds: make.gauge(super::IN_DOUBT_OLDEST_SECONDS, &[]),
            late_refunds: Family::new(|stage: LateRefund| make.counter(super::LATE_REFUNDS, &[stage.text()])),
            refunds: Family::new(|stage: RefundStage| make.counter(super::REFUNDS, &[stage.text()])),
            dead_letters: make.gauge(super::DEAD_LETTERS, &[]),
            webhook_deliveries: known_deliveries(&make),
            webhooks_refused: Family::new(|why: WebhookRefusal| {
                make.counter(super::WEBHOOKS_REFUSED, &[why.text()])
            }),
            webhook_events: Family::new(|end: EventEnd| make.counter(super::WEBHOOK_EVENTS, &[end.text()])),
            webhook_events_due: make.gauge(super::WEBHOOK_EVENTS_DUE, &[]),
            webhook_event_oldest_seconds: make.gauge(super::WEBHOOK_EVENT_OLDEST_SECONDS, &[]),
            gate_degraded: make.gauge(super::GATE_DEGRADED, &[]),
            gate_evicting: make.gauge(super::GATE_EVICTING, &[]),
            gate_rebuilds: Family::new(|why: RebuildReason| {
                make.counter(super::GATE_REBUILDS, &[why.text()])
            }),
            reservations_reaped: make.counter(super::RESERVATIONS_REAPED, &[]),
            gate_releases_pending: make.gauge(super::GATE_RELEASES_PENDING, &[]),
            sweeper_last_pass_timestamp_seconds: make.gauge(super::SWEEPER_LAST_PASS_TIMESTAMP_SECONDS, &[]),
            sweeper_passes: Family::new(|result: PassResult| {
                make.counter(super::SWEEPER_PASSES, &[result.text()])
            }),
            reconcile_differences: DifferenceKind::ALL
                .iter()
                .flat_map(|kind| ReconcileResult::ALL.iter().map(move |result| (kind, result)))
                .map(|(kind, result)| {
                    make.counter(super::RECONCILE_DIFFERENCES, &[kind.text(), result.text()])
                })
                .collect(),
            reconcile_differences_left: make.gauge(super::RECONCILE_DIFFERENCES_LEFT, &[]),
            reconcile_last_pass_timestamp_seconds: make
                .gauge(super::RECONCILE_LAST_PASS_TIMESTAMP_SECONDS, &[]),
            postgres_breaker_open: make.gauge(super::POSTGRES_BREAKER_OPEN, &[]),
            actor_restarts: Family::new(|actor: Actor| make.counter(super::ACTOR_RESTARTS, &[actor.text()])),
            connections: make.gauge(super::CONNECTIONS, &[]),
            connections_closed_for_room: make.counter(super::CONNECTIONS_CLOSED_FOR_ROOM, &[]),
            process,
            handle: recorder.handle(),
            recorder,
        }
    }

    fn make(&self) -> Maker<'_> {
        Maker {
            recorder: &self.recorder,
        }
    }

    pub(super) fn transition(&self, from: Option<OrderStatus>, to: OrderStatus, by: By) -> Counter {
        let known = &self.transitions[transition_index(from, to, by)];
        known
            .clone()
            .unwrap_or_else(|| self.make().transition(from, to, by))
    }

    pub(super) fn claim_lost(&self, by: By, wanted: OrderStatus, found: Option<OrderStatus>) -> Counter {
        let known = &self.claims_lost[claim_index(by, wanted, found)];
        known
            .clone()
            .unwrap_or_else(|| self.make().claim_lost(by, wanted, found))
    }

    pub(super) fn swept(&self, from: OrderStatus) -> Counter {
        let known = &self.swept[from.index()];
        known
            .clone()
            .unwrap_or_else(|| self.make().counter(super::SWEPT, &[from.as_str()]))
    }

    pub(super) fn provider_request(&self, op: ProviderOp, outcome: ProviderOutcome) -> &Counter {
        &self.provider_requests[op.index() * ProviderOutcome::ALL.len() + outcome.index()]
    }

    pub(super) fn reconcile_difference(&self, kind: DifferenceKind, result: ReconcileResult) -> &Counter {
        &self.reconcile_differences[kind.index() * ReconcileResult::ALL.len() + result.index()]
    }

    pub(super) fn webhook_delivery(
        &self,
        provider: ProviderName,
        news: News,
        result: DeliveryResult,
    ) -> &Counter {
        let place = provider.index() * News::ALL.len() + news.index();
        &self.webhook_deliveries[place * DeliveryResult::ALL.len() + result.index()]
    }

    pub(super) fn request(&self, route: &'static str, status: u16, took: Duration) {
        if let Some(known) = self.requests.get(&(route, status)) {
            known.record(took);
            return;
        }
        let made = self.make().request_seconds(route, status);
        made.record(took);
        self.requests.insert((route, status), made);
    }

    fn render(&self) -> String {
        metrics::with_local_recorder(&self.recorder, || self.process.collect());
        let mut text = self.handle.render();
        self.sales.render(&mut text);
        text
    }
}

/// Makes handles; the same one for the same series.
struct Maker<'a> {
    recorder: &'a PrometheusRecorder,
}

impl Maker<'_> {
    fn counter(&self, metric: Metric, values: &[&'static str]) -> Counter {
        self.recorder
            .register_counter(&key(metric, values.iter().copied()), &METADATA)
    }

    fn gauge(&self, metric: Metric, values: &[&'static str]) -> Gauge {
        self.recorder
            .register_gauge(&key(metric, values.iter().copied()), &METADATA)
    }

    fn histogram(&self, metric: Metric, values: &[&'static str]) -> Histogram {
        self.recorder
            .register_histogram(&key(metric, values.iter().copied()), &METADATA)
    }

    fn request_seconds(&self, route: &'static str, status: u16) -> Histogram {
        let values = [
            SharedString::const_str(route),
            SharedString::from_owned(status.to_string()),
        ];
        self.recorder
            .register_histogram(&key(super::REQUEST_SECONDS, values), &METADATA)
    }

    fn transition(&self, from: Option<OrderStatus>, to: OrderStatus, by: By) -> Counter {
        self.counter(
            super::TRANSITIONS,
            &[from.map_or(NEW, OrderStatus::as_str), to.as_str(), by.as_str()],
        )
    }

    fn claim_lost(&self, by: By, wanted: OrderStatus, found: Option<OrderStatus>) -> Counter {
        let found = found
            .filter(|status| *status != OrderStatus::Rejected)
            .map_or(MISSING, OrderStatus::as_str);
        self.counter(super::CLAIMS_LOST, &[by.as_str(), wanted.as_str(), found])
    }
}

static METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

fn key<V: Into<SharedString>>(metric: Metric, values: impl IntoIterator<Item = V>) -> Key {
    let labels: Vec<_> = metric
        .labels
        .iter()
        .zip(values)
        .map(|(label, value)| metrics::Label::new(*label, value))
        .collect();
    debug_assert_eq!(
        labels.len(),
        metric.labels.len(),
        "{} has other labels",
        metric.name
    );
    Key::from_parts(metric.name, labels)
}

fn describe(recorder: &PrometheusRecorder) {
    for metric in ALL {
        let (name, help) = (
            KeyName::from_const_str(metric.name),
            SharedString::const_str(metric.help),
        );
        match metric.kind {
            Kind::Counter => recorder.describe_counter(name, None, help),
            Kind::Gauge => recorder.describe_gauge(name, None, help),
            Kind::Histogram => recorder.describe_histogram(name, None, help),
        }
    }
}

/// Every provider with every kind of news and every result, in this order.
fn known_deliveries(make: &Maker<'_>) -> Vec<Counter> {
    let mut known = Vec::new();
    for provider in ProviderName::ALL {
        for news in News::ALL {
            for result in DeliveryResult::ALL {
                let labels = [provider.text(), news.text(), result.text()];
                known.push(make.counter(super::WEBHOOK_DELIVERIES, &labels));
            }
        }
    }
    known
}

/// The transitions that the domain allows, by those who make them.
fn known_transitions(make: &Maker<'_>) -> Vec<Option<Counter>> {
    let mut known: Vec<Option<Counter>> = (0..(STATUSES + 1) * STATUSES * BYS).map(|_| None).collect();
    let mut register = |from, to, by| {
        known[transition_index(from, to, by)].get_or_insert_with(|| make.transition(from, to, by));
    };
    register(None, OrderStatus::Pending, By::Sale);
    for from in OrderStatus::ALL {
        for event in Event::ALL {
            let Ok(change) = transition(from, event) else {
                continue;
            };
            if change.to == from && event != Event::TakeOver {
                continue; // late money changes no status
            }
            for by in who(event) {
                register(Some(from), change.to, *by);
            }
        }
    }
    known
}

/// Who brings this event about.
fn who(event: Event) -> &'static [By] {
    match event {
        Event::Claim | Event::ChargeNotSent => &[By::Payment],
        Event::TakeOver | Event::GivenUp | Event::Swept => &[By::Sweeper],
        Event::Authorised => &[By::Payment, By::Sweeper],
        Event::ChargeVoided => &[By::Sweeper, By::Webhook],
        Event::ChargeSucceeded | Event::ChargeDeclined => &[By::Payment, By::Sweeper, By::Webhook],
        Event::Cancelled => &[By::Buyer],
        Event::SaleCancelled | Event::Refunded | Event::RefundedAndReturned => &[By::Seller],
    }
}

fn known_lost_claims(make: &Maker<'_>) -> Vec<Option<Counter>> {
    let mut known: Vec<Option<Counter>> = (0..BYS * STATUSES * (STATUSES + 1)).map(|_| None).collect();
    for by in [By::Payment, By::Sweeper, By::Webhook, By::Buyer, By::Seller] {
        for wanted in [
            OrderStatus::Processing,
            OrderStatus::Capturing,
            OrderStatus::Paid,
            OrderStatus::Failed,
        ] {
            for found in OrderStatus::ALL.into_iter().map(Some).chain([None]) {
                known[claim_index(by, wanted, found)] = Some(make.claim_lost(by, wanted, found));
            }
        }
    }
    known
}

fn or_none(status: Option<OrderStatus>) -> usize {
    status.map_or(STATUSES, Label::index)
}

fn transition_index(from: Option<OrderStatus>, to: OrderStatus, by: By) -> usize {
    (or_none(from) * STATUSES + to.index()) * BYS + by.index()
}

fn claim_index(by: By, wanted: OrderStatus, found: Option<OrderStatus>) -> usize {
    (by.index() * STATUSES + wanted.index()) * (STATUSES + 1) + or_none(found)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::domain::{SaleId, Stock};
    use crate::metrics::Counted;

    /// The value of the series with exactly these labels, whatever their order.
    fn value(text: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        text.lines().find_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let there = series.strip_prefix(name)?.strip_prefix('{')?.strip_suffix('}')?;
            let wanted: BTreeSet<String> = labels.iter().map(|(k, v)| format!("{k}=\"{v}\"")).collect();
            (there.split(',').map(str::to_owned).collect::<BTreeSet<_>>() == wanted)
                .then(|| value.parse().expect("a number"))
        })
    }

    #[test]
    fn every_metric_is_there_from_the_start_with_help_and_type() {
        let text = install().render();
        for metric in ALL {
            let kind = match metric.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            let (name, help) = (metric.name, metric.help);
            assert!(
                text.contains(&format!("# HELP {name} {help}\n")),
                "{name} isn't described"
            );
            assert!(
                text.contains(&format!("# TYPE {name} {kind}\n")),
                "{name} has no type"
            );
            let active_sales_only = metric.labels.contains(&"sale");
            let has_series = text
                .lines()
                .any(|l| l.starts_with(name) && l[name.len()..].starts_with(['{', ' ', '_']));
            assert!(has_series || active_sales_only, "{name} has no series");
        }
        assert!(text.contains("# TYPE process_resident_memory_bytes gauge\n"));
    }

    #[test]
    fn the_page_about_metrics_lists_each_with_its_type_and_labels() {
        let page = include_str!("../../docs/METRICS.md");
        let listed: BTreeSet<String> = page
            .lines()
            .filter_map(|line| {
                let mut cells = line.strip_prefix("| `fluxbuy_")?.split('|').map(str::trim);
                let name = cells.next()?.trim_end_matches('`');
                let (kind, _unit, labels) = (cells.next()?, cells.next()?, cells.next()?);
                // Each label is in backticks, followed by its values.
                let labels: Vec<_> = labels.split('`').skip(1).step_by(2).collect();
                Some(format!("fluxbuy_{name} {kind} {labels:?}"))
            })
            .collect();
        let there = ALL.iter().map(|m| {
            format!(
                "{} {} {:?}",
                m.name,
                format!("{:?}", m.kind).to_lowercase(),
                m.labels
            )
        });
        assert_eq!(listed, there.collect());
    }

    // The following have a registry of their own: other tests of this process record into the shared one.

    #[test]
    fn every_lost_claim_is_there_as_zero() {
        let text = Registry::new().render();
        for by in ["payment", "sweeper", "webhook", "buyer"] {
            for wanted in ["processing", "capturing", "paid", "failed"] {
                for found in [
                    "pending",
                    "processing",
                    "capturing",
                    "paid",
                    "failed",
                    "refunded",
                    "missing",
                ] {
                    let labels = [("by", by), ("wanted", wanted), ("found", found)];
                    assert_eq!(
                        value(&text, "fluxbuy_claims_lost_total", &labels),
                        Some(0.0),
                        "{labels:?}"
                    );
                }
            }
        }
        assert!(
            !text.contains("rejected"),
            "a row that only occupies an id is no order"
        );
    }

    #[test]
    fn what_is_recorded_is_what_is_scraped() {
        let registry = Registry::new();
        let sale = SaleId::fresh();
        for found in [Some(OrderStatus::Failed), None, Some(OrderStatus::Rejected)] {
            registry
                .claim_lost(By::Payment, OrderStatus::Processing, found)
                .increment(1);
        }
        registry
            .transition(None, OrderStatus::Pending, By::Sale)
            .increment(3);
        // Not known beforehand:
        registry
            .transition(Some(OrderStatus::Paid), OrderStatus::Refunded, By::Sweeper)
            .increment(1);
        registry
            .provider_request(ProviderOp::Refund, ProviderOutcome::RateLimited)
            .increment(1);
        registry
            .reconcile_difference(DifferenceKind::HeldUnits, ReconcileResult::Left)
            .increment(1);
        registry.batch_size.at(What::Reserve).record(3.0);
        registry.request("/v1/no/such/route", 404, Duration::from_millis(7));
        registry.request("/v1/no/such/route", 404, Duration::from_millis(7));
        registry.sales.set(
            sale,
            Stock {
                quantity: 4,
                available: 4,
                held: 0,
                sold: 0,
            },
        );
        registry.handle.run_upkeep();
        let text = registry.render();
        for (name, labels, expected) in [
            (
                "fluxbuy_claims_lost_total",
                &[("by", "payment"), ("wanted", "processing"), ("found", "failed")][..],
                1.0,
            ),
            (
                "fluxbuy_claims_lost_total",
                &[("by", "payment"), ("wanted", "processing"), ("found", "missing")],
                2.0,
            ),
            (
                "fluxbuy_claims_lost_total",
                &[("by", "payment"), ("wanted", "paid"), ("found", "failed")],
                0.0,
            ),
            (
                "fluxbuy_order_transitions_total",
                &[("from", "new"), ("to", "pending"), ("by", "sale")],
                3.0,
            ),
            (
                "fluxbuy_order_transitions_total",
                &[("from", "paid"), ("to", "refunded"), ("by", "sweeper")],
                1.0,
            ),
            (
                "fluxbuy_provider_requests_total",
                &[("op", "refund"), ("outcome", "rate_limited")],
                1.0,
            ),
            (
                "fluxbuy_reconcile_differences_total",
                &[("kind", "held_units"), ("result", "left")],
                1.0,
            ),
            (
                "fluxbuy_reconcile_differences_total",
                &[("kind", "held_units"), ("result", "repaired")],
                0.0,
            ),
            (
                "fluxbuy_batch_size_bucket",
                &[("what", "reserve"), ("le", "2")],
                0.0,
            ),
            (
                "fluxbuy_batch_size_bucket",
                &[("what", "reserve"), ("le", "4")],
                1.0,
            ),
            (
                "fluxbuy_request_seconds_count",
                &[("route", "/v1/no/such/route"), ("status", "404")],
                2.0,
            ),
            (
                "fluxbuy_request_seconds_bucket",
                &[
                    ("route", "/v1/no/such/route"),
                    ("status", "404"),
                    ("le", "0.0075"),
                ],
                2.0,
            ),
            (
                "fluxbuy_stock_units",
                &[("sale", &sale.to_string()), ("state", "available")],
                4.0,
            ),
        ] {
            assert_eq!(value(&text, name, labels), Some(expected), "{name} {labels:?}");
        }
    }

    #[test]
    fn a_count_on_a_gauge_ends_with_what_it_counts() {
        let registry: &'static Registry = Box::leak(Box::new(Registry::new()));
        let shown = || {
            registry
                .render()
                .lines()
                .find_map(|l| l.strip_prefix("fluxbuy_connections ").map(str::to_owned))
        };
        let one = Counted::on(&registry.connections);
        assert_eq!(shown().as_deref(), Some("1"));
        drop(one);
        assert_eq!(shown().as_deref(), Some("0"));
    }
}
