//! A server whose calls to the API server pass through a proxy, and one beside it whose calls do not.

use std::{future::Future, sync::Arc, time::Duration};

use drover_client::Channel;
use drover_convert::error::from_status;
use drover_core::Error;
use drover_proto::kubernetes::v1::{
    self as api, configuration_service_client::ConfigurationServiceClient,
    ingress_service_client::IngressServiceClient,
    network_policy_service_client::NetworkPolicyServiceClient,
    node_service_client::NodeServiceClient, pod_service_client::PodServiceClient,
    service_service_client::ServiceServiceClient,
};
use drover_resources::{Cluster, Parts, Resources, Served};
use drover_resources_kubernetes::{
    KubernetesConfigurations, KubernetesNetworkPolicies, KubernetesNodes, KubernetesPods,
    KubernetesServices,
    client::{self, ApiClient, ClientSettings},
    ingress::{IngressBackends, Options as IngressOptions},
};
use drover_server::{ServerSettings, Service, Shutdown};
use drover_testing::kubernetes::{FaultProxy, Namespace, Rig};
use futures::StreamExt as _;
use tonic::{Response, Status, Streaming};

/// Time limit of a call to the API server, where faults use it up.
const CALL_TIMEOUT: Duration = Duration::from_secs(8);

/// The six services over the API server of a kubeconfig, in one namespace.
pub(crate) async fn serve(kubeconfig: &std::path::Path, namespace: &str) -> Channel {
    serve_within(client::CALL_TIMEOUT, kubeconfig, namespace).await
}

async fn serve_within(
    call_timeout: Duration,
    kubeconfig: &std::path::Path,
    namespace: &str,
) -> Channel {
    let settings = ClientSettings {
        kubeconfig: Some(kubeconfig.to_owned()),
        call_timeout,
        ..ClientSettings::default()
    };
    let client = ApiClient::open(&settings).await.unwrap();
    let options = IngressOptions {
        namespaces: vec![namespace.to_owned()],
        ..IngressOptions::default()
    };
    let ingresses = Arc::new(IngressBackends::new(client.clone(), options));
    let cluster = Cluster::custom(Parts {
        nodes: Some(Arc::new(KubernetesNodes::new(client.clone()))),
        pods: Some(Arc::new(KubernetesPods::new(client.clone()))),
        services: Some(Arc::new(KubernetesServices::new(client.clone()))),
        ingresses: Some(ingresses.clone()),
        ingress_rules: Some(ingresses),
        network_policies: Some(Arc::new(KubernetesNetworkPolicies::new(client.clone()))),
        configurations: Some(Arc::new(KubernetesConfigurations::new(client))),
    });
    let served = Served {
        default_namespace: namespace.to_owned(),
        namespaces: vec![namespace.to_owned()],
        ..Served::default()
    };
    let resources = Resources::new(cluster, served).unwrap();
    let service = resources.add_to(Service::new("kubernetes", "0"));
    let routes = service
        .into_routes(&ServerSettings::default(), Shutdown::new())
        .unwrap();
    drover_client::in_process(routes)
}

pub(crate) struct World {
    pub(crate) namespace: Arc<Namespace>,
    pub(crate) proxy: FaultProxy,
    /// Through the proxy.
    pub(crate) server: Channel,
    /// Past the proxy.
    pub(crate) direct: Channel,
}

impl World {
    pub(crate) async fn new(rig: &Rig, namespace: Arc<Namespace>, direct: Channel) -> Self {
        let proxy = FaultProxy::start(rig).await;
        let server = serve_within(CALL_TIMEOUT, &proxy.kubeconfig(), &namespace.name).await;
        Self {
            namespace,
            proxy,
            server,
            direct,
        }
    }

    pub(crate) fn nodes(&self) -> NodeServiceClient<Channel> {
        NodeServiceClient::new(self.server.clone())
    }

    pub(crate) fn pods(&self) -> PodServiceClient<Channel> {
        PodServiceClient::new(self.server.clone())
    }

    pub(crate) fn services(&self) -> ServiceServiceClient<Channel> {
        ServiceServiceClient::new(self.server.clone())
    }

    pub(crate) fn ingresses(&self) -> IngressServiceClient<Channel> {
        IngressServiceClient::new(self.server.clone())
    }

    pub(crate) fn policies(&self) -> NetworkPolicyServiceClient<Channel> {
        NetworkPolicyServiceClient::new(self.server.clone())
    }

    pub(crate) fn configurations(&self) -> ConfigurationServiceClient<Channel> {
        ConfigurationServiceClient::new(self.server.clone())
    }

    /// Metadata with a label that nothing else has.
    pub(crate) fn metadata(&self, name: &str) -> Option<api::Metadata> {
        Some(api::Metadata {
            namespace: self.namespace.name.clone(),
            name: name.to_owned(),
            labels: [("case".to_owned(), name.to_owned())].into(),
            ..api::Metadata::default()
        })
    }

    /// Whether an object is there, and not being deleted.
    pub(crate) async fn has(&self, resource: &str, name: &str) -> bool {
        match self.namespace.get(resource, name).await {
            Ok(object) => object["metadata"]["deletionTimestamp"].is_null(),
            Err(refused) if refused.code == 404 => false,
            Err(refused) => panic!("{resource} {name}: {refused:?}"),
        }
    }
}

pub(crate) async fn done<T>(
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Error> {
    let answer = call.await;
    answer
        .map(Response::into_inner)
        .map_err(|status| from_status(&status))
}

/// All messages of a stream. What is to happen meanwhile does so after the first.
pub(crate) async fn stream<T>(
    call: impl Future<Output = Result<Response<Streaming<T>>, Status>>,
    meanwhile: impl Future<Output = ()>,
) -> Result<Vec<T>, Error> {
    let mut answers = done(call).await?;
    let mut told = Vec::new();
    let mut meanwhile = Some(meanwhile);
    while let Some(answer) = answers.next().await {
        told.push(answer.map_err(|status| from_status(&status))?);
        if let Some(meanwhile) = meanwhile.take() {
            meanwhile.await;
        }
    }
    Ok(told)
}
