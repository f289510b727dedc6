//! Any cluster reads back as it was written; no text makes the parser panic.

use std::collections::BTreeMap;

use drover_proto::{
    orchestrator::v1::{
        Addon, BootstrapSource, Cluster, ClusterSpec, CountOrPercent, GroupSpec, Infrastructure,
        Placement, PlatformChoice, RemediationPolicy, SecretKeyRef, StorageSpec, StoreSpec,
        TemplateSecret, UpdatePolicy, bootstrap_source, count_or_percent,
    },
    platform::v1::{
        EndpointSpec, ExecProbe, FirewallRule, FirewallSpec, GrpcProbe, HealthPolicy, HttpProbe,
        Impairment, Lifecycle, LifecycleHook, NetworkSpec, PhaseProbe, PortMapping, PortRange,
        PortRef, ProbeTls, Spread, TcpProbe, health_policy, port_ref,
    },
};
use proptest::{collection::vec, option, prelude::*};
use prost_types::{Duration, Struct, Value as Free, value::Kind as FreeKind};

use super::{decode, decode_with};
use crate::{encode, scalar, yaml};

fn free_map(fields: Vec<(String, Free)>) -> Struct {
    Struct {
        fields: fields.into_iter().collect(),
    }
}

fn word() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9-]{0,8}[a-z0-9]"
}

fn free_value() -> impl Strategy<Value = Free> {
    let leaf = prop_oneof![
        Just(FreeKind::NullValue(0)),
        any::<bool>().prop_map(FreeKind::BoolValue),
        (-(1i64 << 53)..=1i64 << 53).prop_map(|n| FreeKind::NumberValue(n as f64)),
        any::<f64>()
            .prop_filter("finite", |n| n.is_finite())
            .prop_map(|n| FreeKind::NumberValue(if n == 0.0 { 0.0 } else { n })),
        any::<String>().prop_map(FreeKind::StringValue),
        prop_oneof![
            Just("no"),
            Just("1.0"),
            Just("a: b"),
            Just("- x"),
            Just("#"),
            Just(""),
            Just("two\nlines\n"),
            Just("0x1F")
        ]
        .prop_map(|text| FreeKind::StringValue(text.into())),
    ]
    .prop_map(scalar::free);
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(scalar::free_list),
            vec((any::<String>(), inner), 0..4)
                .prop_map(|fields| scalar::free(FreeKind::StructValue(free_map(fields)))),
        ]
    })
}

fn free_form() -> impl Strategy<Value = Option<Struct>> {
    option::of(vec((word(), free_value()), 0..4).prop_map(free_map))
}

fn duration() -> impl Strategy<Value = Option<Duration>> {
    option::of(
        (0i64..1_000_000, prop_oneof![Just(0), 0i32..1_000_000_000])
            .prop_map(|(seconds, nanos)| Duration { seconds, nanos }),
    )
}

fn amount() -> impl Strategy<Value = Option<CountOrPercent>> {
    option::of(prop_oneof![
        (0u32..1000).prop_map(count_or_percent::Amount::Count),
        (0u32..=100).prop_map(count_or_percent::Amount::Percent),
    ])
    .prop_map(|amount| {
        amount.map(|amount| CountOrPercent {
            amount: Some(amount),
        })
    })
}

fn port() -> impl Strategy<Value = Option<PortRef>> {
    option::of(prop_oneof![
        word().prop_map(port_ref::Port::Name),
        (1u32..65_536).prop_map(port_ref::Port::Number)
    ])
    .prop_map(|port| port.map(|port| PortRef { port: Some(port) }))
}

fn probe_tls() -> impl Strategy<Value = Option<ProbeTls>> {
    option::of(
        (word(), word()).prop_map(|(ca_secret, server_name)| ProbeTls {
            client_certificate_secret: format!("{ca_secret}-own"),
            ca_secret,
            server_name,
        }),
    )
}

fn health() -> impl Strategy<Value = Option<HealthPolicy>> {
    let probe = prop_oneof![
        Just(health_policy::Probe::Phase(PhaseProbe {})),
        (port(), word(), probe_tls()).prop_map(|(port, service, tls_settings)| {
            health_policy::Probe::Grpc(GrpcProbe {
                port,
                service,
                tls_settings,
            })
        }),
        (port(), any::<bool>(), probe_tls()).prop_map(|(port, tls, tls_settings)| {
            health_policy::Probe::Http(HttpProbe {
                port,
                path: "/a".into(),
                tls,
                tls_settings,
            })
        }),
        port().prop_map(|port| health_policy::Probe::Tcp(TcpProbe { port })),
        vec(any::<String>(), 1..3).prop_map(|command| health_policy::Probe::Exec(ExecProbe {
            command,
            impairments: vec![Impairment {
                reason: "DiskFull".into(),
                message: "\u{1f4be}: no: room".into(),
            }],
        })),
    ];
    option::of(
        (option::of(probe), duration(), option::of(1u32..100)).prop_map(
            |(probe, interval, failure_threshold)| HealthPolicy {
                probe,
                interval,
                failure_threshold,
                ..Default::default()
            },
        ),
    )
}

