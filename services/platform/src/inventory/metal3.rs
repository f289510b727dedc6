//! What a BareMetalHost of metal3 and its Secrets say of where it is: its racks and networks. Network data is in
//! OpenStack's format (<https://docs.openstack.org/nova/latest/user/metadata.html#openstack-format-metadata>), and ViNO
//! writes lists of networks on hosts.

mod documents;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use drover_proto::common::v1::{Address, AddressType};
use serde::Deserialize;
use serde_json::Value;

pub use documents::{Described, describe};

/// The topology key whose domains are the failure domains.
pub const RACK: &str = "rack";
/// Key of the network data in its Secret.
pub const NETWORK_DATA: &str = "networkData";
/// Keys of user name and password of a management controller in their Secret.
pub const CREDENTIALS: [&str; 2] = ["username", "password"];
/// What a host lacks that names no Secret for its management controller.
pub const NO_CREDENTIALS: &str = "it has no spec.bmc.credentialsName";
/// Topology keys, and the labels of hosts that usually have their values.
const TOPOLOGY: [(&str, [&str; 3]); 2] = [
    (
        RACK,
        ["vino.airshipit.org/rack", "sip.airshipit.org/rack", "rack"],
    ),
    (
        "host",
        [
            "vino.airshipit.org/host",
            "sip.airshipit.org/server",
            "node",
        ],
    ),
];

/// Topology keys, and the labels of hosts that may have their values: the first that a host has.
pub type Topology = BTreeMap<String, Vec<String>>;

/// The usual topology keys.
#[must_use]
pub fn topology() -> Topology {
    let owned = |keys: [&str; 3]| keys.map(str::to_owned).to_vec();
    let usual = TOPOLOGY.into_iter();
    usual
        .map(|(word, keys)| (word.to_owned(), owned(keys)))
        .collect()
}

/// The value of a topology key on a host. `None` if no label has it.
#[must_use]
pub fn domain<'a>(
    topology: &Topology,
    word: &str,
    own: &'a BTreeMap<String, String>,
) -> Option<&'a String> {
    topology.get(word)?.iter().find_map(|key| own.get(key))
}

/// Labels by which a host is selected and spread: its own, the topology keys, and its networks.
#[must_use]
pub fn labels(
    topology: &Topology,
    own: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
    addresses: &[Address],
) -> BTreeMap<String, String> {
    let mut all = own.clone();
    for word in topology.keys() {
        if let Some(value) = domain(topology, word, own) {
            all.insert(word.clone(), value.clone());
        }
    }
    let addressed = addresses.iter().map(|address| address.interface.clone());
    for id in listed(own, annotations).into_iter().chain(addressed) {
        all.insert(format!("{PREFIX}{id}"), "true".to_owned());
    }
    all
}

/// Label and annotation with the networks of a host.
const NETWORKS: &str = "vino.airshipit.org/networks";
/// Most networks of a host that are read.
const MAX_NETWORKS: usize = 256;

/// Prefix of the labels that say in which networks a host is.
pub const PREFIX: &str = "network.drover.dev/";

#[derive(Deserialize)]
struct NetworkData {
    #[serde(default)]
    networks: Vec<Network>,
}

#[derive(Deserialize)]
struct Network {
    #[serde(default)]
    id: Value,
    #[serde(default)]
    ip_address: Value,
}

/// The addresses of a host, each with the id of its network as interface.
///
/// # Errors
/// What is wrong, for people. It repeats nothing of the data.
pub fn addresses(data: &[u8]) -> Result<Vec<Address>, String> {
    let text = std::str::from_utf8(data).map_err(|_| "is not UTF-8".to_owned())?;
    // JSON is YAML, too.
    let data: NetworkData = serde_saphyr::from_str(text)
        .map_err(|_| "is neither JSON nor YAML with a list `networks`".to_owned())?;
    if data.networks.len() > MAX_NETWORKS {
        return Err(format!("has more than {MAX_NETWORKS} networks"));
    }
    let mut addresses = Vec::new();
    for (at, network) in data.networks.iter().enumerate() {
        let Value::String(id) = &network.id else {
            return Err(format!("networks[{at}].id is missing or no text"));
        };
        let ip = match &network.ip_address {
            // By DHCP, for example.
            Value::Null => continue,
            Value::String(ip) => ip,
            _ => return Err(format!("networks[{at}].ip_address is not text")),
        };
        let bare = ip.split_once('/').map_or(ip.as_str(), |(bare, _)| bare);
        let Ok(ip) = bare.trim().parse::<IpAddr>() else {
            return Err(format!("networks[{at}].ip_address is not an IP address"));
        };
        addresses.push(Address {
            r#type: AddressType::InternalIp.into(),
            value: ip.to_string(),
            interface: id.clone(),
        });
    }
    Ok(addresses)
}

