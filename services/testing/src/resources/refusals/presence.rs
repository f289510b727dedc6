//! What is refused, or is no error, because of what is there.

use drover_core::Reason;
use drover_proto::kubernetes::v1 as api;

use crate::resources::{
    Subject,
    fixture::{assert_reason, done},
};

pub(in crate::resources) async fn unknown_objects_are_not_found(subject: &Subject) {
    let (namespace, name) = (subject.namespace.clone(), "never-made".to_owned());
    let gone = |outcome: drover_core::Result<()>| {
        let error = assert_reason("never made", outcome, Reason::NotFound);
        assert!(error.resource().is_some(), "{error:?} names nothing");
    };
    let request = api::GetNodeRequest { name: name.clone() };
    gone(done(subject.nodes().get_node(request)).await.map(drop));
    let request = api::CordonNodeRequest { name: name.clone() };
    gone(done(subject.nodes().cordon_node(request)).await.map(drop));
    gone(subject.get_pod(&name).await.map(drop));
    let request = api::GetServiceRequest {
        namespace: namespace.clone(),
        name: name.clone(),
    };
    gone(
        done(subject.services().get_service(request))
            .await
            .map(drop),
    );
    let request = api::GetNetworkPolicyRequest {
        namespace: namespace.clone(),
        name: name.clone(),
    };
    gone(
        done(subject.policies().get_network_policy(request))
            .await
            .map(drop),
    );
    let request = api::GetConfigurationRequest {
        namespace: namespace.clone(),
        name: name.clone(),
    };
    gone(
        done(subject.configurations().get_configuration(request))
            .await
            .map(drop),
    );
    let request = api::GetIngressRequest {
        namespace: namespace.clone(),
        name: name.clone(),
        backend: 0,
    };
    gone(
        done(subject.ingresses().get_ingress(request))
            .await
            .map(drop),
    );
    let request = api::ReadFileRequest {
        namespace,
        pod: name,
        path: "/a".into(),
        ..Default::default()
    };
    gone(done(subject.pods().read_file(request)).await.map(drop));
}

pub(in crate::resources) async fn what_is_absent_is_deleted_without_an_error(subject: &Subject) {
    let (namespace, name) = (subject.namespace.clone(), "never-made".to_owned());
    let request = api::DeletePodRequest {
        namespace: namespace.clone(),
        name: name.clone(),
        wait: true,
        ..Default::default()
    };
    assert!(
        !done(subject.pods().delete_pod(request))
            .await
            .unwrap()
            .existed
    );
    let request = api::DeleteServiceRequest {
        namespace: namespace.clone(),
        name: name.clone(),
    };
    assert!(
        !done(subject.services().delete_service(request))
            .await
            .unwrap()
            .existed
    );
    let request = api::DeleteNetworkPolicyRequest {
        namespace: namespace.clone(),
        name: name.clone(),
    };
    assert!(
        !done(subject.policies().delete_network_policy(request))
            .await
            .unwrap()
            .existed
    );
    let request = api::DeleteConfigurationRequest {
        namespace: namespace.clone(),
        name: name.clone(),
    };
    assert!(
        !done(subject.configurations().delete_configuration(request))
            .await
            .unwrap()
            .existed
    );
    let request = api::DeleteIngressRequest {
        namespace,
        name,
        backend: 0,
    };
    assert!(
        !done(subject.ingresses().delete_ingress(request))
            .await
            .unwrap()
            .existed
    );
}

pub(in crate::resources) async fn names_that_are_taken_are_refused(subject: &Subject) {
    let pod = subject.pod();
    let name = pod.metadata.clone().unwrap().name;
    subject.create_pod(pod.clone()).await.unwrap();
    assert_reason("pod", subject.create_pod(pod).await, Reason::AlreadyExists);
    subject.remove_pod(&name).await;
    let service = subject.service();
    subject.create_service(service.clone()).await.unwrap();
    assert_reason(
        "service",
        subject.create_service(service).await,
        Reason::AlreadyExists,
    );
    let policy = subject.policy();
    subject.create_policy(policy.clone()).await.unwrap();
    assert_reason(
        "policy",
        subject.create_policy(policy).await,
        Reason::AlreadyExists,
    );
    let configuration = subject.configuration();
    subject
        .create_configuration(configuration.clone())
        .await
        .unwrap();
    assert_reason(
        "configuration",
        subject.create_configuration(configuration).await,
        Reason::AlreadyExists,
    );
}
