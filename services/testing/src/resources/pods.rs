//! Pods as objects.

use drover_core::Reason;
use drover_proto::kubernetes::v1::{self as api, env_var, volume};

use super::{
    Subject,
    fixture::{assert_reason, done, labels, port, seconds, spec},
};

fn name(pod: &api::Pod) -> String {
    pod.metadata.clone().unwrap().name
}

pub(super) async fn a_pod_is_answered_as_it_was_created(subject: &Subject) {
    let wanted = subject.pod();
    let made = subject.create_pod(wanted.clone()).await.unwrap();
    let metadata = made.metadata.clone().unwrap();
    assert_eq!(metadata.namespace, subject.namespace);
    assert!(!metadata.uid.is_empty() && !metadata.revision.is_empty());
    assert!(metadata.create_time.is_some() && metadata.delete_time.is_none());
    assert_eq!(made.status.unwrap().phase(), api::PodPhase::Pending);
    let found = subject.get_pod(&name(&wanted)).await.unwrap();
    assert_eq!(found.metadata.unwrap().uid, metadata.uid);
    subject.remove_pod(&name(&wanted)).await;
}

pub(super) async fn a_pod_keeps_everything_that_was_asked_for(subject: &Subject) {
    let mut wanted = subject.pod();
    let metadata = wanted.metadata.as_mut().unwrap();
    metadata.labels = labels(&[("app", "web"), ("example.com/tier", "front")]);
    metadata.annotations = labels(&[("note", "any text: ü")]);
    let it = spec(&mut wanted);
    let mut first = it.containers[0].clone();
    first.name = "first".into();
    first.command = vec!["true".into()];
    it.init_containers = vec![first];
    it.volumes = vec![api::Volume {
        name: "data".into(),
        source: Some(volume::Source::EmptyDir(api::EmptyDirVolume {
            memory: true,
            size_limit: "16Mi".into(),
        })),
    }];
    it.nameservers = vec!["192.0.2.53".into()];
    it.search_domains = vec!["example.com".into()];
    it.node_selector = labels(&[("kubernetes.io/os", "plan9")]);
    it.tolerations = vec![api::Toleration {
        key: "gpu".into(),
        operator: api::TolerationOperator::Exists as i32,
        effect: api::TaintEffect::NoExecute as i32,
        toleration_period: Some(seconds(60)),
        ..Default::default()
    }];
    it.termination_grace_period = Some(seconds(120));
    it.security = Some(api::PodSecurity {
        run_as_user: Some(1000),
        fs_group: Some(2000),
        ..Default::default()
    });
    let main = &mut it.containers[0];
    main.args = vec!["x".into()];
    main.working_dir = "/tmp".into();
    main.env = vec![
        api::EnvVar {
            name: "PLAIN".into(),
            source: Some(env_var::Source::Value("a b".into())),
        },
        api::EnvVar {
            name: "IP".into(),
            source: Some(env_var::Source::Field("status.podIP".into())),
        },
    ];
    main.ports = vec![api::ContainerPort {
        name: "dns".into(),
        port: 53,
        protocol: api::Protocol::Udp as i32,
        host_port: 0,
    }];
    main.resource_requests = labels(&[("cpu", "10m"), ("memory", "16Mi")]);
    main.resource_limits = labels(&[("cpu", "1"), ("memory", "64Mi")]);
    main.volume_mounts = vec![api::VolumeMount {
        volume: "data".into(),
        path: "/data".into(),
        read_only: true,
        ..Default::default()
    }];
    main.readiness_probe = Some(api::Probe {
        action: Some(api::probe::Action::TcpSocket(api::TcpSocketAction {
            port: port(53),
        })),
        period: Some(seconds(5)),
        ..Default::default()
    });
    subject.create_pod(wanted.clone()).await.unwrap();
    let found = subject.get_pod(&name(&wanted)).await.unwrap();
    let (asked, has) = (wanted.spec.clone().unwrap(), found.spec.unwrap());
    let metadata = found.metadata.unwrap();
    assert_eq!(metadata.labels, wanted.metadata.clone().unwrap().labels);
    assert_eq!(
        metadata.annotations.get("note").map(String::as_str),
        Some("any text: ü")
    );
    // A cluster may add one with a token.
    assert!(has.volumes.contains(&asked.volumes[0]), "{:?}", has.volumes);
    assert_eq!(has.nameservers, asked.nameservers);
    assert_eq!(has.search_domains, asked.search_domains);
    assert_eq!(has.node_selector, asked.node_selector);
    assert!(
        has.tolerations.contains(&asked.tolerations[0]),
        "{:?}",
        has.tolerations
    );
    assert_eq!(has.termination_grace_period, asked.termination_grace_period);
    assert_eq!(has.security, asked.security);
    assert_eq!(
        has.init_containers[0].command,
        asked.init_containers[0].command
    );
    let (asked, has) = (&asked.containers[0], &has.containers[0]);
    assert_eq!(
        (&has.command, &has.args, &has.working_dir),
        (&asked.command, &asked.args, &asked.working_dir)
    );
    assert_eq!((&has.env, &has.ports), (&asked.env, &asked.ports));
    assert_eq!(has.resource_requests, asked.resource_requests);
    assert_eq!(has.resource_limits, asked.resource_limits);
    assert!(
        has.volume_mounts.contains(&asked.volume_mounts[0]),
        "{:?}",
        has.volume_mounts
    );
    let probe = has.readiness_probe.clone().unwrap();
    assert_eq!(
        (probe.period, probe.failure_threshold),
        (Some(seconds(5)), Some(3))
    );
    subject.remove_pod(&name(&wanted)).await;
}

