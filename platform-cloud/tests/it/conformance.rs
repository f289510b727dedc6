//! The conformance suite of platforms, for the drivers that need no emulator.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{sync::Arc, time::Duration};

use drover_platform_cloud::{
    PlatformServer, Settings,
    drivers::simulated::{AddonSettings, DomainSettings, HostSettings, SimulatedSettings},
};
use drover_proto::platform::v1::{
    AddonKind, EndpointSpec, FirewallSpec, InfrastructureSpec, NetworkSpec,
};
use drover_testing::platform::{Subject, conformance};
use drover_testing::wait::PATIENCE;
use futures::FutureExt;
use parking_lot::Mutex;

/// The server under test, which a restart replaces.
type Current = Arc<Mutex<Arc<PlatformServer>>>;

async fn open(settings: SimulatedSettings) -> Current {
    Arc::new(Mutex::new(Arc::new(
        PlatformServer::open(settings.into()).await.unwrap(),
    )))
}

fn subject(current: &Current, settings: &SimulatedSettings) -> Subject {
    let server = Arc::clone(current);
    let mut subject = Subject::new(move || drover_client::in_process(server.lock().routes()));
    subject.patience = PATIENCE;
    "postgresql".clone_into(&mut subject.store);
    "16".clone_into(&mut subject.version);
    subject.infrastructure = Some(InfrastructureSpec {
        network: Some(NetworkSpec {
            prefix_length: Some(22),
            ..NetworkSpec::default()
        }),
        endpoint: Some(EndpointSpec::default()),
        firewall: Some(FirewallSpec::default()),
        ..InfrastructureSpec::default()
    });
    let server = Arc::clone(current);
    subject.make_foreign = Some(Arc::new(move || {
        let server = Arc::clone(&server.lock());
        async move {
            let node = server
                .simulated()
                .unwrap()
                .create_foreign("", "somebody-elses")
                .unwrap();
            (node.cluster_id, node.node_id)
        }
        .boxed()
    }));
    let server = Arc::clone(current);
    subject.make_foreign_addon = Some(Arc::new(move || {
        let server = Arc::clone(&server.lock());
        async move {
            let (cluster, name) = ("theirs".to_owned(), "somebody-elses".to_owned());
            let simulated = server.simulated().unwrap();
            simulated.create_foreign_addon(&cluster, AddonKind::LoadBalancer, &name);
            (cluster, name)
        }
        .boxed()
    }));
    if settings.state_file.is_some() {
        let (server, settings) = (Arc::clone(current), settings.clone());
        subject.restart = Some(Arc::new(move || {
            let (server, settings) = (Arc::clone(&server), settings.clone());
            async move {
                let before = Arc::clone(&server.lock());
                before.shutdown().await;
                let after = PlatformServer::open(settings.into()).await.unwrap();
                *server.lock() = Arc::new(after);
            }
            .boxed()
        }));
    }
    subject
}

async fn conforms(settings: SimulatedSettings) {
    let current = open(settings.clone()).await;
    conformance(&subject(&current, &settings)).await;
    let server = Arc::clone(&current.lock());
    assert_eq!(
        server.simulated().unwrap().doubles(),
        vec![],
        "no slot was ever made twice"
    );
    server.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_simulated_platform_conforms() {
    conforms(SimulatedSettings::default()).await;
}

#[tokio::test]
async fn the_simulated_platform_conforms_in_real_time_with_latency_and_restarts() {
    let directory = tempfile::tempdir().unwrap();
    conforms(SimulatedSettings {
        state_file: Some(directory.path().join("state")),
        latency: Duration::from_millis(1),
        jitter: Duration::from_millis(1),
        boot_jitter: Duration::from_millis(20),
        ..SimulatedSettings::default()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_simulated_platform_conforms_when_its_nodes_are_hosts_of_an_inventory() {
    let zone = |at: usize| format!("rack-{}", at % 5);
    let host = |at: usize| HostSettings {
        id: format!("host-{at}"),
        failure_domain: zone(at),
        labels: [("slot".to_owned(), (at / 5).to_string())].into(),
        addresses: [("oam".to_owned(), format!("192.0.2.{}", at % 250))].into(),
        claimed_by: if at == 7 { "bob" } else { "" }.to_owned(),
        unusable: if at == 8 {
            "its power supply is dead"
        } else {
            ""
        }
        .to_owned(),
        ..HostSettings::default()
    };
    conforms(SimulatedSettings {
        inventory: true,
        hosts: (0..400).map(host).collect(),
        failure_domains: (0..5)
            .map(|at| DomainSettings {
                name: zone(at),
                ..DomainSettings::default()
            })
            .collect(),
        max_batch: 500,
        ..SimulatedSettings::default()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_simulated_platform_conforms_when_it_is_polled() {
    conforms(SimulatedSettings {
        push: false,
        latency: Duration::from_millis(5),
        ..SimulatedSettings::default()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_simulated_platform_conforms_when_it_is_slow_to_show() {
    let settings = SimulatedSettings {
        latency: Duration::from_millis(300),
        jitter: Duration::from_millis(300),
        visibility_delay: Duration::from_secs(3),
        ..SimulatedSettings::default()
    };
    let current = open(settings.clone()).await;
    let subject = subject(&current, &settings);
    conformance(&subject).await;
    let server = Arc::clone(&current.lock());
    assert_eq!(
        server.simulated().unwrap().doubles(),
        vec![],
        "no slot was ever made twice"
    );
}

#[tokio::test(start_paused = true)]
async fn the_simulated_platform_conforms_with_failure_domains() {
    let domain = |name: &str| DomainSettings {
        name: name.to_owned(),
        ..DomainSettings::default()
    };
    conforms(SimulatedSettings {
        failure_domains: vec![domain("a"), domain("b"), domain("c")],
        ..SimulatedSettings::default()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_simulated_platform_conforms_when_its_addons_are_made_of_templates_and_step_by_step() {
    let catalogue = tempfile::tempdir().unwrap();
    let files = [
        (
            "index.yaml",
            "default: {template: node.yaml}\n\
             stores:\n  - {store: postgresql, versions: [{version: '*', template: node.yaml}]}\n\
             addons:\n  - {name: exporter, template: exporter.yaml}\n",
        ),
        ("node.yaml", "kind: node"),
        (
            "exporter.yaml",
            "kind: Secret\nmetadata: {name: '{{ addon.name }}'}\n---\n\
             kind: Deployment\nmetadata: {name: '{{ addon.name }}'}\n\
             targets: {{ targets | map(attribute='host') | list | tojson }}\n",
        ),
    ];
    for (name, content) in files {
        std::fs::write(catalogue.path().join(name), content).unwrap();
    }
    let simulated = SimulatedSettings {
        addons: AddonSettings {
            apply_delay: Duration::from_millis(50),
            steps: true,
            ..AddonSettings::default()
        },
        ..SimulatedSettings::default()
    };
    let settings = Settings {
        templates: Some(catalogue.path().to_owned()),
        ..simulated.clone().into()
    };
    let server = PlatformServer::open(settings).await.unwrap();
    let current = Arc::new(Mutex::new(Arc::new(server)));
    let mut subject = subject(&current, &simulated);
    subject.addon_template = Some("exporter".to_owned());
    subject.unknown_store = Some("unknown-to-anybody".to_owned());
    conformance(&subject).await;
}
