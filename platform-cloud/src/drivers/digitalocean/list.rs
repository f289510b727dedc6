//! Lists droplets.

use std::{collections::HashSet, sync::atomic::Ordering};

use drover_core::{Error, Result};
use drover_proto::platform::v1::Warning;
use tokio::time::Instant;

use super::{
    DigitalOcean,
    client::List,
    doubts::{self, Names},
    machine::Droplet,
    tags,
};
use crate::cloud::{CLUSTER, CloudListing, Filter, Machine, REQUEST};

/// Maximum number of droplets missing from a list that are looked up individually. If more are missing, the list is
/// read again.
const MAX_VANISHED: usize = 50;

impl DigitalOcean {
    pub(super) async fn read(&self, filter: &Filter) -> Result<CloudListing> {
        let began = Instant::now();
        let mut list = self.droplets(filter).await?;
        if *filter == Filter::All {
            self.complete(&mut list).await?;
        }
        let mut listed = CloudListing::default();
        let (mut ours, mut there) = (HashSet::new(), Names::new());
        for value in &list.items {
            if let Some(name) = value["name"].as_str() {
                there.insert(name.to_owned(), doubts::request_of(value));
            }
            match Droplet::read(value) {
                Ok(droplet) => {
                    let regions = &self.settings.regions;
                    let inside = regions.is_empty()
                        || droplet.region().is_empty()
                        || regions.iter().any(|region| region == droplet.region());
                    let machine = droplet.machine();
                    if machine.tags.contains_key(REQUEST) {
                        ours.insert(droplet.id);
                    }
                    if inside && fits(filter, &machine) {
                        listed.machines.push(machine);
                    }
                }
                Err(unreadable) => listed.warnings.push(Warning {
                    id: Some(unreadable.id).filter(|id| !id.is_empty()),
                    message: unreadable.message,
                    ..Warning::default()
                }),
            }
        }
        if *filter == Filter::All {
            *self.seen.lock() = ours;
            self.doubts.saw(began, there);
            self.pages.store(list.pages, Ordering::Relaxed);
            self.sweep().await;
        }
        self.add_failed(filter, &mut listed.machines).await;
        Ok(listed)
    }

    pub(super) async fn droplets(&self, filter: &Filter) -> Result<List> {
        let tag = match filter {
            Filter::Id(id) => {
                let body = match id.parse::<u64>() {
                    Ok(_) => self.client.get(&["droplets", id], &[]).await?,
                    // Not a droplet id.
                    Err(_) => None,
                };
                let items = body
                    .map(|body| body["droplet"].clone())
                    .into_iter()
                    .collect();
                return Ok(List { items, pages: 1 });
            }
            Filter::All => None,
            Filter::Cluster(cluster) => Some(tags::encode(CLUSTER, cluster)?),
            Filter::Request(request_id) => Some(tags::encode(REQUEST, request_id)?),
        };
        let kind = |kind: &str| [("type", kind.to_owned())];
        let path = ["droplets"];
        if self.settings.gpus {
            // The API does not document whether a tag filter includes GPU droplets, and `tag_name` cannot be combined
            // with `type`.
            let mut list = self.client.list(&path, &kind("droplets")).await?;
            let gpus = self.client.list(&path, &kind("gpus")).await?;
            list.pages += gpus.pages;
            list.items.extend(gpus.items);
            return Ok(list);
        }
        // The API filters by the first tag only; further matches are filtered out by the caller.
        match tag.and_then(|tags| tags.into_iter().next()) {
            Some(tag) => self.client.list(&path, &[("tag_name", tag)]).await,
            None => self.client.list(&path, &[]).await,
        }
    }

    /// Looks up droplets of the last list that are missing from this one: deletions between page reads shift items.
    async fn complete(&self, list: &mut List) -> Result<()> {
        if list.pages == 1 {
            return Ok(());
        }
        let listed: HashSet<u64> = list
            .items
            .iter()
            .filter_map(|item| item["id"].as_u64())
            .collect();
        let vanished: Vec<u64> = self.seen.lock().difference(&listed).copied().collect();
        if vanished.len() > MAX_VANISHED {
            // Many were deleted, or the list is wrong; the next list is compared with this one.
            *self.seen.lock() = listed;
            return Err(Error::unavailable(format!(
                "{} droplets have vanished from the list at once; it is read again",
                vanished.len()
            )));
        }
        for id in vanished {
            let body = self.client.get(&["droplets", &id.to_string()], &[]).await?;
            list.items.extend(body.map(|body| body["droplet"].clone()));
        }
        Ok(())
    }
}

pub(super) fn fits(filter: &Filter, machine: &Machine) -> bool {
    let is = |key: &str, value: &str| machine.tags.get(key).is_some_and(|known| known == value);
    match filter {
        Filter::All => true,
        Filter::Cluster(cluster) => is(CLUSTER, cluster),
        Filter::Request(request_id) => is(REQUEST, request_id),
        Filter::Id(id) => machine.id == *id,
    }
}
