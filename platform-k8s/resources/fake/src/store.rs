//! The objects, as an API server keeps them.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::SystemTime,
};

use drover_core::{Error, Reason, Result};
use drover_proto::kubernetes::v1::{self as api, IngressBackend};
use prost::Message;
use uuid::Builder;

use crate::files::Files;

/// Size at which a page ends, in bytes.
const MAX_PAGE_BYTES: usize = 1024 * 1024;
/// Lists that can go on at once. The oldest expires, as after a compaction.
const MAX_LISTS: usize = 64;

/// Namespace and name.
pub(crate) type Key = (String, String);

/// What has metadata.
pub(crate) trait Object: Clone + Message {
    /// What it is called in errors.
    const KIND: &'static str;

    fn metadata(&self) -> Option<&api::Metadata>;

    fn metadata_mut(&mut self) -> &mut api::Metadata;
}

macro_rules! objects {
    ($($object:ident $kind:literal;)*) => {
        $(impl Object for api::$object {
            const KIND: &'static str = $kind;

            fn metadata(&self) -> Option<&api::Metadata> {
                self.metadata.as_ref()
            }

            fn metadata_mut(&mut self) -> &mut api::Metadata {
                self.metadata.get_or_insert_default()
            }
        })*
    };
}

objects! {
    Node "node";
    Pod "pod";
    Service "service";
    Ingress "ingress";
    NetworkPolicy "network policy";
    Configuration "configuration";
}

/// The key of an object.
pub(crate) fn key(object: &impl Object) -> Key {
    let metadata = object.metadata();
    metadata.map_or_else(Key::default, |metadata| {
        (metadata.namespace.clone(), metadata.name.clone())
    })
}

/// The uid of an object.
pub(crate) fn uid(object: &impl Object) -> String {
    let metadata = object.metadata();
    metadata
        .map(|metadata| metadata.uid.clone())
        .unwrap_or_default()
}

/// The name of a key in errors.
pub(crate) fn named((namespace, name): &Key) -> String {
    if namespace.is_empty() {
        return name.clone();
    }
    format!("{namespace}/{name}")
}

/// Objects of one kind, in order, and lists of them that have begun.
pub(crate) struct Table<T> {
    objects: BTreeMap<Key, T>,
    lists: VecDeque<(u64, Arc<Vec<T>>)>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            lists: VecDeque::new(),
        }
    }
}

impl<T: Object> Table<T> {
    pub(crate) fn get(&self, key: &Key) -> Option<&T> {
        self.objects.get(key)
    }

    pub(crate) fn find(&self, key: &Key) -> Result<&T> {
        self.get(key)
            .ok_or_else(|| Error::not_found(T::KIND, named(key)))
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.objects.values()
    }

    pub(crate) fn put(&mut self, object: T) {
        self.objects.insert(key(&object), object);
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<T> {
        self.objects.remove(key)
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&Key) -> bool) {
        self.objects.retain(|key, _| keep(key));
    }

    /// A page of what matches, and the token of the next one. A list shows its objects as they were when it began.
    pub(crate) fn page(
        &mut self,
        (page_size, token): (i32, &str),
        revision: u64,
        matches: impl Fn(&T) -> bool,
    ) -> Result<(Vec<T>, String)> {
        let expired = || {
            let message = "the list took too long: objects have changed since its first page";
            Error::new(Reason::PageTokenExpired, message)
        };
        let (list, begin) = if token.is_empty() {
            let all = self.objects.values().filter(|object| matches(object));
            let mut all: Vec<_> = all.cloned().collect();
            // As the API server stores them: `a-b/x` before `a/x`.
            all.sort_by_cached_key(|object| named(&key(object)));
            (Arc::new(all), 0)
        } else {
            let (id, at) = token.split_once('.').ok_or_else(expired)?;
            let id: u64 = id.parse().map_err(|_| expired())?;
            let at: usize = at.parse().map_err(|_| expired())?;
            let list = self.lists.iter().find(|(known, _)| *known == id);
            let list = list.map(|(_, list)| list.clone()).ok_or_else(expired)?;
            (list, at)
        };
        let most = usize::try_from(page_size).unwrap_or_default().max(1);
        let rest = list.get(begin..).unwrap_or_default();
        let mut bytes = 0;
        let fits = rest.iter().take(most).take_while(|object| {
            let fits = bytes < MAX_PAGE_BYTES;
            bytes += object.encoded_len();
            fits
        });
        let page: Vec<T> = fits.cloned().collect();
        let end = begin + page.len();
        if end >= list.len() {
            return Ok((page, String::new()));
        }
        let id = match token.split_once('.') {
            Some((id, _)) => id.to_owned(),
            None => {
                self.lists.push_back((revision, list));
                if self.lists.len() > MAX_LISTS {
                    self.lists.pop_front();
                }
                revision.to_string()
            }
        };
        Ok((page, format!("{id}.{end}")))
    }
}

