//! A cluster of a store in pods, with the operations and queries that tests need.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt,
    process::{Command, Output},
    time::Duration,
};

use drover_platform_k8s::{Settings, settings::ClassSettings};
use drover_proto::{orchestrator::v1 as pb, platform::v1::NodeRole};
use drover_testing::kubernetes::{Namespace, Raw};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::kubelet::{embedded::World, pod_of, rig};

/// As long may a store that keeps its quorum acknowledge nothing on a busy machine.
pub(crate) const PAUSE: Duration = Duration::from_secs(120);
/// Password of the servers, passed as user data.
pub(crate) const PASSWORD: &str = "not: a \\ secret";

pub(crate) struct Bench {
    pub(crate) world: World,
    pub(crate) namespace: Namespace,
    pub(crate) cluster: &'static str,
    spec: pb::ClusterSpec,
    volumes: Option<Volumes>,
}

impl Bench {
    /// Starts a cluster of a store on a platform over a namespace of its own; its group is `db`.
    pub(crate) async fn start(cluster: &'static str, spec: pb::ClusterSpec) -> Self {
        Self::over(rig().namespace().await, cluster, spec, None).await
    }

    /// Starts a cluster with a volume for each of this number of node names.
    pub(crate) async fn start_with_storage(
        cluster: &'static str,
        mut spec: pb::ClusterSpec,
        names: usize,
    ) -> Self {
        let namespace = rig().namespace().await;
        let volumes = Volumes::make(&namespace, names).await;
        spec.groups[0].storage = Some(pb::StorageSpec {
            size: SIZE.to_owned(),
            class: volumes.class.clone(),
            when_deleted: pb::StorageRetention::Delete.into(),
            ..Default::default()
        });
        Self::over(namespace, cluster, spec, Some(volumes)).await
    }

    /// Starts a cluster whose pods also may be on nodes with this taint.
    pub(crate) async fn start_tolerating(
        cluster: &'static str,
        mut spec: pb::ClusterSpec,
        taint: &str,
    ) -> Self {
        const CLASS: &str = "tolerating";
        let class = ClassSettings {
            tolerations: vec![json!({"key": taint, "operator": "Exists"})],
            ..ClassSettings::default()
        };
        let settings = Settings {
            node_classes: BTreeMap::from([(CLASS.to_owned(), class)]),
            ..Settings::default()
        };
        spec.groups[0].node_class = Some(CLASS.to_owned());
        let namespace = rig().namespace().await;
        Self::with(settings, namespace, cluster, spec, None).await
    }

    async fn over(
        namespace: Namespace,
        cluster: &'static str,
        spec: pb::ClusterSpec,
        volumes: Option<Volumes>,
    ) -> Self {
        Self::with(Settings::default(), namespace, cluster, spec, volumes).await
    }

    async fn with(
        settings: Settings,
        namespace: Namespace,
        cluster: &'static str,
        spec: pb::ClusterSpec,
        volumes: Option<Volumes>,
    ) -> Self {
        let mut world = World::new().await;
        let settings = Settings {
            kubeconfig: Some(rig().kubeconfig().to_owned()),
            namespaces: vec![namespace.name.clone()],
            ..settings
        };
        world.add("k8s", settings).await;
        world.apply(cluster, spec.clone()).await;
        Self {
            world,
            namespace,
            cluster,
            spec,
            volumes,
        }
    }

    pub(crate) async fn ready(&self, nodes: usize) {
        self.world.ready(self.cluster, nodes).await;
    }

    pub(crate) async fn nodes(&self) -> Vec<pb::Node> {
        self.world.nodes(self.cluster).await
    }

    pub(crate) async fn one(&self, role: NodeRole) -> pb::Node {
        let nodes = self.nodes().await;
        let found = nodes.iter().find(|node| node.role() == role);
        found.unwrap_or_else(|| panic!("no {role:?}")).clone()
    }

    /// Hosts that the service of the group leads to.
    pub(crate) async fn service(&self) -> BTreeSet<String> {
        led_to(&self.namespace.raw, &self.namespace.name, self.cluster).await
    }

    /// Address of the service of the group.
    pub(crate) async fn service_address(&self) -> String {
        let name = format!("{}-db", self.cluster);
        let service = self.namespace.get("services", &name).await.unwrap();
        let address = service["spec"]["clusterIP"].as_str();
        address.expect("it has an address").to_owned()
    }

    /// Waits until the service leads only to the active node.
    pub(crate) async fn led(&self) {
        self.world
            .until("the service leads to the active node", async |_| {
                let host = host(&self.one(NodeRole::Active).await);
                self.service().await == BTreeSet::from([host])
            })
            .await;
    }

