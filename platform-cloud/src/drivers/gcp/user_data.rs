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
    /// An image of the platform's own project, whose owner knows it.
    Own,
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

fn guest(image: &str, own_project: &str) -> Guest {
    let project = image
        .strip_prefix("projects/")
        .and_then(|rest| rest.split('/').next());
    let known = GUESTS.iter().find(|(name, _)| Some(*name) == project);
    match known {
        Some((_, guest)) => *guest,
        None if project == Some(own_project) => Guest::Own,
        None => Guest::Unknown,
    }
}

/// The key for this user data on this image.
///
/// # Errors
/// `Invalid` if the image would not run it, or if nobody knows what would.
pub(super) fn key(
    image: &str,
    own_project: &str,
    data: &str,
    said: Option<UserDataKey>,
) -> Result<UserDataKey> {
    use UserDataKey::{StartupScript, UserData};
    let is_script = data.starts_with("#!");
    match (guest(image, own_project), said) {
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
        (Guest::Own | Guest::Unknown, Some(said)) => Ok(said),
        // A script that cloud-init would run once must not run at every boot because nobody said which of the two reads it.
        (Guest::Own, None) => Ok(UserData),
        (Guest::Unknown, None) => Err(refused(
            image,
            "is of a project whose images are not known here, and might not run this user data; say userDataKey: \
             `user-data` if the image has cloud-init or Ignition, `startup-script` if it has the Google guest agent only",
        )),
    }
}

fn refused(image: &str, why: &str) -> Error {
    Error::invalid(
        "group.properties.userDataKey",
        format!("the image {image} {why}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_images_that_are_known_or_of_the_own_project_need_no_key() {
        use UserDataKey::{StartupScript, UserData};
        let of = |project: &str, said: Option<UserDataKey>| {
            let image = format!("projects/{project}/global/images/family/f");
            key(&image, "own", "#!/bin/sh\n", said)
        };
        assert_eq!(of("debian-cloud", None), Ok(StartupScript));
        assert_eq!(of("own", None), Ok(UserData));
        assert_eq!(of("own", Some(StartupScript)), Ok(StartupScript));
        for project in ["suse-cloud", "oracle-linux-cloud", "own-2"] {
            for said in [UserData, StartupScript] {
                assert_eq!(of(project, Some(said)), Ok(said), "{project}");
            }
            let error = of(project, None).unwrap_err();
            assert!(error.message().contains("say userDataKey"), "{error}");
        }
    }
}
