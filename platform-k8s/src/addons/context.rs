//! What a template of an addon can read.
//!
//! `platform`: `name` (of its objects: cluster and addon as a DNS name of at most 40 characters), `namespace`.
//! `targets`: each with `id`, `key` (the id as a DNS name), `name`, `group`, `role` (`active`, `standby`), `draining`,
//! `host` (its address on the interface; `none` if it has none there) and `endpoints` (`HOST:PORT` by name).
//! `secrets`: content in base64 by name and key.
//! `addon`, of every kind: `name`, `kind`, `image` (empty: the default of the template), `interface`, `cluster_ip` and
//! `external_ip` (at most one of them), `properties`. Of the built-in kinds besides: `replicas`, `service_type`,
//! `service_ports` (as in a Service), and what the functions here add.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::SocketAddr,
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use drover_convert::value::object;
use drover_core::{Error, Result};
use drover_platform::{
    addons::{
        AddonWanted, Owner,
        targets::{self, kind},
    },
    identity::hex,
};
use drover_proto::platform::v1::{
    AddonKind, AddonSecret, AddonTarget, JumpHost, LoadBalancer, NodeRole, OidcProvider,
    PortMapping, addon_spec::Kind, port_ref::Port,
};
use drover_templates::{AddonScope, ClusterContext, Context, Scope};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::{ControllerFiles, keys};
use crate::objects::{Constraints, dns_name};

/// Where the ports begin on which pods of load balancers listen.
const FIRST_PORT: u32 = 10_000;
/// Most ports of one load balancer.
const MAX_PORTS: usize = 500;
/// Most pods of one addon.
const MAX_REPLICAS: i64 = 100;
/// Targets that are named in a note.
const NAMED: usize = 3;

/// An addon in the words of its template.
pub(super) struct Prepared {
    /// Name of the template.
    pub(super) template: String,
    pub(super) scope: Scope,
    /// How many targets it serves.
    pub(super) targets: u32,
    /// Targets that are left out, and why.
    pub(super) note: String,
    /// Where its pods may run.
    pub(super) constraints: Constraints,
    /// The fields of the request that the ports of its service come from, in their order.
    pub(super) ports: Vec<String>,
}

/// How the address that was asked for is given to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// As its cluster IP.
    Cluster,
    /// As an external IP, for one outside of the range of cluster IPs.
    External,
}

/// What is beside the request.
pub(super) struct Beside<'a> {
    pub(super) namespace: &'a str,
    pub(super) address: Address,
    pub(super) node_ports: [u16; 2],
    pub(super) bmc: ControllerFiles,
    /// Proxies of this process, `NAME=VALUE` each in a line. Empty: it has none.
    pub(super) proxies: &'a str,
    /// What digests of secrets are made with.
    pub(super) salt: &'a [u8],
    /// The certificate that is there and not yet due: what it was made from, and when it is due.
    pub(super) certificate: Option<(String, String)>,
}

/// Name of the objects of an addon. The hash in it keeps cluster `a-b` with addon `c` from cluster `a` with addon `b-c`.
pub(super) fn object_name(cluster_id: &str, name: &str) -> String {
    dns_name(&format!("{cluster_id}/{name}"))
}

/// Reads what is wanted.
///
/// # Errors
/// `Invalid` with the field.
pub(super) fn prepare(
    owner: &Owner,
    wanted: &AddonWanted,
    beside: &Beside<'_>,
) -> Result<Prepared> {
    let spec = &wanted.spec;
    let mut reader = Reader::of(wanted);
    let mut addon = reader.common(beside)?;
    let (template, ports) = match &spec.kind {
        Some(Kind::LoadBalancer(it)) => {
            let ports = reader.load_balancer(it, beside, &mut addon)?;
            ("load-balancer", ports)
        }
        Some(Kind::JumpHost(it)) => {
            reader.jump_host(it, beside, &mut addon)?;
            ("jump-host", vec!["spec.jump_host.port".to_owned()])
        }
        Some(Kind::OidcProvider(it)) => {
            reader.oidc_provider(it, &owner.cluster_id, beside, &mut addon)?;
            ("oidc-provider", vec!["spec.oidc_provider.port".to_owned()])
        }
        Some(Kind::Template(it)) => {
            reader.addressed();
            (it.template.as_str(), Vec::new())
        }
        None => return Err(Error::invalid("spec.kind", "is required")),
    };
    let constraints = match &spec.node_selector {
        None => Constraints::default(),
        Some(selector) => Constraints::of_nodes("spec.node_selector", selector)?,
    };
    let text = |text: &str| Value::from(text);
    let platform = Map::from_iter([
        (
            "name".to_owned(),
            object_name(&owner.cluster_id, &spec.name).into(),
        ),
        ("namespace".to_owned(), text(beside.namespace)),
    ]);
    let context = Context {
        cluster: ClusterContext {
            id: owner.cluster_id.clone(),
            ..ClusterContext::default()
        },
        ..Context::default()
    };
    let scope = Scope::from(context).of_addon(&AddonScope {
        addon: Value::Object(addon),
        targets: reader.targets(),
        secrets: secrets(&wanted.secrets),
        platform,
    });
    Ok(Prepared {
        template: template.to_owned(),
        scope,
        targets: u32::try_from(reader.served).unwrap_or(u32::MAX),
        note: reader.note(),
        constraints,
        ports,
    })
}

