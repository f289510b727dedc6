//! PostgreSQL with certificates, and with a user for an application.

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::stores::{
    alone::{Node, introduce, promoted, until},
    certificates::{Certificates, serial, serial_of},
    impaired::lacks,
    network::Network,
    postgresql::{PASSWORD, Session, all_ready, alone, begin, postgresql},
    run, said,
};

fn protected(mut node: Node) -> Node {
    node.is_given(format!("{PASSWORD}\n").as_bytes());
    node
}

fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\\', r"\\").replace('\'', r"\'"))
}

/// Who asks, and how.
struct Client<'a> {
    user: &'a str,
    password: &'a str,
    database: &'a str,
    /// In the words of libpq.
    tls: String,
}

impl Client<'_> {
    fn asks(&self, node: &Node, statement: &str) -> Option<String> {
        let (_, programs) = postgresql();
        let psql = programs.join("psql");
        let (host, port) = (node.host(), node.port("client"));
        let (user, database) = (quoted(self.user), quoted(self.database));
        let (password, tls) = (quoted(self.password), &self.tls);
        let to = format!(
            "host={host} port={port} user={user} dbname={database} password={password} {tls} connect_timeout=2"
        );
        said(&run(
            psql.to_str().unwrap(),
            &["-XAtqw", "-d", &to, "-c", statement],
        ))
    }
}

fn superuser(tls: &str) -> Client<'static> {
    Client {
        user: "postgres",
        password: PASSWORD,
        database: "postgres",
        tls: tls.to_owned(),
    }
}

fn insist(node: &Node, statement: &str) -> String {
    let answer = superuser("").asks(node, statement);
    answer.unwrap_or_else(|| panic!("{}: {statement}\n{}", node.name, node.log()))
}

/// A group of a primary and a standby, which is given one node after the other, as in an update.
struct Group {
    nodes: Vec<Node>,
    certificates: Certificates,
    active: usize,
    rows: u32,
}

impl Group {
    /// Starts a node of the group as a standby that has TLS in this way.
    fn renews(&mut self, at: usize, tls: &str) {
        self.certificates.shown_to(&mut self.nodes[at], tls);
        self.nodes[at].start("standby");
        introduce(&self.nodes);
        until("it is of use", &mut self.nodes, all_ready);
        // The other one has to have it.
        self.rows += 1;
        let row = format!("insert into t values ({})", self.rows);
        insist(&self.nodes[self.active], &row);
    }

    fn standby(&self) -> usize {
        1 - self.active
    }

    fn updates(&mut self, tls: &str) {
        let (old, new) = (self.active, self.standby());
        self.renews(new, tls);
        self.nodes[old].kill();
        self.nodes[new].hears_of(&[]);
        promoted(&mut self.nodes[new]);
        self.active = new;
        self.renews(old, tls);
        let rows = insist(&self.nodes[new], "select count(*) from t");
        assert_eq!(rows, self.rows.to_string());
    }

    /// Whether both let in: a client without TLS, and one that wants to know whom it asks.
    fn let_in(&self) -> (bool, bool) {
        let verified = format!("sslmode=verify-ca sslrootcert={}", self.certificates.ca());
        let in_both = |tls: &str| {
            let client = superuser(tls);
            let mut answers = self.nodes.iter().map(|node| client.asks(node, "select 1"));
            let first = answers.next().unwrap().is_some();
            assert!(answers.all(|it| it.is_some() == first), "{tls}: all alike");
            first
        };
        (in_both("sslmode=disable"), in_both(&verified))
    }

    fn streams_over_tls(&self) -> bool {
        let streams = "select bool_and(ssl) from pg_stat_replication join pg_stat_ssl using (pid)";
        insist(&self.nodes[self.active], streams) == "t"
    }
}

fn doors(node: &Node) -> PathBuf {
    node.storage().join("postgresql/pg_hba.conf")
}

