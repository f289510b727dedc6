//! Resolves user-facing names to those of Compute Engine.

use drover_core::{Error, Reason, Result};

use super::{
    properties::Properties,
    settings::{Settings, is_ssh_key},
};

/// Well-known short names of image families. Updated with the releases of their vendors.
const FAMILIES: [(&str, &str, &str); 10] = [
    ("debian", "debian-cloud", "debian-12"),
    ("debian-12", "debian-cloud", "debian-12"),
    ("debian-13", "debian-cloud", "debian-13"),
    ("ubuntu", "ubuntu-os-cloud", "ubuntu-2404-lts-amd64"),
    ("ubuntu-22.04", "ubuntu-os-cloud", "ubuntu-2204-lts"),
    ("ubuntu-24.04", "ubuntu-os-cloud", "ubuntu-2404-lts-amd64"),
    ("rocky", "rocky-linux-cloud", "rocky-linux-9"),
    ("centos", "centos-cloud", "centos-stream-9"),
    ("cos", "cos-cloud", "cos-stable"),
    (
        "fedora-coreos",
        "fedora-coreos-cloud",
        "fedora-coreos-stable",
    ),
];

/// Images of other clouds that do not exist here.
const ELSEWHERE: [&str; 5] = ["amazonlinux", "amazon-linux", "amzn", "al2023", "ami-"];

/// E2 machine types by vCPUs and GiB, smallest first
/// (<https://cloud.google.com/compute/docs/general-purpose-machines#e2_machine_types>).
const SIZES: [(&str, u32, f64); 11] = [
    ("e2-micro", 1, 1.0),
    ("e2-small", 1, 2.0),
    ("e2-medium", 1, 4.0),
    ("e2-standard-2", 2, 8.0),
    ("e2-highmem-2", 2, 16.0),
    ("e2-standard-4", 4, 16.0),
    ("e2-highmem-4", 4, 32.0),
    ("e2-standard-8", 8, 32.0),
    ("e2-standard-16", 16, 64.0),
    ("e2-highmem-16", 16, 128.0),
    ("e2-standard-32", 32, 128.0),
];

/// Machine type name that selects by size, as in Kadende documents.
const BY_SIZE: &str = "standard";

/// The path of an image.
///
/// # Errors
/// `Invalid` for a malformed name.
pub(super) fn image(settings: &Settings, properties: &Properties) -> Result<String> {
    let said = properties.image.as_deref().unwrap_or(&settings.image);
    let name = settings.common.image(said);
    if let Some((_, path)) = name.split_once("/compute/v1/") {
        return Ok(path.to_owned());
    }
    if name.starts_with("projects/") {
        return Ok(name.to_owned());
    }
    if let Some((_, project, family)) = FAMILIES.iter().find(|(known, ..)| *known == name) {
        return Ok(format!("projects/{project}/global/images/family/{family}"));
    }
    if ELSEWHERE
        .iter()
        .any(|elsewhere| name.starts_with(elsewhere))
    {
        return Err(Error::invalid(
            "group.properties.image",
            format!(
                "the image {said:?} does not exist on Compute Engine; say in the settings of the platform which one is \
                 meant (common.images: {{{said}: rocky}}), or use one of {}",
                FAMILIES.map(|(known, ..)| known).join(", ")
            ),
        ));
    }
    let is_word = |word: &str| {
        !word.is_empty()
            && word
                .chars()
                .all(|char| char.is_ascii_alphanumeric() || ".-_:".contains(char))
    };
    match name.split('/').collect::<Vec<_>>().as_slice() {
        ["family", family] if is_word(family) => Ok(format!(
            "projects/{}/global/images/family/{family}",
            settings.project
        )),
        [project, family] if is_word(project) && is_word(family) => {
            Ok(format!("projects/{project}/global/images/family/{family}"))
        }
        [own] if is_word(own) => Ok(format!("projects/{}/global/images/{own}", settings.project)),
        _ => Err(Error::invalid(
            "group.properties.image",
            format!("{said:?} is neither a known image nor PROJECT/FAMILY nor a path"),
        )),
    }
}

