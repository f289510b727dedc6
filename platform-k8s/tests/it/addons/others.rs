//! Jump hosts, OIDC providers and addons from templates of one's own.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use drover_core::Reason;
use drover_platform::addons::{AddonWanted, Addons as _};
use drover_proto::platform::v1::{
    AddonSecret, AddonSpec, AddonTarget, BmcAccess, JumpHost, OidcClient, OidcConnector,
    OidcProvider, TemplateAddon, addon_spec::Kind,
};
use drover_testing::{
    kubernetes::{Options, Rig},
    wait::holds,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use serde_json::{Value, json};

use super::{Bench, bench::properties, target};
use crate::bench::catalogue;

pub(crate) const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGVtdWxhdGVkZW11bGF0ZWRlbXVsYXRlZGVtdWxhdGVk me";

pub(super) fn secret(data: &[(&str, &str)]) -> AddonSecret {
    let owned = |(key, text): &(&str, &str)| ((*key).to_owned(), text.as_bytes().to_vec());
    AddonSecret {
        data: data.iter().map(owned).collect(),
    }
}

pub(super) fn addon(kind: Kind, targets: Vec<AddonTarget>) -> AddonWanted {
    AddonWanted {
        spec: AddonSpec {
            name: "one".to_owned(),
            interface: "oam".to_owned(),
            kind: Some(kind),
            ..AddonSpec::default()
        },
        targets,
        secrets: BTreeMap::new(),
    }
}

fn decoded(object: &Value, key: &str) -> String {
    let text = object["data"][key].as_str().unwrap();
    String::from_utf8(BASE64.decode(text).unwrap()).unwrap()
}

/// What makes new pods.
pub(super) async fn pod_template(bench: &Bench) -> Value {
    bench.object("deployments.apps", "").await["spec"]["template"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_jump_host_keeps_its_host_key_and_knows_every_target() {
    let bench = Bench::start().await;
    let jump = JumpHost {
        authorized_keys: vec![KEY.to_owned()],
        private_keys_secret: "node-keys".to_owned(),
        kubeconfig_secret: "kubeconfig".to_owned(),
        ..JumpHost::default()
    };
    let mut standby = target("worker-0", "192.0.2.20");
    standby.role = drover_proto::platform::v1::NodeRole::Standby.into();
    let targets = vec![target("cp-0", "192.0.2.10"), standby];
    let mut wanted = addon(Kind::JumpHost(jump.clone()), targets);
    wanted
        .secrets
        .insert("node-keys".to_owned(), secret(&[("id_ed25519", "private")]));
    wanted.secrets.insert(
        "kubeconfig".to_owned(),
        secret(&[("kubeconfig", "clusters: []")]),
    );
    let state = bench.ensure(&wanted).await.unwrap().state;
    assert_eq!(state.target_count, 2);
    bench
        .until_told("the pod knows both", 1, |live| {
            live.contains("Host cp-0\n  HostName 192.0.2.10\n")
                && live.contains("Host worker-0\n  HostName 192.0.2.20\n")
                && live.contains("IdentityFile /drover/secrets/keys/id_ed25519")
        })
        .await;
    let keys = bench.object("secrets", "-keys").await;
    assert_eq!(decoded(&keys, "id_ed25519"), "private");
    let host_key = bench.object("secrets", "-host-key").await;
    assert!(decoded(&host_key, "ssh_host_key").starts_with("-----BEGIN PRIVATE KEY-----"));

    let before = pod_template(&bench).await;
    wanted.targets.push(target("cp-1", "192.0.2.11"));
    bench.ensure(&wanted).await.unwrap();
    assert_eq!(
        pod_template(&bench).await,
        before,
        "a target replaces no pod"
    );
    let name = host_key["metadata"]["name"].as_str().unwrap();
    let stripped = json!({"metadata": {"labels": {"drover.dev/addon": null}}});
    bench
        .namespace
        .merge("secrets", name, &stripped)
        .await
        .unwrap();
    wanted.spec.kind = Some(Kind::JumpHost(JumpHost {
        authorized_keys: Vec::new(),
        ..jump
    }));
    bench.ensure(&wanted).await.unwrap();
    assert_ne!(
        pod_template(&bench).await,
        before,
        "nobody stays who may not"
    );
    let again = bench.object("secrets", "-host-key").await;
    assert_eq!(again["data"], host_key["data"]);
    assert_eq!(again["metadata"]["labels"]["drover.dev/addon"], "one");
    bench.remove("one").await;
    bench.namespace.until_empty("the jump host").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_have_no_management_controllers() {
    let bench = Bench::start().await;
    let jump = JumpHost {
        bmc: Some(BmcAccess::default()),
        ..JumpHost::default()
    };
    let wanted = addon(Kind::JumpHost(jump), Vec::new());
    let error = bench.ensure(&wanted).await.unwrap_err();
    assert_eq!(error.fields()[0].field, "spec.jump_host.bmc");
    assert!(bench.objects().await.is_empty());
}

/// Certificate and key of an authority.
pub(super) fn authority() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::<String>::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = authority.self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

fn provider() -> OidcProvider {
    let config = json!({"host": "ldap.example:636"});
    OidcProvider {
        issuer: "https://login.example".to_owned(),
        clients: vec![
            OidcClient {
                id: "kubernetes".to_owned(),
                redirect_uris: vec!["http://127.0.0.1:8000/callback".to_owned()],
                secret: "client".to_owned(),
            },
            OidcClient {
                id: "cli".to_owned(),
                ..OidcClient::default()
            },
        ],
        connectors: vec![OidcConnector {
            r#type: "ldap".to_owned(),
            id: "corp".to_owned(),
            config: Some(drover_convert::value::to_struct(
                config.as_object().unwrap(),
            )),
            secret: "ldap".to_owned(),
        }],
        tls_secret: "tls".to_owned(),
        ..OidcProvider::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oidc_provider_has_its_configuration_and_a_certificate_that_is_renewed_when_due() {
    let bench = Bench::start().await;
    let mut wanted = addon(Kind::OidcProvider(provider()), Vec::new());
    let (certificate, key) = authority();
    let pair = [("ca.crt", &*certificate), ("ca.key", &*key)];
    wanted.secrets.insert("tls".to_owned(), secret(&pair));
    wanted
        .secrets
        .insert("client".to_owned(), secret(&[("secret", "hunter2")]));
    wanted
        .secrets
        .insert("ldap".to_owned(), secret(&[("bindPW", "hunter3")]));
    bench.ensure(&wanted).await.unwrap();

    let secrets = bench.namespace.list("secrets").await;
    let with = |key: &str| {
        let has = |it: &&Value| it["data"][key].is_string();
        secrets.iter().find(has).unwrap().clone()
    };
    let config: Value =
        serde_json::from_str(&decoded(&with("config.yaml"), "config.yaml")).unwrap();
    let expected = json!({
        "issuer": "https://login.example",
        "storage": {"type": "kubernetes", "config": {"inCluster": true}},
        "web": {"https": "0.0.0.0:5556", "tlsCert": "/drover/tls/tls.crt", "tlsKey": "/drover/tls/tls.key"},
        "telemetry": {"http": "0.0.0.0:5558"},
        "oauth2": {"skipApprovalScreen": true},
        "staticClients": [
            {"id": "kubernetes", "name": "kubernetes", "redirectURIs": ["http://127.0.0.1:8000/callback"], "secret": "hunter2"},
            {"id": "cli", "name": "cli", "redirectURIs": [], "public": true},
        ],
        "connectors": [{
            "type": "ldap", "id": "corp", "name": "corp",
            "config": {"host": "ldap.example:636", "bindPW": "hunter3"},
        }],
        "enablePasswordDB": false,
    });
    assert_eq!(config, expected);
    let deployment = bench.object("deployments.apps", "").await.to_string();
    assert!(
        !deployment.contains("hunter"),
        "secrets are in Secrets only"
    );

    let issued = with("tls.crt");
    let template = pod_template(&bench).await;
    bench.ensure(&wanted).await.unwrap();
    let name = issued["metadata"]["name"].as_str().unwrap();
    let kept = bench.namespace.get("secrets", name).await.unwrap();
    assert_eq!(kept["data"], issued["data"], "it is not due");
    assert_eq!(pod_template(&bench).await, template);
    // Pods know a certificate by the second in which it is due.
    let second = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs()
    };
    let first = second();
    holds("another second", async || second() > first).await;
    let due = json!({"metadata": {"annotations": {"drover.dev/renew-after": "1"}}});
    bench.namespace.merge("secrets", name, &due).await.unwrap();
    bench.ensure(&wanted).await.unwrap();
    let renewed = bench.namespace.get("secrets", name).await.unwrap();
    assert_ne!(renewed["data"], issued["data"]);
    assert_ne!(
        pod_template(&bench).await,
        template,
        "pods read it when they begin"
    );

    wanted.secrets.insert(
        "tls".to_owned(),
        secret(&[("ca.crt", "x"), ("ca.key", "y")]),
    );
    let error = bench.addons.check(&bench.owner, &wanted).await.unwrap_err();
    assert_eq!(error.fields()[0].field, "spec.oidc_provider.tls_secret");
    bench.remove("one").await;
    bench.namespace.until_empty("the provider").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_addon_is_whatever_the_template_of_the_directory_makes() {
    let rig = Rig::shared(Options::kwok(3));
    let bench = Bench::over(rig, |settings| settings.templates = Some(catalogue())).await;
    let template = |name: &str| {
        Kind::Template(TemplateAddon {
            template: name.to_owned(),
        })
    };
    let targets = vec![target("a", "192.0.2.1"), target("b", "192.0.2.2")];
    let mut wanted = addon(template("notes"), targets);
    properties(&mut wanted, json!({"notes": "by hand"}));
    let state = bench.ensure(&wanted).await.unwrap().state;
    assert_eq!(
        state.phase().as_str_name(),
        "RESOURCE_PHASE_READY",
        "{}",
        state.message
    );
    assert_eq!(state.target_count, 2);
    let map = bench.object("configmaps", "").await;
    assert_eq!(
        map["data"],
        json!({"notes": "by hand", "targets": "192.0.2.1,192.0.2.2"})
    );

    properties(&mut wanted, json!({"deploy": true}));
    let error = bench.ensure(&wanted).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Precondition);
    assert!(error.message().contains("addons.kinds"), "{error}");
    wanted.spec.kind = Some(template("unknown"));
    let error = bench.ensure(&wanted).await.unwrap_err();
    assert_eq!(error.reason(), Reason::TemplateNotFound);
    bench.remove("one").await;
    bench.namespace.until_empty("the notes").await;
}
