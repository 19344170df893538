//! The direction of imports, as docs/ARCHITECTURE.md gives it.

use std::fs;
use std::path::{Path, PathBuf};

use fluxbuy::crash::Point;

/// Each part of `src/`, and which others it may name.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("config", &[]),
    ("metrics", &["domain"]),
    ("sockets", &[]),
    ("crash", &[]),
    ("signature", &[]),
    ("gate", &["domain"]),
    ("provider", &["domain", "metrics", "signature"]),
    ("store", &["domain", "config", "crash", "metrics", "provider"]),
    (
        "actors",
        &[
            "domain",
            "crash",
            "metrics",
            "gate",
            "provider",
            "signature",
            "store",
            "loading",
            "reconcile",
        ],
    ),
    ("loading", &["domain", "crash", "metrics", "gate", "store"]),
    ("reconcile", &["domain", "gate", "provider", "store", "loading"]),
    ("http", &["domain", "config", "metrics", "actors"]),
    ("mock_provider", &["signature", "sockets"]),
    ("services", &["store"]),
    (
        "fuzz",
        &["domain", "gate", "http", "metrics", "provider", "signature"],
    ),
    ("tables", &["domain", "store", "reconcile"]),
    ("ledger", &["domain", "provider", "store"]),
    ("demo", &["domain", "services", "sockets"]),
    (
        "app",
        &[
            "domain",
            "config",
            "metrics",
            "gate",
            "provider",
            "signature",
            "store",
            "actors",
            "reconcile",
            "http",
            "sockets",
        ],
    ),
];

fn rust_files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    entries
        .flat_map(|entry| rust_files(&entry.unwrap().path()))
        .filter(|file| file.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

/// The parts that a file names as `crate::part`, wherever it does so.
fn named_parts(text: &str) -> Vec<String> {
    text.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| line.split("crate::").skip(1))
        .map(|rest| {
            rest.chars()
                .take_while(|c| c.is_ascii_lowercase() || *c == '_')
                .collect()
        })
        .collect()
}

#[test]
fn imports_go_one_way() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut seen = 0;
    for (part, allowed) in MAY_IMPORT {
        let mut files = Vec::new();
        for place in [src.join(format!("{part}.rs")), src.join(part)] {
            if place.exists() {
                files.extend(rust_files(&place));
            }
        }
        assert!(!files.is_empty(), "there is no part {part}");
        for file in files {
            for named in named_parts(&fs::read_to_string(&file).unwrap()) {
                seen += 1;
                let known = MAY_IMPORT.iter().any(|(name, _)| *name == named);
                assert!(
                    !known || named == *part || allowed.contains(&named.as_str()),
                    "{} names {named}, which {part} may not know",
                    file.display()
                );
            }
        }
    }
    assert!(
        seen > 100,
        "only {seen} imports were seen: is this looking in the right place?"
    );
}

#[test]
fn sql_stays_in_the_store_and_every_status_is_written_conditionally() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in rust_files(&src) {
        let inside = |part: &str| file.starts_with(src.join(part));
        let text = fs::read_to_string(&file).unwrap();
        if !inside("store") && !inside("services") && !inside("demo") {
            assert!(!text.contains("sqlx::query"), "{} has SQL", file.display());
        }
        // One statement changes the status of an order, and it names the status that it expects.
        let updates = text.matches("UPDATE orders").count();
        let expected = usize::from(file.ends_with("store/transition.rs"));
        assert_eq!(updates, expected, "{}", file.display());
    }
}

#[test]
fn every_case_and_invariant_of_the_documents_names_a_test_that_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tests: String = ["tests", "src", "stress/src", "model/tests"]
        .iter()
        .map(|folder| root.join(folder))
        .flat_map(|folder| rust_files(&folder))
        .map(|file| fs::read_to_string(file).unwrap())
        .collect();
    let scenarios = fs::read_to_string(root.join("stress/src/scenarios/mod.rs")).unwrap();
    for document in ["docs/cases.md", "docs/invariants.md", "docs/faults.md"] {
        let text = fs::read_to_string(root.join(document)).unwrap();
        let mut names = 0;
        let quoted = text.split('`').skip(1).step_by(2);
        for name in quoted.filter_map(|quoted| quoted.strip_prefix("scenario ")) {
            assert!(
                scenarios.contains(&format!("=> \"{name}\",")),
                "{document} names the scenario {name}, which is none"
            );
        }
        for name in text
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|name| name.starts_with("test "))
        {
            names += 1;
            let name = name.trim_start_matches("test ");
            assert!(
                tests.contains(&format!("fn {name}(")),
                "{document} names {name}, which is no test"
            );
        }
        assert!(names > 10, "{document} names only {names} tests");
    }
}

#[test]
fn every_boundary_of_the_documents_has_its_crash_point_and_every_point_its_place() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/invariants.md")).unwrap();
    let (_, listed) = page
        .split_once("## Boundaries")
        .expect("the boundaries are listed");
    let listed: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    let known: Vec<&str> = Point::ALL.into_iter().map(Point::name).collect();
    assert_eq!(listed, known);
    let src = root.join("src");
    let code: String = rust_files(&src)
        .iter()
        .filter(|file| !file.ends_with("crash.rs"))
        .map(|file| fs::read_to_string(file).unwrap())
        .collect();
    for point in Point::ALL {
        let place = format!("crash::at(Point::{point:?})");
        assert!(code.contains(&place), "nothing is at {}", point.name());
    }
}
