//! metal-stack's metal-api: machines, firewalls, networks, addresses and the catalogue, according to its published
//! specification (v1, 0.43). There are no idempotency tokens: a repeated request is executed twice.
//!
//! Differences: IPv4 only; no filesystem layouts, reservations, VPN or switches; only the search fields in use are
//! supported, any other is refused rather than ignored.

mod auth;
mod machines;
mod networks;
mod show;
mod world;

use std::{collections::BTreeMap, io, sync::Arc};

use http::Method;
use serde_json::{Value, json};

pub use auth::Access;
pub use world::{World, hosts_of};

use crate::server::{Answer, Api, Call, Emulator, Refusal};
use crate::world::{Clock, Hand, Machine, Made, Settings};

/// A running emulator of metal-api.
pub type Metal = Emulator<World>;

/// Initial state of the emulator.
#[derive(Clone, Debug)]
pub struct MetalSettings {
    /// Common settings. `pending_delay`: from allocated to phoned home. `stopping_delay`: from freed to waiting again,
    /// and until the addresses of a freed machine are released. `capacity` is per partition.
    pub common: Settings,
    /// Partitions, each with its racks and machines.
    pub partitions: Vec<PartitionSettings>,
    /// Sizes as name, cores, and memory in GiB.
    pub sizes: Vec<(String, u32, u64)>,
    /// Images as id, and whether they are for firewalls.
    pub images: Vec<(String, bool)>,
    /// Project ids.
    pub projects: Vec<String>,
    /// External networks as id and prefix (`100.255.254.0/24`).
    pub public_networks: Vec<(String, String)>,
    /// HMAC keys by auth type (`Metal-Edit`).
    pub hmac: BTreeMap<String, String>,
    /// Bearer tokens and their access levels.
    pub tokens: BTreeMap<String, Access>,
}

/// Settings of one partition.
#[derive(Clone, Debug)]
pub struct PartitionSettings {
    /// Partition id.
    pub id: String,
    /// Rack ids.
    pub racks: Vec<String>,
    /// Number of machines of each size, spread over the racks. Their ids are those of [`hosts_of`].
    pub machines: usize,
    /// Additional machines with explicit ids, as id and size.
    pub named: Vec<(String, String)>,
    /// Second byte of its private super network 10.X.0.0/16.
    pub super_network: u8,
}

impl Default for MetalSettings {
    /// Two partitions with 64 machines of each of two sizes, and the resources that the CAPM sample names.
    fn default() -> MetalSettings {
        let small = "v1-small-x86";
        let named = [
            "2294c949-88f6-5390-8154-fa53d93a3313",
            "e0ab02d2-27cd-5a5e-8efc-080ba80cf258",
        ];
        let partition = |id: &str, super_network, named| PartitionSettings {
            id: id.to_owned(),
            racks: vec![format!("{id}-rack-1"), format!("{id}-rack-2")],
            machines: 64,
            named,
            super_network,
        };
        MetalSettings {
            common: Settings::default(),
            partitions: vec![
                partition(
                    "vagrant",
                    0,
                    named.map(|id| (id.to_owned(), small.to_owned())).to_vec(),
                ),
                partition("fra-1", 1, Vec::new()),
            ],
            sizes: vec![
                (small.to_owned(), 2, 4),
                ("c1-large-x86".to_owned(), 16, 128),
            ],
            images: [
                ("firewall-ubuntu-2.0", true),
                ("firewall-ubuntu-3.0.20260401", true),
                ("ubuntu-cloud-init-20.04", false),
                ("ubuntu-24.4.20260401", false),
                ("debian-12.0.20260401", false),
            ]
            .map(|(id, firewall)| (id.to_owned(), firewall))
            .to_vec(),
            projects: vec![
                "00000000-0000-0000-0000-000000000000".to_owned(),
                "2f0b1c7e-6a54-4e0c-9b57-3f3f5f6b7a10".to_owned(),
            ],
            public_networks: vec![
                (
                    "internet-vagrant-lab".to_owned(),
                    "100.255.254.0/24".to_owned(),
                ),
                ("internet".to_owned(), "203.0.113.0/24".to_owned()),
            ],
            hmac: [
                ("Metal-View", "emulator-view"),
                ("Metal-Edit", "emulator-edit"),
                ("Metal-Admin", "emulator-admin"),
            ]
            .map(|(kind, key)| (kind.to_owned(), key.to_owned()))
            .into(),
            tokens: BTreeMap::from([
                ("emulator-token".to_owned(), Access::Edit),
                ("emulator-view-token".to_owned(), Access::View),
            ]),
        }
    }
}

