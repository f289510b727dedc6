//! Documents of the Cluster API and its metal-stack provider.

use std::path::PathBuf;

use drover_core::error::Violation;
use drover_proto::orchestrator::v1::{Cluster, GroupSpec, bootstrap_source::Source as Boot};
use proptest::prelude::*;
use prost_types::{Struct, Value, value::Kind};

use crate::manifest::{Manifests, Objects, encode, yaml};

const SAMPLE: &str = include_str!("testdata/capm-metal-stack.yaml");
const GOLDEN: &str = include_str!("testdata/capm-metal-stack.golden.yaml");

fn read(files: &[(&str, &str)], registered: Option<&[&str]>) -> Objects {
    let mut manifests = Manifests::default();
    for (name, text) in files {
        manifests.add_text(name, PathBuf::from("."), (*text).to_owned());
    }
    let names: Option<Vec<String>> =
        registered.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
    manifests.decode(names.as_deref())
}

fn objects(text: &str) -> Objects {
    let objects = read(&[("c.yaml", text)], None);
    assert!(
        objects.diagnostics.is_empty(),
        "{}\n{text}",
        objects.diagnostics.render("")
    );
    objects
}

fn cluster(text: &str) -> Cluster {
    let mut clusters = objects(text).clusters;
    assert_eq!(clusters.len(), 1);
    clusters.remove(0).object
}

fn groups(text: &str) -> Vec<GroupSpec> {
    cluster(text).spec.unwrap().groups
}

fn errors(text: &str) -> String {
    read(&[("c.yaml", text)], None).diagnostics.render("")
}

/// Replaces what stands there exactly once.
fn edited(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from}");
    text.replace(from, to)
}

fn sample(from: &str, to: &str) -> String {
    edited(SAMPLE, from, to)
}

/// A free-form value at a path, as text.
fn at(fields: &Option<Struct>, path: &[&str]) -> String {
    let mut value = Value {
        kind: Some(Kind::StructValue(fields.clone().unwrap_or_default())),
    };
    for key in path {
        let Some(Kind::StructValue(fields)) = value.kind else {
            return String::new();
        };
        value = fields.fields.get(*key).cloned().unwrap_or_default();
    }
    yaml::write(&encode::free(&value)).trim().to_owned()
}

fn user_data(group: &GroupSpec) -> String {
    match &group.bootstrap.as_ref().unwrap().source {
        Some(Boot::Text(text)) => text.clone(),
        other => panic!("{other:?}"),
    }
}

fn hosts(group: &GroupSpec) -> Vec<String> {
    group
        .placement
        .as_ref()
        .map(|placement| placement.hosts.clone())
        .unwrap_or_default()
}

/// A machine of the control plane with what belongs to it.
fn machine(name: &str, id: &str, user_data: &str) -> String {
    format!(
        r#"---
apiVersion: cluster.x-k8s.io/v1alpha4
kind: Machine
metadata: {{name: {name}, namespace: metal-stack, labels: {{cluster.x-k8s.io/control-plane: ""}}}}
spec:
  clusterName: metal-stack-cluster
  version: v1.20.2
  bootstrap: {{dataSecretName: {name}}}
  infrastructureRef: {{apiVersion: infrastructure.cluster.x-k8s.io/v1alpha4, kind: MetalStackMachine, name: {name}}}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1alpha4
kind: MetalStackMachine
metadata: {{name: {name}, namespace: metal-stack}}
spec: {{image: ubuntu-cloud-init-20.04, machineType: v1-small-x86, providerID: "{id}"}}
---
apiVersion: v1
kind: Secret
metadata: {{name: {name}, namespace: metal-stack}}
stringData: {{value: "{user_data}"}}
"#
    )
}

const OTHER_ID: &str = "metalstack://11111111-27cd-5a5e-8efc-080ba80cf258";

#[test]
fn the_sample_becomes_the_manifest_that_is_kept() {
    let objects = objects(SAMPLE);
    assert_eq!(objects.clusters.len(), 1);
    let text = yaml::write(&encode::cluster(&objects.clusters[0].object).unwrap());
    assert_eq!(text, GOLDEN);
    assert_eq!(
        objects.warnings,
        [
            "KubeadmControlPlane/metal-stack-cluster-controlplane is left out: the control plane are the Machines with the label for it"
        ]
    );
    let again = read(&[("golden.yaml", GOLDEN)], Some(&["metal"]));
    assert!(
        again.diagnostics.is_empty(),
        "{}",
        again.diagnostics.render("")
    );
    assert_eq!(again.clusters[0].object, objects.clusters[0].object);
}

