use drover_platform::driver::Found;
use drover_proto::{
    common::v1::{Address, AddressType},
    platform::v1::{NodePhase, SlotKey},
};

use serde_json::json;

use super::*;
use crate::group::{PodPart, Told, UnderWay};
use crate::labels::LabelKeys;
use crate::{
    discover::Seen,
    group::{Groups, Member},
};

/// A running pod of group `db`, with some changes.
fn pod(number: u32, change: impl FnOnce(&mut Node, &mut PodPart)) -> Seen {
    let mut node = Node {
        cluster_id: "c".into(),
        node_id: format!("db-{number}-x"),
        id: format!("db-{number}-x"),
        name: format!("db-{number}"),
        ordinal: Some(number),
        group: "db".into(),
        slot: Some(SlotKey {
            owner: "o".into(),
            ..SlotKey::default()
        }),
        endpoints: [("client".to_owned(), format!("10.0.0.{number}:6379"))].into(),
        addresses: vec![Address {
            r#type: AddressType::InternalIp.into(),
            value: format!("10.0.0.{number}"),
            ..Address::default()
        }],
        ..Node::default()
    };
    node.set_phase(NodePhase::Running);
    node.set_role(if number == 0 {
        NodeRole::Active
    } else {
        NodeRole::Standby
    });
    let mut part = PodPart {
        created: 1,
        host: None,
        ours: true,
        unschedulable: false,
        lost: false,
        ended: false,
        told: Some(Box::new(Told {
            peers: uid("[]"),
            says_active: true,
            service: Some("c-db".into()),
            read_service: None,
            budget: Some(1),
            secrets: None,
        })),
        found: Found::default().into(),
    };
    change(&mut node, &mut part);
    let key = (node.cluster_id.clone(), node.node_id.clone());
    part.found = Found {
        node,
        ..Found::default()
    }
    .into();
    Seen {
        version: 0,
        cluster: key.0,
        node: key.1.clone(),
        member: Member {
            uid: u128::from(number) + 1,
            kind: 0,
            namespace: "prod".into(),
            name: key.1.into(),
            deleting: false,
            kept_by: None,
            anchor: true,
            pod: Some(Box::new(part)),
            warning: None,
        },
        identity: None,
        request: 0,
        adopted: None,
    }
}

fn peer_update(pods: Vec<Seen>) -> PeerUpdate {
    let mut groups = Groups::default();
    for pod in pods {
        groups.insert(pod);
    }
    let mut update = PeerUpdate::default();
    for (_, group) in groups.iter() {
        let found = group.node(&[], UnderWay::default());
        update.add(group, found.map(|found| found.node));
    }
    update
}

fn names(untold: &Untold) -> Vec<String> {
    let list: Vec<serde_json::Value> = serde_json::from_str(&untold.list).unwrap();
    let name = |peer: &serde_json::Value| peer["name"].as_str().unwrap().to_owned();
    list.iter().map(name).collect()
}

#[test]
fn everybody_hears_of_everybody_who_has_an_address_and_has_not_ended() {
    let all = vec![
        pod(0, |_, _| ()),
        pod(1, |_, _| ()),
        pod(2, |node, _| node.addresses.clear()),
        pod(3, |_, part| part.ended = true),
        pod(4, |_, part| part.told = None),
        pod(5, |_, part| part.ours = false),
    ];
    let untold = peer_update(all).untold();
    assert_eq!(untold.len(), 2, "those who ask and run");
    for pod in &untold {
        assert_eq!(names(pod), ["db-0", "db-1", "db-4"]);
    }
    let list: Vec<serde_json::Value> = serde_json::from_str(&untold[0].list).unwrap();
    assert_eq!(
        list[1],
        json!({"group": "db", "ordinal": 1, "name": "db-1", "id": "db-1-x", "role": "standby",
            "host": "10.0.0.1", "ports": {"client": 6379}})
    );
}

