//! `PgBouncer` between the engines and Postgres, transaction by transaction, with far fewer connections than are asked for.

use std::io::Write;
use std::process::Stdio;

use nix::unistd::geteuid;
use tempfile::NamedTempFile;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::eventually;

pub struct Pooler {
    _settings: NamedTempFile,
    _server: Child,
}

impl Pooler {
    /// One before the database of this URL, and the URL through it.
    pub async fn before(url: &str) -> (Self, String) {
        let (scheme, rest) = url.split_once("://").unwrap();
        let (login, rest) = rest.split_once('@').unwrap();
        let (there, database) = rest.split_once('/').unwrap();
        let user = login.split(':').next().unwrap();
        let (host, port) = there.rsplit_once(':').unwrap();
        let listen = free_port();
        let mut settings = NamedTempFile::new().unwrap();
        write!(
            settings,
            "[databases]\n* = host={host} port={port} user={user}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {listen}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = transaction\ndefault_pool_size = 5\nmax_client_conn = 500\n"
        )
        .unwrap();
        let mut command = Command::new("pgbouncer");
        if geteuid().is_root() {
            command.args(["-u", "nobody"]);
            // It reads its settings as that user.
            let all = std::os::unix::fs::PermissionsExt::from_mode(0o644);
            std::fs::set_permissions(settings.path(), all).unwrap();
        }
        let server = command
            .arg(settings.path())
            .env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("PgBouncer is installed: make deps");
        eventually("PgBouncer listens", || async {
            TcpStream::connect(("127.0.0.1", listen)).await.is_ok()
        })
        .await;
        let through = format!("{scheme}://{login}@127.0.0.1:{listen}/{database}");
        let pooler = Self {
            _settings: settings,
            _server: server,
        };
        (pooler, through)
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.local_addr().unwrap().port()
}