#[test]
fn documents_may_come_in_any_order_and_from_any_number_of_files() {
    let expected = cluster(SAMPLE);
    let documents: Vec<&str> = SAMPLE.split("---\n").collect();
    for turn in 0..documents.len() {
        let mut turned = documents.clone();
        turned.rotate_left(turn);
        if turn % 2 == 1 {
            turned.reverse();
        }
        assert_eq!(cluster(&turned.join("---\n")), expected, "turned by {turn}");
        let names: Vec<String> = (0..turned.len()).map(|n| format!("{n}.yaml")).collect();
        let files: Vec<(&str, &str)> = names
            .iter()
            .map(String::as_str)
            .zip(turned.iter().copied())
            .collect();
        let objects = read(&files, Some(&["metal"]));
        assert!(
            objects.diagnostics.is_empty(),
            "{}",
            objects.diagnostics.render("")
        );
        assert_eq!(objects.clusters[0].object, expected);
    }
}

#[test]
fn all_versions_and_lists_of_kubectl_are_read() {
    let expected = cluster(SAMPLE);
    assert_eq!(cluster(&SAMPLE.replace("v1alpha3", "v1alpha4")), expected);
    assert_eq!(
        cluster(&SAMPLE.replace(": cluster.x-k8s.io/v1alpha3", ": cluster.x-k8s.io/v1beta1")),
        expected
    );
    let items: String = SAMPLE
        .split("---\n")
        .map(|document| {
            let lines: Vec<String> = document
                .lines()
                .filter(|line| !line.starts_with('#'))
                .map(|line| format!("  {line}\n"))
                .collect();
            format!("-\n{}", lines.concat())
        })
        .collect();
    let list =
        format!("apiVersion: v1\nkind: List\nmetadata: {{resourceVersion: \"\"}}\nitems:\n{items}");
    assert_eq!(cluster(&list), expected);
    let text = errors(&SAMPLE.replace(": cluster.x-k8s.io/v1alpha3", ": cluster.x-k8s.io/v1beta2"));
    assert!(
        text.contains("`cluster.x-k8s.io/v1beta2` of Cluster is not supported\n  --> c.yaml:2:13")
            && text.contains("expected one of cluster.x-k8s.io/v1alpha3")
            && text.contains("3 errors."),
        "{text}"
    );
}

#[test]
fn what_a_server_adds_means_nothing() {
    let text = SAMPLE
        .replace(
            "metadata: {name: metal-stack-cluster, namespace: metal-stack}\n",
            "metadata:\n  name: metal-stack-cluster\n  namespace: metal-stack\n  uid: a\n  resourceVersion: \"12\"\n  \
             finalizers: [x]\n  creationTimestamp: null\n  annotations: {kubectl.kubernetes.io/last-applied-configuration: \"{}\"}\n  \
             ownerReferences: [{apiVersion: cluster.x-k8s.io/v1alpha3, kind: Cluster, name: metal-stack-cluster, uid: b}]\n",
        )
        .replace("  partition: vagrant\n---", "  partition: vagrant\nstatus: {ready: true, anything: [1]}\n---")
        .replace(
            "  clusterNetwork:\n",
            "  paused: false\n  controlPlaneEndpoint: {host: \"\", port: 0}\n  clusterNetwork:\n",
        );
    assert_eq!(cluster(&text), cluster(SAMPLE));
}

#[test]
fn every_dangling_reference_is_shown_where_it_stands() {
    let missing = |text: &str, kind: &str, name: &str, place: &str| {
        let rendered = errors(text);
        let message = format!(
            "error: there is no {kind} `{name}` in namespace metal-stack among the documents"
        );
        assert!(
            rendered.contains(&message) && rendered.contains(place),
            "{rendered}"
        );
        rendered
    };
    let text = sample(
        "kind: MetalStackCluster, name: metal-stack-cluster}",
        "kind: MetalStackCluster, name: nothing}",
    );
    missing(
        &text,
        "MetalStackCluster",
        "nothing",
        "--> c.yaml:9:108  spec.infrastructureRef.name",
    );
    let text = sample(
        "kind: MetalStackMachine, name: metal-stack-machine}",
        "kind: MetalStackMachine, name: metal-stack-machin}",
    );
    let rendered = missing(
        &text,
        "MetalStackMachine",
        "metal-stack-machin",
        "spec.infrastructureRef.name",
    );
    assert!(
        rendered.contains("did you mean `metal-stack-machine`?"),
        "{rendered}"
    );
    let text = sample("name: metal-stack-workers}\n---", "name: elsewhere}\n---");
    missing(
        &text,
        "MetalStackMachineTemplate",
        "elsewhere",
        "spec.template.spec.infrastructureRef.name",
    );
    let text = sample(
        "{dataSecretName: metal-stack-worker-bootstrap}",
        "{dataSecretName: gone}",
    );
    let rendered = missing(
        &text,
        "Secret",
        "gone",
        "spec.template.spec.bootstrap.dataSecretName",
    );
    assert!(
        rendered.contains("add it: kubectl get secret gone -n metal-stack -o yaml"),
        "{rendered}"
    );
    let text = SAMPLE.replace(
        "clusterName: metal-stack-cluster\n  replicas",
        "clusterName: other\n  replicas",
    );
    missing(&text, "Cluster", "other", "spec.clusterName");
    let text = sample(
        "metadata: {name: metal-stack-machine-bootstrap, namespace: metal-stack}",
        "metadata: {name: metal-stack-machine-bootstrap, namespace: there}",
    );
    assert!(errors(&text).contains("there is one in namespace there"));
}

