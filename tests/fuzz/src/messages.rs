//! Generator of messages of any type: random ones, mutated valid ones, and bytes that are not messages.

use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor,
    ReflectMessage, Value, prost::Message,
};

/// Strings with a meaning in some field.
const WORDS: [&str; 28] = [
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
    "redis",
    "7.2",
    "{{ secrets.p }}",
    "-1",
    "1e999",
    "NaN",
    "orders-p",
    "k",
    "\u{202e}x",
    "k8s-*",
    "^99999999999999999999",
    "host:65536",
    "[::1]:0",
    "2026-01-01T00:00:00Z",
];

/// A request body.
pub(crate) struct Input {
    pub(crate) what: &'static str,
    /// Encoded and framed for the wire.
    pub(crate) body: Vec<u8>,
    /// Whether it is a valid message of the type: a response that reports an internal error is then a bug.
    pub(crate) valid: bool,
}

/// A deterministic generator: its output depends only on the state of `rng`.
pub(crate) struct Random {
    pub(crate) rng: fastrand::Rng,
    /// Existing names and ids.
    words: Vec<String>,
}

impl Random {
    pub(crate) fn new(rng: fastrand::Rng, words: &[String]) -> Self {
        Self {
            rng,
            words: words.to_vec(),
        }
    }

    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.rng.usize(0..of.len())]
    }

    fn text(&mut self) -> String {
        match self.rng.u32(0..40) {
            0 => "x".repeat(self.rng.usize(0..100_000)),
            1..4 => (0..self.rng.usize(0..20))
                .map(|_| self.rng.char(..))
                .collect(),
            4..16 if !self.words.is_empty() => {
                let at = self.rng.usize(0..self.words.len());
                self.words[at].clone()
            }
            _ => (*self.pick(&WORDS)).to_owned(),
        }
    }

    fn number(&mut self) -> u64 {
        match self.rng.u32(0..4) {
            0 => 0,
            1 => u64::MAX >> self.rng.u32(0..64),
            _ => self.rng.u64(0..5),
        }
    }

    fn enumeration(&mut self, of: &EnumDescriptor) -> i32 {
        let known: Vec<i32> = of.values().map(|value| value.number()).collect();
        if self.rng.u32(0..10) == 0 {
            self.rng.i32(..)
        } else {
            *self.pick(&known)
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        reason = "any bits will do"
    )]
    fn value(&mut self, kind: &Kind, depth: u32) -> Value {
        match kind {
            Kind::Double => Value::F64(f64::from_bits(self.rng.u64(..))),
            Kind::Float => Value::F32(f32::from_bits(self.rng.u32(..))),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(self.number() as i32),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(self.number() as i64),
            Kind::Uint32 | Kind::Fixed32 => Value::U32(self.number() as u32),
            Kind::Uint64 | Kind::Fixed64 => Value::U64(self.number()),
            Kind::Bool => Value::Bool(self.rng.bool()),
            Kind::String => Value::String(self.text()),
            Kind::Bytes => Value::Bytes(self.text().into_bytes().into()),
            Kind::Message(of) => Value::Message(self.message(of, depth + 1)),
            Kind::Enum(of) => Value::EnumNumber(self.enumeration(of)),
        }
    }

    fn field(&mut self, field: &FieldDescriptor, depth: u32) -> Value {
        if let (true, Kind::Message(entry)) = (field.is_map(), field.kind()) {
            let value = entry.map_entry_value_field().kind();
            let entries = (0..self.rng.u32(0..3))
                .map(|_| (MapKey::String(self.text()), self.value(&value, depth)));
            return Value::Map(entries.collect());
        }
        if field.is_list() {
            let most = if depth < 3 { 4 } else { 2 };
            return Value::List(
                (0..self.rng.u32(0..most))
                    .map(|_| self.value(&field.kind(), depth))
                    .collect(),
            );
        }
        self.value(&field.kind(), depth)
    }

    /// A random message of a type.
    pub(crate) fn message(&mut self, of: &MessageDescriptor, depth: u32) -> DynamicMessage {
        let mut message = DynamicMessage::new(of.clone());
        for field in of.fields() {
            let share = if depth == 0 {
                80
            } else {
                35_u32.saturating_sub(depth * 4)
            };
            if self.rng.u32(0..100) < share {
                let value = self.field(&field, depth);
                message.set_field(&field, value);
            }
        }
        message
    }

    /// Mutates a message at a random depth.
    pub(crate) fn change(&mut self, message: &mut DynamicMessage, depth: u32) {
        let all: Vec<FieldDescriptor> = message.descriptor().fields().collect();
        let set: Vec<FieldDescriptor> = all
            .iter()
            .filter(|field| message.has_field(field))
            .cloned()
            .collect();
        if !set.is_empty() && self.rng.u32(0..5) > 0 {
            let field = self.pick(&set).clone();
            if self.rng.u32(0..8) == 0 {
                message.clear_field(&field);
            } else {
                self.change_value(message.get_field_mut(&field), &field.kind(), depth);
            }
        } else if !all.is_empty() {
            let field = self.pick(&all).clone();
            let value = self.field(&field, depth + 1);
            message.set_field(&field, value);
        }
    }

    fn change_value(&mut self, value: &mut Value, kind: &Kind, depth: u32) {
        match value {
            Value::Message(inner) => self.change(inner, depth + 1),
            Value::Map(entries) => {
                let inner = match kind {
                    Kind::Message(entry) => entry.map_entry_value_field().kind(),
                    other => other.clone(),
                };
                let at = self.rng.usize(0..=entries.len());
                match entries.values_mut().nth(at) {
                    Some(one) => self.change_value(one, &inner, depth + 1),
                    None => {
                        let (key, one) = (self.text(), self.value(&inner, depth + 1));
                        entries.insert(MapKey::String(key), one);
                    }
                }
            }
            Value::List(items) => {
                let at = self.rng.usize(0..=items.len());
                match (items.get_mut(at), self.rng.u32(0..8)) {
                    (Some(one), 0) => {
                        let again = one.clone();
                        items.push(again);
                    }
                    (Some(_), 1) => {
                        items.remove(at);
                    }
                    (Some(one), _) => self.change_value(one, kind, depth + 1),
                    (None, _) => items.push(self.value(kind, depth + 1)),
                }
            }
            other => *other = self.value(kind, depth),
        }
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.rng.usize(0..most))
            .map(|_| self.rng.u8(..))
            .collect()
    }

    /// Mutates a few of the bytes.
    fn broken(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        for _ in 0..self.rng.u32(1..4) {
            if !bytes.is_empty() {
                let at = self.rng.usize(0..bytes.len());
                bytes[at] = self.rng.u8(..);
            }
        }
        bytes
    }

    /// An input for a method with this request type, mostly derived from a valid message.
    pub(crate) fn input(
        &mut self,
        of: Option<&MessageDescriptor>,
        valid: &[DynamicMessage],
    ) -> Input {
        let Some(of) = of else {
            let bytes = self.bytes(200);
            return Input {
                what: "random",
                body: framed(&bytes),
                valid: false,
            };
        };
        let message = if valid.is_empty() || self.rng.u32(0..3) == 0 {
            self.message(of, 0)
        } else {
            let mut message = self.pick(valid).clone();
            for _ in 0..self.rng.u32(0..4) {
                self.change(&mut message, 0);
            }
            message
        };
        let message = message.encode_to_vec();
        let (what, body, valid) = match self.rng.u32(0..100) {
            0..70 => ("valid", framed(&message), true),
            70..72 => ("empty", framed(&[]), true),
            72..87 => ("broken", framed(&self.broken(message)), false),
            87..92 => ("random", framed(&self.bytes(200)), false),
            92..94 => ("deep", framed(&deep(self.rng.usize(0..20_000))), false),
            94..97 => {
                let end = self.rng.usize(0..=message.len());
                ("cut", framed(&message)[..end].to_owned(), false)
            }
            _ => ("unframed", self.bytes(200), false),
        };
        Input { what, body, valid }
    }
}

/// Nested fields, to a depth of `levels`.
fn deep(levels: usize) -> Vec<u8> {
    // Field 1 with a length that exceeds the rest: a decoder must stop at some point.
    [0x0a, 0x7f].repeat(levels)
}

/// Adds the frame of gRPC to a message.
pub(crate) fn framed(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let mut body = vec![0];
    body.extend(length.to_be_bytes());
    body.extend(bytes);
    body
}
