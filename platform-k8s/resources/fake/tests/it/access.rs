//! Who may do what, and in which namespaces.

use drover_convert::error::from_status;
use drover_core::{Error, Reason};
use drover_proto::kubernetes::v1::{
    self as api, configuration_service_client::ConfigurationServiceClient,
    ingress_service_client::IngressServiceClient, node_service_client::NodeServiceClient,
    pod_service_client::PodServiceClient, service_service_client::ServiceServiceClient,
};
use drover_resources::{Resources, Served};
use drover_resources_fake::Fake;
use drover_server::{Running, ServerSettings, Service, Shutdown};
use drover_testing::wait::holds;
use tonic::{Request, transport::Channel};

use crate::service::failed;

const RULES: &str = "
bindings:
  - {role: resource-viewer, subjects: ['token:viewer']}
  - {role: resource-operator, subjects: ['token:operator']}
  - {role: resource-operator, subjects: ['token:shop'], namespaces: ['shop-*']}
  - {role: platform, subjects: ['token:platform']}
  - {role: operator, subjects: ['token:clusters']}
tokens:
  - {name: viewer, token: viewer-0123456789abcdef}
  - {name: operator, token: operator-0123456789abcdef}
  - {name: shop, token: shop-0123456789abcdef}
  - {name: platform, token: platform-0123456789abcdef}
  - {name: clusters, token: clusters-0123456789abcdef}
";

async fn server() -> (Running, Channel, tempfile::TempDir) {
    serving(RULES, Served::default()).await
}

/// A server with rules of access, and the directory of its audit log.
pub(crate) async fn serving(text: &str, served: Served) -> (Running, Channel, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("access.yaml");
    std::fs::write(&rules, text).unwrap();
    let settings = ServerSettings {
        access: Some(rules),
        audit_log: Some(directory.path().join("audit.jsonl")),
        ..ServerSettings::on_port(0)
    };
    let resources = Resources::new(Fake::new(3).cluster(), served).unwrap();
    let service = resources.add_to(Service::new("fake", "0"));
    let listener = drover_server::listen(&settings).await.unwrap();
    let running = drover_server::spawn(service, listener, &settings, Shutdown::new()).unwrap();
    let at = format!("http://{}", running.address());
    let channel = Channel::from_shared(at).unwrap().connect_lazy();
    (running, channel, directory)
}

fn by<T>(who: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let token = format!("Bearer {who}-0123456789abcdef");
    request
        .metadata_mut()
        .insert("authorization", token.parse().unwrap());
    request
}

