use std::collections::BTreeSet;

use drover_core::{Reason, Result};
use drover_proto::platform::v1::{
    DeprovisionRequest, DiscoverRequest, FenceRequest, NodeTarget, ProvisionRequest,
    StreamLogsRequest, UpdateNodeRequest, WatchNodesRequest,
};

use super::{
    Subject,
    fixture::{Fixture, access, client, error, handshake, refused},
};

/// The outcomes of all calls with this uid and instance id, by name.
async fn all_calls(
    fixture: &Fixture<'_>,
    uid: &str,
    instance: &str,
) -> Vec<(&'static str, Result<()>)> {
    let (expected_platform_uid, expected_instance_id) = (uid.to_owned(), instance.to_owned());
    let mut client = client(fixture.subject);
    let provision = ProvisionRequest {
        expected_platform_uid: expected_platform_uid.clone(),
        expected_instance_id: expected_instance_id.clone(),
        ..fixture.request(1)
    };
    let deprovision = DeprovisionRequest {
        expected_platform_uid: expected_platform_uid.clone(),
        expected_instance_id: expected_instance_id.clone(),
        fence: Some(fixture.fence()),
        request_id: fixture.owner.to_string(),
        owner: fixture.owner.to_string(),
        cluster_id: fixture.cluster.clone(),
        node_request_id: fixture.owner.to_string(),
        index: Some(0),
        node_id: "no-such-node".to_owned(),
        ..DeprovisionRequest::default()
    };
    let update = UpdateNodeRequest {
        expected_platform_uid: expected_platform_uid.clone(),
        expected_instance_id: expected_instance_id.clone(),
        fence: Some(fixture.fence()),
        node_id: "no-such-node".to_owned(),
        ..UpdateNodeRequest::default()
    };
    let fence = FenceRequest {
        expected_platform_uid: expected_platform_uid.clone(),
        expected_instance_id: expected_instance_id.clone(),
        fence: Some(fixture.fence()),
    };
    let discover = DiscoverRequest {
        expected_platform_uid: expected_platform_uid.clone(),
        expected_instance_id: expected_instance_id.clone(),
        ..DiscoverRequest::default()
    };
    let watch = WatchNodesRequest {
        expected_platform_uid: expected_platform_uid.clone(),
        expected_instance_id: expected_instance_id.clone(),
        ..WatchNodesRequest::default()
    };
    let logs = StreamLogsRequest {
        node: Some(NodeTarget {
            expected_platform_uid,
            expected_instance_id,
            cluster_id: fixture.cluster.clone(),
            node_id: "no-such-node".to_owned(),
            expected_slot: None,
        }),
        ..StreamLogsRequest::default()
    };
    vec![
        (
            "Provision",
            error(client.provision(provision).await).map(drop),
        ),
        (
            "Deprovision",
            error(client.deprovision(deprovision).await).map(drop),
        ),
        (
            "UpdateNode",
            error(client.update_node(update).await).map(drop),
        ),
        ("Fence", error(client.fence(fence).await).map(drop)),
        ("Discover", error(client.discover(discover).await).map(drop)),
        (
            "WatchNodes",
            error(client.watch_nodes(watch).await).map(drop),
        ),
        (
            "StreamLogs",
            error(access(fixture.subject).stream_logs(logs).await).map(drop),
        ),
    ]
}

/// Whether a call reports that the platform does not support it.
fn is_lacking(outcome: &Result<()>) -> bool {
    matches!(outcome, Err(error) if matches!(error.reason(), Reason::Unimplemented | Reason::CapabilityMissing))
}

pub(super) async fn the_handshake_is_complete_and_stable(subject: &Subject) {
    let platform = handshake(subject).await;
    for (name, value) in [
        ("uid", &platform.uid),
        ("instance_id", &platform.instance_id),
        ("name", &platform.name),
        ("kind", &platform.kind),
        ("driver", &platform.driver),
        ("version", &platform.version),
        ("etag", &platform.etag),
    ] {
        assert!(!value.is_empty(), "{name} is set");
    }
    for entry in &platform.templates {
        let template = &entry.template;
        assert!(
            entry.digest.len() <= 64,
            "the digest of {template} has at most 64 characters"
        );
    }
    assert!(
        platform.etag.len() <= 64,
        "the etag has at most 64 characters"
    );
    assert_eq!(
        platform.version.split('.').count(),
        3,
        "the version is semantic: {}",
        platform.version
    );
    let different: BTreeSet<_> = platform.capabilities.iter().collect();
    assert_eq!(
        different.len(),
        platform.capabilities.len(),
        "no capability is there twice"
    );
    assert!(
        !different.contains(&0),
        "CAPABILITY_UNSPECIFIED is never sent"
    );
    let domains: BTreeSet<_> = platform
        .failure_domains
        .iter()
        .map(|domain| &domain.name)
        .collect();
    assert_eq!(
        domains.len(),
        platform.failure_domains.len(),
        "names of failure domains are unique"
    );
    assert_eq!(
        handshake(subject).await,
        platform,
        "nothing changed in between"
    );
}

pub(super) async fn calls_for_another_platform_are_refused(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    for (call, outcome) in all_calls(&fixture, "another-platform", "").await {
        if is_lacking(&outcome) {
            continue;
        }
        let error = refused(outcome, Reason::PlatformMismatch, call);
        assert_eq!(
            error.metadata().get("platform_uid"),
            Some(&fixture.platform.uid),
            "{call} says the real uid"
        );
    }
    assert!(fixture.nodes().await.is_empty(), "nothing was made");
}

pub(super) async fn calls_for_an_earlier_start_are_refused(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    for (call, outcome) in all_calls(&fixture, &fixture.platform.uid, "an-earlier-start").await {
        if is_lacking(&outcome) {
            continue;
        }
        let error = refused(outcome, Reason::PlatformRestarted, call);
        let instance = Some(&fixture.platform.instance_id);
        assert_eq!(
            error.metadata().get("instance_id"),
            instance,
            "{call} says the present instance"
        );
    }
    assert!(fixture.nodes().await.is_empty(), "nothing was made");
}

pub(super) async fn calls_that_change_something_need_the_uid(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    for (call, outcome) in all_calls(&fixture, "", "").await {
        if is_lacking(&outcome)
            || !matches!(call, "Provision" | "Deprovision" | "UpdateNode" | "Fence")
        {
            continue;
        }
        let error = refused(outcome, Reason::Invalid, call);
        assert!(
            error
                .fields()
                .iter()
                .any(|field| field.field == "expected_platform_uid"),
            "{call}: {error:?}"
        );
    }
    assert!(fixture.nodes().await.is_empty(), "nothing was made");
}
