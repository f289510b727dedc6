//! Listing of instances.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use tokio::time::Instant;

use crate::ec2::model::{Delays, Instance, Phase, SecurityGroup, State, Vpc};
use crate::ec2::params::{Filters, Outcome, Params, wrong};
use crate::ec2::xml::Xml;
use crate::ec2::{ACCOUNT, World, lifecycle};

/// Approximate size of an instance as XML, to preallocate long lists.
const DRAWN: usize = 4096;

const FILTERS: &[&str] = &[
    "architecture",
    "availability-zone",
    "client-token",
    "image-id",
    "instance-id",
    "instance-lifecycle",
    "instance-state-code",
    "instance-state-name",
    "instance-type",
    "instance.group-id",
    "instance.group-name",
    "ip-address",
    "key-name",
    "network-interface.network-interface-id",
    "owner-id",
    "private-ip-address",
    "reservation-id",
    "subnet-id",
    "tenancy",
    "vpc-id",
];

impl World {
    pub(crate) fn describe_instances(
        &self,
        state: &mut State,
        params: &Params,
        now: Instant,
    ) -> Outcome<Xml> {
        let ids = params.list("InstanceId");
        if !ids.is_empty() && params.has("MaxResults") {
            let message = "The parameter instancesSet cannot be used with the parameter maxResults";
            return Err(wrong("InvalidParameterCombination", message));
        }
        let filters = Filters::new(params, FILTERS)?;
        let named = if ids.is_empty() {
            None
        } else {
            Some(self.numbers(state, &ids, now)?)
        };
        let (limit, from) = self.page_of(params, 5)?;
        let candidates: Vec<u64> = match named {
            Some(mut named) => {
                named.sort_unstable();
                named
            }
            None => match indexed(state, &filters) {
                Some(found) => found.into_iter().collect(),
                None => state.instances.keys().copied().collect(),
            },
        };
        let (mut page, mut next) = (Vec::new(), None);
        for number in candidates.into_iter().filter(|number| *number >= from) {
            let Some(instance) = state.instances.get(&number) else {
                continue;
            };
            let shown = instance.is_visible(now, &self.delays)
                && filters.hold(&instance.tags, |name| {
                    field(instance, state, name, now, &self.delays)
                });
            if !shown {
                continue;
            }
            if limit.is_some_and(|limit| page.len() == limit) {
                let again = page.last().copied().filter(|_| state.repeats);
                next = Some(page_token(again.unwrap_or(number)));
                break;
            }
            page.push(number);
        }
        let mut xml = Xml::with_room(page.len() * DRAWN + 1024);
        xml.open("reservationSet");
        let mut together: Vec<(String, Vec<u64>)> = Vec::new();
        for number in page {
            let Some(instance) = state.instances.get(&number) else {
                continue;
            };
            match together
                .last_mut()
                .filter(|(id, _)| *id == instance.reservation)
            {
                Some((_, numbers)) => numbers.push(number),
                None => together.push((instance.reservation.clone(), vec![number])),
            }
        }
        for (id, numbers) in together {
            xml.nest("item", |xml| {
                self.reservation(xml, state, &id, &numbers, now);
            });
        }
        xml.close("reservationSet");
        xml.maybe("nextToken", next.as_deref());
        Ok(xml)
    }

    /// Renders a reservation with these of its instances.
    pub(crate) fn reservation(
        &self,
        xml: &mut Xml,
        state: &mut State,
        id: &str,
        numbers: &[u64],
        now: Instant,
    ) {
        xml.text("reservationId", id);
        xml.text("ownerId", ACCOUNT);
        xml.nest("groupSet", |_| {});
        let State {
            instances,
            groups,
            vpcs,
            ..
        } = state;
        xml.list("instancesSet", numbers, |xml, number| {
            let Some(instance) = instances.get_mut(number) else {
                return;
            };
            let phase = instance.phase(now, &self.delays);
            if instance
                .drawn
                .as_ref()
                .is_none_or(|(drawn, _)| *drawn != phase)
            {
                let text = self.draw(instance, phase, groups, vpcs);
                instance.drawn = Some((phase, text));
            }
            if let Some((_, text)) = &instance.drawn {
                xml.raw(text);
            }
        });
    }

