//! The conformance suite of platforms, with real processes.

use crate::local_support;

use std::{path::PathBuf, sync::Arc};

use drover_platform_cloud::{PlatformServer, drivers::local::Settings};
use drover_testing::platform::{Subject, conformance};
use drover_testing::wait::PATIENCE;
use futures::FutureExt;
use local_support::{clean, processes_of, settings, state};
use parking_lot::Mutex;

/// The server under test, which a restart replaces.
type Current = Arc<Mutex<Arc<PlatformServer>>>;

/// Kills remaining processes, even if the test fails.
struct Leftovers(PathBuf);

impl Drop for Leftovers {
    fn drop(&mut self) {
        for pid in processes_of(&self.0).into_keys() {
            local_support::kill(pid, "KILL");
        }
    }
}

async fn conforms(store: &str, change: impl FnOnce(&mut Settings)) {
    let directory = tempfile::tempdir().unwrap();
    let _leftovers = Leftovers(state(directory.path()));
    let mut settings = settings(directory.path());
    change(&mut settings);
    let server = PlatformServer::open(settings.clone().into()).await.unwrap();
    let current: Current = Arc::new(Mutex::new(Arc::new(server)));
    let connect = Arc::clone(&current);
    let mut subject = Subject::new(move || drover_client::in_process(connect.lock().routes()));
    subject.patience = PATIENCE;
    store.clone_into(&mut subject.store);
    subject.unknown_store = Some("no-such-store".to_owned());
    let restarted = Arc::clone(&current);
    subject.restart = Some(Arc::new(move || {
        let (server, settings) = (Arc::clone(&restarted), settings.clone());
        async move {
            let before = Arc::clone(&server.lock());
            before.shutdown().await;
            let after = PlatformServer::open(settings.into()).await.unwrap();
            *server.lock() = Arc::new(after);
        }
        .boxed()
    }));
    conformance(&subject).await;
    let server = Arc::clone(&current.lock());
    server.shutdown().await;
    clean(directory.path());
    assert!(processes_of(&state(directory.path())).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_local_platform_conforms_with_agents() {
    conforms("", |_| {}).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_local_platform_conforms_with_redis_and_failure_domains() {
    conforms("redis", |settings| {
        settings.failure_domains = ["a", "b"].map(str::to_owned).to_vec();
    })
    .await;
}
