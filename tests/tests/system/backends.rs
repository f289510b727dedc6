//! Calls from platforms to their backends are part of the caller's trace: with emulated EC2, and with a real
//! Kubernetes.
#![cfg(feature = "clouds")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::collector;
use crate::embedded;

use std::time::Duration;

use collector::{Collector, Seen};
use drover_emulators::ec2::{Ec2, Ec2Settings};
use drover_telemetry::{Exporter, Kind, Settings, Span, settings::Given};
use drover_testing::kubernetes::{Options, Rig, until};
use embedded::{World, emulated_ec2, group_on};

const TEMPLATE: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: {{ node.id }}}
spec: {containers: [{name: main, image: 'example.invalid/main:1'}]}
";

async fn on_kubernetes(namespace: &str, rig: &Rig, world: &mut World) {
    let catalogue = world.directory.path().join("catalogue");
    std::fs::create_dir_all(&catalogue).unwrap();
    std::fs::write(catalogue.join("node.yaml"), TEMPLATE).unwrap();
    let index = "default: {template: node.yaml}\n";
    std::fs::write(catalogue.join("index.yaml"), index).unwrap();
    let settings = drover_platform_k8s::Settings {
        kubeconfig: Some(rig.kubeconfig().to_owned()),
        namespaces: vec![namespace.to_owned()],
        templates: Some(catalogue),
        ..drover_platform_k8s::Settings::default()
    };
    world.add("pods", settings).await;
}

/// Names from a span up to the root of its trace.
fn way_up(spans: &[Seen], from: &Seen) -> Vec<String> {
    let mut way = Vec::new();
    let mut at = Some(from);
    while let Some(one) = at {
        way.push(one.span.name.clone());
        assert!(way.len() <= spans.len(), "a circle");
        at = spans
            .iter()
            .find(|other| other.span.span_id == one.span.parent_span_id);
    }
    way
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_to_backends_are_spans_of_the_apply_that_caused_them() {
    let collector = Collector::start().await;
    let given = Given {
        endpoint: Some(collector.endpoint()),
        ..Given::default()
    };
    let settings = Settings::resolve(&given, ("tests", "0"), |_| None).unwrap();
    let exporter = Exporter::start(settings.unwrap()).unwrap().unwrap();
    let ec2 = Ec2::start(Ec2Settings::default()).await.unwrap();
    let rig = Rig::shared(Options::kwok(3));
    let mut world = World::new().await;
    let poll = Duration::from_millis(200);
    let settings = emulated_ec2(ec2.url(), world.directory.path(), poll);
    world.add("aws", settings).await;
    let namespace = rig.namespace().await;
    on_kubernetes(&namespace.name, rig, &mut world).await;
    for (platform, call) in [("aws", "EC2/RunInstances"), ("pods", "create pods")] {
        let root = Span::start(Kind::Internal, platform.into(), None);
        let trace = root.context().trace_id().to_be_bytes();
        root.scope(world.apply(platform, group_on(platform, 1)))
            .await;
        drop(root);
        let spans = || {
            let mut spans = collector.seen();
            spans.retain(|one| one.span.trace_id == trace);
            spans
        };
        let expected = [
            call,
            "drover.platform.v1.PlatformService/Provision",
            "drover.platform.v1.PlatformService/Provision",
            "provision",
            "pass",
            "drover.orchestrator.v1.ClusterService/ApplyCluster",
            "drover.orchestrator.v1.ClusterService/ApplyCluster",
            platform,
        ];
        until(&format!("{call} is in the trace"), async || {
            let spans = spans();
            let mut made = spans.iter().filter(|one| one.span.name == call);
            made.find(|one| way_up(&spans, one) == expected).cloned()
        })
        .await;
    }
    exporter.finish(Duration::from_secs(1)).await;
}
