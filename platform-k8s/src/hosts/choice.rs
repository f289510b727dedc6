//! Which hosts a request gets.

use std::sync::Arc;

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

/// The hosts that are seen, and what is asked of them.
pub(super) struct Choice {
    seen: Vec<Seen>,
    placement: Placement,
    cluster: String,
    /// Path of the group.
    path: String,
}

impl Choice {
    /// Sees all hosts as they are known.
    pub(super) async fn new(
        cache: &Cache,
        secrets: &Secrets,
        batch: &Batch,
        properties: &Properties,
    ) -> Self {
        let group = batch.request.group.as_ref();
        let placement = group.and_then(|group| group.placement.as_ref());
        let placement = hosts::spread_by_default(placement, RACK);
        let reads = reads_networks(properties, &placement);
        let fits = |known: &Known| {
            // What stands in secrets is not known yet.
            let selector = placement
                .selector
                .as_ref()
                .filter(|_| !networks_are_selected(&placement));
            let domains = &placement.failure_domains;
            selector.is_none_or(|selector| selects(selector, &known.labels))
                && (domains.is_empty() || domains.contains(&known.rack))
        };
        let reserved = cache.reserved();
        let see = |known: Arc<Known>| async {
            let mut known = known;
            let obstacle = match known.node {
                Some(_) => None,
                None => cache.reader.obstacle(&known.host, &known.beside),
            };
            let unusable = match obstacle {
                Some(Obstacle::Unusable(why)) => Some(why),
                Some(Obstacle::Claimed(_)) | None => None,
            };
            // Of a host that is not chosen anyway, its secrets do not matter.
            let matters = known.node.is_none() && unusable.is_none() && fits(&known);
            if matters && reads {
                let networks = secrets.networks(&known.host).await;
                let with = Arc::make_mut(&mut known);
                with.labels = cache.reader.labels(&with.host, Some(&networks));
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
                seen.unusable = lack(&seen, secrets, properties).await;
            }
            seen
        };
        let seen = stream::iter(cache.all().into_iter().map(see)).buffered(READ_TOGETHER);
        let cluster = batch.request.cluster.as_ref();
        Self {
            cluster: cluster.map_or_else(String::new, |it| it.id.clone()),
            path: group.map_or_else(String::new, |it| it.path.clone()),
            seen: seen.collect().await,
            placement,
        }
    }

    /// Chooses a host for each of so many slots, of which some name theirs, or for none of them. Named hosts are taken
    /// first.
    ///
    /// # Errors
    /// `HostNotFound`, `HostClaimed`, or `NoCapacity` with what there are too few hosts for.
    pub(super) async fn choose(self, wanted: Vec<Option<String>>) -> Result<Vec<Arc<Known>>> {
        if self.seen.len() < MANY {
            return self.chosen(&wanted);
        }
        // Other calls must not wait for it.
        let chosen = tokio::task::spawn_blocking(move || self.chosen(&wanted)).await;
        chosen.map_err(|_| Error::internal("the choice of hosts was not finished"))?
    }

    fn chosen(&self, wanted: &[Option<String>]) -> Result<Vec<Arc<Known>>> {
        let mut candidates: Vec<Candidate<'_>> = self
            .seen
            .iter()
            .map(|seen| Candidate {
                id: &seen.id,
                labels: &seen.known.labels,
                failure_domain: &seen.known.rack,
                availability: match &seen.unusable {
                    _ if seen.claimed => Availability::Claimed,
                    None => Availability::Free,
                    Some(why) => Availability::Unusable(why),
                },
            })
            .collect();
        let placed = self.seen.iter().filter_map(|seen| {
            let node = &seen.known.node.as_ref()?.node;
            let counts = node.cluster_id == self.cluster && node.phase() != NodePhase::Failed;
            counts.then(|| Placed {
                labels: &seen.known.labels,
                same_group: node.group == self.path,
            })
        });
        let mut placed: Vec<Placed<'_>> = placed.collect();
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
