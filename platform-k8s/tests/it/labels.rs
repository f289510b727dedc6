//! Declared labels of clusters, on the objects of a real API server: the author of a cluster does not decide what
//! services and network policies select.

use crate::bench;

use bench::Bench;
use drover_core::Class;
use drover_proto::platform::v1::{NodeChange, update_node_request::Update};
use drover_testing::{kubernetes::until, platform::requests};
use serde_json::{Value, json};

/// A label that services and network policies select by.
const NAME: &str = "app.kubernetes.io/name";
/// The value that it must not get.
const DOOR: &str = "drover-orchestrator";
/// Kinds of the objects of the stores used here, and of the objects derived from them.
const KINDS: &[&str] = &[
    "pods",
    "services",
    "configmaps",
    "secrets",
    "persistentvolumeclaims",
    "statefulsets.apps",
    "deployments.apps",
    "replicasets.apps",
    "poddisruptionbudgets.policy",
    "networkpolicies.networking.k8s.io",
    "endpoints",
];

async fn objects(bench: &Bench) -> Vec<Value> {
    let mut all = Vec::new();
    for kind in KINDS {
        all.extend(bench.namespace.list(kind).await);
    }
    all
}

/// Paths at which an object has this key with this value: in its labels, in those of its templates, in selectors.
fn places(value: &Value, key: &str, text: &str, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                if name == key && value == text {
                    found.push(at.to_owned());
                }
                places(value, key, text, &format!("{at}.{name}"), found);
            }
        }
        Value::Array(list) => {
            for value in list {
                places(value, key, text, at, found);
            }
        }
        _ => {}
    }
}

