//! Errors name the cause and the remedy.

use drover_core::Reason;
use drover_emulators::{
    Fault, Settings as Common,
    metal::{Access, Metal, MetalSettings},
};
use drover_platform_cloud::drivers::metal::{self as driver, Settings};
use serde_json::json;

use super::bench::{Bench, NAMED_FIREWALL, NAMED_MACHINE, PROJECT, SMALL, until, user_data};

async fn opened(settings: Settings) -> drover_core::Error {
    match driver::open(settings).await {
        Ok(_) => panic!("it was opened"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn wrong_settings_and_credentials_are_named_when_it_is_opened() {
    let bench = Bench::new().await;
    let with = |change: &dyn Fn(&mut Settings)| {
        let mut settings = bench.settings.clone();
        change(&mut settings);
        settings
    };
    let error = opened(with(&|settings| settings.url = "metal".to_owned())).await;
    assert_eq!(error.fields()[0].field, "url");
    let error = opened(with(&|settings| {
        settings.url = format!("{}/elsewhere", settings.url);
    }))
    .await;
    assert_eq!(error.reason(), Reason::Unavailable);
    assert!(error.message().contains("url in the settings"), "{error}");
    let error = opened(with(&|settings| settings.project = "nothing".to_owned())).await;
    assert_eq!(error.fields()[0].field, "project");
    let error = opened(with(&|settings| settings.partition = "nowhere".to_owned())).await;
    assert_eq!(error.fields()[0].field, "partition");
    let error = opened(with(&|settings| {
        settings.token_file = None;
        settings.token_env = "DROVER_TEST_NO_SUCH_VARIABLE".to_owned();
        settings.hmac_env = "DROVER_TEST_NO_SUCH_VARIABLE_EITHER".to_owned();
    }))
    .await;
    assert_eq!(error.reason(), Reason::CredentialsRefused);
    assert!(
        error.message().contains("DROVER_TEST_NO_SUCH_VARIABLE"),
        "{error}"
    );
    bench.token("wrong-secret-token");
    let error = opened(bench.settings.clone()).await;
    assert_eq!(error.reason(), Reason::CredentialsRefused);
    assert!(
        error.message().contains("token") && !error.message().contains("wrong-secret-token"),
        "{error}"
    );
    assert!(!format!("{error:?}").contains("wrong-secret-token"));
}

#[tokio::test]
async fn a_token_that_expires_is_named_and_a_new_one_is_used_at_once() {
    let bench = Bench::new().await;
    let node = bench.make(1).await.remove(0);
    bench.metal.expire_credentials();
    let error = bench.refusal(&bench.request(1)).await;
    assert_eq!(error.reason(), Reason::CredentialsRefused);
    let error = until("the list fails", || async {
        bench.discover("").await.err()
    })
    .await;
    assert!(
        error.message().contains("/token"),
        "it names the file: {error}"
    );
    bench.metal.add_token("renewed", Access::Edit);
    bench.token("renewed");
    let nodes = until("the list is whole again", || async {
        bench.discover("").await.ok()
    })
    .await;
    assert_eq!(nodes[0].node_id, node.node_id);
    bench.assert_nothing_leaked("expired").await;
}

#[tokio::test]
async fn a_token_that_may_only_look_cannot_change_anything() {
    let bench = Bench::new().await;
    bench.token("emulator-view-token");
    let error = bench.refusal(&bench.request(1)).await;
    assert_eq!(error.reason(), Reason::PermissionDenied);
    assert!(error.message().contains("Metal-Edit"), "{error}");
    assert!(bench.made().is_empty());
}

#[tokio::test]
async fn a_wrong_clock_is_named_where_an_hmac_is_refused_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("hmac");
    std::fs::write(&key, "emulator-edit").unwrap();
    let bench = Bench::set(MetalSettings::default(), |settings| {
        settings.token_file = None;
        settings.hmac_file = Some(key.clone());
    })
    .await;
    bench.make(1).await;
    bench.metal.set_skew_ms(60_000);
    let error = bench.refusal(&bench.request(1)).await;
    assert_eq!(error.reason(), Reason::CredentialsRefused);
    assert!(error.message().contains("time on this machine"), "{error}");
    bench.metal.set_skew_ms(0);
    bench.make(1).await;
    std::fs::write(&key, "another-key").unwrap();
    assert_eq!(
        bench.refusal(&bench.request(1)).await.reason(),
        Reason::CredentialsRefused
    );
}

#[tokio::test]
async fn wrong_properties_are_named_with_their_field_and_nothing_is_made() {
    let bench = Bench::new().await;
    let table = [
        (
            json!({ "image": "nothing" }),
            "group.properties.image",
            Reason::Invalid,
        ),
        (
            json!({ "image": "firewall-ubuntu-2.0" }),
            "group.properties.image",
            Reason::Invalid,
        ),
        (
            json!({ "size": "huge" }),
            "group.node_class",
            Reason::NodeClassNotFound,
        ),
        (
            json!({ "size": SMALL, "instanceType": "c1-large-x86" }),
            "group.node_class",
            Reason::Invalid,
        ),
        (
            json!({ "memory": 100_000 }),
            "group.properties.memory",
            Reason::Invalid,
        ),
        (
            json!({ "partition": "nowhere" }),
            "group.properties.partition",
            Reason::Invalid,
        ),
        (
            json!({ "project": "another" }),
            "group.properties.project",
            Reason::Invalid,
        ),
        (
            json!({ "privateNetwork": "nothing" }),
            "group.properties.privateNetwork",
            Reason::Invalid,
        ),
        (
            json!({ "networks": ["nothing"] }),
            "group.properties.networks[0]",
            Reason::Invalid,
        ),
        (
            json!({ "sshKeys": ["my-key"] }),
            "group.properties.sshKeys[0]",
            Reason::Invalid,
        ),
        (
            json!({ "key": "my-key" }),
            "group.properties.key",
            Reason::Invalid,
        ),
        (
            json!({ "colour": "blue" }),
            "group.properties",
            Reason::Invalid,
        ),
    ];
    for (properties, field, reason) in table {
        let error = bench
            .complaint(&bench.request_with("db", 1, &properties))
            .await;
        assert_eq!(error.reason(), reason, "{properties}: {error}");
        let named = error
            .fields()
            .iter()
            .any(|wrong| wrong.field.starts_with(field));
        assert!(named, "{properties}: {:?}", error.fields());
    }
    let mut request = bench.request(1);
    request.group.as_mut().unwrap().node_class = "c1-large-x86".to_owned();
    request.group.as_mut().unwrap().properties = bench
        .request_with("db", 1, &json!({ "size": SMALL }))
        .group
        .unwrap()
        .properties;
    assert_eq!(
        bench.complaint(&request).await.fields()[0].field,
        "group.node_class"
    );
    let mut request = bench.request(1);
    request.bootstrap = Some(user_data(&"x".repeat(600 * 1024)));
    let error = bench.complaint(&request).await;
    assert!(error.message().contains("bytes"), "{error}");
    assert!(bench.made().is_empty());
}

#[tokio::test]
async fn a_named_machine_that_cannot_be_had_is_named() {
    let bench = Bench::new().await;
    let theirs = bench.metal.add_foreign(PROJECT, 1).remove(0);
    let large = drover_emulators::metal::hosts_of(0, 1, 1).remove(0);
    bench.metal.lock_by_hand(NAMED_FIREWALL, true);
    bench.metal.kill_by_hand(NAMED_MACHINE, false);
    let table = [
        (theirs.as_str(), Reason::HostClaimed),
        ("00000000-1111-4222-8333-444444444444", Reason::HostNotFound),
        ("node-1", Reason::Invalid),
        (large.as_str(), Reason::Invalid),
        (NAMED_FIREWALL, Reason::HostClaimed),
        (NAMED_MACHINE, Reason::NoCapacity),
    ];
    for (host, reason) in table {
        let mut request = bench.on_host(host);
        request.group.as_mut().unwrap().node_class = SMALL.to_owned();
        for error in [
            bench.complaint(&request).await,
            bench.refusal(&request).await,
        ] {
            assert_eq!(error.reason(), reason, "{host}: {error}");
            assert!(error.message().contains(host), "{error}");
        }
    }
    assert!(bench.made().is_empty());
    assert!(
        bench
            .metal
            .machines()
            .iter()
            .any(|machine| machine.id == theirs)
    );
}

#[tokio::test]
async fn no_room_and_no_quota_are_told_apart() {
    let bench = Bench::with(MetalSettings {
        common: Common {
            capacity: [("vagrant".to_owned(), 2)].into(),
            ..Common::default()
        },
        ..MetalSettings::default()
    })
    .await;
    let answer = bench.provision(&bench.request(3)).await.unwrap();
    assert_eq!((answer.nodes.len(), answer.failures.len()), (2, 1));
    let error = drover_convert::error::from_rpc_status(answer.failures[0].error.as_ref().unwrap());
    assert_eq!(error.reason(), Reason::NoCapacity);
    bench
        .metal
        .control()
        .fail_next("machine.allocate", Fault::Quota);
    let error = bench.refusal(&bench.request(1)).await;
    assert_eq!(error.reason(), Reason::QuotaExceeded, "{error}");
    bench.assert_nothing_leaked("capacity").await;
}

#[tokio::test]
async fn what_somebody_does_behind_our_back_is_seen_and_nothing_of_others_is_freed() {
    let bench = Bench::new().await;
    let nodes = bench.make(3).await;
    // Freed by hand, and immediately allocated by another project.
    bench.metal.terminate_behind(&nodes[0].node_id);
    let taken = bench.metal.add_foreign(PROJECT, 300);
    assert!(taken.contains(&nodes[0].node_id));
    let gone = bench.deprovision(&bench.removal(&nodes[0])).await;
    assert!(
        gone.is_err()
            || bench
                .metal
                .machines()
                .iter()
                .any(|m| m.id == nodes[0].node_id)
    );
    assert!(
        bench
            .metal
            .machines()
            .iter()
            .any(|machine| machine.id == nodes[0].node_id),
        "it is theirs now"
    );
    // Retagged by hand: without its identity it is foreign, and stays.
    assert!(
        bench
            .metal
            .retag_by_hand(&nodes[1].node_id, &[("drover.dev/owner", Some("me"))])
    );
    assert!(bench.deprovision(&bench.removal(&nodes[1])).await.is_err());
    assert!(
        bench
            .metal
            .machines()
            .iter()
            .any(|machine| machine.id == nodes[1].node_id)
    );
    // The node of another cluster.
    let mut removal = bench.removal(&nodes[2]);
    removal.cluster_id = "another".to_owned();
    assert_eq!(
        bench.deprovision(&removal).await.unwrap_err().reason(),
        Reason::NodeNotInCluster
    );
    assert!(
        bench
            .metal
            .machines()
            .iter()
            .any(|machine| machine.id == nodes[2].node_id)
    );
    // Locked by hand.
    bench.metal.lock_by_hand(&nodes[2].node_id, true);
    let error = bench
        .deprovision(&bench.removal(&nodes[2]))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::Protected, "{error}");
    assert!(error.message().contains("unlock"));
}

#[tokio::test]
async fn an_account_full_of_machines_of_others_is_read_whole() {
    let metal = Metal::start(MetalSettings {
        partitions: vec![drover_emulators::metal::PartitionSettings {
            machines: 5_200,
            ..MetalSettings::default().partitions.remove(0)
        }],
        ..MetalSettings::default()
    })
    .await
    .unwrap();
    let (mut settings, _directory) = super::bench::settings(&metal);
    settings.common.call_timeout_seconds = 120.0;
    let foreign = metal.add_foreign(PROJECT, 10_000);
    assert_eq!(foreign.len(), 10_000);
    let cloud = driver::open(settings).await.unwrap();
    let listed = drover_platform_cloud::cloud::Cloud::list(
        &*cloud,
        &drover_platform_cloud::cloud::Filter::All,
    )
    .await
    .unwrap();
    assert_eq!((listed.machines.len(), listed.warnings.len()), (10_000, 0));
    metal
        .control()
        .fail_next("machine.ipmi.find", Fault::CutAnswer);
    let short = drover_platform_cloud::cloud::Cloud::list(
        &*cloud,
        &drover_platform_cloud::cloud::Filter::All,
    )
    .await;
    assert!(short.is_err(), "a list that is cut off is an error");
}
