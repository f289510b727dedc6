//! Containers: what they run, their environment, ports and checks.

use drover_core::{Error, Result};
use drover_proto::kubernetes::v1::{self as api, env_source, env_var, probe::Action};
use k8s_openapi::{
    api::core::v1::{
        Capabilities, ConfigMapEnvSource, ConfigMapKeySelector, Container, ContainerPort,
        EnvFromSource, EnvVar, EnvVarSource, ExecAction, GRPCAction, HTTPGetAction, HTTPHeader,
        ObjectFieldSelector, Probe, ResourceFieldSelector, ResourceRequirements, SecretEnvSource,
        SecretKeySelector, SecurityContext, TCPSocketAction, VolumeMount,
    },
    apimachinery::pkg::api::resource::Quantity,
};

use super::{
    all, each, known, named, number, port, port_number, port_ref, port_ref_of, protocol,
    protocol_of, quantities, quantities_of, seconds_opt, some, span,
};

pub(super) fn to_container(field: &str, from: api::Container) -> Result<Container> {
    let path = |name: &str| format!("{field}.{name}");
    let probe = |name: &str, from: Option<api::Probe>| {
        from.map(|from| to_probe(&path(name), from)).transpose()
    };
    Ok(Container {
        name: from.name,
        image: some(from.image),
        command: some(from.command),
        args: some(from.args),
        env: some(from.env.into_iter().map(to_env).collect()),
        env_from: some(each(&path("env_from"), from.env_from, to_env_from)?),
        ports: some(each(&path("ports"), from.ports, to_port)?),
        volume_mounts: some(from.volume_mounts.into_iter().map(to_mount).collect()),
        resources: some(ResourceRequirements {
            claims: None,
            requests: quantities(from.resource_requests),
            limits: quantities(from.resource_limits),
        }),
        liveness_probe: probe("liveness_probe", from.liveness_probe)?,
        readiness_probe: probe("readiness_probe", from.readiness_probe)?,
        startup_probe: probe("startup_probe", from.startup_probe)?,
        security_context: from.security.map(to_security),
        image_pull_policy: pull_policy(&path("image_pull_policy"), from.image_pull_policy)?,
        working_dir: some(from.working_dir),
        ..Container::default()
    })
}

pub(super) fn container(from: Container) -> api::Container {
    let resources = from.resources.unwrap_or_default();
    api::Container {
        name: from.name,
        image: from.image.unwrap_or_default(),
        command: from.command.unwrap_or_default(),
        args: from.args.unwrap_or_default(),
        env: all(from.env, env),
        env_from: all(from.env_from, env_from),
        ports: all(from.ports, container_port),
        volume_mounts: all(from.volume_mounts, mount),
        resource_requests: quantities_of(resources.requests),
        resource_limits: quantities_of(resources.limits),
        liveness_probe: from.liveness_probe.map(probe),
        readiness_probe: from.readiness_probe.map(probe),
        startup_probe: from.startup_probe.map(probe),
        security: from.security_context.map(security),
        image_pull_policy: pull_policy_of(from.image_pull_policy.as_deref()),
        working_dir: from.working_dir.unwrap_or_default(),
    }
}

fn pull_policy(field: &str, value: i32) -> Result<Option<String>> {
    let word = match known::<api::ImagePullPolicy>(field, value)? {
        api::ImagePullPolicy::Unspecified => return Ok(None),
        api::ImagePullPolicy::Always => "Always",
        api::ImagePullPolicy::IfNotPresent => "IfNotPresent",
        api::ImagePullPolicy::Never => "Never",
    };
    Ok(Some(word.to_owned()))
}

fn pull_policy_of(word: Option<&str>) -> i32 {
    let all = [
        ("Always", api::ImagePullPolicy::Always),
        ("IfNotPresent", api::ImagePullPolicy::IfNotPresent),
        ("Never", api::ImagePullPolicy::Never),
    ];
    named(&all, word).unwrap_or_default().into()
}

