use super::*;
use crate::pod::{Ip, Status};

fn pod(annotations: &[(&str, &str)]) -> Pod {
    let mut pod = Pod {
        status: Status {
            host_ip: "192.0.2.1".into(),
            pod_ip: "10.0.0.7".into(),
            pod_ips: vec![
                Ip {
                    ip: "10.0.0.7".into(),
                },
                Ip {
                    ip: "fd00::7".into(),
                },
            ],
            ..Status::default()
        },
        ..Pod::default()
    };
    for (key, value) in annotations {
        pod.metadata
            .annotations
            .get_or_insert_default()
            .insert((*key).into(), (*value).into());
    }
    pod
}

fn settings(ip_from: IpFrom, port: Option<u16>) -> AgentSettings {
    AgentSettings {
        ip_from,
        scheme: "https".into(),
        port,
    }
}

fn address(annotations: &[(&str, &str)], ip_from: IpFrom, port: Option<u16>) -> Option<String> {
    agent(&pod(annotations), &settings(ip_from, port)).unwrap()
}

fn problem(annotations: &[(&str, &str)]) -> String {
    agent(&pod(annotations), &settings(IpFrom::Pod, Some(7000))).unwrap_err()
}

#[test]
fn the_address_annotation_goes_before_everything_else() {
    let all = [
        (ADDRESS, "http://db.example.org:8080"),
        (IP_FROM, "node"),
        (SCHEME, "grpc"),
        (PORT, "1"),
    ];
    let expected = Some("http://db.example.org:8080".to_owned());
    assert_eq!(address(&all, IpFrom::Pod, Some(7000)), expected);
    assert_eq!(address(&all, IpFrom::Pod, None), expected);
    // Invalid values of other annotations do not matter either.
    let others_wrong = [
        (ADDRESS, "http://db.example.org:8080"),
        (IP_FROM, "moon"),
        (PORT, "x"),
    ];
    assert_eq!(address(&others_wrong, IpFrom::Pod, None), expected);
}

#[test]
fn an_empty_annotation_is_none() {
    let empty = [(ADDRESS, ""), (IP_FROM, " "), (SCHEME, ""), (PORT, "")];
    assert_eq!(
        address(&empty, IpFrom::Pod, Some(7000)).as_deref(),
        Some("https://10.0.0.7:7000")
    );
}

#[test]
fn the_ip_address_is_that_of_the_annotation_else_of_the_settings() {
    let cases = [
        (Some("pod"), IpFrom::Node, "https://10.0.0.7:7000"),
        (Some("node"), IpFrom::Pod, "https://192.0.2.1:7000"),
        (None, IpFrom::Pod, "https://10.0.0.7:7000"),
        (None, IpFrom::Node, "https://192.0.2.1:7000"),
    ];
    for (annotation, setting, expected) in cases {
        let annotations: Vec<_> = annotation
            .map(|value| (IP_FROM, value))
            .into_iter()
            .collect();
        assert_eq!(
            address(&annotations, setting, Some(7000)).as_deref(),
            Some(expected)
        );
    }
}

#[test]
fn scheme_and_port_of_the_annotations_count_only_together() {
    let both = [(SCHEME, "grpcs"), (PORT, "9000")];
    assert_eq!(
        address(&both, IpFrom::Pod, Some(7000)).as_deref(),
        Some("grpcs://10.0.0.7:9000")
    );
    assert_eq!(
        address(&both, IpFrom::Pod, None).as_deref(),
        Some("grpcs://10.0.0.7:9000")
    );
    for one in both {
        assert_eq!(
            address(&[one], IpFrom::Pod, Some(7000)).as_deref(),
            Some("https://10.0.0.7:7000"),
            "only {one:?}"
        );
        assert_eq!(address(&[one], IpFrom::Pod, None), None, "only {one:?}");
    }
}

#[test]
fn without_any_port_there_is_no_address() {
    assert_eq!(address(&[], IpFrom::Pod, None), None);
}

#[test]
fn without_an_ip_address_there_is_none_yet() {
    let mut waiting = pod(&[(SCHEME, "grpc"), (PORT, "1")]);
    waiting.status = Status::default();
    for ip_from in [IpFrom::Pod, IpFrom::Node] {
        assert_eq!(agent(&waiting, &settings(ip_from, Some(7000))), Ok(None));
    }
    waiting
        .metadata
        .annotations
        .get_or_insert_default()
        .insert(ADDRESS.into(), "tcp://db:1".into());
    assert_eq!(
        agent(&waiting, &settings(IpFrom::Pod, None)),
        Ok(Some("tcp://db:1".into()))
    );
}

