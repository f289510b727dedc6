//! Digests of user data: accepted in the keyed form in which they are shown, which does not permit guessing the data.

use std::{collections::BTreeMap, sync::Arc};

use drover_cluster::{Cluster, request::digest_not_stored};
use drover_core::Result;
use drover_proto::orchestrator::v1::{self as pb, bootstrap_source::Source};
use drover_store::digest::is_keyed;

use super::check::Validator;
use crate::status::sources;

/// Whether a text has the form of a SHA-256.
fn is_plain(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl Validator {
    /// Replaces digests in their shown form by those under which the data is stored. A plain SHA-256 is accepted only
    /// from callers who may change the cluster (`changes`), because others could use it to test guesses of the data.
    ///
    /// # Errors
    /// `DigestNotStored`, with the field.
    pub(super) async fn take_digests(
        &self,
        document: &pb::Cluster,
        cluster: Option<&Arc<Cluster>>,
        changes: bool,
    ) -> Result<pb::Cluster> {
        let mut document = document.clone();
        let Some(spec) = &mut document.spec else {
            return Ok(document);
        };
        let mut stored: Option<BTreeMap<String, String>> = None;
        for (path, source) in sources(spec) {
            let Some(Source::Sha256(given)) = &mut source.source else {
                continue;
            };
            given.make_ascii_lowercase();
            if !is_keyed(given) && (changes || !is_plain(given)) {
                continue;
            }
            if stored.is_none() {
                stored = Some(self.stored_digests(cluster).await?);
            }
            let known = stored.as_ref();
            match known.and_then(|known| known.get(given)) {
                Some(sha256) => given.clone_from(sha256),
                None => return Err(digest_not_stored(given).with_metadata("field", path)),
            }
        }
        Ok(document)
    }

    /// The stored user data of a cluster, by the digests that are or were shown.
    async fn stored_digests(
        &self,
        cluster: Option<&Arc<Cluster>>,
    ) -> Result<BTreeMap<String, String>> {
        let Some(cluster) = cluster else {
            return Ok(BTreeMap::new());
        };
        let stored = self.store.user_data_digests(cluster.uid()).await?;
        let key = self.digests.of_cluster(cluster.uid());
        let known = stored.into_iter().flat_map(|one| {
            let names = [key.user_data(&one), key.former_user_data(&one)];
            names.map(|name| (name, one.clone()))
        });
        Ok(known.collect())
    }
}
