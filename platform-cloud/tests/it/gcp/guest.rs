//! User data reaches the program of the image that runs it, or is refused.

use drover_testing::platform::caller::user_data;
use serde_json::json;

use super::bench::Bench;

const SCRIPT: &str = "#!/bin/sh\necho here\n";
const CLOUD_CONFIG: &str = "#cloud-config\nruncmd: [date]\n";
const IGNITION: &str = r#"{"ignition": {"version": "3.4.0"}}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_runs_its_user_data() {
    let bench = Bench::new().await;
    for (image, data) in [
        (None, SCRIPT),
        (Some("debian-13"), SCRIPT),
        (Some("rocky"), SCRIPT),
        (Some("ubuntu"), SCRIPT),
        (Some("ubuntu"), CLOUD_CONFIG),
        (Some("cos"), CLOUD_CONFIG),
        (Some("fedora-coreos"), IGNITION),
        (Some("debian-cloud/debian-12"), SCRIPT),
    ] {
        let properties = image.map_or(json!({}), |image| json!({ "image": image }));
        let mut request = bench.request_with(1, &properties);
        request.bootstrap = Some(user_data(data));
        let nodes = bench.made_by(&request).await;
        let runs = bench.gce.runs(&nodes[0].node_id);
        assert_eq!(runs.as_deref(), Some(data), "{image:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_is_not_known_runs_its_user_data_under_the_key_that_is_said() {
    let bench = Bench::new().await;
    let properties = json!({ "image": "suse-cloud/sles-15", "userDataKey": "startup-script" });
    let mut request = bench.request_with(1, &properties);
    request.bootstrap = Some(user_data(SCRIPT));
    let nodes = bench.made_by(&request).await;
    let runs = bench.gce.runs(&nodes[0].node_id);
    assert_eq!(runs.as_deref(), Some(SCRIPT));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_data_that_the_image_would_not_run_is_refused() {
    let bench = Bench::new().await;
    for (properties, data) in [
        (json!({}), CLOUD_CONFIG),
        (
            json!({ "image": "rocky" }),
            "Content-Type: multipart/mixed\n",
        ),
        (json!({ "image": "fedora-coreos" }), SCRIPT),
        (
            json!({ "image": "fedora-coreos", "userDataKey": "startup-script" }),
            SCRIPT,
        ),
        (
            json!({ "image": "debian", "userDataKey": "user-data" }),
            SCRIPT,
        ),
        (json!({ "image": "suse-cloud/sles-15" }), SCRIPT),
        (
            json!({ "image": "projects/anybody/global/images/theirs" }),
            CLOUD_CONFIG,
        ),
    ] {
        let mut request = bench.request_with(1, &properties);
        request.bootstrap = Some(user_data(data));
        let error = bench.complaint(&request).await;
        assert_eq!(
            error.fields()[0].field,
            "group.properties.userDataKey",
            "{properties}: {error:?}"
        );
        assert!(!error.message().contains(data), "the data may hold secrets");
        assert!(bench.provision(&request).await.is_err());
    }
    assert_eq!(bench.gce.machines(), vec![]);
}
