use drover_core::Reason;
use serde_json::{Value, json};

use super::*;
use crate::convert::Why;

fn object(name: &str, uid: &str, verdict: Verdict) -> Seen {
    Seen {
        namespace: "n".to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        verdict,
    }
}

fn met(name: &str) -> Seen {
    object(name, name, Verdict::Met)
}

fn pending(name: &str) -> Seen {
    let why = Why::new("Unschedulable", "0/3 nodes".to_owned());
    object(name, name, Verdict::Pending(why))
}

fn goal() -> Goal {
    Goal {
        kind: "pod",
        namespace: "n".to_owned(),
        min_count: 1,
        ..Goal::default()
    }
}

/// A list, and what the wait makes of it.
fn list(wait: &mut Wait, objects: Vec<Seen>) -> goal::Step {
    assert!(wait.apply(Change::Listing).progress.is_none());
    for object in objects {
        let step = wait.apply(Change::Listed(object));
        assert!(step.progress.is_none(), "half a list decides nothing");
    }
    wait.apply(Change::Complete)
}

fn told(step: goal::Step) -> (u32, u32, Vec<String>, bool) {
    assert!(step.failed.is_none(), "{:?}", step.failed);
    let progress = step.progress.expect("progress");
    let pending = progress.pending.iter();
    let pending = pending.map(|it| format!("{} {}", it.name, it.reason));
    (
        progress.matched,
        progress.met,
        pending.collect(),
        progress.done,
    )
}

#[test]
fn a_wait_tells_at_once_what_is_missing_and_then_every_change() {
    let mut wait = Wait::new(goal());
    let first = list(&mut wait, vec![met("a"), pending("b")]);
    assert_eq!(
        told(first),
        (2, 1, vec!["b Unschedulable".to_owned()], false)
    );
    assert!(wait.apply(Change::Changed(pending("b"))).progress.is_none());
    assert_eq!(
        told(wait.apply(Change::Changed(met("b")))),
        (2, 2, vec![], true)
    );
}

#[test]
fn nothing_that_matches_is_waited_for_or_an_error_as_asked() {
    let mut wait = Wait::new(goal());
    assert_eq!(told(list(&mut wait, vec![])), (0, 0, vec![], false));
    assert!(told(wait.apply(Change::Changed(met("a")))).3);
    let mut wait = Wait::new(Goal {
        fail_if_none: true,
        ..goal()
    });
    let failed = list(&mut wait, vec![]).failed.unwrap();
    assert_eq!(failed.reason(), Reason::NothingMatches);
}

#[test]
fn names_that_do_not_exist_are_named_and_others_do_not_count() {
    let mut wait = Wait::new(Goal {
        names: ["a".to_owned(), "b".to_owned()].into(),
        ..goal()
    });
    let first = list(&mut wait, vec![met("a"), pending("x")]);
    assert_eq!(told(first), (1, 1, vec!["b NotFound".to_owned()], false));
    assert!(told(wait.apply(Change::Changed(met("b")))).3);
}

#[test]
fn a_minimum_is_waited_for() {
    let mut wait = Wait::new(Goal {
        min_count: 2,
        ..goal()
    });
    assert!(!told(list(&mut wait, vec![met("a")])).3);
    assert!(told(wait.apply(Change::Changed(met("b")))).3);
}

#[test]
fn what_was_lost_between_two_lists_is_seen_in_the_second() {
    let mut wait = Wait::new(goal());
    list(&mut wait, vec![met("a"), pending("b")]);
    assert_eq!(told(list(&mut wait, vec![met("a")])), (1, 1, vec![], true));
}

#[test]
fn gone_means_the_objects_of_the_beginning_by_uid() {
    let gone = || Goal {
        gone: true,
        min_count: 0,
        ..goal()
    };
    let mut wait = Wait::new(gone());
    let first = list(&mut wait, vec![pending("a"), pending("b")]);
    assert_eq!(told(first).0, 2);
    // A pod of the same name takes the place of the first, and a new one comes.
    let why = || Verdict::Pending(Why::new("NotReady", None));
    let replaced = wait.apply(Change::Changed(object("a", "other", why())));
    assert_eq!(
        told(replaced),
        (2, 1, vec!["b Unschedulable".to_owned()], false)
    );
    assert!(wait.apply(Change::Changed(pending("c"))).progress.is_none());
    assert!(told(wait.apply(Change::Gone(pending("b")))).3);
    // Nothing there is what was wanted, unless it is an error.
    assert!(told(list(&mut Wait::new(gone()), vec![])).3);
    let goal = Goal {
        fail_if_none: true,
        ..gone()
    };
    assert!(list(&mut Wait::new(goal), vec![]).failed.is_some());
}

