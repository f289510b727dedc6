//! etcd with certificates, which members and clients show to each other.

use std::fs;

use drover_templates::stores::ETCD;
use drover_testing::certs::{Authority, Pair};
use tempfile::TempDir;

use super::{all_ready, answered, etcd, signal};
use crate::stores::{
    alone::{Node, until},
    certificates::{Certificates, serial, serial_of},
    impaired::lacks,
    installed, run, said,
};

/// A certificate that a client shows, and the authority that it believes.
struct Client {
    ca: String,
    cert: String,
    key: String,
}

impl Client {
    fn of(certificates: &Certificates) -> Self {
        let path = |name: &str| certificates.path(name).to_str().unwrap().to_owned();
        Self {
            ca: path("ca.crt"),
            cert: path("tls.crt"),
            key: path("tls.key"),
        }
    }

    fn asks(&self, node: &Node, command: &[&str]) -> Option<String> {
        let endpoint = format!("--endpoints=https://127.0.0.1:{}", node.port("client"));
        let (ca, cert) = (
            format!("--cacert={}", self.ca),
            format!("--cert={}", self.cert),
        );
        let key = format!("--key={}", self.key);
        let mut arguments = vec![endpoint.as_str(), &ca, &cert, &key];
        arguments.extend(["--dial-timeout=1s", "--command-timeout=3s"]);
        arguments.extend(command);
        said(&run("etcdctl", &arguments))
    }

    /// Again and again until there is an answer.
    fn insists(&self, node: &Node, command: &[&str]) -> String {
        answered(command, || self.asks(node, command))
    }

    /// Status of what the port for members answers.
    fn asks_as_member(&self, node: &Node) -> String {
        let url = format!("https://127.0.0.1:{}/members", node.port("peer"));
        let ask = ["-s", "--http1.1", "-o", "/dev/null", "-w", "%{http_code}"];
        let shown = [
            "--cacert", &self.ca, "--cert", &self.cert, "--key", &self.key,
        ];
        let answer = run("curl", &[&ask[..], &shown, &[url.as_str()]].concat());
        String::from_utf8_lossy(&answer.stdout).into_owned()
    }
}

fn alone(certificates: &Certificates, ordinal: u32) -> Node {
    installed("etcd", "etcd-server");
    installed("etcdctl", "etcd-client");
    let quick = [
        "--unsafe-no-fsync",
        "--heartbeat-interval=50",
        "--election-timeout=500",
    ];
    let mut node = Node::new(&ETCD, ordinal, &["client", "peer", "metrics"]).with(&quick);
    certificates.shown_to(&mut node, "required");
    node
}

fn members(certificates: &Certificates, count: u32) -> Vec<Node> {
    let mut nodes = Vec::new();
    for ordinal in 0..count {
        nodes.push(alone(certificates, ordinal));
        until("a member more", &mut nodes, all_ready);
    }
    nodes
}

/// Status of what the port for probes answers. To a path with `//` that is only that it has another name.
fn probe(node: &Node, path: &str) -> String {
    let url = format!("http://127.0.0.1:{}{path}", node.port("metrics"));
    let ask = ["-s", "--path-as-is", "--max-time", "2", "-o", "/dev/null"];
    let answer = run("curl", &[&ask[..], &["-w", "%{http_code}", &url]].concat());
    String::from_utf8_lossy(&answer.stdout).into_owned()
}

#[test]
fn etcd_members_with_tls_join_and_come_back_and_answer_nobody_without_a_certificate() {
    let certificates = Certificates::new();
    let mut nodes = members(&certificates, 3);
    let client = Client::of(&certificates);
    client.insists(&nodes[0], &["put", "1", "x"]);
    let others = Certificates::new();
    let stranger = Client {
        ca: client.ca.clone(),
        ..Client::of(&others)
    };
    for node in &nodes {
        let port = node.port("client");
        assert_eq!(etcd(&[port], &["get", "1"]), None, "without TLS");
        assert_eq!(stranger.asks(node, &["get", "1"]), None);
        assert!(lacks(node).is_empty());
    }
    until("one leaves", &mut nodes, |nodes| {
        nodes[2].does("leave").status.success()
    });
    for gone in [2, 1] {
        nodes[gone].kill();
        until("all are members", &mut nodes, all_ready);
    }
    let list = client.insists(&nodes[0], &["member", "list"]);
    assert_eq!(list.matches("started").count(), 3, "{list}");
    assert!(!list.contains("http:"), "{list}");
    for node in &nodes {
        let read = client.insists(node, &["get", "1", "--keys-only"]);
        assert_eq!(read, "1", "{}", node.name);
    }
}

