//! Changes tags of droplets, one call each, as the API offers no other way.
//!
//! The identity of a node is in several tags and must change at once: between the owners a droplet would be nobody's, and
//! no owner could repeat the change or delete it. So the new values come first, under other keys, where they count for
//! nothing. One more tag makes them count instead of those of the former identity, and the rest is tidying up, which
//! whoever changes the droplet next completes if it was interrupted.

use std::{collections::BTreeMap, time::Duration};

use drover_core::{Error, Result};
use reqwest::Method;
use serde_json::json;

use super::{DigitalOcean, machine::Droplet, tags};
use crate::cloud::{CLUSTER, Machine, PREFIX, REQUEST};

/// Retry delay for a droplet that is too new to have its tags.
const UNTAGGED: Duration = Duration::from_secs(1);

/// The tags of a droplet, as far as is known.
struct Tagged<'a> {
    cloud: &'a DigitalOcean,
    id: &'a str,
    has: Vec<String>,
}

impl DigitalOcean {
    /// Sets and removes tags.
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
        let mut droplet = Tagged {
            cloud: self,
            id: &machine.id,
            has: droplet.tags.unwrap_or_default(),
        };
        if machine.tags.contains_key(REQUEST) && !droplet.shown().contains_key(REQUEST) {
            // Those that are to be replaced would come later, and stay.
            return Err(Error::unavailable(format!(
                "droplet {} does not have the tags yet that it was created with",
                machine.id
            ))
            .with_retry_after(UNTAGGED));
        }
        droplet.tidy_up().await?;
        if set.contains_key(REQUEST) {
            droplet.exchange(set, remove).await
        } else {
            droplet.edit(set, remove).await
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

impl Tagged<'_> {
    fn shown(&self) -> BTreeMap<String, String> {
        tags::decode(self.has.iter().map(String::as_str)).tags
    }

    /// Sets new values before old ones are removed.
    async fn edit(&mut self, set: &BTreeMap<String, String>, remove: &[String]) -> Result<()> {
        let wanted = tags::encode_all(set)?;
        for name in &wanted {
            self.put(name).await?;
        }
        let is_changed = |name: &str| {
            tags::key(name).is_some_and(|key| remove.contains(&key) || set.contains_key(&key))
        };
        let former = self.named(|name| is_changed(name) && !is_among(&wanted, name));
        self.take_all(former).await
    }

    /// Sets another identity.
    async fn exchange(&mut self, set: &BTreeMap<String, String>, remove: &[String]) -> Result<()> {
        let shown = self.shown();
        let mut next = set.clone();
        let is_own = |key: &str| key.starts_with(PREFIX);
        let (former, labels): (Vec<String>, Vec<String>) =
            remove.iter().cloned().partition(|key| is_own(key));
        // Without a value they say the same as if they were not there.
        next.extend(former.into_iter().map(|key| (key, String::new())));
        next.retain(|key, value| shown.get(key) != Some(value));
        let (own, new_labels): (BTreeMap<_, _>, BTreeMap<_, _>) =
            next.into_iter().partition(|(key, _)| is_own(key));
        let staged = tags::encode_staged(&own)?;
        // Those of an exchange that nobody has completed. What lists are filtered by goes first: it does not count as
        // long as it is staged, too.
        for name in self.named(tags::is_staged) {
            if !is_among(&staged, &name) {
                self.take(&tags::unstaged(&name)).await?;
                self.take(&name).await?;
            }
        }
        for name in &staged {
            self.put(name).await?;
        }
        for key in [CLUSTER, REQUEST] {
            let value = own.get(key).map(|value| tags::encode(key, value));
            for name in value.transpose()?.unwrap_or_default() {
                self.put(&name).await?;
            }
        }
        self.put(tags::FLIP).await?;
        self.tidy_up().await?;
        self.edit(&new_labels, &labels).await
    }

    /// Completes the exchange of an identity if the new one counts.
    async fn tidy_up(&mut self) -> Result<()> {
        if !is_among(&self.has, tags::FLIP) {
            return Ok(());
        }
        let staged = self.named(tags::is_staged);
        let plain: Vec<String> = staged.iter().map(|name| tags::unstaged(name)).collect();
        let keys: Vec<String> = plain.iter().filter_map(|name| tags::key(name)).collect();
        for name in plain.iter().filter(|name| !tags::is_blank(name)) {
            self.put(name).await?;
        }
        let is_former = |name: &str| {
            tags::key(name).is_some_and(|key| keys.contains(&key)) && !is_among(&plain, name)
        };
        self.take_all(self.named(is_former)).await?;
        self.take_all(staged).await?;
        self.take(tags::FLIP).await
    }

    fn named(&self, which: impl Fn(&str) -> bool) -> Vec<String> {
        let names = self.has.iter().filter(|name| which(name));
        names.cloned().collect()
    }

    async fn put(&mut self, name: &str) -> Result<()> {
        if !is_among(&self.has, name) {
            let name = self.cloud.make_tag(name).await?;
            self.tag(&name, true).await?;
            self.has.push(name);
        }
        Ok(())
    }

    async fn take_all(&mut self, names: Vec<String>) -> Result<()> {
        for name in names {
            self.take(&name).await?;
        }
        Ok(())
    }

    async fn take(&mut self, name: &str) -> Result<()> {
        let Some(at) = self
            .has
            .iter()
            .position(|tag| tag.eq_ignore_ascii_case(name))
        else {
            return Ok(());
        };
        self.tag(&self.has[at], false).await?;
        self.has.swap_remove(at);
        Ok(())
    }

    /// Adds a tag to the droplet or removes it.
    async fn tag(&self, name: &str, put: bool) -> Result<()> {
        let body = json!({"resources": [{"resource_id": self.id, "resource_type": "droplet"}]});
        let method = if put { Method::POST } else { Method::DELETE };
        let path = ["tags", name, "resources"];
        let reply = self
            .cloud
            .client
            .call(method, &path, &[], Some(&body))
            .await?;
        match reply.status {
            200..300 => Ok(()),
            // The tag does not exist, so it is not on the droplet either.
            404 if !put => Ok(()),
            404 => Err(Error::not_found("droplet", self.id)),
            _ => Err(reply.error(&format!("to tag droplet {}", self.id))),
        }
    }
}

fn is_among(names: &[String], name: &str) -> bool {
    names.iter().any(|known| known.eq_ignore_ascii_case(name))
}