    /// Waits until another node is active and serves.
    pub(crate) async fn taken_over(
        &self,
        from: &pb::Node,
        served: impl AsyncFn(&pb::Node) -> bool,
    ) {
        let began = Instant::now();
        self.world
            .until("another node is active and serves", async |_| {
                let nodes = self.nodes().await;
                let is_other =
                    |node: &&pb::Node| node.role() == NodeRole::Active && node.id != from.id;
                match nodes.iter().find(is_other) {
                    Some(node) if !host(node).is_empty() => served(node).await,
                    _ => false,
                }
            })
            .await;
        let took = began.elapsed();
        println!("{}: another one serves after {took:?}", self.cluster);
    }

    /// Waits until a new node with this name is ready as a standby.
    pub(crate) async fn back(&self, from: &pb::Node) {
        self.world
            .until("the old name comes back as a standby", async |_| {
                let nodes = self.nodes().await;
                nodes.iter().any(|node| {
                    node.name == from.name
                        && node.id != from.id
                        && node.role() == NodeRole::Standby
                        && node.state() == pb::NodeState::Ready
                })
            })
            .await;
        // Repeated deaths would delay the next replacement by an increasing backoff.
        self.world.reset_back_off(self.cluster).await;
    }

    /// Applies different attributes, and waits until every node is replaced by one that has them.
    pub(crate) async fn renew(&self, attributes: &Value) {
        let before = self.nodes().await;
        let mut spec = self.spec.clone();
        spec.attributes = in_pods(attributes);
        self.world.apply(self.cluster, spec).await;
        self.world
            .until("every node was renewed", async |_| {
                let nodes = self.nodes().await;
                let is_new = |node: &pb::Node| before.iter().all(|old| old.id != node.id);
                nodes.len() == before.len() && nodes.iter().all(is_new)
            })
            .await;
        self.ready(before.len()).await;
    }

    pub(crate) async fn pod(&self, node: &pb::Node) -> Value {
        let pod = pod_of(&self.namespace, &node.id).await;
        self.namespace.get("pods", &pod).await.unwrap()
    }

    /// Logs of a node.
    pub(crate) async fn log(&self, node: &pb::Node) -> String {
        let pod = pod_of(&self.namespace, &node.id).await;
        let path = format!("{}/{pod}/log", self.namespace.path("pods"));
        let log = self.namespace.raw.get(&path).await.unwrap();
        log.as_str().unwrap_or_default().to_owned()
    }

    /// Name and uid of the volume claim of each node, by the node's name.
    pub(crate) async fn claims(&self) -> BTreeMap<String, String> {
        let mut claims = BTreeMap::new();
        for node in self.nodes().await {
            let pod = self.pod(&node).await;
            let volumes = pod["spec"]["volumes"].as_array().unwrap();
            let data = volumes.iter().find(|volume| volume["name"] == "data");
            let claim = &data.unwrap()["persistentVolumeClaim"]["claimName"];
            let claim = claim.as_str().expect("data are in a claim");
            let claim = self.namespace.get("persistentvolumeclaims", claim).await;
            let metadata = &claim.unwrap()["metadata"];
            claims.insert(
                node.name,
                format!("{}/{}", metadata["name"], metadata["uid"]),
            );
        }
        claims
    }

    /// Arguments of the server of each node, by the node's name.
    pub(crate) async fn arguments(&self, program: &str) -> BTreeMap<String, Vec<String>> {
        let mut all = BTreeMap::new();
        for node in self.nodes().await {
            let pid = server(&self.pod(&node).await, program);
            all.insert(node.name, arguments(&pid));
        }
        all
    }

    pub(crate) async fn kill_9(&self, node: &pb::Node, program: &str) {
        signal(&server(&self.pod(node).await, program), "-9");
    }

    /// Has a node answer nothing any more, as one whose host has lost its power. Whoever watches hosts does not notice.
    pub(crate) async fn silence(&self, node: &pb::Node, program: &str) -> Silence {
        let pod = self.pod(node).await;
        let server = server(&pod, program);
        // First, since nothing can be run in the pod without it: a probe would find its network gone.
        let shim = ancestor(&server, "containerd-shim");
        signal(&shim, "-STOP");
        let mut silence = Silence(vec![shim]);
        let network = ["-t", &server, "-n"];
        let down = ["ip", "link", "set", "eth0", "down"];
        let answer = run("nsenter", &[&network[..], &down].concat());
        assert!(answer.status.success(), "{answer:?}");
        // Some are gone by then, and some have come.
        for _ in 0..3 {
            for pid in processes(&pod) {
                let _ = run("kill", &["-STOP", &pid]);
                silence.0.push(pid);
            }
        }
        silence
    }