/// The machine type from the group's node class and its property, which must agree.
///
/// # Errors
/// `Invalid` or `NodeClassNotFound` with the field.
pub(super) fn machine_type(
    settings: &Settings,
    class: &str,
    properties: &Properties,
) -> Result<String> {
    let said = properties.instance_type.as_deref();
    let by_property = said.map(|said| settings.common.node_class(said));
    let by_size = properties.cpus.is_some() || properties.memory.is_some();
    if let Some(by_property) = by_property.filter(|name| !class.is_empty() && *name != class) {
        return Err(Error::invalid(
            "group.node_class",
            format!(
                "the group says {class:?} and its property instanceType {by_property:?}; say one of them"
            ),
        ));
    }
    let named = by_property
        .or((!class.is_empty()).then_some(class))
        .filter(|name| *name != BY_SIZE);
    let name = match (named, by_size) {
        (Some(name), true) => {
            return Err(Error::invalid(
                if properties.memory.is_some() {
                    "group.properties.memory"
                } else {
                    "group.properties.cpus"
                },
                format!(
                    "{name:?} says the size already; say either a machine type or cpus and memory"
                ),
            ));
        }
        (Some(name), false) => name,
        (None, true) => of_size(properties)?,
        (None, false) => settings.common.node_class(&settings.machine_type),
    };
    let valid = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '-';
    if name.is_empty() || !name.chars().all(valid) {
        let said = said.unwrap_or(class);
        return Err(Error::new(
            Reason::NodeClassNotFound,
            format!(
                "{said:?} is no machine type of Compute Engine; say in the settings of the platform which one is meant \
                 (common.node_classes: {{{said}: e2-small}})"
            ),
        )
        .with_violation("group.node_class", format!("there is no {said:?}")));
    }
    Ok(name.to_owned())
}

fn of_size(properties: &Properties) -> Result<&'static str> {
    let (cpus, memory) = (
        properties.cpus.unwrap_or(1),
        properties.memory.unwrap_or(0.0),
    );
    SIZES
        .iter()
        .find(|(_, has_cpus, has_memory)| *has_cpus >= cpus && *has_memory >= memory)
        .map(|(name, ..)| *name)
        .ok_or_else(|| {
            Error::invalid(
                "group.properties.memory",
                format!(
                    "no E2 machine type has {cpus} vCPUs and {memory} GiB; say an instanceType"
                ),
            )
        })
}

