//! Wrong requests for addons: each is refused with its field, and changes nothing.

use drover_core::Reason;
use drover_proto::{
    common::v1::{LabelRequirement, LabelSelector},
    platform::v1::{
        AddonKind, AddonSecret, EnsureAddonRequest, Fence, JumpHost, LoadBalancer, OidcClient,
        OidcConnector, OidcProvider, PortMapping, RemoveAddonRequest, addon_spec::Kind,
        port_ref::Port,
    },
};
use prost_types::{Struct, Value, value};

use super::{
    super::Subject, Fixture, any, balancers, fixture, mapping, refused, spec, targets::target,
};

type Wrong = (&'static str, fn(&mut EnsureAddonRequest));

impl Fixture<'_> {
    /// Sends each wrong form of a request, to be validated only and to be done.
    async fn refuses(&self, right: &EnsureAddonRequest, table: &[Wrong]) {
        for (field, change) in table {
            let mut request = right.clone();
            change(&mut request);
            for validate_only in [true, false] {
                request.validate_only = validate_only;
                let outcome = self.ensure_addon(&request).await;
                let error = refused(outcome, Reason::Invalid, field);
                let fields = error.fields();
                assert!(
                    fields.iter().any(|it| &it.field == field),
                    "{field}: {error:?}"
                );
            }
        }
        assert!(self.addon_names().await.is_empty(), "nothing was made");
    }
}

fn balancer(request: &mut EnsureAddonRequest) -> &mut PortMapping {
    let kind = Kind::LoadBalancer(LoadBalancer::default());
    match spec(request).kind.get_or_insert(kind) {
        Kind::LoadBalancer(it) => &mut it.ports[0],
        other => panic!("no load balancer: {other:?}"),
    }
}

fn jump_host(request: &mut EnsureAddonRequest) -> &mut JumpHost {
    match spec(request).kind.as_mut() {
        Some(Kind::JumpHost(it)) => it,
        other => panic!("no jump host: {other:?}"),
    }
}

fn provider(request: &mut EnsureAddonRequest) -> &mut OidcProvider {
    match spec(request).kind.as_mut() {
        Some(Kind::OidcProvider(it)) => it,
        other => panic!("no OIDC provider: {other:?}"),
    }
}

/// Adds a connector, and its secret with these keys.
fn connector(request: &mut EnsureAddonRequest, config: &[&str], keys: &[&str]) {
    let config = config.iter().map(|key| ((*key).to_owned(), text("x")));
    provider(request).connectors.push(OidcConnector {
        r#type: "github".to_owned(),
        id: "github".to_owned(),
        config: Some(Struct {
            fields: config.collect(),
        }),
        secret: "connector".to_owned(),
    });
    give(request, "connector", keys, b"content");
}

fn text(text: &str) -> Value {
    Value {
        kind: Some(value::Kind::StringValue(text.to_owned())),
    }
}

fn give(request: &mut EnsureAddonRequest, name: &str, keys: &[&str], content: &[u8]) {
    let data = keys.iter().map(|key| ((*key).to_owned(), content.to_vec()));
    let data = data.collect();
    request
        .secrets
        .insert(name.to_owned(), AddonSecret { data });
}

fn labels(key: &str, value: &str) -> LabelSelector {
    LabelSelector {
        match_labels: [(key.to_owned(), value.to_owned())].into(),
        ..LabelSelector::default()
    }
}

