//! SIPCluster documents and hosts of metal3 without Kubernetes: `drover dev --simulate-hosts`.

use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
    time::Duration,
};

use serde_json::Value;
use tokio::time::Instant;

use crate::dev::{Dev, PATIENCE};

const HOSTS: &str = "deploy/examples/sip/hosts.yaml";
const CLUSTER: &str = "deploy/examples/sip/sipcluster.yaml";
const SECRET: &str = "deploy/examples/sip/ssh-private-keys.yaml";
const NAME: &str = "sipcluster-system.sipcluster-system";

fn dev() -> Dev {
    let mut dev = Dev::start(&["--simulate-hosts", HOSTS]);
    dev.line(&["Next"]);
    dev
}

/// Rows of a list.
fn rows(dev: &Dev, arguments: &[&str], list: &str) -> Vec<Value> {
    let mut answer = dev.json(arguments);
    serde_json::from_value(answer[list].take()).unwrap()
}

fn nodes(dev: &Dev) -> Vec<Value> {
    rows(dev, &["get", "nodes", NAME], "nodes")
}

/// Hosts of the inventory that are claimed, and their racks.
fn claimed(dev: &Dev) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    rows(dev, &["get", "hosts", "metal3"], "hosts")
        .iter()
        .filter(|host| text(&host["state"]).to_uppercase().contains("CLAIMED"))
        .map(|host| (text(&host["id"]), text(&host["failureDomain"])))
        .collect()
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Claimed hosts of control planes, which must all be in different racks.
fn control_plane(dev: &Dev) -> usize {
    let all = claimed(dev);
    let own: Vec<&String> = all
        .iter()
        .filter(|(id, _)| id.starts_with("sipcluster-system/cp-"))
        .map(|(_, rack)| rack)
        .collect();
    let racks: BTreeSet<&&String> = own.iter().collect();
    assert_eq!(racks.len(), own.len(), "{all:?}");
    own.len()
}

#[test]
fn the_latest_sample_of_sip_runs_as_it_is_and_its_hosts_outlive_a_restart() {
    let dev = dev();
    let applied = dev.succeeds(&["apply", "-f", CLUSTER, "-f", SECRET, "--wait"]);
    let said = String::from_utf8(applied.stderr).unwrap();
    assert_eq!(
        said.matches("does not decode: it is left out").count(),
        2,
        "{said}"
    );
    let claims = claimed(&dev);
    assert_eq!((claims.len(), control_plane(&dev)), (4, 2), "{claims:?}");
    for node in nodes(&dev) {
        let addresses = node["addresses"].as_array().unwrap();
        assert!(
            addresses.iter().any(|it| it["interface"] == "oam-ipv4"),
            "{node}"
        );
    }

    let data = dev.stop();
    let mut dev = Dev::over(data, &[]);
    dev.line(&["Next"]);
    until("the same hosts are claimed", || claimed(&dev) == claims);

    for (size, hosts) in [("3", 4), ("2", 3)] {
        dev.succeeds(&["scale", NAME, "control-plane", size]);
        until("the control plane has its hosts", || {
            control_plane(&dev) == hosts
        });
    }
    dev.succeeds(&["delete", "cluster", NAME, "-y", "--wait"]);
    assert_eq!(claimed(&dev), BTreeMap::new());
}

#[test]
fn a_secret_that_a_sip_cluster_only_names_must_exist() {
    let dev = dev();
    let refused = dev.asks(&["apply", "-f", CLUSTER]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        said.contains("sipcluster-system.ssh-private-keys"),
        "{said}"
    );
    assert_eq!(claimed(&dev), BTreeMap::new());
}
