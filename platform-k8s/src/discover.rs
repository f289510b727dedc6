//! Reads everything that exists from the API server: every pod with a cluster label, and all other objects of nodes, so
//! that half-created and half-removed nodes are seen.

use std::sync::Arc;

use drover_core::Result;
use drover_platform::driver::{Found, Listing};
use drover_proto::{
    common::v1::{Address, AddressType},
    platform::v1::{NodePhase, SlotKey, Warning},
};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::ObjectMeta;
use prost_types::Timestamp;

use crate::{
    address,
    client::{Api, Kind, ListQuery, Meta as _, Object, Shape},
    errors,
    group::{Groups, Member, PodPart, Told, uid},
    labels::{self, LabelKeys, Mark, declared},
    phase,
    pod::Pod,
    settings::{AgentSettings, IpFrom, Settings},
    watch::NodeCache,
};

/// Maximum number of labels shown of a foreign pod.
const MAX_LABELS: usize = 64;

/// Reads objects as parts of nodes.
#[derive(Clone, Debug)]
pub struct Reader {
    /// Keys of the labels.
    pub keys: LabelKeys,
    /// How agent addresses are determined.
    pub agent: AgentSettings,
}

/// The part of a node that one object describes.
pub(crate) struct Seen {
    pub(crate) cluster: String,
    pub(crate) node: String,
    pub(crate) member: Member,
    /// Identity of an object that is not a pod, with the phase left open. `None` if it has none.
    pub(crate) identity: Option<Found>,
    /// The request that created it, as a [`uid`]. 0 if unknown.
    pub(crate) request: u128,
    /// Identity of the adopted node, if this object speaks for it.
    pub(crate) adopted: Option<Found>,
    /// Of the object: later states have higher ones
    /// (<https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>). 0 if unknown.
    pub(crate) version: u64,
}

impl Seen {
    /// Whether it is a pod that wants the list of its peers.
    pub(crate) fn listens(&self) -> bool {
        self.member
            .pod
            .as_ref()
            .is_some_and(|pod| pod.told.is_some())
    }
}

