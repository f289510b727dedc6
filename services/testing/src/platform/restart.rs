use drover_core::Reason;
use drover_proto::platform::v1::ProvisionRequest;

use super::{
    Subject,
    fixture::{Fixture, handshake, ids, refused},
};

pub(super) async fn nodes_and_fingerprints_outlive_a_restart(subject: &Subject) {
    let Some(restart) = &subject.restart else {
        return;
    };
    let fixture = Fixture::new(subject).await;
    let (request, nodes) = fixture.make(2).await;
    fixture.until_listed(&nodes).await;
    restart().await;
    let after = handshake(subject).await;
    assert_eq!(after.uid, fixture.platform.uid, "the backend is the same");
    assert_ne!(
        after.instance_id, fixture.platform.instance_id,
        "the start is another"
    );
    assert_ne!(
        after.etag, fixture.platform.etag,
        "the etag changes with the start"
    );
    let meant_for_before = ProvisionRequest {
        expected_instance_id: fixture.platform.instance_id.clone(),
        ..fixture.request(1)
    };
    refused(
        fixture.provision(&meant_for_before).await,
        Reason::PlatformRestarted,
        "an earlier start",
    );
    fixture.until_listed(&nodes).await;
    let again = fixture
        .provision(&request)
        .await
        .expect("a repeat is accepted");
    assert_eq!(
        ids(&again.nodes),
        ids(&nodes),
        "a repeat answers the same nodes"
    );
    let other = ProvisionRequest {
        spec_hash: "another".to_owned(),
        ..request
    };
    refused(
        fixture.provision(&other).await,
        Reason::RequestIdReused,
        "another fingerprint after a restart",
    );
    fixture.clean().await;
}
