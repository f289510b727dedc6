use super::*;

fn kubeconfig(namespace: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Config, current-context: a, \
          clusters: [{{name: a, cluster: {{server: 'https://127.0.0.1:1'}}}}], \
          users: [{{name: a, user: {{token: t}}}}], \
          contexts: [{{name: a, context: {{cluster: a, user: a, namespace: {namespace}}}}}]}}"
    )
}

#[tokio::test(start_paused = true)]
async fn credentials_that_change_on_disk_are_used_by_themselves() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), kubeconfig("first")).unwrap();
    let settings = ClientSettings {
        kubeconfig: Some(file.path().to_owned()),
        ..ClientSettings::default()
    };
    let client = ApiClient::open(&settings).await.unwrap();
    assert_eq!(client.default_namespace(), "first");
    std::fs::write(file.path(), kubeconfig("second")).unwrap();
    let changed = async {
        while client.default_namespace() != "second" {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(600), changed)
        .await
        .unwrap();
}

#[tokio::test]
async fn those_who_ask_for_the_same_server_share_a_client_with_its_limits() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), kubeconfig("n")).unwrap();
    let settings = ClientSettings {
        kubeconfig: Some(file.path().to_owned()),
        max_concurrent_calls: 1,
        ..ClientSettings::default()
    };
    let clients = Clients::default();
    let (one, other) = (clients.get(&settings).await, clients.get(&settings).await);
    let apart = ClientSettings {
        context: Some("a".to_owned()),
        ..settings
    };
    let apart = clients.get(&apart).await.unwrap();
    let held = one.unwrap().permit().await;
    let _free = apart.permit().await;
    let other = other.unwrap();
    let mut waiting = std::pin::pin!(other.permit());
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    drop(held);
    waiting.await;
}