#[test]
fn two_clusters_of_one_name_are_refused() {
    let other = SAMPLE.replace("namespace: metal-stack", "namespace: other");
    // Other machines, so that only the name is the same.
    let other = other
        .replace("e0ab02d2", "e0ab02d3")
        .replace("2294c949", "2294c940");
    let objects = read(&[("a.yaml", SAMPLE), ("b.yaml", &other)], None);
    let text = objects.diagnostics.render("");
    assert!(
        text.contains(
            "there is a Cluster `metal-stack-cluster` in two namespaces\n  --> b.yaml:4:18"
        ) && text.contains("the other is at a.yaml:4:18"),
        "{text}"
    );
    let other = other.replace("metal-stack-cluster", "second");
    let objects = read(&[("a.yaml", SAMPLE), ("b.yaml", &other)], Some(&["metal"]));
    assert!(
        objects.diagnostics.is_empty(),
        "{}",
        objects.diagnostics.render("")
    );
    assert_eq!(objects.clusters.len(), 2);
    let text = read(&[("a.yaml", SAMPLE), ("b.yaml", SAMPLE)], None)
        .diagnostics
        .render("");
    assert!(
        text.contains("Machine/metal-stack-machine stands here twice")
            && text.contains("first at a.yaml:"),
        "{text}"
    );
}

#[test]
fn machines_of_a_template_are_not_all_one_machine() {
    let text = edited(
        SAMPLE,
        "      machineType: v1-small-x86\n      partition: vagrant\n",
        &format!("      machineType: v1-small-x86\n      providerID: {OTHER_ID}\n"),
    );
    let rendered = errors(&text);
    assert!(
        rendered.contains(
            "every machine of MachineDeployment/metal-stack-workers would be the same one: 11111111"
        ) && rendered.contains("--> c.yaml:79:19"),
        "{rendered}"
    );
    let one = groups(&edited(&text, "replicas: 2", "replicas: 1"));
    assert_eq!(hosts(&one[1]), ["11111111-27cd-5a5e-8efc-080ba80cf258"]);
}

#[test]
fn a_machine_is_named_once() {
    let text = format!(
        "{SAMPLE}{}",
        machine(
            "second",
            "metalstack://e0ab02d2-27cd-5a5e-8efc-080ba80cf258",
            "x"
        )
    );
    let rendered = errors(&text);
    assert!(
        rendered.contains("machine e0ab02d2-27cd-5a5e-8efc-080ba80cf258 is named twice")
            && rendered.contains("first at c.yaml:45:15"),
        "{rendered}"
    );
    let text = format!("{SAMPLE}{}", machine("second", "aws:///eu/i-1", "x"));
    assert!(errors(&text).contains("`aws:///eu/i-1` is no id of a metal-stack machine"));
}

#[test]
fn machines_made_alike_are_one_group_and_others_are_groups_inside() {
    let alike = format!(
        "{SAMPLE}{}",
        machine(
            "metal-stack-machine-2",
            OTHER_ID,
            "#cloud-config\\nruncmd: [kubeadm init]\\n"
        )
    );
    let groups_alike = groups(&alike);
    assert_eq!(groups_alike.len(), 2);
    assert_eq!(groups_alike[0].name, "control-plane");
    assert_eq!(groups_alike[0].size, Some(2));
    assert_eq!(hosts(&groups_alike[0]).len(), 2);

    let different = format!("{SAMPLE}{}", machine("cp-2", OTHER_ID, "join"));
    let spec = cluster(&different).spec.unwrap();
    let control_plane = &spec.groups[0];
    assert_eq!(control_plane.role.as_deref(), Some("control-plane"));
    let inner: Vec<(&str, Option<u32>, String)> = control_plane
        .groups
        .iter()
        .map(|group| (group.name.as_str(), group.size, user_data(group)))
        .collect();
    assert_eq!(
        inner,
        [
            (
                "metal-stack-machine",
                Some(1),
                "#cloud-config\nruncmd: [kubeadm init]\n".to_owned()
            ),
            ("cp-2", Some(1), "join".to_owned())
        ]
    );
    assert_eq!(
        spec.infrastructure[0].endpoint.clone().unwrap().targets,
        ["control-plane"]
    );
}

