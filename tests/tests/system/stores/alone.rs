//! The script of a store without a platform: roles, peers and deaths of nodes are controlled individually, for orders
//! of events that an orchestrator does not produce on demand.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use drover_templates::{
    EmbeddedFile,
    stores::{NODE, POSTGRESQL_APPLICATION, POSTGRESQL_QUORUM},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::stores::{
    UP,
    real::{free_port, kill_9},
    run,
};

/// A slot: its retained storage, and the process of its current node if it is alive.
pub(crate) struct Node {
    pub(crate) name: String,
    ordinal: u32,
    /// Number of the current node among those that have occupied the slot.
    life: u32,
    root: TempDir,
    script: String,
    arguments: Vec<String>,
    environment: BTreeMap<&'static str, String>,
    user: Option<u32>,
    host: String,
    /// Network namespace in which it runs, and in which its ports are its own. `None` for that of the test.
    namespace: Option<String>,
    role: &'static str,
    ports: BTreeMap<&'static str, u16>,
    child: Option<Child>,
}

impl Node {
    /// A slot for the store with this script, whose node was never started.
    pub(crate) fn new(script: &EmbeddedFile, ordinal: u32, ports: &[&'static str]) -> Self {
        let root = TempDir::with_prefix("drover-store-").unwrap();
        let name = script.name.trim_end_matches(".j2").to_owned();
        let node = Self {
            name: format!("db-{ordinal}"),
            ordinal,
            life: 0,
            script: name,
            arguments: Vec::new(),
            environment: BTreeMap::from([("KEPT", "yes".to_owned())]),
            user: None,
            host: "127.0.0.1".to_owned(),
            namespace: None,
            role: "active",
            ports: ports.iter().map(|name| (*name, 0)).collect(),
            child: None,
            root,
        };
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(node.root.path(), open).unwrap();
        fs::create_dir(node.storage()).unwrap();
        fs::write(node.root.path().join(&node.script), rendered(script)).unwrap();
        node
    }

    /// Sets the arguments of the server, with the placeholders `{port}` and `{storage}`.
    pub(crate) fn with(mut self, arguments: &[&str]) -> Self {
        self.arguments
            .extend(arguments.iter().map(|&it| it.to_owned()));
        self
    }

    pub(crate) fn with_environment(mut self, name: &'static str, value: &str) -> Self {
        self.sets(name, value);
        self
    }

    pub(crate) fn sets(&mut self, name: &'static str, value: &str) {
        self.environment.insert(name, value.to_owned());
    }

    /// Sets the user data of the following nodes.
    pub(crate) fn is_given(&mut self, user_data: &[u8]) {
        let path = self.root.path().join("user-data");
        fs::write(&path, user_data).unwrap();
        self.sets("DROVER_BOOTSTRAP", path.to_str().unwrap());
    }

    /// Sets the user of the server, if the tests run as root.
    pub(crate) fn run_by(mut self, user: &str) -> Self {
        let id = run("id", &["-u", user]);
        let id = String::from_utf8_lossy(&id.stdout).trim().parse().unwrap();
        chown(self.storage(), Some(id), Some(id)).unwrap();
        self.user = Some(id);
        self
    }

    /// Sets the network namespace of the node, its address there, and its ports by name.
    pub(crate) fn in_network(
        mut self,
        namespace: &str,
        host: &str,
        ports: &[(&'static str, u16)],
    ) -> Self {
        (self.namespace, self.host) = (Some(namespace.to_owned()), host.to_owned());
        self.ports = ports.iter().copied().collect();
        self
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    pub(crate) fn storage(&self) -> PathBuf {
        self.root.path().join("storage")
    }

    /// Directory of the current or last node.
    pub(crate) fn directory(&self) -> PathBuf {
        self.root.path().join(format!("life-{}", self.life))
    }

    pub(crate) fn port(&self, name: &str) -> u16 {
        self.ports[name]
    }

    /// Deletes all retained data.
    pub(crate) fn empties(&mut self) {
        for entry in fs::read_dir(self.storage()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                fs::remove_dir_all(path).unwrap();
            } else {
                fs::remove_file(path).unwrap();
            }
        }
    }

    /// Starts a new node on the existing storage.
    pub(crate) fn start(&mut self, role: &'static str) {
        self.kill();
        self.life += 1;
        self.role = role;
        if self.namespace.is_none() {
            for port in self.ports.values_mut() {
                *port = free_port();
            }
        }
        let directory = self.directory();
        fs::create_dir(&directory).unwrap();
        if let Some(user) = self.user {
            chown(&directory, Some(user), Some(user)).unwrap();
        }
        fs::write(self.file("role"), format!("{role}\n")).unwrap();
        fs::write(self.file("peers.json"), "[]").unwrap();
        let log = fs::File::create(self.root.path().join(format!("log-{}", self.life))).unwrap();
        let mut command = self.command("run");
        let (port, storage) = (self.port("client").to_string(), self.storage());
        let filled = self.arguments.iter().map(|argument| {
            let argument = argument.replace("{port}", &port);
            argument.replace("{storage}", storage.to_str().unwrap())
        });
        command.args(filled);
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(command.spawn().unwrap());
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory().join(name)
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = self.shell();
        command.arg(self.root.path().join(&self.script)).arg(verb);
        command.current_dir(self.directory()).stdin(Stdio::null());
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        let facts = [
            ("DROVER_CLUSTER_ID", "cluster".to_owned()),
            ("DROVER_NODE_ID", self.id()),
            ("DROVER_NODE_NAME", self.name.clone()),
            ("DROVER_GROUP", "db".to_owned()),
            ("DROVER_HOST", self.host.clone()),
            ("DROVER_DIR", text(self.directory())),
            ("DROVER_STORAGE", text(self.storage())),
            ("DROVER_BOOTSTRAP", String::new()),
            ("DROVER_PEERS", text(self.file("peers.json"))),
            ("DROVER_ROLE_FILE", text(self.file("role"))),
            ("BORN", self.role.to_owned()),
        ];
        command.envs(facts).envs(&self.environment);
        for (name, port) in &self.ports {
            command.env(
                format!("DROVER_PORT_{}", name.to_uppercase()),
                port.to_string(),
            );
        }
        command
    }

    /// A shell as the node has it: by its user, in its network.
    fn shell(&self) -> Command {
        let Some(namespace) = &self.namespace else {
            let mut shell = Command::new("sh");
            if let Some(user) = self.user {
                shell.uid(user).gid(user);
            }
            return shell;
        };
        // Who enters a namespace is root.
        let mut shell = Command::new("ip");
        shell.args(["netns", "exec", namespace]);
        if let Some(user) = self.user {
            let (user, group) = (format!("--reuid={user}"), format!("--regid={user}"));
            shell.args(["setpriv", &user, &group, "--clear-groups"]);
        }
        shell.arg("sh");
        shell
    }

    fn id(&self) -> String {
        format!("{}-{}", self.name, self.life)
    }

    /// The node's own entry in the peers of others, with this role.
    pub(crate) fn seen_as(&self, role: &str) -> Value {
        json!({
            "name": self.name, "id": self.id(), "group": "db", "ordinal": self.ordinal,
            "role": role, "host": self.host, "ports": self.ports,
        })
    }

    /// Sets the peers of the node, to which its own entry is added.
    pub(crate) fn hears_of(&self, peers: &[Value]) {
        let mut all = peers.to_vec();
        all.push(self.seen_as(self.role));
        let new = self.file("peers.new");
        fs::write(&new, serde_json::to_vec(&all).unwrap()).unwrap();
        fs::rename(new, self.file("peers.json")).unwrap();
    }

    pub(crate) fn hears_role(&mut self, role: &'static str) {
        self.role = role;
        fs::write(self.file("role"), format!("{role}\n")).unwrap();
    }

    /// Makes the node active and runs its promotion hook.
    pub(crate) fn promote(&mut self) -> Output {
        self.hears_role("active");
        self.command("promote").output().unwrap()
    }

    /// Runs another command of the script.
    pub(crate) fn does(&self, verb: &str) -> Output {
        self.command(verb).output().unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("it lives").id()
    }

    /// Path of the script.
    pub(crate) fn script(&self) -> String {
        let path = self.root.path().join(&self.script);
        path.to_str().unwrap().to_owned()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.file("ready").exists()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        match &mut self.child {
            Some(child) => child.try_wait().unwrap().is_some(),
            None => true,
        }
    }

    /// Log of the current node so far.
    pub(crate) fn log(&self) -> String {
        let path = self.root.path().join(format!("log-{}", self.life));
        fs::read_to_string(path).unwrap_or_default()
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            kill_9(child.id());
            child.wait().unwrap();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The script as rendered by the templates, which insert only the parts that it includes. The lines before it, and before
/// the common part, only refuse requests.
fn rendered(script: &EmbeddedFile) -> String {
    let begin = script.content.find("#!/bin/sh").unwrap();
    let mut whole = script.content[begin..].to_owned();
    for part in [NODE, POSTGRESQL_QUORUM, POSTGRESQL_APPLICATION] {
        let include = format!("{{% include \"{}\" %}}", part.name);
        let (_, content) = part.content.split_once("{%- raw -%}\n").unwrap();
        whole = whole.replace(&include, content);
    }
    // A server with standbys: the other branch is that of machines of clouds.
    if let Some((before, rest)) = whole.split_once("{% if single is defined %}\n") {
        let (_, counts) = rest.split_once("{% else %}\n").unwrap();
        whole = format!("{before}{}", counts.replacen("{% endif %}\n", "", 1));
    }
    let marks = ["{% raw %}\n", "{%- endraw %}", "{% endraw %}"];
    marks
        .iter()
        .fold(whole, |text, mark| text.replace(mark, ""))
}

/// Introduces all living nodes to each other.
pub(crate) fn introduce(nodes: &[Node]) {
    let alive = |node: &&Node| node.child.is_some();
    for node in nodes.iter().filter(alive) {
        let others = nodes.iter().filter(alive);
        let others = others.filter(|other| other.ordinal != node.ordinal);
        let others: Vec<_> = others.map(|other| other.seen_as(other.role)).collect();
        node.hears_of(&others);
    }
}

/// Introduces all nodes to each other, whoever lives; these are active, or still called so.
pub(crate) fn introduce_as(nodes: &[Node], active: &[usize]) {
    let role = |at: usize| {
        if active.contains(&at) {
            "active"
        } else {
            "standby"
        }
    };
    for (at, node) in nodes.iter().enumerate() {
        let others = nodes.iter().enumerate().filter(|(other, _)| *other != at);
        let others: Vec<_> = others
            .map(|(other, node)| node.seen_as(role(other)))
            .collect();
        node.hears_of(&others);
    }
}

/// Promotes a node, again and again until that succeeds: on a busy machine somebody may not answer in time.
pub(crate) fn promoted(node: &mut Node) {
    let began = Instant::now();
    loop {
        let answer = node.promote();
        if answer.status.success() {
            return;
        }
        let (name, log) = (&node.name, node.log());
        assert!(began.elapsed() < UP, "{name}: {answer:?}\n{log}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Asks for a promotion until it is refused in these words: on a busy machine it may be refused for something else first.
pub(crate) fn refused(node: &mut Node, words: &[&str]) {
    let began = Instant::now();
    loop {
        let answer = node.promote();
        let said = String::from_utf8_lossy(&answer.stderr);
        assert!(!answer.status.success(), "{}: {said}", node.name);
        if words.iter().all(|word| said.contains(*word)) {
            return;
        }
        assert!(began.elapsed() < UP, "{words:?}: {said}\n{}", node.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits for a condition. On a timeout, panics with the logs of the nodes.
pub(crate) fn until(
    what: &str,
    nodes: &mut [Node],
    mut condition: impl FnMut(&mut [Node]) -> bool,
) {
    let began = Instant::now();
    while !condition(nodes) {
        if began.elapsed() > UP {
            let logs = nodes.iter().map(Node::log).collect::<Vec<_>>();
            panic!("not within {UP:?}: {what}\n{}", logs.join("\n----\n"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
