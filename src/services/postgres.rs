//! A private PostgreSQL server at default durability.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::unistd::{Gid, Uid, User, chown, geteuid};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::process::Child;

use super::{TEMPLATE, programs};
use crate::store::migrate;

/// The private server's superuser, and owner of the schema.
const OWNER: &str = "fluxbuy_owner";
/// The role that the engine runs as.
const ENGINE: &str = "fluxbuy_engine";
/// The database that is handed out.
const DATABASE: &str = "fluxbuy";
/// How long a server may take to answer.
const UP_WITHIN: Duration = Duration::from_secs(30);
/// Ports that are tried.
const TRIES: usize = 5;
/// How long connecting to it may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// A server that can be started again where it was.
pub(super) struct Postgres {
    /// Its process.
    pub(super) child: Child,
    /// The database as its owner.
    pub(super) owner_url: String,
    /// The database as the engine's role.
    pub(super) engine_url: String,
    cluster: Cluster,
    port: u16,
}

impl Postgres {
    /// Starts it where it was, after it has ended, and waits until it has recovered.
    pub(super) async fn start_again(&mut self) -> anyhow::Result<()> {
        let (child, connection) = self
            .cluster
            .launch(self.port)
            .await
            .context("postgres did not come up again")?;
        connection.close().await.ok();
        self.child = child;
        Ok(())
    }
}

/// Files of a server, and who it runs as.
struct Cluster {
    programs: PathBuf,
    data: PathBuf,
    log: PathBuf,
    user: Option<(Uid, Gid)>,
}

/// Makes a cluster below `directory`, starts a server on it, and migrates a database.
pub(super) async fn start(directory: &Path) -> anyhow::Result<Postgres> {
    let programs = programs::postgres_folder()?;
    let data = directory.join("postgres");
    std::fs::create_dir(&data)?;
    std::fs::set_permissions(&data, Permissions::from_mode(0o700))?;
    let user = unprivileged()?;
    if let Some((uid, gid)) = user {
        chown(&data, Some(uid), Some(gid))?;
    }

    let mut initdb = tokio::process::Command::new(programs.join("initdb"));
    initdb
        .arg("--pgdata")
        .arg(&data)
        .args([
            "--username",
            OWNER,
            "--auth",
            "trust",
            "--encoding",
            "UTF8",
            "--locale",
            "C",
            "--no-sync",
        ])
        .current_dir("/")
        .kill_on_drop(true);
    run_as(&mut initdb, user);
    let output = initdb.output().await.context("initdb could not be started")?;
    if !output.status.success() {
        bail!(
            "initdb failed (can {} be entered by an unprivileged user?): {}",
            directory.display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }

    let cluster = Cluster {
        programs,
        data,
        log: directory.join("postgres.log"),
        user,
    };
    let mut last = None;
    for _ in 0..TRIES {
        let port = programs::free_port()?;
        match cluster.launch(port).await {
            Ok((child, mut connection)) => {
                connection
                    .execute(AssertSqlSafe(format!("CREATE ROLE {ENGINE} LOGIN")))
                    .await?;
                connection
                    .execute(AssertSqlSafe(format!("CREATE DATABASE {TEMPLATE}")))
                    .await?;
                migrate::migrate(&url(OWNER, port, TEMPLATE)).await?;
                copy_template(&mut connection, DATABASE).await?;
                connection.close().await?;
                return Ok(Postgres {
                    child,
                    owner_url: url(OWNER, port, DATABASE),
                    engine_url: url(ENGINE, port, DATABASE),
                    cluster,
                    port,
                });
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| anyhow::anyhow!("no port was tried"))).context("postgres did not come up")
}

fn url(user: &str, port: u16, database: &str) -> String {
    format!("postgres://{user}@127.0.0.1:{port}/{database}")
}

impl Cluster {
    /// Starts a server on it, and connects to it as its superuser.
    async fn launch(&self, port: u16) -> anyhow::Result<(Child, PgConnection)> {
        let mut command = programs::server(&self.programs.join("postgres"), "SIGINT");
        let settings = [
            format!("port={port}"),
            "listen_addresses=127.0.0.1".to_owned(),
            "unix_socket_directories=".to_owned(),
            "max_connections=200".to_owned(),
            "shared_buffers=256MB".to_owned(),
            "max_wal_size=4GB".to_owned(),
        ];
        command.arg("-D").arg(&self.data).current_dir("/");
        for setting in settings {
            command.args(["-c", &setting]);
        }
        let output = File::options().create(true).append(true).open(&self.log)?;
        command.stdout(output.try_clone()?).stderr(output);
        run_as(&mut command, self.user);
        let mut child = command.spawn().context("postgres could not be started")?;
        match wait_until_up(&mut child, &url(OWNER, port, "postgres"), &self.data).await {
            Ok(connection) => Ok((child, connection)),
            Err(error) => {
                child.kill().await.ok();
                Err(error.context(std::fs::read_to_string(&self.log).unwrap_or_default()))
            }
        }
    }
}

/// Copies the migrated database.
pub(super) async fn copy_template(connection: &mut PgConnection, name: &str) -> anyhow::Result<()> {
    anyhow::ensure!(
        !name.is_empty()
            && name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'),
        "a database's name is made of a-z, 0-9 and _, not {name:?}"
    );
    connection
        .execute(AssertSqlSafe(format!(
            "CREATE DATABASE {name} TEMPLATE {TEMPLATE}"
        )))
        .await?;
    Ok(())
}

/// Waits for our own server: another one may have taken the port.
async fn wait_until_up(child: &mut Child, url: &str, data: &Path) -> anyhow::Result<PgConnection> {
    let deadline = Instant::now() + UP_WITHIN;
    loop {
        if let Some(status) = child.try_wait()? {
            bail!("it ended at once: {status}");
        }
        // What listens there may be no database at all, and never answer.
        let connecting = tokio::time::timeout(CONNECT_WITHIN, PgConnection::connect(url));
        if let Ok(Ok(mut connection)) = connecting.await {
            let found: String = sqlx::query_scalar("SHOW data_directory")
                .fetch_one(&mut connection)
                .await?;
            anyhow::ensure!(Path::new(&found) == data, "another server has taken the port");
            return Ok(connection);
        }
        anyhow::ensure!(Instant::now() < deadline, "it doesn't answer");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Where the servers' directory goes: the system's folder for temporary files, unless the database's unprivileged user can't
/// get in there (some systems give each user a private one).
pub(super) fn enterable_folder() -> PathBuf {
    let folder = std::env::temp_dir();
    let for_all = |folder: &Path| {
        folder
            .metadata()
            .is_ok_and(|found| found.permissions().mode() & 0o001 != 0)
    };
    if !geteuid().is_root() || folder.ancestors().all(for_all) {
        folder
    } else {
        PathBuf::from("/tmp")
    }
}

/// PostgreSQL refuses to run as root: then somebody else's name is used.
fn unprivileged() -> anyhow::Result<Option<(Uid, Gid)>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    for name in ["postgres", "nobody"] {
        if let Some(user) = User::from_name(name)? {
            return Ok(Some((user.uid, user.gid)));
        }
    }
    bail!("PostgreSQL can't run as root, and there is neither a user postgres nor a user nobody")
}

fn run_as(command: &mut tokio::process::Command, user: Option<(Uid, Gid)>) {
    if let Some((uid, gid)) = user {
        command.uid(uid.as_raw()).gid(gid.as_raw());
    }
}