pub(in super::super) async fn each_wrong_field_of_an_addon_is_named(subject: &Subject) {
    let Some((fixture, kind)) = any(subject).await else {
        return;
    };
    let table: &[Wrong] = &[
        ("fence", |it| it.fence = None),
        ("fence.epoch", |it| {
            it.fence.get_or_insert_default().epoch = 0;
        }),
        ("fence.store_id", |it| {
            it.fence.get_or_insert_default().store_id = "mine".to_owned();
        }),
        ("cluster_id", |it| it.cluster_id = String::new()),
        ("cluster_id", |it| it.cluster_id = "-".to_owned()),
        ("owner", |it| it.owner = String::new()),
        ("owner", |it| it.owner = "me".to_owned()),
        ("sequence", |it| it.sequence = 0),
        ("spec", |it| it.spec = None),
        ("spec.name", |it| spec(it).name = String::new()),
        ("spec.name", |it| spec(it).name = "a.b".to_owned()),
        ("spec.name", |it| spec(it).name = "a/b".to_owned()),
        ("spec.name", |it| spec(it).name = "-a".to_owned()),
        ("spec.name", |it| spec(it).name = "a".repeat(64)),
        ("spec.kind", |it| {
            spec(it).kind = None;
            it.secrets.clear();
        }),
        ("spec.image", |it| spec(it).image = "a\nb".to_owned()),
        ("spec.interface", |it| spec(it).interface = "a\0".to_owned()),
        ("spec.cluster_ip", |it| {
            spec(it).cluster_ip = "vip".to_owned()
        }),
        ("spec.cluster_ip", |it| {
            spec(it).cluster_ip = "10.0.0.1/24".to_owned();
        }),
        ("spec.node_selector.match_labels", |it| {
            spec(it).node_selector = Some(labels("a b", "c"));
        }),
        ("spec.node_selector.match_labels", |it| {
            spec(it).node_selector = Some(labels("a", "b c"));
        }),
        ("spec.node_selector.match_expressions[0].operator", |it| {
            spec(it).node_selector = Some(LabelSelector {
                match_expressions: vec![LabelRequirement {
                    key: "a".to_owned(),
                    ..LabelRequirement::default()
                }],
                ..LabelSelector::default()
            });
        }),
        ("targets[0].node_id", |it| {
            it.targets = vec![target(1)];
            it.targets[0].node_id = String::new();
        }),
        ("targets[1].node_id", |it| {
            it.targets = vec![target(1), target(2)];
            it.targets[1].node_id = target(1).node_id;
        }),
        ("targets[0].name", |it| {
            it.targets = vec![target(1)];
            it.targets[0].name = "db\n  ProxyCommand sh".to_owned();
        }),
        ("targets[0].role", |it| {
            it.targets = vec![target(1)];
            it.targets[0].role = 99;
        }),
        ("targets[0].addresses[0].value", |it| {
            it.targets = vec![target(1)];
            it.targets[0].addresses[0].value = "10.0.0.1 check\n".to_owned();
        }),
        ("targets[0].addresses[0].type", |it| {
            it.targets = vec![target(1)];
            it.targets[0].addresses[0].r#type = 99;
        }),
        ("targets[0].endpoints", |it| {
            it.targets = vec![target(1)];
            let port = "10.0.0.1:70000".to_owned();
            it.targets[0].endpoints.insert("client".to_owned(), port);
        }),
        ("secrets", |it| give(it, "unused", &["a"], b"b")),
    ];
    fixture.refuses(&fixture.addon(kind, "one"), table).await;
}

pub(in super::super) async fn each_wrong_port_of_a_balancer_is_named(subject: &Subject) {
    let Some(fixture) = balancers(subject).await else {
        return;
    };
    let port = subject.addon_port;
    let table: &[Wrong] = &[
        ("spec.load_balancer.ports", |it| {
            spec(it).kind = Some(Kind::LoadBalancer(LoadBalancer::default()));
        }),
        ("spec.load_balancer.ports[0].listen", |it| {
            balancer(it).listen = Some(0);
        }),
        ("spec.load_balancer.ports[0].listen", |it| {
            balancer(it).listen = Some(65_536);
        }),
        ("spec.load_balancer.ports[0].target", |it| {
            balancer(it).target = None;
        }),
        ("spec.load_balancer.ports[0].target.number", |it| {
            *balancer(it) = mapping(None, Port::Number(0), 0);
        }),
        ("spec.load_balancer.ports[0].target.number", |it| {
            *balancer(it) = mapping(None, Port::Number(65_536), 0);
        }),
        ("spec.load_balancer.ports[0].target.name", |it| {
            *balancer(it) = mapping(None, Port::Name(String::new()), 0);
        }),
        ("spec.load_balancer.ports[0].count", |it| {
            *balancer(it) = mapping(None, Port::Name("client".to_owned()), 2);
        }),
        ("spec.load_balancer.ports[0].count", |it| {
            *balancer(it) = mapping(None, Port::Number(65_535), 2);
        }),
        ("spec.load_balancer.ports[0].count", |it| {
            *balancer(it) = mapping(Some(65_000), Port::Number(1), u32::MAX);
        }),
    ];
    let right = fixture.addon(AddonKind::LoadBalancer, "one");
    fixture.refuses(&right, table).await;
    // Ports that overlap.
    let range = mapping(Some(port), Port::Number(9000), 5);
    let inside = mapping(Some(port + 4), Port::Number(80), 0);
    let mut twice = fixture.balancer("one", vec![range, inside]);
    for at in [1, 0] {
        let outcome = fixture.ensure_addon(&twice).await;
        let error = refused(outcome, Reason::Invalid, "ports that overlap");
        let field = "spec.load_balancer.ports[1].listen";
        assert_eq!(error.fields()[0].field, field, "{at}: {error:?}");
        if let Some(Kind::LoadBalancer(it)) = spec(&mut twice).kind.as_mut() {
            it.ports.reverse();
        }
    }
}