fn secrets(secrets: &BTreeMap<String, AddonSecret>) -> BTreeMap<String, BTreeMap<String, String>> {
    let encoded = |secret: &AddonSecret| {
        let data = secret.data.iter();
        data.map(|(key, content)| (key.clone(), BASE64.encode(content)))
            .collect()
    };
    secrets
        .iter()
        .map(|(name, secret)| (name.clone(), encoded(secret)))
        .collect()
}

struct Reader<'a> {
    wanted: &'a AddonWanted,
    /// Number of targets that are served.
    served: usize,
    /// What is missing of the others, in their order.
    lacking: Vec<String>,
}

impl<'a> Reader<'a> {
    fn of(wanted: &'a AddonWanted) -> Self {
        Self {
            wanted,
            served: 0,
            lacking: Vec::new(),
        }
    }

    fn common(&self, beside: &Beside<'_>) -> Result<Map<String, Value>> {
        let spec = &self.wanted.spec;
        let properties = spec.properties.clone().unwrap_or_default();
        let properties = object("spec.properties", &properties)?;
        let mut addon = Map::from_iter([
            ("name".to_owned(), spec.name.clone().into()),
            ("kind".to_owned(), kind(spec).as_str_name().into()),
            ("image".to_owned(), spec.image.clone().into()),
            ("interface".to_owned(), spec.interface.clone().into()),
        ]);
        if kind(spec) != AddonKind::Template {
            addon.extend(settings(kind(spec), &properties)?);
        }
        addon.insert("properties".to_owned(), Value::Object(properties));
        let given = |here: Address| {
            let is = beside.address == here;
            Value::from(if is { spec.cluster_ip.as_str() } else { "" })
        };
        addon.insert("cluster_ip".to_owned(), given(Address::Cluster));
        addon.insert("external_ip".to_owned(), given(Address::External));
        Ok(addon)
    }

