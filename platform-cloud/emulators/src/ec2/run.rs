//! RunInstances.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use tokio::time::Instant;

use crate::ec2::asked::{Disk, counts, disks, fingerprint, image, interface, private, user_data};
use crate::ec2::catalogue::{self, Image, InstanceType};
use crate::ec2::model::{Instance, MetadataOptions, Phase, State, Tags, Token, Volume, new_id};
use crate::ec2::params::{Outcome, Params, Wrong, invalid_value, wrong};
use crate::ec2::xml::Xml;
use crate::ec2::{World, dry_run};

/// Maximum length of a client token.
const TOKEN: usize = 64;

/// The parts of a call that do not depend on the available capacity.
struct Plan {
    image: &'static Image,
    kind: &'static InstanceType,
    subnet: String,
    groups: Vec<String>,
    key_name: Option<String>,
    private: Option<Ipv4Addr>,
    public: bool,
    ipv6: usize,
    disks: Vec<Disk>,
    tags: BTreeMap<String, Tags>,
    token: Option<String>,
    user_data: Option<String>,
    metadata: MetadataOptions,
    spot: bool,
    protected: bool,
    stop_protected: bool,
    profile: Option<String>,
    tenancy: String,
}

impl World {
    pub(crate) fn run_instances(
        &self,
        state: &mut State,
        asked: &Params,
        now: Instant,
    ) -> Outcome<Xml> {
        let (least, most) = counts(asked)?;
        let fingerprint = fingerprint(asked);
        let token = asked.get("ClientToken").filter(|token| !token.is_empty());
        if let Some(token) = token
            && let Some(xml) = self.repeated(state, token, fingerprint, now)?
        {
            return Ok(xml);
        }
        let template = self.template_of(state, asked)?;
        let params = template.map_or_else(|| asked.clone(), |template| asked.over(&template));
        let mut plan = self.plan(state, &params)?;
        if params.bool("DryRun")? == Some(true) {
            return Err(dry_run());
        }
        if plan.subnet.is_empty() {
            plan.subnet = self.any_subnet(state, plan.spot, now)?;
        }
        let count = self.admit(state, &plan, least, most, now)?;
        let (reservation, numbers) = self.launch(state, &plan, count, now)?;
        if let Some(name) = token
            && let Some(first) = numbers.first().copied()
        {
            let token = Token {
                fingerprint,
                reservation: reservation.clone(),
                first,
                count,
                at: now,
            };
            state.remember(name.to_owned(), token);
        }
        let mut xml = Xml::new();
        self.reservation(&mut xml, state, &reservation, &numbers, now);
        Ok(xml)
    }

    /// Returns the response to a repeated call, recognized by its client token.
    fn repeated(
        &self,
        state: &mut State,
        name: &str,
        fingerprint: [u8; 32],
        now: Instant,
    ) -> Outcome<Option<Xml>> {
        if name.len() > TOKEN || !name.is_ascii() {
            let message = format!("clientToken must be not more than {TOKEN} ASCII characters");
            return Err(wrong("InvalidParameterValue", message));
        }
        let Some(token) = state.tokens.get(name) else {
            return Ok(None);
        };
        if token.fingerprint != fingerprint {
            let message = "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).";
            return Err(wrong("IdempotentParameterMismatch", message));
        }
        let numbers: Vec<u64> = (token.first..).take(token.count).collect();
        let ended = |number: &u64| {
            state
                .instances
                .get(number)
                .is_none_or(|instance| instance.phase(now, &self.delays).is_over())
        };
        if numbers.iter().any(ended) {
            let message =
                "The client token was used for a request whose instance has been terminated.";
            return Err(wrong("IdempotentInstanceTerminated", message));
        }
        let reservation = token.reservation.clone();
        let mut xml = Xml::new();
        self.reservation(&mut xml, state, &reservation, &numbers, now);
        Ok(Some(xml))
    }

