//! Restrictions of a platform on the properties that its callers may set.

use std::collections::BTreeMap;

use drover_core::{Error, Result, allow::AllowList, error::Violation};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Path of the properties of a group.
pub(crate) const PROPERTIES: &str = "group.properties";

/// What callers may set. Absent: whatever the schema of properties lets through.
///
/// A platform does not know on whose behalf an orchestrator calls: this holds for everybody, and grants of the
/// orchestrator's access file may allow somebody less.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicySettings {
    /// What properties may be set to: lists of patterns by property, `*` for all properties without a list of their own.
    /// In texts an asterisk stands for anything; a map has all keys of its pattern and no other. Absent: anything.
    pub properties: BTreeMap<String, Vec<Value>>,
}

impl PolicySettings {
    /// Compiles the settings.
    ///
    /// # Errors
    ///
    /// `Invalid` with the setting.
    pub fn read(self) -> Result<Policy> {
        let properties = AllowList::new(self.properties).map_err(|(property, why)| {
            Error::invalid(format!("policy.properties.{property}"), why)
        })?;
        Ok(Policy { properties })
    }
}

/// A validated policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    properties: AllowList,
}

impl Policy {
    /// Properties of a group that are not allowed.
    pub(crate) fn violations(&self, properties: &Map<String, Value>) -> Vec<Violation> {
        let refused = self.properties.refusals(properties).into_iter();
        let violation = |(property, why): (String, String)| Violation {
            field: format!("{PROPERTIES}.{property}"),
            description: format!("{why} by the policy of the platform"),
        };
        refused.map(violation).collect()
    }
}
