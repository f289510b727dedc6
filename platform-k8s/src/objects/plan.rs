//! Common properties of the nodes of one request, and the objects of each of them.

use std::collections::{BTreeMap, BTreeSet};

use drover_convert::value::object as free_form;
use drover_core::{Error, Reason, Result};
use drover_platform::{
    driver::{Place, Rendered},
    identity::Identity,
};
use drover_proto::platform::v1::{ProvisionRequest, Storage};
use k8s_openapi::{
    ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde_json::{Map, Value};

use super::{
    Object, claims,
    names::{bootstrap_secret, dns_name, group_name, own_group_name},
    order,
    placement::{Constraints, Counted},
    pods::{self, Pods},
    properties::Properties,
    render::{documents, twice},
    selector::Selector,
    stable, stamp,
};
use crate::{
    labels::{
        self,
        declared::{self, Plain},
    },
    selected,
    settings::{ClassSettings, Settings},
};

/// Maximum size of an object in bytes: etcd's default limit, minus the fields that the API server adds.
pub const MAX_OBJECT_BYTES: usize = 1536 * 1024 - 32 * 1024;

/// Maximum size of user data in bytes: a Secret holds 1 MiB.
pub const MAX_BOOTSTRAP_BYTES: u32 = 1_000_000;

/// Key of the user data in its Secret.
pub const USER_DATA: &str = "user-data";

/// Class of nodes that request none, if the settings have it.
const DEFAULT_CLASS: &str = "default";

/// Common properties of the nodes of one request.
pub struct Plan<'a> {
    settings: &'a Settings,
    namespace: String,
    properties: Properties,
    class: Option<&'a ClassSettings>,
    constraints: Constraints,
    storage: Option<Storage>,
    selector: Selector,
    domain: String,
    bootstrap: bool,
    inherited: BTreeMap<u32, String>,
    plain: Plain,
}

impl<'a> Plan<'a> {
    /// Reads a request that has passed the checks of the common layer. Nodes go to `default_namespace` if their
    /// properties name no namespace.
    ///
    /// # Errors
    /// `Invalid` with the field; `NodeClassNotFound`; `NamespaceNotServed`.
    pub fn of(
        request: &ProvisionRequest,
        settings: &'a Settings,
        default_namespace: &str,
    ) -> Result<Self> {
        let group = request.group.clone().unwrap_or_default();
        let properties = match &group.properties {
            Some(properties) => Properties::read(free_form("group.properties", properties)?)?,
            None => Properties::default(),
        };
        let namespace = properties
            .namespace
            .clone()
            .unwrap_or_else(|| default_namespace.to_owned());
        if !settings.serves(&namespace) {
            return Err(not_served(settings, &namespace));
        }
        let declared = request.cluster.iter().flat_map(|it| it.labels.keys());
        declared::check("cluster.labels", declared)?;
        let cluster = request.cluster.as_ref().map_or("", |it| it.id.as_str());
        let counted = Counted {
            cluster: (&settings.labels.cluster, labels::value(cluster)),
            group: &group.path,
            failure_domain_label: &settings.failure_domain_label,
        };
        let domain = match group.placement.as_ref().map(|it| &it.failure_domains[..]) {
            Some([only]) => only.clone(),
            _ => String::new(),
        };
        Ok(Self {
            settings,
            namespace,
            properties,
            class: class(settings, &group.node_class)?,
            constraints: Constraints::of(group.placement.as_ref(), &counted)?,
            storage: request.storage.clone(),
            selector: Selector::parse(&settings.selector).ok_or_else(|| {
                Error::new(
                    Reason::Precondition,
                    "the label selector in the platform's settings cannot be read",
                )
            })?,
            domain,
            bootstrap: request
                .bootstrap
                .as_ref()
                .is_some_and(|it| it.user_data.is_some()),
            inherited: BTreeMap::new(),
            plain: Plain::default(),
        })
    }

    /// Sets the result of [`crate::storage::inherited`] for its nodes.
    #[must_use]
    pub fn inheriting(mut self, inherited: BTreeMap<u32, String>) -> Self {
        self.inherited = inherited;
        self
    }

    /// Sets the declared labels that objects may have under their own names.
    #[must_use]
    pub fn with_plain(self, plain: Plain) -> Self {
        Self { plain, ..self }
    }

