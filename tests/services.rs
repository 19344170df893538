//! Private servers come up as what they claim to be, and nothing is left of them, however their owner ends.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use fluxbuy::services::{Addresses, Args, Services};
use fluxbuy::store::migrate;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// How long anything may take. Generous: it only bounds a failure.
const PATIENCE: Duration = Duration::from_mins(1);

fn fluxbuy() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_fluxbuy"))
}

async fn start(args: &Args) -> Services {
    Services::start(fluxbuy(), args).await.expect("private services")
}

async fn start_all() -> Services {
    let args = Args {
        provider_latency_max_ms: 1,
        ..Args::default()
    };
    start(&args).await
}

/// Starts the keeper by hand, so that the test can choose who owns it and how that ends.
async fn keeper(stdin: Stdio) -> (Child, Addresses) {
    let mut keeper = Command::new(fluxbuy())
        .args(["services", "--no-provider"])
        .stdin(stdin)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(keeper.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(PATIENCE, lines.next_line())
        .await
        .expect("it comes up")
        .unwrap()
        .expect("a line");
    (keeper, serde_json::from_str(&line).expect("JSON"))
}

fn pids(addresses: &Addresses) -> Vec<i32> {
    [addresses.postgres_pid, addresses.redis_pid]
        .into_iter()
        .chain(addresses.provider_pid)
        .map(|pid| pid as i32)
        .collect()
}

fn runs(pid: i32) -> bool {
    kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH)
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "did not come true: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn nothing_is_left(addresses: &Addresses) {
    for pid in pids(addresses) {
        eventually(&format!("process {pid} is gone"), || !runs(pid)).await;
    }
    eventually("the directory is gone", || !addresses.directory.exists()).await;
}

async fn setting(connection: &mut PgConnection, name: &str) -> String {
    sqlx::query_scalar("SELECT current_setting($1)")
        .bind(name)
        .fetch_one(connection)
        .await
        .unwrap()
}

#[tokio::test]
async fn they_are_what_they_claim_to_be() {
    let services = start_all().await;
    let addresses = services.addresses().clone();

    let mut owner = PgConnection::connect(&addresses.postgres_owner_url)
        .await
        .unwrap();
    for (name, value) in [
        ("fsync", "on"),
        ("synchronous_commit", "on"),
        ("full_page_writes", "on"),
        ("listen_addresses", "127.0.0.1"),
    ] {
        assert_eq!(setting(&mut owner, name).await, value, "{name}");
    }
    let applied: Vec<i64> =
        sqlx::query_scalar("SELECT version FROM _sqlx_migrations WHERE success ORDER BY version")
            .fetch_all(&mut owner)
            .await
            .unwrap();
    assert_eq!(applied, migrate::versions());
    let mut engine = PgConnection::connect(&addresses.postgres_engine_url)
        .await
        .unwrap();
    let privileged: bool = sqlx::query_scalar("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
        .fetch_one(&mut engine)
        .await
        .unwrap();
    assert!(!privileged, "the engine's role is no superuser");
    migrate::migrate(&addresses.postgres_owner_url)
        .await
        .expect("migrating what is migrated changes nothing");

    let mut redis = redis::Client::open(addresses.redis_url.as_str())
        .unwrap()
        .get_multiplexed_async_connection()
        .await
        .unwrap();
    for (name, value) in [
        ("maxmemory-policy", "noeviction"),
        ("appendonly", "no"),
        ("save", ""),
        ("bind", "127.0.0.1"),
    ] {
        let found: Vec<String> = redis::cmd("CONFIG")
            .arg("GET")
            .arg(name)
            .query_async(&mut redis)
            .await
            .unwrap();
        assert_eq!(found, [name, value]);
    }

    let provider = addresses.provider_url.clone().expect("a provider");
    TcpStream::connect(provider.strip_prefix("http://").unwrap())
        .await
        .expect("the provider listens");

    // Clients that are still connected don't keep anything from stopping.
    services.stop().await.unwrap();
    for pid in pids(&addresses) {
        assert!(!runs(pid), "process {pid} is gone when stop is done");
    }
    assert!(!addresses.directory.exists());
}

#[tokio::test]
async fn databases_are_fresh_and_their_own() {
    let args = Args {
        no_provider: true,
        ..Args::default()
    };
    let services = start(&args).await;
    let made = futures_util::future::join_all((0..8).map(|n| {
        let services = &services;
        async move { services.create_database(&format!("t_{n}")).await.unwrap() }
    }))
    .await;
    for database in &made {
        let mut connection = PgConnection::connect(&database.engine_url).await.unwrap();
        let sales: i64 = sqlx::query_scalar("SELECT count(*) FROM sales")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert_eq!(sales, 0);
        sqlx::query(
            "INSERT INTO sales (id, name, unit_price_minor, currency, max_per_order, opens_at)
             VALUES (gen_random_uuid(), 'a sale', 1, 'EUR', 1, now())",
        )
        .execute(&mut connection)
        .await
        .unwrap();
    }
    services
        .create_database("t_0")
        .await
        .expect_err("there is one of that name");
    services
        .create_database("x; DROP DATABASE t_1")
        .await
        .expect_err("that is no name");
}

#[tokio::test]
async fn several_sets_run_at_once() {
    let args = Args {
        no_provider: true,
        ..Args::default()
    };
    let (one, other) = futures_util::future::join(start(&args), start(&args)).await;
    let (a, b) = (one.addresses().clone(), other.addresses().clone());
    assert_ne!(a.postgres_owner_url, b.postgres_owner_url);
    assert_ne!(a.redis_url, b.redis_url);
    assert_ne!(a.directory, b.directory);
    one.stop().await.unwrap();
    assert!(pids(&b).into_iter().all(runs), "the other set goes on");
    other.stop().await.unwrap();
    nothing_is_left(&a).await;
    nothing_is_left(&b).await;
}

#[tokio::test]
async fn an_owner_that_panics_takes_them_along() {
    let services = start_all().await;
    let addresses = services.addresses().clone();
    let panicked = tokio::spawn(async move {
        let _held = services;
        panic!("on purpose");
    })
    .await;
    assert!(panicked.unwrap_err().is_panic());
    nothing_is_left(&addresses).await;
}

#[tokio::test]
async fn an_owner_that_is_killed_takes_them_along() {
    // Whoever holds the other end of the keeper's standard input is its owner.
    let mut owner = Command::new("sleep")
        .arg("1000")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let leash: Stdio = owner.stdout.take().unwrap().try_into().unwrap();
    let (mut keeper, addresses) = keeper(leash).await;
    assert!(pids(&addresses).into_iter().all(runs));
    owner.kill().await.unwrap();
    nothing_is_left(&addresses).await;
    assert!(keeper.wait().await.unwrap().success());
}

#[tokio::test]
async fn signals_end_them() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let (mut keeper, addresses) = keeper(Stdio::piped()).await;
        kill(Pid::from_raw(keeper.id().unwrap() as i32), signal).unwrap();
        assert!(keeper.wait().await.unwrap().success(), "{signal}");
        for pid in pids(&addresses) {
            assert!(!runs(pid), "process {pid} after {signal}");
        }
        assert!(!addresses.directory.exists(), "{signal}");
    }
}

