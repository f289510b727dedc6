//! Which targets an addon can serve, and where it reaches them.

use drover_proto::{
    common::v1::AddressType,
    platform::v1::{
        AddonKind, AddonSpec, AddonTarget, NodeRole, PortMapping, addon_spec::Kind, port_ref::Port,
    },
};

/// Returns the kind of addon that a spec describes.
#[must_use]
pub fn kind(spec: &AddonSpec) -> AddonKind {
    match &spec.kind {
        None => AddonKind::Unspecified,
        Some(Kind::LoadBalancer(_)) => AddonKind::LoadBalancer,
        Some(Kind::JumpHost(_)) => AddonKind::JumpHost,
        Some(Kind::OidcProvider(_)) => AddonKind::OidcProvider,
        Some(Kind::Template(_)) => AddonKind::Template,
    }
}

/// Whether a load balancer opens new connections to a target.
#[must_use]
pub fn takes_connections(target: &AddonTarget) -> bool {
    target.role() != NodeRole::Standby && !target.draining
}

/// The address of a target on this interface; if it is empty, its first internal address.
///
/// # Errors
///
/// What is missing, for the message of an addon.
pub fn host<'a>(target: &'a AddonTarget, interface: &str) -> Result<&'a str, String> {
    let found = target.addresses.iter().find(|address| match interface {
        "" => address.r#type() == AddressType::InternalIp,
        named => address.interface == named,
    });
    let name = &target.name;
    found
        .map(|address| address.value.as_str())
        .ok_or_else(|| match interface {
            "" => format!("{name} has no internal address"),
            named => format!("{name} has no address on {named}"),
        })
}

/// Whether a load balancer reaches a target on any port, and what is missing on the others, for the message of an addon.
#[must_use]
pub fn balanced(
    target: &AddonTarget,
    interface: &str,
    ports: &[PortMapping],
) -> (bool, Vec<String>) {
    let (mut reached, mut lacking) = (false, Vec::new());
    for mapping in ports {
        match server(target, interface, mapping, 0) {
            Ok(_) => reached = true,
            Err(why) if lacking.contains(&why) => {}
            Err(why) => lacking.push(why),
        }
    }
    (reached, lacking)
}

/// Host and port of a target to which a load balancer maps the port that is `offset` after the first one of a mapping.
///
/// # Errors
///
/// What is missing, for the message of an addon.
pub fn server(
    target: &AddonTarget,
    interface: &str,
    mapping: &PortMapping,
    offset: u32,
) -> Result<String, String> {
    match mapping.target.as_ref().and_then(|it| it.port.as_ref()) {
        Some(Port::Number(number)) => Ok(host_port(host(target, interface)?, number + offset)),
        Some(Port::Name(name)) => {
            let endpoint = target.endpoints.get(name);
            let endpoint = endpoint.ok_or_else(|| format!("{} has no port {name}", target.name))?;
            let port = endpoint
                .rsplit_once(':')
                .and_then(|(_, port)| port.parse().ok());
            match port {
                Some(port) if !interface.is_empty() => {
                    Ok(host_port(host(target, interface)?, port))
                }
                _ => Ok(endpoint.clone()),
            }
        }
        None => Err(format!("{} has no such port", target.name)),
    }
}

/// Joins host and port, with brackets around an IPv6 address.
#[must_use]
pub fn host_port(host: &str, port: u32) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

#[cfg(test)]
mod tests {
    use drover_proto::{common::v1::Address, platform::v1::PortRef};

    use super::*;

    fn target() -> AddonTarget {
        let address = |r#type: AddressType, value: &str, interface: &str| Address {
            r#type: r#type.into(),
            value: value.to_owned(),
            interface: interface.to_owned(),
        };
        AddonTarget {
            name: "db-0".to_owned(),
            addresses: vec![
                address(AddressType::ExternalIp, "203.0.113.7", "wan"),
                address(AddressType::InternalIp, "10.0.0.7", "oam"),
                address(AddressType::InternalIp, "fd00::7", "pxe"),
            ],
            endpoints: [("client".to_owned(), "10.0.0.7:5432".to_owned())].into(),
            ..AddonTarget::default()
        }
    }

    fn reached(interface: &str, port: Port, offset: u32) -> Result<String, String> {
        let mapping = PortMapping {
            target: Some(PortRef { port: Some(port) }),
            ..PortMapping::default()
        };
        server(&target(), interface, &mapping, offset)
    }

    #[test]
    fn a_target_is_reached_on_the_interface_or_at_its_first_internal_address() {
        assert_eq!(reached("", Port::Number(80), 0).unwrap(), "10.0.0.7:80");
        assert_eq!(
            reached("wan", Port::Number(80), 2).unwrap(),
            "203.0.113.7:82"
        );
        assert_eq!(reached("pxe", Port::Number(80), 0).unwrap(), "[fd00::7]:80");
        let client = || Port::Name("client".to_owned());
        assert_eq!(reached("", client(), 0).unwrap(), "10.0.0.7:5432");
        assert_eq!(reached("pxe", client(), 0).unwrap(), "[fd00::7]:5432");
    }

    #[test]
    fn a_target_that_lacks_a_port_is_reached_on_the_others() {
        let ports = |ports: &[&str]| -> Vec<PortMapping> {
            let mapping = |name: &&str| PortMapping {
                target: Some(PortRef {
                    port: Some(Port::Name((*name).to_owned())),
                }),
                ..PortMapping::default()
            };
            ports.iter().map(mapping).collect()
        };
        let why = vec!["db-0 has no port peer".to_owned()];
        let both = balanced(&target(), "", &ports(&["peer", "client", "peer"]));
        assert_eq!(both, (true, why.clone()));
        assert_eq!(balanced(&target(), "", &ports(&["peer"])), (false, why));
    }

    #[test]
    fn what_a_target_lacks_is_named() {
        let why = reached("ipmi", Port::Number(80), 0).unwrap_err();
        assert_eq!(why, "db-0 has no address on ipmi");
        let why = reached("", Port::Name("peer".to_owned()), 0).unwrap_err();
        assert_eq!(why, "db-0 has no port peer");
    }
}
