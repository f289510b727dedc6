//! What a launch template says of network interfaces and volumes: EC2 takes these from a call either whole or not at all.

use std::sync::Arc;

use aws_sdk_ec2::types::{
    BlockDeviceMapping, EbsBlockDevice, LaunchTemplateEbsBlockDevice,
    LaunchTemplateInstanceNetworkInterfaceSpecification, ResponseLaunchTemplateData,
};
use drover_core::{Class, Error, Result};

use super::Catalogue;
use crate::drivers::aws::{
    api::Api,
    properties::{Template, Version},
};

/// The parts of a template that a launch has to complete.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::drivers::aws) struct TemplateData {
    /// The network interface of the instance. `None` if the template has none.
    pub interface: Option<Interface>,
    /// The id of the image. `None` if the template names none.
    pub image: Option<String>,
    /// The volumes that would outlive the instance, so that they go with it.
    pub kept: Vec<BlockDeviceMapping>,
    /// The other volumes, so that they go with it though the image would keep them.
    pub others: Vec<BlockDeviceMapping>,
    /// Devices that are left out though the image has them.
    pub left_out: Vec<String>,
}

/// The first network interface of a template.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::drivers::aws) struct Interface {
    pub groups: Vec<String>,
    pub public_address: Option<bool>,
    pub ipv6_addresses: Option<i32>,
}

impl Catalogue {
    /// The data of a template. Empty if the account may not read it: most templates need nothing of this.
    pub(in crate::drivers::aws) async fn template(
        &self,
        api: &Api,
        template: &Template,
    ) -> Result<Arc<TemplateData>> {
        let name = template.id.as_ref().or(template.name.as_ref());
        let version = template
            .version
            .as_ref()
            .map_or_else(|| "$Default".to_owned(), Version::text);
        let key = (name.cloned().unwrap_or_default(), version.clone());
        if let Some(known) = self.templates.get(&key) {
            return Ok(known);
        }
        let answer = api
            .send("DescribeLaunchTemplateVersions", |ec2| {
                ec2.describe_launch_template_versions()
                    .set_launch_template_id(template.id.clone())
                    .set_launch_template_name(template.name.clone())
                    .versions(&version)
                    .resolve_alias(true)
                    .send()
            })
            .await;
        let answer = match answer {
            Err(error) if error.class() == Class::Credentials => return Ok(Arc::default()),
            answer => answer?,
        };
        let data = answer
            .launch_template_versions()
            .first()
            .and_then(|version| version.launch_template_data());
        let (kept, others): (Vec<_>, Vec<_>) = data
            .map(ResponseLaunchTemplateData::block_device_mappings)
            .unwrap_or_default()
            .iter()
            .filter_map(|mapping| Some((mapping.device_name()?, mapping.ebs()?)))
            .partition(|(_, ebs)| ebs.delete_on_termination() == Some(false));
        let left_out = data
            .map(ResponseLaunchTemplateData::block_device_mappings)
            .unwrap_or_default()
            .iter()
            .filter(|mapping| mapping.no_device().is_some())
            .filter_map(|mapping| mapping.device_name().map(str::to_owned))
            .collect();
        let data = Arc::new(TemplateData {
            left_out,
            interface: data
                .map(|data| interface(data.network_interfaces()))
                .transpose()?
                .flatten(),
            image: data.and_then(|data| data.image_id()).map(str::to_owned),
            kept: deleted_with_the_node(kept),
            others: deleted_with_the_node(others),
        });
        // The defaults of a template may change at any time.
        if !version.starts_with('$') {
            self.templates.put(key, Arc::clone(&data));
        }
        Ok(data)
    }
}

fn interface(
    interfaces: &[LaunchTemplateInstanceNetworkInterfaceSpecification],
) -> Result<Option<Interface>> {
    let unusable = |why: &str| {
        Err(Error::invalid(
            "group.properties.launchTemplate",
            format!(
                "{why}, with which nodes cannot be placed in zones; take that out of the template"
            ),
        ))
    };
    match interfaces {
        [] => Ok(None),
        [only] if only.network_interface_id().is_some() => {
            unusable("it names a network interface that exists already")
        }
        [only] => Ok(Some(Interface {
            groups: only.groups().to_vec(),
            public_address: only.associate_public_ip_address(),
            ipv6_addresses: only.ipv6_address_count(),
        })),
        _ => unusable("it has several network interfaces"),
    }
}

fn deleted_with_the_node(
    volumes: Vec<(&str, &LaunchTemplateEbsBlockDevice)>,
) -> Vec<BlockDeviceMapping> {
    let volume = |(device, ebs): (&str, &LaunchTemplateEbsBlockDevice)| {
        let ebs = EbsBlockDevice::builder()
            .delete_on_termination(true)
            .set_encrypted(ebs.encrypted())
            .set_iops(ebs.iops())
            .set_kms_key_id(ebs.kms_key_id().map(str::to_owned))
            .set_snapshot_id(ebs.snapshot_id().map(str::to_owned))
            .set_throughput(ebs.throughput())
            .set_volume_size(ebs.volume_size())
            .set_volume_type(ebs.volume_type().cloned());
        BlockDeviceMapping::builder()
            .device_name(device)
            .ebs(ebs.build())
            .build()
    };
    volumes.into_iter().map(volume).collect()
}
