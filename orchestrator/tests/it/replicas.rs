//! Replicas on an etcd that end.

use std::sync::Arc;

use drover_orchestrator::{ReplicaSettings, Routing, Settings, Standby};
use drover_store::{Me, Store, Vacant};
use drover_store_etcd::{EtcdBackend, EtcdSettings};
use drover_testing::{etcd::Etcd, wait::PATIENCE};
use tokio::time::timeout;

fn settings(etcd: &Etcd, name: &str) -> Settings {
    Settings {
        etcd: EtcdSettings {
            endpoints: etcd.endpoints(),
            ..EtcdSettings::default()
        },
        replica: ReplicaSettings {
            name: Some(name.to_owned()),
            ..ReplicaSettings::default()
        },
        ..Settings::default()
    }
}

async fn store(etcd: &Etcd, name: &str) -> Store {
    let backend = EtcdBackend::open(&settings(etcd, name).etcd).await.unwrap();
    Store::open_as(Arc::new(backend), Me::named(name))
        .await
        .unwrap()
}

/// Its server may still have calls to answer, and forwards others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_ends_gives_up_a_lead_that_is_handed_to_it_and_stays_a_replica() {
    let etcd = Etcd::start(1);
    let (leads, waits) = (store(&etcd, "leads").await, store(&etcd, "waits").await);
    let shards = leads.take_all().await.unwrap();
    let settings = settings(&etcd, "ends");
    let routing = Routing::of(&settings).unwrap();
    let ends = Standby::open(&settings, &routing).await.unwrap();
    let declines = tokio::spawn(async move { ends.declines().await });
    let replicas = leads.replicas().await.unwrap();
    let row = replicas.into_iter().find(|it| it.name == "ends").unwrap();
    let given = leads.hand_over(&shards, &row.name, row.lease.unwrap());
    assert!(given.await.unwrap().is_some());
    let vacant = timeout(PATIENCE, waits.vacancy())
        .await
        .expect("it is given up");
    assert_eq!(vacant.unwrap(), Vacant::Free);
    waits.take_all().await.unwrap();
    let replicas = waits.replicas().await.unwrap();
    assert!(replicas.iter().any(|it| it.lease == row.lease));
    declines.abort();
}
