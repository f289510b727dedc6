//! Services that are made by calls lead to pods that are made by calls; a NetworkPolicy is what kubectl shows.

use std::{collections::BTreeMap, time::Duration};

use drover_client::Channel;
use drover_proto::{
    common::v1::{LabelSelector, process_output::Output},
    kubernetes::v1::{
        self as api, ServiceType, network_peer::Peer,
        network_policy_service_client::NetworkPolicyServiceClient,
        pod_service_client::PodServiceClient, port_ref::Port,
        service_service_client::ServiceServiceClient,
    },
};
use drover_resources::bytes;
use drover_testing::kubernetes::{Options, Rig, until};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{IMAGE, bench};
use crate::{
    bench::Bench,
    conformance::{channel, over_the_api_server},
};

const PAGE: &str = "the page of the pod";
/// For a connection that leads somewhere.
const SOON: Duration = Duration::from_secs(5);

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

fn selector(pairs: &[(&str, &str)]) -> Option<LabelSelector> {
    Some(LabelSelector {
        match_labels: labels(pairs),
        match_expressions: Vec::new(),
    })
}

/// A pod that serves a page, one that asks for it, and this machine.
struct Net {
    bench: Bench,
    channel: Channel,
    node: String,
}

impl Net {
    async fn new(bench: Bench) -> Self {
        let channel = channel(over_the_api_server(&bench).await);
        let node = bench.namespace.raw.get("/api/v1/nodes/real-0").await;
        let node = node.unwrap()["status"]["addresses"][0]["address"].clone();
        let net = Self {
            bench,
            channel,
            node: node.as_str().unwrap().to_owned(),
        };
        let serve = format!(
            "mkdir -p /tmp/www; echo '{PAGE}' > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www"
        );
        for (name, command) in [("web", &*serve), ("client", "exec sleep 3600")] {
            let mut pod = net.bench.pod(name);
            pod.metadata.as_mut().unwrap().labels = labels(&[("app", name)]);
            let spec = pod.spec.as_mut().unwrap();
            spec.termination_grace_period = Some(prost_types::Duration::default());
            let container = &mut spec.containers[0];
            IMAGE.clone_into(&mut container.image);
            container.command = ["sh", "-c", command].map(str::to_owned).to_vec();
            container.ports = vec![api::ContainerPort {
                name: "http".to_owned(),
                port: 8080,
                ..api::ContainerPort::default()
            }];
            net.bench.ready(pod).await;
        }
        net
    }

    /// A service for port 80 that leads to the pod, made by the call.
    async fn service(
        &self,
        name: &str,
        change: impl FnOnce(&mut api::ServiceSpec),
    ) -> api::ServiceSpec {
        let mut spec = api::ServiceSpec {
            selector: labels(&[("app", "web")]),
            ports: vec![api::ServicePort {
                port: 80,
                target_port: Some(api::PortRef {
                    port: Some(Port::Name("http".to_owned())),
                }),
                ..api::ServicePort::default()
            }],
            ..api::ServiceSpec::default()
        };
        change(&mut spec);
        let request = api::CreateServiceRequest {
            service: Some(api::Service {
                metadata: self.bench.metadata(name),
                spec: Some(spec),
                ..api::Service::default()
            }),
        };
        let made = ServiceServiceClient::new(self.channel.clone())
            .create_service(request)
            .await
            .unwrap();
        made.into_inner().service.unwrap().spec.unwrap()
    }

    /// What the pod `client` gets from an address.
    async fn asked_by_a_pod(&self, address: &str, port: u32) -> String {
        let request = api::RunScriptRequest {
            namespace: self.bench.namespace.name.clone(),
            pod: "client".to_owned(),
            script: format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {address} {port}"),
            ..api::RunScriptRequest::default()
        };
        let mut answers = PodServiceClient::new(self.channel.clone())
            .run_script(request)
            .await
            .unwrap()
            .into_inner();
        let mut text = String::new();
        while let Some(answer) = answers.message().await.unwrap() {
            match answer.output.unwrap().output.unwrap() {
                Output::Stdout(chunk) => text += &String::from_utf8(bytes(chunk)).unwrap(),
                Output::Stderr(_) | Output::ExitCode(_) => {}
            }
        }
        text
    }

    /// The page comes from an address, to this machine and to the other pod.
    async fn answers(&self, what: &str, address: &str, port: u32) {
        let is_page = |answer: &str| answer.starts_with("HTTP/1.1 200") && answer.contains(PAGE);
        until(&format!("{what} answers this machine"), || async {
            let answer = asked_from_here(address, port).await.ok()?;
            is_page(&answer).then_some(())
        })
        .await;
        let answer = self.asked_by_a_pod(address, port).await;
        assert!(is_page(&answer), "{what}, from a pod: {answer:?}");
    }
}

