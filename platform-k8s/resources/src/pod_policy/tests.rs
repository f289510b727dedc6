use super::*;

fn container() -> api::Container {
    api::Container {
        name: "main".into(),
        image: "busybox".into(),
        ..Default::default()
    }
}

fn pod(change: impl FnOnce(&mut api::PodSpec)) -> api::Pod {
    let mut spec = api::PodSpec {
        containers: vec![container()],
        ..Default::default()
    };
    change(&mut spec);
    api::Pod {
        metadata: Some(api::Metadata {
            namespace: "shop".into(),
            name: "web".into(),
            ..Default::default()
        }),
        spec: Some(spec),
        status: None,
    }
}

fn hardened() -> api::Pod {
    pod(|spec| {
        spec.security = Some(api::PodSecurity {
            run_as_non_root: Some(true),
            seccomp_runtime_default: Some(true),
            ..Default::default()
        });
        spec.containers[0].security = Some(api::ContainerSecurity {
            allow_privilege_escalation: Some(false),
            drop_capabilities: vec!["ALL".into()],
            ..Default::default()
        });
    })
}

fn fields(level: PodPolicy, pod: &api::Pod) -> Vec<String> {
    let policies = PodPolicies {
        default: PodPolicy::Privileged,
        namespaces: BTreeMap::from([("shop".to_owned(), level)]),
    };
    match policies.check(pod) {
        Ok(()) => Vec::new(),
        Err(error) => error.fields().iter().map(|one| one.field.clone()).collect(),
    }
}

type Change = fn(&mut api::PodSpec);

/// Each breach of the standard, its field, and whether the baseline level refuses it already.
const BREACHES: &[(&str, bool, Change)] = &[
    ("pod.spec.host_network", true, |spec| {
        spec.host_network = true;
    }),
    ("pod.spec.volumes[0].host_path", true, |spec| {
        spec.volumes.push(api::Volume {
            name: "root".into(),
            source: Some(volume::Source::HostPath(api::HostPathVolume {
                path: "/".into(),
                r#type: 0,
            })),
        });
    }),
    ("pod.spec.containers[0].ports[0].host_port", true, |spec| {
        spec.containers[0].ports.push(api::ContainerPort {
            port: 80,
            host_port: 80,
            ..Default::default()
        });
    }),
    ("pod.spec.containers[0].security.privileged", true, |spec| {
        security(spec).privileged = Some(true);
    }),
    (
        "pod.spec.containers[0].security.add_capabilities[0]",
        true,
        |spec| {
            security(spec).add_capabilities = vec!["NET_ADMIN".into()];
        },
    ),
    (
        "pod.spec.containers[0].security.add_capabilities[0]",
        false,
        |spec| {
            security(spec).add_capabilities = vec!["CHOWN".into()];
        },
    ),
    (
        "pod.spec.containers[0].security.allow_privilege_escalation",
        false,
        |spec| {
            security(spec).allow_privilege_escalation = None;
        },
    ),
    (
        "pod.spec.containers[0].security.drop_capabilities",
        false,
        |spec| {
            security(spec).drop_capabilities = vec!["KILL".into()];
        },
    ),
    (
        "pod.spec.containers[0].security.run_as_non_root",
        false,
        |spec| {
            security(spec).run_as_non_root = Some(false);
        },
    ),
    (
        "pod.spec.containers[0].security.run_as_user",
        false,
        |spec| {
            security(spec).run_as_user = Some(0);
        },
    ),
    ("pod.spec.security.run_as_user", false, |spec| {
        spec.security.get_or_insert_default().run_as_user = Some(0);
    }),
    ("pod.spec.security.seccomp_runtime_default", false, |spec| {
        spec.security
            .get_or_insert_default()
            .seccomp_runtime_default = None;
    }),
    ("pod.spec.security.seccomp_runtime_default", true, |spec| {
        spec.security
            .get_or_insert_default()
            .seccomp_runtime_default = Some(false);
    }),
    (
        "pod.spec.init_containers[0].security.privileged",
        true,
        |spec| {
            let mut init = spec.containers[0].clone();
            init.security.get_or_insert_default().privileged = Some(true);
            spec.init_containers.push(init);
        },
    ),
];

fn security(spec: &mut api::PodSpec) -> &mut api::ContainerSecurity {
    spec.containers[0].security.get_or_insert_default()
}

#[test]
fn each_breach_is_refused_from_its_level_on_with_its_field() {
    for (field, baseline, change) in BREACHES {
        let mut pod = hardened();
        change(pod.spec.as_mut().unwrap());
        let expected = vec![(*field).to_owned()];
        assert_eq!(fields(PodPolicy::Restricted, &pod), expected);
        let refused = if *baseline { expected } else { Vec::new() };
        assert_eq!(fields(PodPolicy::Baseline, &pod), refused, "{field}");
        assert_eq!(fields(PodPolicy::Privileged, &pod), Vec::<String>::new());
    }
}

#[test]
fn an_ordinary_pod_is_within_the_baseline_and_a_hardened_one_is_restricted() {
    assert_eq!(
        fields(PodPolicy::Baseline, &pod(|_| {})),
        Vec::<String>::new()
    );
    assert_eq!(
        fields(PodPolicy::Restricted, &hardened()),
        Vec::<String>::new()
    );
    let missing = fields(PodPolicy::Restricted, &pod(|_| {}));
    assert_eq!(missing.len(), 4, "{missing:?}");
}

#[test]
fn a_namespace_without_a_level_of_its_own_has_the_default() {
    let mut pod = pod(|spec| spec.host_network = true);
    assert!(PodPolicies::default().check(&pod).is_err());
    let policies = PodPolicies {
        default: PodPolicy::Baseline,
        namespaces: BTreeMap::from([("system".to_owned(), PodPolicy::Privileged)]),
    };
    assert!(policies.check(&pod).is_err());
    pod.metadata.as_mut().unwrap().namespace = "system".into();
    assert!(policies.check(&pod).is_ok());
}

#[test]
fn an_ingress_brings_no_configuration_of_its_controller_with_it_unless_everything_is_allowed() {
    let refused = [
        "haproxy-ingress.github.io/config-backend",
        "haproxy.org/backend-config-snippet",
        "nginx.ingress.kubernetes.io/configuration-snippet",
        "nginx.ingress.kubernetes.io/server-snippet",
        "nginx.org/location-snippets",
    ];
    let allowed = ["nginx.ingress.kubernetes.io/rewrite-target", "team"];
    let annotations = refused.into_iter().chain(allowed);
    let ingress = api::Ingress {
        metadata: Some(api::Metadata {
            namespace: "shop".into(),
            annotations: annotations
                .map(|key| (key.to_owned(), "return 200;".to_owned()))
                .collect(),
            ..Default::default()
        }),
        ..Default::default()
    };
    for (level, number) in [
        (PodPolicy::Restricted, refused.len()),
        (PodPolicy::Baseline, refused.len()),
        (PodPolicy::Privileged, 0),
    ] {
        let policies = PodPolicies {
            default: PodPolicy::Privileged,
            namespaces: BTreeMap::from([("shop".to_owned(), level)]),
        };
        let fields = match policies.check_ingress(&ingress) {
            Ok(()) => Vec::new(),
            Err(error) => {
                assert!(!error.message().contains("return 200"), "{error}");
                error.fields().to_vec()
            }
        };
        let fields: Vec<String> = fields.into_iter().map(|one| one.field).collect();
        let named = refused.map(|key| format!("ingress.metadata.annotations[{key}]"));
        assert_eq!(fields, named[..number], "{level:?}");
    }
}
