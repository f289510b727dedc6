//! Addons: specs with them, their damage out of band, and the invariants that each is made once, ends with the targets that
//! there are and the content of its secrets, and is not left over.

use drover_platform_cloud::drivers::simulated::SimulatedHandle;
use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::{AddonKind, JumpHost, NodeRole, PortRef, ResourcePhase, port_ref::Port},
};

use super::{Run, model::Offers, secrets::KEY};

/// A load balancer or a jump host over some of these groups.
fn addon(random: &mut fastrand::Rng, name: &str, groups: &[String], offers: &Offers) -> pb::Addon {
    let mut targets = groups.to_vec();
    random.shuffle(&mut targets);
    targets.truncate(random.usize(1..=groups.len()));
    let common = pb::Addon {
        name: name.to_owned(),
        platform: offers.platforms[random.usize(..offers.platforms.len())].clone(),
        targets,
        ..pb::Addon::default()
    };
    if name == BALANCER {
        return pb::Addon {
            r#type: AddonKind::LoadBalancer.into(),
            target_port: Some(PortRef {
                port: Some(Port::Number(random.u32(8_000..8_010))),
            }),
            ..common
        };
    }
    let keys = (!offers.secrets.is_empty() && random.bool())
        .then(|| offers.secrets[random.usize(..offers.secrets.len())].clone());
    pb::Addon {
        r#type: AddonKind::JumpHost.into(),
        jump_host: Some(JumpHost {
            private_keys_secret: keys.unwrap_or_default(),
            ..JumpHost::default()
        }),
        ..common
    }
}

/// The name of load balancers. An addon cannot change its kind, so each kind has a name.
const BALANCER: &str = "front";
/// Names of addons.
const NAMES: [&str; 2] = [BALANCER, "jump"];

/// No addon, one or two.
pub(super) fn some(
    random: &mut fastrand::Rng,
    groups: &[pb::GroupSpec],
    offers: &Offers,
) -> Vec<pb::Addon> {
    let count = random.usize(0..6).saturating_sub(3);
    let groups: Vec<String> = groups.iter().map(|group| group.name.clone()).collect();
    let names = NAMES.iter().take(count);
    names
        .map(|name| addon(random, name, &groups, offers))
        .collect()
}

/// Adds an addon, drops one, or changes one.
pub(super) fn change(
    random: &mut fastrand::Rng,
    spec: &mut pb::ClusterSpec,
    offers: &Offers,
) -> &'static str {
    let groups: Vec<String> = spec.groups.iter().map(|group| group.name.clone()).collect();
    let at = random.usize(..NAMES.len());
    let had = spec.addons.iter().position(|addon| addon.name == NAMES[at]);
    match had {
        Some(had) if groups.is_empty() || random.u8(..3) == 0 => {
            spec.addons.remove(had);
            "drops an addon"
        }
        Some(had) => {
            let new = addon(random, NAMES[at], &groups, offers);
            spec.addons[had] = new;
            "changes an addon"
        }
        None if groups.is_empty() => "changes nothing",
        None => {
            spec.addons.push(addon(random, NAMES[at], &groups, offers));
            "adds an addon"
        }
    }
}

/// Leaves groups that are gone out of the targets.
pub(super) fn follow_groups(spec: &mut pb::ClusterSpec) {
    let groups: Vec<String> = spec.groups.iter().map(|group| group.name.clone()).collect();
    for addon in &mut spec.addons {
        addon.targets.retain(|target| groups.contains(target));
    }
    spec.addons.retain(|addon| !addon.targets.is_empty());
}

impl Run {
    /// Deletes a part of an addon out of band.
    pub(super) fn damage_an_addon(&mut self, at: usize) {
        let backend = &self.model.sites[at].real.backend;
        let all = backend.addons();
        if all.is_empty() {
            return;
        }
        let addon = &all[self.random.usize(..all.len())];
        let (cluster, name) = (addon.cluster_id.clone(), addon.name.clone());
        if backend.remove_addon_object(&cluster, &name, "service") {
            self.note(format!(
                "somebody takes the service of {cluster}/{name} away"
            ));
            self.count("a part of an addon is taken away", true);
        }
    }

