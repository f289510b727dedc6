use drover_server::access::Replicas as _;
use drover_testing::store::MemoryBackend;

use super::*;
use crate::ReplicaSettings;

fn row(key: &'static [u8]) -> ReplicaRow {
    ReplicaRow {
        name: "b".to_owned(),
        address: "http://127.0.0.1:1".to_owned(),
        version: String::new(),
        key: Bytes::from_static(key),
        since_ms: 1,
        leads: true,
        epoch: 1,
        is_this: false,
        lease: Some(LeaseId(7)),
        revision: 0,
        report: None,
    }
}

async fn routing() -> (Routing, Arc<Store>) {
    let settings = Settings {
        replica: ReplicaSettings {
            name: Some("a".to_owned()),
            address: None,
        },
        ..Settings::default()
    };
    let routing = Routing::of(&settings).unwrap();
    let me = routing.introduce(settings.replica.me().unwrap());
    let store = Store::open_as(Arc::new(MemoryBackend::new()), me).await;
    (routing, Arc::new(store.unwrap()))
}

fn is_ready(routing: &Routing) -> bool {
    *routing.0.readiness.borrow() == Readiness::Ready
}

#[tokio::test]
async fn what_is_found_between_turns_is_of_the_one_before() {
    let (routing, store) = routing().await;
    routing.found(Some(&row(b"key")));
    assert!(matches!(routing.leader(), Leader::Unknown));
    routing.joined(store);
    routing.found(Some(&row(b"key")));
    assert!(matches!(routing.leader(), Leader::Another(_)) && is_ready(&routing));
    routing.left();
    routing.found(Some(&row(b"key")));
    assert!(matches!(routing.leader(), Leader::Unknown) && !is_ready(&routing));
}

/// It would take the caller for this replica.
#[tokio::test]
async fn a_leader_that_does_not_know_of_forwarding_is_named_and_not_asked() {
    let (routing, store) = routing().await;
    routing.joined(store);
    routing.found(Some(&row(b"")));
    let Leader::Another(leader) = routing.leader() else {
        panic!("{:?}", routing.leader());
    };
    assert!(leader.channel(false).is_none() && leader.channel(true).is_none());
    assert!(!is_ready(&routing));
    let error = routing.nobody();
    assert_eq!(error.reason(), Reason::NotLeader);
    assert_eq!(error.metadata().get("leader"), Some(&row(b"").address));
}

#[tokio::test]
async fn only_keys_of_living_replicas_are_published() {
    let (routing, store) = routing().await;
    let key = routing.voucher().public_key().to_vec();
    assert!(routing.publishes("a", &key).await.is_err());
    routing.joined(store);
    assert!(!routing.publishes("a", b"another").await.unwrap());
    assert!(routing.publishes("a", &key).await.is_ok());
    tokio::time::sleep(KEYS_READ).await;
    assert!(routing.publishes("a", &key).await.unwrap());
    assert!(!routing.publishes("b", &key).await.unwrap());
    assert!(!routing.publishes("a", b"").await.unwrap());
}

#[tokio::test]
async fn a_call_waits_for_a_leader_and_not_longer_than_it_may() {
    let (routing, store) = routing().await;
    routing.joined(store);
    let stop = Shutdown::new();
    let until = Instant::now() + LOOK_AGAIN * 3;
    let waited = routing.answerer(until, &stop).await;
    assert_eq!(waited.unwrap_err().reason(), Reason::NotLeader);
    let until = Instant::now() + Duration::from_secs(60);
    let (found, ()) = tokio::join!(routing.answerer(until, &stop), async {
        tokio::time::sleep(LOOK_AGAIN).await;
        routing.found(Some(&row(b"key")));
    });
    assert!(matches!(found.unwrap(), Leader::Another(_)));
    stop.cancel();
    routing.resigns();
    assert!(routing.answerer(until, &stop).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_call_from_the_leader_waits_for_this_ones_lead_and_no_call_is_forwarded_twice() {
    let (routing, store) = routing().await;
    routing.joined(store);
    routing.found(Some(&row(b"key")));
    let stop = Shutdown::new();
    let (began, until) = (Instant::now(), Instant::now() + Duration::from_secs(60));
    let waited = routing.own_lead("b", until, &stop).await;
    assert_eq!(waited.unwrap_err().reason(), Reason::NotLeader);
    assert!(began.elapsed() >= HESITATES && began.elapsed() < HESITATES * 2);
    let began = Instant::now();
    let waited = routing.own_lead("c", until, &stop).await;
    assert_eq!(waited.unwrap_err().reason(), Reason::NotLeader);
    assert_eq!(began.elapsed(), Duration::ZERO, "c knows no more than it");
    // The lead was handed to this one, which begins, and loses it again.
    let waits = async { routing.own_lead("b", until, &stop).await.map(|_| ()) };
    let (waited, at) = tokio::join!(waits, async {
        tokio::time::sleep(HESITATES / 2).await;
        routing.begins(2);
        tokio::time::sleep(HESITATES * 4).await;
        routing.found(Some(&ReplicaRow {
            epoch: 3,
            ..row(b"key")
        }));
        Instant::now()
    });
    assert_eq!(waited.unwrap_err().reason(), Reason::NotLeader);
    assert_eq!(Instant::now(), at, "it waits while nobody leads");
    let given = ReplicaRow {
        epoch: 4,
        ..row(b"key")
    };
    routing.gave(&given);
    let waited = routing.own_lead("b", until, &stop).await;
    assert_eq!(waited.unwrap_err().reason(), Reason::NotLeader);
    assert_eq!(Instant::now(), at, "it has given the lead to b itself");
}

#[tokio::test]
async fn of_a_lead_that_was_before_a_known_one_nothing_is_said() {
    let (routing, store) = routing().await;
    routing.joined(store);
    let (former, next) = (
        row(b"key"),
        ReplicaRow {
            name: "c".to_owned(),
            epoch: 2,
            ..row(b"other")
        },
    );
    routing.begins(2);
    routing.found(Some(&former));
    assert!(matches!(routing.leader(), Leader::Unknown));
    routing.found(Some(&next));
    routing.found(Some(&former));
    assert!(matches!(routing.leader(), Leader::Another(leader) if leader.name == "c"));
}
