use drover_platform::{feed::Listener, identity::Identity};
use drover_proto::platform::v1::{NodeHostState, NodePhase};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::ObjectMeta;
use serde_json::json;

use super::*;
use crate::{
    client::partial,
    errors::{self, Call},
    labels,
    machine::{Known, Machine},
    settings::Settings,
};

#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Listener for Told {
    fn changed(&self, cluster_id: &str, node_id: &str) {
        self.0
            .lock()
            .push(format!("changed {cluster_id}/{node_id}"));
    }

    fn removed(&self, cluster_id: &str, node_id: &str, evidence: RemovalEvidence) {
        self.0
            .lock()
            .push(format!("removed {cluster_id}/{node_id} {evidence:?}"));
    }
}

struct Setup {
    cache: Arc<NodeCache>,
    told: Arc<Told>,
    reader: Reader,
    pods: u16,
    services: u16,
    hosts: u16,
}

/// A Kubernetes node with this condition Ready.
fn known(zone: &str, ready: &str) -> Known {
    let machine = json!({
        "metadata": {"labels": {"zone": zone}},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    });
    let machine: Machine = serde_json::from_value(machine).unwrap();
    machine.known("zone")
}

fn kind(plural: &str, name: &str) -> Arc<Kind> {
    Kind::core(name, plural)
}

impl Setup {
    fn new() -> Self {
        let settings = Settings::default();
        let kinds = vec![kind("pods", "Pod"), kind("services", "Service")];
        let cache = Arc::new(NodeCache::new(kinds.clone(), &settings));
        let nodes = cache.watch(None, &kind("nodes", "Node"), "");
        let pods = cache.watch(Some(0), &kinds[0], "");
        let services = cache.watch(Some(1), &kinds[1], "");
        let told = Arc::new(Told::default());
        cache.tell(Changes::new(told.clone()));
        for watch in [nodes, pods, services] {
            cache.list_begins(watch);
            cache.list_ends(watch);
            cache.heard(watch);
        }
        Self {
            cache,
            told,
            reader: Reader::new(&settings),
            pods,
            services,
            hosts: nodes,
        }
    }

    fn told(&self) -> Vec<String> {
        std::mem::take(&mut *self.told.0.lock())
    }

    fn pod(&self, name: &str, phase: &str) -> Pod {
        let meta = meta(name);
        let mut pod: Pod = serde_json::from_value(
            json!({"status": {"phase": phase}, "spec": {"nodeName": "host-1"}}),
        )
        .unwrap();
        pod.metadata = meta;
        pod.metadata.uid = Some(format!("pod-{name}"));
        pod.metadata
            .annotations
            .get_or_insert_default()
            .insert(labels::ANCHOR.into(), "true".into());
        pod
    }

    fn put(&self, pod: &Pod) {
        self.cache.put(self.pods, self.reader.pod(0, pod).unwrap());
    }

    fn service(&self, name: &str) -> Object {
        let mut metadata = meta(name);
        metadata.uid = Some(format!("service-{name}"));
        partial(metadata)
    }

    fn put_service(&self, object: &Object) {
        self.cache
            .put(self.services, self.reader.part(1, object).unwrap());
    }

    fn phase(&self, name: &str) -> Option<NodePhase> {
        self.cache.read("c", name).map(|found| found.node.phase())
    }
}

fn meta(name: &str) -> ObjectMeta {
    let identity = Identity {
        owner: "o".into(),
        cluster_id: "c".into(),
        request_id: format!("request-{name}"),
        id: name.into(),
        ..Identity::default()
    };
    let plain = labels::declared::Plain::default();
    let stamp = labels::stamp(&identity, &crate::labels::LabelKeys::default(), &plain);
    ObjectMeta {
        name: Some(name.into()),
        namespace: Some("ns".into()),
        labels: Some(stamp.labels),
        annotations: Some(stamp.annotations),
        ..ObjectMeta::default()
    }
}

