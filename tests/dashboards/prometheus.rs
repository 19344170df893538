//! A private Prometheus with the repository's own configuration and rules, on a free port, gone with its value.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// Between two scrapes, and between two looks at the rules. The repository's 5 s would make the test as much slower.
const INTERVAL: &str = "250ms";
/// What stands for `$__rate_interval`: at least four scrapes.
pub(crate) const RATE_INTERVAL: &str = "5s";
/// What stands for `$__range`.
pub(crate) const RANGE: &str = "5m";

/// How long Prometheus may take for its start.
const START: Duration = Duration::from_secs(30);

/// A running Prometheus.
pub(crate) struct Prometheus {
    base: String,
    client: Client<HttpConnector, Empty<Bytes>>,
    _process: Child,
    _storage: TempDir,
}

/// One series of an answer: its labels, and its value now.
#[derive(Debug)]
pub(crate) struct Series {
    /// Its labels.
    pub(crate) labels: serde_json::Map<String, Value>,
    /// Its value; may be NaN.
    pub(crate) value: f64,
}

impl Prometheus {
    /// Starts one that scrapes `target` (`host:port`) with the repository's configuration.
    pub(crate) async fn start(dashboards: &Path, target: &str) -> Self {
        let storage = tempfile::tempdir().expect("a temporary directory");
        let configuration = configuration(dashboards, target);
        let config_file = storage.path().join("prometheus.yml");
        std::fs::write(&config_file, configuration).expect("writable");
        let mut process = Command::new("prometheus")
            .arg(format!("--config.file={}", config_file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                storage.path().join("data").display()
            ))
            .arg("--web.listen-address=127.0.0.1:0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("prometheus is installed: `make deps`");
        let mut log = BufReader::new(process.stderr.take().expect("piped")).lines();
        let address = tokio::time::timeout(START, async {
            let mut said = Vec::new();
            while let Some(line) = log.next_line().await.expect("readable") {
                // `... component=web msg="Listening on" address=127.0.0.1:40123`, in the version's own order.
                let address = line
                    .split_whitespace()
                    .find_map(|word| word.strip_prefix("address="));
                if let (true, Some(address)) = (line.contains("Listening on"), address) {
                    return address.trim_matches('"').to_owned();
                }
                said.push(line);
            }
            panic!("prometheus didn't start:\n{}", said.join("\n"));
        });
        let address = address.await.expect("prometheus listens in time");
        // Read to the end, or it would block on a full pipe.
        tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
        Self {
            base: format!("http://{address}/api/v1"),
            client: Client::builder(TokioExecutor::new()).build_http(),
            _process: process,
            _storage: storage,
        }
    }

    /// What this expression yields now.
    pub(crate) async fn query(&self, expr: &str) -> Result<Vec<Series>, String> {
        let data = self.get(&format!("/query?query={}", escaped(expr))).await?;
        let series = |entry: &Value| Series {
            labels: entry["metric"].as_object().cloned().unwrap_or_default(),
            value: entry["value"][1]
                .as_str()
                .and_then(|v| v.parse().ok())
                .expect("a sample's value"),
        };
        match data["resultType"].as_str() {
            Some("vector") => Ok(data["result"]
                .as_array()
                .expect("a list")
                .iter()
                .map(series)
                .collect()),
            other => Err(format!("{expr} yields {other:?}, not a vector")),
        }
    }

    /// The values of `label` on `metric`.
    pub(crate) async fn label_values(&self, metric: &str, label: &str) -> Result<Vec<String>, String> {
        let data = self
            .get(&format!("/label/{label}/values?match%5B%5D={}", escaped(metric)))
            .await?;
        let values = data.as_array().expect("a list").iter();
        Ok(values.map(|v| v.as_str().expect("a text").to_owned()).collect())
    }

    /// All rules: name, query, health, last error, annotations.
    pub(crate) async fn rules(&self) -> Result<Vec<Value>, String> {
        let data = self.get("/rules").await?;
        let groups = data["groups"].as_array().expect("a list").iter();
        Ok(groups
            .flat_map(|group| group["rules"].as_array().expect("a list").clone())
            .collect())
    }

    async fn get(&self, path: &str) -> Result<Value, String> {
        let uri = format!("{}{path}", self.base).parse().expect("an URI");
        // Not ready yet is an error like any other here: whoever asks asks again.
        let answer = self.client.get(uri).await.map_err(|e| e.to_string())?;
        let body = answer
            .into_body()
            .collect()
            .await
            .map_err(|e| e.to_string())?
            .to_bytes();
        let mut json: Value =
            serde_json::from_slice(&body).map_err(|e| format!("{e}: {}", String::from_utf8_lossy(&body)))?;
        if json["status"] == "success" {
            Ok(json["data"].take())
        } else {
            Err(json["error"].to_string())
        }
    }
}

/// The repository's configuration with another target, its rules by their whole path, and no time to wait.
fn configuration(dashboards: &Path, target: &str) -> String {
    let text =
        std::fs::read_to_string(dashboards.join("prometheus.yml")).expect("the configuration is there");
    let rules = format!("{}/rules/*.rules.yml", dashboards.display());
    let changes = [
        ("127.0.0.1:8080", target),
        ("rules/*.rules.yml", rules.as_str()),
        ("scrape_interval: 5s", &format!("scrape_interval: {INTERVAL}")),
        ("scrape_timeout: 4s", &format!("scrape_timeout: {INTERVAL}")),
        (
            "evaluation_interval: 5s",
            &format!("evaluation_interval: {INTERVAL}"),
        ),
    ];
    changes.into_iter().fold(text, |text, (from, to)| {
        assert!(text.contains(from), "{from} isn't in the configuration any more");
        text.replace(from, to)
    })
}

fn escaped(text: &str) -> String {
    text.bytes()
        .map(|b| {
            if b.is_ascii_alphanumeric() {
                char::from(b).to_string()
            } else {
                format!("%{b:02X}")
            }
        })
        .collect()
}