    /// Namespace of the nodes; single objects of a template may name another.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Values for the template of a node, `platform` in its context.
    #[must_use]
    pub fn place(&self, identity: &Identity) -> Place {
        let keys = &self.settings.labels;
        let class = self.storage.as_ref().map_or("", |it| it.class.as_str());
        let class = match (class, self.default_storage_class()) {
            ("", Some(default)) => default,
            (class, _) => class,
        };
        let bootstrap = if self.bootstrap {
            bootstrap_secret(&identity.id)
        } else {
            String::new()
        };
        let platform = [
            ("name", dns_name(&identity.id)),
            (
                "group_name",
                group_name(&identity.cluster_id, &identity.group),
            ),
            (
                "own_group_name",
                own_group_name(&identity.owner, &identity.cluster_id, &identity.group),
            ),
            ("namespace", self.namespace.clone()),
            ("bootstrap", bootstrap),
            ("cluster_label", keys.cluster.clone()),
            ("cluster_value", labels::value(&identity.cluster_id)),
            ("node_label", keys.node.clone()),
            ("node_value", labels::value(&identity.id)),
            ("group_label", labels::GROUP.to_owned()),
            ("group_value", labels::value(&identity.group)),
            ("storage_class", class.to_owned()),
        ];
        Place {
            failure_domain: self.domain.clone(),
            platform: platform
                .into_iter()
                .map(|(key, value)| (key.to_owned(), Value::String(value)))
                .collect(),
            storage_path: None,
        }
    }

    /// The objects of one node, ready to be sent, in creation order. The last one is the anchor.
    ///
    /// # Errors
    /// `Precondition`, which names the document; `NamespaceNotServed`.
    pub fn objects(&self, rendered: &Rendered, identity: &Identity) -> Result<Vec<Object>> {
        let mut objects = documents(&rendered.document, &self.namespace)?;
        for object in &objects {
            if !self.settings.serves(&object.namespace) {
                return Err(
                    not_served(self.settings, &object.namespace).context(format_args!(
                        "{}",
                        object.wrong("metadata.namespace").message()
                    )),
                );
            }
        }
        let pods = Pods {
            class: self.class,
            properties: &self.properties,
            constraints: &self.constraints,
        };
        pods.apply(&mut objects)?;
        self.settings.policy.allows(&objects, &pods)?;
        claims::apply(
            &mut objects,
            self.storage.as_ref(),
            self.default_storage_class(),
        )?;
        if let Some(storage) = &self.storage {
            let inherited = self.inherited.get(&identity.ordinal).map(String::as_str);
            stable::apply(&mut objects, storage, identity, inherited)?;
            twice(&objects)?;
        }
        if let Some(data) = &rendered.bootstrap {
            objects.push(self.user_data(data, identity));
            twice(&objects)?;
        }
        order::sort(&mut objects);
        let mut selected = BTreeSet::new();
        for object in &objects {
            selected::by(&object.kind, &object.body, &mut selected);
        }
        let plain = self.plain.clone().without(&selected);
        let stamp = labels::stamp(identity, &self.settings.labels, &plain);
        let last = objects.len().saturating_sub(1);
        for (at, object) in objects.iter_mut().enumerate() {
            stamp::apply(object, &stamp, &self.settings.labels, at == last)?;
            self.selected(object)?;
            let size = size(&object.body);
            if size > MAX_OBJECT_BYTES {
                return Err(object.wrong(format_args!(
                    "is {size} bytes large; Kubernetes keeps {MAX_OBJECT_BYTES} at most"
                )));
            }
        }
        Ok(objects)
    }

    fn user_data(&self, data: &[u8], identity: &Identity) -> Object {
        let name = bootstrap_secret(&identity.id);
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(self.namespace.clone()),
                ..ObjectMeta::default()
            },
            type_: Some("Opaque".to_owned()),
            data: Some([(USER_DATA.to_owned(), ByteString(data.to_vec()))].into()),
            ..Secret::default()
        };
        Object {
            document: None,
            api_version: "v1".to_owned(),
            kind: "Secret".to_owned(),
            namespace: self.namespace.clone(),
            name,
            // Serialising strings and bytes cannot fail.
            body: match serde_json::to_value(secret) {
                Ok(Value::Object(body)) => body,
                _ => Map::new(),
            },
        }
    }

    /// Refuses pods that the platform would not see, as its selector does not match them.
    fn selected(&self, object: &Object) -> Result<()> {
        for path in pods::templates(object) {
            let labels = path
                .iter()
                .chain(&["metadata", "labels"])
                .try_fold(None, |at: Option<&Value>, key| {
                    Some(Some(match at {
                        None => object.body.get(*key)?,
                        Some(value) => value.get(key)?,
                    }))
                })
                .flatten();
            let labels = labels.and_then(Value::as_object);
            let labels = labels
                .into_iter()
                .flatten()
                .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
                .collect();
            if let Some(unmet) = self.selector.unmet(&labels) {
                return Err(object.wrong(format_args!(
                    "its pod would not be seen: the platform selects pods by {unmet}"
                )));
            }
        }
        Ok(())
    }

    fn default_storage_class(&self) -> Option<&str> {
        self.class.and_then(|class| class.storage_class.as_deref())
    }
}

