//! One of the two servers, and what it has answered so far.

use std::collections::BTreeMap;

use drover_client::Channel;
use drover_proto::kubernetes::v1::{
    self as api, configuration_service_client::ConfigurationServiceClient,
    ingress_service_client::IngressServiceClient,
    network_policy_service_client::NetworkPolicyServiceClient,
    node_service_client::NodeServiceClient, pod_service_client::PodServiceClient,
    service_service_client::ServiceServiceClient,
};
use futures::stream;

use super::{
    answer::{Answer, Known},
    plan::{FIRST, LAST, Place, Step},
};
use crate::faults::world::{done, stream as all};

pub(super) struct Side {
    channel: Channel,
    known: Known,
    /// First and last revision, and uid, of each configuration and pod.
    seen: BTreeMap<String, (String, String, String)>,
}

macro_rules! unary {
    ($self:ident, $client:ident.$call:ident($request:expr) => $field:ident) => {{
        let answer = done($client::new($self.channel.clone()).$call($request)).await;
        let answer = answer.map(|it| it.$field.unwrap());
        if let Ok(object) = &answer {
            $self.see(object.metadata.as_ref().unwrap());
        }
        $self.known.one(answer)
    }};
}

macro_rules! paged {
    ($self:ident, $client:ident.$call:ident($request:expr) => $field:ident) => {{
        let mut request = $request;
        let mut items = Vec::new();
        loop {
            let mut client = $client::new($self.channel.clone());
            match done(client.$call(request.clone())).await {
                Err(error) => break $self.known.failed(&error),
                Ok(page) => {
                    items.push(page.$field);
                    if page.next_page_token.is_empty() {
                        break $self.known.pages(items, request.page_size);
                    }
                    request.page_token = page.next_page_token;
                }
            }
        }
    }};
}

macro_rules! plain {
    ($self:ident, $client:ident.$call:ident($request:expr)) => {{
        let answer = done($client::new($self.channel.clone()).$call($request)).await;
        $self.known.plain(answer)
    }};
}

impl Side {
    pub(super) fn new(channel: Channel) -> Self {
        Self {
            channel,
            known: Known::default(),
            seen: BTreeMap::new(),
        }
    }

    fn see(&mut self, metadata: &api::Metadata) {
        let seen = self.seen.entry(metadata.name.clone()).or_default();
        if seen.0.is_empty() {
            seen.0.clone_from(&metadata.revision);
        }
        seen.1.clone_from(&metadata.revision);
        seen.2.clone_from(&metadata.uid);
    }

    /// What a placeholder of the plan stands for here.
    fn real(&self, name: &str, placeholder: &str) -> String {
        let seen = self.seen.get(name).cloned().unwrap_or_default();
        match placeholder {
            FIRST => seen.0,
            LAST => seen.1,
            given => given.to_owned(),
        }
    }

