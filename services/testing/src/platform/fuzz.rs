use std::time::Duration;

use bytes::{Buf, BufMut};
use drover_client::Channel;
use drover_core::{Error, Reason};
use drover_proto::platform::v1::{
    DeprovisionRequest, DiscoverRequest, Fence, Placement, ProvisionRequest, Spread,
    UpdateNodeRequest, update_node_request::Update,
};
use prost_types::{Struct, Value, value::Kind};
use tonic::{
    Code, Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
};
use uuid::Uuid;

use super::{
    Subject,
    fixture::{Fixture, client, error, handshake, partition},
};

/// Prints its seed, so that `DROVER_SEED` can reproduce a failure.
pub(super) fn random() -> fastrand::Rng {
    fastrand::Rng::with_seed(crate::seed::seed())
}

pub(super) fn text(random: &mut fastrand::Rng) -> String {
    match random.u8(0..8) {
        0 => String::new(),
        1 => Uuid::from_u128(random.u128(..)).to_string(),
        2 => "x".repeat(random.usize(0..2000)),
        3 => "../../etc".to_owned(),
        4 => "\u{0}\n\t".to_owned(),
        5 => "{{ 7 * 7 }}".to_owned(),
        6 => (0..random.usize(0..40)).map(|_| random.char(..)).collect(),
        _ => "db".to_owned(),
    }
}

fn value(random: &mut fastrand::Rng, depth: u8) -> Value {
    let kind = match random.u8(0..if depth == 0 { 4 } else { 6 }) {
        0 => Kind::NullValue(random.i32(-1..2)),
        1 => Kind::NumberValue(f64::from_bits(random.u64(..))),
        2 => Kind::StringValue(text(random)),
        3 => Kind::BoolValue(random.bool()),
        4 => Kind::StructValue(object(random, depth - 1)),
        _ => Kind::ListValue(prost_types::ListValue {
            values: (0..random.u8(0..4))
                .map(|_| value(random, depth - 1))
                .collect(),
        }),
    };
    Value { kind: Some(kind) }
}

pub(super) fn object(random: &mut fastrand::Rng, depth: u8) -> Struct {
    Struct {
        fields: (0..random.u8(0..4))
            .map(|_| (text(random), value(random, depth)))
            .collect(),
    }
}

/// Randomizes some fields of a valid request.
fn spoil(request: &mut ProvisionRequest, random: &mut fastrand::Rng) {
    for _ in 0..random.u8(1..4) {
        let slot = random.usize(0..request.slots.len().max(1));
        match random.u8(0..20) {
            0 => request.owner = text(random),
            1 => request.request_id = text(random),
            2 => request.sequence = random.u64(..),
            3 => request.spec_hash = text(random),
            4 => request.fence = Some(fence(random)),
            5 => request.slots.truncate(random.usize(0..3)),
            6 => request.validate_only = random.bool(),
            7 => request.expected_instance_id = text(random),
            8 => request.expected_platform_uid = text(random),
            9..=12 => {
                let Some(slot) = request.slots.get_mut(slot) else {
                    continue;
                };
                match random.u8(0..6) {
                    0 => slot.index = Some(random.u32(..)),
                    1 => slot.id = text(random),
                    2 => slot.name = text(random),
                    3 => slot.ordinal = Some(random.u32(..)),
                    4 => slot.role = random.i32(..),
                    _ => slot.host_id = Some(text(random)),
                }
            }
            13..=15 => {
                let Some(cluster) = &mut request.cluster else {
                    continue;
                };
                match random.u8(0..5) {
                    0 => cluster.id = text(random),
                    1 => cluster.store = text(random),
                    2 => cluster.version = text(random),
                    3 => cluster.attributes = Some(object(random, 4)),
                    _ => {
                        cluster.labels = (0..random.u8(0..80))
                            .map(|_| (text(random), text(random)))
                            .collect()
                    }
                }
            }
            _ => {
                let Some(group) = &mut request.group else {
                    continue;
                };
                match random.u8(0..6) {
                    0 => group.path = text(random),
                    1 => group.node_class = text(random),
                    2 => group.version = text(random),
                    3 => group.properties = Some(object(random, 4)),
                    4 => group.attributes = Some(object(random, 4)),
                    _ => {
                        let spread = Spread {
                            topology_key: text(random),
                            max_skew: Some(random.u32(0..3)),
                            when_unsatisfiable: random.i32(-1..4),
                            max_per_domain: random.bool().then(|| random.u32(0..3)),
                            scope: random.i32(-1..4),
                        };
                        group.placement = Some(Placement {
                            spread: vec![spread],
                            failure_domains: (0..random.u8(0..3)).map(|_| text(random)).collect(),
                            ..Placement::default()
                        });
                    }
                }
            }
        }
    }
}

fn fence(random: &mut fastrand::Rng) -> Fence {
    Fence {
        store_id: text(random),
        shard: random.u32(..),
        epoch: random.u64(..),
    }
}

