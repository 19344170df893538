//! Starting programs, and keeping what they say.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// How long a program may take until it says that it is ready.
const READY_WITHIN: Duration = Duration::from_secs(90);
/// Lines of a log that are printed.
const TAIL: usize = 60;

/// Files that programs log to.
pub(super) struct Logs {
    directory: PathBuf,
    label: String,
    files: Mutex<Vec<PathBuf>>,
    // Removes the directory, unless the logs were asked for.
    _temporary: Option<TempDir>,
}

impl Logs {
    pub(super) fn new(keep_in: Option<&Path>, label: &str) -> anyhow::Result<Self> {
        let (directory, temporary) = if let Some(directory) = keep_in {
            std::fs::create_dir_all(directory)
                .with_context(|| format!("--logs: {} can't be made", directory.display()))?;
            (directory.to_owned(), None)
        } else {
            let temporary = tempfile::Builder::new().prefix("fluxbuy-stress-").tempdir()?;
            (temporary.path().to_owned(), Some(temporary))
        };
        Ok(Self {
            directory,
            label: label.to_owned(),
            files: Mutex::default(),
            _temporary: temporary,
        })
    }

    /// Where they are.
    pub(super) fn folder(&self) -> &Path {
        &self.directory
    }

    pub(super) fn file(&self, program: &str) -> anyhow::Result<File> {
        let path = self.directory.join(format!("{}-{program}.log", self.label));
        let file = File::create(&path).with_context(|| format!("{} can't be written", path.display()))?;
        self.files
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .push(path);
        Ok(file)
    }

    /// The last lines of each, on stderr.
    pub(super) fn print(&self) {
        for path in self
            .files
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .iter()
        {
            let text = std::fs::read(path).unwrap_or_default();
            if text.is_empty() {
                continue;
            }
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            let skipped = lines.len().saturating_sub(TAIL);
            eprintln!("--- {} ({skipped} lines before these) ---", path.display());
            for line in &lines[skipped..] {
                eprintln!("{line}");
            }
        }
    }
}

/// A command for one of the programs. It doesn't hear the terminal's Ctrl-C: the harness stops it when it is time.
pub(super) fn command(program: &Path) -> Command {
    prepared(Command::new(program))
}

/// The same for a program that doesn't notice when the harness is killed outright: where `setpriv` is there, it is killed as well.
pub fn mortal_command(program: &Path) -> Command {
    let Some(setpriv) = on_path("setpriv") else {
        return command(program);
    };
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    prepared(command)
}

fn prepared(mut command: Command) -> Command {
    command.process_group(0).kill_on_drop(true).stdout(Stdio::piped());
    // Settings of the one who runs the harness are not the scenario's.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FLUXBUY__") {
            command.env_remove(name);
        }
    }
    command
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

/// The line with which a program says that it is ready.
///
/// # Errors
/// When it ends, or takes too long, before it says so.
pub async fn ready_line(child: &mut Child, stdout: ChildStdout, name: &str) -> anyhow::Result<String> {
    let mut lines = BufReader::new(stdout).lines();
    let line = first_line(child, &mut lines, name).await?;
    // Whatever it says later must not block it.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Ok(line)
}

/// The same, of a program that is listened to further on.
pub(super) async fn first_line(
    child: &mut Child,
    lines: &mut Lines<BufReader<ChildStdout>>,
    name: &str,
) -> anyhow::Result<String> {
    let line = tokio::time::timeout(READY_WITHIN, lines.next_line())
        .await
        .with_context(|| format!("{name} was not ready within {} s", READY_WITHIN.as_secs()))??;
    let Some(line) = line else {
        let status = child.wait().await?;
        bail!("{name} ended before it was ready: {status}")
    };
    Ok(line)
}