#[test]
fn other_machines_that_stand_alone_are_a_group_too() {
    let worker = machine("w-1", OTHER_ID, "join")
        .replace("cluster.x-k8s.io/control-plane: \"\"", "disk: fast");
    let more = machine("w-2", &OTHER_ID.replace("1111", "2222"), "join")
        .replace("cluster.x-k8s.io/control-plane: \"\"", "disk: fast");
    let groups = groups(&format!("{SAMPLE}{worker}{more}"));
    let names: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(names, ["control-plane", "machines", "metal-stack-workers"]);
    assert_eq!(
        (groups[1].size, groups[1].role.as_deref()),
        (Some(2), Some("worker"))
    );
    assert_eq!(at(&groups[1].attributes, &["labels", "disk"]), "fast");
}

#[test]
fn what_sets_of_machines_made_is_made_anew() {
    let made = machine("metal-stack-workers-x7", OTHER_ID, "join").replace(
        "cluster.x-k8s.io/control-plane: \"\"",
        "cluster.x-k8s.io/deployment-name: metal-stack-workers",
    );
    let set = r#"---
apiVersion: cluster.x-k8s.io/v1alpha3
kind: MachineSet
metadata:
  name: metal-stack-workers-x
  namespace: metal-stack
  ownerReferences: [{apiVersion: cluster.x-k8s.io/v1alpha3, kind: MachineDeployment, name: metal-stack-workers, uid: a}]
spec: {clusterName: metal-stack-cluster, anything: true}
"#;
    let objects = objects(&format!("{SAMPLE}{made}{set}"));
    assert_eq!(objects.clusters[0].object, cluster(SAMPLE));
    assert!(
        objects.warnings.iter().any(|warning| warning
            == "Machine/metal-stack-workers-x7 is left out: its MachineDeployment/metal-stack-workers makes such machines anew"),
        "{:?}",
        objects.warnings
    );
}

#[test]
fn a_set_of_machines_is_a_group() {
    let text = SAMPLE.replace("kind: MachineDeployment", "kind: MachineSet");
    let text = edited(&text, "  replicas: 2\n", "  deletePolicy: Oldest\n");
    let group = groups(&text).remove(1);
    assert_eq!(
        (group.name.as_str(), group.size),
        ("metal-stack-workers", None)
    );
    assert_eq!(group.removal_order().as_str_name(), "REMOVAL_ORDER_OLDEST");
}

#[test]
fn how_changes_reach_machines_is_kept_where_it_is_not_usual() {
    let policy = |fields: &str| {
        groups(&sample(
            "  replicas: 2\n",
            &format!("  replicas: 2\n{fields}"),
        ))
        .remove(1)
    };
    let usual = policy(
        "  minReadySeconds: 0\n  progressDeadlineSeconds: 600\n  revisionHistoryLimit: 1\n  \
         strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0, deletePolicy: Random}}\n",
    );
    assert_eq!((usual.update, usual.removal_order), (None, 0));
    let update = policy(
        "  minReadySeconds: 30\n  strategy: {rollingUpdate: {maxSurge: 25%, maxUnavailable: 1}}\n",
    )
    .update
    .unwrap();
    assert_eq!(update.min_ready.unwrap().seconds, 30);
    assert!(update.max_surge.is_some() && update.max_unavailable.is_some());
    let update = policy("  strategy: {type: OnDelete}\n").update.unwrap();
    assert_eq!(update.strategy().as_str_name(), "UPDATE_STRATEGY_ON_DELETE");
}

