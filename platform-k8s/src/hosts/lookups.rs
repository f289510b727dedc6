//! Looks for hosts by a label, as they are now. The API server goes through all of its hosts for a list, so calls that ask at
//! the same time share one.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    panic::AssertUnwindSafe,
};

use drover_core::{Error, Result};
use drover_resources_kubernetes::client::limits::is_too_large;
use futures::FutureExt as _;
use kube::{ResourceExt as _, api::ListParams, core::ObjectMeta};
use tokio::sync::{mpsc, oneshot};

use super::{
    backend::Backend,
    host::{self, BareMetalHost},
};

/// Calls that share a list.
const TOGETHER: usize = 1024;
/// Values that a list names: its URL stays short enough for every proxy.
const NAMED: usize = 100;
/// Hosts in a page of a list that names none.
const PAGE: u32 = 500;

/// A call that looks for hosts.
struct Asked {
    key: String,
    value: String,
    answer: oneshot::Sender<Result<Vec<ObjectMeta>>>,
}

/// The calls that look for hosts.
pub(super) struct Lookups(mpsc::Sender<Asked>);

/// Those of them that wait to be answered.
pub(super) struct Waiting(mpsc::Receiver<Asked>);

impl Lookups {
    pub(super) fn new() -> (Self, Waiting) {
        let (asked, waiting) = mpsc::channel(TOGETHER);
        (Self(asked), Waiting(waiting))
    }

    /// Metadata of the hosts with this label, by a list that begins after this call.
    pub(super) async fn of(&self, key: &str, value: String) -> Result<Vec<ObjectMeta>> {
        let (answer, answered) = oneshot::channel();
        let asked = Asked {
            key: key.to_owned(),
            value,
            answer,
        };
        let ended = || Error::unavailable("nobody looks for hosts any more");
        self.0.send(asked).await.map_err(|_| ended())?;
        answered.await.map_err(|_| ended())?
    }
}

impl Backend {
    /// Answers lookups, for ever.
    pub(super) async fn look_up(&self, mut waiting: Waiting) {
        let mut asked = Vec::new();
        while waiting.0.recv_many(&mut asked, TOGETHER).await > 0 {
            let mut by_key: BTreeMap<String, Vec<Asked>> = BTreeMap::new();
            for one in asked.drain(..).filter(|one| !one.answer.is_closed()) {
                by_key.entry(one.key.clone()).or_default().push(one);
            }
            for (key, asked) in by_key {
                let values = asked.iter().map(|one| one.value.as_str()).collect();
                // Claims go on after a list that could not be understood.
                let found = AssertUnwindSafe(self.labelled(&key, &values)).catch_unwind();
                let found = (found.await)
                    .unwrap_or_else(|_| Err(Error::internal("looking for hosts has failed")));
                for Asked { value, answer, .. } in asked {
                    let found = found.as_ref().map_err(Error::clone);
                    let hosts = found.map(|found| found.get(&value).cloned().unwrap_or_default());
                    // Whoever has asked may have gone.
                    let _ = answer.send(hosts);
                }
            }
        }
    }

    /// Metadata of the hosts that have one of these values as label, by value.
    async fn labelled(
        &self,
        key: &str,
        values: &BTreeSet<&str>,
    ) -> Result<HashMap<String, Vec<ObjectMeta>>> {
        let named: Vec<&str> = values.iter().copied().collect();
        let params = match named.len() {
            // Without a limit, an API server may answer a list from its memory; with one, those before 1.34 decode all hosts
            // (<https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-get-and-list>).
            ..=NAMED => ListParams::default().labels(&format!("{key} in ({})", named.join(","))),
            _ => ListParams::default().labels(key).limit(PAGE),
        };
        let mut found: HashMap<String, Vec<ObjectMeta>> = HashMap::new();
        for scope in self.settings.scopes() {
            let scope = scope.unwrap_or_default();
            let mut params = params.clone();
            loop {
                // Of most hosts it is known what else they say, so that their metadata is enough.
                let list = match self.api(scope).list_metadata(&params).await {
                    Ok(list) => list,
                    Err(error) if params.limit != Some(1) && is_too_large(&error) => {
                        params.limit = Some(params.limit.map_or(PAGE, |limit| limit / 2));
                        continue;
                    }
                    Err(error) => return Err(Self::list_error(scope, &error)),
                };
                for listed in list.items {
                    let value = listed.labels().get(key).cloned();
                    if let Some(value) = value.filter(|value| values.contains(value.as_str())) {
                        found.entry(value).or_default().push(listed.metadata);
                    }
                }
                match list.metadata.continue_ {
                    Some(next) if !next.is_empty() => params = params.continue_token(&next),
                    _ => break,
                }
            }
        }
        Ok(found)
    }

    /// A host as it is now that was listed with this metadata. `None` if it has gone.
    pub(super) async fn whole(&self, listed: &ObjectMeta) -> Result<Option<BareMetalHost>> {
        let id = host::id_of(listed);
        let known = self.cache.get(&id).filter(|known| {
            let metadata = &known.host.metadata;
            // Versions are given anew when etcd is restored.
            metadata.uid == listed.uid
                && metadata.resource_version == listed.resource_version
                && metadata.labels == listed.labels
                && metadata.annotations == listed.annotations
        });
        match known {
            Some(known) => Ok(Some(BareMetalHost::clone(&known.host))),
            None => self.get(&id).await,
        }
    }
}
