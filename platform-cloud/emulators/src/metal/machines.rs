//! Machines, and firewalls, which are machines with a different role.

use std::{collections::BTreeMap, net::Ipv4Addr};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    fail,
    networks::{found_ip, found_network, free_address},
    world::{Allocation, Host, Ip, Kind, MACHINE_TAG, State, World, known, pairs, text, texts},
};
use crate::server::Answer;

const FIELDS: &[&str] = &[
    "id",
    "name",
    "partition_id",
    "sizeid",
    "rackid",
    "tags",
    "allocation_name",
    "allocation_project",
    "allocation_image_id",
    "allocation_hostname",
    "allocation_role",
    "allocation_succeeded",
    "network_ids",
    "network_ips",
    "state_value",
];

impl World {
    pub(super) fn allocate(&self, body: &Value, firewall: bool) -> Result<Answer, Answer> {
        let project = text(body, "projectid");
        let image = self.image_for(text(body, "imageid"), firewall)?;
        let wanted = text(body, "uuid");
        let mut state = self.state.lock();
        let (partition, size) = if wanted.is_empty() {
            let (partition, size) = (text(body, "partitionid"), text(body, "sizeid"));
            if partition.is_empty() {
                return Err(fail(
                    400,
                    "when no machine id is given, a partition id must be specified",
                ));
            }
            if size.is_empty() {
                return Err(fail(
                    400,
                    "when no machine id is given, a size id must be specified",
                ));
            }
            (partition.to_owned(), size.to_owned())
        } else {
            let host = state.hosts.get(wanted).ok_or_else(|| {
                fail(
                    400,
                    format!(
                        "uuid given but no machine found with uuid:{wanted} err:NotFound no machine with id {wanted:?} found"
                    ),
                )
            })?;
            (host.partition.clone(), host.size.clone())
        };
        self.size(&size)
            .map_err(|_| fail(400, format!("size:{size} not found err:NotFound")))?;
        self.partition(&partition)
            .map_err(|_| fail(400, format!("partition:{partition} not found err:NotFound")))?;
        check_keys(body)?;
        self.project(project)?;
        self.within_quota(&state, project)?;
        let id = self.candidate(&state, wanted, &partition, &size, body)?;
        let networks = self.take_networks(&mut state, body, project, &partition, firewall, &id)?;
        state.next_asn += 1;
        let allocation = Allocation {
            uuid: uuid::Uuid::new_v4().to_string(),
            at: Instant::now(),
            name: text(body, "name").to_owned(),
            hostname: match text(body, "hostname") {
                "" => "metal".to_owned(),
                name => name.to_owned(),
            },
            description: text(body, "description").to_owned(),
            project: project.to_owned(),
            image,
            ssh_pub_keys: body
                .get("ssh_pub_keys")
                .cloned()
                .unwrap_or_else(|| json!([])),
            user_data: body
                .get("user_data")
                .and_then(Value::as_str)
                .map(str::to_owned),
            networks,
            asn: state.next_asn,
            firewall,
            rules: body.get("firewall_rules").cloned().unwrap_or(Value::Null),
            foreign: false,
        };
        let asn = allocation.asn;
        let Some(host) = state.hosts.get_mut(&id) else {
            return Err(fail(422, "no machine available"));
        };
        let kind = if firewall { "firewall" } else { "machine" };
        host.tags = machine_tags(&texts(body, "tags"), &host.rack, asn);
        self.made(kind, &allocation.uuid, pairs(&host.tags), false);
        host.allocation = Some(allocation);
        let host = &state.hosts[&id];
        Ok(Answer::json(200, &self.machine(&state, host, false, true)))
    }

