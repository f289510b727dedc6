//! Converts addons: specs from the wire, requests to platforms, and reports from them.

use std::collections::BTreeSet;

use drover_core::{
    Error, Result,
    addon::{
        AddonSpec, AddonTarget, JumpHost, Kind, OidcClient, OidcConnector, OidcProvider,
        PortMapping, WantedAddon,
    },
    error::Violation,
    name,
    node::SeenAddress,
    resource::{Observed, ResourcePhase, ResourceRecord, Wanted},
    spec::{Object, Port},
};
use drover_proto::{common::v1 as common, orchestrator::v1 as pb, platform::v1 as wire};
use prost::Message;

use crate::{infrastructure, spec::placement, value};

/// Reads the addons of a spec; unreadable fields are added to `wrong`.
pub(crate) fn specs(from: &[pb::Addon], wrong: &mut Vec<Violation>) -> Vec<AddonSpec> {
    let mut reader = Reader { wrong };
    let addons = from.iter().enumerate();
    addons
        .map(|(index, addon)| reader.addon(&format!("spec.addons[{index}]"), addon))
        .collect()
}

struct Reader<'a> {
    wrong: &'a mut Vec<Violation>,
}

impl Reader<'_> {
    fn refuse(&mut self, field: String, description: impl Into<String>) {
        self.wrong.push(Violation {
            field,
            description: description.into(),
        });
    }

    fn addon(&mut self, at: &str, from: &pb::Addon) -> AddonSpec {
        AddonSpec {
            name: from.name.clone(),
            platform: from.platform.clone(),
            targets: from.targets.clone(),
            port: from.port,
            kind: self.kind(at, from),
            image: from.image.clone(),
            interface: from.interface.clone(),
            node_selector: from
                .node_selector
                .as_ref()
                .map(|it| placement::selector(&format!("{at}.node_selector"), it, self.wrong))
                .filter(|selector| !selector.is_empty()),
            cluster_ip: from.cluster_ip.clone(),
            properties: self.object(&format!("{at}.properties"), from.properties.as_ref()),
        }
    }

    fn object(&mut self, at: &str, from: Option<&prost_types::Struct>) -> Object {
        let read = from.map_or_else(|| Ok(Object::default()), |it| value::object(at, it));
        read.unwrap_or_else(|error| {
            self.wrong.extend(error.fields().iter().cloned());
            Object::default()
        })
    }

    fn kind(&mut self, at: &str, from: &pb::Addon) -> Option<Kind> {
        use wire::AddonKind;
        let kind = match AddonKind::try_from(from.r#type) {
            Ok(AddonKind::Unspecified) => return None,
            Ok(kind) => kind,
            Err(_) => {
                let why = format!("{} is not a kind of addon", from.r#type);
                self.refuse(format!("{at}.type"), why);
                // Any kind will do: the violation above already rejects the spec, and this avoids a second one for a
                // missing kind.
                return Some(Kind::JumpHost(JumpHost::default()));
            }
        };
        for (field, set, of, word) in [
            (
                "target_port",
                from.target_port.is_some(),
                AddonKind::LoadBalancer,
                "load balancers",
            ),
            (
                "ports",
                !from.ports.is_empty(),
                AddonKind::LoadBalancer,
                "load balancers",
            ),
            (
                "jump_host",
                from.jump_host.is_some(),
                AddonKind::JumpHost,
                "jump hosts",
            ),
            (
                "oidc_provider",
                from.oidc_provider.is_some(),
                AddonKind::OidcProvider,
                "OIDC providers",
            ),
            (
                "template",
                !from.template.is_empty(),
                AddonKind::Template,
                "addons of a template",
            ),
        ] {
            if set && kind != of {
                self.refuse(format!("{at}.{field}"), format!("is for {word} only"));
            }
        }
        Some(match kind {
            AddonKind::Unspecified => return None,
            AddonKind::LoadBalancer => Kind::LoadBalancer {
                target_port: self.port(&format!("{at}.target_port"), from.target_port.as_ref()),
                ports: self.ports(at, &from.ports),
            },
            AddonKind::JumpHost => {
                let host = from.jump_host.clone().unwrap_or_default();
                self.refuse_port(&format!("{at}.jump_host.port"), host.port);
                Kind::JumpHost(JumpHost {
                    authorized_keys: host.authorized_keys,
                    private_keys_secret: host.private_keys_secret,
                    bmc: host.bmc.map(|bmc| bmc.proxy),
                    kubeconfig_secret: host.kubeconfig_secret,
                })
            }
            AddonKind::OidcProvider => {
                let oidc = from.oidc_provider.clone().unwrap_or_default();
                self.refuse_port(&format!("{at}.oidc_provider.port"), oidc.port);
                Kind::OidcProvider(self.oidc(&format!("{at}.oidc_provider"), oidc))
            }
            AddonKind::Template => Kind::Template {
                template: from.template.clone(),
            },
        })
    }

    /// An addon has one port, and one field for it.
    fn refuse_port(&mut self, field: &str, port: Option<u32>) {
        if port.is_some() {
            self.refuse(field.to_owned(), "is said in `port` of the addon itself");
        }
    }

    fn port(&mut self, at: &str, from: Option<&wire::PortRef>) -> Option<Port> {
        use wire::port_ref::Port as Wire;
        match from?.port.as_ref() {
            Some(Wire::Name(name)) => {
                if name.is_empty() {
                    self.refuse(format!("{at}.name"), "is empty");
                }
                Some(Port::Name(name.clone()))
            }
            Some(Wire::Number(number)) => match u16::try_from(*number) {
                Ok(number) if number > 0 => Some(Port::Number(number)),
                _ => {
                    self.refuse(format!("{at}.number"), "expected 1 to 65535");
                    Some(Port::Number(1))
                }
            },
            None => {
                self.refuse(at.to_owned(), "expected a name or a number");
                Some(Port::Number(1))
            }
        }
    }

    fn ports(&mut self, at: &str, from: &[wire::PortMapping]) -> Vec<PortMapping> {
        let ports = from.iter().enumerate();
        ports
            .map(|(index, port)| PortMapping {
                listen: port.listen,
                target: self.port(&format!("{at}.ports[{index}].target"), port.target.as_ref()),
                count: port.count,
            })
            .collect()
    }

    fn oidc(&mut self, at: &str, from: wire::OidcProvider) -> OidcProvider {
        let clients = from.clients.into_iter().map(|client| OidcClient {
            id: client.id,
            redirect_uris: client.redirect_uris,
            secret: client.secret,
        });
        let connectors = from.connectors.into_iter().enumerate();
        let connectors = connectors.map(|(index, connector)| OidcConnector {
            config: self.object(
                &format!("{at}.connectors[{index}].config"),
                connector.config.as_ref(),
            ),
            kind: connector.r#type,
            id: connector.id,
            secret: connector.secret,
        });
        OidcProvider {
            issuer: from.issuer,
            clients: clients.collect(),
            connectors: connectors.collect(),
            tls_secret: from.tls_secret,
        }
    }
}