/// The reason for which a call is refused. `None`: it is answered.
async fn outcome<T>(
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Option<Reason> {
    let error: Option<Error> = call.await.err().map(|status| from_status(&status));
    error.map(|error| error.reason())
}

fn configuration(namespace: &str) -> api::CreateConfigurationRequest {
    api::CreateConfigurationRequest {
        configuration: Some(api::Configuration {
            metadata: Some(api::Metadata {
                namespace: namespace.into(),
                name: "a".into(),
                ..Default::default()
            }),
            ..Default::default()
        }),
    }
}

#[tokio::test]
async fn each_role_reads_changes_and_enters_what_it_may() {
    let (_running, channel, _directory) = server().await;
    let mut pods = PodServiceClient::new(channel.clone());
    let mut configurations = ConfigurationServiceClient::new(channel);
    let denied = Some(Reason::PermissionDenied);
    for (who, read, change, enter) in [
        ("viewer", None, denied, denied),
        ("operator", None, None, Some(Reason::NotFound)),
        ("platform", denied, denied, denied),
        ("clusters", denied, denied, denied),
    ] {
        let list = by(who, api::ListPodsRequest::default());
        assert_eq!(outcome(pods.list_pods(list)).await, read, "{who} reads");
        let create = by(who, configuration("default"));
        let found = outcome(configurations.create_configuration(create)).await;
        assert_eq!(found, change, "{who} changes");
        let file = api::ReadFileRequest {
            pod: "web-0".into(),
            path: "/a".into(),
            ..Default::default()
        };
        let found = outcome(pods.read_file(by(who, file))).await;
        assert_eq!(found, enter, "{who} enters");
        let script = api::RunScriptRequest {
            pod: "web-0".into(),
            script: "date".into(),
            ..Default::default()
        };
        let found = outcome(pods.run_script(by(who, script))).await;
        assert_eq!(found, enter, "{who} runs");
    }
}

#[tokio::test]
async fn a_binding_to_namespaces_ends_at_their_border() {
    let (_running, channel, _directory) = server().await;
    let mut nodes = NodeServiceClient::new(channel.clone());
    let mut configurations = ConfigurationServiceClient::new(channel);
    for namespace in ["bank", "shop-eu", "shop-us"] {
        let create = by("operator", configuration(namespace));
        configurations.create_configuration(create).await.unwrap();
    }
    let denied = Some(Reason::PermissionDenied);
    let get = |namespace: &str| api::GetConfigurationRequest {
        namespace: namespace.into(),
        name: "a".into(),
    };
    for (namespace, expected) in [("shop-eu", None), ("bank", denied), ("", denied)] {
        let get = by("shop", get(namespace));
        let found = outcome(configurations.get_configuration(get)).await;
        assert_eq!(found, expected, "{namespace}");
    }
    let all = by("shop", api::ListConfigurationsRequest::default());
    let page = configurations.list_configurations(all).await.unwrap();
    let found: Vec<String> = page
        .into_inner()
        .configurations
        .into_iter()
        .map(|one| one.metadata.unwrap().namespace)
        .collect();
    assert_eq!(found, ["shop-eu", "shop-us"]);
    let list = by("shop", api::ListNodesRequest::default());
    assert_eq!(outcome(nodes.list_nodes(list)).await, denied);
}

fn ingress(namespace: &str) -> api::CreateIngressRequest {
    api::CreateIngressRequest {
        ingress: Some(api::Ingress {
            metadata: Some(api::Metadata {
                namespace: namespace.into(),
                name: "web".into(),
                ..Default::default()
            }),
            rules: vec![api::IngressRule {
                host: "shop.example".into(),
                paths: Vec::new(),
            }],
            ..Default::default()
        }),
        backend: 0,
    }
}

#[tokio::test]
async fn a_host_is_taken_by_an_object_that_is_named_to_who_may_see_it() {
    for (taker, named) in [("shop-us", true), ("bank", false)] {
        let (_running, channel, _directory) = server().await;
        let mut ingresses = IngressServiceClient::new(channel.clone());
        let first = by("operator", ingress(taker));
        ingresses.create_ingress(first).await.unwrap();
        let mut other = ingress("shop-eu");
        other.ingress.as_mut().unwrap().rules[0].host = "own.example".into();
        ingresses.create_ingress(by("shop", other)).await.unwrap();
        let paths = api::UpsertPathsRequest {
            namespace: "shop-eu".into(),
            ingress: "web".into(),
            host: "shop.example".into(),
            paths: vec![api::IngressPath {
                path: "/".into(),
                target: Some(api::ingress_path::Target::Service(api::ServiceTarget {
                    name: "web".into(),
                    port: Some(api::PortRef {
                        port: Some(api::port_ref::Port::Number(80)),
                    }),
                })),
                ..Default::default()
            }],
            ..Default::default()
        };
        let service = api::CreateServiceRequest {
            service: Some(api::Service {
                metadata: Some(api::Metadata {
                    namespace: "shop-eu".into(),
                    name: "web".into(),
                    ..Default::default()
                }),
                spec: Some(api::ServiceSpec {
                    ports: vec![api::ServicePort {
                        port: 80,
                        ..Default::default()
                    }],
                    ..Default::default()
                }),
                ..Default::default()
            }),
        };
        let mut services = ServiceServiceClient::new(channel);
        services.create_service(by("shop", service)).await.unwrap();
        let mut another = ingress("shop-eu");
        "another".clone_into(
            &mut another
                .ingress
                .as_mut()
                .unwrap()
                .metadata
                .as_mut()
                .unwrap()
                .name,
        );
        for error in [
            failed(ingresses.upsert_paths(by("shop", paths)).await),
            failed(ingresses.create_ingress(by("shop", another)).await),
        ] {
            assert_eq!(error.reason(), Reason::IngressHostTaken, "{error}");
            assert_eq!(error.metadata()["host"], "shop.example");
            let all = format!("{error:?}");
            assert_eq!(all.contains(&format!("{taker}/web")), named, "{all}");
            assert_eq!(all.contains(taker), named, "{all}");
        }
    }
}

/// A pod of the namespace `shop-eu`.
fn pod(name: &str) -> api::CreatePodRequest {
    let container = api::Container {
        name: "main".into(),
        image: "busybox".into(),
        ..Default::default()
    };
    api::CreatePodRequest {
        pod: Some(api::Pod {
            metadata: Some(api::Metadata {
                namespace: "shop-eu".into(),
                name: name.into(),
                ..Default::default()
            }),
            spec: Some(api::PodSpec {
                containers: vec![container],
                ..Default::default()
            }),
            status: None,
        }),
    }
}

#[tokio::test]
async fn a_pod_that_the_policy_refuses_is_named_in_the_audit_log() {
    let (_running, channel, directory) = server().await;
    let mut pods = PodServiceClient::new(channel);
    let mut request = pod("miner");
    let spec = request.pod.as_mut().unwrap().spec.as_mut().unwrap();
    spec.host_network = true;
    let error = failed(pods.create_pod(by("shop", request)).await);
    assert_eq!(error.fields()[0].field, "pod.spec.host_network");
    holds("the refusal is in the audit log", async || {
        let log = std::fs::read_to_string(directory.path().join("audit.jsonl"));
        log.unwrap_or_default().lines().any(|line| {
            line.contains("PodService/CreatePod")
                && line.contains("INVALID_ARGUMENT")
                && line.contains("pod/shop-eu/miner")
        })
    })
    .await;
}

#[tokio::test]
async fn one_caller_leaves_waits_and_streams_for_others() {
    let limits = Served {
        max_waits: 4,
        max_streams: 4,
        max_streams_per_caller: Some(1),
        ..Served::default()
    };
    let (_running, channel, _directory) = serving(RULES, limits).await;
    let mut pods = PodServiceClient::new(channel);
    let wait = || api::WaitPodsRequest {
        names: vec!["never-made".into()],
        ..Default::default()
    };
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(pods.wait_pods(by("operator", wait())).await.unwrap());
    }
    let refused = |error: &Error, limit: &str| {
        assert_eq!(error.reason(), Reason::Overloaded, "{error}");
        assert_eq!(error.metadata()["limit"], limit);
        assert!(error.message().contains(limit), "{error}");
        assert!(error.retry_after().is_some());
    };
    let error = failed(pods.wait_pods(by("operator", wait())).await);
    refused(&error, "max_waits_per_caller");
    open.push(pods.wait_pods(by("viewer", wait())).await.unwrap());
    let error = failed(pods.wait_pods(by("viewer", wait())).await);
    refused(&error, "max_waits");
    open.clear();
    holds("there is room again", async || {
        pods.wait_pods(by("operator", wait())).await.is_ok()
    })
    .await;

    let request = pod("web");
    pods.create_pod(by("shop", request)).await.unwrap();
    let log = || api::StreamLogsRequest {
        namespace: "shop-eu".into(),
        pod: "web".into(),
        follow: true,
        ..Default::default()
    };
    let _held = pods.stream_logs(by("operator", log())).await.unwrap();
    let error = failed(pods.stream_logs(by("operator", log())).await);
    refused(&error, "max_streams_per_caller");
    let _other = pods.stream_logs(by("shop", log())).await.unwrap();
}
