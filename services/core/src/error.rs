//! Errors of the domain. `drover-convert` maps them to a gRPC status and back.

use std::{collections::BTreeMap, fmt, time::Duration};

/// Result of a domain operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Machine-readable reason of an error.
///
/// The variants of the first block have no `ErrorReason` on the wire, only a gRPC code. The others also travel as
/// `ErrorInfo`, under the name of the value of `drover.common.v1.ErrorReason`, where each is documented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "ErrorReason in the protos documents each")]
pub enum Reason {
    /// The request is malformed; `violations` names the fields.
    Invalid,
    /// The requested resource does not exist; `resource` names it.
    NotFound,
    /// The resource already exists.
    AlreadyExists,
    /// The current state of the system does not permit the operation.
    Precondition,
    /// A concurrent write won; read again before retrying.
    Conflict,
    /// A number or position outside the valid range.
    OutOfRange,
    /// The caller lacks permission.
    PermissionDenied,
    /// The caller sent no credentials, or invalid ones.
    Unauthenticated,
    /// Too much at once; a later retry may succeed.
    Exhausted,
    /// The server cannot be reached. The outcome is unknown.
    Unavailable,
    /// The call was never sent: its turn did not come in time, or there is no server to send it to.
    NotSent,
    /// The deadline passed. The outcome is unknown.
    DeadlineExceeded,
    /// The caller cancelled the call. The outcome is unknown.
    Cancelled,
    /// This server does not implement the operation.
    Unimplemented,
    /// A bug or corruption on the server. The outcome is unknown.
    Internal,

    NoCapacity,
    QuotaExceeded,
    RateLimited,
    Overloaded,
    NotLeader,
    CapabilityMissing,
    WatchTooSlow,
    PageTokenExpired,
    CredentialsRefused,
    PlatformMismatch,
    RequestIdReused,
    NodeNotInCluster,
    SlotMismatch,
    TemplateNotFound,
    NodeClassNotFound,
    HostNotFound,
    HostClaimed,
    Immutable,
    NotOwned,
    GenerationMismatch,
    ClusterExists,
    ClusterDeleting,
    ClusterPaused,
    GroupHasNodes,
    Protected,
    PlatformInUse,
    PlatformUidTaken,
    PlatformReachable,
    LossChanged,
    EventsTrimmed,
    RevisionMismatch,
    NamespaceNotServed,
    NothingMatches,
    WaitImpossible,
    ContainerNotFound,
    ContainerNotRunning,
    FileNotFound,
    NotAFile,
    RuleNotFound,
    IngressHostTaken,
    IngressBackendMissing,
    Fenced,
    PlatformRestarted,
    StorageFull,
    StoreRestored,
    NodeNotRunning,
    DigestNotStored,
    SecretNotFound,
    SecretInUse,
    IngressUpstreamMissing,
}

/// The conclusion that a caller may draw from a failed platform call, which determines its next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// The request can never succeed as written. This call created nothing.
    Cannot,
    /// No capacity at the moment. This call created nothing.
    NoCapacity,
    /// The platform's credentials were refused. This call created nothing.
    Credentials,
    /// The caller is stale: it is fenced, or the server restarted. This call created nothing.
    Stale,
    /// The request id was already used with a different fingerprint. Its nodes are unknown until observed or proven
    /// absent.
    Reused,
    /// The outcome is unknown; the same request is sent again.
    Unknown,
}

/// One invalid field of a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// Path of the field (`spec.groups[0].size`).
    pub field: String,
    /// The problem, and what was expected.
    pub description: String,
}

/// An error with all details that a caller can act on.
#[derive(Clone, PartialEq)]
pub struct Error(Box<Inner>);

#[derive(Clone, PartialEq)]
struct Inner {
    reason: Reason,
    message: String,
    violations: Vec<Violation>,
    resource: Option<(String, String)>,
    retry_after: Option<Duration>,
    metadata: BTreeMap<String, String>,
}