impl Reader {
    /// A reader for the label keys and agent addresses of the settings.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Self {
            keys: settings.labels.clone(),
            agent: settings.agent.clone(),
        }
    }

    /// A pod as the node that it is, with a warning if a part is unreadable. `None` if it has no cluster label.
    #[must_use]
    pub fn found(&self, pod: &Pod) -> Option<(Found, Option<Warning>)> {
        let mark = labels::read(&pod.metadata, &self.keys)?;
        Some(self.node(pod, &mark))
    }

    pub(crate) fn pod(&self, kind: u16, pod: &Pod) -> Option<Seen> {
        let mark = labels::read(&pod.metadata, &self.keys)?;
        let (found, warning) = self.node(pod, &mark);
        let part = PodPart {
            created: found
                .node
                .create_time
                .as_ref()
                .map_or(0, |time| time.seconds),
            host: pod.spec.node_name.as_deref().map(Arc::from),
            ours: mark.identity.is_some(),
            unschedulable: pod.is_unschedulable(),
            lost: false,
            ended: phase::has_ended(pod),
            told: told(&pod.metadata, &mark),
            found: found.clone().into(),
        };
        Some(Seen {
            adopted: adopted(&mark, &found.node.node_id),
            cluster: found.node.cluster_id,
            node: found.node.node_id,
            request: request(&mark),
            member: member(kind, &pod.metadata, &mark, warning, Some(part)),
            identity: None,
            version: pod.metadata.version().parse().unwrap_or(0),
        })
    }

    /// An object other than a pod belongs to a node only if it names the node. One that was ours and has lost its marks
    /// is kept by itself, for the warning.
    pub(crate) fn part(&self, kind: u16, object: &Object) -> Option<Seen> {
        let mark = labels::read(&object.metadata, &self.keys)?;
        let lost = || {
            mark.problem
                .as_ref()
                .map(|_| format!("/{kind}/{}", object.metadata.name()))
        };
        let node = mark.node.clone().or_else(lost)?;
        let warning = mark
            .problem
            .as_ref()
            .map(|problem| self.warning(&object.metadata, &mark, &node, problem));
        Some(Seen {
            cluster: mark.cluster.clone(),
            request: request(&mark),
            adopted: adopted(&mark, &node),
            identity: mark.identity.as_ref().map(|identity| Found {
                node: identity.node(&node),
                fingerprint: identity.fingerprint.clone(),
            }),
            member: member(kind, &object.metadata, &mark, warning, None),
            node,
            version: object.metadata.version().parse().unwrap_or(0),
        })
    }

    fn node(&self, pod: &Pod, mark: &Mark) -> (Found, Option<Warning>) {
        let meta = &pod.metadata;
        let id = mark.node.clone().unwrap_or_else(|| meta.name().to_owned());
        let mut found = match &mark.identity {
            Some(identity) => Found {
                node: identity.node(&id),
                fingerprint: identity.fingerprint.clone(),
            },
            None => self.foreign(meta, mark, &id),
        };
        let mut problems: Vec<String> = mark.problem.iter().cloned().collect();
        let node = &mut found.node;
        let phase = phase::of(pod);
        node.set_phase(phase.phase);
        node.ready = Some(phase.ready);
        node.message = phase.message;
        node.provider_id = format!("kubernetes://{}/{}", meta.namespace(), meta.name());
        node.create_time = meta.creation_timestamp.as_ref().map(timestamp);
        match address::agent(pod, &self.agent) {
            Ok(address) => node.agent_address = address,
            Err(problem) => problems.push(problem),
        }
        let ip_from = address::ip_from(meta.annotations(), &self.agent).unwrap_or_default();
        node.addresses = addresses(pod, ip_from);
        node.endpoints = endpoints(pod, ip_from).collect();
        if mark.problem.is_some() && mark.identity.is_none() {
            node.set_phase(NodePhase::Unknown);
        }
        if problems.is_empty() {
            return (found, None);
        }
        let problem = problems.join("; ");
        let warning = self.warning(meta, mark, &id, &problem);
        let message = &mut found.node.message;
        if !message.is_empty() {
            message.push_str("; ");
        }
        message.push_str(&problem);
        (found, Some(warning))
    }

    /// A node that is foreign, or whose identity is unreadable.
    fn foreign(&self, meta: &ObjectMeta, mark: &Mark, id: &str) -> Found {
        let mut found = Found::default();
        let node = &mut found.node;
        node.cluster_id.clone_from(&mark.cluster);
        node.node_id = id.to_owned();
        meta.name().clone_into(&mut node.name);
        node.labels = declared::shown(meta.labels(), &self.keys, MAX_LABELS);
        if let Some(group) = meta.labels().get(labels::GROUP) {
            node.group.clone_from(group);
        }
        found
    }

    /// Describes an unreadable object as far as it is known.
    fn warning(&self, meta: &ObjectMeta, mark: &Mark, id: &str, problem: &str) -> Warning {
        let label = |key: &str| meta.labels().get(key).cloned().unwrap_or_default();
        let owner = label(labels::OWNER);
        let identity = meta.annotations().get(labels::IDENTITY).and_then(|json| {
            serde_json::from_str::<drover_platform::identity::Identity>(json).ok()
        });
        let slot = match &identity {
            Some(identity) => Some(identity.key()),
            None => (!owner.is_empty()).then(|| SlotKey {
                owner,
                request_id: label(labels::REQUEST),
                index: None,
            }),
        };
        Warning {
            message: format!(
                "{:?} in namespace {:?}: {problem}",
                meta.name(),
                meta.namespace()
            ),
            cluster_id: Some(
                identity
                    .as_ref()
                    .map_or_else(|| mark.cluster.clone(), |it| it.cluster_id.clone()),
            ),
            slot,
            id: Some(id.to_owned()),
            name: Some(identity.map_or_else(|| meta.name().to_owned(), |it| it.name)),
            provider_id: Some(format!("kubernetes://{}/{}", meta.namespace(), meta.name())),
        }
    }
}

fn adopted(mark: &Mark, node_id: &str) -> Option<Found> {
    let identity = mark.identity.as_ref().filter(|_| mark.former.is_some())?;
    Some(Found {
        node: identity.node(node_id),
        fingerprint: String::new(),
    })
}

