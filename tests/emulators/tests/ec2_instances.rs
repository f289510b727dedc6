//! Instances of the EC2 emulator: how they are made, shown, and ended.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::ec2::{DEBIAN, call, done, listed, run, start};
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
    // Another token, and no token, are other instances.
    done(
        &ec2,
        "RunInstances",
        &run("1", "3", &[("ClientToken", "t2")]),
    )
    .await;
    done(&ec2, "RunInstances", &run("1", "3", &[])).await;
    assert_eq!(ec2.machines().len(), 9);
    // A call that failed has not used its token.
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
    // The token of an ended instance makes no other.
    ec2.terminate_behind(&first.text("instanceId"));
    let ended = call(
        &ec2,
        "RunInstances",
        &run("1", "3", &[("ClientToken", "t1")]),
    )
    .await;
    assert_eq!(ended.code(), "400 IdempotentInstanceTerminated");
    // Tokens are forgotten in the end.
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
    // Spot instances have room of their own, and a price.
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
    // Who stops gives room; who wants to start again may find it taken.
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
    // What is made and ended between two pages moves nothing.
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

#[tokio::test]
async fn what_is_wrong_with_a_call_is_named_as_the_api_names_it() {
    let ec2 = start(Ec2Settings::default()).await;
    let none17 = "00000000000000000";
    let (ami, subnet, group) = (
        format!("ami-{none17}"),
        format!("subnet-{none17}"),
        format!("sg-{none17}"),
    );
    let long = drover_emulators::base64::encode(&vec![b'x'; 16 * 1024 + 1]);
    let most = drover_emulators::base64::encode(&vec![b'x'; 16 * 1024]);
    let table: &[(&[(&str, &str)], &str)] = &[
        (&[("ImageId", "debian")], "400 InvalidAMIID.Malformed"),
        (&[("ImageId", &ami)], "400 InvalidAMIID.NotFound"),
        (&[("ImageId", "")], "400 MissingParameter"),
        (
            &[("InstanceType", "t3.potato")],
            "400 InvalidParameterValue",
        ),
        (
            &[("InstanceType", "t4g.micro")],
            "400 InvalidParameterValue",
        ),
        (&[("MinCount", "0")], "400 InvalidParameterValue"),
        (&[("MinCount", "2")], "400 InvalidParameterValue"),
        (&[("KeyName", "nobody")], "400 InvalidKeyPair.NotFound"),
        (&[("SubnetId", &subnet)], "400 InvalidSubnetID.NotFound"),
        (
            &[("SecurityGroupId.1", &group)],
            "400 InvalidGroup.NotFound",
        ),
        (
            &[("Placement.AvailabilityZone", "eu-central-1z")],
            "400 InvalidParameterValue",
        ),
        (&[("UserData", "#!/bin/sh")], "400 InvalidParameterValue"),
        (&[("UserData", &long)], "400 InvalidParameterValue"),
        (
            &[("UserData", &most), ("DryRun", "true")],
            "412 DryRunOperation",
        ),
        (
            &[("MetadataOptions.HttpTokens", "never")],
            "400 InvalidParameterValue",
        ),
        (
            &[("LaunchTemplate.LaunchTemplateName", "no")],
            "400 InvalidLaunchTemplateName.NotFoundException",
        ),
        (
            &[("TagSpecification.1.ResourceType", "vpc")],
            "400 InvalidParameterValue",
        ),
        (
            &[
                ("TagSpecification.1.ResourceType", "instance"),
                ("TagSpecification.1.Tag.1.Key", "aws:mine"),
                ("TagSpecification.1.Tag.1.Value", "x"),
            ],
            "400 InvalidParameterValue",
        ),
        (
            &[
                ("SubnetId", &subnet),
                ("NetworkInterface.1.DeviceIndex", "0"),
                ("NetworkInterface.1.SubnetId", &subnet),
            ],
            "400 InvalidParameterCombination",
        ),
        (
            &[("InstanceMarketOptions.MarketType", "bazaar")],
            "400 InvalidParameterValue",
        ),
        (
            &[
                ("BlockDeviceMapping.1.DeviceName", "/dev/xvda"),
                ("BlockDeviceMapping.1.Ebs.VolumeSize", "1"),
            ],
            "400 InvalidBlockDeviceMapping",
        ),
    ];
    for (more, code) in table {
        assert_eq!(
            call(&ec2, "RunInstances", &run("1", "1", more))
                .await
                .code(),
            *code,
            "{more:?}"
        );
    }
    assert_eq!(ec2.machines(), vec![]);
    for (action, parameters, code) in [
        (
            "DescribeInstances",
            vec![("InstanceId.1", "i-1")],
            "400 InvalidInstanceID.Malformed",
        ),
        (
            "DescribeInstances",
            vec![("Filter.1.Name", "colour"), ("Filter.1.Value.1", "red")],
            "400 InvalidParameterValue",
        ),
        ("TerminateInstances", vec![], "400 MissingParameter"),
        (
            "DescribeImages",
            vec![("ImageId.1", ami.as_str())],
            "400 InvalidAMIID.NotFound",
        ),
        (
            "DescribeInstanceTypes",
            vec![("InstanceType.1", "t3.potato")],
            "400 InvalidInstanceType",
        ),
        ("MakeCoffee", vec![], "400 InvalidAction"),
    ] {
        assert_eq!(
            call(&ec2, action, &parameters).await.code(),
            code,
            "{action}"
        );
    }
}