#[tokio::test]
async fn each_change_is_told_once_and_no_change_is_not_told() {
    let setup = Setup::new();
    setup.put(&setup.pod("a", "Pending"));
    assert_eq!(setup.told(), ["changed c/a"]);
    setup.put(&setup.pod("a", "Pending"));
    assert_eq!(setup.told(), [""; 0]);
    setup.put(&setup.pod("a", "Running"));
    assert_eq!(setup.told(), ["changed c/a"]);
    setup
        .cache
        .gone(uid_of("pod-a"), RemovalEvidence::Confirmed);
    assert_eq!(setup.told(), ["removed c/a Confirmed"]);
    setup
        .cache
        .gone(uid_of("pod-a"), RemovalEvidence::Confirmed);
    assert_eq!(setup.told(), [""; 0]);
    assert_eq!(setup.phase("a"), None);
}

fn uid_of(text: &str) -> u128 {
    crate::group::uid(text)
}

#[tokio::test]
async fn whoever_connects_later_is_told_all_that_exists() {
    let setup = Setup::new();
    setup.put(&setup.pod("a", "Running"));
    setup.put(&setup.pod("b", "Running"));
    let later = Arc::new(Told::default());
    setup.cache.tell(Changes::new(later.clone()));
    let mut told = later.0.lock().clone();
    told.sort();
    assert_eq!(told, ["changed c/a", "changed c/b"]);
}

#[tokio::test]
async fn a_new_list_tells_only_what_differs() {
    let setup = Setup::new();
    for name in ["same", "other", "gone"] {
        setup.put(&setup.pod(name, "Running"));
    }
    setup.told();
    setup.cache.list_begins(setup.pods);
    setup.put(&setup.pod("same", "Running"));
    setup.put(&setup.pod("other", "Failed"));
    setup.put(&setup.pod("new", "Pending"));
    setup.cache.list_ends(setup.pods);
    assert_eq!(
        setup.told(),
        [
            "changed c/other",
            "changed c/new",
            "removed c/gone NotListed"
        ]
    );
}

#[tokio::test]
async fn a_list_that_failed_in_the_middle_removes_nothing() {
    let setup = Setup::new();
    setup.put(&setup.pod("a", "Running"));
    setup.put(&setup.pod("b", "Running"));
    setup.told();
    setup.cache.list_begins(setup.pods);
    setup.put(&setup.pod("a", "Running"));
    setup.cache.failed(setup.pods, Error::unavailable("cut"));
    assert_eq!(setup.told(), [""; 0]);
    assert!(!setup.cache.current());
    setup.cache.list_begins(setup.pods);
    setup.put(&setup.pod("a", "Running"));
    setup.put(&setup.pod("b", "Running"));
    setup.cache.list_ends(setup.pods);
    setup.cache.heard(setup.pods);
    assert_eq!(setup.told(), [""; 0]);
    assert!(setup.cache.current());
}

#[tokio::test]
async fn the_list_of_one_kind_removes_nothing_of_another() {
    let setup = Setup::new();
    setup.put(&setup.pod("a", "Running"));
    setup.put_service(&setup.service("b"));
    setup.told();
    setup.cache.list_begins(setup.services);
    setup.put_service(&setup.service("b"));
    setup.cache.list_ends(setup.services);
    assert_eq!(setup.told(), [""; 0]);
}

#[tokio::test]
async fn a_pod_made_anew_under_its_name_is_the_same_node() {
    let setup = Setup::new();
    setup.put(&setup.pod("a", "Running"));
    setup.told();
    // The new pod may be reported before the end of the old one, or after it.
    let mut second = setup.pod("a", "Pending");
    second.metadata.uid = Some("second".into());
    second.metadata.creation_timestamp = Some(Time("2026-01-01T00:00:00Z".parse().unwrap()));
    setup.put(&second);
    setup
        .cache
        .gone(uid_of("pod-a"), RemovalEvidence::Confirmed);
    assert_eq!(setup.told(), ["changed c/a"]);
    assert_eq!(setup.phase("a"), Some(NodePhase::Pending));
    setup
        .cache
        .gone(uid_of("second"), RemovalEvidence::Confirmed);
    assert_eq!(setup.told(), ["removed c/a Confirmed"]);
}

