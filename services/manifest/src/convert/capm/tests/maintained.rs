//! Documents of the maintained provider for metal-stack.

use super::*;

const MAINTAINED: &str = include_str!("../testdata/capm-maintained.yaml");
const AS_MANIFEST: &str = include_str!("../testdata/capm-maintained.golden.yaml");

fn maintained(from: &str, to: &str) -> String {
    edited(MAINTAINED, from, to)
}

#[test]
fn they_become_the_manifest_that_is_kept() {
    let objects = objects(MAINTAINED);
    let text = yaml::write(&encode::cluster(&objects.clusters[0].object).unwrap());
    assert_eq!(text, AS_MANIFEST);
    let warned = objects.warnings.join("\n");
    for word in [
        "provider_id: metal",
        "autoUpdate",
        "KubeadmControlPlane/prod-controlplane",
    ] {
        assert!(warned.contains(word), "{warned}");
    }
    let again = read(&[("golden.yaml", AS_MANIFEST)], Some(&["metal"]));
    assert!(
        again.diagnostics.is_empty(),
        "{}",
        again.diagnostics.render("")
    );
    assert_eq!(again.clusters[0].object, objects.clusters[0].object);
}

#[test]
fn the_address_of_the_control_plane_stands_in_either_field() {
    let endpoint = |text: &str| {
        let infrastructure = cluster(text).spec.unwrap().infrastructure.remove(0);
        let endpoint = infrastructure.endpoint.unwrap();
        (endpoint.host, endpoint.port)
    };
    let both = ("203.0.113.129".to_owned(), 443);
    let field = "  controlPlaneEndpoint: {host: 203.0.113.129, port: 443}\n";
    assert_eq!(endpoint(&maintained(field, "")), both);
    assert_eq!(
        endpoint(&maintained("  controlPlaneIP: 203.0.113.129\n", "")),
        both
    );
    let differ = maintained(
        "controlPlaneIP: 203.0.113.129",
        "controlPlaneIP: 203.0.113.130",
    );
    assert!(errors(&differ).contains("the control plane is at 203.0.113.129, too"));
}

#[test]
fn a_firewall_without_rules_lets_out_what_machines_need() {
    let start = MAINTAINED.find("  initialRuleSet:").unwrap();
    let end = start + MAINTAINED[start..].find("---").unwrap();
    let text = format!("{}{}", &MAINTAINED[..start], &MAINTAINED[end..]);
    let infrastructure = cluster(&text).spec.unwrap().infrastructure.remove(0);
    assert_eq!(at(&infrastructure.properties, &["egress"]), "default");
    assert!(infrastructure.firewall.unwrap().rules.is_empty());
}

#[test]
fn what_would_be_lost_is_an_error_at_its_place() {
    for (from, to, message, place) in [
        (
            "        to: [0.0.0.0/0]\n---",
            "        to: [203.0.113.128/25]\n---",
            "not only `203.0.113.128/25`",
            "spec.initialRuleSet.ingress[0].to",
        ),
        (
            "  networks: [internet]\n",
            "  networks: [internet, mpls]\n",
            "one network that leads outside",
            "spec.networks",
        ),
        (
            "  networks: [internet]\n",
            "  networks: [internet]\n  userdata: hunter2\n",
            "`userdata` cannot be carried over",
            "spec.userdata",
        ),
        (
            "firewallTemplateRef: {name: prod}",
            "firewallTemplateRef: {name: prot}",
            "did you mean `prod`?",
            "spec.firewallTemplateRef.name",
        ),
        (
            "  size: c1-large-x86\n",
            "  machineType: c1-large-x86\n",
            "machineType",
            "spec.machineType",
        ),
    ] {
        let text = errors(&maintained(from, to));
        assert!(
            text.contains(message) && text.contains(place),
            "{place}: {text}"
        );
        assert!(!text.contains("hunter2"), "{text}");
    }
    let text = MAINTAINED.replace("metal://fra-1/", "ms://");
    assert!(errors(&text).contains("expected metalstack://UUID or metal://PARTITION/UUID"));
}
