//! What pods may be: the Pod Security Standards
//! (<https://kubernetes.io/docs/concepts/security/pod-security-standards/>), as far as a pod of this API can break them.

use std::collections::BTreeMap;

use drover_core::{Error, Result, error::Violation};
use drover_proto::kubernetes::v1::{self as api, volume};
use serde::{Deserialize, Serialize};

/// A level of the Pod Security Standards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PodPolicy {
    /// Nothing is refused.
    Privileged,
    /// Refuses what is known to lead to more rights on the node.
    #[default]
    Baseline,
    /// Refuses what is not needed by a hardened pod.
    Restricted,
}

/// The level of each namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PodPolicies {
    /// Level of namespaces that have none of their own.
    pub default: PodPolicy,
    /// Levels by namespace.
    pub namespaces: BTreeMap<String, PodPolicy>,
}

/// Capabilities that the baseline level lets a container add.
const BASELINE: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
/// The capability that the restricted level lets a container add.
const RESTRICTED: [&str; 1] = ["NET_BIND_SERVICE"];
/// Annotations that choose a profile of AppArmor for a container.
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
/// Annotations that chose a profile of seccomp before there was a field.
const SECCOMP: [&str; 2] = [
    "seccomp.security.alpha.kubernetes.io/pod",
    "container.seccomp.security.alpha.kubernetes.io/",
];

/// Annotations by which controllers take configuration of theirs as it stands (ingress-nginx and HAProxy end theirs in
/// `-snippet`, NGINX in `-snippets`): who may write it reads what the controller reads, secrets of all namespaces among it.
const SNIPPETS: [&str; 2] = ["-snippet", "-snippets"];
/// The same of HAProxy Ingress, which has one annotation for each section.
const SECTIONS: [&str; 2] = [
    "haproxy-ingress.github.io/config-",
    "ingress.kubernetes.io/config-",
];

impl PodPolicies {
    /// The level of a namespace.
    #[must_use]
    pub fn of(&self, namespace: &str) -> PodPolicy {
        let own = self.namespaces.get(namespace);
        own.copied().unwrap_or(self.default)
    }

    /// Refuses a pod that is beyond the level of its namespace.
    ///
    /// # Errors
    /// `Invalid` with the fields.
    pub fn check(&self, pod: &api::Pod) -> Result<()> {
        let metadata = pod.metadata.as_ref();
        let level = self.of(metadata.map_or("", |metadata| &metadata.namespace));
        let (Some(spec), true) = (&pod.spec, level > PodPolicy::Privileged) else {
            return Ok(());
        };
        let mut judge = Judge {
            level,
            violations: Vec::new(),
        };
        if let Some(metadata) = metadata {
            judge.annotations(metadata);
        }
        judge.pod(spec);
        let kinds = [
            ("containers", &spec.containers),
            ("init_containers", &spec.init_containers),
        ];
        for (kind, containers) in kinds {
            for (at, container) in containers.iter().enumerate() {
                let field = format!("pod.spec.{kind}[{at}]");
                judge.container(&field, container, spec.security.as_ref());
            }
        }
        judge.finish()
    }
}

impl PodPolicies {
    /// Refuses an ingress whose annotations are beyond the level of its namespace.
    ///
    /// # Errors
    /// `Invalid` with the fields.
    pub fn check_ingress(&self, ingress: &api::Ingress) -> Result<()> {
        let metadata = ingress.metadata.clone().unwrap_or_default();
        let level = self.of(&metadata.namespace);
        if level == PodPolicy::Privileged {
            return Ok(());
        }
        let mut judge = Judge {
            level,
            violations: Vec::new(),
        };
        for key in metadata.annotations.keys() {
            let snippet = SNIPPETS.iter().any(|end| key.ends_with(end));
            let section = SECTIONS.iter().any(|begin| key.starts_with(begin));
            if snippet || section {
                let field = format!("ingress.metadata.annotations[{key}]");
                judge.refuse(field, "configuration of a controller is not allowed");
            }
        }
        judge.finish()
    }
}

struct Judge {
    level: PodPolicy,
    violations: Vec<Violation>,
}

