//! The kinds of object that an ingress can be made of, and which of them the API server offers.

use std::collections::BTreeSet;

use drover_core::{Error, Reason, Result};
use drover_proto::kubernetes::v1 as api;
use kube::core::{ApiResource, GroupVersionKind};
use parking_lot::Mutex;

use super::objects;
use crate::client::{ApiClient, Call};

/// What an ingress is made of, in the order in which the first one that is offered is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Kind {
    Ingress,
    HttpRoute,
    VirtualService,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Ingress, Self::HttpRoute, Self::VirtualService];

    /// The kind of a request. `None`: whatever the server takes.
    pub(super) fn of(backend: api::IngressBackend) -> Option<Self> {
        match backend {
            api::IngressBackend::Unspecified => None,
            api::IngressBackend::Ingress => Some(Self::Ingress),
            api::IngressBackend::HttpRoute => Some(Self::HttpRoute),
            api::IngressBackend::VirtualService => Some(Self::VirtualService),
        }
    }

    pub(super) fn backend(self) -> api::IngressBackend {
        match self {
            Self::Ingress => api::IngressBackend::Ingress,
            Self::HttpRoute => api::IngressBackend::HttpRoute,
            Self::VirtualService => api::IngressBackend::VirtualService,
        }
    }

    fn group_version(self) -> (&'static str, &'static str) {
        match self {
            Self::Ingress => ("networking.k8s.io", "v1"),
            Self::HttpRoute => ("gateway.networking.k8s.io", "v1"),
            Self::VirtualService => ("gateway.solo.io", "v1"),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ingress => "Ingress",
            Self::HttpRoute => "HTTPRoute",
            Self::VirtualService => "VirtualService",
        }
    }

    pub(super) fn resource(self) -> ApiResource {
        let (group, version) = self.group_version();
        let plural = match self {
            Self::Ingress => "ingresses",
            Self::HttpRoute => "httproutes",
            Self::VirtualService => "virtualservices",
        };
        resource(group, version, self.name(), plural)
    }
}

/// A kind that our types do not have.
pub(super) fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    let kind = GroupVersionKind::gvk(group, version, kind);
    ApiResource::from_gvk_with_plural(&kind, plural)
}

/// What the API server offers, as it was found last.
pub(super) struct Discovery {
    client: ApiClient,
    configured: Option<Kind>,
    offered: Mutex<Option<BTreeSet<Kind>>>,
}

impl Discovery {
    pub(super) fn new(client: ApiClient, configured: Option<Kind>) -> Self {
        Self {
            client,
            configured,
            offered: Mutex::default(),
        }
    }

    /// The kind that a request means.
    pub(super) async fn kind(&self, backend: api::IngressBackend) -> Result<Kind> {
        let wanted = Kind::of(backend).or(self.configured);
        let known = self.offered.lock().clone();
        if let Some(kind) = known.and_then(|offered| pick(wanted, &offered)) {
            return Ok(kind);
        }
        let offered = self.find().await?;
        pick(wanted, &offered).ok_or_else(|| missing(wanted))
    }

    /// Replaces the error of an object that was not found where its whole kind is gone.
    pub(super) async fn explain(&self, kind: Kind, error: Error) -> Error {
        if error.reason() != Reason::NotFound {
            return error;
        }
        match self.find().await {
            Ok(offered) if !offered.contains(&kind) => missing(Some(kind)),
            Ok(_) | Err(_) => error,
        }
    }

    async fn find(&self) -> Result<BTreeSet<Kind>> {
        let mut offered = BTreeSet::new();
        for kind in Kind::ALL {
            if self.offers(kind).await? {
                offered.insert(kind);
            }
        }
        *self.offered.lock() = Some(offered.clone());
        Ok(offered)
    }

    async fn offers(&self, kind: Kind) -> Result<bool> {
        let (group, version) = kind.group_version();
        let group = format!("{group}/{version}");
        match self.client.kube().list_api_group_resources(&group).await {
            Ok(list) => Ok(list.resources.iter().any(|it| it.kind == kind.name())),
            Err(error) => {
                match objects::of_kube(&Call::path("get", &format!("/apis/{group}")), error) {
                    error if error.reason() == Reason::NotFound => Ok(false),
                    error => Err(error),
                }
            }
        }
    }
}

fn pick(wanted: Option<Kind>, offered: &BTreeSet<Kind>) -> Option<Kind> {
    match wanted {
        Some(kind) => offered.get(&kind).copied(),
        None => offered.first().copied(),
    }
}

fn missing(wanted: Option<Kind>) -> Error {
    let kinds = wanted.map_or_else(|| Kind::ALL.to_vec(), |kind| vec![kind]);
    let words: Vec<String> = kinds
        .iter()
        .map(|kind| {
            let (group, version) = kind.group_version();
            format!("{} ({group}/{version})", kind.name())
        })
        .collect();
    let message = format!("the API server does not offer {}", words.join(" or "));
    Error::new(Reason::IngressBackendMissing, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_configured_backend_the_first_that_is_offered_is_taken() {
        let offered = |kinds: &[Kind]| kinds.iter().copied().collect::<BTreeSet<_>>();
        let all = offered(&[Kind::VirtualService, Kind::HttpRoute, Kind::Ingress]);
        assert_eq!(pick(None, &all), Some(Kind::Ingress));
        let some = offered(&[Kind::VirtualService, Kind::HttpRoute]);
        assert_eq!(pick(None, &some), Some(Kind::HttpRoute));
        assert_eq!(pick(None, &offered(&[])), None);
        assert_eq!(
            pick(Some(Kind::VirtualService), &all),
            Some(Kind::VirtualService)
        );
        assert_eq!(
            pick(Some(Kind::VirtualService), &offered(&[Kind::Ingress])),
            None
        );
    }
}