#[tokio::test]
async fn a_launch_template_fills_in_what_the_call_does_not_say() {
    let ec2 = start(Ec2Settings::default()).await;
    let template = [
        ("LaunchTemplateName", "web"),
        ("LaunchTemplateData.ImageId", DEBIAN),
        ("LaunchTemplateData.InstanceType", "t3.small"),
        ("LaunchTemplateData.KeyName", "default"),
        (
            "LaunchTemplateData.TagSpecification.1.ResourceType",
            "instance",
        ),
        ("LaunchTemplateData.TagSpecification.1.Tag.1.Key", "from"),
        (
            "LaunchTemplateData.TagSpecification.1.Tag.1.Value",
            "template",
        ),
        ("LaunchTemplateData.TagSpecification.1.Tag.2.Key", "both"),
        (
            "LaunchTemplateData.TagSpecification.1.Tag.2.Value",
            "template",
        ),
    ];
    let id = done(&ec2, "CreateLaunchTemplate", &template)
        .await
        .text("launchTemplateId");
    let version = [
        ("LaunchTemplateId", id.as_str()),
        ("LaunchTemplateData.ImageId", DEBIAN),
        ("LaunchTemplateData.InstanceType", "m6i.large"),
    ];
    done(&ec2, "CreateLaunchTemplateVersion", &version).await;
    let call_with = |version| {
        [
            ("LaunchTemplate.LaunchTemplateName", "web"),
            ("LaunchTemplate.Version", version),
            ("MinCount", "1"),
            ("MaxCount", "1"),
            ("TagSpecification.1.ResourceType", "instance"),
            ("TagSpecification.1.Tag.1.Key", "both"),
            ("TagSpecification.1.Tag.1.Value", "call"),
        ]
    };
    let made = done(&ec2, "RunInstances", &call_with("$Default")).await;
    assert_eq!(
        (made.text("instanceType"), made.text("keyName")),
        ("t3.small".into(), "default".into())
    );
    let tags = ec2.machines().remove(0).tags;
    let pairs: Vec<(&str, &str)> = tags
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    assert_eq!(pairs, [("both", "call"), ("from", "template")]);
    assert_eq!(
        done(&ec2, "RunInstances", &call_with("$Latest"))
            .await
            .text("instanceType"),
        "m6i.large"
    );
    let none = call(&ec2, "RunInstances", &call_with("9")).await;
    assert_eq!(none.code(), "400 InvalidLaunchTemplateId.VersionNotFound");
}

#[tokio::test]
async fn images_are_found_by_owner_and_name() {
    let ec2 = start(Ec2Settings::default()).await;
    let debian = [
        ("Owner.1", "136693071363"),
        ("Filter.1.Name", "name"),
        ("Filter.1.Value.1", "debian-12-amd64-*"),
    ];
    let found = done(&ec2, "DescribeImages", &debian).await;
    assert_eq!(
        found.all("imageId").len(),
        2,
        "the deprecated one is not shown"
    );
    assert!(found.all("imageId").contains(&DEBIAN.to_owned()));
    let amazon = [
        ("Owner.1", "amazon"),
        ("Filter.1.Name", "name"),
        ("Filter.1.Value.1", "al2023-ami-*"),
        ("Filter.2.Name", "architecture"),
        ("Filter.2.Value.1", "x86_64"),
    ];
    assert_eq!(
        done(&ec2, "DescribeImages", &amazon)
            .await
            .all("imageId")
            .len(),
        2
    );
    let types = [
        ("Filter.1.Name", "vcpu-info.default-vcpus"),
        ("Filter.1.Value.1", "2"),
        ("Filter.2.Name", "memory-info.size-in-mib"),
        ("Filter.2.Value.1", "1024"),
    ];
    assert_eq!(
        done(&ec2, "DescribeInstanceTypes", &types)
            .await
            .all("instanceType"),
        ["t3.micro", "t4g.micro"]
    );
}
