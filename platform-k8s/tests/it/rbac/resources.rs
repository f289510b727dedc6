//! The resources with exactly the rights of `deploy/kubernetes/resources`: all of them are enough for every call, and each is
//! needed by a call that names it where it is missing.

mod calls;
mod ingresses;
mod rows;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use drover_core::{Error, Reason, Result};
use drover_platform_k8s::Settings;
use drover_resources_kubernetes::client::Clients;
use drover_server::{ServerSettings, Service, Shutdown};
use drover_testing::kubernetes::{
    FaultProxy, Namespace, Rig, Speaks, definitions,
    manifests::{NAME, Places, apply, kustomizations, path, placed},
    until,
};
use prost::Message as _;
use serde_json::{Value, json};

use self::{
    calls::Caller,
    rows::{DRAINS, ROWS, Row},
};
use super::{rig, settings, token};

/// Of a call, also of one that waits for what comes.
const LIMIT: Duration = Duration::from_secs(30);
/// Kubernetes asks for it from version 1.35 on, in place of `get`.
const OF_LATER_VERSIONS: [(&str, &str); 1] = [("create", "pods/exec")];

/// The folder of what DrainNode needs.
const DRAIN: &str = "resources/drain";

/// A verb of a role for a resource: `get`, `httproutes.gateway.networking.k8s.io`.
type Right = (String, String);

/// A Role or a ClusterRole.
struct Rules(Value);

impl Rules {
    fn rights(&self) -> BTreeSet<Right> {
        let mut rights = BTreeSet::new();
        for rule in split(&self.0) {
            let resource = named(&rule);
            let verbs = rule["verbs"].as_array().unwrap();
            let verbs = verbs.iter().map(|verb| verb.as_str().unwrap().to_owned());
            rights.extend(verbs.map(|verb| (verb, resource.clone())));
        }
        rights
    }

    fn without(&self, (verb, resource): &Right) -> Value {
        let mut rules = split(&self.0);
        for rule in &mut rules {
            if named(rule) == *resource {
                let verbs = rule["verbs"].as_array_mut().unwrap();
                verbs.retain(|it| it != verb);
            }
        }
        rules.retain(|rule| !rule["verbs"].as_array().unwrap().is_empty());
        let mut role = self.0.clone();
        role["rules"] = Value::Array(rules);
        role
    }

    fn namespace(&self) -> Option<&str> {
        self.0["metadata"]["namespace"].as_str()
    }
}

/// The rules of a role, each for one resource.
fn split(role: &Value) -> Vec<Value> {
    let mut rules = Vec::new();
    for rule in role["rules"].as_array().unwrap() {
        for group in rule["apiGroups"].as_array().unwrap() {
            for resource in rule["resources"].as_array().unwrap() {
                let mut one = rule.clone();
                (one["apiGroups"], one["resources"]) = (json!([group]), json!([resource]));
                rules.push(one);
            }
        }
    }
    rules
}

fn named(rule: &Value) -> String {
    let text = |value: &Value| value[0].as_str().unwrap().to_owned();
    match &*text(&rule["apiGroups"]) {
        "" => text(&rule["resources"]),
        group => format!("{}.{group}", text(&rule["resources"])),
    }
}

/// The resources as they are deployed, in namespaces of a test.
struct Deployed {
    caller: Caller,
    proxy: FaultProxy,
    /// The namespace of the ServiceAccount.
    system: Namespace,
    /// All objects of the manifests, by file.
    objects: BTreeMap<String, Vec<Value>>,
}

impl Deployed {
    async fn new() -> Self {
        let rig: &'static Rig = rig();
        let (namespace, system) = (rig.namespace().await, rig.namespace().await);
        let gloo = rig.namespace().await;
        definitions::define(&namespace.raw, &definitions::gateway_api()).await;
        definitions::define(&namespace.raw, &definitions::gloo()).await;
        let places = Places {
            system: &system.name,
            nodes: &namespace.name,
        };
        apply(
            &namespace.raw,
            placed("base/system/service-account.yaml", places),
        )
        .await;
        let files = ["resources", DRAIN, "resources/gloo"].map(|folder| {
            let (_, own) = kustomizations(folder).pop().unwrap();
            let files = own["resources"].as_array().unwrap().iter();
            let files = files.filter_map(|file| file.as_str().filter(|it| it.ends_with(".yaml")));
            let files = files.map(|file| format!("{folder}/{file}"));
            files.collect::<Vec<_>>()
        });
        let mut objects = BTreeMap::new();
        for file in files.into_iter().flatten() {
            let mut all = placed(&file, places);
            for object in &mut all {
                let namespace = &mut object["metadata"]["namespace"];
                if namespace == "gloo-system" {
                    *namespace = gloo.name.clone().into();
                }
            }
            objects.insert(file, all);
        }
        let proxy = FaultProxy::over(rig.kubeconfig(), Speaks::AsClient).await;
        proxy.write_kubeconfig(&format!("token: {}", token(&system).await));
        let mut settings = Settings {
            kubeconfig: Some(proxy.kubeconfig()),
            ..settings(&namespace.name)
        };
        settings.resources.enabled = true;
        settings.resources.ingress.upstream_namespaces = vec![gloo.name.clone()];
        let clients = Clients::default();
        let resources = drover_platform_k8s::resources::open(&settings, &clients).await;
        let routes = resources
            .unwrap()
            .add_to(Service::new("resources", "0"))
            .into_routes(&ServerSettings::default(), Shutdown::new())
            .unwrap();
        let channel = drover_client::in_process(routes);
        Self {
            caller: Caller::new(channel, namespace, gloo).await,
            proxy,
            system,
            objects,
        }
    }

