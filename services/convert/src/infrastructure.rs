//! Converts infrastructure: specs from the wire, and requests to and reports from platforms. Resources and phases are
//! those of addons too.

use std::sync::Arc;

use drover_core::{
    Error, Millis, Result, Sym,
    error::{Violation, cut},
    infrastructure::{Direction, Endpoint, Firewall, InfrastructureSpec, Network, Rule},
    name,
    resource::{Observed, Resource, ResourcePhase, ResourceRecord, Wanted},
};
use drover_proto::{orchestrator::v1 as pb, platform::v1 as wire};
use prost::Message;

use crate::value;

/// Maximum number of recorded resources per cluster and platform, which must fit into one row of the store.
pub const MAX_RESOURCES: usize = 256;
/// Maximum length of a recorded resource message, in bytes.
const MAX_MESSAGE: usize = 512;
/// Maximum encoded size of what one platform offers: every Provision request carries the outputs of all of them.
const MAX_OUTPUTS: usize = 32 * 1024;

/// Reads the entries of a spec; unreadable fields are added to `wrong`.
pub(crate) fn specs(
    from: &[pb::Infrastructure],
    wrong: &mut Vec<Violation>,
) -> Vec<InfrastructureSpec> {
    from.iter()
        .enumerate()
        .map(|(index, entry)| spec(&format!("spec.infrastructure[{index}]"), entry, wrong))
        .collect()
}

fn spec(at: &str, from: &pb::Infrastructure, wrong: &mut Vec<Violation>) -> InfrastructureSpec {
    let properties = from
        .properties
        .as_ref()
        .map_or_else(
            || Ok(Default::default()),
            |properties| value::object(&format!("{at}.properties"), properties),
        )
        .unwrap_or_else(|error| {
            wrong.extend(error.fields().iter().cloned());
            Default::default()
        });
    InfrastructureSpec {
        platform: from.platform.clone(),
        properties,
        network: from.network.as_ref().map(|network| Network {
            cidr: network.cidr.clone(),
            prefix_length: network.prefix_length,
            id: network.id.clone(),
            public: network.public.clone(),
        }),
        endpoint: from.endpoint.as_ref().map(|endpoint| Endpoint {
            host: endpoint.host.clone(),
            port: endpoint.port,
            targets: endpoint.targets.clone(),
        }),
        firewall: from.firewall.as_ref().map(|firewall| Firewall {
            image: firewall.image.clone(),
            node_class: firewall.node_class.clone(),
            rules: rules(&format!("{at}.firewall"), &firewall.rules, wrong),
            host: firewall.host.clone(),
        }),
    }
}

fn rules(at: &str, from: &[wire::FirewallRule], wrong: &mut Vec<Violation>) -> Vec<Rule> {
    let mut read = |index: usize, rule: &wire::FirewallRule| {
        let direction = match wire::FirewallDirection::try_from(rule.direction) {
            Ok(wire::FirewallDirection::Unspecified) => None,
            Ok(wire::FirewallDirection::Ingress) => Some(Direction::Ingress),
            Ok(wire::FirewallDirection::Egress) => Some(Direction::Egress),
            Err(_) => {
                wrong.push(Violation {
                    field: format!("{at}.rules[{index}].direction"),
                    description: format!("{} is not a direction", rule.direction),
                });
                // Any direction will do: the violation above already rejects the spec, and this avoids a second one for
                // a missing direction.
                Some(Direction::Ingress)
            }
        };
        Rule {
            direction,
            protocol: rule.protocol.clone(),
            cidrs: rule.cidrs.clone(),
            ports: rule.ports.iter().map(|p| (p.first, p.last)).collect(),
            comment: rule.comment.clone(),
        }
    };
    from.iter()
        .enumerate()
        .map(|(index, rule)| read(index, rule))
        .collect()
}

