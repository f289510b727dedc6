//! Description of a call, for errors and spans.

use std::fmt;

/// The target of a call, never its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Verb as in RBAC: get, list, watch, create, patch, delete.
    pub verb: &'static str,
    /// Kind as in RBAC (`deployments.apps`), or a path.
    pub kind: String,
    /// Namespace. Empty for none or all.
    pub namespace: String,
    /// Name of the object. Empty for none.
    pub name: String,
}

impl Call {
    /// A call to a kind, or to one object of it if `name` is not empty.
    #[must_use]
    pub fn new(
        verb: &'static str,
        kind: &(impl fmt::Display + ?Sized),
        namespace: &str,
        name: &str,
    ) -> Self {
        Self {
            verb,
            kind: kind.to_string(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// A call to a path.
    #[must_use]
    pub fn path(verb: &'static str, path: &str) -> Self {
        Self {
            verb,
            kind: path.to_owned(),
            namespace: String::new(),
            name: String::new(),
        }
    }

    /// The object, for field paths: `pods/db-1`.
    #[must_use]
    pub fn object(&self) -> String {
        format!("{}/{}", self.kind, self.name)
    }

    /// Whether the call may have changed something.
    #[must_use]
    pub fn changes(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch")
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.kind)?;
        if !self.name.is_empty() {
            write!(f, " {:?}", self.name)?;
        }
        if !self.namespace.is_empty() {
            write!(f, " in namespace {:?}", self.namespace)?;
        }
        Ok(())
    }
}
