//! Conversion of SIPCluster documents.

use std::path::PathBuf;

use drover_proto::orchestrator::v1::{Addon, Cluster, secret_value::Value};
use proptest::prelude::*;

use crate::{Manifests, Objects, encode, yaml};

const LATEST: &str = include_str!("../../../../../deploy/examples/sip/sipcluster.yaml");
const SEED: &str = include_str!("../../../../../deploy/examples/sip/sipcluster-seed.yaml");
const CORRECTED: &str =
    include_str!("../../../../../deploy/examples/sip/sipcluster-seed-corrected.yaml");
const SECRET: &str = include_str!("../../../../../deploy/examples/sip/ssh-private-keys.yaml");
const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILlfZuyhY58ZHPyyN6WVJxGsoKXL52O+PctDcLMGLGFx";

fn read(texts: &[&str], registered: Option<&[&str]>) -> Objects {
    let mut manifests = Manifests::default();
    for text in texts {
        manifests.add_text("s.yaml", PathBuf::from("."), (*text).to_owned());
    }
    let names: Option<Vec<String>> =
        registered.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
    manifests.decode(names.as_deref())
}

fn objects(texts: &[&str]) -> Objects {
    let objects = read(texts, None);
    assert!(
        objects.diagnostics.is_empty(),
        "{}\n{texts:?}",
        objects.diagnostics.render("")
    );
    objects
}

fn cluster(text: &str) -> Cluster {
    let mut clusters = objects(&[text]).clusters;
    assert_eq!(clusters.len(), 1);
    clusters.remove(0).object
}

fn errors(text: &str) -> String {
    read(&[text], None).diagnostics.render("")
}

/// A document with this spec.
fn document(spec: &str) -> String {
    format!(
        "apiVersion: airship.airshipit.org/v1\nkind: SIPCluster\nmetadata: {{name: blue, namespace: tenants}}\nspec:\n{spec}"
    )
}

/// Nodes of both kinds.
const NODES: &str =
    "  nodes:\n    ControlPlane: {count: {active: 1}}\n    Worker: {count: {active: 1}}\n";

/// The add-on of one service.
fn addon(service: &str) -> Addon {
    let mut addons = cluster(&document(&format!("{NODES}{service}")))
        .spec
        .unwrap()
        .addons;
    assert_eq!(addons.len(), 1);
    addons.remove(0)
}

#[test]
fn the_latest_sample_becomes_groups_and_addons() {
    let expected = r#"
apiVersion: drover.dev/v1
kind: Cluster
metadata:
  name: sipcluster-system.sipcluster-system
  labels:
    sip.airshipit.org/cluster-namespace: sipcluster-system
    sip.airshipit.org/cluster-name: sipcluster-system
spec:
  platform: metal3
  groups:
    control-plane:
      size: 1
      standby: 1
      role: control-plane
      placement:
        selector: {matchLabels: {vino.airshipit.org/flavor: control-plane}}
        spread: [{topologyKey: vino.airshipit.org/rack, whenUnsatisfiable: DoNotSchedule, maxPerDomain: 1}]
      properties:
        interfaces: [oam-ipv4]
        requireBmcCredentials: true
        hostLabels:
          sip.airshipit.org/cluster-namespace: sipcluster-system
          sip.airshipit.org/cluster-name: sipcluster-system
          sip.airshipit.org/node-type: ControlPlane
    worker:
      size: 1
      standby: 1
      role: worker
      placement:
        selector: {matchLabels: {vino.airshipit.org/flavor: worker}}
        spread: [{topologyKey: vino.airshipit.org/host, whenUnsatisfiable: DoNotSchedule, maxPerDomain: 1}]
      properties:
        interfaces: [oam-ipv4]
        requireBmcCredentials: true
        hostLabels:
          sip.airshipit.org/cluster-namespace: sipcluster-system
          sip.airshipit.org/cluster-name: sipcluster-system
          sip.airshipit.org/node-type: Worker
  addons:
    - name: jump-host
      type: JumpHost
      platform: metal3
      targets: [control-plane, worker]
      port: 30000
      image: quay.io/airshipit/jump-host:latest
      interface: oam-ipv4
      jumpHost:
        privateKeysSecret: sipcluster-system.ssh-private-keys
        bmc: {proxy: false}
    - name: load-balancer-control-plane
      type: LoadBalancer
      platform: metal3
      targets: [control-plane]
      port: 30001
      targetPort: 6443
      image: haproxy:2.3.2
      interface: oam-ipv4
    - name: load-balancer-worker
      type: LoadBalancer
      platform: metal3
      targets: [worker]
      ports: [{listen: 30002, target: 30002, count: 10}]
      image: haproxy:2.3.2
      interface: oam-ipv4
"#;
    assert_eq!(cluster(LATEST), cluster(expected));
    let warnings = objects(&[LATEST]).warnings;
    let place = |line| {
        format!(
            "(s.yaml:{line}) has the form of a public key, but it does not decode: it is left out"
        )
    };
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains(&place(39)), "{warnings:?}");
    assert!(warnings[1].contains(&place(40)), "{warnings:?}");
}

