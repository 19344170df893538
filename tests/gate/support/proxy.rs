//! A connection to Redis that can be cut between a request and its answer.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Cuts every connection whose answer comes while there are cuts left.
#[derive(Clone)]
pub(crate) struct Proxy {
    address: SocketAddr,
    cuts: Arc<AtomicUsize>,
    closed: Arc<AtomicBool>,
}

impl Proxy {
    pub(crate) async fn to(redis_url: &str) -> Self {
        let upstream = redis_url
            .trim_start_matches("redis://")
            .trim_end_matches("/0")
            .to_owned();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap(),
            cuts: Arc::default(),
            closed: Arc::default(),
        };
        let serving = proxy.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if !serving.closed.load(Ordering::SeqCst) {
                    tokio::spawn(serving.clone().carry(client, upstream.clone()));
                }
            }
        });
        proxy
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}/0", self.address)
    }

    /// The next answers never arrive; each takes its connection with it.
    pub(crate) fn cut_answers(&self, cuts: usize) {
        self.cuts.store(cuts, Ordering::SeqCst);
    }

    /// New connections are closed at once.
    pub(crate) fn close(&self, closed: bool) {
        self.closed.store(closed, Ordering::SeqCst);
    }

    async fn carry(self, mut client: TcpStream, upstream: String) {
        let mut redis = TcpStream::connect(upstream).await.unwrap();
        let (mut requests, mut answers) = (vec![0; 65536], vec![0; 65536]);
        loop {
            tokio::select! {
                read = client.read(&mut requests) => match read {
                    Ok(0) | Err(_) => return,
                    Ok(length) => redis.write_all(&requests[..length]).await.unwrap(),
                },
                read = redis.read(&mut answers) => match read {
                    Ok(0) | Err(_) => return,
                    Ok(length) => {
                        let cut = |cuts: usize| cuts.checked_sub(1);
                        if self.cuts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, cut).is_ok()
                            || client.write_all(&answers[..length]).await.is_err()
                        {
                            return;
                        }
                    }
                },
            }
        }
    }
}
