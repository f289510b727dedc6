//! Offerings of the region: zones, instance types, images.

use crate::ec2::World;
use crate::ec2::asked::is_hex;
use crate::ec2::catalogue::{self, IMAGES, Image, InstanceType, TYPES};
use crate::ec2::model::Tags;
use crate::ec2::params::{Filters, Outcome, Params, wrong};
use crate::ec2::xml::Xml;

impl World {
    pub(crate) fn describe_images(&self, params: &Params) -> Outcome<Xml> {
        let known = [
            "architecture",
            "image-id",
            "image-type",
            "is-public",
            "name",
            "owner-alias",
            "owner-id",
            "root-device-type",
            "state",
            "virtualization-type",
        ];
        let filters = Filters::new(params, &known)?;
        let (ids, owners) = (params.list("ImageId"), params.list("Owner"));
        for id in &ids {
            if !id.strip_prefix("ami-").is_some_and(is_hex) {
                let message = format!("Invalid id: \"{id}\" (expecting \"ami-...\")");
                return Err(wrong("InvalidAMIID.Malformed", message));
            }
            if catalogue::image(id).is_none() {
                return Err(wrong(
                    "InvalidAMIID.NotFound",
                    format!("The image id '[{id}]' does not exist"),
                ));
            }
        }
        let deprecated = params.bool("IncludeDeprecated")?.unwrap_or(false);
        let owned = |image: &Image| {
            owners
                .iter()
                .any(|owner| *owner == image.owner || Some(owner.as_str()) == image.alias)
        };
        let shown = |image: &&Image| {
            let named = ids.iter().any(|id| id == image.id);
            (ids.is_empty() || named)
                && (owners.is_empty() || owned(image))
                && (named || deprecated || image.deprecated.is_none())
                && filters.hold(&Tags::new(), |name| vec![image_field(image, name)])
        };
        let (page, next) = self.page(params, IMAGES.iter().filter(shown).collect())?;
        let mut xml = Xml::new();
        xml.list("imagesSet", page, draw_image);
        xml.maybe("nextToken", next.as_deref());
        Ok(xml)
    }

    pub(crate) fn describe_instance_types(&self, params: &Params) -> Outcome<Xml> {
        let known = [
            "bare-metal",
            "burstable-performance-supported",
            "current-generation",
            "free-tier-eligible",
            "hypervisor",
            "instance-type",
            "memory-info.size-in-mib",
            "processor-info.supported-architecture",
            "supported-usage-class",
            "vcpu-info.default-cores",
            "vcpu-info.default-vcpus",
        ];
        let filters = Filters::new(params, &known)?;
        let names = params.list("InstanceType");
        let unknown: Vec<&str> = names
            .iter()
            .map(String::as_str)
            .filter(|name| catalogue::instance_type(name).is_none())
            .collect();
        if !unknown.is_empty() {
            let message = format!(
                "The following supplied instance types do not exist: [{}]",
                unknown.join(", ")
            );
            return Err(wrong("InvalidInstanceType", message));
        }
        let shown = |kind: &&InstanceType| {
            (names.is_empty() || names.iter().any(|name| name == kind.name))
                && filters.hold(&Tags::new(), |name| type_field(kind, name))
        };
        let (page, next) = self.page(params, TYPES.iter().filter(shown).collect())?;
        let mut xml = Xml::new();
        xml.list("instanceTypeSet", page, draw_type);
        xml.maybe("nextToken", next.as_deref());
        Ok(xml)
    }

    pub(crate) fn describe_zones(&self, params: &Params) -> Outcome<Xml> {
        let filters = Filters::new(
            params,
            &["region-name", "state", "zone-id", "zone-name", "zone-type"],
        )?;
        let names = params.list("ZoneName");
        let zones = self.zones();
        if let Some(name) = names.iter().find(|name| !zones.contains(name)) {
            return Err(wrong(
                "InvalidParameterValue",
                format!("Invalid availability zone: [{name}]"),
            ));
        }
        let region = &self.settings.region;
        let numbered = (1..).zip(zones).filter(|(number, zone)| {
            (names.is_empty() || names.contains(zone))
                && filters.hold(&Tags::new(), |name| match name {
                    "region-name" => vec![region.clone()],
                    "state" => vec!["available".to_owned()],
                    "zone-id" => vec![zone_id(region, *number)],
                    "zone-name" => vec![zone.clone()],
                    _ => vec!["availability-zone".to_owned()],
                })
        });
        let mut xml = Xml::new();
        xml.list("availabilityZoneInfo", numbered, |xml, (number, zone)| {
            xml.text("optInStatus", "opt-in-not-required");
            xml.nest("messageSet", |_| {});
            xml.text("regionName", region);
            xml.text("zoneName", &zone);
            xml.text("zoneId", &zone_id(region, number));
            xml.value("groupName", format_args!("{region}-zg-1"));
            xml.text("networkBorderGroup", region);
            xml.text("zoneType", "availability-zone");
            xml.text("zoneState", "available");
        });
        Ok(xml)
    }

    pub(crate) fn describe_regions(&self) -> Outcome<Xml> {
        let mut xml = Xml::new();
        xml.list("regionInfo", Some(&self.settings.region), |xml, region| {
            xml.text("optInStatus", "opt-in-not-required");
            xml.text("regionName", region);
            xml.value("regionEndpoint", format_args!("ec2.{region}.amazonaws.com"));
        });
        Ok(xml)
    }
}

