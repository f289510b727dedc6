//! Documents that cannot be converted.

use super::*;

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
            "wrong value: the number 1.20, expected a string",
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
