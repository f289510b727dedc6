//! Notation of proto messages in manifests. The protos define the fields and their meaning; this module only defines
//! the differences in notation.

use std::sync::LazyLock;

use drover_proto::DESCRIPTORS;
use prost_reflect::{DescriptorPool, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};

use super::Error;

/// Descriptors of all protos.
pub(crate) static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).unwrap_or_default());

/// A message of the protos, by its full name.
pub fn message(name: &str) -> Result<MessageDescriptor, Error> {
    POOL.get_message_by_name(name)
        .ok_or_else(|| Error::NoMessage(name.to_owned()))
}

/// Notation of a value.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    Text,
    Bool,
    Integer {
        max: u64,
    },
    /// For example `30s`, `1h30m`.
    Duration,
    /// Any value (`google.protobuf.Struct`).
    Free,
    /// A number, or `40%`.
    Amount,
    /// A port number, or the name of an endpoint.
    Port,
    /// For example `50Gi`.
    Quantity,
    /// Bytes as base64.
    Base64,
    Enum(EnumDescriptor),
    Message(MessageDescriptor),
    List(Box<Shape>),
    TextMap,
    /// Groups by name, in order.
    Groups(MessageDescriptor),
    /// A list of platforms; a name alone stands for one without settings.
    Platforms(MessageDescriptor),
    /// The short form of `platforms`: one name.
    PlatformName,
    /// `{file: PATH}`, which this program reads.
    File,
    /// `{file: PATH}` or `{secretKeyRef: …}`.
    FileOrSecret,
}

/// A field in the notation of manifests.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) key: String,
    pub(crate) descriptor: FieldDescriptor,
    pub(crate) shape: Shape,
}

/// Fields with another name in manifests.
const RENAMED: &[(&str, &str)] = &[
    ("drover.orchestrator.v1.BootstrapSource.text", "userData"),
    (
        "drover.orchestrator.v1.BootstrapSource.binary",
        "userDataBase64",
    ),
    (
        "drover.orchestrator.v1.BootstrapSource.sha256",
        "userDataSha256",
    ),
    (
        "drover.orchestrator.v1.BootstrapSource.secret_key",
        "secretKeyRef",
    ),
    ("drover.orchestrator.v1.PlatformTls.ca_pem", "ca"),
];

/// Enum values with another name in manifests than in the protos.
const RENAMED_VALUES: &[(&str, &str)] = &[("UPDATE_STRATEGY_ROLLING", "RollingUpdate")];

/// Ranges and defaults as shown to people.
const LIMITS: &[(&str, u64, u64, &str)] = &[
    ("GroupSpec.size", 0, 10_000, "1"),
    ("GroupSpec.standby", 0, 10_000, "0"),
    ("PlatformChoice.max", 0, 10_000, ""),
    ("ClusterSpec.max_in_flight", 1, 10_000, ""),
    ("GroupSpec.max_in_flight", 1, 10_000, ""),
    ("RemediationPolicy.max_retries", 0, 1_000, "3"),
    ("HealthPolicy.failure_threshold", 1, 255, "3"),
    ("HealthPolicy.success_threshold", 1, 255, "1"),
    ("Spread.max_skew", 1, 10_000, "1"),
    ("Spread.max_per_domain", 1, 10_000, ""),
    ("Addon.port", 1, 65_535, ""),
    ("EndpointSpec.port", 1, 65_535, "6443"),
    ("NetworkSpec.prefix_length", 1, 128, ""),
    ("PortMapping.listen", 1, 65_535, ""),
    ("PortMapping.count", 1, 65_535, "1"),
    ("PortRange.first", 1, 65_535, ""),
    ("PortRange.last", 1, 65_535, ""),
    ("JumpHost.port", 1, 65_535, ""),
    ("OidcProvider.port", 1, 65_535, ""),
];

