//! Validation of infrastructure and addons on apply, by the orchestrator and by the platforms that are to create them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use drover_cluster::{Cluster, ClusterState, Resolved};
use drover_core::{
    Class, Error, Reason, Result, addon::WantedAddon, error::Violation, resource::Wanted, words,
};
use drover_platforms::{Platforms, has};
use drover_proto::platform::v1 as wire;
use futures::StreamExt;
use prost::Message;
use uuid::Uuid;

/// Deadline for a platform to validate an entry: nothing is created, and a user waits.
const VALIDATE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum concurrent validation calls for one document.
const VALIDATE_AT_ONCE: usize = 16;

/// An entry of a spec that a platform is to make.
struct Entry<'a> {
    field: String,
    wanted: &'a Wanted,
    capability: wire::Capability,
    /// The addon that it is. `None` for infrastructure.
    addon: Option<&'a WantedAddon>,
}

fn entries(resolved: &Resolved) -> Vec<Entry<'_>> {
    let infrastructure = resolved.infrastructure.iter().enumerate();
    let infrastructure = infrastructure.map(|(index, wanted)| Entry {
        field: format!("spec.infrastructure[{index}]"),
        wanted,
        capability: wire::Capability::Infrastructure,
        addon: None,
    });
    let addons = resolved.addons.iter().enumerate();
    let addons = addons.map(|(index, addon)| Entry {
        field: format!("spec.addons[{index}]"),
        wanted: &addon.wanted,
        capability: wire::Capability::Addons,
        addon: Some(addon),
    });
    infrastructure.chain(addons).collect()
}

/// Validation against registrations and handshakes alone. Returns the positions and names of unknown platforms.
pub(in crate::api) fn read(
    platforms: &Platforms,
    resolved: &Resolved,
    assumed: &[String],
    wrong: &mut Vec<Violation>,
    warnings: &mut Vec<String>,
) -> Vec<(String, String)> {
    let mut missing = Vec::new();
    for entry in entries(resolved) {
        let platform = &entry.wanted.platform;
        let at = format!("{}.platform", entry.field);
        let Some(registered) = platforms.get(platform) else {
            if !assumed.iter().any(|name| **name == **platform) {
                missing.push((at, platform.to_string()));
            }
            continue;
        };
        let Some(handshake) = registered.platform.handshake() else {
            let warning = format!("platform {platform} has not answered yet; what needs it waits");
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
            continue;
        };
        if let Some((field, why)) = cannot(&entry, &handshake) {
            wrong.push(Violation {
                field: format!("{}.{field}", entry.field),
                description: format!("platform {platform} cannot make {why}"),
            });
        }
    }
    missing
}

/// What of an entry a platform cannot make: the field, and what it is.
fn cannot(entry: &Entry<'_>, handshake: &wire::Platform) -> Option<(&'static str, String)> {
    let able = has(handshake, entry.capability);
    let Some(addon) = entry.addon else {
        return (!able).then(|| ("platform", "infrastructure".to_owned()));
    };
    let spec = drover_convert::addon::decode(&addon.wanted.body).unwrap_or_default();
    let kind = drover_convert::addon::kind_of(&spec);
    if !able {
        Some(("platform", "addons".to_owned()))
    } else if handshake.addon_kinds().any(|one| one == kind) {
        None
    } else {
        let known = handshake.addon_kinds().map(drover_convert::addon::word);
        let known: Vec<&str> = known.collect();
        let kind = drover_convert::addon::word(kind);
        Some(("type", format!("a {kind}; it makes: {}", known.join(", "))))
    }
}

/// What a platform is asked to validate.
enum Question {
    Infrastructure(wire::EnsureInfrastructureRequest),
    Addon(wire::EnsureAddonRequest),
}

/// What platforms are to validate.
pub(in crate::api) struct Of<'a> {
    /// Name of the cluster.
    pub(in crate::api) name: &'a str,
    pub(in crate::api) resolved: &'a Resolved,
    /// Content of the secrets that addons name, as far as the caller may use them.
    pub(in crate::api) secrets: &'a BTreeMap<String, wire::AddonSecret>,
    /// The cluster, if it exists.
    pub(in crate::api) cluster: Option<&'a Arc<Cluster>>,
}

