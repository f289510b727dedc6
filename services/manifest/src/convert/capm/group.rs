//! Groups of a cluster: one for control plane machines without a set, one for each set of machines, one for the rest.

use drover_core::name;

use super::{
    document::{CLUSTER_NAME, CONTROL_PLANE, Doc, Kind},
    machine::{self, Recipe, Site},
    reader::{Reader, Word, given},
};
use crate::{
    convert::{
        build::{entry, field, map, number, renamed, text},
        fields::lost,
    },
    path::join,
    tree::{Entry, Node, Scalar, Span},
};

const SET: &[(&str, &str)] = &[
    ("clusterName", "the name of the Cluster"),
    ("replicas", "a whole number, default 1"),
    ("selector", "a map"),
    ("template", "a map with metadata and spec"),
    ("strategy", "a map with type and rollingUpdate"),
    ("minReadySeconds", "a whole number"),
    ("progressDeadlineSeconds", "a whole number"),
    ("revisionHistoryLimit", "a whole number"),
    ("deletePolicy", "Random, Newest or Oldest"),
];
const SET_REFUSED: &[(&str, &str)] = &[
    (
        "paused",
        "leave it out; drover pause CLUSTER stops the work on all groups of a cluster",
    ),
    (
        "rolloutAfter",
        "leave it out; drover replace CLUSTER/NODE makes a node anew",
    ),
    (
        "rollout",
        "leave it out; `update` of the group says how its nodes are replaced",
    ),
    (
        "deletion",
        "leave it out; `removalOrder` of the group says which of its nodes goes first",
    ),
    (
        "machineNamingStrategy",
        "leave it out; nodes are named after their group",
    ),
];
const STRATEGY: &[(&str, &str)] = &[
    ("type", "RollingUpdate or OnDelete"),
    ("rollingUpdate", "a map with maxSurge and maxUnavailable"),
];
const ROLLING: &[(&str, &str)] = &[
    ("maxSurge", "a number or a percentage"),
    ("maxUnavailable", "a number or a percentage"),
    ("deletePolicy", "Random, Newest or Oldest"),
];
const TEMPLATE: &[(&str, &str)] = &[("metadata", "a map with labels"), ("spec", "a map")];
const TEMPLATE_METADATA: &[(&str, &str)] = &[
    ("labels", "a map of strings"),
    ("annotations", "a map of strings"),
    ("name", "a name"),
    ("namespace", "a name"),
    ("creationTimestamp", "what the server wrote"),
];

/// Group of control plane machines without a set.
const CONTROL_PLANE_GROUP: &str = "control-plane";
/// Group of all other machines without a set.
const MACHINES_GROUP: &str = "machines";

/// A group under construction.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) name: Word,
    /// Whether its machines belong to the control plane.
    pub(super) control_plane: bool,
    /// Machines by recipe.
    parts: Vec<Part>,
}

/// Machines with the same recipe.
#[derive(Debug)]
struct Part {
    /// Name within its group.
    name: Word,
    size: Option<Node>,
    recipe: Recipe,
    hosts: Vec<Word>,
    update: Vec<Entry>,
}

/// A machine without a set.
struct Alone<'r> {
    doc: &'r Doc,
    recipe: Recipe,
}

