//! A token scoped to a pattern of clusters: no call reveals anything about another cluster.

use std::collections::BTreeMap;

use bytes::{Buf, BufMut, Bytes};
use drover_client::Channel;
use drover_core::Reason;
use drover_proto::{DESCRIPTORS, orchestrator::v1 as pb};
use prost::Message;
use prost_reflect::{
    DescriptorPool, DynamicMessage, Kind, MethodDescriptor, ReflectMessage, Value,
};
use tokio::time::timeout;
use tonic::{
    Code, Request, Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

use crate::api::{
    access::{Door, labelled, token},
    support::{document, refused},
};

/// Part of every name of the foreign cluster, and must never be visible.
const FOREIGN: &str = "zebra";
/// Maximum wait for messages of a stream. Available messages are sent immediately.
const A_MOMENT: std::time::Duration = std::time::Duration::from_millis(300);

/// Codec for encoded messages.
#[derive(Clone, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
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
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = bytes.remaining();
        Ok(Some(bytes.copy_to_bytes(length)))
    }
}

/// The encoded messages that a call returns within a moment, and its status.
async fn ask(channel: &Channel, method: &MethodDescriptor, request: &[u8]) -> (Vec<u8>, Status) {
    let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let messages = futures::stream::iter([Bytes::copy_from_slice(request)]);
    let answer = client
        .streaming(Request::new(messages), path.parse().unwrap(), Raw)
        .await;
    let mut stream = match answer {
        Ok(answer) => answer.into_inner(),
        Err(status) => return (Vec::new(), status),
    };
    let mut all = Vec::new();
    loop {
        match timeout(A_MOMENT, stream.message()).await {
            Ok(Ok(Some(message))) => all.extend_from_slice(&message),
            Ok(Err(status)) => return (all, status),
            Ok(Ok(None)) | Err(_) => return (all, Status::ok("")),
        }
    }
}

/// A request with the names of a cluster, a node and a group in all suitable fields.
fn about(method: &MethodDescriptor, cluster: &str, node: &str) -> Vec<u8> {
    let mut message = DynamicMessage::new(method.input());
    fill(&mut message, cluster, node, 0);
    message.encode_to_vec()
}

fn fill(message: &mut DynamicMessage, cluster: &str, node: &str, depth: u32) {
    let descriptor = message.descriptor();
    for field in descriptor.fields() {
        if field.is_list() || field.is_map() {
            continue;
        }
        let value = match (field.name(), field.kind()) {
            ("cluster" | "cluster_id", Kind::String) => cluster,
            // The name of a platform in messages about platforms.
            ("name", Kind::String) if descriptor.full_name().contains("Platform") => "sim",
            ("platform", Kind::String) => "sim",
            ("name", Kind::String) => cluster,
            ("id", Kind::String) => node,
            ("group", Kind::String) => "db",
            // Only the top level of what is applied, planned or executed.
            ("cluster" | "start", Kind::Message(inner)) if depth == 0 => {
                let mut inner = DynamicMessage::new(inner);
                fill(&mut inner, cluster, node, depth + 1);
                message.set_field(&field, Value::Message(inner));
                continue;
            }
            _ => continue,
        };
        message.set_field(&field, Value::String(value.to_owned()));
    }
}

