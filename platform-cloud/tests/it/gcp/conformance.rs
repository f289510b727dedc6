//! The conformance suite of platforms.

use std::{sync::Arc, time::Duration};

use drover_emulators::{
    Settings as Common,
    gce::{Gce, GceSettings},
};
use drover_testing::platform::{Subject, conformance};
use drover_testing::wait::PATIENCE;
use futures::FutureExt;
use parking_lot::Mutex;

use super::bench::{Bench, serve, settings};

async fn conforms(emulator: GceSettings) {
    let gce = Gce::start(emulator).await.unwrap();
    let settings = settings(&gce);
    let bench = Bench::over(gce, settings.clone()).await;
    let current = Arc::new(Mutex::new(Arc::clone(&bench.server)));
    let server = Arc::clone(&current);
    let mut subject = Subject::new(move || drover_client::in_process(server.lock().routes()));
    subject.patience = PATIENCE;
    subject.unknown_store = Some("no-such-store".to_owned());
    let gce = bench.gce.clone();
    subject.make_foreign = Some(Arc::new(move || {
        let gce = gce.clone();
        async move {
            gce.add_foreign(1);
            let made = gce.ledger().into_iter().rfind(|made| made.foreign).unwrap();
            (String::new(), made.id)
        }
        .boxed()
    }));
    let server = Arc::clone(&current);
    subject.restart = Some(Arc::new(move || {
        let (server, settings) = (Arc::clone(&server), settings.clone());
        async move {
            let before = Arc::clone(&server.lock());
            before.shutdown().await;
            let after = Arc::new(serve(&settings).await.unwrap());
            *server.lock() = after;
        }
        .boxed()
    }));
    conformance(&subject).await;
    bench.assert_nothing_doubled("conformance");
    let server = Arc::clone(&current.lock());
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_platform_on_compute_engine_conforms() {
    conforms(GceSettings::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_conforms_when_the_api_is_slow_to_make_to_show_and_to_remove() {
    let delay = Duration::from_millis(300);
    conforms(GceSettings {
        common: Common {
            pending_delay: delay,
            stopping_delay: delay,
            visibility_delay: delay,
            page_size: Some(3),
            ..Common::default()
        },
        operation_delay: delay / 2,
        ..GceSettings::default()
    })
    .await;
}
