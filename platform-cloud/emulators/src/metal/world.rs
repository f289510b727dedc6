//! Machines, networks and addresses, and their changes over time.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use super::{Access, MetalSettings};
use crate::server::Answer;
use crate::world::{Clock, Hand, Ledger, Machine, Made};

/// Tag that binds an address to a machine.
pub(super) const MACHINE_TAG: &str = "metal.metal-stack.io/machineid";

/// State of an emulated metal-api.
pub struct World {
    pub(super) settings: MetalSettings,
    pub(super) clock: Arc<Clock>,
    pub(super) ledger: Ledger,
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub hosts: BTreeMap<String, Host>,
    pub networks: BTreeMap<String, Network>,
    pub ips: BTreeMap<Ipv4Addr, Ip>,
    pub tokens: BTreeMap<String, Access>,
    /// Whether HMAC keys are rejected.
    pub expired: bool,
    /// Addresses of freed machines, which are released at this time.
    pub releasing: Vec<(Instant, String, Vec<Ipv4Addr>)>,
    /// Networks that were created bypassing the API.
    pub given: BTreeSet<String>,
    pub next_vrf: u64,
    pub next_asn: u64,
}

pub(super) struct Host {
    pub id: String,
    pub partition: String,
    pub rack: String,
    pub size: String,
    pub locked: bool,
    pub alive: bool,
    pub powered: bool,
    pub crash_loop: bool,
    /// Until when the machine is being wiped.
    pub reclaim_until: Option<Instant>,
    pub allocation: Option<Allocation>,
    pub tags: Vec<String>,
}

pub(super) struct Allocation {
    pub uuid: String,
    pub at: Instant,
    pub name: String,
    pub hostname: String,
    pub description: String,
    pub project: String,
    pub image: String,
    pub ssh_pub_keys: Value,
    pub user_data: Option<String>,
    /// Network ids with the addresses allocated in them.
    pub networks: Vec<(String, Vec<Ipv4Addr>)>,
    pub asn: u64,
    pub firewall: bool,
    pub rules: Value,
    /// Allocated by an owner that is not under test.
    pub foreign: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    External,
    Underlay,
    Super,
    Child,
}

pub(super) struct Network {
    pub id: String,
    pub name: String,
    pub description: String,
    pub kind: Kind,
    pub parent: Option<String>,
    pub partition: Option<String>,
    pub project: Option<String>,
    pub prefix: Prefix,
    pub destinations: Value,
    pub labels: BTreeMap<String, String>,
    pub shared: bool,
    pub nat: bool,
    pub vrf: u64,
    pub at: Instant,
}

pub(super) struct Ip {
    pub address: Ipv4Addr,
    pub uuid: String,
    pub name: String,
    pub description: String,
    pub network: String,
    pub project: String,
    pub fixed: bool,
    pub tags: Vec<String>,
    pub at: Instant,
}

impl Ip {
    pub(super) fn machines(&self) -> impl Iterator<Item = &str> {
        self.tags
            .iter()
            .filter_map(|tag| tag.strip_prefix(MACHINE_TAG)?.strip_prefix('='))
    }
}

/// An IPv4 prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    pub base: u32,
    pub length: u8,
}

impl Prefix {
    pub(super) fn parse(text: &str) -> Option<Prefix> {
        let (base, length) = text.split_once('/')?;
        let length: u8 = length.parse().ok().filter(|length| *length <= 32)?;
        let base = u32::from(base.parse::<Ipv4Addr>().ok()?);
        Some(Prefix { base, length })
    }

    pub(super) fn size(self) -> u64 {
        1 << (32 - self.length)
    }

    pub(super) fn end(self) -> u64 {
        u64::from(self.base) + self.size()
    }

    pub(super) fn contains(self, address: Ipv4Addr) -> bool {
        let address = u64::from(u32::from(address));
        (u64::from(self.base)..self.end()).contains(&address)
    }

    fn overlaps(self, other: Prefix) -> bool {
        u64::from(self.base) < other.end() && u64::from(other.base) < self.end()
    }

    /// Returns the first sub-prefix of this length that does not overlap the taken ones.
    pub(super) fn free(self, length: u8, taken: &[Prefix]) -> Option<Prefix> {
        let step = 1_u64.checked_shl(u32::from(32_u8.checked_sub(length)?))?;
        let mut base = u64::from(self.base);
        while base + step <= self.end() {
            let prefix = Prefix {
                base: u32::try_from(base).ok()?,
                length,
            };
            if !taken.iter().any(|other| other.overlaps(prefix)) {
                return Some(prefix);
            }
            base += step;
        }
        None
    }

