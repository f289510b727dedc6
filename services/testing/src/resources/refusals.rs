//! What is refused: the code, the reason, and the field.

mod others;
mod pods;
mod presence;

use drover_proto::{
    common::v1::{Chunk, LabelOperator, TerminalSize, chunk::Content},
    kubernetes::v1::{self as api, env_var, exec_request, path_key, volume},
};
use futures::stream;

use super::{
    Subject,
    fixture::{assert_refused, done, labels, requirement, seconds, selector, spec},
};

pub(super) use self::presence::{
    names_that_are_taken_are_refused, unknown_objects_are_not_found,
    what_is_absent_is_deleted_without_an_error,
};
use self::{
    others::{CONFIGURATIONS, INGRESSES, PATHS, POLICIES, SERVICES, path},
    pods::{PODS, main, variable},
};

/// Rows of the tables below: each is a check of its own.
pub(super) const ROWS: usize = PODS.len()
    + SERVICES.len()
    + POLICIES.len()
    + CONFIGURATIONS.len()
    + INGRESSES.len()
    + PATHS.len()
    + BEYOND.len();

pub(super) async fn wrong_pods_are_refused_with_their_field(subject: &Subject) {
    for (field, change) in PODS {
        let mut pod = subject.pod();
        change(&mut pod);
        assert_refused(field, subject.create_pod(pod).await, field);
    }
}

pub(super) async fn wrong_services_are_refused_with_their_field(subject: &Subject) {
    for (field, change) in SERVICES {
        let mut service = subject.service();
        change(&mut service);
        assert_refused(field, subject.create_service(service).await, field);
    }
}

pub(super) async fn wrong_network_policies_are_refused_with_their_field(subject: &Subject) {
    for (field, change) in POLICIES {
        let mut policy = subject.policy();
        change(policy.spec.as_mut().unwrap());
        assert_refused(field, subject.create_policy(policy).await, field);
    }
}

pub(super) async fn wrong_configurations_are_refused_with_their_field(subject: &Subject) {
    for (field, change) in CONFIGURATIONS {
        let mut configuration = subject.configuration();
        change(&mut configuration);
        let outcome = subject.create_configuration(configuration).await;
        assert_refused(field, outcome, field);
    }
}

pub(super) async fn wrong_ingresses_are_refused_with_their_field(subject: &Subject) {
    for (field, change) in INGRESSES {
        let mut ingress = api::Ingress {
            metadata: subject.metadata("ingress"),
            rules: vec![api::IngressRule {
                host: "a.example".into(),
                paths: Vec::new(),
            }],
            ..Default::default()
        };
        change(&mut ingress);
        let request = api::CreateIngressRequest {
            ingress: Some(ingress),
            backend: 0,
        };
        let outcome = done(subject.ingresses().create_ingress(request)).await;
        assert_refused(field, outcome, field);
    }
}

pub(super) async fn wrong_paths_are_refused_with_their_field(subject: &Subject) {
    for (field, change) in PATHS {
        let mut request = api::UpsertPathsRequest {
            namespace: subject.namespace.clone(),
            ingress: "web".into(),
            host: "a.example".into(),
            paths: vec![path("/")],
            ..Default::default()
        };
        change(&mut request);
        let outcome = done(subject.ingresses().upsert_paths(request)).await;
        assert_refused(field, outcome, field);
    }
}

pub(super) async fn wrong_paths_to_remove_are_refused_with_their_field(subject: &Subject) {
    let by = |key| vec![api::PathKey { key }];
    for (field, paths) in [
        ("paths", Vec::new()),
        ("paths[0]", by(None)),
        (
            "paths[0].name",
            by(Some(path_key::Key::Name(String::new()))),
        ),
        (
            "paths[0].match.path",
            by(Some(path_key::Key::Match(api::PathMatch::default()))),
        ),
        (
            "paths[0].service.port",
            by(Some(path_key::Key::Service(api::ServiceTarget {
                name: "web".into(),
                port: None,
            }))),
        ),
    ] {
        let request = api::RemovePathsRequest {
            namespace: subject.namespace.clone(),
            ingress: "web".into(),
            paths,
            ..Default::default()
        };
        let outcome = done(subject.ingresses().remove_paths(request)).await;
        assert_refused(field, outcome, field);
    }
}