#[test]
fn a_group_gets_tls_and_loses_it_one_node_at_a_time_while_its_standby_follows() {
    // In a network: this machine needs none.
    let network = Network::new(2);
    let made = |at: u32| {
        let which = usize::try_from(at).unwrap();
        let node = alone(at, &[]).with_environment("SYNCHRONOUS", "1");
        protected(node).in_network(
            &network.namespace(which),
            &network.host(which),
            &[("client", 5432)],
        )
    };
    let mut nodes = vec![made(0), made(1)];
    begin(&mut nodes);
    insist(&nodes[0], "create table t (x int)");
    let somebodys = "hostssl all all all scram-sha-256";
    for node in &nodes {
        let mut file = fs::File::options().append(true).open(doors(node)).unwrap();
        writeln!(file, "{somebodys}").unwrap();
    }
    let mut group = Group {
        nodes,
        certificates: Certificates::new(),
        active: 0,
        rows: 0,
    };
    assert_eq!(group.let_in(), (true, false));
    group.updates("allowed");
    assert_eq!(group.let_in(), (true, true));
    assert!(group.streams_over_tls());
    group.updates("required");
    assert_eq!(group.let_in(), (false, true));
    assert!(group.streams_over_tls());
    let standby = group.standby();
    let log = group.nodes[standby].log();
    assert!(log.contains("drover: rewound to"), "{log}");
    // Whoever copies asks from elsewhere, too.
    group.nodes[standby].kill();
    group.nodes[standby].empties();
    group.renews(standby, "required");
    group.updates("allowed");
    assert_eq!(group.let_in(), (true, true));
    group.updates("");
    assert_eq!(group.let_in(), (true, false));
    for node in &group.nodes {
        let lines = fs::read_to_string(doors(node)).unwrap();
        assert!(lines.lines().any(|line| line == somebodys), "{lines}");
    }
}

fn required(certificates: [&Certificates; 2]) -> [Node; 2] {
    let mut nodes = [0, 1].map(|at| protected(alone(at, &[])));
    for (node, certificates) in nodes.iter_mut().zip(certificates) {
        certificates.shown_to(node, "required");
    }
    nodes
}

fn shows(node: &Node, certificate: &Path) -> bool {
    serial(node.host(), node.port("client"), "postgres") == Some(serial_of(certificate))
}

#[test]
fn another_certificate_is_in_force_without_a_restart_and_without_the_end_of_a_connection() {
    let certificates = Certificates::new();
    let mut nodes = required([&certificates, &certificates]);
    begin(&mut nodes);
    // That of a standby ends by itself if one of the two stands still for seconds.
    let mut connection = Session::at(&nodes[0]);
    assert!(connection.did("select 1;"));
    let certificate = certificates.path("tls.crt");
    assert!(shows(&nodes[0], &certificate));
    certificates.renew();
    until("both show another one", &mut nodes, |nodes| {
        nodes.iter().all(|node| shows(node, &certificate))
    });
    // One that nodes do not believe is no reason to end a server, which could not even take a better one then.
    certificates.show_that_of(&Certificates::new());
    until("both show a wrong one", &mut nodes, |nodes| {
        nodes.iter().all(|node| shows(node, &certificate))
    });
    for node in &nodes {
        assert!(lacks(node).is_empty());
    }
    certificates.renew();
    until("both show a good one", &mut nodes, |nodes| {
        nodes.iter().all(|node| shows(node, &certificate))
    });
    assert!(connection.did("select 1;"));
    until("both are of use", &mut nodes, all_ready);
}

#[test]
fn a_standby_believes_no_primary_of_another_authority() {
    let (own, other) = (Certificates::new(), Certificates::new());
    let mut nodes = required([&own, &other]);
    nodes[0].start("active");
    nodes[1].start("standby");
    introduce(&nodes);
    until("it has asked", &mut nodes, |nodes| {
        nodes[0].is_ready() && nodes[0].log().contains("SSL connection: tlsv1 alert")
    });
    assert!(!nodes[1].is_ready());
    assert!(!nodes[1].storage().join("postgresql").exists());
}

/// With everything that files, statements and options have rules for.
const USER: &str = r#"us"er 'na:me\ $HOME"#;
const DATABASE: &str = r#"d"b; drop'x"#;
const FIRST: &str = r"old\pass'word:1 $HOME &";
const SECOND: &str = r"new:'\\2' & more";

