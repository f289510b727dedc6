mod life;
mod lists;
mod owners;
mod random;
mod targets;
mod wrong;

pub(super) use life::*;
pub(super) use lists::*;
pub(super) use owners::*;
pub(super) use random::*;
pub(super) use targets::*;
pub(super) use wrong::*;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use drover_core::Result;
use drover_proto::platform::v1::{
    AddonKind, AddonSecret, AddonSpec, AddonState, Capability, EnsureAddonRequest,
    EnsureAddonResponse, JumpHost, ListAddonsRequest, ListAddonsResponse, LoadBalancer, OidcClient,
    OidcProvider, PortMapping, PortRef, RemoveAddonRequest, RemoveAddonResponse, ResourcePhase,
    TemplateAddon, addon_service_client::AddonServiceClient, addon_spec::Kind, port_ref::Port,
};

use super::{
    Subject,
    fixture::{Fixture, error, refused, until},
};

/// Maximum pause between two calls, whatever the platform requests.
const MAX_PAUSE: Duration = Duration::from_millis(200);
/// A public key of nobody.
const PUBLIC_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGVtdWxhdGVkZW11bGF0ZWRlbXVsYXRlZGVtdWxhdGVk nobody";
/// What no answer may repeat.
const NEEDLE: &str = "Tr0ub4dor-Zebra-77-Quux";

