//! Every query of every panel and every rule, asked of a real Prometheus that scrapes us.

mod prometheus;
mod queries;
#[path = "../flows/support/mod.rs"]
#[allow(dead_code, unused_imports)]
mod support;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use fluxbuy::domain::{OrderStatus, SaleId, Stock};
use fluxbuy::metrics;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use prometheus::{Prometheus, Series};
use queries::{Query, boards, directory, legend_labels, selectors, substituted};
use tokio::net::TcpListener;

/// How long it may take until the last query has its series; mostly waiting for a second scrape.
const DEADLINE: Duration = Duration::from_mins(1);
/// Between two looks at what is still missing.
const LOOK: Duration = Duration::from_millis(200);

/// Asserts that each query of the dashboards and rules finds its series in what `target` (`host:port`) shows to a
/// Prometheus. The target must be under the load whose traces are looked for: sales active, claims lost, charges made.
async fn assert_every_query_finds_its_series(target: &str) {
    let prometheus = Prometheus::start(&directory(), target).await;
    let mut missing = vec!["everything".to_owned()];
    let all_found = tokio::time::timeout(DEADLINE, async {
        while !missing.is_empty() {
            missing = what_is_missing(&prometheus)
                .await
                .unwrap_or_else(|error| vec![error]);
            tokio::time::sleep(LOOK).await;
        }
    });
    let in_time = all_found.await.is_ok();
    assert!(in_time, "not found in time:\n{}", missing.join("\n"));
    assert_runbooks(&prometheus).await;
}

/// What the dashboards and rules ask for and don't get.
async fn what_is_missing(prometheus: &Prometheus) -> Result<Vec<String>, String> {
    let mut missing = Vec::new();
    for board in boards() {
        let sale = match &board.sale_variable {
            None => String::new(),
            Some((metric, label)) => match prometheus.label_values(metric, label).await?.pop() {
                Some(sale) => sale,
                None => return Ok(vec![format!("{}: no sale to choose", board.title)]),
            },
        };
        for query in &board.queries {
            let found = prometheus.query(&substituted(&query.expr, &sale)).await;
            let found = found.map_err(|error| format!("{}: {error}", query.place))?;
            missing.extend(wrong_with(query, &found));
        }
    }
    for rule in prometheus.rules().await? {
        let name = rule["name"].as_str().unwrap_or_default();
        if rule["health"] != "ok" {
            missing.push(format!(
                "rule {name}: health {} {}",
                rule["health"], rule["lastError"]
            ));
        }
        // A rule that holds only when something is wrong: what it compares must be there all the same.
        for selector in selectors(rule["query"].as_str().unwrap_or_default()) {
            if prometheus.query(&selector).await?.is_empty() {
                missing.push(format!("rule {name}: nothing for {selector}"));
            }
        }
    }
    Ok(missing)
}

fn wrong_with(query: &Query, found: &[Series]) -> Option<String> {
    let place = &query.place;
    if found.is_empty() {
        return Some(format!("{place}: no series for {}", query.expr));
    }
    for label in legend_labels(&query.legend) {
        if let Some(series) = found.iter().find(|s| s.labels.get(label).is_none_or(|v| v == "")) {
            return Some(format!(
                "{place}: the legend names {label}, which {series:?} doesn't have"
            ));
        }
    }
    found
        .iter()
        .all(|s| !s.value.is_finite())
        .then(|| format!("{place}: nothing but NaN for {}", query.expr))
}

async fn assert_runbooks(prometheus: &Prometheus) {
    let mut alerts = 0;
    for rule in prometheus
        .rules()
        .await
        .expect("rules")
        .iter()
        .filter(|rule| rule["type"] == "alerting")
    {
        let runbook = rule["annotations"]["runbook"].as_str().unwrap_or_default();
        assert_eq!(
            runbook,
            format!("docs/runbooks/{}.md", rule["name"].as_str().unwrap_or_default())
        );
        assert!(
            Path::new(env!("CARGO_MANIFEST_DIR")).join(runbook).is_file(),
            "{runbook} isn't there"
        );
        alerts += 1;
    }
    assert_eq!(
        alerts,
        std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/runbooks"))
            .unwrap()
            .count()
    );
}

/// The real engine, in the middle of the race between sweeper and payment, with traffic that keeps coming.
#[tokio::test(flavor = "multi_thread")]
async fn every_query_finds_its_series_at_an_engine_under_the_race() {
    let bed = support::Setup::default()
        .cutoff_ms(1600)
        .set("payment.max_in_flight", 3)
        .latency_ms(100, 100)
        .decline_percent(30)
        .start()
        .await;
    let target = bed.url().strip_prefix("http://").expect("an address").to_owned();
    let traffic = async {
        for round in 0.. {
            let sale = bed.sale(60).await;
            for buyer in 0..64 {
                let buyer = format!("b{round}-{buyer}");
                let reply = bed.buy(&sale, &buyer, "key", 1).await;
                assert!([201, 409].contains(&reply.status), "{}", reply.text());
                if reply.status == 201 {
                    let order = reply.json()["id"].as_str().expect("an id").to_owned();
                    bed.get_order(&order, &buyer).await;
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::select! {
        () = traffic => unreachable!("it goes on"),
        () = assert_every_query_finds_its_series(&target) => {}
    }
    let lost = bed
        .metric(
            "fluxbuy_claims_lost_total",
            &["by=\"payment\"", "found=\"failed\""],
        )
        .await;
    assert!(lost > 0, "there was no race");
}

/// A target that shows the engine's metrics, a little more of everything at each scrape. Returns `host:port`.
async fn serve_recorded_values() -> String {
    let exporter = metrics::install();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let sale = SaleId::fresh();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let scrape = service_fn(move |_: Request<hyper::body::Incoming>| async move {
                record(sale);
                let answer = Response::builder().header("content-type", "text/plain; version=0.0.4");
                Ok::<_, Infallible>(
                    answer
                        .body(Full::new(Bytes::from(exporter.render())))
                        .expect("a response"),
                )
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), scrape),
            );
        }
    });
    address
}

