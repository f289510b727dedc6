//! Machines, sets of them and firewalls.

use super::*;

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
    assert!(errors(&text).contains("`aws:///eu/i-1` is not an id of a metal-stack machine"));
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
