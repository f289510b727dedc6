//! Looks for hosts by a label, as they are now. The API server goes through all of its hosts for a list, so calls that ask at
//! the same time share one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use drover_core::{Error, Result};
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
    answer: oneshot::Sender<Result<Vec<BareMetalHost>>>,
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

    /// The hosts with this label, by a list that begins after this call.
    pub(super) async fn of(&self, key: &str, value: String) -> Result<Vec<BareMetalHost>> {
        let (answer, answered) = oneshot::channel();
        let asked = Asked {
            key: key.to_owned(),
            value,
            answer,
        };
        let ended = || Error::unavailable("the platform is being stopped");
        self.0.send(asked).await.map_err(|_| ended())?;
        answered.await.map_err(|_| ended())?
    }
}

impl Backend {
    /// Answers lookups, for ever.
    pub(super) async fn look_up(&self, mut waiting: Waiting) {
        let mut asked = Vec::new();
        while waiting.0.recv_many(&mut asked, TOGETHER).await > 0 {
            asked.retain(|asked| !asked.answer.is_closed());
            let mut wanted: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
            for Asked { key, value, .. } in &asked {
                wanted.entry(key).or_default().insert(value);
            }
            let mut found = BTreeMap::new();
            for (key, values) in wanted {
                found.insert(key.to_owned(), self.labelled(key, &values).await);
            }
            for Asked { key, value, answer } in asked.drain(..) {
                let hosts = match found.get(&key) {
                    Some(Ok(hosts)) => Ok(hosts.get(&value).cloned().unwrap_or_default()),
                    Some(Err(error)) => Err(error.clone()),
                    None => continue,
                };
                // Whoever has asked may have gone.
                let _ = answer.send(hosts);
            }
        }
    }

    /// The hosts that have one of these values as label, by value.
    async fn labelled(
        &self,
        key: &str,
        values: &BTreeSet<&str>,
    ) -> Result<HashMap<String, Vec<BareMetalHost>>> {
        let named: Vec<&str> = values.iter().copied().collect();
        let params = match named.len() {
            // Without a limit, an API server may answer a list from its memory; with one, those before 1.34 decode all hosts
            // (<https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-get-and-list>).
            ..=NAMED => ListParams::default().labels(&format!("{key} in ({})", named.join(","))),
            _ => ListParams::default().labels(key).limit(PAGE),
        };
        let mut found: HashMap<String, Vec<BareMetalHost>> = HashMap::new();
        for scope in self.settings.scopes() {
            let scope = scope.unwrap_or_default();
            let mut params = params.clone();
            loop {
                // Of most hosts it is known what else they say, so that their metadata is enough.
                let list = self.api(scope).list_metadata(&params).await;
                let list = list.map_err(|error| Self::list_error(scope, &error))?;
                for listed in &list.items {
                    let value = listed.labels().get(key).map(String::as_str);
                    let Some(value) = value.filter(|value| values.contains(value)) else {
                        continue;
                    };
                    if let Some(host) = self.whole(&listed.metadata).await? {
                        found.entry(value.to_owned()).or_default().push(host);
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
    async fn whole(&self, listed: &ObjectMeta) -> Result<Option<BareMetalHost>> {
        let id = host::id_of(listed);
        let known = self.cache.get(&id).filter(|known| {
            let metadata = &known.host.metadata;
            metadata.uid == listed.uid && metadata.resource_version == listed.resource_version
        });
        match known {
            Some(known) => Ok(Some(BareMetalHost::clone(&known.host))),
            None => self.get(&id).await,
        }
    }
}
