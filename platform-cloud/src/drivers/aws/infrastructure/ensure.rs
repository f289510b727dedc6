//! Creates the missing resources step by step.

use std::collections::BTreeMap;

use aws_sdk_ec2::types::{DomainType, ResourceType, Tag};
use drover_core::{Class, Error, Result};
use drover_proto::platform::v1::{InfrastructureState, Resource, ResourcePhase};

use super::{
    super::{Aws, NAME, errors, launch::tagged},
    BORROWED, CLUSTER, Kind, OWNER, PORT, SOON, Seen, Source, TARGETS, WantedInfrastructure,
    outputs, resources,
    seen::{Address, KIND, RESOURCE, SEQUENCE, Thing},
    wanted::Endpoint,
};
use drover_platform::infrastructure::{Owner, Progress, phase_before_nodes};

mod firewall;
mod network;

/// Names of resources of which there is exactly one.
const MAIN: &str = "main";
const CONTROL_PLANE: &str = "control-plane";

/// One reconciliation pass.
pub(super) struct Work<'a> {
    aws: &'a Aws,
    owner: &'a Owner,
    sequence: u64,
    wanted: &'a WantedInfrastructure,
    seen: Seen,
    waiting: Vec<Resource>,
    endpoint: Option<(ResourcePhase, String)>,
}

impl<'a> Work<'a> {
    pub(super) fn new(
        aws: &'a Aws,
        owner: &'a Owner,
        sequence: u64,
        wanted: &'a WantedInfrastructure,
        seen: Seen,
    ) -> Self {
        Self {
            aws,
            owner,
            sequence,
            wanted,
            seen,
            waiting: Vec::new(),
            endpoint: None,
        }
    }

