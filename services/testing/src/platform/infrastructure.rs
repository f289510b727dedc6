use std::{collections::BTreeSet, time::Duration};

use drover_core::{Reason, Result};
use drover_proto::platform::v1::{
    Capability, EndpointSpec, EnsureInfrastructureRequest, EnsureInfrastructureResponse, Fence,
    FirewallRule, FirewallSpec, GetInfrastructureRequest, InfrastructureSpec, InfrastructureState,
    ListInfrastructureRequest, NetworkSpec, PortRange, ReleaseInfrastructureRequest,
    ReleaseInfrastructureResponse, Resource, ResourcePhase,
    infrastructure_service_client::InfrastructureServiceClient,
};
use uuid::Uuid;

use super::{
    Subject,
    fixture::{Fixture, error, refused, until},
};

/// Maximum pause between two calls, whatever the platform requests.
const MAX_PAUSE: Duration = Duration::from_millis(200);

impl Fixture<'_> {
    fn infrastructure(&self) -> InfrastructureServiceClient<drover_client::Channel> {
        InfrastructureServiceClient::new((self.subject.connect)())
    }

    fn wanted(&self) -> EnsureInfrastructureRequest {
        EnsureInfrastructureRequest {
            expected_platform_uid: self.platform.uid.clone(),
            fence: Some(self.fence()),
            cluster_id: self.cluster.clone(),
            owner: self.owner.to_string(),
            sequence: 1,
            spec: self.subject.infrastructure.clone(),
            ..EnsureInfrastructureRequest::default()
        }
    }

    async fn ensure(
        &self,
        request: &EnsureInfrastructureRequest,
    ) -> Result<EnsureInfrastructureResponse> {
        let mut client = self.infrastructure();
        error(client.ensure_infrastructure(request.clone()).await).map(tonic::Response::into_inner)
    }

    /// Repeats Ensure until everything is ready.
    async fn ensure_whole(&self) -> InfrastructureState {
        let request = self.wanted();
        until(self.subject, "the infrastructure is ready", || async {
            let answer = self.ensure(&request).await.expect("Ensure answers");
            let state = answer.state.expect("Ensure answers a state");
            assert_ne!(
                state.phase(),
                ResourcePhase::Failed,
                "{:?}",
                state.resources
            );
            match answer.poll_after {
                Some(after) => {
                    let after = Duration::try_from(after).expect("a valid duration");
                    tokio::time::sleep(after.min(MAX_PAUSE)).await;
                    None
                }
                None => Some(state),
            }
        })
        .await
    }

    fn removal_of_all(&self) -> ReleaseInfrastructureRequest {
        ReleaseInfrastructureRequest {
            expected_platform_uid: self.platform.uid.clone(),
            fence: Some(self.fence()),
            cluster_id: self.cluster.clone(),
            owner: self.owner.to_string(),
            ..ReleaseInfrastructureRequest::default()
        }
    }

    async fn release(
        &self,
        request: &ReleaseInfrastructureRequest,
    ) -> Result<ReleaseInfrastructureResponse> {
        let mut client = self.infrastructure();
        error(client.release_infrastructure(request.clone()).await).map(tonic::Response::into_inner)
    }

    /// Repeats Release until nothing is left.
    async fn release_whole(&self) {
        let request = self.removal_of_all();
        until(self.subject, "the infrastructure is gone", || async {
            let answer = self.release(&request).await.expect("Release answers");
            let state = answer.state.expect("Release answers a state");
            let gone = state.phase() == ResourcePhase::Gone;
            assert_eq!(
                gone,
                answer.poll_after.is_none(),
                "it is done when it is gone"
            );
            if !gone {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            gone.then_some(())
        })
        .await;
        assert_eq!(self.resources(500).await, vec![], "nothing is left");
    }

    async fn resources(&self, page_size: i32) -> Vec<Resource> {
        let mut all = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = ListInfrastructureRequest {
                cluster_id: self.cluster.clone(),
                page_size,
                page_token,
                ..ListInfrastructureRequest::default()
            };
            let answer = error(self.infrastructure().list_infrastructure(request).await);
            let page = answer.expect("ListInfrastructure answers").into_inner();
            assert!(page.resources.len() <= page_size as usize);
            all.extend(page.resources);
            if page.next_page_token.is_empty() {
                return all;
            }
            page_token = page.next_page_token;
        }
    }
}