pub(super) async fn defaults_are_those_of_kubernetes(subject: &Subject) {
    let mut wanted = subject.pod();
    spec(&mut wanted).termination_grace_period = None;
    spec(&mut wanted).containers[0].resource_limits = labels(&[("memory", "64Mi")]);
    subject.create_pod(wanted.clone()).await.unwrap();
    let has = subject.get_pod(&name(&wanted)).await.unwrap().spec.unwrap();
    assert_eq!(has.restart_policy(), api::RestartPolicy::Always);
    assert_eq!(has.dns_policy(), api::DnsPolicy::ClusterFirst);
    assert_eq!(has.termination_grace_period, Some(seconds(30)));
    assert_eq!(
        has.containers[0].image_pull_policy(),
        api::ImagePullPolicy::IfNotPresent
    );
    assert_eq!(
        has.containers[0].resource_requests,
        labels(&[("memory", "64Mi")])
    );
    subject.remove_pod(&name(&wanted)).await;
}

pub(super) async fn fields_of_the_server_are_ignored_in_a_request(subject: &Subject) {
    let mut wanted = subject.pod();
    let metadata = wanted.metadata.as_mut().unwrap();
    metadata.uid = "mine".into();
    metadata.revision = "7".into();
    metadata.create_time = Some(prost_types::Timestamp::default());
    metadata.delete_time = Some(prost_types::Timestamp::default());
    wanted.status = Some(api::PodStatus {
        ready: true,
        ..Default::default()
    });
    let made = subject.create_pod(wanted).await.unwrap();
    let metadata = made.metadata.clone().unwrap();
    assert!(metadata.uid != "mine" && metadata.revision != "7");
    assert!(metadata.create_time.unwrap().seconds > 0);
    assert_eq!(metadata.delete_time, None);
    assert!(!made.status.unwrap().ready);
    subject.remove_pod(&metadata.name).await;
}

