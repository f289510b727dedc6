//! Merges calls about single machines that are made at the same time into calls about many.

use std::collections::HashMap;

use drover_core::Result;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Merges concurrent calls about single ids: while one is under way, the next are collected for the call after it. A
/// lone call is made at once.
#[derive(Debug)]
pub struct Batches<T> {
    most: usize,
    waiting: Mutex<Vec<(String, oneshot::Sender<Result<T>>)>>,
    turn: tokio::sync::Mutex<()>,
}

impl<T: Clone + Send> Batches<T> {
    /// Calls about at most this many ids each.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            waiting: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// The answer for one id. `call` gets all ids of a batch, without repetitions, and answers for each of them; for an
    /// id that it leaves out, the call is made again.
    ///
    /// # Errors
    /// Those that the call has for this id.
    pub async fn run<F, Fut>(&self, id: &str, call: F) -> Result<T>
    where
        F: Fn(Vec<String>) -> Fut + Send,
        Fut: Future<Output = HashMap<String, Result<T>>> + Send,
    {
        loop {
            let (tell, mut told) = oneshot::channel();
            self.waiting.lock().push((id.to_owned(), tell));
            loop {
                let turn = tokio::select! {
                    biased;
                    answer = &mut told => match answer {
                        Ok(answer) => return answer,
                        // The caller that made the call is gone.
                        Err(_) => break,
                    },
                    turn = self.turn.lock() => turn,
                };
                let batch: Vec<_> = {
                    let mut waiting = self.waiting.lock();
                    let most = waiting.len().min(self.most);
                    waiting.drain(..most).collect()
                };
                if !batch.is_empty() {
                    answer(batch, &call).await;
                }
                drop(turn);
            }
        }
    }
}

async fn answer<T, F, Fut>(batch: Vec<(String, oneshot::Sender<Result<T>>)>, call: &F)
where
    T: Clone,
    F: Fn(Vec<String>) -> Fut,
    Fut: Future<Output = HashMap<String, Result<T>>>,
{
    let mut ids: Vec<String> = batch.iter().map(|(id, _)| id.clone()).collect();
    ids.sort();
    ids.dedup();
    let answers = call(ids).await;
    for (id, tell) in batch {
        if let Some(answer) = answers.get(&id) {
            // Fails if its caller is gone.
            let _ = tell.send(answer.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_made_meanwhile_are_merged_and_each_gets_its_own_answer() {
        let batches = Arc::new(Batches::new(100));
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..251)
            .map(|at| {
                let (batches, sizes) = (Arc::clone(&batches), Arc::clone(&sizes));
                tokio::spawn(async move {
                    let call = |ids: Vec<String>| {
                        sizes.lock().push(ids.len());
                        async move {
                            tokio::time::sleep(Duration::from_millis(100)).await;
                            ids.into_iter().map(|id| (id.clone(), Ok(id))).collect()
                        }
                    };
                    let id = at.to_string();
                    assert_eq!(batches.run(&id, call).await.unwrap(), id);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*sizes.lock(), [1, 100, 100, 50]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_leaves_takes_no_other_with_it() {
        let batches = Arc::new(Batches::new(100));
        let leader = Arc::clone(&batches);
        let leader = tokio::spawn(async move {
            leader
                .run("1", |_| {
                    std::future::pending::<HashMap<String, Result<u8>>>()
                })
                .await
        });
        tokio::task::yield_now().await;
        let follower = Arc::clone(&batches);
        let follower = tokio::spawn(async move {
            let call = |ids: Vec<String>| async { ids.into_iter().map(|id| (id, Ok(7))).collect() };
            follower.run("2", call).await
        });
        tokio::task::yield_now().await;
        leader.abort();
        assert_eq!(follower.await.unwrap().unwrap(), 7);
    }
}