/// `None` if there is nothing to check.
async fn fixture(subject: &Subject) -> Option<Fixture<'_>> {
    let fixture = Fixture::new(subject).await;
    (fixture.can(Capability::Infrastructure) && subject.infrastructure.is_some()).then_some(fixture)
}

fn ids(resources: &[Resource]) -> BTreeSet<(String, String, String)> {
    resources
        .iter()
        .map(|resource| {
            (
                resource.kind.clone(),
                resource.name.clone(),
                resource.id.clone(),
            )
        })
        .collect()
}

pub(super) async fn infrastructure_is_made_once_and_released_whole(subject: &Subject) {
    let Some(fixture) = fixture(subject).await else {
        return;
    };
    let state = fixture.ensure_whole().await;
    assert_eq!(state.phase(), ResourcePhase::Ready);
    assert!(!state.resources.is_empty());
    for resource in &state.resources {
        assert_eq!(resource.cluster_id, fixture.cluster);
        assert_eq!(resource.owner, fixture.owner.to_string());
        assert_eq!(
            resource.sequence, 1,
            "{}: the sequence is stored",
            resource.kind
        );
        assert!(!resource.id.is_empty() && !resource.kind.is_empty());
    }
    let outputs = state.outputs.clone().expect("outputs");
    let spec = subject.infrastructure.clone().unwrap_or_default();
    assert_eq!(outputs.network_id.is_empty(), spec.network.is_none());
    assert_eq!(outputs.endpoint.is_some(), spec.endpoint.is_some());
    assert_eq!(
        outputs.platform, "",
        "the name of the platform is not its own affair"
    );
    let again = fixture.ensure_whole().await;
    assert_eq!(
        ids(&again.resources),
        ids(&state.resources),
        "nothing is made twice"
    );
    assert_eq!(again.outputs, state.outputs);
    let request = GetInfrastructureRequest {
        cluster_id: fixture.cluster.clone(),
        owner: fixture.owner.to_string(),
        ..GetInfrastructureRequest::default()
    };
    let got = error(fixture.infrastructure().get_infrastructure(request).await)
        .expect("GetInfrastructure answers")
        .into_inner()
        .state
        .expect("a state");
    assert_eq!(ids(&got.resources), ids(&state.resources));
    assert_eq!(got.phase(), ResourcePhase::Ready);
    assert_eq!(ids(&fixture.resources(1).await), ids(&state.resources));
    fixture.release_whole().await;
    fixture.release_whole().await;
}

pub(super) async fn the_same_infrastructure_at_once_is_made_once(subject: &Subject) {
    let Some(fixture) = fixture(subject).await else {
        return;
    };
    let request = fixture.wanted();
    let calls = (0..5).map(|_| fixture.ensure(&request));
    for outcome in futures::future::join_all(calls).await {
        outcome.expect("Ensure answers");
    }
    let state = fixture.ensure_whole().await;
    let kinds: BTreeSet<_> = state
        .resources
        .iter()
        .map(|resource| (&resource.kind, &resource.name))
        .collect();
    assert_eq!(
        kinds.len(),
        state.resources.len(),
        "{:?}",
        ids(&state.resources)
    );
    assert_eq!(ids(&fixture.resources(500).await), ids(&state.resources));
    fixture.release_whole().await;
}

pub(super) async fn half_made_infrastructure_is_released_whole(subject: &Subject) {
    let Some(fixture) = fixture(subject).await else {
        return;
    };
    fixture
        .ensure(&fixture.wanted())
        .await
        .expect("Ensure answers");
    fixture.release_whole().await;
}

pub(super) async fn infrastructure_of_another_owner_is_left_alone(subject: &Subject) {
    let Some(fixture) = fixture(subject).await else {
        return;
    };
    let state = fixture.ensure_whole().await;
    let other = ReleaseInfrastructureRequest {
        owner: Uuid::new_v4().to_string(),
        ..fixture.removal_of_all()
    };
    let answer = fixture.release(&other).await.expect("Release answers");
    assert_eq!(
        answer.state.unwrap_or_default().phase(),
        ResourcePhase::Gone
    );
    assert_eq!(ids(&fixture.resources(500).await), ids(&state.resources));
    fixture.release_whole().await;
}

