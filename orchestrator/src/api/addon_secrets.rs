//! Validation on apply of the secrets that addons name.

use std::{collections::BTreeMap, sync::Arc};

use drover_cluster::Cluster;
use drover_core::{Error, Result, addon::NamedSecret, error::Violation, spec::SecretRef};
use drover_proto::{orchestrator::v1 as pb, platform::v1 as wire};

use super::check::{Checked, Validator};

/// Whether an addon of a spec names a secret.
pub(super) fn names_secrets(spec: &pb::ClusterSpec) -> bool {
    spec.addons.iter().any(|addon| {
        let host = addon.jump_host.as_ref();
        let oidc = addon.oidc_provider.as_ref();
        host.is_some_and(|it| {
            !it.private_keys_secret.is_empty() || !it.kubeconfig_secret.is_empty()
        }) || oidc.is_some_and(|it| {
            let mut clients = it.clients.iter();
            let mut connectors = it.connectors.iter();
            !it.tls_secret.is_empty()
                || clients.any(|one| !one.secret.is_empty())
                || connectors.any(|one| !one.secret.is_empty())
        })
    })
}

impl Validator {
    /// Reads the secrets that addons name. A missing one is an error with its field. Callers who may not change the
    /// cluster (`changes`) get none, because a platform that validates them would tell what is in them.
    pub(super) async fn check_addon_secrets(
        &self,
        checked: &Checked,
        cluster: Option<&Arc<Cluster>>,
        changes: bool,
    ) -> Result<BTreeMap<String, wire::AddonSecret>> {
        let before = cluster.map(|cluster| cluster.lock().spec().clone());
        let mut all = BTreeMap::new();
        let mut wrong = Vec::new();
        for (index, addon) in checked.resolved.addons.iter().enumerate() {
            for secret in &addon.secrets {
                let field = format!("spec.addons[{index}].{}", secret.field);
                // In another addon, or for other people in this one, it would be shown to who may not see it: keys of a
                // jump host are files for everybody who may log in.
                let there = before.as_ref().is_some_and(|before| {
                    let mut addons = before.addons.iter();
                    addons.any(|one| one.name == addon.name && one.wanted == addon.wanted)
                });
                let description = self.refuse_secret(secret, &field, there, changes)?;
                if let Some(description) = description {
                    wrong.push(Violation { field, description });
                } else if changes {
                    let content = self.vault.addon_secret(&secret.name).await?;
                    all.insert(secret.name.clone(), content);
                }
            }
        }
        if wrong.is_empty() {
            Ok(all)
        } else {
            Err(Error::violations(wrong))
        }
    }

    /// Why a secret does not do for an addon. `there`: the cluster names it already.
    fn refuse_secret(
        &self,
        secret: &NamedSecret,
        field: &str,
        there: bool,
        changes: bool,
    ) -> Result<Option<String>> {
        let of = |key: &str| SecretRef {
            name: secret.name.clone(),
            key: key.to_owned(),
        };
        if !there {
            self.access.may_name(&of(""), changes)?;
        }
        let vault = &self.vault;
        let Some(known) = vault.get(&secret.name) else {
            let error = drover_secrets::no_secret(&secret.name);
            let why = error.message().to_owned();
            return Err(error.with_violation(field, why));
        };
        if let Some(why) = vault.wrong_purpose(&of(""), pb::SecretPurpose::Workload) {
            return Ok(Some(why).filter(|_| !there));
        }
        let complete = |keys: &&&[&str]| keys.iter().all(|key| known.keys.contains_key(*key));
        if secret.keys.is_empty() || secret.keys.iter().any(|keys| complete(&keys)) {
            return Ok(None);
        }
        let sets: Vec<String> = secret.keys.iter().map(|keys| keys.join(" and ")).collect();
        Ok(Some(format!(
            "secret {:?} has not the keys that it needs here: {}",
            secret.name,
            sets.join(", or ")
        )))
    }
}
