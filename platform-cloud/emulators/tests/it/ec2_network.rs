//! VPCs, security groups and addresses of the EC2 emulator.

use crate::common;

use std::time::Duration;

use common::ec2::{call, done, run, start};
use drover_emulators::Settings;
use drover_emulators::ec2::{Ec2, Ec2Settings};

/// A VPC with a subnet, an internet gateway and a security group.
struct Net {
    vpc: String,
    subnet: String,
    gateway: String,
    group: String,
}

async fn net(ec2: &Ec2) -> Net {
    let vpc = done(ec2, "CreateVpc", &[("CidrBlock", "10.0.0.0/16")])
        .await
        .text("vpcId");
    let in_vpc = ("VpcId", vpc.as_str());
    let subnet = [
        in_vpc,
        ("CidrBlock", "10.0.0.0/24"),
        ("AvailabilityZone", "eu-central-1b"),
    ];
    let subnet = done(ec2, "CreateSubnet", &subnet).await.text("subnetId");
    let gateway = done(ec2, "CreateInternetGateway", &[])
        .await
        .text("internetGatewayId");
    done(
        ec2,
        "AttachInternetGateway",
        &[in_vpc, ("InternetGatewayId", &gateway)],
    )
    .await;
    let group = [
        in_vpc,
        ("GroupName", "nodes"),
        ("GroupDescription", "nodes"),
    ];
    let group = done(ec2, "CreateSecurityGroup", &group)
        .await
        .text("groupId");
    Net {
        vpc,
        subnet,
        gateway,
        group,
    }
}