#[test]
fn a_wait_for_gone_that_goes_on_with_uids_does_not_count_what_was_made_anew() {
    let of = |uid: &str| Goal {
        gone: true,
        min_count: 0,
        names: ["a".to_owned()].into(),
        uids: [uid.to_owned()].into(),
        ..goal()
    };
    let anew = object("a", "new", Verdict::Met);
    assert!(told(list(&mut Wait::new(of("old")), vec![anew])).3);
    let mut wait = Wait::new(of("old"));
    let old = || {
        let why = Why::new("Running", None);
        object("a", "old", Verdict::Pending(why))
    };
    let first = list(&mut wait, vec![old()]).progress.unwrap();
    assert_eq!(first.pending[0].uid, "old");
    assert!(told(wait.apply(Change::Gone(old()))).3);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_lost_its_labels_is_not_gone_until_it_is() {
    let named = |uid: &str| -> Pod {
        let meta = json!({"namespace": "n", "name": "p", "uid": uid});
        serde_json::from_value(json!({"metadata": meta})).unwrap()
    };
    // Deleted without delay, after three looks, and replaced by another of the name.
    for (looks, after) in [(0, None), (3, None), (2, Some("other"))] {
        let changes = [
            Change::Listing,
            Change::Listed(named("u")),
            Change::Complete,
            Change::Gone(named("u")),
        ];
        let changes = stream::iter(changes).map(Ok).chain(stream::pending());
        let wait = Wait::new(Goal {
            gone: true,
            confirm: true,
            min_count: 0,
            ..goal()
        });
        let judge = |pod: &Pod| seen(pod, Verdict::Pending(Why::new("Running", None)));
        let looked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = Arc::clone(&looked);
        let look = move |_| {
            let number = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let uid = if number < looks { Some("u") } else { after };
            future::ready(Ok(uid.map(named))).boxed()
        };
        let begin = tokio::time::Instant::now();
        let steps = run(changes.boxed(), wait, judge, look);
        let steps: Vec<_> = steps.map(Result::unwrap).collect().await;
        let met: Vec<_> = steps.iter().map(|it| (it.met, it.done)).collect();
        assert_eq!(met, [(0, false), (1, true)]);
        assert_eq!(looked.load(std::sync::atomic::Ordering::SeqCst), looks + 1);
        assert_eq!(begin.elapsed(), STRAYS * u32::try_from(looks).unwrap());
    }
}

#[test]
fn the_end_of_another_object_of_the_name_is_not_that_of_the_present_one() {
    let mut wait = Wait::new(goal());
    list(&mut wait, vec![pending("a")]);
    let old = object("a", "old", Verdict::Met);
    assert!(wait.apply(Change::Gone(old)).progress.is_none());
}

#[test]
fn a_wait_that_has_become_impossible_ends_and_names_the_pod() {
    let mut wait = Wait::new(goal());
    list(&mut wait, vec![pending("a"), met("b")]);
    let never = Verdict::Impossible(Why::new("Failed", "OOMKilled".to_owned()));
    let failed = wait.apply(Change::Changed(object("a", "a", never))).failed;
    let failed = failed.unwrap();
    assert_eq!(failed.reason(), Reason::WaitImpossible);
    assert!(failed.message().contains("n/a") && failed.message().contains("OOMKilled"));
}

fn pod(spec: Value, status: Value) -> Pod {
    let mut spec = spec;
    spec["containers"] = json!([]);
    let pod = json!({"metadata": {"name": "p"}, "spec": spec, "status": status});
    serde_json::from_value(pod).unwrap()
}

fn ended(code: i32) -> Value {
    json!({
        "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": code}},
    })
}