/// The peer data that a pod of ours has, if it asks for them.
fn told(meta: &ObjectMeta, mark: &Mark) -> Option<Box<Told>> {
    mark.identity.as_ref()?;
    let text = |key| meta.annotations().get(key).map(|text| text.as_str().into());
    let budget = meta.annotations().get(labels::DISRUPTION_BUDGET);
    Some(Box::new(Told {
        peers: uid(meta.annotations().get(labels::PEERS)?),
        says_active: (meta.labels().get(labels::ACTIVE))
            .is_some_and(|text| text == "true" || text == labels::PROMOTING),
        service: text(labels::ACTIVE_SERVICE),
        read_service: text(labels::READ_SERVICE),
        budget: budget.and_then(|number| number.parse().ok()),
        secrets: text(labels::SECRETS),
    }))
}

fn request(mark: &Mark) -> u128 {
    mark.identity.as_ref().map_or(0, |it| uid(&it.request_id))
}

fn member(
    kind: u16,
    meta: &ObjectMeta,
    mark: &Mark,
    warning: Option<Warning>,
    pod: Option<PodPart>,
) -> Member {
    Member {
        uid: uid(meta.uid()),
        kind,
        namespace: meta.namespace().into(),
        name: meta.name().into(),
        deleting: meta.is_deleting(),
        kept_by: kept_by(meta),
        anchor: mark.anchor,
        pod: pod.map(Box::new),
        warning: warning.map(Box::new),
    }
}

/// The finalizers that delay a deletion.
fn kept_by(meta: &ObjectMeta) -> Option<Box<str>> {
    let kept = meta.is_deleting() && !meta.finalizers().is_empty();
    kept.then(|| meta.finalizers().join(", ").into_boxed_str())
}

/// All addresses, starting with the one that other nodes use.
fn addresses(pod: &Pod, ip_from: IpFrom) -> Vec<Address> {
    let address = |value: &str, interface: &str| Address {
        r#type: AddressType::InternalIp.into(),
        value: value.to_owned(),
        interface: interface.to_owned(),
    };
    let host =
        Some(pod.status.host_ip.as_str()).filter(|ip| !ip.is_empty() && ip_from == IpFrom::Node);
    host.map(|ip| address(ip, "node"))
        .into_iter()
        .chain(pod.ips().map(|ip| address(ip, "")))
        .collect()
}

/// The named ports of all containers.
fn endpoints(pod: &Pod, ip_from: IpFrom) -> impl Iterator<Item = (String, String)> {
    let ports = pod.spec.containers.iter().flat_map(|it| &it.ports);
    ports
        .filter(|port| !port.name.is_empty())
        .filter_map(move |port| {
            let at_host = (ip_from == IpFrom::Node)
                .then_some(port.host_port)
                .flatten()
                .filter(|_| !pod.status.host_ip.is_empty());
            let endpoint = match at_host {
                Some(port) => address::join(&pod.status.host_ip, port),
                None => address::join(pod.ips().next()?, port.container_port),
            };
            Some((port.name.clone(), endpoint))
        })
}

/// Parses a time as Kubernetes writes it.
pub(crate) fn timestamp(Time(time): &Time) -> Timestamp {
    Timestamp {
        seconds: time.as_second(),
        nanos: time.subsec_nanosecond(),
    }
}

/// Restricts a read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Label selector in addition to the cluster label. Empty for none.
    pub(crate) labels: String,
    /// Name of a pod without node label. Empty for any.
    pub(crate) pod: String,
    /// Only completely created nodes.
    pub(crate) whole: bool,
}

/// Reads everything that a filter selects, complete or not at all. Kinds that the credentials may not list are left
/// out; the description of the platform names them.
pub(crate) async fn read(
    api: &Api,
    settings: &Settings,
    cache: &NodeCache,
    filter: &Filter,
) -> Result<Listing> {
    let reader = Reader::new(settings);
    let mut groups = Groups::default();
    let reads = cache.kinds().iter().enumerate().flat_map(|(at, kind)| {
        let scopes: Vec<String> = if kind.namespaced {
            settings
                .scopes()
                .map(|it| it.unwrap_or_default().to_owned())
                .collect()
        } else {
            vec![String::new()]
        };
        scopes
            .into_iter()
            .map(move |namespace| (at, Arc::clone(kind), namespace))
    });
    // Each read acquires a permit of its own below.
    let reads: Vec<_> = reads
        .map(|(at, kind, namespace)| one(api, settings, &reader, filter, at, kind, namespace))
        .collect();
    let mut reads = stream::iter(reads).buffer_unordered(settings.max_concurrent_calls.max(1));
    while let Some(seen) = reads.try_next().await? {
        for seen in seen {
            groups.insert(seen);
        }
    }
    drop(reads);
    for lost in cache.lost() {
        lost_pod(api, &reader, &mut groups, &lost).await?;
    }
    Ok(cache.listing(&groups, filter.whole))
}