pub(in super::super) async fn each_wrong_field_of_a_jump_host_is_named(subject: &Subject) {
    let Some(fixture) = fixture(subject).await else {
        return;
    };
    if !fixture.kinds().contains(&AddonKind::JumpHost) {
        return;
    }
    let keys = "spec.jump_host.private_keys_secret";
    let kubeconfig = "spec.jump_host.kubeconfig_secret";
    let table: &[Wrong] = &[
        ("spec.jump_host.port", |it| jump_host(it).port = Some(0)),
        ("spec.jump_host.port", |it| {
            jump_host(it).port = Some(65_536);
        }),
        ("spec.jump_host.authorized_keys[1]", |it| {
            jump_host(it).authorized_keys.push("rsa....".to_owned());
        }),
        ("spec.jump_host.authorized_keys[1]", |it| {
            let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExampleExampleExample key";
            jump_host(it).authorized_keys.push(key.to_owned());
        }),
        ("spec.jump_host.authorized_keys[0]", |it| {
            let keys = &mut jump_host(it).authorized_keys;
            keys[0] = format!("{}\n{}", keys[0], keys[0]);
        }),
        (keys, |it| it.secrets.clear()),
        (keys, |it| {
            jump_host(it).private_keys_secret = "a/b".to_owned();
        }),
        (keys, |it| give(it, "node-keys", &[], b"")),
        (keys, |it| give(it, "node-keys", &["../id"], b"key")),
        (keys, |it| give(it, "node-keys", &[".."], b"key")),
        (kubeconfig, |it| {
            jump_host(it).kubeconfig_secret = "cluster".to_owned();
        }),
        (kubeconfig, |it| {
            jump_host(it).kubeconfig_secret = "cluster".to_owned();
            give(it, "cluster", &["config"], b"content");
        }),
        (kubeconfig, |it| {
            jump_host(it).kubeconfig_secret = "cluster".to_owned();
            give(it, "cluster", &["kubeconfig"], b"");
        }),
    ];
    let right = fixture.addon(AddonKind::JumpHost, "one");
    fixture.refuses(&right, table).await;
}

pub(in super::super) async fn each_wrong_field_of_an_oidc_provider_is_named(subject: &Subject) {
    let Some(fixture) = fixture(subject).await else {
        return;
    };
    if !fixture.kinds().contains(&AddonKind::OidcProvider) {
        return;
    }
    let issuer = "spec.oidc_provider.issuer";
    let tls = "spec.oidc_provider.tls_secret";
    let client = "spec.oidc_provider.clients[0].secret";
    let table: &[Wrong] = &[
        (issuer, |it| provider(it).issuer = "example.org".to_owned()),
        (issuer, |it| {
            provider(it).issuer = "ftp://example.org".to_owned();
        }),
        (issuer, |it| provider(it).issuer = "https://".to_owned()),
        (issuer, |it| {
            provider(it).issuer = "https://example.org/?a=b".to_owned();
        }),
        ("spec.oidc_provider.port", |it| {
            provider(it).port = Some(0);
        }),
        ("spec.oidc_provider.clients[0].id", |it| {
            provider(it).clients[0].id = String::new();
        }),
        ("spec.oidc_provider.clients[1].id", |it| {
            let id = provider(it).clients[0].id.clone();
            provider(it).clients.push(OidcClient {
                id,
                ..OidcClient::default()
            });
        }),
        ("spec.oidc_provider.clients[0].redirect_uris[0]", |it| {
            provider(it).clients[0].redirect_uris[0] = String::new();
        }),
        (client, |it| it.secrets.clear()),
        (client, |it| give(it, "oidc-client", &["token"], b"content")),
        (client, |it| give(it, "oidc-client", &["secret"], b"")),
        ("spec.oidc_provider.connectors[0].type", |it| {
            connector(it, &[], &["clientSecret"]);
            provider(it).connectors[0].r#type = String::new();
        }),
        ("spec.oidc_provider.connectors[0].id", |it| {
            connector(it, &[], &["clientSecret"]);
            provider(it).connectors[0].id = String::new();
        }),
        ("spec.oidc_provider.connectors[1].id", |it| {
            connector(it, &[], &["clientSecret"]);
            connector(it, &[], &["clientSecret"]);
        }),
        ("spec.oidc_provider.connectors[0].secret", |it| {
            connector(it, &[], &["clientSecret"]);
            it.secrets.remove("connector");
        }),
        (
            "spec.oidc_provider.connectors[0].config.clientSecret",
            |it| connector(it, &["clientSecret"], &["clientSecret"]),
        ),
        (tls, |it| provider(it).tls_secret = "tls".to_owned()),
        (tls, |it| {
            provider(it).tls_secret = "tls".to_owned();
            give(it, "tls", &["tls.crt", "ca.key"], b"content");
        }),
        (tls, |it| {
            provider(it).tls_secret = "tls".to_owned();
            give(it, "tls", &["tls.crt", "ca.crt", "ca.key"], b"content");
        }),
    ];
    let right = fixture.addon(AddonKind::OidcProvider, "one");
    fixture.refuses(&right, table).await;
}

