//! Conversion of documents of the Cluster API and its metal-stack provider.

mod cluster;
mod machines;
mod maintained;
mod refused;
mod secrecy;

use std::path::PathBuf;

use drover_core::error::Violation;
use drover_proto::orchestrator::v1::{Cluster, GroupSpec, bootstrap_source::Source as Boot};
use proptest::prelude::*;
use prost_types::{Struct, Value, value::Kind};

use crate::{Manifests, Objects, encode, yaml};

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

/// Replaces a text that occurs exactly once.
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

/// A control plane machine with its other documents.
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