    fn plan(&self, state: &State, params: &Params) -> Outcome<Plan> {
        let image = image(params.need("ImageId")?)?;
        let name = params.get("InstanceType").unwrap_or("t2.micro");
        let kind = catalogue::instance_type(name).ok_or_else(|| {
            wrong(
                "InvalidParameterValue",
                format!("Invalid value '{name}' for InstanceType."),
            )
        })?;
        if kind.architecture != image.architecture {
            let message = format!(
                "The architecture '{}' of the specified instance type does not match the architecture '{}' of the \
                 specified AMI. Specify an instance type and an AMI that have matching architectures, and try again.",
                kind.architecture, image.architecture
            );
            return Err(wrong("InvalidParameterValue", message));
        }
        let key_name = params.get("KeyName").map(str::to_owned);
        if let Some(name) = key_name
            .as_ref()
            .filter(|name| !state.keys.contains_key(*name))
        {
            return Err(wrong(
                "InvalidKeyPair.NotFound",
                format!("The key pair '{name}' does not exist"),
            ));
        }
        let interface = interface(params)?;
        let (subnet, groups) = self.place(state, params, &interface)?;
        let in_subnet = state.subnets.get(&subnet);
        let is_public = in_subnet.is_none_or(|subnet| subnet.public);
        let on_creation = in_subnet.is_some_and(|subnet| subnet.ipv6_on_creation);
        let ipv6 = interface
            .int("Ipv6AddressCount")?
            .or(params.int("Ipv6AddressCount")?);
        let ipv6 = usize::try_from(ipv6.unwrap_or(i64::from(on_creation))).unwrap_or(0);
        if ipv6 > 0 && in_subnet.is_some_and(|subnet| subnet.ipv6.is_none()) {
            let message = format!("The subnet '{subnet}' does not have an IPv6 CIDR block.");
            return Err(wrong("InvalidParameterValue", message));
        }
        Ok(Plan {
            image,
            kind,
            subnet,
            groups,
            key_name,
            private: private(params, &interface)?,
            public: interface
                .bool("AssociatePublicIpAddress")?
                .unwrap_or(is_public),
            ipv6,
            disks: disks(params, image)?,
            tags: params.tag_specifications(&[
                "instance",
                "volume",
                "network-interface",
                "spot-instances-request",
            ])?,
            token: params
                .get("ClientToken")
                .filter(|token| !token.is_empty())
                .map(str::to_owned),
            user_data: user_data(params)?,
            metadata: self.metadata(params, image)?,
            spot: self.spot(params)?,
            protected: params.bool("DisableApiTermination")?.unwrap_or(false),
            stop_protected: params.bool("DisableApiStop")?.unwrap_or(false),
            profile: params
                .get("IamInstanceProfile.Name")
                .or(params.get("IamInstanceProfile.Arn"))
                .map(str::to_owned),
            tenancy: params
                .get("Placement.Tenancy")
                .unwrap_or("default")
                .to_owned(),
        })
    }

    /// Returns the subnet (empty if any will do) and the security groups.
    fn place(
        &self,
        state: &State,
        params: &Params,
        interface: &Params,
    ) -> Outcome<(String, Vec<String>)> {
        let zone = params.get("Placement.AvailabilityZone");
        if let Some(zone) = zone.filter(|zone| !self.zones().iter().any(|known| known == zone)) {
            return Err(wrong(
                "InvalidParameterValue",
                format!("Invalid availability zone: [{zone}]"),
            ));
        }
        let asked = interface.get("SubnetId").or(params.get("SubnetId"));
        let subnet = match (asked, zone) {
            (Some(id), zone) => {
                let subnet = state.subnets.get(id).ok_or_else(|| no_subnet(id))?;
                if let Some(zone) = zone.filter(|zone| *zone != subnet.zone) {
                    let message = format!(
                        "The availability zone '{zone}' is not the zone of the subnet '{id}'"
                    );
                    return Err(wrong("InvalidParameterCombination", message));
                }
                id.to_owned()
            }
            (None, Some(zone)) => {
                let in_zone = state
                    .subnets
                    .iter()
                    .find(|(_, subnet)| subnet.is_default && subnet.zone == zone);
                let none = || {
                    wrong(
                        "MissingInput",
                        format!("No default subnet for availability zone: '{zone}'."),
                    )
                };
                in_zone.map(|(id, _)| id.clone()).ok_or_else(none)?
            }
            (None, None) => String::new(),
        };
        let vpc = match state.subnets.get(&subnet) {
            Some(subnet) => subnet.vpc.clone(),
            None => state.default_vpc().ok_or_else(no_default)?,
        };
        let groups = self.groups_for(state, params, interface, &vpc, &subnet)?;
        Ok((subnet, groups))
    }

    fn groups_for(
        &self,
        state: &State,
        params: &Params,
        interface: &Params,
        vpc: &str,
        subnet: &str,
    ) -> Outcome<Vec<String>> {
        let mut ids = interface.list("SecurityGroupId");
        ids.extend(params.list("SecurityGroupId"));
        for name in params.list("SecurityGroup") {
            let found = state
                .groups
                .iter()
                .find(|(_, group)| group.vpc == vpc && group.name == name);
            let none = || {
                wrong(
                    "InvalidGroup.NotFound",
                    format!("The security group '{name}' does not exist"),
                )
            };
            ids.push(found.map(|(id, _)| id.clone()).ok_or_else(none)?);
        }
        for id in &ids {
            let group = state
                .groups
                .get(id)
                .ok_or_else(|| super::groups::no_group(id))?;
            if group.vpc != vpc {
                let message = format!(
                    "Security group {id} and subnet {subnet} belong to different networks."
                );
                return Err(wrong("InvalidParameter", message));
            }
        }
        if ids.is_empty() {
            ids.extend(state.default_group(vpc));
        }
        Ok(ids)
    }