pub(in super::super) async fn unknown_properties_of_an_addon_are_named(subject: &Subject) {
    let Some(fixture) = balancers(subject).await else {
        return;
    };
    let table: &[Wrong] = &[("spec.properties.unknownToAnybody", |it| {
        let fields = [("unknownToAnybody".to_owned(), text("x"))].into();
        spec(it).properties = Some(Struct { fields });
    })];
    let right = fixture.addon(AddonKind::LoadBalancer, "one");
    fixture.refuses(&right, table).await;
}

pub(in super::super) async fn an_unknown_template_of_an_addon_is_not_found(subject: &Subject) {
    let Some(fixture) = fixture(subject).await else {
        return;
    };
    let kinds = fixture.kinds();
    if !kinds.contains(&AddonKind::Template) || subject.addon_template.is_none() {
        return;
    }
    let mut request = fixture.addon(AddonKind::Template, "one");
    if let Some(Kind::Template(it)) = spec(&mut request).kind.as_mut() {
        it.template = "unknown-to-anybody".to_owned();
    }
    for validate_only in [true, false] {
        request.validate_only = validate_only;
        let outcome = fixture.ensure_addon(&request).await;
        refused(outcome, Reason::TemplateNotFound, "an unknown template");
    }
    assert!(fixture.addon_names().await.is_empty());
}

pub(in super::super) async fn a_kind_of_addon_that_is_not_offered_is_refused(subject: &Subject) {
    let Some(fixture) = fixture(subject).await else {
        return;
    };
    let all = [
        AddonKind::LoadBalancer,
        AddonKind::JumpHost,
        AddonKind::OidcProvider,
    ];
    for kind in all.into_iter().filter(|it| !fixture.kinds().contains(it)) {
        let outcome = fixture.ensure_addon(&fixture.addon(kind, "one")).await;
        refused(outcome, Reason::CapabilityMissing, "a kind not offered");
        assert!(fixture.addon_names().await.is_empty());
    }
}

pub(in super::super) async fn each_wrong_field_of_a_removal_of_an_addon_is_named(
    subject: &Subject,
) {
    let Some((fixture, kind)) = any(subject).await else {
        return;
    };
    fixture.settle(&fixture.addon(kind, "one")).await;
    let table: [(&str, fn(&mut RemoveAddonRequest)); 7] = [
        ("expected_platform_uid", |it| {
            it.expected_platform_uid = String::new();
        }),
        ("fence", |it| it.fence = None),
        ("fence.epoch", |it| {
            it.fence = Some(Fence {
                epoch: 0,
                ..it.fence.clone().unwrap_or_default()
            });
        }),
        ("cluster_id", |it| it.cluster_id = String::new()),
        ("owner", |it| it.owner = "me".to_owned()),
        ("name", |it| it.name = String::new()),
        ("name", |it| it.name = "a.b".to_owned()),
    ];
    for (field, change) in table {
        let mut request = fixture.addon_removal("one");
        change(&mut request);
        let error = refused(fixture.remove_addon(&request).await, Reason::Invalid, field);
        assert!(
            error.fields().iter().any(|it| it.field == field),
            "{field}: {error:?}"
        );
    }
    assert_eq!(fixture.addon_names().await, ["one"], "it is still there");
    fixture.clean_addons().await;
}
