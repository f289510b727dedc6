//! Parameters of RunInstances that can be validated on their own, without the state of the region.

use std::net::Ipv4Addr;

use sha2::{Digest, Sha256};

use crate::ec2::catalogue::{self, Image};
use crate::ec2::model::MetadataOptions;
use crate::ec2::params::{Outcome, Params, invalid_value, wrong};

/// Maximum size of user data before base64 encoding, in bytes.
const USER_DATA: usize = 16 * 1024;
/// A disk of every instance that a call creates.
#[derive(Clone)]
pub(crate) struct Disk {
    pub(crate) device: String,
    pub(crate) gib: i64,
    pub(crate) kind: String,
    pub(crate) delete_on_termination: bool,
    pub(crate) encrypted: bool,
}

pub(crate) fn counts(params: &Params) -> Outcome<(usize, usize)> {
    let read = |name: &str| -> Outcome<usize> {
        let text = params.need(name)?;
        let count = params
            .int(name)?
            .and_then(|count| usize::try_from(count).ok())
            .filter(|count| *count > 0);
        count.ok_or_else(|| invalid_value(name, text, "It must be 1 or more."))
    };
    let (least, most) = (read("MinCount")?, read("MaxCount")?);
    if least > most {
        let message =
            "The maximum number of instances must be equal to or greater than the minimum.";
        return Err(wrong("InvalidParameterValue", message));
    }
    Ok((least, most))
}

/// Fingerprint of a call for its client token: covers all parameters that affect the instances.
pub(crate) fn fingerprint(params: &Params) -> [u8; 32] {
    let mut hash = Sha256::new();
    for (key, value) in params.iter() {
        if !matches!(
            key.as_str(),
            "Action" | "Version" | "ClientToken" | "DryRun"
        ) {
            for part in [key, value] {
                hash.update((part.len() as u64).to_be_bytes());
                hash.update(part.as_bytes());
            }
        }
    }
    hash.finalize().into()
}

pub(crate) fn image(id: &str) -> Outcome<&'static Image> {
    if !id.strip_prefix("ami-").is_some_and(is_hex) {
        return Err(wrong(
            "InvalidAMIID.Malformed",
            format!("Invalid id: \"{id}\" (expecting \"ami-...\")"),
        ));
    }
    catalogue::image(id).ok_or_else(|| {
        wrong(
            "InvalidAMIID.NotFound",
            format!("The image id '[{id}]' does not exist"),
        )
    })
}