/// The public keys of a machine in metadata format.
///
/// # Errors
/// `Invalid` for a key name that is not in the settings.
pub(super) fn ssh_keys(settings: &Settings, properties: &Properties) -> Result<Option<String>> {
    let mut keys: Vec<&str> = Vec::new();
    for (field, said) in [("key", &properties.key), ("sshKey", &properties.ssh_key)] {
        let Some(said) = said else {
            continue;
        };
        let key = match settings.ssh_keys.get(said) {
            Some(key) => key.as_str(),
            None if is_ssh_key(said) => said.as_str(),
            None => {
                let known: Vec<_> = settings.ssh_keys.keys().map(String::as_str).collect();
                return Err(Error::invalid(
                    format!("group.properties.{field}"),
                    format!(
                        "there is no key {said:?}. Compute Engine has no named keys: put it into the settings of the \
                         platform (ssh_keys: {{{said}: \"USER:ssh-ed25519 AAAA…\"}}). There are: {}",
                        if known.is_empty() {
                            "none".to_owned()
                        } else {
                            known.join(", ")
                        }
                    ),
                ));
            }
        };
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    Ok((!keys.is_empty()).then(|| keys.join("\n")))
}

/// The path of a network or subnetwork given by name or path.
pub(super) fn link(settings: &Settings, kind: &str, name: &str) -> String {
    if name.contains('/') {
        return name.to_owned();
    }
    let project = &settings.project;
    match kind {
        "subnetworks" => format!(
            "projects/{project}/regions/{}/subnetworks/{name}",
            settings.region
        ),
        _ => format!("projects/{project}/global/{kind}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn settings() -> Settings {
        Settings {
            project: "p".to_owned(),
            region: "r".to_owned(),
            ..Settings::emulated("http://x")
        }
    }

    fn properties(value: Value) -> Properties {
        Properties::read(value.as_object().unwrap()).unwrap()
    }

    fn image_of(name: &str) -> Result<String> {
        image(&settings(), &properties(json!({ "image": name })))
    }

    #[test]
    fn images_are_known_by_name_alias_family_or_path() {
        for (said, path) in [
            (
                "debian",
                "projects/debian-cloud/global/images/family/debian-12",
            ),
            (
                "amazonlinux",
                "projects/rocky-linux-cloud/global/images/family/rocky-linux-9",
            ),
            (
                "suse-cloud/sles-15",
                "projects/suse-cloud/global/images/family/sles-15",
            ),
            ("family/mine", "projects/p/global/images/family/mine"),
            ("mine-v3", "projects/p/global/images/mine-v3"),
            ("projects/q/global/images/x", "projects/q/global/images/x"),
            (
                "https://www.googleapis.com/compute/v1/projects/q/global/images/x",
                "projects/q/global/images/x",
            ),
        ] {
            assert_eq!(image_of(said).unwrap(), path);
        }
        let mut bare = settings();
        bare.common.images.clear();
        let error = image(&bare, &properties(json!({ "image": "amazonlinux" }))).unwrap_err();
        assert_eq!(error.fields()[0].field, "group.properties.image");
        assert!(error.message().contains("common.images"), "{error}");
        assert!(image_of("a/b/c").is_err());
    }

    #[test]
    fn machine_types_come_from_class_property_or_size() {
        let of = |class: &str, value: Value| machine_type(&settings(), class, &properties(value));
        assert_eq!(of("", json!({})).unwrap(), "e2-small");
        assert_eq!(
            of("", json!({ "instanceType": "t2.micro" })).unwrap(),
            "e2-micro"
        );
        assert_eq!(
            of("e2-micro", json!({ "instanceType": "t2.micro" })).unwrap(),
            "e2-micro"
        );
        assert_eq!(
            of("", json!({ "instanceType": "standard", "memory": 1 })).unwrap(),
            "e2-micro"
        );
        assert_eq!(
            of("", json!({ "cpus": 4, "memory": 20 })).unwrap(),
            "e2-highmem-4"
        );
        let error = of("e2-small", json!({ "instanceType": "t2.micro" })).unwrap_err();
        assert_eq!(error.fields()[0].field, "group.node_class");
        let error = of("", json!({ "instanceType": "m5.large" })).unwrap_err();
        assert_eq!(error.reason(), Reason::NodeClassNotFound);
        assert!(error.message().contains("common.node_classes"), "{error}");
        assert!(of("", json!({ "instanceType": "e2-small", "memory": 2 })).is_err());
        assert!(of("", json!({ "cpus": 32, "memory": 128.0 })).is_ok());
    }

    #[test]
    fn keys_come_from_the_settings_or_are_refused_with_the_way_out() {
        let of = |value: Value| ssh_keys(&settings(), &properties(value));
        assert!(
            of(json!({ "key": "mwas" }))
                .unwrap()
                .unwrap()
                .starts_with("mwas:ssh-ed25519 ")
        );
        assert_eq!(of(json!({})).unwrap(), None);
        assert_eq!(
            of(json!({ "sshKey": "me:ssh-rsa AAAA" })).unwrap().unwrap(),
            "me:ssh-rsa AAAA"
        );
        let error = of(json!({ "sshKey": "nobody" })).unwrap_err();
        assert_eq!(error.fields()[0].field, "group.properties.sshKey");
        assert!(error.message().contains("ssh_keys: {nobody:"), "{error}");
        assert!(error.message().contains("mwas"), "{error}");
    }
}
