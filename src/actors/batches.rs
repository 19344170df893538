//! Group commit: what is handed in one by one is worked off in batches, as large as what has arrived meanwhile.

use std::future::Future;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc};

/// How jobs are gathered.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Jobs that may wait.
    pub queue: usize,
    /// Jobs of one batch.
    pub max_batch: usize,
    /// Batches under way at once: while one waits for the disk the next is built.
    pub in_flight: usize,
}

/// Starts workers that give `work` all that waits, at most a batch of it, again and again. There is no waiting for more: a lone
/// job is a batch. The workers end when the last sender is dropped.
///
/// Each batch runs in a task of its own: should it die its jobs are dropped, and the workers go on.
pub fn start<J, F>(
    runtime: &Handle,
    limits: Limits,
    what: &'static str,
    work: impl Fn(Vec<J>) -> F + Clone + Send + 'static,
) -> mpsc::Sender<J>
where
    J: Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let (jobs, waiting) = mpsc::channel(limits.queue);
    let waiting = Arc::new(Mutex::new(waiting));
    for _ in 0..limits.in_flight {
        let (waiting, work) = (waiting.clone(), work.clone());
        runtime.spawn(async move {
            loop {
                let mut batch = Vec::with_capacity(limits.max_batch);
                // Holding the receiver while waiting is what makes the other worker wait for the next batch.
                if waiting.lock().await.recv_many(&mut batch, limits.max_batch).await == 0 {
                    return;
                }
                if let Err(panic) = tokio::spawn(work(batch)).await {
                    tracing::error!(%panic, what, "a batch died");
                }
            }
        });
    }
    jobs
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    type Job = (u32, oneshot::Sender<usize>);

    #[tokio::test]
    async fn what_waits_is_one_batch_and_a_batch_that_dies_takes_only_its_own_with_it() {
        let limits = Limits {
            queue: 16,
            max_batch: 3,
            in_flight: 1,
        };
        let (go, gone) = oneshot::channel::<()>();
        let gate = Arc::new(Mutex::new(Some(gone)));
        let jobs = start(&Handle::current(), limits, "test", move |batch: Vec<Job>| {
            let gate = gate.clone();
            async move {
                // The first batch waits until the others have arrived.
                let first = gate.lock().await.take();
                if let Some(first) = first {
                    first.await.ok();
                }
                let size = batch.len();
                assert!(batch.iter().all(|(n, _)| *n != 13), "unlucky");
                for (_, answer) in batch {
                    answer.send(size).ok();
                }
            }
        });
        let mut answers = Vec::new();
        for n in [0, 1, 2, 3, 13, 4] {
            let (answer, size) = oneshot::channel();
            jobs.send((n, answer)).await.unwrap();
            answers.push(size);
            if n == 0 {
                // The lone job is under way before the others come.
                while jobs.capacity() < limits.queue {
                    tokio::task::yield_now().await;
                }
            }
        }
        go.send(()).unwrap();
        let mut sizes = Vec::new();
        for answer in answers {
            sizes.push(answer.await.ok());
        }
        assert_eq!(sizes, [Some(1), Some(3), Some(3), Some(3), None, None]);
    }
}