    /// Selects the machine to allocate.
    fn candidate(
        &self,
        state: &State,
        wanted: &str,
        partition: &str,
        size: &str,
        body: &Value,
    ) -> Result<String, Answer> {
        if !wanted.is_empty() {
            let host = &state.hosts[wanted];
            if host.allocation.is_some() {
                return Err(fail(422, "machine is already allocated"));
            }
            if host.locked {
                return Err(fail(422, "machine is locked"));
            }
            return Ok(wanted.to_owned());
        }
        let none = || fail(422, "no machine available");
        if let Some(most) = self.settings.common.capacity.get(partition) {
            let taken = state.hosts.values().filter(|host| {
                host.partition == partition
                    && host
                        .allocation
                        .as_ref()
                        .is_some_and(|allocation| !allocation.foreign)
            });
            if taken.count() >= *most {
                return Err(none());
            }
        }
        let named = |host: &Host| {
            let partition = self
                .settings
                .partitions
                .iter()
                .find(|p| p.id == host.partition);
            partition.is_some_and(|p| p.named.iter().any(|(id, _)| *id == host.id))
        };
        let available = state.hosts.values().filter(|host| {
            host.partition == partition
                && host.size == size
                && host.allocation.is_none()
                && host.reclaim_until.is_none()
                && host.alive
                && !host.locked
                && !named(host)
        });
        // Spreads over the racks, away from the project's other machines and those with the same placement tags.
        let placement = texts(body, "placement_tags");
        let project = text(body, "projectid");
        let load = |rack: &str| {
            state
                .hosts
                .values()
                .filter(|host| host.rack == rack)
                .filter_map(|host| Some((host, host.allocation.as_ref()?)))
                .filter(|(_, allocation)| allocation.project == project)
                .filter(|(host, _)| {
                    placement.is_empty() || placement.iter().any(|tag| host.tags.contains(tag))
                })
                .count()
        };
        available
            .min_by_key(|host| load(&host.rack))
            .map(|host| host.id.clone())
            .ok_or_else(none)
    }

    fn within_quota(&self, state: &State, project: &str) -> Result<(), Answer> {
        let Some(most) = self.settings.common.quota else {
            return Ok(());
        };
        let allocations = state
            .hosts
            .values()
            .filter_map(|host| host.allocation.as_ref());
        if allocations
            .filter(|a| a.project == project && !a.foreign)
            .count()
            >= most
        {
            return Err(fail(
                422,
                format!("project quota for machines reached max:{most}"),
            ));
        }
        Ok(())
    }

    /// Validates the networks as the API does, and allocates an address in each.
    fn take_networks(
        &self,
        state: &mut State,
        body: &Value,
        project: &str,
        partition: &str,
        firewall: bool,
        machine: &str,
    ) -> Result<Vec<(String, Vec<Ipv4Addr>)>, Answer> {
        let bad = |message: String| fail(422, format!("unable to gather networks:{message}"));
        let empty = Vec::new();
        let asked = body
            .get("networks")
            .and_then(Value::as_array)
            .unwrap_or(&empty);
        if asked.is_empty() {
            return Err(fail(400, "network ids cannot be empty"));
        }
        let mut networks: BTreeMap<String, (bool, Vec<Ipv4Addr>)> = BTreeMap::new();
        let mut private = 0;
        for network in asked {
            let id = text(network, "networkid");
            let auto = network.get("autoacquire") != Some(&Value::Bool(false));
            let net = found_network(state, id)
                .map_err(|_| bad(format!("no network with id {id:?} found")))?;
            match net.kind {
                Kind::Underlay | Kind::Super => {
                    return Err(bad(format!("{id} is not allowed to be set explicitly")));
                }
                Kind::External => {}
                Kind::Child => {
                    private += 1;
                    if net.project.as_deref() != Some(project) {
                        return Err(bad("the given private network does not belong to the project, which is not allowed".to_owned()));
                    }
                    if net.partition.as_deref() != Some(partition) {
                        return Err(bad(format!(
                            "private network {id:?} must be located in the partition where the machine is going to be placed"
                        )));
                    }
                }
            }
            if networks.insert(id.to_owned(), (auto, Vec::new())).is_some() {
                return Err(bad("given network ids are not unique".to_owned()));
            }
        }
        if private != 1 {
            return Err(bad(if private == 0 { "no private network given" } else { "multiple private networks are specified but there must be only one primary private network that must not be shared" }.to_owned()));
        }
        for address in texts(body, "ips") {
            let ip = found_ip(state, &address)
                .map_err(|_| bad(format!("no ip with id {address:?} found")))?;
            if ip.project != project {
                return Err(bad(format!(
                    "given ip {address:?} does not belong to the project of this allocation"
                )));
            }
            let Some(network) = networks.get_mut(&ip.network) else {
                return Err(bad(format!(
                    "given ip {address:?} is not in any of the given networks, which is required"
                )));
            };
            network.0 = false;
            network.1.push(ip.address);
        }
        if firewall {
            networks.insert(format!("underlay-{partition}"), (true, Vec::new()));
        }
        let name = text(body, "name").to_owned();
        let mut taken = Vec::new();
        for (id, (auto, mut addresses)) in networks {
            if auto {
                let address = free_address(state, found_network(state, &id)?)?;
                let ip = Ip {
                    address,
                    uuid: uuid::Uuid::new_v4().to_string(),
                    name: name.clone(),
                    description: "autoassigned".to_owned(),
                    network: id.clone(),
                    project: project.to_owned(),
                    fixed: false,
                    tags: Vec::new(),
                    at: Instant::now(),
                };
                self.made("ip", &ip.uuid, BTreeMap::new(), false);
                state.ips.insert(address, ip);
                addresses.push(address);
            }
            for address in &addresses {
                if let Some(ip) = state.ips.get_mut(address) {
                    ip.tags.push(format!("{MACHINE_TAG}={machine}"));
                }
            }
            taken.push((id, addresses));
        }
        Ok(taken)
    }