fn bootstrap() -> impl Strategy<Value = Option<BootstrapSource>> {
    let source = prop_oneof![
        any::<String>().prop_map(bootstrap_source::Source::Text),
        vec(any::<u8>(), 0..20).prop_map(bootstrap_source::Source::Binary),
        (word(), word()).prop_map(|(name, key)| bootstrap_source::Source::SecretKey(
            SecretKeyRef { name, key }
        )),
        "[0-9a-f]{64}".prop_map(bootstrap_source::Source::Sha256),
    ];
    option::of(
        (source, any::<bool>()).prop_map(|(source, render)| BootstrapSource {
            source: Some(source),
            render,
        }),
    )
}

fn secrets() -> impl Strategy<Value = Vec<TemplateSecret>> {
    let secret = (word(), word(), word()).prop_map(|(as_, name, key)| TemplateSecret {
        name: as_,
        secret_key_ref: Some(SecretKeyRef { name, key }),
    });
    vec(secret, 0..3)
}

fn platforms() -> impl Strategy<Value = Vec<PlatformChoice>> {
    let choice = (
        word(),
        option::of(word()),
        option::of(0u32..10),
        free_form(),
        prop_oneof![Just(String::new()), Just("^1.2".into())],
    )
        .prop_map(
            |(name, node_class, max, properties, version_requirement)| PlatformChoice {
                name,
                node_class,
                max,
                properties,
                version_requirement,
            },
        );
    vec(choice, 0..3)
}

fn group_spec() -> impl Strategy<Value = GroupSpec> {
    let leaf = (
        (
            option::of(0u32..100),
            option::of(0u32..100),
            vec(word(), 0..3),
            platforms(),
            option::of(any::<String>()),
        ),
        (free_form(), free_form(), bootstrap(), health(), duration()),
        (
            amount(),
            amount(),
            option::of(any::<bool>()),
            0i32..3,
            0i32..3,
        ),
        (
            option::of(vec(word(), 1..3)),
            option::of(0u32..3),
            secrets(),
        ),
    )
        .prop_map(|(a, b, c, d)| GroupSpec {
            size: a.0,
            standby: a.1,
            depends_on: a.2,
            platforms: a.3,
            role: a.4,
            attributes: b.0,
            properties: b.1,
            bootstrap: b.2,
            secrets: d.2,
            health: b.3,
            expire_after: b.4,
            update: Some(UpdatePolicy {
                max_surge: c.0,
                strategy: c.4,
                ..Default::default()
            }),
            remediation: Some(RemediationPolicy {
                max_unhealthy: c.1,
                enabled: c.2,
                ..Default::default()
            }),
            management_policy: c.3,
            storage: Some(StorageSpec {
                size: "5Gi".into(),
                when_scaled: c.4,
                ..Default::default()
            }),
            placement: d.0.map(|domains| Placement {
                hosts: domains.iter().map(|name| format!("e0ab-{name}")).collect(),
                failure_domains: domains,
                spread: vec![Spread {
                    topology_key: "zone".into(),
                    max_skew: d.1.map(|n| n + 1),
                    when_unsatisfiable: c.3,
                    ..Default::default()
                }],
                ..Default::default()
            }),
            lifecycle: d.1.map(|_| Lifecycle {
                pre_stop: Some(LifecycleHook {
                    exec: vec!["redis-cli".into(), "no".into()],
                    timeout: None,
                    fences: false,
                }),
                ..Lifecycle::default()
            }),
            ..Default::default()
        });
    leaf.prop_recursive(3, 8, 3, |inner| {
        (named_groups(inner), free_form()).prop_map(|(groups, attributes)| GroupSpec {
            groups,
            attributes,
            ..Default::default()
        })
    })
}

