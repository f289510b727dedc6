//! `remote` in front of a server of the fake.

use std::path::PathBuf;

use drover_core::Reason;
use drover_proto::kubernetes::v1::{
    self as api, configuration_service_client::ConfigurationServiceClient,
    pod_service_client::PodServiceClient,
};
use drover_resources::{
    Cluster, Resources, Served,
    remote::{Remote, RemoteSettings},
};
use drover_resources_fake::Fake;
use drover_server::{ServerSettings, Service, Shutdown};
use drover_testing::{
    certs::{Authority, Pair, Wanted},
    resources::{Subject, conformance},
};

use crate::{
    conformance::{NAMESPACE, service},
    service::{failed, served},
};

#[tokio::test(flavor = "multi_thread")]
async fn remote_in_front_of_the_fake_passes_the_conformance_suite() {
    let settings = ServerSettings::on_port(0);
    let stop = Shutdown::new();
    let listener = drover_server::listen(&settings).await.unwrap();
    let running = drover_server::spawn(service(&Fake::new(2)), listener, &settings, stop).unwrap();
    let remote = Remote::new(&RemoteSettings {
        endpoint: format!("http://{}", running.address()),
        ..RemoteSettings::default()
    })
    .unwrap();
    let served = Served {
        default_namespace: NAMESPACE.to_owned(),
        ..Served::default()
    };
    let front = Resources::new(Cluster::custom(remote.parts()), served).unwrap();
    let routes = front
        .add_to(Service::new("front", "0"))
        .into_routes(&ServerSettings::default(), Shutdown::new())
        .unwrap();
    let subject = Subject::new(NAMESPACE, move || drover_client::in_process(routes.clone()));
    conformance(&subject).await;
    running.shutdown().await;
}

/// The services in front of a server at an endpoint.
fn front(settings: &RemoteSettings) -> drover_client::Channel {
    let remote = Remote::new(settings).unwrap();
    let namespace = Served {
        default_namespace: NAMESPACE.to_owned(),
        ..Served::default()
    };
    served(Cluster::custom(remote.parts()), namespace)
}

/// A server of the fake that wants to know who calls.
async fn secured(authority: &Authority) -> drover_server::Running {
    let pair = authority.server();
    let mut settings = ServerSettings::on_port(0);
    settings.tls.cert = Some(pair.cert);
    settings.tls.key = Some(pair.key);
    settings.tls.client_ca = Some(authority.ca());
    let listener = drover_server::listen(&settings).await.unwrap();
    let service = service(&Fake::new(4));
    drover_server::spawn(service, listener, &settings, Shutdown::new()).unwrap()
}

fn configuration() -> api::CreateConfigurationRequest {
    api::CreateConfigurationRequest {
        configuration: Some(api::Configuration {
            metadata: Some(api::Metadata {
                name: "a".into(),
                ..Default::default()
            }),
            ..Default::default()
        }),
    }
}

#[tokio::test]
async fn the_other_server_is_called_over_mutual_tls_and_lets_in_whom_its_certificate_lets_in() {
    let authority = Authority::new("ours");
    let running = secured(&authority).await;
    let with = |ca: PathBuf, pair: Option<Pair>| {
        let pair = pair.map(|pair| (pair.cert, pair.key)).unzip();
        front(&RemoteSettings {
            endpoint: format!("https://{}", running.address()),
            ca: Some(ca),
            cert: pair.0,
            key: pair.1,
            server_name: None,
        })
    };
    let own = |uri| Some(authority.client("front", uri));
    let channel = with(authority.ca(), own("spiffe://drover/admin/front"));
    let mut configurations = ConfigurationServiceClient::new(channel.clone());
    let made = configurations.create_configuration(configuration()).await;
    assert!(made.is_ok(), "{made:?}");
    let wait = api::WaitPodsRequest {
        names: vec!["never-made".into()],
        ..Default::default()
    };
    let mut pods = PodServiceClient::new(channel);
    let mut progress = pods.wait_pods(wait.clone()).await.unwrap().into_inner();
    progress.message().await.unwrap().unwrap();

    // A role that has nothing here: the refusal is of this server, and the caller has done nothing wrong.
    let channel = with(authority.ca(), own("spiffe://drover/platform/front"));
    let mut configurations = ConfigurationServiceClient::new(channel.clone());
    let error = failed(configurations.create_configuration(configuration()).await);
    assert_eq!(error.reason(), Reason::CredentialsRefused, "{error}");
    assert!(error.message().contains("refuses this one"), "{error}");
    assert!(error.message().contains("platform/front"), "{error}");
    let error = failed(PodServiceClient::new(channel).wait_pods(wait).await);
    assert_eq!(error.reason(), Reason::CredentialsRefused, "{error}");

    // Neither side believes the other's authority: nothing is sent.
    let stranger = Authority::new("theirs");
    let theirs = stranger.write(&Wanted::client("front", "spiffe://drover/admin/front"));
    for channel in [
        with(stranger.ca(), own("spiffe://drover/admin/front")),
        with(authority.ca(), Some(theirs)),
        with(authority.ca(), None),
    ] {
        let mut configurations = ConfigurationServiceClient::new(channel);
        let error = failed(configurations.create_configuration(configuration()).await);
        let not_let_in = matches!(
            error.reason(),
            Reason::Unavailable | Reason::CredentialsRefused
        );
        assert!(not_let_in, "{error:?}");
        assert!(error.message().contains("certificate"), "{error}");
    }
    running.shutdown().await;
}

#[tokio::test]
async fn a_token_that_the_other_server_wants_is_not_asked_of_the_caller() {
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("access.yaml");
    let text = "bindings: [{role: admin, subjects: ['token:ann']}]\n\
                tokens: [{name: ann, token: ann-0123456789abcdef}]\n";
    std::fs::write(&rules, text).unwrap();
    let settings = ServerSettings {
        access: Some(rules),
        ..ServerSettings::on_port(0)
    };
    let listener = drover_server::listen(&settings).await.unwrap();
    let service = service(&Fake::new(5));
    let running = drover_server::spawn(service, listener, &settings, Shutdown::new()).unwrap();
    let channel = front(&RemoteSettings {
        endpoint: format!("http://{}", running.address()),
        ..RemoteSettings::default()
    });
    let mut configurations = ConfigurationServiceClient::new(channel);
    let error = failed(configurations.create_configuration(configuration()).await);
    assert_eq!(error.reason(), Reason::CredentialsRefused, "{error}");
    assert!(error.message().contains("refuses this one"), "{error}");
    running.shutdown().await;
}
