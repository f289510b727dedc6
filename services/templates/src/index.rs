//! The format of `index.yaml`.

use std::{collections::BTreeMap, time::Duration};

use drover_core::{Error, Result};
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

use crate::version::Requirement;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IndexFile {
    #[serde(default)]
    pub(crate) default: Option<EntryFile>,
    #[serde(default)]
    pub(crate) stores: Vec<StoreFile>,
    #[serde(default)]
    pub(crate) addons: Vec<AddonFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoreFile {
    pub(crate) store: Spanned<String>,
    pub(crate) versions: Vec<VersionFile>,
}

/// The fields that every kind of entry has. Repeated in each, because flattening and unknown fields exclude each other.
macro_rules! entry_file {
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "camelCase")]
        pub(crate) struct $name {
            $($(#[$field_meta])* pub(crate) $field: $type,)*
            pub(crate) template: Spanned<String>,
            #[serde(default)]
            pub(crate) options: Map<String, Value>,
            #[serde(default)]
            pub(crate) ports: Vec<String>,
            #[serde(default)]
            pub(crate) health: Option<Spanned<Health>>,
            #[serde(default)]
            pub(crate) management_policy: Option<ManagementPolicy>,
            #[serde(default)]
            pub(crate) lifecycle: Option<Lifecycle>,
        }
    };
}

entry_file!(EntryFile {});
entry_file!(VersionFile {
    version: Requirement,
    #[serde(default)]
    matchers: BTreeMap<String, Matcher>,
});
entry_file!(AddonFile {
    name: Spanned<String>,
});

/// What an attribute must be.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(from = "Value")]
pub enum Matcher {
    /// This value.
    Value(Value),
    /// One of these values.
    OneOf(Vec<Value>),
}

impl From<Value> for Matcher {
    fn from(value: Value) -> Self {
        match value {
            Value::Array(values) => Self::OneOf(values),
            value => Self::Value(value),
        }
    }
}

impl Matcher {
    /// Whether an attribute has an accepted value. An absent one equals only null.
    #[must_use]
    pub fn accepts(&self, attribute: Option<&Value>) -> bool {
        let attribute = attribute.unwrap_or(&Value::Null);
        match self {
            Self::Value(value) => equal(value, attribute),
            Self::OneOf(values) => values.iter().any(|value| equal(value, attribute)),
        }
    }

    /// The matcher as JSON: the value, or the list.
    #[must_use]
    pub fn to_value(&self) -> Value {
        match self {
            Self::Value(value) => value.clone(),
            Self::OneOf(values) => Value::Array(values.clone()),
        }
    }
}

/// Numbers compare by value: 2 and 2.0 are the same for whoever writes them.
fn equal(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

/// When a node counts as healthy, as its template suggests. Absent fields: no suggestion.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(try_from = "HealthFile")]
pub struct Health {
    /// How it is asked.
    pub probe: Option<Probe>,
    /// Time between two probes.
    pub interval: Option<Duration>,
    /// Time that a probe may take.
    pub timeout: Option<Duration>,
    /// Failed probes in a row that make a node Unhealthy.
    pub failure_threshold: Option<u32>,
    /// Good probes in a row that make it Ready.
    pub success_threshold: Option<u32>,
    /// Time from running to Ready before a node is sick.
    pub startup_timeout: Option<Duration>,
}

/// How a node is asked for its health. An absent port is that of the agent address.
#[derive(Clone, Debug, PartialEq)]
pub enum Probe {
    /// Only the platform is asked.
    Phase,
    /// grpc.health.v1.
    Grpc {
        /// Port.
        port: Option<Port>,
        /// Service; empty: the whole server.
        service: String,
    },
    /// HTTP GET.
    Http {
        /// Port.
        port: Option<Port>,
        /// Path; empty: /healthz.
        path: String,
        /// By https.
        tls: bool,
    },
    /// A TCP connection.
    Tcp {
        /// Port.
        port: Option<Port>,
    },
    /// A command inside the node.
    Exec {
        /// Command and arguments.
        command: Vec<String>,
    },
}

impl Probe {
    /// The port that it names.
    #[must_use]
    pub fn port(&self) -> Option<&Port> {
        match self {
            Self::Grpc { port, .. } | Self::Http { port, .. } | Self::Tcp { port } => port.as_ref(),
            Self::Phase | Self::Exec { .. } => None,
        }
    }
}

/// A port of a node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Port {
    /// By number.
    Number(u16),
    /// By name.
    Name(String),
}

