//! A Redis with certificates, and with a user for an application.

use std::{fs, net::TcpStream, os::unix::fs::PermissionsExt};

use tempfile::TempDir;

use super::{all_ready, alone, redis};
use crate::stores::{
    alone::{Node, introduce, promoted, refused, until},
    certificates::{Certificates, serial, serial_of},
    impaired::lacks,
    installed, run, said,
};

const PASSWORD: &str = "Sekante-3391 \"in force\"";
const FORMER: &str = "Sehne-1207";

/// What a server with TLS answers, if its certificate is of the authority.
fn ask(port: u16, ca: &str, password: &str, command: &[&str]) -> Option<String> {
    let (auth, port) = (format!("REDISCLI_AUTH={password}"), port.to_string());
    let to = ["redis-cli", "--no-auth-warning", "--tls", "--cacert", ca];
    let mut arguments = vec![auth.as_str()];
    arguments.extend(to);
    arguments.extend(["-h", "127.0.0.1", "-p", &port]);
    arguments.extend(command);
    said(&run("env", &arguments))
}

/// Nodes with TLS, of which the first is active.
struct Group {
    nodes: Vec<Node>,
    certificates: Certificates,
}

impl Group {
    fn new(count: u32, arguments: &[&str]) -> Self {
        installed("redis-server", "redis-server");
        let certificates = Certificates::new();
        let mut nodes: Vec<_> = (0..count).map(|at| alone(at).with(arguments)).collect();
        for (at, node) in nodes.iter_mut().enumerate() {
            certificates.shown_to(node, "required");
            node.is_given(format!("{PASSWORD}\nformer: {FORMER}\n").as_bytes());
            node.start(if at == 0 { "active" } else { "standby" });
        }
        introduce(&nodes);
        until("all are of use", &mut nodes, all_ready);
        Self {
            nodes,
            certificates,
        }
    }

    fn asks(&self, at: usize, command: &[&str]) -> Option<String> {
        let port = self.nodes[at].port("client");
        ask(port, &self.certificates.ca(), PASSWORD, command)
    }

    /// Writes a key to a node, and waits until another one has it.
    fn reaches(&mut self, from: usize, to: usize, key: &str) {
        assert_eq!(self.asks(from, &["set", key, "x"]).as_deref(), Some("OK"));
        let (ca, port) = (self.certificates.ca(), self.nodes[to].port("client"));
        until("the other one has it", &mut self.nodes, |_| {
            ask(port, &ca, PASSWORD, &["exists", key]).as_deref() == Some("1")
        });
    }

    /// Waits until all nodes show the certificate that is there now.
    fn show(&mut self) {
        let wanted = serial_of(&self.certificates.path("tls.crt"));
        until("all show it", &mut self.nodes, |nodes| {
            nodes
                .iter()
                .all(|node| shown(node).as_ref() == Some(&wanted))
        });
    }
}

fn shown(node: &Node) -> Option<String> {
    serial("127.0.0.1", node.port("client"), "")
}

#[test]
fn redis_with_tls_follows_and_takes_over_and_answers_nobody_without() {
    let mut group = Group::new(2, &[]);
    group.reaches(0, 1, "1");
    let strange = Certificates::new();
    for node in &group.nodes {
        let port = node.port("client");
        assert_eq!(redis(port, &["ping"]), None);
        let believed = ask(port, &strange.ca(), PASSWORD, &["ping"]);
        assert_eq!(believed, None, "a certificate of another authority");
        let former = ask(port, &group.certificates.ca(), FORMER, &["ping"]);
        assert_eq!(former.as_deref(), Some("PONG"));
        assert!(lacks(node).is_empty());
    }
    group.nodes[0].kill();
    introduce(&group.nodes);
    promoted(&mut group.nodes[1]);
    group.nodes[0].start("standby");
    introduce(&group.nodes);
    until("it follows", &mut group.nodes, all_ready);
    group.reaches(1, 0, "2");
    assert_eq!(group.asks(0, &["dbsize"]).as_deref(), Some("2"));
}

#[test]
fn redis_shows_another_certificate_without_a_restart_also_if_it_had_no_time_for_it() {
    let mut group = Group::new(2, &[]);
    let (ca, port) = (group.certificates.ca(), group.nodes[0].port("client"));
    let soon = ["config", "set", "busy-reply-threshold", "1"];
    ask(port, &ca, PASSWORD, &soon).unwrap();
    let of = ca.clone();
    std::thread::spawn(move || ask(port, &of, PASSWORD, &["eval", "while true do end", "0"]));
    until("it is busy", &mut group.nodes, |_| {
        ask(port, &ca, PASSWORD, &["ping"]).is_some_and(|answer| answer.starts_with("BUSY"))
    });
    let before = shown(&group.nodes[0]);
    group.certificates.renew();
    let wanted = serial_of(&group.certificates.path("tls.crt"));
    until("the busy one has taken it", &mut group.nodes, |nodes| {
        let taken = nodes[0].directory().join("certificates/tls.crt");
        shown(&nodes[1]).as_ref() == Some(&wanted) && serial_of(&taken) == wanted
    });
    assert_eq!(shown(&group.nodes[0]), before);
    ask(port, &ca, PASSWORD, &["script", "kill"]).unwrap();
    group.show();
    assert!(group.nodes.iter_mut().all(|node| !node.has_ended()));
    group.reaches(0, 1, "1");
}