#[tokio::test]
async fn no_call_shows_a_cluster_outside_of_the_callers_scope() {
    let door = Door::new().await;
    let mut admin = door.of("admin");
    let labels = [("who", "zebra-label")];
    admin
        .apply_cluster(labelled("zebra", &labels))
        .await
        .unwrap();
    admin
        .apply_cluster(labelled("orders-eu", &[]))
        .await
        .unwrap();
    door.world.ready("zebra").await;
    door.world.ready("orders-eu").await;
    let node = door.world.nodes("zebra").await[0].id.clone();
    // The administrator sees what must be hidden from others.
    let shown = admin
        .list_nodes(pb::ListNodesRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert!(
        shown
            .encode_to_vec()
            .windows(5)
            .any(|it| it == FOREIGN.as_bytes())
    );

    let pool = DescriptorPool::decode(DESCRIPTORS).unwrap();
    let scoped = door.channel(Some(token("orders")));
    let (mut calls, mut outcomes) = (0, BTreeMap::new());
    for service in pool.services() {
        if service.parent_file().package_name() != "drover.orchestrator.v1"
            || !["ClusterService", "PlatformRegistryService", "SecretService"]
                .contains(&service.name())
        {
            continue;
        }
        for method in service.methods() {
            let name = method.name().to_owned();
            // Calls without a name reveal nothing about it.
            let (answer, status) = ask(&scoped, &method, &[]).await;
            let told = format!("{status:?}");
            assert!(
                !contains(&answer, FOREIGN) && !contains(&answer, &node) && !told.contains(FOREIGN),
                "{name} without a name shows it"
            );
            // Calls with its name fail exactly as for a name that never existed.
            let (answer, hidden) = ask(&scoped, &method, &about(&method, "zebra", &node)).await;
            let (_, absent) = ask(&scoped, &method, &about(&method, "zilch", "n-0")).await;
            assert!(
                answer.is_empty() || !contains(&answer, FOREIGN),
                "{name} shows it"
            );
            assert_eq!(
                hidden.code(),
                absent.code(),
                "{name}: {hidden:?} {absent:?}"
            );
            let same = |status: &Status, cluster: &str, node: &str| {
                status.message().replace(cluster, "X").replace(node, "Y")
            };
            assert_eq!(
                same(&hidden, "zebra", &node),
                same(&absent, "zilch", "n-0"),
                "{name}"
            );
            outcomes.insert(name, hidden.code());
            calls += 1;
        }
    }
    println!("{outcomes:?}");
    assert_eq!(calls, 36);
    // These calls were rejected by the scope, not earlier.
    for (method, code) in [
        ("GetCluster", Code::NotFound),
        ("GetNode", Code::NotFound),
        ("ListNodes", Code::NotFound),
        ("WatchNodes", Code::NotFound),
        ("ListEvents", Code::NotFound),
        ("WatchEvents", Code::NotFound),
        ("StreamNodeLogs", Code::NotFound),
        ("DeleteCluster", Code::PermissionDenied),
        ("PauseCluster", Code::PermissionDenied),
        ("ResumeCluster", Code::PermissionDenied),
        ("ReconcileCluster", Code::PermissionDenied),
        ("RegisterPlatform", Code::PermissionDenied),
        ("UnregisterPlatform", Code::PermissionDenied),
        ("ConfirmNodeLoss", Code::PermissionDenied),
    ] {
        assert_eq!(outcomes[method], code, "{method}");
    }
    door.stop().await;
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

#[tokio::test]
async fn a_platform_is_shown_without_what_others_have_on_it() {
    let door = Door::new().await;
    let mut admin = door.of("admin");
    admin
        .apply_cluster(pb::ApplyClusterRequest {
            cluster: Some(document("zebra", &[("db", 3)])),
            ..Default::default()
        })
        .await
        .unwrap();
    admin
        .apply_cluster(labelled("orders-eu", &[]))
        .await
        .unwrap();
    door.world.ready("zebra").await;
    door.world.ready("orders-eu").await;
    let get = || pb::GetPlatformRequest {
        name: "sim".into(),
        ..Default::default()
    };
    let whole = door.platforms("admin").get_platform(get()).await.unwrap();
    let whole = whole.into_inner().platform.unwrap();
    assert_eq!(whole.status.as_ref().unwrap().node_count, 4);
    assert!(!whole.spec.unwrap().endpoint.is_empty());

    let mut orders = door.platforms("orders");
    let mine = orders.get_platform(get()).await.unwrap().into_inner();
    let mine = mine.platform.unwrap();
    let listed = orders
        .list_platforms(pb::ListPlatformsRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(listed.platforms, std::slice::from_ref(&mine));
    assert!(mine.spec.is_none());
    let status = mine.status.unwrap();
    assert_eq!(status.phase(), pb::PlatformPhase::Ready);
    assert_eq!(status.node_count, 1, "those of orders-eu");
    assert!(status.uid.is_empty() && status.message.is_empty());
    let handshake = status.handshake.unwrap();
    assert!(handshake.uid.is_empty() && handshake.scope.is_empty());
    // What manifests need is visible.
    let offered = whole.status.unwrap().handshake.unwrap();
    assert_eq!(handshake.templates, offered.templates);
    assert_eq!(handshake.capabilities, offered.capabilities);

    let hosts = pb::ListHostsRequest {
        platform: "sim".into(),
        ..Default::default()
    };
    refused(orders.list_hosts(hosts).await, Reason::CapabilityMissing);
    door.stop().await;
}
