//! Who may do what, and in which namespaces.

use drover_convert::error::from_status;
use drover_core::{Error, Reason};
use drover_proto::kubernetes::v1::{
    self as api, configuration_service_client::ConfigurationServiceClient,
    node_service_client::NodeServiceClient, pod_service_client::PodServiceClient,
};
use drover_resources::{Resources, Served};
use drover_resources_fake::Fake;
use drover_server::{Running, ServerSettings, Service, Shutdown};
use tonic::{Request, transport::Channel};

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
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("access.yaml");
    std::fs::write(&rules, RULES).unwrap();
    let settings = ServerSettings {
        access: Some(rules),
        ..ServerSettings::on_port(0)
    };
    let resources = Resources::new(Fake::new(3).cluster(), Served::default()).unwrap();
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