/// Converts an addon to the form that is sent to its platform.
#[must_use]
pub fn to_spec(from: &AddonSpec) -> wire::AddonSpec {
    wire::AddonSpec {
        name: from.name.clone(),
        kind: from.kind.as_ref().map(|kind| to_kind(from, kind)),
        image: from.image.clone(),
        interface: from.interface.clone(),
        node_selector: from.node_selector.as_ref().map(placement::to_selector),
        cluster_ip: from.cluster_ip.clone(),
        properties: object(&from.properties),
    }
}

fn object(from: &Object) -> Option<prost_types::Struct> {
    (!from.is_empty()).then(|| value::to_struct(from))
}

fn to_kind(addon: &AddonSpec, kind: &Kind) -> wire::addon_spec::Kind {
    use wire::addon_spec::Kind as Wire;
    match kind {
        Kind::LoadBalancer { .. } => {
            let ports = addon.port_mappings().into_iter();
            let ports = ports.map(|(_, port)| wire::PortMapping {
                listen: port.listen,
                target: port.target.as_ref().map(to_port),
                count: port.count.max(1),
            });
            Wire::LoadBalancer(wire::LoadBalancer {
                ports: ports.collect(),
            })
        }
        Kind::JumpHost(host) => Wire::JumpHost(wire::JumpHost {
            port: addon.port,
            authorized_keys: host.authorized_keys.clone(),
            private_keys_secret: host.private_keys_secret.clone(),
            bmc: host.bmc.map(|proxy| wire::BmcAccess { proxy }),
            kubeconfig_secret: host.kubeconfig_secret.clone(),
        }),
        Kind::OidcProvider(oidc) => {
            let clients = oidc.clients.iter().map(|client| wire::OidcClient {
                id: client.id.clone(),
                redirect_uris: client.redirect_uris.clone(),
                secret: client.secret.clone(),
            });
            let connectors = oidc.connectors.iter().map(|one| wire::OidcConnector {
                r#type: one.kind.clone(),
                id: one.id.clone(),
                config: object(&one.config),
                secret: one.secret.clone(),
            });
            Wire::OidcProvider(wire::OidcProvider {
                issuer: oidc.issuer.clone(),
                port: addon.port,
                clients: clients.collect(),
                connectors: connectors.collect(),
                tls_secret: oidc.tls_secret.clone(),
            })
        }
        Kind::Template { template } => Wire::Template(wire::TemplateAddon {
            template: template.clone(),
        }),
    }
}

fn to_port(from: &Port) -> wire::PortRef {
    use wire::port_ref::Port as Wire;
    wire::PortRef {
        port: Some(match from {
            Port::Name(name) => Wire::Name(name.clone()),
            Port::Number(number) => Wire::Number(u32::from(*number)),
        }),
    }
}

/// Encodes an addon as it is stored and sent. The encoding is deterministic.
#[must_use]
pub fn wanted(from: &AddonSpec) -> WantedAddon {
    WantedAddon {
        name: name::sym(&from.name),
        wanted: Wanted::new(&from.platform, &to_spec(from).encode_to_vec()),
        targets: from.targets.iter().map(|path| name::sym(path)).collect(),
        secrets: from.secrets(),
        ports: from
            .port_mappings()
            .into_iter()
            .map(|(field, _)| field)
            .collect(),
    }
}