#[test]
fn nobody_is_told_what_it_knows_and_nothing_of_another_owner() {
    let first = peer_update(vec![pod(0, |_, _| ()), pod(1, |_, _| ())]).untold();
    let knows = uid(&first[0].list);
    let again = |node: &mut Node, part: &mut PodPart| {
        part.told.as_mut().unwrap().peers = knows;
        node.set_role(NodeRole::Active);
    };
    let know = |_: &mut Node, part: &mut PodPart| part.told.as_mut().unwrap().peers = knows;
    let foreign = |node: &mut Node, _: &mut PodPart| node.slot.as_mut().unwrap().owner = "p".into();
    assert!(
        peer_update(vec![pod(0, know), pod(1, know)])
            .untold()
            .is_empty(),
        "all is said"
    );
    let untold = peer_update(vec![pod(0, know), pod(1, know), pod(2, foreign)]).untold();
    assert_eq!(untold.len(), 1);
    assert_eq!(names(&untold[0]), ["db-2"]);
    // A change of role concerns both.
    assert_eq!(
        peer_update(vec![pod(0, know), pod(1, again)])
            .untold()
            .len(),
        2
    );
}

#[test]
fn a_service_belongs_to_its_group_and_has_the_ports_of_its_pods() {
    let all = vec![
        pod(0, |_, part| part.ended = true),
        pod(1, |_, _| ()),
        pod(2, |_, part| part.told.as_mut().unwrap().service = None),
    ];
    let wanted: Vec<_> = peer_update(all).services.wanted().collect();
    assert_eq!(wanted.len(), 1);
    let body = serde_json::to_value(wanted[0].service(&LabelKeys::default())).unwrap();
    let metadata = &body["metadata"];
    assert_eq!(metadata["namespace"], "prod");
    assert_eq!(metadata["name"], "c-db");
    assert_eq!(metadata["ownerReferences"], json!([]));
    assert_eq!(
        metadata["annotations"],
        json!({"drover.dev/shared": "c-db"})
    );
    assert_eq!(
        body["spec"],
        json!({
            "selector": {
                "drover.dev/cluster": "c", "drover.dev/group": "db", "drover.dev/owner": "o",
                "drover.dev/role": "active", "drover.dev/active": "true",
            },
            "ports": [{"name": "client", "port": 6379, "targetPort": "client"}],
        })
    );
    let none = peer_update(vec![pod(0, |node, _| node.addresses.clear())]);
    assert!(!none.is_empty());
    assert_eq!(none.services.wanted().count(), 0, "no port is known");
}

#[test]
fn a_service_leads_to_active_pods_of_an_earlier_version_too_as_long_as_there_is_one() {
    let old = |part: &mut PodPart| part.told.as_mut().unwrap().says_active = false;
    let selector = |pods: Vec<Seen>| {
        let wanted: Vec<_> = peer_update(pods).services.wanted().collect();
        let body = serde_json::to_value(wanted[0].service(&LabelKeys::default())).unwrap();
        body["spec"]["selector"]["drover.dev/active"].clone()
    };
    let active = pod(0, |_, part| old(part));
    assert_eq!(selector(vec![active, pod(1, |_, _| ())]), json!(null));
    let gone = pod(0, |_, part| {
        old(part);
        part.ended = true;
    });
    let standby = pod(1, |_, part| old(part));
    assert_eq!(selector(vec![gone, standby]), json!("true"));
}

#[test]
fn one_reads_from_all_nodes_of_a_group_whatever_their_role() {
    let reads = |part: &mut PodPart| {
        part.told.as_mut().unwrap().read_service = Some("c-db-read".into());
    };
    let all = vec![pod(0, |_, part| reads(part)), pod(1, |_, part| reads(part))];
    let wanted: Vec<_> = peer_update(all).services.wanted().collect();
    let services = wanted
        .iter()
        .map(|it| serde_json::to_value(it.service(&LabelKeys::default())).unwrap());
    let roles: Vec<_> = services
        .map(|it| {
            (
                it["metadata"]["name"].clone(),
                it["spec"]["selector"]["drover.dev/role"].clone(),
            )
        })
        .collect();
    assert_eq!(
        roles,
        [
            (json!("c-db"), json!("active")),
            (json!("c-db-read"), json!(null))
        ]
    );
    assert_ne!(wanted[0].digest(), wanted[1].digest());
}

