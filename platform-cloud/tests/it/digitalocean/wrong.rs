//! Errors name the cause and the remedy.

use std::time::Duration;

use drover_core::{Error, Reason};
use drover_emulators::{
    ANY, Fault, Request, Settings as Common,
    digitalocean::{DigitalOceanSettings, TOKEN},
};
use drover_platform_cloud::{
    cloud::Cloud,
    drivers::digitalocean::{self, Settings},
};
use drover_proto::platform::v1::{Bootstrap, NodeRole, bootstrap::UserData};
use drover_testing::wait::best_of_three;
use serde_json::json;
use tokio::time::Instant;

use super::bench::{Bench, serve, user_data};

#[track_caller]
fn says(error: &Error, reason: Reason, field: &str, words: &[&str]) {
    assert_eq!(error.reason(), reason, "{error:?}");
    let found = error
        .fields()
        .first()
        .map_or("", |violation| &violation.field);
    assert_eq!(found, field, "{error:?}");
    for word in words {
        assert!(
            error.message().contains(word),
            "{word:?} is not in {error:?}"
        );
    }
}

async fn fails_to_open(settings: &Settings) -> Error {
    serve(settings).await.err().expect("it does not open")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_platform_that_cannot_work_does_not_open() {
    let bench = Bench::new().await;
    let token = bench.directory.path().join("token");
    std::fs::write(&token, "dop_v1_wrong").unwrap();
    let error = fails_to_open(&bench.settings).await;
    let out = [
        "cloud.digitalocean.com/account/api/tokens",
        token.to_str().unwrap(),
    ];
    says(&error, Reason::CredentialsRefused, "", &out);
    assert!(!error.message().contains("dop_v1"), "{error:?}");

    std::fs::write(&token, "\n").unwrap();
    let error = fails_to_open(&bench.settings).await;
    says(
        &error,
        Reason::CredentialsRefused,
        "",
        &["is missing or no token", token.to_str().unwrap()],
    );

    std::fs::write(&token, TOKEN).unwrap();
    let mut settings = bench.settings.clone();
    settings.regions.push("mars1".to_owned());
    let error = fails_to_open(&settings).await;
    says(
        &error,
        Reason::Invalid,
        "digitalocean.regions",
        &["mars1", "fra1"],
    );

    let mut settings = bench.settings.clone();
    settings.endpoint = "http://api.digitalocean.com".to_owned();
    let error = fails_to_open(&settings).await;
    says(
        &error,
        Reason::Invalid,
        "digitalocean.endpoint",
        &["https is required"],
    );

    let mut settings = bench.settings.clone();
    // No server listens there.
    settings.endpoint = "http://127.0.0.1:1".to_owned();
    let error = fails_to_open(&settings).await;
    says(&error, Reason::Unavailable, "", &["cannot connect"]);
    assert!(!format!("{settings:?}").contains(TOKEN));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_expires_is_replaced_without_a_restart() {
    let bench = Bench::with(DigitalOceanSettings {
        tokens: vec![TOKEN.to_owned(), "dop_v1_next".to_owned()],
        ..DigitalOceanSettings::default()
    })
    .await;
    let nodes = bench.make(2).await;
    bench.cloud.revoke(TOKEN);
    let token = bench.directory.path().join("token");
    let error = bench.refusal(&bench.request(1)).await;
    says(
        &error,
        Reason::CredentialsRefused,
        "",
        &["read again", token.to_str().unwrap()],
    );
    let error = bench
        .deprovision(&bench.removal(&nodes[0]))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::CredentialsRefused);
    assert_eq!(bench.cloud.machines().len(), 2, "nothing was lost");
    std::fs::write(&token, "dop_v1_next\n").unwrap();
    bench.make(1).await;
    bench.assert_nothing_leaked("new token").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_of_another_account_is_not_used_and_no_droplet_counts_as_gone() {
    let bench = Bench::with(DigitalOceanSettings {
        tokens: vec![TOKEN.to_owned(), "dop_v1_next".to_owned()],
        other: Some(Box::new(DigitalOceanSettings {
            tokens: vec!["dop_v1_other".to_owned()],
            team: "00000000-0000-4000-8000-000000000000".to_owned(),
            ..DigitalOceanSettings::default()
        })),
        ..DigitalOceanSettings::default()
    })
    .await;
    let nodes = bench.make(2).await;
    let token = bench.directory.path().join("token");
    std::fs::write(&token, "dop_v1_other").unwrap();
    bench.cloud.revoke(TOKEN);
    let refused = |error: Error| says(&error, Reason::CredentialsRefused, "", &["account"]);
    refused(
        bench
            .deprovision(&bench.removal(&nodes[0]))
            .await
            .unwrap_err(),
    );
    refused(bench.refusal(&bench.request(1)).await);
    refused(bench.discover("").await.unwrap_err());
    assert!(bench.cloud.made_elsewhere().is_empty());
    assert_eq!(bench.cloud.machines().len(), 2);
    std::fs::write(&token, "dop_v1_next").unwrap();
    assert_eq!(bench.discover("").await.unwrap().len(), 2);
    bench.assert_nothing_leaked("another account").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_may_only_read_makes_nothing() {
    let bench = Bench::with(DigitalOceanSettings {
        read_only_tokens: vec![TOKEN.to_owned()],
        tokens: Vec::new(),
        ..DigitalOceanSettings::default()
    })
    .await;
    let error = bench.refusal(&bench.request(1)).await;
    says(&error, Reason::PermissionDenied, "", &["scopes", "droplet"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_properties_are_refused_with_their_field() {
    let bench = Bench::new().await;
    let vpc = bench.cloud.default_vpc("ams3").unwrap();
    let nowhere = "00000000-0000-4000-8000-000000000000";
    for (properties, reason, field, words) in [
        (
            json!({"image": "windows-3"}),
            Reason::Invalid,
            "group.properties.image",
            vec!["windows-3"],
        ),
        (
            json!({"sshKey": "nobody"}),
            Reason::Invalid,
            "group.properties.sshKey",
            vec!["nobody", "account/security"],
        ),
        (
            json!({"instanceType": "t2.micro"}),
            Reason::NodeClassNotFound,
            "",
            vec!["t2.micro", "s-1vcpu-1gb"],
        ),
        (
            json!({"vpcUuid": nowhere}),
            Reason::Invalid,
            "group.properties.vpcUuid",
            vec![nowhere],
        ),
        (
            json!({"vpcUuid": vpc}),
            Reason::Invalid,
            "group.properties.vpcUuid",
            vec!["ams3", "fra1"],
        ),
        (
            json!({"region": "ams3"}),
            Reason::Invalid,
            "group.properties.region",
            vec!["placement"],
        ),
        (
            json!({"colour": "red"}),
            Reason::Invalid,
            "group.properties.colour",
            vec!["colour"],
        ),
        (
            json!({"memory": -1}),
            Reason::Invalid,
            "group.properties.memory",
            vec![],
        ),
        (
            json!({"tags": ["a:b"]}),
            Reason::Invalid,
            "group.properties.tags[0]",
            vec![],
        ),
        (
            json!({"ipv6": true, "publicNetworking": false}),
            Reason::Invalid,
            "group.properties.ipv6",
            vec![],
        ),
        (
            json!({"key": "a", "sshKey": "b"}),
            Reason::Invalid,
            "group.properties.key",
            vec!["sshKeys"],
        ),
    ] {
        let error = bench.complaint(&bench.request_with(1, &properties)).await;
        says(&error, reason, field, &words);
        assert!(
            bench
                .provision(&bench.request_with(1, &properties))
                .await
                .is_err()
        );
    }
    let mut request = bench.request_with(1, &json!({"instanceType": "s-1vcpu-1gb"}));
    request.group.as_mut().unwrap().node_class = "s-2vcpu-4gb".to_owned();
    let error = bench.complaint(&request).await;
    says(
        &error,
        Reason::Invalid,
        "group.node_class",
        &["s-2vcpu-4gb", "s-1vcpu-1gb"],
    );
    assert_eq!(bench.cloud.ledger(), vec![]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_data_that_does_not_fit_makes_no_call() {
    let bench = Bench::new().await;
    bench.cloud.control().clear_requests();
    let mut request = bench.request(1);
    request.bootstrap = Some(user_data(&"s3cret".repeat(11_000)));
    let error = bench.refusal(&request).await;
    says(&error, Reason::Invalid, "bootstrap", &["65536"]);
    request.bootstrap = Some(Bootstrap {
        user_data: Some(UserData::Binary(vec![0xff, 0xfe])),
        ..Bootstrap::default()
    });
    let error = bench.refusal(&request).await;
    says(&error, Reason::Invalid, "bootstrap", &["UTF-8"]);
    assert_eq!(bench.cloud.control().count("droplets.create"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_of_a_store_is_refused_with_its_field() {
    let bench = Bench::new().await;
    for (store, version) in [
        ("redis", "7"),
        ("etcd", "3.5"),
        ("postgresql", "15"),
        ("kubernetes", "v1.30.2"),
    ] {
        let mut request = bench.request(1);
        let cluster = request.cluster.as_mut().unwrap();
        (cluster.store, cluster.version) = (store.to_owned(), version.to_owned());
        request.bootstrap = Some(user_data("password"));
        request.slots[0].role = NodeRole::Standby.into();
        let error = bench.complaint(&request).await;
        let words = [store, "has no standby nodes"];
        says(&error, Reason::Invalid, "group.standby", &words);
        let error = bench.refusal(&request).await;
        says(&error, Reason::Invalid, "group.standby", &words);
    }
    assert_eq!(bench.made(), vec![]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_capacity_and_no_quota_are_told_apart() {
    let bench = Bench::with(DigitalOceanSettings {
        common: Common {
            capacity: [("fra1".to_owned(), 2)].into(),
            quota: Some(5),
            ..Common::default()
        },
        ..DigitalOceanSettings::default()
    })
    .await;
    let error = bench.refusal(&bench.request(3)).await;
    says(&error, Reason::NoCapacity, "", &["Region is not available"]);
    assert_eq!(
        error.metadata().get("failure_domain").map(String::as_str),
        Some("fra1")
    );
    bench.cloud.add_foreign(5);
    let error = bench.refusal(&bench.request(1)).await;
    says(
        &error,
        Reason::QuotaExceeded,
        "",
        &["droplet limit", "higher limit"],
    );
    let error = bench.complaint(&bench.request(1)).await;
    says(&error, Reason::QuotaExceeded, "", &["5 droplets"]);
    assert_eq!(bench.made(), vec![]);
    // A size that is only available elsewhere means no capacity here, and is not requested.
    bench.cloud.control().clear_requests();
    let error = bench
        .refusal(&bench.request_with(1, &json!({"instanceType": "s-8vcpu-16gb"})))
        .await;
    assert_eq!(error.reason(), Reason::QuotaExceeded);
    let bench = Bench::set(DigitalOceanSettings::default(), |settings| {
        settings.regions = vec!["lon1".to_owned()];
    })
    .await;
    let request = bench.request_with(1, &json!({"instanceType": "g-2vcpu-8gb"}));
    let error = bench.refusal(&request).await;
    says(
        &error,
        Reason::NoCapacity,
        "",
        &["g-2vcpu-8gb", "lon1", "ams3"],
    );
    assert_eq!(bench.cloud.control().count("droplets.create"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn droplets_of_others_and_locked_ones_are_left_alone() {
    let bench = Bench::new().await;
    let nodes = bench.make(2).await;
    let mut removal = bench.removal(&nodes[0]);
    removal.cluster_id = "another".to_owned();
    let error = bench.deprovision(&removal).await.unwrap_err();
    says(&error, Reason::NodeNotInCluster, "", &["left alone"]);
    let mut removal = bench.removal(&nodes[0]);
    removal.node_id.clone_from(&nodes[1].node_id);
    let error = bench.deprovision(&removal).await.unwrap_err();
    says(&error, Reason::SlotMismatch, "", &["left alone"]);

    assert!(bench.cloud.lock(&nodes[0].node_id, true));
    let error = bench
        .deprovision(&bench.removal(&nodes[0]))
        .await
        .unwrap_err();
    says(
        &error,
        Reason::Precondition,
        "",
        &["locked", "cloudsupport.digitalocean.com"],
    );
    assert_eq!(bench.cloud.machines().len(), 2);
    assert!(bench.cloud.lock(&nodes[0].node_id, false));
    bench.assert_nothing_leaked("unlocked").await;
    assert_eq!(bench.cloud.control().count("droplets.delete-by-tag"), 0);
}

/// How long droplets take if the clock of the API is wrong and it asks to wait for a second.
async fn made_by_wrong_clock(hours: i64) -> Duration {
    let bench = Bench::new().await;
    bench.cloud.set_skew_ms(hours * 3_600_000);
    let throttle = Fault::Throttle {
        retry_after: Some(Duration::from_secs(1)),
    };
    bench.cloud.control().fail_next("droplets.create", throttle);
    let began = Instant::now();
    bench.make(2).await;
    let took = began.elapsed();
    bench.assert_nothing_leaked("clock").await;
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_clock_changes_nothing() {
    for hours in [-24, 24] {
        println!("{hours} h");
        best_of_three(Duration::from_secs(10), async || {
            made_by_wrong_clock(hours).await
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_slow_down_before_the_hour_is_used_up() {
    let bench = Bench::set(
        DigitalOceanSettings {
            hourly_limit: Some(40),
            ..DigitalOceanSettings::default()
        },
        |settings| settings.common.calls_per_second = 8.0,
    )
    .await;
    let control = bench.cloud.control();
    let mut began = None;
    while control.count(ANY) < 40 {
        bench.discover("").await.unwrap();
        // A tenth of the quota is left.
        if control.count(ANY) >= 37 {
            began.get_or_insert_with(Instant::now);
        }
    }
    let began = began.unwrap();
    let took = began.elapsed();
    assert!(took > Duration::from_secs(2), "{took:?}");
    let refused = |request: &&Request| request.status == Some(429);
    assert_eq!(control.requests().iter().filter(refused).count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_without_the_scope_of_firewalls_is_told_before_a_droplet_needs_one() {
    let bench = Bench::new().await;
    let refused = Fault::refuse(403, "Forbidden", "You are missing the required permission");
    for operation in ["firewalls.list", "firewalls.create"] {
        let control = bench.cloud.control();
        control.fail_always(operation, Some(refused.clone()));
    }
    let opened = digitalocean::open(bench.settings.clone()).await.unwrap();
    let warnings = opened.info().warnings.clone();
    assert!(warnings[0].contains("scope firewall"), "{warnings:?}");
    let quiet = Settings {
        firewall: false,
        ..bench.settings.clone()
    };
    let opened = digitalocean::open(quiet).await.unwrap();
    assert!(opened.info().warnings.is_empty());
    let with = bench.request_with(1, &json!({"firewall": true}));
    let error = bench.complaint(&with).await;
    assert_eq!(error.reason(), Reason::PermissionDenied, "{error}");
    assert!(error.message().contains("firewall"), "{error}");
    // As droplets of an earlier platform are healed.
    bench.make(1).await;
    bench.assert_nothing_leaked("no scope").await;
}
