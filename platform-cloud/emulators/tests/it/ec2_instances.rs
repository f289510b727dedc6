//! Instances of the EC2 emulator: creation, listing and termination.

use crate::common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::ec2::{call, done, listed, run, start};
use drover_emulators::ec2::{Ec2, Ec2Settings};
use drover_emulators::{Fault, Settings};

fn with(common: Settings) -> Ec2Settings {
    Ec2Settings {
        common,
        ..Ec2Settings::default()
    }
}

fn capacity(zones: &[(&str, usize)]) -> BTreeMap<String, usize> {
    zones
        .iter()
        .map(|(zone, most)| (format!("eu-central-1{zone}"), *most))
        .collect()
}

async fn zone_subnet(ec2: &Ec2, zone: &str) -> String {
    let zone = format!("eu-central-1{zone}");
    let filter = [
        ("Filter.1.Name", "availability-zone"),
        ("Filter.1.Value.1", zone.as_str()),
    ];
    done(ec2, "DescribeSubnets", &filter).await.text("subnetId")
}

#[tokio::test]
async fn a_client_token_answers_what_it_answered_before_or_refuses() {
    let ec2 = start(Ec2Settings {
        token_life: Duration::from_secs(600),
        ..Ec2Settings::default()
    })
    .await;
    tokio::time::pause();
    let first = done(
        &ec2,
        "RunInstances",
        &run("1", "3", &[("ClientToken", "t1")]),
    )
    .await;
    let again = done(
        &ec2,
        "RunInstances",
        &run("1", "3", &[("ClientToken", "t1")]),
    )
    .await;
    assert_eq!(first.text("reservationId"), again.text("reservationId"));
    assert_eq!(first.all("instanceId"), again.all("instanceId"));
    assert_eq!(first.all("amiLaunchIndex"), ["0", "1", "2"]);
    assert_eq!(ec2.machines().len(), 3);
    let mismatch = "400 IdempotentParameterMismatch";
    for (other, code) in [
        (run("1", "2", &[("ClientToken", "t1")]), mismatch),
        (
            run("1", "3", &[("ClientToken", "t1"), ("KeyName", "default")]),
            mismatch,
        ),
        (
            run(
                "1",
                "3",
                &[("ClientToken", "t1"), ("InstanceType", "t3.small")],
            ),
            mismatch,
        ),
        (
            run("1", "3", &[("ClientToken", "x".repeat(65).leak())]),
            "400 InvalidParameterValue",
        ),
    ] {
        assert_eq!(
            call(&ec2, "RunInstances", &other).await.code(),
            code,
            "{other:?}"
        );
    }
    // A different token or none creates another instance.
    done(
        &ec2,
        "RunInstances",
        &run("1", "3", &[("ClientToken", "t2")]),
    )
    .await;
    done(&ec2, "RunInstances", &run("1", "3", &[])).await;
    assert_eq!(ec2.machines().len(), 9);
    // A failed call does not use up its token.
    let bad = run("1", "1", &[("ClientToken", "t3"), ("KeyName", "nobody")]);
    assert_eq!(
        call(&ec2, "RunInstances", &bad).await.code(),
        "400 InvalidKeyPair.NotFound"
    );
    done(
        &ec2,
        "RunInstances",
        &run("1", "1", &[("ClientToken", "t3")]),
    )
    .await;
    // The token of a terminated instance does not create another one.
    ec2.terminate_behind(&first.text("instanceId"));
    let ended = call(
        &ec2,
        "RunInstances",
        &run("1", "3", &[("ClientToken", "t1")]),
    )
    .await;
    assert_eq!(ended.code(), "400 IdempotentInstanceTerminated");
    // Tokens expire.
    tokio::time::advance(Duration::from_secs(601)).await;
    let before = ec2.machines().len();
    done(
        &ec2,
        "RunInstances",
        &run("1", "3", &[("ClientToken", "t2")]),
    )
    .await;
    assert_eq!(ec2.machines().len(), before + 3);
    let keyed = ec2
        .ledger()
        .iter()
        .filter(|made| made.kind == "instance" && made.key.is_some())
        .count();
    assert_eq!(keyed, 3 + 3 + 1 + 3);
}

