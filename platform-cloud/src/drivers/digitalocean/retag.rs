//! Changes tags of droplets.

use std::{collections::BTreeMap, time::Duration};

use drover_core::{Error, Result};
use reqwest::Method;
use serde_json::json;

use super::{DigitalOcean, machine::Droplet, tags};
use crate::cloud::{CLUSTER, Machine, REQUEST};

/// Retry delay for a droplet that is too new to have its tags.
const UNTAGGED: Duration = Duration::from_secs(1);

impl DigitalOcean {
    /// Sets and removes tags with one call each, as the API offers no other way.
    pub(super) async fn change_tags(
        &self,
        machine: &Machine,
        set: &BTreeMap<String, String>,
        remove: &[String],
    ) -> Result<()> {
        let body = self.client.get(&["droplets", &machine.id], &[]).await?;
        let droplet = body.map(|body| Droplet::read(&body["droplet"]));
        let droplet = match droplet {
            None => return Err(Error::not_found("node", &machine.id)),
            Some(Err(unreadable)) => return Err(Error::unavailable(unreadable.message)),
            Some(Ok(droplet)) => droplet,
        };
        let has = droplet.tags.unwrap_or_default();
        let shown = tags::decode(has.iter().map(String::as_str)).tags;
        if machine.tags.contains_key(REQUEST) && !shown.contains_key(REQUEST) {
            // Those that are to be replaced would come later, and stay.
            return Err(Error::unavailable(format!(
                "droplet {} does not have the tags yet that it was created with",
                machine.id
            ))
            .with_retry_after(UNTAGGED));
        }
        // Ownership tags are set last, so that an interrupted change can be repeated; and new tags are set before old
        // ones are removed, so that the droplet is never without an owner.
        let last = |key: &&String| (key.as_str() == CLUSTER, key.as_str() == REQUEST);
        let mut keys: Vec<&String> = set.keys().collect();
        keys.sort_by_key(last);
        let mut wanted = Vec::new();
        for key in keys {
            wanted.extend(tags::encode(key, &set[key])?);
        }
        let same = |a: &str, b: &str| a.eq_ignore_ascii_case(b);
        for name in &wanted {
            if !has.iter().any(|tag| same(tag, name)) {
                let name = self.make_tag(name).await?;
                self.tag(&machine.id, &name, true).await?;
            }
        }
        for name in &has {
            let changed =
                tags::key(name).is_some_and(|key| remove.contains(&key) || set.contains_key(&key));
            if changed && !wanted.iter().any(|tag| same(tag, name)) {
                self.tag(&machine.id, name, false).await?;
            }
        }
        Ok(())
    }

    /// Adds a tag to a droplet or removes it.
    async fn tag(&self, id: &str, name: &str, put: bool) -> Result<()> {
        let body = json!({"resources": [{"resource_id": id, "resource_type": "droplet"}]});
        let method = if put { Method::POST } else { Method::DELETE };
        let path = ["tags", name, "resources"];
        let reply = self.client.call(method, &path, &[], Some(&body)).await?;
        match reply.status {
            200..300 => Ok(()),
            // The tag does not exist, so it is not on the droplet either.
            404 if !put => Ok(()),
            404 => Err(Error::not_found("droplet", id)),
            _ => Err(reply.error(&format!("to tag droplet {id}"))),
        }
    }

    /// Creates a tag. Returns its spelling in the account.
    pub(super) async fn make_tag(&self, name: &str) -> Result<String> {
        let body = json!({"name": name});
        let reply = self
            .client
            .call(Method::POST, &["tags"], &[], Some(&body))
            .await?;
        match reply.status {
            200..300 => Ok(reply.body["tag"]["name"]
                .as_str()
                .unwrap_or(name)
                .to_owned()),
            // It exists already.
            409 | 422 => Ok(name.to_owned()),
            _ => Err(reply.error("to make a tag")),
        }
    }
}