fn to_env(from: api::EnvVar) -> EnvVar {
    let mut value = None;
    let mut source = EnvVarSource::default();
    match from.source {
        None => {}
        Some(env_var::Source::Value(text)) => value = Some(text),
        Some(env_var::Source::Field(path)) => {
            source.field_ref = Some(ObjectFieldSelector {
                api_version: None,
                field_path: path,
            });
        }
        Some(env_var::Source::Resource(it)) => {
            source.resource_field_ref = Some(ResourceFieldSelector {
                container_name: some(it.container),
                divisor: some(it.divisor).map(Quantity),
                resource: it.resource,
            });
        }
        Some(env_var::Source::Configuration(it)) => {
            source.config_map_key_ref = Some(ConfigMapKeySelector {
                name: it.name,
                key: it.key,
                optional: it.optional.then_some(true),
            });
        }
        Some(env_var::Source::Secret(it)) => {
            source.secret_key_ref = Some(SecretKeySelector {
                name: it.name,
                key: it.key,
                optional: it.optional.then_some(true),
            });
        }
    }
    EnvVar {
        name: from.name,
        value,
        value_from: some(source),
    }
}

fn env(from: EnvVar) -> api::EnvVar {
    let of = from.value_from.unwrap_or_default();
    let source = if let Some(it) = of.field_ref {
        Some(env_var::Source::Field(it.field_path))
    } else if let Some(it) = of.resource_field_ref {
        // Kubernetes answers the divisor that it was not given as 0.
        let divisor = it.divisor.map(|it| it.0).filter(|it| it != "0");
        Some(env_var::Source::Resource(api::ResourceRef {
            resource: it.resource,
            container: it.container_name.unwrap_or_default(),
            divisor: divisor.unwrap_or_default(),
        }))
    } else if let Some(it) = of.config_map_key_ref {
        Some(env_var::Source::Configuration(api::KeyRef {
            name: it.name,
            key: it.key,
            optional: it.optional.unwrap_or_default(),
        }))
    } else if let Some(it) = of.secret_key_ref {
        Some(env_var::Source::Secret(api::KeyRef {
            name: it.name,
            key: it.key,
            optional: it.optional.unwrap_or_default(),
        }))
    } else {
        from.value.map(env_var::Source::Value)
    };
    api::EnvVar {
        name: from.name,
        source,
    }
}

fn to_env_from(field: &str, from: api::EnvSource) -> Result<EnvFromSource> {
    let mut source = EnvFromSource {
        prefix: some(from.prefix),
        ..EnvFromSource::default()
    };
    let optional = from.optional.then_some(true);
    match from.source {
        None => {
            return Err(Error::invalid(
                field,
                "is required: configuration or secret",
            ));
        }
        Some(env_source::Source::Configuration(name)) => {
            source.config_map_ref = Some(ConfigMapEnvSource { name, optional });
        }
        Some(env_source::Source::Secret(name)) => {
            source.secret_ref = Some(SecretEnvSource { name, optional });
        }
    }
    Ok(source)
}

fn env_from(from: EnvFromSource) -> api::EnvSource {
    let (source, optional) = if let Some(it) = from.config_map_ref {
        (
            Some(env_source::Source::Configuration(it.name)),
            it.optional,
        )
    } else if let Some(it) = from.secret_ref {
        (Some(env_source::Source::Secret(it.name)), it.optional)
    } else {
        (None, None)
    };
    api::EnvSource {
        source,
        prefix: from.prefix.unwrap_or_default(),
        optional: optional.unwrap_or_default(),
    }
}

fn to_port(field: &str, from: api::ContainerPort) -> Result<ContainerPort> {
    let host_port = match from.host_port {
        0 => None,
        number => Some(port(&format!("{field}.host_port"), number)?),
    };
    Ok(ContainerPort {
        container_port: port(&format!("{field}.port"), from.port)?,
        host_ip: None,
        host_port,
        name: some(from.name),
        protocol: protocol(&format!("{field}.protocol"), from.protocol)?,
    })
}

fn container_port(from: ContainerPort) -> api::ContainerPort {
    api::ContainerPort {
        name: from.name.unwrap_or_default(),
        port: port_number(from.container_port),
        protocol: protocol_of(from.protocol.as_deref()),
        host_port: port_number(from.host_port.unwrap_or_default()),
    }
}

fn to_mount(from: api::VolumeMount) -> VolumeMount {
    VolumeMount {
        name: from.volume,
        mount_path: from.path,
        sub_path: some(from.sub_path),
        read_only: from.read_only.then_some(true),
        ..VolumeMount::default()
    }
}

fn mount(from: VolumeMount) -> api::VolumeMount {
    api::VolumeMount {
        volume: from.name,
        path: from.mount_path,
        sub_path: from.sub_path.unwrap_or_default(),
        read_only: from.read_only.unwrap_or_default(),
    }
}

