//! Containers of a pod.

use std::collections::{BTreeMap, BTreeSet};

use drover_proto::kubernetes::v1::{self as api, env_source, env_var, probe};

use super::{Check, quantity, syntax};

/// Largest user or group id.
const MAX_ID: i64 = 2_147_483_647;
/// Prefixes of resources that are native to Kubernetes but have no fixed names.
const HUGE_PAGES: &str = "hugepages-";
/// Resources of containers without a prefix of their own.
const NATIVE: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
/// Fields of a pod that a variable can show.
const FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Units that a resource of bytes can be divided by.
const UNITS: [&str; 13] = [
    "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei",
];

/// What the containers of a pod share.
pub(super) struct Around {
    /// Names of the pod's volumes.
    pub(super) volumes: BTreeSet<String>,
    /// Names of all its containers.
    pub(super) containers: BTreeSet<String>,
    pub(super) host_network: bool,
}

impl Check {
    pub(super) fn container(
        &mut self,
        field: &str,
        container: &mut api::Container,
        around: &Around,
    ) {
        self.required(format!("{field}.name"), &container.name, syntax::label);
        let image = format!("{field}.image");
        if container.image.is_empty() {
            self.wrong(image, "is required");
        } else if container.image.trim() != container.image {
            self.wrong(image, "begins or ends with a blank");
        }
        for (at, variable) in container.env.iter().enumerate() {
            self.variable(&format!("{field}.env[{at}]"), variable, around);
        }
        for (at, source) in container.env_from.iter().enumerate() {
            self.env_source(&format!("{field}.env_from[{at}]"), source);
        }
        self.ports(field, &mut container.ports, around.host_network);
        self.mounts(field, &container.volume_mounts, around);
        self.resources(field, container);
        let probes = [
            ("liveness_probe", &container.liveness_probe, true),
            ("readiness_probe", &container.readiness_probe, false),
            ("startup_probe", &container.startup_probe, true),
        ];
        for (name, probe, once) in probes {
            if let Some(probe) = probe {
                self.probe(&format!("{field}.{name}"), probe, once);
            }
        }
        if let Some(security) = &container.security {
            self.container_security(&format!("{field}.security"), security);
        }
        let policy = format!("{field}.image_pull_policy");
        self.known::<api::ImagePullPolicy>(policy, container.image_pull_policy);
    }

    fn variable(&mut self, field: &str, variable: &api::EnvVar, around: &Around) {
        self.required(format!("{field}.name"), &variable.name, syntax::variable);
        match &variable.source {
            None | Some(env_var::Source::Value(_)) => {}
            Some(env_var::Source::Field(path)) => {
                self.required(format!("{field}.field"), path, pod_field);
            }
            Some(env_var::Source::Resource(of)) => {
                self.resource_ref(&format!("{field}.resource"), of, around);
            }
            Some(env_var::Source::Configuration(key)) => {
                self.key_ref(&format!("{field}.configuration"), key);
            }
            Some(env_var::Source::Secret(key)) => self.key_ref(&format!("{field}.secret"), key),
        }
    }

    fn key_ref(&mut self, field: &str, key: &api::KeyRef) {
        self.required(format!("{field}.name"), &key.name, syntax::subdomain);
        let syntax = syntax::configuration_key;
        self.required(format!("{field}.key"), &key.key, syntax);
    }

    fn resource_ref(&mut self, field: &str, of: &api::ResourceRef, around: &Around) {
        let resource = format!("{field}.resource");
        let name = of.resource.strip_prefix("limits.");
        let name = name.or_else(|| of.resource.strip_prefix("requests."));
        let known = name.filter(|name| NATIVE.contains(name) || name.starts_with(HUGE_PAGES));
        match known {
            Some(_) => {}
            None if of.resource.is_empty() => self.wrong(&resource, "is required"),
            None => self.wrong(
                &resource,
                "expected limits. or requests., and cpu, memory, ephemeral-storage or hugepages-SIZE",
            ),
        }
        if !of.container.is_empty() && !around.containers.contains(&of.container) {
            let why = format!("the pod has no container {:?}", of.container);
            self.wrong(format!("{field}.container"), why);
        }
        if of.divisor.is_empty() || known.is_none() {
            return;
        }
        let units: &[&str] = if known == Some("cpu") {
            &["1", "1m"]
        } else {
            &UNITS
        };
        if !units.contains(&of.divisor.as_str()) {
            let why = format!("expected one of {}", units.join(", "));
            self.wrong(format!("{field}.divisor"), why);
        }
    }

