//! The secrets API: create, update, read and delete. No response, error or log contains secret content.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use drover_cluster::request::digest_not_stored;
use drover_core::{
    Error, Reason, Result, Urgency,
    error::Violation,
    name,
    secret::{self, Given},
    spec::digest,
};
use drover_executor::{Hooks, Point};
use drover_proto::orchestrator::v1 as pb;
use drover_secrets::{Content, ContentKey, Vault};
use drover_store::{Clock, DigestKey, Store};
use prost::Message;

use super::{
    access::{Access, per_call},
    paging::{self, Page},
};
use crate::{queue::Queue, records::Records, registry::Registry, secrets::Secrets};

/// Maximum number of users that an error names.
const NAMED_USERS: usize = 10;

/// Validates a request without the stored secret.
fn check(request: &pb::ApplySecretRequest) -> Result<()> {
    let data = request.data.iter();
    let data = data.map(|(key, value)| (key.as_str(), given(value)));
    let mut wrong = secret::check(&request.name, data);
    if let Err(unknown) = pb::SecretPurpose::try_from(request.purpose) {
        wrong.push(Violation {
            field: "purpose".to_owned(),
            description: format!("is {unknown}; expected workload, probe or platform"),
        });
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        wrong.sort();
        Err(Error::violations(wrong))
    }
}

fn given(value: &pb::SecretValue) -> Given<'_> {
    use pb::secret_value::Value;
    match &value.value {
        None => Given::Nothing,
        Some(Value::Text(text)) => Given::Content(text.len()),
        Some(Value::Binary(data)) => Given::Content(data.len()),
        Some(Value::Sha256(digest)) => Given::Digest(digest),
    }
}

/// The content after a request; keys with unchanged content keep their version.
fn wanted(
    data: impl IntoIterator<Item = (String, pb::SecretValue)>,
    before: Option<&Content>,
    digests: &DigestKey,
) -> Result<Vec<ContentKey>> {
    use pb::secret_value::Value;
    let sorted: BTreeMap<String, pb::SecretValue> = data.into_iter().collect();
    let mut keys = Vec::with_capacity(sorted.len());
    for (name, value) in sorted {
        let present = before.and_then(|before| before.get(&name));
        let content: Bytes = match value.value {
            Some(Value::Text(text)) => text.into_bytes().into(),
            Some(Value::Binary(data)) => data.into(),
            Some(Value::Sha256(wanted)) => {
                let wanted = wanted.to_ascii_lowercase();
                let is_meant =
                    |content: &[u8]| digests.secret(content) == wanted || digest(content) == wanted;
                let kept = present.filter(|present| is_meant(&present.content));
                let kept = kept.ok_or_else(|| {
                    digest_not_stored(&wanted).with_metadata("field", format!("data.{name}"))
                })?;
                kept.content.clone()
            }
            None => Bytes::new(),
        };
        keys.push(match present {
            Some(present) if present.content == content => present.clone(),
            _ => ContentKey::new(&name, content),
        });
    }
    let size: usize = keys
        .iter()
        .map(|key| key.name.len() + key.content.len())
        .sum();
    if size > secret::MAX_SECRET {
        return Err(Error::invalid("data", secret::too_large(size)));
    }
    Ok(keys)
}

/// Changes secrets, and shows what is known of them.
#[derive(Clone)]
pub(crate) struct SecretCalls {
    pub(crate) access: Access,
    pub(crate) secrets: Arc<Secrets>,
    pub(crate) vault: Arc<Vault>,
    pub(crate) store: Arc<Store>,
    pub(crate) records: Arc<Records>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) digests: Arc<DigestKey>,
    pub(crate) queue: Queue,
    pub(crate) clock: Arc<Clock>,
    pub(crate) hooks: Hooks,
}

per_call!(SecretCalls: access);

impl SecretCalls {
    /// Records the secret that a call is about. An invalid name is left out, because it may be secret content passed in
    /// the wrong field.
    fn about_secret(&self, name: &str) {
        if name::check_secret_name(name).is_ok() {
            self.access.caller.about("secret", name);
        }
    }