fn of_all(objects: &[Value], key: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for object in objects {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        places(object, key, text, name, &mut found);
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn no_object_has_a_declared_label_under_its_own_name() {
    for store in ["rich", "every", "deployed", "stateful"] {
        let bench = Bench::start().await;
        let mut request = bench.request(store, 1).await;
        let declared = [(NAME, DOOR), ("App", DOOR), ("example.com/app", DOOR)];
        request.cluster.as_mut().unwrap().labels = declared
            .map(|(key, text)| (key.to_owned(), text.to_owned()))
            .into();
        let nodes = bench.whole(&request, store).await;
        // Deployments create their pods with a delay.
        let ours = "app.kubernetes.io.label.drover.dev/name";
        let objects = until("its pods are there", || async {
            let objects = objects(&bench).await;
            let pods = bench.namespace.list("pods").await;
            (!of_all(&pods, ours, DOOR).is_empty()).then_some(objects)
        })
        .await;
        for (key, text) in declared {
            assert_eq!(of_all(&objects, key, text), [""; 0], "{store}: {key}");
        }
        for ours in [
            ours,
            "drover.dev/label.App",
            "example.com.label.drover.dev/app",
        ] {
            assert!(!of_all(&objects, ours, DOOR).is_empty(), "{store}: {ours}");
        }
        let labels = &request.cluster.as_ref().unwrap().labels;
        assert_eq!(nodes[0].labels, *labels, "{store}");
        let read = bench.node(&nodes[0].node_id).await.unwrap();
        assert_eq!(read.labels, *labels, "{store}: nothing of it is lost");
        bench.clean(store).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_spelling_of_a_key_gets_through() {
    let long = "a".repeat(63);
    let longer = format!("{}/name", "a.".repeat(120) + "a");
    for key in [
        "App.Kubernetes.io/name",
        "x.app.kubernetes.io/name",
        "app.kubernetes.io.label.drover.dev/name",
        "app.kubernetes.io/name/",
        "app.kubernetes.io./name",
        "app.kubernetes.io/name.",
        "app.kubernetes.i\u{43e}/name",
        "app.kubernetes.io/",
        "",
        &long,
        &longer,
    ] {
        let bench = Bench::with(|settings| settings.plain_labels = vec!["team".into()]).await;
        let mut request = bench.request("pod", 1).await;
        let labels = &mut request.cluster.as_mut().unwrap().labels;
        labels.insert(key.to_owned(), DOOR.to_owned());
        match bench.provision(&request).await {
            Ok(_) => {
                let objects = objects(&bench).await;
                assert_eq!(of_all(&objects, key, DOOR), [""; 0], "{key}");
                assert_eq!(of_all(&objects, NAME, DOOR), [""; 0], "{key}");
            }
            Err(error) => {
                assert_eq!(error.class(), Class::Cannot, "{key}: {error:?}");
                let field = &error.fields()[0].field;
                assert!(field.starts_with("cluster.labels"), "{key}: {error:?}");
                assert!(bench.namespace.list("pods").await.is_empty(), "{key}");
            }
        }
        bench.clean(key).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_settings_allow_has_its_own_name_unless_something_selects_by_it() {
    let allowed = ["team", "app", "door", "tier"].map(str::to_owned);
    let bench = Bench::with(|settings| settings.plain_labels = allowed.to_vec()).await;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "theirs"},
        "spec": {"selector": {"app": "theirs"}, "ports": [{"port": 80}]},
    });
    bench.namespace.create("services", &service).await.unwrap();
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "theirs"},
        "spec": {"podSelector": {}, "ingress": [{"from": [
            {"podSelector": {"matchExpressions": [{"key": "door", "operator": "Exists"}]}},
        ]}]},
    });
    let policies = "networkpolicies.networking.k8s.io";
    bench.namespace.create(policies, &policy).await.unwrap();
    let mut request = bench.request("pod", 1).await;
    request.cluster.as_mut().unwrap().labels =
        allowed.clone().map(|key| (key, "theirs".to_owned())).into();
    let nodes = bench.whole(&request, "allowed").await;
    let labels = || async {
        let pod = bench.namespace.get("pods", &nodes[0].id).await.unwrap();
        pod["metadata"]["labels"].clone()
    };
    let now = labels().await;
    for key in ["team", "tier"] {
        assert_eq!(now[key], "theirs", "{now}");
        assert_eq!(now.get(format!("drover.dev/label.{key}")), None, "{now}");
    }
    for key in ["app", "door"] {
        assert_eq!(now.get(key), None, "{now}");
        assert_eq!(now[format!("drover.dev/label.{key}")], "theirs", "{now}");
    }
    // An update keeps the plain name, unless something selects by it meanwhile.
    let mut selecting = service.clone();
    selecting["metadata"]["name"] = "too".into();
    selecting["spec"]["selector"] = json!({"tier": "cold"});
    bench
        .namespace
        .create("services", &selecting)
        .await
        .unwrap();
    let change = NodeChange {
        set_labels: ["team", "tier", "app"]
            .map(|key| (key.to_owned(), "cold".to_owned()))
            .into(),
        remove_labels: vec!["door".to_owned()],
        ..NodeChange::default()
    };
    let uid = bench.platform().await.uid;
    let update = requests::update(&uid, bench.fence(), &nodes[0], Update::Change(change));
    bench.update(&update).await.unwrap();
    let now = labels().await;
    assert_eq!(now["team"], "cold", "{now}");
    assert_eq!(now.get("tier"), None, "{now}");
    assert_eq!(now["drover.dev/label.tier"], "cold", "{now}");
    assert_eq!(now.get("app"), None, "{now}");
    assert_eq!(now["drover.dev/label.app"], "cold", "{now}");
    assert_eq!(now.get("drover.dev/label.door"), None, "{now}");
    for name in ["theirs", "too"] {
        bench.namespace.delete("services", name).await;
    }
    bench.namespace.delete(policies, "theirs").await;
    bench.clean("allowed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_of_an_older_version_stay_where_they_are() {
    let bench = Bench::start().await;
    let (_, nodes) = bench.make("pod", 1).await;
    let id = &nodes[0].id;
    let before = bench.namespace.get("pods", id).await.unwrap();
    // As the older platform stored them.
    let old = json!({"metadata": {"labels": {"team": "storage", "drover.dev/label.team": null}}});
    bench.namespace.merge("pods", id, &old).await.unwrap();
    let labels = nodes[0].labels.clone();
    until("the platform has seen it", || async {
        let (nodes, warnings) = bench.list(&bench.cluster).await.ok()?;
        assert!(warnings.is_empty(), "{warnings:?}");
        (nodes.first()?.labels == labels).then_some(())
    })
    .await;
    let change = NodeChange {
        set_labels: [("tier".to_owned(), "hot".to_owned())].into(),
        ..NodeChange::default()
    };
    let uid = bench.platform().await.uid;
    let update = requests::update(&uid, bench.fence(), &nodes[0], Update::Change(change));
    let changed = bench.update(&update).await.unwrap();
    assert_eq!(changed.labels["team"], "storage");
    let pod = bench.namespace.get("pods", id).await.unwrap();
    assert_eq!(pod["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(pod["metadata"]["labels"]["team"], "storage");
    assert_eq!(pod["metadata"]["labels"]["drover.dev/label.tier"], "hot");
    bench.clean("old").await;
}
