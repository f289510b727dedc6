//! State of the emulated region.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::time::Instant;

use crate::ec2::catalogue::InstanceType;
use crate::ec2::params::Params;

pub(crate) type Tags = BTreeMap<String, String>;

/// Lifecycle state of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Pending,
    Running,
    ShuttingDown,
    Terminated,
    Stopping,
    Stopped,
}

impl Phase {
    /// Numeric code of the API.
    pub(crate) fn code(self) -> u16 {
        match self {
            Phase::Pending => 0,
            Phase::Running => 16,
            Phase::ShuttingDown => 32,
            Phase::Terminated => 48,
            Phase::Stopping => 64,
            Phase::Stopped => 80,
        }
    }

    /// Name in the API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Phase::Pending => "pending",
            Phase::Running => "running",
            Phase::ShuttingDown => "shutting-down",
            Phase::Terminated => "terminated",
            Phase::Stopping => "stopping",
            Phase::Stopped => "stopped",
        }
    }

    /// Whether the instance counts towards the capacity of its zone.
    pub(crate) fn takes_room(self) -> bool {
        matches!(
            self,
            Phase::Pending | Phase::Running | Phase::ShuttingDown | Phase::Stopping
        )
    }

    /// Whether the instance is terminated or terminating.
    pub(crate) fn is_over(self) -> bool {
        matches!(self, Phase::ShuttingDown | Phase::Terminated)
    }
}

/// Durations of the lifecycle phases.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delays {
    pub(crate) pending: Duration,
    pub(crate) stopping: Duration,
    pub(crate) visibility: Duration,
    /// How long a terminated instance is still listed.
    pub(crate) terminated: Duration,
    /// How long a client token is remembered.
    pub(crate) token: Duration,
    /// How long a terminated instance keeps all its tags.
    pub(crate) tagged: Option<Duration>,
}

pub(crate) struct Volume {
    pub(crate) id: String,
    pub(crate) device: String,
    pub(crate) gib: i64,
    pub(crate) kind: String,
    pub(crate) delete_on_termination: bool,
    pub(crate) encrypted: bool,
}

/// Metadata service (IMDS) options of an instance.
#[derive(Clone)]
pub(crate) struct MetadataOptions {
    pub(crate) tokens: String,
    pub(crate) hops: i64,
    pub(crate) endpoint: String,
    pub(crate) tags: String,
}

pub(crate) struct Instance {
    pub(crate) id: String,
    pub(crate) reservation: String,
    pub(crate) index: usize,
    pub(crate) image: String,
    pub(crate) kind: &'static InstanceType,
    pub(crate) zone: String,
    pub(crate) subnet: String,
    pub(crate) vpc: String,
    pub(crate) groups: Vec<String>,
    pub(crate) key_name: Option<String>,
    pub(crate) private: Ipv4Addr,
    /// Public address while the instance is running, unless it has an Elastic IP address.
    pub(crate) public: Option<Ipv4Addr>,
    /// Allocation id, association id and address.
    pub(crate) elastic: Option<(String, String, Ipv4Addr)>,
    pub(crate) ipv6: Vec<String>,
    pub(crate) interface: String,
    pub(crate) volumes: Vec<Volume>,
    pub(crate) tags: Tags,
    pub(crate) token: Option<String>,
    /// Base64, as received. Never logged.
    pub(crate) user_data: Option<String>,
    pub(crate) metadata: MetadataOptions,
    pub(crate) spot: bool,
    pub(crate) protected: bool,
    pub(crate) stop_protected: bool,
    pub(crate) profile: Option<String>,
    pub(crate) tenancy: String,
    pub(crate) launched: String,
    pub(crate) created: Instant,
    pub(crate) starts: Instant,
    pub(crate) stops: Option<Instant>,
    pub(crate) terminates: Option<Instant>,
    /// Code and message of the API for the cause of the state transition.
    pub(crate) reason: Option<(&'static str, &'static str)>,
    /// Whether it has lost half of its tags since it was terminated.
    pub(crate) half_tagged: bool,
    /// Whether its status checks fail.
    pub(crate) impaired: bool,
    /// Code and begin of a scheduled event.
    pub(crate) event: Option<(String, Instant)>,
    /// Cached XML of the instance in this phase; must be cleared by every change.
    pub(crate) drawn: Option<(Phase, String)>,
}

