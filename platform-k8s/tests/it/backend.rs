//! Which platform it is over a list of namespaces: the same when they get more, refused when they get fewer.

use drover_core::{Error, Reason};
use drover_platform_k8s::PlatformServer;
use drover_proto::platform::v1::{
    GetPlatformRequest, Platform, platform_service_client::PlatformServiceClient,
};
use drover_testing::kubernetes::{Namespace, until};
use serde_json::json;

use crate::bench::{rig, settings};

/// What a server over these namespaces says of itself.
async fn over(namespaces: &[&str]) -> Result<Platform, Error> {
    let mut settings = settings(namespaces[0]);
    settings.namespaces = namespaces.iter().map(|&name| name.to_owned()).collect();
    settings.kubeconfig = Some(rig().kubeconfig().to_owned());
    let server = PlatformServer::open(settings).await?;
    let mut client = PlatformServiceClient::new(drover_client::in_process(server.routes()));
    let answer = client.get_platform(GetPlatformRequest {}).await;
    server.shutdown().await;
    Ok(answer.unwrap().into_inner().platform.unwrap())
}

async fn uid(namespaces: &[&str]) -> String {
    over(namespaces).await.unwrap().uid
}

async fn namespaces() -> [Namespace; 2] {
    [rig().namespace().await, rig().namespace().await]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_platform_with_one_more_namespace_is_the_same() {
    let [one, two] = &namespaces().await;
    let first = uid(&[&one.name]).await;
    assert_eq!(uid(&[&one.name]).await, first);
    let both = over(&[&two.name, &one.name]).await.unwrap();
    assert_eq!(both.uid, first);
    let names = both.scope["namespaces"].split(',');
    assert_eq!(names.count(), 2, "{:?}", both.scope);
    let another = rig().namespace().await;
    assert_ne!(uid(&[&another.name]).await, first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_platform_without_one_of_its_namespaces_is_refused_until_somebody_says_that_it_is_empty()
{
    let [one, two] = &namespaces().await;
    let first = uid(&[&one.name, &two.name]).await;
    let error = over(&[&one.name]).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Precondition, "{error:?}");
    let said = format!("namespace {} was served", two.name);
    assert!(error.message().starts_with(&said), "{error}");
    // As the message has it.
    let (_, commands) = error.message().split_once("kubectl ").unwrap();
    let (delete, command) = commands.split_once("; kubectl ").unwrap();
    let expected = format!("-n {} delete configmap drover-platform", two.name);
    assert_eq!(delete, expected);
    let (command, patch) = command.split_once(" -p ").unwrap();
    let expected = format!(
        "-n {} patch configmap drover-platform --type merge",
        one.name
    );
    assert_eq!(command, expected);
    let patch = serde_json::from_str(patch.trim_matches('\'')).unwrap();
    let path = format!("{}/drover-platform", one.path("configmaps"));
    one.raw.merge(&path, &patch).await.unwrap();
    let path = format!("{}/drover-platform", two.path("configmaps"));
    two.raw.delete(&path).await.unwrap();
    assert_eq!(uid(&[&one.name]).await, first);
    // The other one may come back.
    assert_eq!(uid(&[&one.name, &two.name]).await, first);
    two.raw.delete(&path).await.unwrap();
    assert_ne!(uid(&[&two.name]).await, first, "alone it is another one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_is_gone_or_made_anew_does_not_make_another_platform() {
    let [one, two] = &namespaces().await;
    let names = [&*one.name, &*two.name];
    let error = over(&[&one.name, "never-there"]).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Precondition, "{error:?}");
    let first = uid(&names).await;
    one.remove_wholly().await;
    let without = over(&names).await.unwrap();
    assert_eq!(without.uid, first);
    let gone = format!("namespace {} is gone", one.name);
    let warned = without.warnings.iter().any(|it| it.starts_with(&gone));
    assert!(warned, "{:?}", without.warnings);
    let anew = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": one.name}});
    one.raw.create("/api/v1/namespaces", &anew).await.unwrap();
    assert_eq!(uid(&names).await, first);
    // It says so itself again.
    let record = format!("{}/drover-platform", one.path("configmaps"));
    let said = one.raw.get(&record).await.unwrap();
    assert_eq!(said["data"]["uid"], *first);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_platforms_do_not_become_one_and_a_copied_record_counts_for_nothing() {
    let [one, two] = &namespaces().await;
    let first = uid(&[&one.name]).await;
    let path = format!("{}/drover-platform", one.path("configmaps"));
    let mut copied = one.raw.get(&path).await.unwrap();
    copied["metadata"] = json!({"name": "drover-platform"});
    two.create("configmaps", &copied).await.unwrap();
    let other = uid(&[&two.name]).await;
    assert_ne!(other, first, "that of another cluster, say");
    let error = over(&[&one.name, &two.name]).await.unwrap_err();
    assert!(error.message().contains("of two platforms"), "{error}");
    // Nothing of the other one was changed.
    assert_eq!(uid(&[&two.name]).await, other);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_longer_list_is_not_served_where_it_cannot_be_written_down() {
    let [one, two] = &namespaces().await;
    let first = uid(&[&one.name]).await;
    // Nobody may change it any more.
    let path = format!("{}/drover-platform", one.path("configmaps"));
    one.raw
        .merge(&path, &json!({"immutable": true}))
        .await
        .unwrap();
    let error = over(&[&one.name, &two.name]).await.unwrap_err();
    assert!(error.message().contains("drover-platform"), "{error}");
    assert_eq!(uid(&[&one.name]).await, first);
    // In one that has none it would be of use, and is not needed.
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"},
        "spec": {"hard": {"count/configmaps": "0"}},
    });
    let three = rig().namespace().await;
    three.create("resourcequotas", &quota).await.unwrap();
    until("the quota counts", || async {
        let quota = three.get("resourcequotas", "none").await.unwrap();
        quota["status"]["hard"].is_object().then_some(())
    })
    .await;
    let alone = over(&[&three.name]).await.unwrap();
    let warned = alone.warnings.iter().any(|it| it.contains(&three.name));
    assert!(warned, "{:?}", alone.warnings);
}
