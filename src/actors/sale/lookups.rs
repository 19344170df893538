//! One question for all who ask the same at once: a crowd that comes for a sale which this engine hasn't seen yet is one look into the database.

use std::sync::Arc;

use dashmap::DashMap;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use rustc_hash::FxBuildHasher;
use tokio::runtime;

use crate::domain::SaleId;

/// Sales that are being looked up, with what their answers will be.
pub(super) struct Lookups<T>(Arc<DashMap<SaleId, Asked<T>, FxBuildHasher>>);

type Asked<T> = Shared<BoxFuture<'static, Option<T>>>;

impl<T> Default for Lookups<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Clone + Send + Sync + 'static> Lookups<T> {
    /// The answer to the question that is being asked about this sale, which is `question` unless somebody else has asked before. It is kept for
    /// nobody who comes later. `None`: whoever asked has died.
    pub(super) async fn ask<F>(
        &self,
        sale: SaleId,
        runtime: &runtime::Handle,
        question: impl FnOnce() -> F,
    ) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let asked = self
            .0
            .entry(sale)
            .or_insert_with(|| {
                let answer = question();
                let over = Over(self.0.clone(), sale);
                // A task of its own: who asked first may hang up, and the others wait on.
                let asking = runtime.spawn(async move {
                    let _over = over;
                    answer.await
                });
                asking.map(Result::ok).boxed().shared()
            })
            .clone();
        asked.await
    }
}

/// However a question ends, the next one is asked anew.
struct Over<T>(Arc<DashMap<SaleId, Asked<T>, FxBuildHasher>>, SaleId);

impl<T> Drop for Over<T> {
    fn drop(&mut self) {
        self.0.remove(&self.1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn who_asks_meanwhile_gets_the_same_answer_and_who_comes_later_a_fresh_one() {
        let (lookups, asked, go) = (
            Lookups::default(),
            Arc::new(AtomicU32::new(0)),
            Arc::new(Notify::new()),
        );
        let (sale, runtime) = (SaleId::fresh(), runtime::Handle::current());
        let question = || {
            let (asked, go) = (asked.clone(), go.clone());
            async move {
                let number = asked.fetch_add(1, Ordering::SeqCst);
                go.notified().await;
                number
            }
        };
        let mut first = Box::pin(lookups.ask(sale, &runtime, question));
        assert!(futures_util::poll!(&mut first).is_pending());
        let second = lookups.ask(sale, &runtime, question);
        drop(first);
        go.notify_one();
        assert_eq!(second.await, Some(0), "who asked first has gone");

        go.notify_one();
        assert_eq!(lookups.ask(sale, &runtime, question).await, Some(1));
        assert!(lookups.0.is_empty());
    }

    #[tokio::test]
    async fn a_question_that_dies_is_asked_anew() {
        let (lookups, sale, runtime) = (Lookups::default(), SaleId::fresh(), runtime::Handle::current());
        assert_eq!(
            lookups.ask(sale, &runtime, || async { panic!("no") }).await,
            None::<u32>
        );
        assert_eq!(lookups.ask(sale, &runtime, || async { 7 }).await, Some(7));
    }
}