    /// Addresses for machines: all except the first and the last.
    pub(super) fn addresses(self) -> impl Iterator<Item = Ipv4Addr> {
        (u64::from(self.base) + 1..self.end().saturating_sub(1))
            .filter_map(|address| u32::try_from(address).ok())
            .map(Ipv4Addr::from)
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.base), self.length)
    }
}

/// Ids of the unnamed machines of a partition: by size in the order of the settings, then by number.
#[must_use]
pub fn hosts_of(partition: usize, size: usize, machines: usize) -> Vec<String> {
    (0..machines)
        .map(|n| format!("{:08x}-{size:04x}-4000-8000-{:012x}", partition + 1, n + 1))
        .collect()
}

impl World {
    pub(super) fn new(settings: MetalSettings, clock: Arc<Clock>) -> World {
        let mut state = State {
            tokens: settings.tokens.clone(),
            next_vrf: 20,
            next_asn: 4_210_000_000,
            ..State::default()
        };
        let now = Instant::now();
        for (at, partition) in settings.partitions.iter().enumerate() {
            let mut add = |id: &str, size: &str, n: usize| {
                let rack = partition.racks.get(n % partition.racks.len().max(1));
                state.hosts.insert(
                    id.to_owned(),
                    Host {
                        id: id.to_owned(),
                        partition: partition.id.clone(),
                        rack: rack.cloned().unwrap_or_default(),
                        size: size.to_owned(),
                        locked: false,
                        alive: true,
                        powered: true,
                        crash_loop: false,
                        reclaim_until: None,
                        allocation: None,
                        tags: Vec::new(),
                    },
                );
            };
            for (which, (size, ..)) in settings.sizes.iter().enumerate() {
                for (n, id) in hosts_of(at, which, partition.machines).iter().enumerate() {
                    add(id, size, n);
                }
            }
            for (n, (id, size)) in partition.named.iter().enumerate() {
                add(id, size, n);
            }
            let private = Prefix {
                base: u32::from(Ipv4Addr::new(10, partition.super_network, 0, 0)),
                length: 16,
            };
            let underlay = Prefix {
                base: u32::from(Ipv4Addr::new(172, 17, partition.super_network, 0)),
                length: 24,
            };
            for (kind, prefix) in [(Kind::Super, private), (Kind::Underlay, underlay)] {
                let name = match kind {
                    Kind::Super => "tenant-super-network",
                    _ => "underlay",
                };
                let mut network = fixed(&format!("{name}-{}", partition.id), kind, prefix, now);
                network.partition = Some(partition.id.clone());
                state.networks.insert(network.id.clone(), network);
            }
        }
        for (id, prefix) in &settings.public_networks {
            if let Some(prefix) = Prefix::parse(prefix) {
                let network = fixed(id, Kind::External, prefix, now);
                state.networks.insert(id.clone(), network);
            }
        }
        World {
            settings,
            clock,
            ledger: Ledger::default(),
            state: Mutex::new(state),
        }
    }