#[tokio::test]
async fn a_new_instance_is_seen_later_than_it_is_made_but_its_token_knows_it() {
    let common = Settings {
        visibility_delay: Duration::from_secs(2),
        ..Settings::default()
    };
    let ec2 = start(with(common)).await;
    tokio::time::pause();
    let made = done(
        &ec2,
        "RunInstances",
        &run("1", "1", &[("ClientToken", "t")]),
    )
    .await;
    let id = made.text("instanceId");
    assert_eq!(listed(&ec2, &[]).await, vec![]);
    for (action, parameter) in [
        ("DescribeInstances", "InstanceId.1"),
        ("TerminateInstances", "InstanceId.1"),
        ("GetConsoleOutput", "InstanceId"),
    ] {
        let reply = call(&ec2, action, &[(parameter, &id)]).await;
        assert_eq!(reply.code(), "400 InvalidInstanceID.NotFound", "{action}");
    }
    let again = done(
        &ec2,
        "RunInstances",
        &run("1", "1", &[("ClientToken", "t")]),
    )
    .await;
    assert_eq!(again.text("instanceId"), id);
    assert_eq!(ec2.machines().len(), 1);
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(listed(&ec2, &[("InstanceId.1", &id)]).await.len(), 1);
    assert_eq!(listed(&ec2, &[]).await.len(), 1);
}

#[tokio::test]
async fn states_follow_the_delays() {
    let common = Settings {
        pending_delay: Duration::from_secs(10),
        stopping_delay: Duration::from_secs(5),
        ..Settings::default()
    };
    let ec2 = start(with(common)).await;
    tokio::time::pause();
    let made = done(&ec2, "RunInstances", &run("1", "1", &[])).await;
    assert_eq!(
        (made.text("name"), made.text("ipAddress")),
        ("pending".into(), String::new())
    );
    let id = made.text("instanceId");
    let by_id = [("InstanceId.1", id.as_str())];
    let state = async || listed(&ec2, &by_id).await.remove(0).1;
    assert_eq!(
        call(&ec2, "StopInstances", &by_id).await.code(),
        "400 IncorrectInstanceState"
    );
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(state().await, "running");
    let first = done(&ec2, "DescribeInstances", &by_id)
        .await
        .text("ipAddress");
    assert!(first.starts_with("18."), "{first}");
    done(&ec2, "StopInstances", &by_id).await;
    assert_eq!(state().await, "stopping");
    assert_eq!(
        call(&ec2, "StartInstances", &by_id).await.code(),
        "400 IncorrectInstanceState"
    );
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(state().await, "stopped");
    done(&ec2, "StartInstances", &by_id).await;
    assert_eq!(state().await, "pending");
    tokio::time::advance(Duration::from_secs(10)).await;
    let second = done(&ec2, "DescribeInstances", &by_id)
        .await
        .text("ipAddress");
    assert!(
        second != first && second.starts_with("18."),
        "a public address does not outlive a stop"
    );
    let ended = done(&ec2, "TerminateInstances", &by_id).await;
    assert_eq!(ended.all("name"), ["shutting-down", "running"]);
    tokio::time::advance(Duration::from_secs(5)).await;
    let shown = done(&ec2, "DescribeInstances", &by_id).await;
    assert_eq!(
        (shown.text("name"), shown.text("privateIpAddress")),
        ("terminated".into(), String::new())
    );
    assert_eq!(ec2.machines(), vec![]);
    done(&ec2, "TerminateInstances", &by_id).await;
    assert_eq!(
        call(&ec2, "StartInstances", &by_id).await.code(),
        "400 IncorrectInstanceState"
    );
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert_eq!(
        call(&ec2, "DescribeInstances", &by_id).await.code(),
        "400 InvalidInstanceID.NotFound"
    );
    assert!(
        ec2.ledger()
            .iter()
            .filter(|made| made.kind != "vpc" && !made.foreign)
            .all(|made| made.gone)
    );
}

