//! A private Redis for the tests of the gate, and what they have in common.

pub(crate) mod model;
pub(crate) mod proxy;

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use fluxbuy::domain::{Buyer, IdempotencyDigest, OrderId, SaleId};
use fluxbuy::gate::{
    Gate, HeldReservation, LoadedOrder, Release, Released, Reservation, Reserve, SaleFacts, Settings, Verdict,
};
use jiff::{SignedDuration, Timestamp};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Long enough for a busy machine, where a test isn't about time.
pub(crate) const GENEROUS: Duration = Duration::from_secs(10);

/// The server that tests share which mind nothing but their own sale.
static SHARED: LazyLock<Redis> = LazyLock::new(Redis::start);

/// A real redis-server in a directory of its own.
///
/// A shell watches over it: when this process ends, in whatever way, the shell's standard input closes, and the
/// shell kills the server and removes the directory. A static is never dropped, and a destructor doesn't run when the
/// process is killed.
pub(crate) struct Redis {
    port: u16,
    running: Mutex<Option<Running>>,
}

struct Running {
    pid: Pid,
    watcher: Child,
    /// Its end is the watcher's signal.
    stdin: Option<ChildStdin>,
}

const WATCHER: &str = r#"
dir=$(mktemp -d) || exit 1
redis-server --port "$1" --bind 127.0.0.1 --save '' --appendonly no --dir "$dir" --logfile redis.log </dev/null >/dev/null 2>&1 &
echo $!
read -r _
kill -9 $! 2>/dev/null
wait $! 2>/dev/null
rm -rf "$dir"
"#;

impl Redis {
    pub(crate) fn start() -> Self {
        // Somebody else may take the port between the look and the start; then another one is tried.
        for _ in 0..20 {
            let port = free_port();
            if let Some(running) = Running::start(port) {
                return Self {
                    port,
                    running: Mutex::new(Some(running)),
                };
            }
        }
        panic!("no redis-server could be started");
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    pub(crate) fn gate(&self) -> Gate {
        self.gate_with(GENEROUS, GENEROUS)
    }

    pub(crate) fn gate_with(&self, response_timeout: Duration, connect_timeout: Duration) -> Gate {
        Gate::new(&Settings {
            url: self.url(),
            response_timeout,
            connect_timeout,
        })
        .expect("a valid url")
    }

    /// kill -9, and waits until it is gone.
    pub(crate) fn kill(&self) {
        drop(self.running.lock().unwrap().take());
    }

    /// Starts it again on the same port, empty.
    pub(crate) fn restart(&self) {
        let mut running = self.running.lock().unwrap();
        assert!(running.is_none());
        *running = Some(Running::start(self.port).expect("the port is still free"));
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.running.lock().unwrap().as_ref().unwrap().pid, signal).unwrap();
    }

    /// A command that the gate has no business sending.
    pub(crate) fn command(&self, words: &[&str]) -> redis::Value {
        let mut connection = redis::Client::open(self.url()).unwrap().get_connection().unwrap();
        redis::cmd(words[0])
            .arg(&words[1..])
            .query(&mut connection)
            .unwrap()
    }
}