fn named_groups(group: impl Strategy<Value = GroupSpec>) -> impl Strategy<Value = Vec<GroupSpec>> {
    vec(
        ("[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,6}[a-zA-Z0-9])?", group),
        1..4,
    )
    .prop_map(|groups| {
        let unique: BTreeMap<String, GroupSpec> = groups.into_iter().collect();
        unique
            .into_iter()
            .map(|(name, group)| GroupSpec { name, ..group })
            .collect()
    })
}

fn infrastructure() -> impl Strategy<Value = Vec<Infrastructure>> {
    let network =
        (word(), option::of(1u32..129), any::<bool>()).prop_map(|(name, prefix_length, id)| {
            NetworkSpec {
                cidr: if id {
                    String::new()
                } else {
                    "10.0.0.0/22".into()
                },
                prefix_length,
                id: if id { name.clone() } else { String::new() },
                public: name,
            }
        });
    let endpoint =
        (vec(word(), 0..3), 1u32..65_536, any::<bool>()).prop_map(|(targets, port, fixed)| {
            EndpointSpec {
                host: if fixed {
                    "100.255.254.1".into()
                } else {
                    String::new()
                },
                port,
                targets,
            }
        });
    let rule = (1i32..3, vec(1u32..65_536, 0..3), any::<String>()).prop_map(
        |(direction, ports, comment)| FirewallRule {
            direction,
            protocol: "udp".into(),
            cidrs: vec!["0.0.0.0/0".into()],
            ports: ports
                .into_iter()
                .map(|first| PortRange { first, last: first })
                .collect(),
            comment,
        },
    );
    let firewall = (word(), vec(rule, 0..3)).prop_map(|(host, rules)| FirewallSpec {
        image: "firewall-ubuntu-2.0".into(),
        node_class: "v1-small-x86".into(),
        rules,
        host,
    });
    let one = (
        word(),
        free_form(),
        option::of(network),
        option::of(endpoint),
        option::of(firewall),
    )
        .prop_map(
            |(platform, properties, network, endpoint, firewall)| Infrastructure {
                platform,
                properties,
                network,
                endpoint,
                firewall,
            },
        );
    vec(one, 0..3)
}

fn any_cluster() -> impl Strategy<Value = Cluster> {
    (
        word(),
        vec((word(), any::<String>()), 0..3),
        named_groups(group_spec()),
        platforms(),
        free_form(),
        port(),
        infrastructure(),
    )
        .prop_map(
            |(name, labels, groups, platforms, attributes, port, infrastructure)| Cluster {
                name: name.clone(),
                labels: labels.into_iter().collect(),
                spec: Some(ClusterSpec {
                    store: Some(StoreSpec {
                        software: "pg".into(),
                        version: "16.10".into(),
                    }),
                    groups,
                    platforms,
                    attributes,
                    infrastructure,
                    addons: vec![Addon {
                        name,
                        r#type: 1,
                        target_port: port.clone(),
                        ports: vec![PortMapping {
                            listen: Some(80),
                            target: port,
                            count: 2,
                        }],
                        ..Default::default()
                    }],
                    ..Default::default()
                }),
                ..Default::default()
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_written_cluster_reads_back_the_same(cluster in any_cluster()) {
        let text = yaml::write(&encode::cluster(&cluster).unwrap());
        let objects = decode(&text);
        prop_assert!(objects.diagnostics.is_empty(), "{}\n{}", objects.diagnostics.render(""), text);
        prop_assert_eq!(&objects.clusters[0].object, &cluster, "{}", text);
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..400)) {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let _ = decode_with("x", &text, Some(&[])).diagnostics.render("");
    }

    #[test]
    fn random_yaml_never_panics(pieces in vec(prop_oneof![
        Just("{"), Just("}"), Just("["), Just("]"), Just(": "), Just("- "), Just("\n"), Just("  "), Just("&a "), Just("*a"),
        Just("groups"), Just("kind: Cluster\n"), Just("apiVersion: drover.dev/v1\n"), Just("spec"), Just("size"), Just("'"),
        Just("\""), Just("|\n"), Just("#"), Just("---\n"), Just("é"), Just("\t"), Just("? "), Just("!!str "), Just("resourcePlugin"),
        Just("name"), Just(","), Just("0"),
    ], 0..60)) {
        let _ = decode_with("x", &pieces.concat(), Some(&[])).diagnostics.render("");
    }

    #[test]
    fn a_truncated_manifest_never_panics(cut in 0usize..600) {
        let text = include_str!("../../../../deploy/examples/kadende-basic_cluster.yml");
        let text: String = text.chars().take(cut).collect();
        let _ = decode_with("x", &text, None).diagnostics.render("");
    }
}
