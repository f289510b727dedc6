//! The conformance suite over the fake.

use drover_resources::{Resources, Served};
use drover_resources_fake::Fake;
use drover_server::{ServerSettings, Service, Shutdown};
use drover_testing::resources::{Subject, conformance};

pub(crate) const NAMESPACE: &str = "suite";

/// The services over a fake.
pub(crate) fn service(fake: &Fake) -> Service {
    let served = Served {
        default_namespace: NAMESPACE.to_owned(),
        namespaces: vec![NAMESPACE.to_owned()],
        ..Served::default()
    };
    let resources = Resources::new(fake.cluster(), served).unwrap();
    resources.add_to(Service::new("fake", "0"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fake_passes_the_conformance_suite() {
    let service = service(&Fake::new(1));
    let routes = service
        .into_routes(&ServerSettings::default(), Shutdown::new())
        .unwrap();
    let subject = Subject::new(NAMESPACE, move || drover_client::in_process(routes.clone()));
    let checks = conformance(&subject).await;
    assert!(checks >= 120, "{checks}");
}