    /// The targets that can be reached in some way that is needed. What they lack is in a note.
    fn reached(
        &mut self,
        takes: impl Fn(&AddonTarget) -> bool,
        reach: impl Fn(&AddonTarget) -> (bool, Vec<String>),
    ) -> Vec<&'a AddonTarget> {
        let mut served = Vec::new();
        for target in self.wanted.targets.iter().filter(|target| takes(target)) {
            let (reached, lacking) = reach(target);
            self.lacking.extend(lacking);
            if reached {
                served.push(target);
            }
        }
        self.served = served.len();
        served
    }

    /// Counts the targets that have an address.
    fn addressed(&mut self) {
        let interface = self.wanted.spec.interface.as_str();
        let reach = |target: &AddonTarget| {
            let lacking = targets::host(target, interface).err();
            (lacking.is_none(), lacking.into_iter().collect())
        };
        self.reached(|_| true, reach);
    }

    fn note(&self) -> String {
        let named = self.lacking.iter().take(NAMED);
        let mut note = named.cloned().collect::<Vec<_>>().join("; ");
        if let Some(more) = self.lacking.len().checked_sub(NAMED).filter(|it| *it > 0) {
            note.push_str(&format!("; and {more} more"));
        }
        note
    }

    fn load_balancer(
        &mut self,
        balancer: &LoadBalancer,
        beside: &Beside<'_>,
        addon: &mut Map<String, Value>,
    ) -> Result<Vec<String>> {
        let field = "spec.load_balancer.ports";
        let count = |mapping: &PortMapping| mapping.count.max(1) as usize;
        let all: usize = balancer.ports.iter().map(count).sum();
        if all > MAX_PORTS {
            let why = format!("has {all} ports in all; at most {MAX_PORTS} are possible");
            return Err(Error::invalid(field, why));
        }
        let interface = self.wanted.spec.interface.as_str();
        let targets = self.reached(targets::takes_connections, |target| {
            targets::balanced(target, interface, &balancer.ports)
        });
        let shared = self.shared_ids();
        let mut service = ServicePorts::new(addon, beside);
        for (at, mapping) in balancer.ports.iter().enumerate() {
            for more in 0..mapping.count.max(1) {
                let listen = mapping.listen.map(|listen| listen + more);
                service.reserve(&format!("{field}[{at}].listen"), listen)?;
            }
        }
        let (mut ports, mut fields, mut names) = (Vec::new(), Vec::new(), false);
        for (at, mapping) in balancer.ports.iter().enumerate() {
            for more in 0..mapping.count.max(1) {
                let bind = FIRST_PORT + u32::try_from(ports.len()).unwrap_or_default();
                let servers: Vec<Value> = targets
                    .iter()
                    .filter_map(|target| {
                        let address = targets::server(target, interface, mapping, more).ok()?;
                        let is_name = address.parse::<SocketAddr>().is_err();
                        names |= is_name;
                        let name = key(target, &shared);
                        Some(json!({"name": name, "address": address, "is_name": is_name}))
                    })
                    .collect();
                let name = format!("p{}", ports.len());
                let target = match mapping.target.as_ref().and_then(|it| it.port.as_ref()) {
                    Some(Port::Number(number)) => Some(number + more),
                    _ => None,
                };
                let listen = mapping.listen.map(|listen| listen + more);
                service.add(&name, listen, target, bind);
                ports.push(json!({"name": name, "bind": bind, "servers": servers}));
                fields.push(format!("{field}[{at}].listen"));
            }
        }
        addon.insert("ports".to_owned(), ports.into());
        addon.insert("names".to_owned(), names.into());
        addon.insert("service_ports".to_owned(), service.ports.into());
        Ok(fields)
    }

    fn jump_host(
        &mut self,
        jump: &JumpHost,
        beside: &Beside<'_>,
        addon: &mut Map<String, Value>,
    ) -> Result<()> {
        self.addressed();
        self.lacking.extend(beside.bmc.lacking.iter().cloned());
        let mut bmc = beside.bmc.files.clone();
        if jump.bmc.is_some_and(|it| it.proxy) {
            if beside.proxies.is_empty() {
                let why = "there is none: the environment of the platform has no http_proxy, https_proxy or all_proxy";
                return Err(Error::invalid("spec.jump_host.bmc.proxy", why));
            }
            // A proxy may have a password.
            bmc.insert(".proxies".to_owned(), BASE64.encode(beside.proxies));
        }
        let mut service = ServicePorts::new(addon, beside);
        service.reserve("spec.jump_host.port", jump.port)?;
        service.add("ssh", jump.port, Some(22), 2222);
        addon.insert("service_ports".to_owned(), service.ports.into());
        addon.insert("authorized_keys".to_owned(), json!(jump.authorized_keys));
        let files = |name: &str| {
            let all = secrets(&self.wanted.secrets);
            all.get(name).cloned().unwrap_or_default()
        };
        let private_keys = files(&jump.private_keys_secret);
        let kubeconfig = files(&jump.kubeconfig_secret).remove("kubeconfig");
        addon.insert("host_key".to_owned(), keys::private_key()?.into());
        let files = json!([
            jump.authorized_keys,
            private_keys,
            kubeconfig,
            jump.bmc.map(|it| it.proxy)
        ]);
        addon.insert(
            "files_digest".to_owned(),
            digest(beside.salt, &files).into(),
        );
        addon.insert("private_keys".to_owned(), json!(private_keys));
        addon.insert("kubeconfig".to_owned(), json!(kubeconfig));
        let power = jump.bmc.map(|bmc| json!({"proxy": bmc.proxy}));
        addon.insert("bmc".to_owned(), json!(power));
        addon.insert("bmc_files".to_owned(), json!(bmc));
        Ok(())
    }

    fn oidc_provider(
        &self,
        provider: &OidcProvider,
        cluster: &str,
        beside: &Beside<'_>,
        addon: &mut Map<String, Value>,
    ) -> Result<()> {
        let secret = |name: &str, key: &str| {
            let secret = self.wanted.secrets.get(name)?.data.get(key)?;
            Some(String::from_utf8_lossy(secret).into_owned())
        };
        let clients: Vec<Value> = provider
            .clients
            .iter()
            .map(|client| {
                let mut entry = json!({
                    "id": client.id, "name": client.id, "redirectURIs": client.redirect_uris,
                });
                match secret(&client.secret, "secret") {
                    Some(secret) => entry["secret"] = secret.into(),
                    None => entry["public"] = true.into(),
                }
                entry
            })
            .collect();
        let mut connectors = Vec::new();
        for (at, connector) in provider.connectors.iter().enumerate() {
            let field = format!("spec.oidc_provider.connectors[{at}].config");
            let config = connector.config.clone().unwrap_or_default();
            let mut config = object(&field, &config)?;
            if let Some(secret) = self.wanted.secrets.get(&connector.secret) {
                let text = |content: &Vec<u8>| String::from_utf8_lossy(content).into_owned();
                let given = secret.data.iter();
                config.extend(given.map(|(key, content)| (key.clone(), text(content).into())));
            }
            connectors.push(json!({
                "type": connector.r#type, "id": connector.id, "name": connector.id, "config": config,
            }));
        }
        let mut service = ServicePorts::new(addon, beside);
        service.reserve("spec.oidc_provider.port", provider.port)?;
        service.add("http", provider.port, Some(5556), 5556);
        addon.insert("service_ports".to_owned(), service.ports.into());
        let tls = !provider.tls_secret.is_empty();
        let scheme = if tls { "https" } else { "http" };
        let name = object_name(cluster, &self.wanted.spec.name);
        let name = format!("{name}.{}", beside.namespace);
        let issuer = if provider.issuer.is_empty() {
            let port = provider.port.unwrap_or(5556);
            let host = match self.wanted.spec.cluster_ip.as_str() {
                "" => format!("{name}.svc"),
                address => address.to_owned(),
            };
            format!("{scheme}://{}", targets::host_port(&host, port))
        } else {
            provider.issuer.clone()
        };
        let mut pair = Value::Null;
        if tls {
            let data = self.wanted.secrets.get(&provider.tls_secret);
            let data = data.map(|secret| secret.data.clone()).unwrap_or_default();
            let names = keys::names(&issuer, &name, &self.wanted.spec.cluster_ip);
            pair = keys::certificate(&data.into_iter().collect(), &names)?;
            // The one that is there stays until it is due, and so do the pods that have read it.
            if let Some((once, due)) = &beside.certificate
                && pair["once"] == **once
            {
                pair["renew_after"] = due.as_str().into();
            }
        }
        let made_from = (pair.get("once"), pair.get("renew_after"));
        let files = digest(
            beside.salt,
            &json!([issuer, clients, connectors, made_from]),
        );
        addon.insert("files_digest".to_owned(), files.into());
        addon.insert("clients".to_owned(), clients.into());
        addon.insert("connectors".to_owned(), connectors.into());
        addon.insert("tls".to_owned(), pair);
        addon.insert("issuer".to_owned(), issuer.into());
        Ok(())
    }

    /// Ids that nodes of several platforms have.
    fn shared_ids(&self) -> HashSet<&str> {
        let mut seen = HashSet::new();
        let ids = self.wanted.targets.iter().map(|it| it.node_id.as_str());
        ids.filter(|id| !seen.insert(*id)).collect()
    }

    fn targets(&self) -> Vec<Value> {
        let interface = &self.wanted.spec.interface;
        let shared = self.shared_ids();
        let target = |target: &AddonTarget| {
            json!({
                "id": target.node_id,
                "key": key(target, &shared),
                "name": target.name,
                "group": target.group,
                "role": if target.role() == NodeRole::Standby { "standby" } else { "active" },
                "draining": target.draining,
                "host": targets::host(target, interface).ok(),
                "endpoints": target.endpoints,
            })
        };
        self.wanted.targets.iter().map(target).collect()
    }
}

