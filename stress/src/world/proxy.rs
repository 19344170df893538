//! A way from an engine to one of its services that can be troubled: slow, silent, cut, or cut exactly when a COMMIT is on its way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// What is done to what passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing.
    None,
    /// Each piece waits so long, in both directions.
    Slow(Duration),
    /// Nothing passes; connections stay open, and new ones are taken.
    Silent,
    /// Connections are closed, also new ones.
    Cut,
    /// A COMMIT's connection is closed before there is an answer; every second time the COMMIT has passed. The engine can't know.
    CutAtCommit,
}

/// A listener, and a connection behind it for each that it takes. Ends when it is dropped.
pub struct Proxy {
    url: String,
    trouble: watch::Sender<Trouble>,
    task: JoinHandle<()>,
}

/// How Postgres' clients say it: a simple query, closed by a zero.
const COMMIT: &[u8] = b"COMMIT\0";
/// How much is passed on at a time.
const PIECE: usize = 64 * 1024;

impl Proxy {
    /// A way to the server of this URL, `scheme://[user@]127.0.0.1:PORT[/rest]`.
    ///
    /// # Errors
    /// When the URL has no such form, or there is no port.
    pub(super) async fn start(server_url: &str) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let ours = listener.local_addr()?.to_string();
        let (before, rest) = server_url
            .split_once("127.0.0.1:")
            .with_context(|| format!("{server_url}: no address"))?;
        let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
        let server = format!("127.0.0.1:{port}");
        let (trouble, troubled) = watch::channel(Trouble::None);
        let task = tokio::spawn(serve(listener, server, troubled));
        Ok(Self {
            url: format!("{before}{ours}{}", &rest[port.len()..]),
            trouble,
            task,
        })
    }

    /// The server's URL by this way.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// From now on this is done.
    pub fn trouble(&self, trouble: Trouble) {
        self.trouble.send_replace(trouble);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, server: String, trouble: watch::Receiver<Trouble>) {
    // COMMITs at which a connection was cut.
    let cut_commits = Arc::new(AtomicU64::new(0));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            taken = listener.accept() => {
                let Ok((client, _)) = taken else { continue };
                if *trouble.borrow() == Trouble::Cut {
                    continue;
                }
                let (server, trouble, cut_commits) = (server.clone(), trouble.clone(), Arc::clone(&cut_commits));
                connections.spawn(async move { pass(client, &server, trouble, &cut_commits).await });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Passes everything on until one side ends, or the connection is cut.
async fn pass(
    client: TcpStream,
    server: &str,
    trouble: watch::Receiver<Trouble>,
    cut_commits: &AtomicU64,
) -> anyhow::Result<()> {
    let Ok(server) = TcpStream::connect(server).await else {
        return Ok(());
    };
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // Both ways end together: what they hold is closed when this returns.
    tokio::select! {
        ended = one_way(from_client, to_server, trouble.clone(), Some(cut_commits)) => ended,
        ended = one_way(from_server, to_client, trouble.clone(), None) => ended,
        () = until_cut(trouble) => Ok(()),
    }
}

async fn until_cut(mut trouble: watch::Receiver<Trouble>) {
    if trouble
        .wait_for(|trouble| *trouble == Trouble::Cut)
        .await
        .is_err()
    {
        std::future::pending::<()>().await;
    }
}

async fn one_way(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut trouble: watch::Receiver<Trouble>,
    cut_commits: Option<&AtomicU64>,
) -> anyhow::Result<()> {
    let mut piece = vec![0_u8; PIECE];
    loop {
        let Ok(read @ 1..) = from.read(&mut piece).await else {
            to.shutdown().await.ok();
            return Ok(());
        };
        let piece = &piece[..read];
        let now = *trouble.borrow();
        match now {
            Trouble::Slow(by) => tokio::time::sleep(by).await,
            Trouble::Silent => {
                // Kept until it may pass. (An error: the proxy is gone.)
                if trouble
                    .wait_for(|trouble| *trouble != Trouble::Silent)
                    .await
                    .is_err()
                {
                    return Ok(());
                }
            }
            Trouble::None | Trouble::Cut | Trouble::CutAtCommit => {}
        }
        if now == Trouble::CutAtCommit
            && let Some(cut_commits) = cut_commits
            && piece.windows(COMMIT.len()).any(|bytes| bytes == COMMIT)
        {
            if cut_commits.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
                to.write_all(piece).await.ok();
            }
            return Ok(());
        }
        if to.write_all(piece).await.is_err() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that says everything twice.
    async fn echo() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut bytes = [0; 100];
                    while let Ok(read @ 1..) = stream.read(&mut bytes).await {
                        stream.write_all(&bytes[..read]).await.unwrap();
                    }
                });
            }
        });
        format!("redis://{address}/0")
    }

    async fn say(stream: &mut TcpStream, words: &[u8]) -> std::io::Result<Vec<u8>> {
        stream.write_all(words).await?;
        let mut heard = vec![0; words.len()];
        stream.read_exact(&mut heard).await?;
        Ok(heard)
    }

    #[tokio::test]
    async fn what_passes_is_troubled_as_it_was_told() {
        let proxy = Proxy::start(&echo().await).await.unwrap();
        let address = proxy
            .url()
            .strip_prefix("redis://")
            .unwrap()
            .strip_suffix("/0")
            .unwrap()
            .to_owned();
        let mut stream = TcpStream::connect(&address).await.unwrap();
        assert_eq!(say(&mut stream, b"COMMIT\0").await.unwrap(), b"COMMIT\0");

        proxy.trouble(Trouble::CutAtCommit);
        assert_eq!(say(&mut stream, b"BEGIN\0").await.unwrap(), b"BEGIN\0");
        assert!(
            say(&mut stream, b"COMMIT\0").await.is_err(),
            "its answer never comes"
        );

        proxy.trouble(Trouble::Silent);
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let silence = Duration::from_millis(50);
        assert!(
            tokio::time::timeout(silence, say(&mut stream, b"x"))
                .await
                .is_err()
        );
        proxy.trouble(Trouble::None);
        let mut heard = [0];
        stream.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"x", "what was held back comes through");

        proxy.trouble(Trouble::Cut);
        assert!(say(&mut stream, b"x").await.is_err());
        let mut stream = TcpStream::connect(&address).await.unwrap();
        assert!(say(&mut stream, b"x").await.is_err(), "new ones are cut too");
    }
}