/// In which order the nodes of a group are made and removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum ManagementPolicy {
    /// One at a time, each waiting for the one before to be Ready.
    OrderedReady,
    /// As many at a time as limits allow.
    Parallel,
}

/// What is run inside a node at turns of its life.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Lifecycle {
    /// Before it is removed.
    #[serde(default)]
    pub pre_stop: Option<Hook>,
    /// After it was promoted.
    #[serde(default)]
    pub post_promote: Option<Hook>,
}

/// A command that is run inside a node.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Hook {
    /// Command and arguments, without a shell.
    pub exec: Vec<String>,
    /// Time that it may take.
    #[serde(default, deserialize_with = "optional_duration")]
    pub timeout: Option<Duration>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct HealthFile {
    #[serde(default)]
    phase: Option<PhaseFile>,
    #[serde(default)]
    grpc: Option<GrpcFile>,
    #[serde(default)]
    http: Option<HttpFile>,
    #[serde(default)]
    tcp: Option<TcpFile>,
    #[serde(default)]
    exec: Option<ExecFile>,
    #[serde(default, deserialize_with = "optional_duration")]
    interval: Option<Duration>,
    #[serde(default, deserialize_with = "optional_duration")]
    timeout: Option<Duration>,
    #[serde(default)]
    failure_threshold: Option<u32>,
    #[serde(default)]
    success_threshold: Option<u32>,
    #[serde(default, deserialize_with = "optional_duration")]
    startup_timeout: Option<Duration>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PhaseFile {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GrpcFile {
    #[serde(default)]
    port: Option<Port>,
    #[serde(default)]
    service: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpFile {
    #[serde(default)]
    port: Option<Port>,
    #[serde(default)]
    path: String,
    #[serde(default)]
    tls: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TcpFile {
    #[serde(default)]
    port: Option<Port>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExecFile {
    command: Vec<String>,
}

impl TryFrom<HealthFile> for Health {
    type Error = Error;

    fn try_from(file: HealthFile) -> Result<Self> {
        let mut probes = [
            file.phase.map(|PhaseFile {}| Probe::Phase),
            file.grpc
                .map(|GrpcFile { port, service }| Probe::Grpc { port, service }),
            file.http
                .map(|HttpFile { port, path, tls }| Probe::Http { port, path, tls }),
            file.tcp.map(|TcpFile { port }| Probe::Tcp { port }),
            file.exec
                .map(|ExecFile { command }| Probe::Exec { command }),
        ]
        .into_iter()
        .flatten();
        let probe = probes.next();
        if probes.next().is_some() {
            return Err(Error::invalid(
                "health",
                "at most one of phase, grpc, http, tcp and exec",
            ));
        }
        Ok(Self {
            probe,
            interval: file.interval,
            timeout: file.timeout,
            failure_threshold: file.failure_threshold,
            success_threshold: file.success_threshold,
            startup_timeout: file.startup_timeout,
        })
    }
}

fn optional_duration<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else {
        return Ok(None);
    };
    duration(&text)
        .map(Some)
        .ok_or_else(|| de::Error::custom("expected a time such as 500ms, 10s, 5m or 1h"))
}

fn duration(text: &str) -> Option<Duration> {
    let unit = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit);
    let number = number.parse::<u64>().ok()?;
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => number.checked_mul(60).map(Duration::from_secs),
        "h" => number.checked_mul(3600).map(Duration::from_secs),
        _ => None,
    }
}
