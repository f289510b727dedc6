//! The objects that hold rules, as the writer reads and writes them.

use std::collections::BTreeSet;

use async_trait::async_trait;
use drover_core::{Error, Reason, Result};
use kube::{ResourceExt, core::DynamicObject};

use super::{
    discovery::Kind,
    followers, hosts, kubernetes,
    meta::{self, INGRESS},
    objects::{self, Objects},
    reserved::Reserved,
    route,
    rule::{Paths, Rules},
    upstreams, virtual_service,
    writer::{Object, State},
};
use crate::objects::after_write;

/// The Ingress of a name, with all its hosts.
pub(super) struct IngressObject {
    pub(super) objects: Objects,
    pub(super) namespace: String,
    pub(super) name: String,
}

#[async_trait]
impl Object for IngressObject {
    type Version = DynamicObject;

    async fn read(&self) -> Result<State<DynamicObject>> {
        let kind = Kind::Ingress.resource();
        let found = self.objects.get(&kind, &self.namespace, &self.name).await?;
        found
            .map(|object| State {
                rules: kubernetes::rules(&object),
                version: object,
            })
            .ok_or_else(|| objects::not_found(&self.namespace, &self.name))
    }

    async fn admit(&self, _: &DynamicObject, host: &str) -> Result<()> {
        let hosts = [host].into();
        let Self {
            objects,
            namespace,
            name,
        } = self;
        hosts::check_free(objects, Kind::Ingress, namespace, name, &hosts).await
    }

    async fn settle(&self, _: &State<DynamicObject>) -> Result<()> {
        Ok(())
    }

    async fn reserve(&self, hosts: &BTreeSet<&str>) -> Reserved {
        self.objects.reserve(Kind::Ingress, hosts).await
    }

    async fn withdraw(&self, hosts: &BTreeSet<&str>) -> Result<()> {
        loop {
            let state = self.read().await?;
            let mut rules = state.rules.clone();
            rules.retain(|host, _| !hosts.contains(host.as_str()));
            match self.write(&state, &rules).await {
                Err(error) if error.reason() == Reason::Conflict => {}
                other => return other.map(drop),
            }
        }
    }

    async fn write(
        &self,
        state: &State<DynamicObject>,
        rules: &Rules,
    ) -> Result<State<DynamicObject>> {
        let patch = kubernetes::patch(&state.version, &state.rules, rules);
        let kind = Kind::Ingress.resource();
        let written = self.objects.patch(&kind, &state.version, &patch).await?;
        Ok(State {
            rules: kubernetes::rules(&written),
            version: written,
        })
    }
}

/// The one object of several that holds a host of an ingress.
pub(super) struct HostObject {
    pub(super) objects: Objects,
    pub(super) kind: Kind,
    pub(super) namespace: String,
    pub(super) ingress: String,
    pub(super) host: String,
}

/// Where a host is.
pub(super) enum Place {
    In(Box<DynamicObject>),
    /// Nowhere yet.
    Nowhere {
        /// Another object of the ingress, which the new one will be like.
        like: Box<DynamicObject>,
        /// HTTPRoutes that an earlier leading one left behind, and that one.
        routes: usize,
    },
}

impl HostObject {
    async fn state(&self, object: DynamicObject) -> Result<State<Place>> {
        let rules = rules(&self.objects, self.kind, &object).await?;
        let own = rules.into_iter().filter(|(host, _)| *host == self.host);
        Ok(State {
            rules: own.collect(),
            version: Place::In(Box::new(object)),
        })
    }

    /// Refuses an object that has the name of the part that would hold the host, and that nobody would find it in.
    async fn check_way(&self, part: &DynamicObject) -> Result<()> {
        let (kind, name) = (self.kind.name(), part.name_any());
        let resource = self.kind.resource();
        let Some(other) = self.objects.get(&resource, &self.namespace, &name).await? else {
            return Ok(());
        };
        let label = other.labels().get(INGRESS);
        let found =
            name == self.ingress || label.is_some_and(|it| *it == meta::label(&self.ingress));
        let why = if !found {
            format!("it lacks the label {INGRESS} of the ingress")
        } else if route::is_behind(&other) {
            format!("it follows from another {kind}")
        } else if !objects::hosts(self.kind, &other).contains(&self.host) {
            format!("it does not route the host {:?}", self.host)
        } else {
            return Ok(());
        };
        let message = format!("the {kind} {name:?} is in the way: {why}");
        Err(Error::new(Reason::Precondition, message).with_resource(kind, name))
    }

    /// Takes a new object back if the ingress was deleted while it was made: whoever deleted it may not have seen it.
    async fn still_there(&self, like: &DynamicObject, created: &DynamicObject) -> Result<()> {
        let (resource, name) = (self.kind.resource(), like.name_any());
        let found = self.objects.get(&resource, &self.namespace, &name).await;
        match found {
            Ok(Some(found)) if found.uid() == like.uid() => Ok(()),
            Ok(_) => {
                let deleted = self.objects.delete(&resource, created, false).await;
                deleted.map_err(after_write)?;
                // It is read again, and found to be gone.
                Err(Error::new(Reason::Conflict, "the ingress was deleted"))
            }
            Err(error) => Err(after_write(error)),
        }
    }

