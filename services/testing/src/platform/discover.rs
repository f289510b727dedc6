use drover_core::Reason;
use drover_proto::platform::v1::DiscoverRequest;

use super::{
    Subject,
    fixture::{Fixture, ids, refused},
};

pub(super) async fn pages_are_complete_and_from_one_read(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    let (_, nodes) = fixture.make(5).await;
    fixture.until_listed(&nodes).await;
    for size in [1, 2, 3, 1000, 5000] {
        let mut listed = Vec::new();
        let mut times = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = DiscoverRequest {
                cluster_id: fixture.cluster.clone(),
                page_size: size,
                page_token,
                ..DiscoverRequest::default()
            };
            let page = fixture.discover(request).await.expect("a page");
            assert!(
                page.nodes.len() <= size as usize,
                "a page has at most page_size nodes"
            );
            assert!(!page.platform_etag.is_empty(), "the etag is there");
            listed.extend(page.nodes);
            times.push(page.observe_time.expect("observe_time is there"));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        assert_eq!(
            listed.len(),
            nodes.len(),
            "no node is there twice, with pages of {size}"
        );
        assert_eq!(
            ids(&listed),
            ids(&nodes),
            "every node is there, with pages of {size}"
        );
        assert!(
            times.windows(2).all(|pair| pair[0] == pair[1]),
            "all pages come from one read"
        );
    }
    fixture.clean().await;
}

pub(super) async fn nodes_are_found_by_cluster_and_id(subject: &Subject) {
    let (fixture, other) = (Fixture::new(subject).await, Fixture::new(subject).await);
    let (_, nodes) = fixture.make(2).await;
    let (_, others) = other.make(1).await;
    fixture.until_listed(&nodes).await;
    other.until_listed(&others).await;
    let all = ids(&fixture.list("", 0).await);
    assert!(
        all.is_superset(&ids(&nodes)) && all.is_superset(&ids(&others)),
        "everything is listed"
    );
    let request = DiscoverRequest {
        cluster_id: fixture.cluster.clone(),
        node_ids: vec![
            nodes[0].node_id.clone(),
            others[0].node_id.clone(),
            "no-such-node".to_owned(),
        ],
        ..DiscoverRequest::default()
    };
    let found = fixture.discover(request).await.expect("nodes by id").nodes;
    assert_eq!(
        ids(&found),
        ids(&nodes[..1]),
        "only nodes of that cluster, and only those that exist"
    );
    fixture.clean().await;
    other.clean().await;
}

pub(super) async fn wrong_pages_are_refused(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    let negative = DiscoverRequest {
        page_size: -1,
        ..DiscoverRequest::default()
    };
    refused(
        fixture.discover(negative).await,
        Reason::Invalid,
        "a negative page size",
    );
    let ids_alone = DiscoverRequest {
        node_ids: vec!["n".to_owned()],
        ..DiscoverRequest::default()
    };
    refused(
        fixture.discover(ids_alone).await,
        Reason::Invalid,
        "node ids without a cluster",
    );
    let garbage = DiscoverRequest {
        page_token: "garbage".to_owned(),
        ..DiscoverRequest::default()
    };
    let error = fixture
        .discover(garbage)
        .await
        .expect_err("a made-up token is refused");
    assert!(
        matches!(error.reason(), Reason::Invalid | Reason::PageTokenExpired),
        "{error:?}"
    );
    let (_, nodes) = fixture.make(3).await;
    fixture.until_listed(&nodes).await;
    if nodes.len() < 2 {
        return fixture.clean().await;
    }
    let first = DiscoverRequest {
        cluster_id: fixture.cluster.clone(),
        page_size: 1,
        ..DiscoverRequest::default()
    };
    let mut token = fixture
        .discover(first.clone())
        .await
        .expect("a page")
        .next_page_token;
    // A token that was never issued looks like an expired one.
    let changed = if token.starts_with('0') { '1' } else { '0' };
    token.replace_range(..1, &changed.to_string());
    let error = fixture
        .discover(DiscoverRequest {
            page_token: token,
            ..first
        })
        .await
        .expect_err("an expired token is refused");
    assert!(
        matches!(error.reason(), Reason::Invalid | Reason::PageTokenExpired),
        "{error:?}"
    );
    fixture.clean().await;
}

pub(super) async fn every_read_is_newer_than_the_last(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    let mut last = None;
    for _ in 0..3 {
        let page = fixture
            .discover(DiscoverRequest::default())
            .await
            .expect("a page");
        let time = page.observe_time.expect("observe_time is there");
        let time = (time.seconds, time.nanos);
        assert!(
            last.is_none_or(|last| time > last),
            "each call is answered by a read of its own"
        );
        last = Some(time);
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    // A read that starts after a call sees the effects of the call.
    let delay = fixture
        .platform
        .limits
        .as_ref()
        .and_then(|limits| limits.visibility_delay);
    if delay.is_some_and(|delay| delay.seconds == 0 && delay.nanos == 0) {
        let (_, nodes) = fixture.make(1).await;
        assert_eq!(ids(&fixture.nodes().await), ids(&nodes));
        fixture.clean().await;
    }
}
