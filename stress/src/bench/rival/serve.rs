//! An HTTP server, as plainly as hyper has it.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::{JoinHandle, JoinSet};

/// Connections that may wait to be accepted, as at the engine.
const BACKLOG: u32 = 4_096;

/// Who answers.
pub(super) trait Answers: Send + Sync + 'static {
    fn answer(&self, request: Request<Incoming>) -> impl Future<Output = Response<Full<Bytes>>> + Send;
}

/// Listens at a free port, and serves until the task is dropped. Tells the URL.
pub(super) fn start(shop: impl Answers) -> anyhow::Result<(String, JoinHandle<()>)> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(([127, 0, 0, 1], 0).into())?;
    let listener = socket.listen(BACKLOG)?;
    let url = format!("http://{}", listener.local_addr()?);
    Ok((url, tokio::spawn(serve(listener, Arc::new(shop)))))
}

async fn serve(listener: TcpListener, shop: Arc<impl Answers>) {
    // Connections end with the server.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        stream.set_nodelay(true).ok();
        let shop = Arc::clone(&shop);
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let shop = Arc::clone(&shop);
                async move { Ok::<_, Infallible>(shop.answer(request).await) }
            });
            http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await
                .ok();
        });
        while connections.try_join_next().is_some() {}
    }
}
