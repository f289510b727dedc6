use std::{collections::BTreeSet, sync::Arc};

use drover_platform_k8s::{PlatformServer, Settings, addons::AddonsSettings};
use drover_proto::platform::v1::{
    GetPlatformRequest, platform_service_client::PlatformServiceClient,
};
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
    place::{add, settings},
};
use crate::{bench::catalogue, conformance::foreign_addon};

/// What the platform says of the built-in templates of addons.
async fn templates(server: &PlatformServer) -> BTreeSet<String> {
    let mut client = PlatformServiceClient::new(drover_client::in_process(server.routes()));
    let platform = client.get_platform(GetPlatformRequest {}).await.unwrap();
    let templates = platform.into_inner().platform.unwrap().templates;
    let addons = templates.into_iter().filter(|entry| entry.addon);
    addons.map(|entry| entry.template).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_of_metal3_conform() {
    let hosts: Vec<_> = (0..60)
        .map(|at| {
            let (rack, name) = (format!("r{}", at % 5), format!("host-{at:02}"));
            host(&name, &[("rack", rack.as_str()), ("slot", name.as_str())])
        })
        .collect();
    let place = Place::with(&hosts).await;
    let settings = Settings {
        addons: AddonsSettings {
            namespace: Some(place.namespace.name.clone()),
            ..AddonsSettings::default()
        },
        templates: Some(catalogue()),
        ..settings(Rig::shared(Options::default()), &place.namespace.name)
    };
    let server = PlatformServer::open(settings.clone()).await.unwrap();
    let place = place.served_by(server).await;
    for built_in in ["load-balancer", "jump-host", "oidc-provider", "notes"] {
        let offered = templates(&place.server).await;
        assert!(offered.contains(built_in), "{built_in}: {offered:?}");
    }
    let current: Arc<Mutex<Arc<PlatformServer>>> = Arc::new(Mutex::new(Arc::clone(&place.server)));
    let server = Arc::clone(&current);
    let mut subject = Subject::new(move || drover_client::in_process(server.lock().routes()));
    subject.patience = PATIENCE;
    subject.becomes_ready = false;
    subject.fuzz_rounds = 100;
    // Nobody runs their pods.
    subject.addons_become_ready = false;
    subject.addon_template = Some("notes".to_owned());
    subject.make_foreign_addon = Some(foreign_addon(&place.namespace));
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
    let server = Arc::clone(&current);
    subject.restart = Some(Arc::new(move || {
        let (server, settings) = (Arc::clone(&server), settings.clone());
        async move {
            let before = Arc::clone(&server.lock());
            before.shutdown().await;
            let after = PlatformServer::open(settings).await.unwrap();
            *server.lock() = Arc::new(after);
        }
        .boxed()
    }));
    conformance(&subject).await;
}