impl<'r> Reader<'_, 'r> {
    /// All groups of a cluster, those of the control plane first.
    pub(super) fn groups(&mut self, cluster: &Doc, site: &Site) -> Vec<Group> {
        let mut groups = self.alone(cluster, site);
        for kind in [Kind::MachineDeployment, Kind::MachineSet] {
            for doc in self.members(cluster, kind) {
                if kind == Kind::MachineSet && self.is_made_by_deployment(doc) {
                    continue;
                }
                groups.extend(self.set(doc, site));
            }
        }
        groups.sort_by_key(|group| !group.control_plane);
        for (position, group) in groups.iter().enumerate() {
            let path = "metadata.name";
            if let Err(why) = name::check_name(&group.name.text) {
                let message = format!("the name of a group {why}");
                self.decoder.error(group.name.span, path, message, "");
            }
            if let Some(first) = groups[..position]
                .iter()
                .find(|other| other.name.text == group.name.text)
            {
                let place = self.place(first.name.span);
                let message = format!("there are two groups named `{}`", group.name.text);
                let advice = format!("the other comes from {place}; expected different names");
                self.decoder.error(group.name.span, path, message, &advice);
            }
        }
        groups
    }

    /// Documents of a kind that belong to a cluster.
    fn members(&mut self, cluster: &Doc, kind: Kind) -> Vec<&'r Doc> {
        let documents = self.documents;
        let of_it = |doc: &&Doc| {
            let spec = doc
                .root
                .get("spec")
                .and_then(|spec| spec.get("clusterName"));
            doc.namespace == cluster.namespace
                && spec.and_then(Node::text) == Some(cluster.name.as_str())
        };
        let members: Vec<&'r Doc> = documents.of(kind).filter(of_it).collect();
        for doc in &members {
            doc.used.set(true);
            if let Some(label) = doc.label(CLUSTER_NAME)
                && label.value.text() != Some(&cluster.name)
            {
                let message = format!("this label is not the clusterName of {}", doc.title());
                let advice = format!("expected {}", cluster.name);
                self.decoder
                    .error(label.value.span, "metadata.labels", message, &advice);
            }
        }
        members
    }

    fn is_made_by_deployment(&self, doc: &Doc) -> bool {
        doc.owner(Kind::MachineDeployment).is_some_and(|owner| {
            self.documents
                .find(Kind::MachineDeployment, &doc.namespace, owner)
                .is_some()
        })
    }

    /// The set that created a machine, if it is among the documents.
    fn maker(&self, doc: &Doc) -> Option<&'r Doc> {
        let documents = self.documents;
        let deployment = doc
            .label("cluster.x-k8s.io/deployment-name")
            .and_then(|label| label.value.text());
        let set = doc.owner(Kind::MachineSet).or_else(|| {
            let label = doc.label("cluster.x-k8s.io/set-name")?;
            label.value.text()
        });
        deployment
            .and_then(|name| documents.find(Kind::MachineDeployment, &doc.namespace, name))
            .or_else(|| documents.find(Kind::MachineSet, &doc.namespace, set?))
    }

    /// Groups of the machines without a set.
    fn alone(&mut self, cluster: &Doc, site: &Site) -> Vec<Group> {
        let (mut control_plane, mut others) = (Vec::new(), Vec::new());
        for doc in self.members(cluster, Kind::Machine) {
            if let Some(maker) = self.maker(doc) {
                self.claim(doc);
                self.warnings.push(format!(
                    "{} is left out: its {} makes such machines anew",
                    doc.title(),
                    maker.title()
                ));
                continue;
            }
            let Some(spec) = self.spec(doc) else { continue };
            let mut recipe = self.machine(doc, spec, "spec", Kind::MetalStackMachine, site);
            recipe.labels = machine::labels(doc.labels());
            let alone = Alone { doc, recipe };
            if doc.label(CONTROL_PLANE).is_some() {
                control_plane.push(alone);
            } else {
                others.push(alone);
            }
        }
        let mut groups = Vec::new();
        for (name, machines) in [
            (CONTROL_PLANE_GROUP, control_plane),
            (MACHINES_GROUP, others),
        ] {
            let Some(span) = machines.first().map(|alone| alone.doc.name_span()) else {
                continue;
            };
            groups.push(Group {
                name: Word {
                    text: name.into(),
                    span,
                },
                control_plane: name == CONTROL_PLANE_GROUP,
                parts: parts(machines),
            });
        }
        groups
    }

    /// Marks the documents of a skipped machine as used.
    fn claim(&mut self, doc: &Doc) {
        let documents = self.documents;
        let name = |keys: [&str; 2]| {
            let [outer, inner] = keys;
            doc.root.get("spec")?.get(outer)?.get(inner)?.text()
        };
        let metal = name(["infrastructureRef", "name"]);
        let secret = name(["bootstrap", "dataSecretName"]);
        for (kind, name) in [(Kind::MetalStackMachine, metal), (Kind::Secret, secret)] {
            if let Some(found) = name.and_then(|name| documents.find(kind, &doc.namespace, name)) {
                found.used.set(true);
            }
        }
    }

    /// Builds the group of a `MachineDeployment` or `MachineSet`.
    fn set(&mut self, doc: &Doc, site: &Site) -> Option<Group> {
        let spec = self.spec(doc)?;
        self.fields(spec, "spec", SET, SET_REFUSED);
        let Some(template) = spec.get("template") else {
            self.missing(spec, "spec", "template", "a map with metadata and spec");
            return None;
        };
        self.fields(template, "spec.template", TEMPLATE, &[]);
        let labels = self.template_labels(doc, template);
        let Some(inner) = template.get("spec") else {
            self.missing(template, "spec.template", "spec", "a map");
            return None;
        };
        let path = "spec.template.spec";
        if let (Some(own), Some(named)) = (
            spec.get("clusterName").and_then(Node::text),
            self.text(inner, path, "clusterName"),
        ) && own != named.text
        {
            let message = format!("`{}` is not the clusterName of {}", named.text, doc.title());
            let at = join(path, "clusterName");
            self.decoder
                .error(named.span, &at, message, &format!("expected {own}"));
        }
        let mut recipe = self.machine(doc, inner, path, Kind::MetalStackMachineTemplate, site);
        recipe.labels = machine::labels(labels);
        let size = spec
            .entry("replicas")
            .filter(|entry| !entry.value.is_null());
        let one =
            size.is_none_or(|size| matches!(size.value.scalar(), Some(Scalar::Integer(0 | 1))));
        if let Some(host) = recipe.host.as_ref().filter(|_| !one) {
            let message = format!(
                "every machine of {} would be the same one: {}",
                doc.title(),
                host.text
            );
            let advice = "expected no providerID in a template, or a Machine for each";
            let at = "spec.template.spec.providerID";
            self.decoder.error(host.span, at, message, advice);
        }
        let name = Word {
            text: doc.name.clone(),
            span: doc.name_span(),
        };
        Some(Group {
            name: name.clone(),
            control_plane: labels.iter().any(|label| label.key == CONTROL_PLANE),
            parts: vec![Part {
                name,
                size: size.map(|size| size.value.clone()),
                hosts: recipe.host.iter().cloned().collect(),
                recipe,
                update: self.policy(spec),
            }],
        })
    }

    /// Labels in the machine template of a set.
    fn template_labels<'n>(&mut self, doc: &Doc, template: &'n Node) -> &'n [Entry] {
        let path = "spec.template.metadata";
        let Some(metadata) = given(template, "metadata") else {
            return &[];
        };
        self.fields(&metadata.value, path, TEMPLATE_METADATA, &[]);
        if let Some(annotations) = given(&metadata.value, "annotations") {
            let annotations = annotations.value.map().unwrap_or_default();
            lost(
                &mut self.warnings,
                &doc.title(),
                "annotations of machines",
                annotations,
            );
        }
        match given(&metadata.value, "labels") {
            Some(labels) => {
                let path = join(path, "labels");
                self.decoder.map(&labels.value, &path, "a map of strings")
            }
            None => &[],
        }
    }

    /// The update policy of a set, as far as it differs from the default.
    fn policy(&mut self, spec: &Node) -> Vec<Entry> {
        let mut update = Vec::new();
        let mut order = given(spec, "deletePolicy").map(|entry| (entry, "spec".to_owned()));
        if let Some(strategy) = given(spec, "strategy") {
            let path = "spec.strategy";
            self.fields(&strategy.value, path, STRATEGY, &[]);
            if let Some(word) = self.text(&strategy.value, path, "type")
                && word.text != "RollingUpdate"
            {
                update.push(field("strategy", text(word.span, &word.text)));
            }
            if let Some(rolling) = given(&strategy.value, "rollingUpdate") {
                let path = join(path, "rollingUpdate");
                self.fields(&rolling.value, &path, ROLLING, &[]);
                for (key, usual) in [("maxSurge", 1), ("maxUnavailable", 0)] {
                    let entry = rolling.value.entry(key);
                    update.extend(
                        entry
                            .filter(|entry| !says(&entry.value, usual))
                            .map(|entry| renamed(key, entry)),
                    );
                }
                if let Some(entry) = given(&rolling.value, "deletePolicy") {
                    order = Some((entry, path));
                }
            }
        }
        for (from, to, usual) in [
            ("minReadySeconds", "minReady", 0),
            ("progressDeadlineSeconds", "progressDeadline", 600),
        ] {
            let Some(entry) = spec.entry(from).filter(|entry| !says(&entry.value, usual)) else {
                continue;
            };
            match entry.value.scalar() {
                Some(Scalar::Integer(seconds)) if seconds >= 0 => {
                    let written = text(entry.value.span, &format!("{seconds}s"));
                    update.push(self::entry(to, entry.span, written));
                }
                Some(Scalar::Null) => {}
                _ => {
                    let path = join("spec", from);
                    self.decoder
                        .mismatch(&entry.value, &path, "a whole number of seconds");
                }
            }
        }
        let mut fields = Vec::new();
        if let Some(first) = update.first() {
            let span = first.span;
            fields.push(entry("update", span, map(span, update)));
        }
        // `Random` expresses no preference.
        if let Some((entry, _)) = order.filter(|(entry, _)| entry.value.text() != Some("Random")) {
            fields.push(renamed("removalOrder", entry));
        }
        fields
    }
}

