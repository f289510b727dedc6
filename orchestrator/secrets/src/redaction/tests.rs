use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use drover_cluster::{Clusters, fixture};
use drover_core::{Error, NodeState};
use drover_proto::orchestrator::v1 as pb;
use drover_store::{
    Backend, Desired, DigestKey, Keyring, Lane, Revision, RevisionRow, Store, Versioned,
    backend::{CommitError, Info, Lease, LeaseId, Range, Scan, Txn},
    history::Watch,
    keys::Name,
};
use drover_testing::store::MemoryBackend;
use prost::Message;
use tokio::{sync::Notify, time::Instant};

use super::*;
use crate::{Content, ContentKey};

/// Store encryption key of these tests.
const KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
const GROUP: &str = "db";
const OLD: &str = "correct-horse";
const NEW: &str = "battery-staple";

/// A store of which one scan takes as long as a test wants.
#[derive(Debug)]
struct Slow {
    store: MemoryBackend,
    holds: AtomicBool,
    held: Notify,
    goes_on: Notify,
}

#[async_trait]
impl Backend for Slow {
    fn info(&self) -> Info {
        self.store.info()
    }

    async fn commit(&self, txn: Txn, lane: Lane) -> Result<Revision, CommitError> {
        self.store.commit(txn, lane).await
    }

    async fn scan(&self, range: Range, page: usize) -> Result<Scan> {
        let scan = self.store.scan(range, page).await;
        if self.holds.swap(false, Ordering::Relaxed) {
            self.held.notify_one();
            self.goes_on.notified().await;
        }
        scan
    }

    async fn watch(&self, after: Revision) -> Result<Watch> {
        self.store.watch(after).await
    }

    async fn lease(&self, ttl: Duration) -> Result<Lease> {
        self.store.lease(ttl).await
    }