impl Instance {
    pub(crate) fn phase(&self, now: Instant, delays: &Delays) -> Phase {
        if let Some(at) = self.terminates {
            return if now < at + delays.stopping {
                Phase::ShuttingDown
            } else {
                Phase::Terminated
            };
        }
        if let Some(at) = self.stops {
            return if now < at + delays.stopping {
                Phase::Stopping
            } else {
                Phase::Stopped
            };
        }
        if now < self.starts {
            Phase::Pending
        } else {
            Phase::Running
        }
    }

    pub(crate) fn is_visible(&self, now: Instant, delays: &Delays) -> bool {
        now >= self.created + delays.visibility
    }
}

/// A CIDR block of IPv4 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cidr {
    pub(crate) base: u32,
    pub(crate) bits: u8,
}

impl Cidr {
    pub(crate) fn parse(text: &str) -> Option<Cidr> {
        let (address, bits) = text.split_once('/')?;
        let (address, bits): (Ipv4Addr, u8) = (address.parse().ok()?, bits.parse().ok()?);
        let cidr = Cidr {
            base: u32::from(address),
            bits,
        };
        (bits <= 32 && cidr.base & !cidr.mask() == 0).then_some(cidr)
    }

    fn mask(self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0)
    }

    pub(crate) fn size(self) -> u64 {
        1 << (32 - self.bits)
    }

    pub(crate) fn holds(self, other: Cidr) -> bool {
        self.bits <= other.bits && other.base & self.mask() == self.base
    }

    pub(crate) fn meets(self, other: Cidr) -> bool {
        self.holds(other) || other.holds(self)
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.base), self.bits)
    }
}

pub(crate) struct Vpc {
    pub(crate) cidr: Cidr,
    pub(crate) ipv6: Option<String>,
    pub(crate) is_default: bool,
    pub(crate) dns_support: bool,
    pub(crate) dns_hostnames: bool,
    pub(crate) tenancy: String,
    pub(crate) route_table: String,
    /// Determines the IPv6 block.
    pub(crate) number: u16,
}

pub(crate) struct Subnet {
    pub(crate) vpc: String,
    pub(crate) zone: String,
    pub(crate) cidr: Cidr,
    pub(crate) ipv6: Option<String>,
    pub(crate) is_default: bool,
    pub(crate) public: bool,
    pub(crate) ipv6_on_creation: bool,
    /// Next address that was never used; released addresses are in `free`.
    pub(crate) next: u32,
    pub(crate) free: BTreeSet<u32>,
    pub(crate) used: usize,
    pub(crate) next_ipv6: u32,
}

impl Subnet {
    /// Number of available addresses: the first four and the last are reserved.
    pub(crate) fn left(&self) -> usize {
        usize::try_from(self.cidr.size().saturating_sub(5))
            .unwrap_or(0)
            .saturating_sub(self.used)
    }

    pub(crate) fn take(&mut self) -> Option<Ipv4Addr> {
        if self.left() == 0 {
            return None;
        }
        self.used += 1;
        let address = self.free.pop_first().unwrap_or_else(|| {
            self.next += 1;
            self.cidr.base + self.next + 3
        });
        Some(Ipv4Addr::from(address))
    }

