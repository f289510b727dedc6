//! Clusters, and the origins of their documents.

use super::*;

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
    let text = errors(&SAMPLE.replace(": cluster.x-k8s.io/v1alpha3", ": cluster.x-k8s.io/v1beta3"));
    assert!(
        text.contains("`cluster.x-k8s.io/v1beta3` of Cluster is not supported\n  --> c.yaml:2:13")
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
        text.contains("Machine/metal-stack-machine is defined twice")
            && text.contains("first at a.yaml:"),
        "{text}"
    );
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