async fn asked_from_here(address: &str, port: u32) -> std::io::Result<String> {
    let port = u16::try_from(port).unwrap();
    let ask = async {
        let mut stream = TcpStream::connect((address, port)).await?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    };
    timeout(SOON, ask).await?
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_of_each_type_answers_requests_from_this_machine_and_from_pods() {
    let Some(bench) = bench().await else { return };
    let net = Net::new(bench).await;

    let internal = net.service("internal", |_| {}).await;
    net.answers("a ClusterIP", &internal.cluster_ip, 80).await;

    for (name, kind) in [
        ("open", ServiceType::NodePort),
        ("balanced", ServiceType::LoadBalancer),
    ] {
        let spec = net.service(name, |spec| spec.r#type = kind.into()).await;
        let node_port = spec.ports[0].node_port;
        net.answers(name, &spec.cluster_ip, 80).await;
        net.answers(&format!("the node port of {name}"), &net.node, node_port)
            .await;
    }

    // A headless service has only the addresses of its pods.
    let headless = net
        .service("headless", |spec| "None".clone_into(&mut spec.cluster_ip))
        .await;
    assert_eq!(headless.cluster_ip, "None");
    let namespace = &net.bench.namespace;
    let endpoint = until("the headless service has an endpoint", || async {
        let slices = namespace.list("endpointslices.discovery.k8s.io").await;
        let of = |it: &&Value| it["metadata"]["labels"]["kubernetes.io/service-name"] == "headless";
        let slice = slices.iter().find(of)?.clone();
        let address = slice["endpoints"][0]["addresses"][0].as_str()?.to_owned();
        let port = u32::try_from(slice["ports"][0]["port"].as_u64()?).ok()?;
        Some((address, port))
    })
    .await;
    let pod = namespace.get("pods", "web").await.unwrap();
    assert_eq!(pod["status"]["podIP"], endpoint.0);
    net.answers("an endpoint", &endpoint.0, endpoint.1).await;

    // An external name is an answer of DNS and nothing else.
    let external = net
        .service("external", |spec| {
            spec.r#type = ServiceType::ExternalName.into();
            "web.example".clone_into(&mut spec.external_name);
            spec.selector.clear();
            spec.ports.clear();
        })
        .await;
    assert_eq!(
        (&*external.external_name, &*external.cluster_ip),
        ("web.example", "")
    );

    // It was the service that led there: one that selects no pod is refused.
    let nowhere = net
        .service("nowhere", |spec| spec.selector = labels(&[("app", "no")]))
        .await;
    until("a service without pods refuses", || async {
        let error = asked_from_here(&nowhere.cluster_ip, 80).await.err()?;
        (error.kind() == std::io::ErrorKind::ConnectionRefused).then_some(())
    })
    .await;
    assert_eq!(net.asked_by_a_pod(&nowhere.cluster_ip, 80).await, "");
    namespace.remove().await;
}

/// What a rule of the test's policy is as YAML.
fn expected_rule(side: &str) -> Value {
    json!({
        side: [
            {"podSelector": {"matchLabels": {"app": "client"}}},
            {
                "namespaceSelector": {"matchLabels": {"team": "blue"}},
                "podSelector": {"matchLabels": {"app": "web"}},
            },
            {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
        ],
        "ports": [
            {"protocol": "TCP", "port": "http"},
            {"protocol": "UDP", "port": 8000, "endPort": 8080},
        ],
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_policy_is_what_kubectl_shows_with_peers_and_ports_in_one_rule() {
    let Some(bench) = bench().await else { return };
    let peer = |app: &str, namespaces| api::NetworkPeer {
        peer: Some(Peer::Pods(api::PodPeer {
            selector: selector(&[("app", app)]),
            namespace_selector: namespaces,
        })),
    };
    let block = api::NetworkPeer {
        peer: Some(Peer::IpBlock(api::IpBlock {
            cidr: "10.0.0.0/8".to_owned(),
            except_cidrs: vec!["10.1.0.0/16".to_owned()],
        })),
    };
    let port = |port| Some(api::PortRef { port: Some(port) });
    let rule = api::NetworkPolicyRule {
        peers: vec![
            peer("client", None),
            peer("web", selector(&[("team", "blue")])),
            block,
        ],
        ports: vec![
            api::NetworkPort {
                protocol: api::Protocol::Tcp.into(),
                port: port(Port::Name("http".to_owned())),
                end_port: 0,
            },
            api::NetworkPort {
                protocol: api::Protocol::Udp.into(),
                port: port(Port::Number(8000)),
                end_port: 8080,
            },
        ],
    };
    let policy = api::NetworkPolicy {
        metadata: bench.metadata("policy"),
        spec: Some(api::NetworkPolicySpec {
            pod_selector: selector(&[("app", "web")]),
            ingress: vec![rule.clone()],
            egress: vec![rule],
            ..api::NetworkPolicySpec::default()
        }),
    };
    let request = api::CreateNetworkPolicyRequest {
        network_policy: Some(policy),
    };
    let channel = channel(over_the_api_server(&bench).await);
    NetworkPolicyServiceClient::new(channel)
        .create_network_policy(request)
        .await
        .unwrap();
    let rig = Rig::shared(Options::kubelet());
    let namespace = ["--namespace", &*bench.namespace.name];
    let get = ["get", "networkpolicy", "policy", "--output", "yaml"];
    let shown = rig.kubectl(&[&get[..], &namespace].concat()).await;
    let shown: Value = serde_saphyr::from_str(&shown).unwrap();
    let expected = json!({
        "podSelector": {"matchLabels": {"app": "web"}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [expected_rule("from")],
        "egress": [expected_rule("to")],
    });
    assert_eq!(shown["spec"], expected);
    bench.namespace.remove().await;
}