fn to_security(from: api::ContainerSecurity) -> SecurityContext {
    SecurityContext {
        privileged: from.privileged,
        allow_privilege_escalation: from.allow_privilege_escalation,
        run_as_user: from.run_as_user,
        run_as_group: from.run_as_group,
        run_as_non_root: from.run_as_non_root,
        read_only_root_filesystem: from.read_only_root_filesystem,
        capabilities: some(Capabilities {
            add: some(from.add_capabilities),
            drop: some(from.drop_capabilities),
        }),
        ..SecurityContext::default()
    }
}

fn security(from: SecurityContext) -> api::ContainerSecurity {
    let capabilities = from.capabilities.unwrap_or_default();
    api::ContainerSecurity {
        privileged: from.privileged,
        allow_privilege_escalation: from.allow_privilege_escalation,
        run_as_user: from.run_as_user,
        run_as_group: from.run_as_group,
        run_as_non_root: from.run_as_non_root,
        read_only_root_filesystem: from.read_only_root_filesystem,
        add_capabilities: capabilities.add.unwrap_or_default(),
        drop_capabilities: capabilities.drop.unwrap_or_default(),
    }
}

fn to_probe(field: &str, from: api::Probe) -> Result<Probe> {
    let path = |name: &str| format!("{field}.{name}");
    let count =
        |name: &str, value: Option<u32>| value.map(|value| number(&path(name), value)).transpose();
    let mut probe = Probe {
        initial_delay_seconds: seconds_opt(&path("initial_delay"), from.initial_delay.as_ref())?,
        period_seconds: seconds_opt(&path("period"), from.period.as_ref())?,
        timeout_seconds: seconds_opt(&path("timeout"), from.timeout.as_ref())?,
        success_threshold: count("success_threshold", from.success_threshold)?,
        failure_threshold: count("failure_threshold", from.failure_threshold)?,
        ..Probe::default()
    };
    match from.action {
        None => {
            let why = "is required: exec, http_get, tcp_socket or grpc";
            return Err(Error::invalid(field, why));
        }
        Some(Action::Exec(it)) => {
            probe.exec = Some(ExecAction {
                command: some(it.command),
            });
        }
        Some(Action::HttpGet(it)) => {
            let headers = it.headers.into_iter();
            let headers = headers.map(|(name, value)| HTTPHeader { name, value });
            probe.http_get = Some(HTTPGetAction {
                host: None,
                http_headers: some(headers.collect()),
                path: some(it.path),
                port: port_ref(&path("http_get.port"), it.port)?,
                scheme: it.https.then(|| "HTTPS".to_owned()),
            });
        }
        Some(Action::TcpSocket(it)) => {
            probe.tcp_socket = Some(TCPSocketAction {
                host: None,
                port: port_ref(&path("tcp_socket.port"), it.port)?,
            });
        }
        Some(Action::Grpc(it)) => {
            probe.grpc = Some(GRPCAction {
                port: port(&path("grpc.port"), it.port)?,
                service: some(it.service),
            });
        }
    }
    Ok(probe)
}

fn probe(from: Probe) -> api::Probe {
    let action = if let Some(it) = from.exec {
        Some(Action::Exec(api::ExecAction {
            command: it.command.unwrap_or_default(),
        }))
    } else if let Some(it) = from.http_get {
        Some(Action::HttpGet(api::HttpGetAction {
            path: it.path.unwrap_or_default(),
            port: Some(port_ref_of(it.port)),
            https: it.scheme.as_deref() == Some("HTTPS"),
            headers: all(it.http_headers, |it| (it.name, it.value))
                .into_iter()
                .collect(),
        }))
    } else if let Some(it) = from.tcp_socket {
        Some(Action::TcpSocket(api::TcpSocketAction {
            port: Some(port_ref_of(it.port)),
        }))
    } else {
        from.grpc.map(|it| {
            Action::Grpc(api::GrpcAction {
                port: port_number(it.port),
                service: it.service.unwrap_or_default(),
            })
        })
    };
    let count = |it: Option<i32>| it.and_then(|it| u32::try_from(it).ok());
    api::Probe {
        action,
        initial_delay: from.initial_delay_seconds.map(span),
        period: from.period_seconds.map(span),
        timeout: from.timeout_seconds.map(span),
        success_threshold: count(from.success_threshold),
        failure_threshold: count(from.failure_threshold),
    }
}
