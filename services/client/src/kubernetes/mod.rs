//! Client of the resources of one Kubernetes, as `drover-platform-k8s` serves them.

mod access;
mod wait;

use std::{future::Future, time::Duration};

use drover_core::{Error, Reason, Result};
use drover_proto::kubernetes::v1::{
    self as api, configuration_service_client::ConfigurationServiceClient,
    ingress_service_client::IngressServiceClient,
    network_policy_service_client::NetworkPolicyServiceClient,
    node_service_client::NodeServiceClient, pod_service_client::PodServiceClient,
    service_service_client::ServiceServiceClient,
};
use tokio::time::Instant;

use crate::{
    Channel, MAX_MESSAGE_BYTES,
    call::{request, within},
    pages::Pages,
    retry::Policy,
    role::Role,
};

pub use access::{File, Finished, Input, Output};
pub use wait::{Update, Wait};

/// Number of times that a list is restarted because its page token expired.
const PAGE_RESTARTS: u32 = 1;

/// Client of the resources of one Kubernetes. Clones share the connection.
///
/// Every deadline is relative to now. Reads are retried until then while the failure is transient. Writes make one
/// attempt, because a lost answer does not tell whether the write was done, and somebody else may have written since:
/// the caller knows whether to repeat it. Lists read all pages. Waits and drains survive lost connections, see [`Wait`].
#[derive(Clone, Debug)]
pub struct KubernetesClient {
    nodes: NodeServiceClient<Channel>,
    pods: PodServiceClient<Channel>,
    services: ServiceServiceClient<Channel>,
    ingresses: IngressServiceClient<Channel>,
    network_policies: NetworkPolicyServiceClient<Channel>,
    configurations: ConfigurationServiceClient<Channel>,
    policy: Policy,
}

/// The content of an answer.
trait Content<T> {
    fn stated(self, call: &str) -> Result<T>;
}

impl<T> Content<T> for Option<T> {
    fn stated(self, call: &str) -> Result<T> {
        self.ok_or_else(|| Error::internal(format!("{call} answered nothing")))
    }
}

impl Content<Self> for bool {
    fn stated(self, _: &str) -> Result<Self> {
        Ok(self)
    }
}

impl Content<Self> for Vec<String> {
    fn stated(self, _: &str) -> Result<Self> {
        Ok(self)
    }
}

macro_rules! calls {
    ($($how:ident $client:ident { $($name:ident($request:ident) -> $field:ident: $answer:ty;)* })*) => { $($(
        #[doc = concat!("`", stringify!($name), "`, as the protos document it.")]
        pub async fn $name(&self, message: api::$request, deadline: Duration) -> Result<$answer> {
            self.$how(deadline, |attempt| {
                let mut client = self.$client.clone();
                let message = message.clone();
                async move { within(attempt, client.$name(request(message, attempt))).await }
            })
            .await?
            .$field
            .stated(stringify!($name))
        }
    )*)* };
}

macro_rules! lists {
    ($($client:ident.$name:ident($request:ident) -> $field:ident: $item:ident;)*) => { $(
        #[doc = concat!("All pages of `", stringify!($name), "`. Restarts once if a page token expires.")]
        pub async fn $name(&self, message: api::$request, deadline: Duration) -> Result<Vec<api::$item>> {
            let end = Instant::now() + deadline;
            restarted(|| async {
                let mut message = message.clone();
                let mut all = Vec::new();
                let mut pages = Pages::of(stringify!($name), end);
                loop {
                    let left = end.saturating_duration_since(Instant::now());
                    let page = self
                        .read(left, |attempt| {
                            let mut client = self.$client.clone();
                            let message = message.clone();
                            async move { within(attempt, client.$name(request(message, attempt))).await }
                        })
                        .await?;
                    let more = pages.take(&page, page.$field.len(), &page.next_page_token)?;
                    all.extend(page.$field);
                    if !more {
                        return Ok(all);
                    }
                    message.page_token = page.next_page_token;
                }
            })
            .await
        }
    )* };
}