impl Fixture<'_> {
    fn addons(&self) -> AddonServiceClient<drover_client::Channel> {
        AddonServiceClient::new((self.subject.connect)())
    }

    fn kinds(&self) -> Vec<AddonKind> {
        self.platform.addon_kinds().collect()
    }

    /// A valid request for an addon of this kind.
    fn addon(&self, kind: AddonKind, name: &str) -> EnsureAddonRequest {
        let mut secrets = BTreeMap::new();
        let mut secret = |name: &str, key: &str| {
            let data = [(key.to_owned(), NEEDLE.as_bytes().to_vec())].into();
            secrets.insert(name.to_owned(), AddonSecret { data });
            name.to_owned()
        };
        let kind = match kind {
            AddonKind::LoadBalancer => Kind::LoadBalancer(LoadBalancer {
                ports: vec![mapping(None, Port::Number(8080), 0)],
            }),
            AddonKind::JumpHost => Kind::JumpHost(JumpHost {
                authorized_keys: vec![PUBLIC_KEY.to_owned()],
                private_keys_secret: secret("node-keys", "id_ed25519"),
                ..JumpHost::default()
            }),
            AddonKind::OidcProvider => Kind::OidcProvider(OidcProvider {
                clients: vec![OidcClient {
                    id: "kubernetes".to_owned(),
                    redirect_uris: vec!["http://127.0.0.1:8000/callback".to_owned()],
                    secret: secret("oidc-client", "secret"),
                }],
                ..OidcProvider::default()
            }),
            AddonKind::Template => Kind::Template(TemplateAddon {
                template: self.subject.addon_template.clone().unwrap_or_default(),
            }),
            AddonKind::Unspecified => panic!("there is no addon without a kind"),
        };
        EnsureAddonRequest {
            expected_platform_uid: self.platform.uid.clone(),
            fence: Some(self.fence()),
            cluster_id: self.cluster.clone(),
            owner: self.owner.to_string(),
            sequence: 7,
            spec: Some(AddonSpec {
                name: name.to_owned(),
                kind: Some(kind),
                ..AddonSpec::default()
            }),
            secrets,
            ..EnsureAddonRequest::default()
        }
    }

    /// A valid request for a load balancer with these ports.
    fn balancer(&self, name: &str, ports: Vec<PortMapping>) -> EnsureAddonRequest {
        let mut request = self.addon(AddonKind::LoadBalancer, name);
        spec(&mut request).kind = Some(Kind::LoadBalancer(LoadBalancer { ports }));
        request
    }

    async fn ensure_addon(&self, request: &EnsureAddonRequest) -> Result<EnsureAddonResponse> {
        let answer = error(self.addons().ensure_addon(request.clone()).await)?.into_inner();
        if let Some(state) = &answer.state {
            self.is_said(request, state);
        }
        Ok(answer)
    }

    /// Asserts what every answer to a request says.
    fn is_said(&self, request: &EnsureAddonRequest, state: &AddonState) {
        let name = &request.spec.as_ref().expect("a spec").name;
        assert_eq!(&state.name, name);
        assert_eq!(state.cluster_id, request.cluster_id);
        assert_eq!(state.owner, request.owner);
        assert_eq!(state.kind(), kind(request), "{name}");
        assert_ne!(state.phase(), ResourcePhase::Unspecified, "{name}");
        assert_ne!(state.phase(), ResourcePhase::Gone, "{name} was just made");
        assert!(state.message.len() <= 4096);
        let mut slots = BTreeSet::new();
        for resource in &state.resources {
            assert_eq!(resource.owner, request.owner, "{resource:?}");
            assert_eq!(resource.cluster_id, request.cluster_id, "{resource:?}");
            assert!(!resource.kind.is_empty(), "{resource:?}");
            assert!(
                slots.insert((&resource.kind, &resource.name)),
                "twice: {resource:?}"
            );
        }
    }

    /// Repeats a request until nothing is left to do, or twice where addons do not become ready.
    async fn settle(&self, request: &EnsureAddonRequest) -> AddonState {
        let name = &request.spec.as_ref().expect("a spec").name;
        if !self.subject.addons_become_ready {
            self.ensure_addon(request).await.expect("Ensure answers");
            let again = self.ensure_addon(request).await.expect("Ensure answers");
            return again.state.expect("Ensure answers a state");
        }
        until(self.subject, &format!("{name} is ready"), || async {
            let answer = self.ensure_addon(request).await.expect("Ensure answers");
            let state = answer.state.expect("Ensure answers a state");
            assert_ne!(state.phase(), ResourcePhase::Failed, "{state:?}");
            match answer.poll_after {
                Some(after) => {
                    let after = Duration::try_from(after).expect("a valid duration");
                    tokio::time::sleep(after.min(MAX_PAUSE)).await;
                    None
                }
                None => {
                    assert_eq!(state.phase(), ResourcePhase::Ready, "done: {state:?}");
                    Some(state)
                }
            }
        })
        .await
    }

    fn addon_removal(&self, name: &str) -> RemoveAddonRequest {
        RemoveAddonRequest {
            expected_platform_uid: self.platform.uid.clone(),
            fence: Some(self.fence()),
            cluster_id: self.cluster.clone(),
            owner: self.owner.to_string(),
            name: name.to_owned(),
            ..RemoveAddonRequest::default()
        }
    }

    async fn remove_addon(&self, request: &RemoveAddonRequest) -> Result<RemoveAddonResponse> {
        error(self.addons().remove_addon(request.clone()).await).map(tonic::Response::into_inner)
    }

    /// Repeats a removal until nothing is left.
    async fn remove_whole(&self, request: &RemoveAddonRequest) {
        let what = format!("{} is gone", request.name);
        until(self.subject, &what, || async {
            let answer = self.remove_addon(request).await.expect("Remove answers");
            let state = answer.state.expect("Remove answers a state");
            let gone = state.phase() == ResourcePhase::Gone;
            assert_eq!(
                gone,
                answer.poll_after.is_none(),
                "done when gone: {state:?}"
            );
            gone.then_some(())
        })
        .await;
    }

    async fn addons_page(&self, request: ListAddonsRequest) -> Result<ListAddonsResponse> {
        error(self.addons().list_addons(request).await).map(tonic::Response::into_inner)
    }

    /// All addons that a request means, in pages.
    async fn addons_of(&self, mut request: ListAddonsRequest) -> Vec<AddonState> {
        let mut all = Vec::new();
        loop {
            let page = self.addons_page(request.clone()).await;
            let page = page.expect("ListAddons answers");
            assert!(page.observe_time.is_some(), "it is said when it was read");
            all.extend(page.addons);
            if page.next_page_token.is_empty() {
                return all;
            }
            request.page_token = page.next_page_token;
        }
    }

    /// The addons of the cluster.
    async fn listed_addons(&self) -> Vec<AddonState> {
        let request = ListAddonsRequest {
            cluster_id: self.cluster.clone(),
            ..ListAddonsRequest::default()
        };
        self.addons_of(request).await
    }

    async fn addon_names(&self) -> Vec<String> {
        let addons = self.listed_addons().await;
        addons.into_iter().map(|addon| addon.name).collect()
    }

    /// Removes every addon of the cluster, and asserts that none is left.
    async fn clean_addons(&self) {
        for addon in self.listed_addons().await {
            let removal = RemoveAddonRequest {
                owner: addon.owner.clone(),
                ..self.addon_removal(&addon.name)
            };
            if !addon.owner.is_empty() {
                self.remove_whole(&removal).await;
            }
        }
        let left = self.listed_addons().await;
        let own: Vec<_> = left.iter().filter(|it| !it.owner.is_empty()).collect();
        assert!(own.is_empty(), "nothing is left: {own:?}");
    }
}

