//! The management controllers of hosts, for jump hosts: address and credentials go into a Secret of the addon, and nowhere
//! else.

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use drover_core::Result;
use drover_platform::addons::Owner;
use drover_proto::platform::v1::{AddonTarget, Node, NodePhase};
use futures::{StreamExt as _, stream};

use super::{
    backend::{Backend, READ_TOGETHER},
    host::{self, BareMetalHost, Bmc},
    view::Beside,
};
use crate::addons::{ControllerFiles, Controllers};

#[async_trait]
impl Controllers for Backend {
    async fn files(&self, owner: &Owner, targets: &[AddonTarget]) -> Result<ControllerFiles> {
        let read = |target: AddonTarget| async move {
            let found = self.cache.found(|node| is_node(node, owner, &target)).pop();
            let host = match found.and_then(|found| found.node.host_id) {
                Some(id) => self.get(&id).await?,
                None => None,
            };
            let files = match host {
                Some(host) => self.controller_for(&host, owner, &target).await?,
                None => Err("is not a host of this platform".to_owned()),
            };
            Ok((target.name, files))
        };
        let reads = stream::iter(targets.iter().cloned().map(read));
        let read: Vec<Result<_>> = reads.buffered(READ_TOGETHER).collect().await;
        let mut all = ControllerFiles::default();
        for outcome in read {
            match outcome? {
                (name, Ok((url, credentials))) => {
                    all.files.insert(format!("{name}.url"), BASE64.encode(url));
                    let file = format!("{name}.curl");
                    all.files.insert(file, BASE64.encode(credentials));
                }
                (name, Err(why)) => all
                    .lacking
                    .push(format!("{name} has no power control: {why}")),
            }
        }
        Ok(all)
    }
}

impl Backend {
    /// What leads to the controller of a host, if it is still the target.
    ///
    /// # Errors
    /// As of [`Backend::controller`].
    async fn controller_for(
        &self,
        host: &BareMetalHost,
        owner: &Owner,
        target: &AddonTarget,
    ) -> Result<Result<(String, String), String>> {
        // It was chosen by what was known, and may have been given to another cluster since.
        let known = self.cache.get(&host::id(host));
        let mut beside = known.map_or_else(Beside::default, |known| known.beside.clone());
        if beside.networks.is_none() {
            beside.networks = Some(self.secrets.networks(host).await);
        }
        let now = self.cache.reader.node(host, &beside);
        let node = now.map(|(found, _)| found.node);
        let Some(mut node) = node.filter(|node| is_node(node, owner, target)) else {
            return Ok(Err("its host is not of this cluster any more".to_owned()));
        };
        self.cache.hold_back(&mut node);
        if node.phase() == NodePhase::Pending {
            return Ok(Err(node.message));
        }
        // The platform does not know by which name it is registered, so that targets of others are known by where they are.
        if is_elsewhere(&node, target) {
            return Ok(Err(
                "it has other addresses than the host of its id".to_owned()
            ));
        }
        self.controller(host).await
    }

    /// Address of the system at the management controller of a host, and the configuration of curl for it.
    ///
    /// # Errors
    /// They are not known; what is missing, for people.
    async fn controller(&self, host: &BareMetalHost) -> Result<Result<(String, String), String>> {
        let bmc = &host.spec.bmc;
        let url = match url(&bmc.address) {
            Ok(url) => url,
            Err(why) => return Ok(Err(why)),
        };
        let credentials = self.secrets.credentials(host).await?;
        Ok(credentials.map(|(user, password)| (url, curl(bmc, &user, &password))))
    }
}

/// Whether a target is this node. Its id alone is not enough: other clusters may have the same.
fn is_node(node: &Node, owner: &Owner, target: &AddonTarget) -> bool {
    // A node that was taken over may have no owner.
    let slot = node.slot.as_ref();
    node.node_id == target.node_id
        && node.cluster_id == owner.cluster_id
        && slot.is_none_or(|slot| slot.owner == owner.owner)
}

/// Whether a target has only addresses that this node has not.
fn is_elsewhere(node: &Node, target: &AddonTarget) -> bool {
    let known = !node.addresses.is_empty() && !target.addresses.is_empty();
    let is_own = |value: &str| node.addresses.iter().any(|own| own.value == value);
    known && !target.addresses.iter().any(|it| is_own(&it.value))
}

/// The configuration of curl, one option a line.
fn curl(bmc: &Bmc, user: &str, password: &str) -> String {
    let text = format!("{user}:{password}");
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    let text = text.replace('\n', "\\n").replace('\r', "\\r");
    let insecure = if bmc.disable_certificate_verification {
        "insecure\n"
    } else {
        ""
    };
    format!("user = \"{text}\"\n{insecure}")
}

/// The URL of a system from an address as metal3 has it: `redfish+https://HOST/redfish/v1/Systems/1`,
/// `idrac-virtualmedia://…`.
fn url(address: &str) -> Result<String, String> {
    let Some((scheme, rest)) = address.split_once("://") else {
        return Err("its host has no spec.bmc.address".to_owned());
    };
    let (kind, transport) = scheme.split_once('+').unwrap_or((scheme, "https"));
    let speaks = kind.contains("redfish") || kind.contains("virtualmedia");
    if !speaks || !matches!(transport, "http" | "https") {
        return Err(format!(
            "its management controller speaks {scheme}, and not Redfish"
        ));
    }
    let rest = rest.trim_end_matches('/');
    let odd = |c: char| c.is_control() || c.is_whitespace();
    match rest.split_once('/') {
        Some((host, path)) if !host.is_empty() && !path.is_empty() && !rest.contains(odd) => {
            Ok(format!("{transport}://{rest}"))
        }
        _ => Err("its spec.bmc.address names no system".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use drover_proto::platform::v1::SlotKey;

    use super::*;

    #[test]
    fn addresses_of_metal3_lead_to_systems() {
        let system = "10.0.0.1:8000/redfish/v1/Systems/1";
        for (scheme, transport) in [
            ("redfish", "https"),
            ("redfish+http", "http"),
            ("redfish-virtualmedia+https", "https"),
            ("idrac-virtualmedia", "https"),
        ] {
            let found = url(&format!("{scheme}://{system}")).unwrap();
            assert_eq!(found, format!("{transport}://{system}"));
        }
        for wrong in [
            "",
            "ipmi://10.0.0.1",
            "redfish://10.0.0.1",
            "redfish+ftp://h/s",
            "redfish://h/a b",
        ] {
            assert!(url(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_node_of_another_cluster_with_the_same_id_is_not_the_target() {
        let target = AddonTarget {
            node_id: "w-0".to_owned(),
            ..AddonTarget::default()
        };
        let owner = |cluster: &str, owner: &str| Owner {
            cluster_id: cluster.to_owned(),
            owner: owner.to_owned(),
        };
        let node = Node {
            cluster_id: "blue".to_owned(),
            node_id: "w-0".to_owned(),
            slot: Some(SlotKey {
                owner: "1".to_owned(),
                ..SlotKey::default()
            }),
            ..Node::default()
        };
        assert!(is_node(&node, &owner("blue", "1"), &target));
        assert!(!is_node(&node, &owner("green", "1"), &target));
        assert!(!is_node(&node, &owner("blue", "2"), &target));
    }

    #[test]
    fn a_password_cannot_become_an_option() {
        let config = curl(&Bmc::default(), "admin", "a\"b\\c\nurl = x");
        assert_eq!(config, "user = \"admin:a\\\"b\\\\c\\nurl = x\"\n");
    }
}
