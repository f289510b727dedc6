//! Interfaces and volumes of launch templates, with what the driver adds.

use std::collections::BTreeSet;

use aws_sdk_ec2::types::{
    Filter, InstanceType, LaunchTemplateBlockDeviceMappingRequest,
    LaunchTemplateEbsBlockDeviceRequest, RequestLaunchTemplateData,
};
use serde_json::json;

use crate::aws::bench::Bench;

/// An image whose root volume has 8 GiB, with a data volume of 10 GiB at `/dev/sdf` that EC2 would keep.
const WITH_DATA: &str = "ami-0a1b2c3d4e5f60021";

/// A launch template with a network interface of its own, and a data volume that EC2 would keep.
async fn template_with_its_own(bench: &Bench, name: &str) -> String {
    let sdk = bench.sdk().await;
    let vpcs = sdk.describe_vpcs().send().await.unwrap();
    let group = sdk
        .create_security_group()
        .group_name(name)
        .description(name)
        .vpc_id(vpcs.vpcs()[0].vpc_id().unwrap())
        .send()
        .await
        .unwrap();
    let group = group.group_id().unwrap().to_owned();
    let interface =
        aws_sdk_ec2::types::LaunchTemplateInstanceNetworkInterfaceSpecificationRequest::builder()
            .device_index(0)
            .groups(&group)
            .associate_public_ip_address(true)
            .build();
    let volume = aws_sdk_ec2::types::LaunchTemplateBlockDeviceMappingRequest::builder()
        .device_name("/dev/sdf")
        .ebs(
            aws_sdk_ec2::types::LaunchTemplateEbsBlockDeviceRequest::builder()
                .volume_size(10)
                .delete_on_termination(false)
                .build(),
        )
        .build();
    let images = sdk.describe_images().owners("amazon").send().await.unwrap();
    let image = images.images().iter().find(|image| {
        image
            .architecture()
            .is_some_and(|arch| arch.as_str() == "x86_64")
    });
    let data = aws_sdk_ec2::types::RequestLaunchTemplateData::builder()
        .image_id(image.unwrap().image_id().unwrap())
        .instance_type(InstanceType::T3Micro)
        .network_interfaces(interface)
        .block_device_mappings(volume)
        .build();
    sdk.create_launch_template()
        .launch_template_name(name)
        .launch_template_data(data)
        .send()
        .await
        .unwrap();
    group
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_launch_template_says_of_interfaces_and_volumes_goes_with_zones_and_with_the_node() {
    let bench = Bench::emulator().await;
    let group = template_with_its_own(&bench, "with-interface").await;
    let template = json!({ "launchTemplate": { "name": "with-interface" } });
    let (_, nodes) = bench.make(3, template).await;
    let zones: BTreeSet<&str> = nodes
        .iter()
        .map(|node| node.failure_domain.as_str())
        .collect();
    assert_eq!(zones.len(), 3, "{zones:?}");
    let sdk = bench.sdk().await;
    let described = sdk
        .describe_instances()
        .instance_ids(&nodes[0].node_id)
        .send()
        .await
        .unwrap();
    let instance = &described.reservations()[0].instances()[0];
    assert_eq!(
        instance.security_groups()[0].group_id(),
        Some(group.as_str())
    );
    assert!(instance.public_ip_address().is_some());
    assert_eq!(instance.block_device_mappings().len(), 2);
    for node in &nodes {
        bench.remove(node).await;
    }
    let left = bench.left();
    assert!(
        left.iter()
            .all(|(kind, _)| kind != "volume" && kind != "instance"),
        "{left:?}"
    );
}

/// Makes a launch template that names the image with data, and may change the size of its data volume.
async fn template_of_image(bench: &Bench, name: &str, size: Option<i32>) {
    let volume = |size: i32| {
        let ebs = LaunchTemplateEbsBlockDeviceRequest::builder().volume_size(size);
        LaunchTemplateBlockDeviceMappingRequest::builder()
            .device_name("/dev/sdf")
            .ebs(ebs.build())
            .build()
    };
    let data = RequestLaunchTemplateData::builder()
        .image_id(WITH_DATA)
        .instance_type(InstanceType::T3Micro)
        .set_block_device_mappings(size.map(|size| vec![volume(size)]))
        .build();
    let sdk = bench.sdk().await;
    sdk.create_launch_template()
        .launch_template_name(name)
        .launch_template_data(data)
        .send()
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_that_an_image_keeps_go_with_the_node_whoever_names_the_image() {
    let bench = Bench::emulator().await;
    template_of_image(&bench, "image", None).await;
    template_of_image(&bench, "image-and-size", Some(20)).await;
    let sdk = bench.sdk().await;
    for (properties, size) in [
        (json!({ "image": WITH_DATA }), 10),
        (json!({ "launchTemplate": { "name": "image" } }), 10),
        (
            json!({ "launchTemplate": { "name": "image-and-size" } }),
            20,
        ),
    ] {
        let (_, nodes) = bench.make(1, properties.clone()).await;
        let of_node = Filter::builder()
            .name("attachment.instance-id")
            .values(&nodes[0].node_id)
            .build();
        let volumes = sdk.describe_volumes().filters(of_node).send().await;
        let volumes = volumes.unwrap();
        let sizes: BTreeSet<_> = volumes
            .volumes()
            .iter()
            .map(aws_sdk_ec2::types::Volume::size)
            .collect();
        assert_eq!(sizes, [Some(8), Some(size)].into(), "{properties}");
        bench.remove(&nodes[0]).await;
        let mut left = bench.left();
        left.retain(|(kind, _)| kind == "volume");
        assert_eq!(left, vec![], "{properties}");
    }
}
