//! What goes wrong, as the domain sees it. `drover-convert` turns it into a gRPC status and back.

use std::{collections::BTreeMap, fmt, time::Duration};

/// Result of a domain operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something failed, for programs.
///
/// The first block has no `ErrorReason` on the wire, only a gRPC code; the others travel as `ErrorInfo` too, under the
/// name of the value of `drover.common.v1.ErrorReason`, where each is documented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "ErrorReason in the protos documents each")]
pub enum Reason {
    /// The request is wrong as written; `violations` names the fields.
    Invalid,
    /// The thing asked for is not there; `resource` names it.
    NotFound,
    /// It is there already.
    AlreadyExists,
    /// The state of the system forbids it.
    Precondition,
    /// Somebody else was quicker; read again.
    Conflict,
    /// A number or position outside of what exists.
    OutOfRange,
    /// The caller may not.
    PermissionDenied,
    /// The caller did not say who it is, or not convincingly.
    Unauthenticated,
    /// Too much at once; later it may work.
    Exhausted,
    /// Cannot be reached now. The outcome is unknown.
    Unavailable,
    /// Took too long. The outcome is unknown.
    DeadlineExceeded,
    /// The caller went away. The outcome is unknown.
    Cancelled,
    /// This server cannot do that at all.
    Unimplemented,
    /// A defect or damage on the server's side. The outcome is unknown.
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
}

/// What a caller may conclude from an error of a platform call, and what it does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// It cannot work as written. This call made nothing.
    Cannot,
    /// None to be had now. This call made nothing.
    NoCapacity,
    /// Credentials. This call made nothing.
    Credentials,
    /// The caller is not up to date (fenced, or the server restarted). This call made nothing.
    Stale,
    /// The request id was used with another fingerprint. Its nodes are unknown until seen or absent.
    Reused,
    /// Anything may have happened; the same request is sent again.
    Unknown,
}

/// One wrong field of a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// Path of the field (`spec.groups[0].size`).
    pub field: String,
    /// What is wrong with it and what was expected.
    pub description: String,
}

/// An error with everything that a caller can use.
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
    /// An error with a reason and a message for people: no secrets, at most 4 KiB (longer ones are cut).
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

    /// One wrong field.
    pub fn invalid(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self::violations(vec![Violation {
            field: field.into(),
            description: description.into(),
        }])
    }

    /// Several wrong fields; the message lists them.
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

    /// A thing that is not there.
    pub fn not_found(kind: impl Into<String>, name: impl Into<String>) -> Self {
        let (kind, name) = (kind.into(), name.into());
        Self::new(Reason::NotFound, format!("there is no {kind} {name:?}"))
            .with_resource(kind, name)
    }

    /// A defect on our side.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Reason::Internal, message)
    }

    /// Something that cannot be reached now.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Reason::Unavailable, message)
    }

    /// Says when to try again.
    #[must_use]
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.0.retry_after = Some(after);
        self
    }

    /// Names the thing that the error is about.
    #[must_use]
    pub fn with_resource(mut self, kind: impl Into<String>, name: impl Into<String>) -> Self {
        self.0.resource = Some((kind.into(), name.into()));
        self
    }

    /// Adds a value that programs can read, as the protos document it for the reason.
    #[must_use]
    pub fn with_metadata(mut self, key: impl Into<String>, value: impl ToString) -> Self {
        self.0.metadata.insert(key.into(), value.to_string());
        self
    }

    /// Adds a wrong field.
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

    /// Says where it happened, in front of the message.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.0.message = cut(format!("{context}: {}", self.0.message));
        self
    }

    /// Why it failed, for programs.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.0.reason
    }

    /// Why it failed, for people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The wrong fields.
    #[must_use]
    pub fn fields(&self) -> &[Violation] {
        &self.0.violations
    }

    /// Kind and name of what it is about.
    #[must_use]
    pub fn resource(&self) -> Option<(&str, &str)> {
        self.0
            .resource
            .as_ref()
            .map(|(kind, name)| (kind.as_str(), name.as_str()))
    }

    /// When to try again, where the other side said so.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Values that programs can read.
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.0.metadata
    }

    /// What a caller of a platform may conclude from it.
    #[must_use]
    pub fn class(&self) -> Class {
        self.0.reason.class()
    }

    /// All texts in it.
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

    /// The same with other texts, in the order of [`texts`](Self::texts).
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
    /// What a caller of a platform may conclude from it. Judged by reason first, so a known one wins over its code.
    #[must_use]
    pub fn class(self) -> Class {
        match self {
            Self::NoCapacity | Self::QuotaExceeded => Class::NoCapacity,
            Self::CredentialsRefused
            | Self::PermissionDenied
            | Self::Unauthenticated
            | Self::NamespaceNotServed => Class::Credentials,
            Self::Fenced | Self::PlatformRestarted => Class::Stale,
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
            | Self::SecretInUse => Class::Cannot,
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

/// Longest text for people in an error, event, condition or note, in bytes.
pub const MAX_MESSAGE: usize = 4096;

/// Cuts a text for people at [`MAX_MESSAGE`], at a character boundary.
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