#[test]
fn the_seed_sample_is_refused_with_what_cannot_work_in_it() {
    let objects = read(&[SEED], None);
    assert_eq!(objects.clusters.len(), 0);
    assert_eq!(objects.warnings.len(), 1, "{:?}", objects.warnings);
    assert!(objects.warnings[0].contains("refuses capital letters in a namespace"));
    let text = objects.diagnostics.render("");
    for expected in [
        "port 7000 is outside of the range for node ports\n   --> s.yaml:27:21  spec.infra.loadbalancer.nodePort",
        "this public key is not a line of authorized_keys (ssh-ed25519 AAAA… me@example.org)\n   --> s.yaml:31:21  spec.infra.jumppod.optional.sshKey",
        "port 7022 is outside of the range for node ports\n   --> s.yaml:35:21  spec.infra.jumppod.nodePort",
        "port 7022 is defined twice\n   --> s.yaml:41:21  spec.infra.authpod.nodePort",
        "port 7022 is outside of the range for node ports\n   --> s.yaml:41:21  spec.infra.authpod.nodePort",
        "5 errors.",
    ] {
        assert!(text.contains(expected), "{expected} in\n{text}");
    }
}

#[test]
fn the_corrected_seed_sample_works() {
    let expected = format!(
        r#"
apiVersion: drover.dev/v1
kind: Cluster
metadata:
  name: cluster-a.sipcluster-sample
  labels:
    sip.airshipit.org/cluster-namespace: cluster-a
    sip.airshipit.org/cluster-name: sipcluster-sample
spec:
  platform: metal3
  groups:
    worker:
      size: 3
      standby: 1
      role: worker
      placement:
        selector: {{matchLabels: {{airshipit.org/vino-flavor: worker}}}}
        spread: [{{topologyKey: host, whenUnsatisfiable: DoNotSchedule, maxPerDomain: 1}}]
      properties:
        interfaces: [oam-ipv4]
        hostLabels:
          sip.airshipit.org/cluster-namespace: cluster-a
          sip.airshipit.org/cluster-name: sipcluster-sample
          sip.airshipit.org/node-type: worker
    control-plane:
      size: 3
      standby: 1
      role: control-plane
      placement:
        selector: {{matchLabels: {{airshipit.org/vino-flavor: master}}}}
        spread:
          - {{topologyKey: host, whenUnsatisfiable: DoNotSchedule, maxPerDomain: 1}}
          - {{topologyKey: rack, whenUnsatisfiable: DoNotSchedule, maxPerDomain: 1}}
      properties:
        interfaces: [oam-ipv4]
        hostLabels:
          sip.airshipit.org/cluster-namespace: cluster-a
          sip.airshipit.org/cluster-name: sipcluster-sample
          sip.airshipit.org/node-type: master
  addons:
    - name: load-balancer
      type: LoadBalancer
      platform: metal3
      targets: [control-plane]
      port: 30100
      targetPort: 6443
      image: haproxy:2.3.2
      interface: oam-ipv4
      nodeSelector: {{matchExpressions: [{{key: airship-masters, operator: Exists}}]}}
      clusterIp: 1.2.3.4
    - name: jump-host
      type: JumpHost
      platform: metal3
      targets: [worker, control-plane]
      port: 30101
      image: quay.io/airshipit/jump-host:latest
      interface: oam-ipv4
      nodeSelector: {{matchExpressions: [{{key: airship-masters, operator: Exists}}]}}
      jumpHost: {{authorizedKeys: ["{KEY} example"]}}
    - name: oidc-provider
      type: OidcProvider
      platform: metal3
      targets: [control-plane]
      port: 30102
      interface: oam-ipv4
      nodeSelector: {{matchExpressions: [{{key: airship-masters, operator: Exists}}]}}
"#
    );
    assert_eq!(cluster(CORRECTED), cluster(&expected));
    assert!(objects(&[CORRECTED]).warnings.is_empty());
}

#[test]
fn a_converted_document_is_written_as_a_manifest_that_says_the_same() {
    for text in [LATEST, CORRECTED] {
        let converted = cluster(text);
        let written = yaml::write(&encode::cluster(&converted).unwrap());
        assert_eq!(cluster(&written), converted, "{written}");
    }
}

