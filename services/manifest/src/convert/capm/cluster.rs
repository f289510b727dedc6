//! Converts a `Cluster` and its `MetalStackCluster`.

use drover_core::name;

use super::{
    document::{Doc, Kind},
    group::Group,
    machine::Site,
    reader::{Reader, Word, given},
};
use crate::{
    convert::{
        build::{entry, field, list, map, number, renamed, text},
        fields::PLATFORM,
    },
    path::{self, join},
    tree::{Entry, Node},
};

const CLUSTER: &[(&str, &str)] = &[
    ("clusterNetwork", "a map with services and pods"),
    ("controlPlaneEndpoint", "a map with host and port"),
    ("controlPlaneRef", "a reference"),
    ("infrastructureRef", "a reference to a MetalStackCluster"),
];
const CLUSTER_REFUSED: &[(&str, &str)] = &[
    (
        "paused",
        "leave it out; drover pause CLUSTER does the same once it is applied",
    ),
    (
        "topology",
        "give the objects that it made: kubectl get clusters,machinedeployments,metalstackclusters,metalstackmachinetemplates -o yaml",
    ),
    (
        "availabilityGates",
        "leave it out; `health` of a group says when its nodes are ready",
    ),
];
const NETWORK: &[(&str, &str)] = &[
    ("apiServerPort", "a port"),
    ("services", "a map with cidrBlocks"),
    ("pods", "a map with cidrBlocks"),
    ("serviceDomain", "a domain"),
];
const BLOCKS: &[(&str, &str)] = &[("cidrBlocks", "a list of CIDR ranges")];
const ENDPOINT: &[(&str, &str)] = &[("host", "an address"), ("port", "a port")];
/// Fields of the maintained provider.
const MAINTAINED: &[(&str, &str)] = &[
    ("controlPlaneEndpoint", "a map with host and port"),
    ("controlPlaneIP", "an address"),
    ("projectID", "the id of a project"),
    ("partition", "the name of a partition"),
    ("nodeNetworkID", "the id of a network"),
    ("firewallDeploymentRef", "a map with a name"),
];
/// Default port of the endpoint in the maintained provider.
const MAINTAINED_PORT: usize = 443;
const METAL: &[(&str, &str)] = &[
    ("controlPlaneEndpoint", "a map with host and port"),
    ("projectID", "the id of a project"),
    ("partition", "the name of a partition"),
    ("publicNetworkID", "the id of a network"),
    ("privateNetworkID", "the id of a network"),
    ("firewallSpec", "a map with image and machineType"),
];

/// Platform for clusters on metal-stack, unless an annotation names another.
const USUAL_PLATFORM: &str = "metal";
/// Other names for the same platform.
const OTHER_NAMES: [&str; 3] = ["metal-stack", "metalstack", "metalStack"];
/// The software that the nodes run.
const SOFTWARE: &str = "kubernetes";
/// Label for the original namespace of a cluster.
const NAMESPACE: &str = "cluster.x-k8s.io/namespace";