#[test]
fn a_service_to_write_to_goes_before_one_of_that_name_to_read_from() {
    for order in [[0, 1], [1, 0]] {
        let pods = order.map(|at| {
            pod(at, |node, part| {
                let told = part.told.as_mut().unwrap();
                if at == 0 {
                    (told.service, told.read_service) = (None, Some("c-db-read".into()));
                } else {
                    node.group = "db-read".to_owned();
                    told.service = Some("c-db-read".into());
                }
            })
        });
        let wanted: Vec<_> = peer_update(pods.into()).services.wanted().collect();
        assert_eq!(wanted.len(), 1);
        let body = serde_json::to_value(wanted[0].service(&LabelKeys::default())).unwrap();
        let selector = &body["spec"]["selector"];
        assert_eq!(selector["drover.dev/group"], "db-read");
        assert_eq!(selector["drover.dev/role"], "active");
    }
}

/// The only budget of the cluster.
fn budget(pods: Vec<Seen>) -> serde_json::Value {
    let update = peer_update(pods);
    let wanted: Vec<_> = update.budgets.wanted(&update.sizes).collect();
    assert_eq!(wanted.len(), 1);
    serde_json::to_value(wanted[0].budget(&LabelKeys::default())).unwrap()
}

#[test]
fn all_nodes_of_a_group_but_one_have_to_stay_whatever_they_do() {
    let mut all = vec![
        pod(0, |_, _| ()),
        pod(1, |node, _| node.addresses.clear()),
        pod(2, |_, part| part.ended = true),
        pod(3, |node, _| node.group = "other".into()),
        pod(4, |node, _| node.slot.as_mut().unwrap().owner = "p".into()),
    ];
    for other in all.drain(3..).collect::<Vec<_>>() {
        assert_eq!(budget(vec![other])["spec"]["minAvailable"], 0);
    }
    let body = budget(all);
    assert_eq!(
        body["spec"],
        json!({
            "minAvailable": 2,
            "unhealthyPodEvictionPolicy": "IfHealthyBudget",
            "selector": {"matchLabels": {"drover.dev/cluster": "c", "drover.dev/group": "db", "drover.dev/owner": "o"}},
        })
    );
}

#[test]
fn an_evicted_pod_and_the_one_in_its_place_are_one_node() {
    let successor = pod(2, |node, _| {
        (node.name, node.ordinal) = ("db-1".to_owned(), Some(1));
    });
    let all = vec![pod(0, |_, _| ()), pod(1, |_, _| ()), successor];
    assert_eq!(budget(all)["spec"]["minAvailable"], 1);
}

