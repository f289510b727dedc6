//! Permanent losses: of a platform with all its resources, or of the store, of which there is an older backup.

use std::time::Duration;

use drover_proto::orchestrator::v1 as pb;

use super::{Run, operator::CALL};

impl Run {
    /// Destroys a platform. The loss of its resources is not a violation.
    pub(super) fn burn(&mut self, at: usize) {
        let there = self.model.sites.iter().filter(|site| !site.lost).count();
        if !self.model.burns || there < 2 || self.model.sites[at].impostor {
            return;
        }
        let site = &mut self.model.sites[at];
        site.lost = true;
        site.down = true;
        site.real.stop();
        let what = format!("{} burns down", site.name);
        self.note(what);
        self.model.nodes.retain(|key, _| key.0 != at);
        self.model.unready.retain(|key| key.0 != at);
        for cluster in self.model.clusters.values_mut() {
            cluster.kept.retain(|volume, _| volume.0 != at);
        }
        self.count("a platform burns down", true);
    }

    /// Abandons the records on lost platforms, as soon as that is granted.
    pub(super) async fn give_up_what_is_lost(&mut self) {
        let lost = |at: &usize| self.model.sites[*at].lost;
        let lost: Vec<usize> = (0..self.model.sites.len()).filter(lost).collect();
        for at in lost {
            let platform = self.model.sites[at].name.clone();
            for name in self.model.clusters.keys().cloned().collect::<Vec<_>>() {
                let Some(cluster) = self.world.cluster(&name).await else {
                    continue;
                };
                let used = cluster.status.unwrap_or_default().platforms;
                let uids: Vec<_> = used
                    .into_iter()
                    .filter(|used| used.platform == platform)
                    .map(|used| Some(used.platform_uid))
                    .collect();
                // No uid is shown, but there may still be resources without a record.
                let uids = if uids.is_empty() { vec![None] } else { uids };
                for platform_uid in uids {
                    let request = pb::AbandonPlatformRequest {
                        cluster: name.clone(),
                        platform: platform.clone(),
                        platform_uid,
                        delete_nodes: false,
                    };
                    self.ask("AbandonPlatform", async |client| {
                        client.abandon_platform(request.clone(), CALL).await
                    })
                    .await;
                }
            }
        }
    }

    /// Backs up the store.
    pub(super) async fn back_up(&mut self) {
        if !self.model.restores || self.restored {
            return;
        }
        if let Some(copy) = self.world.back_up().await {
            self.note("the store is copied");
            self.copy = Some(copy);
            self.count("the store is copied", true);
        }
    }

    /// Replaces the lost store by the backup.
    pub(super) async fn restore(&mut self) {
        let Some(copy) = self.copy.take() else {
            return;
        };
        self.note("the store is the copy again");
        self.world.restore(&copy).await;
        (self.restored, self.held) = (true, true);
        for value in self.model.secrets.values_mut().flatten() {
            value.replaced = None;
        }
        self.may_be_made_again();
        for name in self.model.clusters.keys().cloned().collect::<Vec<_>>() {
            let now = self.world.cluster(&name).await;
            let Some(known) = self.model.clusters.get_mut(&name) else {
                continue;
            };
            known.kept.clear();
            match now {
                Some(now) => {
                    known.deleted = false;
                    known.uid = now.uid;
                }
                // The orchestrator no longer knows the cluster, so its nodes must not be deleted.
                None => known.forgotten = !known.deleted,
            }
            self.learn(&name).await;
        }
        self.count("the store is restored", true);
    }

    /// In the backup, requests may still be open whose nodes have been created and removed since.
    fn may_be_made_again(&mut self) {
        for (at, site) in self.model.sites.iter().enumerate() {
            for (cluster, _, _) in site.real.backend.infrastructure_created().into_keys() {
                *(self.model.networks_taken.entry((at, cluster))).or_default() += 1;
            }
            for (cluster, name) in site.real.backend.addon_ledger().into_keys() {
                if let Some(known) = self.model.clusters.get_mut(&cluster) {
                    *known.addons_asked.entry(name).or_default() += 1;
                }
            }
            let nodes = site.real.backend.nodes();
            for slot in site.real.backend.ledger().into_keys() {
                let there = nodes.iter().any(|node| {
                    let of = node.slot.as_ref();
                    of.is_some_and(|of| (&of.request_id, of.index) == (&slot.0, Some(slot.1)))
                });
                if !there {
                    *self.model.vanished.entry(slot).or_default() += 1;
                }
            }
        }
    }

    /// Confirms that resources unknown to the restored store may be deleted.
    pub(super) async fn confirm_restore(&mut self) {
        if !self.held {
            return;
        }
        self.note("the restored store is confirmed");
        for node in self.model.nodes.values_mut() {
            node.sound = false;
        }
        self.world.confirm_restore().await;
        self.held = false;
        self.count("the restored store is confirmed", true);
        self.world.pass(Duration::from_millis(1)).await;
    }
}
