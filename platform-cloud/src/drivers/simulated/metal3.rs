//! Hosts of metal3, simulated: an inventory from the documents of BareMetalHosts.

use std::collections::{BTreeMap, BTreeSet};

use drover_platform::inventory::metal3::{self, Described, RACK};

use super::{DomainSettings, HostSettings, SimulatedSettings};

impl SimulatedSettings {
    /// Settings of a backend whose nodes are the hosts in a text of BareMetalHosts and their Secrets (YAML). Their racks
    /// are its failure domains.
    ///
    /// # Errors
    /// What is wrong, for people. It repeats nothing of the text.
    pub fn of_bare_metal_hosts(text: &str) -> Result<Self, String> {
        let hosts = metal3::describe(text)?;
        let racks: BTreeSet<&str> = hosts
            .iter()
            .map(|host| host.rack.as_str())
            .filter(|rack| !rack.is_empty())
            .collect();
        let domain = |rack: &str| DomainSettings {
            name: rack.to_owned(),
            labels: BTreeMap::from([(RACK.to_owned(), rack.to_owned())]),
            capacity: None,
        };
        let settings = Self {
            failure_domains: racks.into_iter().map(domain).collect(),
            hosts: hosts.into_iter().map(host).collect(),
            inventory: true,
            ..Self::default()
        };
        settings.check().map_err(|error| error.to_string())?;
        Ok(settings)
    }
}

fn host(host: Described) -> HostSettings {
    let addresses = host.addresses.into_iter();
    HostSettings {
        id: host.id,
        failure_domain: host.rack,
        claimed_by: host.claimed_by,
        labels: host.labels,
        unusable: host.unusable,
        without_credentials: host.without_credentials,
        addresses: addresses
            .map(|address| (address.interface, address.value))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_of_the_example_are_an_inventory() {
        let text = include_str!("../../../../deploy/examples/sip/hosts.yaml");
        let settings = SimulatedSettings::of_bare_metal_hosts(text).unwrap();
        let racks: Vec<&str> = settings
            .failure_domains
            .iter()
            .map(|domain| domain.name.as_str())
            .collect();
        assert_eq!(racks, ["r1", "r2", "r3", "r4", "r5", "r6"]);
        let of = |flavor: &str, old: &str| {
            let is = |host: &&HostSettings| {
                host.labels["vino.airshipit.org/flavor"] == flavor
                    && host.labels["airshipit.org/vino-flavor"] == old
            };
            settings.hosts.iter().filter(is).count()
        };
        assert_eq!(
            (of("control-plane", "master"), of("worker", "worker")),
            (12, 12)
        );
        for host in &settings.hosts {
            assert_eq!(host.unusable, "", "{}", host.id);
            assert_eq!(host.without_credentials, "", "{}", host.id);
            assert!(host.addresses.contains_key("oam-ipv4"), "{}", host.id);
        }
    }
}