    pub(super) fn free(&self, id: &str) -> Result<Answer, Answer> {
        let mut state = self.state.lock();
        let host = found_host(&mut state, id)?;
        if host.locked {
            return Err(fail(422, "machine is locked"));
        }
        let until = Instant::now() + self.settings.common.stopping_delay;
        let allocation = host.allocation.take();
        host.tags.clear();
        host.crash_loop = false;
        host.powered = true;
        if allocation.is_some() && !self.settings.common.stopping_delay.is_zero() {
            host.reclaim_until = Some(until);
        }
        if let Some(allocation) = allocation {
            self.ledger.gone(&allocation.uuid);
            let addresses: Vec<Ipv4Addr> = allocation
                .networks
                .into_iter()
                .flat_map(|(_, ips)| ips)
                .collect();
            if self.settings.common.stopping_delay.is_zero() {
                for address in addresses {
                    self.release(&mut state, id, address);
                }
            } else {
                state.releasing.push((until, id.to_owned(), addresses));
            }
        }
        let host = &state.hosts[id];
        Ok(Answer::json(200, &self.machine(&state, host, false, true)))
    }

    pub(super) fn update_machine(&self, body: &Value) -> Result<Answer, Answer> {
        let mut state = self.state.lock();
        let id = text(body, "id");
        let host = found_host(&mut state, id)?;
        let Some(allocation) = host.allocation.as_mut() else {
            return Err(fail(400, "only allocated machines can be updated"));
        };
        if body.get("description").is_some() {
            allocation.description = text(body, "description").to_owned();
        }
        let tags = texts(body, "tags");
        if !tags.is_empty() {
            host.tags = machine_tags(&tags, &host.rack, allocation.asn);
        }
        let host = &state.hosts[id];
        Ok(Answer::json(200, &self.machine(&state, host, false, true)))
    }

    pub(super) fn power(&self, id: &str, what: &str) -> Result<Answer, Answer> {
        let mut state = self.state.lock();
        let host = found_host(&mut state, id)?;
        host.powered = what != "off";
        let host = &state.hosts[id];
        Ok(Answer::json(200, &self.machine(&state, host, false, true)))
    }

    pub(super) fn get_machine(&self, id: &str, ipmi: bool) -> Result<Answer, Answer> {
        let mut state = self.state.lock();
        found_host(&mut state, id)?;
        let host = &state.hosts[id];
        Ok(Answer::json(200, &self.machine(&state, host, ipmi, true)))
    }

    pub(super) fn get_firewall(&self, id: &str) -> Result<Answer, Answer> {
        let mut state = self.state.lock();
        let host = found_host(&mut state, id)?;
        if !host
            .allocation
            .as_ref()
            .is_some_and(|allocation| allocation.firewall)
        {
            return Err(fail(404, "machine is not a firewall"));
        }
        let host = &state.hosts[id];
        Ok(Answer::json(200, &self.machine(&state, host, false, true)))
    }

