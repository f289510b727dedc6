//! Validation of infrastructure on apply, by the orchestrator and by the platforms that are to create it.

use std::{sync::Arc, time::Duration};

use drover_cluster::{Cluster, ClusterState, Resolved};
use drover_core::{Class, Error, Reason, Result, error::Violation};
use drover_platforms::has;
use drover_proto::platform::v1 as wire;
use futures::StreamExt;
use prost::Message;
use uuid::Uuid;

use crate::shared::Shared;

/// Deadline for a platform to validate an entry: nothing is created, and a user waits.
const VALIDATE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum concurrent validation calls for one document.
const VALIDATE_AT_ONCE: usize = 16;

fn field(index: usize) -> String {
    format!("spec.infrastructure[{index}]")
}

/// Validation against registrations and handshakes alone. Returns the positions and names of unknown platforms.
pub(crate) fn read(
    shared: &Shared,
    resolved: &Resolved,
    assumed: &[String],
    wrong: &mut Vec<Violation>,
    warnings: &mut Vec<String>,
) -> Vec<(String, String)> {
    let mut missing = Vec::new();
    for (index, wanted) in resolved.infrastructure.iter().enumerate() {
        let at = format!("{}.platform", field(index));
        let Some(registered) = shared.platform(&wanted.platform) else {
            if !assumed.iter().any(|name| **name == *wanted.platform) {
                missing.push((at, wanted.platform.to_string()));
            }
            continue;
        };
        match registered.platform.handshake() {
            None => {
                let warning = format!(
                    "platform {} has not answered yet; what needs it waits",
                    wanted.platform
                );
                if !warnings.contains(&warning) {
                    warnings.push(warning);
                }
            }
            Some(handshake) if !has(&handshake, wire::Capability::Infrastructure) => {
                wrong.push(Violation {
                    field: at,
                    description: format!("platform {} cannot make infrastructure", wanted.platform),
                });
            }
            Some(_) => {}
        }
    }
    missing
}

/// Has every reachable platform validate what it would create or change. Rejections become violations; checks that
/// could not be made become warnings.
pub(crate) async fn ask(
    shared: &Shared,
    name: &str,
    resolved: &Resolved,
    cluster: Option<&Arc<Cluster>>,
    warnings: &mut Vec<String>,
) -> Result<()> {
    // A new cluster has no uid yet; nothing is created under this one.
    let owner = cluster.map_or_else(Uuid::now_v7, |cluster| cluster.uid());
    let (known, sequence) = cluster.map_or_else(
        || (Vec::new(), 1),
        |cluster| {
            let inner = cluster.lock();
            (
                inner.spec().infrastructure.clone(),
                inner.state().next_sequence,
            )
        },
    );
    let mut asked = Vec::new();
    for (index, wanted) in resolved.infrastructure.iter().enumerate() {
        // Entries that were accepted before are not validated again.
        if known.contains(wanted) {
            continue;
        }
        let Some(registered) = shared.platform(&wanted.platform) else {
            continue;
        };
        let Some(client) = registered.platform.client() else {
            continue;
        };
        let spec = wire::InfrastructureSpec::decode(&*wanted.body)
            .map_err(|_| Error::internal("an encoded spec cannot be read"))?;
        let message = wire::EnsureInfrastructureRequest {
            expected_platform_uid: registered.platform.identity().0,
            fence: Some(shared.platforms.fence(owner)),
            cluster_id: name.to_owned(),
            owner: owner.to_string(),
            sequence,
            spec: Some(spec),
            validate_only: true,
            ..wire::EnsureInfrastructureRequest::default()
        };
        let platform = wanted.platform.clone();
        asked.push(async move {
            let answer = client
                .ensure_infrastructure(message, VALIDATE_TIMEOUT)
                .await;
            (field(index), platform, answer.err())
        });
    }
    let answers: Vec<_> = futures::stream::iter(asked)
        .buffered(VALIDATE_AT_ONCE)
        .collect()
        .await;
    let mut wrong = Vec::new();
    for (field, platform, error) in answers {
        let Some(error) = error else { continue };
        if error.class() == Class::Cannot {
            wrong.extend(refused(&field, &platform, &error));
        } else {
            let warning =
                format!("platform {platform} could not check the infrastructure: {error}");
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

/// Maps a platform's rejection to fields of the document.
fn refused(field: &str, platform: &str, error: &Error) -> Vec<Violation> {
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
            Violation {
                field: format!("{field}.{rest}"),
                description: format!("{what}: {platform}: {}", inner.description),
            }
        })
        .collect()
}

/// An entry can only be removed if the cluster has no nodes on that platform, since they depend on its infrastructure.
pub(crate) fn refuse_removed(inner: &ClusterState, resolved: &Resolved) -> Result<()> {
    let mut wrong = Vec::new();
    for before in &inner.spec().infrastructure {
        let kept = |after: &drover_core::infrastructure::Wanted| after.platform == before.platform;
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
                    "lacks the entry of platform {}, on which the cluster has {nodes} nodes; it can go when they are \
                     gone",
                    before.platform
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
pub(crate) fn announced(resolved: &Resolved, platform: &str) -> Vec<wire::InfrastructureOutputs> {
    let of = |own: bool| {
        let wanted = resolved.infrastructure.iter();
        wanted.filter(move |wanted| (*wanted.platform == *platform) == own)
    };
    let outputs = |wanted: &drover_core::infrastructure::Wanted| {
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
