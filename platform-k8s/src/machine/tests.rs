use super::*;
use serde_json::{Value, json};

fn machine(status: &str, taints: &[&str]) -> Machine {
    let taints: Vec<Value> = taints.iter().map(|key| json!({"key": key})).collect();
    let conditions = json!([
        {"type": "DiskPressure", "status": "False"},
        {"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z",
         "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."},
    ]);
    let json = json!({
        "metadata": {"name": "worker-1", "labels": {"zone": "a"}},
        "spec": {"taints": taints},
        "status": {"conditions": conditions},
    });
    serde_json::from_value(json).unwrap()
}

fn shown(machine: &Machine) -> NodeHost {
    host("worker-1", Some(&machine.known("zone")))
}

#[test]
fn a_machine_whose_kubelet_answers_is_ready() {
    let host = shown(&machine("True", &["node.kubernetes.io/unschedulable"]));
    assert_eq!(host.state(), NodeHostState::Ready);
    assert_eq!(
        (host.name.as_str(), &*host.message, &*host.way_out),
        ("worker-1", "", "")
    );
    // It has just registered.
    assert_eq!(
        shown(&Machine::default()).state(),
        NodeHostState::Ready,
        "no condition yet"
    );
}

#[test]
fn a_silent_machine_is_unreachable_since_a_time_and_names_the_commands_that_end_it() {
    for status in ["Unknown", "False"] {
        let host = shown(&machine(status, &[UNREACHABLE]));
        assert_eq!(host.state(), NodeHostState::Unreachable);
        assert_eq!(
            host.message,
            format!(
                "Ready is {status} since 2026-01-01T00:00:00Z (NodeStatusUnknown: Kubelet stopped posting node status)"
            )
        );
        for command in [
            "`kubectl taint node worker-1 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`",
            "`kubectl delete node worker-1`",
        ] {
            assert!(host.way_out.contains(command), "{host:?}");
        }
        let condition = "only when the machine is off: ";
        assert!(host.way_out.starts_with(condition), "{host:?}");
    }
    let tainted = shown(&machine("True", &[UNREACHABLE]));
    assert_eq!(tainted.state(), NodeHostState::Unreachable);
}

#[test]
fn a_machine_is_given_up_as_kubernetes_gives_it_up() {
    let off = shown(&machine("Unknown", &[UNREACHABLE, OUT_OF_SERVICE]));
    assert_eq!(off.state(), NodeHostState::Gone);
    assert!(off.message.contains("out-of-service"), "{off:?}");
    // Kubernetes removes no pod of a machine that answers.
    let answers = shown(&machine("True", &[OUT_OF_SERVICE]));
    assert_eq!(answers.state(), NodeHostState::Ready);
    let deleted = host("worker-1", None);
    assert_eq!(deleted.state(), NodeHostState::Gone);
    assert_eq!(deleted.message, "its Node object is gone");
}

#[test]
fn a_failure_domain_is_a_label_that_is_not_empty() {
    let machine = machine("True", &[]);
    assert_eq!(machine.known("zone").zone.as_deref(), Some("a"));
    assert_eq!(machine.known("rack").zone, None);
}