    pub(crate) fn give_back(&mut self, address: Ipv4Addr) {
        if self.free.insert(u32::from(address)) {
            self.used -= 1;
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) egress: bool,
    pub(crate) protocol: String,
    pub(crate) ports: Option<(i64, i64)>,
    pub(crate) peer: Peer,
    pub(crate) description: Option<String>,
    pub(crate) id: String,
}

impl Rule {
    pub(crate) fn same(&self, other: &Rule) -> bool {
        let key = |rule: &Rule| {
            (
                rule.egress,
                rule.protocol.clone(),
                rule.ports,
                rule.peer.clone(),
            )
        };
        key(self) == key(other)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    V4(String),
    V6(String),
    Group(String),
}

pub(crate) struct SecurityGroup {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) vpc: String,
    pub(crate) rules: Vec<Rule>,
}

pub(crate) struct Route {
    pub(crate) destination: String,
    pub(crate) target: String,
}

pub(crate) struct RouteTable {
    pub(crate) vpc: String,
    pub(crate) association: String,
    pub(crate) routes: Vec<Route>,
}

pub(crate) struct Address {
    pub(crate) ip: Ipv4Addr,
    /// Association id and instance id.
    pub(crate) bound: Option<(String, String)>,
}

pub(crate) struct KeyPair {
    pub(crate) id: String,
    pub(crate) kind: &'static str,
    pub(crate) fingerprint: String,
    pub(crate) created: String,
}

pub(crate) struct LaunchTemplate {
    pub(crate) name: String,
    pub(crate) created: String,
    pub(crate) default: usize,
    pub(crate) versions: Vec<Params>,
}

/// Use of a client token.
pub(crate) struct Token {
    pub(crate) fingerprint: [u8; 32],
    pub(crate) reservation: String,
    pub(crate) first: u64,
    pub(crate) count: usize,
    pub(crate) at: Instant,
}

/// All mutable state, under one lock.
#[derive(Default)]
pub(crate) struct State {
    /// By number, in the order of creation.
    pub(crate) instances: BTreeMap<u64, Instance>,
    pub(crate) by_id: HashMap<String, u64>,
    by_tag: HashMap<String, HashMap<String, BTreeSet<u64>>>,
    pub(crate) made: u64,
    /// Terminated instances that are still listed, in the order of their termination.
    pub(crate) ended: VecDeque<(Instant, u64)>,
    pub(crate) tokens: HashMap<String, Token>,
    token_order: VecDeque<(Instant, String)>,
    pub(crate) vpcs: BTreeMap<String, Vpc>,
    pub(crate) subnets: BTreeMap<String, Subnet>,
    pub(crate) groups: BTreeMap<String, SecurityGroup>,
    /// Internet gateways and the VPCs that they are attached to.
    pub(crate) gateways: BTreeMap<String, Option<String>>,
    pub(crate) route_tables: BTreeMap<String, RouteTable>,
    pub(crate) addresses: BTreeMap<String, Address>,
    pub(crate) keys: BTreeMap<String, KeyPair>,
    pub(crate) templates: BTreeMap<String, LaunchTemplate>,
    /// Tags of all resources except instances, by id.
    pub(crate) tags: HashMap<String, Tags>,
    pub(crate) next_public: u32,
    pub(crate) networks: u16,
    pub(crate) expired: bool,
    /// Whether each page of instances begins with the last one of the page before.
    pub(crate) repeats: bool,
}

/// Generates an id: a prefix and 17 hexadecimal digits.
pub(crate) fn new_id(prefix: &str) -> String {
    format!("{prefix}-0{:016x}", fastrand::u64(..))
}

impl State {
    pub(crate) fn add(&mut self, instance: Instance) -> u64 {
        let number = self.made;
        self.made += 1;
        self.by_id.insert(instance.id.clone(), number);
        for (key, value) in &instance.tags {
            self.index(key, value, number);
        }
        self.instances.insert(number, instance);
        number
    }

    fn index(&mut self, key: &str, value: &str, number: u64) {
        self.by_tag
            .entry(key.to_owned())
            .or_default()
            .entry(value.to_owned())
            .or_default()
            .insert(number);
    }

    fn forget(&mut self, key: &str, value: &str, number: u64) {
        let Some(values) = self.by_tag.get_mut(key) else {
            return;
        };
        if let Some(numbers) = values.get_mut(value) {
            numbers.remove(&number);
            if numbers.is_empty() {
                values.remove(value);
            }
        }
        if values.is_empty() {
            self.by_tag.remove(key);
        }
    }

