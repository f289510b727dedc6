//! Pods.

use std::collections::BTreeSet;

use drover_core::Result;
use drover_proto::kubernetes::v1::{self as api, volume};

use super::{Check, container::Around, quantity, syntax};
use crate::served::Served;

/// Most DNS servers of a pod: what resolvers use.
const MAX_NAMESERVERS: usize = 3;
/// Most search domains of a pod, and their total length, as in Kubernetes.
const MAX_SEARCH_DOMAINS: (usize, usize) = (32, 2048);
/// Largest mode of a file.
const MAX_MODE: u32 = 0o777;

/// A pod to create.
pub(crate) fn create_pod(request: api::CreatePodRequest, served: &Served) -> Result<api::Pod> {
    let mut check = Check::default();
    let mut pod = request.pod.unwrap_or_default();
    pod.status = None;
    let metadata = &mut pod.metadata;
    check.metadata("pod.metadata", metadata, syntax::subdomain, served, false);
    match &mut pod.spec {
        None => check.wrong("pod.spec", "is required"),
        Some(spec) => check.spec("pod.spec", spec),
    }
    check.finish()?;
    Ok(pod)
}

impl Check {
    fn spec(&mut self, field: &str, spec: &mut api::PodSpec) {
        if spec.containers.is_empty() {
            self.wrong(format!("{field}.containers"), "is required: at least one");
        }
        let mut around = Around {
            volumes: BTreeSet::new(),
            containers: BTreeSet::new(),
            host_network: spec.host_network,
        };
        for (at, volume) in spec.volumes.iter().enumerate() {
            let field = format!("{field}.volumes[{at}]");
            self.volume(&field, volume);
            let name = format!("{field}.name");
            self.unique(&mut around.volumes, name, volume.name.clone());
        }
        let kinds = [
            ("containers", &spec.containers),
            ("init_containers", &spec.init_containers),
        ];
        for (kind, containers) in kinds {
            for (at, container) in containers.iter().enumerate() {
                let name = format!("{field}.{kind}[{at}].name");
                self.unique(&mut around.containers, name, container.name.clone());
            }
        }
        self.host_ports(field, spec);
        let kinds = [
            ("containers", &mut spec.containers, false),
            ("init_containers", &mut spec.init_containers, true),
        ];
        for (kind, containers, init) in kinds {
            for (at, container) in containers.iter_mut().enumerate() {
                let field = format!("{field}.{kind}[{at}]");
                self.container(&field, container, &around);
                if init {
                    self.no_probes(&field, container);
                }
            }
        }
        self.placement(field, spec);
        self.dns(field, spec);
        self.pod_security(field, spec);
    }

    /// Each port of the node can lead to one container only.
    fn host_ports(&mut self, field: &str, spec: &api::PodSpec) {
        let mut taken = BTreeSet::new();
        for (at, container) in spec.containers.iter().enumerate() {
            for (port_at, port) in container.ports.iter().enumerate() {
                if port.host_port != 0 {
                    let field = format!("{field}.containers[{at}].ports[{port_at}].host_port");
                    let protocol = port.protocol.max(api::Protocol::Tcp as i32);
                    self.unique(&mut taken, field, (protocol, port.host_port));
                }
            }
        }
    }

    fn no_probes(&mut self, field: &str, container: &api::Container) {
        let probes = [
            ("liveness_probe", &container.liveness_probe),
            ("readiness_probe", &container.readiness_probe),
            ("startup_probe", &container.startup_probe),
        ];
        for (name, probe) in probes {
            if probe.is_some() {
                let why = "an init container has none: it must end before the others begin";
                self.wrong(format!("{field}.{name}"), why);
            }
        }
    }

    fn placement(&mut self, field: &str, spec: &mut api::PodSpec) {
        self.known::<api::RestartPolicy>(format!("{field}.restart_policy"), spec.restart_policy);
        self.node_selector(&format!("{field}.node_selector"), &spec.node_selector);
        for (at, toleration) in spec.tolerations.iter().enumerate() {
            self.toleration(&format!("{field}.tolerations[{at}]"), toleration);
        }
        if let Some(affinity) = &mut spec.affinity {
            self.affinity(&format!("{field}.affinity"), affinity);
        }
        let names = [
            ("service_account", &spec.service_account),
            ("priority_class", &spec.priority_class),
            ("node", &spec.node),
        ];
        for (name, value) in names {
            self.optional(format!("{field}.{name}"), value, syntax::subdomain);
        }
        for (at, secret) in spec.image_pull_secrets.iter().enumerate() {
            let field = format!("{field}.image_pull_secrets[{at}]");
            self.required(field, secret, syntax::subdomain);
        }
        let grace = format!("{field}.termination_grace_period");
        self.seconds(grace, spec.termination_grace_period.as_ref(), 0);
    }