/// A fixture on a platform with addons. `None` if it has none.
async fn fixture(subject: &Subject) -> Option<Fixture<'_>> {
    let fixture = Fixture::new(subject).await;
    fixture.can(Capability::Addons).then_some(fixture)
}

/// A fixture on a platform with load balancers. `None` if it has none.
async fn balancers(subject: &Subject) -> Option<Fixture<'_>> {
    let fixture = fixture(subject).await?;
    fixture
        .kinds()
        .contains(&AddonKind::LoadBalancer)
        .then_some(fixture)
}

/// A fixture and a kind that can be made with what the subject says.
async fn any(subject: &Subject) -> Option<(Fixture<'_>, AddonKind)> {
    let fixture = fixture(subject).await?;
    let kind = usable(&fixture).first().copied()?;
    Some((fixture, kind))
}

/// The kinds that can be made with what the subject says.
fn usable(fixture: &Fixture<'_>) -> Vec<AddonKind> {
    let template = fixture.subject.addon_template.is_some();
    let mut kinds = fixture.kinds();
    kinds.retain(|kind| *kind != AddonKind::Template || template);
    kinds
}

fn spec(request: &mut EnsureAddonRequest) -> &mut AddonSpec {
    request.spec.get_or_insert_default()
}

fn kind(request: &EnsureAddonRequest) -> AddonKind {
    match request.spec.as_ref().and_then(|spec| spec.kind.as_ref()) {
        None => AddonKind::Unspecified,
        Some(Kind::LoadBalancer(_)) => AddonKind::LoadBalancer,
        Some(Kind::JumpHost(_)) => AddonKind::JumpHost,
        Some(Kind::OidcProvider(_)) => AddonKind::OidcProvider,
        Some(Kind::Template(_)) => AddonKind::Template,
    }
}

fn mapping(listen: Option<u32>, target: Port, count: u32) -> PortMapping {
    PortMapping {
        listen,
        target: Some(PortRef { port: Some(target) }),
        count,
    }
}

fn ports(state: &AddonState) -> Vec<u32> {
    let ports: BTreeSet<u32> = state.endpoints.iter().map(|it| it.port).collect();
    ports.into_iter().collect()
}

/// Of what an addon is made, and how many targets it serves.
fn lasting(state: &AddonState) -> (BTreeSet<(String, String, String)>, u32) {
    let resources = state.resources.iter();
    let ids = resources.map(|it| (it.kind.clone(), it.name.clone(), it.id.clone()));
    (ids.collect(), state.target_count)
}

/// Checks what must be the same when nothing has changed. Where it can be reached depends on what runs, until it is ready.
fn assert_lasts(now: &AddonState, before: &AddonState) {
    assert_eq!(lasting(now), lasting(before));
    assert_ports(now, before);
}

/// Checks that both are reached at the same ports, if both are ready.
fn assert_ports(now: &AddonState, before: &AddonState) {
    if [now, before]
        .iter()
        .all(|it| it.phase() == ResourcePhase::Ready)
    {
        assert_eq!(ports(now), ports(before), "{now:?}");
    }
}
