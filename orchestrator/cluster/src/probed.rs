//! Results of probes, taken into the state of a cluster.

use drover_core::{
    Sym,
    spec::{Health, Impairment},
};

use crate::ClusterState;

/// The result of one probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The node passed the probe.
    Healthy {
        /// What it lacks nevertheless: a bit for each impairment of the probe.
        impaired: u16,
    },
    /// The node failed the probe, for this reason.
    Unhealthy(String),
    /// The probe did not reach the node, which says nothing about it.
    Unknown(String),
}

/// What follows from a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// The platform of the node.
    pub platform: Sym,
    /// By how much the number of troubled nodes of the platform changes.
    pub troubled: i64,
    /// Whether a threshold was crossed, or an impairment began or ended, so that the cluster is to be planned.
    pub crossed: bool,
    /// Whether the node has ever answered a probe.
    pub answered: bool,
    /// Whether the last probe found it healthy.
    pub healthy: bool,
}

impl ClusterState {
    /// Takes in a result. `None` if the node has no record any more.
    pub fn probed(&mut self, slot: u64, outcome: ProbeOutcome, health: &Health) -> Option<Probed> {
        let node = self.state.node_mut(slot)?;
        let was_troubled = drover_planner::is_troubled(node);
        let probe = &mut node.probe;
        let (good, bad) = (u32::from(probe.good), u32::from(probe.bad));
        let reaches = |before: u32, threshold: u32| before < threshold && before + 1 >= threshold;
        let crossed = match outcome {
            ProbeOutcome::Healthy { impaired } => {
                probe.good = probe.good.saturating_add(1);
                probe.bad = 0;
                probe.answered = true;
                let lacks: Vec<&str> = health
                    .probe
                    .impaired(impaired)
                    .map(Impairment::words)
                    .collect();
                probe.message = lacks.join("; ").into();
                let was = std::mem::replace(&mut probe.impaired, impaired);
                reaches(good, health.success_threshold) || was != impaired
            }
            ProbeOutcome::Unhealthy(why) => {
                probe.bad = probe.bad.saturating_add(1);
                probe.good = 0;
                // A starting node is probed on and on, and the count shown stops at the threshold.
                let count = (bad + 1).min(health.failure_threshold);
                probe.message = format!("{why}, {count} of {}", health.failure_threshold).into();
                reaches(bad, health.failure_threshold)
            }
            ProbeOutcome::Unknown(why) => {
                (probe.good, probe.bad) = (0, 0);
                probe.message = why.into();
                false
            }
        };
        let (answered, healthy) = (probe.answered, probe.good > 0);
        Some(Probed {
            platform: node.platform.clone(),
            troubled: i64::from(drover_planner::is_troubled(node)) - i64::from(was_troubled),
            crossed,
            answered,
            healthy,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use drover_core::{NodeState, spec::Probe};

    use super::*;
    use crate::fixture;

    const SLOT: u64 = 7;

    fn state() -> ClusterState {
        let mut state = fixture::cluster_state();
        let node = fixture::node(SLOT, NodeState::Starting);
        state.state.nodes.push(node);
        state
    }

    /// Two good probes make a node healthy, three bad ones make it sick.
    fn health() -> Health {
        Health {
            probe: Probe::Phase,
            interval: Duration::from_secs(10),
            timeout: Duration::from_secs(1),
            failure_threshold: 3,
            success_threshold: 2,
            startup_timeout: Duration::from_secs(60),
        }
    }

    fn probe(state: &mut ClusterState, outcome: ProbeOutcome) -> Probed {
        state.probed(SLOT, outcome, &health()).unwrap()
    }

    fn healthy() -> ProbeOutcome {
        ProbeOutcome::Healthy { impaired: 0 }
    }

    fn unhealthy() -> ProbeOutcome {
        ProbeOutcome::Unhealthy("refused".to_owned())
    }

    #[test]
    fn a_threshold_is_crossed_once() {
        let mut state = state();
        let mut crossed = |outcome: ProbeOutcome| probe(&mut state, outcome).crossed;
        let good = [(); 4].map(|()| crossed(healthy()));
        assert_eq!(good, [false, true, false, false]);
        let bad = [(); 5].map(|()| crossed(unhealthy()));
        assert_eq!(bad, [false, false, true, false, false]);
    }

    #[test]
    fn what_a_healthy_node_lacks_is_planned_for_when_it_begins_and_when_it_ends() {
        let mut state = state();
        let mut crossed = |impaired| {
            let outcome = ProbeOutcome::Healthy { impaired };
            probe(&mut state, outcome).crossed
        };
        assert_eq!([0, 0].map(&mut crossed), [false, true]);
        assert_eq!(
            [1, 1, 3, 3, 0, 0].map(&mut crossed),
            [true, false, true, false, true, false]
        );
        // One that fails is not known to have what it lacked.
        probe(&mut state, ProbeOutcome::Healthy { impaired: 2 });
        probe(&mut state, unhealthy());
        assert_eq!(state.state.node(SLOT).unwrap().probe.impaired, 2);
    }

    #[test]
    fn the_count_that_is_shown_stops_at_the_threshold() {
        let mut state = state();
        for shown in ["1 of 3", "2 of 3", "3 of 3", "3 of 3"] {
            probe(&mut state, unhealthy());
            let message = &state.state.node(SLOT).unwrap().probe.message;
            assert_eq!(&**message, format!("refused, {shown}"));
        }
    }

    #[test]
    fn a_probe_that_did_not_reach_the_node_starts_all_counts_over() {
        let mut state = state();
        probe(&mut state, healthy());
        probe(&mut state, unhealthy());
        probe(&mut state, unhealthy());
        let probed = probe(&mut state, ProbeOutcome::Unknown("no route".to_owned()));
        assert!(!probed.crossed && !probed.healthy && probed.answered);
        let result = &state.state.node(SLOT).unwrap().probe;
        assert_eq!((result.good, result.bad), (0, 0));
        assert_eq!(&*result.message, "no route");
    }

    #[test]
    fn troubled_nodes_are_counted_when_they_begin_and_when_they_end_to_be_so() {
        let mut state = state();
        state.state.node_mut(SLOT).unwrap().state = NodeState::Ready;
        let change: i64 = (0..5)
            .map(|_| probe(&mut state, unhealthy()).troubled)
            .sum();
        assert_eq!(change, 1);
        let change: i64 = (0..5).map(|_| probe(&mut state, healthy()).troubled).sum();
        assert_eq!(change, -1);
    }

    #[test]
    fn a_node_whose_record_is_gone_is_not_probed_any_more() {
        let outcome = healthy();
        assert_eq!(state().probed(SLOT + 1, outcome, &health()), None);
    }
}