    pub(super) async fn call(&mut self, step: &Step) -> Answer {
        match step.clone() {
            Step::GetNode(it) => unary!(self, NodeServiceClient.get_node(it) => node),
            Step::CordonNode(it) => unary!(self, NodeServiceClient.cordon_node(it) => node),
            Step::UncordonNode(it) => unary!(self, NodeServiceClient.uncordon_node(it) => node),
            Step::ListNodes(it) => paged!(self, NodeServiceClient.list_nodes(it) => nodes),
            Step::WaitNodes(it) => {
                let mut client = NodeServiceClient::new(self.channel.clone());
                let told = all(client.wait_nodes(it), async {}).await;
                self.known
                    .waited(told.map(|mut it| it.pop().and_then(|it| it.progress)))
            }
            Step::DrainNode(it) => {
                let mut client = NodeServiceClient::new(self.channel.clone());
                let told = all(client.drain_node(it), async {}).await;
                self.known
                    .waited(told.map(|mut it| it.pop().and_then(|it| it.progress)))
            }
            Step::CreatePod(it) => unary!(self, PodServiceClient.create_pod(it) => pod),
            Step::GetPod(it) => unary!(self, PodServiceClient.get_pod(it) => pod),
            Step::ListPods(it) => paged!(self, PodServiceClient.list_pods(it) => pods),
            Step::DeletePod(mut it) => {
                if it.uid == LAST {
                    let seen = self.seen.get(&it.name).cloned();
                    it.uid = seen.unwrap_or_default().2;
                }
                plain!(self, PodServiceClient.delete_pod(it))
            }
            Step::WaitPods(it) => {
                let mut client = PodServiceClient::new(self.channel.clone());
                let told = all(client.wait_pods(it), async {}).await;
                self.known
                    .waited(told.map(|mut it| it.pop().and_then(|it| it.progress)))
            }
            Step::Exec(it) => {
                let mut client = PodServiceClient::new(self.channel.clone());
                let input = Some(api::exec_request::Input::Start(it));
                let input = stream::iter([api::ExecRequest { input }]);
                let told = all(client.exec(input), async {}).await;
                self.known.plain(told)
            }
            Step::ReadFile(it) => {
                let mut client = PodServiceClient::new(self.channel.clone());
                let told = all(client.read_file(it), async {}).await;
                self.known.plain(told)
            }
            Step::StreamLogs(it) => {
                let mut client = PodServiceClient::new(self.channel.clone());
                let told = all(client.stream_logs(it), async {}).await;
                self.known.plain(told)
            }
            Step::CreateService(it) => {
                unary!(self, ServiceServiceClient.create_service(it) => service)
            }
            Step::GetService(it) => unary!(self, ServiceServiceClient.get_service(it) => service),
            Step::ListServices(it) => {
                paged!(self, ServiceServiceClient.list_services(it) => services)
            }
            Step::DeleteService(it) => plain!(self, ServiceServiceClient.delete_service(it)),
            Step::CreateIngress(it) => {
                unary!(self, IngressServiceClient.create_ingress(it) => ingress)
            }
            Step::GetIngress(it) => unary!(self, IngressServiceClient.get_ingress(it) => ingress),
            Step::ListIngresses(it) => {
                paged!(self, IngressServiceClient.list_ingresses(it) => ingresses)
            }
            Step::DeleteIngress(it) => plain!(self, IngressServiceClient.delete_ingress(it)),
            Step::GetRule(it) => plain!(self, IngressServiceClient.get_rule(it)),
            Step::UpsertPaths(it) => plain!(self, IngressServiceClient.upsert_paths(it)),
            Step::RemovePaths(it) => plain!(self, IngressServiceClient.remove_paths(it)),
            Step::CreateNetworkPolicy(it) => {
                unary!(self, NetworkPolicyServiceClient.create_network_policy(it) => network_policy)
            }
            Step::GetNetworkPolicy(it) => {
                unary!(self, NetworkPolicyServiceClient.get_network_policy(it) => network_policy)
            }
            Step::ListNetworkPolicies(it) => {
                paged!(self, NetworkPolicyServiceClient.list_network_policies(it) => network_policies)
            }
            Step::DeleteNetworkPolicy(it) => {
                plain!(self, NetworkPolicyServiceClient.delete_network_policy(it))
            }
            Step::DeleteNetworkPolicies(it) => {
                plain!(self, NetworkPolicyServiceClient.delete_network_policies(it))
            }
            Step::CreateConfiguration(it) => {
                unary!(self, ConfigurationServiceClient.create_configuration(it) => configuration)
            }
            Step::GetConfiguration(it) => {
                unary!(self, ConfigurationServiceClient.get_configuration(it) => configuration)
            }
            Step::ListConfigurations(it) => {
                paged!(self, ConfigurationServiceClient.list_configurations(it) => configurations)
            }
            Step::UpdateConfiguration(mut it) => {
                let configuration = it.configuration.as_mut().unwrap();
                let metadata = configuration.metadata.as_mut().unwrap();
                metadata.revision = self.real(&metadata.name, &metadata.revision);
                unary!(self, ConfigurationServiceClient.update_configuration(it) => configuration)
            }
            Step::DeleteConfiguration(it) => {
                plain!(self, ConfigurationServiceClient.delete_configuration(it))
            }
        }
    }

    /// Deletes the pods of a sequence, so that nodes have room for the next ones.
    pub(super) async fn end(&mut self, place: &Place) {
        for name in place.pods() {
            let request = api::DeletePodRequest {
                namespace: place.namespace.clone(),
                name,
                grace_period: Some(prost_types::Duration::default()),
                ..api::DeletePodRequest::default()
            };
            let mut client = PodServiceClient::new(self.channel.clone());
            done(client.delete_pod(request)).await.unwrap();
        }
    }
}
