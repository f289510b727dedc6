//! Unsupported settings are rejected with their field, and never ignored.

use drover_core::Reason;
use drover_proto::{
    common::v1::LabelSelector,
    orchestrator::v1::{self as pb, ClusterSpec, GroupSpec},
    platform::v1 as platform,
};

use crate::api::support::{World, document, invalid, refused, registration};

fn count(count: u32) -> Option<pb::CountOrPercent> {
    let amount = Some(pb::count_or_percent::Amount::Count(count));
    Some(pb::CountOrPercent { amount })
}

fn percent(percent: u32) -> Option<pb::CountOrPercent> {
    let amount = Some(pb::count_or_percent::Amount::Percent(percent));
    Some(pb::CountOrPercent { amount })
}

fn update(
    max_surge: Option<pb::CountOrPercent>,
    max_unavailable: Option<pb::CountOrPercent>,
) -> Option<pb::UpdatePolicy> {
    Some(pb::UpdatePolicy {
        max_surge,
        max_unavailable,
        ..Default::default()
    })
}

fn group(spec: &mut ClusterSpec) -> &mut GroupSpec {
    &mut spec.groups[0]
}

type Registration = (&'static str, fn(&mut pb::RegisterPlatformRequest));
type Case = (&'static str, fn(&mut ClusterSpec));

fn probe(probe: platform::health_policy::Probe) -> Option<platform::HealthPolicy> {
    Some(platform::HealthPolicy {
        probe: Some(probe),
        ..Default::default()
    })
}

const CASES: &[Case] = &[
    ("spec.groups[0].standby", |s| {
        group(s).standby = Some(20_000);
    }),
    ("spec.groups[0].depends_on[0]", |s| {
        group(s).depends_on = vec!["other".into()];
    }),
    ("spec.groups[0].depends_on[0]", |s| {
        group(s).depends_on = vec!["db".into()];
    }),
    ("spec.groups[0].depends_on[0]", |s| {
        let mut other = group(s).clone();
        other.name = "app".into();
        other.depends_on = vec!["db".into()];
        group(s).depends_on = vec!["app".into()];
        s.groups.push(other);
    }),
    ("spec.addons[0].type", |s| {
        s.addons = vec![pb::Addon::default()];
    }),
    ("spec.lifecycle.pre_stop.exec", |s| {
        s.lifecycle = Some(platform::Lifecycle {
            pre_stop: Some(platform::LifecycleHook::default()),
            ..Default::default()
        });
    }),
    ("spec.lifecycle.pre_stop.fences", |s| {
        let hook = platform::LifecycleHook {
            exec: vec!["leave".into()],
            timeout: None,
            fences: true,
        };
        s.lifecycle = Some(platform::Lifecycle {
            pre_stop: Some(hook),
            ..Default::default()
        });
    }),
    ("spec.groups[0].lifecycle.pre_stop.timeout", |s| {
        let hook = platform::LifecycleHook {
            exec: vec!["leave".into()],
            timeout: Some(prost_types::Duration::default()),
            fences: false,
        };
        group(s).lifecycle = Some(platform::Lifecycle {
            pre_stop: Some(hook),
            ..Default::default()
        });
    }),
    ("spec.bootstrap", |s| {
        s.bootstrap = Some(pb::BootstrapSource {
            source: Some(pb::bootstrap_source::Source::Text(String::new())),
            ..Default::default()
        });
    }),
    ("spec.groups[0].bootstrap", |s| {
        group(s).bootstrap = Some(pb::BootstrapSource::default());
    }),
    ("spec.bootstrap.secret_key.key", |s| {
        s.bootstrap = Some(pb::BootstrapSource {
            source: Some(pb::bootstrap_source::Source::SecretKey(pb::SecretKeyRef {
                name: "join".into(),
                key: "to ken".into(),
            })),
            ..Default::default()
        });
    }),
    ("spec.bootstrap.sha256", |s| {
        s.bootstrap = Some(pb::BootstrapSource {
            source: Some(pb::bootstrap_source::Source::Sha256("abc".into())),
            ..Default::default()
        });
    }),
    ("spec.groups[0].bootstrap.render", |s| {
        group(s).bootstrap = Some(pb::BootstrapSource {
            source: Some(pb::bootstrap_source::Source::Binary(vec![0xff, 0xfe])),
            render: true,
        });
    }),
    ("spec.bootstrap", |s| {
        let text = "hush".repeat(50_000);
        s.bootstrap = Some(pb::BootstrapSource {
            source: Some(pb::bootstrap_source::Source::Text(text)),
            ..Default::default()
        });
    }),
    ("spec.placement.hosts", |s| {
        s.placement = Some(pb::Placement {
            hosts: vec!["rack-1".into()],
            ..Default::default()
        });
    }),
    ("spec.expire_after", |s| {
        s.expire_after = Some(prost_types::Duration::default());
    }),
    ("spec.groups[0].expire_after", |s| {
        group(s).expire_after = Some(prost_types::Duration {
            seconds: -60,
            nanos: 0,
        });
    }),
    ("spec.groups[0].placement.hosts", |s| {
        group(s).placement = Some(pb::Placement {
            hosts: vec!["rack-1".into()],
            ..Default::default()
        });
        group(s).size = Some(2);
    }),
    ("spec.groups[0].placement.hosts[1]", |s| {
        group(s).placement = Some(pb::Placement {
            hosts: vec!["rack-1".into(); 2],
            ..Default::default()
        });
    }),
    ("spec.placement.selector.match_labels[\"a b\"]", |s| {
        s.placement = Some(pb::Placement {
            selector: Some(LabelSelector {
                match_labels: [("a b".to_owned(), "c".to_owned())].into(),
                ..Default::default()
            }),
            ..Default::default()
        });
    }),
    ("spec.groups[0].health.exec.command", |s| {
        group(s).health = probe(platform::health_policy::Probe::Exec(
            platform::ExecProbe::default(),
        ));
    }),
    ("spec.groups[0].health.http.tls_settings.ca_secret", |s| {
        let http = platform::HttpProbe {
            tls_settings: Some(platform::ProbeTls {
                ca_secret: "no name".into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        group(s).health = probe(platform::health_policy::Probe::Http(http));
    }),
    ("spec.update.max_surge", |s| {
        s.update = update(count(0), count(0));
    }),
    ("spec.groups[0].update.max_surge", |s| {
        group(s).update = update(percent(0), count(0));
    }),
    ("spec.groups[0].update.max_surge", |s| {
        group(s).update = update(percent(101), count(0));
    }),
    ("spec.groups[0].update.max_unavailable", |s| {
        group(s).update = update(count(1), percent(250));
    }),
    // 30 % of one node rounds down to zero, and without a surge the update could not proceed.
    ("spec.groups[0].update.max_unavailable", |s| {
        group(s).update = update(count(0), percent(30));
    }),
    ("spec.groups[0].update.max_unavailable", |s| {
        group(s).update = update(count(0), None);
    }),
    ("spec.groups[0].update.max_surge", |s| {
        group(s).update = Some(pb::UpdatePolicy {
            max_surge: Some(pb::CountOrPercent::default()),
            ..Default::default()
        });
    }),
    ("spec.groups[0].update.progress_deadline", |s| {
        group(s).update = Some(pb::UpdatePolicy {
            progress_deadline: Some(prost_types::Duration::default()),
            ..Default::default()
        });
    }),
    ("spec.groups[0].update.max_surge", |s| {
        let mut policy = update(count(1), None);
        if let Some(policy) = &mut policy {
            policy.strategy = pb::UpdateStrategy::OnDelete.into();
        }
        group(s).update = policy;
    }),
    // Values of a newer version are invalid.
    ("spec.orphan_policy", |s| s.orphan_policy = 77),
    ("spec.management_policy", |s| s.management_policy = 77),
    ("spec.groups[0].removal_order", |s| {
        group(s).removal_order = 77;
    }),
    ("spec.groups[0].update.strategy", |s| {
        group(s).update = Some(pb::UpdatePolicy {
            strategy: 77,
            ..Default::default()
        });
    }),
    ("spec.groups[0].placement.spread[0].scope", |s| {
        let spread = platform::Spread {
            topology_key: "zone".into(),
            scope: 77,
            ..Default::default()
        };
        group(s).placement = Some(pb::Placement {
            spread: vec![spread],
            ..Default::default()
        });
    }),
    (
        "spec.groups[0].placement.spread[0].when_unsatisfiable",
        |s| {
            let spread = platform::Spread {
                topology_key: "zone".into(),
                when_unsatisfiable: 77,
                ..Default::default()
            };
            group(s).placement = Some(pb::Placement {
                spread: vec![spread],
                ..Default::default()
            });
        },
    ),
    // Impossible values.
    ("spec.groups", |s| s.groups.clear()),
    ("spec.groups[0].platforms", |s| s.platforms.clear()),
    ("spec.platforms", |s| {
        s.platforms = vec![s.platforms[0].clone(); 33];
    }),
    ("spec.groups[0].size", |s| group(s).size = Some(10_001)),
    ("spec.groups[0].size", |s| {
        group(s).groups = vec![GroupSpec {
            name: "in".into(),
            ..Default::default()
        }];
    }),
    ("spec.store.software", |s| {
        s.store = Some(pb::StoreSpec {
            version: "16".into(),
            ..Default::default()
        });
    }),
    ("spec.remediation.max_unhealthy", |s| {
        s.remediation = Some(pb::RemediationPolicy {
            max_unhealthy: Some(pb::CountOrPercent {
                amount: Some(pb::count_or_percent::Amount::Percent(101)),
            }),
            ..Default::default()
        });
    }),
    ("spec.remediation.max_retries", |s| {
        s.remediation = Some(pb::RemediationPolicy {
            max_retries: Some(0),
            ..Default::default()
        });
    }),
    ("spec.groups[0].health.interval", |s| {
        group(s).health = Some(platform::HealthPolicy {
            interval: Some(prost_types::Duration::default()),
            ..Default::default()
        });
    }),
    ("spec.groups[0].health.tcp.port", |s| {
        let port = platform::PortRef {
            port: Some(platform::port_ref::Port::Number(70_000)),
        };
        group(s).health = probe(platform::health_policy::Probe::Tcp(platform::TcpProbe {
            port: Some(port),
        }));
    }),
    ("spec.attributes.n", |s| {
        let number = prost_types::Value {
            kind: Some(prost_types::value::Kind::NumberValue(1e300)),
        };
        s.attributes = Some(prost_types::Struct {
            fields: [("n".to_owned(), number)].into(),
        });
    }),
];

#[tokio::test]
async fn every_field_that_cannot_be_kept_is_refused_with_its_path() {
    let world = World::new().await;
    for (field, change) in CASES {
        let mut cluster = document("orders", &[("db", 1)]);
        change(cluster.spec.as_mut().unwrap());
        let status = invalid(world.apply(cluster.clone()).await, field);
        assert!(!status.message().contains("hush"), "secrets are not told");
        let request = pb::ApplyClusterRequest {
            cluster: Some(cluster),
            validate_only: true,
            ..Default::default()
        };
        invalid(world.clusters().apply_cluster(request).await, field);
        refused(world.get("orders").await, Reason::NotFound);
    }
    world.stop().await;
}

#[tokio::test]
async fn a_registration_that_cannot_be_kept_is_refused_with_its_path() {
    let world = World::new().await;
    let cases: [Registration; 11] = [
        ("platform", |r| r.platform = None),
        ("platform.name", |r| {
            r.platform.as_mut().unwrap().name = "-".into();
        }),
        ("platform.name", |r| {
            r.platform.as_mut().unwrap().name = "x".repeat(64);
        }),
        ("platform.spec.endpoint", |r| {
            r.platform.as_mut().unwrap().spec = None;
        }),
        ("platform.spec.endpoint", |r| {
            r.platform.as_mut().unwrap().spec.as_mut().unwrap().endpoint = "ftp://x".into();
        }),
        ("platform.spec.endpoint", |r| {
            r.platform.as_mut().unwrap().spec.as_mut().unwrap().endpoint =
                format!("http://{}", "x".repeat(600));
        }),
        ("platform.spec.tls", |r| {
            r.platform.as_mut().unwrap().spec.as_mut().unwrap().tls =
                Some(pb::PlatformTls::default());
        }),
        ("platform.spec.tls.ca_pem", |r| {
            let spec = r.platform.as_mut().unwrap().spec.as_mut().unwrap();
            spec.endpoint = "https://x".into();
            spec.tls = Some(pb::PlatformTls {
                ca_pem: "none".into(),
                ..Default::default()
            });
        }),
        ("platform.spec.tls.server_name", |r| {
            let spec = r.platform.as_mut().unwrap().spec.as_mut().unwrap();
            spec.endpoint = "https://x".into();
            spec.tls = Some(pb::PlatformTls {
                server_name: "no name".into(),
                ..Default::default()
            });
        }),
        ("platform.spec.tls.client_certificate_secret", |r| {
            let spec = r.platform.as_mut().unwrap().spec.as_mut().unwrap();
            spec.endpoint = "https://x".into();
            spec.tls = Some(pb::PlatformTls {
                client_certificate_secret: "no name".into(),
                ..Default::default()
            });
        }),
        ("platform.spec.token_secret", |r| {
            r.platform
                .as_mut()
                .unwrap()
                .spec
                .as_mut()
                .unwrap()
                .token_secret = "no name".into();
        }),
    ];
    for (field, change) in cases {
        let mut request = registration("other", "http://other");
        change(&mut request);
        invalid(world.platforms().register_platform(request).await, field);
    }
    world.stop().await;
}