    pub(super) fn find_machines(
        &self,
        body: &Value,
        firewall: Option<bool>,
        ipmi: bool,
    ) -> Result<Answer, Answer> {
        known(body, FIELDS)?;
        let state = self.state.lock();
        let found = state
            .hosts
            .values()
            .map(|host| {
                // A machine that was just allocated is still shown as free.
                let shown = host
                    .allocation
                    .as_ref()
                    .is_none_or(|allocation| self.shows(allocation.at));
                (host, shown)
            })
            .filter(|(host, shown)| matches(host, *shown, body, firewall));
        let found: Vec<Value> = found
            .map(|(host, shown)| self.machine(&state, host, ipmi, shown))
            .collect();
        Ok(Answer::json(200, &Value::Array(found)))
    }
}

fn matches(host: &Host, shown: bool, body: &Value, firewall: Option<bool>) -> bool {
    let allocation = host.allocation.as_ref().filter(|_| shown);
    let is = |key: &str, value: Option<&str>| {
        body.get(key)
            .and_then(Value::as_str)
            .is_none_or(|wanted| value == Some(wanted))
    };
    let role = allocation.map(|a| if a.firewall { "firewall" } else { "machine" });
    let tags = texts(body, "tags");
    let networks = texts(body, "network_ids");
    let ips = texts(body, "network_ips");
    is("id", Some(&host.id))
        && is("partition_id", Some(&host.partition))
        && is("sizeid", Some(&host.size))
        && is("rackid", Some(&host.rack))
        && is("state_value", Some(if host.locked { "LOCKED" } else { "" }))
        && is("allocation_project", allocation.map(|a| a.project.as_str()))
        && is(
            "allocation_hostname",
            allocation.map(|a| a.hostname.as_str()),
        )
        && is("allocation_name", allocation.map(|a| a.name.as_str()))
        && is("allocation_image_id", allocation.map(|a| a.image.as_str()))
        && is("allocation_role", role)
        && firewall.is_none_or(|firewall| allocation.is_some_and(|a| a.firewall == firewall))
        && tags.iter().all(|tag| shown && host.tags.contains(tag))
        && networks.iter().all(|id| {
            allocation.is_some_and(|a| a.networks.iter().any(|(network, _)| network == id))
        })
        && ips.iter().all(|ip| {
            allocation.is_some_and(|a| {
                a.networks
                    .iter()
                    .any(|(_, ips)| ips.iter().any(|other| other.to_string() == *ip))
            })
        })
}

/// Normalizes tags as the API does: keys are unique, and the API's own take precedence.
fn machine_tags(given: &[String], rack: &str, asn: u64) -> Vec<String> {
    let (labels, mut tags): (Vec<&String>, Vec<&String>) =
        given.iter().partition(|tag| tag.contains('='));
    tags.dedup();
    let mut labels: BTreeMap<&str, String> = labels
        .iter()
        .filter_map(|tag| tag.split_once('='))
        .map(|(key, value)| (key, value.to_owned()))
        .collect();
    labels.insert("machine.metal-stack.io/rack", rack.to_owned());
    labels.insert(
        "machine.metal-stack.io/network.primary.asn",
        asn.to_string(),
    );
    tags.into_iter()
        .cloned()
        .chain(labels.iter().map(|(key, value)| format!("{key}={value}")))
        .collect()
}

fn check_keys(body: &Value) -> Result<(), Answer> {
    for key in texts(body, "ssh_pub_keys") {
        let mut words = key.split_whitespace();
        let kind = words.next().unwrap_or_default();
        let known =
            kind.starts_with("ssh-") || kind.starts_with("ecdsa-") || kind.starts_with("sk-");
        if !known || words.next().is_none_or(|data| !data.starts_with("AAAA")) {
            return Err(fail(
                422,
                format!("invalid public SSH key: {key} error:ssh: no key found"),
            ));
        }
    }
    Ok(())
}

fn found_host<'a>(state: &'a mut State, id: &str) -> Result<&'a mut Host, Answer> {
    state
        .hosts
        .get_mut(id)
        .ok_or_else(|| fail(404, format!("no machine with id {id:?} found")))
}
