//! The servers under test: an orchestrator over a simulated platform, and an agent, with a planted secret.

use std::{
    collections::BTreeMap, fs, io::Write, net::SocketAddr, os::unix::fs::OpenOptionsExt,
    path::Path, sync::Arc, time::Duration,
};

use drover_agent::{Agent, AgentSettings};
use drover_client::{Channel, OrchestratorClient, connect, in_process};
use drover_manifest::Manifests;
use drover_orchestrator::{LimitSettings, Orchestrator, SecretsSettings, Settings};
use drover_platform_cloud::{PlatformServer, drivers::simulated::SimulatedSettings};
use drover_proto::{
    DESCRIPTORS,
    orchestrator::v1::{self as pb, bootstrap_source, secret_value},
    platform::v1 as wire,
};
use drover_server::{Running, ServerSettings, Shutdown, listen, spawn};
use drover_testing::{
    needles::Needles,
    platform::requests::{adoption, provision, removal},
    wait::until,
};
use prost_reflect::{
    DescriptorPool, DynamicMessage,
    prost::{Message, Name},
};
use tempfile::TempDir;
use uuid::Uuid;

use crate::calls::Method;

/// Deadline of a call that must succeed.
const CALL: Duration = Duration::from_secs(60);
/// Capacity of the platform in nodes: bounds what inputs can create.
const CAPACITY: u32 = 300;
/// Services that are not part of Drover, and only receive raw bytes.
const FOREIGN: [&str; 3] = [
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
];

/// Must not be leaked to anyone.
pub(crate) const SECRET: &str = "Zq7/Tr0ub4dor+Zebra=77&Quux!Vortex_42%kM";

pub(crate) struct World {
    orchestrator: Orchestrator,
    site: PlatformServer,
    running: Running,
    agent: Agent,
    pub(crate) methods: Vec<Method>,
    /// Valid messages by type.
    valid: BTreeMap<String, Vec<DynamicMessage>>,
    /// Names and ids of existing objects.
    pub(crate) words: Vec<String>,
    pub(crate) needles: Needles,
    pub(crate) http: SocketAddr,
    /// A request for a node with user data, to be mutated.
    pub(crate) provision: wire::ProvisionRequest,
    pub(crate) platform: Channel,
    /// Declared last, so that it is dropped last.
    _directory: TempDir,
}

fn write_key(path: &Path) {
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .unwrap();
    file.write_all(drover_orchestrator::new_key().unwrap().as_bytes())
        .unwrap();
}

