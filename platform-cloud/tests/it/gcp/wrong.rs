//! Errors name the cause and the remedy, and change nothing.

use std::{collections::BTreeSet, time::Duration};

use drover_core::{Class, Error, Reason};
use drover_emulators::{
    Fault, Settings as Common,
    gce::{Gce, GceSettings},
};
use drover_platform::driver::Driver;
use drover_platform_cloud::{
    cloud::{Cloud, CloudDriver, Filter},
    drivers::gcp::{self, Settings},
};
use drover_proto::platform::v1::{Bootstrap, NodePhase, ProvisionRequest, bootstrap::UserData};
use serde_json::json;

use super::bench::{Bench, settings};

async fn refused(settings: Settings) -> Error {
    match gcp::open(settings).await {
        Ok(_) => panic!("it was opened"),
        Err(error) => error,
    }
}

fn with_token(token: &str) -> GceSettings {
    GceSettings {
        tokens: BTreeSet::from([token.to_owned()]),
        ..GceSettings::default()
    }
}

#[tokio::test]
async fn wrong_credentials_project_region_and_zone_are_named_at_the_start() {
    let gce = Gce::start(with_token("right")).await.unwrap();
    let error = refused(settings(&gce)).await;
    assert_eq!(error.reason(), Reason::CredentialsRefused);
    assert!(
        error.message().contains("GOOGLE_APPLICATION_CREDENTIALS"),
        "{error}"
    );
    let missing = Settings {
        anonymous: false,
        access_token_file: Some("/nowhere/token".into()),
        ..settings(&gce)
    };
    let error = refused(missing).await;
    assert_eq!(error.reason(), Reason::CredentialsRefused);
    assert!(error.message().contains("/nowhere/token"), "{error}");

    let gce = Gce::start(GceSettings::default()).await.unwrap();
    let good = settings(&gce);
    for (settings, field, names) in [
        (
            Settings {
                project: "nobody".into(),
                ..good.clone()
            },
            "project",
            "nobody",
        ),
        (
            Settings {
                region: "mars-1".into(),
                ..good.clone()
            },
            "region",
            "mars-1",
        ),
        (
            Settings {
                zones: vec!["us-central1-a".into()],
                ..good.clone()
            },
            "zones[0]",
            "europe-west3-a",
        ),
        (
            Settings {
                ssh_keys: [("me".to_owned(), "nonsense".to_owned())].into(),
                ..good.clone()
            },
            "ssh_keys.me",
            "USER:",
        ),
    ] {
        let error = refused(settings).await;
        assert_eq!(error.fields()[0].field, field);
        assert!(error.message().contains(names), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_expires_is_named_and_one_that_is_renewed_is_used_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "first\n").unwrap();
    let gce = Gce::start(with_token("first")).await.unwrap();
    let settings = Settings {
        anonymous: false,
        access_token_file: Some(file.clone()),
        ..settings(&gce)
    };
    let bench = Bench::over(gce, settings).await;
    let node = bench
        .provision_until_known(&bench.request(1))
        .await
        .nodes
        .remove(0);
    bench.gce.expire_credentials();
    let error = bench.provision(&bench.request(1)).await.unwrap_err();
    assert_eq!(error.reason(), Reason::CredentialsRefused);
    assert!(
        error.message().contains("access_token_file") && !error.message().contains("first"),
        "{error}"
    );
    assert!(bench.deprovision(&bench.removal(&node)).await.is_err());
    assert_eq!(bench.gce.machines().len(), 1, "nothing was made or removed");

    std::fs::write(&file, "second").unwrap();
    bench.gce.accept_token("second");
    bench.provision_until_known(&bench.request(1)).await;
    bench.assert_nothing_doubled("expired");
    bench.assert_nothing_leaked("expired").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credentials_file_that_changes_is_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("credentials.json");
    let gce = Gce::start(with_token("access-first")).await.unwrap();
    let write = |refresh: &str| {
        let credentials = json!({
            "type": "authorized_user", "client_id": "id", "client_secret": "secret",
            "refresh_token": refresh, "token_uri": format!("{}/token", gce.url()),
        });
        std::fs::write(&file, credentials.to_string()).unwrap();
    };
    write("first");
    let settings = Settings {
        anonymous: false,
        credentials_file: Some(file.clone()),
        ..settings(&gce)
    };
    let bench = Bench::over(gce.clone(), settings).await;
    bench.provision_until_known(&bench.request(1)).await;
    bench.gce.expire_credentials();
    let error = bench.provision(&bench.request(1)).await.unwrap_err();
    assert_eq!(error.reason(), Reason::CredentialsRefused, "{error:?}");
    // Half a file is not taken.
    std::fs::write(&file, "{").unwrap();
    assert!(bench.provision(&bench.request(1)).await.is_err());
    bench.gce.accept_token("access-second");
    write("second");
    bench.provision_until_known(&bench.request(1)).await;
    bench.assert_nothing_leaked("another file").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn properties_of_the_kadende_sample_make_machines() {
    let bench = Bench::new().await;
    let sample = json!({ "key": "mwas", "instanceType": "t2.micro", "image": "amazonlinux" });
    let mut request = bench.request_with(2, &sample);
    request.bootstrap = Some(Bootstrap {
        user_data: Some(UserData::Text("#!/bin/sh\n".to_owned())),
        ..Bootstrap::default()
    });
    let nodes = bench.provision_until_known(&request).await.nodes;
    assert_eq!(nodes[0].node_class, "e2-micro");
    let instance = bench.gce.instance(&nodes[0].node_id).unwrap();
    let image = &instance["disks"][0]["initializeParams"]["sourceImage"];
    assert_eq!(
        image,
        "projects/rocky-linux-cloud/global/images/family/rocky-linux-9"
    );
    let items = instance["metadata"]["items"].as_array().unwrap();
    let value = |key: &str| {
        items.iter().find(|item| item["key"] == key).unwrap()["value"]
            .as_str()
            .unwrap()
    };
    assert!(value("ssh-keys").starts_with("mwas:ssh-ed25519 "));
    assert_eq!(value("startup-script"), "#!/bin/sh\n");
    let node = bench
        .until_phase(&nodes[0].node_id, NodePhase::Running)
        .await;
    assert!(
        node.addresses
            .iter()
            .any(|address| address.value.starts_with("10.")),
        "{node:?}"
    );
    assert!(
        node.provider_id
            .starts_with("gce://drover-emulated/europe-west3-"),
        "{node:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_that_can_be_said_of_a_machine_reaches_it() {
    let mut bench = Bench::new().await;
    bench.settings.network_tags = vec!["ours".to_owned()];
    bench.settings.service_account = Some("vm@p.iam.gserviceaccount.com".to_owned());
    bench.crash().await;
    let said = json!({
        "cpus": 2, "memory": 8, "capacityType": "spot", "externalAddress": true, "tags": ["db"],
        "diskSize": 50, "diskType": "pd-ssd", "network": "default", "subnetwork": "default",
        "userDataKey": "startup-script",
    });
    let mut request = bench.request_with(1, &said);
    request.bootstrap = Some(Bootstrap {
        user_data: Some(UserData::Text("#!/bin/sh\n".to_owned())),
        ..Bootstrap::default()
    });
    let node = bench.provision_until_known(&request).await.nodes.remove(0);
    let node = bench.until_phase(&node.node_id, NodePhase::Running).await;
    let instance = bench.gce.instance(&node.node_id).unwrap();
    let at = |pointer: &str| instance.pointer(pointer).cloned().unwrap_or_default();
    assert!(
        at("/machineType")
            .as_str()
            .unwrap()
            .ends_with("/e2-standard-2")
    );
    assert_eq!(at("/scheduling/provisioningModel"), "SPOT");
    assert_eq!(at("/tags/items"), json!(["db", "ours"]));
    assert_eq!(at("/disks/0/initializeParams/diskSizeGb"), "50");
    assert!(
        at("/disks/0/initializeParams/diskType")
            .as_str()
            .unwrap()
            .ends_with("/diskTypes/pd-ssd")
    );
    assert_eq!(
        at("/disks/0/initializeParams/labels/drover-cluster"),
        bench.cluster.as_str()
    );
    assert_eq!(
        at("/networkInterfaces/0/subnetwork"),
        "projects/drover-emulated/regions/europe-west3/subnetworks/default"
    );
    assert_eq!(
        at("/serviceAccounts/0/email"),
        "vm@p.iam.gserviceaccount.com"
    );
    assert_eq!(at("/metadata/items/0/key"), "startup-script");
    assert!(
        node.addresses
            .iter()
            .any(|address| address.value.starts_with("198.")),
        "{node:?}"
    );
    assert_eq!(node.labels["team.example/One"], "A_b.1");
}

/// The error of a request that must not reach an insert, as a dry run and for real.
async fn refused_before_any_insert(bench: &Bench, request: ProvisionRequest) -> Error {
    let dry = ProvisionRequest {
        validate_only: true,
        ..request.clone()
    };
    let checked = bench.provision(&dry).await.unwrap_err();
    let error = bench.provision(&request).await.unwrap_err();
    assert_eq!(error.reason(), checked.reason(), "a check says the same");
    assert_eq!(bench.gce.machines(), vec![], "nothing was made");
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_properties_are_refused_with_their_field_and_the_way_out() {
    let bench = Bench::new().await;
    for (properties, field, words) in [
        (
            json!({ "image": "projects/debian-cloud/global/images/family/debian-99" }),
            "group.properties.image",
            "debian-99",
        ),
        (
            json!({ "image": "al2023" }),
            "group.properties.image",
            "common.images",
        ),
        (
            json!({ "instanceType": "e9-huge" }),
            "group.node_class",
            "machine-types list",
        ),
        (
            json!({ "instanceType": "m5.large" }),
            "group.node_class",
            "common.node_classes",
        ),
        (
            json!({ "key": "nobody" }),
            "group.properties.key",
            "ssh_keys",
        ),
        (
            json!({ "sshKey": "nobody" }),
            "group.properties.sshKey",
            "ssh_keys",
        ),
        (
            json!({ "instanceSize": "abcd" }),
            "group.properties.instanceSize",
            "instanceType",
        ),
        (json!({ "diskSize": 0 }), "group.properties.diskSize", "1"),
        (json!({ "memory": 4096 }), "group.properties.memory", "128"),
        (
            json!({ "instanceType": "e2-small", "memory": 4 }),
            "group.properties.memory",
            "either",
        ),
    ] {
        let error = refused_before_any_insert(&bench, bench.request_with(1, &properties)).await;
        assert_eq!(error.class(), Class::Cannot, "{properties}");
        let fields: Vec<_> = error
            .fields()
            .iter()
            .map(|wrong| wrong.field.as_str())
            .collect();
        assert_eq!(fields, [field], "{properties}: {error}");
        assert!(error.message().contains(words), "{properties}: {error}");
    }
    let mut request = bench.request_with(1, &json!({ "instanceType": "e2-small" }));
    request.group.as_mut().unwrap().node_class = "e2-micro".to_owned();
    let error = refused_before_any_insert(&bench, request).await;
    assert_eq!(error.fields()[0].field, "group.node_class");

    let mut request = bench.request(1);
    request.bootstrap = Some(Bootstrap {
        user_data: Some(UserData::Text("x".repeat((256 << 10) + 1))),
        ..Bootstrap::default()
    });
    let error = refused_before_any_insert(&bench, request).await;
    assert!(error.message().contains("262144"), "{error}");

    // Networks are only validated by the insert.
    let request = bench.request_with(1, &json!({ "network": "nowhere" }));
    let error = bench.provision(&request).await.unwrap_err();
    assert_eq!(error.fields()[0].field, "group.properties.network");
    assert_eq!(bench.gce.machines(), vec![]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_zones_and_spent_quotas_are_said_as_such() {
    let room = ["a", "b", "c"].map(|zone| (format!("europe-west3-{zone}"), 1));
    let bench = Bench::with(GceSettings {
        common: Common {
            capacity: room.into(),
            ..Common::default()
        },
        ..GceSettings::default()
    })
    .await;
    let answer = bench.provision(&bench.request(5)).await.unwrap();
    assert_eq!((answer.nodes.len(), answer.failures.len()), (3, 2));
    let zones: BTreeSet<_> = answer
        .nodes
        .iter()
        .map(|node| &node.failure_domain)
        .collect();
    assert_eq!(zones.len(), 3, "spread over all zones");
    let error = bench.provision(&bench.request(1)).await.unwrap_err();
    assert_eq!(error.reason(), Reason::NoCapacity);
    assert!(
        error.message().contains("does not have enough resources"),
        "{error}"
    );

    let bench = Bench::with(GceSettings {
        common: Common {
            quota: Some(2),
            ..Common::default()
        },
        ..GceSettings::default()
    })
    .await;
    let answer = bench.provision(&bench.request(3)).await.unwrap();
    assert_eq!((answer.nodes.len(), answer.failures.len()), (2, 1));
    let error = bench.provision(&bench.request(1)).await.unwrap_err();
    assert_eq!(error.reason(), Reason::QuotaExceeded);
    assert!(error.message().contains("IAM & Admin"), "{error}");
    bench.assert_nothing_leaked("quota").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_permissions_are_named() {
    let bench = Bench::new().await;
    let message =
        "Required 'compute.instances.create' permission for 'projects/p/zones/z/instances/x'";
    bench.gce.control().fail_always(
        "instances.insert",
        Some(Fault::refuse(403, "forbidden", message)),
    );
    let error = bench.provision(&bench.request(2)).await.unwrap_err();
    assert_eq!(error.reason(), Reason::PermissionDenied);
    assert!(
        error.message().contains("compute.instances.create"),
        "{error}"
    );
    assert!(
        error.message().contains("roles/compute.instanceAdmin.v1"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_api_is_called_slower_and_everything_is_made_once() {
    let bench = Bench::with(GceSettings {
        common: Common {
            rate: Some(50.0),
            burst: Some(5.0),
            ..Common::default()
        },
        ..GceSettings::default()
    })
    .await;
    let answer = bench.provision_until_known(&bench.request(20)).await;
    assert_eq!((answer.nodes.len(), answer.failures.len()), (20, 0));
    bench.assert_nothing_doubled("throttled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_do_to_machines_is_seen() {
    let bench = Bench::new().await;
    let nodes = bench.provision_until_known(&bench.request(4)).await.nodes;
    for node in &nodes {
        bench.until_phase(&node.node_id, NodePhase::Running).await;
    }
    let [stopped, terminated, retagged, protected] = nodes.as_slice() else {
        panic!("four were asked for");
    };
    assert!(bench.gce.stop_by_hand(&stopped.node_id));
    bench
        .until_phase(&stopped.node_id, NodePhase::Stopped)
        .await;

    assert!(bench.gce.terminate_behind(&terminated.node_id));
    super::bench::until("it is not listed", || async {
        let nodes = bench.discover(&bench.cluster).await.ok()?;
        nodes
            .iter()
            .all(|node| node.node_id != terminated.node_id)
            .then_some(())
    })
    .await;
    let answer = bench.deprovision(&bench.removal(terminated)).await.unwrap();
    assert_eq!(
        answer.state(),
        drover_proto::platform::v1::DeprovisionState::Gone
    );

    // Without its labels it is foreign, so we must not delete it.
    assert!(
        bench
            .gce
            .retag_by_hand(&retagged.node_id, &[("drover-owner", None)])
    );
    let error = bench
        .deprovision(&bench.removal(retagged))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::NodeNotInCluster);

    assert!(bench.gce.protect_by_hand(&protected.node_id));
    let error = bench
        .deprovision(&bench.removal(protected))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::Protected);
    assert!(
        error.message().contains("--no-deletion-protection"),
        "{error}"
    );
    assert_eq!(bench.gce.machines().len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_clusters_node_is_left_alone() {
    let bench = Bench::new().await;
    let ours = bench
        .provision_until_known(&bench.request(1))
        .await
        .nodes
        .remove(0);
    let other = Bench::over(bench.gce.clone(), bench.settings.clone()).await;
    let theirs = other
        .provision_until_known(&other.request(1))
        .await
        .nodes
        .remove(0);
    let mut removal = bench.removal(&ours);
    removal.node_id.clone_from(&theirs.node_id);
    let error = bench.deprovision(&removal).await.unwrap_err();
    assert_eq!(error.reason(), Reason::NodeNotInCluster);
    // Machine names are not node ids.
    removal.node_id = bench.gce.instance(&theirs.node_id).unwrap()["name"]
        .as_str()
        .unwrap()
        .to_owned();
    let answer = bench.deprovision(&removal).await.unwrap();
    assert_eq!(
        answer.state(),
        drover_proto::platform::v1::DeprovisionState::Gone
    );
    assert_eq!(bench.gce.machines().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_that_differ_change_nothing() {
    let bench = Bench::new().await;
    for hours in [-26, 26] {
        bench.gce.set_skew_ms(hours * 3_600_000);
        let request = bench.request(2);
        bench
            .gce
            .control()
            .fail_next("instances.insert", Fault::LoseAnswer);
        let answer = bench.provision_until_known(&request).await;
        assert_eq!(answer.nodes.len(), 2);
    }
    bench.assert_nothing_doubled("skewed");
    bench.assert_nothing_leaked("skewed").await;
}

#[tokio::test]
async fn the_console_of_a_machine_can_be_read() {
    let bench = Bench::new().await;
    let node = bench
        .provision_until_known(&bench.request(1))
        .await
        .nodes
        .remove(0);
    let cloud = gcp::open(bench.settings.clone()).await.unwrap();
    let machine = cloud
        .list(&Filter::Id(node.node_id.clone()))
        .await
        .unwrap()
        .machines
        .remove(0);
    let text = String::from_utf8(cloud.console(&machine).await.unwrap()).unwrap();
    assert!(text.contains(&format!("{} login:", machine.name)), "{text}");
}

#[tokio::test]
async fn a_platform_that_is_not_reachable_says_so() {
    let gce = Gce::start(GceSettings::default()).await.unwrap();
    let settings = settings(&gce);
    let cloud = gcp::open(settings.clone()).await.unwrap();
    gce.shutdown().await;
    tokio::time::timeout(Duration::from_secs(10), async {
        let driver = CloudDriver::new(cloud, settings.common.clone()).unwrap();
        let error = driver.list().await.unwrap_err();
        assert_eq!(error.reason(), Reason::Unavailable);
        assert!(refused(settings).await.message().contains("zones.list"));
    })
    .await
    .unwrap();
}