    pub(crate) async fn delete_pod(&self, node: &pb::Node) {
        let pod = pod_of(&self.namespace, &node.id).await;
        self.namespace.delete("pods", &pod).await;
    }

    /// Evicts the pod of a node, as `kubectl drain` does, once the disruption budget of its group lets it go.
    pub(crate) async fn evict(&self, node: &pb::Node) {
        let pod = pod_of(&self.namespace, &node.id).await;
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": pod, "namespace": self.namespace.name},
        });
        let path = format!("{}/{pod}/eviction", self.namespace.path("pods"));
        self.world
            .until("the budget lets the pod go", async |_| {
                let asked = self.namespace.raw.create(&path, &eviction).await;
                if let Err(refused) = &asked {
                    assert_eq!(refused.code, 429, "{refused:?}");
                }
                asked.is_ok()
            })
            .await;
    }

    /// Deletes the cluster, and checks that nothing is left of it.
    pub(crate) async fn end(self) {
        self.world.delete(self.cluster).await;
        self.world.gone(self.cluster).await;
        self.namespace.until_empty("after the cluster").await;
        if let Some(volumes) = &self.volumes {
            volumes.remove(&self.namespace.raw).await;
        }
        self.world.end().await;
    }
}

/// Hosts that the service of a cluster's group leads to.
pub(crate) async fn led_to(raw: &Raw, namespace: &str, cluster: &str) -> BTreeSet<String> {
    let path = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
    let slices = raw.get(&path).await.unwrap();
    let name = format!("{cluster}-db");
    let of_service = slices["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|slice| slice["metadata"]["labels"]["kubernetes.io/service-name"] == *name);
    let endpoints = of_service.flat_map(|slice| slice["endpoints"].as_array());
    endpoints
        .flatten()
        .filter(|endpoint| endpoint["conditions"]["ready"] == true)
        .flat_map(|endpoint| endpoint["addresses"].as_array())
        .flatten()
        .map(|address| address.as_str().unwrap().to_owned())
        .collect()
}

/// Requested size of each volume.
const SIZE: &str = "1Gi";

/// Directories of this machine as volumes in a storage class of their own: the rig does not have a provisioner.
struct Volumes {
    class: String,
    folders: Vec<TempDir>,
}

impl Volumes {
    async fn make(namespace: &Namespace, count: usize) -> Self {
        let class = format!("{}-storage", namespace.name);
        let mut folders = Vec::new();
        for number in 0..count {
            let folder = tempfile::tempdir().unwrap();
            // The kubelet does not change the ownership of such a directory, and the stores do not run as root.
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
            let volume = json!({
                "apiVersion": "v1", "kind": "PersistentVolume",
                "metadata": {"name": format!("{class}-{number}")},
                "spec": {
                    "capacity": {"storage": SIZE},
                    "accessModes": ["ReadWriteOnce"],
                    "persistentVolumeReclaimPolicy": "Retain",
                    "storageClassName": class,
                    "hostPath": {"path": folder.path()},
                },
            });
            namespace.raw.create(VOLUMES, &volume).await.unwrap();
            folders.push(folder);
        }
        Self { class, folders }
    }

    async fn remove(&self, raw: &Raw) {
        for number in 0..self.folders.len() {
            let path = format!("{VOLUMES}/{}-{number}", self.class);
            raw.delete(&path).await.unwrap();
        }
    }
}

const VOLUMES: &str = "/api/v1/persistentvolumes";

fn in_pods(attributes: &Value) -> Option<prost_types::Struct> {
    let mut all = json!({"image_pull_policy": "Never"});
    all.as_object_mut()
        .unwrap()
        .extend(attributes.as_object().unwrap().clone());
    all.as_object().map(drover_convert::value::to_struct)
}

pub(crate) fn spec(software: &str, size: u32, standby: u32, attributes: Value) -> pb::ClusterSpec {
    pb::ClusterSpec {
        store: Some(pb::StoreSpec {
            software: software.to_owned(),
            ..Default::default()
        }),
        platforms: vec![pb::PlatformChoice {
            name: "k8s".to_owned(),
            ..Default::default()
        }],
        groups: vec![pb::GroupSpec {
            name: "db".to_owned(),
            size: Some(size),
            standby: (standby > 0).then_some(standby),
            ..Default::default()
        }],
        attributes: in_pods(&attributes),
        ..Default::default()
    }
}

pub(crate) fn endpoint(node: &pb::Node) -> String {
    node.endpoints.get("client").cloned().unwrap_or_default()
}

pub(crate) fn host(node: &pb::Node) -> String {
    let endpoint = endpoint(node);
    let host = endpoint.rsplit_once(':').map(|(host, _)| host.to_owned());
    host.unwrap_or_default()
}

/// Pids of all processes in a pod.
pub(crate) fn processes(pod: &Value) -> Vec<String> {
    let own = format!("pod{}", pod["metadata"]["uid"].as_str().unwrap());
    let is_in_pod = |pid: &String| {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        groups.contains(&own)
    };
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter(is_in_pod)
        .collect()
}

/// Processes that stand still until this is dropped.
pub(crate) struct Silence(Vec<String>);

impl Drop for Silence {
    fn drop(&mut self) {
        for pid in &self.0 {
            // Some may have been killed.
            let _ = run("kill", &["-CONT", pid]);
        }
    }
}

fn parent(pid: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("PPid:"));
    line.map_or(String::new(), |line| line[5..].trim().to_owned())
}