#[test]
fn etcd_shows_another_certificate_without_a_restart() {
    let certificates = Certificates::new();
    let mut nodes = members(&certificates, 2);
    certificates.renew();
    let wanted = serial_of(&certificates.path("tls.crt"));
    until("all show it at both ports", &mut nodes, |nodes| {
        let shows = |port| serial("127.0.0.1", port, "").as_ref() == Some(&wanted);
        let shows = |node: &Node| shows(node.port("client")) && shows(node.port("peer"));
        nodes.iter().all(shows)
    });
    assert!(nodes.iter_mut().all(|node| !node.has_ended()));
    nodes.push(alone(&certificates, 2));
    until("another one joins them", &mut nodes, all_ready);
    let client = Client::of(&certificates);
    client.insists(&nodes[2], &["put", "1", "x"]);
}

#[test]
fn a_certificate_of_a_client_of_etcd_lets_nobody_in_as_a_member() {
    let authority = Authority::new("db");
    let of = |Pair { cert, key, .. }: Pair| Client {
        ca: authority.ca().to_str().unwrap().to_owned(),
        cert: cert.to_str().unwrap().to_owned(),
        key: key.to_str().unwrap().to_owned(),
    };
    let member = of(authority.server());
    let client = of(authority.client("client", "spiffe://shop"));
    let shown = TempDir::with_prefix("drover-store-").unwrap();
    let files = [
        ("ca.crt", &member.ca),
        ("tls.crt", &member.cert),
        ("tls.key", &member.key),
    ];
    for (name, file) in files {
        fs::copy(file, shown.path().join(name)).unwrap();
    }
    let mut node = alone(&Certificates::new(), 0);
    node.sets("DROVER_TLS", shown.path().to_str().unwrap());
    let mut nodes = [node];
    until("a member", &mut nodes, all_ready);
    client.insists(&nodes[0], &["put", "1", "x"]);
    assert_eq!(member.asks_as_member(&nodes[0]), "200");
    assert_eq!(client.asks_as_member(&nodes[0]), "000");
}

#[test]
fn etcd_with_tls_tells_whoever_probes_it_that_it_lives_also_without_a_quorum() {
    let certificates = Certificates::new();
    let mut nodes = members(&certificates, 2);
    nodes[1].kill();
    until("there is no quorum", &mut nodes, |nodes| {
        probe(&nodes[0], "/health") == "503"
    });
    until("it lives", &mut nodes, |nodes| {
        probe(&nodes[0], "//metrics") == "301"
    });
    signal(&nodes[0], "-STOP");
    assert_eq!(probe(&nodes[0], "//metrics"), "000");
    signal(&nodes[0], "-CONT");
}

#[test]
fn an_etcd_node_waits_for_a_certificate_that_has_its_address() {
    let certificates = Certificates::new();
    let names = certificates.path("names");
    fs::write(&names, "localhost\n10.0.0.1\n").unwrap();
    let mut node = alone(&certificates, 0);
    node.start("active");
    node.hears_of(&[]);
    let mut nodes = [node];
    until("it says so", &mut nodes, |nodes| {
        let log = nodes[0].log();
        log.contains("waiting for a certificate for 127.0.0.1")
    });
    assert!(!nodes[0].directory().join("certificates").exists());
    fs::write(&names, "localhost\n10.0.0.1\n127.0.0.1\n").unwrap();
    until("a member", &mut nodes, all_ready);
}