    pub(super) async fn apply_secret(
        &self,
        request: pb::ApplySecretRequest,
    ) -> Result<pb::ApplySecretResponse> {
        let name = request.name.clone();
        self.about_secret(&name);
        check(&request)?;
        let store = &self.store;
        store.keys()?;
        let _changing = self.secrets.change().await;
        let before = self.vault.content(&name).await?;
        let present = before.as_ref().map_or(0, |(_, revision)| *revision);
        if let Some(expected) = request.expected_revision
            && expected != present
        {
            let message = format!("secret {name:?} has revision {present} now; read it again");
            return Err(
                Error::new(Reason::RevisionMismatch, message).with_metadata("revision", present)
            );
        }
        let old = before.as_ref().map(|(content, _)| content);
        let purpose = self.purpose_of(&request, old)?;
        let keys = wanted(request.data, old, &self.digests)?;
        if let Some(old) = old {
            self.refuse_missing(&name, old, &keys).await?;
        }
        let now = self.clock.now();
        let (outcome, content) = match old {
            None => (
                pb::ApplyOutcome::Created,
                Content {
                    keys,
                    create_time_ms: now,
                    update_time_ms: now,
                    purpose,
                },
            ),
            Some(old) if old.keys == keys && old.purpose == purpose => {
                (pb::ApplyOutcome::Unchanged, old.clone())
            }
            Some(old) => (
                pb::ApplyOutcome::Configured,
                Content {
                    keys,
                    update_time_ms: now,
                    purpose,
                    ..*old
                },
            ),
        };
        let stores = !request.validate_only && outcome != pb::ApplyOutcome::Unchanged;
        let (revision, known) = if stores {
            self.hooks.reach(Point::BeforeApply).await;
            let value = content.encode_to_vec().into();
            let revision = store.put_secret(&name, value, Some(present)).await?;
            self.hooks.reach(Point::AfterApply).await;
            self.records.wrote(revision);
            let known = self.vault.put(&name, &content, revision);
            self.registry.secret_changed(&name).await;
            for cluster in self.records.clusters().all() {
                let addons = cluster.lock().spec().clone();
                let mut named = addons.addons.iter().flat_map(|addon| &addon.secrets);
                if named.any(|secret| secret.name == name) {
                    self.queue.push(cluster.uid(), Urgency::Bulk);
                }
            }
            (revision, known)
        } else {
            (
                self.records.revision(),
                Arc::new(content.known(present, &self.digests)),
            )
        };
        let users = self.secrets.users(&name, None);
        Ok(pb::ApplySecretResponse {
            secret: Some(known.to_proto(&name, users)),
            outcome: outcome.into(),
            revision,
        })
    }

    /// The purpose after a request, in its stored form. Fails if the secret is used for another purpose.
    fn purpose_of(&self, request: &pb::ApplySecretRequest, old: Option<&Content>) -> Result<i32> {
        use pb::SecretPurpose::{Unspecified, Workload};
        let named = |stored| match stored {
            Unspecified => Workload,
            other => other,
        };
        let (wanted, Some(old)) = (request.purpose(), old) else {
            return Ok(named(request.purpose()).into());
        };
        if wanted == Unspecified || wanted == named(old.purpose()) {
            return Ok(old.purpose);
        }
        let users = self.secrets.users(&request.name, None);
        match users.first() {
            None => Ok(wanted.into()),
            Some(first) => {
                let (has, wanted) = (
                    drover_secrets::word(old.purpose()),
                    drover_secrets::word(wanted),
                );
                let why = format!(
                    "is {wanted}, and {first} names it as one of purpose {has}; make another secret with `purpose: \
                     {wanted}`"
                );
                Err(Error::invalid("purpose", why))
            }
        }
    }

    /// Refuses to remove a key that is in use.
    async fn refuse_missing(&self, name: &str, old: &Content, new: &[ContentKey]) -> Result<()> {
        let mut wrong = Vec::new();
        for gone in old
            .keys
            .iter()
            .filter(|old| new.iter().all(|new| new.name != old.name))
        {
            let users = self.secrets.users(name, Some(&gone.name));
            let why = match users.first() {
                Some(first) => Some(format!("is missing, and {first} names it")),
                None => self
                    .secrets
                    .holders(name, Some(&gone.name))
                    .await?
                    .first()
                    .map(|first| format!("is missing, and nodes of {first} have it")),
            };
            wrong.extend(why.map(|description| Violation {
                field: format!("data.{}", gone.name),
                description,
            }));
        }
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(Error::violations(wrong))
        }
    }

    pub(super) async fn list_secrets(
        &self,
        request: pb::ListSecretsRequest,
    ) -> Result<pb::ListSecretsResponse> {
        self.records.reach(request.min_revision).await?;
        let after = paging::start(&request.page_token)?;
        let mut page = Page::new(request.page_size)?;
        let revision = self.records.revision();
        let mut users = self.secrets.all_users();
        for (name, known) in self.vault.all() {
            let before = after.as_deref().is_some_and(|after| name.as_str() <= after);
            let other = request.name.as_ref().is_some_and(|wanted| *wanted != name);
            if before || other {
                continue;
            }
            let users = users.remove(&name).unwrap_or_default();
            if !page.push(name.as_str(), known.to_proto(&name, users)) {
                break;
            }
        }
        Ok(pb::ListSecretsResponse {
            secrets: page.rows,
            next_page_token: page.next,
            revision,
        })
    }

    pub(super) async fn delete_secret(
        &self,
        request: pb::DeleteSecretRequest,
    ) -> Result<pb::DeleteSecretResponse> {
        let name = &request.name;
        self.about_secret(name);
        if name.is_empty() {
            return Err(Error::invalid("name", "is empty"));
        }
        let _changing = self.secrets.change().await;
        let mut users = self.secrets.users(name, None);
        let mut what = "is named by";
        if users.is_empty() {
            users = self.secrets.holders(name, None).await?;
            what = "is in nodes of";
        }
        if let Some(first) = users.first() {
            let named = users[..users.len().min(NAMED_USERS)].join(", ");
            let more = match users.len().saturating_sub(NAMED_USERS) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let message = format!("secret {name:?} {what} {named}{more}");
            return Err(Error::new(Reason::SecretInUse, message)
                .with_metadata("user", first)
                .with_resource("secret", name));
        }
        let revision = match self.store.delete_secret(name, None).await {
            Ok(revision) => {
                self.records.wrote(revision);
                revision
            }
            Err(error) if error.reason() == Reason::NotFound => self.records.revision(),
            Err(error) => return Err(error),
        };
        self.vault.remove(name);
        Ok(pb::DeleteSecretResponse { revision })
    }
}
