//! OIDC providers. Dex keeps clients, logins and signing keys as objects of its namespace, and does not tell whose they are:
//! of two providers, each would take the logins of the other. So a namespace has one, and its objects go with it.

use drover_core::{Error, Reason, Result};
use drover_platform::addons::Owner;
use drover_proto::platform::v1::AddonKind;
use kube::api::DeleteParams;

use super::{Backend, mark::Mark, read::Things};
use crate::{
    client::{ListQuery, Meta as _, Object, Shape},
    delete::Item,
    errors, labels,
};

/// API group of the objects of Dex.
const DEX: &str = "dex.coreos.com";

impl Backend {
    /// Checks that the namespace has no OIDC provider but this one.
    ///
    /// # Errors
    /// `Precondition` with the one that is there.
    pub(super) async fn check_provider(&self, owner: &Owner, name: &str) -> Result<()> {
        let there = self.read(labels::ADDON).await?;
        let mut marks = there.all().filter_map(|item| Mark::of(&item.meta));
        let other =
            marks.find(|mark| mark.kind() == AddonKind::OidcProvider && !mark.is_of(owner, name));
        other.map_or(Ok(()), |other| Err(self.second(&other)))
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
        self.delete_storage().await?;
        self.delete(things.items.iter()).await
    }

    async fn delete_storage(&self) -> Result<()> {
        // Looked for by name, since they may be newer than what is known of the API server.
        match self.api.kind_of(&format!("{DEX}/v1"), "SigningKey").await {
            Err(error) if error.reason() == Reason::Precondition => return Ok(()),
            found => found?,
        };
        let kinds = self.api.kinds().await?;
        let of_dex = kinds
            .iter()
            .filter(|kind| kind.resource.group == DEX && kind.namespaced && kind.can("list"));
        for kind in of_dex {
            let query = ListQuery {
                kind,
                namespace: &self.namespace,
                labels: "",
                fields: "",
                shape: Shape::Metadata,
            };
            let objects: Vec<Object> = match self.api.list_all(&query).await {
                // Without the right there is nothing to be done, and the addon must not stay for ever.
                Err(error) if errors::is_forbidden(&error) => {
                    tracing::warn!(%kind, "objects of a removed OIDC provider stay: {}", error.message());
                    continue;
                }
                listed => listed?,
            };
            for object in objects {
                let name = object.metadata.name();
                let options = DeleteParams::default();
                self.api
                    .delete(kind, &self.namespace, name, &options)
                    .await?;
            }
        }
        Ok(())
    }
}
