//! Conversion of documents of other tools.

use std::path::PathBuf;

use drover_core::error::Violation;
use drover_proto::orchestrator::v1::{Cluster, GroupSpec};

use crate::{Manifests, Objects};

const SAMPLE: &str = include_str!("../../../../deploy/examples/kadende-basic_cluster.yml");

fn decode(text: &str, registered: Option<&[&str]>) -> Objects {
    let mut manifests = Manifests::default();
    manifests.add_text("k.yml", PathBuf::from("."), text.to_owned());
    let names: Option<Vec<String>> =
        registered.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
    manifests.decode(names.as_deref())
}

fn errors(text: &str, registered: Option<&[&str]>) -> String {
    decode(text, registered).diagnostics.render("")
}

/// Path, platform, version requirement and size of every group of nodes.
fn leaves(cluster: &Cluster) -> Vec<(String, String, String, Option<u32>)> {
    fn walk(
        path: &str,
        groups: &[GroupSpec],
        out: &mut Vec<(String, String, String, Option<u32>)>,
    ) {
        for group in groups {
            let path = if path.is_empty() {
                group.name.clone()
            } else {
                format!("{path}/{}", group.name)
            };
            if group.groups.is_empty() {
                let choice = group.platforms.first().cloned().unwrap_or_default();
                out.push((path, choice.name, choice.version_requirement, group.size));
            } else {
                walk(&path, &group.groups, out);
            }
        }
    }
    let mut out = Vec::new();
    walk("", &cluster.spec.clone().unwrap().groups, &mut out);
    out
}

fn leaf(
    path: &str,
    platform: &str,
    requirement: &str,
    size: u32,
) -> (String, String, String, Option<u32>) {
    (path.into(), platform.into(), requirement.into(), Some(size))
}

#[test]
fn the_public_sample_is_taken_as_it_is() {
    let objects = decode(
        SAMPLE,
        Some(&["aws", "gcd", "digitalOcean", "my-custom-plugin"]),
    );
    assert!(
        objects.diagnostics.is_empty(),
        "{}",
        objects.diagnostics.render("")
    );
    let cluster = &objects.clusters[0].object;
    assert_eq!(cluster.name, "basic_cluster");
    assert_eq!(cluster.labels["kadende.io/version"], "0.0.1");
    assert_eq!(
        leaves(cluster),
        [
            leaf("group1", "aws", "", 2),
            leaf("group2/sub-group1", "gcd", ">=0.0.1", 2),
            leaf("group2/sub-group2", "digitalOcean", "", 3),
            leaf("customDatacenter", "my-custom-plugin", ">=0.0.1", 2),
        ]
    );
    let properties = cluster.spec.clone().unwrap().groups[0]
        .properties
        .clone()
        .unwrap();
    assert_eq!(
        properties.fields.keys().collect::<Vec<_>>(),
        ["image", "instanceType", "key"]
    );
    assert_eq!(objects.warnings.len(), 1, "{:?}", objects.warnings);
    assert!(
        objects.warnings[0]
            .contains("is not loaded; the registered platform my-custom-plugin is used")
    );
}

#[test]
fn a_shared_object_is_never_loaded() {
    let text = errors(SAMPLE, Some(&["aws", "gcd", "digitalOcean"]));
    assert!(
        text.contains("error: plugin `my-custom-plugin` is a file to load into a process"),
        "{text}"
    );
    assert!(
        text.contains("--> k.yml:37:12  groups.customDatacenter.resourcePlugin.url"),
        "{text}"
    );
    assert!(
        text.contains("kind: Platform, metadata: {name: my-custom-plugin}"),
        "{text}"
    );
    assert!(text.contains("1 error."), "{text}");
}

#[test]
fn what_a_conversion_has_lost_is_not_wrong_a_second_time() {
    let mut objects = decode(SAMPLE, Some(&["aws", "gcd", "digitalOcean"]));
    let lacks = || Violation {
        field: "spec.groups".to_owned(),
        description: "a cluster needs at least one group".to_owned(),
    };
    objects.clusters[0].report([lacks()], &mut objects.diagnostics);
    assert_eq!(objects.diagnostics.count(), 1);
    let names = ["aws", "gcd", "digitalOcean", "my-custom-plugin"];
    let mut objects = decode(SAMPLE, Some(&names));
    objects.clusters[0].report([lacks()], &mut objects.diagnostics);
    assert_eq!(objects.diagnostics.count(), 1, "it is whole");
}

#[test]
fn a_plugin_that_is_not_registered_is_named_at_its_line() {
    let text = errors(SAMPLE, Some(&["aws", "gcd", "my-custom-plugin"]));
    assert!(
        text.contains("no platform `digitalOcean` (registered: aws, gcd, my-custom-plugin)"),
        "{text}"
    );
    assert!(
        text.contains("--> k.yml:26:15  spec.groups.group2.groups.sub-group2.platforms[0].name"),
        "{text}"
    );
}

