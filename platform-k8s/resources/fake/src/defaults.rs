//! What an API server fills in where a pod says nothing.

use drover_proto::{
    common::v1::{LabelOperator, LabelRequirement},
    kubernetes::v1::{self as api, TaintEffect, env_var, probe},
};
use prost_types::Duration;

use crate::quantity::canonical;

/// Taints of nodes that do not answer, and how many seconds pods stay there.
const LOST: [&str; 2] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];
const LOST_FOR: i64 = 300;

/// Time that containers get to stop by themselves.
pub(crate) const GRACE: i64 = 30;

fn seconds(seconds: i64) -> Duration {
    Duration { seconds, nanos: 0 }
}

fn set(value: &mut i32, default: i32) {
    if *value == 0 {
        *value = default;
    }
}

pub(crate) fn pod(spec: &mut api::PodSpec) {
    set(&mut spec.restart_policy, api::RestartPolicy::Always as i32);
    set(&mut spec.dns_policy, api::DnsPolicy::ClusterFirst as i32);
    spec.termination_grace_period.get_or_insert(seconds(GRACE));
    if spec.service_account.is_empty() {
        "default".clone_into(&mut spec.service_account);
    }
    // One that says nothing is like none.
    let nothing = api::PodSecurity::default();
    spec.security.take_if(|security| *security == nothing);
    let host_network = spec.host_network;
    // Of the admission that lets pods leave a lost node.
    for key in LOST {
        let tolerates = |it: &api::Toleration| {
            let all = it.effect() == TaintEffect::Unspecified;
            (it.key.is_empty() || it.key == key) && (all || it.effect() == TaintEffect::NoExecute)
        };
        if !spec.tolerations.iter().any(tolerates) {
            spec.tolerations.push(api::Toleration {
                key: key.to_owned(),
                operator: api::TolerationOperator::Exists as i32,
                effect: TaintEffect::NoExecute as i32,
                toleration_period: Some(seconds(LOST_FOR)),
                ..api::Toleration::default()
            });
        }
    }
    if let Some(affinity) = &mut spec.affinity {
        let terms = affinity.node_required.iter_mut();
        for term in terms.chain(&mut affinity.node_preferred) {
            node_term(term);
        }
    }
    for volume in &mut spec.volumes {
        use api::volume::Source;
        match &mut volume.source {
            Some(Source::Configuration(files) | Source::Secret(files)) => {
                files.default_mode.get_or_insert(0o644);
            }
            Some(Source::EmptyDir(directory)) => {
                directory.size_limit = canonical(&directory.size_limit);
            }
            Some(Source::HostPath(_) | Source::Claim(_)) | None => {}
        }
    }
    for container in spec.containers.iter_mut().chain(&mut spec.init_containers) {
        self::container(container, host_network);
    }
}

/// Of nodes, Kubernetes knows requirements only.
fn node_term(term: &mut api::NodeTerm) {
    let selector = term.selector.get_or_insert_default();
    let labels = std::mem::take(&mut selector.match_labels).into_iter();
    let labels = labels.map(|(key, value)| LabelRequirement {
        key,
        operator: LabelOperator::In as i32,
        values: vec![value],
    });
    let others = std::mem::take(&mut selector.match_expressions);
    selector.match_expressions = labels.chain(others).collect();
}

fn container(container: &mut api::Container, host_network: bool) {
    let tag = container.image.rsplit('/').next().unwrap_or_default();
    let latest = !container.image.contains('@') && (tag.ends_with(":latest") || !tag.contains(':'));
    let policy = if latest {
        api::ImagePullPolicy::Always
    } else {
        api::ImagePullPolicy::IfNotPresent
    };
    set(&mut container.image_pull_policy, policy as i32);
    for port in &mut container.ports {
        set(&mut port.protocol, api::Protocol::Tcp as i32);
        if host_network && port.host_port == 0 {
            port.host_port = port.port;
        }
    }
    for quantity in container
        .resource_requests
        .values_mut()
        .chain(container.resource_limits.values_mut())
    {
        *quantity = canonical(quantity);
    }
    for variable in &mut container.env {
        match &mut variable.source {
            Some(env_var::Source::Value(value)) if value.is_empty() => variable.source = None,
            Some(env_var::Source::Resource(of)) => of.divisor = canonical(&of.divisor),
            Some(
                env_var::Source::Value(_)
                | env_var::Source::Field(_)
                | env_var::Source::Configuration(_)
                | env_var::Source::Secret(_),
            )
            | None => {}
        }
    }
    for (resource, limit) in &container.resource_limits {
        let requests = &mut container.resource_requests;
        requests
            .entry(resource.clone())
            .or_insert_with(|| limit.clone());
    }
    let probes = [
        &mut container.liveness_probe,
        &mut container.readiness_probe,
        &mut container.startup_probe,
    ];
    for probe in probes.into_iter().flatten() {
        probe.initial_delay = probe.initial_delay.filter(|it| it.seconds != 0);
        probe.period.get_or_insert(seconds(10));
        probe.timeout.get_or_insert(seconds(1));
        probe.success_threshold.get_or_insert(1);
        probe.failure_threshold.get_or_insert(3);
        if let Some(probe::Action::HttpGet(get)) = &mut probe.action
            && get.path.is_empty()
        {
            "/".clone_into(&mut get.path);
        }
    }
}