    fn draw(
        &self,
        instance: &Instance,
        now: Phase,
        groups: &BTreeMap<String, SecurityGroup>,
        vpcs: &BTreeMap<String, Vpc>,
    ) -> String {
        let mut xml = Xml::new();
        let here = now != Phase::Terminated;
        let public = public(instance, now);
        let names = vpcs
            .get(&instance.vpc)
            .is_some_and(|vpc| vpc.dns_support && vpc.dns_hostnames);
        xml.plain("instanceId", &instance.id);
        xml.plain("imageId", &instance.image);
        xml.nest("instanceState", |xml| lifecycle::phase(xml, now));
        let private_name = if here {
            self.private_name(instance.private)
        } else {
            String::new()
        };
        xml.plain("privateDnsName", &private_name);
        let public_name = public
            .filter(|_| names)
            .map(|address| self.public_name(address));
        xml.plain("dnsName", public_name.as_deref().unwrap_or_default());
        let reason = instance
            .reason
            .filter(|_| now != Phase::Running && now != Phase::Pending);
        xml.plain("reason", reason.map_or("", |_| "User initiated"));
        xml.maybe("keyName", instance.key_name.as_deref());
        xml.value("amiLaunchIndex", instance.index);
        xml.nest("productCodes", |_| {});
        xml.plain("instanceType", instance.kind.name);
        xml.plain("launchTime", &instance.launched);
        xml.nest("placement", |xml| {
            xml.plain("availabilityZone", &instance.zone);
            xml.plain("groupName", "");
            xml.text("tenancy", &instance.tenancy);
        });
        xml.nest("monitoring", |xml| xml.plain("state", "disabled"));
        if here {
            xml.plain("subnetId", &instance.subnet);
            xml.plain("vpcId", &instance.vpc);
            xml.value("privateIpAddress", instance.private);
            if let Some(address) = public {
                xml.value("ipAddress", address);
            }
            xml.maybe("ipv6Address", instance.ipv6.first().map(String::as_str));
            xml.plain("sourceDestCheck", "true");
        }
        let group = |xml: &mut Xml, id: &String| {
            xml.plain("groupId", id);
            xml.text("groupName", groups.get(id).map_or("", |group| &group.name));
        };
        xml.list("groupSet", instance.groups.iter().filter(|_| here), group);
        if let Some((code, message)) = reason {
            xml.nest("stateReason", |xml| {
                xml.plain("code", code);
                xml.plain("message", message);
            });
        } else if now == Phase::Pending {
            xml.nest("stateReason", |xml| {
                xml.plain("code", "pending");
                xml.plain("message", "pending");
            });
        }
        draw_hardware(&mut xml, instance, here);
        xml.text("clientToken", instance.token.as_deref().unwrap_or_default());
        if !instance.tags.is_empty() {
            xml.tags(&instance.tags);
        }
        xml.plain("hypervisor", "xen");
        xml.list(
            "networkInterfaceSet",
            Some(()).filter(|()| here),
            |xml, ()| {
                self.draw_interface(
                    xml,
                    instance,
                    public,
                    public_name.as_deref().unwrap_or_default(),
                );
                xml.list("groupSet", &instance.groups, group);
            },
        );
        draw_options(&mut xml, instance, now);
        xml.into_string()
    }

    fn draw_interface(
        &self,
        xml: &mut Xml,
        instance: &Instance,
        public: Option<Ipv4Addr>,
        public_name: &str,
    ) {
        xml.plain("networkInterfaceId", &instance.interface);
        xml.plain("subnetId", &instance.subnet);
        xml.plain("vpcId", &instance.vpc);
        xml.plain("description", "");
        xml.plain("ownerId", ACCOUNT);
        xml.plain("status", "in-use");
        let [a, b, c, d] = instance.private.octets();
        xml.value(
            "macAddress",
            format_args!("02:00:{a:02x}:{b:02x}:{c:02x}:{d:02x}"),
        );
        xml.value("privateIpAddress", instance.private);
        xml.plain("privateDnsName", &self.private_name(instance.private));
        xml.plain("sourceDestCheck", "true");
        xml.nest("attachment", |xml| {
            xml.plain(
                "attachmentId",
                &instance.interface.replace("eni-", "eni-attach-"),
            );
            xml.plain("deviceIndex", "0");
            xml.plain("status", "attached");
            xml.plain("attachTime", &instance.launched);
            xml.plain("deleteOnTermination", "true");
            xml.plain("networkCardIndex", "0");
        });
        let association = |xml: &mut Xml| {
            let Some(address) = public else { return };
            xml.nest("association", |xml| {
                xml.value("publicIp", address);
                xml.plain("publicDnsName", public_name);
                xml.plain(
                    "ipOwnerId",
                    if instance.elastic.is_some() {
                        ACCOUNT
                    } else {
                        "amazon"
                    },
                );
            });
        };
        association(xml);
        xml.list("privateIpAddressesSet", Some(()), |xml, ()| {
            xml.value("privateIpAddress", instance.private);
            xml.plain("privateDnsName", &self.private_name(instance.private));
            xml.plain("primary", "true");
            association(xml);
        });
        xml.list("ipv6AddressesSet", &instance.ipv6, |xml, address| {
            xml.plain("ipv6Address", address);
            xml.plain("isPrimaryIpv6", "false");
        });
        xml.plain("interfaceType", "interface");
    }