/// Converts an entry to the form that is sent to platforms.
#[must_use]
pub fn to_spec(from: &InfrastructureSpec) -> wire::InfrastructureSpec {
    let rule = |rule: &Rule| wire::FirewallRule {
        direction: match rule.direction {
            None => wire::FirewallDirection::Unspecified,
            Some(Direction::Ingress) => wire::FirewallDirection::Ingress,
            Some(Direction::Egress) => wire::FirewallDirection::Egress,
        }
        .into(),
        protocol: rule.protocol.clone(),
        cidrs: rule.cidrs.clone(),
        ports: rule
            .ports
            .iter()
            .map(|&(first, last)| wire::PortRange { first, last })
            .collect(),
        comment: rule.comment.clone(),
    };
    wire::InfrastructureSpec {
        network: from.network.as_ref().map(|network| wire::NetworkSpec {
            cidr: network.cidr.clone(),
            prefix_length: network.prefix_length,
            id: network.id.clone(),
            public: network.public.clone(),
        }),
        endpoint: from.endpoint.as_ref().map(|endpoint| wire::EndpointSpec {
            host: endpoint.host.clone(),
            port: endpoint.port,
            targets: endpoint.targets.clone(),
        }),
        firewall: from.firewall.as_ref().map(|firewall| wire::FirewallSpec {
            image: firewall.image.clone(),
            node_class: firewall.node_class.clone(),
            rules: firewall.rules.iter().map(rule).collect(),
            host: firewall.host.clone(),
        }),
        properties: (!from.properties.is_empty()).then(|| value::to_struct(&from.properties)),
    }
}

/// Encodes an entry as it is stored and sent. The encoding is deterministic.
#[must_use]
pub fn wanted(from: &InfrastructureSpec) -> Wanted {
    Wanted::new(&from.platform, &to_spec(from).encode_to_vec())
}

/// Converts the report of a platform. `platform` is the name under which it is registered.
///
/// # Errors
///
/// `Internal` if the report is missing, has no phase, or is too large to be stored.
pub fn observed(
    platform: &str,
    from: Option<wire::InfrastructureState>,
    poll_after: Option<&prost_types::Duration>,
) -> Result<Observed> {
    let from = from.ok_or_else(|| Error::internal("the platform did not say how far it is"))?;
    let resources = resources(&from.resources)?;
    let outputs = from.outputs.map_or_else(
        || Ok(Vec::new()),
        |outputs| {
            bounded(&wire::InfrastructureOutputs {
                platform: platform.to_owned(),
                ..outputs
            })
        },
    )?;
    Ok(Observed {
        phase: phase(from.phase)?,
        message: Box::default(),
        resources,
        outputs: outputs.into(),
        poll_after: self::poll_after(poll_after),
    })
}

/// Converts the resources of a report, and sorts them.
pub(crate) fn resources(from: &[wire::Resource]) -> Result<Vec<Resource>> {
    if from.len() > MAX_RESOURCES {
        return Err(Error::internal(format!(
            "the platform shows {} resources; at most {MAX_RESOURCES} are possible",
            from.len()
        )));
    }
    let mut resources = from.iter().map(resource).collect::<Result<Vec<_>>>()?;
    resources.sort_by(|a, b| (&a.kind, &a.name).cmp(&(&b.kind, &b.name)));
    Ok(resources)
}

/// Encodes what a platform offers, within the limit of what is stored.
pub(crate) fn bounded(outputs: &impl Message) -> Result<Vec<u8>> {
    let outputs = outputs.encode_to_vec();
    if outputs.len() > MAX_OUTPUTS {
        return Err(Error::internal(format!(
            "the platform's outputs have {} bytes; at most {MAX_OUTPUTS} are possible",
            outputs.len()
        )));
    }
    Ok(outputs)
}

/// Converts the time after which a platform is to be asked again. `None` if it gives none, or an unreadable one.
pub(crate) fn poll_after(from: Option<&prost_types::Duration>) -> Option<Millis> {
    let span = value::duration("poll_after", from?).ok()?;
    Some(u64::try_from(span.as_millis()).unwrap_or(u64::MAX / 4))
}

