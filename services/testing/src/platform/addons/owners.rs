//! Whose addons are, and who may call.

use drover_core::Reason;
use drover_proto::platform::v1::{
    AddonState, Capability, EnsureAddonRequest, Fence, ListAddonsRequest, RemoveAddonRequest,
    ResourcePhase,
};
use uuid::Uuid;

use super::{super::Subject, any, assert_lasts, fixture, refused, usable};

pub(in super::super) async fn another_kind_under_the_name_is_refused(subject: &Subject) {
    let Some(fixture) = fixture(subject).await else {
        return;
    };
    let kinds = usable(&fixture);
    let [first, second, ..] = kinds.as_slice() else {
        return;
    };
    let state = fixture.settle(&fixture.addon(*first, "one")).await;
    let mut other = fixture.addon(*second, "one");
    for validate_only in [true, false] {
        other.validate_only = validate_only;
        let outcome = fixture.ensure_addon(&other).await;
        refused(outcome, Reason::Immutable, "another kind");
    }
    let left = fixture.listed_addons().await;
    assert_lasts(&left[0], &state);
    // When it is gone, the name is free for any kind.
    fixture.remove_whole(&fixture.addon_removal("one")).await;
    other.validate_only = false;
    fixture.settle(&other).await;
    fixture.clean_addons().await;
}

pub(in super::super) async fn an_addon_of_another_owner_is_left_alone(subject: &Subject) {
    let Some((fixture, kind)) = any(subject).await else {
        return;
    };
    let state = fixture.settle(&fixture.addon(kind, "one")).await;
    let owner = Uuid::new_v4().to_string();
    let removal = RemoveAddonRequest {
        owner: owner.clone(),
        ..fixture.addon_removal("one")
    };
    let answer = fixture.remove_addon(&removal).await;
    let answer = answer.expect("Remove answers");
    assert_eq!(
        answer.state.unwrap_or_default().phase(),
        ResourcePhase::Gone
    );
    let other = EnsureAddonRequest {
        owner: owner.clone(),
        ..fixture.addon(kind, "one")
    };
    // A backend may have room for both, or refuse the second.
    if let Err(error) = fixture.ensure_addon(&other).await {
        assert_eq!(error.reason(), Reason::NotOwned, "{error}");
    }
    let listed = fixture.listed_addons().await;
    let own = listed.iter().find(|it| it.owner == state.owner);
    assert_lasts(own.expect("it is still there"), &state);
    fixture.clean_addons().await;
}

pub(in super::super) async fn a_foreign_addon_is_listed_and_left_alone(subject: &Subject) {
    let Some((mut fixture, kind)) = any(subject).await else {
        return;
    };
    let Some(make_foreign) = &subject.make_foreign_addon else {
        return;
    };
    let (cluster, name) = make_foreign().await;
    let everything = || fixture.addons_of(ListAddonsRequest::default());
    let is_it = |it: &AddonState| it.cluster_id == cluster && it.name == name;
    let listed = everything().await;
    let foreign = listed.iter().find(|it| is_it(it));
    let foreign = foreign.expect("a foreign addon is listed");
    assert_eq!(foreign.owner, "");
    fixture.cluster = cluster.clone();
    let outcome = fixture.ensure_addon(&fixture.addon(kind, &name)).await;
    refused(outcome, Reason::NotOwned, "an addon of somebody else");
    let answer = fixture.remove_addon(&fixture.addon_removal(&name)).await;
    let state = answer.expect("Remove answers").state.unwrap_or_default();
    assert_eq!(
        state.phase(),
        ResourcePhase::Gone,
        "nothing of ours is left"
    );
    let listed = fixture.addons_of(ListAddonsRequest::default()).await;
    assert!(listed.iter().any(is_it), "it is still there");
}

pub(in super::super) async fn addon_calls_are_fenced(subject: &Subject) {
    let Some((fixture, kind)) = any(subject).await else {
        return;
    };
    if !fixture.can(Capability::Fence) {
        return;
    }
    let request = fixture.addon(kind, "one");
    fixture.settle(&request).await;
    let higher = Fence {
        epoch: 9,
        ..fixture.fence()
    };
    fixture.raise(higher.clone()).await.expect("a higher epoch");
    for validate_only in [true, false] {
        let request = EnsureAddonRequest {
            validate_only,
            ..request.clone()
        };
        let outcome = fixture.ensure_addon(&request).await;
        refused(outcome, Reason::Fenced, "Ensure");
    }
    let removal = fixture.addon_removal("one");
    refused(
        fixture.remove_addon(&removal).await,
        Reason::Fenced,
        "Remove",
    );
    assert_eq!(fixture.addon_names().await, ["one"]);
    let newer = RemoveAddonRequest {
        fence: Some(higher),
        ..removal
    };
    fixture.remove_whole(&newer).await;
}

pub(in super::super) async fn addon_calls_for_another_platform_are_refused(subject: &Subject) {
    let Some((fixture, kind)) = any(subject).await else {
        return;
    };
    let (other, earlier) = ("another".to_owned(), Uuid::new_v4().to_string());
    let (request, removal) = (fixture.addon(kind, "one"), fixture.addon_removal("one"));
    let ensures = [
        (other.clone(), String::new(), Reason::PlatformMismatch),
        (String::new(), String::new(), Reason::Invalid),
        (
            fixture.platform.uid.clone(),
            earlier,
            Reason::PlatformRestarted,
        ),
    ];
    for (uid, instance, reason) in ensures {
        let request = EnsureAddonRequest {
            expected_platform_uid: uid.clone(),
            expected_instance_id: instance.clone(),
            ..request.clone()
        };
        refused(fixture.ensure_addon(&request).await, reason, "Ensure");
        let removal = RemoveAddonRequest {
            expected_platform_uid: uid.clone(),
            expected_instance_id: instance.clone(),
            ..removal.clone()
        };
        refused(fixture.remove_addon(&removal).await, reason, "Remove");
        let list = ListAddonsRequest {
            expected_platform_uid: uid,
            expected_instance_id: instance,
            ..ListAddonsRequest::default()
        };
        let list = fixture.addons_page(list).await;
        if reason == Reason::Invalid {
            list.expect("the uid is optional in reads");
        } else {
            refused(list, reason, "List");
        }
    }
    assert!(fixture.addon_names().await.is_empty());
}