    fn private_name(&self, address: Ipv4Addr) -> String {
        let [a, b, c, d] = address.octets();
        format!(
            "ip-{a}-{b}-{c}-{d}.{}.compute.internal",
            self.settings.region
        )
    }

    fn public_name(&self, address: Ipv4Addr) -> String {
        let [a, b, c, d] = address.octets();
        format!(
            "ec2-{a}-{b}-{c}-{d}.{}.compute.amazonaws.com",
            self.settings.region
        )
    }

    /// Returns the page size, and the position at which the page begins.
    pub(crate) fn page_of(&self, params: &Params, least: i64) -> Outcome<(Option<usize>, u64)> {
        let asked = params.int("MaxResults")?;
        if let Some(asked) = asked.filter(|asked| !(least..=1000).contains(asked)) {
            let message = format!(
                "Value ( {asked} ) for parameter maxResults is invalid. Expecting a value between {least} and 1000."
            );
            return Err(wrong("InvalidParameterValue", message));
        }
        let asked = asked.and_then(|asked| usize::try_from(asked).ok());
        let ours = self.settings.common.page_size.map(|size| size.max(1));
        let limit = match (asked, ours) {
            (Some(asked), Some(ours)) => Some(asked.min(ours)),
            (asked, ours) => asked.or(ours),
        };
        let from = match params.get("NextToken").filter(|token| !token.is_empty()) {
            None => 0,
            Some(token) => {
                let bytes = crate::base64::decode(token);
                let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
                let from = text.and_then(|text| text.strip_prefix("from ")?.parse().ok());
                from.ok_or_else(|| {
                    wrong("InvalidNextToken", "The specified NextToken is not valid.")
                })?
            }
        };
        Ok((limit, from))
    }

    /// Returns one page of a list with a stable order.
    pub(crate) fn page<T>(
        &self,
        params: &Params,
        all: Vec<T>,
    ) -> Outcome<(Vec<T>, Option<String>)> {
        let (limit, from) = self.page_of(params, 5)?;
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let rest = all.len().saturating_sub(from);
        let limit = limit.unwrap_or(usize::MAX);
        let next = (rest > limit).then(|| page_token((from + limit) as u64));
        Ok((all.into_iter().skip(from).take(limit).collect(), next))
    }
}

fn page_token(from: u64) -> String {
    crate::base64::encode(format!("from {from}").as_bytes())
}

/// Narrows the instances with the index if a filter by tag has only exact values.
fn indexed(state: &State, filters: &Filters) -> Option<BTreeSet<u64>> {
    let plain = |values: &[String]| !values.iter().any(|value| value.contains(['*', '?']));
    let by_tag = filters.iter().filter_map(|(name, values)| {
        if name == "instance-id" && plain(values) {
            return Some(
                values
                    .iter()
                    .filter_map(|id| state.by_id.get(id))
                    .copied()
                    .collect(),
            );
        }
        let key = name.strip_prefix("tag:").filter(|_| plain(values))?;
        Some(state.tagged(key, values))
    });
    by_tag.min_by_key(BTreeSet::len)
}

fn public(instance: &Instance, phase: Phase) -> Option<Ipv4Addr> {
    let elastic = instance
        .elastic
        .as_ref()
        .map(|(_, _, address)| *address)
        .filter(|_| !phase.is_over());
    elastic.or(instance.public.filter(|_| phase == Phase::Running))
}

