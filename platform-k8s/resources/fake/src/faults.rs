//! What goes wrong on demand.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use drover_core::{Error, Result};

use crate::State;

/// What goes wrong with a call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It fails and changes nothing.
    Error(Error),
    /// It is done, and fails nevertheless: the connection was cut before the answer.
    ErrorAfterwards(Error),
    /// It takes longer.
    Delay(Duration),
}

#[derive(Default)]
pub(crate) struct Faults {
    planned: BTreeMap<String, VecDeque<Fault>>,
    made: BTreeMap<String, u64>,
}

impl Faults {
    pub(crate) fn add(&mut self, call: &str, fault: Fault, times: usize) {
        let planned = self.planned.entry(call.to_owned()).or_default();
        planned.extend(std::iter::repeat_n(fault, times));
    }

    pub(crate) fn made(&self, call: &str) -> u64 {
        self.made.get(call).copied().unwrap_or_default()
    }

    fn next(&mut self, call: &str) -> Option<Fault> {
        *self.made.entry(call.to_owned()).or_default() += 1;
        self.planned.get_mut(call)?.pop_front()
    }
}

impl State {
    /// Does a call, or what is planned in its place.
    pub(crate) async fn call<T>(
        &self,
        name: &str,
        work: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let fault = self.faults.lock().next(name);
        match fault {
            None => work.await,
            Some(Fault::Error(error)) => Err(error),
            Some(Fault::ErrorAfterwards(error)) => {
                work.await?;
                Err(error)
            }
            Some(Fault::Delay(delay)) => {
                tokio::time::sleep(delay).await;
                work.await
            }
        }
    }
}