#[test]
fn a_firewall_may_be_a_document_of_its_own() {
    let firewall = |name: &str, image: &str| {
        format!(
            "---\napiVersion: infrastructure.cluster.x-k8s.io/v1alpha4\nkind: MetalStackFirewall\nmetadata: {{name: {name}, \
             namespace: metal-stack, labels: {{cluster.x-k8s.io/cluster-name: metal-stack-cluster}}}}\nspec:\n  image: {image}\n  \
             machineType: v1-small-x86\n  providerID: metalstack://2294c949-88f6-5390-8154-fa53d93a3313\nstatus: {{ready: false}}\n"
        )
    };
    let expected = cluster(SAMPLE);
    let start = SAMPLE.find("  firewallSpec:").unwrap();
    let end = SAMPLE.find("  partition: vagrant\n  projectID").unwrap();
    let without = format!("{}{}", &SAMPLE[..start], &SAMPLE[end..]);
    assert!(
        cluster(&without).spec.unwrap().infrastructure[0]
            .firewall
            .is_none()
    );
    let own = firewall("f", "firewall-ubuntu-2.0");
    assert_eq!(cluster(&format!("{without}{own}")), expected);
    assert_eq!(
        cluster(&format!("{SAMPLE}{own}")),
        expected,
        "the controller makes one from the other"
    );
    let other = firewall("f", "firewall-3");
    assert!(
        errors(&format!("{SAMPLE}{other}"))
            .contains("`image` of MetalStackFirewall/f is not that of spec.firewallSpec")
    );
    let two = format!("{without}{own}{}", firewall("g", "firewall-ubuntu-2.0"));
    assert!(errors(&two).contains("Cluster metal-stack-cluster has two firewalls: f and g"));
    let foreign = own.replace("cluster-name: metal-stack-cluster", "cluster-name: nobody");
    assert!(
        errors(&format!("{SAMPLE}{foreign}"))
            .contains("MetalStackFirewall/f belongs to no cluster")
    );
    let keys = own.replace("  image:", "  sshKeys: [ssh-ed25519 AAAA]\n  image:");
    assert!(errors(&format!("{without}{keys}")).contains("`sshKeys` cannot be carried over"));
}

#[test]
fn all_that_machines_say_is_carried_over() {
    let text = edited(
        SAMPLE,
        "      partition: vagrant\n---",
        "      partition: other\n      projectID: p\n      sshKeys: [ssh-ed25519 AAAA]\n      tags: [a=b, c]\n---",
    );
    let text = edited(
        &text,
        "      version: v1.20.2\n",
        "      version: v1.21.0\n      failureDomain: rack-1\n",
    );
    let group = groups(&text).remove(1);
    assert_eq!(group.version.as_deref(), Some("v1.21.0"));
    assert_eq!(group.placement.unwrap().failure_domains, ["rack-1"]);
    for (key, value) in [
        ("partition", "other"),
        ("project", "p"),
        ("sshKeys", "[ssh-ed25519 AAAA]"),
        ("tags", "[\"a=b\", c]"),
        ("image", "ubuntu-cloud-init-20.04"),
    ] {
        assert_eq!(at(&group.properties, &[key]), value, "{key}");
    }
}

#[test]
fn the_network_and_its_endpoint_are_carried_over() {
    let text = sample(
        "  publicNetworkID: internet-vagrant-lab\n",
        "  publicNetworkID: internet-vagrant-lab\n  privateNetworkID: net-1\n",
    );
    let infrastructure = cluster(&text).spec.unwrap().infrastructure.remove(0);
    let network = infrastructure.network.unwrap();
    assert_eq!(
        (network.public.as_str(), network.id.as_str()),
        ("internet-vagrant-lab", "net-1")
    );
    let text = sample(
        "  controlPlaneEndpoint: {host: \"100.255.254.1\", port: 6443}\n",
        "",
    );
    let text = edited(
        &text,
        "  clusterNetwork:\n",
        "  clusterNetwork:\n    apiServerPort: 7443\n",
    );
    let endpoint = cluster(&text)
        .spec
        .unwrap()
        .infrastructure
        .remove(0)
        .endpoint
        .unwrap();
    assert_eq!((endpoint.host.as_str(), endpoint.port), ("", 7443));
    let text = sample(
        "  clusterNetwork:\n",
        "  controlPlaneEndpoint: {host: 10.0.0.1, port: 6443}\n  clusterNetwork:\n",
    );
    assert!(
        errors(&text)
            .contains("`host` of the Cluster is `10.0.0.1`, that of its MetalStackCluster is not")
    );
}

#[test]
fn user_data_may_be_bytes_and_stand_in_the_machine() {
    let data = sample(
        "stringData: {value: \"#cloud-config\\nruncmd: [kubeadm join]\\n\"}",
        "data:\n  value: |\n    I2Ns\n    b3Vk\n",
    );
    assert_eq!(user_data(&groups(&data)[1]), "#cloud");
    let bytes = edited(&data, "I2Ns\n    b3Vk", "/wD+");
    assert_eq!(
        groups(&bytes)[1].bootstrap.clone().unwrap().source,
        Some(Boot::Binary(vec![0xff, 0, 0xfe]))
    );
    let inline = sample(
        "{dataSecretName: metal-stack-worker-bootstrap}",
        "{data: I2Nsb3Vk}",
    );
    assert_eq!(user_data(&groups(&inline)[1]), "#cloud");
}

