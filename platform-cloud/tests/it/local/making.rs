//! Creation of nodes from requests, and refusals before anything is created.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
};

use drover_core::Reason;
use drover_platform::driver::Driver;
use drover_proto::platform::v1::{
    Bootstrap, Placement, Spread, UnsatisfiableAction, bootstrap::UserData,
};
use prost_types::{Struct, Value, value::Kind};

use crate::local_support::{
    World, batch, made, processes_of, refused, request, shipped_templates, test_templates, until,
};

use super::{text, with_attribute};

#[tokio::test(flavor = "multi_thread")]
async fn the_shipped_catalogue_goes_with_the_driver() {
    let world = World::new();
    let templates = shipped_templates();
    for store in ["", "redis", "etcd", "postgresql"] {
        let request = request(store, "r1", 1);
        let (batch, _caller) = batch(&templates, &request);
        world.driver.check(&batch).await.unwrap();
    }
    assert!(world.nodes().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_a_script_needs_is_missed_before_anything_is_made() {
    let world = World::new();
    let request = request("needy", "r1", 1);
    let (batch, _caller) = batch(&world.templates, &request);
    let error = world.driver.check(&batch).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Precondition);
    assert_eq!(
        error.message(),
        "the program `no-such-program` is not installed on this machine: install the package some-package"
    );
    assert_eq!(world.create(&request).await.len(), 1);
    assert!(world.nodes().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_is_not_installed_is_refused_as_the_version() {
    let world = World::new();
    let templates = shipped_templates();
    let mut request = request("postgresql", "r1", 1);
    request.group.as_mut().unwrap().version = "1.2".to_owned();
    let (batch, _caller) = batch(&templates, &request);
    let error = world.driver.check(&batch).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Precondition);
    let [wrong] = error.fields() else {
        panic!("{error:?}");
    };
    assert_eq!(wrong.field, "group.version");
    assert_eq!(wrong.description, error.message());
    assert!(error.message().contains("postgresql-1"), "{error}");
}

/// The refusal of a Redis with this listen address and user data. `None` if it would be created.
async fn refusal_of_redis(host: &str, user_data: Option<&str>) -> Option<String> {
    let world = World::with(|settings| {
        settings.host = host.parse().unwrap();
        settings.advertise = Some("localhost".to_owned());
        settings.insecure = true;
    });
    let mut request = request("redis", "r1", 1);
    request.bootstrap = user_data.map(|text| Bootstrap {
        user_data: Some(UserData::Text(text.to_owned())),
        ..Bootstrap::default()
    });
    let (batch, _caller) = batch(&shipped_templates(), &request);
    let error = world.driver.check(&batch).await.err()?;
    assert_eq!(error.reason(), Reason::Precondition);
    Some(error.message().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_others_reach_needs_a_password_and_what_is_none_is_refused() {
    for (host, password) in [
        ("127.0.0.1", None),
        ("127.0.0.1", Some("it's \"odd\" \\ # \u{5bc6}\u{7801} ")),
        ("0.0.0.0", Some("hunter2")),
        ("0.0.0.0", Some("hunter2\nformer: hunter1\nmore\tlines\n")),
    ] {
        assert_eq!(refusal_of_redis(host, password).await, None);
    }
    let said = refusal_of_redis("0.0.0.0", None).await.unwrap();
    assert!(said.contains("give the password of Redis"), "{said}");
    let odd = "is empty or has control characters";
    // The message does not depend on secret content: the reason is only given where every value of its kind is refused.
    let other = "its template fails because of what its secrets or its user data hold";
    for (user_data, why) in [
        ("", odd),
        ("\n", odd),
        ("\nhunter2", other),
        ("hunter2\t", other),
        ("hunter2\r\n", other),
        ("hunter2\u{7f}", other),
        ("hunter2\nformer: hunter1\u{1}", other),
        ("hunter2\nformer: ", other),
        ("#!/bin/sh\necho hunter2\n", other),
        ("#cloud-config\npassword: hunter2\n", other),
    ] {
        let said = refusal_of_redis("127.0.0.1", Some(user_data)).await;
        let said = said.unwrap_or_else(|| panic!("{user_data:?} is taken"));
        assert!(said.contains(why) && !said.contains("hunter"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_and_a_race_answer_the_same_nodes() {
    let world = World::new();
    let request = request("sleeper", "r1", 4);
    let ids = |outcomes: Vec<_>| {
        outcomes
            .into_iter()
            .map(|outcome| made(outcome).node_id)
            .collect::<Vec<_>>()
    };
    let first = ids(world.create(&request).await);
    assert_eq!(ids(world.create(&request).await), first);
    let (one, two) = tokio::join!(world.create(&request), world.create(&request));
    assert_eq!((ids(one), ids(two)), (first.clone(), first.clone()));
    for node_id in &first {
        world.ready(node_id).await;
    }
    assert_eq!(processes_of(&world.state()).len(), 4);
    let found = world.driver.of_request("r1").await.unwrap();
    assert!(found.len() == 4 && found.iter().all(|found| !found.fingerprint.is_empty()));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_started_once_the_caller_is_gone() {
    let world = World::new();
    let (batch, caller) = batch(&world.templates, &request("sleeper", "r1", 2));
    drop(caller);
    let outcomes = world.driver.create(&batch).await;
    assert!(
        outcomes
            .iter()
            .all(|outcome| matches!(outcome, drover_platform::driver::Outcome::NotStarted))
    );
    assert!(world.nodes().await.is_empty());
    assert_eq!(
        fs::read_dir(world.state().join("nodes")).unwrap().count(),
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_command_and_a_wrong_template_make_nothing_and_say_what_to_do() {
    let world = World::new();
    let missing = request("missing", "r1", 1);
    let error = refused(world.create(&missing).await.remove(0));
    assert_eq!(error.reason(), Reason::Precondition);
    assert!(
        error
            .message()
            .contains("`no-such-program-here` is not installed")
            && error.message().contains("PATH"),
        "{error}"
    );
    let (batch, _caller) = batch(&world.templates, &missing);
    assert_eq!(
        world.driver.check(&batch).await.unwrap_err().reason(),
        Reason::Precondition
    );

    let wrong = with_attribute(request("unknown-field", "r2", 1), "secret", text("hunter2"));
    let error = refused(world.create(&wrong).await.remove(0));
    assert!(error.message().contains("line 2, column 1"), "{error}");
    assert!(!format!("{error:?}").contains("hunter2"), "{error}");
    assert!(world.nodes().await.is_empty());
    assert_eq!(
        fs::read_dir(world.state().join("nodes")).unwrap().count(),
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_platform_has_no_capacity_until_a_node_goes() {
    let world = World::with(|settings| settings.max_nodes = Some(2));
    let mut outcomes = world.create(&request("sleeper", "r1", 3)).await;
    assert_eq!(
        refused(outcomes.pop().unwrap()).reason(),
        Reason::NoCapacity
    );
    let node = made(outcomes.pop().unwrap());
    assert_eq!(
        refused(world.create(&request("sleeper", "r2", 1)).await.remove(0)).reason(),
        Reason::NoCapacity
    );
    world.ready(&node.node_id).await;
    world.remove(&node).await;
    made(world.create(&request("sleeper", "r2", 1)).await.remove(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_nodes_at_once_share_no_port() {
    let world = World::new();
    let outcomes = world.create(&request("sleeper", "r1", 40)).await;
    let nodes = outcomes.into_iter().map(made).collect::<Vec<_>>();
    let ports = nodes
        .iter()
        .flat_map(|node| node.endpoints.values().cloned())
        .collect::<BTreeSet<_>>();
    assert_eq!(ports.len(), 80);
    for node in &nodes {
        world.ready(&node.node_id).await;
    }
    assert_eq!(processes_of(&world.state()).len(), 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fixed_port_that_is_used_is_refused_with_who_uses_it() {
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let number = listener.local_addr().unwrap().port();
    let port = Value {
        kind: Some(Kind::NumberValue(f64::from(number))),
    };
    let wanted =
        |request_id: &str| with_attribute(request("fixed", request_id, 1), "port", port.clone());
    let error = refused(world.create(&wanted("r1")).await.remove(0));
    assert!(
        error.message().contains(&format!("port {number}"))
            && error.message().contains("another program"),
        "{error}"
    );
    drop(listener);
    let node = made(world.create(&wanted("r2")).await.remove(0));
    assert_eq!(node.endpoints["client"], format!("127.0.0.1:{number}"));
    let error = refused(world.create(&wanted("r3")).await.remove(0));
    assert!(error.message().contains(&node.node_id), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_gets_its_files_and_variables_and_none_of_the_platforms_own() {
    let world = World::new();
    let mut asked = with_attribute(request("everything", "r1", 1), "secret", text("hunter2"));
    let env = Struct {
        fields: BTreeMap::from([("OVER".to_owned(), text("properties"))]),
    };
    let properties = Value {
        kind: Some(Kind::StructValue(env)),
    };
    asked.group.as_mut().unwrap().properties = Some(Struct {
        fields: BTreeMap::from([("env".to_owned(), properties)]),
    });
    let node = world.start(&asked).await.remove(0);
    let work = world.node_directory(&node).join("data/work");
    until("it has written", async || {
        fs::read_to_string(work.join("environment")).is_ok_and(|text| text.ends_with('\n'))
    })
    .await;
    assert_eq!(
        fs::read_to_string(work.join("where")).unwrap().trim(),
        work.to_str().unwrap()
    );
    let environment = fs::read_to_string(work.join("environment")).unwrap();
    let port = node.endpoints["client"].rsplit(':').next().unwrap();
    for line in [
        "FROM_TEMPLATE=orders",
        "OVER=properties",
        "DROVER_CLUSTER_ID=orders",
        "DROVER_NODE_ID=db-0-r1",
        "DROVER_NODE_NAME=db-0",
        &format!("DROVER_PORT_CLIENT={port}"),
    ] {
        assert!(
            environment.lines().any(|given| given == line),
            "{line} in {environment}"
        );
    }
    // Cargo sets many of them for the test, and thereby for the platform.
    assert!(!environment.contains("CARGO"), "{environment}");
    let settings = work.join("settings.conf");
    assert_eq!(fs::read_to_string(&settings).unwrap(), "secret hunter2");
    assert_eq!(
        fs::metadata(&settings).unwrap().permissions().mode() & 0o777,
        0o640
    );
    assert_eq!(
        node.agent_address,
        Some(format!("http://{}", node.endpoints["client"]))
    );
    let secret = fs::metadata(world.node_directory(&node).join("spec.json")).unwrap();
    assert_eq!(secret.permissions().mode() & 0o777, 0o600);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_spread_over_the_failure_domains_within_their_limits() {
    let world = World::with(|settings| {
        settings.failure_domains = ["a", "b", "c"].map(str::to_owned).to_vec();
    });
    let domains = |nodes: Vec<drover_proto::platform::v1::Node>| {
        let mut counts = BTreeMap::<String, usize>::new();
        for node in nodes {
            *counts.entry(node.failure_domain).or_default() += 1;
        }
        counts
            .into_iter()
            .map(|(name, count)| format!("{name}{count}"))
            .collect::<Vec<_>>()
            .join(" ")
    };
    world.create(&request("sleeper", "r1", 5)).await;
    assert_eq!(domains(world.nodes().await), "a2 b2 c1");
    let mut limited = request("sleeper", "r2", 3);
    limited.group.as_mut().unwrap().path = "other".to_owned();
    limited.group.as_mut().unwrap().placement = Some(Placement {
        failure_domains: vec!["b".to_owned(), "c".to_owned()],
        spread: vec![Spread {
            topology_key: "zone".to_owned(),
            max_per_domain: Some(1),
            when_unsatisfiable: UnsatisfiableAction::DoNotSchedule.into(),
            ..Spread::default()
        }],
        ..Placement::default()
    });
    let mut outcomes = world.create(&limited).await;
    assert_eq!(
        refused(outcomes.pop().unwrap()).reason(),
        Reason::NoCapacity
    );
    assert_eq!(domains(outcomes.into_iter().map(made).collect()), "b1 c1");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_template_output_is_checked_before_anything_is_made() {
    let world = World::new();
    let templates = test_templates();
    let (batch, _caller) = batch(&templates, &request("sleeper", "r1", 2));
    world.driver.check(&batch).await.unwrap();
    assert!(world.nodes().await.is_empty());
    let mut wrong = request("sleeper", "r1", 1);
    wrong.slots[0].id = "../x".to_owned();
    let error = refused(world.create(&wrong).await.remove(0));
    assert_eq!(error.reason(), Reason::Invalid);
}