    fn new_object(&self, like: &DynamicObject, routes: usize, paths: &Paths) -> DynamicObject {
        let name = route::name_for(&self.ingress, &self.host);
        let metadata = meta::part(&like.metadata, &self.ingress, name);
        if self.kind == Kind::VirtualService {
            return virtual_service::object(metadata, &self.host, paths, None);
        }
        let parents = &like.data["spec"]["parentRefs"];
        route::leading(metadata, &self.host, parents, paths, routes)
    }
}

#[async_trait]
impl Object for HostObject {
    type Version = Place;

    async fn read(&self) -> Result<State<Place>> {
        let Self {
            objects,
            kind,
            namespace,
            ingress,
            host,
        } = self;
        let all = objects.with_followers(*kind, namespace, ingress).await?;
        let (behind, mut leading): (Vec<_>, Vec<_>) = all.into_iter().partition(route::is_behind);
        let holds = |object: &DynamicObject| objects::hosts(*kind, object).contains(host);
        if let Some(at) = leading.iter().position(holds) {
            return self.state(leading.swap_remove(at)).await;
        }
        let Some(like) = leading.into_iter().next() else {
            return Err(objects::not_found(namespace, ingress));
        };
        Ok(State {
            rules: Rules::new(),
            version: Place::Nowhere {
                like: Box::new(like),
                routes: route::count(behind.iter().filter(|object| holds(object))),
            },
        })
    }

    async fn admit(&self, _: &Place, host: &str) -> Result<()> {
        let hosts = [host].into();
        hosts::check_free(
            &self.objects,
            self.kind,
            &self.namespace,
            &self.ingress,
            &hosts,
        )
        .await
    }

    async fn settle(&self, state: &State<Place>) -> Result<()> {
        match &state.version {
            Place::In(object) if self.kind == Kind::HttpRoute => {
                settle(&self.objects, object).await
            }
            Place::In(_) | Place::Nowhere { .. } => Ok(()),
        }
    }

    async fn reserve(&self, hosts: &BTreeSet<&str>) -> Reserved {
        self.objects.reserve(self.kind, hosts).await
    }

    async fn withdraw(&self, _: &BTreeSet<&str>) -> Result<()> {
        match self.read().await?.version {
            Place::In(object) => {
                let resource = self.kind.resource();
                self.objects.delete(&resource, &object, false).await?;
                Ok(())
            }
            Place::Nowhere { .. } => Ok(()),
        }
    }

    async fn write(&self, state: &State<Place>, rules: &Rules) -> Result<State<Place>> {
        let paths = rules
            .get(&self.host)
            .ok_or_else(|| Error::internal("a host was written that nobody changed"))?;
        let written = match &state.version {
            Place::In(object) => {
                check_single(self.kind, object)?;
                let patch = match self.kind {
                    Kind::VirtualService => virtual_service::patch(object, paths),
                    Kind::HttpRoute | Kind::Ingress => route::patch(object, paths)?,
                };
                let kind = self.kind.resource();
                self.objects.patch(&kind, object, &patch).await?
            }
            Place::Nowhere { like, routes } => {
                let object = self.new_object(like, *routes, paths);
                let created = match self.objects.create_part(self.kind, &object).await {
                    Err(error) if error.reason() == Reason::AlreadyExists => {
                        self.check_way(&object).await?;
                        return Err(error);
                    }
                    other => other?,
                };
                self.still_there(like, &created).await?;
                created
            }
        };
        if self.kind == Kind::HttpRoute {
            settle(&self.objects, &written).await?;
        }
        self.state(written).await.map_err(after_write)
    }
}

/// Makes the HTTPRoutes behind a leading one follow.
pub(super) async fn settle(objects: &Objects, leading: &DynamicObject) -> Result<()> {
    let outcome = followers::complete(objects, leading).await;
    outcome.map_err(|error| {
        // The truth is written, so that nobody may take this for a refusal.
        let what = "the rule is written, but not all HTTPRoutes show it yet";
        Error::unavailable(format!("{what}: {}", error.message()))
    })
}

/// Refuses an object that routes several hosts: a change of one would change the others.
fn check_single(kind: Kind, object: &DynamicObject) -> Result<()> {
    let hosts: BTreeSet<String> = match kind {
        Kind::VirtualService => virtual_service::hosts_without_ports(object),
        Kind::Ingress | Kind::HttpRoute => objects::hosts(kind, object).into_iter().collect(),
    };
    if hosts.len() <= 1 {
        return Ok(());
    }
    let named = |host: &String| match host.as_str() {
        "" => "every host".to_owned(),
        host => format!("{host:?}"),
    };
    let hosts: Vec<String> = hosts.iter().map(named).collect();
    let hosts = hosts.join(", ");
    let (kind, name) = (kind.name(), object.name_any());
    let message = format!(
        "the {kind} {name:?} routes several hosts, {hosts}, and a change of one would change all; change it where it was made"
    );
    Err(Error::new(Reason::Precondition, message).with_resource(kind, name))
}

/// The rules that one object holds.
pub(super) async fn rules(objects: &Objects, kind: Kind, object: &DynamicObject) -> Result<Rules> {
    match kind {
        Kind::Ingress => Ok(kubernetes::rules(object)),
        Kind::HttpRoute => route::rules(object),
        Kind::VirtualService => {
            let namespace = object.namespace().unwrap_or_default();
            let known = upstreams::known(objects, &namespace, object).await?;
            Ok(virtual_service::rules(object, &known))
        }
    }
}

#[cfg(test)]
mod tests;
