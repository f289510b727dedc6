use drover_proto::common::v1::LabelSelector;
use wire::port_ref::Port as WirePort;

use super::*;

fn number(number: u32) -> Option<wire::PortRef> {
    Some(wire::PortRef {
        port: Some(WirePort::Number(number)),
    })
}

fn addon(kind: wire::AddonKind) -> pb::Addon {
    pb::Addon {
        name: "front".into(),
        r#type: kind.into(),
        platform: "k8s".into(),
        targets: vec!["data".into()],
        ..pb::Addon::default()
    }
}

fn read(from: pb::Addon) -> (AddonSpec, Vec<String>) {
    let mut wrong = Vec::new();
    let mut read = specs(&[from], &mut wrong);
    let fields = wrong.into_iter().map(|one| one.field);
    (read.remove(0), fields.collect())
}

fn told(from: pb::Addon) -> wire::AddonSpec {
    let (spec, wrong) = read(from);
    assert_eq!(wrong, [""; 0]);
    assert_eq!(
        wanted(&spec),
        wanted(&spec.clone()),
        "always the same bytes"
    );
    decode(&wanted(&spec).wanted.body).unwrap()
}

#[test]
fn a_platform_is_told_all_that_the_user_said_of_a_load_balancer() {
    let more = wire::PortMapping {
        listen: None,
        target: Some(wire::PortRef {
            port: Some(WirePort::Name("client".into())),
        }),
        count: 0,
    };
    let selector = LabelSelector {
        match_labels: [("zone".to_owned(), "a".to_owned())].into(),
        ..LabelSelector::default()
    };
    let told = told(pb::Addon {
        port: Some(443),
        target_port: number(6443),
        ports: vec![more.clone()],
        image: "haproxy:3".into(),
        interface: "oam".into(),
        node_selector: Some(selector.clone()),
        cluster_ip: "10.0.0.9".into(),
        ..addon(wire::AddonKind::LoadBalancer)
    });
    let first = wire::PortMapping {
        listen: Some(443),
        target: number(6443),
        count: 1,
    };
    let ports = vec![first, wire::PortMapping { count: 1, ..more }];
    let expected = wire::AddonSpec {
        name: "front".into(),
        kind: Some(wire::addon_spec::Kind::LoadBalancer(wire::LoadBalancer {
            ports,
        })),
        image: "haproxy:3".into(),
        interface: "oam".into(),
        node_selector: Some(selector),
        cluster_ip: "10.0.0.9".into(),
        properties: None,
    };
    assert_eq!(told, expected);
}

#[test]
fn the_port_of_an_addon_becomes_that_of_its_kind() {
    let host = wire::JumpHost {
        authorized_keys: vec!["ssh-ed25519 AAAA a".into()],
        private_keys_secret: "keys".into(),
        bmc: Some(wire::BmcAccess { proxy: true }),
        kubeconfig_secret: "config".into(),
        port: None,
    };
    let told = told(pb::Addon {
        port: Some(2_222),
        jump_host: Some(host.clone()),
        ..addon(wire::AddonKind::JumpHost)
    });
    let expected = wire::JumpHost {
        port: Some(2_222),
        ..host.clone()
    };
    assert_eq!(told.kind, Some(wire::addon_spec::Kind::JumpHost(expected)));
    let twice = pb::Addon {
        jump_host: Some(wire::JumpHost {
            port: Some(22),
            ..host
        }),
        ..addon(wire::AddonKind::JumpHost)
    };
    assert_eq!(read(twice).1, ["spec.addons[0].jump_host.port"]);
}

#[test]
fn settings_of_another_kind_are_refused_and_never_ignored() {
    let all = |kind| pb::Addon {
        target_port: number(1),
        ports: vec![wire::PortMapping {
            target: number(1),
            ..wire::PortMapping::default()
        }],
        jump_host: Some(wire::JumpHost::default()),
        oidc_provider: Some(wire::OidcProvider::default()),
        template: "proxy".into(),
        ..addon(kind)
    };
    for (kind, own) in [
        (wire::AddonKind::LoadBalancer, 2),
        (wire::AddonKind::JumpHost, 1),
        (wire::AddonKind::OidcProvider, 1),
        (wire::AddonKind::Template, 1),
    ] {
        assert_eq!(read(all(kind)).1.len(), 5 - own, "{kind:?}");
    }
    let unknown = pb::Addon {
        r#type: 99,
        ..addon(wire::AddonKind::Template)
    };
    assert_eq!(read(unknown).1, ["spec.addons[0].type"]);
    let none = addon(wire::AddonKind::Unspecified);
    assert_eq!(read(none).0.kind, None);
}

#[test]
fn secrets_are_named_with_their_field_and_the_keys_that_they_need() {
    let client = wire::OidcClient {
        id: "app".into(),
        secret: "app-secret".into(),
        ..wire::OidcClient::default()
    };
    let connector = wire::OidcConnector {
        r#type: "ldap".into(),
        id: "ldap".into(),
        secret: "ldap-bind".into(),
        ..wire::OidcConnector::default()
    };
    let oidc = wire::OidcProvider {
        clients: vec![wire::OidcClient::default(), client],
        connectors: vec![connector],
        tls_secret: "tls".into(),
        ..wire::OidcProvider::default()
    };
    let (spec, _) = read(pb::Addon {
        oidc_provider: Some(oidc),
        ..addon(wire::AddonKind::OidcProvider)
    });
    let named = spec.secrets().into_iter();
    let named: Vec<_> = named
        .map(|one| (one.name, one.field, one.keys.len()))
        .collect();
    let expected = [
        ("app-secret", "oidc_provider.clients[1].secret", 1),
        ("ldap-bind", "oidc_provider.connectors[0].secret", 0),
        ("tls", "oidc_provider.tls_secret", 2),
    ];
    let expected = expected.map(|(name, field, keys)| (name.to_owned(), field.to_owned(), keys));
    assert_eq!(named, expected);
}

#[test]
fn the_report_of_an_addon_is_shown_as_the_platform_gave_it() {
    let state = wire::AddonState {
        cluster_id: "c".into(),
        owner: "o".into(),
        kind: wire::AddonKind::LoadBalancer.into(),
        name: "front".into(),
        phase: wire::ResourcePhase::Ready.into(),
        message: "2 of 2 pods".into(),
        endpoints: vec![wire::Endpoint {
            host: "10.0.0.9".into(),
            port: 443,
        }],
        target_count: 3,
        resources: vec![wire::Resource {
            cluster_id: "c".into(),
            owner: "o".into(),
            kind: "service".into(),
            name: "front".into(),
            phase: wire::ResourcePhase::Ready.into(),
            ..wire::Resource::default()
        }],
    };
    let seen = observed(Some(state.clone()), None).unwrap();
    let (spec, _) = read(pb::Addon {
        port: Some(443),
        ..addon(wire::AddonKind::LoadBalancer)
    });
    let record = ResourceRecord {
        body: wanted(&spec).wanted.body,
        phase: seen.phase,
        outputs: seen.outputs,
        resources: seen.resources,
        ..ResourceRecord::default()
    };
    assert_eq!(to_status("c", "o", "front", &record), state);
    assert!(observed(None, None).is_err());
    let phaseless = wire::AddonState::default();
    assert!(observed(Some(phaseless), None).is_err());
}
