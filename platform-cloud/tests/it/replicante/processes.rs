//! Real processes behind the API.

use drover_replicante::ReplicanteSettings;

use crate::replicante::{
    client::{Site, until},
    local_support::{clean, processes_of, settings, state},
};

/// The built-in agent, which clusters without a store run.
const AGENTS: &str = r#"{
  "cluster": {
    "cluster_id": "hello", "store": "", "store_version": "",
    "nodes": {"web": {"desired_count": 2, "node_class": ""}}
  },
  "provision": {"count": 2, "node_group_id": "web"}
}"#;

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_processes_with_addresses_until_they_are_deprovisioned() {
    let directory = tempfile::tempdir().unwrap();
    let site = Site::over(settings(directory.path()), ReplicanteSettings::default()).await;
    let mut ids = site.provision(AGENTS).await.made();
    ids.sort_unstable();
    assert!(
        ids[0].starts_with("web-0-") && ids[1].starts_with("web-1-"),
        "{ids:?}"
    );
    until("both have an address", async || {
        let found = site.discover().await;
        let nodes = found["clusters"][0]["nodes"].as_array().unwrap();
        let known = |node: &serde_json::Value| {
            node["agent_address"]
                .as_str()
                .unwrap()
                .starts_with("http://127.0.0.1:")
        };
        nodes.len() == 2 && nodes.iter().all(known)
    })
    .await;
    assert_eq!(site.discovered("hello").await, ids);
    for id in &ids {
        assert_eq!(site.deprovision("hello", id).await.status, 204);
    }
    until("no process is left", async || {
        site.discovered("hello").await.is_empty()
            && processes_of(&state(directory.path())).is_empty()
    })
    .await;
    site.stop().await;
    clean(directory.path());
}
