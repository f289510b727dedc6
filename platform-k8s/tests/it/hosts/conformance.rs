use std::sync::Arc;

use drover_platform_k8s::PlatformServer;
use drover_testing::{
    kubernetes::{Options, Rig},
    platform::{Subject, conformance},
    wait::PATIENCE,
};
use futures::FutureExt as _;
use parking_lot::Mutex;
use serde_json::json;
use uuid::Uuid;

use super::{
    Place, host,
    place::{add, open},
};

#[tokio::test(flavor = "multi_thread")]
async fn hosts_of_metal3_conform() {
    let hosts: Vec<_> = (0..60)
        .map(|at| {
            let (rack, name) = (format!("r{}", at % 5), format!("host-{at:02}"));
            host(&name, &[("rack", rack.as_str()), ("slot", name.as_str())])
        })
        .collect();
    let place = Place::with(&hosts).await;
    let current: Arc<Mutex<Arc<PlatformServer>>> = Arc::new(Mutex::new(Arc::clone(&place.server)));
    let server = Arc::clone(&current);
    let mut subject = Subject::new(move || drover_client::in_process(server.lock().routes()));
    subject.patience = PATIENCE;
    subject.becomes_ready = false;
    subject.fuzz_rounds = 100;
    let namespace = Arc::clone(&place.namespace);
    subject.make_foreign = Some(Arc::new(move || {
        let namespace = Arc::clone(&namespace);
        async move {
            let name = format!("foreign-{}", &Uuid::new_v4().simple().to_string()[..8]);
            let mut object = host(&name, &[]);
            object["metadata"]["labels"] = json!({
                "sip.airshipit.org/cluster-namespace": "tenants",
                "sip.airshipit.org/cluster-name": "blue",
                "sip.airshipit.org/node-type": "ControlPlane",
            });
            add(&namespace, &object).await;
            (
                "tenants.blue".to_owned(),
                format!("{}/{name}", namespace.name),
            )
        }
        .boxed()
    }));
    let (server, name) = (Arc::clone(&current), place.namespace.name.clone());
    subject.restart = Some(Arc::new(move || {
        let (server, name) = (Arc::clone(&server), name.clone());
        async move {
            let before = Arc::clone(&server.lock());
            before.shutdown().await;
            let after = open(Rig::shared(Options::default()), &name).await;
            *server.lock() = after;
        }
        .boxed()
    }));
    conformance(&subject).await;
}