    fn env_source(&mut self, field: &str, source: &api::EnvSource) {
        match &source.source {
            None => self.wrong(field, "is required: configuration or secret"),
            Some(env_source::Source::Configuration(name)) => {
                self.required(format!("{field}.configuration"), name, syntax::subdomain);
            }
            Some(env_source::Source::Secret(name)) => {
                self.required(format!("{field}.secret"), name, syntax::subdomain);
            }
        }
        self.optional(format!("{field}.prefix"), &source.prefix, syntax::variable);
    }

    fn ports(&mut self, field: &str, ports: &mut [api::ContainerPort], host_network: bool) {
        let mut names = BTreeSet::new();
        for (at, port) in ports.iter_mut().enumerate() {
            let field = format!("{field}.ports[{at}]");
            self.said(format!("{field}.port"), syntax::port(port.port));
            self.known::<api::Protocol>(format!("{field}.protocol"), port.protocol);
            if port.protocol == api::Protocol::Unspecified as i32 {
                port.protocol = api::Protocol::Tcp as i32;
            }
            if !port.name.is_empty() {
                let name = format!("{field}.name");
                self.said(&name, syntax::port_name(&port.name));
                self.unique(&mut names, name, port.name.clone());
            }
            let host = format!("{field}.host_port");
            if port.host_port != 0 {
                self.said(&host, syntax::port(port.host_port));
                if host_network && port.host_port != port.port {
                    self.wrong(host, "must be the same as port, because of host_network");
                }
            }
        }
    }

    fn mounts(&mut self, field: &str, mounts: &[api::VolumeMount], around: &Around) {
        let mut paths = BTreeSet::new();
        for (at, mount) in mounts.iter().enumerate() {
            let field = format!("{field}.volume_mounts[{at}]");
            let volume = format!("{field}.volume");
            if mount.volume.is_empty() {
                self.wrong(volume, "is required");
            } else if !around.volumes.contains(&mount.volume) {
                self.wrong(volume, format!("the pod has no volume {:?}", mount.volume));
            }
            let path = format!("{field}.path");
            if mount.path.is_empty() {
                self.wrong(path, "is required");
            } else if !mount.path.starts_with('/') {
                self.wrong(path, "must begin with a slash");
            } else {
                self.unique(&mut paths, path, mount.path.clone());
            }
            let sub_path = format!("{field}.sub_path");
            self.optional(sub_path, &mount.sub_path, syntax::descending);
        }
    }

    fn resources(&mut self, field: &str, container: &api::Container) {
        let mut read = |name: &str, all: &BTreeMap<String, String>| {
            let field = format!("{field}.{name}");
            let mut quantities = BTreeMap::new();
            for (resource, text) in all {
                let native =
                    NATIVE.contains(&resource.as_str()) || resource.starts_with(HUGE_PAGES);
                if !native && !resource.contains('/') {
                    self.wrong(
                        &field,
                        format!("{resource:?} is not a resource; expected cpu, memory, ephemeral-storage or one with a prefix"),
                    );
                    continue;
                }
                self.said(&field, syntax::qualified(resource));
                match quantity(text) {
                    Err(why) => self.wrong(format!("{field}[{resource}]"), why),
                    Ok(value) if !native && !value.is_whole() => {
                        self.wrong(format!("{field}[{resource}]"), "must be a whole number");
                    }
                    Ok(value) => {
                        quantities.insert(resource.clone(), value);
                    }
                }
            }
            quantities
        };
        let requests = read("resource_requests", &container.resource_requests);
        let limits = read("resource_limits", &container.resource_limits);
        for (resource, request) in requests {
            let field = format!("{field}.resource_requests[{resource}]");
            let shared = NATIVE.contains(&resource.as_str());
            match limits.get(&resource) {
                Some(limit) if request > *limit => self.wrong(field, "is above the limit"),
                Some(limit) if !shared && request != *limit => {
                    self.wrong(field, "must be the same as the limit");
                }
                None if !shared => self.wrong(field, "needs the same limit"),
                Some(_) | None => {}
            }
        }
    }