/// At least so many pods stay ready.
pub(crate) struct Budget {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) min_available: usize,
}

/// Everything.
pub(crate) struct Store {
    revision: u64,
    random: fastrand::Rng,
    pub(crate) nodes: Table<api::Node>,
    pub(crate) pods: Table<api::Pod>,
    pub(crate) services: Table<api::Service>,
    pub(crate) ingresses: BTreeMap<i32, Table<api::Ingress>>,
    pub(crate) policies: Table<api::NetworkPolicy>,
    pub(crate) configurations: Table<api::Configuration>,
    pub(crate) files: Files,
    /// Logs by uid of the pod and container: of the current run, and of the one before.
    pub(crate) logs: BTreeMap<Key, crate::kubelet::Logs>,
    pub(crate) namespaces: Option<BTreeSet<String>>,
    pub(crate) quotas: BTreeMap<String, usize>,
    pub(crate) budgets: BTreeMap<Key, Budget>,
    pub(crate) held: BTreeSet<Key>,
    pub(crate) owned: BTreeSet<Key>,
    pub(crate) upstreams: BTreeMap<Key, (String, u32)>,
    pub(crate) backends: Vec<IngressBackend>,
    pub(crate) addresses: u32,
    /// Containers that are about to end, with their exit codes.
    pub(crate) ends: Vec<(Key, String, i32)>,
}

impl Store {
    pub(crate) fn new(seed: u64) -> Self {
        let backends = [
            IngressBackend::Ingress,
            IngressBackend::HttpRoute,
            IngressBackend::VirtualService,
        ];
        Self {
            revision: 1,
            random: fastrand::Rng::with_seed(seed),
            nodes: Table::default(),
            pods: Table::default(),
            services: Table::default(),
            ingresses: backends
                .iter()
                .map(|backend| (*backend as i32, Table::default()))
                .collect(),
            policies: Table::default(),
            configurations: Table::default(),
            files: Files::default(),
            logs: BTreeMap::new(),
            namespaces: None,
            quotas: BTreeMap::new(),
            budgets: BTreeMap::new(),
            held: BTreeSet::new(),
            owned: BTreeSet::new(),
            upstreams: BTreeMap::new(),
            backends: backends.to_vec(),
            addresses: 0,
            ends: Vec::new(),
        }
    }

    /// The next revision.
    pub(crate) fn tick(&mut self) -> u64 {
        self.revision += 1;
        self.revision
    }

    /// A number below another one.
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        self.random.u32(..end)
    }

    /// Fills in what an API server sets of a new object.
    pub(crate) fn stamp(&mut self, object: &mut impl Object) {
        let uid = Builder::from_random_bytes(self.random.u128(..).to_be_bytes()).into_uuid();
        let revision = self.tick();
        let metadata = object.metadata_mut();
        metadata.uid = uid.to_string();
        metadata.revision = revision.to_string();
        metadata.create_time = Some(now());
    }

    /// Notes that an object has changed.
    pub(crate) fn touch(&mut self, object: &mut impl Object) {
        object.metadata_mut().revision = self.tick().to_string();
    }

    /// Refuses a namespace that does not exist.
    pub(crate) fn check_namespace(&self, namespace: &str) -> Result<()> {
        let missing = |all: &BTreeSet<String>| !all.contains(namespace);
        if self.namespaces.as_ref().is_some_and(missing) {
            let message = format!("there is no namespace {namespace:?}");
            let error = Error::new(Reason::Precondition, message);
            return Err(error.with_resource("namespace", namespace));
        }
        Ok(())
    }

    pub(crate) fn delete_namespace(&mut self, name: &str) {
        if let Some(namespaces) = &mut self.namespaces {
            namespaces.remove(name);
        }
        let other = |key: &Key| key.0 != name;
        let pods: Vec<Key> = self.pods.all().map(key).filter(|key| !other(key)).collect();
        for pod in &pods {
            self.held.remove(pod);
            self.remove_pod(pod);
        }
        self.services.retain(other);
        self.policies.retain(other);
        self.configurations.retain(other);
        for table in self.ingresses.values_mut() {
            table.retain(other);
        }
    }

    pub(crate) fn compact(&mut self) {
        self.nodes.lists.clear();
        self.pods.lists.clear();
        self.services.lists.clear();
        self.policies.lists.clear();
        self.configurations.lists.clear();
        for table in self.ingresses.values_mut() {
            table.lists.clear();
        }
    }
}

/// The error for an object whose name is taken.
pub(crate) fn exists<T: Object>(key: &Key) -> Error {
    let name = named(key);
    let message = format!("there is a {} {name:?} already", T::KIND);
    Error::new(Reason::AlreadyExists, message).with_resource(T::KIND, name)
}

/// The time, in whole seconds as Kubernetes tells it.
pub(crate) fn now() -> prost_types::Timestamp {
    prost_types::Timestamp {
        nanos: 0,
        ..prost_types::Timestamp::from(SystemTime::now())
    }
}
