//! Configurations.

use drover_core::Result;
use drover_proto::kubernetes::v1 as api;

use super::{Check, syntax};
use crate::served::Served;

/// Maximum size of all values of a configuration in bytes, as in Kubernetes.
const MAX_SIZE: usize = 1024 * 1024;

/// A configuration to create.
pub(crate) fn create_configuration(
    request: api::CreateConfigurationRequest,
    served: &Served,
) -> Result<api::Configuration> {
    configuration(request.configuration, served, false)
}

/// A configuration to replace.
pub(crate) fn update_configuration(
    request: api::UpdateConfigurationRequest,
    served: &Served,
) -> Result<api::Configuration> {
    configuration(request.configuration, served, true)
}

fn configuration(
    configuration: Option<api::Configuration>,
    served: &Served,
    revision: bool,
) -> Result<api::Configuration> {
    let mut check = Check::default();
    if configuration.is_none() {
        check.wrong("configuration", "is required");
    }
    let mut configuration = configuration.unwrap_or_default();
    let (field, metadata) = ("configuration.metadata", &mut configuration.metadata);
    check.metadata(field, metadata, syntax::subdomain, served, revision);
    for key in configuration.data.keys() {
        check.said("configuration.data", syntax::configuration_key(key));
    }
    for key in configuration.binary_data.keys() {
        let field = "configuration.binary_data";
        match syntax::configuration_key(key) {
            Err(why) => check.wrong(field, why),
            Ok(()) if configuration.data.contains_key(key) => {
                check.wrong(format!("{field}[{key}]"), "is in data, too");
            }
            Ok(()) => {}
        }
    }
    let text: usize = configuration.data.values().map(String::len).sum();
    let binary: usize = configuration.binary_data.values().map(Vec::len).sum();
    if text + binary > MAX_SIZE {
        let why = format!(
            "is {} bytes large; at most {MAX_SIZE} are allowed",
            text + binary
        );
        check.wrong("configuration", why);
    }
    check.finish()?;
    Ok(configuration)
}
