//! The format of `index.yaml`.

use std::{collections::BTreeMap, time::Duration};

use drover_core::{Error, Result, spec::Impairment};
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

use crate::version::Requirement;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IndexFile {
    #[serde(default)]
    pub(crate) default: Option<EntryFile>,
    /// For nodes of stores that have no entry.
    #[serde(default)]
    pub(crate) unlisted: Option<EntryFile>,
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

/// The fields that all kinds of entries share. Repeated in each struct, because serde cannot combine `flatten` with
/// `deny_unknown_fields`.
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
            #[serde(default)]
            pub(crate) limits: Limits,
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

/// A condition on an attribute.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(from = "Value")]
pub enum Matcher {
    /// Must equal this value.
    Value(Value),
    /// Must equal one of these values.
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
    /// Whether an attribute satisfies the matcher. An absent attribute equals only `null`.
    #[must_use]
    pub fn accepts(&self, attribute: Option<&Value>) -> bool {
        let attribute = attribute.unwrap_or(&Value::Null);
        match self {
            Self::Value(value) => equal(value, attribute),
            Self::OneOf(values) => values.iter().any(|value| equal(value, attribute)),
        }
    }

    /// The matcher as JSON: the value or the list.
    #[must_use]
    pub fn to_value(&self) -> Value {
        match self {
            Self::Value(value) => value.clone(),
            Self::OneOf(values) => Value::Array(values.clone()),
        }
    }
}

/// Numbers are compared by value, so that 2 equals 2.0 as users expect.
fn equal(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

/// Default health policy of a template. Absent fields have no default.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(try_from = "HealthFile")]
pub struct Health {
    /// How health is determined.
    pub probe: Option<Probe>,
    /// Interval between two probes.
    pub interval: Option<Duration>,
    /// Timeout of a probe.
    pub timeout: Option<Duration>,
    /// Consecutive failures after which a node is Unhealthy.
    pub failure_threshold: Option<u32>,
    /// Consecutive successes after which a node is Ready.
    pub success_threshold: Option<u32>,
    /// Time from running to Ready, after which a node is considered unhealthy.
    pub startup_timeout: Option<Duration>,
}

/// How the health of a node is probed. Without a port, that of the agent address is used.
#[derive(Clone, Debug, PartialEq)]
pub enum Probe {
    /// Only the platform's phase and readiness.
    Phase,
    /// `grpc.health.v1`.
    Grpc {
        /// Port. `None` for that of the agent address.
        port: Option<Port>,
        /// Service name. Empty for the whole server.
        service: String,
    },
    /// HTTP GET.
    Http {
        /// Port. `None` for that of the agent address.
        port: Option<Port>,
        /// Path. Empty for `/healthz`.
        path: String,
        /// Whether to use https.
        tls: bool,
    },
    /// A TCP connection.
    Tcp {
        /// Port. `None` for that of the agent address.
        port: Option<Port>,
    },
    /// A command inside the node.
    Exec {
        /// Command and arguments, run without a shell.
        command: Vec<String>,
        /// What it may find that a node lacks which serves nevertheless.
        impairments: Vec<Impairment>,
    },
}

impl Probe {
    /// The port of the probe, if it has one.
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
    /// The port number.
    Number(u16),
    /// The port name.
    Name(String),
}

/// What groups may ask of a template. Absent fields have no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Limits {
    /// Maximum number of active nodes.
    #[serde(default)]
    pub max_size: Option<u32>,
    /// Maximum number of standby nodes.
    #[serde(default)]
    pub max_standby: Option<u32>,
    /// Maximum number of active nodes beside standby nodes.
    #[serde(default)]
    pub max_size_with_standby: Option<u32>,
    /// Fields that make no difference to its nodes, so that setting them would promise something untrue.
    #[serde(default)]
    pub ignores: Vec<Ignored>,
}

/// A field of the spec that a template may ignore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Ignored {
    /// The version of the store.
    Version,
    /// The node class.
    NodeClass,
}

/// Order in which the nodes of a group are created and removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum ManagementPolicy {
    /// One at a time, each waiting until the previous one is Ready.
    OrderedReady,
    /// Concurrently, as far as limits allow.
    Parallel,
}

/// Hooks that run inside a node at points of its lifecycle.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Lifecycle {
    /// Before it is removed.
    #[serde(default)]
    pub pre_stop: Option<Hook>,
    /// After it was promoted.
    #[serde(default)]
    pub post_promote: Option<Hook>,
    /// How the active node may acknowledge writes without its standby nodes for a while.
    #[serde(default)]
    pub sole_writer: Option<SoleWriter>,
}

/// How an active node that needs standby nodes to acknowledge anything may go on without them, and how that ends.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SoleWriter {
    /// Gives the permission. `None` if it is never given.
    #[serde(default)]
    pub allow: Option<Hook>,
    /// Ends the permission. Succeeds only when nothing is acknowledged without standby nodes any more.
    pub revoke: Hook,
    /// Attribute of the group that is the number of standby nodes it needs. Empty for 1.
    #[serde(default)]
    pub standbys_attribute: String,
}

/// A command that runs inside a node.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Hook {
    /// Command and arguments, run without a shell.
    pub exec: Vec<String>,
    /// Timeout of the command.
    #[serde(default, deserialize_with = "optional_duration")]
    pub timeout: Option<Duration>,
    /// Of a promotion: whether it succeeds only when the former active node can acknowledge nothing any more.
    #[serde(default)]
    pub fences: bool,
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
    #[serde(default)]
    impairments: Vec<ImpairmentFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ImpairmentFile {
    reason: String,
    #[serde(default)]
    message: String,
}

impl ExecFile {
    fn read(self) -> Result<Probe> {
        let read = |one: ImpairmentFile| Impairment {
            reason: one.reason.as_str().into(),
            message: one.message.into(),
        };
        let impairments: Vec<Impairment> = self.impairments.into_iter().map(read).collect();
        Impairment::check("health.exec.impairments", &impairments)?;
        Ok(Probe::Exec {
            command: self.command,
            impairments,
        })
    }
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
            file.exec.map(ExecFile::read).transpose()?,
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