impl World {
    pub(crate) async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let settings = SimulatedSettings {
            capacity: Some(CAPACITY),
            ledger: false,
            ..SimulatedSettings::default()
        };
        let site = PlatformServer::open(settings.into()).await.unwrap();
        let serve = ServerSettings {
            listen: ([127, 0, 0, 1], 0).into(),
            ..ServerSettings::default()
        };
        let listener = listen(&serve).await.unwrap();
        let running = spawn(site.service(), listener, &serve, Shutdown::new()).unwrap();
        let platform = in_process(site.routes());
        let orchestrator = orchestrator(directory.path(), platform.clone()).await;
        let agent = AgentSettings {
            listen: ([127, 0, 0, 1], 0).into(),
            insecure: false,
            allowed_hosts: Vec::new(),
            node_id: "db-0".to_owned(),
            cluster_id: "orders".to_owned(),
            store: String::new(),
            version: String::new(),
            unhealthy_file: None,
            start_delay: None,
            fail_after: None,
        };
        let agent = drover_agent::start(agent, Shutdown::new()).await.unwrap();
        let mut needles = Needles::default();
        needles.add("the secret", SECRET.as_bytes());
        let mut world = Self {
            methods: Vec::new(),
            valid: BTreeMap::new(),
            words: vec!["orders-p".to_owned()],
            needles,
            http: running.address(),
            provision: wire::ProvisionRequest::default(),
            platform,
            orchestrator,
            site,
            running,
            agent,
            _directory: directory,
        };
        world.tend().await;
        let api = world.api();
        until("the cluster has its nodes", async || {
            let nodes = api.list_nodes(pb::ListNodesRequest::default(), CALL).await;
            let nodes = nodes.unwrap().nodes;
            let made = nodes
                .iter()
                .all(|node| node.state() == pb::NodeState::Ready);
            (made && nodes.len() == 2).then_some(())
        })
        .await;
        world.learn().await;
        world
    }

    pub(crate) async fn stop(self) {
        self.running.shutdown().await;
        self.agent.shutdown().await;
        self.orchestrator.kill().await;
        self.site.shutdown().await;
    }

    fn api(&self) -> OrchestratorClient {
        OrchestratorClient::new(in_process(self.orchestrator.routes()))
    }

    /// Restores objects that inputs may have removed.
    pub(crate) async fn tend(&self) {
        let api = self.api();
        let platform = pb::RegisterPlatformRequest {
            platform: Some(pb::Platform {
                name: "sim".to_owned(),
                spec: Some(pb::PlatformSpec {
                    endpoint: "http://sim".to_owned(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let _ = api.register_platform(platform, CALL).await;
        let _ = api.apply_secret(secret(), CALL).await;
        let request = pb::ApplyClusterRequest {
            cluster: Some(cluster()),
            ..Default::default()
        };
        let _ = api.apply_cluster(request, CALL).await;
    }

    /// The valid messages of a type.
    pub(crate) fn valid(&self, name: &str) -> &[DynamicMessage] {
        self.valid.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// Discovers the methods, and the existing names and ids.
    async fn learn(&mut self) {
        let pool = DescriptorPool::decode(DESCRIPTORS).unwrap();
        let orchestrator = in_process(self.orchestrator.routes());
        let network = |address: SocketAddr| connect(&format!("http://{address}").parse().unwrap());
        let (agent, door) = (network(self.agent.address()), network(self.http));
        for service in pool.services() {
            let channel = match service.parent_file().package_name() {
                "drover.orchestrator.v1" => &orchestrator,
                "drover.platform.v1" => &self.platform,
                _ => &agent,
            };
            self.methods.extend(service.methods().map(|method| Method {
                path: format!("/{}/{}", service.full_name(), method.name()),
                input: Some(method.input()),
                streams: method.is_server_streaming(),
                channel: channel.clone(),
            }));
        }
        self.methods.extend(FOREIGN.map(|path| Method {
            path: path.to_owned(),
            input: None,
            streams: true,
            channel: door.clone(),
        }));
        self.learn_platform(&pool).await;
        self.learn_orchestrator(&pool).await;
    }

    fn add<M: Message + Name>(&mut self, pool: &DescriptorPool, message: &M) {
        let of = pool.get_message_by_name(&M::full_name()).unwrap();
        let mut dynamic = DynamicMessage::new(of);
        dynamic.transcode_from(message).unwrap();
        self.valid.entry(M::full_name()).or_default().push(dynamic);
    }

    async fn learn_platform(&mut self, pool: &DescriptorPool) {
        let client = drover_client::PlatformClient::new(self.platform.clone());
        let platform = client.get_platform(CALL).await.unwrap();
        let nodes = client
            .discover_page(wire::DiscoverRequest::default(), CALL)
            .await
            .unwrap()
            .nodes;
        let fence = wire::Fence {
            store_id: Uuid::new_v4().to_string(),
            shard: 0,
            epoch: 1,
        };
        let owner = Uuid::new_v4();
        self.provision = provision(&platform.uid, fence.clone(), ("carts", owner), "web", 0..1);
        self.provision.validate_only = true;
        let secret = wire::TemplateSecret {
            text: SECRET.to_owned(),
        };
        self.provision.secrets = [("p".to_owned(), secret)].into_iter().collect();
        self.provision.bootstrap = Some(wire::Bootstrap {
            render: true,
            parse_only: false,
            user_data: Some(wire::bootstrap::UserData::Text("{{ node.id }}".to_owned())),
        });
        self.add(pool, &self.provision.clone());
        self.add(
            pool,
            &provision(&platform.uid, fence.clone(), ("carts", owner), "db", 0..2),
        );
        self.words.extend([
            platform.uid.clone(),
            owner.to_string(),
            fence.store_id.clone(),
        ]);
        for node in &nodes {
            self.add(pool, &removal(&platform.uid, fence.clone(), node));
            self.add(
                pool,
                &adoption(&platform.uid, fence.clone(), node, ("carts", owner)),
            );
            let target = wire::NodeTarget {
                expected_platform_uid: platform.uid.clone(),
                cluster_id: node.cluster_id.clone(),
                node_id: node.node_id.clone(),
                ..Default::default()
            };
            let start = wire::ExecStart {
                node: Some(target.clone()),
                fence: Some(fence.clone()),
                command: vec!["true".to_owned()],
                ..Default::default()
            };
            let input = Some(wire::exec_request::Input::Start(start));
            self.add(pool, &wire::ExecRequest { input });
            let logs = wire::StreamLogsRequest {
                node: Some(target),
                ..Default::default()
            };
            self.add(pool, &logs);
            let slot = node.slot.clone().unwrap_or_default();
            self.words
                .extend([node.node_id.clone(), slot.request_id, slot.owner]);
        }
    }

    async fn learn_orchestrator(&mut self, pool: &DescriptorPool) {
        let mut clusters = vec![cluster()];
        for text in examples() {
            let mut manifests = Manifests::default();
            manifests.add_text("manifest.yaml", ".".into(), text);
            for document in manifests.decode(None).clusters {
                let mut cluster = document.object;
                let spec = cluster.spec.get_or_insert_default();
                for platform in &mut spec.platforms {
                    platform.name = "sim".to_owned();
                }
                clusters.push(cluster);
            }
        }
        for cluster in clusters {
            let apply = pb::ApplyClusterRequest {
                cluster: Some(cluster.clone()),
                ..Default::default()
            };
            self.add(pool, &apply);
            let subject = Some(pb::plan_cluster_request::Subject::Cluster(cluster));
            self.add(
                pool,
                &pb::PlanClusterRequest {
                    subject,
                    ..Default::default()
                },
            );
        }
        self.add(pool, &secret());
        let api = self.api();
        let nodes = api
            .list_nodes(pb::ListNodesRequest::default(), CALL)
            .await
            .unwrap();
        for node in nodes.nodes {
            let start = pb::ExecNodeStart {
                cluster: node.cluster.clone(),
                id: node.id.clone(),
                command: vec!["true".to_owned()],
                ..Default::default()
            };
            let input = Some(pb::exec_node_request::Input::Start(start));
            self.add(pool, &pb::ExecNodeRequest { input });
            self.words.extend([node.id, node.name]);
        }
    }
}

async fn orchestrator(directory: &Path, platform: Channel) -> Orchestrator {
    let keys = directory.join("keys");
    write_key(&keys);
    let settings = Settings {
        data_dir: directory.join("store"),
        secrets: SecretsSettings {
            key_file: Some(keys),
        },
        // All inputs come from the same caller.
        limits: LimitSettings {
            plans_per_caller: 1_000,
            plans_per_second_per_caller: 1_000_000,
            ..LimitSettings::default()
        },
        ..Settings::default()
    };
    let nobody = in_process(tonic::service::Routes::default());
    let way = move |_| -> drover_orchestrator::Connector {
        Arc::new(move |spec, _| {
            let there = spec.endpoint == "http://sim";
            Ok(if there {
                platform.clone()
            } else {
                nobody.clone()
            })
        })
    };
    Orchestrator::open_through(&settings, way).await.unwrap()
}

fn secret() -> pb::ApplySecretRequest {
    let value = pb::SecretValue {
        value: Some(secret_value::Value::Text(SECRET.to_owned())),
    };
    pb::ApplySecretRequest {
        name: "orders-p".to_owned(),
        data: [("k".to_owned(), value)].into_iter().collect(),
        ..Default::default()
    }
}

/// A cluster whose nodes use the secret.
fn cluster() -> pb::Cluster {
    let key = pb::SecretKeyRef {
        name: "orders-p".to_owned(),
        key: "k".to_owned(),
    };
    let group = pb::GroupSpec {
        name: "db".to_owned(),
        size: Some(2),
        secrets: vec![pb::TemplateSecret {
            name: "p".to_owned(),
            secret_key_ref: Some(key),
        }],
        bootstrap: Some(pb::BootstrapSource {
            source: Some(bootstrap_source::Source::Text("{{ secrets.p }}".to_owned())),
            render: true,
        }),
        ..Default::default()
    };
    let spec = pb::ClusterSpec {
        platforms: vec![pb::PlatformChoice {
            name: "sim".to_owned(),
            ..Default::default()
        }],
        groups: vec![group],
        ..Default::default()
    };
    pb::Cluster {
        name: "orders".to_owned(),
        spec: Some(spec),
        ..Default::default()
    }
}

/// The example manifests of the distribution.
pub(crate) fn examples() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/examples");
    let mut paths: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let texts = paths.iter().filter(|path| path.is_file());
    texts
        .map(|path| fs::read_to_string(path).unwrap())
        .collect()
}