#[test]
fn a_redis_with_tls_whose_connections_are_all_taken_is_neither_hung_nor_gone() {
    let mut group = Group::new(3, &["--maxclients", "9"]);
    group.reaches(0, 1, "1");
    group.nodes[0].kill();
    introduce(&group.nodes);
    let to = ("127.0.0.1", group.nodes[2].port("client"));
    // Its script has some of them for a moment.
    let (mut taken, mut times) = (Vec::new(), 0);
    until("it says so, and goes on to", &mut group.nodes, |nodes| {
        taken.extend(TcpStream::connect(to));
        let is_full = lacks(&nodes[2]) == ["ConnectionsExhausted"];
        times = if is_full { times + 1 } else { 0 };
        times == 20
    });
    assert!(group.nodes[2].is_ready());
    // It may have what the one that is to take over lacks.
    refused(&mut group.nodes[1], &["db-2 does not answer"]);
    drop(taken);
    until("it says so no more", &mut group.nodes, |nodes| {
        lacks(&nodes[2]).is_empty()
    });
    promoted(&mut group.nodes[1]);
    assert_eq!(group.asks(1, &["exists", "1"]).as_deref(), Some("1"));
}

/// The directory with a user and its password, as a platform writes it.
struct Application(TempDir);

impl Application {
    fn new(user: &str, password: &str) -> Self {
        let directory = TempDir::with_prefix("drover-store-").unwrap();
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(directory.path(), open).unwrap();
        let application = Self(directory);
        application.is("user", user);
        application.is("password", password);
        application
    }

    fn is(&self, name: &str, value: &str) {
        let (new, path) = (self.0.path().join("new"), self.0.path().join(name));
        fs::write(&new, value).unwrap();
        fs::rename(new, path).unwrap();
    }

    fn given_to(&self, node: &mut Node) {
        node.sets("DROVER_APP", self.0.path().to_str().unwrap());
    }
}

/// What a server without TLS answers to this user.
fn tell(node: &Node, user: &str, password: &str, command: &[&str]) -> String {
    let auth = format!("REDISCLI_AUTH={password}");
    let port = node.port("client").to_string();
    let to = ["redis-cli", "--no-auth-warning", "-p", &port];
    let mut arguments = vec![auth.as_str()];
    arguments.extend(to);
    arguments.extend(["--user", user]);
    arguments.extend(command);
    String::from_utf8_lossy(&run("env", &arguments).stdout).into_owned()
}

fn lets_in(node: &Node, user: &str, password: &str) -> bool {
    tell(node, user, password, &["acl", "whoami"]).trim() == user
}

#[test]
fn the_user_of_an_application_does_what_it_likes_to_data_and_nothing_to_the_server() {
    installed("redis-server", "redis-server");
    let (first, second) = ("Hyperbel-7718 'x' \\", "Parabel-4410 \"y\"");
    let application = Application::new("orders", first);
    let mut nodes = [alone(0), alone(1)];
    for (node, role) in nodes.iter_mut().zip(["active", "standby"]) {
        node.is_given(format!("{PASSWORD}\n").as_bytes());
        application.given_to(node);
        node.start(role);
    }
    introduce(&nodes);
    until("both are of use", &mut nodes, all_ready);
    let answers: [(&[&str], &str); 10] = [
        (&["set", "1", "x"], "OK"),
        (&["keys", "*"], "1"),
        (&["eval", "return redis.call('get', '1')", "0"], "x"),
        (&["info", "server"], "# Server"),
        (&["config", "get", "requirepass"], "NOPERM"),
        (&["acl", "list"], "NOPERM"),
        (&["replicaof", "no", "one"], "NOPERM"),
        (&["migrate", "127.0.0.1", "1", "1", "0", "1"], "NOPERM"),
        (&["shutdown"], "NOPERM"),
        (&["flushall"], "OK"),
    ];
    for (command, answer) in answers {
        let said = tell(&nodes[0], "orders", first, command);
        assert!(said.starts_with(answer), "{command:?}: {said}");
    }
    assert!(lets_in(&nodes[1], "orders", first));

    application.is("password", second);
    until("both take the new password only", &mut nodes, |nodes| {
        let take = |node: &Node| lets_in(node, "orders", second) && !lets_in(node, "orders", first);
        nodes.iter().all(take)
    });
    application.is("user", "default");
    until("that name is refused", &mut nodes, |nodes| {
        let is_refused = |node: &Node| node.log().contains("user is refused");
        nodes.iter().all(is_refused)
    });
    assert!(tell(&nodes[0], "default", PASSWORD, &["ping"]).starts_with("PONG"));
    application.is("user", "shop");
    until("it has another name", &mut nodes, |nodes| {
        let is_shop =
            |node: &Node| lets_in(node, "shop", second) && !lets_in(node, "orders", second);
        nodes.iter().all(is_shop)
    });
    for node in &nodes {
        let config = fs::read_to_string(node.directory().join("redis.conf")).unwrap();
        for text in [config, node.log()] {
            assert!(
                !text.contains("Hyperbel") && !text.contains("Parabel"),
                "{text}"
            );
        }
    }
}