    /// Goes as far as possible in this pass.
    pub(super) async fn run(&mut self) -> Result<()> {
        match self.steps().await {
            // A resource created a moment ago is not known everywhere in EC2 yet.
            Err(error)
                if errors::is_absent(&error) && !self.aws.recent.of(self.owner).is_empty() =>
            {
                self.wait(Kind::Network, MAIN, error.message());
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// The state after the pass.
    pub(super) fn progress(self) -> Progress {
        let mut resources = resources(&self.seen, self.endpoint);
        resources.extend(self.waiting);
        let phase = phase_before_nodes(&resources);
        Progress {
            // Gone: nothing was asked for that is made.
            poll_after: (!matches!(phase, ResourcePhase::Ready | ResourcePhase::Gone))
                .then_some(SOON),
            state: InfrastructureState {
                phase: phase.into(),
                outputs: Some(outputs(&self.seen)),
                resources,
            },
        }
    }

    async fn steps(&mut self) -> Result<()> {
        if let Some(network) = &self.wanted.network {
            let given = self.aws.given_subnets(network, self.owner).await?;
            let Some(vpc) = self.network(network).await? else {
                return Ok(());
            };
            if matches!(network.source, Source::Made { .. }) && network.gateway {
                self.gateway(&vpc).await?;
            }
            self.subnets(network, &vpc).await?;
            self.group(network, &vpc, &given).await?;
        }
        if let Some(endpoint) = &self.wanted.endpoint {
            self.address(endpoint).await?;
            self.endpoint = self.aws.follow(self.owner, &mut self.seen).await;
            self.aws.follower.look_again();
        }
        Ok(())
    }

    /// Ensures the elastic IP address and its targets.
    async fn address(&mut self, endpoint: &Endpoint) -> Result<()> {
        let about = BTreeMap::from([
            (TARGETS.to_owned(), endpoint.targets.join(",")),
            (PORT.to_owned(), endpoint.port.to_string()),
        ]);
        if let Some(address) = self.seen.addresses.first_mut() {
            return retag(self.aws, &mut address.thing, about).await;
        }
        let mut tags = self.tags(Kind::Endpoint, CONTROL_PLANE);
        tags.extend(about);
        if let Some(host) = endpoint.host {
            let mut address = self.aws.free_address_of(host, self.owner).await?;
            tags.insert(BORROWED.to_owned(), "true".to_owned());
            // The name belongs to the user.
            tags.remove(NAME);
            retag(self.aws, &mut address.thing, tags).await?;
            self.seen.addresses.push(address);
            return Ok(());
        }
        if !self.begin(Kind::Endpoint, CONTROL_PLANE) {
            return Ok(());
        }
        let mut ip = String::new();
        let outcome = self
            .aws
            .api
            .send("AllocateAddress", |ec2| {
                ec2.allocate_address()
                    .domain(DomainType::Vpc)
                    .tag_specifications(tagged(ResourceType::ElasticIp, &tags))
                    .send()
            })
            .await
            .map(|answer| {
                ip = answer.public_ip.unwrap_or_default();
                answer.allocation_id
            });
        let id = self.end(Kind::Endpoint, CONTROL_PLANE, outcome)?;
        self.seen.addresses.push(Address {
            thing: Thing {
                id,
                tags,
                pending: false,
            },
            ip,
            ..Address::default()
        });
        Ok(())
    }

    /// The tags of a new resource.
    fn tags(&self, kind: Kind, name: &str) -> BTreeMap<String, String> {
        let shown = format!("{}-{}", self.owner.cluster_id, name);
        [
            (OWNER, self.owner.owner.clone()),
            (CLUSTER, self.owner.cluster_id.clone()),
            (SEQUENCE, self.sequence.to_string()),
            (KIND, kind.name().to_owned()),
            (RESOURCE, name.to_owned()),
            (NAME, shown.chars().take(256).collect()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }

    /// Whether a resource may be created now. Otherwise it may already exist and has to become visible first.
    fn begin(&mut self, kind: Kind, name: &str) -> bool {
        let recent = &self.aws.recent;
        let asked = recent.of(self.owner);
        let why = if asked
            .iter()
            .any(|(of, known, _)| *of == kind && known == name)
        {
            "was asked for a short while ago; waiting until EC2 shows it"
        } else if !recent.is_settled(self.aws.settings.common.visibility_delay()) {
            "may have been asked for before this platform was started; waiting until EC2 would show it"
        } else {
            recent.begin(self.owner, kind, name);
            return true;
        };
        self.wait(kind, name, why);
        false
    }

    /// Records the outcome of a create attempt.
    fn end(&self, kind: Kind, name: &str, outcome: Result<Option<String>>) -> Result<String> {
        let recent = &self.aws.recent;
        match outcome {
            Ok(Some(id)) => {
                recent.made(self.owner, kind, name, &id);
                Ok(id)
            }
            Ok(None) => Err(Error::unavailable(format!(
                "the answer of EC2 names no {}",
                kind.name()
            ))),
            Err(error) => {
                if error.class() == Class::Unknown {
                    // EC2 may have started as late as now.
                    recent.begin(self.owner, kind, name);
                } else {
                    recent.failed(self.owner, kind, name);
                }
                Err(error)
            }
        }
    }

    fn wait(&mut self, kind: Kind, name: &str, message: &str) {
        self.waiting.push(Resource {
            cluster_id: self.owner.cluster_id.clone(),
            owner: self.owner.owner.clone(),
            kind: kind.name().to_owned(),
            name: name.to_owned(),
            phase: ResourcePhase::Pending.into(),
            message: drover_core::error::cut(message.to_owned()),
            sequence: self.sequence,
            ..Resource::default()
        });
    }
}

/// A resource that was just created.
fn thing(id: &str, tags: BTreeMap<String, String>) -> Thing {
    Thing {
        id: id.to_owned(),
        tags,
        pending: true,
    }
}

fn already(outcome: Result<()>, code: &str) -> Result<()> {
    match outcome {
        Err(error) if errors::code(&error) == code => Ok(()),
        outcome => outcome,
    }
}

/// Sets the tags that differ.
async fn retag(aws: &Aws, thing: &mut Thing, wanted: BTreeMap<String, String>) -> Result<()> {
    let tags: Vec<Tag> = wanted
        .iter()
        .filter(|(key, value)| thing.tags.get(*key) != Some(value))
        .map(|(key, value)| Tag::builder().key(key).value(value).build())
        .collect();
    if tags.is_empty() {
        return Ok(());
    }
    aws.api
        .send("CreateTags", |ec2| {
            ec2.create_tags()
                .resources(&thing.id)
                .set_tags(Some(tags.clone()))
                .send()
        })
        .await?;
    thing.tags.extend(wanted);
    Ok(())
}
