//! Addons from templates are ready when what they run is.

use std::fs;

use drover_platform::addons::AddonWanted;
use drover_proto::platform::v1::{ResourcePhase, TemplateAddon, addon_spec::Kind};
use drover_testing::kubernetes::{Options, Rig, until};
use serde_json::{Value, json};

use super::{Bench, bench::properties, others::addon};

/// An object of this kind whose pods need so much of a processor.
fn object(kind: &str, cpu: &str) -> Value {
    let container =
        json!({"name": "x", "image": "none.invalid/x", "resources": {"requests": {"cpu": cpu}}});
    let restarts = if kind == "Job" { "Never" } else { "Always" };
    let pod = json!({"restartPolicy": restarts, "terminationGracePeriodSeconds": 1, "containers": [container]});
    let labels = json!({"app": "x"});
    let template = json!({"metadata": {"labels": labels}, "spec": pod});
    let (version, spec) = match kind {
        "Pod" => ("v1", pod),
        "Job" => ("batch/v1", json!({"template": template})),
        _ => (
            "apps/v1",
            json!({"selector": {"matchLabels": labels}, "template": template}),
        ),
    };
    let name = kind.to_ascii_lowercase();
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn running(kind: &str, cpu: &str) -> AddonWanted {
    let template = TemplateAddon {
        template: "runs".to_owned(),
    };
    let mut wanted = addon(Kind::Template(template), Vec::new());
    properties(&mut wanted, json!({"object": object(kind, cpu)}));
    wanted
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_runs_pods_is_ready_when_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("index.yaml", "addons: [{name: runs, template: runs.yaml}]");
    write("runs.yaml", "{{ addon.properties.object | tojson }}");
    let bench = Bench::over(Rig::shared(Options::kwok(3)), |settings| {
        settings.templates = Some(folder.path().to_path_buf());
        let more = [
            "statefulsets.apps",
            "daemonsets.apps",
            "replicasets.apps",
            "jobs.batch",
            "pods",
        ];
        let kinds = more.iter().map(|&kind| kind.to_owned());
        settings.addons.kinds.extend(kinds);
    })
    .await;
    for kind in ["StatefulSet", "DaemonSet", "ReplicaSet", "Job", "Pod"] {
        // More than any node has.
        let wanted = running(kind, "1000000");
        until(&format!("a {kind} waits for a node"), || async {
            let state = bench.ensure(&wanted).await.unwrap().state;
            assert_eq!(
                state.phase(),
                ResourcePhase::Pending,
                "{kind}: {}",
                state.message
            );
            state.message.contains("Insufficient cpu").then_some(())
        })
        .await;
        bench.remove("one").await;
        let wanted = running(kind, "1m");
        bench.until_phase(&wanted, ResourcePhase::Ready).await;
        bench.remove("one").await;
        bench.namespace.until_empty(kind).await;
    }
}
