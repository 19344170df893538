//! The engine's program: given, or built with cargo.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use tokio::process::Command;

use super::Programs;

/// The feature with which the engine can leave the guard out of its claim. It is built apart, so that no build of it can
/// be taken for the real one.
const TEST_SWITCHES: [&str; 4] = ["--features", "test-switches", "--target-dir", "target/guard-off"];

/// The program to start.
pub(super) async fn find(programs: &Programs, guard_off: bool) -> anyhow::Result<PathBuf> {
    let (given, option) = if guard_off {
        (&programs.guard_off_engine, "--guard-off-engine")
    } else {
        (&programs.engine, "--engine")
    };
    match given {
        Some(path) => {
            ensure!(path.is_file(), "{option}: there is no program {}", path.display());
            // A name without a folder would be looked for on the path.
            Ok(path.canonicalize()?)
        }
        None => build(guard_off).await,
    }
}

/// Builds it as it ships. Cargo knows whether there is anything to do.
async fn build(guard_off: bool) -> anyhow::Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .filter(|root| root.join("Cargo.toml").is_file())
        .context("the engine's sources are not where they were; give its program with --engine")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(root)
        .args(["build", "--release", "--package", "fluxbuy", "--bin", "fluxbuy"])
        .args(["--message-format", "json-render-diagnostics"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true);
    if guard_off {
        command.args(TEST_SWITCHES);
    }
    let output = command
        .output()
        .await
        .context("cargo could not be started; give the engine's program with --engine")?;
    ensure!(
        output.status.success(),
        "the engine could not be built: {}",
        output.status
    );
    output
        .stdout
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice::<Artifact>(line).ok())
        .find_map(|artifact| artifact.executable)
        .context("cargo built no program")
}

/// What of cargo's messages is of use.
#[derive(Deserialize)]
struct Artifact {
    executable: Option<PathBuf>,
}
