//! The parts of a cluster that another server of the same services has. A call that is dropped here is cancelled there.

mod answer;
mod channel;
mod parts;
mod pods;

use std::{path::PathBuf, sync::Arc};

use drover_core::Result;
use drover_proto::kubernetes::v1::{
    configuration_service_client::ConfigurationServiceClient,
    ingress_service_client::IngressServiceClient,
    network_policy_service_client::NetworkPolicyServiceClient,
    node_service_client::NodeServiceClient, pod_service_client::PodServiceClient,
    service_service_client::ServiceServiceClient,
};
use drover_tls::Trouble;
use serde::{Deserialize, Serialize};
use tonic::transport::Channel;

use crate::Parts;

/// Largest answer, in bytes: a page ends at 1 MiB, but its last object may be as large as Kubernetes lets one be.
const MAX_MESSAGE: usize = 8 * 1024 * 1024;

/// Where the other server is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteSettings {
    /// Its endpoint: `http://HOST:PORT`, or `https://HOST:PORT`.
    pub endpoint: String,
    /// Certificates of the authorities that its certificate must be of. `None`: those of the system.
    pub ca: Option<PathBuf>,
    /// Certificate to show it. `None`: none.
    pub cert: Option<PathBuf>,
    /// Key of that certificate.
    pub key: Option<PathBuf>,
    /// Name that its certificate must have. `None`: the host of the endpoint.
    pub server_name: Option<String>,
}

/// Another server.
#[derive(Clone, Debug)]
pub struct Remote {
    channel: Channel,
    /// Why its last connection has ended.
    trouble: Trouble,
}

impl Remote {
    /// Prepares calls. The connection is made by the first one, and again after it breaks.
    ///
    /// # Errors
    /// `Invalid` with the setting.
    pub fn new(settings: &RemoteSettings) -> Result<Self> {
        let (channel, trouble) = channel::open(settings)?;
        Ok(Self { channel, trouble })
    }

    /// Calls over a channel that exists.
    #[must_use]
    pub fn over(channel: Channel) -> Self {
        Self {
            channel,
            trouble: Trouble::default(),
        }
    }

    /// All of its parts.
    #[must_use]
    pub fn parts(self) -> Parts {
        let all = Arc::new(self);
        Parts {
            nodes: Some(all.clone()),
            pods: Some(all.clone()),
            services: Some(all.clone()),
            ingresses: Some(all.clone()),
            ingress_rules: Some(all.clone()),
            network_policies: Some(all.clone()),
            configurations: Some(all),
        }
    }

    fn nodes(&self) -> NodeServiceClient<Channel> {
        NodeServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    fn pods(&self) -> PodServiceClient<Channel> {
        PodServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    fn services(&self) -> ServiceServiceClient<Channel> {
        ServiceServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    fn ingresses(&self) -> IngressServiceClient<Channel> {
        IngressServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    fn policies(&self) -> NetworkPolicyServiceClient<Channel> {
        NetworkPolicyServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    fn configurations(&self) -> ConfigurationServiceClient<Channel> {
        ConfigurationServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }
}
