//! A request from its head to its answer: name it, time it, find its handler, and answer whatever becomes of it.

use std::any::Any;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Request, Response};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use super::problem::Problem;
use super::request_id::{RequestId, X_REQUEST_ID};
use super::route::{Route, Routes};
use super::settings::MAX_WEBHOOK_BYTES;
use super::shielded::Shielded;
use super::watch::Watch;
use super::{FrontDesk, Settings, body, extract, handlers};
use crate::metrics;

/// The route of a path that leads nowhere, on metrics.
const NO_ROUTE: &str = "none";

/// What all requests share.
pub(super) struct Door<D> {
    pub(super) desk: D,
    pub(super) settings: Settings,
    /// The metrics as text.
    pub(super) render: Box<dyn Fn() -> String + Send + Sync>,
    /// Cancelled once no new connection is taken.
    pub(super) draining: CancellationToken,
    /// Work that is never cut, whoever waits for it.
    pub(super) shielded: TaskTracker,
    routes: Routes,
    under_way: AtomicUsize,
}

impl<D: FrontDesk> Door<D> {
    pub(super) fn new(desk: D, settings: Settings, render: Box<dyn Fn() -> String + Send + Sync>) -> Self {
        Self {
            desk,
            settings,
            render,
            draining: CancellationToken::new(),
            shielded: TaskTracker::new(),
            routes: Routes::new(),
            under_way: AtomicUsize::new(0),
        }
    }

    /// Requests without an answer yet.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Answers a request.
    pub(super) async fn answer(
        self: Arc<Self>,
        watch: Arc<Watch>,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let started = Instant::now();
        watch.begin(started + self.settings.request_timeout);
        let _under_way = Count::on(&self.under_way);
        let (parts, body) = request.into_parts();
        let id = RequestId::of(&parts.headers);
        let found = self.routes.find(parts.uri.path());
        let template = found.map_or(NO_ROUTE, |(route, _)| route.template());
        let span = span(found.map(|(route, _)| route), &id);

        let response = async {
            let outcome = match found {
                None => Ok(Err(Problem::NotFound)),
                Some((route, path_id)) => {
                    let call = Call {
                        door: &self,
                        parts: &parts,
                        path_id,
                        id: &id,
                        watch: &watch,
                        started,
                    };
                    AssertUnwindSafe(handlers::answer(route, &call, body))
                        .catch_unwind()
                        .await
                }
            };
            match outcome {
                Ok(Ok(response)) => response,
                Ok(Err(problem)) => {
                    tracing::debug!(?problem, "refused");
                    problem.into_response()
                }
                Err(panic) => {
                    let panic = panic_text(panic.as_ref());
                    tracing::error!(
                        request_id = id.as_str(),
                        route = template,
                        panic,
                        "a handler panicked"
                    );
                    Problem::Internal.into_response()
                }
            }
        };
        let mut response = response.instrument(span).await;

        response.headers_mut().insert(X_REQUEST_ID, id.into_header());
        let ended = Instant::now();
        watch.end(ended);
        observe(template, response.status().as_u16(), ended - started);
        Ok(response)
    }
}

/// The one place where an answered request is measured.
fn observe(route: &'static str, status: u16, took: Duration) {
    metrics::request(route, status, took);
}

/// The request's span. Purchases come by the ten thousand per second: theirs costs nothing unless somebody asks for it,
/// and what goes wrong with one says its request id by itself.
fn span(route: Option<Route>, id: &RequestId) -> tracing::Span {
    let template = route.map_or(NO_ROUTE, Route::template);
    if route == Some(Route::Orders) {
        tracing::debug_span!("request", request_id = id.as_str(), route = template)
    } else {
        tracing::info_span!("request", request_id = id.as_str(), route = template)
    }
}

/// A request as its handler sees it.
pub(super) struct Call<'a, D> {
    pub(super) door: &'a Arc<Door<D>>,
    pub(super) parts: &'a Parts,
    /// The id in the path, if its template has one.
    pub(super) path_id: &'a str,
    id: &'a RequestId,
    watch: &'a Watch,
    started: Instant,
}

/// Why there is no result.
pub(super) enum Lost {
    /// It took too long. What was shielded goes on.
    TimedOut,
    /// It panicked.
    Panicked,
}

impl<D: FrontDesk> Call<'_, D> {
    /// The request's JSON body, as bytes.
    ///
    /// # Errors
    /// When its headers say that it is something else, when it is too large, or doesn't come in time.
    pub(super) async fn json_body(&self, body: Incoming) -> Result<Bytes, Problem> {
        extract::json(&self.parts.headers)?;
        self.body(body, self.door.settings.max_body_bytes).await
    }

    /// A webhook's body, as its signature was made over it.
    ///
    /// # Errors
    /// When it is too large, or doesn't come in time.
    pub(super) async fn webhook_body(&self, body: Incoming) -> Result<Bytes, Problem> {
        self.body(body, MAX_WEBHOOK_BYTES).await
    }

    async fn body(&self, body: Incoming, max_bytes: usize) -> Result<Bytes, Problem> {
        let settings = &self.door.settings;
        let reading = body::read(body, max_bytes);
        let deadline = self.started + settings.body_read_timeout;
        self.watch
            .reading(deadline, reading)
            .await
            .unwrap_or(Err(Problem::RequestTimeout))
    }

    /// Asks something that may be dropped.
    pub(super) async fn ask<T>(&self, question: impl Future<Output = T>) -> Result<T, Problem> {
        self.watch.until(self.deadline(), question).await.map_err(|_| {
            tracing::warn!(
                request_id = self.request_id(),
                "a question was not answered in time"
            );
            Problem::UNAVAILABLE
        })
    }

    /// Does something that ends once it has begun, whether or not the client is still there.
    pub(super) async fn shielded<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Lost> {
        let work = Shielded::new(&self.door.shielded, work);
        match self.watch.until(self.deadline(), work).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(panic)) => {
                let panic = panic_text(panic.as_ref());
                tracing::error!(
                    request_id = self.request_id(),
                    panic,
                    "a request panicked; its outcome is unknown"
                );
                Err(Lost::Panicked)
            }
            Err(_) => {
                tracing::warn!(
                    request_id = self.request_id(),
                    "a request was not done in time; its outcome is unknown"
                );
                Err(Lost::TimedOut)
            }
        }
    }

    fn deadline(&self) -> Instant {
        self.started + self.door.settings.request_timeout
    }

    /// The request's name in logs.
    pub(super) fn request_id(&self) -> &str {
        self.id.as_str()
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("of an unknown kind")
}

/// One more for as long as it lives.
struct Count<'a>(&'a AtomicUsize);

impl<'a> Count<'a> {
    fn on(counter: &'a AtomicUsize) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(counter)
    }
}

impl Drop for Count<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