/// What a moment of a sale leaves behind.
fn record(sale: SaleId) {
    use metrics::{
        Actor, By, GateOp, LateRefund, Outcome, PassResult, Pool, ProviderOp, ProviderOutcome, RebuildReason,
        What,
    };
    let took = Duration::from_millis(7);
    Outcome::ALL.iter().copied().for_each(metrics::purchases);
    metrics::transition(None, OrderStatus::Pending, By::Sale);
    metrics::transition(Some(OrderStatus::Pending), OrderStatus::Failed, By::Sweeper);
    metrics::claim_lost(By::Payment, OrderStatus::Processing, Some(OrderStatus::Failed));
    metrics::swept(OrderStatus::Pending);
    for what in What::ALL {
        metrics::batch_size(*what, 16);
        metrics::commit_seconds(*what, took);
    }
    for op in GateOp::ALL {
        metrics::gate_seconds(*op, took);
    }
    for pool in Pool::ALL {
        metrics::connection_held(*pool, took);
    }
    for op in ProviderOp::ALL {
        metrics::provider_request(*op, ProviderOutcome::Succeeded);
        metrics::provider_seconds(*op, Duration::from_secs(2));
    }
    metrics::request("/v1/sales/{id}/orders", 201, took);
    metrics::request("/v1/sales/{id}/orders", 409, took);
    metrics::late_refund(LateRefund::Due);
    metrics::gate_rebuilt(RebuildReason::Unprimed);
    metrics::actor_restarted(Actor::Order);
    metrics::sweeper_pass(PassResult::Ok, Timestamp::now());
    metrics::stock(
        sale,
        &Stock {
            quantity: 900,
            available: 300,
            held: 200,
            sold: 400,
        },
    );
}

#[tokio::test]
async fn every_query_of_panels_and_rules_finds_its_series() {
    assert_every_query_finds_its_series(&serve_recorded_values().await).await;
}

#[tokio::test]
async fn stock_adds_up_and_every_loser_is_shown() {
    let prometheus = Prometheus::start(&directory(), &serve_recorded_values().await).await;
    let (mut stacked, mut losers) = (0.0, BTreeSet::new());
    let seen = tokio::time::timeout(DEADLINE, async {
        while stacked == 0.0 || losers.is_empty() {
            let sale = prometheus
                .label_values("fluxbuy_sale_quantity_units", "sale")
                .await
                .ok()
                .and_then(|mut v| v.pop());
            if let Some(sale) = sale {
                (stacked, losers) = stack_and_losers(&prometheus, &sale).await;
            }
            tokio::time::sleep(LOOK).await;
        }
    });
    seen.await.expect("the panels show something in time");
    assert!(
        (stacked - 900.0).abs() < 1e-9,
        "available, held and sold add up to {stacked}"
    );
    assert_eq!(
        losers,
        ["buyer", "payment", "seller", "sweeper", "webhook"]
            .map(str::to_owned)
            .into()
    );
}

/// The height of the stack in the panel of the sale's stock, and the losers in the panel of lost claims.
async fn stack_and_losers(prometheus: &Prometheus, sale: &str) -> (f64, BTreeSet<String>) {
    let (mut stacked, mut losers) = (0.0, BTreeSet::new());
    for query in boards().iter().flat_map(|board| &board.queries) {
        let in_stack = query.place.contains("add up to the quantity") && query.legend != "quantity";
        let by_loser = query.place.contains("Claims lost, by loser");
        if in_stack || by_loser {
            for series in prometheus
                .query(&substituted(&query.expr, sale))
                .await
                .unwrap_or_default()
            {
                if in_stack {
                    stacked += series.value;
                } else {
                    losers.extend(
                        series
                            .labels
                            .get("by")
                            .and_then(|by| by.as_str())
                            .map(str::to_owned),
                    );
                }
            }
        }
    }
    (stacked, losers)
}

#[test]
fn dashboards_and_rules_name_only_metrics_that_exist() {
    let known: BTreeSet<&str> = metrics::ALL.iter().map(|metric| metric.name).collect();
    let rules =
        std::fs::read_to_string(directory().join("rules/fluxbuy.rules.yml")).expect("the rules are there");
    let mut asked: BTreeSet<String> = BTreeSet::new();
    for board in boards() {
        asked.extend(board.queries.iter().flat_map(|query| selectors(&query.expr)));
    }
    asked.extend(
        rules
            .lines()
            .filter(|l| !l.contains("name:") && !l.contains("alert"))
            .flat_map(selectors),
    );
    assert!(asked.len() > 30, "{asked:?}");
    for selector in asked {
        let name = selector.split('{').next().unwrap_or_default();
        let base = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix))
            .unwrap_or(name);
        let elsewhere = name.starts_with("process_") || name.starts_with("fluxbuy:");
        assert!(elsewhere || known.contains(base), "{name} doesn't exist");
    }
}

#[test]
fn promtool_finds_no_fault_with_configuration_rules_and_their_tests() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/check-dashboards.sh");
    let output = Command::new(script).output().expect("the script runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

#[test]
fn promtool_finds_no_fault_with_a_scrape() {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed: `make deps`");
    let text = metrics::install().render();
    promtool
        .stdin
        .take()
        .expect("piped")
        .write_all(text.as_bytes())
        .expect("promtool reads");
    let output = promtool.wait_with_output().expect("promtool ends");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