#[tokio::test]
async fn a_node_is_there_until_its_last_object_is_gone() {
    let setup = Setup::new();
    setup.put_service(&setup.service("a"));
    setup.put(&setup.pod("a", "Running"));
    setup.told();
    setup
        .cache
        .gone(uid_of("pod-a"), RemovalEvidence::Confirmed);
    assert_eq!(setup.told(), ["changed c/a"]);
    assert_eq!(setup.phase("a"), Some(NodePhase::Failed));
    setup
        .cache
        .gone(uid_of("service-a"), RemovalEvidence::Confirmed);
    assert_eq!(setup.told(), ["removed c/a Confirmed"]);
}

#[tokio::test]
async fn a_set_that_is_being_made_is_no_failure_until_the_making_ends() {
    let setup = Setup::new();
    let making = setup.cache.creating("c", "a");
    setup.put_service(&setup.service("a"));
    assert_eq!(setup.phase("a"), Some(NodePhase::Pending));
    setup.told();
    drop(making);
    assert_eq!(setup.told(), ["changed c/a"]);
    assert_eq!(setup.phase("a"), Some(NodePhase::Failed));
}

#[tokio::test]
async fn what_was_made_is_known_at_once_and_told_once() {
    let setup = Setup::new();
    let pod = setup.pod("a", "Pending");
    setup.cache.made_pod(&pod);
    assert_eq!(setup.told(), ["changed c/a"]);
    assert_eq!(setup.phase("a"), Some(NodePhase::Pending));
    setup.put(&pod);
    assert_eq!(setup.told(), [""; 0]);
}

#[tokio::test]
async fn an_answer_that_comes_late_brings_nothing_back() {
    let setup = Setup::new();
    let pod = setup.pod("a", "Pending");
    setup.put(&pod);
    setup.put(&setup.pod("a", "Running"));
    setup.cache.made_pod(&pod);
    assert_eq!(setup.phase("a"), Some(NodePhase::Running));
    setup
        .cache
        .gone(uid_of("pod-a"), RemovalEvidence::Confirmed);
    setup.told();
    setup.cache.made_pod(&pod);
    assert_eq!((setup.told().len(), setup.phase("a")), (0, None));
}

#[tokio::test]
async fn what_was_made_during_a_list_that_does_not_show_it_stays() {
    let setup = Setup::new();
    setup.cache.list_begins(setup.pods);
    setup.cache.made_pod(&setup.pod("a", "Pending"));
    setup.cache.list_ends(setup.pods);
    assert_eq!(setup.told(), ["changed c/a"]);
}

#[tokio::test]
async fn a_pod_whose_cluster_label_was_changed_is_in_the_other_cluster() {
    let setup = Setup::new();
    setup.put(&setup.pod("a", "Running"));
    setup.told();
    let mut changed = setup.pod("a", "Running");
    changed
        .metadata
        .labels
        .get_or_insert_default()
        .insert("drover.dev/cluster".into(), "z".into());
    setup.put(&changed);
    assert_eq!(setup.told(), ["removed c/a NotListed", "changed z/a"]);
    setup.put(&setup.pod("a", "Running"));
    assert_eq!(setup.told(), ["removed z/a NotListed", "changed c/a"]);
}

#[tokio::test]
async fn what_a_watch_tells_late_undoes_no_change_of_this_server() {
    let setup = Setup::new();
    let state = |cluster: &str, version: &str| {
        let mut pod = setup.pod("a", "Running");
        pod.metadata.resource_version = Some(version.to_owned());
        let labels = pod.metadata.labels.get_or_insert_default();
        labels.insert("drover.dev/cluster".into(), cluster.into());
        pod
    };
    let is_in = |cluster: &str| setup.cache.read(cluster, "a").is_some();
    setup.put(&state("c", "8"));
    setup.cache.changed_pod(&state("z", "11"));
    setup.put(&state("c", "9"));
    assert!(is_in("z") && !is_in("c"), "the watch tells what was before");
    setup.cache.changed_pod(&state("c", "10"));
    assert!(is_in("z"), "so does an answer that comes late");
    setup.cache.changed_pod(&state("c", "12"));
    assert!(is_in("c"), "it moves again, and is not taken for gone");
    // Restored from a backup.
    setup.cache.list_begins(setup.pods);
    setup.put(&state("z", "5"));
    setup.cache.list_ends(setup.pods);
    assert!(is_in("z") && !is_in("c"), "a list is the truth");
}

