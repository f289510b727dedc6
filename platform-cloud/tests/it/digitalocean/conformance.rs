//! The conformance suite of platforms, directly and with every call validated against the published specification.

use std::{path::Path, sync::Arc, time::Duration};

use drover_core::Reason;
use drover_emulators::{
    Fault, Settings as Common,
    digitalocean::{DigitalOcean, DigitalOceanSettings},
    prism::{Prism, specification},
};
use drover_platform_cloud::drivers::digitalocean::Settings;
use drover_proto::platform::v1::{NodeChange, NodeRole};
use drover_testing::platform::{Subject, conformance};
use drover_testing::wait::PATIENCE;
use futures::FutureExt;
use parking_lot::Mutex;
use serde_json::json;

use super::bench::{Bench, serve, user_data};

async fn conforms(bench: &Bench, fuzz_rounds: usize) {
    let current = Arc::new(Mutex::new(Arc::clone(&bench.server)));
    let server = Arc::clone(&current);
    let mut subject = Subject::new(move || drover_client::in_process(server.lock().routes()));
    subject.unknown_store = Some("no-such-store".to_owned());
    subject.patience = PATIENCE;
    subject.fuzz_rounds = fuzz_rounds;
    let cloud = bench.cloud.clone();
    subject.make_foreign = Some(Arc::new(move || {
        let cloud = cloud.clone();
        async move { foreign(&cloud) }.boxed()
    }));
    let (server, settings) = (Arc::clone(&current), bench.settings.clone());
    subject.restart = Some(Arc::new(move || {
        let (server, settings) = (Arc::clone(&server), settings.clone());
        async move {
            let before = Arc::clone(&server.lock());
            before.shutdown().await;
            let after = serve(&settings).await.unwrap();
            *server.lock() = Arc::new(after);
        }
        .boxed()
    }));
    conformance(&subject).await;
    bench.assert_nothing_doubled("conformance");
    let server = Arc::clone(&current.lock());
    server.shutdown().await;
}

/// A foreign droplet in the region of the platform.
fn foreign(cloud: &DigitalOcean) -> (String, String) {
    // Creates one in each region.
    cloud.add_foreign(10);
    let here = cloud.machines().into_iter().rev();
    let made = here
        .filter(|machine| machine.zone == "fra1")
        .find(|machine| !machine.tags.keys().any(|tag| tag.starts_with("drover:")));
    (String::new(), made.unwrap().id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_platform_on_digitalocean_conforms() {
    let bench = Bench::new().await;
    conforms(&bench, 300).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_conforms_when_the_api_is_slow_to_make_to_show_and_to_remove() {
    let delay = Duration::from_millis(300);
    let bench = Bench::with(DigitalOceanSettings {
        common: Common {
            pending_delay: delay,
            stopping_delay: delay,
            visibility_delay: delay,
            page_size: Some(3),
            ..Common::default()
        },
        ..DigitalOceanSettings::default()
    })
    .await;
    conforms(&bench, 300).await;
}

/// A platform whose calls all pass through Prism.
async fn checked(emulator: DigitalOceanSettings) -> (Bench, Prism) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/prism");
    let published = specification(&folder, "digitalocean-v2-compute.json").unwrap();
    let mut bench = Bench::with(emulator).await;
    let prism = Prism::start(&published, &bench.cloud.url())
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    let through = |settings: &mut Settings| {
        settings.endpoint = prism.url().to_owned();
        settings.common.call_timeout_seconds = 30.0;
    };
    through(&mut bench.settings);
    bench.crash().await;
    bench.cloud.control().clear_requests();
    (bench, prism)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_of_the_conformance_suite_fits_the_published_specification() {
    let (bench, prism) = checked(DigitalOceanSettings::default()).await;
    conforms(&bench, 20).await;
    assert_eq!(prism.violations(), Vec::<String>::new());
    assert!(bench.cloud.control().count("droplets.create") > 20);
    assert_eq!(bench.cloud.control().count("?"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_call_and_refusal_fits_the_published_specification() {
    let (bench, prism) = checked(DigitalOceanSettings {
        common: Common {
            pending_delay: Duration::from_secs(15),
            ..Common::default()
        },
        ..DigitalOceanSettings::default()
    })
    .await;
    let control = bench.cloud.control();
    let vpc = bench.cloud.default_vpc("fra1").unwrap();
    let properties = json!({
        "instanceType": "standard", "memory": 1, "image": "golden", "sshKey": "mwas", "vpcUuid": vpc,
        "backups": true, "monitoring": true, "ipv6": true, "publicNetworking": true, "tags": ["web"],
    });
    let mut request = bench.request_with(12, &properties);
    request.bootstrap = Some(user_data("#cloud-config\n"));
    request.validate_only = true;
    let outcome = bench.provision(&request).await;
    assert!(outcome.is_ok(), "{outcome:?}: {:#?}", prism.violations());
    request.validate_only = false;
    let nodes = bench.made_by(&request).await;
    // Still being created: the deletion is refused, its actions are read, and it is retried.
    bench.deprovision(&bench.removal(&nodes[1])).await.unwrap();
    assert!(control.count("droplets.actions") > 0);

    for (tier, remove) in [("Hot", vec![]), ("cold", vec!["team.io/One".to_owned()])] {
        let change = NodeChange {
            role: NodeRole::Standby.into(),
            set_labels: [("tier".to_owned(), tier.to_owned())].into(),
            remove_labels: remove,
            ..NodeChange::default()
        };
        let change = bench.change(&nodes[0], change);
        bench.update(&change).await.unwrap();
    }
    let refuse = |status: u16, id: &str| Fault::refuse(status, id, "as the API would say it");
    for (fault, reason) in [
        (refuse(422, "unprocessable_entity"), Reason::Invalid),
        (refuse(403, "forbidden"), Reason::PermissionDenied),
        (refuse(500, "server_error"), Reason::Unavailable),
        (Fault::Quota, Reason::QuotaExceeded),
    ] {
        control.fail_next("droplets.create", fault);
        assert_eq!(bench.refusal(&bench.request(1)).await.reason(), reason);
    }
    control.fail_next(
        "droplets.create",
        Fault::Throttle {
            retry_after: Some(Duration::from_secs(1)),
        },
    );
    bench.make(1).await;
    bench.assert_nothing_leaked("through Prism").await;
    let gone = bench.deprovision(&bench.removal(&nodes[0])).await;
    assert!(gone.is_ok());
    bench.cloud.expire_credentials(true);
    let error = bench.refusal(&bench.request(1)).await;
    assert_eq!(error.reason(), Reason::CredentialsRefused);

    assert_eq!(prism.violations(), Vec::<String>::new());
    for operation in [
        "account.get",
        "keys.list",
        "regions.list",
        "sizes.list",
        "images.list",
        "images.get",
        "vpcs.get",
        "droplets.list",
        "droplets.get",
        "droplets.create",
        "droplets.delete",
        "droplets.actions",
        "tags.create",
        "tags.tag",
        "tags.untag",
    ] {
        let met =
            control.count(operation) > 0 || ["regions.list", "sizes.list"].contains(&operation);
        assert!(met, "{operation} was not called");
    }
}