#[tokio::test]
async fn a_zone_gives_what_room_it_has_and_no_more() {
    let settings = Ec2Settings {
        spot_capacity: capacity(&[("a", 1)]),
        ..with(Settings {
            capacity: capacity(&[("a", 3), ("b", 0), ("c", 1)]),
            ..Settings::default()
        })
    };
    let ec2 = start(settings).await;
    let (a, b) = (zone_subnet(&ec2, "a").await, zone_subnet(&ec2, "b").await);
    let none = "500 InsufficientInstanceCapacity";
    let part = done(&ec2, "RunInstances", &run("1", "10", &[("SubnetId", &a)])).await;
    assert_eq!(part.all("instanceId").len(), 3);
    assert_eq!(
        call(&ec2, "RunInstances", &run("1", "1", &[("SubnetId", &a)]))
            .await
            .code(),
        none
    );
    assert_eq!(
        call(&ec2, "RunInstances", &run("1", "1", &[("SubnetId", &b)]))
            .await
            .code(),
        none
    );
    assert_eq!(
        call(&ec2, "RunInstances", &run("2", "2", &[])).await.code(),
        none,
        "c has room for one"
    );
    let any = done(&ec2, "RunInstances", &run("1", "2", &[])).await;
    assert_eq!(any.all("availabilityZone"), ["eu-central-1c"]);
    // Spot instances have a capacity of their own, and a price.
    let spot = ("InstanceMarketOptions.MarketType", "spot");
    let price = "InstanceMarketOptions.SpotOptions.MaxPrice";
    let low = run("1", "1", &[("SubnetId", &a), spot, (price, "0.0001")]);
    assert_eq!(
        call(&ec2, "RunInstances", &low).await.code(),
        "400 SpotMaxPriceTooLow"
    );
    let made = done(
        &ec2,
        "RunInstances",
        &run("1", "5", &[("SubnetId", &a), spot, (price, "0.01")]),
    )
    .await;
    assert_eq!(made.all("instanceLifecycle"), ["spot"]);
    assert_eq!(
        call(
            &ec2,
            "RunInstances",
            &run("1", "1", &[("SubnetId", &a), spot])
        )
        .await
        .code(),
        none
    );
    // Stopping frees capacity, which may be taken by others before the next start.
    let id = part.text("instanceId");
    done(&ec2, "StopInstances", &[("InstanceId.1", &id)]).await;
    done(&ec2, "RunInstances", &run("1", "1", &[("SubnetId", &a)])).await;
    assert_eq!(
        call(&ec2, "StartInstances", &[("InstanceId.1", &id)])
            .await
            .code(),
        none
    );
    ec2.set_capacity("eu-central-1a", None);
    done(&ec2, "StartInstances", &[("InstanceId.1", &id)]).await;
}

#[tokio::test]
async fn quotas_refuse_the_whole_call() {
    let quota = with(Settings {
        quota: Some(2),
        ..Settings::default()
    });
    let vcpus = Ec2Settings {
        vcpu_quota: Some(4),
        ..Ec2Settings::default()
    };
    let spot = Ec2Settings {
        spot_quota: Some(2),
        ..Ec2Settings::default()
    };
    let market = [("InstanceMarketOptions.MarketType", "spot")];
    for (settings, more, code) in [
        (quota, &[][..], "400 InstanceLimitExceeded"),
        (vcpus, &[][..], "400 VcpuLimitExceeded"),
        (spot, &market[..], "400 MaxSpotInstanceCountExceeded"),
    ] {
        let ec2 = start(settings).await;
        assert_eq!(
            call(&ec2, "RunInstances", &run("1", "3", more))
                .await
                .code(),
            code
        );
        let made = done(&ec2, "RunInstances", &run("1", "2", more)).await;
        assert_eq!(
            call(&ec2, "RunInstances", &run("1", "1", more))
                .await
                .code(),
            code
        );
        done(
            &ec2,
            "TerminateInstances",
            &[("InstanceId.1", &made.text("instanceId"))],
        )
        .await;
        done(&ec2, "RunInstances", &run("1", "1", more)).await;
    }
}

