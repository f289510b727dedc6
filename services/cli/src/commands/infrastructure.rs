//! Infrastructure of a cluster, by resource.

use drover_proto::{
    orchestrator::v1::{Cluster, InfrastructureStatus},
    platform::v1::{InfrastructureState, Resource, ResourcePhase},
};

use crate::output::{Table, rows};

/// A section of `describe`: resources that platforms have created or are about to create. Has no rows if the cluster
/// requests none.
pub(super) fn table(cluster: &Cluster) -> Table {
    let mut table = Table::new(&[
        "INFRASTRUCTURE",
        "NAME",
        "ID",
        "STATUS",
        "PLATFORM",
        "MESSAGE",
    ]);
    let entries = cluster
        .status
        .iter()
        .flat_map(|status| &status.infrastructure);
    for entry in entries {
        let resources = entry.state.iter().flat_map(|state| &state.resources);
        let before = table.rows.len();
        table
            .rows
            .extend(resources.map(|resource| row(entry, resource)));
        if table.rows.len() == before {
            table.rows.push(nothing(entry));
        }
    }
    table
}

fn row(entry: &InfrastructureStatus, resource: &Resource) -> Vec<String> {
    vec![
        resource.kind.clone(),
        resource.name.clone(),
        resource.id.clone(),
        word(resource.phase()),
        entry.platform.clone(),
        resource.message.clone(),
    ]
}

/// The row of a platform that reports no resource yet, or needs none.
fn nothing(entry: &InfrastructureStatus) -> Vec<String> {
    let phase = entry
        .state
        .as_ref()
        .map_or(ResourcePhase::Pending, InfrastructureState::phase);
    let message = match phase {
        ResourcePhase::Ready => "nothing had to be made",
        _ => "nothing of it is there",
    };
    vec![
        "-".into(),
        String::new(),
        String::new(),
        word(phase),
        entry.platform.clone(),
        message.into(),
    ]
}

fn word(phase: ResourcePhase) -> String {
    rows::word(phase.as_str_name(), "RESOURCE_PHASE_")
}

#[cfg(test)]
mod tests {
    use drover_proto::orchestrator::v1::ClusterStatus;

    use super::*;

    #[test]
    fn every_resource_has_a_row_and_a_platform_without_any_too() {
        let resource = |kind: &str, phase: ResourcePhase, message: &str| Resource {
            kind: kind.into(),
            name: "main".into(),
            id: format!("{kind}-7"),
            phase: phase.into(),
            message: message.into(),
            ..Default::default()
        };
        let status = ClusterStatus {
            infrastructure: vec![
                InfrastructureStatus {
                    platform: "metal".into(),
                    state: Some(InfrastructureState {
                        phase: ResourcePhase::Failed.into(),
                        resources: vec![
                            resource("network", ResourcePhase::Ready, ""),
                            resource("firewall", ResourcePhase::Failed, "no machine is free"),
                        ],
                        outputs: None,
                    }),
                },
                InfrastructureStatus {
                    platform: "cloud".into(),
                    state: None,
                },
            ],
            ..Default::default()
        };
        let cluster = Cluster {
            status: Some(status),
            ..Default::default()
        };
        let text = table(&cluster).render(true, false);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[1], ["network", "main", "network-7", "Ready", "metal"]);
        assert!(lines[2].starts_with(&["firewall", "main", "firewall-7", "Failed", "metal"]));
        assert!(text.contains("no machine is free"));
        assert_eq!(lines[3][..3], ["-", "Pending", "cloud"]);
        assert!(table(&Cluster::default()).rows.is_empty());
    }
}
