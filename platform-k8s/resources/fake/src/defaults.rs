//! What an API server fills in where a pod says nothing.

use drover_proto::kubernetes::v1::{self as api, probe};
use prost_types::Duration;

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
    let host_network = spec.host_network;
    for toleration in &mut spec.tolerations {
        let equal = api::TolerationOperator::Equal as i32;
        set(&mut toleration.operator, equal);
    }
    for volume in &mut spec.volumes {
        use api::volume::Source;
        match &mut volume.source {
            Some(Source::Configuration(files) | Source::Secret(files)) => {
                files.default_mode.get_or_insert(0o644);
            }
            Some(Source::HostPath(_) | Source::EmptyDir(_) | Source::Claim(_)) | None => {}
        }
    }
    for container in spec.containers.iter_mut().chain(&mut spec.init_containers) {
        self::container(container, host_network);
    }
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
