use std::{collections::BTreeMap, sync::Arc};

use drover_core::Result;
use drover_platform::addons::{AddonProgress, AddonWanted, Addons as _, Owner};
use drover_platform_k8s::{
    Settings,
    addons::{AddonsSettings, KubernetesAddons},
    client::Api,
};
use drover_proto::{
    common::v1::{Address, AddressType},
    platform::v1::{
        AddonSpec, AddonState, AddonTarget, LoadBalancer, NodeRole, PortMapping, PortRef,
        ResourcePhase, addon_spec::Kind, port_ref::Port,
    },
};
use drover_testing::kubernetes::{FaultProxy, Namespace, Options, Rig, Thing, until};
use serde_json::Value;
use uuid::Uuid;

/// The addons of a platform in a namespace of their own.
pub(super) struct Bench {
    pub(super) namespace: Namespace,
    pub(super) proxy: FaultProxy,
    pub(super) addons: KubernetesAddons,
    pub(super) owner: Owner,
}

impl Bench {
    pub(super) async fn start() -> Self {
        Self::over(Rig::shared(Options::kwok(3)), |_| {}).await
    }

    pub(super) async fn over(rig: &Rig, change: impl FnOnce(&mut Settings)) -> Self {
        let namespace = rig.namespace().await;
        let proxy = FaultProxy::start(rig).await;
        let mut settings = Settings {
            kubeconfig: Some(proxy.kubeconfig()),
            addons: AddonsSettings {
                namespace: Some(namespace.name.clone()),
                ..AddonsSettings::default()
            },
            call_timeout_seconds: 5.0,
            ..Settings::default()
        };
        change(&mut settings);
        let settings = Arc::new(settings);
        let api = Api::open(&settings).await.unwrap();
        let addons = KubernetesAddons::open(&api, &settings).await.unwrap();
        Self {
            namespace,
            proxy,
            addons: addons.unwrap(),
            owner: owner("blue"),
        }
    }

    pub(super) async fn ensure(&self, wanted: &AddonWanted) -> Result<AddonProgress> {
        self.addons.ensure(&self.owner, 1, wanted).await
    }

    /// Repeats the request until the addon is in this phase.
    pub(super) async fn until_phase(
        &self,
        wanted: &AddonWanted,
        phase: ResourcePhase,
    ) -> AddonState {
        until(&format!("the addon is {}", phase.as_str_name()), || async {
            let progress = self.ensure(wanted).await.unwrap();
            (progress.state.phase() == phase).then_some(progress.state)
        })
        .await
    }

    /// Removes an addon until nothing is left of it.
    pub(super) async fn remove(&self, name: &str) {
        until("the addon is gone", || async {
            let progress = self.addons.remove(&self.owner, name).await.unwrap();
            (progress.state.phase() == ResourcePhase::Gone).then_some(())
        })
        .await;
    }

    pub(super) async fn list(&self) -> Vec<AddonState> {
        self.addons.list(None).await.unwrap().0
    }

    /// All objects but those that controllers derive from others.
    pub(super) async fn objects(&self) -> Vec<Thing> {
        let mut things = self.namespace.everything().await;
        let derived = ["endpoint", "pods", "replicasets"];
        things.retain(|it| !derived.iter().any(|prefix| it.resource.starts_with(prefix)));
        things
    }

    /// The only object of a kind whose name begins so.
    pub(super) async fn object(&self, resource: &str, end: &str) -> Value {
        let all = self.namespace.list(resource).await;
        let named = |it: &&Value| {
            let name = it["metadata"]["name"].as_str().unwrap();
            name.ends_with(end) && !name.starts_with("kube-root")
        };
        let mut named = all.iter().filter(named);
        let one = named
            .next()
            .unwrap_or_else(|| panic!("no {resource} …{end}"));
        assert!(named.next().is_none(), "two {resource} …{end}");
        one.clone()
    }

    /// Waits until every pod has been told of something.
    pub(super) async fn until_told(&self, what: &str, count: usize, fits: impl Fn(&str) -> bool) {
        until(what, || async {
            let pods = self.namespace.list("pods").await;
            let told = |pod: &&Value| {
                let live = &pod["metadata"]["annotations"]["drover.dev/live"];
                live.as_str().is_some_and(&fits)
            };
            (pods.len() == count && pods.iter().filter(told).count() == count).then_some(())
        })
        .await;
    }
}

pub(super) fn owner(cluster: &str) -> Owner {
    Owner {
        cluster_id: cluster.to_owned(),
        owner: Uuid::new_v4().to_string(),
    }
}

/// A target with this address on interface `oam`.
pub(super) fn target(name: &str, address: &str) -> AddonTarget {
    AddonTarget {
        node_id: format!("{name}-x7k2p"),
        name: name.to_owned(),
        group: "control-plane".to_owned(),
        addresses: vec![Address {
            r#type: AddressType::InternalIp.into(),
            value: address.to_owned(),
            interface: "oam".to_owned(),
        }],
        endpoints: BTreeMap::new(),
        draining: false,
        platform: String::new(),
        role: NodeRole::Active.into(),
    }
}

pub(super) fn mapping(listen: Option<u32>, target: u32, count: u32) -> PortMapping {
    PortMapping {
        listen,
        target: Some(PortRef {
            port: Some(Port::Number(target)),
        }),
        count,
    }
}

/// A load balancer `api` over these targets.
pub(super) fn balancer(ports: Vec<PortMapping>, targets: Vec<AddonTarget>) -> AddonWanted {
    AddonWanted {
        spec: AddonSpec {
            name: "api".to_owned(),
            interface: "oam".to_owned(),
            kind: Some(Kind::LoadBalancer(LoadBalancer { ports })),
            ..AddonSpec::default()
        },
        targets,
        ..AddonWanted::default()
    }
}

pub(super) fn properties(wanted: &mut AddonWanted, properties: Value) {
    let properties = drover_convert::value::to_struct(properties.as_object().unwrap());
    wanted.spec.properties = Some(properties);
}
