use drover_proto::platform::v1::{Bootstrap, ClusterContext, ResolvedGroup, TemplateSecret};

use super::*;

const SECRETS: [&str; 2] = ["Tr0ub4dor-Zebra-77-Quux!", "Xk9#mmNq_0pLw-55-Vortex?"];

/// Returns the error of user data that is rendered with a secret.
async fn said(template: &str, secret: &str) -> String {
    crate::texts::tests::use_program();
    let request = ProvisionRequest {
        cluster: Some(ClusterContext {
            id: "orders".to_owned(),
            ..ClusterContext::default()
        }),
        group: Some(ResolvedGroup::default()),
        secrets: [(
            "p".to_owned(),
            TemplateSecret {
                text: secret.to_owned(),
            },
        )]
        .into(),
        bootstrap: Some(Bootstrap {
            user_data: Some(UserData::Text(template.to_owned())),
            render: true,
            ..Bootstrap::default()
        }),
        ..ProvisionRequest::default()
    };
    let renderer = Arc::new(Templates::Anything.select(&request).unwrap());
    let slots = vec![(Slot::default(), Place::default())];
    let made = renderer.render_all(slots, || true).await.remove(0);
    let error = made.unwrap_err();
    format!("{error:?} {:?} {:?}", error.metadata(), error.fields())
}

#[tokio::test]
async fn what_is_said_of_a_template_is_the_same_whatever_its_secrets_hold() {
    for template in [
        "{{ refuse(secrets.p) }}",
        "{{ refuse(secrets.p[2:12]) }}",
        "{{ refuse(secrets.p | reverse | upper) }}",
        "{{ refuse(secrets.p | list | join('~')) }}",
        "{{ cluster[secrets.p].more }}",
        "{{ ['a'] | map(secrets.p) | list }}",
        "{% include secrets.p %}",
    ] {
        let [one, other] = [
            said(template, SECRETS[0]).await,
            said(template, SECRETS[1]).await,
        ];
        assert_eq!(one, other, "{template}");
        assert!(!one.contains("Zebra"), "{one}");
    }
}

#[tokio::test]
async fn what_fails_with_some_contents_only_says_nothing_of_them() {
    let template =
        "{% if 'Zebra' in secrets.p %}\n{{ refuse('it has a zebra: ' ~ secrets.p) }}{% endif %}";
    let said = said(template, SECRETS[0]).await;
    assert!(
        said.contains("what its secrets or its user data hold"),
        "{said}"
    );
    for hidden in ["ebra", "Tr0ub", "line"] {
        assert!(!said.contains(hidden), "{hidden}: {said}");
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_template_itself_is_said_with_its_place() {
    let said = said("fine\n{{ nothing }}", SECRETS[0]).await;
    for word in ["bootstrap", "line 2", "undefined value"] {
        assert!(said.contains(word), "{word}: {said}");
    }
}

#[test]
fn a_new_group_has_no_more_nodes_than_its_template_provides_for() {
    let index = "default: {template: db.yaml, limits: {maxSize: 1, maxStandby: 1}}";
    let files = [("index.yaml", index), ("db.yaml", "db")]
        .map(|(name, content)| drover_templates::EmbeddedFile { name, content });
    let catalogue = Catalogue::embedded(&files).unwrap();
    let templates = Templates::Catalogue(Arc::new(catalogue));
    let said = |size: u32, standby: usize, peer: Option<(&str, bool)>| {
        let slot = Slot {
            role: proto::NodeRole::Standby.into(),
            ..Slot::default()
        };
        let peers = peer.map(|(group, ready)| proto::Peer {
            group: group.to_owned(),
            ready,
            ..proto::Peer::default()
        });
        let request = ProvisionRequest {
            cluster: Some(ClusterContext::default()),
            group: Some(ResolvedGroup {
                path: "db".to_owned(),
                size,
                ..ResolvedGroup::default()
            }),
            slots: vec![slot; standby],
            peers: peers.into_iter().collect(),
            ..ProvisionRequest::default()
        };
        let renderer = templates.select(&request).unwrap();
        let checked = renderer.check_limits(&request);
        checked.map_err(|error| error.fields()[0].field.clone())
    };
    assert_eq!(said(1, 1, None), Ok(()));
    assert_eq!(said(2, 0, None), Err("group.size".to_owned()));
    for other in [("app", true), ("db", false)] {
        assert_eq!(said(2, 0, Some(other)), Err("group.size".to_owned()));
    }
    assert_eq!(said(1, 2, None), Err("group.standby".to_owned()));
    assert_eq!(
        said(2, 0, Some(("db", true))),
        Ok(()),
        "it was accepted before"
    );
}

#[test]
fn how_an_active_node_may_acknowledge_alone_is_listed_with_its_template() {
    let index = "default: {template: db.yaml, lifecycle: {soleWriter: {allow: {exec: [alone], timeout: 10s}, \
                 revoke: {exec: [together]}, standbysAttribute: copies}}}";
    let files = [("index.yaml", index), ("db.yaml", "db")]
        .map(|(name, content)| drover_templates::EmbeddedFile { name, content });
    let entries = Catalogue::embedded(&files).unwrap().entries();
    let lifecycle = entry(&entries[0]).defaults.unwrap().lifecycle;
    let hook = |word: &str, seconds: Option<i64>| proto::LifecycleHook {
        exec: vec![word.to_owned()],
        timeout: seconds.map(|seconds| prost_types::Duration { seconds, nanos: 0 }),
        fences: false,
    };
    let expected = proto::SoleWriter {
        allow: Some(hook("alone", Some(10))),
        revoke: Some(hook("together", None)),
        standbys_attribute: "copies".to_owned(),
    };
    assert_eq!(lifecycle.unwrap().sole_writer, Some(expected));
}

#[test]
fn a_template_sees_how_many_standbys_its_group_wants_if_that_is_known() {
    for standby in [None, Some(0), Some(2)] {
        let request = ProvisionRequest {
            group: Some(ResolvedGroup {
                standby,
                ..ResolvedGroup::default()
            }),
            ..ProvisionRequest::default()
        };
        let seen = context(&request).unwrap();
        assert_eq!(seen.group.standby, standby);
    }
}
