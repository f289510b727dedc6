//! What the services add to the parts: limits, parts that are switched off, namespaces, pages over several of them.

use drover_client::Channel;
use drover_convert::error::from_status;
use drover_core::{Error, Reason};
use drover_proto::kubernetes::v1::{
    self as api, configuration_service_client::ConfigurationServiceClient,
    ingress_service_client::IngressServiceClient,
    network_policy_service_client::NetworkPolicyServiceClient,
    node_service_client::NodeServiceClient, pod_service_client::PodServiceClient,
    service_service_client::ServiceServiceClient,
};
use drover_resources::{Cluster, Parts, Resources, Served};
use drover_resources_fake::{Fake, Fault};
use drover_server::{ServerSettings, Service, Shutdown};
use drover_testing::wait::holds;
use tonic::{Code, Response, Status};

pub(crate) fn served(cluster: Cluster, served: Served) -> Channel {
    let resources = Resources::new(cluster, served).unwrap();
    let service = resources.add_to(Service::new("fake", "0"));
    let routes = service
        .into_routes(&ServerSettings::default(), Shutdown::new())
        .unwrap();
    drover_client::in_process(routes)
}

fn configuration(namespace: &str, name: &str) -> api::CreateConfigurationRequest {
    api::CreateConfigurationRequest {
        configuration: Some(api::Configuration {
            metadata: Some(api::Metadata {
                namespace: namespace.into(),
                name: name.into(),
                ..Default::default()
            }),
            ..Default::default()
        }),
    }
}

pub(crate) fn failed<T>(outcome: Result<Response<T>, Status>) -> Error {
    match outcome {
        Ok(_) => panic!("the call was answered"),
        Err(status) => from_status(&status),
    }
}

#[tokio::test]
async fn a_wait_too_many_is_overloaded_and_another_takes_the_place_of_one_that_ends() {
    let limits = Served {
        max_waits: 2,
        ..Served::default()
    };
    let channel = served(Fake::new(0).cluster(), limits);
    let mut pods = PodServiceClient::new(channel);
    let wait = || api::WaitPodsRequest {
        names: vec!["never-made".into()],
        ..Default::default()
    };
    let first = pods.wait_pods(wait()).await.unwrap();
    let _second = pods.wait_pods(wait()).await.unwrap();
    let error = failed(pods.wait_pods(wait()).await);
    assert_eq!(error.reason(), Reason::Overloaded);
    assert!(error.retry_after().is_some());
    drop(first);
    holds("there is room for another wait", async || {
        pods.wait_pods(wait()).await.is_ok()
    })
    .await;
}

/// The codes of one call to each part.
async fn codes(parts: Parts) -> [Code; 7] {
    let channel = served(Cluster::custom(parts), Served::default());
    let name = || "never-made".to_owned();
    let code =
        |outcome: Result<(), Status>| outcome.map_or_else(|status| status.code(), |()| Code::Ok);
    let node = api::GetNodeRequest { name: name() };
    let pod = api::GetPodRequest {
        namespace: String::new(),
        name: name(),
    };
    let service = api::GetServiceRequest {
        namespace: String::new(),
        name: name(),
    };
    let ingress = api::GetIngressRequest {
        name: name(),
        ..Default::default()
    };
    let rule = api::GetRuleRequest {
        ingress: name(),
        ..Default::default()
    };
    let policy = api::GetNetworkPolicyRequest {
        namespace: String::new(),
        name: name(),
    };
    let of = api::GetConfigurationRequest {
        namespace: String::new(),
        name: name(),
    };
    let mut ingresses = IngressServiceClient::new(channel.clone());
    [
        code(
            NodeServiceClient::new(channel.clone())
                .get_node(node)
                .await
                .map(drop),
        ),
        code(
            PodServiceClient::new(channel.clone())
                .get_pod(pod)
                .await
                .map(drop),
        ),
        code(
            ServiceServiceClient::new(channel.clone())
                .get_service(service)
                .await
                .map(drop),
        ),
        code(ingresses.get_ingress(ingress).await.map(drop)),
        code(ingresses.get_rule(rule).await.map(drop)),
        code(
            NetworkPolicyServiceClient::new(channel.clone())
                .get_network_policy(policy)
                .await
                .map(drop),
        ),
        code(
            ConfigurationServiceClient::new(channel)
                .get_configuration(of)
                .await
                .map(drop),
        ),
    ]
}

