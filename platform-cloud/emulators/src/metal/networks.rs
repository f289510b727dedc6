//! Networks and addresses.

use std::{collections::BTreeMap, net::Ipv4Addr};

use serde_json::Value;
use tokio::time::Instant;

use super::{
    fail,
    world::{Ip, Kind, Network, State, World, known, pairs, text, texts},
};
use crate::server::Answer;

const NETWORK_FIELDS: &[&str] = &[
    "id",
    "name",
    "projectid",
    "partitionid",
    "labels",
    "privatesuper",
    "underlay",
    "parentnetworkid",
];
const IP_FIELDS: &[&str] = &[
    "ipaddress",
    "name",
    "networkid",
    "projectid",
    "tags",
    "type",
    "machineid",
];

impl World {
    pub(super) fn allocate_network(&self, body: &Value) -> Result<Answer, Answer> {
        let (project, partition) = (text(body, "projectid"), text(body, "partitionid"));
        if project.is_empty() {
            return Err(fail(400, "projectid should not be empty"));
        }
        if partition.is_empty() {
            return Err(fail(400, "partitionid should not be empty"));
        }
        self.project(project)?;
        self.partition(partition)?;
        let mut state = self.state.lock();
        let parent = state
            .networks
            .values()
            .find(|net| net.kind == Kind::Super && net.partition.as_deref() == Some(partition))
            .map(|net| (net.id.clone(), net.prefix))
            .ok_or_else(|| fail(404, "no network found"))?;
        let length = match body.get("length").and_then(|length| length.get("IPv4")) {
            None => 22,
            Some(length) => length
                .as_u64()
                .and_then(|length| u8::try_from(length).ok())
                .filter(|length| *length <= 32)
                .ok_or_else(|| fail(400, "addressfamily of length is invalid"))?,
        };
        let taken: Vec<_> = state
            .networks
            .values()
            .filter(|net| net.kind == Kind::Child)
            .map(|net| net.prefix)
            .collect();
        let prefix = (length > parent.1.length)
            .then(|| parent.1.free(length, &taken))
            .flatten()
            .ok_or_else(|| {
                fail(
                    422,
                    format!(
                        "could not allocate child prefix in parent network: {} for addressfamily: IPv4 length:{length}",
                        parent.0
                    ),
                )
            })?;
        let labels: BTreeMap<String, String> = body
            .get("labels")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
            .collect();
        state.next_vrf += 1;
        let network = Network {
            id: uuid::Uuid::new_v4().to_string(),
            name: text(body, "name").to_owned(),
            description: text(body, "description").to_owned(),
            kind: Kind::Child,
            parent: Some(parent.0),
            partition: Some(partition.to_owned()),
            project: Some(project.to_owned()),
            prefix,
            destinations: body
                .get("destinationprefixes")
                .cloned()
                .unwrap_or_else(|| Value::Array(Vec::new())),
            labels: labels.clone(),
            shared: body.get("shared") == Some(&Value::Bool(true)),
            nat: body.get("nat") == Some(&Value::Bool(true)),
            vrf: state.next_vrf,
            at: Instant::now(),
        };
        self.made("network", &network.id, labels, false);
        let answer = Answer::json(201, &self.network(&state, &network));
        state.networks.insert(network.id.clone(), network);
        Ok(answer)
    }

    /// Adds a network of another owner, bypassing the API.
    pub(super) fn add_network(&self, project: &str, partition: &str) -> String {
        let body =
            serde_json::json!({ "projectid": project, "partitionid": partition, "name": "theirs" });
        let answer = self.allocate_network(&body).unwrap_or_else(|answer| answer);
        let made: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let id = text(&made, "id").to_owned();
        self.state.lock().given.insert(id.clone());
        id
    }

    pub(super) fn free_network(&self, id: &str) -> Result<Answer, Answer> {
        let mut state = self.state.lock();
        let network = found_network(&state, id)?;
        if network.kind != Kind::Child {
            return Err(fail(
                422,
                "error releasing child prefix in ipam: prefix has no parent",
            ));
        }
        if state.ips.values().any(|ip| ip.network == id) {
            return Err(fail(
                409,
                format!(
                    "error releasing child prefix in ipam: prefix {} has ips, deletion not possible",
                    network.prefix
                ),
            ));
        }
        let answer = Answer::json(200, &self.network(&state, network));
        state.networks.remove(id);
        self.ledger.gone(id);
        Ok(answer)
    }

    pub(super) fn get_network(&self, id: &str) -> Result<Answer, Answer> {
        let state = self.state.lock();
        let network = found_network(&state, id)?;
        Ok(Answer::json(200, &self.network(&state, network)))
    }

    pub(super) fn find_networks(&self, body: &Value) -> Result<Answer, Answer> {
        known(body, NETWORK_FIELDS)?;
        let state = self.state.lock();
        let same = |key: &str, value: Option<&str>| {
            body.get(key)
                .and_then(Value::as_str)
                .is_none_or(|wanted| value == Some(wanted))
        };
        let is = |key: &str, value: bool| {
            body.get(key)
                .and_then(Value::as_bool)
                .is_none_or(|wanted| wanted == value)
        };
        let labels = body.get("labels").and_then(Value::as_object);
        let found = state.networks.values().filter(|net| {
            self.shows(net.at)
                && same("id", Some(&net.id))
                && same("name", Some(&net.name))
                && same("projectid", net.project.as_deref())
                && same("partitionid", net.partition.as_deref())
                && same("parentnetworkid", net.parent.as_deref())
                && is("privatesuper", net.kind == Kind::Super)
                && is("underlay", net.kind == Kind::Underlay)
                && labels
                    .into_iter()
                    .flatten()
                    .all(|(key, value)| net.labels.get(key).map(String::as_str) == value.as_str())
        });
        let found: Vec<Value> = found.map(|net| self.network(&state, net)).collect();
        Ok(Answer::json(200, &Value::Array(found)))
    }