fn class<'a>(settings: &'a Settings, name: &str) -> Result<Option<&'a ClassSettings>> {
    let classes = &settings.node_classes;
    // Without classes in the settings any name is accepted, for templates.
    if name.is_empty() || classes.is_empty() {
        return Ok(classes.get(DEFAULT_CLASS));
    }
    let names = || classes.keys().map(String::as_str).collect::<Vec<_>>();
    let found = classes.get(name).ok_or_else(|| {
        Error::new(
            Reason::NodeClassNotFound,
            format!(
                "there is no node class {name:?}; the platform has {}",
                names().join(", ")
            ),
        )
        .with_violation("group.node_class", "is not one of the platform's")
    })?;
    Ok(Some(found))
}

fn not_served(settings: &Settings, namespace: &str) -> Error {
    Error::new(
        Reason::NamespaceNotServed,
        format!(
            "namespace {namespace:?} is none that this platform serves: {}",
            settings.served()
        ),
    )
}

/// Size of an object as JSON, in bytes.
fn size(body: &Map<String, Value>) -> usize {
    struct Counter(usize);
    impl std::io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    // Counting cannot fail.
    let _ = serde_json::to_writer(&mut counter, body);
    counter.0
}

#[cfg(test)]
mod tests {
    use drover_convert::value::to_struct;
    use drover_proto::platform::v1::{Bootstrap, Placement, ResolvedGroup, bootstrap::UserData};
    use serde_json::json;

    use super::*;
    use crate::objects::render::tests::rendered;