pub(super) async fn wrong_waits_are_refused_with_their_field(subject: &Subject) {
    let wait = || subject.wait_for("web", &[]);
    for (field, request) in [
        (
            "names[0]",
            api::WaitPodsRequest {
                names: vec!["A".into()],
                ..wait()
            },
        ),
        (
            "conditions[0]",
            api::WaitPodsRequest {
                conditions: vec![0],
                ..wait()
            },
        ),
        (
            "conditions[0]",
            api::WaitPodsRequest {
                conditions: vec![99],
                ..wait()
            },
        ),
        (
            "min_count",
            api::WaitPodsRequest {
                conditions: vec![5],
                min_count: 1,
                ..wait()
            },
        ),
        (
            "uids",
            api::WaitPodsRequest {
                uids: vec!["a".into()],
                ..wait()
            },
        ),
        (
            "uids[0]",
            api::WaitPodsRequest {
                conditions: vec![5],
                uids: vec![String::new()],
                ..wait()
            },
        ),
        (
            "selector.match_expressions[0].values",
            api::WaitPodsRequest {
                selector: requirement("a", LabelOperator::NotIn, &[]),
                ..wait()
            },
        ),
        (
            "selector.match_expressions[0].values",
            api::WaitPodsRequest {
                selector: requirement("a", LabelOperator::Exists, &["b"]),
                ..wait()
            },
        ),
    ] {
        let (progress, error) = subject.wait(request).await;
        assert_eq!(progress, Vec::new(), "{field}");
        assert_refused(field, error.map_or(Ok(()), Err), field);
    }
    let request = api::WaitNodesRequest {
        condition: "a b".into(),
        ..Default::default()
    };
    assert_refused(
        "condition",
        done(subject.nodes().wait_nodes(request)).await.map(drop),
        "condition",
    );
    let request = api::DrainNodeRequest {
        name: "a".into(),
        grace_period: Some(seconds(-1)),
        ..Default::default()
    };
    assert_refused(
        "grace_period",
        done(subject.nodes().drain_node(request)).await.map(drop),
        "grace_period",
    );
}

fn start(change: fn(&mut api::ExecStart)) -> api::ExecStart {
    let mut start = api::ExecStart {
        pod: "web".into(),
        command: vec!["true".into()],
        ..Default::default()
    };
    change(&mut start);
    start
}

pub(super) async fn wrong_requests_for_access_are_refused_with_their_field(subject: &Subject) {
    use exec_request::Input;
    let stdin = Input::Stdin(Chunk {
        content: Some(Content::Data(vec![1])),
    });
    for (field, first) in [
        ("start", None),
        ("start", Some(stdin)),
        ("start.pod", Some(Input::Start(start(|it| it.pod.clear())))),
        (
            "start.container",
            Some(Input::Start(start(|it| it.container = "A".into()))),
        ),
        (
            "start.command",
            Some(Input::Start(start(|it| it.command.clear()))),
        ),
        (
            "start.command[0]",
            Some(Input::Start(start(|it| it.command = vec!["a\0b".into()]))),
        ),
        (
            "start.terminal_size",
            Some(Input::Start(start(|it| {
                it.terminal_size = Some(TerminalSize {
                    columns: 80,
                    rows: 24,
                })
            }))),
        ),
        (
            "start.terminal_size",
            Some(Input::Start(start(|it| {
                it.tty = true;
                it.terminal_size = Some(TerminalSize {
                    columns: 0,
                    rows: 24,
                });
            }))),
        ),
    ] {
        let first = api::ExecRequest { input: first };
        let outcome = done(subject.pods().exec(stream::iter([first]))).await;
        assert_refused(field, outcome.map(drop), field);
    }
    let script = api::RunScriptRequest {
        pod: "web".into(),
        ..Default::default()
    };
    assert_refused(
        "script",
        done(subject.pods().run_script(script)).await.map(drop),
        "script",
    );
    for path in ["", "etc/passwd", "/a\0b"] {
        let file = api::ReadFileRequest {
            pod: "web".into(),
            path: path.into(),
            ..Default::default()
        };
        assert_refused(
            "path",
            done(subject.pods().read_file(file)).await.map(drop),
            "path",
        );
    }
    let since = api::stream_logs_request::Since::SinceDuration(seconds(-1));
    let log = api::StreamLogsRequest {
        pod: "web".into(),
        since: Some(since),
        ..Default::default()
    };
    assert_refused(
        "since",
        done(subject.pods().stream_logs(log)).await.map(drop),
        "since_duration",
    );
}

pub(super) async fn wrong_names_are_refused_with_their_field(subject: &Subject) {
    for name in ["", "A", "a_b", "-a", &"a".repeat(254)] {
        let request = api::GetPodRequest {
            namespace: String::new(),
            name: name.into(),
        };
        assert_refused(name, done(subject.pods().get_pod(request)).await, "name");
        let request = api::GetNodeRequest { name: name.into() };
        assert_refused(name, done(subject.nodes().get_node(request)).await, "name");
        let request = api::DeleteConfigurationRequest {
            namespace: String::new(),
            name: name.into(),
        };
        assert_refused(
            name,
            done(subject.configurations().delete_configuration(request)).await,
            "name",
        );
    }
    let request = api::GetServiceRequest {
        namespace: "a.b".into(),
        name: "web".into(),
    };
    assert_refused(
        "a.b",
        done(subject.services().get_service(request)).await,
        "namespace",
    );
}

