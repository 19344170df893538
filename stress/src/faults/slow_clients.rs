//! Clients that take up room: they dribble, they say nothing, they talk far too much, and they leave without a word.

use std::time::Duration;

use anyhow::ensure;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::load::Peer;

/// How many of them.
const CLIENTS: usize = 400;
/// Between two bytes of one that dribbles.
const DRIBBLE_PERIOD: Duration = Duration::from_millis(100);
/// A header and a body that nobody needs.
const HUGE: usize = 4 * 1024 * 1024;

/// Has them pester an engine for so long. In the middle of it, somebody asks the engine whether it is alive.
///
/// # Errors
/// When it doesn't say so.
pub(super) async fn pester(engine: &Peer, lasts: Duration, rng: &mut ChaCha8Rng) -> anyhow::Result<()> {
    let end = Instant::now() + lasts;
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let address = engine.address().to_owned();
        let kind = rng.random_range(0..5_u8);
        clients.spawn(async move {
            // An engine that doesn't take them, or closes on them, is in its right.
            let Ok(stream) = TcpStream::connect(&address).await else {
                return;
            };
            tokio::select! {
                _ = behave(kind, stream) => {}
                () = sleep_until(end) => {}
            }
        });
    }
    sleep(lasts / 2).await;
    let alive = engine.get("/livez").await?;
    ensure!(
        alive.status == 200,
        "GET /livez among slow clients: {}",
        alive.status
    );
    while clients.join_next().await.is_some() {}
    Ok(())
}

async fn behave(kind: u8, mut stream: TcpStream) -> std::io::Result<()> {
    match kind {
        // Says nothing at all.
        0 => std::future::pending::<()>().await,
        // Dribbles headers.
        1 => {
            dribble(
                &mut stream,
                b"GET /livez HTTP/1.1\r\nHost: shop\r\nX-Patience: 1\r\n",
            )
            .await?;
        }
        // Sends the head at once, and dribbles the body.
        2 => {
            let head = b"POST /v1/sales HTTP/1.1\r\nHost: shop\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n";
            stream.write_all(head).await?;
            dribble(&mut stream, &[b' '; 1000]).await?;
        }
        // A header without an end.
        3 => {
            stream.write_all(b"GET /livez HTTP/1.1\r\nX-Long: ").await?;
            stream.write_all(&vec![b'x'; HUGE]).await?;
        }
        // A body that is far too large, and an answer that is never read.
        _ => {
            let head = format!("POST /v1/sales HTTP/1.1\r\nHost: shop\r\nContent-Length: {HUGE}\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(&vec![b' '; HUGE]).await?;
        }
    }
    // Whatever it answers, until it closes.
    let mut ignored = [0; 1024];
    while stream.read(&mut ignored).await? > 0 {}
    Ok(())
}

async fn dribble(stream: &mut TcpStream, words: &[u8]) -> std::io::Result<()> {
    for byte in words {
        stream.write_all(&[*byte]).await?;
        sleep(DRIBBLE_PERIOD).await;
    }
    Ok(())
}