#[tokio::test]
async fn versions_that_a_watch_tells_are_in_its_order() {
    let setup = Setup::new();
    for (version, phase) in [("900", "Running"), ("5", "Failed")] {
        let mut pod = setup.pod("a", phase);
        pod.metadata.resource_version = Some(version.to_owned());
        setup.put(&pod);
    }
    assert_eq!(setup.phase("a"), Some(NodePhase::Failed));
}

#[tokio::test]
async fn a_label_that_was_lost_after_a_change_is_not_back_by_its_answer() {
    let setup = Setup::new();
    let mut pod = setup.pod("a", "Running");
    pod.metadata.resource_version = Some("9".to_owned());
    setup.put(&pod);
    setup.cache.lose(uid_of("pod-a"), 10);
    setup.cache.changed_pod(&pod);
    assert_eq!(setup.phase("a"), Some(NodePhase::Unknown));
}

#[tokio::test]
async fn a_pod_of_another_namespace_stays_when_the_first_is_listed() {
    let setup = Setup::new();
    let other = setup.cache.watch(Some(0), &kind("pods", "Pod"), "other");
    setup.cache.list_begins(other);
    setup.cache.list_ends(other);
    let state = |version: &str| {
        let mut pod = setup.pod("a", "Running");
        pod.metadata.resource_version = Some(version.to_owned());
        pod
    };
    setup.cache.changed_pod(&state("8"));
    let late = setup.reader.pod(0, &state("5")).unwrap();
    setup.cache.put(other, late);
    setup.cache.list_begins(setup.pods);
    setup.cache.list_ends(setup.pods);
    assert_eq!(setup.phase("a"), Some(NodePhase::Running));
}

#[tokio::test]
async fn a_pod_whose_other_labels_were_changed_is_the_same_node() {
    let setup = Setup::new();
    for key in ["drover.dev/node", labels::OWNER, labels::REQUEST] {
        setup.put(&setup.pod("a", "Running"));
        setup.told();
        let mut changed = setup.pod("a", "Running");
        changed
            .metadata
            .labels
            .get_or_insert_default()
            .insert(key.into(), "z".into());
        setup.put(&changed);
        assert_eq!(setup.told(), ["changed c/a"], "{key}");
        assert!(setup.cache.read("c", "a").unwrap().node.slot.is_some());
    }
}

#[tokio::test]
async fn a_pod_without_its_label_is_kept_until_it_is_gone() {
    let setup = Setup::new();
    setup.put(&setup.pod("a", "Running"));
    setup.told();
    assert!(setup.cache.lose(uid_of("pod-a"), 0));
    assert_eq!(setup.told(), ["changed c/a"]);
    assert_eq!(setup.phase("a"), Some(NodePhase::Unknown));
    setup.cache.list_begins(setup.pods);
    setup.cache.list_ends(setup.pods);
    assert_eq!(setup.told(), [""; 0]);
    assert_eq!(setup.cache.lost().len(), 1);
    setup
        .cache
        .gone(uid_of("pod-a"), RemovalEvidence::Confirmed);
    assert_eq!(setup.told(), ["removed c/a Confirmed"]);
    assert!(!setup.cache.lose(uid_of("pod-a"), 0));
}

#[tokio::test]
async fn a_pod_whose_label_is_back_is_as_before() {
    let setup = Setup::new();
    setup.put(&setup.pod("a", "Running"));
    setup.cache.lose(uid_of("pod-a"), 0);
    setup.told();
    setup.put(&setup.pod("a", "Running"));
    assert_eq!(setup.told(), ["changed c/a"]);
    assert_eq!(setup.phase("a"), Some(NodePhase::Running));
    assert!(setup.cache.lost().is_empty());
}

