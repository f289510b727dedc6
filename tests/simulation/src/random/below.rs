//! Infrastructure: specs with it, its deletion out of band, and the invariants that it is created once and not left
//! over.

use drover_proto::orchestrator::v1 as pb;
use drover_proto::platform::v1::NetworkSpec;

use super::Run;

/// A private network on one of these platforms.
pub(super) fn network(random: &mut fastrand::Rng, platforms: &[String]) -> pb::Infrastructure {
    pb::Infrastructure {
        platform: platforms[random.usize(..platforms.len())].clone(),
        network: Some(NetworkSpec {
            cidr: format!("10.{}.0.0/16", random.u8(..)),
            ..NetworkSpec::default()
        }),
        ..pb::Infrastructure::default()
    }
}

impl Run {
    /// Deletes the network of a cluster out of band.
    pub(super) fn take_away_a_network(&mut self, at: usize) {
        let backend = &self.model.sites[at].real.backend;
        let all = backend.infrastructure();
        if all.is_empty() {
            return;
        }
        let cluster = all[self.random.usize(..all.len())].cluster_id.clone();
        if backend.remove_infrastructure(&cluster, "network") {
            *self
                .model
                .networks_taken
                .entry((at, cluster.clone()))
                .or_default() += 1;
            self.note(format!("somebody takes the network of {cluster} away"));
            self.count("infrastructure is taken away", true);
        }
    }

    /// Invariant: no network is created while one exists.
    pub(super) fn no_network_was_made_twice(&self) -> Result<(), String> {
        for (at, site) in self.model.sites.iter().enumerate() {
            for ((cluster, owner, kind), created) in site.real.backend.infrastructure_created() {
                // Networks of deleted clusters were checked while those existed.
                let known = self.model.clusters.get(&cluster);
                let Some(known) = known.filter(|known| known.uid == owner) else {
                    continue;
                };
                let taken = self.model.networks_taken.get(&(at, cluster.clone()));
                if created > 1 + taken.copied().unwrap_or_default() + known.released {
                    return Err(format!(
                        "{kind} of {cluster} ({owner}) was made {created} times on {}",
                        site.name
                    ));
                }
            }
        }
        Ok(())
    }

    /// Returns infrastructure and addons left over by deleted clusters. It may remain on an abandoned platform and after the
    /// restore of an older store.
    pub(super) async fn left_over(&mut self) -> Option<String> {
        for at in 0..self.model.sites.len() {
            if self.model.sites[at].lost {
                continue;
            }
            for resource in self.model.sites[at].real.backend.infrastructure() {
                let known = self.model.clusters.get(&resource.cluster_id);
                if self.restored || known.is_none_or(|known| known.abandoned.contains(&at)) {
                    continue;
                }
                let now = self.world.cluster(&resource.cluster_id).await;
                if now.is_none_or(|now| now.uid != resource.owner) {
                    return Some(format!("{resource:?} is left over"));
                }
            }
            for addon in self.model.sites[at].real.backend.addons() {
                let known = self.model.clusters.get(&addon.cluster_id);
                if self.restored || known.is_none_or(|known| known.abandoned.contains(&at)) {
                    continue;
                }
                let now = self.world.cluster(&addon.cluster_id).await;
                if now.is_none_or(|now| now.uid != addon.owner) {
                    return Some(format!("{addon:?} is left over"));
                }
            }
        }
        None
    }
}
