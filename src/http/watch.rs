//! The time limits of a connection, all in one place and on one timer.
//!
//! hyper's own limit for reading a head also runs while a kept-alive connection is idle, and it has none for bodies and
//! answers. Here a connection is always in one phase with one deadline. The connection's task looks at the deadline whenever it has
//! nothing else to do; its timer is moved only when it would fire too late, never because it would fire too early (firing
//! early costs one look). So a busy connection sets a timer every few seconds instead of several per request.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::Settings;

/// How long a request that was told that its time is up may take to answer that. It answers at once; were it ever
/// to forget, its connection would be closed.
const GRACE: Duration = Duration::from_secs(1);

/// Nothing of the next request has been seen.
const IDLE: u8 = 0;
/// Something of the next request has been seen; its deadline is set when the connection's task next waits.
const BEGUN: u8 = 1;
/// The head is being read.
const HEAD: u8 = 2;
/// A request is being worked on.
const BUSY: u8 = 3;
/// The request's time is up and it knows.
const EXPIRED: u8 = 4;
/// A request's body is being read; nothing was done for it yet.
const BODY: u8 = 5;

/// The request's time is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Elapsed;

/// What ran out of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expired {
    /// The request: poll the connection again, the request will answer.
    Request,
    /// The connection: close it.
    Connection,
}

/// A connection's phase and deadline. Only its own task writes them; they are atomics because that task may move between threads, and for
/// whoever looks for room.
#[derive(Debug)]
pub(super) struct Watch {
    opened: Instant,
    header_read_timeout: Duration,
    body_read_timeout: Duration,
    idle_timeout: Duration,
    phase: AtomicU8,
    /// Microseconds after `opened`.
    deadline_us: AtomicU64,
    asked_to_leave: AtomicBool,
    /// The connection's task, for who asks it to leave.
    task: AtomicWaker,
}

impl Watch {
    /// A connection that was opened just now: its first request is due within the time for a head.
    pub(super) fn new(settings: &Settings) -> Self {
        let watch = Self {
            opened: Instant::now(),
            header_read_timeout: settings.header_read_timeout,
            body_read_timeout: settings.body_read_timeout,
            idle_timeout: settings.connection_idle_timeout,
            phase: AtomicU8::new(IDLE),
            deadline_us: AtomicU64::new(0),
            asked_to_leave: AtomicBool::new(false),
            task: AtomicWaker::new(),
        };
        watch.enter(HEAD, watch.opened + watch.header_read_timeout);
        watch
    }

    /// A request's head is complete.
    pub(super) fn begin(&self, deadline: Instant) {
        self.enter(BUSY, deadline);
    }

    /// Its answer is made at `now`.
    pub(super) fn end(&self, now: Instant) {
        self.enter(IDLE, now + self.idle_timeout);
    }

    /// Reads the request's body until `deadline`.
    pub(super) async fn reading<F: Future>(&self, deadline: Instant, work: F) -> Result<F::Output, Elapsed> {
        let read = self.in_phase(BODY, deadline, work).await;
        // From here on something may be done for it, and nobody is sent away in the middle of that.
        if read.is_ok() {
            self.phase.store(BUSY, Relaxed);
        }
        read
    }

    /// Works on the request until `deadline`.
    pub(super) async fn until<F: Future>(&self, deadline: Instant, work: F) -> Result<F::Output, Elapsed> {
        self.in_phase(BUSY, deadline, work).await
    }

    async fn in_phase<F: Future>(&self, phase: u8, deadline: Instant, work: F) -> Result<F::Output, Elapsed> {
        self.enter(phase, deadline);
        let mut work = std::pin::pin!(work);
        // The connection's task polls hyper, and with it this request, right after the deadline has passed.
        std::future::poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Ok(done)),
            Poll::Pending if self.phase.load(Relaxed) == EXPIRED => Poll::Ready(Err(Elapsed)),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// When the phase ends by itself.
    pub(super) fn deadline(&self) -> Instant {
        self.opened + Duration::from_micros(self.deadline_us.load(Relaxed))
    }

    /// To be polled by the connection's task whenever it would wait otherwise.
    pub(super) fn poll_expired(&self, mut timer: Pin<&mut Sleep>, cx: &mut Context<'_>) -> Poll<Expired> {
        if self.phase.load(Relaxed) == BEGUN {
            self.enter(HEAD, Instant::now() + self.header_read_timeout);
        }
        let deadline = self.deadline();
        if timer.deadline() > deadline {
            timer.as_mut().reset(deadline);
        }
        loop {
            ready!(timer.as_mut().poll(cx));
            let now = Instant::now();
            if now < deadline {
                timer.as_mut().reset(deadline);
            } else if matches!(self.phase.load(Relaxed), BUSY | BODY) {
                self.enter(EXPIRED, now + GRACE);
                return Poll::Ready(Expired::Request);
            } else {
                return Poll::Ready(Expired::Connection);
            }
        }
    }

    /// Since when nothing is done for it but waiting; `None` while a request is worked on.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        let limit = match self.phase.load(Relaxed) {
            IDLE => self.idle_timeout,
            BEGUN | HEAD => self.header_read_timeout,
            BODY => self.body_read_timeout,
            _ => return None,
        };
        self.deadline().checked_sub(limit)
    }

    /// Its place is wanted: it ends, unless a request has come meanwhile.
    pub(super) fn ask_to_leave(&self) {
        self.asked_to_leave.store(true, Release);
        self.task.wake();
    }

    /// Whether its place is wanted. By the connection's task alone: once it is known to be worked on, it may stay.
    pub(super) fn poll_leaves(&self, cx: &Context<'_>) -> bool {
        self.task.register(cx.waker());
        // Looked at after the task can be woken: what is asked in between isn't missed.
        self.asked_to_leave.swap(false, Acquire) && self.waits_since().is_some()
    }

    #[cfg(test)]
    pub(super) fn is_asked_to_leave(&self) -> bool {
        self.asked_to_leave.load(Acquire)
    }

    /// Bytes have come in.
    fn bytes_read(&self) {
        // While a request is worked on, hyper reads ahead: that is the next request, or more of a body.
        if self.phase.load(Relaxed) == IDLE {
            self.phase.store(BEGUN, Relaxed);
        }
    }

    fn enter(&self, phase: u8, deadline: Instant) {
        let micros = deadline.saturating_duration_since(self.opened).as_micros();
        self.deadline_us
            .store(micros.try_into().unwrap_or(u64::MAX), Relaxed);
        self.phase.store(phase, Relaxed);
    }
}

/// A stream that tells its connection's [`Watch`] when something comes in.
#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    watch: Arc<Watch>,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, watch: Arc<Watch>) -> Self {
        Self { stream, watch }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let result = Pin::new(&mut this.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            this.watch.bytes_read();
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