impl Metal {
    /// Serves a metal-api with these settings.
    ///
    /// # Errors
    /// Returns the error of binding the port.
    pub async fn start(settings: MetalSettings) -> io::Result<Metal> {
        let clock = Arc::new(Clock::default());
        let common = settings.common.clone();
        let world = Arc::new(World::new(settings, Arc::clone(&clock)));
        Emulator::serve(world, clock, &common).await
    }

    /// Allocates machines of another owner in this project; returns their ids.
    #[must_use]
    pub fn add_foreign(&self, project: &str, n: usize) -> Vec<String> {
        self.api().add_foreign(project, n)
    }

    /// Adds a private network of another owner in this project and partition; returns its id.
    #[must_use]
    pub fn add_network(&self, project: &str, partition: &str) -> String {
        self.api().add_network(project, partition)
    }

    /// Rejects all keys and tokens, until [`Metal::add_token`].
    pub fn expire_credentials(&self) {
        self.api().state.lock().expired = true;
        self.api().state.lock().tokens.clear();
    }

    /// Makes a token valid.
    pub fn add_token(&self, token: &str, access: Access) {
        let mut state = self.api().state.lock();
        state.tokens.insert(token.to_owned(), access);
    }

    /// Returns the user data of an allocated machine, as received.
    #[must_use]
    pub fn user_data(&self, id: &str) -> Option<String> {
        let state = self.api().state.lock();
        state.hosts.get(id)?.allocation.as_ref()?.user_data.clone()
    }

    /// Whether a firewall forwards from this private network to everywhere, on this port. What no rule of its allocation
    /// lets through is dropped (`policy drop` in <https://github.com/metal-stack/os-installer>,
    /// pkg/nftables/nftrules.tpl).
    #[must_use]
    pub fn forwards(&self, network: &str, protocol: &str, port: u16) -> bool {
        let state = self.api().state.lock();
        let allocations = state
            .hosts
            .values()
            .filter_map(|host| host.allocation.as_ref());
        let mut firewalls = allocations.filter(|allocation| {
            allocation.firewall && allocation.networks.iter().any(|(id, _)| id == network)
        });
        firewalls.any(|firewall| {
            let rules = firewall.rules["egress"].as_array();
            rules.into_iter().flatten().any(|rule| {
                let has = |key: &str, value: Value| {
                    let list = rule[key].as_array();
                    list.is_some_and(|list| list.contains(&value))
                };
                let of_protocol = rule["protocol"].as_str();
                of_protocol.is_some_and(|is| is.eq_ignore_ascii_case(protocol))
                    && has("to", json!("0.0.0.0/0"))
                    && (rule["ports"].as_array().is_none_or(Vec::is_empty)
                        || has("ports", json!(port)))
            })
        })
    }

    /// Ids of the machines that answer when a machine connects to an address. All addresses of a machine are on its
    /// loopback interface, and announced from there (<https://github.com/metal-stack/metal-networker>,
    /// pkg/netconf/interfaces.go), so a machine that has the address reaches itself.
    #[must_use]
    pub fn answers(&self, from: &str, address: &str) -> Vec<String> {
        let state = self.api().state.lock();
        let has = |id: &&String| {
            let host = state.hosts.get(*id);
            let allocation = host.and_then(|host| host.allocation.as_ref());
            let networks = allocation
                .into_iter()
                .flat_map(|allocation| &allocation.networks);
            networks
                .flat_map(|(_, ips)| ips)
                .any(|ip| ip.to_string() == address)
        };
        let holders: Vec<String> = state.hosts.keys().filter(has).cloned().collect();
        if holders.iter().any(|id| id == from) {
            return vec![from.to_owned()];
        }
        holders
    }

    /// Locks or unlocks a machine: a locked machine can neither be allocated nor freed.
    pub fn lock_by_hand(&self, id: &str, locked: bool) {
        if let Some(host) = self.api().state.lock().hosts.get_mut(id) {
            host.locked = locked;
        }
    }

    /// Sets the liveliness of a machine.
    pub fn kill_by_hand(&self, id: &str, alive: bool) {
        if let Some(host) = self.api().state.lock().hosts.get_mut(id) {
            host.alive = alive;
        }
    }