pub(crate) fn phase(from: i32) -> Result<ResourcePhase> {
    use wire::ResourcePhase as Wire;
    match Wire::try_from(from) {
        Ok(Wire::Pending) => Ok(ResourcePhase::Pending),
        Ok(Wire::Ready) => Ok(ResourcePhase::Ready),
        Ok(Wire::Failed) => Ok(ResourcePhase::Failed),
        Ok(Wire::Releasing) => Ok(ResourcePhase::Releasing),
        Ok(Wire::Gone) => Ok(ResourcePhase::Gone),
        Ok(Wire::Unknown) => Ok(ResourcePhase::Unknown),
        Ok(Wire::Unspecified) | Err(_) => Err(Error::internal(format!(
            "the platform says phase {from}, which is none"
        ))),
    }
}

pub(crate) fn to_phase(from: ResourcePhase) -> wire::ResourcePhase {
    match from {
        ResourcePhase::Pending => wire::ResourcePhase::Pending,
        ResourcePhase::Ready => wire::ResourcePhase::Ready,
        ResourcePhase::Failed => wire::ResourcePhase::Failed,
        ResourcePhase::Releasing => wire::ResourcePhase::Releasing,
        ResourcePhase::Gone => wire::ResourcePhase::Gone,
        ResourcePhase::Unknown => wire::ResourcePhase::Unknown,
    }
}

fn resource(from: &wire::Resource) -> Result<Resource> {
    Ok(Resource {
        kind: name::sym(&from.kind),
        name: from.name.as_str().into(),
        id: from.id.as_str().into(),
        phase: phase(from.phase)?,
        message: short(&from.message).into(),
        sequence: from.sequence,
        create_time: from.create_time.as_ref().map_or(0, value::millis),
    })
}

pub(crate) fn short(message: &str) -> String {
    let mut message = cut(message.to_owned());
    if message.len() > MAX_MESSAGE {
        let mut end = MAX_MESSAGE;
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
    }
    message
}

/// Converts the infrastructure record to its API representation.
#[must_use]
pub fn to_status(
    cluster: &str,
    owner: &str,
    platform: &Sym,
    from: &ResourceRecord,
) -> pb::InfrastructureStatus {
    pb::InfrastructureStatus {
        platform: platform.to_string(),
        state: Some(wire::InfrastructureState {
            phase: to_phase(if from.releasing {
                ResourcePhase::Releasing
            } else {
                from.phase
            })
            .into(),
            resources: to_resources(cluster, owner, &from.resources),
            outputs: outputs(&from.outputs),
        }),
    }
}

/// Converts recorded resources to their API representation.
pub(crate) fn to_resources(cluster: &str, owner: &str, from: &[Resource]) -> Vec<wire::Resource> {
    let resources = from.iter().map(|resource| wire::Resource {
        cluster_id: cluster.to_owned(),
        owner: owner.to_owned(),
        kind: resource.kind.to_string(),
        name: resource.name.to_string(),
        id: resource.id.to_string(),
        phase: to_phase(resource.phase).into(),
        message: resource.message.to_string(),
        sequence: resource.sequence,
        create_time: value::to_timestamp_opt(resource.create_time),
    });
    resources.collect()
}

