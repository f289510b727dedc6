//! The platform with exactly the rights of `deploy/kubernetes/hosts`, and with each of them taken away.

use drover_core::Reason;
use drover_platform_k8s::PlatformServer;
use drover_proto::platform::v1::{
    GetPlatformRequest, platform_service_client::PlatformServiceClient,
};
use drover_testing::kubernetes::{
    FaultProxy, Options, Rig, Speaks,
    manifests::{Places, apply, placed},
    until,
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    Place, host,
    place::{names, settings},
};

/// Gives the ServiceAccount these rules, and answers credentials of it.
async fn granted(place: &Place, keep: impl Fn(&str, &str) -> bool) -> FaultProxy {
    let rig = Rig::shared(Options::default());
    let namespace = &place.namespace;
    let places = Places {
        system: &namespace.name,
        nodes: &namespace.name,
    };
    let files = [
        "base/system/service-account.yaml",
        "hosts/role.yaml",
        "hosts/cluster-role.yaml",
    ];
    for file in files {
        let mut objects = placed(file, places);
        for object in &mut objects {
            let rules = object.get_mut("rules").and_then(Value::as_array_mut);
            for rule in rules.into_iter().flatten() {
                let resource = rule["resources"][0].as_str().unwrap().to_owned();
                let verbs = rule["verbs"].as_array_mut().unwrap();
                verbs.retain(|verb| keep(verb.as_str().unwrap(), &resource));
                // A rule needs a verb; nobody asks for this one.
                if verbs.is_empty() {
                    verbs.push(json!("nothing"));
                }
            }
        }
        apply(&namespace.raw, objects).await;
    }
    let token = crate::rbac::token(namespace).await;
    let proxy = FaultProxy::over(rig.kubeconfig(), Speaks::AsClient).await;
    proxy.write_kubeconfig(&format!("token: {token}"));
    proxy
}

async fn open(place: &Place, proxy: &FaultProxy) -> drover_core::Result<PlatformServer> {
    let rig = Rig::shared(Options::default());
    let mut settings = settings(rig, &place.namespace.name);
    settings.kubeconfig = Some(proxy.kubeconfig());
    PlatformServer::open(settings).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rights_of_the_manifests_suffice_and_each_of_them_is_needed() {
    let place = Place::with(&[host("h1", &[])]).await;
    for (verb, resource) in [
        ("get", "baremetalhosts"),
        ("list", "baremetalhosts"),
        ("watch", "baremetalhosts"),
        ("patch", "baremetalhosts"),
        ("get", "namespaces"),
    ] {
        let proxy = granted(&place, |a, b| (a, b) != (verb, resource)).await;
        // Rules take a moment to count.
        let error = until(&format!("without {verb} {resource}"), || async {
            open(&place, &proxy).await.err()
        })
        .await;
        assert_eq!(error.reason(), Reason::CredentialsRefused, "{error}");
        let right = format!("{verb} {resource}");
        assert!(error.message().contains(&right), "{right}: {error}");
    }
    let proxy = granted(&place, |_, resource| resource != "secrets").await;
    let without = until("a server that may not read secrets", || async {
        let server = open(&place, &proxy).await.ok()?;
        let mut client = PlatformServiceClient::new(drover_client::in_process(server.routes()));
        let platform = client.get_platform(GetPlatformRequest {}).await.unwrap();
        platform.into_inner().platform?.warnings.pop()
    })
    .await;
    assert!(without.contains("may not get secrets"), "{without}");

    let proxy = granted(&place, |_, _| true).await;
    let server = until("a server with all rights", || async {
        let server = open(&place, &proxy).await.ok()?;
        let mut client = PlatformServiceClient::new(drover_client::in_process(server.routes()));
        let platform = client.get_platform(GetPlatformRequest {}).await.unwrap();
        let warnings = platform.into_inner().platform?.warnings;
        warnings.is_empty().then_some(server)
    })
    .await;
    let place = place.served_by(server).await;
    let request = place.request(("blue", Uuid::new_v4()), 0..1, &[]);
    let nodes = place.provision(&request).await.unwrap();
    assert_eq!(names(&nodes), ["h1"]);
    assert_eq!(nodes[0].addresses.len(), 1, "its secret was read");
    place.remove(&nodes[0]).await.unwrap();
}
