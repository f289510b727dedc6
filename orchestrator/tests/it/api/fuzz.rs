//! Whatever is sent, the answer is a documented one and the server goes on.

use std::collections::BTreeSet;

use drover_proto::DESCRIPTORS;
use http_body_util::{BodyExt, Full};
use prost_reflect::{
    DescriptorPool, DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey,
    MessageDescriptor, Value, prost::Message,
};
use tonic::Code;
use tower::Service;

use crate::api::support::{World, document};

/// Rounds over all methods, unless `DROVER_FUZZ_ROUNDS` says otherwise.
const ROUNDS: u32 = 40;
const SERVICES: [&str; 3] = [
    "drover.orchestrator.v1.ClusterService",
    "drover.orchestrator.v1.PlatformRegistryService",
    "drover.orchestrator.v1.SecretService",
];

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// Random valid messages, with names that exist among those that do not.
struct Random(fastrand::Rng);

impl Random {
    fn text(&mut self) -> String {
        const WORDS: [&str; 14] = [
            "orders",
            "db",
            "db-1",
            "sim",
            "a/b",
            "http://sim",
            "",
            "ä\u{0}\n",
            "../..",
            "after:",
            "after:1",
            "*",
            "spec",
            "zone",
        ];
        match self.0.u32(0..12) {
            0 => "x".repeat(self.0.usize(0..100_000)),
            1 => (0..self.0.usize(0..20)).map(|_| self.0.char(..)).collect(),
            _ => WORDS[self.0.usize(0..WORDS.len())].to_owned(),
        }
    }

    fn number(&mut self) -> u64 {
        match self.0.u32(0..4) {
            0 => 0,
            1 => u64::MAX >> self.0.u32(0..64),
            _ => self.0.u64(0..5),
        }
    }

    fn enumeration(&mut self, of: &EnumDescriptor) -> i32 {
        let known: Vec<i32> = of.values().map(|value| value.number()).collect();
        if self.0.u32(0..10) == 0 {
            self.0.i32(..)
        } else {
            known[self.0.usize(0..known.len())]
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        reason = "any bits will do"
    )]
    fn value(&mut self, kind: &Kind, depth: u32) -> Value {
        match kind {
            Kind::Double => Value::F64(f64::from_bits(self.0.u64(..))),
            Kind::Float => Value::F32(f32::from_bits(self.0.u32(..))),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(self.number() as i32),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(self.number() as i64),
            Kind::Uint32 | Kind::Fixed32 => Value::U32(self.number() as u32),
            Kind::Uint64 | Kind::Fixed64 => Value::U64(self.number()),
            Kind::Bool => Value::Bool(self.0.bool()),
            Kind::String => Value::String(self.text()),
            Kind::Bytes => Value::Bytes(self.text().into_bytes().into()),
            Kind::Message(of) => Value::Message(self.message(of, depth + 1)),
            Kind::Enum(of) => Value::EnumNumber(self.enumeration(of)),
        }
    }

    fn field(&mut self, field: &FieldDescriptor, depth: u32) -> Value {
        if let (true, Kind::Message(entry)) = (field.is_map(), field.kind()) {
            let value = entry.map_entry_value_field().kind();
            let entries = (0..self.0.u32(0..3))
                .map(|_| (MapKey::String(self.text()), self.value(&value, depth)));
            return Value::Map(entries.collect());
        }
        if field.is_list() {
            let most = if depth < 3 { 4 } else { 2 };
            return Value::List(
                (0..self.0.u32(0..most))
                    .map(|_| self.value(&field.kind(), depth))
                    .collect(),
            );
        }
        self.value(&field.kind(), depth)
    }

    fn message(&mut self, of: &MessageDescriptor, depth: u32) -> DynamicMessage {
        let mut message = DynamicMessage::new(of.clone());
        for field in of.fields() {
            let share = if depth == 0 {
                80
            } else {
                35_u32.saturating_sub(depth * 4)
            };
            if self.0.u32(0..100) < share {
                let value = self.field(&field, depth);
                message.set_field(&field, value);
            }
        }
        message
    }