#[test]
fn words_between_the_revisions_are_understood() {
    let spec = "  config: {cluster-name: former}
  nodes:
    Master:
      vmFlavor: 'flavor=big'
      spreadTopology: per-rack
      count: {active: 1}
  infra:
    - {serviceType: loadbalancer, nodePorts: [30000, 30001], nodelabels: {disk: ssd}}
    - {serviceType: jumphost, nodePort: 30002}
    - {serviceType: jumphost, nodePort: 30003, bmc: {}}
";
    let objects = objects(&[&document(spec)]);
    assert!(objects.warnings[0].contains("is called tenants.blue, not former"));
    let spec = objects.clusters[0].object.spec.clone().unwrap();
    let group = &spec.groups[0];
    assert_eq!(
        (group.name.as_str(), group.size, group.standby),
        ("control-plane", Some(1), Some(0))
    );
    let placement = group.placement.clone().unwrap();
    assert_eq!(placement.spread[0].topology_key, "rack");
    assert_eq!(placement.selector.unwrap().match_labels["flavor"], "big");
    let names: Vec<&str> = spec
        .addons
        .iter()
        .map(|addon| addon.name.as_str())
        .collect();
    assert_eq!(names, ["load-balancer", "jump-host", "jump-host-2"]);
    assert_eq!(spec.addons[0].port, Some(30_000));
    assert_eq!(spec.addons[0].ports[0].listen, Some(30_001));
    let nodes = spec.addons[0].node_selector.clone().unwrap();
    assert_eq!(nodes.match_labels["disk"], "ssd");
    assert!(spec.addons[2].jump_host.clone().unwrap().bmc.is_some());
}

#[test]
fn an_oidc_provider_gets_its_certificate_from_the_authority_that_its_document_names() {
    let auth = "  services:\n    auth: [{nodePort: 30000, caSecret: ca-pair}]\n";
    let provider = addon(auth).oidc_provider.unwrap();
    assert_eq!(provider.tls_secret, "tenants.ca-pair");

    let secret = "apiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\nmetadata: {name: ca-pair, namespace: tenants}\ndata: {tls.crt: Zm9v, tls.key: YmFy}\n";
    let objects = objects(&[&document(&format!("{NODES}{auth}")), secret]);
    let secret = &objects.secrets[0].object;
    let keys: Vec<&str> = secret.data.keys().map(String::as_str).collect();
    let mut keys = keys;
    keys.sort_unstable();
    assert_eq!(
        (secret.name.as_str(), keys),
        ("tenants.ca-pair", vec!["ca.crt", "ca.key"])
    );
}

#[test]
fn the_certificate_of_an_authority_goes_with_its_key_and_not_with_that_of_its_issuer() {
    let auth = "  services:\n    auth: [{nodePort: 30000, caSecret: ca-pair}]\n";
    let document = document(&format!("{NODES}{auth}"));
    let read = |data: &str| -> Vec<(String, Option<Value>)> {
        let secret = format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: ca-pair, namespace: tenants}}\nstringData: {{{data}}}\n"
        );
        let objects = objects(&[&document, &secret]);
        let data = objects.secrets[0].object.data.iter();
        let mut data: Vec<_> = data
            .map(|(key, content)| (key.clone(), content.value.clone()))
            .collect();
        data.sort_by(|one, other| one.0.cmp(&other.0));
        data
    };
    let pair = |certificate: &str, key: &str, of: &str| {
        let text = |text: &str| Some(Value::Text(text.to_owned()));
        vec![
            (certificate.to_owned(), text("own")),
            (key.to_owned(), text(of)),
        ]
    };
    let issued = "ca.crt: issuer, tls.crt: own, tls.key: key";
    assert_eq!(read(issued), pair("ca.crt", "ca.key", "key"));
    let half = "tls.crt: own, ca.key: key";
    let mut expected = pair("tls.crt", "ca.key", "key");
    expected.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(read(half), expected, "both or neither");
}

#[test]
fn a_secret_that_a_document_names_becomes_one_and_others_are_left_out() {
    let other = "apiVersion: v1\nkind: Secret\nmetadata: {name: other, namespace: sipcluster-system}\nstringData: {password: hunter2}\n";
    let elsewhere = SECRET.replace("namespace: sipcluster-system", "namespace: elsewhere");
    let objects = objects(&[other, SECRET, LATEST, &elsewhere]);
    let names: Vec<&str> = objects
        .secrets
        .iter()
        .map(|secret| secret.object.name.as_str())
        .collect();
    assert_eq!(names, ["sipcluster-system.ssh-private-keys"]);
    let value = objects.secrets[0].object.data["id_ed25519"].value.clone();
    assert_eq!(
        value,
        Some(Value::Text("put a private key here".to_owned()))
    );
    let warnings = objects.warnings.join("\n");
    assert!(
        warnings.contains("Secret sipcluster-system/other is left out"),
        "{warnings}"
    );
    assert!(
        warnings.contains("Secret elsewhere/ssh-private-keys is left out"),
        "{warnings}"
    );
    assert!(!warnings.contains("hunter2"));
}