    /// Invariant: no addon is made while there is one, so that it is made as often as it was asked for.
    pub(super) fn no_addon_was_made_twice(&self) -> Result<(), String> {
        for site in &self.model.sites {
            for ((cluster, name), ledger) in site.real.backend.addon_ledger() {
                let known = self.model.clusters.get(&cluster);
                let Some(known) = known.filter(|known| !known.reuses_name) else {
                    continue;
                };
                let asked = known.addons_asked.get(&name).copied().unwrap_or_default();
                if ledger.created > asked {
                    return Err(format!(
                        "addon {name} of {cluster} was asked for {asked} times and made {} times on {}",
                        ledger.created, site.name
                    ));
                }
            }
        }
        Ok(())
    }

    /// The first difference of the addons of a cluster from its spec.
    pub(super) async fn addon_difference(&mut self, name: &str) -> Option<String> {
        let known = &self.model.clusters[name];
        let (spec, uid) = (known.spec.clone(), known.uid.clone());
        let abandoned = known.abandoned.clone();
        for addon in &spec.addons {
            let at = self.model.sites.iter();
            let at = at.clone().position(|site| site.name == addon.platform)?;
            if self.model.sites[at].lost {
                continue;
            }
            let backend = self.model.sites[at].real.backend.clone();
            if let Some(why) = self.wrong_addon(name, &uid, addon, &backend).await {
                return Some(format!("{name}, addon {}: {why}", addon.name));
            }
        }
        for (at, site) in self.model.sites.iter().enumerate() {
            if site.lost || site.renamed || abandoned.contains(&at) {
                continue;
            }
            let wanted = |name: &str| {
                let mut addons = spec.addons.iter();
                addons.any(|addon| addon.name == name && addon.platform == site.name)
            };
            let mut there = site.real.backend.addons().into_iter();
            if let Some(left) = there.find(|it| it.owner == uid && !wanted(&it.name)) {
                return Some(format!("{left:?} is left over on {}", site.name));
            }
        }
        None
    }

    async fn wrong_addon(
        &mut self,
        cluster: &str,
        uid: &str,
        addon: &pb::Addon,
        backend: &SimulatedHandle,
    ) -> Option<String> {
        let records = self.world.records(cluster).await;
        let mut nodes: Vec<(String, bool)> = records
            .iter()
            .filter(|node| addon.targets.contains(&node.group))
            .map(|node| {
                let id = node.platform_node_id.clone().unwrap_or_default();
                (id, node.role() == NodeRole::Standby)
            })
            .collect();
        let there = backend.addons().into_iter();
        let there = there.filter(|it| it.cluster_id == cluster && it.owner == uid);
        let Some(state) = there.into_iter().find(|it| it.name == addon.name) else {
            return (!nodes.is_empty()).then(|| "is not there".to_owned());
        };
        if state.phase() != ResourcePhase::Ready {
            return Some(format!("is {:?}", state.phase()));
        }
        let wanted = backend.addon_wanted(cluster, &addon.name)?;
        let targets = wanted.targets.iter();
        let mut told: Vec<(String, bool)> = targets
            .map(|it| (it.node_id.clone(), it.role() == NodeRole::Standby))
            .collect();
        nodes.sort();
        told.sort();
        if nodes != told {
            return Some(format!("serves {told:?}, and there are {nodes:?}"));
        }
        if wanted.targets.iter().any(|target| target.draining) {
            return Some("lets go of nodes that stay".to_owned());
        }
        let secret = addon.jump_host.as_ref().map(|it| &it.private_keys_secret);
        let secret = secret.filter(|name| !name.is_empty())?;
        let newest = self.model.secrets.get(secret)?.last()?;
        let given = wanted.secrets.get(secret);
        let given = given.and_then(|secret| secret.data.get(KEY));
        // After a restore, what a secret holds is up to the copy.
        let old = given.is_none_or(|given| given[..] != *newest.text.as_bytes());
        (old && !self.restored && newest.granted).then(|| format!("has an old {secret}"))
    }
}
