//! Every call for every role, and for bindings to namespaces: who is let in, and who is not.

use std::collections::BTreeSet;

use drover_proto::kubernetes::v1::{self as api, exec_request, path_key};
use drover_resources::Served;
use drover_server::Role;
use futures::stream;
use prost::{
    Message,
    bytes::{Buf, BufMut},
};
use tonic::{
    Code, Request, Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    metadata::MetadataValue,
    transport::Channel,
};

use crate::access::serving;

/// What a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    Read,
    Change,
    Enter,
}

/// What a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    Nodes,
    Namespace,
}

use About::{Namespace, Nodes};
use Needs::{Change, Enter, Read};

/// A call with a message about a namespace.
type Row = (&'static str, Needs, About, fn(&str) -> Vec<u8>);

fn name() -> String {
    "never-made".to_owned()
}

fn metadata(namespace: &str) -> Option<api::Metadata> {
    Some(api::Metadata {
        namespace: namespace.to_owned(),
        name: name(),
        ..Default::default()
    })
}

fn path() -> api::IngressPath {
    api::IngressPath {
        path: "/".into(),
        target: Some(api::ingress_path::Target::Service(api::ServiceTarget {
            name: name(),
            port: Some(api::PortRef {
                port: Some(api::port_ref::Port::Number(80)),
            }),
        })),
        ..Default::default()
    }
}

fn selector() -> Option<drover_proto::common::v1::LabelSelector> {
    Some(drover_proto::common::v1::LabelSelector {
        match_labels: [("never".to_owned(), "made".to_owned())].into(),
        ..Default::default()
    })
}

macro_rules! row {
    ($path:literal $needs:ident $about:ident $request:ident { $($field:ident: $value:expr),* $(,)? } in $namespace:ident) => {
        ($path, $needs, $about, |$namespace: &str| {
            let _ = $namespace;
            #[allow(clippy::needless_update, reason = "some messages have no more fields")]
            let request = api::$request { $($field: $value,)* ..Default::default() };
            request.encode_to_vec()
        })
    };
    ($path:literal $needs:ident $request:ident { $($field:ident),* }) => {
        row!($path $needs Namespace $request { namespace: namespace.to_owned(), $($field: name()),* } in namespace)
    };
    ($path:literal $needs:ident nodes $request:ident { $($field:ident),* }) => {
        row!($path $needs Nodes $request { $($field: name()),* } in namespace)
    };
}

const ROWS: &[Row] = &[
    row!("NodeService/GetNode" Read nodes GetNodeRequest { name }),
    row!("NodeService/ListNodes" Read nodes ListNodesRequest {}),
    row!("NodeService/WaitNodes" Read Nodes WaitNodesRequest { names: vec![name()] } in namespace),
    row!("NodeService/CordonNode" Change nodes CordonNodeRequest { name }),
    row!("NodeService/UncordonNode" Change nodes UncordonNodeRequest { name }),
    row!("NodeService/DrainNode" Change nodes DrainNodeRequest { name }),
    row!("PodService/CreatePod" Change Namespace CreatePodRequest {
        pod: Some(api::Pod {
            metadata: metadata(namespace),
            spec: Some(api::PodSpec {
                containers: vec![api::Container {
                    name: "main".into(),
                    image: "busybox".into(),
                    ..Default::default()
                }],
                ..Default::default()
            }),
            status: None,
        })
    } in namespace),
    row!("PodService/GetPod" Read GetPodRequest { name }),
    row!("PodService/ListPods" Read ListPodsRequest {}),
    row!("PodService/DeletePod" Change DeletePodRequest { name }),
    row!("PodService/WaitPods" Read Namespace WaitPodsRequest {
        namespace: namespace.to_owned(),
        names: vec!["never-made-either".to_owned()]
    } in namespace),
    row!("PodService/Exec" Enter Namespace ExecRequest {
        input: Some(exec_request::Input::Start(api::ExecStart {
            namespace: namespace.to_owned(),
            pod: name(),
            command: vec!["true".to_owned()],
            ..Default::default()
        }))
    } in namespace),
    row!("PodService/RunScript" Enter RunScriptRequest { pod, script }),
    row!("PodService/ReadFile" Enter Namespace ReadFileRequest {
        namespace: namespace.to_owned(),
        pod: name(),
        path: "/a".to_owned()
    } in namespace),
    row!("PodService/StreamLogs" Enter StreamLogsRequest { pod }),
    row!("ServiceService/CreateService" Change Namespace CreateServiceRequest {
        service: Some(api::Service {
            metadata: metadata(namespace),
            spec: Some(api::ServiceSpec {
                ports: vec![api::ServicePort {
                    port: 80,
                    ..Default::default()
                }],
                ..Default::default()
            }),
            ..Default::default()
        })
    } in namespace),
    row!("ServiceService/GetService" Read GetServiceRequest { name }),
    row!("ServiceService/ListServices" Read ListServicesRequest {}),
    row!("ServiceService/DeleteService" Change DeleteServiceRequest { name }),
    row!("IngressService/CreateIngress" Change Namespace CreateIngressRequest {
        ingress: Some(api::Ingress {
            metadata: metadata(namespace),
            rules: vec![api::IngressRule::default()],
            ..Default::default()
        })
    } in namespace),
    row!("IngressService/GetIngress" Read GetIngressRequest { name }),
    row!("IngressService/ListIngresses" Read ListIngressesRequest {}),
    row!("IngressService/DeleteIngress" Change DeleteIngressRequest { name }),
    row!("IngressService/GetRule" Read GetRuleRequest { ingress }),
    row!("IngressService/UpsertPaths" Change Namespace UpsertPathsRequest {
        namespace: namespace.to_owned(),
        ingress: name(),
        paths: vec![path()]
    } in namespace),
    row!("IngressService/RemovePaths" Change Namespace RemovePathsRequest {
        namespace: namespace.to_owned(),
        ingress: name(),
        paths: vec![api::PathKey { key: Some(path_key::Key::Name(name())) }]
    } in namespace),
    row!("NetworkPolicyService/CreateNetworkPolicy" Change Namespace CreateNetworkPolicyRequest {
        network_policy: Some(api::NetworkPolicy {
            metadata: metadata(namespace),
            spec: Some(api::NetworkPolicySpec::default()),
        })
    } in namespace),
    row!("NetworkPolicyService/GetNetworkPolicy" Read GetNetworkPolicyRequest { name }),
    row!("NetworkPolicyService/ListNetworkPolicies" Read ListNetworkPoliciesRequest {}),
    row!("NetworkPolicyService/DeleteNetworkPolicy" Change DeleteNetworkPolicyRequest { name }),
    row!("NetworkPolicyService/DeleteNetworkPolicies" Change Namespace DeleteNetworkPoliciesRequest {
        namespace: namespace.to_owned(),
        selector: selector()
    } in namespace),
    row!("ConfigurationService/CreateConfiguration" Change Namespace CreateConfigurationRequest {
        configuration: Some(api::Configuration {
            metadata: metadata(namespace),
            ..Default::default()
        })
    } in namespace),
    row!("ConfigurationService/GetConfiguration" Read GetConfigurationRequest { name }),
    row!("ConfigurationService/ListConfigurations" Read ListConfigurationsRequest {}),
    row!("ConfigurationService/UpdateConfiguration" Change Namespace UpdateConfigurationRequest {
        configuration: Some(api::Configuration {
            metadata: metadata(namespace),
            ..Default::default()
        })
    } in namespace),
    row!("ConfigurationService/DeleteConfiguration" Change DeleteConfigurationRequest { name }),
];

/// Messages as their bytes.
#[derive(Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        buffer.advance(buffer.remaining());
        Ok(Some(()))
    }
}