    fn spot(&self, params: &Params) -> Outcome<bool> {
        match params.get("InstanceMarketOptions.MarketType") {
            None => return Ok(false),
            Some("spot") if !self.settings.spot_role => return Err(no_spot_role()),
            Some("spot") => {}
            Some(other) => return Err(invalid_value("marketType", other, "It must be spot.")),
        }
        if let Some(offer) = params.get("InstanceMarketOptions.SpotOptions.MaxPrice") {
            let price: f64 = offer
                .parse()
                .map_err(|_| invalid_value("maxPrice", offer, "It must be a price."))?;
            if price < self.settings.spot_price {
                let least = self.settings.spot_price;
                let message = format!(
                    "Your Spot request price of {price} is lower than the minimum required Spot request fulfillment \
                     price of {least}."
                );
                return Err(wrong("SpotMaxPriceTooLow", message));
            }
        }
        Ok(true)
    }

    /// Returns the default subnet of the zone with the most free capacity.
    fn any_subnet(&self, state: &State, spot: bool, now: Instant) -> Outcome<String> {
        let defaults = state.subnets.iter().filter(|(_, subnet)| subnet.is_default);
        let room = |zone: &str| self.room(state, zone, spot, now).unwrap_or(usize::MAX);
        // With equal capacity, the one with the most free addresses.
        let best = defaults.max_by_key(|(_, subnet)| (room(&subnet.zone), subnet.left()));
        best.map(|(id, _)| id.clone()).ok_or_else(no_default)
    }

    /// Number of instances that still fit into a zone; `None`: unlimited.
    pub(crate) fn room(
        &self,
        state: &State,
        zone: &str,
        spot: bool,
        now: Instant,
    ) -> Option<usize> {
        let most = if spot {
            self.settings.spot_capacity.get(zone).copied()?
        } else {
            self.capacity.lock().get(zone).copied()?
        };
        let taken = state.instances.values().filter(|instance| {
            instance.spot == spot
                && instance.zone == zone
                && instance.phase(now, &self.delays).takes_room()
        });
        Some(most.saturating_sub(taken.count()))
    }

    /// Number of the requested instances that are created.
    fn admit(
        &self,
        state: &State,
        plan: &Plan,
        least: usize,
        most: usize,
        now: Instant,
    ) -> Outcome<usize> {
        self.check_quota(state, plan, most, now)?;
        let Some(subnet) = state.subnets.get(&plan.subnet) else {
            return Err(no_subnet(&plan.subnet));
        };
        if plan.private.is_some() && most > 1 {
            let message = "A private IP address may be specified for a single instance only";
            return Err(wrong("InvalidParameterCombination", message));
        }
        let room = self
            .room(state, &subnet.zone, plan.spot, now)
            .unwrap_or(usize::MAX);
        if room < least {
            return Err(no_capacity(plan.kind.name, &subnet.zone, plan.spot));
        }
        if subnet.left() < least {
            let message = format!(
                "There are not enough free addresses in subnet '{}' to satisfy the requested number of \
                                   instances.",
                plan.subnet
            );
            return Err(wrong("InsufficientFreeAddressesInSubnet", message));
        }
        Ok(most.min(room).min(subnet.left()))
    }

    fn check_quota(&self, state: &State, plan: &Plan, more: usize, now: Instant) -> Outcome<()> {
        let settings = &self.settings;
        if settings.common.quota.is_none()
            && settings.vcpu_quota.is_none()
            && settings.spot_quota.is_none()
        {
            return Ok(());
        }
        let (mut running, mut spots, mut vcpus) = (0, 0, 0);
        for instance in state.instances.values() {
            if !matches!(
                instance.phase(now, &self.delays),
                Phase::Pending | Phase::Running
            ) {
                continue;
            }
            running += 1;
            if instance.spot {
                spots += 1;
            } else {
                vcpus += instance.kind.vcpus as usize;
            }
        }
        if plan.spot && settings.spot_quota.is_some_and(|most| spots + more > most) {
            return Err(too_many_spot());
        }
        if let Some(most) = settings.common.quota.filter(|most| running + more > *most) {
            let message = format!(
                "You have requested more instances ({}) than your current instance limit of {most} allows for the \
                 specified instance type. Please visit http://aws.amazon.com/contact-us/ec2-request to request an \
                 adjustment to this limit.",
                running + more
            );
            return Err(wrong("InstanceLimitExceeded", message));
        }
        let more = more * plan.kind.vcpus as usize;
        match settings.vcpu_quota {
            Some(most) if !plan.spot && vcpus + more > most as usize => Err(too_many_vcpus(most)),
            _ => Ok(()),
        }
    }

