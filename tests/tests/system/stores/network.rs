//! A network of the test's own in which any direction between two nodes can be cut: one network namespace a node, and
//! a bridge to which the test is connected as well.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::stores::run;

/// Names and addresses are those of the process: another test of it, if there is one, waits.
static ONE: Mutex<()> = Mutex::new(());

/// The namespaces of some nodes, deleted with everything in them when dropped.
pub(super) struct Network {
    _one: MutexGuard<'static, ()>,
    name: String,
    net: String,
    nodes: usize,
}

/// The test itself, in the place of a node.
pub(super) const CLIENT: usize = usize::MAX;

/// The other two of three nodes.
pub(super) fn others(of: usize) -> [usize; 2] {
    match of {
        0 => [1, 2],
        1 => [0, 2],
        _ => [0, 1],
    }
}

fn ip(arguments: &[&str]) {
    let answer = run("ip", arguments);
    let said = String::from_utf8_lossy(&answer.stderr);
    assert!(
        answer.status.success(),
        "ip {arguments:?}, which needs root: {said}"
    );
}

impl Network {
    pub(super) fn new(nodes: usize) -> Self {
        let process = std::process::id();
        let network = Self {
            _one: ONE.lock().unwrap_or_else(PoisonError::into_inner),
            name: format!("dr{process}"),
            net: format!("10.{}.{}", 128 + process % 100, process / 100 % 250),
            nodes,
        };
        // The bridge is in a namespace of its own: rules of this machine's firewall are none of its.
        let hub = network.hub();
        ip(&["netns", "add", &hub]);
        ip(&["-n", &hub, "link", "add", "hub", "type", "bridge"]);
        ip(&["-n", &hub, "link", "set", "hub", "up"]);
        network.pair("client", &["name", &network.name]);
        let own = format!("{}/24", network.host(CLIENT));
        ip(&["address", "add", &own, "dev", &network.name]);
        ip(&["link", "set", &network.name, "up"]);
        for at in 0..nodes {
            network.add(at);
        }
        network
    }

    fn add(&self, at: usize) {
        let (namespace, link) = (self.namespace(at), format!("v{at}"));
        ip(&["netns", "add", &namespace]);
        self.pair(&link, &["name", "eth0", "netns", &namespace]);
        let own = format!("{}/24", self.host(at));
        ip(&["-n", &namespace, "address", "add", &own, "dev", "eth0"]);
        for device in ["eth0", "lo"] {
            ip(&["-n", &namespace, "link", "set", device, "up"]);
        }
    }

    fn hub(&self) -> String {
        format!("{}h", self.name)
    }

    /// A pair of links, of which this one is in the hub's namespace.
    fn pair(&self, link: &str, peer: &[&str]) {
        let hub = self.hub();
        let made = ["link", "add", link, "netns", &hub, "type", "veth", "peer"];
        ip(&[&made[..], peer].concat());
        ip(&["-n", &hub, "link", "set", link, "master", "hub", "up"]);
    }

    pub(super) fn namespace(&self, at: usize) -> String {
        format!("{}n{at}", self.name)
    }

    pub(super) fn host(&self, at: usize) -> String {
        let last = if at == CLIENT { 1 } else { at + 10 };
        format!("{}.{last}", self.net)
    }

    /// What one node sends to another one is lost, without a word to anybody.
    pub(super) fn cut(&self, from: usize, to: usize) {
        let to = format!("{}/32", self.host(to));
        let namespace = self.namespace(from);
        ip(&["-n", &namespace, "route", "replace", "blackhole", &to]);
    }

    pub(super) fn cut_each(&self, pairs: &[(usize, usize)]) {
        for (from, to) in pairs {
            self.cut(*from, *to);
        }
    }

    pub(super) fn heal(&self) {
        for at in 0..self.nodes {
            let lost = ["route", "flush", "type", "blackhole"];
            ip(&[&["-n", &self.namespace(at)], &lost[..]].concat());
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for at in 0..self.nodes {
            run("ip", &["netns", "delete", &self.namespace(at)]);
        }
        run("ip", &["netns", "delete", &self.hub()]);
        run("ip", &["link", "delete", &self.name]);
    }
}
