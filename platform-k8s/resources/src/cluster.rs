//! The seven parts of one Kubernetes, each from where its users want it.

use std::sync::Arc;

use drover_core::{Error, Reason, Result};

use crate::parts::{
    Configurations, IngressRules, Ingresses, NetworkPolicies, Nodes, Pods, Services,
};

/// The parts that a cluster is made of; an absent one is switched off.
#[derive(Clone, Default)]
#[expect(missing_docs, reason = "the interfaces say what each is")]
pub struct Parts {
    pub nodes: Option<Arc<dyn Nodes>>,
    pub pods: Option<Arc<dyn Pods>>,
    pub services: Option<Arc<dyn Services>>,
    pub ingresses: Option<Arc<dyn Ingresses>>,
    pub ingress_rules: Option<Arc<dyn IngressRules>>,
    pub network_policies: Option<Arc<dyn NetworkPolicies>>,
    pub configurations: Option<Arc<dyn Configurations>>,
}

/// One Kubernetes.
#[derive(Clone, Default)]
pub struct Cluster {
    parts: Parts,
}

macro_rules! part {
    ($name:ident: $interface:ident, $text:literal) => {
        #[doc = concat!("Its ", $text, ".")]
        ///
        /// # Errors
        /// `Unimplemented` where they are switched off.
        pub fn $name(&self) -> Result<&dyn $interface> {
            self.parts.$name.as_deref().ok_or_else(|| off($text))
        }
    };
}

impl Cluster {
    /// A cluster of any parts.
    #[must_use]
    pub fn custom(parts: Parts) -> Self {
        Self { parts }
    }

    part!(nodes: Nodes, "nodes");
    part!(pods: Pods, "pods");
    part!(services: Services, "services");
    part!(ingresses: Ingresses, "ingresses");
    part!(ingress_rules: IngressRules, "ingress rules");
    part!(network_policies: NetworkPolicies, "network policies");
    part!(configurations: Configurations, "configurations");
}

fn off(what: &str) -> Error {
    let message = format!("{what} are switched off on this server");
    Error::new(Reason::Unimplemented, message)
}