fn says(node: &Node, number: i128) -> bool {
    node.is_null() || node.scalar() == Some(Scalar::Integer(number))
}

/// Combines machines with the same recipe.
fn parts(machines: Vec<Alone<'_>>) -> Vec<Part> {
    let mut parts: Vec<(Vec<&Doc>, Part)> = Vec::new();
    for Alone { doc, recipe } in machines {
        let name = Word {
            text: doc.name.clone(),
            span: doc.name_span(),
        };
        if let Some((docs, part)) = parts
            .iter_mut()
            .find(|(_, part)| part.recipe.is_like(&recipe))
        {
            docs.push(doc);
            part.hosts.extend(recipe.host);
        } else {
            let part = Part {
                size: None,
                hosts: recipe.host.iter().cloned().collect(),
                update: vec![immutable(name.span)],
                name,
                recipe,
            };
            parts.push((vec![doc], part));
        }
    }
    let taken: Vec<String> = parts.iter().map(|(docs, _)| common_name(docs)).collect();
    parts
        .into_iter()
        .enumerate()
        .map(|(position, (docs, mut part))| {
            let name = &taken[position];
            // A prefix that two parts share is ambiguous; the name of a machine is unique.
            if taken.iter().filter(|other| *other == name).count() == 1 {
                part.name.text.clone_from(name);
            }
            part.size = Some(number(part.name.span, docs.len()));
            part
        })
        .collect()
}