    async fn renew(&self, lease: LeaseId) -> Result<Instant> {
        self.store.renew(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<()> {
        self.store.revoke(lease).await
    }

    async fn compact(&self, revision: Revision) -> Result<()> {
        self.store.compact(revision).await
    }
}

struct World {
    slow: Arc<Slow>,
    store: Arc<Store>,
    digests: Arc<DigestKey>,
    vault: Arc<Vault>,
}

impl World {
    /// Stores an earlier spec.
    async fn retains(&self, uid: Uuid, row: RevisionRow) {
        let key = Name::Revision(uid, 1).into();
        let txn = Txn::default().put(key, row.encode_to_vec());
        self.slow.commit(txn, Lane::Bulk).await.unwrap();
    }

    /// With the secrets `old` and `new`.
    async fn new() -> Self {
        let slow = Arc::new(Slow {
            store: MemoryBackend::new(),
            holds: AtomicBool::new(false),
            held: Notify::new(),
            goes_on: Notify::new(),
        });
        let store = Arc::new(Store::open(slow.clone()).await.unwrap());
        let keys = Keyring::parse(KEY, "keys of tests").unwrap();
        store.unlock(keys).await.unwrap();
        let digests = Arc::new(DigestKey::random().unwrap());
        let vault = Vault::load(store.clone(), digests.clone()).await.unwrap();
        for (name, text) in [("old", OLD), ("new", NEW)] {
            let content = Content {
                keys: vec![ContentKey::new("p", text.into())],
                ..Content::default()
            };
            let stored = content.encode_to_vec().into();
            let revision = store.put_secret(name, stored, None).await.unwrap();
            vault.put(name, &content, revision);
        }
        Self {
            slow,
            store,
            digests,
            vault: Arc::new(vault),
        }
    }

    fn resolved(&self, stored: &[u8]) -> Arc<Resolved> {
        let digests = self.digests.of_cluster(Uuid::from_u128(1));
        Arc::new(Resolved::from_stored(stored, &digests).unwrap())
    }

    /// A cluster whose spec names the secret `old`, with a node that was made by it.
    fn cluster(&self) -> Cluster {
        let stored = spec("old");
        let resolved = self.resolved(&stored);
        let hash = resolved.groups[0].choices[0].spec_hash.clone();
        let cluster = Cluster::create(Uuid::from_u128(1), desired(1, stored), resolved);
        let mut node = fixture::node(1, NodeState::Ready);
        let origin = node.origin_mut();
        (origin.group, origin.spec_hash) = (GROUP.into(), hash);
        fixture::record(&cluster, node);
        cluster
    }

    /// What becomes of a text that repeats both.
    async fn hears(&self, cluster: &Cluster) -> String {
        let hidden = self.vault.hidden(cluster, GROUP).await;
        repeated(&hidden)
    }
}

/// What is left of a text that repeats both. What is not secret stays.
fn repeated(hidden: &Unsaid) -> String {
    let heard = hidden.text(&format!("{OLD} and {NEW}")).into_owned();
    assert!(heard.contains(" and "), "{heard}");
    heard
}

fn spec(secret: &str) -> Vec<u8> {
    let of = pb::SecretKeyRef {
        name: secret.to_owned(),
        key: "p".to_owned(),
    };
    let group = pb::GroupSpec {
        name: GROUP.to_owned(),
        platforms: vec![pb::PlatformChoice {
            name: "sim".to_owned(),
            ..Default::default()
        }],
        secrets: vec![pb::TemplateSecret {
            name: "p".to_owned(),
            secret_key_ref: Some(of),
        }],
        ..Default::default()
    };
    let spec = pb::ClusterSpec {
        groups: vec![group],
        ..Default::default()
    };
    spec.encode_to_vec()
}

fn desired(generation: u64, spec: Vec<u8>) -> Versioned<Desired> {
    let value = Desired {
        name: "orders".to_owned(),
        generation,
        spec: spec.into(),
        ..Desired::default()
    };
    Versioned {
        value,
        revision: generation,
    }
}

fn retained(spec: Vec<u8>) -> RevisionRow {
    RevisionRow {
        spec: spec.into(),
        ..RevisionRow::default()
    }
}

#[tokio::test]
async fn texts_about_a_node_repeat_neither_what_it_was_given_nor_what_its_group_is_given_now() {
    let world = World::new().await;
    let cluster = world.cluster();
    assert!(!world.hears(&cluster).await.contains(OLD));
    let uid = cluster.uid();
    let row = retained(spec("old"));
    world.retains(uid, row).await;
    let next = world.resolved(&spec("new"));
    (cluster.lock()).desire(desired(2, spec("new")), Some(next));
    let heard = world.hears(&cluster).await;
    assert!(!heard.contains(OLD) && !heard.contains(NEW), "{heard}");
}

#[tokio::test]
async fn a_change_of_the_spec_while_its_former_ones_are_read_uncovers_nothing() {
    let world = World::new().await;
    let cluster = Arc::new(world.cluster());
    world.slow.holds.store(true, Ordering::Relaxed);
    let (vault, asked) = (world.vault.clone(), cluster.clone());
    let hidden = tokio::spawn(async move { vault.hidden(&asked, GROUP).await });
    world.slow.held.notified().await;
    // The spec that was read as the current one is a former one from here on, and was not among those that were read.
    let row = retained(spec("old"));
    world.retains(cluster.uid(), row).await;
    let next = world.resolved(&spec("new"));
    (cluster.lock()).desire(desired(2, spec("new")), Some(next));
    world.slow.goes_on.notify_one();
    let hidden = hidden.await.unwrap();
    let heard = repeated(&hidden);
    assert!(!heard.contains(OLD) && !heard.contains(NEW), "{heard}");
}

#[tokio::test]
async fn nothing_is_shown_of_a_text_if_what_it_may_not_repeat_cannot_be_read() {
    let world = World::new().await;
    let cluster = world.cluster();
    let secret = world.store.secret("old").await.unwrap().unwrap();
    let revision = Some(secret.revision);
    world.store.delete_secret("old", revision).await.unwrap();
    let hidden = world.vault.hidden(&cluster, GROUP).await;
    assert!(!hidden.text("all is well").contains("well"));
    assert_eq!(hidden.text(""), "");
    let error = hidden.error(Error::unavailable("at 10.0.0.1"));
    assert!(!error.message().contains("10.0.0.1"), "{error}");
    assert_eq!(error.reason(), Reason::Unavailable);
}

#[tokio::test]
async fn nodes_of_clusters_that_are_not_known_are_heard_as_they_speak() {
    let world = World::new().await;
    let clusters = Clusters::default();
    clusters.add(world.cluster());
    let node = |owner: u128| wire::Node {
        message: format!("started with {OLD}"),
        group: GROUP.to_owned(),
        slot: Some(wire::SlotKey {
            owner: Uuid::from_u128(owner).to_string(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let heard = world.vault.hear(&clusters, vec![node(1), node(2)]).await;
    assert!(!heard[0].message.contains(OLD), "{}", heard[0].message);
    assert!(heard[1].message.contains(OLD), "nothing was given to it");
}

#[tokio::test]
async fn who_holds_a_secret_that_its_spec_names_no_more_is_found() {
    let world = World::new().await;
    let cluster = world.cluster();
    let is = |name: &'static str| move |of: &SecretRef| of.name == name;
    let holds = async |name| world.vault.holds(&cluster, is(name)).await.unwrap();
    assert!(!holds("old").await, "its spec names it");
    let row = retained(spec("old"));
    let uid = cluster.uid();
    world.retains(uid, row).await;
    let next = world.resolved(&spec("new"));
    (cluster.lock()).desire(desired(2, spec("new")), Some(next));
    assert!(holds("old").await && !holds("new").await);
}