/// The directory of an application's user.
struct Application(TempDir);

impl Application {
    fn new(user: &str, database: &str) -> Self {
        let it = Self(TempDir::with_prefix("drover-store-").unwrap());
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(it.0.path(), open).unwrap();
        it.gets("user", user);
        it.gets("dbname", database);
        it.gets("password", FIRST);
        it
    }

    fn gets(&self, name: &str, value: &str) {
        let (new, path) = (self.0.path().join("new"), self.0.path().join(name));
        fs::write(&new, value).unwrap();
        fs::rename(new, path).unwrap();
    }

    fn shown_to(&self, node: &mut Node) {
        node.sets("DROVER_APP", self.0.path().to_str().unwrap());
    }
}

fn application(password: &str) -> Client<'_> {
    Client {
        user: USER,
        password,
        database: DATABASE,
        tls: String::new(),
    }
}

#[test]
fn an_application_has_a_user_and_a_database_and_another_password_once_it_is_given() {
    let app = Application::new(USER, DATABASE);
    // Whatever a server logs.
    let all = ["log_min_duration_statement=0", "log_statement=all"];
    let mut nodes = [0, 1].map(|at| {
        let mut node = protected(alone(at, &all)).with_environment("SYNCHRONOUS", "1");
        app.shown_to(&mut node);
        node
    });
    // Nothing is acknowledged yet.
    nodes[0].start("active");
    nodes[0].hears_of(&[]);
    let lets_in = |node: &Node, password: &str| {
        let name = application(password).asks(node, "select current_user");
        name.as_deref() == Some(USER)
    };
    until("it is let in", &mut nodes[..1], |nodes| {
        lets_in(&nodes[0], FIRST)
    });
    assert!(!lets_in(&nodes[0], SECOND));
    nodes[1].start("standby");
    introduce(&nodes);
    until("all are of use", &mut nodes, all_ready);
    let made = application(FIRST).asks(&nodes[0], "create table t (x int)");
    assert!(made.is_some(), "{}", nodes[0].log());
    let sets = |node: &Node| node.log().matches("drover: the password of").count();
    app.gets("password", &format!("{SECOND}\n"));
    until("the other one is good", &mut nodes, |nodes| {
        nodes.iter().all(|node| lets_in(node, SECOND)) && sets(&nodes[0]) == 2
    });
    assert!(!lets_in(&nodes[0], FIRST));
    // With the next primary, too. What it has of the former one stays as it is.
    nodes[0].kill();
    nodes[1].hears_of(&[]);
    promoted(&mut nodes[1]);
    assert!(lets_in(&nodes[1], SECOND));
    app.gets("password", FIRST);
    until("the first one is good again", &mut nodes, |nodes| {
        lets_in(&nodes[1], FIRST) && sets(&nodes[1]) > 0
    });
    assert_eq!((sets(&nodes[0]), sets(&nodes[1])), (2, 1));
    for node in &nodes {
        for secret in [FIRST, SECOND, "new:'", "old\\"] {
            assert!(!node.log().contains(secret), "{}", node.log());
        }
    }
}

#[test]
fn no_user_of_an_application_is_one_of_the_server_itself() {
    let app = Application::new("postgres", "app");
    let mut node = protected(alone(0, &[]));
    app.shown_to(&mut node);
    let mut nodes = [node];
    begin(&mut nodes);
    until("it says so", &mut nodes, |nodes| {
        nodes[0].log().contains("postgres is a user of the server")
    });
    app.gets("user", "pg_monitor");
    until("it says so, too", &mut nodes, |nodes| {
        let log = nodes[0].log();
        log.contains("pg_monitor is a user of the server")
    });
    assert_eq!(insist(&nodes[0], "select 1"), "1");
    // And is of use all the same, with one that it can take.
    app.gets("user", "app");
    let client = Client {
        user: "app",
        password: FIRST,
        database: "app",
        tls: String::new(),
    };
    until("another one is let in", &mut nodes, |nodes| {
        client.asks(&nodes[0], "create table t (x int)").is_some()
    });
}
