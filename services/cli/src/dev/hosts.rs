//! Hosts of metal3 without Kubernetes: `drover dev --simulate-hosts FILE` fills a simulated inventory from BareMetalHosts.

use std::{fs, io, path::Path};

use anyhow::Context;
use drover_platform_cloud::drivers::simulated::SimulatedSettings;

use super::data::DataDir;
use crate::failure::{Failure, Outcome};

/// Name of their platform.
pub(super) const PLATFORM: &str = "metal3";

/// Reads the hosts of a file. `simulated` are the names of the other simulated platforms.
pub(super) fn read(
    file: Option<&Path>,
    simulated: &[String],
) -> Outcome<Option<SimulatedSettings>> {
    let Some(file) = file else {
        return Ok(None);
    };
    if simulated.iter().any(|name| name.trim() == PLATFORM) {
        return Err(Failure::usage(format!(
            "`{PLATFORM}` is the platform of --simulate-hosts; give the other one another name"
        )));
    }
    let shown = file.display();
    let text = fs::read_to_string(file)
        .map_err(|error| Failure::failed(format!("cannot read {shown}: {error}")))?;
    let hosts = SimulatedSettings::of_bare_metal_hosts(&text);
    let hosts = hosts.map_err(|why| Failure::failed(format!("{shown} {why}")))?;
    Ok(Some(hosts))
}

/// Keeps the hosts for later runs. Without new ones, answers those of an earlier run.
pub(super) fn keep(
    data: &DataDir,
    hosts: Option<SimulatedSettings>,
) -> anyhow::Result<Option<SimulatedSettings>> {
    let path = data.hosts();
    let failed = || format!("cannot use {}", path.display());
    let Some(hosts) = hosts else {
        return match fs::read(&path) {
            Ok(json) => serde_json::from_slice(&json).map(Some).with_context(failed),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(failed),
        };
    };
    let json = serde_json::to_vec(&hosts).with_context(failed)?;
    // Replaced atomically: nodes are on the hosts of the earlier file.
    let made = path.with_extension("json.new");
    fs::write(&made, json).with_context(failed)?;
    fs::rename(&made, &path).with_context(failed)?;
    Ok(Some(hosts))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTS: &str = include_str!("../../../../deploy/examples/sip/hosts.yaml");

    #[test]
    fn hosts_are_kept_between_runs_without_their_credentials() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(&dir.path().join(".drover")).unwrap();
        assert_eq!(keep(&data, None).unwrap(), None);
        let file = dir.path().join("hosts.yaml");
        fs::write(
            &file,
            HOSTS.replace("password: example", "password: hunter2"),
        )
        .unwrap();
        let hosts = read(Some(&file), &[]).unwrap();
        assert_eq!(hosts.as_ref().unwrap().hosts.len(), 24);
        assert_eq!(keep(&data, hosts.clone()).unwrap(), hosts);
        assert_eq!(keep(&data, None).unwrap(), hosts);
        let kept = fs::read_to_string(data.hosts()).unwrap();
        assert!(!kept.contains("hunter2"));
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_before_anything_starts() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("hosts.yaml");
        let refusal = |names: &[String]| read(Some(&file), names).unwrap_err().to_string();
        assert!(refusal(&[]).contains("cannot read"));
        fs::write(&file, "kind: Secret\n").unwrap();
        assert!(refusal(&[]).contains("has no BareMetalHost in it"));
        assert!(refusal(&["metal3".to_owned()]).contains("give the other one another name"));
    }
}