/// A name of its own for a target: ids are unique within a platform only.
fn key(target: &AddonTarget, shared: &HashSet<&str>) -> String {
    if shared.contains(target.node_id.as_str()) {
        dns_name(&format!("{}-{}", target.platform, target.node_id))
    } else {
        dns_name(&target.node_id)
    }
}

/// Digest of what pods read only once: another one means new pods. It stands where secrets do not, so that without the
/// salt it would confirm a guess of one.
fn digest(salt: &[u8], files: &Value) -> String {
    let mut hash = Sha256::new();
    hash.update(salt);
    hash.update(files.to_string());
    hex(&hash.finalize()[..16])
}

/// The settings of built-in kinds in `properties`.
fn settings(kind: AddonKind, properties: &Map<String, Value>) -> Result<Map<String, Value>> {
    let balancer = kind == AddonKind::LoadBalancer;
    // One server of ssh: a login in progress stays with its pod anyway.
    let mut replicas = if kind == AddonKind::JumpHost { 1 } else { 2 };
    let mut service_type = "NodePort".to_owned();
    let mut connections = 10_000;
    let mut user = "root".to_owned();
    let whole = |key: &str, value: &Value, most: i64| {
        let number = value.as_i64().filter(|number| (1..=most).contains(number));
        let why = format!("expected a number from 1 to {most}");
        number.ok_or_else(|| Error::invalid(format!("spec.properties.{key}"), why))
    };
    for (key, value) in properties {
        match key.as_str() {
            "replicas" => replicas = whole(key, value, MAX_REPLICAS)?,
            "maxConnections" if balancer => connections = whole(key, value, 1_000_000)?,
            "nodeUser" if kind == AddonKind::JumpHost => {
                let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
                let given = value
                    .as_str()
                    .filter(|it| !it.is_empty() && it.chars().all(good));
                let refused =
                    || Error::invalid("spec.properties.nodeUser", "is not a valid name of a user");
                user = given.ok_or_else(refused)?.to_owned();
            }
            "serviceType" => {
                let known = ["NodePort", "ClusterIP", "LoadBalancer"];
                let given = value.as_str().filter(|given| known.contains(given));
                let why = format!("expected one of {}", known.join(", "));
                let refused = || Error::invalid("spec.properties.serviceType", why);
                service_type = given.ok_or_else(refused)?.to_owned();
            }
            _ => {
                let more = match kind {
                    AddonKind::LoadBalancer => ", maxConnections",
                    AddonKind::JumpHost => ", nodeUser",
                    _ => "",
                };
                return Err(Error::invalid(
                    format!("spec.properties.{key}"),
                    format!("is unknown; there are replicas, serviceType{more}"),
                ));
            }
        }
    }
    let mut settings = Map::new();
    settings.insert("replicas".to_owned(), replicas.into());
    settings.insert("service_type".to_owned(), service_type.into());
    settings.insert("node_user".to_owned(), user.into());
    if balancer {
        settings.insert("max_connections".to_owned(), connections.into());
    }
    Ok(settings)
}