/// Asserts that an error is allowed for an invalid request, which a bug on the server's side is not.
pub(super) fn documented(error: &Error, what: &str) {
    let allowed = matches!(
        error.reason(),
        Reason::Invalid
            | Reason::NotFound
            | Reason::Precondition
            | Reason::PlatformMismatch
            | Reason::PlatformRestarted
            | Reason::Fenced
            | Reason::RequestIdReused
            | Reason::NodeNotInCluster
            | Reason::SlotMismatch
            | Reason::TemplateNotFound
            | Reason::NodeClassNotFound
            | Reason::HostNotFound
            | Reason::HostClaimed
            | Reason::NoCapacity
            | Reason::QuotaExceeded
            | Reason::CapabilityMissing
            | Reason::Unimplemented
            | Reason::PageTokenExpired
            | Reason::Immutable
            | Reason::NotOwned
    );
    assert!(allowed, "{what} is answered with {error:?}");
}

pub(super) async fn random_requests_get_documented_answers(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    let mut random = random();
    for _ in 0..subject.fuzz_rounds {
        let mut request = fixture.request(2);
        spoil(&mut request, &mut random);
        match fixture.provision(&request).await {
            Ok(answer) if request.validate_only => assert!(answer.nodes.is_empty()),
            Ok(answer) => partition(&request, &answer),
            Err(error) => documented(&error, &format!("{request:?}")),
        }
        let removal = DeprovisionRequest {
            expected_platform_uid: fixture.platform.uid.clone(),
            fence: Some(if random.bool() {
                fixture.fence()
            } else {
                fence(&mut random)
            }),
            request_id: Uuid::new_v4().to_string(),
            owner: if random.bool() {
                fixture.owner.to_string()
            } else {
                text(&mut random)
            },
            cluster_id: text(&mut random),
            node_request_id: Uuid::new_v4().to_string(),
            index: Some(random.u32(..)),
            node_id: text(&mut random),
            ..DeprovisionRequest::default()
        };
        if let Err(error) = fixture.deprovision(&removal).await {
            documented(&error, &format!("{removal:?}"));
        }
        let update = UpdateNodeRequest {
            expected_platform_uid: fixture.platform.uid.clone(),
            fence: Some(fixture.fence()),
            node_id: text(&mut random),
            expected_cluster_id: text(&mut random),
            update: Some(if random.bool() {
                Update::Change(drover_proto::platform::v1::NodeChange {
                    role: random.i32(..),
                    ..Default::default()
                })
            } else {
                Update::Adoption(drover_proto::platform::v1::NodeAdoption::default())
            }),
            ..UpdateNodeRequest::default()
        };
        if let Err(error) = fixture.update(&update).await {
            documented(&error, &format!("{update:?}"));
        }
        let discover = DiscoverRequest {
            cluster_id: text(&mut random),
            page_size: random.i32(..),
            page_token: text(&mut random),
            node_ids: (0..random.u8(0..3)).map(|_| text(&mut random)).collect(),
            ..DiscoverRequest::default()
        };
        if let Err(error) = fixture.discover(discover.clone()).await {
            documented(&error, &format!("{discover:?}"));
        }
    }
    clean_all(&fixture).await;
}

/// Removes everything that random but valid requests created, in any cluster.
async fn clean_all(fixture: &Fixture<'_>) {
    for node in fixture.list("", 0).await {
        let Some(slot) = node
            .slot
            .clone()
            .filter(|_| node.store_id == fixture.store_id.to_string())
        else {
            continue;
        };
        let made_by = ProvisionRequest {
            owner: slot.owner,
            request_id: slot.request_id,
            ..ProvisionRequest::default()
        };
        let mut removal = fixture.removal(&made_by, &node);
        removal.fence = Some(Fence {
            epoch: u64::MAX,
            ..fixture.fence()
        });
        error(client(fixture.subject).deprovision(removal).await)
            .expect("an own node can be removed");
    }
}

pub(super) async fn random_bytes_get_an_answer(subject: &Subject) {
    let mut random = random();
    let calls = [
        "GetPlatform",
        "Discover",
        "Fence",
        "Provision",
        "Deprovision",
        "UpdateNode",
    ];
    for round in 0..subject.fuzz_rounds {
        let bytes: Vec<u8> = (0..random.usize(0..64)).map(|_| random.u8(..)).collect();
        let call = calls[round % calls.len()];
        let outcome = tokio::time::timeout(
            Duration::from_secs(30),
            raw((subject.connect)(), call, bytes.clone()),
        )
        .await;
        let outcome =
            outcome.unwrap_or_else(|_| panic!("{call} with {bytes:02x?} is not answered"));
        if let Err(status) = outcome {
            // gRPC libraries return INTERNAL for bytes that are not a message.
            assert_ne!(
                status.code(),
                Code::Unknown,
                "{call} with {bytes:02x?}: {status:?}"
            );
        }
    }
    handshake(subject).await;
}

async fn raw(channel: Channel, call: &str, bytes: Vec<u8>) -> Result<(), Status> {
    let path: PathAndQuery = format!("/drover.platform.v1.PlatformService/{call}")
        .parse()
        .unwrap();
    let mut grpc = Grpc::new(channel);
    grpc.ready()
        .await
        .map_err(|error| Status::unavailable(error.to_string()))?;
    grpc.unary(Request::new(bytes), path, Raw).await.map(drop)
}

/// Passes bytes through unchanged.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
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
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining()).to_vec()))
    }
}
