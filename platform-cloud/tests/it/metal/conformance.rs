//! The conformance suite of platforms, directly and with every call validated against the published specification.

use std::{path::Path, sync::Arc, time::Duration};

use drover_core::Reason;
use drover_emulators::{
    Fault, Settings as Common,
    metal::MetalSettings,
    prism::{Prism, specification},
};
use drover_platform_cloud::drivers::metal::Settings;
use drover_proto::platform::v1::{NodeChange, NodeRole};
use drover_testing::platform::{Subject, conformance};
use drover_testing::wait::PATIENCE;
use futures::FutureExt;
use parking_lot::Mutex;
use serde_json::json;

use super::bench::{Bench, NAMED_MACHINE, PROJECT, SMALL, serve, user_data, whole};

async fn conforms(bench: &Bench, fuzz_rounds: usize) {
    let current = Arc::new(Mutex::new(Arc::clone(&bench.server)));
    let server = Arc::clone(&current);
    let mut subject = Subject::new(move || drover_client::in_process(server.lock().routes()));
    subject.unknown_store = Some("no-such-store".to_owned());
    subject.patience = PATIENCE;
    subject.fuzz_rounds = fuzz_rounds;
    subject.infrastructure = Some(whole());
    let metal = bench.metal.clone();
    subject.make_foreign = Some(Arc::new(move || {
        let made = metal.add_foreign(PROJECT, 1);
        async move { (String::new(), made[0].clone()) }.boxed()
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_platform_on_metal_stack_conforms() {
    let bench = Bench::new().await;
    conforms(&bench, 300).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_conforms_when_the_api_is_slow_to_install_and_to_free() {
    let delay = Duration::from_millis(300);
    let bench = Bench::with(MetalSettings {
        common: Common {
            pending_delay: delay,
            stopping_delay: delay,
            ..Common::default()
        },
        ..MetalSettings::default()
    })
    .await;
    conforms(&bench, 300).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_conforms_with_an_hmac() {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("hmac");
    std::fs::write(&key, "emulator-edit").unwrap();
    let bench = Bench::set(MetalSettings::default(), |settings| {
        settings.token_file = None;
        settings.hmac_file = Some(key);
    })
    .await;
    conforms(&bench, 50).await;
}

/// A platform whose calls all pass through Prism. `None` if `tests/run` has reported that the specification is missing.
async fn checked(emulator: MetalSettings) -> Option<(Bench, Prism)> {
    if std::env::var_os("DROVER_WITHOUT_METAL_SPEC").is_some() {
        return None;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/prism");
    let published = specification(&folder, "metal-stack-api.json").unwrap();
    let mut bench = Bench::with(emulator).await;
    let prism = Prism::start(&published, &bench.metal.url())
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    let through = |settings: &mut Settings| {
        settings.url = prism.url().to_owned();
        settings.common.call_timeout_seconds = 30.0;
    };
    through(&mut bench.settings);
    bench.metal.control().clear_requests();
    bench.crash().await;
    Some((bench, prism))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_of_the_conformance_suite_fits_the_published_specification() {
    let Some((bench, prism)) = checked(MetalSettings::default()).await else {
        return;
    };
    conforms(&bench, 20).await;
    assert_eq!(prism.violations(), Vec::<String>::new());
    assert!(bench.metal.control().count("machine.allocate") > 20);
    assert_eq!(bench.metal.control().count("?"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_call_and_refusal_fits_the_published_specification() {
    let Some((bench, prism)) = checked(MetalSettings::default()).await else {
        return;
    };
    let control = bench.metal.control();
    let mut spec = whole();
    spec.endpoint.as_mut().unwrap().host = "100.255.254.77".to_owned();
    let state = bench.ensure_whole(&spec).await;
    spec.endpoint.as_mut().unwrap().targets.clear();
    bench.ensure_whole(&spec).await;

    let properties = json!({ "sshKeys": ["ssh-ed25519 AAAAC3Nz me"], "tags": ["web", "tier=hot"], "size": SMALL });
    let mut request = bench.request_with("control-plane", 2, &properties);
    request.bootstrap = Some(user_data("#cloud-config\n"));
    request.infrastructure = state.outputs.into_iter().collect();
    request.slots[0].host_id = Some(NAMED_MACHINE.to_owned());
    request.validate_only = true;
    let outcome = bench.provision(&request).await;
    assert!(outcome.is_ok(), "{outcome:?}: {:#?}", prism.violations());
    request.validate_only = false;
    let nodes = bench.made_by(&request).await;
    let change = NodeChange {
        role: NodeRole::Standby.into(),
        set_labels: [("tier".to_owned(), "cold".to_owned())].into(),
        remove_labels: vec!["team.io/one".to_owned()],
        ..NodeChange::default()
    };
    let change = bench.change(&nodes[0], change);
    assert_eq!(
        bench.update(&change).await.unwrap().role(),
        NodeRole::Standby
    );

    for (fault, reason) in [
        (Fault::refuse(422, "", "something else"), Reason::Exhausted),
        (
            Fault::refuse(403, "", "not a member"),
            Reason::PermissionDenied,
        ),
        (Fault::NoCapacity, Reason::NoCapacity),
        (Fault::Quota, Reason::QuotaExceeded),
    ] {
        control.fail_next("machine.allocate", fault);
        let error = bench.refusal(&bench.request(1)).await;
        assert_eq!(error.reason(), reason);
    }
    bench.assert_no_machine_leaked("through Prism").await;
    bench.release_whole().await;
    bench.assert_all_gone("through Prism").await;

    assert_eq!(prism.violations(), Vec::<String>::new());
    for operation in [
        "project.get",
        "version",
        "size.list",
        "partition.list",
        "image.latest",
        "network.get",
        "network.allocate",
        "network.find",
        "network.free",
        "ip.get",
        "ip.allocate-specific",
        "ip.find",
        "ip.update",
        "ip.free",
        "firewall.allocate",
        "firewall.find",
        "machine.allocate",
        "machine.ipmi.find",
        "machine.ipmi.get",
        "machine.free",
        "machine.update",
    ] {
        assert!(control.count(operation) > 0, "{operation} was not called");
    }
    assert_eq!(control.count("?"), 0);
}