/// For example, `eu-central-1` and 1 make `euc1-az1`.
pub(crate) fn zone_id(region: &str, number: usize) -> String {
    let mut parts = region.split('-');
    let (area, side, digit) = (parts.next(), parts.next(), parts.next());
    let side = side
        .unwrap_or_default()
        .chars()
        .next()
        .map(String::from)
        .unwrap_or_default();
    format!(
        "{}{side}{}-az{number}",
        area.unwrap_or_default(),
        digit.unwrap_or_default()
    )
}

fn image_field(image: &Image, name: &str) -> String {
    let text = match name {
        "architecture" => image.architecture,
        "image-id" => image.id,
        "image-type" => "machine",
        "is-public" => "true",
        "name" => image.name,
        "owner-alias" => image.alias.unwrap_or_default(),
        "owner-id" => image.owner,
        "root-device-type" => "ebs",
        "state" => "available",
        _ => "hvm",
    };
    text.to_owned()
}

fn draw_image(xml: &mut Xml, image: &Image) {
    xml.text("imageId", image.id);
    xml.value(
        "imageLocation",
        format_args!("{}/{}", image.alias.unwrap_or(image.owner), image.name),
    );
    xml.text("imageState", "available");
    xml.text("imageOwnerId", image.owner);
    xml.text("creationDate", image.created);
    xml.text("isPublic", "true");
    xml.text("architecture", image.architecture);
    xml.text("imageType", "machine");
    xml.maybe("imageOwnerAlias", image.alias);
    xml.text("name", image.name);
    xml.text("description", image.description);
    xml.text("rootDeviceType", "ebs");
    xml.text("rootDeviceName", image.root);
    let volumes = image.volumes();
    xml.list("blockDeviceMapping", volumes, |xml, (device, gib, goes)| {
        xml.text("deviceName", device);
        xml.nest("ebs", |xml| {
            xml.text("snapshotId", &image.id.replace("ami-", "snap-"));
            xml.value("volumeSize", gib);
            xml.value("deleteOnTermination", goes);
            xml.text("volumeType", "gp3");
            xml.text("encrypted", "false");
        });
    });
    xml.text("virtualizationType", "hvm");
    xml.text("hypervisor", "xen");
    xml.text("enaSupport", "true");
    xml.text("sriovNetSupport", "simple");
    xml.text("platformDetails", "Linux/UNIX");
    xml.text("usageOperation", "RunInstances");
    xml.maybe("imdsSupport", image.imds_v2.then_some("v2.0"));
    xml.maybe("deprecationTime", image.deprecated);
}

fn type_field(kind: &InstanceType, name: &str) -> Vec<String> {
    vec![match name {
        "bare-metal" => "false".to_owned(),
        "burstable-performance-supported" => kind.burstable.to_string(),
        "current-generation" => kind.current.to_string(),
        "free-tier-eligible" => kind.free_tier.to_string(),
        "hypervisor" => kind.hypervisor.to_owned(),
        "instance-type" => kind.name.to_owned(),
        "memory-info.size-in-mib" => kind.mib.to_string(),
        "processor-info.supported-architecture" => kind.architecture.to_owned(),
        "supported-usage-class" => return vec!["on-demand".to_owned(), "spot".to_owned()],
        "vcpu-info.default-cores" => kind.cores.to_string(),
        _ => kind.vcpus.to_string(),
    }]
}

fn draw_type(xml: &mut Xml, kind: &InstanceType) {
    let item = |xml: &mut Xml, text: &str| xml.raw(text);
    xml.text("instanceType", kind.name);
    xml.value("currentGeneration", kind.current);
    xml.value("freeTierEligible", kind.free_tier);
    xml.list("supportedUsageClasses", ["on-demand", "spot"], item);
    xml.list("supportedRootDeviceTypes", ["ebs"], item);
    xml.list("supportedVirtualizationTypes", ["hvm"], item);
    xml.text("bareMetal", "false");
    xml.text("hypervisor", kind.hypervisor);
    xml.nest("processorInfo", |xml| {
        xml.list("supportedArchitectures", [kind.architecture], item);
    });
    xml.nest("vCpuInfo", |xml| {
        xml.value("defaultVCpus", kind.vcpus);
        xml.value("defaultCores", kind.cores);
        xml.value("defaultThreadsPerCore", kind.vcpus / kind.cores);
    });
    xml.nest("memoryInfo", |xml| xml.value("sizeInMiB", kind.mib));
    if let Some(element) = kind.accelerators {
        xml.nest(element, |xml| {
            xml.list(
                if element == "gpuInfo" {
                    "gpus"
                } else {
                    "accelerators"
                },
                Some(()),
                |xml, ()| xml.text("name", "accelerator"),
            );
        });
    }
    xml.text("instanceStorageSupported", "false");
    xml.nest("networkInfo", |xml| {
        xml.text("networkPerformance", kind.network);
        xml.text("ipv6Supported", "true");
    });
    xml.value("burstablePerformanceSupported", kind.burstable);
    xml.text("hibernationSupported", "false");
    xml.text("autoRecoverySupported", "true");
    xml.list("supportedBootModes", ["legacy-bios", "uefi"], item);
}
