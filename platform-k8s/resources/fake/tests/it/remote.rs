//! `remote` in front of a server of the fake.

use drover_resources::{
    Cluster, Resources, Served,
    remote::{Remote, RemoteSettings},
};
use drover_resources_fake::Fake;
use drover_server::{ServerSettings, Service, Shutdown};
use drover_testing::resources::{Subject, conformance};

use crate::conformance::{NAMESPACE, service};

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
