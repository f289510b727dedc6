//! `Debug` of messages that may hold secrets: which field is set and how long it is, never what it says.

use std::fmt;

use crate::{
    common::v1::{Chunk, chunk},
    kubernetes::v1 as kubernetes,
    orchestrator::v1::{
        BootstrapSource, ExecNodeStart, SecretValue, bootstrap_source, secret_value,
    },
    platform::v1::{AddonSecret, Bootstrap, ExecStart, TemplateSecret, bootstrap},
};

struct Redacted(&'static str, usize);

impl fmt::Debug for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({} bytes, redacted)", self.0, self.1)
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk")
            .field("content", &self.content)
            .finish()
    }
}

impl fmt::Debug for chunk::Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(data) => Redacted("data", data.len()).fmt(f),
            Self::Text(text) => Redacted("text", text.len()).fmt(f),
        }
    }
}

impl fmt::Debug for BootstrapSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BootstrapSource")
            .field("source", &self.source)
            .field("render", &self.render)
            .finish()
    }
}

impl fmt::Debug for bootstrap_source::Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => Redacted("text", text.len()).fmt(f),
            Self::Binary(data) => Redacted("binary", data.len()).fmt(f),
            Self::SecretKey(key) => key.fmt(f),
            Self::Sha256(digest) => write!(f, "sha256:{digest}"),
        }
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretValue")
            .field("value", &self.value)
            .finish()
    }
}

impl fmt::Debug for secret_value::Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => Redacted("text", text.len()).fmt(f),
            Self::Binary(data) => Redacted("binary", data.len()).fmt(f),
            Self::Sha256(digest) => write!(f, "sha256:{digest}"),
        }
    }
}

impl fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bootstrap")
            .field("user_data", &self.user_data)
            .field("render", &self.render)
            .finish()
    }
}

impl fmt::Debug for TemplateSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Redacted("text", self.text.len()).fmt(f)
    }
}

impl fmt::Debug for AddonSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddonSecret")
            .field("keys", &self.data.len())
            .finish()
    }
}

impl fmt::Debug for bootstrap::UserData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => Redacted("text", text.len()).fmt(f),
            Self::Binary(data) => Redacted("binary", data.len()).fmt(f),
        }
    }
}

impl fmt::Debug for ExecStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecStart")
            .field("node", &self.node)
            .field("command", &Redacted("command", self.command.len()))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ExecNodeStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecNodeStart")
            .field("cluster", &self.cluster)
            .field("id", &self.id)
            .field("command", &Redacted("command", self.command.len()))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for kubernetes::EnvVar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvVar")
            .field("name", &self.name)
            .field("source", &self.source)
            .finish()
    }
}

impl fmt::Debug for kubernetes::env_var::Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => Redacted("value", value.len()).fmt(f),
            Self::Field(field) => write!(f, "field({field})"),
            Self::Resource(resource) => resource.fmt(f),
            Self::Configuration(key) | Self::Secret(key) => key.fmt(f),
        }
    }
}

impl fmt::Debug for kubernetes::ExecStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecStart")
            .field("namespace", &self.namespace)
            .field("pod", &self.pod)
            .field("container", &self.container)
            .field("command", &Redacted("command", self.command.len()))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for kubernetes::RunScriptRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunScriptRequest")
            .field("namespace", &self.namespace)
            .field("pod", &self.pod)
            .field("container", &self.container)
            .field("script", &Redacted("script", self.script.len()))
            .field("args", &Redacted("args", self.args.len()))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for kubernetes::Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Configuration")
            .field("metadata", &self.metadata)
            .field("data", &Redacted("data", self.data.len()))
            .field("binary_data", &Redacted("data", self.binary_data.len()))
            .field("immutable", &self.immutable)
            .finish()
    }
}
