use serde_json::{Value, json};

use super::*;

fn pod(name: &str, owner: Option<&str>, change: impl FnOnce(&mut Value)) -> Pod {
    let mut pod = json!({
        "metadata": {"namespace": "n", "name": name, "uid": name},
        "spec": {"containers": []},
    });
    if let Some(kind) = owner {
        pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": kind, "name": "o", "uid": "u", "controller": true}]);
    }
    change(&mut pod);
    serde_json::from_value(pod).unwrap()
}

fn plain(name: &str) -> Pod {
    pod(name, Some("ReplicaSet"), |_| {})
}

fn begin(force: bool, delete: bool, pods: Vec<Pod>) -> Result<Plan> {
    let mut plan = Plan::new("node".to_owned(), force, delete);
    plan.apply(Change::Listing)?;
    for pod in pods {
        plan.apply(Change::Listed(pod))?;
    }
    plan.apply(Change::Complete)?;
    Ok(plan)
}

#[test]
fn pods_of_daemon_sets_and_mirrors_stay() {
    let mirror = |pod: &mut Value| {
        pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    };
    let pods = vec![pod("a", Some("DaemonSet"), |_| {}), pod("b", None, mirror)];
    let plan = begin(false, false, pods).unwrap();
    assert!(plan.progress().unwrap().done);
    assert_eq!(plan.due(Instant::now()), None);
}

#[test]
fn nothing_is_evicted_if_one_pod_must_not_be() {
    let local = |pod: &mut Value| {
        pod["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    };
    let alone = || pod("alone", None, |_| {});
    let holds = || pod("holds", Some("ReplicaSet"), local);
    for (force, delete, refused) in [
        (false, true, Some("alone")),
        (true, false, Some("holds")),
        (true, true, None),
    ] {
        let plan = begin(force, delete, vec![plain("a"), alone(), holds()]);
        match refused {
            Some(name) => {
                let error = plan.unwrap_err();
                assert_eq!(error.reason(), Reason::Precondition);
                assert!(error.message().contains(name), "{error}");
            }
            None => assert!(plan.unwrap().due(Instant::now()).is_some()),
        }
    }
    // One that has ended is lost to nobody.
    let over = pod("over", None, |pod| {
        pod["status"] = json!({"phase": "Failed"});
    });
    assert!(begin(false, false, vec![over]).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_a_budget_protects_is_named_with_it_and_tried_again_later() {
    let mut plan = begin(false, false, vec![plain("a")]).unwrap();
    let target = plan.due(Instant::now()).unwrap();
    let why = Why::new("DisruptionBudget", "budget b needs 2".to_owned());
    plan.tried(&target, Outcome::Later(why, RETRY), Instant::now());
    let progress = plan.progress().unwrap();
    assert_eq!(progress.pending[0].reason, "DisruptionBudget");
    assert!(progress.pending[0].message.contains("budget b"));
    assert_eq!(plan.due(Instant::now()), None);
    tokio::time::sleep_until(plan.next_attempt().unwrap()).await;
    assert_eq!(plan.due(Instant::now()), Some(target.clone()));
    plan.tried(&target, Outcome::Evicted, Instant::now());
    assert!(!plan.progress().unwrap().done);
    plan.apply(Change::Gone(plain("a"))).unwrap();
    assert!(plan.progress().unwrap().done);
}

#[test]
fn another_pod_of_the_name_is_not_evicted() {
    let mut plan = begin(false, false, vec![plain("a")]).unwrap();
    let other = pod("a", Some("ReplicaSet"), |pod| {
        pod["metadata"]["uid"] = json!("other");
    });
    plan.apply(Change::Changed(other)).unwrap();
    assert!(plan.progress().unwrap().done);
    assert_eq!(plan.due(Instant::now()), None);
}

#[test]
fn the_word_of_a_budget_is_kept_and_a_busy_server_is_not_one() {
    let status = |details: Value| -> Status {
        serde_json::from_value(json!({"code": 429, "message": "no", "details": details})).unwrap()
    };
    let cause = json!({"causes": [{"reason": "DisruptionBudget", "message": "budget b needs 2"}]});
    let why = budget(&status(cause));
    assert_eq!(
        (&*why.reason, &*why.message),
        ("DisruptionBudget", "budget b needs 2")
    );
    let busy = budget(&status(json!({"retryAfterSeconds": 1})));
    assert_eq!(busy.reason, "Throttled");
}

#[test]
fn a_conflict_does_not_mean_that_the_pod_is_gone() {
    let call = Call::new("create", "pods/eviction", "n", "a");
    let refused = |code: u16| {
        let status = json!({"code": code, "message": "the object has been modified"});
        outcome(
            &call,
            kube::Error::Api(Box::new(serde_json::from_value(status).unwrap())),
        )
        .unwrap()
    };
    assert!(matches!(refused(409), Outcome::Later(..)));
    assert_eq!(refused(404), Outcome::Gone);
}