fn field(
    instance: &Instance,
    state: &State,
    name: &str,
    now: Instant,
    delays: &Delays,
) -> Vec<String> {
    let phase = instance.phase(now, delays);
    let one = |text: &str| vec![text.to_owned()];
    let here = |text: &str| {
        if phase == Phase::Terminated {
            Vec::new()
        } else {
            vec![text.to_owned()]
        }
    };
    match name {
        "architecture" => one(instance.kind.architecture),
        "availability-zone" => one(&instance.zone),
        "client-token" => instance.token.iter().cloned().collect(),
        "image-id" => one(&instance.image),
        "instance-id" => one(&instance.id),
        "instance-lifecycle" => {
            if instance.spot {
                one("spot")
            } else {
                Vec::new()
            }
        }
        "instance-state-code" => vec![phase.code().to_string()],
        "instance-state-name" => one(phase.name()),
        "instance-type" => one(instance.kind.name),
        "instance.group-id" => instance.groups.clone(),
        "instance.group-name" => instance
            .groups
            .iter()
            .filter_map(|id| state.groups.get(id))
            .map(|group| group.name.clone())
            .collect(),
        "ip-address" => public(instance, phase)
            .iter()
            .map(ToString::to_string)
            .collect(),
        "key-name" => instance.key_name.iter().cloned().collect(),
        "network-interface.network-interface-id" => here(&instance.interface),
        "owner-id" => one(ACCOUNT),
        "private-ip-address" => here(&instance.private.to_string()),
        "reservation-id" => one(&instance.reservation),
        "subnet-id" => here(&instance.subnet),
        "tenancy" => one(&instance.tenancy),
        "vpc-id" => here(&instance.vpc),
        _ => Vec::new(),
    }
}

fn draw_hardware(xml: &mut Xml, instance: &Instance, here: bool) {
    xml.plain("architecture", instance.kind.architecture);
    xml.plain("rootDeviceType", "ebs");
    xml.text(
        "rootDeviceName",
        instance.volumes.first().map_or("", |volume| &volume.device),
    );
    xml.list(
        "blockDeviceMapping",
        instance.volumes.iter().filter(|_| here),
        |xml, volume| {
            xml.text("deviceName", &volume.device);
            xml.nest("ebs", |xml| {
                xml.plain("volumeId", &volume.id);
                xml.plain("status", "attached");
                xml.plain("attachTime", &instance.launched);
                xml.value("deleteOnTermination", volume.delete_on_termination);
            });
        },
    );
    if instance.spot {
        xml.plain("instanceLifecycle", "spot");
        xml.plain(
            "spotInstanceRequestId",
            &format!("sir-{}", &instance.id[instance.id.len() - 8..]),
        );
    }
    xml.plain("virtualizationType", "hvm");
}

fn draw_options(xml: &mut Xml, instance: &Instance, now: Phase) {
    if let Some(profile) = &instance.profile {
        xml.nest("iamInstanceProfile", |xml| {
            let name = profile.rsplit('/').next().unwrap_or_default();
            xml.text(
                "arn",
                &format!("arn:aws:iam::{ACCOUNT}:instance-profile/{name}"),
            );
            xml.value("id", format_args!("AIPA{:016X}", name.len()));
        });
    }
    xml.plain("ebsOptimized", "false");
    xml.plain("enaSupport", "true");
    xml.nest("cpuOptions", |xml| {
        xml.value("coreCount", instance.kind.cores);
        xml.value("threadsPerCore", instance.kind.vcpus / instance.kind.cores);
    });
    xml.nest("metadataOptions", |xml| {
        xml.plain(
            "state",
            if now == Phase::Pending {
                "pending"
            } else {
                "applied"
            },
        );
        xml.plain("httpTokens", &instance.metadata.tokens);
        xml.value("httpPutResponseHopLimit", instance.metadata.hops);
        xml.plain("httpEndpoint", &instance.metadata.endpoint);
        xml.plain("httpProtocolIpv6", "disabled");
        xml.plain("instanceMetadataTags", &instance.metadata.tags);
    });
    xml.nest("enclaveOptions", |xml| xml.plain("enabled", "false"));
    xml.nest("hibernationOptions", |xml| xml.plain("configured", "false"));
    xml.plain("platformDetails", "Linux/UNIX");
    xml.plain("usageOperation", "RunInstances");
}