pub(super) async fn an_empty_namespace_is_the_default_one(subject: &Subject) {
    let mut wanted = subject.configuration();
    wanted.metadata.as_mut().unwrap().namespace.clear();
    let made = subject.create_configuration(wanted).await.unwrap();
    let metadata = made.metadata.unwrap();
    assert!(!metadata.namespace.is_empty());
    let request = api::GetConfigurationRequest {
        namespace: String::new(),
        name: metadata.name.clone(),
    };
    let found = done(subject.configurations().get_configuration(request))
        .await
        .unwrap();
    assert_eq!(
        found.configuration.unwrap().metadata.unwrap().uid,
        metadata.uid
    );
    let request = api::DeleteConfigurationRequest {
        namespace: String::new(),
        name: metadata.name,
    };
    assert!(
        done(subject.configurations().delete_configuration(request))
            .await
            .unwrap()
            .existed
    );
}

pub(super) async fn a_pod_gets_an_address_and_a_node(subject: &Subject) {
    let pod = subject.running().await;
    let found = subject.get_pod(&pod).await.unwrap();
    let status = found.status.unwrap();
    assert!(
        status.ip.parse::<std::net::IpAddr>().is_ok(),
        "{:?}",
        status.ip
    );
    assert_eq!(status.ips.first(), Some(&status.ip));
    assert!(!status.node.is_empty() && status.node == found.spec.unwrap().node);
    assert!(status.ready && status.phase() == api::PodPhase::Running);
    assert_eq!(status.containers[0].state(), api::ContainerState::Running);
    subject.remove_pod(&pod).await;
}

pub(super) async fn pods_are_listed_by_node(subject: &Subject) {
    let pod = subject.running().await;
    let node = subject.get_pod(&pod).await.unwrap().status.unwrap().node;
    for (node, expected) in [(node.as_str(), true), ("never-made", false)] {
        let request = api::ListPodsRequest {
            namespace: subject.namespace.clone(),
            node: node.into(),
            ..Default::default()
        };
        let page = done(subject.pods().list_pods(request)).await.unwrap();
        assert!(
            page.pods
                .iter()
                .all(|one| one.spec.clone().unwrap().node == node)
        );
        assert_eq!(
            page.pods.iter().any(|one| name(one) == pod),
            expected,
            "{node}"
        );
    }
    subject.remove_pod(&pod).await;
}

pub(super) async fn a_deleted_pod_is_gone_when_it_was_waited_for(subject: &Subject) {
    let pod = subject.create_pod(subject.pod()).await.unwrap();
    subject.remove_pod(&name(&pod)).await;
    assert_reason("gone", subject.get_pod(&name(&pod)).await, Reason::NotFound);
}

pub(super) async fn a_pod_with_another_uid_is_not_deleted(subject: &Subject) {
    let pod = subject.create_pod(subject.pod()).await.unwrap();
    let request = api::DeletePodRequest {
        namespace: subject.namespace.clone(),
        name: name(&pod),
        uid: "01234567-89ab-cdef-0123-456789abcdef".into(),
        ..Default::default()
    };
    let outcome = done(subject.pods().delete_pod(request.clone())).await;
    assert_reason("another uid", outcome, Reason::RevisionMismatch);
    let found = subject
        .get_pod(&name(&pod))
        .await
        .unwrap()
        .metadata
        .unwrap();
    assert_eq!(found.delete_time, None);
    let request = api::DeletePodRequest {
        uid: found.uid,
        ..request
    };
    assert!(
        done(subject.pods().delete_pod(request))
            .await
            .unwrap()
            .existed
    );
    subject.remove_pod(&name(&pod)).await;
}

pub(super) async fn a_deletion_shows_its_time(subject: &Subject) {
    let pod = subject.running().await;
    let request = api::DeletePodRequest {
        namespace: subject.namespace.clone(),
        name: pod.clone(),
        ..Default::default()
    };
    assert!(
        done(subject.pods().delete_pod(request))
            .await
            .unwrap()
            .existed
    );
    match subject.get_pod(&pod).await {
        Ok(found) => assert!(found.metadata.unwrap().delete_time.is_some()),
        Err(error) => assert_eq!(error.reason(), Reason::NotFound),
    }
    subject.remove_pod(&pod).await;
}