impl<'r> Reader<'_, 'r> {
    /// Builds the manifest of a cluster.
    pub(super) fn cluster(&mut self, doc: &'r Doc) -> Node {
        doc.used.set(true);
        let span = path::first_line(&doc.root);
        let name = doc.name_span();
        if let Err(why) = name::check_cluster_name(&doc.name) {
            let message = format!("the name of a cluster {why}");
            self.decoder.error(name, "metadata.name", message, "");
        }
        let mut labels = doc.labels().to_vec();
        labels.retain(|label| label.key != NAMESPACE);
        labels.push(entry(NAMESPACE, name, text(name, &doc.namespace)));
        let spec = self
            .spec(doc)
            .map_or_else(Vec::new, |spec| self.cluster_spec(doc, spec));
        let metadata = vec![
            field("name", text(name, &doc.name)),
            entry("labels", name, map(name, labels)),
        ];
        map(
            span,
            vec![
                entry("apiVersion", span, text(span, crate::API_VERSION)),
                entry("kind", span, text(span, "Cluster")),
                entry("metadata", name, map(name, metadata)),
                entry("spec", span, map(span, spec)),
            ],
        )
    }

    fn cluster_spec(&mut self, doc: &'r Doc, spec: &'r Node) -> Vec<Entry> {
        self.fields(spec, "spec", CLUSTER, CLUSTER_REFUSED);
        let network = given(spec, "clusterNetwork");
        if let Some(network) = network {
            self.network(&network.value, "spec.clusterNetwork");
        }
        let metal = self.infrastructure_of(doc, spec);
        let site = metal.map(|metal| self.site(metal)).unwrap_or_default();
        let groups = self.groups(doc, &site);
        self.control_plane(doc, spec, &groups);

        let span = doc.name_span();
        let version = groups.iter().flat_map(Group::versions).next();
        let mut store = vec![entry("software", span, text(span, SOFTWARE))];
        store.extend(version.map(|word| field("version", text(word.span, &word.text))));
        let mut fields = vec![entry("store", span, map(span, store))];
        let platform = self.platform(doc, metal);
        fields.push(entry(
            "platform",
            platform.span,
            text(platform.span, &platform.text),
        ));
        if let Some(network) = network {
            let attributes = vec![renamed("clusterNetwork", network)];
            fields.push(entry(
                "attributes",
                network.span,
                map(network.span, attributes),
            ));
        }
        let home = site.entries();
        if let Some(first) = home.first() {
            let span = first.span;
            fields.push(entry("properties", span, map(span, home)));
        }
        if let Some(metal) = metal {
            if metal.is_maintained() {
                self.warnings.push(format!(
                    "cluster {}: set `provider_id: metal` for platform {}, so that its nodes have the ids of its Node \
                     objects (metal://PARTITION/UUID)",
                    doc.name, platform.text
                ));
            }
            let made = self.infrastructure(doc, spec, metal, &site, &platform, &groups);
            let span = metal.name_span();
            fields.push(entry("infrastructure", span, list(span, vec![made])));
        }
        let entries: Vec<Entry> = groups.iter().map(|group| group.entry(version)).collect();
        fields.push(entry("groups", span, map(span, entries)));
        fields
    }

    fn network(&mut self, network: &Node, path: &str) {
        self.fields(network, path, NETWORK, &[]);
        for key in ["services", "pods"] {
            if let Some(blocks) = given(network, key) {
                let path = join(path, key);
                self.fields(&blocks.value, &path, BLOCKS, &[]);
                self.texts(&blocks.value, &path, "cidrBlocks");
            }
        }
    }

    /// The `MetalStackCluster` of a cluster, which no other cluster may share.
    fn infrastructure_of(&mut self, doc: &Doc, spec: &Node) -> Option<&'r Doc> {
        let expected = "a reference to a MetalStackCluster";
        let Some(reference) = given(spec, "infrastructureRef") else {
            self.missing(spec, "spec", "infrastructureRef", expected);
            return None;
        };
        let unused: Vec<&Doc> = self
            .documents
            .of(Kind::MetalStackCluster)
            .filter(|metal| !metal.used.get())
            .collect();
        let path = "spec.infrastructureRef";
        let metal = self.reference(reference, path, &doc.namespace, Kind::MetalStackCluster)?;
        if !unused.iter().any(|doc| std::ptr::eq(*doc, metal)) {
            let message = format!("{} is that of another Cluster, too", metal.title());
            let advice = "expected one for each Cluster";
            self.decoder.error(reference.span, path, message, advice);
        }
        Some(metal)
    }

    fn site(&mut self, metal: &'r Doc) -> Site {
        let Some(spec) = self.spec(metal) else {
            return Site::default();
        };
        let known = if metal.is_maintained() {
            MAINTAINED
        } else {
            METAL
        };
        self.fields(spec, "spec", known, &[]);
        Site {
            project: self.text(spec, "spec", "projectID"),
            partition: self.text(spec, "spec", "partition"),
        }
    }

    /// The platform for all parts of a cluster.
    fn platform(&mut self, doc: &Doc, metal: Option<&Doc>) -> Word {
        let named = metal
            .and_then(|metal| metal.annotation(PLATFORM))
            .or_else(|| doc.annotation(PLATFORM));
        let (mut name, span) = match named {
            Some(named) => (
                named.value.text().unwrap_or_default().to_owned(),
                named.value.span,
            ),
            None => (
                USUAL_PLATFORM.to_owned(),
                metal.map_or_else(
                    || doc.name_span(),
                    |metal| path::locate(&metal.root, "kind").0,
                ),
            ),
        };
        let Some(registered) = self.registered.filter(|names| !names.contains(&name)) else {
            return Word { text: name, span };
        };
        let other = OTHER_NAMES.iter().find(|name| registered.contains(**name));
        match other.filter(|_| named.is_none()) {
            Some(other) => {
                self.warnings.push(format!(
                    "cluster {}: the registered platform {other} is used",
                    doc.name
                ));
                name = (*other).to_owned();
            }
            None if self.unresolved.insert(name.clone()) => {
                let message = crate::words::no_platform(&name, registered);
                let advice = format!(
                    "register one for metal-stack, or name it with the annotation {PLATFORM} of the MetalStackCluster"
                );
                self.decoder.error(span, "", message, &advice);
            }
            None => {}
        }
        Word { text: name, span }
    }

    /// Builds an entry of `infrastructure`.
    fn infrastructure(
        &mut self,
        doc: &Doc,
        cluster: &Node,
        metal: &'r Doc,
        site: &Site,
        platform: &Word,
        groups: &[Group],
    ) -> Node {
        let span = metal.name_span();
        let mut fields = vec![entry(
            "platform",
            platform.span,
            text(platform.span, &platform.text),
        )];
        let firewall = self.firewall(doc, metal);
        let mut properties = site.entries();
        if metal.is_maintained() {
            // Its machines have no address of the control plane: kube-vip or the like announces it.
            properties.push(entry("endpointBy", span, text(span, "software")));
        }
        if let Some(firewall) = firewall.as_ref().filter(|firewall| !firewall.has_rules) {
            // What its controller would have let out. By itself a firewall forwards nothing.
            let span = firewall.entry.span;
            properties.push(entry("egress", span, text(span, "default")));
        }
        if let Some(first) = properties.first() {
            let span = first.span;
            fields.push(entry("properties", span, map(span, properties)));
        }
        let Some(spec) = metal.root.get("spec") else {
            return map(span, fields);
        };
        let mut network = Vec::new();
        for (from, to) in [
            ("publicNetworkID", "public"),
            ("privateNetworkID", "id"),
            ("nodeNetworkID", "id"),
        ] {
            if let Some(id) = self.text(spec, "spec", from) {
                network.push(field(to, text(id.span, &id.text)));
            }
        }
        if let Some(public) = firewall
            .as_ref()
            .and_then(|firewall| firewall.public.as_ref())
        {
            network.push(field("public", text(public.span, &public.text)));
        }
        // Even without settings: the network is created anyway.
        fields.push(entry("network", span, map(span, network)));
        let mut endpoint = self.endpoint(cluster, spec);
        if metal.is_maintained() {
            self.maintained_endpoint(spec, &mut endpoint);
        }
        let targets: Vec<Node> = groups
            .iter()
            .filter(|group| group.control_plane)
            .map(|group| text(group.name.span, &group.name.text))
            .collect();
        endpoint.push(entry("targets", span, list(span, targets)));
        fields.push(entry("endpoint", span, map(span, endpoint)));
        fields.extend(firewall.map(|firewall| firewall.entry));
        map(span, fields)
    }

    /// Completes an endpoint with the address that the maintained provider has in a field of its own, and its port.
    fn maintained_endpoint(&mut self, spec: &Node, endpoint: &mut Vec<Entry>) {
        if let Some(address) = self.text(spec, "spec", "controlPlaneIP") {
            let host = endpoint.iter().find(|entry| entry.key == "host");
            match host.and_then(|host| host.value.text()) {
                None => endpoint.push(field("host", text(address.span, &address.text))),
                Some(host) if host == address.text => {}
                Some(host) => {
                    let message = format!("the control plane is at {host}, too");
                    let advice = "expected the same address in controlPlaneEndpoint.host";
                    let at = "spec.controlPlaneIP";
                    self.decoder.error(address.span, at, message, advice);
                }
            }
        }
        if !endpoint.iter().any(|entry| entry.key == "port") {
            let span = path::first_line(spec);
            endpoint.push(entry("port", span, number(span, MAINTAINED_PORT)));
        }
    }

    /// Host and port of the endpoint, from the infrastructure or otherwise from the cluster.
    fn endpoint(&mut self, cluster: &Node, metal: &Node) -> Vec<Entry> {
        let path = "spec.controlPlaneEndpoint";
        let own = given(metal, "controlPlaneEndpoint");
        let copied = given(cluster, "controlPlaneEndpoint");
        for endpoint in own.iter().chain(&copied) {
            self.fields(&endpoint.value, path, ENDPOINT, &[]);
        }
        let mut fields = Vec::new();
        for (key, _) in ENDPOINT {
            let of = |endpoint: Option<&'_ Entry>| {
                endpoint.and_then(|endpoint| given(&endpoint.value, key).cloned())
            };
            let (here, there) = (of(own), of(copied));
            if let (Some(here), Some(there)) = (&here, &there)
                && here.value.describe() != there.value.describe()
            {
                let found = there.value.describe();
                let message = format!(
                    "`{key}` of the Cluster is {found}, that of its MetalStackCluster is not"
                );
                let advice = format!("expected {}", here.value.describe());
                self.decoder
                    .error(there.value.span, &join(path, key), message, &advice);
            }
            fields.extend(here.or(there));
        }
        let has_port = fields.iter().any(|field| field.key == "port");
        let bound = given(cluster, "clusterNetwork")
            .and_then(|network| given(&network.value, "apiServerPort"));
        if let Some(bound) = bound.filter(|_| !has_port) {
            fields.push(renamed("port", bound));
        }
        fields
    }

    /// Checks that something creates the control plane.
    fn control_plane(&mut self, doc: &Doc, spec: &Node, groups: &[Group]) {
        let path = "spec.controlPlaneRef";
        let there = groups.iter().any(|group| group.control_plane);
        let advice = "expected Machines with the label cluster.x-k8s.io/control-plane, and the Secrets with their user data: \
                      kubectl get machines,metalstackmachines,secrets -o yaml";
        let Some(reference) = given(spec, "controlPlaneRef") else {
            if !there {
                let message = format!("{} has no machine of the control plane", doc.title());
                self.decoder
                    .error(doc.name_span(), "metadata.name", message, advice);
            }
            return;
        };
        let Some((kind, name, namespace)) = self.referred(reference, path, &doc.namespace) else {
            return;
        };
        let controller =
            Kind::of(&kind.text).and_then(|kind| self.documents.find(kind, &namespace, &name.text));
        if let Some(controller) = controller {
            controller.used.set(true);
        }
        if there {
            self.warnings.push(format!(
                "{}/{} is left out: the control plane are the Machines with the label for it",
                kind.text, name.text
            ));
        } else {
            let message = format!(
                "{}/{} makes the machines of the control plane and what they boot with, which Drover does not do",
                kind.text, name.text
            );
            self.decoder
                .error(name.span, &join(path, "name"), message, advice);
        }
    }
}

impl Site {
    fn entries(&self) -> Vec<Entry> {
        [("project", &self.project), ("partition", &self.partition)]
            .into_iter()
            .filter_map(|(key, word)| {
                let word = word.as_ref()?;
                Some(field(key, text(word.span, &word.text)))
            })
            .collect()
    }
}
