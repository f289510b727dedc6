//! Pods.

use drover_core::Result;
use drover_proto::kubernetes::v1 as api;
use k8s_openapi::api::core::v1::{
    LocalObjectReference, Pod, PodDNSConfig, PodSecurityContext, PodSpec, SeccompProfile,
};

use super::{
    affinity::{affinity, to_affinity, to_toleration, toleration},
    all,
    container::{container, to_container},
    each, known, metadata, named, object_meta, seconds_opt, some, span,
    status::pod_status,
    volume::{to_volume, volume},
};

pub(crate) fn to_pod(from: api::Pod) -> Result<Pod> {
    Ok(Pod {
        metadata: object_meta(from.metadata),
        spec: Some(to_spec("pod.spec", from.spec.unwrap_or_default())?),
        status: None,
    })
}

pub(crate) fn pod(from: Pod) -> api::Pod {
    let status = pod_status(&from);
    api::Pod {
        metadata: Some(metadata(&from.metadata)),
        spec: from.spec.map(spec),
        status: Some(status),
    }
}

fn to_spec(field: &str, from: api::PodSpec) -> Result<PodSpec> {
    let path = |name: &str| format!("{field}.{name}");
    let containers = each(&path("containers"), from.containers, to_container)?;
    let init = each(&path("init_containers"), from.init_containers, to_container)?;
    let grace = path("termination_grace_period");
    let affinity = from.affinity;
    let secrets = from.image_pull_secrets.into_iter();
    Ok(PodSpec {
        containers,
        init_containers: some(init),
        volumes: some(each(&path("volumes"), from.volumes, to_volume)?),
        restart_policy: restart_policy(&path("restart_policy"), from.restart_policy)?,
        node_selector: some(from.node_selector),
        tolerations: some(each(&path("tolerations"), from.tolerations, to_toleration)?),
        affinity: affinity
            .map(|it| to_affinity(&path("affinity"), it))
            .transpose()?,
        service_account_name: some(from.service_account),
        automount_service_account_token: from.mount_service_account_token,
        image_pull_secrets: some(secrets.map(|name| LocalObjectReference { name }).collect()),
        termination_grace_period_seconds: seconds_opt(
            &grace,
            from.termination_grace_period.as_ref(),
        )?,
        dns_config: some(PodDNSConfig {
            nameservers: some(from.nameservers),
            options: None,
            searches: some(from.search_domains),
        }),
        dns_policy: dns_policy(&path("dns_policy"), from.dns_policy)?,
        security_context: from.security.map(to_security),
        host_network: from.host_network.then_some(true),
        hostname: some(from.hostname),
        priority_class_name: some(from.priority_class),
        node_name: some(from.node),
        ..PodSpec::default()
    })
}

fn spec(from: PodSpec) -> api::PodSpec {
    let dns = from.dns_config.unwrap_or_default();
    let containers = from.containers.into_iter();
    // Kubernetes answers an empty one where none was given.
    let context = from.security_context;
    let context = context.filter(|it| *it != PodSecurityContext::default());
    api::PodSpec {
        containers: containers.map(container).collect(),
        init_containers: all(from.init_containers, container),
        volumes: all(from.volumes, volume),
        restart_policy: restart_policy_of(from.restart_policy.as_deref()),
        node_selector: from.node_selector.unwrap_or_default(),
        tolerations: all(from.tolerations, toleration),
        affinity: from.affinity.map(affinity),
        service_account: from.service_account_name.unwrap_or_default(),
        mount_service_account_token: from.automount_service_account_token,
        image_pull_secrets: all(from.image_pull_secrets, |it| it.name),
        termination_grace_period: from.termination_grace_period_seconds.map(span),
        nameservers: dns.nameservers.unwrap_or_default(),
        search_domains: dns.searches.unwrap_or_default(),
        dns_policy: dns_policy_of(from.dns_policy.as_deref()),
        security: context.map(security),
        host_network: from.host_network.unwrap_or_default(),
        hostname: from.hostname.unwrap_or_default(),
        priority_class: from.priority_class_name.unwrap_or_default(),
        node: from.node_name.unwrap_or_default(),
    }
}

fn restart_policy(field: &str, value: i32) -> Result<Option<String>> {
    let word = match known::<api::RestartPolicy>(field, value)? {
        api::RestartPolicy::Unspecified => return Ok(None),
        api::RestartPolicy::Always => "Always",
        api::RestartPolicy::OnFailure => "OnFailure",
        api::RestartPolicy::Never => "Never",
    };
    Ok(Some(word.to_owned()))
}

fn restart_policy_of(word: Option<&str>) -> i32 {
    let all = [
        ("Always", api::RestartPolicy::Always),
        ("OnFailure", api::RestartPolicy::OnFailure),
        ("Never", api::RestartPolicy::Never),
    ];
    named(&all, word).unwrap_or_default().into()
}

fn dns_policy(field: &str, value: i32) -> Result<Option<String>> {
    let word = match known::<api::DnsPolicy>(field, value)? {
        api::DnsPolicy::Unspecified => return Ok(None),
        api::DnsPolicy::ClusterFirst => "ClusterFirst",
        api::DnsPolicy::ClusterFirstWithHostNet => "ClusterFirstWithHostNet",
        api::DnsPolicy::Default => "Default",
        api::DnsPolicy::None => "None",
    };
    Ok(Some(word.to_owned()))
}

fn dns_policy_of(word: Option<&str>) -> i32 {
    let all = [
        ("ClusterFirst", api::DnsPolicy::ClusterFirst),
        (
            "ClusterFirstWithHostNet",
            api::DnsPolicy::ClusterFirstWithHostNet,
        ),
        ("Default", api::DnsPolicy::Default),
        ("None", api::DnsPolicy::None),
    ];
    named(&all, word).unwrap_or_default().into()
}

const RUNTIME_DEFAULT: &str = "RuntimeDefault";

fn to_security(from: api::PodSecurity) -> PodSecurityContext {
    let profile = from.seccomp_runtime_default.map(|default| SeccompProfile {
        localhost_profile: None,
        type_: if default {
            RUNTIME_DEFAULT
        } else {
            "Unconfined"
        }
        .to_owned(),
    });
    PodSecurityContext {
        run_as_user: from.run_as_user,
        run_as_group: from.run_as_group,
        run_as_non_root: from.run_as_non_root,
        fs_group: from.fs_group,
        supplemental_groups: some(from.supplemental_groups),
        seccomp_profile: profile,
        ..PodSecurityContext::default()
    }
}

fn security(from: PodSecurityContext) -> api::PodSecurity {
    api::PodSecurity {
        run_as_user: from.run_as_user,
        run_as_group: from.run_as_group,
        run_as_non_root: from.run_as_non_root,
        fs_group: from.fs_group,
        supplemental_groups: from.supplemental_groups.unwrap_or_default(),
        seccomp_runtime_default: from.seccomp_profile.map(|it| it.type_ == RUNTIME_DEFAULT),
    }
}