/// Whether these are the digits of an id: 8 or 17 hexadecimal ones.
pub(crate) fn is_hex(digits: &str) -> bool {
    matches!(digits.len(), 8 | 17)
        && digits
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns the first network interface; only one is emulated.
pub(crate) fn interface(params: &Params) -> Outcome<Params> {
    let mut interfaces = params.items("NetworkInterface");
    if interfaces.len() > 1 {
        let message = "This emulator attaches one network interface to an instance";
        return Err(wrong("AttachmentLimitExceeded", message));
    }
    let Some(interface) = interfaces.pop() else {
        return Ok(Params::default());
    };
    if interface.int("DeviceIndex")?.unwrap_or(0) != 0 {
        return Err(wrong(
            "InvalidParameterValue",
            "The network interface of device index 0 is missing",
        ));
    }
    if params.has("SubnetId") {
        let message = "Network interfaces and an instance-level subnet ID may not be specified on the same request";
        return Err(wrong("InvalidParameterCombination", message));
    }
    if params.has("SecurityGroupId") || params.has("SecurityGroup") {
        let message = "Network interfaces and an instance-level security groups may not be specified on the same request";
        return Err(wrong("InvalidParameterCombination", message));
    }
    Ok(interface)
}

pub(crate) fn private(params: &Params, interface: &Params) -> Outcome<Option<Ipv4Addr>> {
    let text = interface
        .get("PrivateIpAddress")
        .or(params.get("PrivateIpAddress"));
    let parse = |text: &str| {
        text.parse()
            .map_err(|_| invalid_value("privateIpAddress", text, "Not an address."))
    };
    text.map(parse).transpose()
}

pub(crate) fn user_data(params: &Params) -> Outcome<Option<String>> {
    let Some(text) = params.get("UserData").filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let raw = crate::base64::decode(text).ok_or_else(|| {
        wrong(
            "InvalidParameterValue",
            "Invalid BASE64 encoding of user data",
        )
    })?;
    if raw.len() > USER_DATA {
        return Err(wrong(
            "InvalidParameterValue",
            format!("User data is limited to {USER_DATA} bytes"),
        ));
    }
    Ok(Some(text.to_owned()))
}

pub(crate) fn metadata(
    params: &Params,
    image: &Image,
    default_tags: &str,
) -> Outcome<MetadataOptions> {
    let options = params.part("MetadataOptions");
    let one_of = |name: &str, allowed: [&str; 2], default: &str| {
        let value = options.get(name).unwrap_or(default);
        if allowed.contains(&value) {
            Ok(value.to_owned())
        } else {
            Err(invalid_value(name, value, ""))
        }
    };
    let hops = options
        .int("HttpPutResponseHopLimit")?
        .unwrap_or(if image.imds_v2 { 2 } else { 1 });
    if !(1..=64).contains(&hops) {
        return Err(invalid_value(
            "HttpPutResponseHopLimit",
            &hops.to_string(),
            "It must be from 1 to 64.",
        ));
    }
    let tokens = if image.imds_v2 {
        "required"
    } else {
        "optional"
    };
    Ok(MetadataOptions {
        tokens: one_of("HttpTokens", ["optional", "required"], tokens)?,
        hops,
        endpoint: one_of("HttpEndpoint", ["enabled", "disabled"], "enabled")?,
        tags: one_of(
            "InstanceMetadataTags",
            ["enabled", "disabled"],
            default_tags,
        )?,
    })
}

/// Returns the image's disks with the overrides of the call, and the additional disks of the call.
pub(crate) fn disks(params: &Params, image: &Image) -> Outcome<Vec<Disk>> {
    let of_image = image.volumes().map(|(device, gib, goes)| Disk {
        device: device.to_owned(),
        gib,
        kind: "gp3".to_owned(),
        delete_on_termination: goes,
        encrypted: false,
    });
    let mut disks: Vec<Disk> = of_image.collect();
    for mapping in params.items("BlockDeviceMapping") {
        let device = mapping.need("DeviceName")?;
        let known = image.volumes().find(|(known, ..)| *known == device);
        let size = mapping.int("Ebs.VolumeSize")?;
        if size.is_none() && known.is_none() && mapping.get("Ebs.SnapshotId").is_none() {
            let message =
                format!("The request must contain the parameter size or snapshotId for {device}");
            return Err(wrong("MissingParameter", message));
        }
        let gib = size.unwrap_or(known.map_or(image.gib, |(_, gib, _)| gib));
        let least = known.map_or(1, |(_, gib, _)| gib);
        if gib < least {
            let message = format!(
                "Volume of size {gib}GB is smaller than snapshot, expect size >= {least}GB"
            );
            return Err(wrong("InvalidBlockDeviceMapping", message));
        }
        let kind = mapping.get("Ebs.VolumeType").unwrap_or("gp3");
        if !["gp2", "gp3", "io1", "io2", "st1", "sc1", "standard"].contains(&kind) {
            return Err(invalid_value("volumeType", kind, "Unknown volume type."));
        }
        let disk = Disk {
            device: device.to_owned(),
            gib,
            kind: kind.to_owned(),
            delete_on_termination: mapping
                .bool("Ebs.DeleteOnTermination")?
                .unwrap_or(known.is_none_or(|(_, _, goes)| goes)),
            encrypted: mapping.bool("Ebs.Encrypted")?.unwrap_or(false),
        };
        match disks.iter_mut().find(|disk| disk.device == device) {
            Some(known) => *known = disk,
            None => disks.push(disk),
        }
    }
    Ok(disks)
}
