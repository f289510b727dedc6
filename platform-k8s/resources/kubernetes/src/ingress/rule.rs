//! The paths of one host, and what a change makes of them. No I/O: the outcome depends on the order of changes alone.

use std::collections::{BTreeMap, BTreeSet};

use drover_core::{Error, Reason, Result};
use drover_proto::kubernetes::v1 as api;
use serde_json::Value;

/// Most paths of one host. An object with more of them comes close to what etcd stores and what a proxy reads quickly.
pub(crate) const MAX_PATHS: usize = 1_000;

/// How a path is compared, in the order of the enum of the proto.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Matching {
    Prefix,
    Exact,
    Regex,
    /// As the ingress class decides.
    Specific,
}

/// What a path is found by. Ordered as answers are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) path: String,
    pub(crate) matching: Matching,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Port {
    Number(u16),
    Name(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ServicePort {
    pub(crate) name: String,
    pub(crate) port: Port,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Upstream {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The service of the ingress's namespace that it stands for.
    pub(crate) service: Option<ServicePort>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    Service(ServicePort),
    Upstream(Upstream),
    /// More than the message can say.
    Opaque,
}

/// One path of a host.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Path {
    pub(crate) key: Key,
    /// The name that was written with it.
    pub(crate) name: Option<String>,
    pub(crate) target: Target,
    /// As it stands in the object; absent once it was changed.
    pub(crate) raw: Option<Value>,
}

/// What the object that holds the paths can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// [`MAX_PATHS`].
    Any,
    /// One HTTPRoute that somebody else made.
    ForeignRoute,
}

/// Most rules of an HTTPRoute, by its schema.
pub(crate) const MAX_ROUTE_RULES: usize = 16;

/// The paths of one host, in the order of the object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Paths {
    pub(crate) entries: Vec<Path>,
    pub(crate) holder: Holder,
}

/// The paths of each host.
pub(crate) type Rules = BTreeMap<String, Paths>;

/// A path to remove.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Selected {
    Match(Key),
    Name(String),
    /// All paths to a service, by any of these names of its port.
    Service {
        name: String,
        ports: Vec<Port>,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    Upsert(Vec<Path>),
    Remove(Vec<Selected>),
}

/// Applies one change to the host, whole or not at all. Answers the rule right after it.
pub(crate) fn apply(rules: &mut Rules, host: &str, change: &Change) -> Result<api::IngressRule> {
    let mut paths = match (rules.get(host), change) {
        (Some(paths), _) => paths.clone(),
        (None, Change::Upsert(_)) => Paths::new(),
        (None, Change::Remove(_)) => return Err(no_rule(host)),
    };
    match change {
        Change::Upsert(wanted) => paths.upsert(wanted)?,
        Change::Remove(selected) => paths.remove(selected)?,
    }
    let answer = paths.answer(host);
    rules.insert(host.to_owned(), paths);
    Ok(answer)
}

pub(crate) fn no_rule(host: &str) -> Error {
    let message = if host.is_empty() {
        "the ingress has no rule for every host".to_owned()
    } else {
        format!("the ingress has no rule for the host {host:?}")
    };
    Error::new(Reason::RuleNotFound, message).with_resource("ingress rule", host)
}

impl Paths {
    pub(crate) fn new() -> Self {
        Self::of(Vec::new(), Holder::Any)
    }

    pub(crate) fn of(entries: Vec<Path>, holder: Holder) -> Self {
        Self { entries, holder }
    }

    /// The names that answers show: those that were written, otherwise the service's if no other path has it.
    fn names(&self) -> Vec<Option<&str>> {
        let written: BTreeSet<&str> = self
            .entries
            .iter()
            .filter_map(|path| path.name.as_deref())
            .collect();
        let mut unnamed: BTreeMap<&str, usize> = BTreeMap::new();
        for path in &self.entries {
            if let Some(service) = path.service_name().filter(|_| path.name.is_none()) {
                *unnamed.entry(service).or_default() += 1;
            }
        }
        let mut names = Vec::with_capacity(self.entries.len());
        for path in &self.entries {
            let free = |name: &&str| !written.contains(name) && unnamed.get(name) == Some(&1);
            let name = path.name.as_deref();
            names.push(name.or_else(|| path.service_name().filter(free)));
        }
        names
    }

