//! Contents that the nodes of a request are given when it is sent.

use std::collections::BTreeMap;

use bytes::Bytes;
use drover_cluster::request::{Reference, digest_not_stored, template_secret};
use drover_core::{
    Error, Reason, Result, Sym,
    addon::{NamedSecret, secrets_hash},
    secrecy::Hidden,
    spec::SecretRef,
};
use drover_proto::platform::v1 as wire;
use uuid::Uuid;

use crate::Vault;

/// What to redact in texts about an addon that was given these secrets.
#[must_use]
pub fn of_addon(secrets: &BTreeMap<String, wire::AddonSecret>) -> Hidden {
    let contents = secrets.values().flat_map(|secret| secret.data.values());
    contents.fold(Hidden::default(), |hidden, content| hidden.secret(content))
}

impl Vault {
    /// The exact user data that a request was made with.
    ///
    /// # Errors
    /// `DigestNotStored` if it no longer exists, in which case the request cannot be resent unchanged.
    pub async fn user_data(&self, cluster: Uuid, reference: &Reference) -> Result<Bytes> {
        if let Some((of, version)) = reference.secret() {
            return self.in_version(&of, version).await;
        }
        let digest = &reference.user_data;
        let data = self.store.user_data(cluster, digest).await?;
        let digests = self.digests.of_cluster(cluster);
        data.ok_or_else(|| digest_not_stored(&digests.user_data(digest)))
    }

    /// The secrets that the templates of a request saw when it was made.
    ///
    /// # Errors
    /// As for [`Self::user_data`].
    pub async fn template_secrets(
        &self,
        reference: &Reference,
    ) -> Result<BTreeMap<String, wire::TemplateSecret>> {
        let mut all = BTreeMap::new();
        for (name, of, version) in reference.template_secrets() {
            let content = self.in_version(&of, version).await?;
            all.insert(name.to_owned(), template_secret(&of, &content)?);
        }
        Ok(all)
    }

    /// A secret that an addon names, as it is now.
    ///
    /// # Errors
    /// `SecretNotFound` if it does not exist; those of the store.
    pub async fn addon_secret(&self, name: &str) -> Result<wire::AddonSecret> {
        let Some((content, _)) = self.content(name).await? else {
            return Err(crate::no_secret(name));
        };
        let keys = content.keys.into_iter();
        let data = keys.map(|key| (key.name, key.content.to_vec()));
        Ok(wire::AddonSecret {
            data: data.collect(),
        })
    }

    /// Hash of the present versions of the secrets that an addon names, of which it reveals nothing. Empty if it names
    /// none.
    #[must_use]
    pub fn addon_secrets_hash(&self, secrets: &[NamedSecret]) -> Sym {
        let mut versions = Vec::new();
        for secret in secrets {
            let Some(known) = self.get(&secret.name) else {
                continue;
            };
            let keys = known.keys.iter();
            versions.extend(
                keys.map(|(key, it)| (secret.name.clone(), key.clone(), it.version.clone())),
            );
        }
        let versions = versions.iter();
        secrets_hash(versions.map(|(name, key, version)| (&**name, &**key, &**version)))
    }

    /// The content of a secret's key in this version.
    async fn in_version(&self, of: &SecretRef, version: &Bytes) -> Result<Bytes> {
        let found = self.read(of).await?;
        if found.version != *version {
            let message = format!(
                "secret {of} was changed since this request was made; nodes are asked for anew, with what it holds now"
            );
            return Err(Error::new(Reason::DigestNotStored, message)
                .with_metadata(drover_planner::CHANGED_SECRET, &of.name));
        }
        Ok(found.content)
    }
}