pub(super) async fn infrastructure_is_checked_without_making_it(subject: &Subject) {
    let Some(fixture) = fixture(subject).await else {
        return;
    };
    let request = EnsureInfrastructureRequest {
        validate_only: true,
        ..fixture.wanted()
    };
    let answer = fixture.ensure(&request).await.expect("it is valid");
    assert_eq!(answer.state, None);
    assert_eq!(fixture.resources(500).await, vec![]);
}

pub(super) async fn wrong_infrastructure_is_named_and_nothing_is_made(subject: &Subject) {
    let Some(fixture) = fixture(subject).await else {
        return;
    };
    let with = |change: &dyn Fn(&mut InfrastructureSpec)| {
        let mut request = fixture.wanted();
        change(request.spec.get_or_insert_default());
        request
    };
    let rule = |change: &dyn Fn(&mut FirewallRule)| {
        let mut rule = FirewallRule {
            direction: 1,
            cidrs: vec!["10.0.0.0/8".to_owned()],
            ..FirewallRule::default()
        };
        change(&mut rule);
        with(&|spec| {
            spec.firewall = Some(FirewallSpec {
                rules: vec![rule.clone()],
                ..FirewallSpec::default()
            });
        })
    };
    let ports = |first, last| rule(&|rule| rule.ports = vec![PortRange { first, last }]);
    let network = |network: NetworkSpec| with(&|spec| spec.network = Some(network.clone()));
    let table = [
        (
            "spec",
            EnsureInfrastructureRequest {
                spec: None,
                ..fixture.wanted()
            },
        ),
        (
            "sequence",
            EnsureInfrastructureRequest {
                sequence: 0,
                ..fixture.wanted()
            },
        ),
        (
            "owner",
            EnsureInfrastructureRequest {
                owner: "me".to_owned(),
                ..fixture.wanted()
            },
        ),
        (
            "cluster_id",
            EnsureInfrastructureRequest {
                cluster_id: "-".to_owned(),
                ..fixture.wanted()
            },
        ),
        (
            "spec.network",
            network(NetworkSpec {
                cidr: "10.0.0.0/16".to_owned(),
                id: "x".to_owned(),
                ..NetworkSpec::default()
            }),
        ),
        (
            "spec.network.cidr",
            network(NetworkSpec {
                cidr: "10.0.0.0/99".to_owned(),
                ..NetworkSpec::default()
            }),
        ),
        (
            "spec.endpoint.port",
            with(&|spec| {
                spec.endpoint = Some(EndpointSpec {
                    port: 70_000,
                    ..EndpointSpec::default()
                });
            }),
        ),
        (
            "spec.firewall.rules[0].direction",
            rule(&|rule| rule.direction = 0),
        ),
        (
            "spec.firewall.rules[0].protocol",
            rule(&|rule| rule.protocol = "icmp".to_owned()),
        ),
        (
            "spec.firewall.rules[0].cidrs",
            rule(&|rule| rule.cidrs.clear()),
        ),
        (
            "spec.firewall.rules[0].cidrs[0]",
            rule(&|rule| rule.cidrs = vec!["all".to_owned()]),
        ),
        ("spec.firewall.rules[0].ports[0]", ports(0, 0)),
        ("spec.firewall.rules[0].ports[0]", ports(90, 80)),
    ];
    for (field, request) in table {
        let error = refused(fixture.ensure(&request).await, Reason::Invalid, field);
        assert!(
            error
                .fields()
                .iter()
                .any(|violation| violation.field == field),
            "{field}: {error:?}"
        );
    }
    assert_eq!(fixture.resources(500).await, vec![]);
}

pub(super) async fn infrastructure_calls_are_fenced(subject: &Subject) {
    let Some(fixture) = fixture(subject).await else {
        return;
    };
    if !fixture.can(Capability::Fence) {
        return;
    }
    let higher = Fence {
        epoch: 9,
        ..fixture.fence()
    };
    fixture.raise(higher).await.expect("a higher epoch");
    refused(
        fixture.ensure(&fixture.wanted()).await,
        Reason::Fenced,
        "Ensure",
    );
    refused(
        fixture.release(&fixture.removal_of_all()).await,
        Reason::Fenced,
        "Release",
    );
    let elsewhere = EnsureInfrastructureRequest {
        expected_platform_uid: "another".to_owned(),
        ..fixture.wanted()
    };
    refused(
        fixture.ensure(&elsewhere).await,
        Reason::PlatformMismatch,
        "Ensure",
    );
}