/// Defaults of fields without a range.
const DEFAULTS: &[(&str, &str)] = &[
    ("HealthPolicy.interval", "10s"),
    ("HealthPolicy.timeout", "1s"),
    ("HealthPolicy.startup_timeout", "10m"),
    ("RemediationPolicy.enabled", "true"),
    ("RemediationPolicy.max_unhealthy", "40%"),
    ("RemediationPolicy.create_first", "false"),
    ("UpdatePolicy.max_surge", "1"),
    ("UpdatePolicy.max_unavailable", "0"),
    ("UpdatePolicy.min_ready", "0s"),
    ("UpdatePolicy.progress_deadline", "10m"),
    ("UpdatePolicy.strategy", "RollingUpdate"),
    ("ClusterSpec.termination_grace_period", "30s"),
    ("GroupSpec.termination_grace_period", "30s"),
    ("ClusterSpec.stable_after", "10m"),
    ("GroupSpec.stable_after", "10m"),
    ("ClusterSpec.orphan_grace", "2m"),
    ("ClusterSpec.orphan_policy", "Delete"),
    ("ClusterSpec.deletion_protection", "false"),
    ("GroupSpec.deletion_protection", "false"),
    ("LifecycleHook.timeout", "30s"),
    ("HttpProbe.path", "/healthz"),
    ("Spread.when_unsatisfiable", "ScheduleAnyway"),
    ("Spread.scope", "Group"),
    ("StorageSpec.when_replaced", "Retain"),
    ("StorageSpec.when_scaled", "Retain"),
    ("StorageSpec.when_deleted", "Retain"),
];

/// All fields of a message, in the order of the protos.
pub(crate) fn fields(message: &MessageDescriptor) -> Vec<Field> {
    let mut fields = Vec::new();
    for descriptor in message.fields() {
        // Given by the metadata, or by the key in the map of groups.
        if message.full_name() == "drover.orchestrator.v1.GroupSpec" && descriptor.name() == "name"
        {
            continue;
        }
        let renamed = RENAMED
            .iter()
            .find(|(name, _)| *name == descriptor.full_name());
        let key = renamed.map_or_else(
            || descriptor.json_name().to_owned(),
            |(_, key)| (*key).to_owned(),
        );
        let shape = shape(&descriptor);
        let extra = match (&shape, key.as_str()) {
            (Shape::Platforms(_), _) => Some(("platform", Shape::PlatformName)),
            (_, "userData") => Some(("userDataFrom", Shape::FileOrSecret)),
            (_, "ca") => Some(("caFrom", Shape::File)),
            _ => None,
        };
        if let Some((key, shape)) = extra {
            fields.push(Field {
                key: key.to_owned(),
                descriptor: descriptor.clone(),
                shape,
            });
        }
        fields.push(Field {
            key,
            descriptor,
            shape,
        });
    }
    fields
}

fn shape(field: &FieldDescriptor) -> Shape {
    if field.is_map() {
        return Shape::TextMap;
    }
    let one = match field.kind() {
        Kind::Bool => Shape::Bool,
        Kind::Int32 | Kind::Uint32 | Kind::Sint32 | Kind::Fixed32 | Kind::Sfixed32 => {
            Shape::Integer {
                max: u64::from(u32::MAX),
            }
        }
        Kind::Int64 | Kind::Uint64 | Kind::Sint64 | Kind::Fixed64 | Kind::Sfixed64 => {
            Shape::Integer { max: u64::MAX }
        }
        Kind::Bytes => Shape::Base64,
        Kind::Enum(descriptor) => Shape::Enum(descriptor),
        Kind::String if field.full_name() == "drover.orchestrator.v1.StorageSpec.size" => {
            Shape::Quantity
        }
        // No field of a spec is a floating-point number.
        Kind::String | Kind::Float | Kind::Double => Shape::Text,
        Kind::Message(message) => match message.full_name() {
            "google.protobuf.Duration" => Shape::Duration,
            "google.protobuf.Struct" => Shape::Free,
            "drover.orchestrator.v1.CountOrPercent" => Shape::Amount,
            "drover.platform.v1.PortRef" => Shape::Port,
            "drover.orchestrator.v1.GroupSpec" => return Shape::Groups(message),
            "drover.orchestrator.v1.PlatformChoice" => return Shape::Platforms(message),
            _ => Shape::Message(message),
        },
    };
    if field.is_list() {
        Shape::List(Box::new(one))
    } else {
        one
    }
}

/// The values of an enum in the notation of manifests, with their numbers.
pub(crate) fn enum_values(descriptor: &EnumDescriptor) -> Vec<(String, i32)> {
    let prefix = upper_snake(descriptor.name());
    descriptor
        .values()
        .filter(|value| value.number() != 0)
        .map(|value| {
            let name = RENAMED_VALUES
                .iter()
                .find(|(name, _)| *name == value.name());
            let name = name.map_or_else(
                || pascal(value.name().strip_prefix(&prefix).unwrap_or(value.name())),
                |(_, short)| (*short).to_owned(),
            );
            (name, value.number())
        })
        .collect()
}

