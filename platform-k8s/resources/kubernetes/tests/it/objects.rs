//! Objects: made, read, listed in pages, changed, deleted.

use drover_core::Reason;
use drover_proto::{
    common::v1::{LabelOperator, LabelRequirement, LabelSelector},
    kubernetes::v1 as api,
};
use drover_resources::parts::{
    Configurations as _, NetworkPolicies as _, Nodes as _, Pods as _, Services as _,
};
use drover_testing::kubernetes::{Fault, On};

use crate::bench::Bench;

fn selector(operator: LabelOperator, values: &[&str]) -> Option<LabelSelector> {
    Some(LabelSelector {
        match_labels: [].into(),
        match_expressions: vec![LabelRequirement {
            key: "app".to_owned(),
            operator: operator.into(),
            values: values.iter().map(|&it| it.to_owned()).collect(),
        }],
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_made_once_and_deleted_as_often_as_asked() {
    let bench = Bench::start().await;
    let made = bench.ready(bench.pod("a")).await;
    let status = made.status.unwrap();
    assert!(status.ready && !status.ip.is_empty() && !status.node.is_empty());
    let again = bench.pods.create(bench.pod("a")).await.unwrap_err();
    assert_eq!(again.reason(), Reason::AlreadyExists);
    let request = |uid: &str| api::DeletePodRequest {
        namespace: bench.namespace.name.clone(),
        name: "a".to_owned(),
        uid: uid.to_owned(),
        wait: true,
        ..api::DeletePodRequest::default()
    };
    let other = "00000000-0000-4000-8000-000000000000";
    let refused = bench.pods.delete(request(other)).await.unwrap_err();
    assert_eq!(refused.reason(), Reason::RevisionMismatch);
    assert!(bench.pods.delete(request("")).await.unwrap());
    let missing = bench
        .pods
        .get(&bench.namespace.name, "a")
        .await
        .unwrap_err();
    assert_eq!(missing.reason(), Reason::NotFound);
    let name = format!("{}/a", bench.namespace.name);
    assert_eq!(missing.resource(), Some(("pod", name.as_str())));
    assert!(!bench.pods.delete(request("")).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_kubernetes_refuses_is_named_with_the_field_of_the_request() {
    let bench = Bench::start().await;
    let mut pod = bench.pod("a");
    let container = &mut pod.spec.as_mut().unwrap().containers[0];
    container.resource_requests = [("memory".to_owned(), "2Mi".to_owned())].into();
    container.resource_limits = [("memory".to_owned(), "1Mi".to_owned())].into();
    let refused = bench.pods.create(pod).await.unwrap_err();
    assert_eq!(refused.reason(), Reason::Invalid);
    let fields: Vec<_> = refused
        .fields()
        .iter()
        .map(|it| it.field.as_str())
        .collect();
    assert_eq!(fields, ["pod.spec.containers[0].resource_requests"]);
    // Cloudsim's MustParse panics here.
    let mut pod = bench.pod("b");
    let container = &mut pod.spec.as_mut().unwrap().containers[0];
    container.resource_requests = [("memory".to_owned(), "much".to_owned())].into();
    let refused = bench.pods.create(pod).await.unwrap_err();
    assert_eq!(refused.reason(), Reason::Invalid, "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_comes_in_pages_and_its_token_may_expire() {
    let bench = Bench::start().await;
    for name in ["c", "a", "b"] {
        bench.pods.create(bench.unplaced(name)).await.unwrap();
    }
    let request = |page_token: String| api::ListPodsRequest {
        namespace: bench.namespace.name.clone(),
        selector: selector(LabelOperator::In, &["test", "other"]),
        page_size: 2,
        page_token,
        ..api::ListPodsRequest::default()
    };
    let names = |page: &api::ListPodsResponse| -> Vec<String> {
        let pods = page.pods.iter();
        pods.map(|it| it.metadata.clone().unwrap().name).collect()
    };
    let first = bench.pods.list(request(String::new())).await.unwrap();
    assert_eq!(names(&first), ["a", "b"]);
    let token = first.next_page_token;
    let second = bench.pods.list(request(token.clone())).await.unwrap();
    assert_eq!(
        (names(&second), &*second.next_page_token),
        (vec!["c".to_owned()], "")
    );
    bench.proxy.fail(On::call("list", "pods"), Fault::expired());
    let expired = bench.pods.list(request(token)).await.unwrap_err();
    assert_eq!(expired.reason(), Reason::PageTokenExpired);
    let mut none = request(String::new());
    none.selector = selector(LabelOperator::NotExists, &[]);
    assert_eq!(
        names(&bench.pods.list(none).await.unwrap()),
        Vec::<String>::new()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_ends_at_a_mebibyte_and_nothing_is_left_out() {
    let bench = Bench::start().await;
    for name in ["a", "b", "c"] {
        let configuration = api::Configuration {
            metadata: bench.metadata(name),
            data: [("k".to_owned(), "x".repeat(600 * 1024))].into(),
            ..api::Configuration::default()
        };
        bench.configurations.create(configuration).await.unwrap();
    }
    let (mut names, mut token) = (Vec::new(), String::new());
    loop {
        let request = api::ListConfigurationsRequest {
            namespace: bench.namespace.name.clone(),
            selector: selector(LabelOperator::Exists, &[]),
            page_size: 500,
            page_token: token,
        };
        let page = bench.configurations.list(request).await.unwrap();
        assert_eq!(page.configurations.len(), 1);
        names.extend(
            page.configurations
                .into_iter()
                .map(|it| it.metadata.unwrap().name),
        );
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(names, ["a", "b", "c"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_is_replaced_only_as_it_was_read() {
    let bench = Bench::start().await;
    let of = |text: &str, revision: &str, immutable| api::Configuration {
        metadata: bench.metadata("c").map(|metadata| api::Metadata {
            revision: revision.to_owned(),
            ..metadata
        }),
        data: [("text".to_owned(), text.to_owned())].into(),
        binary_data: [("bytes".to_owned(), vec![0, 255])].into(),
        immutable,
    };
    let update = async |it| bench.configurations.update(it).await;
    let missing = update(of("0", "", false)).await.unwrap_err();
    assert_eq!(missing.reason(), Reason::NotFound);
    let made = bench
        .configurations
        .create(of("1", "", false))
        .await
        .unwrap();
    assert_eq!(made.binary_data["bytes"], [0, 255]);
    let first = made.metadata.unwrap().revision;
    let changed = update(of("2", &first, false)).await.unwrap();
    assert_eq!(changed.data["text"], "2");
    let stale = update(of("3", &first, false)).await.unwrap_err();
    assert_eq!(stale.reason(), Reason::RevisionMismatch);
    update(of("4", "", true)).await.unwrap();
    let immutable = update(of("hunter2", "", true)).await.unwrap_err();
    assert_eq!(immutable.reason(), Reason::Immutable);
    assert!(!format!("{immutable:?}").contains("hunter2"));
    let namespace = &bench.namespace.name;
    let read = bench.configurations.get(namespace, "c").await.unwrap();
    assert_eq!((&*read.data["text"], read.immutable), ("4", true));
    assert!(bench.configurations.delete(namespace, "c").await.unwrap());
    assert!(!bench.configurations.delete(namespace, "c").await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn services_of_every_type_are_made() {
    use api::ServiceType::{ClusterIp, ExternalName, LoadBalancer, NodePort};
    let bench = Bench::start().await;
    let port = api::ServicePort {
        port: 80,
        target_port: Some(api::PortRef {
            port: Some(api::port_ref::Port::Name("http".to_owned())),
        }),
        protocol: api::Protocol::Udp.into(),
        ..api::ServicePort::default()
    };
    for (name, type_, cluster_ip) in [
        ("ip", ClusterIp, ""),
        ("headless", ClusterIp, "None"),
        ("node", NodePort, ""),
        ("balancer", LoadBalancer, ""),
        ("external", ExternalName, ""),
    ] {
        let external = type_ == ExternalName;
        let spec = api::ServiceSpec {
            r#type: type_.into(),
            ports: if external { vec![] } else { vec![port.clone()] },
            cluster_ip: cluster_ip.to_owned(),
            external_name: if external {
                "a.example".to_owned()
            } else {
                String::new()
            },
            ..api::ServiceSpec::default()
        };
        let service = api::Service {
            metadata: bench.metadata(name),
            spec: Some(spec),
            ..api::Service::default()
        };
        let made = bench.services.create(service).await.unwrap();
        let read = bench
            .services
            .get(&bench.namespace.name, name)
            .await
            .unwrap();
        assert_eq!(made.spec, read.spec);
        let spec = read.spec.unwrap();
        assert_eq!(spec.r#type(), type_);
        let has_node_port = spec.ports.first().is_some_and(|it| it.node_port > 0);
        assert_eq!(
            has_node_port,
            matches!(type_, NodePort | LoadBalancer),
            "{name}"
        );
        if let Some(first) = spec.ports.first() {
            assert_eq!(first.target_port, port.target_port);
            assert_eq!(first.protocol(), api::Protocol::Udp);
        }
    }
    assert!(
        bench
            .services
            .delete(&bench.namespace.name, "ip")
            .await
            .unwrap()
    );
    assert!(
        !bench
            .services
            .delete(&bench.namespace.name, "ip")
            .await
            .unwrap()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_are_deleted_by_their_labels_and_never_all_by_mistake() {
    let bench = Bench::start().await;
    for name in ["b", "a"] {
        let policy = api::NetworkPolicy {
            metadata: bench.metadata(name),
            spec: None,
        };
        bench.policies.create(policy).await.unwrap();
    }
    let mut other = bench.metadata("other").unwrap();
    other.labels.clear();
    let other = api::NetworkPolicy {
        metadata: Some(other),
        spec: None,
    };
    let other = bench.policies.create(other).await.unwrap();
    assert_eq!(other.spec.unwrap().directions.len(), 2);
    let request = |selector| api::DeleteNetworkPoliciesRequest {
        namespace: bench.namespace.name.clone(),
        selector,
    };
    let all = bench
        .policies
        .delete_selected(request(None))
        .await
        .unwrap_err();
    assert_eq!(all.fields()[0].field, "selector");
    let labelled = request(selector(LabelOperator::Exists, &[]));
    let names = bench.policies.delete_selected(labelled).await.unwrap();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(
        bench
            .namespace
            .list("networkpolicies.networking.k8s.io")
            .await
            .len(),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_cordoned_and_uncordoned() {
    let bench = Bench::start().await;
    let rig = drover_testing::kubernetes::Rig::shared(drover_testing::kubernetes::Options::kwok(3));
    let _alone = rig.alone().await;
    for unschedulable in [true, true, false, false] {
        let set = bench.nodes.set_unschedulable("kwok-2", unschedulable);
        assert_eq!(set.await.unwrap().unschedulable, unschedulable);
    }
    let node = bench.nodes.get("kwok-2").await.unwrap();
    assert!(node.ready && node.capacity.contains_key("cpu"));
    let missing = bench.nodes.set_unschedulable("no", true).await.unwrap_err();
    assert_eq!(missing.resource(), Some(("node", "no")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_is_never_sent_twice_and_its_failure_says_what_is_known() {
    let bench = Bench::start().await;
    let faults = [
        (Fault::internal(), Reason::Unavailable),
        (Fault::Throttle { seconds: 1 }, Reason::RateLimited),
        (Fault::Disconnect, Reason::Unavailable),
        (Fault::LoseAnswer, Reason::Unavailable),
        (Fault::CutAnswer, Reason::Unavailable),
        (Fault::Stall, Reason::DeadlineExceeded),
    ];
    for (number, (fault, reason)) in faults.into_iter().enumerate() {
        bench.proxy.forget();
        bench.proxy.fail(On::call("create", "pods"), fault.clone());
        let pod = bench.unplaced(&format!("p-{number}"));
        let error = bench.pods.create(pod).await.unwrap_err();
        assert_eq!(error.reason(), reason, "{fault:?}: {error}");
        assert_eq!(bench.proxy.count("create", "pods"), 1, "{fault:?}");
    }
    bench
        .proxy
        .fail(On::call("get", "pods"), Fault::Throttle { seconds: 1 });
    let read = bench.pods.get(&bench.namespace.name, "p-3").await;
    assert!(read.is_ok(), "a read waits: {read:?}");
}