    fn bytes(&mut self) -> Vec<u8> {
        (0..self.0.usize(0..200)).map(|_| self.0.u8(..)).collect()
    }

    /// A message with a few bytes that are others.
    fn broken(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        for _ in 0..self.0.u32(1..4) {
            if !bytes.is_empty() {
                let at = self.0.usize(0..bytes.len());
                bytes[at] = self.0.u8(..);
            }
        }
        bytes
    }
}

/// The code of the answer, and of what a stream ends with at once.
async fn call(channel: &mut drover_client::Channel, path: &str, body: Vec<u8>) -> Code {
    let request = http::Request::post(format!("http://test{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", "5S")
        .body(tonic::body::Body::new(Full::from(body)))
        .unwrap();
    let response = channel.call(request).await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    if let Some(status) = tonic::Status::from_header_map(response.headers()) {
        return status.code();
    }
    let mut body = response.into_body();
    // A watch goes on; its first message is answer enough.
    while let Some(frame) = body.frame().await {
        let frame = frame.unwrap();
        match frame.into_trailers() {
            Ok(trailers) => {
                return tonic::Status::from_header_map(&trailers)
                    .map_or(Code::Unknown, |s| s.code());
            }
            Err(data) if path.contains("/Watch") && data.is_data() => return Code::Ok,
            Err(_) => {}
        }
    }
    panic!("{path} ended without a status");
}

/// A message as it is framed.
fn framed(bytes: &[u8]) -> Vec<u8> {
    let mut body = vec![0];
    body.extend(u32::try_from(bytes.len()).unwrap().to_be_bytes());
    body.extend(bytes);
    body
}

#[tokio::test]
async fn no_input_is_answered_with_a_defect() {
    let seed = setting("DROVER_FUZZ_SEED", fastrand::u64(..));
    let rounds = u32::try_from(setting("DROVER_FUZZ_ROUNDS", u64::from(ROUNDS))).unwrap();
    eprintln!("DROVER_FUZZ_SEED={seed} DROVER_FUZZ_ROUNDS={rounds}");
    let mut random = Random(fastrand::Rng::with_seed(seed));
    let world = World::new().await;
    world.apply(document("orders", &[("db", 2)])).await.unwrap();
    world.ready("orders").await;
    let pool = DescriptorPool::decode(DESCRIPTORS).unwrap();
    let mut channel = world.channel();
    let mut codes = BTreeSet::new();
    for round in 0..rounds {
        for service in SERVICES {
            for method in pool.get_service_by_name(service).unwrap().methods() {
                let path = format!("/{service}/{}", method.name());
                let message = random.message(&method.input(), 0).encode_to_vec();
                let broken = random.broken(message.clone());
                let raw = random.bytes();
                let cut = framed(&message)[..random.0.usize(0..=message.len())].to_vec();
                // Bytes that are no frame are no message of any method: tonic answers those itself.
                for (what, body, strict) in [
                    ("valid", framed(&message), true),
                    ("empty", framed(&[]), true),
                    ("broken", framed(&broken), false),
                    ("random", framed(&raw), false),
                    ("cut", cut, false),
                    ("unframed", raw.clone(), false),
                ] {
                    let code = call(&mut channel, &path, body).await;
                    codes.insert(format!("{code:?}"));
                    let bad = matches!(code, Code::Unknown | Code::DataLoss)
                        || (strict && code == Code::Internal);
                    assert!(!bad, "seed {seed}, round {round}, {what} {path}: {code:?}");
                }
            }
        }
    }
    eprintln!("answered with {codes:?}");
    // It is as well as before: a cluster can be made and kept.
    let _ = world.register("sim", "http://sim").await;
    world
        .apply(document("afterwards", &[("db", 2)]))
        .await
        .unwrap();
    world.ready("afterwards").await;
    world.stop().await;
}
