//! Plans of callers who may only look: they show nothing of a secret.

use drover_core::Reason;
use drover_proto::orchestrator::v1::{self as pb, bootstrap_source::Source};

use super::{CONTENT, logged, put, silent, tellers, telling, visible};
use crate::api::{
    access::Door,
    support::{Clusters, changed, document, refused},
};

async fn plan(
    of: &mut Clusters,
    cluster: pb::Cluster,
) -> Result<pb::PlanClusterResponse, tonic::Status> {
    let request = pb::PlanClusterRequest {
        subject: Some(pb::plan_cluster_request::Subject::Cluster(cluster)),
        ..Default::default()
    };
    of.plan_cluster(request)
        .await
        .map(tonic::Response::into_inner)
}

#[tokio::test]
async fn a_plan_shows_nothing_of_a_secret_to_who_may_only_look() {
    let (log, _logged) = logged();
    let door = Door::new().await;
    put(&door.world, "orders-p", CONTENT).await;
    door.world
        .apply(telling("orders-p", "{{ secrets.p }}"))
        .await
        .unwrap();
    door.world.ready("orders").await;
    let mut viewer = door.of("viewer");
    for (what, template, more) in tellers() {
        let answer = plan(&mut viewer, telling("orders-p", &template)).await;
        silent(&format!("{answer:?}"), &more, what);
    }
    silent(&visible(&door.world, &log).await, &[], "afterwards");
    // Valid templates are planned all the same.
    let planned = plan(&mut viewer, telling("orders-p", "{{ secrets.p }}.")).await;
    assert!(planned.unwrap().plan.is_some());
    door.stop().await;
}

#[tokio::test]
async fn who_may_only_look_learns_no_character_of_a_secret() {
    let door = Door::new().await;
    put(&door.world, "orders-p", CONTENT).await;
    door.world
        .apply(telling("orders-p", "{{ secrets.p }}"))
        .await
        .unwrap();
    let mut viewer = door.of("viewer");
    let mut operator = door.of("operator");
    let mut answers = Vec::new();
    for of in [CONTENT.as_bytes()[0] as char, 'a', 'Q', '7'] {
        let asks = format!("{{% if secrets.p[0] == '{of}' %}}{{{{ 1 // 0 }}}}{{% endif %}}.");
        let answer = plan(&mut viewer, telling("orders-p", &asks)).await;
        answers.push(format!("{:?}", answer.map(|_| ())));
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
    // For callers who may change the cluster, the actual secret decides, so that their plan is accurate.
    let asks = format!("{{% if secrets.p != '{CONTENT}' %}}{{{{ refuse('no') }}}}{{% endif %}}.");
    plan(&mut operator, telling("orders-p", &asks))
        .await
        .unwrap();
    door.stop().await;
}

#[tokio::test]
async fn what_was_written_by_who_may_only_look_is_parsed_and_not_run() {
    let door = Door::new().await;
    let rendering = |template: &str| {
        changed(document("orders", &[("web", 1)]), |spec| {
            spec.groups[0].bootstrap = Some(pb::BootstrapSource {
                source: Some(Source::Text(template.to_owned())),
                render: true,
            });
        })
    };
    let mut viewer = door.of("viewer");
    let mut operator = door.of("operator");
    for runs_into in [
        "{{ refuse('it ran') }}",
        "{{ nothing.at.all }}",
        r#"{{ "a"|indent(10000000000000) }}"#,
    ] {
        let seen = plan(&mut viewer, rendering(runs_into)).await;
        assert!(seen.unwrap().plan.is_some(), "{runs_into}");
        let run = plan(&mut operator, rendering(runs_into)).await.unwrap_err();
        assert!(run.message().contains("template bootstrap"), "{run:?}");
    }
    let wrong = plan(&mut viewer, rendering("fine\n{% for %}")).await;
    let wrong = wrong.unwrap_err();
    assert!(
        wrong.message().contains("template bootstrap, line 2"),
        "{wrong:?}"
    );
    assert_eq!(crate::api::support::fields(&wrong), ["spec.platforms[0]"]);
    door.stop().await;
}

#[tokio::test]
async fn who_may_only_look_names_no_secret_that_is_not_named_there() {
    let door = Door::new().await;
    put(&door.world, "orders-p", CONTENT).await;
    let mut viewer = door.of("viewer");
    // For a cluster that does not exist, and for one without secrets.
    for _ in 0..2 {
        for secret in ["orders-p", "orders-none"] {
            let answer = plan(&mut viewer, telling(secret, "{{ secrets.p }}")).await;
            let status = refused(answer, Reason::PermissionDenied);
            assert!(status.message().contains("outside"), "{status:?}");
        }
        door.world
            .apply(document("orders", &[("web", 1)]))
            .await
            .unwrap();
    }
    let mut operator = door.of("operator");
    let planned = plan(&mut operator, telling("orders-p", "{{ secrets.p }}")).await;
    assert!(planned.unwrap().plan.is_some());
    door.stop().await;
}
