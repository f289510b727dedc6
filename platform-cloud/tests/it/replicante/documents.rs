//! Invalid documents and requests: the error is in the body that clients decode.

use drover_platform_cloud::{DriverSettings, Settings, drivers::simulated::SimulatedSettings};
use drover_replicante::ReplicanteSettings;
use serde_json::{Value, json};

use crate::replicante::client::{SDK, SPECIFICATION, Site};

#[tokio::test]
async fn an_unknown_group_is_no_server_error_and_the_defined_ones_are_named() {
    let site = Site::new().await;
    for document in [SDK, SPECIFICATION] {
        let document = document.replace(r#""node_group_id": "data""#, r#""node_group_id": "dat""#);
        let body = site.provision(&document).await.refused(422);
        assert_eq!(body["node_group_id"], "dat");
        let defined = body["defined_node_groups"].as_array().unwrap();
        assert!(defined.contains(&json!("data")), "{body}");
        assert!(
            body["error_cause"].as_str().unwrap().contains("\"dat\""),
            "{body}"
        );
    }
    assert!(site.simulated().is_empty());
}

#[tokio::test]
async fn wrong_documents_are_refused_with_the_paths_of_their_fields() {
    let site = Site::new().await;
    let cases = [
        ("", "EOF"),
        ("{", "EOF"),
        ("[]", "expected an object"),
        ("{}", "cluster: is required"),
        (
            r#"{"cluster": {}, "provision": {}}"#,
            "cluster.cluster_id: is required",
        ),
    ];
    for (document, said) in cases {
        let body = site.provision(document).await.refused(400);
        assert!(
            body["error_cause"].as_str().unwrap().contains(said),
            "{body}"
        );
    }
    for (from, to, path) in [
        (r#""orders""#, "7", "cluster.cluster_id"),
        (r#""orders""#, r#""a b""#, "cluster.cluster_id"),
        (r#""mongodb""#, "null", "cluster.store"),
        (r#""4.0.5""#, "4", "cluster.store_version"),
        (r#"{"mode": "replica-set","#, r#"["hunter2", {"#, ""),
        (
            r#""desired_count": 3"#,
            r#""desired_count": 3.5"#,
            "cluster.nodes.data.desired_count",
        ),
        (
            r#""desired_count": 3,"#,
            "",
            "cluster.nodes.data.desired_count",
        ),
        (
            r#""node_class": "small""#,
            r#""node_class": []"#,
            "cluster.nodes.log.node_class",
        ),
        (
            r#""size": 3"#,
            r#""size": 9007199254740993"#,
            "cluster.attributes.tier.size",
        ),
        (
            r#""node_class": "large""#,
            r#""node_class": "large", "user_data": ["hunter2"]"#,
            "cluster.nodes.data.user_data",
        ),
        (
            r#""node_class": "large""#,
            r#""node_class": "large", "user_data": "hunter2", "storage": {"size": "hunter2"}"#,
            "cluster.nodes.data.storage.size",
        ),
        (
            r#""node_class": "large""#,
            r#""node_class": "large", "storage": {"size": "0"}"#,
            "cluster.nodes.data.storage.size",
        ),
        (
            r#""node_class": "small""#,
            r#""node_class": "small", "storage": {"class": 7}"#,
            "cluster.nodes.log.storage.class",
        ),
        (
            r#""node_class": "small""#,
            r#""node_class": "small", "storage": "50Gi""#,
            "cluster.nodes.log.storage",
        ),
        (r#""count": 2"#, r#""count": 65536"#, "provision.count"),
        (r#""count": 2"#, r#""count": -1"#, "provision.count"),
        (
            r#""node_group_id": "data""#,
            r#""node_group": """#,
            "provision.node_group_id",
        ),
        (
            r#""node_group_id": "data""#,
            r#""node_group_id": "data", "node_group": "log""#,
            "provision.node_group",
        ),
    ] {
        assert!(SDK.contains(from), "{from}");
        let body = site
            .provision(&SDK.replacen(from, to, 1))
            .await
            .refused(400);
        let text = body.to_string();
        assert!(text.contains(path), "{path} is not in {text}");
        assert!(!text.contains("hunter2"), "values stay out of {text}");
    }
    let long = format!(
        r#"{{"cluster_id": "a", "node_id": "{}"}}"#,
        "x".repeat(1025)
    );
    site.post("/deprovision", &long).await.refused(400);
    for document in [
        "",
        "{}",
        r#"{"cluster_id": 1, "node_id": "x"}"#,
        r#"{"cluster_id": "a"}"#,
    ] {
        site.post("/deprovision", document).await.refused(400);
    }
    assert!(site.simulated().is_empty());
}

#[tokio::test]
async fn http_is_spoken_as_it_is() {
    let site = Site::new().await;
    for (method, path, allow) in [
        ("POST", "/discover", "GET"),
        ("GET", "/provision", "POST"),
        ("DELETE", "/deprovision", "POST"),
    ] {
        let answer = site.send(method, path, &[], b"").await;
        answer.refused(405);
        assert!(answer.headers["allow"].contains(allow), "{path}");
    }
    // A page of another origin can send these without a CORS preflight.
    for kind in [
        None,
        Some("text/plain"),
        Some("application/x-www-form-urlencoded"),
        Some("application/jsonx"),
    ] {
        let headers: Vec<_> = kind
            .map(|kind| ("content-type", kind))
            .into_iter()
            .collect();
        let answer = site
            .send("POST", "/provision", &headers, SDK.as_bytes())
            .await;
        answer.refused(415);
    }
    let padding = " ".repeat(4 * 1024 * 1024);
    site.provision(&format!("{padding}{SDK}"))
        .await
        .refused(413);
    assert!(site.simulated().is_empty());

    let answer = site.send("GET", "/metrics", &[], b"").await;
    let counted = r#"drover_http_requests_total{path="/provision",method="POST",code="415"} 4"#;
    assert!(answer.body.contains(counted), "{}", answer.body);
}

/// A catalogue for MongoDB 3.4 as a sharded store and as a replica set.
const CATALOGUE: &str = r#"
stores:
  - store: mongodb
    versions:
      - {version: "^3.4", matchers: {mode: sharded, extra: "on"}, template: sharded.yaml}
      - {version: "^3.4", matchers: {mode: replica-set}, template: set.yaml}
"#;

#[tokio::test]
async fn templates_are_chosen_by_store_version_and_merged_attributes() {
    let directory = tempfile::tempdir().unwrap();
    for (name, content) in [
        ("index.yaml", CATALOGUE),
        (
            "sharded.yaml",
            "{{ group.attributes.extra }} {{ cluster.attributes.mode }}",
        ),
        (
            "set.yaml",
            "{{ node.id }} {{ group.attributes.no_such_attribute }}",
        ),
    ] {
        std::fs::write(directory.path().join(name), content).unwrap();
    }
    let settings = Settings {
        driver: DriverSettings::Simulated(Box::<SimulatedSettings>::default()),
        templates: Some(directory.path().to_owned()),
    };
    let site = Site::over(settings, ReplicanteSettings::default()).await;
    let document = |version: &str, cluster: Value, group: Value| {
        let group = json!({"attributes": group, "desired_count": 1, "node_class": ""});
        json!({
            "cluster": {
                "attributes": cluster, "cluster_id": "orders", "store": "mongodb", "store_version": version,
                "nodes": {"data": group},
            },
            "provision": {"count": 1, "node_group_id": "data"},
        })
        .to_string()
    };
    // The attributes of the group extend, override and remove those of the cluster.
    let sharded = json!({"mode": "sharded", "extra": "off"});
    let on = document("3.4", sharded.clone(), json!({"extra": "on"}));
    site.provision(&on).await.made();
    let away = document("3.4", sharded.clone(), json!({"extra": null}));
    let body = site.provision(&away).await.refused(422);
    assert!(
        body["error_cause"].as_str().unwrap().contains("3.4"),
        "{body}"
    );
    // The first rule does not win by default, and a template that does not match the request is not a server error.
    let set = document("3.4", json!({"mode": "replica-set"}), json!({}));
    let body = site.provision(&set).await.refused(422);
    assert!(
        body["error_cause"]
            .as_str()
            .unwrap()
            .contains("no_such_attribute"),
        "{body}"
    );
    // A missing template is reported, not turned into an address that does not exist.
    let unknown = document("5.0.1", sharded.clone(), json!({}));
    let body = site.provision(&unknown).await.refused(422);
    assert!(
        body["error_cause"].as_str().unwrap().contains("mongodb"),
        "{body}"
    );
    let nonsense = document("no version", sharded, json!({"extra": "on"}));
    let refused = site.provision(&nonsense).await;
    assert!((400..500).contains(&refused.status), "{}", refused.body);
    assert_eq!(site.simulated().len(), 1);
}

/// Changes a random place of a document.
fn mutate(random: &mut fastrand::Rng, value: &mut Value) {
    let junk = [
        json!(null),
        json!(-1),
        json!(1e300),
        json!(""),
        json!("\u{0}/\u{1f980}"),
        json!([]),
        json!({"": {"": null}}),
        json!("x".repeat(1000)),
    ];
    match value {
        Value::Object(fields) if !fields.is_empty() && random.u8(..) > 30 => {
            let keys: Vec<_> = fields.keys().cloned().collect();
            let key = &keys[random.usize(..keys.len())];
            match random.u8(..8) {
                0 => drop(fields.remove(key)),
                1 => {
                    let moved = fields.remove(key).unwrap_or_default();
                    fields.insert(format!("{key}/"), moved);
                }
                _ => mutate(random, &mut fields[key.as_str()]),
            }
        }
        other => *other = junk[random.usize(..junk.len())].clone(),
    }
}

#[tokio::test]
async fn random_documents_never_get_more_than_a_refusal() {
    let seed = drover_testing::seed::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let site = Site::new().await;
    for _ in 0..500 {
        let mut document: Value = serde_json::from_str(SDK).unwrap();
        for _ in 0..random.usize(1..4) {
            mutate(&mut random, &mut document);
        }
        let mut text = document.to_string().into_bytes();
        if random.u8(..8) == 0 {
            let at = random.usize(..text.len());
            text[at] = random.u8(..);
        }
        let headers = [("content-type", "application/json")];
        let answer = site.send("POST", "/provision", &headers, &text).await;
        let text = String::from_utf8_lossy(&text);
        match answer.status {
            200 => drop(answer.made()),
            400 | 422 => drop(answer.refused(answer.status)),
            other => panic!("{other} {} for {text}", answer.body),
        }
    }
    site.discover().await;
}
