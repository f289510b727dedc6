//! Lists of addons.

use drover_core::Reason;
use drover_proto::platform::v1::ListAddonsRequest;

use super::{super::Subject, Fixture, any, lasting, refused};

pub(in super::super) async fn addons_are_listed_in_one_order_whatever_the_page(subject: &Subject) {
    let Some((fixture, kind)) = any(subject).await else {
        return;
    };
    let names = ["e", "a", "d", "b", "c"];
    for name in names {
        fixture.settle(&fixture.addon(kind, name)).await;
    }
    let whole: Vec<_> = fixture.listed_addons().await.iter().map(lasting).collect();
    assert_eq!(whole.len(), names.len());
    for page_size in [1, 2, 3] {
        let request = ListAddonsRequest {
            cluster_id: fixture.cluster.clone(),
            page_size,
            ..ListAddonsRequest::default()
        };
        let page = fixture.addons_page(request.clone()).await;
        assert_eq!(page.expect("a page").addons.len(), page_size as usize);
        let paged = fixture.addons_of(request).await;
        assert_eq!(paged.iter().map(lasting).collect::<Vec<_>>(), whole);
    }
    fixture.clean_addons().await;
}

pub(in super::super) async fn a_list_of_one_cluster_shows_no_addon_of_another(subject: &Subject) {
    let Some((fixture, kind)) = any(subject).await else {
        return;
    };
    let other = Fixture::new(subject).await;
    fixture.settle(&fixture.addon(kind, "mine")).await;
    other.settle(&other.addon(kind, "other")).await;
    assert_eq!(fixture.addon_names().await, ["mine"]);
    assert_eq!(other.addon_names().await, ["other"]);
    let all = fixture.addons_of(ListAddonsRequest::default()).await;
    for (cluster, name) in [(&fixture.cluster, "mine"), (&other.cluster, "other")] {
        assert!(
            all.iter()
                .any(|it| &it.cluster_id == cluster && it.name == name),
            "{name} of {cluster} is in the list of all"
        );
    }
    fixture.clean_addons().await;
    other.clean_addons().await;
}

pub(in super::super) async fn wrong_pages_of_addons_are_refused(subject: &Subject) {
    let Some((fixture, kind)) = any(subject).await else {
        return;
    };
    for name in ["a", "b"] {
        fixture.settle(&fixture.addon(kind, name)).await;
    }
    let list = ListAddonsRequest {
        cluster_id: fixture.cluster.clone(),
        page_size: 1,
        ..ListAddonsRequest::default()
    };
    let page = fixture.addons_page(list.clone()).await.expect("a page");
    assert!(!page.next_page_token.is_empty());
    let table = [
        (
            "page_size",
            ListAddonsRequest {
                page_size: -1,
                ..list.clone()
            },
        ),
        (
            "cluster_id",
            ListAddonsRequest {
                cluster_id: "-".to_owned(),
                ..list.clone()
            },
        ),
        (
            "page_token",
            ListAddonsRequest {
                page_token: "not-a-token".to_owned(),
                ..list.clone()
            },
        ),
        (
            "page_token",
            ListAddonsRequest {
                cluster_id: String::new(),
                page_token: page.next_page_token,
                ..list
            },
        ),
    ];
    for (field, request) in table {
        let error = refused(fixture.addons_page(request).await, Reason::Invalid, field);
        assert!(
            error.fields().iter().any(|it| it.field == field),
            "{field}: {error:?}"
        );
    }
    fixture.clean_addons().await;
}

pub(in super::super) async fn an_addon_is_in_the_list_until_it_is_gone(subject: &Subject) {
    let Some((fixture, kind)) = any(subject).await else {
        return;
    };
    let request = fixture.addon(kind, "one");
    fixture
        .ensure_addon(&request)
        .await
        .expect("Ensure answers");
    assert_eq!(fixture.addon_names().await, ["one"], "at once");
    fixture.settle(&request).await;
    let removal = fixture.addon_removal("one");
    for _ in 0..1000 {
        let answer = fixture.remove_addon(&removal).await;
        let answer = answer.expect("Remove answers");
        if answer.poll_after.is_none() {
            assert!(fixture.addon_names().await.is_empty(), "gone is gone");
            return;
        }
        tokio::time::sleep(super::MAX_PAUSE / 10).await;
    }
    panic!("it is never gone");
}
