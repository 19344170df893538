//! One kept connection, as raw as hyper has it: nothing is pooled, nothing is repeated behind the buyer's back.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::Peer;

type Io = TokioIo<TcpStream>;

/// A connection, driven by whoever uses it: no task of its own, so a request costs no hop between tasks.
pub struct Link {
    sender: SendRequest<Full<Bytes>>,
    // None once it is closed.
    connection: Option<Connection<Io, Full<Bytes>>>,
}

/// An answer, complete.
#[derive(Debug)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

/// No answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lost {
    /// The request certainly never left.
    NotSent,
    /// It may have been received.
    MaybeSent(String),
}

impl Link {
    /// Connects.
    ///
    /// # Errors
    /// When nobody listens.
    pub async fn open(peer: &Peer) -> io::Result<Self> {
        let stream = TcpStream::connect(peer.address()).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        Ok(Self {
            sender,
            connection: Some(connection),
        })
    }

    /// Sends a request and waits for all of its answer.
    ///
    /// # Errors
    /// [`Lost`] when there is none; the connection is then of no more use.
    pub async fn call(&mut self, request: Request<Full<Bytes>>) -> Result<Answer, Lost> {
        let Self { sender, connection } = self;
        let exchange = async {
            sender.ready().await?;
            complete(sender.send_request(request).await?).await
        };
        let mut exchange = pin!(exchange);
        poll_fn(|cx| {
            if let Some(open) = connection
                && open.poll_unpin(cx).is_ready()
            {
                *connection = None;
            }
            match exchange.as_mut().poll(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Ok(answer)) => Poll::Ready(Ok(answer)),
                Poll::Ready(Err(error)) if error.is_canceled() || error.is_closed() => {
                    Poll::Ready(Err(Lost::NotSent))
                }
                Poll::Ready(Err(error)) => Poll::Ready(Err(Lost::MaybeSent(error.to_string()))),
            }
        })
        .await
    }
}

async fn complete(response: Response<Incoming>) -> Result<Answer, hyper::Error> {
    let (head, mut body) = response.into_parts();
    let mut all = Bytes::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        // Answers are small: nearly always there is one frame, which is taken as it is.
        all = if all.is_empty() {
            data
        } else {
            let mut joined = BytesMut::from(&all[..]);
            joined.extend_from_slice(&data);
            joined.freeze()
        };
    }
    Ok(Answer {
        status: head.status.as_u16(),
        headers: head.headers,
        body: all,
    })
}