    const SET: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {team: x}}, spec: {containers: [{name: a}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {selector: {app: a}}}
";

    fn settings() -> Settings {
        serde_json::from_value(json!({
            "namespaces": ["prod", "test"],
            "node_classes": {"large": {"requests": {"cpu": "2"}, "storage_class": "fast"}},
            "selector": "team in (x,y)",
        }))
        .unwrap()
    }

    fn request(properties: Value) -> ProvisionRequest {
        ProvisionRequest {
            group: Some(ResolvedGroup {
                path: "data/hot".to_owned(),
                properties: properties.as_object().map(to_struct),
                ..ResolvedGroup::default()
            }),
            ..ProvisionRequest::default()
        }
    }

    fn identity() -> Identity {
        Identity {
            cluster_id: "c1".to_owned(),
            id: "db_1-x7k2p".to_owned(),
            group: "data/hot".to_owned(),
            owner: "o".to_owned(),
            request_id: "r".to_owned(),
            ..Identity::default()
        }
    }

    fn objects(plan: &Plan<'_>, text: &str, bootstrap: Option<&str>) -> Result<Vec<Object>> {
        let rendered = Rendered {
            document: rendered(text),
            bootstrap: bootstrap.map(|it| it.as_bytes().to_vec()),
        };
        plan.objects(&rendered, &identity())
    }

    #[test]
    fn a_set_is_sorted_stamped_and_has_one_anchor() {
        let settings = settings();
        let plan = Plan::of(&request(json!({})), &settings, "prod").unwrap();
        let all = objects(&plan, SET, Some("hunter2")).unwrap();
        let labels: Vec<_> = all.iter().map(Object::label).collect();
        let secret = format!("Secret {}", bootstrap_secret("db_1-x7k2p"));
        assert_eq!(labels, [secret.as_str(), "Service a", "Pod a"]);
        for (at, object) in all.iter().enumerate() {
            let metadata = &object.body["metadata"];
            assert_eq!(metadata["namespace"], "prod");
            assert_eq!(metadata["labels"]["drover.dev/node"], "db_1-x7k2p");
            let anchor = metadata["annotations"].get(labels::ANCHOR).is_some();
            assert_eq!(anchor, at == 2);
        }
        assert_eq!(all[0].body["data"][USER_DATA], "aHVudGVyMg==");
        assert!(!format!("{all:?}").contains("aHVudGVyMg"));
    }

    #[test]
    fn no_node_is_made_in_a_namespace_that_is_excluded() {
        let settings: Settings = serde_json::from_value(json!({
            "excluded_namespaces": ["drover-system"],
        }))
        .unwrap();
        let named = request(json!({"namespace": "drover-system"}));
        for (request, default) in [(named, "prod"), (request(json!({})), "drover-system")] {
            let Err(error) = Plan::of(&request, &settings, default) else {
                panic!("{default}");
            };
            assert_eq!(error.reason(), Reason::NamespaceNotServed);
            assert!(
                error.message().contains("all but drover-system"),
                "{error:?}"
            );
        }
        let plan = Plan::of(&request(json!({})), &settings, "prod").unwrap();
        let other = "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: drover-system}, spec: {containers: [{name: a}]}}";
        let error = objects(&plan, other, None).unwrap_err();
        assert_eq!(error.reason(), Reason::NamespaceNotServed);
    }

    #[test]
    fn the_template_knows_names_that_kubernetes_takes() {
        let settings = settings();
        let mut request = request(json!({"namespace": "test"}));
        request.bootstrap = Some(Bootstrap {
            user_data: Some(UserData::Text("x".to_owned())),
            ..Bootstrap::default()
        });
        request.group.as_mut().unwrap().node_class = "large".to_owned();
        request.group.as_mut().unwrap().placement = Some(Placement {
            failure_domains: vec!["zone-a".to_owned()],
            ..Placement::default()
        });
        let plan = Plan::of(&request, &settings, "prod").unwrap();
        let place = plan.place(&identity());
        assert_eq!(place.failure_domain, "zone-a");
        assert_eq!(place.platform["name"], dns_name("db_1-x7k2p"));
        assert_eq!(place.platform["namespace"], "test");
        assert_eq!(place.platform["bootstrap"], bootstrap_secret("db_1-x7k2p"));
        assert_eq!(place.platform["storage_class"], "fast");
        let all = objects(&plan, SET, None).unwrap();
        assert_eq!(all[1].body["metadata"]["namespace"], "test");
        assert_eq!(
            all[1].body["spec"]["containers"][0]["resources"]["requests"]["cpu"],
            "2"
        );
    }

    #[test]
    fn what_the_platform_does_not_serve_is_refused() {
        let settings = settings();
        let reason = |request: &ProvisionRequest| {
            Plan::of(request, &settings, "prod")
                .err()
                .map(|it| it.reason())
        };
        let elsewhere = request(json!({"namespace": "kube-system"}));
        assert_eq!(reason(&elsewhere), Some(Reason::NamespaceNotServed));
        let mut class = request(json!({}));
        class.group.as_mut().unwrap().node_class = "tiny".to_owned();
        assert_eq!(reason(&class), Some(Reason::NodeClassNotFound));
        let plan = Plan::of(&request(json!({})), &settings, "prod").unwrap();
        let text = SET.replace(
            "metadata: {name: a}",
            "metadata: {name: a, namespace: other}",
        );
        let error = objects(&plan, &text, None).unwrap_err();
        assert_eq!(error.reason(), Reason::NamespaceNotServed);
        assert!(error.message().contains("document 2"), "{error:?}");
    }

    #[test]
    fn a_pod_that_would_not_be_seen_is_refused() {
        let settings = settings();
        let plan = Plan::of(&request(json!({})), &settings, "prod").unwrap();
        let error = objects(&plan, &SET.replace("team: x", "team: z"), None).unwrap_err();
        assert!(error.message().contains("team in (x,y)"), "{error:?}");
    }

    #[test]
    fn an_object_that_etcd_would_not_take_is_named_with_its_size() {
        let settings = settings();
        let plan = Plan::of(&request(json!({})), &settings, "prod").unwrap();
        let text = format!(
            "{SET}---\n{{apiVersion: v1, kind: ConfigMap, metadata: {{name: big}}, data: {{x: {}}}}}",
            "y".repeat(MAX_OBJECT_BYTES)
        );
        let error = objects(&plan, &text, None).unwrap_err();
        assert!(
            error
                .message()
                .starts_with("document 3 of the template (ConfigMap big): is 15"),
            "{error:?}"
        );
    }

    #[test]
    fn one_request_makes_the_same_objects_every_time() {
        let settings = settings();
        let request = request(json!({}));
        let once = || {
            let plan = Plan::of(&request, &settings, "prod").unwrap();
            objects(&plan, SET, Some("x")).unwrap()
        };
        assert_eq!(once(), once());
    }
}
