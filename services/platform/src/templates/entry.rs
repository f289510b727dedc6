//! Converts entries of a catalogue to what `GetPlatform` lists.

use drover_convert::value::{to_duration, to_struct};
use drover_proto::platform::v1::{
    ExecProbe, GrpcProbe, HealthPolicy, HttpProbe, Impairment, Lifecycle, LifecycleHook,
    ManagementPolicy, PhaseProbe, PortRef, SoleWriter, TcpProbe, TemplateDefaults, TemplateEntry,
    TemplateLimits, health_policy, port_ref,
};
use drover_templates::{Entry, Health, Hook, Ignored, Limits, Port, Probe};
use serde_json::{Map, Value};

pub(crate) fn entry(entry: &Entry) -> TemplateEntry {
    let matchers: Map<String, Value> = entry
        .matchers
        .iter()
        .map(|(name, matcher)| (name.clone(), matcher.to_value()))
        .collect();
    let defaults = TemplateDefaults {
        health: entry.health.as_ref().map(health),
        management_policy: match entry.management_policy {
            None => ManagementPolicy::Unspecified,
            Some(drover_templates::ManagementPolicy::OrderedReady) => {
                ManagementPolicy::OrderedReady
            }
            Some(drover_templates::ManagementPolicy::Parallel) => ManagementPolicy::Parallel,
        }
        .into(),
        lifecycle: entry.lifecycle.as_ref().map(|lifecycle| Lifecycle {
            pre_stop: lifecycle.pre_stop.as_ref().map(hook),
            post_promote: lifecycle.post_promote.as_ref().map(hook),
            sole_writer: lifecycle.sole_writer.as_ref().map(|writer| SoleWriter {
                allow: writer.allow.as_ref().map(hook),
                revoke: Some(hook(&writer.revoke)),
                standbys_attribute: writer.standbys_attribute.clone(),
            }),
        }),
    };
    TemplateEntry {
        store: entry.store.clone(),
        version_requirement: entry
            .version
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        matchers: (!matchers.is_empty()).then(|| to_struct(&matchers)),
        template: entry.template.clone(),
        addon: entry.addon,
        ports: entry.ports.clone(),
        defaults: (defaults != TemplateDefaults::default()).then_some(defaults),
        digest: entry.digest.clone(),
        limits: (entry.limits != Limits::default()).then(|| limits(&entry.limits)),
    }
}

pub(super) fn limits(limits: &Limits) -> TemplateLimits {
    TemplateLimits {
        max_size: limits.max_size,
        max_standby: limits.max_standby,
        max_size_with_standby: limits.max_size_with_standby,
        ignores_version: limits.ignores.contains(&Ignored::Version),
        ignores_node_class: limits.ignores.contains(&Ignored::NodeClass),
    }
}

fn hook(hook: &Hook) -> LifecycleHook {
    LifecycleHook {
        exec: hook.exec.clone(),
        timeout: hook.timeout.map(to_duration),
        fences: hook.fences,
    }
}

fn health(health: &Health) -> HealthPolicy {
    let port = |port: &Option<Port>| {
        port.as_ref().map(|port| PortRef {
            port: Some(match port {
                Port::Number(number) => port_ref::Port::Number(u32::from(*number)),
                Port::Name(name) => port_ref::Port::Name(name.clone()),
            }),
        })
    };
    HealthPolicy {
        probe: health.probe.as_ref().map(|probe| match probe {
            Probe::Phase => health_policy::Probe::Phase(PhaseProbe {}),
            Probe::Grpc { port: at, service } => health_policy::Probe::Grpc(GrpcProbe {
                port: port(at),
                service: service.clone(),
                ..GrpcProbe::default()
            }),
            Probe::Http {
                port: at,
                path,
                tls,
            } => health_policy::Probe::Http(HttpProbe {
                port: port(at),
                path: path.clone(),
                tls: *tls,
                ..HttpProbe::default()
            }),
            Probe::Tcp { port: at } => health_policy::Probe::Tcp(TcpProbe { port: port(at) }),
            Probe::Exec {
                command,
                impairments,
            } => health_policy::Probe::Exec(ExecProbe {
                command: command.clone(),
                impairments: impairments
                    .iter()
                    .map(|one| Impairment {
                        reason: one.reason.to_string(),
                        message: one.message.to_string(),
                    })
                    .collect(),
            }),
        }),
        interval: health.interval.map(to_duration),
        timeout: health.timeout.map(to_duration),
        failure_threshold: health.failure_threshold,
        success_threshold: health.success_threshold,
        startup_timeout: health.startup_timeout.map(to_duration),
    }
}
