//! What is refused, with its field, before anything is written.

use drover_core::{Error, Reason};
use drover_platform::addons::{AddonWanted, Addons as _, Owner};
use drover_proto::platform::v1::{AddonTarget, JumpHost, addon_spec::Kind};
use drover_testing::kubernetes::{Options, Rig};
use serde_json::json;
use uuid::Uuid;

use super::{
    Bench,
    bench::{balancer, properties},
    mapping, target,
};

fn one() -> Vec<AddonTarget> {
    vec![target("a", "192.0.2.1")]
}

/// Both a check and a request refuse it, and nothing changes.
async fn refused(bench: &Bench, owner: &Owner, wanted: &AddonWanted) -> Error {
    let before = bench.objects().await;
    let checked = bench.addons.check(owner, wanted).await.unwrap_err();
    let ensured = bench.addons.ensure(owner, 1, wanted).await.unwrap_err();
    assert_eq!(checked, ensured);
    assert_eq!(bench.objects().await, before);
    ensured
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_that_kubernetes_does_not_give_are_refused_with_their_field() {
    let bench = Bench::start().await;
    let outside = balancer(
        vec![mapping(None, 80, 3), mapping(Some(7000), 80, 1)],
        one(),
    );
    let error = refused(&bench, &bench.owner, &outside).await;
    assert_eq!(
        error.fields()[0].field,
        "spec.load_balancer.ports[1].listen"
    );
    assert!(error.message().contains("30000-32767"), "{error}");

    let first = balancer(vec![mapping(None, 80, 1)], one());
    bench.ensure(&first).await.unwrap();
    let service = bench.object("services", "").await;
    let taken = service["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    let taken = u32::try_from(taken).unwrap();
    let mut second = balancer(vec![mapping(Some(taken), 81, 1)], one());
    second.spec.name = "second".to_owned();
    let error = refused(&bench, &bench.owner, &second).await;
    assert_eq!(error.reason(), Reason::Invalid, "{error}");
    assert_eq!(
        error.fields()[0].field,
        "spec.load_balancer.ports[0].listen"
    );
    second.spec.kind = Some(Kind::JumpHost(JumpHost {
        port: Some(taken),
        ..JumpHost::default()
    }));
    let error = refused(&bench, &bench.owner, &second).await;
    assert_eq!(error.fields()[0].field, "spec.jump_host.port");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_belongs_to_others_is_not_touched() {
    let bench = Bench::start().await;
    let wanted = balancer(vec![mapping(None, 80, 1)], one());
    bench.ensure(&wanted).await.unwrap();
    let other = Owner {
        owner: Uuid::new_v4().to_string(),
        ..bench.owner.clone()
    };
    let error = refused(&bench, &other, &wanted).await;
    assert_eq!(error.reason(), Reason::NotOwned);
    let left = bench.addons.remove(&other, "api").await.unwrap();
    assert!(
        left.poll_after.is_none(),
        "the other owner has nothing here"
    );
    let mut jump = wanted.clone();
    jump.spec.kind = Some(Kind::JumpHost(JumpHost::default()));
    let error = refused(&bench, &bench.owner, &jump).await;
    assert_eq!(error.reason(), Reason::Immutable);

    let name = bench.objects().await[0].name.clone();
    bench.remove("api").await;
    bench.namespace.until_empty("the addon").await;
    let theirs = json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
    let theirs = bench.namespace.create("services", &theirs).await.unwrap();
    let error = refused(&bench, &bench.owner, &wanted).await;
    assert_eq!(error.reason(), Reason::NotOwned);
    assert!(
        error.message().contains(&format!("service/{name}")),
        "{error}"
    );
    let now = bench.namespace.get("services", &name).await.unwrap();
    assert_eq!(
        now["metadata"]["resourceVersion"],
        theirs["metadata"]["resourceVersion"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_pod_could_be_told_and_what_nobody_knows_is_refused_by_name() {
    let bench = Bench::start().await;
    let many = (0..2000).map(|at| {
        target(
            &format!("t-{at}"),
            &format!("198.51.{}.{}", at / 250, at % 250),
        )
    });
    let wanted = balancer(vec![mapping(None, 80, 10)], many.collect());
    let error = refused(&bench, &bench.owner, &wanted).await;
    assert_eq!(error.fields()[0].field, "targets");
    assert!(error.message().contains("at most 200 KiB"), "{error}");

    let mut wanted = balancer(vec![mapping(None, 80, 1)], one());
    properties(&mut wanted, json!({"colour": "blue"}));
    let error = refused(&bench, &bench.owner, &wanted).await;
    assert_eq!(error.fields()[0].field, "spec.properties.colour");
    properties(&mut wanted, json!({"replicas": 0}));
    let error = refused(&bench, &bench.owner, &wanted).await;
    assert_eq!(error.fields()[0].field, "spec.properties.replicas");
    let wanted = balancer(vec![mapping(None, 80, 501)], one());
    let error = refused(&bench, &bench.owner, &wanted).await;
    assert_eq!(error.fields()[0].field, "spec.load_balancer.ports");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_a_cluster_ip_and_outside_of_their_range_an_external_one() {
    let rig = Rig::shared(Options::kwok(3));
    let bench = Bench::over(rig, |settings| {
        settings.addons.external_ips = vec!["203.0.113.0/24".to_owned()];
    })
    .await;
    let mut wanted = balancer(vec![mapping(None, 80, 1)], one());
    wanted.spec.cluster_ip = "198.51.100.9".to_owned();
    let error = refused(&bench, &bench.owner, &wanted).await;
    assert_eq!(error.fields()[0].field, "spec.cluster_ip");
    assert!(error.message().contains("addons.external_ips"), "{error}");
    wanted.spec.cluster_ip = "203.0.113.9".to_owned();
    bench.addons.check(&bench.owner, &wanted).await.unwrap();
    for _ in 0..2 {
        let state = bench.ensure(&wanted).await.unwrap().state;
        let service = bench.object("services", "").await;
        assert_eq!(service["spec"]["externalIPs"], json!(["203.0.113.9"]));
        assert!(
            state
                .endpoints
                .iter()
                .any(|it| it.host == "203.0.113.9" && it.port == 80)
        );
    }
    let given = bench.object("services", "").await["spec"]["clusterIP"].clone();
    bench.remove("api").await;
    bench.namespace.until_empty("the addon").await;
    wanted.spec.cluster_ip = given.as_str().unwrap().to_owned();
    bench.ensure(&wanted).await.unwrap();
    let service = bench.object("services", "").await;
    assert_eq!(service["spec"]["clusterIP"], given);
    let mut second = wanted.clone();
    second.spec.name = "second".to_owned();
    // A dry run does not see it.
    let before = bench.objects().await;
    let error = bench.ensure(&second).await.unwrap_err();
    assert_eq!(error.fields()[0].field, "spec.cluster_ip");
    assert_eq!(bench.objects().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn targets_without_an_address_are_named_and_left_out() {
    let bench = Bench::start().await;
    let mut targets: Vec<_> = (0..6)
        .map(|at| target(&format!("t-{at}"), "192.0.2.7"))
        .collect();
    for lost in &mut targets[1..] {
        lost.addresses[0].interface = "pxe".to_owned();
    }
    let wanted = balancer(vec![mapping(None, 80, 1)], targets);
    let state = bench.ensure(&wanted).await.unwrap().state;
    assert_eq!(state.target_count, 1);
    let note = "t-1 has no address on oam; t-2 has no address on oam; t-3 has no address on oam; and 2 more";
    assert!(state.message.ends_with(note), "{}", state.message);
    assert!(bench.list().await[0].message.ends_with(note));
}