#[test]
fn what_would_be_generated_elsewhere_is_named() {
    let reference =
        "{apiVersion: bootstrap.cluster.x-k8s.io/v1alpha3, kind: KubeadmConfigTemplate, name: t}";
    let text = sample(
        "{dataSecretName: metal-stack-worker-bootstrap}",
        &format!("{{configRef: {reference}}}"),
    );
    let rendered = errors(&text);
    assert!(
        rendered.contains("user data of MachineDeployment/metal-stack-workers would have to be generated from a KubeadmConfigTemplate")
            && rendered.contains("name a Secret with the finished user data in dataSecretName"),
        "{rendered}"
    );
    let both = sample(
        "{dataSecretName: metal-stack-worker-bootstrap}",
        &format!("{{dataSecretName: metal-stack-worker-bootstrap, configRef: {reference}}}"),
    );
    assert_eq!(cluster(&both), cluster(SAMPLE));

    let controller = "---\napiVersion: controlplane.cluster.x-k8s.io/v1alpha3\nkind: KubeadmControlPlane\nmetadata: {name: \
                      metal-stack-cluster-controlplane, namespace: metal-stack}\nspec: {replicas: 1}\n";
    assert_eq!(cluster(&format!("{SAMPLE}{controller}")), cluster(SAMPLE));
    let start = SAMPLE.find("# A control-plane machine").unwrap();
    let end = SAMPLE.find("# Two workers").unwrap();
    let without = format!("{}{}", &SAMPLE[..start], &SAMPLE[end..]);
    let rendered = errors(&without);
    assert!(
        rendered.contains("KubeadmControlPlane/metal-stack-cluster-controlplane makes the machines of the control plane")
            && rendered.contains("spec.controlPlaneRef.name"),
        "{rendered}"
    );
}

#[test]
fn what_cannot_be_carried_over_is_an_error_with_a_way_out() {
    for (from, to, message, advice) in [
        (
            "  clusterNetwork:\n",
            "  paused: true\n  clusterNetwork:\n",
            "`paused` cannot be carried over",
            "drover pause CLUSTER",
        ),
        (
            "  clusterNetwork:\n",
            "  topology: {class: x}\n  clusterNetwork:\n",
            "`topology` cannot be carried over",
            "kubectl get clusters,machinedeployments",
        ),
        (
            "  replicas: 2\n",
            "  replicas: 2\n  paused: true\n",
            "`paused` cannot be carried over",
            "drover pause CLUSTER",
        ),
        (
            "  bootstrap: {dataSecretName: metal-stack-machine-bootstrap}\n",
            "  nodeDrainTimeout: 10s\n  bootstrap: {dataSecretName: metal-stack-machine-bootstrap}\n",
            "`nodeDrainTimeout` cannot be carried over",
            "terminationGracePeriod",
        ),
        (
            "  publicNetworkID:",
            "  publicNetwrkID: x\n  publicNetworkID:",
            "unknown field `publicNetwrkID`, did you mean `publicNetworkID`?",
            "expected the id of a network",
        ),
        (
            "  firewallSpec:\n",
            "  firewall: {image: x}\n  firewallSpec:\n",
            "unknown field `firewall`",
            "firewallSpec",
        ),
        (
            "kind: MetalStackMachine, name: metal-stack-machine}",
            "kind: AWSMachine, name: metal-stack-machine}",
            "AWSMachine cannot be converted",
            "expected MetalStackMachine",
        ),
        (
            "  machineType: v1-small-x86\n  partition: vagrant\n",
            "  partition: vagrant\n",
            "`spec.machineType` is missing",
            "expected a size of machine",
        ),
        (
            "metadata: {name: metal-stack-workers, namespace: metal-stack}\nspec:\n  clusterName",
            "metadata: {name: control-plane, namespace: metal-stack}\nspec:\n  clusterName",
            "there are two groups named `control-plane`",
            "the other comes from c.yaml:",
        ),
        (
            "  version: v1.20.2\n  bootstrap",
            "  version: 1.20\n  bootstrap",
            "wrong value: the number 1.20, expected a text",
            "quote it",
        ),
    ] {
        let rendered = errors(&sample(from, to));
        assert!(
            rendered.contains(message)
                && rendered.contains(advice)
                && rendered.contains("--> c.yaml:"),
            "{message}: {rendered}"
        );
    }
    let check = "---\napiVersion: cluster.x-k8s.io/v1alpha3\nkind: MachineHealthCheck\nmetadata: {name: x}\n";
    let rendered = errors(&format!("{SAMPLE}{check}"));
    assert!(
        rendered.contains("MachineHealthCheck (cluster.x-k8s.io/v1alpha3) cannot be converted")
            && rendered.contains("`remediation`"),
        "{rendered}"
    );
    let long = SAMPLE.replace("metal-stack-cluster", &"x".repeat(41));
    assert!(errors(&long).contains("the name of a cluster is 41 characters long"));
}