#[tokio::test]
async fn a_keeper_that_is_killed_takes_the_servers_along() {
    let (mut keeper, addresses) = keeper(Stdio::piped()).await;
    keeper.kill().await.unwrap();
    for pid in pids(&addresses) {
        eventually(&format!("process {pid} is gone"), || !runs(pid)).await;
    }
    // The one thing that a killed keeper can't do.
    std::fs::remove_dir_all(&addresses.directory).unwrap();
}

/// A folder for temporary files, for one keeper.
fn temporary(mode: u32) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
    folder
}

#[tokio::test]
async fn an_owner_that_goes_early_leaves_nothing() {
    let folder = temporary(0o755);
    let mut command = Command::new(fluxbuy());
    command
        .args(["services", "--no-provider"])
        .env("TMPDIR", folder.path())
        .stdin(Stdio::piped());

    // The pipe for the one line is already closed, and so is the leash.
    let mut keeper = command.stdout(Stdio::piped()).spawn().unwrap();
    drop((keeper.stdin.take(), keeper.stdout.take()));
    assert!(keeper.wait().await.unwrap().success());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);

    // A signal while the servers start: as soon as there is something to leave behind.
    let mut keeper = command.stdout(Stdio::null()).spawn().unwrap();
    eventually("it has begun", || {
        std::fs::read_dir(folder.path()).unwrap().count() > 0
    })
    .await;
    kill(Pid::from_raw(keeper.id().unwrap() as i32), Signal::SIGTERM).unwrap();
    assert!(keeper.wait().await.unwrap().success());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_private_folder_for_temporary_files_is_no_obstacle() {
    let folder = temporary(0o700);
    let output = Command::new(fluxbuy())
        .args(["services", "--no-provider"])
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let addresses: Addresses = serde_json::from_slice(&output.stdout).unwrap();
    nothing_is_left(&addresses).await;
}

#[tokio::test]
async fn a_missing_program_is_named_with_its_package() {
    let folder = temporary(0o755);
    let output = Command::new(fluxbuy())
        .args(["services", "--no-provider"])
        .env("PATH", folder.path())
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    assert!(!output.status.success());
    assert!(output.stdout.is_empty());
    let said = String::from_utf8(output.stderr).unwrap();
    for word in ["redis-server", "Debian", "Fedora"] {
        assert!(said.contains(word), "{said}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
