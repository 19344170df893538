//! Work that ends once it has begun, whoever has stopped waiting for it.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::CatchUnwind;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TrackedFuture;

/// What a panic left.
pub(super) type Panic = Box<dyn Any + Send>;

type Inner<F> = CatchUnwind<AssertUnwindSafe<TrackedFuture<F>>>;

/// A future that isn't cancelled by being dropped: what is left of it then runs in a task of its own.
///
/// A client that hangs up, or whose time is up, therefore never takes its purchase with it. While the client waits, the
/// work runs in the connection's task, which saves a task and two wake-ups for nearly every request.
pub(super) struct Shielded<F: Future + Send + 'static>
where
    F::Output: Send,
{
    left: Option<Pin<Box<Inner<F>>>>,
}

impl<F: Future + Send + 'static> Shielded<F>
where
    F::Output: Send,
{
    /// Shields `work`; `tracker` sees it until its end, wherever it runs.
    pub(super) fn new(tracker: &TaskTracker, work: F) -> Self {
        Self {
            left: Some(Box::pin(
                AssertUnwindSafe(tracker.track_future(work)).catch_unwind(),
            )),
        }
    }
}

impl<F: Future + Send + 'static> Future for Shielded<F>
where
    F::Output: Send,
{
    type Output = Result<F::Output, Panic>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let left = &mut self.get_mut().left;
        let Some(work) = left else {
            // As with any future, polling it after its end is the caller's mistake; this one just never ends again.
            return Poll::Pending;
        };
        let outcome = work.as_mut().poll(cx);
        if outcome.is_ready() {
            *left = None;
        }
        outcome
    }
}

impl<F: Future + Send + 'static> Drop for Shielded<F>
where
    F::Output: Send,
{
    fn drop(&mut self) {
        let Some(work) = self.left.take() else { return };
        // Without a runtime the process is going down, and whatever the work waits for with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if work.await.is_err() {
                    tracing::error!("work panicked after its client had gone");
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn goes_on_when_it_is_dropped_and_is_tracked_to_its_end() {
        let tracker = TaskTracker::new();
        let done = Arc::new(AtomicBool::new(false));
        let (go, gone) = oneshot::channel::<()>();
        let mut work = Shielded::new(&tracker, {
            let done = done.clone();
            async move {
                gone.await.ok();
                done.store(true, Ordering::SeqCst);
            }
        });
        assert!(futures_util::poll!(&mut work).is_pending());
        drop(work);
        assert_eq!(tracker.len(), 1);
        go.send(()).unwrap();
        tracker.close();
        tracker.wait().await;
        assert!(done.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn hands_over_a_result_and_a_panic() {
        let tracker = TaskTracker::new();
        assert_eq!(Shielded::new(&tracker, async { 7 }).await.unwrap(), 7);
        assert!(Shielded::new(&tracker, async { panic!("no") }).await.is_err());
        assert!(tracker.is_empty());
    }

    #[test]
    fn may_be_dropped_without_a_runtime() {
        drop(Shielded::new(&TaskTracker::new(), std::future::pending::<()>()));
    }
}