#[test]
fn what_belongs_to_no_cluster_is_named() {
    let start = SAMPLE
        .find("apiVersion: infrastructure.cluster.x-k8s.io/v1alpha3\nkind: MetalStackCluster")
        .unwrap();
    let rendered = errors(&SAMPLE[start..]);
    for message in [
        "MetalStackCluster/metal-stack-cluster belongs to no cluster",
        "expected a Cluster whose spec.infrastructureRef names it",
        "MetalStackMachine/metal-stack-machine belongs to no cluster",
        "there is no Cluster `metal-stack-cluster` in namespace metal-stack",
    ] {
        assert!(rendered.contains(message), "{message}: {rendered}");
    }
    let unused = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: ca, namespace: metal-stack}\nstringData: {tls.key: hunter2}\n---\n\
                  apiVersion: v1\nkind: Namespace\nmetadata: {name: metal-stack}\n";
    let objects = objects(&format!("{SAMPLE}{unused}"));
    let warnings = objects.warnings.join("\n");
    assert!(
        warnings.contains("no machine names it: Secret/ca")
            && warnings.contains("Namespace/metal-stack is left out")
            && !warnings.contains("hunter2"),
        "{warnings}"
    );
    let kept = sample(
        "{name: metal-stack-workers, namespace: metal-stack}\nspec:\n  template",
        "{name: metal-stack-workers, namespace: metal-stack, annotations: {own/note: x}}\nspec:\n  template",
    );
    assert!(
        self::objects(&kept).warnings.contains(
            &"annotations of MetalStackMachineTemplate/metal-stack-workers are left out: own/note"
                .to_owned()
        )
    );
}

#[test]
fn labels_and_annotations_that_are_lost_are_named() {
    let text = sample(
        "{name: metal-stack-workers, namespace: metal-stack}\nspec:\n  clusterName",
        "{name: metal-stack-workers, namespace: metal-stack, labels: {pool: workers, team: a}}\nspec:\n  clusterName",
    );
    let text = edited(
        &text,
        "    metadata: {labels: {pool: workers}}",
        "    metadata: {labels: {pool: workers}, annotations: {own/note: x}}",
    );
    let warnings = objects(&text).warnings;
    for warning in [
        "labels of MachineDeployment/metal-stack-workers are left out: team",
        "annotations of machines of MachineDeployment/metal-stack-workers are left out: own/note",
    ] {
        assert!(
            warnings.iter().any(|found| found == warning),
            "{warnings:?}"
        );
    }
}

#[test]
fn a_secret_of_kubernetes_alone_is_no_document_of_ours() {
    let secret =
        "apiVersion: v1\nkind: Secret\nmetadata: {name: x}\nstringData: {value: hunter2}\n";
    let text = errors(secret);
    assert!(
        text.contains("wrong apiVersion: `v1`") && !text.contains("hunter2"),
        "{text}"
    );
}

#[test]
fn an_annotation_names_the_platform() {
    let named = sample(
        "kind: MetalStackCluster\nmetadata: {name: metal-stack-cluster, namespace: metal-stack}",
        "kind: MetalStackCluster\nmetadata: {name: metal-stack-cluster, namespace: metal-stack, annotations: {drover.dev/platform: fra}}",
    );
    let spec = cluster(&named).spec.unwrap();
    assert_eq!(spec.platforms[0].name, "fra");
    assert_eq!(spec.infrastructure[0].platform, "fra");

    let objects = read(&[("c.yaml", SAMPLE)], Some(&["local", "metal-stack"]));
    assert_eq!(
        objects.clusters[0].object.spec.clone().unwrap().platforms[0].name,
        "metal-stack"
    );
    assert!(
        objects
            .warnings
            .iter()
            .any(|warning| warning.contains("metal-stack is used"))
    );

    let text = read(&[("c.yaml", SAMPLE)], Some(&["local"]))
        .diagnostics
        .render("");
    assert!(
        text.contains("no platform `metal` (registered: local)")
            && text.contains("annotation drover.dev/platform")
            && text.contains("--> c.yaml:13:7")
            && text.contains("1 error."),
        "{text}"
    );
}