/// The networks that label and annotation of a host name. An annotation is a list in JSON or with commas; a label, which
/// can hold neither, has dots or underscores between them.
fn listed(
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
) -> BTreeSet<String> {
    let mut networks = BTreeSet::new();
    if let Some(text) = annotations.get(NETWORKS) {
        match serde_json::from_str::<Vec<String>>(text) {
            Ok(list) => networks.extend(list),
            Err(_) => networks.extend(
                text.trim_matches(['[', ']', ' '])
                    .split(',')
                    .map(|part| part.trim().trim_matches('"').to_owned()),
            ),
        }
    }
    if let Some(text) = labels.get(NETWORKS) {
        networks.extend(text.split(['.', '_']).map(str::to_owned));
    }
    networks.retain(|network| !network.is_empty());
    networks.into_iter().take(MAX_NETWORKS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(String, String)>, String> {
        let all = addresses(text.as_bytes())?;
        let pair = |one: Address| (one.interface, one.value);
        Ok(all.into_iter().map(pair).collect())
    }

    #[test]
    fn addresses_are_read_from_json_and_yaml_of_both_families_with_and_without_length() {
        let expected = [("oam", "192.0.2.7"), ("pxe", "2001:db8::7")]
            .map(|(id, ip)| (id.to_owned(), ip.to_owned()));
        let json = r#"{"networks": [
            {"id": "oam", "type": "ipv4", "ip_address": "192.0.2.7/24"},
            {"id": "dhcp", "type": "ipv4_dhcp"},
            {"id": "pxe", "ip_address": "2001:db8::7"}
        ], "services": []}"#;
        assert_eq!(read(json).unwrap(), expected);
        let yaml = "networks:\n- id: oam\n  ip_address: 192.0.2.7\n- {id: pxe, ip_address: '2001:DB8:0::7/64'}\n";
        assert_eq!(read(yaml).unwrap(), expected);
        assert_eq!(read("{}").unwrap(), []);
    }

    #[test]
    fn two_addresses_of_one_network_are_both_there() {
        let twice =
            "networks: [{id: oam, ip_address: 192.0.2.7}, {id: oam, ip_address: 192.0.2.8}]";
        assert_eq!(read(twice).unwrap().len(), 2);
    }

    #[test]
    fn what_is_wrong_is_said_without_repeating_it() {
        let secret = "hunter2-hunter2";
        let nested = "[".repeat(100_000);
        let many = format!("networks: [{}]", "{id: a}, ".repeat(300));
        for (text, part) in [
            (format!("{{networks: {secret}}}"), "list `networks`"),
            (secret.to_owned(), "list `networks`"),
            (
                "networks: [{ip_address: 192.0.2.7}]".to_owned(),
                "networks[0].id",
            ),
            (
                format!("networks: [{{id: a, ip_address: {secret}}}]"),
                "networks[0].ip_address",
            ),
            (
                "networks: [{id: a, ip_address: 7}]".to_owned(),
                "networks[0].ip_address",
            ),
            (nested, "list `networks`"),
            (many, "more than 256"),
        ] {
            let why = read(&text).unwrap_err();
            assert!(why.contains(part) && !why.contains(secret), "{why}");
        }
        assert!(addresses(&[0xff, 0xfe]).unwrap_err().contains("UTF-8"));
    }

    #[test]
    fn networks_are_listed_in_a_label_or_in_an_annotation() {
        let of = |text: &str| BTreeMap::from([(NETWORKS.to_owned(), text.to_owned())]);
        let none = BTreeMap::new();
        for annotation in [
            "[\"oam\", \"pxe\"]",
            "[oam, pxe]",
            "oam,pxe",
            " oam , pxe ,",
        ] {
            let found = listed(&none, &of(annotation));
            assert_eq!(
                found,
                ["oam", "pxe"].map(str::to_owned).into(),
                "{annotation}"
            );
        }
        for label in ["oam.pxe", "oam_pxe"] {
            let found = listed(&of(label), &none);
            assert_eq!(found, ["oam", "pxe"].map(str::to_owned).into(), "{label}");
        }
        assert!(listed(&none, &of("[]")).is_empty());
    }
}