/// Has every reachable platform validate what it would create or change. Rejections become violations; checks that
/// could not be made become warnings.
pub(in crate::api) async fn ask(
    platforms: &Platforms,
    of: &Of<'_>,
    warnings: &mut Vec<String>,
) -> Result<()> {
    let Of {
        name,
        resolved,
        secrets,
        cluster,
    } = *of;
    // A new cluster has no uid yet; nothing is created under this one.
    let owner = cluster.map_or_else(Uuid::now_v7, |cluster| cluster.uid());
    let (known, sequence) = cluster.map_or_else(
        || (None, 1),
        |cluster| {
            let inner = cluster.lock();
            (Some(inner.spec().clone()), inner.state().next_sequence)
        },
    );
    let mut asked = Vec::new();
    for entry in entries(resolved) {
        // Entries that were accepted before are not validated again.
        let before = known.as_ref().is_some_and(|known| match entry.addon {
            None => known.infrastructure.contains(entry.wanted),
            Some(addon) => known.addons.contains(addon),
        });
        let named = entry.addon.iter().flat_map(|addon| &addon.secrets);
        if before || !named.clone().all(|one| secrets.contains_key(&one.name)) {
            continue;
        }
        let Some(registered) = platforms.get(&entry.wanted.platform) else {
            continue;
        };
        let Some(client) = registered.platform.client() else {
            continue;
        };
        let uid = registered.platform.identity().0;
        let fence = Some(platforms.fence(owner));
        let question = question(&entry, (name, owner, sequence), uid, fence, secrets)?;
        let platform = entry.wanted.platform.clone();
        let ports = entry.addon.map(|addon| addon.ports.clone());
        asked.push(async move {
            let answer = match question {
                Question::Infrastructure(message) => client
                    .ensure_infrastructure(message, VALIDATE_TIMEOUT)
                    .await
                    .err(),
                Question::Addon(message) => {
                    let hidden = drover_secrets::of_addon(&message.secrets);
                    let answer = client.ensure_addon(message, VALIDATE_TIMEOUT).await;
                    answer.err().map(|error| hidden.error(error))
                }
            };
            (entry.field, platform, ports, answer)
        });
    }
    let answers: Vec<_> = futures::stream::iter(asked)
        .buffered(VALIDATE_AT_ONCE)
        .collect()
        .await;
    let mut wrong = Vec::new();
    for (field, platform, ports, error) in answers {
        let Some(error) = error else { continue };
        if error.class() == Class::Cannot {
            wrong.extend(refused(&field, &platform, ports.as_deref(), &error));
        } else {
            let what = ports.map_or("infrastructure", |_| "addons");
            let warning = format!("platform {platform} could not check the {what}: {error}");
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(Error::violations(wrong))
    }
}

fn question(
    entry: &Entry<'_>,
    (name, owner, sequence): (&str, Uuid, u64),
    expected_platform_uid: String,
    fence: Option<wire::Fence>,
    secrets: &BTreeMap<String, wire::AddonSecret>,
) -> Result<Question> {
    let (cluster_id, owner) = (name.to_owned(), owner.to_string());
    let Some(addon) = entry.addon else {
        return Ok(Question::Infrastructure(
            wire::EnsureInfrastructureRequest {
                expected_platform_uid,
                fence,
                cluster_id,
                owner,
                sequence,
                spec: Some(drover_cluster::resources::decode(&entry.wanted.body)?),
                validate_only: true,
                ..wire::EnsureInfrastructureRequest::default()
            },
        ));
    };
    let named = addon
        .secrets
        .iter()
        .filter_map(|secret| Some((secret.name.clone(), secrets.get(&secret.name)?.clone())));
    Ok(Question::Addon(wire::EnsureAddonRequest {
        expected_platform_uid,
        fence,
        cluster_id,
        owner,
        sequence,
        spec: Some(drover_convert::addon::decode(&entry.wanted.body)?),
        validate_only: true,
        secrets: named.collect(),
        ..wire::EnsureAddonRequest::default()
    }))
}

/// Maps a platform's rejection to fields of the document.
///
/// `ports` are the fields of an addon's port mappings. `None` for infrastructure.
fn refused(field: &str, platform: &str, ports: Option<&[String]>, error: &Error) -> Vec<Violation> {
    let what = match error.reason() {
        Reason::Immutable => "cannot be changed once it is made",
        _ => "is refused",
    };
    if error.fields().is_empty() {
        return vec![Violation {
            field: field.to_owned(),
            description: format!("{what}: {platform}: {error}"),
        }];
    }
    error
        .fields()
        .iter()
        .map(|inner| {
            let rest = inner.field.strip_prefix("spec.").unwrap_or(&inner.field);
            let rest = ports.map_or_else(|| rest.to_owned(), |ports| of_document(rest, ports));
            Violation {
                field: format!("{field}.{rest}"),
                description: format!("{what}: {platform}: {}", inner.description),
            }
        })
        .collect()
}

/// A field of an addon as it stands in documents.
fn of_document(field: &str, ports: &[String]) -> String {
    match field {
        "jump_host.port" | "oidc_provider.port" => return "port".to_owned(),
        "kind" => return "type".to_owned(),
        "template.template" => return "template".to_owned(),
        _ => {}
    }
    let mapping = field.strip_prefix("load_balancer.ports[");
    let mapping = mapping.and_then(|rest| rest.split_once(']'));
    let known = mapping.and_then(|(at, rest)| Some((ports.get(at.parse::<usize>().ok()?)?, rest)));
    match known {
        None => field
            .strip_prefix("load_balancer.")
            .unwrap_or(field)
            .to_owned(),
        Some((port, rest)) if port == "port" => match rest.strip_prefix(".target") {
            Some(rest) => format!("target_port{rest}"),
            None => port.clone(),
        },
        Some((port, rest)) => format!("{port}{rest}"),
    }
}

/// An entry can only be removed if the cluster has no nodes on that platform, since they depend on its infrastructure.
pub(in crate::api) fn refuse_removed(inner: &ClusterState, resolved: &Resolved) -> Result<()> {
    let mut wrong = Vec::new();
    for before in &inner.spec().infrastructure {
        let kept = |after: &Wanted| after.platform == before.platform;
        if resolved.infrastructure.iter().any(kept) {
            continue;
        }
        let nodes = inner
            .state()
            .nodes
            .iter()
            .filter(|node| node.platform == before.platform)
            .count();
        let requests = inner
            .state()
            .requests
            .values()
            .filter(|request| request.platform == before.platform)
            .count();
        if nodes + requests > 0 {
            wrong.push(Violation {
                field: "spec.infrastructure".to_owned(),
                description: format!(
                    "lacks the entry of platform {}, on which the cluster has {}; it can go when none is left there",
                    before.platform,
                    words::count(nodes, "node")
                ),
            });
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(Error::violations(wrong))
    }
}

/// Placeholder for an address that is not allocated yet when a template is test-rendered (RFC 2606).
const UNKNOWN_HOST: &str = "endpoint.invalid";
/// Default port of an endpoint, as documented in the protos.
const DEFAULT_PORT: u32 = 6443;

/// The infrastructure that nodes on a platform will have, for validating them: their own platform's first. Contains
/// only what the spec determines.
pub(in crate::api) fn announced(
    resolved: &Resolved,
    platform: &str,
) -> Vec<wire::InfrastructureOutputs> {
    let of = |own: bool| {
        let wanted = resolved.infrastructure.iter();
        wanted.filter(move |wanted| (*wanted.platform == *platform) == own)
    };
    let outputs = |wanted: &Wanted| {
        let spec = wire::InfrastructureSpec::decode(&*wanted.body).unwrap_or_default();
        let endpoint = spec.endpoint.map(|endpoint| wire::Endpoint {
            host: if endpoint.host.is_empty() {
                UNKNOWN_HOST.to_owned()
            } else {
                endpoint.host
            },
            port: if endpoint.port == 0 {
                DEFAULT_PORT
            } else {
                endpoint.port
            },
        });
        wire::InfrastructureOutputs {
            platform: wanted.platform.to_string(),
            endpoint,
            ..wire::InfrastructureOutputs::default()
        }
    };
    of(true).chain(of(false)).map(outputs).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_a_platform_refuses_is_shown_where_the_user_wrote_it() {
        let ports = ["port".to_owned(), "ports[0]".to_owned()];
        for (of_platform, of_document) in [
            ("load_balancer.ports[0].listen", "port"),
            ("load_balancer.ports[0].target.number", "target_port.number"),
            ("load_balancer.ports[1].listen", "ports[0].listen"),
            ("load_balancer.ports[9].listen", "ports[9].listen"),
            ("load_balancer.ports", "ports"),
            ("jump_host.port", "port"),
            (
                "jump_host.authorized_keys[1]",
                "jump_host.authorized_keys[1]",
            ),
            ("template.template", "template"),
            ("cluster_ip", "cluster_ip"),
        ] {
            assert_eq!(super::of_document(of_platform, &ports), of_document);
        }
    }
}
