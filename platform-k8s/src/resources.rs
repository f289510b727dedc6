//! The resources of one Kubernetes, as this server is set up for them.

use std::{path::PathBuf, sync::Arc};

use drover_core::{Error, Result};
use drover_proto::kubernetes::v1::IngressBackend;
use drover_resources::{
    Cluster, MAX_STREAMS, MAX_WAITS, Parts, PodPolicies, Resources, Served,
    remote::{Remote, RemoteSettings},
};
use drover_resources_fake::Fake;
use drover_resources_kubernetes::{
    KubernetesConfigurations, KubernetesNetworkPolicies, KubernetesNodes, KubernetesPods,
    KubernetesServices,
    client::Clients,
    ingress::{IngressBackends, Options},
};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::Settings;

/// The services of `drover.kubernetes.v1`: pods, services, ingresses and more of one Kubernetes, for callers that make
/// them one by one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ResourcesSettings {
    /// Whether they are served. Off by default: whoever may use them has a shell in every pod.
    pub enabled: bool,
    /// Namespace of requests that name none. `None`: the first of `namespaces`, or `default`.
    pub default_namespace: Option<String>,
    /// What pods may be, by namespace (Pod Security Standards).
    pub pod_policy: PodPolicies,
    /// Most waits at once. Each holds a watch at the API server, which has to send every change to all of them.
    pub max_waits: usize,
    /// Most commands, files and logs at once. Each holds a connection to the API server and one to a kubelet.
    pub max_streams: usize,
    /// Most waits of one caller at once, so that some are left for others. `None`: three quarters of `max_waits`.
    pub max_waits_per_caller: Option<usize>,
    /// Most commands, files and logs of one caller at once, so that some are left for others. `None`: three quarters of
    /// `max_streams`.
    pub max_streams_per_caller: Option<usize>,
    /// How ingresses are made, with `kubernetes`.
    pub ingress: IngressSettings,
    /// Seed of the parts that are `fake`: their uids follow from it.
    pub fake_seed: u64,
    /// Where nodes come from.
    pub nodes: PartSettings,
    /// Where pods come from.
    pub pods: PartSettings,
    /// Where services come from.
    pub services: PartSettings,
    /// Where ingresses come from.
    pub ingresses: PartSettings,
    /// Where the rules of ingresses come from.
    pub ingress_rules: PartSettings,
    /// Where network policies come from.
    pub network_policies: PartSettings,
    /// Where configurations come from.
    pub configurations: PartSettings,
}

impl Default for ResourcesSettings {
    fn default() -> Self {
        Self {
            enabled: false,
            default_namespace: None,
            pod_policy: PodPolicies::default(),
            max_waits: MAX_WAITS,
            max_streams: MAX_STREAMS,
            max_waits_per_caller: None,
            max_streams_per_caller: None,
            ingress: IngressSettings::default(),
            fake_seed: 0,
            nodes: PartSettings::default(),
            pods: PartSettings::default(),
            services: PartSettings::default(),
            ingresses: PartSettings::default(),
            ingress_rules: PartSettings::default(),
            network_policies: PartSettings::default(),
            configurations: PartSettings::default(),
        }
    }
}

/// How ingresses are made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IngressSettings {
    /// What they are made of where a request does not say.
    pub backend: DefaultBackend,
    /// Ingress class, or NAMESPACE/NAME of a Gateway, where a request names none. Empty: none.
    pub class_name: String,
    /// Namespaces of Gloo's upstreams besides those that are served: its discovery has one of its own.
    pub upstream_namespaces: Vec<String>,
}

impl Default for IngressSettings {
    fn default() -> Self {
        Self {
            backend: DefaultBackend::default(),
            class_name: String::new(),
            upstream_namespaces: vec!["gloo-system".to_owned()],
        }
    }
}

/// What ingresses are made of where a request does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DefaultBackend {
    /// The first of the others that the API server offers.
    #[default]
    Offered,
    /// Kubernetes Ingress.
    Ingress,
    /// Gateway API HTTPRoute.
    HttpRoute,
    /// Gloo VirtualService.
    VirtualService,
}

/// Where a part comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PartSettings {
    /// What makes it.
    pub from: Source,
    /// With `kubernetes`: kubeconfig file. `None`: that of the platform.
    pub kubeconfig: Option<PathBuf>,
    /// With `kubernetes`: context of the kubeconfig. `None`: that of the platform, or with a kubeconfig of its own the
    /// current one.
    pub context: Option<String>,
    /// With `remote`: where the other server is.
    pub remote: RemoteSettings,
}

/// What makes a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The API server.
    #[default]
    Kubernetes,
    /// Memory.
    Fake,
    /// Nothing: its calls are answered with `UNIMPLEMENTED`.
    Off,
    /// Another server of the same services.
    Remote,
}

/// All seven parts from memory.
///
/// # Errors
/// `Invalid` with the setting.
pub fn fake(settings: &Settings) -> Result<Resources> {
    let served = served(settings);
    check(settings)?;
    let fake = Fake::new(settings.resources.fake_seed);
    Resources::new(fake.cluster(), served)
}

/// The parts as they are set up, by clients that others may use too. Must be called within a runtime of tokio.
///
/// # Errors
/// `Invalid` with the setting; for parts of an API server also as [`crate::PlatformServer::open`] does.
// Boxed, or it would be compiled anew by every crate that awaits it.
pub fn open<'a>(settings: &'a Settings, clients: &'a Clients) -> BoxFuture<'a, Result<Resources>> {
    Box::pin(open_parts(settings, clients))
}