    fn upsert(&mut self, wanted: &[Path]) -> Result<()> {
        let before = self.entries.len();
        for path in wanted {
            self.upsert_one(path)?;
        }
        let most = match self.holder {
            Holder::Any => MAX_PATHS,
            Holder::ForeignRoute => MAX_ROUTE_RULES,
        };
        let count = self.entries.len();
        if count <= most || count <= before {
            return Ok(());
        }
        Err(match self.holder {
            Holder::Any => Error::invalid(
                "paths",
                format!("the host would have {count} paths, and at most {most} are possible"),
            ),
            Holder::ForeignRoute => Error::new(
                Reason::Precondition,
                format!(
                    "the host would have {count} paths, and the HTTPRoute, which was made elsewhere, has room for {most}"
                ),
            ),
        })
    }

    fn upsert_one(&mut self, wanted: &Path) -> Result<()> {
        if let Some(name) = &wanted.name {
            // A name that nobody wrote is only shown: to write it elsewhere takes nothing from the path.
            let moves = |it: &Path| it.name.as_ref() == Some(name) && it.key != wanted.key;
            let moved: Vec<usize> = (0..self.entries.len())
                .filter(|&at| moves(&self.entries[at]))
                .collect();
            if let Some(&at) = moved.iter().find(|&&at| self.entries[at].is_opaque()) {
                return Err(self.entries[at].untouchable());
            }
            self.drop_all(&moved);
        }
        let same: Vec<usize> = self.at(&wanted.key).collect();
        let plain = same.iter().find(|&&at| !self.entries[at].is_opaque());
        match (plain, same.first()) {
            (Some(&at), _) => {
                let entry = &mut self.entries[at];
                if entry.name == wanted.name && entry.target == wanted.target {
                    return Ok(());
                }
                *entry = wanted.clone();
                let others: Vec<usize> = same
                    .into_iter()
                    .filter(|&other| other != at && !self.entries[other].is_opaque())
                    .collect();
                self.drop_all(&others);
            }
            (None, Some(&at)) => return Err(self.entries[at].untouchable()),
            (None, None) => {
                let rank = wanted.key.rank();
                let place = self.entries.iter().position(|it| it.key.rank() > rank);
                let place = place.unwrap_or(self.entries.len());
                self.entries.insert(place, wanted.clone());
            }
        }
        Ok(())
    }

    fn remove(&mut self, selected: &[Selected]) -> Result<()> {
        let names = self.names();
        let mut gone = BTreeSet::new();
        for key in selected {
            let found: Vec<usize> = match key {
                Selected::Match(key) => self.at(key).collect(),
                Selected::Name(name) => (0..names.len())
                    .filter(|&at| names[at] == Some(name))
                    .collect(),
                Selected::Service { name, ports } => (0..names.len())
                    .filter(|&at| self.entries[at].leads_to(name, ports))
                    .collect(),
            };
            let (opaque, plain): (Vec<usize>, Vec<usize>) = found
                .into_iter()
                .partition(|&at| self.entries[at].is_opaque());
            if let (Some(&at), true) = (opaque.first(), plain.is_empty()) {
                return Err(self.entries[at].untouchable());
            }
            gone.extend(plain);
        }
        let gone: Vec<usize> = gone.into_iter().collect();
        self.drop_all(&gone);
        Ok(())
    }

    fn at(&self, key: &Key) -> impl Iterator<Item = usize> {
        let entries = self.entries.iter().enumerate();
        entries
            .filter(move |(_, path)| path.key == *key)
            .map(|(at, _)| at)
    }

