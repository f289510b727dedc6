//! Keeps the elastic IP address pointed at a running target node.

use drover_core::{Class, Result};
use drover_proto::platform::v1::{NodePhase, NodeRole, ResourcePhase};

use super::{
    super::{Aws, machines},
    Seen, TARGETS,
};
use crate::cloud::{Filter, Machine};
use drover_platform::{identity::Identity, infrastructure::Owner};

impl Aws {
    /// Points the address to a running node, if it does not point to one already. Returns phase and message of the
    /// endpoint; `None` if there is none.
    pub(super) async fn follow(
        &self,
        owner: &Owner,
        seen: &mut Seen,
    ) -> Option<(ResourcePhase, String)> {
        let address = seen.addresses.first_mut()?;
        let outcome = self.target(owner, address.thing.tag(TARGETS)).await;
        let candidates = match outcome {
            Ok(candidates) => candidates,
            Err(error) => return Some((ResourcePhase::Unknown, error.to_string())),
        };
        let leads_to = |id: &str| (ResourcePhase::Ready, format!("leads to {id}"));
        if let Some(now) = &address.instance
            && candidates.iter().any(|machine| machine.id == *now)
        {
            return Some(leads_to(now));
        }
        let Some(machine) = candidates.first() else {
            return Some((ResourcePhase::Ready, "leads to no node yet".to_owned()));
        };
        let outcome = self
            .api
            .send("AssociateAddress", |ec2| {
                ec2.associate_address()
                    .allocation_id(&address.thing.id)
                    .instance_id(&machine.id)
                    .allow_reassociation(true)
                    .send()
            })
            .await;
        Some(match outcome {
            Ok(answer) => {
                address.association = answer.association_id;
                address.instance = Some(machine.id.clone());
                leads_to(&machine.id)
            }
            Err(error) if error.class() == Class::Unknown => {
                (ResourcePhase::Pending, error.to_string())
            }
            Err(error) => (ResourcePhase::Failed, error.to_string()),
        })
    }

    /// The nodes that the address may point to, best first.
    async fn target(&self, owner: &Owner, targets: &str) -> Result<Vec<Machine>> {
        let machines =
            machines::list(&self.api, &Filter::Cluster(owner.cluster_id.clone())).await?;
        let mut candidates: Vec<(Identity, Machine)> = machines
            .into_iter()
            .filter(|machine| machine.phase == NodePhase::Running)
            .filter_map(|machine| Some((machine.identity()?, machine)))
            .filter(|(identity, _)| identity.owner == owner.owner)
            .filter(|(identity, _)| identity.role() != NodeRole::Standby)
            .filter(|(identity, _)| is_target(&identity.group, targets))
            .collect();
        candidates.sort_by(|(a, x), (b, y)| {
            (&a.group, a.ordinal, &x.id).cmp(&(&b.group, b.ordinal, &y.id))
        });
        Ok(candidates.into_iter().map(|(_, machine)| machine).collect())
    }
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