async fn open_parts(settings: &Settings, clients: &Clients) -> Result<Resources> {
    check(settings)?;
    // Parts that are made in one way share what is behind them.
    let mut made: Vec<(&PartSettings, Parts)> = Vec::new();
    let mut parts = Parts::default();
    for (name, source, take) in sources(&settings.resources) {
        let known = made.iter().find(|(settings, _)| *settings == source);
        let found = match known {
            Some((_, parts)) => parts.clone(),
            None => {
                let found = make(settings, clients, name, source).await?;
                made.push((source, found.clone()));
                found
            }
        };
        take(&mut parts, found);
    }
    Resources::new(Cluster::custom(parts), served(settings))
}

type Take = fn(&mut Parts, Parts);

/// Each part with its name, its settings, and how it is taken from others.
fn sources(all: &ResourcesSettings) -> [(&'static str, &PartSettings, Take); 7] {
    [
        ("nodes", &all.nodes, |to, from| to.nodes = from.nodes),
        ("pods", &all.pods, |to, from| to.pods = from.pods),
        ("services", &all.services, |to, from| {
            to.services = from.services;
        }),
        ("ingresses", &all.ingresses, |to, from| {
            to.ingresses = from.ingresses;
        }),
        ("ingress_rules", &all.ingress_rules, |to, from| {
            to.ingress_rules = from.ingress_rules;
        }),
        ("network_policies", &all.network_policies, |to, from| {
            to.network_policies = from.network_policies;
        }),
        ("configurations", &all.configurations, |to, from| {
            to.configurations = from.configurations;
        }),
    ]
}

async fn make(
    settings: &Settings,
    clients: &Clients,
    name: &str,
    part: &PartSettings,
) -> Result<Parts> {
    match part.from {
        Source::Off => Ok(Parts::default()),
        Source::Fake => Ok(Fake::new(settings.resources.fake_seed).parts()),
        Source::Remote => {
            let field = |field: &str| format!("resources.{name}.remote.{field}");
            let remote = Remote::new(&part.remote).map_err(|error| match error.fields() {
                [one] => Error::invalid(field(&one.field), &one.description),
                _ => error,
            })?;
            Ok(remote.parts())
        }
        Source::Kubernetes => kubernetes(settings, clients, part).await,
    }
}

async fn kubernetes(settings: &Settings, clients: &Clients, part: &PartSettings) -> Result<Parts> {
    let mut of_part = settings.client();
    if part.kubeconfig.is_some() {
        (of_part.kubeconfig, of_part.context) = (part.kubeconfig.clone(), None);
    }
    if part.context.is_some() {
        of_part.context.clone_from(&part.context);
    }
    let client = clients.get(&of_part).await?;
    let ingress = &settings.resources.ingress;
    let options = Options {
        backend: match ingress.backend {
            DefaultBackend::Offered => IngressBackend::Unspecified,
            DefaultBackend::Ingress => IngressBackend::Ingress,
            DefaultBackend::HttpRoute => IngressBackend::HttpRoute,
            DefaultBackend::VirtualService => IngressBackend::VirtualService,
        },
        class_name: ingress.class_name.clone(),
        namespaces: settings.namespaces.clone(),
        upstream_namespaces: ingress.upstream_namespaces.clone(),
    };
    let ingresses = IngressBackends::new(client.clone(), options);
    let ingresses = Arc::new(ingresses.excluding(&settings.excluded_namespaces));
    let rules = &settings.resources;
    if [&rules.ingresses, &rules.ingress_rules].contains(&part) {
        // The next write of the same rule completes it, too: nothing waits for this.
        let ingresses = Arc::clone(&ingresses);
        tokio::spawn(async move {
            if let Err(error) = ingresses.complete().await {
                tracing::warn!(%error, "ingress rules that an earlier server began stay incomplete for now");
            }
        });
    }
    Ok(Parts {
        nodes: Some(Arc::new(KubernetesNodes::new(client.clone()))),
        pods: Some(Arc::new(KubernetesPods::new(client.clone()))),
        services: Some(Arc::new(KubernetesServices::new(client.clone()))),
        ingresses: Some(ingresses.clone()),
        ingress_rules: Some(ingresses),
        network_policies: Some(Arc::new(KubernetesNetworkPolicies::new(client.clone()))),
        configurations: Some(Arc::new(KubernetesConfigurations::new(client))),
    })
}

fn check(settings: &Settings) -> Result<()> {
    let resources = &settings.resources;
    for (field, limit) in [
        ("max_waits", Some(resources.max_waits)),
        ("max_streams", Some(resources.max_streams)),
        ("max_waits_per_caller", resources.max_waits_per_caller),
        ("max_streams_per_caller", resources.max_streams_per_caller),
    ] {
        if limit == Some(0) {
            return Err(Error::invalid(
                format!("resources.{field}"),
                "must be at least 1",
            ));
        }
    }
    let default = default_namespace(settings);
    if !settings.serves(&default) {
        let why = format!("the namespace {default:?} is not served");
        return Err(Error::invalid("resources.default_namespace", why));
    }
    Ok(())
}

fn default_namespace(settings: &Settings) -> String {
    let own = settings.resources.default_namespace.clone();
    own.or_else(|| settings.namespaces.first().cloned())
        .unwrap_or_else(|| "default".to_owned())
}

fn served(settings: &Settings) -> Served {
    Served {
        default_namespace: default_namespace(settings),
        namespaces: settings.namespaces.clone(),
        excluded_namespaces: settings.excluded_namespaces.clone(),
        pod_policy: settings.resources.pod_policy.clone(),
        max_waits: settings.resources.max_waits,
        max_streams: settings.resources.max_streams,
        max_waits_per_caller: settings.resources.max_waits_per_caller,
        max_streams_per_caller: settings.resources.max_streams_per_caller,
    }
}

#[cfg(test)]
mod tests;
