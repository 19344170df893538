//! A link to Postgres that can go silent, be cut, or lose what is answered to a COMMIT.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[derive(Clone)]
pub struct Link(Arc<State>);

struct State {
    /// Connections of a generation below this one are silent: nothing passes, nothing is closed.
    silent_below: AtomicU64,
    accepted: AtomicU64,
    cut: AtomicBool,
    mute: AtomicBool,
    loses_commits: AtomicBool,
}

/// How Postgres' clients say it: a simple query, closed by a zero.
const COMMIT: &[u8] = b"COMMIT\0";

impl Link {
    /// A link to the server of this URL, and the URL through it.
    pub async fn to(url: &str) -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = listener.local_addr().unwrap().to_string();
        let (before, rest) = url.split_once('@').unwrap();
        let (there, database) = rest.split_once('/').unwrap();
        let through = format!("{before}@{here}/{database}");
        let there = there.to_owned();
        let state = Arc::new(State {
            silent_below: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            cut: AtomicBool::new(false),
            mute: AtomicBool::new(false),
            loses_commits: AtomicBool::new(false),
        });
        let link = Self(state.clone());
        tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                if state.mute.load(Ordering::SeqCst) {
                    tokio::spawn(async move {
                        let _open = client;
                        std::future::pending::<()>().await;
                    });
                    continue;
                }
                if state.cut.load(Ordering::SeqCst) {
                    continue;
                }
                let number = state.accepted.fetch_add(1, Ordering::SeqCst);
                let (state, there) = (state.clone(), there.clone());
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(there).await.unwrap();
                    let (mut from_client, mut from_server) = (vec![0; 65536], vec![0; 65536]);
                    let mut loses_next = false;
                    loop {
                        let (to, data) = tokio::select! {
                            n = client.read(&mut from_client) => {
                                let Ok(n @ 1..) = n else { return };
                                let data = &from_client[..n];
                                loses_next = state.loses_commits.load(Ordering::SeqCst) && data.windows(COMMIT.len()).any(|part| part == COMMIT);
                                (&mut server, data)
                            }
                            n = server.read(&mut from_server) => {
                                let Ok(n @ 1..) = n else { return };
                                if loses_next { return }
                                (&mut client, &from_server[..n])
                            }
                            () = tokio::time::sleep(Duration::from_millis(5)) => {
                                if state.cut.load(Ordering::SeqCst) { return }
                                continue;
                            }
                        };
                        if number < state.silent_below.load(Ordering::SeqCst) {
                            std::future::pending::<()>().await;
                        }
                        if state.cut.load(Ordering::SeqCst) || to.write_all(data).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        (link, through)
    }

    /// From now on nothing passes on the connections that exist; new ones work.
    pub fn silence(&self) {
        self.0
            .silent_below
            .store(self.0.accepted.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// All connections are closed, and new ones too, until it is mended.
    pub fn cut(&self) {
        self.0.cut.store(true, Ordering::SeqCst);
    }

    /// All connections are closed; new ones come about and are never answered.
    pub fn mute(&self) {
        self.0.mute.store(true, Ordering::SeqCst);
        self.0.cut.store(true, Ordering::SeqCst);
    }

    /// From now on, or no longer, a COMMIT arrives and its answer doesn't: the connection is closed in its place.
    pub fn lose_answers_to_commits(&self, lose: bool) {
        self.0.loses_commits.store(lose, Ordering::SeqCst);
    }

    pub fn mend(&self) {
        self.0.cut.store(false, Ordering::SeqCst);
    }
}
