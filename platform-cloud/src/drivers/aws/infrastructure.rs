//! `InfrastructureService` on EC2: a network with a subnet per zone, a security group, and an elastic IP address that
//! points to a running node.
//!
//! The API has no idempotency tokens for these, so everything is tagged on creation and looked up by its tags before it
//! is created. A resource that may exist but is not visible yet is waited for; accidental duplicates are released.

mod cidr;
mod ensure;
mod follow;
mod follower;
mod release;
mod rules;
mod seen;
mod wanted;

use std::{
    collections::{BTreeMap, HashMap},
    net::Ipv4Addr,
    time::Duration,
};

use async_trait::async_trait;
use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::{
    Endpoint, InfrastructureOutputs, InfrastructureSpec, InfrastructureState, Resource,
    ResourcePhase, Warning,
};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::time::Instant;

use self::{
    ensure::Work,
    seen::{BORROWED, CLUSTER, Kind, OWNER, PORT, SUBNETS, Seen, Subnet, TARGETS},
    wanted::{Network, Source, WantedInfrastructure},
};
use super::{Aws, catalogue::filter, errors};

use drover_platform::infrastructure::{Infrastructure, Owner, Progress, phase_before_nodes};
pub(super) use follower::Follower;

/// Poll delay while something is in progress.
const SOON: Duration = Duration::from_secs(1);
/// Poll delay while another resource has to be deleted first.
const LATER: Duration = Duration::from_secs(5);

/// Recent create attempts at EC2 whose results it may not show yet.
#[derive(Debug)]
pub(super) struct Recent {
    opened: Instant,
    attempts: Mutex<HashMap<(Owner, Kind, String), Attempt>>,
}

#[derive(Clone, Debug)]
struct Attempt {
    at: Instant,
    /// `None` if it is unknown whether the resource was created.
    id: Option<String>,
}

impl Default for Recent {
    fn default() -> Self {
        Self {
            opened: Instant::now(),
            attempts: Mutex::default(),
        }
    }
}

impl Recent {
    /// Drops the attempts that are visible by now or never will be.
    fn settle(&self, owner: &Owner, seen: &Seen, visibility: Duration) {
        let now = Instant::now();
        self.attempts.lock().retain(|(of, kind, name), attempt| {
            attempt.at + visibility > now
                && !(of == owner
                    && seen
                        .things()
                        .any(|(known, thing)| known == *kind && thing.tag(seen::RESOURCE) == name))
        });
    }

    /// Whether all that a former process has asked for is visible, or will never be.
    fn is_settled(&self, visibility: Duration) -> bool {
        self.opened.elapsed() >= visibility
    }

    /// Resources that may exist although they are not visible.
    fn of(&self, owner: &Owner) -> Vec<(Kind, String, Option<String>)> {
        self.attempts
            .lock()
            .iter()
            .filter(|((of, ..), _)| of == owner)
            .map(|((_, kind, name), attempt)| (*kind, name.clone(), attempt.id.clone()))
            .collect()
    }

    fn begin(&self, owner: &Owner, kind: Kind, name: &str) {
        let attempt = Attempt {
            at: Instant::now(),
            id: None,
        };
        self.attempts
            .lock()
            .insert((owner.clone(), kind, name.to_owned()), attempt);
    }

    fn made(&self, owner: &Owner, kind: Kind, name: &str, id: &str) {
        let key = (owner.clone(), kind, name.to_owned());
        if let Some(attempt) = self.attempts.lock().get_mut(&key) {
            attempt.id = Some(id.to_owned());
        }
    }

    fn failed(&self, owner: &Owner, kind: Kind, name: &str) {
        self.attempts
            .lock()
            .remove(&(owner.clone(), kind, name.to_owned()));
    }
}

#[async_trait]
impl Infrastructure for Aws {
    async fn check(&self, owner: &Owner, spec: &InfrastructureSpec) -> Result<()> {
        let wanted = WantedInfrastructure::read(spec, &self.zones)?;
        let mut seen = Seen::of(&self.api, owner).await?;
        seen.take_surplus();
        changeable(&wanted, &seen)?;
        if let Some(network) = &wanted.network {
            self.given_subnets(network, owner).await?;
        }
        if let Some(host) = wanted.endpoint.as_ref().and_then(|endpoint| endpoint.host)
            && seen.addresses.is_empty()
        {
            self.free_address_of(host, owner).await?;
        }
        Ok(())
    }

