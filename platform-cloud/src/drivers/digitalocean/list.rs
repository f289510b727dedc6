//! Reading droplets.

use std::collections::HashSet;

use drover_core::{Error, Result};
use drover_proto::platform::v1::Warning;

use super::{DigitalOcean, client::List, machine::Droplet, tags};
use crate::cloud::{CLUSTER, Filter, Listed, Machine, REQUEST};

/// Droplets that vanished from a list at once and are asked for one by one. More, and the list is read again.
const MAX_VANISHED: usize = 50;

impl DigitalOcean {
    pub(super) async fn read(&self, filter: &Filter) -> Result<Listed> {
        let mut list = self.droplets(filter).await?;
        if *filter == Filter::All {
            self.complete(&mut list).await?;
        }
        let mut listed = Listed::default();
        let mut ours = HashSet::new();
        for value in &list.items {
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
        }
        Ok(listed)
    }

    async fn droplets(&self, filter: &Filter) -> Result<List> {
        let tag = match filter {
            Filter::Id(id) => {
                let body = match id.parse::<u64>() {
                    Ok(_) => self.client.get(&["droplets", id], &[]).await?,
                    // No id of a droplet.
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
            // Whether a tag finds those with GPUs the API does not promise, and it cannot be combined with `type`.
            let mut list = self.client.list(&path, &kind("droplets")).await?;
            let gpus = self.client.list(&path, &kind("gpus")).await?;
            list.pages += gpus.pages;
            list.items.extend(gpus.items);
            return Ok(list);
        }
        // The first part of a tag finds it; what else it finds is sorted out.
        match tag.and_then(|tags| tags.into_iter().next()) {
            Some(tag) => self.client.list(&path, &[("tag_name", tag)]).await,
            None => self.client.list(&path, &[]).await,
        }
    }

    /// What was in the last list and is not in this one is asked for: pages move when something is deleted between them.
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
            // A person has removed many, or the list is wrong; the next one is compared with this one.
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

fn fits(filter: &Filter, machine: &Machine) -> bool {
    let is = |key: &str, value: &str| machine.tags.get(key).is_some_and(|known| known == value);
    match filter {
        Filter::All => true,
        Filter::Cluster(cluster) => is(CLUSTER, cluster),
        Filter::Request(request_id) => is(REQUEST, request_id),
        Filter::Id(id) => machine.id == *id,
    }
}
