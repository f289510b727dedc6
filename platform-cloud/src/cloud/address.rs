//! Agent address and endpoints of a node.

use std::{collections::BTreeMap, net::IpAddr};

use drover_proto::common::v1::{Address, AddressType};

use super::{AddressSource, AgentSettings, Machine};

/// Tag with the named ports of a node: `client=2379 peer=2380`.
pub(super) const PORTS: &str = "drover.dev/ports";
/// Tag with the port of the agent address.
pub(super) const PORT: &str = "drover.dev/agent-port";
/// Tag with the scheme of the agent address.
pub(super) const SCHEME: &str = "drover.dev/agent-scheme";

/// Encodes named ports as a tag value.
pub(super) fn ports_tag(ports: &BTreeMap<String, u16>) -> String {
    let ports: Vec<String> = ports
        .iter()
        .map(|(name, port)| format!("{name}={port}"))
        .collect();
    ports.join(" ")
}

/// The agent address of a machine. `None` if it has no address of the configured kind (yet), or no port is configured.
pub(super) fn agent_address(machine: &Machine, settings: &AgentSettings) -> Option<String> {
    let port = match machine.tags.get(PORT) {
        Some(port) => port.parse().ok(),
        None => settings.port,
    }?;
    let scheme = machine.tags.get(SCHEME).unwrap_or(&settings.scheme);
    let host = host(&machine.addresses, settings.address)?;
    Some(format!("{scheme}://{host}:{port}"))
}

/// The named ports of a machine, each as host:port. Empty until it has an address.
pub(super) fn endpoints(machine: &Machine, settings: &AgentSettings) -> BTreeMap<String, String> {
    let (Some(ports), Some(host)) = (
        machine.tags.get(PORTS),
        host(&machine.addresses, settings.address),
    ) else {
        return BTreeMap::new();
    };
    ports
        .split(' ')
        .filter_map(|port| port.split_once('='))
        .filter(|(_, port)| port.parse::<u16>().is_ok())
        .map(|(name, port)| (name.to_owned(), format!("{host}:{port}")))
        .collect()
}

/// The address in URL form.
fn host(addresses: &[Address], source: AddressSource) -> Option<String> {
    let ip = |kinds: &[AddressType], v6: bool| {
        addresses
            .iter()
            .filter(|address| kinds.contains(&address.r#type()))
            .find_map(|address| match address.value.parse::<IpAddr>() {
                Ok(IpAddr::V4(ip)) if !v6 => Some(ip.to_string()),
                Ok(IpAddr::V6(ip)) if v6 => Some(format!("[{ip}]")),
                _ => None,
            })
    };
    let name = |kinds: &[AddressType]| {
        addresses
            .iter()
            .find(|address| kinds.contains(&address.r#type()) && !address.value.is_empty())
            .map(|address| address.value.clone())
    };
    match source {
        AddressSource::Private => ip(&[AddressType::InternalIp], false),
        AddressSource::Public => ip(&[AddressType::ExternalIp], false),
        AddressSource::Dns => name(&[AddressType::InternalDns, AddressType::Hostname]),
        AddressSource::PublicDns => name(&[AddressType::ExternalDns]),
        AddressSource::Ipv6 => ip(&[AddressType::ExternalIp, AddressType::InternalIp], true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(tags: &[(&str, &str)]) -> Machine {
        let address = |kind: AddressType, value: &str| Address {
            r#type: kind.into(),
            value: value.to_owned(),
            interface: String::new(),
        };
        Machine {
            addresses: vec![
                address(AddressType::InternalIp, "10.0.0.7"),
                address(AddressType::ExternalIp, "203.0.113.9"),
                address(AddressType::InternalDns, "ip-10-0-0-7.internal"),
                address(AddressType::ExternalIp, "2001:db8::7"),
            ],
            tags: tags
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            ..Machine::default()
        }
    }

    fn settings(address: AddressSource, port: Option<u16>) -> AgentSettings {
        AgentSettings {
            address,
            port,
            ..AgentSettings::default()
        }
    }

    #[test]
    fn the_settings_say_which_address_and_port() {
        let machine = machine(&[]);
        for (source, expected) in [
            (AddressSource::Private, Some("grpc://10.0.0.7:7100")),
            (AddressSource::Public, Some("grpc://203.0.113.9:7100")),
            (AddressSource::Dns, Some("grpc://ip-10-0-0-7.internal:7100")),
            (AddressSource::Ipv6, Some("grpc://[2001:db8::7]:7100")),
            (AddressSource::PublicDns, None),
        ] {
            let address = agent_address(&machine, &settings(source, Some(7100)));
            assert_eq!(address.as_deref(), expected, "{source:?}");
        }
        assert_eq!(
            agent_address(&machine, &settings(AddressSource::Private, None)),
            None
        );
    }

    #[test]
    fn tags_of_the_machine_win() {
        let machine = machine(&[(PORT, "8443"), (SCHEME, "https")]);
        let address = agent_address(&machine, &settings(AddressSource::Private, Some(7100)));
        assert_eq!(address.as_deref(), Some("https://10.0.0.7:8443"));
    }

    #[test]
    fn named_ports_become_endpoints() {
        let ports = BTreeMap::from([("client".to_owned(), 2379), ("peer".to_owned(), 2380)]);
        let machine = machine(&[(PORTS, &ports_tag(&ports))]);
        let endpoints = endpoints(&machine, &AgentSettings::default());
        assert_eq!(endpoints["client"], "10.0.0.7:2379");
        assert_eq!(endpoints["peer"], "10.0.0.7:2380");
    }
}