    async fn ensure(
        &self,
        owner: &Owner,
        sequence: u64,
        spec: &InfrastructureSpec,
    ) -> Result<Progress> {
        let wanted = WantedInfrastructure::read(spec, &self.zones)?;
        let mut seen = Seen::of(&self.api, owner).await?;
        self.recent
            .settle(owner, &seen, self.settings.common.visibility_delay());
        let surplus = seen.take_surplus();
        changeable(&wanted, &seen)?;
        let mut work = Work::new(self, owner, sequence, &wanted, seen);
        work.run().await?;
        let mut progress = work.progress();
        if !surplus.is_empty() {
            let left = self.free(&surplus).await?;
            progress.state.resources.extend(left.resources);
            progress.poll_after = Some(SOON);
        }
        Ok(progress)
    }

    async fn get(&self, owner: &Owner) -> Result<InfrastructureState> {
        let mut seen = Seen::of(&self.api, owner).await?;
        let surplus = seen.take_surplus();
        let endpoint = self.follow(owner, &mut seen).await;
        self.follower.look_again();
        let mut resources = resources(&seen, endpoint);
        resources.extend(surplus.things().map(|(kind, thing)| {
            thing.resource(
                kind,
                ResourcePhase::Releasing,
                "is there twice; this one is freed",
            )
        }));
        Ok(InfrastructureState {
            phase: phase_before_nodes(&resources).into(),
            outputs: Some(outputs(&seen)),
            resources,
        })
    }

    async fn list(&self) -> Result<(Vec<Resource>, Vec<Warning>)> {
        let seen = Seen::all(&self.api).await?;
        let resources = seen
            .things()
            .map(|(kind, thing)| thing.resource(kind, thing.phase(), ""))
            .collect();
        Ok((resources, Vec::new()))
    }

    async fn release(&self, owner: &Owner) -> Result<Progress> {
        self.release_all(owner).await
    }
}