    fn dns(&mut self, field: &str, spec: &api::PodSpec) {
        self.known::<api::DnsPolicy>(format!("{field}.dns_policy"), spec.dns_policy);
        let nameservers = format!("{field}.nameservers");
        if spec.nameservers.len() > MAX_NAMESERVERS {
            let why = format!(
                "has {}; at most {MAX_NAMESERVERS} are allowed",
                spec.nameservers.len()
            );
            self.wrong(&nameservers, why);
        }
        for (at, server) in spec.nameservers.iter().enumerate() {
            self.said(format!("{nameservers}[{at}]"), syntax::ip(server).map(drop));
        }
        if spec.nameservers.is_empty() && spec.dns_policy() == api::DnsPolicy::None {
            self.wrong(
                nameservers,
                "at least one is required with the DNS policy NONE",
            );
        }
        let domains = format!("{field}.search_domains");
        let (most, longest) = MAX_SEARCH_DOMAINS;
        let size: usize = spec.search_domains.iter().map(|one| one.len() + 1).sum();
        if spec.search_domains.len() > most || size > longest + 1 {
            let why = format!("at most {most} are allowed, of {longest} characters together");
            self.wrong(&domains, why);
        }
        for (at, domain) in spec.search_domains.iter().enumerate() {
            self.required(format!("{domains}[{at}]"), domain, syntax::search_domain);
        }
        self.optional(format!("{field}.hostname"), &spec.hostname, syntax::label);
    }

    fn pod_security(&mut self, field: &str, spec: &api::PodSpec) {
        let Some(security) = &spec.security else {
            return;
        };
        let field = format!("{field}.security");
        self.id(format!("{field}.run_as_user"), security.run_as_user);
        self.id(format!("{field}.run_as_group"), security.run_as_group);
        self.id(format!("{field}.fs_group"), security.fs_group);
        for (at, group) in security.supplemental_groups.iter().enumerate() {
            self.id(format!("{field}.supplemental_groups[{at}]"), Some(*group));
        }
    }

    fn volume(&mut self, field: &str, volume: &api::Volume) {
        self.required(format!("{field}.name"), &volume.name, syntax::label);
        match &volume.source {
            None => self.wrong(
                field,
                "is required: host_path, configuration, secret, empty_dir or claim",
            ),
            Some(volume::Source::HostPath(host)) => {
                let path = format!("{field}.host_path.path");
                self.required(path, &host.path, syntax::no_parent);
                self.known::<api::HostPathType>(format!("{field}.host_path.type"), host.r#type);
            }
            Some(volume::Source::Configuration(files)) => {
                self.files(&format!("{field}.configuration"), files);
            }
            Some(volume::Source::Secret(files)) => self.files(&format!("{field}.secret"), files),
            Some(volume::Source::EmptyDir(dir)) => {
                let limit = format!("{field}.empty_dir.size_limit");
                if !dir.size_limit.is_empty() {
                    self.said(limit, quantity(&dir.size_limit).map(drop));
                }
            }
            Some(volume::Source::Claim(claim)) => {
                let name = format!("{field}.claim.name");
                self.required(name, &claim.name, syntax::subdomain);
            }
        }
    }

    fn files(&mut self, field: &str, files: &api::FilesVolume) {
        self.required(format!("{field}.name"), &files.name, syntax::subdomain);
        self.mode(format!("{field}.default_mode"), files.default_mode);
        for (at, item) in files.items.iter().enumerate() {
            let field = format!("{field}.items[{at}]");
            let key = format!("{field}.key");
            self.required(key, &item.key, syntax::configuration_key);
            self.required(format!("{field}.path"), &item.path, syntax::descending);
            self.mode(format!("{field}.mode"), item.mode);
        }
    }

    fn mode(&mut self, field: String, mode: Option<u32>) {
        if let Some(mode) = mode
            && mode > MAX_MODE
        {
            self.wrong(
                field,
                format!("{mode} is not a mode; expected 0 to {MAX_MODE} (octal 0777)"),
            );
        }
    }
}
