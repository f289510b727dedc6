use super::*;

fn wrong(spec: InfrastructureSpec) -> Vec<String> {
    let groups = [GroupSpec {
        name: "data".into(),
        groups: vec![GroupSpec {
            name: "hot".into(),
            ..GroupSpec::default()
        }],
        ..GroupSpec::default()
    }];
    let mut fields = Vec::new();
    check(&[spec], &groups, &mut |field, _| {
        fields.push(
            field
                .trim_start_matches("spec.infrastructure[0].")
                .to_owned(),
        );
    });
    fields
}

fn network(network: Network) -> InfrastructureSpec {
    InfrastructureSpec {
        platform: "p".into(),
        network: Some(network),
        ..InfrastructureSpec::default()
    }
}

#[test]
fn a_network_is_said_in_one_way_and_is_a_range() {
    let cidr = |cidr: &str| {
        wrong(network(Network {
            cidr: cidr.into(),
            ..Network::default()
        }))
    };
    for good in ["10.0.16.0/22", "0.0.0.0/0", "10.1.2.3/32", "fd00::/48"] {
        assert_eq!(cidr(good), [""; 0], "{good}");
    }
    for bad in [
        "10.0.16.1/22",
        "10.0.16.0/33",
        "10.0.16.0",
        "net/8",
        "fd00::/129",
        "10.0.0.0/+8",
        "10.0.0.0/",
    ] {
        assert_eq!(cidr(bad), ["network.cidr"], "{bad}");
    }
    let both = Network {
        cidr: "10.0.0.0/8".into(),
        id: "n-1".into(),
        ..Network::default()
    };
    assert_eq!(wrong(network(both)), ["network"]);
    let long = Network {
        prefix_length: Some(129),
        ..Network::default()
    };
    assert_eq!(wrong(network(long)), ["network.prefix_length"]);
    assert_eq!(
        wrong(network(Network::default())),
        [""; 0],
        "the platform chooses"
    );
}

#[test]
fn an_endpoint_leads_to_groups_that_are_there() {
    let endpoint = |host: &str, port, targets: &[&str]| {
        wrong(InfrastructureSpec {
            platform: "p".into(),
            endpoint: Some(Endpoint {
                host: host.into(),
                port,
                targets: targets.iter().map(|&t| t.to_owned()).collect(),
            }),
            ..InfrastructureSpec::default()
        })
    };
    assert_eq!(
        endpoint("203.0.113.7", 6443, &["data", "data/hot"]),
        [""; 0]
    );
    assert_eq!(endpoint("api.example.org", 0, &[]), [""; 0]);
    assert_eq!(
        endpoint("a b", 65536, &["hot", "data", "data"]),
        [
            "endpoint.host",
            "endpoint.port",
            "endpoint.targets[0]",
            "endpoint.targets[2]"
        ]
    );
}

#[test]
fn rules_name_what_is_wrong_with_them() {
    let rule = Rule {
        direction: None,
        protocol: "icmp".into(),
        cidrs: vec!["0.0.0.0/0".into(), "all".into()],
        ports: vec![(0, 0), (80, 0), (90, 80), (1, 70_000)],
        comment: String::new(),
    };
    let spec = InfrastructureSpec {
        platform: "p".into(),
        firewall: Some(Firewall {
            rules: vec![rule],
            ..Firewall::default()
        }),
        ..InfrastructureSpec::default()
    };
    let at = "firewall.rules[0]";
    assert_eq!(
        wrong(spec),
        [
            "direction",
            "protocol",
            "cidrs[1]",
            "ports[0].first",
            "ports[2].last",
            "ports[3].last"
        ]
        .map(|field| format!("{at}.{field}"))
    );
}

#[test]
fn a_platform_is_named_once_and_asked_for_something() {
    let empty = InfrastructureSpec {
        platform: "p".into(),
        ..InfrastructureSpec::default()
    };
    let mut fields = Vec::new();
    let one = network(Network::default());
    check(&[one.clone(), one, empty], &[], &mut |field, _| {
        fields.push(field);
    });
    assert_eq!(
        fields,
        [
            "spec.infrastructure[1].platform",
            "spec.infrastructure[2].platform",
            "spec.infrastructure[2]"
        ]
    );
}
