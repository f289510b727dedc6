use super::*;

fn addon(kind: Kind) -> AddonSpec {
    AddonSpec {
        name: "front".into(),
        platform: "p".into(),
        targets: vec!["data".into()],
        port: None,
        kind: Some(kind),
        image: String::new(),
        interface: String::new(),
        node_selector: None,
        cluster_ip: String::new(),
        properties: Object::default(),
    }
}

fn balancer(port: Option<u32>, ports: Vec<PortMapping>) -> AddonSpec {
    AddonSpec {
        port,
        ..addon(Kind::LoadBalancer {
            target_port: None,
            ports,
        })
    }
}

fn mapping(listen: u32, target: u16, count: u32) -> PortMapping {
    PortMapping {
        listen: Some(listen),
        target: Some(Port::Number(target)),
        count,
    }
}

fn wrong(addons: &[AddonSpec]) -> Vec<String> {
    let groups = [GroupSpec {
        name: "data".into(),
        groups: vec![GroupSpec {
            name: "hot".into(),
            ..GroupSpec::default()
        }],
        ..GroupSpec::default()
    }];
    let mut fields = Vec::new();
    check(addons, &groups, &mut |field, _| {
        fields.push(field.trim_start_matches("spec.addons[0].").to_owned());
    });
    fields
}

#[test]
fn a_load_balancer_listens_on_no_port_twice_and_on_none_beyond_the_last() {
    let fields = |port, ports| wrong(&[balancer(port, ports)]);
    assert!(fields(Some(443), vec![]).is_empty());
    assert!(fields(None, vec![mapping(30_000, 80, 10), mapping(30_010, 80, 1)]).is_empty());
    for (port, ports, expected) in [
        (None, vec![], "port"),
        (Some(0), vec![], "port"),
        (Some(70_000), vec![], "port"),
        (
            Some(30_005),
            vec![mapping(30_000, 80, 10)],
            "ports[0].listen",
        ),
        (None, vec![mapping(65_530, 80, 7)], "ports[0].listen"),
        (None, vec![mapping(30_000, 65_530, 7)], "ports[0].target"),
        (
            None,
            vec![mapping(1, 2, 3), mapping(3, 9, 0)],
            "ports[1].listen",
        ),
        (None, vec![mapping(0, 9, 0)], "ports[0].listen"),
    ] {
        assert_eq!(
            fields(port, ports.clone()),
            [expected],
            "{port:?} {ports:?}"
        );
    }
    let named = PortMapping {
        target: Some(Port::Name("client".into())),
        ..mapping(1_000, 1, 2)
    };
    assert_eq!(fields(None, vec![named]), ["ports[0].count"]);
}

#[test]
fn the_port_of_the_addon_is_also_that_of_its_targets() {
    let ports = balancer(Some(443), vec![mapping(1, 2, 3)]).port_mappings();
    let ports: Vec<_> = ports.into_iter().map(|(_, one)| one).collect();
    assert_eq!(ports, [mapping(443, 443, 1), mapping(1, 2, 3)]);
}

#[test]
fn names_are_unique_and_targets_are_groups_of_the_spec() {
    let one = balancer(Some(443), vec![]);
    assert_eq!(wrong(&[one.clone(), one.clone()]), ["spec.addons[1].name"]);
    assert_eq!(wrong(&vec![one.clone(); MAX_ADDONS + 1]), ["spec.addons"]);
    let bad = AddonSpec {
        name: "a b".into(),
        platform: String::new(),
        targets: vec!["data/hot".into(), "cold".into(), "data/hot".into()],
        image: "a b".into(),
        cluster_ip: "10.0.0".into(),
        ..one.clone()
    };
    assert_eq!(
        wrong(&[bad]),
        [
            "name",
            "platform",
            "targets[1]",
            "targets[2]",
            "image",
            "cluster_ip"
        ]
    );
    let nobody = AddonSpec {
        targets: Vec::new(),
        ..one
    };
    assert_eq!(wrong(&[nobody]), ["targets"]);
}

#[test]
fn the_settings_of_each_kind_are_checked_where_they_stand() {
    let host = JumpHost {
        authorized_keys: vec!["ssh-ed25519 AAAA a".into(), "two\nlines".into()],
        private_keys_secret: "no name!".into(),
        ..JumpHost::default()
    };
    assert_eq!(
        wrong(&[addon(Kind::JumpHost(host))]),
        [
            "jump_host.private_keys_secret",
            "jump_host.authorized_keys[1]"
        ]
    );
    let oidc = OidcProvider {
        issuer: "dex.example".into(),
        clients: vec![OidcClient::default()],
        connectors: vec![
            OidcConnector {
                kind: "ldap".into(),
                id: "a".into(),
                ..OidcConnector::default()
            },
            OidcConnector {
                id: "a".into(),
                ..OidcConnector::default()
            },
        ],
        ..OidcProvider::default()
    };
    assert_eq!(
        wrong(&[addon(Kind::OidcProvider(oidc))]),
        [
            "issuer",
            "clients[0].id",
            "connectors[1].id",
            "connectors[1].type"
        ]
        .map(|field| format!("oidc_provider.{field}"))
    );
    let template = |template: &str, port| {
        let template = template.to_owned();
        let kind = Kind::Template { template };
        wrong(&[AddonSpec {
            port,
            ..addon(kind)
        }])
    };
    assert_eq!(template("", None), ["template"]);
    assert_eq!(template("proxy", Some(1)), ["port"]);
    let kindless = AddonSpec {
        kind: None,
        ..balancer(None, vec![])
    };
    assert_eq!(wrong(&[kindless]), ["type"]);
}

#[test]
fn an_outer_group_stands_for_all_inside_and_for_no_other() {
    let wanted = WantedAddon {
        name: "front".into(),
        wanted: Wanted::new("p", b""),
        targets: vec!["data".into()],
        secrets: Vec::new(),
        ports: Vec::new(),
    };
    assert!(wanted.serves("data") && wanted.serves("data/hot"));
    assert!(!wanted.serves("data2") && !wanted.serves("other/data"));
}

#[test]
fn every_part_of_a_target_list_is_in_its_hash() {
    let target = AddonTarget {
        slot: 1,
        platform: "aws".into(),
        node_id: "i-1".into(),
        name: "data-0".into(),
        group: "data".into(),
        addresses: [SeenAddress {
            kind: 1,
            value: "10.0.0.1".into(),
            interface: "eth0".into(),
        }]
        .into(),
        endpoints: [("client".into(), "10.0.0.1:80".into())].into(),
        draining: false,
        standby: false,
    };
    let changes: [fn(&mut AddonTarget); 8] = [
        |one| one.platform = "gce".into(),
        |one| one.node_id = "i-2".into(),
        |one| one.name = "data-1".into(),
        |one| one.group = "hot".into(),
        |one| one.addresses[0].value = "10.0.0.2".into(),
        |one| one.endpoints = [].into(),
        |one| one.draining = true,
        |one| one.standby = true,
    ];
    let mut seen = HashSet::from([
        targets_hash(&[]),
        targets_hash(std::slice::from_ref(&target)),
    ]);
    assert_eq!(seen.len(), 2);
    for change in changes {
        let mut other = target.clone();
        change(&mut other);
        assert!(seen.insert(targets_hash(&[other])));
    }
}