#[test]
fn a_pod_that_is_alone_may_go_even_if_it_is_not_ready() {
    let body = budget(vec![pod(0, |_, _| ())]);
    assert_eq!(body["spec"]["minAvailable"], 0);
    assert_eq!(body["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow");
}

#[tokio::test(start_paused = true)]
async fn fewer_nodes_count_only_when_they_have_stayed_so_few() {
    let patience = shared::Patience::new(Duration::from_secs(300));
    let place = || ("kind".to_owned(), "prod".to_owned(), "c-db".to_owned());
    let begin = Instant::now();
    assert_eq!(
        patience.until(place(), 2),
        Some(begin + Duration::from_secs(300))
    );
    tokio::time::advance(Duration::from_secs(200)).await;
    assert!(patience.until(place(), 1) > Some(begin + Duration::from_secs(300)));
    tokio::time::advance(Duration::from_secs(299)).await;
    assert!(patience.until(place(), 1).is_some());
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(patience.until(place(), 1), None);
}

/// The kind of an object for a group.
fn kind(group: &str, plural: &str) -> Arc<Kind> {
    let mut kind = Arc::unwrap_or_clone(Kind::core("Any", plural));
    group.clone_into(&mut kind.resource.group);
    Arc::new(kind)
}

/// Metadata of an object for group `db`.
fn made() -> ObjectMeta {
    GroupLabels::of("o", "c", "db").metadata("prod", "c-db", &LabelKeys::default())
}

fn read(kind: &Arc<Kind>, meta: &ObjectMeta) -> Option<Shared> {
    Shared::read(kind, meta, &LabelKeys::default())
}

#[test]
fn an_object_of_a_group_says_its_own_name_and_a_copy_of_it_is_somebody_elses() {
    let services = kind("", "services");
    assert!(read(&services, &made()).is_some());
    assert_eq!(
        read(&kind("serving.knative.dev", "services"), &made()),
        None
    );
    let copy = ObjectMeta {
        name: Some("mine".into()),
        ..made()
    };
    assert_eq!(read(&services, &copy), None);
    // As `kubectl expose` makes it.
    let exposed = ObjectMeta {
        annotations: None,
        ..copy
    };
    assert_eq!(read(&services, &exposed), None);
}

#[test]
fn a_secret_that_somebody_changed_is_looked_at_again() {
    let notifier = PeerNotifier::default();
    let secrets = kind("", "secrets");
    let (services, secret) = (kind("", "services"), read(&secrets, &made()).unwrap());
    let current = |kind: &Arc<Kind>| {
        let place = shared::place(kind, &made());
        notifier.current.lock().insert(place.clone(), 1);
        place
    };
    notifier.found(secret.clone(), "1", (0, 1));
    let place = current(&secrets);
    notifier.found(secret.clone(), "1", (0, 1));
    assert!(notifier.is_current(&place, 1), "the same again");
    notifier.found(secret, "2", (0, 1));
    assert!(!notifier.is_current(&place, 1));
    let place = current(&services);
    notifier.found(read(&services, &made()).unwrap(), "3", (1, 1));
    assert!(notifier.is_current(&place, 1));
}

#[test]
fn what_a_new_list_does_not_have_is_forgotten() {
    let notifier = PeerNotifier::default();
    let kinds = ["services", "secrets"].map(|plural| kind("", plural));
    for (watch, kind) in (0..).zip(&kinds) {
        notifier.found(read(kind, &made()).unwrap(), "1", (watch, 1));
        notifier.expect(&[shared::place(kind, &made())], 1);
    }
    assert_eq!(notifier.forget_unlisted((1, 1)).len(), 0);
    assert_eq!(notifier.forget_unlisted((1, 2)), ["c".to_owned()].into());
    let current = |kind| notifier.is_current(&shared::place(kind, &made()), 1);
    assert!(current(&kinds[0]) && !current(&kinds[1]));
    assert_eq!(notifier.shared.of_cluster("c").len(), 1);
}

#[test]
fn an_object_that_is_gone_is_forgotten_and_those_of_its_name_are_not() {
    let budgets = kind("policy", "poddisruptionbudgets");
    let notifier = PeerNotifier::default();
    for kind in [&budgets, &kind("", "services")] {
        notifier.found(read(kind, &made()).unwrap(), "1", (0, 1));
        notifier
            .current
            .lock()
            .insert(shared::place(kind, &made()), 1);
    }
    let left = || notifier.shared.of_cluster("c").len();
    notifier.forget(&kind("example.com", "services"), &made());
    assert_eq!(left(), 2);
    notifier.forget(&budgets, &made());
    assert_eq!(left(), 1);
    assert!(!notifier.is_current(&shared::place(&budgets, &made()), 1));
    assert!(notifier.is_current(&shared::place(&kind("", "services"), &made()), 1));
}

#[test]
fn a_group_with_nodes_keeps_what_it_has() {
    let sizes = peer_update(vec![pod(0, |_, _| ())]).sizes;
    let service = read(&kind("", "services"), &made()).unwrap();
    assert!(service.is_counted("c", &sizes));
    assert!(!service.is_counted("other", &sizes));
    assert!(!service.is_counted("c", &Sizes::new()));
}