/// The ports of a service.
struct ServicePorts {
    /// The range of node ports, if it has some.
    node_ports: Option<[u16; 2]>,
    used: BTreeSet<u32>,
    ports: Vec<Value>,
}

impl ServicePorts {
    fn new(addon: &Map<String, Value>, beside: &Beside<'_>) -> Self {
        let kind = addon.get("service_type").and_then(Value::as_str);
        Self {
            node_ports: (kind != Some("ClusterIP")).then_some(beside.node_ports),
            used: BTreeSet::new(),
            ports: Vec::new(),
        }
    }

    /// Keeps a port that is asked for, before any is chosen.
    ///
    /// # Errors
    /// `Invalid` with the field if it cannot be had.
    fn reserve(&mut self, field: &str, listen: Option<u32>) -> Result<()> {
        let Some(listen) = listen else { return Ok(()) };
        if let Some([first, last]) = self.node_ports
            && !(u32::from(first)..=u32::from(last)).contains(&listen)
        {
            let why = format!("{listen} is not a node port of this Kubernetes: {first}-{last}");
            return Err(Error::invalid(field, why));
        }
        if !self.used.insert(listen) {
            return Err(Error::invalid(field, format!("{listen} is taken")));
        }
        Ok(())
    }

    /// Adds a port that is reached at `listen`, which is reserved, otherwise at `preferred` of the service if that is
    /// free, and a node port that the API server chooses.
    fn add(&mut self, name: &str, listen: Option<u32>, preferred: Option<u32>, bind: u32) {
        let mut choices = preferred.into_iter().chain(bind..=u32::from(u16::MAX));
        let free = || choices.find(|port| !self.used.contains(port));
        let port = listen.or_else(free).unwrap_or(bind);
        self.used.insert(port);
        let mut entry = json!({"name": name, "protocol": "TCP", "port": port, "targetPort": bind});
        if let Some(listen) = listen.filter(|_| self.node_ports.is_some()) {
            entry["nodePort"] = listen.into();
        }
        self.ports.push(entry);
    }
}