fn verdict(pod: &Pod, conditions: &[api::PodWaitCondition]) -> Verdict {
    let conditions: Vec<i32> = conditions.iter().map(|it| (*it).into()).collect();
    pod_verdict(pod, PodConditions::of(&conditions).unwrap())
}

#[test]
fn conditions_that_a_pod_cannot_reach_any_more_are_impossible_and_others_are_not() {
    use api::PodWaitCondition::{Failed, Gone, HasIp, Ready, Succeeded};
    let never = json!({"restartPolicy": "Never"});
    let on_failure = json!({"restartPolicy": "OnFailure"});
    let running = |ended: Value| json!({"phase": "Running", "containerStatuses": [ended]});
    let failed = pod(never.clone(), json!({"phase": "Failed"}));
    let half = pod(never.clone(), running(ended(0)));
    let broken = pod(never, running(ended(1)));
    let again = pod(on_failure.clone(), running(ended(1)));
    let over = pod(on_failure, running(ended(0)));
    let always = pod(json!({}), json!({"phase": "Running"}));
    let impossible: [(&Pod, &[api::PodWaitCondition]); 7] = [
        (&failed, &[Ready]),
        (&failed, &[Succeeded, HasIp]),
        (&half, &[Ready]),
        (&broken, &[Succeeded, Ready]),
        (&over, &[Ready]),
        (&always, &[Succeeded]),
        (&broken, &[]),
    ];
    for (pod, conditions) in impossible {
        let verdict = verdict(pod, conditions);
        assert!(
            matches!(verdict, Verdict::Impossible(_)),
            "{conditions:?} {pod:?}"
        );
    }
    let open: [(&Pod, &[api::PodWaitCondition]); 5] = [
        (&failed, &[Gone]),
        (&half, &[Ready, Succeeded]),
        (&broken, &[Failed]),
        (&again, &[Ready]),
        (&always, &[Failed, Succeeded]),
    ];
    for (pod, conditions) in open {
        let verdict = verdict(pod, conditions);
        assert!(
            matches!(verdict, Verdict::Pending(_)),
            "{conditions:?} {pod:?}"
        );
    }
    assert_eq!(verdict(&failed, &[Ready, Failed]), Verdict::Met);
    let addressed = pod(json!({}), json!({"phase": "Pending", "podIP": "10.0.0.1"}));
    assert_eq!(verdict(&addressed, &[HasIp]), Verdict::Met);
}

#[test]
fn a_sidecar_that_has_ended_makes_nothing_impossible_and_another_init_container_does() {
    for (policy, possible) in [(json!("Always"), true), (Value::Null, false)] {
        let init = json!({"name": "c", "restartPolicy": policy});
        let spec = json!({"restartPolicy": "Never", "initContainers": [init]});
        let status = json!({"phase": "Pending", "initContainerStatuses": [ended(1)]});
        let verdict = verdict(&pod(spec, status), &[api::PodWaitCondition::Ready]);
        let pending = matches!(verdict, Verdict::Pending(_));
        assert_eq!(pending, possible, "{verdict:?}");
    }
}

#[test]
fn a_pod_that_is_being_deleted_is_neither_ready_nor_impossible() {
    let ready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    let mut pod = pod(json!({}), ready);
    assert_eq!(verdict(&pod, &[]), Verdict::Met);
    let at = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    pod.metadata.deletion_timestamp = Some(at);
    let Verdict::Pending(why) = verdict(&pod, &[]) else {
        panic!("pending");
    };
    assert_eq!(why.reason, "Terminating");
}

#[test]
fn a_condition_of_a_node_that_is_unknown_neither_holds_nor_does_not() {
    let node = json!({"metadata": {}, "status": {"conditions": [
        {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "silent"},
        {"type": "DiskPressure", "status": "False"},
    ]}});
    let node: Node = serde_json::from_value(node).unwrap();
    let reason = |condition, wanted| match node_verdict(&node, condition, wanted) {
        Verdict::Pending(why) => why.reason,
        other => format!("{other:?}"),
    };
    assert_eq!(reason("Ready", true), "NotReady");
    assert_eq!(reason("Ready", false), "NodeStatusUnknown");
    assert_eq!(reason("DiskPressure", false), "Met");
    assert_eq!(reason("Other", true), "ConditionMissing");
}
