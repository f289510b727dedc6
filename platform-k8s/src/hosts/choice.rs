//! Which hosts a request gets.

use std::{collections::HashSet, sync::Arc};

use drover_convert::selector::selects;
use drover_core::{Error, Reason, Result};
use drover_platform::{
    driver::Batch,
    inventory::{
        metal3::{self, RACK},
        properties::Properties,
    },
    placement::hosts::{self, Availability, Candidate, Placed},
};
use drover_proto::platform::v1::{NodePhase, Placement};
use futures::{StreamExt as _, stream};

use super::{
    cache::{Cache, Known},
    secrets::Secrets,
    view::Obstacle,
};

/// Secrets that are read at once for one request.
const READ_TOGETHER: usize = 16;

/// Hosts from which on their choice takes longer than other tasks should wait.
const MANY: usize = 500;

/// How many free hosts are looked at first for each slot, and for all of them, before all hosts are.
const FIRST_PER_SLOT: usize = 4;
const FIRST: usize = 64;

/// Whether what is asked of hosts stands in their secrets.
fn reads_networks(properties: &Properties, placement: &Placement) -> bool {
    let mut keys = placement.spread.iter().map(|spread| &spread.topology_key);
    !properties.interfaces.is_empty()
        || !properties.networks.is_empty()
        || keys.any(|key| key.starts_with(metal3::PREFIX))
        || networks_are_selected(placement)
}

fn networks_are_selected(placement: &Placement) -> bool {
    let selector = placement.selector.as_ref();
    let mut keys = selector.into_iter().flat_map(|selector| {
        let exact = selector.match_labels.keys();
        exact.chain(selector.match_expressions.iter().map(|one| &one.key))
    });
    keys.any(|key| key.starts_with(metal3::PREFIX))
}

/// A host as the choice sees it.
struct Seen {
    known: Arc<Known>,
    id: String,
    claimed: bool,
    unusable: Option<String>,
}

impl Seen {
    fn candidate(&self) -> Candidate<'_> {
        Candidate {
            id: &self.id,
            labels: &self.known.labels,
            failure_domain: &self.known.rack,
            availability: match &self.unusable {
                _ if self.claimed => Availability::Claimed,
                None => Availability::Free,
                Some(why) => Availability::Unusable(why),
            },
        }
    }
}

/// What is asked of the hosts of a request.
pub(super) struct Asked<'a> {
    cache: &'a Cache,
    secrets: &'a Secrets,
    properties: &'a Properties,
    placement: Placement,
    cluster: String,
    /// Path of the group.
    path: String,
}

impl<'a> Asked<'a> {
    pub(super) fn new(
        cache: &'a Cache,
        secrets: &'a Secrets,
        batch: &Batch,
        properties: &'a Properties,
    ) -> Self {
        let group = batch.request.group.as_ref();
        let placement = group.and_then(|group| group.placement.as_ref());
        let cluster = batch.request.cluster.as_ref();
        Self {
            cache,
            secrets,
            properties,
            placement: hosts::spread_by_default(placement, RACK),
            cluster: cluster.map_or_else(String::new, |it| it.id.clone()),
            path: group.map_or_else(String::new, |it| it.path.clone()),
        }
    }

    /// Chooses a host for each of so many slots, of which some name theirs, or for none of them. Named hosts are taken
    /// first.
    ///
    /// # Errors
    /// `HostNotFound`, `HostClaimed`, or `NoCapacity` with what there are too few hosts for.
    pub(super) async fn choose(self, wanted: Vec<Option<String>>) -> Result<Vec<Arc<Known>>> {
        // Hosts that other calls are about to claim, before all: what is claimed meanwhile is seen as either.
        let reserved = self.cache.reserved();
        let all = self.cache.all();
        if wanted.iter().all(Option::is_none) {
            let count = FIRST + FIRST_PER_SLOT * wanted.len();
            let choice = self
                .see(self.first(&all, &reserved, count), &reserved)
                .await;
            if let Some(chosen) = choice.among_first(wanted.len()) {
                return Ok(chosen);
            }
        }
        let choice = self.see(all, &reserved).await;
        if choice.seen.len() < MANY {
            return choice.chosen(&wanted);
        }
        // Other calls must not wait for it.
        let chosen = tokio::task::spawn_blocking(move || choice.chosen(&wanted)).await;
        chosen.map_err(|_| Error::internal("the choice of hosts was not finished"))?
    }

    /// The hosts of the cluster, and the first free ones that may fit: in a large inventory these usually suffice.
    fn first(
        &self,
        all: &[Arc<Known>],
        reserved: &HashSet<String>,
        count: usize,
    ) -> Vec<Arc<Known>> {
        let reader = &self.cache.reader;
        let mut left = count;
        let is_among = |known: &&Arc<Known>| match &known.node {
            Some(found) => found.node.cluster_id == self.cluster,
            None if left == 0 || !self.fits(known) => false,
            None => {
                let is_free = !reserved.contains(&super::host::id(&known.host))
                    && reader.obstacle(&known.host, &known.beside).is_none();
                left -= usize::from(is_free);
                is_free
            }
        };
        all.iter().filter(is_among).cloned().collect()
    }

    /// Whether nothing that is known without secrets speaks against a host.
    fn fits(&self, known: &Known) -> bool {
        let placement = &self.placement;
        let selector = placement.selector.as_ref();
        let selector = selector.filter(|_| !networks_are_selected(placement));
        let domains = &placement.failure_domains;
        selector.is_none_or(|selector| selects(selector, &known.labels))
            && (domains.is_empty() || domains.contains(&known.rack))
    }

