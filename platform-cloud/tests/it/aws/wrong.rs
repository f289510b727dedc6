//! Invalid input, and an account that is shared with other users.

use std::{collections::BTreeSet, time::Duration};

use drover_core::{Class, Reason};
use drover_emulators::{
    Fault,
    ec2::{Ec2, Ec2Settings},
};
use drover_proto::platform::v1::{DeprovisionState, NodePhase};
use serde_json::{Value, json};

use crate::aws::bench::{Bench, KEY, credentials, serve, settings, until, user_data};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_at_the_start_is_said_with_its_way_out() {
    let only_key = Ec2Settings {
        access_keys: vec![KEY.to_owned()],
        ..Ec2Settings::default()
    };
    let ec2 = Ec2::start(only_key).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    credentials(directory.path(), "AKIAWRONG");
    let good = settings(&ec2.url(), directory.path());
    let error = serve(&good).await.err().unwrap();
    assert_eq!(error.reason(), Reason::CredentialsRefused, "{error:?}");
    assert!(error.message().contains("AWS_ACCESS_KEY_ID"), "{error}");
    assert!(!error.message().contains("secret"), "{error}");

    credentials(directory.path(), KEY);
    let mut elsewhere = good.clone();
    elsewhere.region = "eu-west-7".to_owned();
    let error = serve(&elsewhere).await.err().unwrap();
    assert!(
        error.message().contains("eu-west-7") || error.message().contains("valid region"),
        "{error:?}"
    );

    let mut typo = good.clone();
    typo.region = "frankfurt".to_owned();
    let error = serve(&typo).await.err().unwrap();
    assert_eq!(error.fields()[0].field, "region", "{error:?}");

    let mut zone = good.clone();
    zone.zones = vec!["eu-central-1z".to_owned()];
    let error = serve(&zone).await.err().unwrap();
    assert!(error.message().contains("eu-central-1a"), "{error:?}");

    let mut nobody = good.clone();
    nobody.endpoint = "http://127.0.0.1:9".to_owned();
    let error = serve(&nobody).await.err().unwrap();
    assert!(
        error.message().contains("eu-central-1") && error.message().contains("endpoint"),
        "{error:?}"
    );

    std::fs::write(directory.path().join("credentials"), "[other]\n").unwrap();
    let error = serve(&good).await.err().unwrap();
    assert_eq!(error.reason(), Reason::CredentialsRefused, "{error:?}");
    assert!(error.message().contains("credentials_file"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_group_says_wrong_is_named_and_nothing_is_made() {
    for bench in [Bench::emulator().await, Bench::moto().await] {
        let table = [
            (
                json!({ "image": "ami-0123456789abcdef0" }),
                "group.properties.image",
            ),
            (json!({ "image": "debain" }), "group.properties.image"),
            (
                json!({ "image": { "owner": "self", "name": "no-such-*" } }),
                "group.properties.image",
            ),
            (json!({ "key": "nobodys" }), "group.properties.key"),
            (
                json!({ "securityGroups": ["no-such-group"] }),
                "group.properties.securityGroups",
            ),
            (
                json!({ "subnet": "subnet-0123456789abcdef0" }),
                "group.properties.subnet",
            ),
            (
                json!({ "key": "a", "sshKey": "b" }),
                "group.properties.sshKey",
            ),
            (json!({ "imagee": "debian" }), "group.properties"),
        ];
        for (properties, field) in table {
            for validate_only in [true, false] {
                let mut request = bench.request(2, properties.clone()).await;
                request.validate_only = validate_only;
                let error = bench.refused(&request).await;
                assert_eq!(error.class(), Class::Cannot, "{properties}: {error:?}");
                assert!(
                    error
                        .fields()
                        .iter()
                        .any(|violation| violation.field.starts_with(field)),
                    "{properties}: {error:?}"
                );
            }
        }
        let mut request = bench.request(1, json!({ "instanceType": "m9.huge" })).await;
        request.validate_only = true;
        let error = bench.refused(&request).await;
        assert_eq!(error.reason(), Reason::NodeClassNotFound, "{error:?}");
        assert!(error.message().contains("m9.huge"), "{error}");

        let mut request = bench
            .request(1, json!({ "instanceType": "t3.small" }))
            .await;
        request.group.as_mut().unwrap().node_class = "t3.large".to_owned();
        let error = bench.refused(&request).await;
        assert_eq!(error.fields()[0].field, "group.node_class", "{error:?}");

        let asked = || (!bench.is_moto()).then(|| bench.ec2().control().count("RunInstances"));
        let before = asked();
        let mut request = bench.request(1, Value::Null).await;
        request.bootstrap = user_data(16 * 1024 + 1);
        let error = bench.refused(&request).await;
        assert!(
            error.message().contains("16384") || error.message().contains("16385"),
            "{error:?}"
        );
        assert_eq!(asked(), before, "EC2 is not even asked");
        assert_eq!(bench.nodes().await, vec![]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_is_told_and_makes_nothing() {
    let mut settings = Ec2Settings::default();
    settings.common.quota = Some(0);
    let bench = Bench::emulated(settings).await;
    let request = bench.request(2, Value::Null).await;
    let error = bench.refused(&request).await;
    assert_eq!(error.reason(), Reason::QuotaExceeded, "{error:?}");
    assert!(error.message().contains("quota"), "{error}");
    assert_eq!(bench.ec2().machines(), vec![]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_account_may_not_do_is_named() {
    let settings = Ec2Settings {
        denied: vec!["RunInstances".to_owned()],
        ..Ec2Settings::default()
    };
    let bench = Bench::emulated(settings).await;
    for validate_only in [true, false] {
        let mut request = bench.request(1, Value::Null).await;
        request.validate_only = validate_only;
        let error = bench.refused(&request).await;
        assert_eq!(error.reason(), Reason::CredentialsRefused, "{error:?}");
        assert!(error.message().contains("ec2:RunInstances"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_that_is_not_known_makes_nothing_and_leaves_nothing_open() {
    let bench = Bench::emulated(Ec2Settings {
        spot_role: false,
        ..Ec2Settings::default()
    })
    .await;
    let request = bench.request(1, json!({ "capacityType": "spot" })).await;
    let error = bench.refused(&request).await;
    assert_eq!(error.class(), Class::Credentials, "{error:?}");
    assert!(
        error.message().contains("iam:CreateServiceLinkedRole"),
        "{error}"
    );
    let denied = "You are not authorized to perform this operation. User: arn:aws:iam::1:user/u is not authorized to \
                  perform: iam:PassRole on resource: arn:aws:iam::1:role/r because no identity-based policy allows it";
    for (status, code, message, says) in [
        (
            400,
            "TagPolicyViolation",
            "The tag policy does not allow this.",
            "TagPolicyViolation",
        ),
        (
            400,
            "ReservationCapacityExceeded",
            "The reservation is full.",
            "ReservationCapacityExceeded",
        ),
        (403, "UnauthorizedOperation", denied, "grant iam:PassRole"),
    ] {
        let fault = Fault::refuse(status, code, message);
        bench.ec2().control().fail_next("RunInstances", fault);
        let request = bench.request(1, Value::Null).await;
        let error = bench.refused(&request).await;
        assert_ne!(error.class(), Class::Unknown, "{code}: {error:?}");
        assert!(error.message().contains(says), "{error}");
    }
    assert_eq!(bench.ec2().machines(), vec![]);
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_expire_are_told_and_new_ones_are_taken() {
    let ec2 = Ec2Settings {
        access_keys: vec![KEY.to_owned(), "AKIAROTATED".to_owned()],
        ..Ec2Settings::default()
    };
    let bench = Bench::emulated(ec2).await;
    let (_, nodes) = bench.make(2, Value::Null).await;
    bench.ec2().expire_credentials();
    let request = bench.request(1, Value::Null).await;
    let error = bench.refused(&request).await;
    assert_eq!(error.class(), Class::Credentials, "{error:?}");
    assert!(error.message().contains("session"), "{error}");
    let error = bench.deprovision(&nodes[0]).await.unwrap_err();
    assert_eq!(error.class(), Class::Credentials, "{error:?}");
    assert!(
        bench.discover(&bench.cluster).await.is_err(),
        "no list is better than a wrong one"
    );
    credentials(bench.directory.path(), "AKIAROTATED");
    bench.ec2().renew_credentials();
    let again = until("it works again", || async {
        bench.provision(&request).await.ok()
    })
    .await;
    assert_eq!(again.nodes.len(), 1);
    assert_eq!(bench.nodes().await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_keys_in_the_file_are_used_without_a_restart() {
    let ec2 = Ec2Settings {
        access_keys: vec!["AKIAROTATED".to_owned(), KEY.to_owned()],
        ..Ec2Settings::default()
    };
    let bench = Bench::emulated(ec2).await;
    credentials(bench.directory.path(), "AKIAROTATED");
    bench.ec2().expire_credentials();
    // The reload interval ignores the first refusal after the start; a later one triggers a reload.
    until("the keys are read again", || async {
        let _ = bench.discover(&bench.cluster).await;
        bench.ec2().renew_credentials();
        let seen = bench.discover(&bench.cluster).await.is_ok();
        bench.ec2().expire_credentials();
        seen.then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_wrong_is_told_or_made_up_for() {
    let bench = Bench::emulator().await;
    let request = bench.request(1, Value::Null).await;
    bench.ec2().set_skew_ms(3_600_000);
    // The SDK learns the clock skew from the error responses.
    until("the difference is made up for", || async {
        match bench.provision(&request).await {
            Ok(answer) => (!answer.nodes.is_empty()).then_some(()),
            Err(error) => {
                assert_eq!(error.class(), Class::Credentials, "{error:?}");
                assert!(error.message().contains("clock"), "{error}");
                None
            }
        }
    })
    .await;
    assert_eq!(bench.ec2().machines().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_foreign_instances_are_listed_and_left_alone() {
    let bench = Bench::emulated_with(Ec2Settings::default(), |settings| {
        // So that lists of this length leave time for the calls.
        settings.common.poll_interval_seconds = 2.0;
    })
    .await;
    bench.ec2().add_foreign(10_000);
    let (_, nodes) = bench.make(3, Value::Null).await;
    let all = bench.discover("").await.unwrap();
    assert_eq!(all.len(), 10_003);
    assert_eq!(bench.nodes().await.len(), 3);
    let foreign = all.iter().find(|node| node.cluster_id.is_empty()).unwrap();
    for id in [
        foreign.node_id.clone(),
        "i-0123456789abcdef0".to_owned(),
        "nonsense".to_owned(),
    ] {
        let mut target = nodes[0].clone();
        target.node_id.clone_from(&id);
        match bench.deprovision(&target).await {
            Ok(answer) => assert_eq!(answer.state(), DeprovisionState::Gone, "{id}"),
            Err(error) => assert_eq!(error.reason(), Reason::NodeNotInCluster, "{error:?}"),
        }
    }
    for node in &nodes {
        bench.remove(node).await;
    }
    assert_eq!(bench.ec2().machines().len(), 10_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_of_another_cluster_is_left_alone() {
    let bench = Bench::emulator().await;
    let (_, nodes) = bench.make(1, Value::Null).await;
    let mut other = nodes[0].clone();
    other.cluster_id = "another".to_owned();
    let error = bench.deprovision(&other).await.unwrap_err();
    assert_eq!(error.reason(), Reason::NodeNotInCluster, "{error:?}");
    assert_eq!(bench.ec2().machines().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_behind_our_back_is_seen_and_nothing_else_is_deleted() {
    let bench = Bench::emulator().await;
    let (_, nodes) = bench.make(4, Value::Null).await;
    let ids: Vec<&str> = nodes.iter().map(|node| node.node_id.as_str()).collect();
    assert!(bench.ec2().terminate_behind(ids[0]));
    assert!(bench.ec2().stop_by_hand(ids[1]));
    assert!(
        bench
            .ec2()
            .retag_by_hand(ids[2], &[("drover.dev/owner", Some("somebody-else"))])
    );
    assert!(
        bench
            .ec2()
            .retag_by_hand(ids[3], &[("drover.dev/cluster", None)])
    );
    until("terminated is gone", || async {
        bench.node(ids[0]).await.is_none().then_some(())
    })
    .await;
    until("stopped is shown", || async {
        bench
            .node(ids[1])
            .await
            .filter(|node| node.phase() == NodePhase::Stopped)
    })
    .await;
    for retagged in [&nodes[2], &nodes[3]] {
        let error = bench.deprovision(retagged).await.unwrap_err();
        assert_eq!(error.reason(), Reason::NodeNotInCluster, "{error:?}");
    }
    bench.remove(&nodes[0]).await;
    bench.remove(&nodes[1]).await;
    let left: BTreeSet<String> = bench
        .ec2()
        .machines()
        .into_iter()
        .map(|machine| machine.id)
        .collect();
    assert_eq!(left, [ids[2], ids[3]].map(str::to_owned).into());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_an_answer_ends_in_time() {
    let bench = Bench::emulated_with(Ec2Settings::default(), |settings| {
        settings.common.call_timeout_seconds = 4.0;
    })
    .await;
    let request = bench.request(1, Value::Null).await;
    let stall = Fault::Stall(Duration::from_secs(8));
    bench.ec2().control().fail_next("RunInstances", stall);
    let error = bench.provision(&request).await.unwrap_err();
    assert_eq!(error.reason(), Reason::DeadlineExceeded, "{error:?}");
    assert_eq!(error.class(), Class::Unknown, "nobody knows");
    let nodes = until("it is known", || async {
        let answer = bench.provision(&request).await.ok()?;
        (!answer.nodes.is_empty()).then_some(answer.nodes)
    })
    .await;
    assert_eq!(nodes.len(), 1);
    let made = bench
        .ec2()
        .ledger()
        .into_iter()
        .filter(|made| made.kind == "instance")
        .count();
    assert_eq!(made, 1, "the token tells that it is the same launch");
}