    /// Sets a tag of an instance, or removes it if there is no value.
    pub(crate) fn tag_instance(&mut self, number: u64, key: &str, value: Option<&str>) {
        let Some(instance) = self.instances.get_mut(&number) else {
            return;
        };
        instance.drawn = None;
        let old = match value {
            Some(value) => instance.tags.insert(key.to_owned(), value.to_owned()),
            None => instance.tags.remove(key),
        };
        if let Some(old) = old {
            self.forget(key, &old, number);
        }
        if let Some(value) = value {
            self.index(key, value, number);
        }
    }

    /// Returns the numbers of the instances with one of these values of a tag.
    pub(crate) fn tagged(&self, key: &str, values: &[String]) -> BTreeSet<u64> {
        let Some(known) = self.by_tag.get(key) else {
            return BTreeSet::new();
        };
        values
            .iter()
            .filter_map(|value| known.get(value))
            .flatten()
            .copied()
            .collect()
    }

    pub(crate) fn remember(&mut self, name: String, token: Token) {
        self.token_order.push_back((token.at, name.clone()));
        self.tokens.insert(name, token);
    }

    /// Removes terminated instances that are no longer listed, and tags of those that are.
    pub(crate) fn sweep(&mut self, now: Instant, delays: &Delays) {
        if let Some(tagged) = delays.tagged {
            self.untag(now, tagged);
        }
        let old = delays.stopping + delays.terminated;
        while let Some((at, number)) = self.ended.front().copied() {
            if now < at + old {
                break;
            }
            self.ended.pop_front();
            if let Some(instance) = self.instances.remove(&number) {
                self.by_id.remove(&instance.id);
                for (key, value) in &instance.tags {
                    self.forget(key, value, number);
                }
            }
        }
        while let Some((at, name)) = self.token_order.front() {
            if now < *at + delays.token {
                break;
            }
            self.tokens.remove(name);
            self.token_order.pop_front();
        }
    }

    fn untag(&mut self, now: Instant, tagged: Duration) {
        for (at, number) in self.ended.clone() {
            let Some(instance) = self.instances.get(&number) else {
                continue;
            };
            let (half, whole) = (now >= at + tagged, now >= at + 2 * tagged);
            let keys: Vec<String> = instance.tags.keys().cloned().collect();
            // Which tags go first is not documented: here every other one.
            let lost =
                |place: usize| whole || (half && place.is_multiple_of(2) && !instance.half_tagged);
            let lost: Vec<&String> = (0..)
                .zip(&keys)
                .filter(|(at, _)| lost(*at))
                .map(|(_, key)| key)
                .collect();
            for key in lost {
                self.tag_instance(number, key, None);
            }
            if let Some(instance) = self.instances.get_mut(&number) {
                instance.half_tagged |= half;
            }
        }
    }

    /// Allocates a public address that was never used before.
    pub(crate) fn public_address(&mut self) -> Ipv4Addr {
        self.next_public += 1;
        // 18.192.0.0/15 is the region's public block.
        Ipv4Addr::from(u32::from(Ipv4Addr::new(18, 192, 0, 9)) + self.next_public % 0x1_f000)
    }

    pub(crate) fn tags_of(&self, id: &str) -> &Tags {
        static NONE: Tags = Tags::new();
        if let Some(number) = self.by_id.get(id) {
            return self
                .instances
                .get(number)
                .map_or(&NONE, |instance| &instance.tags);
        }
        self.tags.get(id).unwrap_or(&NONE)
    }

    /// Returns the default security group of a VPC.
    pub(crate) fn default_group(&self, vpc: &str) -> Option<String> {
        let found = self
            .groups
            .iter()
            .find(|(_, group)| group.vpc == vpc && group.name == "default");
        found.map(|(id, _)| id.clone())
    }

    pub(crate) fn default_vpc(&self) -> Option<String> {
        self.vpcs
            .iter()
            .find(|(_, vpc)| vpc.is_default)
            .map(|(id, _)| id.clone())
    }
}
