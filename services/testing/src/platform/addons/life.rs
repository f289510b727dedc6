//! Making, keeping and removing addons.

use std::collections::BTreeSet;

use drover_core::Reason;
use drover_proto::platform::v1::{
    AddonKind, Capability, EnsureAddonRequest, ListAddonsRequest, ResourcePhase,
};

use super::{
    super::Subject, Fixture, NEEDLE, any, assert_lasts, assert_ports, fixture, until, usable,
};

pub(in super::super) async fn addons_are_offered_as_kinds_or_not_at_all(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    let kinds = fixture.kinds();
    let distinct: BTreeSet<_> = kinds.iter().collect();
    assert_eq!(distinct.len(), kinds.len(), "{kinds:?}");
    assert!(!kinds.contains(&AddonKind::Unspecified), "{kinds:?}");
    assert_eq!(fixture.can(Capability::Addons), !kinds.is_empty());
    if fixture.can(Capability::Addons) {
        return;
    }
    let refusals = [
        fixture
            .ensure_addon(&fixture.addon(AddonKind::LoadBalancer, "lb"))
            .await
            .map(drop),
        fixture
            .remove_addon(&fixture.addon_removal("lb"))
            .await
            .map(drop),
        fixture
            .addons_page(ListAddonsRequest::default())
            .await
            .map(drop),
    ];
    for refusal in refusals {
        match refusal.expect_err("addons of a platform without them") {
            // A platform need not have the service at all.
            error if error.reason() == Reason::Unimplemented => {}
            error => {
                assert_eq!(error.reason(), Reason::CapabilityMissing, "{error}");
                let missing = error.metadata().get("capability");
                assert_eq!(missing.map(String::as_str), Some("ADDONS"));
            }
        }
    }
}

pub(in super::super) async fn an_addon_of_every_kind_is_made_and_removed_whole(subject: &Subject) {
    let Some(fixture) = fixture(subject).await else {
        return;
    };
    for kind in usable(&fixture) {
        let request = fixture.addon(kind, "one");
        let state = fixture.settle(&request).await;
        assert!(!state.resources.is_empty(), "{kind:?} is made of something");
        for resource in &state.resources {
            assert_eq!(resource.sequence, 7, "the sequence is stored: {resource:?}");
        }
        let listed = fixture.listed_addons().await;
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_lasts(&listed[0], &state);
        fixture.clean_addons().await;
    }
}

pub(in super::super) async fn an_addon_that_is_asked_for_again_is_the_same(subject: &Subject) {
    let Some(fixture) = fixture(subject).await else {
        return;
    };
    for kind in usable(&fixture) {
        let request = fixture.addon(kind, "one");
        let state = fixture.settle(&request).await;
        let later = EnsureAddonRequest {
            sequence: 8,
            ..request
        };
        assert_lasts(&fixture.settle(&later).await, &state);
        fixture.clean_addons().await;
    }
}

pub(in super::super) async fn the_same_addon_at_once_is_made_once(subject: &Subject) {
    let Some((fixture, kind)) = any(subject).await else {
        return;
    };
    let request = fixture.addon(kind, "one");
    let calls = (0..5).map(|_| fixture.ensure_addon(&request));
    for outcome in futures::future::join_all(calls).await {
        outcome.expect("Ensure answers");
    }
    let state = fixture.settle(&request).await;
    assert_eq!(fixture.addon_names().await, ["one"]);
    assert_lasts(&fixture.listed_addons().await[0], &state);
    fixture.clean_addons().await;
}

pub(in super::super) async fn a_half_made_addon_is_removed_whole(subject: &Subject) {
    let Some(fixture) = fixture(subject).await else {
        return;
    };
    for kind in usable(&fixture) {
        let request = fixture.addon(kind, "half");
        fixture
            .ensure_addon(&request)
            .await
            .expect("Ensure answers");
        assert_eq!(
            fixture.addon_names().await,
            ["half"],
            "it is listed at once"
        );
        let removal = fixture.addon_removal("half");
        fixture.remove_whole(&removal).await;
        assert!(fixture.addon_names().await.is_empty());
    }
}

pub(in super::super) async fn an_addon_that_is_absent_is_gone(subject: &Subject) {
    let Some(fixture) = fixture(subject).await else {
        return;
    };
    let removal = fixture.addon_removal("never-made");
    let answer = fixture.remove_addon(&removal).await;
    let answer = answer.expect("Remove answers");
    assert_eq!(
        answer.state.unwrap_or_default().phase(),
        ResourcePhase::Gone
    );
    assert_eq!(answer.poll_after, None);
}

pub(in super::super) async fn a_removed_addon_can_be_made_again(subject: &Subject) {
    let Some((fixture, kind)) = any(subject).await else {
        return;
    };
    let request = fixture.addon(kind, "one");
    fixture.settle(&request).await;
    fixture.remove_whole(&fixture.addon_removal("one")).await;
    fixture.remove_whole(&fixture.addon_removal("one")).await;
    fixture.settle(&request).await;
    assert_eq!(fixture.addon_names().await, ["one"]);
    fixture.clean_addons().await;
}

pub(in super::super) async fn an_addon_that_is_wanted_while_it_is_removed_is_there_in_the_end(
    subject: &Subject,
) {
    let Some((fixture, kind)) = any(subject).await else {
        return;
    };
    let request = fixture.addon(kind, "one");
    fixture.settle(&request).await;
    let removal = fixture.addon_removal("one");
    fixture
        .remove_addon(&removal)
        .await
        .expect("Remove answers");
    // What is being removed may be waited for by a repetition only.
    until(subject, "the addon is there again", || async {
        let answer = fixture
            .ensure_addon(&request)
            .await
            .expect("Ensure answers");
        let state = answer.state.unwrap_or_default();
        (state.phase() != ResourcePhase::Releasing).then_some(())
    })
    .await;
    fixture.settle(&request).await;
    assert_eq!(fixture.addon_names().await, ["one"]);
    fixture.clean_addons().await;
}