    async fn see(&self, hosts: Vec<Arc<Known>>, reserved: &HashSet<String>) -> Choice {
        let reads = reads_networks(self.properties, &self.placement);
        let see = |known| self.see_one(known, reads, reserved);
        let seen = stream::iter(hosts.into_iter().map(see)).buffered(READ_TOGETHER);
        Choice {
            seen: seen.collect().await,
            placement: self.placement.clone(),
            cluster: self.cluster.clone(),
            path: self.path.clone(),
        }
    }

    async fn see_one(
        &self,
        mut known: Arc<Known>,
        reads: bool,
        reserved: &HashSet<String>,
    ) -> Seen {
        let reader = &self.cache.reader;
        let obstacle = match known.node {
            Some(_) => None,
            None => reader.obstacle(&known.host, &known.beside),
        };
        let unusable = match obstacle {
            Some(Obstacle::Unusable(why)) => Some(why),
            Some(Obstacle::Claimed(_)) | None => None,
        };
        // Of a host that is not chosen anyway, its secrets do not matter.
        let matters = known.node.is_none() && unusable.is_none() && self.fits(&known);
        if matters && reads {
            let networks = self.secrets.networks(&known.host).await;
            let with = Arc::make_mut(&mut known);
            with.labels = reader.labels(&with.host, Some(&networks));
            with.beside.networks = Some(networks);
        }
        let id = super::host::id(&known.host);
        let mut seen = Seen {
            claimed: known.node.is_some() || reserved.contains(&id),
            unusable,
            id,
            known,
        };
        if matters {
            seen.unusable = lack(&seen, self.secrets, self.properties).await;
        }
        seen
    }
}

/// The hosts that are seen, and what is asked of them.
struct Choice {
    seen: Vec<Seen>,
    placement: Placement,
    cluster: String,
    path: String,
}

impl Choice {
    fn candidates(&self) -> Vec<Candidate<'_>> {
        self.seen.iter().map(Seen::candidate).collect()
    }

    /// The nodes of the cluster.
    fn placed(&self) -> Vec<Placed<'_>> {
        let placed = self.seen.iter().filter_map(|seen| {
            let node = &seen.known.node.as_ref()?.node;
            let counts = node.cluster_id == self.cluster && node.phase() != NodePhase::Failed;
            counts.then(|| Placed {
                labels: &seen.known.labels,
                same_group: node.group == self.path,
            })
        });
        placed.collect()
    }

    /// The choice if these hosts are the first ones, and decide it.
    fn among_first(&self, count: usize) -> Option<Vec<Arc<Known>>> {
        let (candidates, placed) = (self.candidates(), self.placed());
        let chosen = hosts::choose_among_first(&candidates, &placed, &self.placement, count)?;
        let known = chosen
            .iter()
            .map(|at| Some(self.seen.get(*at)?.known.clone()));
        known.collect()
    }

    fn chosen(&self, wanted: &[Option<String>]) -> Result<Vec<Arc<Known>>> {
        let (mut candidates, mut placed) = (self.candidates(), self.placed());
        let mut chosen: Vec<Option<usize>> = Vec::new();
        for id in wanted {
            let Some(id) = id else {
                chosen.push(None);
                continue;
            };
            let at = self.named(id)?;
            hosts::check_named(&candidates[at], &candidates, &placed, &self.placement)?;
            candidates[at].availability = Availability::Claimed;
            placed.push(Placed {
                labels: candidates[at].labels,
                same_group: true,
            });
            chosen.push(Some(at));
        }
        let others = chosen.iter().filter(|host| host.is_none()).count();
        let hosts = hosts::choose(&candidates, &placed, &self.placement, others)?;
        let mut hosts = hosts.into_iter();
        let chosen = chosen
            .into_iter()
            .map(|named| named.or_else(|| hosts.next()));
        let known = chosen.map(|at| Some(self.seen.get(at?)?.known.clone()));
        let known: Option<Vec<Arc<Known>>> = known.collect();
        known.ok_or_else(|| Error::internal("fewer hosts were chosen than slots"))
    }

    /// The position of a host that is asked for by its id.
    fn named(&self, id: &str) -> Result<usize> {
        let at = self.seen.iter().position(|seen| seen.id == id);
        let at = at.ok_or_else(|| {
            let message = format!("there is no host {id:?}");
            Error::new(Reason::HostNotFound, message).with_resource("host", id)
        })?;
        let seen = &self.seen[at];
        let (reason, why) = match (&seen.known.node, &seen.unusable) {
            (Some(found), _) => {
                let cluster = &found.node.cluster_id;
                (Reason::HostClaimed, format!("belongs to cluster {cluster}"))
            }
            (None, Some(why)) => (Reason::NoCapacity, format!("cannot be claimed: {why}")),
            (None, None) => return Ok(at),
        };
        let message = format!("host {id:?} {why}; it was left alone");
        Err(Error::new(reason, message).with_resource("host", id))
    }
}

/// What a free host lacks of what the group asks for.
async fn lack(seen: &Seen, secrets: &Secrets, properties: &Properties) -> Option<String> {
    let nothing = Arc::default();
    let networks = seen.known.beside.networks.as_ref().unwrap_or(&nothing);
    if let Some(why) = properties.lacking(&networks.addresses, &seen.known.labels) {
        return Some(match networks.problem.as_str() {
            "" => why,
            problem => problem.to_owned(),
        });
    }
    if properties.require_bmc_credentials {
        let credentials = secrets.check_credentials(&seen.known.host).await;
        return credentials.err();
    }
    None
}
