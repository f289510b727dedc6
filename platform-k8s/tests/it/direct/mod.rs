//! Creation and removal without the server layer, behind a proxy that counts calls and injects faults.
#![allow(dead_code, reason = "every test binary uses its own part of it")]

use std::{path::Path, sync::Arc};

use drover_core::name;
use drover_platform::{
    batch::{Batch, Caller, Lifetime},
    driver::{Deletion, Outcome, Target},
    identity::{Identity, fingerprint},
    templates::Templates,
};
use drover_platform_k8s::{
    Settings,
    client::{Api, Meta as _},
    create::{Creator, Nodes},
    delete::{Item, Remover},
    pod::Pod,
};
use drover_proto::platform::v1::{
    ClusterContext, DeprovisionState, Node, NodeRole, ProvisionRequest, ResolvedGroup, Slot,
};
use drover_templates::{Catalogue, EmbeddedFile};
use uuid::Uuid;

use drover_testing::kubernetes::{Call, FaultProxy, Namespace, Options, Rig, Thing, until};

/// The rig that all tests of one process share.
pub(crate) fn rig() -> &'static Rig {
    Rig::shared(Options::kwok(3))
}

/// Caches nothing, so that everything is read.
struct Nobody;

impl Nodes for Nobody {
    fn making(&self, _: &str, _: &str) -> Box<dyn Send + Sync> {
        Box::new(())
    }

    fn made(&self, identity: &Identity, items: &[Item], pod: Option<&Pod>) -> Node {
        let last = items.last().map(|item| &item.meta);
        assert!(last.is_some_and(|meta| !meta.uid().is_empty()));
        if let Some(pod) = pod {
            assert_eq!(Some(&pod.metadata), last);
            assert!(!pod.spec.containers.is_empty());
        }
        identity.node(&identity.id)
    }
}

pub(crate) struct Direct {
    pub(crate) namespace: Namespace,
    pub(crate) proxy: FaultProxy,
    pub(crate) api: Api,
    pub(crate) settings: Arc<Settings>,
    pub(crate) creator: Creator,
    pub(crate) remover: Arc<Remover>,
    pub(crate) cluster: String,
    owner: Uuid,
}

impl Direct {
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Settings)) -> Self {
        Self::over(rig(), change).await
    }

    /// All objects, except those that controllers derive from services, which appear and disappear with a delay.
    pub(crate) async fn everything(&self) -> Vec<Thing> {
        let mut things = self.namespace.everything().await;
        things.retain(|it| !it.resource.starts_with("endpoint"));
        things
    }

    pub(crate) async fn over(rig: &Rig, change: impl FnOnce(&mut Settings)) -> Self {
        let namespace = rig.namespace().await;
        let proxy = FaultProxy::start(rig).await;
        let mut settings = Settings {
            kubeconfig: Some(proxy.kubeconfig()),
            namespaces: vec![namespace.name.clone()],
            ..Settings::default()
        };
        change(&mut settings);
        let settings = Arc::new(settings);
        let api = Api::open(&settings).await.unwrap();
        let kinds = api.kinds().await.unwrap();
        let kinds = settings.kinds.iter().map(|name| kinds.named(name).unwrap());
        let remover = Remover::new(api.clone(), Arc::clone(&settings), kinds.collect());
        let remover = Arc::new(remover);
        let creator = Creator::new(
            api.clone(),
            Arc::clone(&settings),
            Arc::clone(&remover),
            Arc::new(Nobody),
        );
        Self {
            namespace,
            proxy,
            api,
            settings,
            creator,
            remover,
            cluster: format!("c-{}", &Uuid::new_v4().simple().to_string()[..12]),
            owner: Uuid::new_v4(),
        }
    }

    /// A request for nodes of group `db`.
    pub(crate) fn request(&self, count: u32) -> ProvisionRequest {
        let request_id = Uuid::new_v4();
        let slot = |index| Slot {
            index: Some(index),
            id: name::node_id("db", index, self.owner, request_id, index),
            name: name::node_name("db", index),
            ordinal: Some(index),
            role: NodeRole::Active.into(),
            host_id: None,
        };
        ProvisionRequest {
            owner: self.owner.to_string(),
            request_id: request_id.to_string(),
            sequence: 1,
            slots: (0..count).map(slot).collect(),
            cluster: Some(ClusterContext {
                id: self.cluster.clone(),
                ..ClusterContext::default()
            }),
            group: Some(ResolvedGroup {
                path: "db".to_owned(),
                size: count,
                ..ResolvedGroup::default()
            }),
            spec_hash: Uuid::new_v4().to_string(),
            ..ProvisionRequest::default()
        }
    }

    /// Creates all slots of a request from a template.
    pub(crate) async fn make(&self, request: &ProvisionRequest, template: &str) -> Vec<Outcome> {
        let (batch, _caller) = batch(request, &of_text(template));
        self.creator.create(&batch).await
    }

    /// Creates one node.
    pub(crate) async fn one(&self, template: &str) -> Node {
        let request = self.request(1);
        made(self.make(&request, template).await).remove(0)
    }

    pub(crate) async fn check(
        &self,
        request: &ProvisionRequest,
        template: &str,
    ) -> drover_core::Result<()> {
        self.check_by(request, &of_text(template)).await
    }

    pub(crate) async fn check_by(
        &self,
        request: &ProvisionRequest,
        templates: &Templates,
    ) -> drover_core::Result<()> {
        let (batch, _caller) = batch(request, templates);
        self.creator.check(&batch).await
    }

    pub(crate) async fn delete(&self, node: &Node) -> drover_core::Result<DeprovisionState> {
        self.delete_as(&target(node), &Deletion::default()).await
    }

    pub(crate) async fn delete_as(
        &self,
        target: &Target,
        options: &Deletion,
    ) -> drover_core::Result<DeprovisionState> {
        let deleted = self.remover.delete(target, options, &[]).await?;
        assert!(deleted.retained_storage.is_empty());
        Ok(deleted.state)
    }

    /// Deletes the node until it is gone, and expects an empty namespace.
    pub(crate) async fn gone(&self, node: &Node) {
        until("the node is gone", || async {
            let state = self.delete(node).await.unwrap();
            (state == DeprovisionState::Gone).then_some(())
        })
        .await;
    }

    /// Names of the objects of a resource.
    pub(crate) async fn names(&self, resource: &str) -> Vec<String> {
        let all = self.namespace.list(resource).await;
        all.iter()
            .map(|it| it["metadata"]["name"].as_str().unwrap().to_owned())
            .filter(|name| name != "kube-root-ca.crt")
            .collect()
    }

    /// The calls that changed something, as `verb resource`.
    pub(crate) fn changes(&self) -> Vec<String> {
        let calls = self.proxy.calls();
        let changes = calls.iter().filter(|call| call.changes());
        changes
            .map(|call: &Call| format!("{} {}", call.verb, call.resource))
            .collect()
    }
}