#[tokio::test]
async fn pages_are_whole_in_order_and_a_page_that_fails_is_an_error() {
    let ec2 = start(Ec2Settings::default()).await;
    done(&ec2, "RunInstances", &run("12", "12", &[])).await;
    ec2.add_foreign(3);
    let all: Vec<String> = listed(&ec2, &[])
        .await
        .into_iter()
        .map(|(id, _)| id)
        .collect();
    assert_eq!(all.len(), 15);
    let page = [("MaxResults", "7")];
    let first = done(&ec2, "DescribeInstances", &page).await;
    let token = first.text("nextToken");
    let next = [("MaxResults", "7"), ("NextToken", token.as_str())];
    ec2.control().fail_next(
        "DescribeInstances",
        Fault::refuse(500, "InternalError", "page"),
    );
    assert_eq!(
        call(&ec2, "DescribeInstances", &next).await.code(),
        "500 InternalError"
    );
    // Instances created or terminated between two pages do not shift the others.
    ec2.terminate_behind(&all[0]);
    done(&ec2, "RunInstances", &run("1", "1", &[])).await;
    let second = done(&ec2, "DescribeInstances", &next).await;
    let token = second.text("nextToken");
    let third = done(
        &ec2,
        "DescribeInstances",
        &[("MaxResults", "7"), ("NextToken", &token)],
    )
    .await;
    let mut seen = first.all("instanceId");
    seen.extend(second.all("instanceId"));
    seen.extend(third.all("instanceId"));
    assert_eq!(seen[..15], all);
    assert_eq!((seen.len(), third.text("nextToken")), (16, String::new()));
    for (parameters, code) in [
        (vec![("MaxResults", "4")], "400 InvalidParameterValue"),
        (vec![("MaxResults", "1001")], "400 InvalidParameterValue"),
        (vec![("NextToken", "nonsense")], "400 InvalidNextToken"),
        (
            vec![("MaxResults", "7"), ("InstanceId.1", all[1].as_str())],
            "400 InvalidParameterCombination",
        ),
    ] {
        assert_eq!(
            call(&ec2, "DescribeInstances", &parameters).await.code(),
            code,
            "{parameters:?}"
        );
    }
    let small = start(with(Settings {
        page_size: Some(2),
        ..Settings::default()
    }))
    .await;
    small.add_foreign(3);
    let page = done(&small, "DescribeInstances", &page).await;
    assert_eq!(page.all("instanceId").len(), 2);
    assert!(!page.text("nextToken").is_empty());
}

#[tokio::test]
async fn protection_keeps_the_instances_of_its_zone() {
    let ec2 = start(Ec2Settings::default()).await;
    let (a, b) = (zone_subnet(&ec2, "a").await, zone_subnet(&ec2, "b").await);
    let protected = run(
        "1",
        "1",
        &[("SubnetId", &a), ("DisableApiTermination", "true")],
    );
    let protected = done(&ec2, "RunInstances", &protected)
        .await
        .text("instanceId");
    let near = done(&ec2, "RunInstances", &run("1", "1", &[("SubnetId", &a)]))
        .await
        .text("instanceId");
    let far = done(&ec2, "RunInstances", &run("1", "1", &[("SubnetId", &b)]))
        .await
        .text("instanceId");
    let all = [
        ("InstanceId.1", far.as_str()),
        ("InstanceId.2", near.as_str()),
        ("InstanceId.3", protected.as_str()),
    ];
    let refused = call(&ec2, "TerminateInstances", &all).await;
    assert_eq!(refused.code(), "400 OperationNotPermitted");
    assert!(refused.text("Message").contains(&protected), "{refused:?}");
    let left: Vec<String> = ec2
        .machines()
        .into_iter()
        .map(|machine| machine.id)
        .collect();
    assert_eq!(left, [protected.clone(), near.clone()]);
    let attribute = [
        ("InstanceId", protected.as_str()),
        ("Attribute", "disableApiTermination"),
    ];
    assert_eq!(
        done(&ec2, "DescribeInstanceAttribute", &attribute)
            .await
            .text("value"),
        "true"
    );
    let off = [
        ("InstanceId", protected.as_str()),
        ("DisableApiTermination.Value", "false"),
    ];
    done(&ec2, "ModifyInstanceAttribute", &off).await;
    done(&ec2, "TerminateInstances", &all).await;
    assert_eq!(ec2.machines(), vec![]);
}