/// Decodes the recorded outputs. `None` if there are none.
#[must_use]
pub fn outputs(from: &Arc<[u8]>) -> Option<wire::InfrastructureOutputs> {
    if from.is_empty() {
        return None;
    }
    wire::InfrastructureOutputs::decode(&**from).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> pb::Infrastructure {
        let rule = wire::FirewallRule {
            direction: wire::FirewallDirection::Egress.into(),
            protocol: "udp".into(),
            cidrs: vec!["0.0.0.0/0".into()],
            ports: vec![wire::PortRange {
                first: 53,
                last: 60,
            }],
            comment: "names".into(),
        };
        let properties = [("project".to_owned(), value_of("p-1"))];
        pb::Infrastructure {
            platform: "metal".into(),
            properties: Some(prost_types::Struct {
                fields: properties.into(),
            }),
            network: Some(wire::NetworkSpec {
                prefix_length: Some(22),
                public: "internet".into(),
                ..Default::default()
            }),
            endpoint: Some(wire::EndpointSpec {
                host: "203.0.113.7".into(),
                port: 443,
                targets: vec!["control".into()],
            }),
            firewall: Some(wire::FirewallSpec {
                image: "firewall-3".into(),
                node_class: "v1".into(),
                rules: vec![rule],
                host: "h-1".into(),
            }),
        }
    }

    fn value_of(text: &str) -> prost_types::Value {
        prost_types::Value {
            kind: Some(prost_types::value::Kind::StringValue(text.into())),
        }
    }

    #[test]
    fn platforms_are_told_all_that_the_user_said_and_always_in_the_same_bytes() {
        let from = entry();
        let mut wrong = Vec::new();
        let read = specs(std::slice::from_ref(&from), &mut wrong);
        assert!(wrong.is_empty(), "{wrong:?}");
        let told = to_spec(&read[0]);
        assert_eq!(
            (told.network, told.endpoint, told.firewall, told.properties),
            (from.network, from.endpoint, from.firewall, from.properties)
        );
        let (one, two) = (wanted(&read[0]), wanted(&read[0].clone()));
        assert_eq!(one, two);
        let mut other = read[0].clone();
        other.network = None;
        assert_ne!(wanted(&other).spec_hash, one.spec_hash);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let mut from = entry();
        if let Some(firewall) = &mut from.firewall {
            firewall.rules[0].direction = 9;
        }
        from.properties = Some(prost_types::Struct {
            fields: [(
                "n".to_owned(),
                prost_types::Value {
                    kind: Some(prost_types::value::Kind::NumberValue(f64::NAN)),
                },
            )]
            .into(),
        });
        let mut wrong = Vec::new();
        specs(&[from], &mut wrong);
        let mut fields: Vec<&str> = wrong.iter().map(|one| one.field.as_str()).collect();
        fields.sort_unstable();
        assert_eq!(
            fields[0],
            "spec.infrastructure[0].firewall.rules[0].direction"
        );
        assert!(
            fields[1].starts_with("spec.infrastructure[0].properties"),
            "{fields:?}"
        );
    }

    #[test]
    fn an_answer_without_sense_is_an_error_and_one_with_sense_is_kept_in_order() {
        let state = |phase: wire::ResourcePhase, resources: Vec<wire::Resource>| {
            Some(wire::InfrastructureState {
                phase: phase.into(),
                resources,
                outputs: Some(wire::InfrastructureOutputs::default()),
            })
        };
        let one = |kind: &str| wire::Resource {
            kind: kind.into(),
            phase: wire::ResourcePhase::Ready.into(),
            message: "long ".repeat(2_000),
            ..Default::default()
        };
        for wrong in [
            None,
            state(wire::ResourcePhase::Unspecified, Vec::new()),
            state(wire::ResourcePhase::Ready, vec![wire::Resource::default()]),
            state(
                wire::ResourcePhase::Ready,
                vec![one("n"); MAX_RESOURCES + 1],
            ),
        ] {
            assert!(observed("p", wrong, None).is_err());
        }
        let resources = vec![one("network"), one("endpoint")];
        let seen = observed("p", state(wire::ResourcePhase::Ready, resources), None).unwrap();
        assert_eq!(seen.phase, ResourcePhase::Ready);
        assert_eq!(&*seen.resources[0].kind, "endpoint");
        assert!(seen.resources[0].message.len() <= MAX_MESSAGE);
        assert_eq!(outputs(&seen.outputs).unwrap().platform, "p");
    }
}
