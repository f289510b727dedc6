//! A context in the form that templates read.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, OnceLock},
};

use minijinja::{
    Value,
    value::{Enumerator, Object, Serde},
};
use serde::Serialize;
use serde_json::Map;

use crate::{AddonScope, Context, NodeScope};

/// The top-level names of a context.
const NAMES: &[&str] = &[
    "cluster",
    "group",
    "node",
    "peers",
    "storage",
    "secrets",
    "request_id",
    "bootstrap",
    "options",
    "platform",
    "infrastructure",
];

/// The names that exist for addons besides.
const ADDON_NAMES: &[&str] = &["addon", "targets"];

/// A [`Context`] that can be rendered any number of times. The parts that the nodes of a request share are converted
/// lazily, when a template first reads them: most templates do not read peers, of which there may be thousands. Cheap
/// to clone.
///
/// `Debug` shows no values, because attributes, secrets and user data may be confidential.
#[derive(Clone)]
pub struct Scope {
    common: Arc<Common>,
    own: BTreeMap<&'static str, Value>,
}

struct Common {
    context: Context,
    values: [OnceLock<Value>; NAMES.len()],
}

impl Scope {
    /// The underlying context.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.common.context
    }

    /// Replaces the parts that are specific to a node.
    #[must_use]
    pub fn of_node(self, own: &NodeScope) -> Self {
        let scope = self.with("node", &own.node).with("platform", &own.platform);
        match &own.storage {
            Some(storage) => scope.with("storage", storage),
            None => scope,
        }
    }

    /// Adds the parts that are specific to an addon.
    #[must_use]
    pub fn of_addon(self, own: &AddonScope) -> Self {
        self.with("addon", &own.addon)
            .with("targets", &own.targets)
            .with("secrets", &own.secrets)
            .with("platform", &own.platform)
    }

    /// Replaces `bootstrap`.
    #[must_use]
    pub fn with_bootstrap(self, bootstrap: Option<&str>) -> Self {
        self.with("bootstrap", bootstrap)
    }

    pub(crate) fn with_options(self, options: &Map<String, serde_json::Value>) -> Self {
        self.with("options", options)
    }

    fn with(mut self, name: &'static str, value: impl Serialize) -> Self {
        self.own.insert(name, Value::from(Serde(value)));
        self
    }

    pub(crate) fn into_value(self) -> Value {
        Value::from_object(self)
    }
}

impl From<Context> for Scope {
    fn from(context: Context) -> Self {
        Self {
            common: Arc::new(Common {
                context,
                values: [const { OnceLock::new() }; NAMES.len()],
            }),
            own: BTreeMap::new(),
        }
    }
}

impl Common {
    fn value(&self, name: &str) -> Option<Value> {
        let at = NAMES.iter().position(|it| *it == name)?;
        let context = &self.context;
        let make = || match name {
            "cluster" => Value::from(Serde(&context.cluster)),
            "group" => Value::from(Serde(&context.group)),
            "node" => Value::from(Serde(&context.node)),
            "peers" => Value::from(Serde(&context.peers)),
            "storage" => Value::from(Serde(&context.storage)),
            "secrets" => Value::from(Serde(&context.secrets)),
            "request_id" => Value::from(context.request_id.as_str()),
            "bootstrap" => Value::from(Serde(&context.bootstrap)),
            "options" => Value::from(Serde(&context.options)),
            "platform" => Value::from(Serde(&context.platform)),
            _ => Value::from(Serde(&context.infrastructure)),
        };
        self.values.get(at).map(|it| it.get_or_init(make).clone())
    }
}

impl Object for Scope {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.own
            .get(key)
            .cloned()
            .or_else(|| self.common.value(key))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let of_addon = ADDON_NAMES
            .iter()
            .filter(|name| self.own.contains_key(*name));
        let names = NAMES.iter().chain(of_addon);
        Enumerator::Values(names.map(|name| Value::from(*name)).collect())
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({:?})", self.common.context)
    }
}
