//! Addons of a cluster.

use drover_proto::{
    orchestrator::v1::Cluster,
    platform::v1::{AddonKind, AddonState, ResourcePhase},
};

use crate::output::{Table, rows};

/// A section of `describe`: addons, where they are reached and how many nodes they serve. Has no rows if the cluster
/// has none.
pub(super) fn table(cluster: &Cluster) -> Table {
    let mut table = Table::new(&["ADDON", "KIND", "STATUS", "TARGETS", "ENDPOINTS", "MESSAGE"]);
    let addons = cluster.status.iter().flat_map(|status| &status.addons);
    table.rows.extend(addons.map(row));
    table
}

fn row(addon: &AddonState) -> Vec<String> {
    let kind = match addon.kind() {
        AddonKind::Unspecified => String::new(),
        AddonKind::LoadBalancer => "load balancer".to_owned(),
        AddonKind::JumpHost => "jump host".to_owned(),
        AddonKind::OidcProvider => "OIDC provider".to_owned(),
        AddonKind::Template => "template".to_owned(),
    };
    let endpoints = addon.endpoints.iter().map(|one| {
        // The address of an IPv6 host contains colons.
        if one.host.contains(':') {
            format!("[{}]:{}", one.host, one.port)
        } else {
            format!("{}:{}", one.host, one.port)
        }
    });
    let endpoints: Vec<String> = endpoints.collect();
    let message = match addon.phase() {
        ResourcePhase::Ready => String::new(),
        _ => addon.message.clone(),
    };
    vec![
        addon.name.clone(),
        kind,
        rows::word(addon.phase().as_str_name(), "RESOURCE_PHASE_"),
        addon.target_count.to_string(),
        endpoints.join(", "),
        message,
    ]
}

#[cfg(test)]
mod tests {
    use drover_proto::{orchestrator::v1::ClusterStatus, platform::v1::Endpoint};

    use super::*;

    #[test]
    fn every_addon_has_a_row_with_where_it_is_reached_or_why_it_is_not() {
        let endpoint = |host: &str| Endpoint {
            host: host.into(),
            port: 443,
        };
        let front = AddonState {
            name: "front".into(),
            kind: AddonKind::LoadBalancer.into(),
            phase: ResourcePhase::Ready.into(),
            message: "2 of 2 pods".into(),
            endpoints: vec![endpoint("10.0.0.9"), endpoint("fd00::9")],
            target_count: 3,
            ..Default::default()
        };
        let jump = AddonState {
            name: "jump".into(),
            kind: AddonKind::JumpHost.into(),
            phase: ResourcePhase::Failed.into(),
            message: "no such image".into(),
            ..Default::default()
        };
        let cluster = Cluster {
            status: Some(ClusterStatus {
                addons: vec![front, jump],
                ..Default::default()
            }),
            ..Default::default()
        };
        let rows = table(&cluster).rows;
        let expected = [
            [
                "front",
                "load balancer",
                "Ready",
                "3",
                "10.0.0.9:443, [fd00::9]:443",
                "",
            ],
            ["jump", "jump host", "Failed", "0", "", "no such image"],
        ];
        assert_eq!(rows, expected);
        assert!(table(&Cluster::default()).rows.is_empty());
    }
}