/// Rejects changes of resources that already exist.
fn changeable(wanted: &WantedInfrastructure, seen: &Seen) -> Result<()> {
    let group = seen.groups.first();
    match &wanted.network {
        None if !seen.vpcs.is_empty() || group.is_some() => {
            return Err(immutable(
                "spec.network",
                "was made and stays until the cluster is deleted",
            ));
        }
        None => {}
        Some(network) => same_network(network, seen)?,
    }
    match (&wanted.endpoint, seen.addresses.first()) {
        (None, Some(_)) => Err(immutable(
            "spec.endpoint",
            "was made and stays until the cluster is deleted",
        )),
        (Some(endpoint), Some(address)) => match endpoint.host {
            Some(host) if host.to_string() != address.ip => Err(immutable(
                "spec.endpoint.host",
                &format!("is {} already", address.ip),
            )),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

fn same_network(network: &Network, seen: &Seen) -> Result<()> {
    let is_given = |thing: &seen::Thing| thing.tags.contains_key(SUBNETS);
    let group = seen.groups.first();
    match &network.source {
        Source::Made { cidr, .. } => {
            if let Some(group) = group.filter(|group| is_given(&group.thing)) {
                return Err(immutable(
                    "spec.network.id",
                    &format!("is {} already", group.vpc),
                ));
            }
            match seen.vpcs.first().and_then(|vpc| vpc.cidr) {
                Some(there) if network.said && there != *cidr => Err(immutable(
                    "spec.network.cidr",
                    &format!("is {there} already"),
                )),
                _ => Ok(()),
            }
        }
        Source::Given { id, cidrs, .. } => {
            let known = seen
                .vpcs
                .first()
                .map(|vpc| &vpc.thing.id)
                .or(group.map(|group| &group.vpc));
            if let Some(known) = known.filter(|known| *known != id) {
                return Err(immutable("spec.network.id", &format!("is {known} already")));
            }
            for subnet in &seen.subnets {
                if let (Some(wanted), Some(there)) = (cidrs.get(&subnet.zone), subnet.cidr)
                    && *wanted != there
                {
                    return Err(immutable(
                        &format!("spec.properties.subnetCidrs.{}", subnet.zone),
                        &format!("is {there} already"),
                    ));
                }
            }
            Ok(())
        }
    }
}

fn immutable(field: &str, why: &str) -> Error {
    Error::new(Reason::Immutable, format!("{field} {why}")).with_violation(field, why)
}

impl Aws {
    /// The subnets of a network that the user provided, by zone.
    async fn given_subnets(
        &self,
        network: &Network,
        owner: &Owner,
    ) -> Result<BTreeMap<String, String>> {
        let Source::Given { id, subnets, cidrs } = &network.source else {
            return Ok(BTreeMap::new());
        };
        let answer = self
            .api
            .send("DescribeVpcs", |ec2| ec2.describe_vpcs().vpc_ids(id).send())
            .await;
        if let Err(error) = answer {
            return Err(if errors::is_absent(&error) {
                Error::invalid(
                    "spec.network.id",
                    format!("there is no VPC {id:?} in {}", self.api.region()),
                )
            } else {
                error
            });
        }
        let mut there =
            seen::subnets(&self.api, Some(vec![filter("vpc-id", [id.as_str()])])).await?;
        there.retain(|subnet| subnet.vpc == *id);
        there.sort_by(|a, b| a.thing.id.cmp(&b.thing.id));
        let foreign = |subnet: &Subnet| {
            let of = subnet.thing.tag(OWNER);
            !of.is_empty() && of != owner.owner
        };
        let mut found = BTreeMap::new();
        for (zone, id) in subnets {
            let is_there = there
                .iter()
                .any(|subnet| subnet.thing.id == *id && subnet.zone == *zone && !foreign(subnet));
            if !is_there {
                return Err(Error::invalid(
                    format!("spec.properties.subnets.{zone}"),
                    format!("the network has no subnet {id:?} in zone {zone}"),
                ));
            }
            found.insert(zone.clone(), id.clone());
        }
        for subnet in there
            .iter()
            .filter(|subnet| subnet.thing.tag(OWNER).is_empty())
        {
            if network.zones.contains(&subnet.zone) && !cidrs.contains_key(&subnet.zone) {
                found
                    .entry(subnet.zone.clone())
                    .or_insert_with(|| subnet.thing.id.clone());
            }
        }
        if found.is_empty() && cidrs.is_empty() {
            return Err(Error::invalid(
                "spec.network.id",
                format!(
                    "VPC {id} has no subnet in {}; give `subnetCidrs` in `properties` to make some",
                    network.zones.join(", ")
                ),
            ));
        }
        Ok(found)
    }

    /// The address that the user provided, if it may be used.
    async fn free_address_of(&self, host: Ipv4Addr, owner: &Owner) -> Result<seen::Address> {
        let field = "spec.endpoint.host";
        let host = host.to_string();
        let found =
            seen::addresses(&self.api, Some(vec![filter("public-ip", [host.as_str()])])).await?;
        let address = found
            .into_iter()
            .find(|address| address.ip == host)
            .ok_or_else(|| {
                Error::invalid(
                    field,
                    format!(
                        "the account has no elastic address {host} in {}",
                        self.api.region()
                    ),
                )
            })?;
        let (of, cluster) = (address.thing.tag(OWNER), address.thing.tag(CLUSTER));
        if !of.is_empty() && (of, cluster) != (owner.owner.as_str(), owner.cluster_id.as_str()) {
            return Err(Error::new(
                Reason::NotOwned,
                format!("the address {host} belongs to cluster {cluster:?}; it was left alone"),
            )
            .with_violation(field, "belongs to another cluster"));
        }
        if address.association.is_some() || address.in_use {
            return Err(Error::invalid(
                field,
                format!(
                    "{host} is associated with {} already",
                    address.instance.as_deref().unwrap_or("a network interface")
                ),
            ));
        }
        Ok(address)
    }
}

/// All resources with their phases; the phase of the endpoint is given by the caller that has followed it.
fn resources(seen: &Seen, endpoint: Option<(ResourcePhase, String)>) -> Vec<Resource> {
    seen.things()
        .map(|(kind, thing)| match &endpoint {
            Some((phase, message)) if kind == Kind::Endpoint => {
                thing.resource(kind, *phase, message)
            }
            _ => thing.resource(kind, thing.phase(), ""),
        })
        .collect()
}

/// The infrastructure outputs that nodes need.
fn outputs(seen: &Seen) -> InfrastructureOutputs {
    let group = seen.groups.first();
    let network_id = seen
        .vpcs
        .first()
        .map(|vpc| vpc.thing.id.clone())
        .or_else(|| group.map(|group| group.vpc.clone()))
        .unwrap_or_default();
    let mut subnets = group
        .map(|group| wanted::from_tag(group.thing.tag(SUBNETS)))
        .unwrap_or_default();
    for subnet in seen.subnets.iter().filter(|subnet| !subnet.thing.pending) {
        subnets.insert(subnet.zone.clone(), subnet.thing.id.clone());
    }
    let mut properties = Map::new();
    if !subnets.is_empty() {
        let subnets = subnets
            .into_iter()
            .map(|(zone, id)| (zone, Value::String(id)));
        properties.insert("subnets".to_owned(), Value::Object(subnets.collect()));
    }
    if let Some(group) = group {
        let groups = vec![Value::String(group.thing.id.clone())];
        properties.insert("security_groups".to_owned(), Value::Array(groups));
    }
    InfrastructureOutputs {
        platform: String::new(),
        endpoint: seen.addresses.first().map(|address| Endpoint {
            host: address.ip.clone(),
            port: address.thing.tag(PORT).parse().unwrap_or_default(),
        }),
        network_id,
        properties: (!properties.is_empty()).then(|| drover_convert::value::to_struct(&properties)),
    }
}