#[tokio::test]
async fn a_network_goes_only_in_the_right_order() {
    let common = Settings {
        stopping_delay: Duration::from_secs(5),
        ..Settings::default()
    };
    let ec2 = start(Ec2Settings {
        common,
        ..Ec2Settings::default()
    })
    .await;
    tokio::time::pause();
    let net = net(&ec2).await;
    let vpc = ("VpcId", net.vpc.as_str());
    let table = [
        ("Filter.1.Name", "vpc-id"),
        ("Filter.1.Value.1", net.vpc.as_str()),
    ];
    let table = done(&ec2, "DescribeRouteTables", &table)
        .await
        .text("routeTableId");
    let route = [
        ("RouteTableId", table.as_str()),
        ("DestinationCidrBlock", "0.0.0.0/0"),
        ("GatewayId", &net.gateway),
    ];
    done(&ec2, "CreateRoute", &route).await;
    let placed = [
        ("NetworkInterface.1.DeviceIndex", "0"),
        ("NetworkInterface.1.SubnetId", net.subnet.as_str()),
        ("NetworkInterface.1.SecurityGroupId.1", net.group.as_str()),
        ("NetworkInterface.1.AssociatePublicIpAddress", "true"),
    ];
    let instance = done(&ec2, "RunInstances", &run("1", "1", &placed))
        .await
        .text("instanceId");
    let gateway = ("InternetGatewayId", net.gateway.as_str());
    let (subnet, group) = (
        ("SubnetId", net.subnet.as_str()),
        ("GroupId", net.group.as_str()),
    );
    let steps: [(&str, &[(&str, &str)]); 5] = [
        ("DeleteSubnet", &[subnet]),
        ("DeleteSecurityGroup", &[group]),
        ("DetachInternetGateway", &[gateway, vpc]),
        ("DeleteInternetGateway", &[gateway]),
        ("DeleteVpc", &[vpc]),
    ];
    for (action, parameters) in steps {
        assert_eq!(
            call(&ec2, action, parameters).await.code(),
            "400 DependencyViolation",
            "{action}"
        );
    }
    // A terminating instance still holds all of them until it is terminated.
    done(&ec2, "TerminateInstances", &[("InstanceId.1", &instance)]).await;
    for (action, parameters) in steps {
        assert_eq!(
            call(&ec2, action, parameters).await.code(),
            "400 DependencyViolation",
            "{action}"
        );
    }
    tokio::time::advance(Duration::from_secs(5)).await;
    for (index, (action, parameters)) in steps.into_iter().enumerate() {
        for (later, parameters) in &steps[steps.len() - 1..] {
            if index < steps.len() - 1 && index != 3 {
                assert_eq!(
                    call(&ec2, later, parameters).await.code(),
                    "400 DependencyViolation",
                    "before {action}"
                );
            }
        }
        done(&ec2, action, parameters).await;
        let again = call(&ec2, action, parameters).await;
        assert_eq!(again.status, 400, "{action} again");
        assert!(
            again.text("Code").ends_with("NotFound") || action == "DetachInternetGateway",
            "{again:?}"
        );
    }
    let left: Vec<String> = ec2
        .ledger()
        .into_iter()
        .filter(|made| !made.foreign && !made.gone)
        .map(|made| made.kind)
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn networks_and_subnets_that_cannot_be_are_refused() {
    let ec2 = start(Ec2Settings {
        vpc_quota: 2,
        ..Ec2Settings::default()
    })
    .await;
    let net = net(&ec2).await;
    let vpc = ("VpcId", net.vpc.as_str());
    for (action, parameters, code) in [
        (
            "CreateVpc",
            vec![("CidrBlock", "10.0.0.0/8")],
            "InvalidVpc.Range",
        ),
        (
            "CreateVpc",
            vec![("CidrBlock", "10.0.0.1/16")],
            "InvalidParameterValue",
        ),
        (
            "CreateVpc",
            vec![("CidrBlock", "10.1.0.0/16")],
            "VpcLimitExceeded",
        ),
        (
            "CreateSubnet",
            vec![vpc, ("CidrBlock", "10.0.0.128/25")],
            "InvalidSubnet.Conflict",
        ),
        (
            "CreateSubnet",
            vec![vpc, ("CidrBlock", "10.1.0.0/24")],
            "InvalidSubnet.Range",
        ),
        (
            "CreateSubnet",
            vec![
                vpc,
                ("CidrBlock", "10.0.1.0/24"),
                ("AvailabilityZone", "moon-1a"),
            ],
            "InvalidParameterValue",
        ),
        (
            "CreateSecurityGroup",
            vec![vpc, ("GroupName", "nodes"), ("GroupDescription", "x")],
            "InvalidGroup.Duplicate",
        ),
        (
            "AttachInternetGateway",
            vec![vpc, ("InternetGatewayId", net.gateway.as_str())],
            "Resource.AlreadyAssociated",
        ),
        (
            "ModifyVpcAttribute",
            vec![vpc],
            "InvalidParameterCombination",
        ),
        (
            "DeleteVpc",
            vec![("VpcId", "vpc-00000000000000000")],
            "InvalidVpcID.NotFound",
        ),
    ] {
        assert_eq!(
            call(&ec2, action, &parameters).await.text("Code"),
            code,
            "{action} {parameters:?}"
        );
    }
}

#[tokio::test]
async fn rules_are_added_once_and_taken_away_once() {
    let ec2 = start(Ec2Settings::default()).await;
    let net = net(&ec2).await;
    let rule = [
        ("GroupId", net.group.as_str()),
        ("IpPermissions.1.IpProtocol", "tcp"),
        ("IpPermissions.1.FromPort", "6443"),
        ("IpPermissions.1.ToPort", "6443"),
        ("IpPermissions.1.IpRanges.1.CidrIp", "0.0.0.0/0"),
        ("IpPermissions.1.Groups.1.GroupId", net.group.as_str()),
    ];
    let added = done(&ec2, "AuthorizeSecurityGroupIngress", &rule).await;
    assert_eq!(added.all("securityGroupRuleId").len(), 2);
    let again = call(&ec2, "AuthorizeSecurityGroupIngress", &rule).await;
    assert_eq!(again.code(), "400 InvalidPermission.Duplicate");
    let shown = done(&ec2, "DescribeSecurityGroups", &[("GroupId.1", &net.group)]).await;
    assert_eq!(
        (shown.text("fromPort"), shown.text("cidrIp")),
        ("6443".into(), "0.0.0.0/0".into())
    );
    // A group cannot be deleted while another group refers to it.
    let other = [
        ("VpcId", net.vpc.as_str()),
        ("GroupName", "other"),
        ("GroupDescription", "x"),
    ];
    let other = done(&ec2, "CreateSecurityGroup", &other)
        .await
        .text("groupId");
    let mut from = rule;
    from[0] = ("GroupId", other.as_str());
    done(&ec2, "AuthorizeSecurityGroupIngress", &from).await;
    let delete = [("GroupId", net.group.as_str())];
    assert_eq!(
        call(&ec2, "DeleteSecurityGroup", &delete).await.code(),
        "400 DependencyViolation"
    );
    done(&ec2, "RevokeSecurityGroupIngress", &from).await;
    assert_eq!(
        call(&ec2, "RevokeSecurityGroupIngress", &from).await.code(),
        "400 InvalidPermission.NotFound"
    );
    done(&ec2, "DeleteSecurityGroup", &delete).await;
}

#[tokio::test]
async fn an_address_belongs_to_one_instance_and_is_released_when_it_belongs_to_none() {
    let ec2 = start(Ec2Settings {
        address_quota: 1,
        ..Ec2Settings::default()
    })
    .await;
    let made = done(&ec2, "RunInstances", &run("2", "2", &[]))
        .await
        .all("instanceId");
    let tagged = [
        ("TagSpecification.1.ResourceType", "elastic-ip"),
        ("TagSpecification.1.Tag.1.Key", "cluster"),
        ("TagSpecification.1.Tag.1.Value", "c1"),
    ];
    let address = done(&ec2, "AllocateAddress", &tagged).await;
    let (id, ip) = (address.text("allocationId"), address.text("publicIp"));
    let allocation = ("AllocationId", id.as_str());
    assert_eq!(
        call(&ec2, "AllocateAddress", &[]).await.code(),
        "400 AddressLimitExceeded"
    );
    let filter = [("Filter.1.Name", "tag:cluster"), ("Filter.1.Value.1", "c1")];
    assert_eq!(
        done(&ec2, "DescribeAddresses", &filter)
            .await
            .text("allocationId"),
        id
    );
    let first = done(
        &ec2,
        "AssociateAddress",
        &[allocation, ("InstanceId", &made[0])],
    )
    .await
    .text("associationId");
    let shown = done(&ec2, "DescribeInstances", &[("InstanceId.1", &made[0])]).await;
    assert_eq!(shown.text("ipAddress"), ip);
    let again = [
        allocation,
        ("InstanceId", made[1].as_str()),
        ("AllowReassociation", "false"),
    ];
    assert_eq!(
        call(&ec2, "AssociateAddress", &again).await.code(),
        "400 Resource.AlreadyAssociated"
    );
    let moved = done(
        &ec2,
        "AssociateAddress",
        &[allocation, ("InstanceId", &made[1])],
    )
    .await
    .text("associationId");
    let old = call(&ec2, "DisassociateAddress", &[("AssociationId", &first)]).await;
    assert_eq!(old.code(), "400 InvalidAssociationID.NotFound");
    assert_eq!(
        call(&ec2, "ReleaseAddress", &[allocation]).await.code(),
        "400 InvalidIPAddress.InUse"
    );
    done(&ec2, "DisassociateAddress", &[("AssociationId", &moved)]).await;
    done(
        &ec2,
        "AssociateAddress",
        &[allocation, ("InstanceId", &made[1])],
    )
    .await;
    // The address becomes free when its instance is terminated.
    ec2.terminate_behind(&made[1]);
    done(&ec2, "ReleaseAddress", &[allocation]).await;
    assert_eq!(
        call(&ec2, "ReleaseAddress", &[allocation]).await.code(),
        "400 InvalidAllocationID.NotFound"
    );
}

#[tokio::test]
async fn an_instance_has_the_addresses_that_its_subnet_and_its_call_say() {
    let ec2 = start(Ec2Settings::default()).await;
    let vpc = [
        ("CidrBlock", "10.9.0.0/16"),
        ("AmazonProvidedIpv6CidrBlock", "true"),
    ];
    let vpc = done(&ec2, "CreateVpc", &vpc).await;
    let block = vpc.text("ipv6CidrBlock").replace("::/56", ":5::/64");
    let id = vpc.text("vpcId");
    let subnet = [
        ("VpcId", id.as_str()),
        ("CidrBlock", "10.9.1.0/28"),
        ("Ipv6CidrBlock", &block),
    ];
    let subnet = done(&ec2, "CreateSubnet", &subnet).await.text("subnetId");
    let plain = done(
        &ec2,
        "RunInstances",
        &run("1", "1", &[("SubnetId", &subnet)]),
    )
    .await;
    assert_eq!(
        (
            plain.text("privateIpAddress").as_str(),
            plain.all("ipAddress").len()
        ),
        ("10.9.1.4", 0)
    );
    let v6 = [
        ("NetworkInterface.1.DeviceIndex", "0"),
        ("NetworkInterface.1.SubnetId", subnet.as_str()),
        ("NetworkInterface.1.Ipv6AddressCount", "1"),
        ("NetworkInterface.1.AssociatePublicIpAddress", "true"),
    ];
    let both = done(&ec2, "RunInstances", &run("1", "1", &v6)).await;
    assert!(both.text("ipAddress").starts_with("18."), "{both:?}");
    let address: std::net::Ipv6Addr = both.text("ipv6Address").parse().unwrap();
    assert!(
        address
            .to_string()
            .starts_with(block.trim_end_matches("::/64")),
        "{address} of {block}"
    );
    // The subnet has eleven addresses, of which two are taken.
    let rest = done(
        &ec2,
        "RunInstances",
        &run("1", "50", &[("SubnetId", &subnet)]),
    )
    .await
    .all("instanceId");
    assert_eq!(rest.len(), 9);
    let full = call(
        &ec2,
        "RunInstances",
        &run("1", "1", &[("SubnetId", &subnet)]),
    )
    .await;
    assert_eq!(full.code(), "400 InsufficientFreeAddressesInSubnet");
    ec2.terminate_behind(&rest[0]);
    done(
        &ec2,
        "RunInstances",
        &run("1", "1", &[("SubnetId", &subnet)]),
    )
    .await;
}