impl Error {
    /// Creates an error. The message is for people; it must not contain secrets and is cut at [`MAX_MESSAGE`].
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            reason,
            message: cut(message.into()),
            violations: Vec::new(),
            resource: None,
            retry_after: None,
            metadata: BTreeMap::new(),
        }))
    }

    /// Creates an error for one invalid field.
    pub fn invalid(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self::violations(vec![Violation {
            field: field.into(),
            description: description.into(),
        }])
    }

    /// Creates an error for several invalid fields; the message lists them.
    #[must_use]
    pub fn violations(violations: Vec<Violation>) -> Self {
        let message = violations
            .iter()
            .map(|v| {
                if v.field.is_empty() {
                    v.description.clone()
                } else {
                    format!("{}: {}", v.field, v.description)
                }
            })
            .collect::<Vec<_>>()
            .join("; ");
        let mut error = Self::new(Reason::Invalid, message);
        error.0.violations = violations;
        error
    }

    /// Creates an error for a resource that does not exist.
    pub fn not_found(kind: impl Into<String>, name: impl Into<String>) -> Self {
        let (kind, name) = (kind.into(), name.into());
        Self::new(Reason::NotFound, format!("there is no {kind} {name:?}"))
            .with_resource(kind, name)
    }

    /// Creates an error for a bug on our side.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Reason::Internal, message)
    }

    /// Creates an error for something that cannot be reached at the moment.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Reason::Unavailable, message)
    }

    /// Sets the delay after which to retry.
    #[must_use]
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.0.retry_after = Some(after);
        self
    }

    /// Sets the resource that the error is about.
    #[must_use]
    pub fn with_resource(mut self, kind: impl Into<String>, name: impl Into<String>) -> Self {
        self.0.resource = Some((kind.into(), name.into()));
        self
    }

    /// Adds a machine-readable value, as the protos document it for the reason. It does not travel with a reason that is
    /// only a gRPC code.
    #[must_use]
    pub fn with_metadata(mut self, key: impl Into<String>, value: impl ToString) -> Self {
        self.0.metadata.insert(key.into(), value.to_string());
        self
    }

    /// Adds an invalid field.
    #[must_use]
    pub fn with_violation(
        mut self,
        field: impl Into<String>,
        description: impl Into<String>,
    ) -> Self {
        self.0.violations.push(Violation {
            field: field.into(),
            description: description.into(),
        });
        self
    }

    /// Prefixes the message with the context in which the error occurred.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.0.message = cut(format!("{context}: {}", self.0.message));
        self
    }

    /// The machine-readable reason.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.0.reason
    }

    /// The message for people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The invalid fields.
    #[must_use]
    pub fn fields(&self) -> &[Violation] {
        &self.0.violations
    }

    /// Kind and name of the resource that the error is about.
    #[must_use]
    pub fn resource(&self) -> Option<(&str, &str)> {
        self.0
            .resource
            .as_ref()
            .map(|(kind, name)| (kind.as_str(), name.as_str()))
    }

    /// Delay after which to retry, if the other side gave one.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Machine-readable values.
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.0.metadata
    }

    /// The conclusion that the caller of a platform may draw.
    #[must_use]
    pub fn class(&self) -> Class {
        self.0.reason.class()
    }

    /// All strings that the error contains.
    pub(crate) fn texts(&self) -> Vec<&str> {
        let inner = &*self.0;
        let mut texts = vec![inner.message.as_str()];
        for violation in &inner.violations {
            texts.extend([violation.field.as_str(), violation.description.as_str()]);
        }
        if let Some((kind, name)) = &inner.resource {
            texts.extend([kind.as_str(), name.as_str()]);
        }
        for (key, value) in &inner.metadata {
            texts.extend([key.as_str(), value.as_str()]);
        }
        texts
    }

    /// Replaces the strings, in the order of [`texts`](Self::texts).
    pub(crate) fn with_texts(mut self, texts: Vec<String>) -> Self {
        let mut texts = texts.into_iter();
        let mut next = || texts.next().unwrap_or_default();
        let inner = &mut *self.0;
        inner.message = next();
        for violation in &mut inner.violations {
            (violation.field, violation.description) = (next(), next());
        }
        if let Some((kind, name)) = &mut inner.resource {
            (*kind, *name) = (next(), next());
        }
        let metadata = std::mem::take(&mut inner.metadata);
        inner.metadata = metadata.iter().map(|_| (next(), next())).collect();
        self
    }
}

impl Reason {
    /// The conclusion that the caller of a platform may draw. The reason takes precedence over the gRPC code.
    #[must_use]
    pub fn class(self) -> Class {
        match self {
            Self::NoCapacity | Self::QuotaExceeded => Class::NoCapacity,
            Self::CredentialsRefused
            | Self::PermissionDenied
            | Self::Unauthenticated
            | Self::NamespaceNotServed => Class::Credentials,
            Self::NotSent | Self::Fenced | Self::PlatformRestarted => Class::Stale,
            Self::RequestIdReused => Class::Reused,
            Self::Invalid
            | Self::NotFound
            | Self::Precondition
            | Self::Unimplemented
            | Self::CapabilityMissing
            | Self::PlatformMismatch
            | Self::NodeNotInCluster
            | Self::SlotMismatch
            | Self::TemplateNotFound
            | Self::NodeClassNotFound
            | Self::HostNotFound
            | Self::HostClaimed
            | Self::Immutable
            | Self::NotOwned
            | Self::ClusterExists
            | Self::ClusterDeleting
            | Self::ClusterPaused
            | Self::GroupHasNodes
            | Self::Protected
            | Self::PlatformInUse
            | Self::PlatformReachable
            | Self::LossChanged
            | Self::NothingMatches
            | Self::WaitImpossible
            | Self::ContainerNotFound
            | Self::ContainerNotRunning
            | Self::FileNotFound
            | Self::NotAFile
            | Self::RuleNotFound
            | Self::IngressHostTaken
            | Self::IngressBackendMissing
            | Self::NodeNotRunning
            | Self::DigestNotStored
            | Self::SecretNotFound
            | Self::SecretInUse
            | Self::IngressUpstreamMissing => Class::Cannot,
            Self::AlreadyExists
            | Self::Conflict
            | Self::OutOfRange
            | Self::Exhausted
            | Self::Unavailable
            | Self::DeadlineExceeded
            | Self::Cancelled
            | Self::Internal
            | Self::RateLimited
            | Self::Overloaded
            | Self::NotLeader
            | Self::WatchTooSlow
            | Self::PageTokenExpired
            | Self::GenerationMismatch
            | Self::PlatformUidTaken
            | Self::EventsTrimmed
            | Self::RevisionMismatch
            | Self::StorageFull
            | Self::StoreRestored => Class::Unknown,
        }
    }
}

/// Maximum length of human-readable text in an error, event, condition or note, in bytes.
pub const MAX_MESSAGE: usize = 4096;

/// Metadata of the error of a command that was killed: nobody can say how far it was.
pub const KILLED: &str = "killed";

/// Truncates human-readable text to [`MAX_MESSAGE`] at a character boundary.
#[must_use]
pub fn cut(mut text: String) -> String {
    if text.len() > MAX_MESSAGE {
        let mut end = MAX_MESSAGE - '…'.len_utf8();
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.reason, self.0.message)
    }
}

impl std::error::Error for Error {}