/// `RETAIN` of `STORAGE_RETENTION_RETAIN` in the notation of manifests: `Retain`.
#[must_use]
pub fn pascal(name: &str) -> String {
    name.split('_')
        .filter(|word| !word.is_empty())
        .map(|word| {
            let (first, rest) = word.split_at(1);
            format!("{first}{}", rest.to_ascii_lowercase())
        })
        .collect()
}

fn upper_snake(name: &str) -> String {
    let mut out = String::new();
    for (position, c) in name.chars().enumerate() {
        if c.is_ascii_uppercase() && position > 0 {
            out.push('_');
        }
        out.extend(c.to_uppercase());
    }
    out.push('_');
    out
}

fn short_name(field: &FieldDescriptor) -> String {
    format!("{}.{}", field.parent_message().name(), field.name())
}

/// Minimum and maximum of a number.
pub(crate) fn range(field: &Field) -> Option<(u64, u64)> {
    let name = short_name(&field.descriptor);
    LIMITS
        .iter()
        .find(|(field, ..)| *field == name)
        .map(|(_, min, max, _)| (*min, *max))
}

/// Value of an absent field. `None` if it depends on something else.
pub(crate) fn default(field: &Field) -> Option<&'static str> {
    let name = short_name(&field.descriptor);
    let limits = LIMITS
        .iter()
        .find(|(field, ..)| *field == name)
        .map(|(.., default)| *default);
    limits
        .or_else(|| {
            DEFAULTS
                .iter()
                .find(|(field, _)| *field == name)
                .map(|(_, default)| *default)
        })
        .filter(|d| !d.is_empty())
}

/// Description of the expected value, to follow "expected".
pub(crate) fn expectation(field: &Field) -> String {
    let mut text = describe(&field.shape);
    if let Some((min, max)) = range(field) {
        text = format!("{text}, {min} to {max}");
    }
    if let Some(default) = default(field) {
        text = format!("{text}, default {default}");
    }
    text
}

/// Description of a shape, for messages.
pub(crate) fn describe(shape: &Shape) -> String {
    match shape {
        Shape::Text => "a string".into(),
        Shape::Bool => "true or false".into(),
        Shape::Integer { .. } => "a whole number".into(),
        Shape::Duration => "a duration like 30s, 5m or 1h30m".into(),
        Shape::Free => "a map of free-form values".into(),
        Shape::Amount => "a whole number or a share like 40%, at most 100%".into(),
        Shape::Port => "a port number, 1 to 65535, or the name of a port".into(),
        Shape::Quantity => "a quantity like 50Gi".into(),
        Shape::Base64 => "bytes in base64".into(),
        Shape::Enum(descriptor) => {
            let names: Vec<String> = enum_values(descriptor)
                .into_iter()
                .map(|(name, _)| name)
                .collect();
            one_of(&names)
        }
        Shape::Message(_) => "a map".into(),
        Shape::List(item) => match &**item {
            Shape::Text => "a list of strings".into(),
            Shape::Message(_) => "a list of maps".into(),
            other => format!("a list, each {}", describe(other)),
        },
        Shape::TextMap => "a map of strings".into(),
        Shape::Groups(_) => "a map of groups by name".into(),
        Shape::Platforms(_) => "a list of platforms".into(),
        Shape::PlatformName => "the name of a platform".into(),
        Shape::File => "a map {file: PATH}".into(),
        Shape::FileOrSecret => {
            "a map {file: PATH} or {secretKeyRef: {name: NAME, key: KEY}}".into()
        }
    }
}

/// Lists alternatives: `one of A, B, C`.
pub(crate) fn one_of(names: &[String]) -> String {
    match names {
        [one] => one.clone(),
        [first, second] => format!("{first} or {second}"),
        _ => format!("one of {}", names.join(", ")),
    }
}

/// The comment in a proto file about the element at `path`.
pub(crate) fn comment(file: &prost_reflect::FileDescriptor, path: &[i32]) -> String {
    let info = file.file_descriptor_proto().source_code_info.as_ref();
    let location =
        info.and_then(|info| info.location.iter().find(|location| location.path == path));
    let text = location
        .map(|location| location.leading_comments().trim())
        .unwrap_or_default();
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}