#[tokio::test]
async fn failure_domains_follow_the_kubernetes_nodes() {
    let setup = Setup::new();
    setup.put(&setup.pod("a", "Running"));
    setup.told();
    let domain = || setup.cache.read("c", "a").unwrap().node.failure_domain;
    assert_eq!(domain(), "");
    setup.cache.host("host-1", Some(known("zone-a", "True")));
    setup.cache.host("host-2", Some(known("zone-b", "True")));
    assert_eq!(setup.told(), ["changed c/a"]);
    assert_eq!(domain(), "zone-a");
    setup.cache.host("host-1", Some(known("zone-a", "True")));
    assert_eq!(setup.told(), [""; 0]);
    assert_eq!(setup.cache.failure_domains(), ["zone-a", "zone-b"]);
    setup.cache.host("host-1", None);
    assert_eq!((setup.told().len(), domain().as_str()), (1, ""));
}

#[tokio::test]
async fn a_node_tells_what_becomes_of_its_host() {
    let setup = Setup::new();
    setup.cache.host("host-1", Some(known("zone-a", "True")));
    setup.put(&setup.pod("a", "Running"));
    setup.told();
    let state = || {
        let host = setup.cache.read("c", "a").unwrap().node.host?;
        assert_eq!(host.name, "host-1");
        Some(host.state())
    };
    assert_eq!(state(), Some(NodeHostState::Ready));
    setup.cache.host("host-1", Some(known("zone-a", "Unknown")));
    assert_eq!(setup.told(), ["changed c/a"]);
    assert_eq!(state(), Some(NodeHostState::Unreachable));
    setup.cache.host("host-1", None);
    assert_eq!(setup.told(), ["changed c/a"]);
    assert_eq!(state(), Some(NodeHostState::Gone));
    // Who may no longer watch them says nothing about them.
    setup.cache.failed(setup.hosts, Error::unavailable("cut"));
    assert_eq!(state(), None);
    setup.cache.list_begins(setup.hosts);
    setup.cache.hosts_are_listed(setup.hosts);
    assert_eq!(setup.told(), ["changed c/a"]);
    assert_eq!(state(), Some(NodeHostState::Gone));
}

#[tokio::test]
async fn nodes_of_a_request_are_found_in_memory_while_it_is_current() {
    let setup = Setup::new();
    setup.put(&setup.pod("a", "Running"));
    setup.put(&setup.pod("b", "Running"));
    // Incomplete: its request has to create the rest.
    setup.put_service(&setup.service("h"));
    let ids = |request: &str| -> Option<Vec<String>> {
        let found = setup.cache.of_request(request)?;
        Some(found.into_iter().map(|it| it.node.node_id).collect())
    };
    assert_eq!(ids("request-a"), Some(vec!["a".to_owned()]));
    assert_eq!(ids("request-h"), Some(Vec::new()));
    assert_eq!(ids("request-z"), Some(Vec::new()));
    setup.cache.failed(setup.pods, Error::unavailable("cut"));
    assert_eq!(ids("request-a"), None);
}

#[tokio::test(start_paused = true)]
async fn silence_makes_what_is_known_old() {
    let setup = Setup::new();
    assert!(setup.cache.current());
    tokio::time::advance(Settings::default().watch_timeout()).await;
    assert!(!setup.cache.current());
    setup.cache.heard(setup.pods);
    assert!(!setup.cache.current());
    setup.cache.heard(setup.services);
    assert!(setup.cache.current());
}

#[tokio::test]
async fn kinds_that_may_not_be_watched_are_named_and_pods_must_be() {
    let setup = Setup::new();
    let call = Call::new("list", "services", "", "");
    let denied = || errors::lacks_right(&call, "may not list services");
    setup.cache.failed(setup.services, denied());
    assert!(setup.cache.current());
    assert!(setup.cache.ready().await.is_ok());
    let warnings = setup.cache.warnings();
    assert!(
        warnings.len() == 1 && warnings[0].contains("services"),
        "{warnings:?}"
    );
    setup.cache.failed(setup.pods, denied());
    assert!(!setup.cache.current());
    assert!(setup.cache.ready().await.is_err());
}