impl Judge {
    fn finish(self) -> Result<()> {
        if self.violations.is_empty() {
            return Ok(());
        }
        Err(Error::violations(self.violations))
    }

    fn restricted(&self) -> bool {
        self.level == PodPolicy::Restricted
    }

    fn refuse(&mut self, field: impl Into<String>, why: &str) {
        let level = if self.restricted() {
            "restricted"
        } else {
            "baseline"
        };
        self.violations.push(Violation {
            field: field.into(),
            description: format!("{why} by the pod policy of the namespace ({level})"),
        });
    }

    fn annotations(&mut self, metadata: &api::Metadata) {
        for (key, value) in &metadata.annotations {
            let profile = key.starts_with(APP_ARMOR)
                && value != "runtime/default"
                && !value.starts_with("localhost/")
                && !value.is_empty();
            let unconfined =
                SECCOMP.iter().any(|prefix| key.starts_with(prefix)) && value == "unconfined";
            if profile || unconfined {
                let field = format!("pod.metadata.annotations[{key}]");
                self.refuse(field, "this profile is not allowed");
            }
        }
    }

    fn pod(&mut self, spec: &api::PodSpec) {
        if spec.host_network {
            self.refuse("pod.spec.host_network", "is not allowed");
        }
        for (at, volume) in spec.volumes.iter().enumerate() {
            if matches!(volume.source, Some(volume::Source::HostPath(_))) {
                let field = format!("pod.spec.volumes[{at}].host_path");
                self.refuse(field, "is not allowed");
            }
        }
        let security = spec.security.clone().unwrap_or_default();
        let seccomp = "pod.spec.security.seccomp_runtime_default";
        match security.seccomp_runtime_default {
            Some(true) => {}
            Some(false) => self.refuse(seccomp, "false is not allowed"),
            None if self.restricted() => self.refuse(seccomp, "true is required"),
            None => {}
        }
        if !self.restricted() {
            return;
        }
        if security.run_as_user == Some(0) {
            self.refuse("pod.spec.security.run_as_user", "0 (root) is not allowed");
        }
        if security.run_as_non_root == Some(false) {
            let field = "pod.spec.security.run_as_non_root";
            self.refuse(field, "false is not allowed");
        }
    }

    fn container(
        &mut self,
        field: &str,
        container: &api::Container,
        pod: Option<&api::PodSecurity>,
    ) {
        for (at, port) in container.ports.iter().enumerate() {
            if port.host_port != 0 {
                self.refuse(format!("{field}.ports[{at}].host_port"), "is not allowed");
            }
        }
        let security = container.security.clone().unwrap_or_default();
        let field = format!("{field}.security");
        if security.privileged == Some(true) {
            self.refuse(format!("{field}.privileged"), "is not allowed");
        }
        let allowed: &[&str] = if self.restricted() {
            &RESTRICTED
        } else {
            &BASELINE
        };
        for (at, capability) in security.add_capabilities.iter().enumerate() {
            let name = capability.strip_prefix("CAP_").unwrap_or(capability);
            if !allowed.contains(&name) {
                let field = format!("{field}.add_capabilities[{at}]");
                self.refuse(field, &format!("{capability} is not allowed"));
            }
        }
        if self.restricted() {
            self.hardened(&field, &security, pod);
        }
    }

    fn hardened(
        &mut self,
        field: &str,
        security: &api::ContainerSecurity,
        pod: Option<&api::PodSecurity>,
    ) {
        if security.allow_privilege_escalation != Some(false) {
            let field = format!("{field}.allow_privilege_escalation");
            self.refuse(field, "false is required");
        }
        let all = |capability: &String| capability == "ALL";
        if !security.drop_capabilities.iter().any(all) {
            self.refuse(format!("{field}.drop_capabilities"), "ALL is required");
        }
        let non_root = security
            .run_as_non_root
            .or_else(|| pod.and_then(|pod| pod.run_as_non_root));
        if non_root != Some(true) {
            let field = format!("{field}.run_as_non_root");
            self.refuse(field, "true is required, here or in pod.spec.security");
        }
        if security.run_as_user == Some(0) {
            self.refuse(format!("{field}.run_as_user"), "0 (root) is not allowed");
        }
    }
}

#[cfg(test)]
mod tests;