#[test]
fn digital_ocean_is_written_in_two_ways() {
    let text = "version: \"1\"\nname: x\ngroups:\n  a: {size: 1, resourcePlugin: {name: digitalOcean}, resourceProperties: {}}\n";
    let objects = decode(text, Some(&["digitalocean"]));
    assert_eq!(
        leaves(&objects.clusters[0].object),
        [leaf("a", "digitalocean", "", 1)]
    );
    assert_eq!(objects.warnings.len(), 1);
}

#[test]
fn gcd_and_gcp_stand_for_each_other_only_where_the_exact_name_is_missing() {
    let text = "version: \"1\"\nname: x\ngroups:\n  a: {size: 1, resourcePlugin: {name: gcd}, resourceProperties: {}}\n";
    let objects = decode(text, Some(&["gcp"]));
    assert_eq!(
        leaves(&objects.clusters[0].object),
        [leaf("a", "gcp", "", 1)]
    );
    assert_eq!(objects.warnings.len(), 1);
    let objects = decode(text, Some(&["gcp", "gcd"]));
    assert_eq!(
        leaves(&objects.clusters[0].object),
        [leaf("a", "gcd", "", 1)]
    );
    assert!(objects.warnings.is_empty());
}

#[test]
fn a_plugin_address_registers_a_platform() {
    let text = "version: \"1\"\nname: x\ngroups:\n  a: {size: 1, resourcePlugin: {name: own, url: \"grpc://10.0.0.1:7402\"}, resourceProperties: {}}\n";
    let objects = decode(text, Some(&[]));
    assert!(
        objects.diagnostics.is_empty(),
        "{}",
        objects.diagnostics.render("")
    );
    let platform = &objects.platforms[0].object;
    assert_eq!(
        (
            platform.name.as_str(),
            platform.spec.clone().unwrap().endpoint.as_str()
        ),
        ("own", "http://10.0.0.1:7402")
    );
    for file in [
        "http://10.0.0.1:7402/plugin.so",
        "https://example.com/plugin.so",
        "file:///plugin.so",
        "https://10.0.0.1",
    ] {
        let text = text.replace("grpc://10.0.0.1:7402", file);
        assert!(
            errors(&text, Some(&[])).contains("which Drover never does"),
            "{file}"
        );
    }
}

#[test]
fn groups_may_be_a_list_and_nest_to_any_depth() {
    let text = r#"
version: "2"
id: abc-1
name: x
groups:
  - name: outer
    resourcePlugin: {name: aws}
    inner:
      deep: {size: 1, resourceProperties: {a: 1}}
      groups:
        - {name: listed, size: 2, resourceProperties: {}}
"#;
    let objects = decode(text, None);
    assert!(
        objects.diagnostics.is_empty(),
        "{}",
        objects.diagnostics.render("")
    );
    let cluster = &objects.clusters[0].object;
    assert_eq!(cluster.labels["kadende.io/id"], "abc-1");
    let paths: Vec<String> = leaves(cluster).into_iter().map(|leaf| leaf.0).collect();
    assert_eq!(paths, ["outer/inner/deep", "outer/inner/listed"]);
}

#[test]
fn what_cannot_be_carried_over_is_an_error_that_names_the_field() {
    let text = "version: \"1 beta\"\nname: x\nflavors: []\ngroups:\n  a: {sise: 1, resourcePlugin: {name: aws, verson: x}, resourceProperties: {}}\n  b: {size: 1}\n  c: {size: 1, resourcePlugin: {name: aws}, d: {size: 2}}\n";
    let text = errors(text, Some(&["aws"]));
    for expected in [
        "`version` cannot be kept as the label kadende.io/version",
        "unknown field `flavors`",
        "unknown field `sise`, did you mean `size`?\n  --> k.yml:5:7  groups.a.sise",
        "unknown field `verson`, did you mean `version`?",
        "`resourcePlugin` is missing",
        "a group has a size or groups inside, never both",
    ] {
        assert!(text.contains(expected), "{expected} in\n{text}");
    }
    assert!(errors("name: x\ngroups: {}\n", None).contains("`version` is missing"));
    assert!(
        errors(
            "version: 1.0\nname: x\ngroups: {a: {resourcePlugin: {name: y}}}\n",
            None
        )
        .contains("quote it: YAML reads 1")
    );
}

#[test]
fn other_tools_are_recognised_and_refused_by_name() {
    let text = errors("apiVersion: replicante.io/v0\nkind: ClusterSpec\n", None);
    assert!(
        text.contains("ClusterSpec (Replicante) is not supported yet"),
        "{text}"
    );
}