async fn restarted<T, F>(list: impl Fn() -> F) -> Result<Vec<T>>
where
    F: Future<Output = Result<Vec<T>>>,
{
    let mut restarts = 0;
    loop {
        match list().await {
            Err(error)
                if error.reason() == Reason::PageTokenExpired && restarts < PAGE_RESTARTS =>
            {
                restarts += 1;
            }
            outcome => return outcome,
        }
    }
}

impl KubernetesClient {
    /// Creates a client over this channel. With TLS, a server whose certificate identifies it as something else than a
    /// platform (`spiffe://drover/orchestrator/…`) is rejected before anything is sent to it.
    #[must_use]
    pub fn new(channel: Channel) -> Self {
        let channel = channel.to(Role::Platform);
        macro_rules! client {
            ($client:ident) => {
                $client::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES)
            };
        }
        Self {
            nodes: client!(NodeServiceClient),
            pods: client!(PodServiceClient),
            services: client!(ServiceServiceClient),
            ingresses: client!(IngressServiceClient),
            network_policies: client!(NetworkPolicyServiceClient),
            configurations: client!(ConfigurationServiceClient),
            policy: Policy::default(),
        }
    }

    /// Sets the retry policy of reads and waits.
    #[must_use]
    pub fn with_policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    calls! {
        read nodes {
            get_node(GetNodeRequest) -> node: api::Node;
        }
        write nodes {
            cordon_node(CordonNodeRequest) -> node: api::Node;
            uncordon_node(UncordonNodeRequest) -> node: api::Node;
        }
        read pods {
            get_pod(GetPodRequest) -> pod: api::Pod;
        }
        write pods {
            create_pod(CreatePodRequest) -> pod: api::Pod;
            delete_pod(DeletePodRequest) -> existed: bool;
        }
        read services {
            get_service(GetServiceRequest) -> service: api::Service;
        }
        write services {
            create_service(CreateServiceRequest) -> service: api::Service;
            delete_service(DeleteServiceRequest) -> existed: bool;
        }
        read ingresses {
            get_ingress(GetIngressRequest) -> ingress: api::Ingress;
            get_rule(GetRuleRequest) -> rule: api::IngressRule;
        }
        write ingresses {
            create_ingress(CreateIngressRequest) -> ingress: api::Ingress;
            delete_ingress(DeleteIngressRequest) -> existed: bool;
            upsert_paths(UpsertPathsRequest) -> rule: api::IngressRule;
            remove_paths(RemovePathsRequest) -> rule: api::IngressRule;
        }
        read network_policies {
            get_network_policy(GetNetworkPolicyRequest) -> network_policy: api::NetworkPolicy;
        }
        write network_policies {
            create_network_policy(CreateNetworkPolicyRequest) -> network_policy: api::NetworkPolicy;
            delete_network_policy(DeleteNetworkPolicyRequest) -> existed: bool;
            delete_network_policies(DeleteNetworkPoliciesRequest) -> names: Vec<String>;
        }
        read configurations {
            get_configuration(GetConfigurationRequest) -> configuration: api::Configuration;
        }
        write configurations {
            create_configuration(CreateConfigurationRequest) -> configuration: api::Configuration;
            update_configuration(UpdateConfigurationRequest) -> configuration: api::Configuration;
            delete_configuration(DeleteConfigurationRequest) -> existed: bool;
        }
    }

    lists! {
        nodes.list_nodes(ListNodesRequest) -> nodes: Node;
        pods.list_pods(ListPodsRequest) -> pods: Pod;
        services.list_services(ListServicesRequest) -> services: Service;
        ingresses.list_ingresses(ListIngressesRequest) -> ingresses: Ingress;
        network_policies.list_network_policies(ListNetworkPoliciesRequest) -> network_policies: NetworkPolicy;
        configurations.list_configurations(ListConfigurationsRequest) -> configurations: Configuration;
    }

    async fn read<T, F>(&self, deadline: Duration, call: impl FnMut(Duration) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.policy.run(deadline, call).await
    }

    async fn write<T, F>(&self, deadline: Duration, call: impl FnOnce(Duration) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        call(deadline).await
    }
}