#[test]
fn what_the_server_objects_to_is_shown_in_the_right_file() {
    let start = SAMPLE.find("# A control-plane machine").unwrap();
    let objects = read(
        &[("a.yaml", &SAMPLE[..start]), ("b.yaml", &SAMPLE[start..])],
        None,
    );
    for (field, name, line) in [
        ("spec.infrastructure[0].firewall.image", "a.yaml", 18),
        ("spec.groups[0].properties.image", "b.yaml", 20),
        ("spec.groups[1].node_class", "b.yaml", 54),
    ] {
        let violation = Violation {
            field: field.into(),
            description: "is wrong".into(),
        };
        let found = objects.clusters[0].violation(&violation);
        assert_eq!(
            (found.source.name.as_str(), found.span.line),
            (name, line),
            "{field}"
        );
    }
}

#[test]
fn no_error_shows_user_data() {
    let secret = "hunter2";
    let worker = "stringData: {value: \"#cloud-config\\nruncmd: [kubeadm join]\\n\"}";
    for data in [
        "stringData: {value: [hunter2]}",
        "stringData: {value: 4711}",
        "data: {value: \"hunter2 is no base64\"}",
        "stringData: {other: hunter2}",
        "stringdata: {value: hunter2}",
        "stringData: {value: hunter2}\nstringData: {value: hunter2}",
    ] {
        let text = sample(worker, data);
        let text = errors(&text);
        assert!(text.contains("error"), "{text}");
        assert!(!text.contains(secret) && !text.contains("4711"), "{text}");
    }
    // What the orchestrator objects to afterwards.
    let objects = objects(&sample(worker, "stringData: {value: hunter2}"));
    let mut problems = crate::manifest::diagnostic::Diagnostics::default();
    for field in ["spec.groups[1].bootstrap.text", "spec.groups[1].bootstrap"] {
        problems.push(objects.clusters[0].violation(&Violation {
            field: field.into(),
            description: "is too long".into(),
        }));
    }
    let text = problems.render("");
    assert!(
        text.contains("is too long") && !text.contains(secret),
        "{text}"
    );
    let inline = sample(
        "{dataSecretName: metal-stack-worker-bootstrap}",
        "{data: \"hunter2 is no base64\"}",
    );
    let text = errors(&inline);
    assert!(
        text.contains("expected bytes in base64") && !text.contains(secret),
        "{text}"
    );
}

/// Whatever line is missing, twice there or the last one: an error or a cluster, never a panic, and never user data.
#[test]
fn damaged_documents_never_show_user_data() {
    let blocks = SAMPLE.replace(
        "stringData: {value: \"#cloud-config\\nruncmd: [kubeadm join]\\n\"}",
        "stringData:\n  value: |\n    runcmd: [kubeadm join]\n",
    );
    for sample in [SAMPLE, &blocks] {
        let lines: Vec<&str> = sample.lines().collect();
        let check = |lines: &[&str]| {
            let objects = read(&[("x", &lines.join("\n"))], Some(&["metal"]));
            let rendered = objects.diagnostics.render("");
            assert!(
                !rendered.contains("runcmd"),
                "{rendered}\n{}",
                lines.join("\n")
            );
        };
        for line in 0..lines.len() {
            let mut lost = lines.clone();
            let taken = lost.remove(line);
            check(&lost);
            let mut doubled = lines.clone();
            doubled.insert(line, taken);
            check(&doubled);
            check(&lines[..line]);
            let mut moved = lost;
            moved.insert((line * 7 + 3) % lines.len(), taken);
            check(&moved);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn several_faults_at_once_never_show_user_data(
        lost in proptest::collection::vec(0usize..85, 0..6),
        doubled in 0usize..85,
        cut in 0usize..4000,
    ) {
        let mut lines: Vec<&str> = SAMPLE.lines().collect();
        if let Some(line) = lines.get(doubled).copied() {
            lines.insert(doubled, line);
        }
        for line in lost {
            if line < lines.len() {
                lines.remove(line);
            }
        }
        let text: String = lines.join("\n").chars().take(cut).collect();
        let objects = read(&[("x", &text)], Some(&["metal"]));
        let rendered = objects.diagnostics.render("");
        prop_assert!(!rendered.contains("runcmd"), "{}\n{}", rendered, text);
    }
}