    fn drop_all(&mut self, positions: &[usize]) {
        let mut at = 0;
        self.entries.retain(|_| {
            at += 1;
            !positions.contains(&(at - 1))
        });
    }

    /// The message, in order of path and type.
    pub(crate) fn answer(&self, host: &str) -> api::IngressRule {
        let mut paths: Vec<(&Path, Option<&str>)> = self.entries.iter().zip(self.names()).collect();
        paths.sort_by(|(a, _), (b, _)| a.key.cmp(&b.key));
        let paths = paths.into_iter();
        api::IngressRule {
            host: host.to_owned(),
            paths: paths.map(|(path, name)| path.answer(name)).collect(),
        }
    }
}

impl Key {
    /// The order of objects: proxies that take the first match must find the most specific one first.
    fn rank(&self) -> (u8, std::cmp::Reverse<usize>, &str) {
        let matching = match self.matching {
            Matching::Exact => 0,
            Matching::Regex => 1,
            Matching::Prefix => 2,
            Matching::Specific => 3,
        };
        (matching, std::cmp::Reverse(self.path.len()), &self.path)
    }
}

impl Path {
    pub(crate) fn is_opaque(&self) -> bool {
        match self.target {
            Target::Opaque => true,
            Target::Service(_) | Target::Upstream(_) => false,
        }
    }

    fn service(&self) -> Option<&ServicePort> {
        match &self.target {
            Target::Service(service) => Some(service),
            Target::Upstream(upstream) => upstream.service.as_ref(),
            Target::Opaque => None,
        }
    }

    fn service_name(&self) -> Option<&str> {
        self.service().map(|service| service.name.as_str())
    }

    fn leads_to(&self, name: &str, ports: &[Port]) -> bool {
        self.service()
            .is_some_and(|service| service.name == name && ports.contains(&service.port))
    }

    fn untouchable(&self) -> Error {
        let Key { path, matching } = &self.key;
        let what = format!("{path} ({})", matching.word());
        Error::new(
            Reason::Precondition,
            format!(
                "the route {what} says more than path and target, and can only be changed where it was made"
            ),
        )
        .with_resource("ingress path", what)
    }

    fn answer(&self, name: Option<&str>) -> api::IngressPath {
        use api::ingress_path::Target as To;
        let target = match &self.target {
            Target::Opaque => None,
            Target::Service(service) => Some(To::Service(service.answer())),
            Target::Upstream(upstream) => Some(match &upstream.service {
                Some(service) => To::Service(service.answer()),
                None => To::Upstream(api::UpstreamTarget {
                    name: upstream.name.clone(),
                    namespace: upstream.namespace.clone(),
                }),
            }),
        };
        api::IngressPath {
            path: self.key.path.clone(),
            r#type: self.key.matching.answer().into(),
            name: name.unwrap_or_default().to_owned(),
            opaque: self.is_opaque(),
            target,
        }
    }
}

impl ServicePort {
    fn answer(&self) -> api::ServiceTarget {
        use api::port_ref::Port as Ref;
        let port = match &self.port {
            Port::Number(number) => Ref::Number((*number).into()),
            Port::Name(name) => Ref::Name(name.clone()),
        };
        api::ServiceTarget {
            name: self.name.clone(),
            port: Some(api::PortRef { port: Some(port) }),
        }
    }
}

impl Matching {
    fn answer(self) -> api::PathType {
        match self {
            Self::Prefix => api::PathType::Prefix,
            Self::Exact => api::PathType::Exact,
            Self::Regex => api::PathType::Regex,
            Self::Specific => api::PathType::ImplementationSpecific,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Prefix => "Prefix",
            Self::Exact => "Exact",
            Self::Regex => "Regex",
            Self::Specific => "ImplementationSpecific",
        }
    }

    pub(crate) fn of_word(word: &str) -> Option<Self> {
        let all = [Self::Prefix, Self::Exact, Self::Regex, Self::Specific];
        all.into_iter().find(|it| it.word() == word)
    }
}

#[cfg(test)]
mod tests;
