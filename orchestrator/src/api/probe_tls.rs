//! Validation of the secrets of TLS probes on apply, so that errors do not surface node by node.

use std::sync::Arc;

use drover_cluster::Cluster;
use drover_core::{Error, Result, error::Violation, spec::ProbeTls};
use drover_proto::{orchestrator::v1 as pb, platform::v1 as wire};

use super::check::{Checked, Validator};

/// All TLS settings of probes in a spec, with their paths.
fn places(spec: &pb::ClusterSpec) -> Vec<(String, ProbeTls)> {
    let mut found = Vec::new();
    let mut add = |at: &str, health: Option<&wire::HealthPolicy>| {
        let at = format!("{at}.health");
        let health = health.and_then(|own| drover_convert::spec::health_policy(&at, own).ok());
        if let Some((field, tls)) = health.as_ref().and_then(|health| health.probe.tls()) {
            found.push((format!("{at}.{field}"), tls.clone()));
        }
    };
    add("spec", spec.health.as_ref());
    let mut open = vec![("spec".to_owned(), &spec.groups)];
    while let Some((at, groups)) = open.pop() {
        for (index, group) in groups.iter().enumerate() {
            let at = format!("{at}.groups[{index}]");
            add(&at, group.health.as_ref());
            open.push((at, &group.groups));
        }
    }
    found
}

/// Whether a probe refers to a secret.
pub(super) fn names_secrets(spec: &pb::ClusterSpec) -> bool {
    let places = places(spec);
    places.iter().any(|(_, tls)| !tls.secrets().is_empty())
}

impl Validator {
    /// Loads the secrets of probes. A missing secret is an error with its path; unusable content is a violation.
    pub(super) async fn check_probe_tls(
        &self,
        checked: &Checked,
        cluster: Option<&Arc<Cluster>>,
        changes: bool,
        wrong: &mut Vec<Violation>,
    ) -> Result<()> {
        let before = cluster.map(|cluster| cluster.lock().spec().clone());
        for (path, tls) in places(&checked.spec) {
            for (field, of) in tls.secrets() {
                let purpose = pb::SecretPurpose::Probe;
                let before = before.as_ref();
                let there = before.is_some_and(|it| it.secrets.contains(&(of.clone(), purpose)));
                if !there {
                    self.access.may_name(&of, changes)?;
                }
                if let Err(error) = self.find_secret(&of, changes) {
                    let why = error.message().to_owned();
                    return Err(error.with_violation(format!("{path}.{field}"), why));
                }
                let other = self.vault.wrong_purpose(&of, purpose);
                if let Some(description) = other.filter(|_| !there) {
                    return Err(Error::invalid(format!("{path}.{field}"), description));
                }
            }
            if let Some(name) = &tls.server_name
                && let Err(why) = drover_client::check_server_name(name)
            {
                wrong.push(Violation {
                    field: format!("{path}.server_name"),
                    description: why.to_string(),
                });
            }
            if let Err((field, why)) = drover_probes::read_tls(&self.vault, &tls).await {
                wrong.push(Violation {
                    field: format!("{path}.{field}"),
                    description: why,
                });
            }
        }
        Ok(())
    }
}
