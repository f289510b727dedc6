//! The operator's actions on secrets, and the values that nodes receive.

use std::{collections::BTreeSet, time::Duration};

use drover_proto::orchestrator::v1 as pb;
use tokio::time::Instant;

use super::{
    Run,
    model::{NodeKey, SECRETS, Value},
    operator::CALL,
};

/// How long a replaced value may still reach a node: a call in flight, and the longest step.
const LATE: Duration = Duration::from_secs(20 * 60);
/// The key of each secret that is used as bootstrap data.
pub(super) const KEY: &str = "data";

impl Run {
    /// Creates or rotates one of the secrets that clusters refer to.
    pub(super) async fn rotate_secret(&mut self) {
        let name = SECRETS[self.random.usize(..SECRETS.len())];
        let value = format!("{name}-{:016x}", self.random.u64(..));
        self.note(format!("secret {name} is {value}"));
        let content = pb::SecretValue {
            value: Some(pb::secret_value::Value::Text(value.clone())),
        };
        let request = pb::ApplySecretRequest {
            name: name.to_owned(),
            data: [(KEY.to_owned(), content)].into(),
            purpose: pb::SecretPurpose::Workload.into(),
            ..pb::ApplySecretRequest::default()
        };
        // Recorded before the call, which may succeed although its response is lost.
        let values = self.model.secrets.entry(name.to_owned()).or_default();
        values.push(Value {
            text: value,
            replaced: None,
            granted: false,
        });
        let granted = self
            .ask("ApplySecret", async |client| {
                client.apply_secret(request.clone(), CALL).await
            })
            .await
            .is_some();
        let Some(values) = self.model.secrets.get_mut(name) else {
            return;
        };
        if let (true, [old @ .., new]) = (granted, &mut values[..]) {
            new.granted = true;
            for value in old {
                value.replaced.get_or_insert_with(Instant::now);
            }
        }
    }

    /// Deletes a secret, which must only be granted if no cluster refers to it.
    pub(super) async fn delete_secret(&mut self) {
        let name = SECRETS[self.random.usize(..SECRETS.len())];
        self.note(format!("delete secret {name}"));
        let request = pb::DeleteSecretRequest {
            name: name.to_owned(),
        };
        let granted = self
            .ask("DeleteSecret", async |client| {
                client.delete_secret(request.clone(), CALL).await
            })
            .await
            .is_some();
        if granted && self.model.secrets.contains_key(name) {
            self.deleted_secret = Some(name);
        }
    }

    /// Invariant: no secret is deleted while a cluster refers to it.
    pub(super) async fn no_secret_in_use_was_deleted(&mut self) -> Result<(), String> {
        let Some(name) = self.deleted_secret.take() else {
            return Ok(());
        };
        for cluster in self.model.wanted() {
            let now = self.world.cluster(&cluster).await;
            let deleted = now.as_ref().is_none_or(|now| now.delete_time.is_some());
            let spec = now.and_then(|now| now.spec).unwrap_or_default();
            if !deleted && names(&spec, name) {
                return Err(format!("secret {name} was deleted, and {cluster} names it"));
            }
        }
        Ok(())
    }

    /// Invariant: every node starts with a value that its secret had when the node was created.
    pub(super) fn nobody_begins_with_an_old_secret(&mut self) -> Result<(), String> {
        let now = Instant::now();
        for (at, site) in self.model.sites.iter().enumerate() {
            let backend = &site.real.backend;
            let nodes = backend.nodes().into_iter();
            let keys: BTreeSet<NodeKey> = nodes.map(|node| (at, node.node_id)).collect();
            for key in keys {
                if !self.model.begun.insert(key.clone()) {
                    continue;
                }
                let Some(data) = backend.user_data(&key.1) else {
                    continue;
                };
                let text = String::from_utf8_lossy(&data);
                let values = self.model.secrets.values().flatten();
                let mut of = values.filter(|value| value.text == text);
                if !of.any(|value| value.replaced.is_none_or(|at| now < at + LATE)) {
                    return Err(format!(
                        "{} on {} begins with {text}, which no secret holds",
                        key.1, site.name
                    ));
                }
            }
        }
        Ok(())
    }
}

fn names(spec: &pb::ClusterSpec, secret: &str) -> bool {
    let mut hosts = spec
        .addons
        .iter()
        .filter_map(|addon| addon.jump_host.as_ref());
    if hosts.any(|host| host.private_keys_secret == secret) {
        return true;
    }
    use pb::bootstrap_source::Source::SecretKey;
    let source = spec.bootstrap.as_ref().and_then(|it| it.source.as_ref());
    matches!(source, Some(SecretKey(of)) if of.name == secret)
}