/// A Machine is immutable: changes only affect its successor.
fn immutable(span: Span) -> Entry {
    let strategy = field("strategy", text(span, "OnDelete"));
    entry("update", span, map(span, vec![strategy]))
}

/// The common prefix of the names of machines, or the name of the only one.
fn common_name(docs: &[&Doc]) -> String {
    let [first, others @ ..] = docs else {
        return String::new();
    };
    let mut length = first.name.len();
    for other in others {
        let same = first.name.bytes().zip(other.name.bytes());
        length = length.min(same.take_while(|(a, b)| a == b).count());
    }
    // Names are ASCII; others are rejected later, and must not cause a panic here.
    let common = first.name.get(..length).unwrap_or_default();
    let common = common.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
    if common.is_empty() {
        first.name.clone()
    } else {
        common.to_owned()
    }
}

impl Group {
    /// The versions of its machines.
    pub(super) fn versions(&self) -> impl Iterator<Item = &Word> {
        self.parts
            .iter()
            .filter_map(|part| part.recipe.version.as_ref())
    }

    /// The group as an entry of the manifest. `version` applies to all machines without their own.
    pub(super) fn entry(&self, version: Option<&Word>) -> Entry {
        let span = self.name.span;
        let role = if self.control_plane {
            "control-plane"
        } else {
            "worker"
        };
        let role = entry("role", span, text(span, role));
        let value = match self.parts.as_slice() {
            [only] => only.node(version, Some(role)),
            parts => {
                let inner = parts
                    .iter()
                    .map(|part| entry(&part.name.text, part.name.span, part.node(version, None)));
                let inner = map(span, inner.collect());
                map(span, vec![entry("groups", span, inner), role])
            }
        };
        entry(&self.name.text, span, value)
    }
}

impl Part {
    fn node(&self, version: Option<&Word>, role: Option<Entry>) -> Node {
        let recipe = &self.recipe;
        let mut fields = Vec::new();
        fields.extend(self.size.clone().map(|size| field("size", size)));
        fields.extend(
            recipe
                .version
                .as_ref()
                .filter(|own| version.is_none_or(|version| version.text != own.text))
                .map(|own| field("version", text(own.span, &own.text))),
        );
        fields.extend(
            recipe
                .node_class
                .as_ref()
                .map(|class| field("nodeClass", text(class.span, &class.text))),
        );
        fields.extend(role);
        if let Some(first) = recipe.labels.first() {
            let span = first.span;
            let labels = entry("labels", span, map(span, recipe.labels.clone()));
            fields.push(entry("attributes", span, map(span, vec![labels])));
        }
        fields.extend(machine::properties(recipe));
        let hosts: Vec<&Word> = self.hosts.iter().collect();
        fields.extend(machine::placement(recipe, &hosts));
        fields.extend(recipe.user_data.clone().map(|data| {
            let span = data.span;
            entry("bootstrap", span, map(span, vec![data]))
        }));
        fields.extend(self.update.iter().cloned());
        map(self.name.span, fields)
    }
}