    /// `once`: whether one success must be enough.
    fn probe(&mut self, field: &str, probe: &api::Probe, once: bool) {
        match &probe.action {
            None => self.wrong(field, "is required: exec, http_get, tcp_socket or grpc"),
            Some(probe::Action::Exec(exec)) => {
                if exec.command.is_empty() {
                    self.wrong(format!("{field}.exec.command"), "is required");
                }
            }
            Some(probe::Action::HttpGet(get)) => {
                let port = format!("{field}.http_get.port");
                self.port_ref(&port, get.port.as_ref(), syntax::port_name);
                for name in get.headers.keys() {
                    if http::HeaderName::try_from(name).is_err() {
                        let why = format!("{name:?} is not the name of a header");
                        self.wrong(format!("{field}.http_get.headers"), why);
                    }
                }
            }
            Some(probe::Action::TcpSocket(tcp)) => {
                let port = format!("{field}.tcp_socket.port");
                self.port_ref(&port, tcp.port.as_ref(), syntax::port_name);
            }
            Some(probe::Action::Grpc(grpc)) => {
                self.said(format!("{field}.grpc.port"), syntax::port(grpc.port));
            }
        }
        self.seconds(
            format!("{field}.initial_delay"),
            probe.initial_delay.as_ref(),
            0,
        );
        self.seconds(format!("{field}.period"), probe.period.as_ref(), 1);
        self.seconds(format!("{field}.timeout"), probe.timeout.as_ref(), 1);
        let thresholds = [
            ("success_threshold", probe.success_threshold),
            ("failure_threshold", probe.failure_threshold),
        ];
        for (name, value) in thresholds {
            if value.is_some_and(|value| value == 0 || i32::try_from(value).is_err()) {
                self.wrong(format!("{field}.{name}"), "expected 1 to 2147483647");
            }
        }
        if once
            && probe
                .success_threshold
                .is_some_and(|successes| successes > 1)
        {
            self.wrong(
                format!("{field}.success_threshold"),
                "must be 1 for this probe",
            );
        }
    }

    fn container_security(&mut self, field: &str, security: &api::ContainerSecurity) {
        self.id(format!("{field}.run_as_user"), security.run_as_user);
        self.id(format!("{field}.run_as_group"), security.run_as_group);
        let capabilities = [
            ("add_capabilities", &security.add_capabilities),
            ("drop_capabilities", &security.drop_capabilities),
        ];
        for (name, capabilities) in capabilities {
            for (at, capability) in capabilities.iter().enumerate() {
                let good = |c: u8| c.is_ascii_uppercase() || c.is_ascii_digit() || c == b'_';
                if capability.is_empty() || !capability.bytes().all(good) {
                    let why =
                        format!("{capability:?} is not a capability of Linux (NET_ADMIN, ALL)");
                    self.wrong(format!("{field}.{name}[{at}]"), why);
                }
            }
        }
        if security.allow_privilege_escalation == Some(false) {
            let escalation = format!("{field}.allow_privilege_escalation");
            let admin =
                |capability: &String| matches!(capability.as_str(), "SYS_ADMIN" | "CAP_SYS_ADMIN");
            if security.privileged == Some(true) {
                self.wrong(&escalation, "cannot be false with privileged");
            }
            if security.add_capabilities.iter().any(admin) {
                self.wrong(escalation, "cannot be false with the capability SYS_ADMIN");
            }
        }
    }

    /// The id of a user or group.
    pub(super) fn id(&mut self, field: String, id: Option<i64>) {
        if let Some(id) = id
            && !(0..=MAX_ID).contains(&id)
        {
            self.wrong(field, format!("{id} is not an id; expected 0 to {MAX_ID}"));
        }
    }
}

fn pod_field(path: &str) -> Result<(), String> {
    if FIELDS.contains(&path) {
        return Ok(());
    }
    let maps = ["metadata.labels", "metadata.annotations"];
    let key = maps.into_iter().find_map(|map| {
        let rest = path.strip_prefix(map)?;
        rest.strip_prefix("['")?.strip_suffix("']")
    });
    match key {
        Some(key) => syntax::qualified(key),
        None => Err(format!(
            "{path:?} is not a field that a variable can show; expected one of {}, metadata.labels['KEY'] or \
             metadata.annotations['KEY']",
            FIELDS.join(", ")
        )),
    }
}
