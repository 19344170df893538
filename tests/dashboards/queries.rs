//! What the dashboards ask of Prometheus, read out of their JSON.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// One query of one panel.
#[derive(Debug)]
pub(crate) struct Query {
    /// `board / panel / refId`, for messages.
    pub(crate) place: String,
    /// As it stands in the JSON, variables included.
    pub(crate) expr: String,
    /// How its series are named; each `{{label}}` must be there.
    pub(crate) legend: String,
}

/// A dashboard.
pub(crate) struct Board {
    /// Its title.
    pub(crate) title: String,
    /// The queries of all panels.
    pub(crate) queries: Vec<Query>,
    /// The `(metric, label)` that the values of the variable `sale` come from, where it has one.
    pub(crate) sale_variable: Option<(String, String)>,
}

/// The directory of the dashboards.
pub(crate) fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards")
}

/// All dashboards.
pub(crate) fn boards() -> Vec<Board> {
    let mut boards = Vec::new();
    for entry in std::fs::read_dir(directory()).expect("the dashboards are there") {
        let path = entry.expect("readable").path();
        if path.extension().is_some_and(|e| e == "json") {
            let text = std::fs::read_to_string(&path).expect("readable");
            boards.push(board(
                &serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display())),
            ));
        }
    }
    boards
}

fn board(json: &Value) -> Board {
    let title = text(&json["title"]);
    // An import without an edit: no inputs to fill in, and every data source is the variable.
    assert!(json.get("__inputs").is_none(), "{title} asks for inputs");
    let mut queries = Vec::new();
    for panel in list(&json["panels"]) {
        panel_queries(&title, panel, &mut queries);
    }
    let sale_variable = list(&json["templating"]["list"])
        .iter()
        .find(|v| v["name"] == "sale")
        .map(|variable| {
            let definition = text(&variable["query"]["query"]);
            let inner = definition
                .strip_prefix("label_values(")
                .and_then(|d| d.strip_suffix(')'));
            let (metric, label) = inner
                .and_then(|i| i.split_once(','))
                .expect("label_values(metric, label)");
            (metric.trim().to_owned(), label.trim().to_owned())
        });
    assert!(
        list(&json["templating"]["list"])
            .iter()
            .any(|v| v["name"] == "datasource" && v["type"] == "datasource"),
        "{title} has no data source variable"
    );
    Board {
        title,
        queries,
        sale_variable,
    }
}

fn panel_queries(board: &str, panel: &Value, queries: &mut Vec<Query>) {
    let place = format!("{board} / {}", text(&panel["title"]));
    for target in list(&panel["targets"]) {
        assert_eq!(
            target["datasource"]["uid"], "${datasource}",
            "{place} is tied to a data source"
        );
        assert!(
            panel["description"].as_str().is_some_and(|d| !d.is_empty()),
            "{place} has no description"
        );
        assert!(
            panel["fieldConfig"]["defaults"]["unit"].is_string(),
            "{place} has no unit"
        );
        queries.push(Query {
            place: format!("{place} / {}", text(&target["refId"])),
            expr: text(&target["expr"]),
            legend: text(&target["legendFormat"]),
        });
    }
    for inner in list(&panel["panels"]) {
        panel_queries(board, inner, queries);
    }
}

/// The query as Grafana would send it.
pub(crate) fn substituted(expr: &str, sale: &str) -> String {
    let query = expr
        .replace("$__rate_interval", super::prometheus::RATE_INTERVAL)
        .replace("$__range", super::prometheus::RANGE)
        .replace("$sale", sale);
    assert!(
        !query.contains('$'),
        "{expr} has a variable that isn't known here"
    );
    query
}

/// The labels that a legend names.
pub(crate) fn legend_labels(legend: &str) -> Vec<&str> {
    legend
        .split("{{")
        .skip(1)
        .filter_map(|rest| rest.split_once("}}"))
        .map(|(label, _)| label.trim())
        .collect()
}

/// The selectors of our own series in an expression, `name{matchers}` each: what is there to be compared, whether or
/// not the comparison holds just now.
pub(crate) fn selectors(expr: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut selectors = BTreeSet::new();
    let mut rest = expr;
    while let Some(start) = rest.find(is_name) {
        let word = &rest[start..];
        let end = word.find(|c| !is_name(c)).unwrap_or(word.len());
        let (name, after) = word.split_at(end);
        rest = after;
        if name.starts_with("fluxbuy_") || name.starts_with("fluxbuy:") || name.starts_with("process_") {
            let matchers = match after.strip_prefix('{') {
                Some(inside) => &after[..=matchers_len(inside)],
                None => "",
            };
            selectors.insert(format!("{name}{matchers}"));
            rest = &after[matchers.len()..];
        } else if let Some(quoted) = rest.strip_prefix('"') {
            // A matcher's value is no name.
            rest = quoted.split_once('"').map_or("", |(_, after)| after);
        }
    }
    selectors
}

/// How far the closing brace is, the ones inside quotes aside; counted so that `{` and `}` are both included.
fn matchers_len(inside: &str) -> usize {
    let mut quoted = false;
    for (at, c) in inside.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '}' if !quoted => return at + 1,
            _ => {}
        }
    }
    panic!("no closing brace in {inside}");
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[test]
fn selectors_are_found_with_their_matchers() {
    let expr = r#"a(fluxbuy_x{route="/v1/{id}",s="1"}[5m]) > 2 and fluxbuy:y or sum by (op) (process_z{a!="fluxbuy_no"})"#;
    let expected = [
        r#"fluxbuy_x{route="/v1/{id}",s="1"}"#,
        "fluxbuy:y",
        r#"process_z{a!="fluxbuy_no"}"#,
    ];
    assert_eq!(selectors(expr), expected.into_iter().map(str::to_owned).collect());
}
