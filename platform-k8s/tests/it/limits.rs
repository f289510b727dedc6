//! Platform and resources of one process call the API server within the same limits.

use std::time::Duration;

use drover_platform_k8s::{Settings, client::Api, resources};
use drover_proto::kubernetes::v1::{
    GetConfigurationRequest, configuration_service_client::ConfigurationServiceClient,
};
use drover_resources_kubernetes::client::Clients;
use drover_server::{ServerSettings, Service, Shutdown};
use drover_testing::kubernetes::{Fault, FaultProxy, On};
use tokio::time::Instant;

use crate::direct::rig;

const CALLS: u32 = 8;
const BUDGET: u32 = 2;
const TIMEOUT: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_the_platform_and_of_the_resources_are_in_flight_within_one_budget() {
    let namespace = rig().namespace().await;
    let proxy = FaultProxy::start(rig()).await;
    let mut settings = Settings {
        kubeconfig: Some(proxy.kubeconfig()),
        namespaces: vec![namespace.name.clone()],
        max_concurrent_calls: BUDGET as usize,
        call_timeout_seconds: 30.0,
        ..Settings::default()
    };
    settings.resources.enabled = true;
    let kinds = Api::open(&settings).await.unwrap().kinds().await.unwrap();
    let secrets = kinds.named("secrets").unwrap();

    settings.call_timeout_seconds = TIMEOUT.as_secs_f64();
    let clients = Clients::default();
    let platform = Api::over(clients.get(&settings.client()).await.unwrap(), &settings);
    let resources = resources::open(&settings, &clients).await.unwrap();
    let routes = resources
        .add_to(Service::new("kubernetes", "0"))
        .into_routes(&ServerSettings::default(), Shutdown::new())
        .unwrap();
    let configurations = ConfigurationServiceClient::new(drover_client::in_process(routes));
    for resource in ["secrets", "configmaps"] {
        proxy.fail(On::call("get", resource).always(), Fault::Stall);
    }

    let begin = Instant::now();
    let of_platform = futures::future::join_all((0..CALLS).map(|_| async {
        let found = platform.get_meta(&secrets, &namespace.name, "none").await;
        assert!(found.is_err(), "{found:?}");
    }));
    let of_resources = futures::future::join_all((0..CALLS).map(|_| async {
        let request = GetConfigurationRequest {
            namespace: namespace.name.clone(),
            name: "none".to_owned(),
        };
        let found = configurations.clone().get_configuration(request).await;
        assert!(found.is_err(), "{found:?}");
    }));
    futures::future::join(of_platform, of_resources).await;
    // Each call takes its whole time limit. With a budget for each half they would be through in half of this.
    let least = TIMEOUT * (2 * CALLS / BUDGET);
    assert!(begin.elapsed() >= least, "{:?}", begin.elapsed());
    for resource in ["secrets", "configmaps"] {
        assert_eq!(proxy.count("get", resource), CALLS as usize);
    }
    namespace.remove().await;
}