    /// Applies the state changes that are due by now.
    pub(super) fn settle(&self) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let (due, later) = std::mem::take(&mut state.releasing)
            .into_iter()
            .partition(|(at, ..)| *at <= now);
        state.releasing = later;
        let due: Vec<(Instant, String, Vec<Ipv4Addr>)> = due;
        for (_, machine, addresses) in due {
            for address in addresses {
                self.release(&mut state, &machine, address);
            }
        }
        for host in state.hosts.values_mut() {
            if host.reclaim_until.is_some_and(|until| until <= now) {
                host.reclaim_until = None;
                host.powered = true;
            }
        }
    }

    /// Releases an address of a machine; it is deleted if it is then unused and not static.
    pub(super) fn release(&self, state: &mut State, machine: &str, address: Ipv4Addr) {
        let tag = format!("{MACHINE_TAG}={machine}");
        let Some(ip) = state.ips.get_mut(&address) else {
            return;
        };
        ip.tags.retain(|other| *other != tag);
        if !ip.fixed && ip.machines().next().is_none() {
            self.ledger.gone(&ip.uuid);
            state.ips.remove(&address);
        }
    }

    /// Whether lists show a resource that was created at this time.
    pub(super) fn shows(&self, at: Instant) -> bool {
        at + self.settings.common.visibility_delay <= Instant::now()
    }

    pub(super) fn made(&self, kind: &str, id: &str, tags: BTreeMap<String, String>, foreign: bool) {
        self.ledger.made(Made {
            kind: kind.to_owned(),
            id: id.to_owned(),
            key: None,
            tags,
            foreign,
            gone: false,
        });
    }

    pub(super) fn all_machines(&self) -> Vec<Machine> {
        let state = self.state.lock();
        let allocated = state.hosts.values().filter_map(|host| {
            let allocation = host.allocation.as_ref()?;
            Some(Machine {
                id: host.id.clone(),
                state: if allocation.firewall {
                    "firewall".to_owned()
                } else {
                    "machine".to_owned()
                },
                tags: pairs(&host.tags),
                zone: host.partition.clone(),
            })
        });
        allocated.collect()
    }

    pub(super) fn things(&self) -> Vec<(String, &'static str)> {
        let state = self.state.lock();
        let networks = state
            .networks
            .values()
            .filter(|net| net.kind == Kind::Child && !state.given.contains(&net.id));
        networks
            .map(|network| (network.id.clone(), "network"))
            .chain(state.ips.keys().map(|ip| (ip.to_string(), "ip")))
            .collect()
    }

    pub(super) fn by_hand(&self, id: &str, hand: &Hand) -> bool {
        if let Hand::Terminate = hand {
            if let Some(host) = self.state.lock().hosts.get_mut(id) {
                host.locked = false;
            }
            return self.free(id).is_ok_and(|answer| answer.status == 200);
        }
        let mut state = self.state.lock();
        let Some(host) = state
            .hosts
            .get_mut(id)
            .filter(|host| host.allocation.is_some())
        else {
            return false;
        };
        match hand {
            Hand::Terminate => false,
            Hand::Stop => std::mem::replace(&mut host.powered, false),
            Hand::Retag(changes) => {
                let mut tags = pairs(&host.tags);
                for (key, value) in changes {
                    match value {
                        Some(value) => tags.insert(key.clone(), value.clone()),
                        None => tags.remove(key),
                    };
                }
                host.tags = tags
                    .iter()
                    .map(|(key, value)| format!("{key}={value}"))
                    .collect();
                true
            }
        }
    }

    pub(super) fn add_foreign(&self, project: &str, n: usize) -> Vec<String> {
        let mut state = self.state.lock();
        let free: Vec<String> = state
            .hosts
            .values()
            .filter(|host| host.allocation.is_none() && host.reclaim_until.is_none())
            .take(n)
            .map(|host| host.id.clone())
            .collect();
        let now = Instant::now();
        for id in &free {
            let Some(host) = state.hosts.get_mut(id) else {
                continue;
            };
            let uuid = uuid::Uuid::new_v4().to_string();
            self.made("machine", &uuid, BTreeMap::new(), true);
            host.tags = vec!["somebody-elses".to_owned()];
            host.allocation = Some(Allocation {
                uuid,
                at: now,
                name: "theirs".to_owned(),
                hostname: format!("theirs-{}", &id[id.len() - 4..]),
                description: String::new(),
                project: project.to_owned(),
                image: self
                    .settings
                    .images
                    .last()
                    .map(|(id, _)| id.clone())
                    .unwrap_or_default(),
                ssh_pub_keys: Value::Array(Vec::new()),
                user_data: None,
                networks: Vec::new(),
                asn: 0,
                firewall: false,
                rules: Value::Null,
                foreign: true,
            });
        }
        free
    }
}

fn fixed(id: &str, kind: Kind, prefix: Prefix, at: Instant) -> Network {
    Network {
        id: id.to_owned(),
        name: id.to_owned(),
        description: String::new(),
        kind,
        parent: None,
        partition: None,
        project: None,
        prefix,
        destinations: match kind {
            Kind::External => serde_json::json!(["0.0.0.0/0"]),
            _ => Value::Array(Vec::new()),
        },
        labels: BTreeMap::new(),
        shared: false,
        nat: kind == Kind::External,
        vrf: 0,
        at,
    }
}

/// Parses tags into keys and values, as the API does.
pub(super) fn pairs(tags: &[String]) -> BTreeMap<String, String> {
    tags.iter()
        .map(|tag| {
            let (key, value) = tag.split_once('=').unwrap_or((tag, ""));
            (key.to_owned(), value.to_owned())
        })
        .collect()
}

/// Returns a list of strings in a body.
pub(super) fn texts(value: &Value, key: &str) -> Vec<String> {
    let list = value.get(key).and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

/// Returns a string in a body, empty if absent.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Refuses search fields that the emulator would ignore.
pub(super) fn known(body: &Value, keys: &[&str]) -> Result<(), Answer> {
    let known: BTreeSet<&str> = keys.iter().copied().collect();
    let odd = body
        .as_object()
        .and_then(|body| body.keys().find(|key| !known.contains(key.as_str())));
    match odd {
        Some(key) => Err(super::fail(
            422,
            format!("the emulator does not know the search field {key:?}"),
        )),
        None => Ok(()),
    }
}