#[test]
fn addresses_of_version_6_are_in_brackets() {
    let mut six = pod(&[(SCHEME, "http"), (PORT, "80")]);
    six.status.pod_ip = "fd00::7".into();
    six.status.host_ip = "2001:db8::1".into();
    let pod_settings = settings(IpFrom::Pod, None);
    assert_eq!(
        agent(&six, &pod_settings),
        Ok(Some("http://[fd00::7]:80".into()))
    );
    let node_settings = settings(IpFrom::Node, None);
    assert_eq!(
        agent(&six, &node_settings),
        Ok(Some("http://[2001:db8::1]:80".into()))
    );
    // Also with the port of the settings.
    six.metadata.annotations = None;
    assert_eq!(
        agent(&six, &settings(IpFrom::Pod, Some(1))),
        Ok(Some("https://[fd00::7]:1".into()))
    );
    // Also in an explicit address.
    six.metadata
        .annotations
        .get_or_insert_default()
        .insert(ADDRESS.into(), "grpc://[fd00::9]:9".into());
    assert_eq!(
        agent(&six, &pod_settings),
        Ok(Some("grpc://[fd00::9]:9".into()))
    );
}

#[test]
fn what_is_wrong_is_named_and_not_replaced() {
    let wrong_addresses = [
        "db",
        "db:7000",
        "://db:7000",
        "1http://db:7000",
        "http://",
        "http:///path",
        "http://:80",
        "http://db:",
        "http://user@db:80",
        "http://[fd00::9]80",
        "http://db:80/a b",
        "http://db:0",
        "http://db:70000",
        "http://db:http",
        "http://fd00::7:80",
        "http://[fd00::x]:80",
        "http://[fd00::7:80",
        "http://a b:80",
    ];
    for value in wrong_addresses {
        let problem = problem(&[(ADDRESS, value)]);
        assert!(problem.contains(ADDRESS), "{value}: {problem}");
    }
    let others = [(IP_FROM, "moon"), (IP_FROM, "Pod")];
    for one in others {
        assert!(problem(&[one]).contains(one.0));
    }
    for port in ["0", "65536", "-1", "+80", "http", "7000 tcp"] {
        assert!(problem(&[(SCHEME, "grpc"), (PORT, port)]).contains(PORT));
    }
    assert!(problem(&[(SCHEME, "gopher"), (PORT, "70")]).contains(SCHEME));
}

#[test]
fn the_address_annotation_is_passed_on_as_it_is() {
    for written in [
        "https://agent.example/x",
        "http://db",
        "http://db:80/",
        "mysql://db:7000",
        "http://[fd00:0::9]:80/a?b=c:d#e",
        "http://[fd00::9]",
    ] {
        let found = address(&[(ADDRESS, written)], IpFrom::Node, Some(7000));
        assert_eq!(found.as_deref(), Some(written));
    }
}

#[test]
fn an_address_that_is_another_one_elsewhere_is_refused() {
    for host in [
        "127.0.0.1",
        "localhost",
        "LocalHost.",
        "a.localhost",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[fe80::1]",
        "0.0.0.0",
        "169.254.169.254",
        "[::ffff:169.254.169.254]",
        "2852039166",
        "0251.0376.0251.0376",
        "0x7f.1",
        "127.1",
    ] {
        for rest in ["", ":80", "/x", ":80/x"] {
            let problem = problem(&[(ADDRESS, &format!("http://{host}{rest}"))]);
            assert!(problem.contains(ADDRESS), "{host}{rest}: {problem}");
        }
    }
    for host in [
        "10.0.0.9",
        "[fd00::9]",
        "db-1",
        "db-1.prod.svc",
        "0x.example.org",
    ] {
        let written = format!("http://{host}:80");
        let found = address(&[(ADDRESS, &written)], IpFrom::Pod, None);
        assert_eq!(found, Some(written));
    }
}

#[test]
fn what_is_wrong_is_shown_in_part_only() {
    let long = "x".repeat(10_000);
    assert!(problem(&[(ADDRESS, &long)]).len() < 300);
}