/// The code of the first answer.
async fn code(channel: &Channel, who: Option<&str>, path: &str, message: Vec<u8>) -> Code {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let mut request = Request::new(stream::iter([message]));
    if let Some(who) = who {
        let token = format!("Bearer {who}-0123456789abcdef");
        let token = MetadataValue::try_from(token).unwrap();
        request.metadata_mut().insert("authorization", token);
    }
    let path = format!("/drover.kubernetes.v1.{path}").parse().unwrap();
    let answer = match client.streaming(request, path, Raw).await {
        Ok(answer) => answer.into_inner().message().await,
        Err(status) => Err(status),
    };
    answer.map_or_else(|status| status.code(), |_| Code::Ok)
}

fn rules() -> String {
    let mut rules = "bindings:\n".to_owned();
    let mut tokens = "tokens:\n  - {name: nobody, token: nobody-0123456789abcdef}\n".to_owned();
    let mut add = |name: &str, bindings: &[(&str, &str)]| {
        for (role, limit) in bindings {
            rules += &format!("  - {{role: {role}, subjects: ['token:{name}']{limit}}}\n");
        }
        tokens += &format!("  - {{name: {name}, token: {name}-0123456789abcdef}}\n");
    };
    for role in Role::ALL {
        add(&role.to_string(), &[(&role.to_string(), "")]);
    }
    let shop = ", namespaces: ['shop-*']";
    add("shop", &[("resource-operator", shop)]);
    add("reader", &[("resource-viewer", shop)]);
    add(
        "both",
        &[("resource-viewer", ""), ("resource-operator", shop)],
    );
    rules + &tokens
}