    pub(super) fn allocate_ip(
        &self,
        body: &Value,
        specific: Option<&str>,
    ) -> Result<Answer, Answer> {
        let (network, project) = (text(body, "networkid"), text(body, "projectid"));
        if network.is_empty() {
            return Err(fail(400, "networkid should not be empty"));
        }
        if project.is_empty() {
            return Err(fail(400, "projectid should not be empty"));
        }
        let mut state = self.state.lock();
        let net = found_network(&state, network)?;
        self.project(project)?;
        if !net.shared && net.parent.is_some() && net.project.as_deref() != Some(project) {
            return Err(fail(
                422,
                format!(
                    "can not allocate ip for project {project:?} because network belongs to {:?} and the network is not shared",
                    net.project.as_deref().unwrap_or_default()
                ),
            ));
        }
        let address = match specific {
            None => free_address(&state, net)?,
            Some(text) => {
                let address: Ipv4Addr = text
                    .parse()
                    .map_err(|_| fail(422, "unable to parse specific ip"))?;
                if !net.prefix.contains(address) {
                    return Err(fail(
                        422,
                        "specific ip not contained in any of the defined prefixes",
                    ));
                }
                if state.ips.contains_key(&address) {
                    return Err(fail(409, "ip already allocated"));
                }
                address
            }
        };
        let mut tags = texts(body, "tags");
        tags.sort();
        tags.dedup();
        let ip = Ip {
            address,
            uuid: uuid::Uuid::new_v4().to_string(),
            name: text(body, "name").to_owned(),
            description: text(body, "description").to_owned(),
            network: network.to_owned(),
            project: project.to_owned(),
            fixed: text(body, "type") == "static",
            tags,
            at: Instant::now(),
        };
        self.made("ip", &ip.uuid, pairs(&ip.tags), false);
        let answer = Answer::json(201, &self.ip(&ip));
        state.ips.insert(address, ip);
        Ok(answer)
    }

    pub(super) fn update_ip(&self, body: &Value) -> Result<Answer, Answer> {
        let mut state = self.state.lock();
        let address = found_ip(&state, text(body, "ipaddress"))?.address;
        let fixed = text(body, "type") == "static";
        let Some(ip) = state.ips.get_mut(&address) else {
            return Err(fail(404, "no ip found"));
        };
        if ip.fixed && !fixed {
            return Err(fail(
                400,
                "cannot change type of ip address from static to ephemeral",
            ));
        }
        ip.fixed = fixed;
        if body.get("tags").is_some() {
            ip.tags = texts(body, "tags");
        }
        Ok(Answer::json(200, &self.ip(ip)))
    }

    pub(super) fn free_ip(&self, id: &str) -> Result<Answer, Answer> {
        let mut state = self.state.lock();
        let ip = found_ip(&state, id)?;
        if ip.machines().next().is_some() {
            return Err(fail(400, "ip with machine scope can not be deleted"));
        }
        let answer = Answer::json(200, &self.ip(ip));
        let (address, uuid) = (ip.address, ip.uuid.clone());
        state.ips.remove(&address);
        self.ledger.gone(&uuid);
        Ok(answer)
    }

    pub(super) fn get_ip(&self, id: &str) -> Result<Answer, Answer> {
        let state = self.state.lock();
        Ok(Answer::json(200, &self.ip(found_ip(&state, id)?)))
    }

    pub(super) fn find_ips(&self, body: &Value) -> Result<Answer, Answer> {
        known(body, IP_FIELDS)?;
        let state = self.state.lock();
        let same = |key: &str, value: &str| {
            body.get(key)
                .and_then(Value::as_str)
                .is_none_or(|wanted| value == wanted)
        };
        let wanted = texts(body, "tags");
        let machine = body.get("machineid").and_then(Value::as_str);
        let found = state.ips.values().filter(|ip| {
            self.shows(ip.at)
                && same("ipaddress", &ip.address.to_string())
                && same("name", &ip.name)
                && same("networkid", &ip.network)
                && same("projectid", &ip.project)
                && same("type", if ip.fixed { "static" } else { "ephemeral" })
                && wanted.iter().all(|tag| ip.tags.contains(tag))
                && machine.is_none_or(|id| ip.machines().any(|other| other == id))
        });
        let found: Vec<Value> = found.map(|ip| self.ip(ip)).collect();
        Ok(Answer::json(200, &Value::Array(found)))
    }
}

pub(super) fn found_network<'a>(state: &'a State, id: &str) -> Result<&'a Network, Answer> {
    state
        .networks
        .get(id)
        .ok_or_else(|| fail(404, format!("no network with id {id:?} found")))
}

pub(super) fn found_ip<'a>(state: &'a State, id: &str) -> Result<&'a Ip, Answer> {
    id.parse::<Ipv4Addr>()
        .ok()
        .and_then(|address| state.ips.get(&address))
        .ok_or_else(|| fail(404, format!("no ip with id {id:?} found")))
}

/// Returns the first free address of a network.
pub(super) fn free_address(state: &State, network: &Network) -> Result<Ipv4Addr, Answer> {
    network
        .prefix
        .addresses()
        .find(|address| !state.ips.contains_key(address))
        .ok_or_else(|| fail(500, "cannot allocate free ip in ipam, no ips left"))
}