impl Running {
    fn start(port: u16) -> Option<Self> {
        let mut watcher = Command::new("sh")
            .args(["-c", WATCHER, "sh", &port.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What ends our own group, such as Ctrl-C, must not end the watcher before its work is done.
            .process_group(0)
            .spawn()
            .expect("sh");
        let stdin = watcher.stdin.take();
        let mut line = String::new();
        BufReader::new(watcher.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let pid = Pid::from_raw(line.trim().parse().expect("a pid"));
        let running = Self { pid, watcher, stdin };
        running.answers(port).then_some(running)
    }

    /// Waits until it answers, and with the right process id: somebody else's server may have the port.
    fn answers(&self, port: u16) -> bool {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}/0")).unwrap();
        let ours = format!("process_id:{}\r\n", self.pid);
        let deadline = Instant::now() + GENEROUS;
        while Instant::now() < deadline {
            if let Ok(mut connection) = client.get_connection()
                && let Ok(info) = redis::cmd("INFO").arg("server").query::<String>(&mut connection)
            {
                return info.contains(&ours);
            }
            std::thread::yield_now();
        }
        false
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.watcher.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// A gate to the shared server. Each test has its own, for a connection belongs to the test's runtime.
pub(crate) fn gate() -> Gate {
    SHARED.gate()
}

pub(crate) fn shared() -> &'static Redis {
    &SHARED
}

/// A sale that has been open for an hour and never closes.
pub(crate) fn open(available: i64) -> SaleFacts {
    let opens_at = Timestamp::now() - SignedDuration::from_hours(1);
    SaleFacts {
        available,
        opens_at,
        closes_at: None,
        per_buyer_limit: None,
    }
}

pub(crate) fn limited(available: i64, limit: i32) -> SaleFacts {
    SaleFacts {
        per_buyer_limit: Some(limit),
        ..open(available)
    }
}

/// Loads a fresh sale under epoch 1, without orders.
pub(crate) async fn prime(gate: &Gate, facts: SaleFacts) -> SaleId {
    let sale = SaleId::fresh();
    load(gate, sale, 1, &[], facts).await;
    sale
}

pub(crate) async fn load(gate: &Gate, sale: SaleId, epoch: i64, orders: &[LoadedOrder], facts: SaleFacts) {
    assert!(gate.begin_load(sale, epoch).await.unwrap());
    assert!(gate.load_orders(sale, epoch, orders).await.unwrap());
    assert!(gate.finish_load(sale, epoch, &facts).await.unwrap());
}

pub(crate) fn buyer(name: &str) -> Buyer {
    Buyer::parse(name).expect("a buyer's name")
}

/// A request under a fresh order.
pub(crate) fn request(name: &str, key: &str, quantity: i32) -> Reservation {
    let buyer = buyer(name);
    let digest = IdempotencyDigest::of(&buyer, key);
    Reservation {
        order: OrderId::fresh(),
        buyer,
        digest,
        quantity,
    }
}

/// A request by somebody new under a new key.
pub(crate) fn stranger(quantity: i32) -> Reservation {
    static STRANGERS: AtomicU64 = AtomicU64::new(0);
    request(
        &format!("stranger-{}", STRANGERS.fetch_add(1, Ordering::Relaxed)),
        "key",
        quantity,
    )
}

/// The verdicts and what is available afterwards.
pub(crate) async fn reserve(gate: &Gate, sale: SaleId, requests: &[Reservation]) -> (Vec<Verdict>, i64) {
    match gate.reserve(sale, requests).await.unwrap() {
        Reserve::Decided {
            verdicts, available, ..
        } => (verdicts, available),
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn available(gate: &Gate, sale: SaleId) -> i64 {
    gate.pulse(sale).await.unwrap().expect("a loaded sale").available
}

pub(crate) fn release_of(request: &Reservation) -> Release {
    Release {
        order: request.order,
        forget: false,
    }
}

pub(crate) fn forget(request: &Reservation) -> Release {
    Release {
        order: request.order,
        forget: true,
    }
}

pub(crate) async fn release(gate: &Gate, sale: SaleId, releases: &[Release]) -> (i64, i64, usize) {
    match gate.release(sale, releases).await.unwrap() {
        Released::Done {
            available,
            given_back_units,
            unknown,
            epoch: _,
        } => (available, given_back_units, unknown),
        Released::Unprimed => panic!("not loaded"),
    }
}

pub(crate) async fn held(gate: &Gate, sale: SaleId) -> HashMap<OrderId, HeldReservation> {
    let mut all = HashMap::new();
    let mut cursor = 0;
    loop {
        let page;
        (cursor, page) = gate.reservations(sale, cursor).await.unwrap();
        all.extend(page.into_iter().map(|held| (held.order, held)));
        if cursor == 0 {
            return all;
        }
    }
}

pub(crate) fn loaded(request: &Reservation, holds: bool) -> LoadedOrder {
    let Reservation {
        order,
        buyer,
        digest,
        quantity,
    } = request.clone();
    LoadedOrder {
        order,
        buyer,
        digest,
        quantity,
        holds,
    }
}