    /// Puts an allocated machine into a crash loop.
    pub fn crash_loop_by_hand(&self, id: &str) {
        if let Some(host) = self.api().state.lock().hosts.get_mut(id) {
            host.crash_loop = true;
        }
    }

    /// Resources other than machines: id (an address or a network) and kind (`ip`, `network`). The initial networks and
    /// addresses are left out.
    #[must_use]
    pub fn things(&self) -> Vec<(String, &'static str)> {
        self.api().things()
    }
}

impl Api for World {
    fn name(&self, call: &Call) -> (String, Vec<(String, String)>) {
        let operation = operation(call).unwrap_or("?").to_owned();
        let mut parameters = Vec::new();
        if let Ok(Value::Object(body)) = call.json() {
            for (key, value) in body {
                let value = match value {
                    _ if key == "user_data" => continue,
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                parameters.push((key, value));
            }
        }
        (operation, parameters)
    }

    fn change(&self, operation: &str, call: &Call) -> Option<String> {
        if operation == "machine.free" {
            let segments = call.segments();
            let id = segments.get(2).map_or("", String::as_str);
            let state = self.state.lock();
            let host = state.hosts.get(id);
            let of = host.and_then(|host| host.allocation.as_ref());
            let is_firewall = of.is_some_and(|allocation| allocation.firewall);
            let kind = if is_firewall { "firewall" } else { "machine" };
            return Some(format!("{operation} of {kind}"));
        }
        is_change(operation).then(|| operation.to_owned())
    }

    fn handle(&self, operation: &str, call: &Call) -> Answer {
        let Some(access) = self.access(call) else {
            return fail(
                401,
                "no valid credentials: the token is unknown or expired, the HMAC is wrong, or the timestamp in your header is too old",
            );
        };
        if access == Access::View && is_change(operation) {
            return fail(403, "you are not member in one of [maas-all-all-edit]");
        }
        let body = match call.json() {
            Ok(Value::Null) => Value::Object(serde_json::Map::new()),
            Ok(body @ Value::Object(_)) => body,
            Ok(_) | Err(_) => return fail(400, "the body is not a JSON object"),
        };
        let segments = call.segments();
        let part = |at: usize| segments.get(at).map_or("", String::as_str);
        self.settle();
        match self.answer(operation, &part, &body) {
            Ok(answer) | Err(answer) => answer,
        }
    }

    fn refuse(&self, operation: &str, _call: &Call, refusal: &Refusal) -> Answer {
        match refusal {
            Refusal::Error {
                status, message, ..
            } => fail(*status, message),
            Refusal::Later { message, .. } => fail(500, message),
            Refusal::Throttle { retry_after } => {
                let answer = fail(429, "too many requests");
                match retry_after {
                    Some(wait) => {
                        answer.header("retry-after", wait.as_secs_f64().ceil().to_string())
                    }
                    None => answer,
                }
            }
            Refusal::NoCapacity if operation == "network.allocate" => fail(
                422,
                "could not allocate child prefix in parent network: tenant-super-network for addressfamily: IPv4 length:22",
            ),
            Refusal::NoCapacity if operation.starts_with("ip.") => {
                fail(500, "cannot allocate free ip in ipam, no ips left")
            }
            Refusal::NoCapacity => fail(422, "no machine available"),
            Refusal::Quota => fail(422, "project quota for machines reached max:0"),
        }
    }

    fn machines(&self) -> Vec<Machine> {
        self.all_machines()
    }

    fn ledger(&self) -> Vec<Made> {
        self.ledger.all()
    }

    fn by_hand(&self, id: &str, hand: &Hand) -> bool {
        self.by_hand(id, hand)
    }
}

impl World {
    fn answer<'a>(
        &self,
        operation: &str,
        part: &dyn Fn(usize) -> &'a str,
        body: &Value,
    ) -> Result<Answer, Answer> {
        match operation {
            "machine.allocate" => self.allocate(body, false),
            "firewall.allocate" => self.allocate(body, true),
            "machine.free" => self.free(part(2)),
            "machine.update" => self.update_machine(body),
            "machine.get" => self.get_machine(part(2), false),
            "machine.ipmi.get" => self.get_machine(part(2), true),
            "firewall.get" => self.get_firewall(part(2)),
            "machine.list" => self.find_machines(&Value::Null, None, false),
            "machine.find" => self.find_machines(body, None, false),
            "machine.ipmi.find" => self.find_machines(body, None, true),
            "firewall.list" => self.find_machines(&Value::Null, Some(true), false),
            "firewall.find" => self.find_machines(body, Some(true), false),
            "machine.power" => self.power(part(2), part(4)),
            "network.allocate" => self.allocate_network(body),
            "network.free" => self.free_network(part(3)),
            "network.get" => self.get_network(part(2)),
            "network.list" => self.find_networks(&Value::Null),
            "network.find" => self.find_networks(body),
            "ip.allocate" => self.allocate_ip(body, None),
            "ip.allocate-specific" => self.allocate_ip(body, Some(part(3))),
            "ip.free" => self.free_ip(part(3)),
            "ip.update" => self.update_ip(body),
            "ip.get" => self.get_ip(part(2)),
            "ip.list" => self.find_ips(&Value::Null),
            "ip.find" => self.find_ips(body),
            other => self.catalogue(other, part(2), body),
        }
    }
}

