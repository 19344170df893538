//! Finding the servers' programs, and running them so that they die with their keeper.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Context as _;
use tokio::process::Command;

/// Where Debian keeps `PostgreSQL`'s programs, a folder per version.
const DEBIAN_POSTGRES: &str = "/usr/lib/postgresql";

/// The folder with `PostgreSQL`'s programs: the newest under Debian's, or the one on the path.
///
/// # Errors
/// Says what to install.
pub(super) fn postgres_folder() -> anyhow::Result<PathBuf> {
    let complete = |folder: &PathBuf| {
        ["initdb", "postgres"]
            .iter()
            .all(|name| folder.join(name).is_file())
    };
    let version = |folder: &PathBuf| {
        let parent = folder.parent()?.file_name()?.to_str()?;
        parent.split('.').next()?.parse::<u32>().ok()
    };
    let debian = std::fs::read_dir(DEBIAN_POSTGRES)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(complete)
        .max_by_key(version);
    debian.or_else(|| path_folders().find(complete)).context(
        "PostgreSQL's server (initdb, postgres) was not found on the PATH or below /usr/lib/postgresql: \
         install it (Debian and Ubuntu: postgresql; Fedora: postgresql-server; Homebrew: postgresql)",
    )
}

/// Redis' server.
///
/// # Errors
/// Says what to install.
pub(super) fn redis_server() -> anyhow::Result<PathBuf> {
    find("redis-server").or_else(|| find("valkey-server")).context(
        "redis-server was not found on the PATH: install it (Debian and Ubuntu: redis-server; Fedora and Homebrew: redis)",
    )
}

fn find(name: &str) -> Option<PathBuf> {
    path_folders()
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

fn path_folders() -> impl Iterator<Item = PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).collect::<Vec<_>>().into_iter()
}

/// A command for a server that gets `stop_signal` when its keeper dies without a word, where the system has `setpriv` (util-linux).
///
/// The kernel watches the *thread* that starts it: start it from the program's main thread, never from a task that may run on
/// another one.
pub(crate) fn server(program: &Path, stop_signal: &str) -> Command {
    let mut command = match find("setpriv") {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", stop_signal, "--"]).arg(program);
            command
        }
        None => Command::new(program),
    };
    // A group of its own: a Ctrl-C at the terminal is for its keeper, who needs it until the end.
    command.stdin(Stdio::null()).process_group(0).kill_on_drop(true);
    command
}

/// Ports below those that systems hand out by themselves. From among those, a client of a server that is down for a moment could be given the
/// server's own port, and even connect to itself.
const PORTS: std::ops::Range<u16> = 10_000..30_000;

/// A port that was free a moment ago. Somebody may take it before a server does; then the server fails, and another is tried.
pub(super) fn free_port() -> anyhow::Result<u16> {
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(|| rand::random_range(PORTS))
        .take(100)
        .find(is_free)
        .context("no free port was found")
}