pub(super) async fn wrong_lists_are_refused_with_their_field(subject: &Subject) {
    let request = api::ListPodsRequest {
        page_size: -1,
        ..Default::default()
    };
    assert_refused(
        "pods",
        done(subject.pods().list_pods(request)).await,
        "page_size",
    );
    let request = api::ListNodesRequest {
        page_size: -1,
        ..Default::default()
    };
    assert_refused(
        "nodes",
        done(subject.nodes().list_nodes(request)).await,
        "page_size",
    );
    let request = api::ListIngressesRequest {
        backend: 12,
        ..Default::default()
    };
    assert_refused(
        "ingresses",
        done(subject.ingresses().list_ingresses(request)).await,
        "backend",
    );
    let request = api::ListServicesRequest {
        selector: selector(&[("a b", "c")]),
        ..Default::default()
    };
    assert_refused(
        "services",
        done(subject.services().list_services(request)).await,
        "selector.match_labels",
    );
    for selector in [None, selector(&[])] {
        let request = api::DeleteNetworkPoliciesRequest {
            namespace: subject.namespace.clone(),
            selector,
        };
        let outcome = done(subject.policies().delete_network_policies(request)).await;
        assert_refused("an empty selector", outcome, "selector");
    }
}

pub(super) async fn all_violations_are_named_at_once(subject: &Subject) {
    let mut pod = subject.pod();
    main(&mut pod).image.clear();
    main(&mut pod).ports = vec![api::ContainerPort::default()];
    spec(&mut pod).restart_policy = 9;
    let error = subject.create_pod(pod).await.unwrap_err();
    let fields: Vec<&str> = error
        .fields()
        .iter()
        .map(|one| one.field.as_str())
        .collect();
    let expected = [
        "pod.spec.containers[0].image",
        "pod.spec.containers[0].ports[0].port",
        "pod.spec.restart_policy",
    ];
    for field in expected {
        assert!(fields.contains(&field), "{fields:?}");
    }
    assert_eq!(fields.len(), expected.len(), "{fields:?}");
}

const BEYOND: &[(&str, fn(&mut api::Pod))] = &[
    ("pod.spec.host_network", |pod| spec(pod).host_network = true),
    ("pod.spec.containers[0].security.privileged", |pod| {
        main(pod).security = Some(api::ContainerSecurity {
            privileged: Some(true),
            ..Default::default()
        });
    }),
    (
        "pod.spec.containers[0].security.add_capabilities[0]",
        |pod| {
            main(pod).security = Some(api::ContainerSecurity {
                add_capabilities: vec!["SYS_PTRACE".into()],
                ..Default::default()
            });
        },
    ),
    ("pod.spec.containers[0].ports[0].host_port", |pod| {
        main(pod).ports = vec![api::ContainerPort {
            port: 80,
            host_port: 8080,
            ..Default::default()
        }];
    }),
    ("pod.spec.volumes[0].host_path", |pod| {
        let source = volume::Source::HostPath(api::HostPathVolume {
            path: "/".into(),
            r#type: 0,
        });
        spec(pod).volumes = vec![api::Volume {
            name: "root".into(),
            source: Some(source),
        }];
    }),
];

pub(super) async fn pods_beyond_the_policy_are_refused_with_their_field(subject: &Subject) {
    for (field, change) in BEYOND {
        let mut pod = subject.pod();
        change(&mut pod);
        assert_refused(field, subject.create_pod(pod).await, field);
    }
}

pub(super) async fn values_of_variables_and_scripts_are_in_no_error(subject: &Subject) {
    const SECRET: &str = "hush-8d1f";
    let mut pod = subject.pod();
    main(&mut pod).env = vec![variable("a=b", Some(env_var::Source::Value(SECRET.into())))];
    main(&mut pod).image.clear();
    let mut errors = vec![subject.create_pod(pod).await.unwrap_err()];
    let mut configuration = subject.configuration();
    configuration.data = labels(&[("a b", SECRET), (SECRET, "c")]);
    configuration
        .data
        .insert(format!("{SECRET} {SECRET}"), "c".into());
    errors.push(
        subject
            .create_configuration(configuration)
            .await
            .unwrap_err(),
    );
    let script = api::RunScriptRequest {
        namespace: subject.namespace.clone(),
        pod: "never-made".into(),
        script: SECRET.into(),
        args: vec![format!("{SECRET}\0")],
        ..Default::default()
    };
    errors.push(
        done(subject.pods().run_script(script))
            .await
            .map(drop)
            .unwrap_err(),
    );
    for error in errors {
        let all = format!("{error:?} {error} {:?}", error.fields());
        assert!(!all.contains(SECRET), "{all}");
    }
}
