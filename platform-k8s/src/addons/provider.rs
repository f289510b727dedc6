//! OIDC providers. Dex keeps clients, logins and signing keys as objects of its namespace, and does not tell whose they are:
//! of two providers, each would take the logins of the other. So a namespace has one, and its objects go with it.

use std::sync::Arc;

use drover_core::{Error, Reason, Result};
use drover_platform::addons::Owner;
use drover_proto::platform::v1::AddonKind;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Backend, mark::Mark, read::Things};
use crate::{
    client::{ListQuery, Object, Shape},
    delete::Item,
    errors, labels,
};

/// API group of the objects of Dex.
const DEX: &str = "dex.coreos.com";
/// Name of the Secret that a provider makes first, and that only one of a namespace can make: of two that are made at once,
/// by whichever platforms, neither might see anything else of the other.
pub(super) const CLAIM: &str = "drover-oidc-provider";

impl Backend {
    /// Checks that the namespace has no OIDC provider but this one, whoever has made it.
    ///
    /// # Errors
    /// `Precondition` with what is there.
    pub(super) async fn check_provider(&self, owner: &Owner, name: &str) -> Result<()> {
        // Its labels may have been changed by hand.
        let there = self.read_with("", labels::ADDON).await?;
        let marks = there.all().filter_map(|item| Mark::of(&item.meta));
        let providers = marks.filter(|mark| mark.kind() == AddonKind::OidcProvider);
        let (own, others): (Vec<_>, Vec<_>) = providers.partition(|mark| mark.is_of(owner, name));
        match others.first() {
            Some(other) => Err(self.second(other)),
            // What Dex keeps goes last but one with its provider, so that it is of somebody else.
            None if own.is_empty() => match self.storage().await?.first() {
                Some(stored) => Err(self.foreign(stored)),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    fn foreign(&self, stored: &Item) -> Error {
        let what = stored.label();
        let message = format!(
            "namespace {} has {what} of a Dex that this platform has not made: both would use it, and it would go with this \
             one. Run another platform with an addons.namespace of its own, or delete the objects of {DEX} there if \
             nobody needs them",
            self.namespace
        );
        Error::new(Reason::Precondition, message).with_resource("object", &what)
    }

    fn second(&self, other: &Mark) -> Error {
        let message = format!(
            "namespace {} has an OIDC provider already: {} of cluster {}; it can have only one, since its logins and keys \
             are in objects of the namespace. Run another platform with an addons.namespace of its own",
            self.namespace, other.name, other.cluster_id
        );
        Error::new(Reason::Precondition, message).with_resource("addon", &other.name)
    }

    /// Removes a provider: what runs, then the objects of Dex, which nobody may read or write any more, then the rest. As
    /// long as the objects of Dex are there, so is the provider, and no other is made.
    pub(super) async fn delete_provider(&self, things: &Things) -> Result<()> {
        let runs = |item: &&Item| item.kind.resource.group == "apps";
        let workloads: Vec<&Item> = things.items.iter().filter(runs).collect();
        self.delete(workloads.iter().copied()).await?;
        if !workloads.is_empty() || !things.pods.is_empty() {
            return Ok(());
        }
        let begun = things
            .all()
            .filter_map(|item| item.meta.creation_timestamp.as_ref());
        self.delete_storage(begun.min()).await?;
        self.delete(things.items.iter()).await
    }

    /// Deletes what Dex keeps, but for what is older than its provider: that is of somebody else.
    async fn delete_storage(&self, begun: Option<&Time>) -> Result<()> {
        let stored = match self.storage().await {
            // Without the right there is nothing to be done, and the addon must not stay for ever.
            Err(error) if errors::is_forbidden(&error) => {
                tracing::warn!(
                    "objects of a removed OIDC provider stay: {}",
                    error.message()
                );
                return Ok(());
            }
            stored => stored?,
        };
        let is_older = |item: &&Item| item.meta.creation_timestamp.as_ref() < begun;
        let (older, own): (Vec<&Item>, Vec<&Item>) = stored.iter().partition(is_older);
        if let Some(first) = older.first() {
            let (count, what) = (older.len(), first.label());
            tracing::warn!(
                count,
                "objects that are older than their OIDC provider stay: {what}"
            );
        }
        self.delete(own.into_iter()).await
    }

    /// The objects of Dex in the namespace, whoever has made them.
    async fn storage(&self) -> Result<Vec<Item>> {
        // Looked for by name, since they may be newer than what is known of the API server.
        match self.api.kind_of(&format!("{DEX}/v1"), "SigningKey").await {
            Err(error) if error.reason() == Reason::Precondition => return Ok(Vec::new()),
            found => found?,
        };
        let kinds = self.api.kinds().await?;
        let of_dex = kinds
            .iter()
            .filter(|kind| kind.resource.group == DEX && kind.namespaced && kind.can("list"));
        let mut stored = Vec::new();
        for kind in of_dex {
            let query = ListQuery {
                kind,
                namespace: &self.namespace,
                labels: "",
                fields: "",
                shape: Shape::Metadata,
            };
            let objects: Vec<Object> = self.api.list_all(&query).await?;
            stored.extend(objects.into_iter().map(|object| Item {
                kind: Arc::clone(kind),
                meta: object.metadata,
            }));
        }
        Ok(stored)
    }
}
