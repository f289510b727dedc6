//! The metadata key under which an image finds its user data.

use drover_core::{Error, Result};

use super::properties::UserDataKey;

/// What reads the metadata of a machine at its start.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Guest {
    /// cloud-init, and the guest agent for scripts.
    CloudInit,
    /// Google's guest agent only.
    Agent,
    Ignition,
    Unknown,
}

/// By the project of the image. Google's own Linux images have the guest agent and no cloud-init
/// (<https://cloud.google.com/compute/docs/images/os-details>,
/// <https://cloud.google.com/compute/docs/instances/startup-scripts/linux>).
const GUESTS: [(&str, Guest); 9] = [
    ("ubuntu-os-cloud", Guest::CloudInit),
    ("ubuntu-os-pro-cloud", Guest::CloudInit),
    ("cos-cloud", Guest::CloudInit),
    ("fedora-coreos-cloud", Guest::Ignition),
    ("debian-cloud", Guest::Agent),
    ("rocky-linux-cloud", Guest::Agent),
    ("centos-cloud", Guest::Agent),
    ("rhel-cloud", Guest::Agent),
    ("almalinux-cloud", Guest::Agent),
];

fn guest(image: &str) -> Guest {
    let project = image
        .strip_prefix("projects/")
        .and_then(|rest| rest.split('/').next());
    let known = GUESTS.iter().find(|(name, _)| Some(*name) == project);
    known.map_or(Guest::Unknown, |(_, guest)| *guest)
}

/// The key for this user data on this image.
///
/// # Errors
/// `Invalid` if the image would not run it.
pub(super) fn key(image: &str, data: &str, said: Option<UserDataKey>) -> Result<UserDataKey> {
    use UserDataKey::{StartupScript, UserData};
    let is_script = data.starts_with("#!");
    match (guest(image), said) {
        (Guest::Agent, Some(UserData)) => Err(refused(
            image,
            "has no cloud-init and reads nothing under `user-data`; leave the key out, or take an image with cloud-init \
             (ubuntu)",
        )),
        (Guest::Agent, None) if !is_script => Err(refused(
            image,
            "has no cloud-init and would not run this user data; give it a script that begins with `#!`, or take an image \
             with cloud-init (ubuntu)",
        )),
        (Guest::Ignition, Some(StartupScript)) => Err(refused(
            image,
            "has Ignition and reads nothing under `startup-script`; leave the key out",
        )),
        (Guest::Ignition, _) if is_script => Err(refused(
            image,
            "has Ignition, which runs no scripts; give it an Ignition configuration, or take another image",
        )),
        (Guest::Agent, _) => Ok(StartupScript),
        (Guest::Ignition, _) => Ok(UserData),
        (Guest::CloudInit, said) => Ok(said.unwrap_or(UserData)),
        (Guest::Unknown, Some(said)) => Ok(said),
        // A script that cloud-init would run once must not run at every boot because nobody said which of the two reads it.
        (Guest::Unknown, None) => Ok(UserData),
    }
}

fn refused(image: &str, why: &str) -> Error {
    Error::invalid(
        "group.properties.userDataKey",
        format!("the image {image} {why}"),
    )
}