    fn launch(
        &self,
        state: &mut State,
        plan: &Plan,
        count: usize,
        now: Instant,
    ) -> Outcome<(String, Vec<u64>)> {
        let reservation = new_id("r");
        let launched = self.timestamp(now);
        let none = Tags::new();
        let mut numbers = Vec::with_capacity(count);
        for index in 0..count {
            let instance = self.instance(state, plan, index, (&reservation, &launched), now)?;
            let volume_tags = plan.tags.get("volume").unwrap_or(&none);
            for volume in &instance.volumes {
                state.tags.insert(volume.id.clone(), volume_tags.clone());
                self.made(
                    "volume",
                    &volume.id,
                    plan.token.as_deref(),
                    volume_tags,
                    false,
                );
            }
            self.made(
                "instance",
                &instance.id,
                plan.token.as_deref(),
                &instance.tags,
                false,
            );
            numbers.push(state.add(instance));
        }
        Ok((reservation, numbers))
    }

    fn instance(
        &self,
        state: &mut State,
        plan: &Plan,
        index: usize,
        (reservation, launched): (&str, &str),
        now: Instant,
    ) -> Outcome<Instance> {
        let public = plan.public.then(|| state.public_address());
        let subnet = state
            .subnets
            .get_mut(&plan.subnet)
            .ok_or_else(|| no_subnet(&plan.subnet))?;
        let full = || {
            wrong(
                "InsufficientFreeAddressesInSubnet",
                "There are not enough free addresses in the subnet.",
            )
        };
        let private = match plan.private {
            Some(address) => address,
            None => subnet.take().ok_or_else(full)?,
        };
        let ipv6 = subnet.addresses6(plan.ipv6);
        let volume = |disk: &Disk| Volume {
            id: new_id("vol"),
            device: disk.device.clone(),
            gib: disk.gib,
            kind: disk.kind.clone(),
            delete_on_termination: disk.delete_on_termination,
            encrypted: disk.encrypted,
        };
        Ok(Instance {
            id: new_id("i"),
            reservation: reservation.to_owned(),
            index,
            image: plan.image.id.to_owned(),
            kind: plan.kind,
            zone: subnet.zone.clone(),
            subnet: plan.subnet.clone(),
            vpc: subnet.vpc.clone(),
            groups: plan.groups.clone(),
            key_name: plan.key_name.clone(),
            private,
            public,
            elastic: None,
            ipv6,
            interface: new_id("eni"),
            volumes: plan.disks.iter().map(volume).collect(),
            tags: plan.tags.get("instance").cloned().unwrap_or_default(),
            token: plan.token.clone(),
            user_data: plan.user_data.clone(),
            metadata: plan.metadata.clone(),
            spot: plan.spot,
            protected: plan.protected,
            stop_protected: plan.stop_protected,
            profile: plan.profile.clone(),
            tenancy: plan.tenancy.clone(),
            launched: launched.to_owned(),
            created: now,
            starts: now + self.delays.pending,
            stops: None,
            terminates: None,
            reason: None,
            half_tagged: false,
            impaired: false,
            event: None,
            drawn: None,
        })
    }
}

/// The first spot request of an account creates a role, for which the caller needs a permission
/// (<https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/service-linked-roles-spot-instance-requests.html>).
fn no_spot_role() -> Wrong {
    Wrong {
        status: 403,
        ..wrong(
            "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
            "The provided credentials do not have permission to create the service-linked role for EC2 Spot Instances.",
        )
    }
}

pub(crate) fn no_subnet(id: &str) -> Wrong {
    wrong(
        "InvalidSubnetID.NotFound",
        format!("The subnet ID '{id}' does not exist"),
    )
}

fn no_default() -> Wrong {
    wrong(
        "VPCIdNotSpecified",
        "No default VPC for this user. GroupName is only supported for EC2-Classic and default VPC.",
    )
}

pub(crate) fn no_capacity(kind: &str, zone: &str, spot: bool) -> Wrong {
    let message = if spot {
        "There is no Spot capacity available that matches your request.".to_owned()
    } else {
        format!(
            "We currently do not have sufficient {kind} capacity in the Availability Zone you requested ({zone}). Our \
             system will be working on provisioning additional capacity. You can currently get {kind} capacity by not \
             specifying an Availability Zone in your request or choosing another one."
        )
    };
    Wrong {
        status: 500,
        ..wrong("InsufficientInstanceCapacity", message)
    }
}

pub(crate) fn too_many_spot() -> Wrong {
    wrong(
        "MaxSpotInstanceCountExceeded",
        "Max spot instance count exceeded",
    )
}

pub(crate) fn too_many_vcpus(most: u32) -> Wrong {
    let message = format!(
        "You have requested more vCPU capacity than your current vCPU limit of {most} allows for the instance bucket that \
         the specified instance type belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request to request an \
         adjustment to this limit."
    );
    wrong("VcpuLimitExceeded", message)
}