pub(in super::super) async fn addons_of_one_cluster_stand_side_by_side(subject: &Subject) {
    let Some(fixture) = fixture(subject).await else {
        return;
    };
    let (mut kept, mut made) = (None, 0);
    for kind in usable(&fixture) {
        for name in ["a", "b"] {
            // A platform may have room for one only.
            if kind == AddonKind::OidcProvider && name == "b" {
                continue;
            }
            let name = format!("{name}-{}", kind as i32);
            let state = fixture.settle(&fixture.addon(kind, &name)).await;
            made += 1;
            kept.get_or_insert(state);
        }
    }
    let kept = kept.expect("some kind");
    assert_eq!(fixture.addon_names().await.len(), made);
    for name in fixture.addon_names().await {
        if name != kept.name {
            fixture.remove_whole(&fixture.addon_removal(&name)).await;
        }
    }
    let left = fixture.listed_addons().await;
    assert_eq!(left.len(), 1);
    assert_lasts(&left[0], &kept);
    fixture.clean_addons().await;
}

/// Names that become alike where a backend shortens, joins or folds them.
pub(in super::super) async fn addons_whose_names_are_alike_stay_apart(subject: &Subject) {
    let Some((mut fixture, kind)) = any(subject).await else {
        return;
    };
    let long = "l".repeat(62);
    let names = [
        format!("{long}a"),
        format!("{long}b"),
        "x".into(),
        "X".into(),
    ];
    for name in &names {
        fixture.settle(&fixture.addon(kind, name)).await;
    }
    let names: BTreeSet<String> = names.into_iter().collect();
    let listed: BTreeSet<String> = fixture.addon_names().await.into_iter().collect();
    assert_eq!(listed, names);
    fixture.clean_addons().await;
    // Cluster `c-b` with addon `a`, cluster `c` with addon `b-a`.
    let cluster = fixture.cluster.clone();
    fixture.settle(&fixture.addon(kind, "b-a")).await;
    fixture.cluster = format!("{cluster}-b");
    fixture.settle(&fixture.addon(kind, "a")).await;
    fixture.clean_addons().await;
    fixture.cluster = cluster;
    assert_eq!(fixture.addon_names().await, ["b-a"]);
    fixture.clean_addons().await;
}

pub(in super::super) async fn the_same_name_in_two_clusters_is_two_addons(subject: &Subject) {
    let Some((fixture, kind)) = any(subject).await else {
        return;
    };
    let other = Fixture::new(subject).await;
    fixture.settle(&fixture.addon(kind, "one")).await;
    let kept = other.settle(&other.addon(kind, "one")).await;
    fixture.clean_addons().await;
    let left = other.listed_addons().await;
    assert_eq!(left.len(), 1);
    assert_lasts(&left[0], &kept);
    other.clean_addons().await;
}

pub(in super::super) async fn an_addon_is_checked_without_making_it(subject: &Subject) {
    let Some(fixture) = fixture(subject).await else {
        return;
    };
    for kind in usable(&fixture) {
        let request = EnsureAddonRequest {
            validate_only: true,
            ..fixture.addon(kind, "one")
        };
        let answer = fixture.ensure_addon(&request).await.expect("it is valid");
        assert_eq!(answer.state, None);
        assert_eq!(answer.poll_after, None);
        assert!(fixture.addon_names().await.is_empty());
    }
}

pub(in super::super) async fn an_addon_is_no_node(subject: &Subject) {
    let Some(fixture) = fixture(subject).await else {
        return;
    };
    for kind in usable(&fixture) {
        fixture.settle(&fixture.addon(kind, "one")).await;
        let nodes = fixture.nodes().await;
        assert!(nodes.is_empty(), "{kind:?}: {nodes:?}");
        fixture.clean_addons().await;
    }
}

pub(in super::super) async fn a_secret_is_in_no_answer_and_its_change_is_taken(subject: &Subject) {
    let Some(fixture) = fixture(subject).await else {
        return;
    };
    for kind in usable(&fixture) {
        let mut request = fixture.addon(kind, "one");
        let state = fixture.settle(&request).await;
        let listed = fixture.listed_addons().await;
        for content in request
            .secrets
            .values_mut()
            .flat_map(|it| it.data.values_mut())
        {
            *content = format!("{NEEDLE}-rotated").into_bytes();
        }
        let changed = fixture.settle(&request).await;
        assert_ports(&changed, &state);
        let wrong = EnsureAddonRequest {
            sequence: 0,
            ..request
        };
        let refusal = fixture.ensure_addon(&wrong).await;
        let said = format!("{state:?}{listed:?}{changed:?}{refusal:?}");
        assert!(!said.contains(NEEDLE), "{kind:?}: a secret is repeated");
        fixture.clean_addons().await;
    }
}

pub(in super::super) async fn addons_outlive_a_restart(subject: &Subject) {
    let Some((fixture, kind)) = any(subject).await else {
        return;
    };
    let Some(restart) = &subject.restart else {
        return;
    };
    let request = fixture.addon(kind, "one");
    let state = fixture.settle(&request).await;
    restart().await;
    let listed = fixture.listed_addons().await;
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_lasts(&listed[0], &state);
    assert_lasts(&fixture.settle(&request).await, &state);
    fixture.clean_addons().await;
}