async fn one(
    api: &Api,
    settings: &Settings,
    reader: &Reader,
    filter: &Filter,
    at: usize,
    kind: Arc<Kind>,
    namespace: String,
) -> Result<Vec<Seen>> {
    // There are at most a few dozen kinds.
    let index = u16::try_from(at).unwrap_or(u16::MAX);
    let is_pod = is_pod(&kind);
    let mut labels = selector(settings, is_pod);
    if !filter.labels.is_empty() {
        labels = format!("{labels},{}", filter.labels);
    }
    let mut seen = Vec::new();
    if !is_pod {
        if !filter.pod.is_empty() {
            return Ok(seen);
        }
        let query = query(&kind, &namespace, &labels, "", Shape::Metadata);
        let read = api
            .list(&query, |page: Vec<Object>| {
                seen.extend(page.iter().filter_map(|object| reader.part(index, object)));
            })
            .await;
        return match read {
            Ok(_) => Ok(seen),
            Err(error) if errors::is_forbidden(&error) => Ok(Vec::new()),
            Err(error) => Err(error),
        };
    }
    let fields = if filter.pod.is_empty() {
        String::new()
    } else {
        format!("metadata.name={}", filter.pod)
    };
    let query = query(&kind, &namespace, &labels, &fields, Shape::Full);
    api.list(&query, |page: Vec<Pod>| {
        seen.extend(page.iter().filter_map(|pod| reader.pod(index, pod)));
    })
    .await?;
    Ok(seen)
}

/// Reads a pod that has lost its cluster label by its name: no selector matches it.
async fn lost_pod(api: &Api, reader: &Reader, groups: &mut Groups, lost: &Lost) -> Result<()> {
    let pod: Option<Pod> = api.get(&lost.kind, &lost.namespace, &lost.name).await?;
    let still = pod.is_some_and(|pod| {
        uid(pod.metadata.uid()) == lost.uid && labels::read(&pod.metadata, &reader.keys).is_none()
    });
    if still {
        groups.insert(lost.seen());
    }
    Ok(())
}

/// A pod that lost its cluster label, as it was before.
pub(crate) struct Lost {
    pub(crate) kind: Arc<Kind>,
    pub(crate) index: u16,
    pub(crate) cluster: String,
    pub(crate) node: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: u128,
    pub(crate) part: PodPart,
}

impl Lost {
    fn seen(&self) -> Seen {
        Seen {
            cluster: self.cluster.clone(),
            node: self.node.clone(),
            member: Member {
                uid: self.uid,
                kind: self.index,
                namespace: self.namespace.as_str().into(),
                name: self.name.as_str().into(),
                deleting: false,
                kept_by: None,
                anchor: false,
                pod: Some(Box::new(self.part.clone())),
                warning: None,
            },
            identity: None,
            request: 0,
            adopted: None,
            version: 0,
        }
    }
}

/// Whether the kind is `pods` of the core group.
#[must_use]
pub fn is_pod(kind: &Kind) -> bool {
    kind.resource.group.is_empty() && kind.resource.plural == "pods"
}

/// Label selector for pods, or for the other kinds.
pub(crate) fn selector(settings: &Settings, is_pod: bool) -> String {
    let cluster = settings.labels.any_cluster();
    if is_pod && !settings.selector.is_empty() {
        format!("{cluster},{}", settings.selector)
    } else {
        cluster
    }
}

pub(crate) fn query<'a>(
    kind: &'a Kind,
    namespace: &'a str,
    labels: &'a str,
    fields: &'a str,
    shape: Shape,
) -> ListQuery<'a> {
    ListQuery {
        kind,
        namespace,
        labels,
        fields,
        shape,
    }
}

#[cfg(test)]
mod tests;
