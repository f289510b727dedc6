//! Volumes of pods.

use drover_core::{Error, Result};
use drover_proto::kubernetes::v1::{self as api, volume::Source};
use k8s_openapi::{
    api::core::v1::{
        ConfigMapVolumeSource, EmptyDirVolumeSource, HostPathVolumeSource, KeyToPath,
        PersistentVolumeClaimVolumeSource, SecretVolumeSource, Volume,
    },
    apimachinery::pkg::api::resource::Quantity,
};

use super::{all, each, known, named, number, some};

pub(super) fn to_volume(field: &str, from: api::Volume) -> Result<Volume> {
    let mut volume = Volume {
        name: from.name,
        ..Volume::default()
    };
    match from.source {
        None => {
            let why = "is required: host_path, configuration, secret, empty_dir or claim";
            return Err(Error::invalid(field, why));
        }
        Some(Source::HostPath(it)) => {
            let type_ = host_path_type(&format!("{field}.host_path.type"), it.r#type)?;
            volume.host_path = Some(HostPathVolumeSource {
                path: it.path,
                type_: type_.map(str::to_owned),
            });
        }
        Some(Source::Configuration(it)) => {
            let field = format!("{field}.configuration");
            volume.config_map = Some(ConfigMapVolumeSource {
                default_mode: mode(&format!("{field}.default_mode"), it.default_mode)?,
                items: some(each(&format!("{field}.items"), it.items, to_item)?),
                name: it.name,
                optional: it.optional.then_some(true),
            });
        }
        Some(Source::Secret(it)) => {
            let field = format!("{field}.secret");
            volume.secret = Some(SecretVolumeSource {
                default_mode: mode(&format!("{field}.default_mode"), it.default_mode)?,
                items: some(each(&format!("{field}.items"), it.items, to_item)?),
                secret_name: Some(it.name),
                optional: it.optional.then_some(true),
            });
        }
        Some(Source::EmptyDir(it)) => {
            volume.empty_dir = Some(EmptyDirVolumeSource {
                medium: it.memory.then(|| "Memory".to_owned()),
                size_limit: some(it.size_limit).map(Quantity),
            });
        }
        Some(Source::Claim(it)) => {
            volume.persistent_volume_claim = Some(PersistentVolumeClaimVolumeSource {
                claim_name: it.name,
                read_only: it.read_only.then_some(true),
            });
        }
    }
    Ok(volume)
}

/// A volume of a kind that the message cannot say has no source.
pub(super) fn volume(from: Volume) -> api::Volume {
    let source = if let Some(it) = from.host_path {
        Some(Source::HostPath(api::HostPathVolume {
            path: it.path,
            r#type: host_path_type_of(it.type_.as_deref()),
        }))
    } else if let Some(it) = from.config_map {
        Some(Source::Configuration(api::FilesVolume {
            name: it.name,
            items: all(it.items, item),
            default_mode: it.default_mode.and_then(|it| u32::try_from(it).ok()),
            optional: it.optional.unwrap_or_default(),
        }))
    } else if let Some(it) = from.secret {
        Some(Source::Secret(api::FilesVolume {
            name: it.secret_name.unwrap_or_default(),
            items: all(it.items, item),
            default_mode: it.default_mode.and_then(|it| u32::try_from(it).ok()),
            optional: it.optional.unwrap_or_default(),
        }))
    } else if let Some(it) = from.empty_dir {
        Some(Source::EmptyDir(api::EmptyDirVolume {
            memory: it.medium.as_deref() == Some("Memory"),
            size_limit: it.size_limit.map(|it| it.0).unwrap_or_default(),
        }))
    } else {
        from.persistent_volume_claim.map(|it| {
            Source::Claim(api::ClaimVolume {
                name: it.claim_name,
                read_only: it.read_only.unwrap_or_default(),
            })
        })
    };
    api::Volume {
        name: from.name,
        source,
    }
}

fn host_path_type(field: &str, value: i32) -> Result<Option<&'static str>> {
    Ok(match known::<api::HostPathType>(field, value)? {
        api::HostPathType::Unspecified => None,
        api::HostPathType::DirectoryOrCreate => Some("DirectoryOrCreate"),
        api::HostPathType::Directory => Some("Directory"),
        api::HostPathType::FileOrCreate => Some("FileOrCreate"),
        api::HostPathType::File => Some("File"),
        api::HostPathType::Socket => Some("Socket"),
        api::HostPathType::CharDevice => Some("CharDevice"),
        api::HostPathType::BlockDevice => Some("BlockDevice"),
    })
}

fn host_path_type_of(word: Option<&str>) -> i32 {
    let all = [
        ("DirectoryOrCreate", api::HostPathType::DirectoryOrCreate),
        ("Directory", api::HostPathType::Directory),
        ("FileOrCreate", api::HostPathType::FileOrCreate),
        ("File", api::HostPathType::File),
        ("Socket", api::HostPathType::Socket),
        ("CharDevice", api::HostPathType::CharDevice),
        ("BlockDevice", api::HostPathType::BlockDevice),
    ];
    named(&all, word).unwrap_or_default().into()
}

fn mode(field: &str, from: Option<u32>) -> Result<Option<i32>> {
    from.map(|mode| number(field, mode)).transpose()
}

fn to_item(field: &str, from: api::KeyPath) -> Result<KeyToPath> {
    Ok(KeyToPath {
        key: from.key,
        path: from.path,
        mode: mode(&format!("{field}.mode"), from.mode)?,
    })
}

fn item(from: KeyToPath) -> api::KeyPath {
    api::KeyPath {
        key: from.key,
        path: from.path,
        mode: from.mode.and_then(|it| u32::try_from(it).ok()),
    }
}