#[test]
fn every_call_has_a_row() {
    let set = prost_types::FileDescriptorSet::decode(drover_proto::DESCRIPTORS).unwrap();
    let ours = set
        .file
        .iter()
        .filter(|file| file.package() == "drover.kubernetes.v1");
    let services = ours.flat_map(|file| &file.service);
    let calls = services.flat_map(|service| {
        let name = |method: &prost_types::MethodDescriptorProto| {
            format!("{}/{}", service.name(), method.name())
        };
        service.method.iter().map(name).collect::<Vec<_>>()
    });
    let rows = ROWS.iter().map(|row| row.0.to_owned());
    assert_eq!(calls.collect::<BTreeSet<_>>(), rows.collect());
}

#[tokio::test]
async fn every_call_is_for_the_roles_of_resources_and_for_nobody_else() {
    let (_running, channel, _directory) = serving(&rules(), Served::default()).await;
    for (path, needs, _, message) in ROWS {
        let message = || message("shop-eu");
        for role in Role::ALL {
            let may = match role {
                Role::Admin | Role::ResourceOperator => true,
                Role::ResourceViewer => *needs == Read,
                Role::Viewer | Role::Operator | Role::Platform | Role::Agent => false,
            };
            let found = code(&channel, Some(&role.to_string()), path, message()).await;
            assert_eq!(
                found != Code::PermissionDenied,
                may,
                "{role} {path}: {found:?}"
            );
            assert_ne!(found, Code::Unauthenticated, "{role} {path}");
        }
        let nobody = code(&channel, Some("nobody"), path, message()).await;
        assert_eq!(nobody, Code::PermissionDenied, "{path}");
        for stranger in [None, Some("stranger")] {
            let found = code(&channel, stranger, path, message()).await;
            assert_eq!(found, Code::Unauthenticated, "{path}");
        }
    }
}

#[tokio::test]
async fn every_call_ends_at_the_border_of_the_namespaces_of_a_binding() {
    let (_running, channel, _directory) = serving(&rules(), Served::default()).await;
    for (path, needs, about, message) in ROWS {
        for namespace in ["shop-eu", "bank"] {
            let inside = *about == Namespace && namespace == "shop-eu";
            for (who, may) in [
                ("shop", inside),
                ("reader", inside && *needs == Read),
                ("both", inside || *needs == Read),
            ] {
                let found = code(&channel, Some(who), path, message(namespace)).await;
                let let_in = found != Code::PermissionDenied;
                assert_eq!(let_in, may, "{who} {path} in {namespace}: {found:?}");
            }
        }
    }
}
