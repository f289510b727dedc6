//! Releases the resources in the order that EC2's dependencies require.

use aws_sdk_ec2::types::Tag;
use drover_core::{Error, Result};
use drover_proto::platform::v1::{InfrastructureState, Resource, ResourcePhase};

use super::{
    super::{Aws, api::Api, errors},
    BORROWED, CLUSTER, Kind, LATER, OWNER, PORT, SOON, Seen, TARGETS,
    seen::{Address, Gateway, KIND, RESOURCE, SEQUENCE, Thing},
};
use drover_platform::infrastructure::{Owner, Progress};

/// The remaining resources after an attempt to release everything.
pub(super) struct Left {
    pub resources: Vec<Resource>,
    /// Whether a resource waits for another one.
    pub blocked: bool,
}

impl Left {
    /// Records the outcome of one resource. Released ones are reported until EC2 no longer shows them.
    fn settle(&mut self, kind: Kind, thing: &Thing, outcome: Result<()>) -> Result<bool> {
        let releasing = |message: &str| thing.resource(kind, ResourcePhase::Releasing, message);
        match outcome {
            Ok(()) => {
                self.resources
                    .push(releasing("freed; waiting until EC2 shows it no more"));
                Ok(true)
            }
            Err(error) if errors::is_absent(&error) => Ok(true),
            Err(error) if errors::is_in_use(&error) => {
                self.resources.push(releasing(error.message()));
                self.blocked = true;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Records a resource that is not attempted because another one is still inside it.
    fn wait(&mut self, kind: Kind, thing: &Thing) {
        self.resources.push(thing.resource(
            kind,
            ResourcePhase::Releasing,
            "waits for what is in it",
        ));
        self.blocked = true;
    }
}

impl Aws {
    /// Releases everything that an owner has.
    pub(super) async fn release_all(&self, owner: &Owner) -> Result<Progress> {
        let seen = Seen::of(&self.api, owner).await?;
        let visibility = self.settings.common.visibility_delay();
        self.recent.settle(owner, &seen, visibility);
        let mut left = self.free(&seen).await?;
        for (kind, name, id) in self.recent.of(owner) {
            left.resources.push(unseen(owner, kind, &name, id));
        }
        if left.resources.is_empty() && !self.recent.is_settled(visibility) {
            // The last creations of a previous server process may not be visible yet.
            left.resources
                .push(unseen(owner, Kind::Network, "main", None));
        }
        let poll_after = match (left.resources.is_empty(), left.blocked) {
            (true, _) => None,
            (false, true) => Some(LATER),
            (false, false) => Some(SOON),
        };
        Ok(Progress {
            state: InfrastructureState {
                phase: ResourcePhase::Unspecified.into(),
                resources: left.resources,
                outputs: None,
            },
            poll_after,
        })
    }

    /// Releases the resources that can be released now.
    pub(super) async fn free(&self, seen: &Seen) -> Result<Left> {
        let mut left = Left {
            resources: Vec::new(),
            blocked: false,
        };
        let mut inside = false;
        for address in &seen.addresses {
            let outcome = free_address(&self.api, address).await;
            left.settle(Kind::Endpoint, &address.thing, outcome)?;
        }
        for group in &seen.groups {
            let id = &group.thing.id;
            let outcome = self
                .api
                .send("DeleteSecurityGroup", |ec2| {
                    ec2.delete_security_group().group_id(id).send()
                })
                .await;
            inside |= !left.settle(Kind::Firewall, &group.thing, outcome.map(drop))?;
        }
        for subnet in &seen.subnets {
            let id = &subnet.thing.id;
            let outcome = self
                .api
                .send("DeleteSubnet", |ec2| {
                    ec2.delete_subnet().subnet_id(id).send()
                })
                .await;
            inside |= !left.settle(Kind::Subnet, &subnet.thing, outcome.map(drop))?;
        }
        for gateway in &seen.gateways {
            let outcome = free_gateway(&self.api, gateway).await;
            inside |= !left.settle(Kind::Gateway, &gateway.thing, outcome)?;
        }
        for vpc in &seen.vpcs {
            if inside {
                left.wait(Kind::Network, &vpc.thing);
                continue;
            }
            let id = &vpc.thing.id;
            let outcome = self
                .api
                .send("DeleteVpc", |ec2| ec2.delete_vpc().vpc_id(id).send())
                .await;
            left.settle(Kind::Network, &vpc.thing, outcome.map(drop))?;
        }
        Ok(left)
    }
}

async fn free_address(api: &Api, address: &Address) -> Result<()> {
    if let Some(association) = &address.association {
        let outcome = api
            .send("DisassociateAddress", |ec2| {
                ec2.disassociate_address()
                    .association_id(association)
                    .send()
            })
            .await;
        match outcome {
            Err(error) if !errors::is_absent(&error) => return Err(error),
            _ => {}
        }
    }
    let id = &address.thing.id;
    if address.thing.tag(BORROWED).is_empty() {
        api.send("ReleaseAddress", |ec2| {
            ec2.release_address().allocation_id(id).send()
        })
        .await
        .map(drop)
    } else {
        // The address belongs to the user: it is returned in its original state.
        let tags = [
            OWNER, CLUSTER, SEQUENCE, KIND, RESOURCE, TARGETS, PORT, BORROWED,
        ]
        .map(|key| Tag::builder().key(key).build());
        api.send("DeleteTags", |ec2| {
            ec2.delete_tags()
                .resources(id)
                .set_tags(Some(tags.to_vec()))
                .send()
        })
        .await
        .map(drop)
    }
}

async fn free_gateway(api: &Api, gateway: &Gateway) -> Result<()> {
    let id = &gateway.thing.id;
    if let Some(vpc) = &gateway.vpc {
        let outcome = api
            .send("DetachInternetGateway", |ec2| {
                ec2.detach_internet_gateway()
                    .internet_gateway_id(id)
                    .vpc_id(vpc)
                    .send()
            })
            .await;
        match outcome {
            Err(error) if !errors::is_absent(&error) => return Err(error),
            _ => {}
        }
    }
    api.send("DeleteInternetGateway", |ec2| {
        ec2.delete_internet_gateway().internet_gateway_id(id).send()
    })
    .await
    .map(drop)
}

/// A resource that may exist although EC2 does not show it.
fn unseen(owner: &Owner, kind: Kind, name: &str, id: Option<String>) -> Resource {
    let error = Error::unavailable("EC2 may not show yet what was made a short while ago");
    Resource {
        cluster_id: owner.cluster_id.clone(),
        owner: owner.owner.clone(),
        kind: kind.name().to_owned(),
        name: name.to_owned(),
        id: id.unwrap_or_default(),
        phase: ResourcePhase::Releasing.into(),
        message: error.message().to_owned(),
        sequence: 0,
        create_time: None,
    }
}
