//! Points elastic IP addresses to nodes.

use drover_core::{Class, Result};
use drover_proto::platform::v1::{NodePhase, NodeRole, ResourcePhase};

use super::{
    super::{Aws, api::Api, machines},
    Seen, TARGETS,
    seen::{Address, CLUSTER, OWNER},
};
use crate::cloud::{Filter, Machine};
use drover_platform::infrastructure::Owner;

impl Aws {
    /// Points the address to a running node, if it does not point to one already. Returns phase and message of the
    /// endpoint; `None` if there is none.
    pub(super) async fn follow(
        &self,
        owner: &Owner,
        seen: &mut Seen,
    ) -> Option<(ResourcePhase, String)> {
        let address = seen.addresses.first_mut()?;
        let which = Filter::Cluster(owner.cluster_id.clone());
        let mut machines = match machines::list(&self.api, &which).await {
            Ok(machines) => machines,
            Err(error) => return Some((ResourcePhase::Unknown, error.to_string())),
        };
        self.checks.show(&mut machines);
        let candidates: Vec<Candidate> = machines.iter().filter_map(Candidate::of).collect();
        Some(point(&self.api, address, &candidates).await)
    }
}

/// A running node that an address may point to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) id: String,
    owner: String,
    cluster: String,
    group: String,
    ordinal: u32,
    /// Whether nothing is known that speaks against it.
    ready: bool,
}

impl Candidate {
    pub(super) fn of(machine: &Machine) -> Option<Self> {
        if machine.phase != NodePhase::Running {
            return None;
        }
        let identity = machine.identity()?;
        (identity.role() != NodeRole::Standby).then(|| Self {
            id: machine.id.clone(),
            owner: identity.owner,
            cluster: identity.cluster_id,
            group: identity.group,
            ordinal: identity.ordinal,
            ready: machine.ready != Some(false),
        })
    }

    fn serves(&self, address: &Address) -> bool {
        self.owner == address.thing.tag(OWNER)
            && self.cluster == address.thing.tag(CLUSTER)
            && is_target(&self.group, address.thing.tag(TARGETS))
    }
}

/// The candidate that an address should point to: a ready one if there is any, and the one that it points to rather than
/// another.
pub(super) fn choose<'a>(address: &Address, candidates: &'a [Candidate]) -> Option<&'a Candidate> {
    candidates
        .iter()
        .filter(|candidate| candidate.serves(address))
        .min_by_key(|candidate| {
            let is_current = address.instance.as_ref() == Some(&candidate.id);
            let place = (&candidate.group, candidate.ordinal, &candidate.id);
            (!candidate.ready, !is_current, place)
        })
}

/// Points an address to the best candidate. Returns phase and message of the endpoint.
pub(super) async fn point(
    api: &Api,
    address: &mut Address,
    candidates: &[Candidate],
) -> (ResourcePhase, String) {
    let leads_to = |id: &str| (ResourcePhase::Ready, format!("leads to {id}"));
    let Some(chosen) = choose(address, candidates) else {
        return (ResourcePhase::Pending, "leads to no node yet".to_owned());
    };
    if address.instance.as_ref() == Some(&chosen.id) {
        return leads_to(&chosen.id);
    }
    match associate(api, address, &chosen.id).await {
        Ok(()) => leads_to(&chosen.id),
        Err(error) if error.class() == Class::Unknown => {
            (ResourcePhase::Unknown, error.to_string())
        }
        Err(error) => (ResourcePhase::Failed, error.to_string()),
    }
}

async fn associate(api: &Api, address: &mut Address, instance: &str) -> Result<()> {
    let answer = api
        .send("AssociateAddress", |ec2| {
            ec2.associate_address()
                .allocation_id(&address.thing.id)
                .instance_id(instance)
                .allow_reassociation(true)
                .send()
        })
        .await?;
    address.association = answer.association_id;
    address.instance = Some(instance.to_owned());
    Ok(())
}

/// Whether a group is one of the targets or nested in one. Without targets, every group is.
fn is_target(group: &str, targets: &str) -> bool {
    targets.is_empty()
        || targets.split(',').any(|target| {
            group
                .strip_prefix(target)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
}

#[cfg(test)]
mod tests {
    use super::is_target;

    #[test]
    fn an_outer_group_stands_for_all_inside() {
        assert!(is_target("control-plane", ""));
        assert!(is_target("control-plane", "workers,control-plane"));
        assert!(is_target("control-plane/a", "control-plane"));
        assert!(!is_target("control-plane-2", "control-plane"));
        assert!(!is_target("workers", "control-plane"));
    }
}