/// The API's own name of the operation.
fn operation(call: &Call) -> Option<&'static str> {
    let segments = call.segments();
    let mut parts: Vec<&str> = segments.iter().map(String::as_str).collect();
    if parts.first() != Some(&"v1") {
        return None;
    }
    parts.remove(0);
    Some(match (&call.method, parts.as_slice()) {
        (&Method::POST, ["machine", "allocate"]) => "machine.allocate",
        (&Method::POST, ["machine", "find"]) => "machine.find",
        (&Method::POST, ["machine", "ipmi", "find"]) => "machine.ipmi.find",
        (&Method::POST, ["machine"]) => "machine.update",
        (&Method::GET, ["machine"]) => "machine.list",
        (&Method::GET, ["machine", _]) => "machine.get",
        (&Method::GET, ["machine", _, "ipmi"]) => "machine.ipmi.get",
        (&Method::DELETE, ["machine", _, "free"]) => "machine.free",
        (&Method::POST, ["machine", _, "power", "on" | "off" | "reset" | "cycle"]) => {
            "machine.power"
        }
        (&Method::POST, ["firewall", "allocate"]) => "firewall.allocate",
        (&Method::POST, ["firewall", "find"]) => "firewall.find",
        (&Method::GET, ["firewall"]) => "firewall.list",
        (&Method::GET, ["firewall", _]) => "firewall.get",
        (&Method::POST, ["network", "allocate"]) => "network.allocate",
        (&Method::POST, ["network", "find"]) => "network.find",
        (&Method::DELETE, ["network", "free", _]) => "network.free",
        (&Method::GET, ["network"]) => "network.list",
        (&Method::GET, ["network", _]) => "network.get",
        (&Method::POST, ["ip", "allocate"]) => "ip.allocate",
        (&Method::POST, ["ip", "allocate", _]) => "ip.allocate-specific",
        (&Method::POST, ["ip", "find"]) => "ip.find",
        (&Method::POST, ["ip"]) => "ip.update",
        (&Method::DELETE, ["ip", "free", _]) => "ip.free",
        (&Method::GET, ["ip"]) => "ip.list",
        (&Method::GET, ["ip", _]) => "ip.get",
        (&Method::GET, ["size"]) => "size.list",
        (&Method::GET, ["size", _]) => "size.get",
        (&Method::GET, ["partition"]) => "partition.list",
        (&Method::GET, ["partition", _]) => "partition.get",
        (&Method::GET, ["image"]) => "image.list",
        (&Method::GET, ["image", _]) => "image.get",
        (&Method::GET, ["image", _, "latest"]) => "image.latest",
        (&Method::GET, ["project"]) => "project.list",
        (&Method::POST, ["project", "find"]) => "project.find",
        (&Method::GET, ["project", _]) => "project.get",
        (&Method::GET, ["version"]) => "version",
        (&Method::GET, ["health"]) => "health",
        _ => return None,
    })
}

fn is_change(operation: &str) -> bool {
    let verb = operation.rsplit('.').next().unwrap_or_default();
    ["allocate", "allocate-specific", "free", "update", "power"].contains(&verb)
}

/// An error in the API's format.
fn fail(status: u16, message: impl AsRef<str>) -> Answer {
    Answer::json(
        status,
        &serde_json::json!({ "statuscode": status, "message": message.as_ref() }),
    )
}