#[tokio::test]
async fn each_part_that_is_switched_off_is_unimplemented_and_the_others_work() {
    let all = || Fake::new(0).parts();
    let off = [
        Parts {
            nodes: None,
            ..all()
        },
        Parts {
            pods: None,
            ..all()
        },
        Parts {
            services: None,
            ..all()
        },
        Parts {
            ingresses: None,
            ..all()
        },
        Parts {
            ingress_rules: None,
            ..all()
        },
        Parts {
            network_policies: None,
            ..all()
        },
        Parts {
            configurations: None,
            ..all()
        },
    ];
    for (at, parts) in off.into_iter().enumerate() {
        let mut expected = [Code::NotFound; 7];
        expected[at] = Code::Unimplemented;
        assert_eq!(codes(parts).await, expected);
    }
}

#[tokio::test]
async fn a_namespace_that_is_not_served_is_refused_and_in_no_list() {
    let fake = Fake::new(0);
    let everything = served(fake.cluster(), Served::default());
    let mut all = ConfigurationServiceClient::new(everything);
    for namespace in ["bank", "default", "shop"] {
        all.create_configuration(configuration(namespace, "a"))
            .await
            .unwrap();
    }
    for limits in [
        Served {
            namespaces: vec!["shop".into(), "default".into()],
            ..Served::default()
        },
        Served {
            excluded_namespaces: vec!["bank".into()],
            ..Served::default()
        },
    ] {
        let mut some = ConfigurationServiceClient::new(served(fake.cluster(), limits));
        let error = failed(some.create_configuration(configuration("bank", "b")).await);
        assert_eq!(error.reason(), Reason::NamespaceNotServed);
        let mut found = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = api::ListConfigurationsRequest {
                page_size: 1,
                page_token,
                ..Default::default()
            };
            let page = some
                .list_configurations(request)
                .await
                .unwrap()
                .into_inner();
            found.extend(
                page.configurations
                    .into_iter()
                    .map(|one| one.metadata.unwrap().namespace),
            );
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        assert_eq!(found, ["default", "shop"]);
    }
}

#[tokio::test]
async fn a_list_that_was_compacted_says_so_and_can_begin_again() {
    let fake = Fake::new(0);
    let mut client = ConfigurationServiceClient::new(served(fake.cluster(), Served::default()));
    for name in ["a", "b"] {
        client
            .create_configuration(configuration("", name))
            .await
            .unwrap();
    }
    let first = api::ListConfigurationsRequest {
        page_size: 1,
        ..Default::default()
    };
    let page = client
        .list_configurations(first.clone())
        .await
        .unwrap()
        .into_inner();
    fake.compact();
    let next = api::ListConfigurationsRequest {
        page_token: page.next_page_token,
        ..first.clone()
    };
    assert_eq!(
        failed(client.list_configurations(next).await).reason(),
        Reason::PageTokenExpired
    );
    client.list_configurations(first).await.unwrap();
}

#[tokio::test]
async fn a_write_is_never_repeated_whatever_becomes_of_its_answer() {
    let fake = Fake::new(0);
    let mut client = ConfigurationServiceClient::new(served(fake.cluster(), Served::default()));
    let lost = Error::new(Reason::Unavailable, "the connection broke");
    fake.fail("configurations.create", Fault::ErrorAfterwards(lost), 1);
    let error = failed(client.create_configuration(configuration("", "a")).await);
    assert_eq!(error.reason(), Reason::Unavailable);
    assert_eq!(fake.calls("configurations.create"), 1);
    let error = failed(client.create_configuration(configuration("", "a")).await);
    assert_eq!(error.reason(), Reason::AlreadyExists);
}

#[tokio::test]
async fn a_list_of_all_namespaces_is_in_the_order_of_namespace_and_name_as_one_text() {
    for namespaces in [
        vec![],
        vec!["a".to_owned(), "a-b".to_owned(), "b".to_owned()],
    ] {
        let limits = Served {
            default_namespace: "a".to_owned(),
            namespaces,
            ..Served::default()
        };
        let channel = served(Fake::new(0).cluster(), limits);
        let mut configurations = ConfigurationServiceClient::new(channel);
        for (namespace, name) in [("b", "a"), ("a", "x"), ("a-b", "x"), ("a-b", "a")] {
            let new = configuration(namespace, name);
            configurations.create_configuration(new).await.unwrap();
        }
        let (mut found, mut page_token) = (Vec::new(), String::new());
        loop {
            let request = api::ListConfigurationsRequest {
                page_size: 1,
                page_token,
                ..Default::default()
            };
            let page = configurations.list_configurations(request).await.unwrap();
            let page = page.into_inner();
            let metadata = page.configurations.into_iter().filter_map(|it| it.metadata);
            found.extend(metadata.map(|it| format!("{}/{}", it.namespace, it.name)));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        assert_eq!(found, ["a-b/a", "a-b/x", "a/x", "b/a"]);
    }
}
