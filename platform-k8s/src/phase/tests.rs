use super::*;
use serde_json::{Value, json};

fn of_status(status: Value) -> Phase {
    of(&serde_json::from_value(json!({"metadata": {"name": "a"}, "status": status})).unwrap())
}

fn ready(status: &str) -> Value {
    json!([{"type": "Ready", "status": status, "reason": "ContainersNotReady", "message": "containers with unready status: [redis]"}])
}

fn expect(phase: &Phase, kind: NodePhase, words: &[&str]) {
    assert_eq!(phase.phase, kind, "{phase:?}");
    for word in words {
        assert!(
            phase.message.contains(word),
            "{word:?} is not in {:?}",
            phase.message
        );
    }
}

#[test]
fn a_pod_that_nobody_has_looked_at_is_pending() {
    for status in [
        json!({}),
        json!({"phase": "Pending"}),
        json!({"phase": "New"}),
    ] {
        let phase = of_status(status);
        assert_eq!(
            (phase.phase, phase.ready, phase.message.as_str()),
            (NodePhase::Pending, false, "")
        );
    }
}

#[test]
fn a_pod_whose_containers_are_being_made_is_pending_without_a_word() {
    let phase = of_status(json!({"phase": "Pending", "containerStatuses": [
        {"name": "redis", "state": {"waiting": {"reason": "ContainerCreating"}}}]}));
    assert_eq!(
        (phase.phase, phase.message.as_str()),
        (NodePhase::Pending, "")
    );
}

#[test]
fn a_running_pod_says_whether_it_is_ready() {
    let phase = of_status(json!({"phase": "Running", "conditions": ready("True")}));
    assert_eq!(
        (phase.phase, phase.ready, phase.message.as_str()),
        (NodePhase::Running, true, "")
    );
    let phase = of_status(json!({"phase": "Running", "conditions": ready("False")}));
    assert!(!phase.ready);
    expect(
        &phase,
        NodePhase::Running,
        &["not ready", "ContainersNotReady", "[redis]"],
    );
    let phase = of_status(json!({"phase": "Running"}));
    assert_eq!((phase.ready, phase.message.as_str()), (false, ""));
}

#[test]
fn what_the_scheduler_says_is_passed_on() {
    let phase = of_status(json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
         "message": "0/3 nodes are available: 3 Insufficient cpu."}]}));
    expect(
        &phase,
        NodePhase::Pending,
        &["Unschedulable", "3 Insufficient cpu"],
    );
}

#[test]
fn containers_that_wait_say_why() {
    for reason in [
        "CrashLoopBackOff",
        "ImagePullBackOff",
        "ErrImagePull",
        "ErrImageNeverPull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
    ] {
        let phase = of_status(json!({"phase": "Pending", "containerStatuses": [
            {"name": "redis", "state": {"waiting": {"reason": reason, "message": "words of it"}}}]}));
        expect(
            &phase,
            NodePhase::Pending,
            &["container redis waits", reason, "words of it"],
        );
    }
}

#[test]
fn init_containers_count_too() {
    let phase = of_status(json!({"phase": "Pending",
        "initContainerStatuses": [
            {"name": "done", "state": {"terminated": {"reason": "Completed", "exitCode": 0}}},
            {"name": "setup", "restartCount": 2,
             "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}},
             "lastState": {"terminated": {"reason": "Error", "exitCode": 1}}}],
        "containerStatuses": [{"name": "redis", "state": {"waiting": {"reason": "PodInitializing"}}}]}));
    expect(
        &phase,
        NodePhase::Pending,
        &[
            "init container setup waits: CrashLoopBackOff: back-off 20s",
            "last ended: Error (exit code 1)",
            "2 restarts",
        ],
    );
    assert!(!phase.message.contains("done") && !phase.message.contains("redis"));
}

#[test]
fn a_container_that_was_killed_is_reported_while_it_waits_and_when_it_runs_again() {
    let waits = of_status(
        json!({"phase": "Running", "conditions": ready("False"), "containerStatuses": [
        {"name": "redis", "restartCount": 3,
         "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
         "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]}),
    );
    expect(
        &waits,
        NodePhase::Running,
        &[
            "CrashLoopBackOff",
            "OOMKilled (exit code 137)",
            "3 restarts",
        ],
    );
    let again = of_status(
        json!({"phase": "Running", "conditions": ready("True"), "containerStatuses": [
        {"name": "redis", "restartCount": 1, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
         "lastState": {"terminated": {"reason": "Error", "exitCode": 137, "signal": 9}}}]}),
    );
    expect(
        &again,
        NodePhase::Running,
        &["redis runs again", "exit code 137, signal 9", "1 restart"],
    );
    assert!(again.ready);
}

#[test]
fn what_a_container_wrote_itself_is_not_passed_on() {
    let phase = of_status(json!({"phase": "Failed", "containerStatuses": [
        {"name": "redis", "state": {"terminated": {"reason": "Error", "exitCode": 1, "message": "password hunter2"}}}]}));
    expect(
        &phase,
        NodePhase::Failed,
        &["has ended: Error (exit code 1)"],
    );
    assert!(!phase.message.contains("hunter2"));
    let phase = of_status(json!({"phase": "Running", "containerStatuses": [
        {"name": "redis", "state": {"terminated": {"reason": "StartError", "exitCode": 128, "message": "exec: no such file"}}}]}));
    expect(
        &phase,
        NodePhase::Running,
        &["StartError", "exec: no such file"],
    );
}

#[test]
fn pods_that_have_ended_have_failed() {
    let evicted = of_status(
        json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."}),
    );
    expect(
        &evicted,
        NodePhase::Failed,
        &["Evicted: The node was low on memory."],
    );
    let done = of_status(json!({"phase": "Succeeded", "containerStatuses": [
        {"name": "job", "state": {"terminated": {"reason": "Completed", "exitCode": 0}}}]}));
    expect(
        &done,
        NodePhase::Failed,
        &["have ended", "Completed (exit code 0)"],
    );
}

#[test]
fn a_lost_kubernetes_node_leaves_the_phase_unknown() {
    let phase = of_status(json!({"phase": "Unknown", "reason": "NodeLost"}));
    expect(&phase, NodePhase::Unknown, &["NodeLost"]);
}

#[test]
fn a_pod_that_is_deleted_is_leaving_until_it_has_ended() {
    for (status, expected) in [
        ("Pending", NodePhase::Deprovisioning),
        ("Running", NodePhase::Deprovisioning),
        ("Unknown", NodePhase::Deprovisioning),
        ("Failed", NodePhase::Failed),
        ("Succeeded", NodePhase::Failed),
    ] {
        let pod = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.org/never"]},
            "status": {"phase": status, "conditions": ready("True")}});
        let phase = of(&serde_json::from_value(pod).unwrap());
        expect(&phase, expected, &["being deleted", "example.org/never"]);
        assert!(!phase.ready);
    }
}

#[test]
fn long_words_are_cut() {
    let phase =
        of_status(json!({"phase": "Failed", "reason": "Evicted", "message": "é".repeat(100_000)}));
    assert!(phase.message.len() < 4096);
}