/// Pid of the next process above another one whose name begins so.
fn ancestor(pid: &str, name: &str) -> String {
    let mut pid = parent(pid);
    while !fs::read_to_string(format!("/proc/{pid}/comm"))
        .unwrap_or_else(|_| panic!("no {name} above"))
        .starts_with(name)
    {
        pid = parent(&pid);
    }
    pid
}

/// Pid of the server in a pod: the process whose parent is not also a process of the program.
pub(crate) fn server(pod: &Value, program: &str) -> String {
    let is_server = |pid: &str| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.trim() == program
    };
    let mut servers = processes(pod)
        .into_iter()
        .filter(|pid| is_server(pid) && !is_server(&parent(pid)));
    servers
        .next()
        .unwrap_or_else(|| panic!("no {program} in {}", pod["metadata"]["name"]))
}

/// Command line of a process.
pub(crate) fn arguments(pid: &str) -> Vec<String> {
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split('\0').map(str::to_owned).collect()
}

pub(crate) fn signal(pid: &str, signal: &str) {
    let sent = Command::new("kill").args([signal, pid]).status().unwrap();
    assert!(sent.success(), "{signal} to {pid}");
}

pub(crate) fn run(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.arg("20").arg(program).args(arguments);
    command.env("ETCDCTL_API", "3").env("LC_ALL", "C");
    command.env("PGPASSWORD", PASSWORD);
    command.output().unwrap()
}

pub(crate) fn said(output: &Output) -> Option<String> {
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(text)
}

pub(crate) fn password() -> pb::BootstrapSource {
    pb::BootstrapSource {
        source: Some(pb::bootstrap_source::Source::Text(PASSWORD.to_owned())),
        ..Default::default()
    }
}

/// Runs SQL on one of these hosts.
pub(crate) fn sql(hosts: &[String], writable: bool, statement: &str) -> Option<String> {
    let session = if writable { "read-write" } else { "any" };
    let to = format!(
        "host={} port=5432 user=postgres dbname=postgres connect_timeout=2 target_session_attrs={session}",
        hosts.join(",")
    );
    said(&run("psql", &["-XAtqw", "-d", &to, "-c", statement]))
}

/// Client endpoints of these nodes.
pub(crate) fn clients(nodes: &[pb::Node]) -> Vec<String> {
    let found = nodes.iter().map(endpoint);
    found.filter(|endpoint| !endpoint.is_empty()).collect()
}

/// Runs a command of etcdctl.
pub(crate) fn etcd_at(endpoints: &[String], command: &[&str]) -> Option<String> {
    let urls: Vec<_> = endpoints.iter().map(|it| format!("http://{it}")).collect();
    let endpoints = format!("--endpoints={}", urls.join(","));
    let mut arguments = vec![&*endpoints, "--dial-timeout=1s", "--command-timeout=3s"];
    arguments.extend(command);
    said(&run("etcdctl", &arguments))
}

/// Ids of the nodes that are voting members.
pub(crate) fn voters(endpoints: &[String]) -> BTreeSet<String> {
    let members = etcd_at(endpoints, &["member", "list"]).unwrap_or_default();
    let members = members
        .lines()
        .map(|line| line.split(", ").collect::<Vec<_>>());
    members
        .filter(|member| member.get(1) == Some(&"started") && member.last() == Some(&"false"))
        .map(|member| member[2].to_owned())
        .collect()
}