/// Decodes a spec as it is stored.
///
/// # Errors
///
/// `Internal` if it is damaged.
pub fn decode(body: &[u8]) -> Result<wire::AddonSpec> {
    wire::AddonSpec::decode(body).map_err(|_| Error::internal("the stored addon cannot be read"))
}

/// The kind of an addon that is sent to a platform.
#[must_use]
pub fn kind_of(spec: &wire::AddonSpec) -> wire::AddonKind {
    use wire::{AddonKind, addon_spec::Kind as Wire};
    match &spec.kind {
        None => AddonKind::Unspecified,
        Some(Wire::LoadBalancer(_)) => AddonKind::LoadBalancer,
        Some(Wire::JumpHost(_)) => AddonKind::JumpHost,
        Some(Wire::OidcProvider(_)) => AddonKind::OidcProvider,
        Some(Wire::Template(_)) => AddonKind::Template,
    }
}

/// The names of the secrets that an addon names.
#[must_use]
pub fn secret_names(spec: &wire::AddonSpec) -> BTreeSet<String> {
    use wire::addon_spec::Kind as Wire;
    let names: Vec<&String> = match &spec.kind {
        Some(Wire::JumpHost(host)) => vec![&host.private_keys_secret, &host.kubeconfig_secret],
        Some(Wire::OidcProvider(oidc)) => {
            let clients = oidc.clients.iter().map(|one| &one.secret);
            let connectors = oidc.connectors.iter().map(|one| &one.secret);
            clients
                .chain(connectors)
                .chain([&oidc.tls_secret])
                .collect()
        }
        Some(Wire::LoadBalancer(_) | Wire::Template(_)) | None => Vec::new(),
    };
    let given = names.into_iter().filter(|name| !name.is_empty());
    given.cloned().collect()
}

/// The kind of an addon in words: `load balancer`.
#[must_use]
pub fn word(kind: wire::AddonKind) -> &'static str {
    match kind {
        wire::AddonKind::Unspecified => "addon",
        wire::AddonKind::LoadBalancer => "load balancer",
        wire::AddonKind::JumpHost => "jump host",
        wire::AddonKind::OidcProvider => "OIDC provider",
        wire::AddonKind::Template => "addon of a template",
    }
}

/// Converts a target to the form that is sent to platforms.
#[must_use]
pub fn to_target(from: &AddonTarget) -> wire::AddonTarget {
    let address = |one: &SeenAddress| common::Address {
        r#type: one.kind,
        value: one.value.to_string(),
        interface: one.interface.to_string(),
    };
    let endpoints = from.endpoints.iter();
    wire::AddonTarget {
        platform: from.platform.to_string(),
        node_id: from.node_id.to_string(),
        name: from.name.to_string(),
        group: from.group.to_string(),
        addresses: from.addresses.iter().map(address).collect(),
        endpoints: endpoints
            .map(|(name, at)| (name.to_string(), at.to_string()))
            .collect(),
        draining: from.draining,
        role: if from.standby {
            wire::NodeRole::Standby
        } else {
            wire::NodeRole::Active
        }
        .into(),
    }
}

/// Converts the report of a platform.
///
/// # Errors
///
/// `Internal` if the report is missing, has no phase, or is too large to be stored.
pub fn observed(
    from: Option<wire::AddonState>,
    poll_after: Option<&prost_types::Duration>,
) -> Result<Observed> {
    let mut from = from.ok_or_else(|| Error::internal("the platform did not say how far it is"))?;
    let resources = infrastructure::resources(&std::mem::take(&mut from.resources))?;
    from.message = infrastructure::short(&from.message);
    let message = from.message.as_str().into();
    let offers = wire::AddonState {
        phase: 0,
        cluster_id: String::new(),
        owner: String::new(),
        ..from.clone()
    };
    Ok(Observed {
        phase: infrastructure::phase(from.phase)?,
        message,
        resources,
        outputs: infrastructure::bounded(&offers)?.into(),
        poll_after: infrastructure::poll_after(poll_after),
    })
}

/// Converts the record of an addon to its API representation.
#[must_use]
pub fn to_status(
    cluster: &str,
    owner: &str,
    name: &str,
    from: &ResourceRecord,
) -> wire::AddonState {
    let offers = wire::AddonState::decode(&*from.outputs).unwrap_or_default();
    let kind = decode(&from.body).map_or(wire::AddonKind::Unspecified, |spec| kind_of(&spec));
    let phase = if from.releasing {
        ResourcePhase::Releasing
    } else {
        from.phase
    };
    wire::AddonState {
        cluster_id: cluster.to_owned(),
        owner: owner.to_owned(),
        kind: kind.into(),
        name: name.to_owned(),
        phase: infrastructure::to_phase(phase).into(),
        message: if from.message.is_empty() {
            offers.message.clone()
        } else {
            from.message.to_string()
        },
        resources: infrastructure::to_resources(cluster, owner, &from.resources),
        ..offers
    }
}

#[cfg(test)]
mod tests;