#[test]
fn no_message_about_a_secret_repeats_its_content() {
    let text = SECRET
        .replace("stringData:\n", "stringData:\n  wrong: [hunter2]\n")
        .replace("put a private key here", "[hunter2]");
    let text = read(&[LATEST, &text], None).diagnostics.render("");
    assert!(text.contains("error"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn a_private_key_in_place_of_a_public_one_is_not_repeated() {
    let service = "  services:\n    jumpHost: [{sshAuthorizedKeys: ['-----BEGIN OPENSSH PRIVATE KEY----- hunter2']}]\n";
    let text = errors(&document(&format!("{NODES}{service}")));
    assert!(text.contains("this public key is not a line"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn a_list_of_kubectl_is_read_like_its_items() {
    let item = LATEST.replace('\n', "\n    ").trim_end().to_owned();
    let list = format!("apiVersion: v1\nkind: List\nitems:\n  - {item}\n");
    assert_eq!(cluster(&list), cluster(LATEST));
}

#[test]
fn a_platform_is_named_by_the_annotation() {
    let text = LATEST.replace(
        "  finalizers:",
        "  annotations: {drover.dev/platform: other, team: a}\n  finalizers:",
    );
    let objects = objects(&[&text]);
    let spec = objects.clusters[0].object.spec.clone().unwrap();
    assert_eq!(spec.platforms[0].name, "other");
    assert!(spec.addons.iter().all(|addon| addon.platform == "other"));
    assert!(objects.warnings[0].contains(
        "annotations of SIPCluster sipcluster-system/sipcluster-system are left out: team"
    ));
    let unknown = read(&[LATEST], Some(&["local"])).diagnostics.render("");
    assert!(
        unknown.contains("no platform `metal3` (registered: local)"),
        "{unknown}"
    );
}

#[test]
fn a_long_name_is_shortened_as_that_of_hosts_is() {
    let long = "n".repeat(50);
    let text = LATEST.replace(
        "namespace: sipcluster-system",
        &format!("namespace: {long}"),
    );
    let name = drover_core::name::cluster_in_namespace(&long, "sipcluster-system");
    assert_eq!(cluster(&text).name, name);
}

#[test]
fn what_cannot_be_converted_is_named_at_its_place() {
    let nodes = |text: &str| document(&format!("  nodes:\n    Worker: {text}\n"));
    let service = |text: &str| document(&format!("{NODES}  services:\n    {text}\n"));
    for (text, expected) in [
        (
            nodes("{count: {active: 1}, colour: red}"),
            "unknown field `colour`\n  --> s.yaml:6:34  spec.nodes.Worker.colour",
        ),
        (
            nodes("{count: {active: -1}}"),
            "spec.nodes.Worker.count.active",
        ),
        (
            nodes("{count: {active: 10001}}"),
            "a whole number from 0 to 10000",
        ),
        (
            nodes("{count: {active: '1'}}"),
            "spec.nodes.Worker.count.active",
        ),
        (nodes("{}"), "`spec.nodes.Worker.count` is missing"),
        (
            nodes("{count: {active: 1}, spreadTopology: per-row}"),
            "expected per-rack or per-node",
        ),
        (
            nodes("{count: {active: 1}, scheduling-constraints: per-rack}"),
            "expected a list of per-rack and per-node",
        ),
        (
            nodes("{count: {active: 1}, vm-flavor: big}"),
            "`big` is not a label with a value",
        ),
        (
            nodes("{count: {active: 1}, labelSelector: {flavor: big}}"),
            "unknown field `flavor`",
        ),
        (
            document("  nodes:\n    Workers: {}\n"),
            "did you mean `Worker`?",
        ),
        (
            document("  nodes:\n    Worker: {count: {}}\n    worker: {count: {}}\n"),
            "the worker nodes are given twice",
        ),
        (document("  {}\n"), "`spec.nodes` is missing"),
        (
            service("jumpHost: {nodePort: 30000}"),
            "expected a list of services",
        ),
        (service("jumpHosts: []"), "did you mean `jumpHost`?"),
        (service("jumpHost: [30000]"), "spec.services.jumpHost[0]"),
        (
            service("jumpHost: [{nodePort: 30000}, {nodePort: 30000}]"),
            "port 30000 is defined twice",
        ),
        (
            service(
                "loadBalancerWorker: [{nodePortRange: {start: 30000, end: 30010}}, {nodePortRange: {start: 30010, end: 30020}}]",
            ),
            "port 30010 is defined twice",
        ),
        (
            service("loadBalancerWorker: [{nodePortRange: {start: 30010, end: 30000}}]"),
            "the range ends before it starts",
        ),
        (
            service("loadBalancerWorker: [{nodePortRange: {start: 30000, end: 40000}}]"),
            "nodePortRange.end",
        ),
        (
            service("loadBalancerWorker: [{nodePortRange: {start: 30000}}]"),
            "nodePortRange.end` is missing",
        ),
        (
            service("loadBalancerWorker: [{}]"),
            "nodePortRange` is missing",
        ),
        (
            service("loadBalancerControlPlane: [{nodePort: 32768}]"),
            "expected a port from 30000 to 32767",
        ),
        (
            service("loadBalancerControlPlane: [{clusterIP: 1.2.3}]"),
            "`1.2.3` is not an IP address",
        ),
        (
            service("loadBalancerControlPlane: [{bmc: {}}]"),
            "unknown field `bmc`",
        ),
        (
            service("loadBalancerControlPlane: [{optional: {sshKey: x}}]"),
            "only a jump host has keys",
        ),
        (
            service("jumpHost: [{nodePorts: [30000, 30001]}]"),
            "this service has one port",
        ),
        (
            service("jumpHost: [{sshAuthorizedKeys: [x]}]"),
            "this public key is not a line of authorized_keys",
        ),
        (
            service("jumpHost: [{sshAuthorizedKeys: x}]"),
            "expected a list of public keys",
        ),
        (
            service("jumpHost: [{nodeLabels: [1]}]"),
            "jumpHost[0].nodeLabels[0]",
        ),
        (service("jumpHost: [{bmc: {proxy: perhaps}}]"), "proxy"),
        (
            document(
                "  nodes: {Worker: {count: {active: 1}}}\n  services: {loadBalancerControlPlane: [{nodePort: 30000}]}\n",
            ),
            "there are no nodes that this service is for",
        ),
        (
            document(&format!("{NODES}  infra: [{{serviceType: dns}}]\n")),
            "there is no service `dns`",
        ),
        (
            document(&format!("{NODES}  infra: [{{nodePort: 30000}}]\n")),
            "serviceType` is missing",
        ),
        (
            document(&format!("{NODES}  infra: {{dns: {{}}}}\n")),
            "unknown field `dns`",
        ),
        (
            document(NODES).replace("org/v1", "org/v2"),
            "expected airship.airshipit.org/v1",
        ),
        (
            document(NODES).replace("namespace: tenants", "namespace: ten_ants_"),
            "metadata.namespace",
        ),
        (
            document(NODES).replace("name: blue, ", ""),
            "`metadata.name` is missing",
        ),
        (
            document(NODES).replace("metadata:", "meta:"),
            "`metadata` is missing",
        ),
    ] {
        let rendered = errors(&text);
        assert!(
            rendered.contains(expected),
            "{expected} in\n{rendered}\nof\n{text}"
        );
    }
}

#[test]
fn status_and_what_the_server_writes_mean_nothing() {
    let text = LATEST.replace(
        "  finalizers:",
        "  uid: x\n  managedFields: []\n  finalizers:",
    );
    let text = format!("{text}\nstatus: {{conditions: [{{type: Ready}}]}}\n");
    assert_eq!(cluster(&text), cluster(LATEST));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_damaged_document_never_panics(
        latest: bool,
        at in 0usize..2_000,
        length in 0usize..40,
        with in "[a-z0-9:{}\\[\\]\\-, \n'\"&*|é]{0,12}",
    ) {
        let text: Vec<char> = if latest { LATEST } else { CORRECTED }.chars().collect();
        let at = at.min(text.len());
        let end = (at + length).min(text.len());
        let damaged: String = text[..at].iter().copied().chain(with.chars()).chain(text[end..].iter().copied()).collect();
        let objects = read(&[&damaged, SECRET], Some(&["metal3"]));
        let rendered = objects.diagnostics.render("");
        prop_assert!(!rendered.contains("put a private key here"), "{}", rendered);
        if objects.diagnostics.is_empty() {
            for cluster in &objects.clusters {
                prop_assert!(encode::cluster(&cluster.object).is_ok());
            }
        }
    }
}
