//! Addons with exactly the rights of `deploy/kubernetes/addons`, and with each rule taken away.

use std::{collections::BTreeSet, sync::Arc};

use drover_core::{Error, Reason, Result};
use drover_platform::addons::{AddonWanted, Addons as _};
use drover_platform_k8s::{
    Settings,
    addons::{AddonsSettings, KubernetesAddons},
    client::Api,
};
use drover_proto::platform::v1::{OidcProvider, ResourcePhase, addon_spec::Kind};
use drover_testing::kubernetes::{
    FaultProxy, Namespace, Options, Rig, Speaks,
    manifests::{Places, apply, placed},
    until,
};
use serde_json::{Value, json};

use super::{
    bench::{balancer, owner},
    by_hand::orphan,
    mapping,
    others::addon,
    target,
};

/// The verbs and resources of the Role, but those that it only grants.
fn granted() -> BTreeSet<(String, String)> {
    let places = Places {
        system: "a",
        nodes: "b",
    };
    let role = placed("addons/role.yaml", places).remove(0);
    let words = |list: &Value| -> Vec<String> {
        let words = list.as_array().unwrap().iter();
        words
            .map(|word| word.as_str().unwrap().to_owned())
            .collect()
    };
    let mut all = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        let group = words(&rule["apiGroups"]).remove(0);
        if group == "dex.coreos.com" {
            continue;
        }
        for resource in words(&rule["resources"]) {
            // A faster way besides, for which clusters want one verb or the other.
            if resource == "pods/exec" {
                assert_eq!(words(&rule["verbs"]), ["get", "create"]);
                continue;
            }
            let resource = match group.as_str() {
                "" => resource,
                group => format!("{resource}.{group}"),
            };
            for verb in words(&rule["verbs"]) {
                all.insert((verb, resource.clone()));
            }
        }
    }
    all
}

/// Credentials with the rules of the Role that are kept.
async fn credentials(rig: &Rig, namespace: &Namespace, keep: impl Fn(&str) -> bool) -> FaultProxy {
    let places = Places {
        system: &namespace.name,
        nodes: &namespace.name,
    };
    apply(
        &namespace.raw,
        placed("base/system/service-account.yaml", places),
    )
    .await;
    let mut objects = placed("addons/role.yaml", places);
    let rules = objects[0]["rules"].as_array_mut().unwrap();
    for rule in rules {
        let resources = rule["resources"].as_array_mut().unwrap();
        resources.retain(|it| keep(it.as_str().unwrap()));
        if resources.is_empty() {
            // A rule needs a resource; nobody asks for this one.
            resources.push(json!("nothing"));
        }
    }
    apply(&namespace.raw, objects).await;
    let token = crate::rbac::token(namespace).await;
    let proxy = FaultProxy::over(rig.kubeconfig(), Speaks::AsClient).await;
    proxy.write_kubeconfig(&format!("token: {token}"));
    proxy
}

async fn open(proxy: &FaultProxy, namespace: &Namespace) -> Result<Option<KubernetesAddons>> {
    let settings = Arc::new(Settings {
        kubeconfig: Some(proxy.kubeconfig()),
        addons: AddonsSettings {
            namespace: Some(namespace.name.clone()),
            ..AddonsSettings::default()
        },
        ..Settings::default()
    });
    let api = Api::open(&settings).await?;
    KubernetesAddons::open(&api, &settings).await
}

fn both() -> [AddonWanted; 2] {
    let balancer = balancer(vec![mapping(None, 80, 1)], vec![target("a", "192.0.2.1")]);
    [
        balancer,
        addon(Kind::OidcProvider(OidcProvider::default()), Vec::new()),
    ]
}

/// Everything that addons do.
async fn live(addons: &KubernetesAddons) -> Result<()> {
    let owner = owner("blue");
    for wanted in both() {
        addons.check(&owner, &wanted).await?;
        addons.ensure(&owner, 1, &wanted).await?;
        addons.ensure(&owner, 2, &wanted).await?;
        addons.list(None).await?;
        while addons
            .remove(&owner, &wanted.spec.name)
            .await?
            .state
            .phase()
            != ResourcePhase::Gone
        {}
    }
    Ok(())
}

/// The rights that an error names, if it is about rights.
fn lacking(error: &Error) -> &str {
    assert_eq!(error.reason(), Reason::CredentialsRefused, "{error}");
    error.message()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rights_of_the_manifests_suffice_and_each_of_them_is_used() {
    let rig = Rig::shared(Options::kwok(3));
    let namespace = rig.namespace().await;
    let proxy = credentials(rig, &namespace, |_| true).await;
    // Rules take a moment to count.
    let addons = until("the rights count", || async {
        let addons = open(&proxy, &namespace).await.unwrap()?;
        addons.list(None).await.ok().map(|_| addons)
    })
    .await;
    live(&addons).await.unwrap();
    let [balancer, _] = both();
    let green = owner("green");
    for kinds in [
        &["deployments.apps"][..],
        &["deployments.apps", "replicasets.apps"],
    ] {
        let told = proxy.count("patch", "pods");
        addons.ensure(&green, 1, &balancer).await.unwrap();
        until("pods are told", || async {
            (proxy.count("patch", "pods") >= told + 2).then_some(())
        })
        .await;
        for kind in kinds {
            orphan(&namespace, kind).await;
        }
        until("what was orphaned is gone", || async {
            let removed = addons.remove(&green, "api").await.unwrap();
            (removed.state.phase() == ResourcePhase::Gone).then_some(())
        })
        .await;
    }
    let used: BTreeSet<(String, String)> = proxy
        .calls()
        .into_iter()
        .map(|call| (call.verb.to_string(), call.resource.clone()))
        .collect();
    let unused: Vec<_> = granted()
        .into_iter()
        // Apply creates what is not there: the API server asks for this right, too.
        .filter(|(verb, _)| verb != "create")
        .filter(|right| !used.contains(right))
        // kwok's pods say nothing, and nobody looks for objects whose labels are gone where all have them.
        .filter(|(_, resource)| resource != "pods/log")
        .collect();
    assert_eq!(unused, Vec::<(String, String)>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_of_the_rules_addons_are_refused_by_name() {
    let rig = Rig::shared(Options::kwok(3));
    for resource in [
        "deployments",
        "poddisruptionbudgets",
        "services",
        "configmaps",
        "secrets",
        "serviceaccounts",
        "roles",
        "rolebindings",
        "pods",
    ] {
        let namespace = rig.namespace().await;
        let proxy = credentials(rig, &namespace, |it| it != resource).await;
        let error = until(&format!("without {resource}"), || async {
            match open(&proxy, &namespace).await.unwrap() {
                None => (resource == "deployments").then_some(None),
                Some(addons) => live(&addons).await.err().map(Some),
            }
        })
        .await;
        if let Some(error) = error {
            assert!(lacking(&error).contains(resource), "{resource}: {error}");
        }
    }
}