    /// Grants what these files say, and answers their roles.
    async fn grant(&self, files: impl Fn(&str) -> bool) -> Vec<Rules> {
        let mut roles = Vec::new();
        for (file, objects) in &self.objects {
            if files(file) {
                apply(&self.system.raw, objects.clone()).await;
                let kinds = |it: &&Value| it["kind"].as_str().unwrap().ends_with("Role");
                roles.extend(objects.iter().filter(kinds).cloned().map(Rules));
            }
        }
        for role in &roles {
            for right in role.rights() {
                self.until_granted(role, &right, true).await;
            }
        }
        roles
    }

    /// Waits until the API server grants a right of a role, or no longer does.
    async fn until_granted(&self, role: &Rules, (verb, resource): &Right, granted: bool) {
        let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
        let (plural, part) = plural.split_once('/').unwrap_or((plural, ""));
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": format!("system:serviceaccount:{}:{NAME}", self.system.name),
                "resourceAttributes": {
                    "namespace": role.namespace().unwrap_or_default(), "verb": verb,
                    "group": group, "resource": plural, "subresource": part,
                },
            },
        });
        until(&format!("{verb} {resource}: {granted}"), || async {
            let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
            let answer = self.system.raw.create(path, &review).await.unwrap();
            (answer["status"]["allowed"] == granted).then_some(())
        })
        .await;
    }

    async fn run(&self, row: &Row) -> Result<()> {
        let call = self.caller.run(row, &self.proxy);
        let outcome = tokio::time::timeout(LIMIT, call).await;
        outcome.unwrap_or_else(|_| panic!("{row:?}: not within {LIMIT:?}"))
    }

    /// All rights are enough for these calls.
    async fn all_work(&self, rows: &[Row]) {
        self.proxy.forget();
        for row in rows {
            let outcome = self.run(row).await;
            assert_eq!(outcome, Ok(()), "{}", row.name);
        }
        let mut refused = self.proxy.calls();
        refused.retain(|call| call.status == Some(403));
        assert!(refused.is_empty(), "{refused:?}");
    }

    /// Takes each right of these roles away in turn.
    async fn each_is_needed(&self, roles: &[Rules], rows: &[Row]) {
        for role in roles {
            for right in role.rights() {
                let of_right = (right.0.as_str(), right.1.as_str());
                if OF_LATER_VERSIONS.contains(&of_right) {
                    continue;
                }
                let needing: Vec<&Row> = rows
                    .iter()
                    .filter(|row| row.needs.contains(&of_right))
                    .collect();
                assert!(!needing.is_empty(), "no call needs {right:?}");
                let at = path(&role.0);
                let raw = &self.system.raw;
                raw.replace(&at, &role.without(&right)).await.unwrap();
                self.until_granted(role, &right, false).await;
                for row in needing {
                    let outcome = self.run(row).await;
                    let error = outcome.expect_err(&format!("{} without {right:?}", row.name));
                    names(&error, row.name, &right);
                }
                raw.replace(&at, &role.0).await.unwrap();
                self.until_granted(role, &right, true).await;
            }
        }
    }

    async fn end(self) {
        let raw = &self.system.raw;
        let path = format!("/api/v1/nodes/{}", self.caller.node);
        raw.delete(&path).await.unwrap();
        for namespace in [&self.system, &self.caller.namespace, &self.caller.gloo] {
            namespace.remove().await;
        }
    }
}

/// An error names the right that is missing.
fn names(error: &Error, call: &str, (verb, resource): &Right) {
    assert_eq!(
        error.reason(),
        Reason::CredentialsRefused,
        "{call} without {verb} {resource}: {error:?}"
    );
    let plural = resource.split_once('.').map_or(&**resource, |(it, _)| it);
    let said = error.message();
    let right = format!("cannot {verb} resource \"{plural}\"");
    assert!(
        said.contains(&right),
        "{call} without {verb} {resource}: {said}"
    );
}

/// `GetNode`, and so on.
fn all_calls() -> BTreeSet<String> {
    let all = prost_types::FileDescriptorSet::decode(drover_proto::DESCRIPTORS).unwrap();
    let ours = all.file.into_iter();
    let ours = ours.filter(|file| file.package() == "drover.kubernetes.v1");
    ours.flat_map(|file| file.service)
        .flat_map(|service| service.method)
        .map(|method| method.name().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_right_of_the_resources_is_enough_and_needed_and_named_where_it_is_missing() {
    let tested = ROWS.iter().chain(DRAINS).map(|row| row.name.to_owned());
    assert_eq!(tested.collect::<BTreeSet<_>>(), all_calls());
    let it = Deployed::new().await;
    // DrainNode's rights include some of the others, for all namespaces.
    let of_drain = |file: &str| file.starts_with(DRAIN);
    let roles = it.grant(|file| !of_drain(file)).await;
    it.caller.prepare().await;
    it.all_work(ROWS).await;
    it.each_is_needed(&roles, ROWS).await;
    it.all_work(ROWS).await;
    let roles = it.grant(of_drain).await;
    it.all_work(DRAINS).await;
    it.each_is_needed(&roles, DRAINS).await;
    it.all_work(DRAINS).await;
    it.end().await;
}
