//! Calls of the EC2 emulator: authentication, validation and listing.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};

use common::ec2::{DEBIAN, SCOPE, authorization, call, call_as, done, listed, run, start};
use drover_emulators::ec2::Ec2Settings;
use drover_emulators::{Api, Call, base64};

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
    let values: Vec<String> = (1..=201).map(|n| format!("Filter.1.Value.{n}")).collect();
    let mut many = vec![("Filter.1.Name", "instance-id")];
    many.extend(values.iter().map(|value| (value.as_str(), "i-1")));
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
        ("DescribeInstances", many, "400 FilterLimitExceeded"),
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
#[tokio::test]
async fn who_may_not_call_is_told_why() {
    type Headers<'a> = &'a [(&'a str, &'a str)];
    let settings = Ec2Settings {
        access_keys: vec!["AKIDEXAMPLE".into()],
        denied: vec!["TerminateInstances".into()],
        ..Ec2Settings::default()
    };
    let ec2 = start(settings).await;
    let good = authorization("AKIDEXAMPLE", SCOPE);
    let stranger = authorization("AKIDNOBODY", SCOPE);
    let elsewhere = authorization("AKIDEXAMPLE", "20260101/us-east-1/ec2/aws4_request");
    let date = |offset: i64| {
        let time = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(offset);
        time.strftime("%Y%m%dT%H%M%SZ").to_string()
    };
    let (now, past, future) = (date(0), date(-1000), date(1000));
    let answers: &[(Headers<'_>, &str, &str)] = &[
        (
            &[("authorization", &good), ("x-amz-date", &now)],
            "200",
            "200",
        ),
        (
            &[],
            "403 MissingAuthenticationToken",
            "403 MissingAuthenticationToken",
        ),
        (
            &[("authorization", &stranger)],
            "401 AuthFailure",
            "403 InvalidClientTokenId",
        ),
        (
            &[("authorization", &elsewhere)],
            "401 AuthFailure",
            "403 SignatureDoesNotMatch",
        ),
        (
            &[("authorization", &good), ("x-amz-date", &past)],
            "400 RequestExpired",
            "400 RequestExpired",
        ),
        (
            &[("authorization", &good), ("x-amz-date", &future)],
            "401 AuthFailure",
            "401 AuthFailure",
        ),
    ];
    for (headers, ours, sts) in answers {
        assert_eq!(
            call_as(&ec2, headers, "DescribeVpcs", &[])
                .await
                .unwrap()
                .code(),
            *ours,
            "{headers:?}"
        );
        assert_eq!(
            call_as(&ec2, headers, "GetCallerIdentity", &[])
                .await
                .unwrap()
                .code(),
            *sts,
            "{headers:?}"
        );
    }
    let identity = done(&ec2, "GetCallerIdentity", &[]).await;
    assert_eq!(identity.text("Account"), drover_emulators::ec2::ACCOUNT);
    let denied = call(&ec2, "TerminateInstances", &[("InstanceId.1", "i-0")]).await;
    assert_eq!(denied.code(), "403 UnauthorizedOperation");
    ec2.expire_credentials();
    assert_eq!(
        call(&ec2, "DescribeVpcs", &[]).await.code(),
        "400 RequestExpired"
    );
    assert_eq!(
        call(&ec2, "GetCallerIdentity", &[]).await.code(),
        "403 ExpiredToken"
    );
    ec2.renew_credentials();
    ec2.set_skew_ms(3_600_000);
    let skewed = call_as(
        &ec2,
        &[("authorization", &good), ("x-amz-date", &now)],
        "DescribeVpcs",
        &[],
    )
    .await
    .unwrap();
    assert_eq!(skewed.code(), "400 RequestExpired");
}

#[tokio::test]
async fn a_key_pair_is_imported_once() {
    let ec2 = start(Ec2Settings {
        key_pairs: vec!["ops".into()],
        ..Ec2Settings::default()
    })
    .await;
    assert_eq!(
        done(&ec2, "DescribeKeyPairs", &[]).await.all("keyName"),
        ["ops"]
    );
    let key = base64::encode(b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 me");
    let import = [("KeyName", "mine"), ("PublicKeyMaterial", key.as_str())];
    done(&ec2, "ImportKeyPair", &import).await;
    assert_eq!(
        call(&ec2, "ImportKeyPair", &import).await.code(),
        "400 InvalidKeyPair.Duplicate"
    );
    let bad = [("KeyName", "bad"), ("PublicKeyMaterial", "bm8=")];
    assert_eq!(
        call(&ec2, "ImportKeyPair", &bad).await.code(),
        "400 InvalidKey.Format"
    );
    done(&ec2, "RunInstances", &run("1", "1", &[("KeyName", "mine")])).await;
}

#[tokio::test]
async fn lists_by_tag_agree_with_the_tags_whatever_was_done_to_them() {
    let seed = std::env::var("DROVER_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| fastrand::u64(..));
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let ec2 = start(Ec2Settings::default()).await;
    ec2.add_foreign(12);
    let ids: Vec<String> = ec2
        .machines()
        .into_iter()
        .map(|machine| machine.id)
        .collect();
    let mut model: BTreeMap<String, BTreeMap<String, String>> = ec2
        .machines()
        .into_iter()
        .map(|machine| (machine.id, machine.tags))
        .collect();
    for _ in 0..150 {
        let id = ids[random.usize(..ids.len())].clone();
        let (key, value) = (
            format!("k{}", random.u8(..3)),
            format!("v{}", random.u8(..3)),
        );
        let tag = [
            ("ResourceId.1", id.as_str()),
            ("Tag.1.Key", key.as_str()),
            ("Tag.1.Value", value.as_str()),
        ];
        let tags = model.get_mut(&id).unwrap();
        match random.u8(..5) {
            0 => {
                done(&ec2, "DeleteTags", &tag).await;
                if tags.get(&key) == Some(&value) {
                    tags.remove(&key);
                }
            }
            1 => {
                done(&ec2, "DeleteTags", &tag[..2]).await;
                tags.remove(&key);
            }
            2 => {
                assert!(ec2.retag_by_hand(&id, &[(&key, Some(&value))]));
                tags.insert(key.clone(), value.clone());
            }
            _ => {
                done(&ec2, "CreateTags", &tag).await;
                tags.insert(key.clone(), value.clone());
            }
        }
        let name = format!("tag:{key}");
        let expected: BTreeSet<String> = model
            .iter()
            .filter(|(_, tags)| tags.get(&key) == Some(&value))
            .map(|(id, _)| id.clone())
            .collect();
        for wanted in [value.clone(), format!("?{}", &value[1..])] {
            let filter = [
                ("Filter.1.Name", name.as_str()),
                ("Filter.1.Value.1", wanted.as_str()),
            ];
            let found = listed(&ec2, &filter)
                .await
                .into_iter()
                .map(|(id, _)| id)
                .collect();
            assert_eq!(expected, found, "seed {seed}, {filter:?}");
        }
    }
    let shown = done(
        &ec2,
        "DescribeTags",
        &[
            ("Filter.1.Name", "resource-type"),
            ("Filter.1.Value.1", "instance"),
        ],
    )
    .await;
    assert_eq!(
        shown.all("resourceId").len(),
        model.values().map(BTreeMap::len).sum::<usize>()
    );
}

#[tokio::test]
async fn a_list_takes_time_by_what_is_in_it_and_not_by_what_else_there_is() {
    let ec2 = start(Ec2Settings::default()).await;
    ec2.add_foreign(5000);
    for (cluster, count) in [("one", "1"), ("small", "200"), ("large", "1000")] {
        let tag = [
            ("TagSpecification.1.ResourceType", "instance"),
            ("TagSpecification.1.Tag.1.Key", "cluster"),
            ("TagSpecification.1.Tag.1.Value", cluster),
        ];
        done(&ec2, "RunInstances", &run(count, count, &tag)).await;
    }
    let mut best = BTreeMap::new();
    // The best of several runs, interleaved, because the machine has other work as well.
    for _ in 0..20 {
        for (cluster, count) in [("one", 1), ("small", 200), ("large", 1000)] {
            // Bypasses HTTP, to leave the cost of sockets out of the measurement.
            let form = format!(
                "Action=DescribeInstances&Version=2016-11-15&Filter.1.Name=tag:cluster&Filter.1.Value.1={cluster}"
            );
            let mut headers = http::HeaderMap::new();
            let authorization = authorization("AKIDEXAMPLE", SCOPE).parse().unwrap();
            headers.insert(http::header::AUTHORIZATION, authorization);
            let call = Call {
                method: http::Method::POST,
                path: "/".to_owned(),
                query: Vec::new(),
                headers,
                body: form.into(),
            };
            let begin = tokio::time::Instant::now();
            let answer = ec2.api().handle("DescribeInstances", &call);
            let took = begin.elapsed();
            let known = best.entry(cluster).or_insert(took);
            *known = took.min(*known);
            let text = String::from_utf8_lossy(&answer.body);
            assert_eq!(text.matches("<instanceId>").count(), count);
        }
    }
    println!("{best:?}");
    let (one, large) = (best["one"], best["large"]);
    assert!(one < large / 2, "of 6201 instances: {best:?}");
}