pub(crate) fn batch(request: &ProvisionRequest, templates: &Templates) -> (Batch, Caller) {
    let lifetime = Lifetime::new();
    let caller = lifetime.join(None);
    let batch = Batch::new(
        Arc::new(request.clone()),
        fingerprint(request),
        (0..request.slots.len()).collect(),
        Arc::new(templates.select(request).unwrap()),
        lifetime,
    );
    (batch, caller)
}

/// A catalogue with a single template.
pub(crate) fn of_text(template: &str) -> Templates {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(Path::new(directory.path()).join(name), text).unwrap();
    };
    write("index.yaml", "default: {template: test.yaml}");
    write("test.yaml", template);
    Templates::Catalogue(Arc::new(
        Catalogue::open(&[], Some(directory.path())).unwrap(),
    ))
}

pub(crate) fn built_in(files: &[EmbeddedFile]) -> Templates {
    Templates::Catalogue(Arc::new(Catalogue::embedded(files).unwrap()))
}

pub(crate) fn target(node: &Node) -> Target {
    Target {
        cluster_id: node.cluster_id.clone(),
        node_id: node.node_id.clone(),
        slot: node.slot.clone(),
    }
}

/// The nodes; panics unless all were created.
pub(crate) fn made(outcomes: Vec<Outcome>) -> Vec<Node> {
    outcomes
        .into_iter()
        .map(|outcome| match outcome {
            Outcome::Made(node) => *node,
            other => panic!("not made: {other:?}"),
        })
        .collect()
}

/// The error of the only slot, which is known not to exist.
pub(crate) fn failed(mut outcomes: Vec<Outcome>) -> drover_core::Error {
    match outcomes.remove(0) {
        Outcome::Failed(error) => error,
        other => panic!("not failed: {other:?}"),
    }
}

/// The error of the only slot, whose outcome is unknown.
pub(crate) fn unknown(mut outcomes: Vec<Outcome>) -> drover_core::Error {
    match outcomes.remove(0) {
        Outcome::Unknown(error) => error,
        other => panic!("not unknown: {other:?}"),
    }
}

pub(crate) const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: "{{ platform.name }}"}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "example.invalid/main:1"}]
"#;

/// A pod listed before the objects that it refers to, of four kinds.
pub(crate) const SET: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: "{{ platform.name }}"}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "example.invalid/main:1"}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: "{{ platform.name }}"}}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: "{{ platform.name }}"}
spec: {accessModes: [ReadWriteOnce], storageClassName: none, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Service
metadata: {name: "{{ platform.name }}"}
spec: {clusterIP: None, selector: {app: x}, ports: [{port: 80}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ platform.name }}"}
data: {id: "{{ node.id }}"}
"#;

pub(crate) const STATEFUL: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: "{{ platform.name }}"}
spec: {clusterIP: None, selector: {app: x}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: "{{ platform.name }}"}
spec:
  serviceName: "{{ platform.name }}"
  selector: {matchLabels: {app: x}}
  template:
    metadata: {labels: {app: x}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: "example.invalid/main:1"}]
  volumeClaimTemplates:
    - metadata: {name: data}
      spec: {accessModes: [ReadWriteOnce], storageClassName: none, resources: {requests: {storage: 1Gi}}}
"#;

pub(crate) const DEPLOYMENT: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: "{{ platform.name }}"}
spec:
  template:
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: "example.invalid/main:1"}]
"#;
