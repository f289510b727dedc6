use std::net::IpAddr;

use drover_core::{Error, Result, infrastructure::parse_cidr};
use serde::{Deserialize, Serialize};

use crate::labels;

/// Where addons are made, and of what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AddonsSettings {
    /// Namespace of all addons. `None`: that of the context, or of this pod. Addons are offered where the credentials may
    /// make Deployments in it.
    pub namespace: Option<String>,
    /// Kinds of objects that addons may have, in the order of their removal: `plural`, `plural.group` or
    /// `plural.version.group`. Each is checked at start; one that the API server does not serve is refused. Empty: addons are not offered.
    pub kinds: Vec<String>,
    /// First and last node port of this Kubernetes (`--service-node-port-range` of its API server), which a dry run does
    /// not check.
    pub node_ports: [u16; 2],
    /// Ranges (`203.0.113.0/24`) in which an addon may ask for an address that is no cluster IP: it becomes an external IP
    /// of its service, by which nodes take over traffic to it. Empty: none.
    pub external_ips: Vec<String>,
}

/// Default of [`AddonsSettings::kinds`].
const DEFAULT_KINDS: &[&str] = &[
    "deployments.apps",
    "poddisruptionbudgets.policy",
    "services",
    "rolebindings.rbac.authorization.k8s.io",
    "roles.rbac.authorization.k8s.io",
    "serviceaccounts",
    "configmaps",
    "secrets",
];

impl Default for AddonsSettings {
    fn default() -> Self {
        Self {
            namespace: None,
            kinds: DEFAULT_KINDS.iter().map(|&kind| kind.to_owned()).collect(),
            node_ports: [30_000, 32_767],
            external_ips: Vec::new(),
        }
    }
}

impl AddonsSettings {
    /// Validates the settings without contacting anything.
    ///
    /// # Errors
    /// `Invalid` with the setting.
    pub fn check(&self) -> Result<()> {
        if self.node_ports[0] > self.node_ports[1] {
            return Err(Error::invalid("addons.node_ports", "is not a range"));
        }
        for (at, text) in self.external_ips.iter().enumerate() {
            if parse_cidr(text).is_err() {
                let field = format!("addons.external_ips[{at}]");
                return Err(Error::invalid(field, "is not a range (203.0.113.0/24)"));
            }
        }
        match &self.namespace {
            Some(name) if name.is_empty() || !labels::is_value(name) => Err(Error::invalid(
                "addons.namespace",
                format!("{name:?} is not a valid name of a namespace"),
            )),
            _ => Ok(()),
        }
    }

    /// Checks that an address may be an external IP.
    pub(super) fn check_external(&self, address: &str) -> Result<()> {
        let within = |ip: IpAddr| {
            let mut ranges = self
                .external_ips
                .iter()
                .filter_map(|text| parse_cidr(text).ok());
            ranges.any(|(first, length)| prefix(first, length) == prefix(ip, length))
        };
        if address.parse().is_ok_and(within) {
            return Ok(());
        }
        let why = format!(
            "{address} is not a cluster IP of this Kubernetes, and in none of the ranges of the platform's addons.external_ips"
        );
        Err(Error::invalid("spec.cluster_ip", why))
    }
}

/// The first bits of an address, and which family it is of.
fn prefix(ip: IpAddr, length: u32) -> (bool, u128) {
    let (bits, width) = match ip {
        IpAddr::V4(ip) => (u128::from(ip.to_bits()), 32),
        IpAddr::V6(ip) => (ip.to_bits(), 128),
    };
    let rest: u32 = width;
    let rest = rest.saturating_sub(length);
    (ip.is_ipv4(), bits.checked_shr(rest).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn external_addresses_are_within_the_ranges_of_the_settings() {
        let mut settings = AddonsSettings::default();
        assert!(
            settings.check_external("203.0.113.9").is_err(),
            "none by default"
        );
        settings.external_ips = vec!["203.0.113.0/24".to_owned(), "2001:db8::/32".to_owned()];
        settings.check().unwrap();
        for good in ["203.0.113.9", "2001:db8::9"] {
            settings.check_external(good).unwrap();
        }
        for bad in ["203.0.114.9", "2001:db9::9", "::cb00:7109", "x"] {
            let error = settings.check_external(bad).unwrap_err();
            assert_eq!(error.fields()[0].field, "spec.cluster_ip");
        }
        settings.external_ips = vec!["0.0.0.0/0".to_owned()];
        settings.check_external("1.2.3.4").unwrap();
        assert!(settings.check_external("::1").is_err());
        for bad in ["10.0.0.0", "10.0.0.0/33", "x/8"] {
            settings.external_ips = vec![bad.to_owned()];
            assert_eq!(
                settings.check().unwrap_err().fields()[0].field,
                "addons.external_ips[0]"
            );
        }
    }
}
