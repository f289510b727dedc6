mod properties;

use std::collections::BTreeMap;

use drover_core::{Reason, Result};
use drover_proto::{
    common::v1::{LabelOperator, LabelRequirement, LabelSelector},
    platform::v1::{
        Capability, Host, HostState, ListHostsRequest, ListHostsResponse, Node,
        inventory_service_client::InventoryServiceClient,
    },
};

use super::{
    Subject,
    fixture::{Fixture, error, exists, refused, until},
    requests,
};

pub(super) use properties::{
    a_host_that_lacks_a_network_of_its_group_is_passed_over,
    labels_of_a_group_are_on_its_hosts_and_follow_it,
    labels_of_hosts_are_refused_where_there_are_none,
};

/// A fixture on a platform with an inventory. `None` if it has none.
async fn begin(subject: &Subject) -> Option<Fixture<'_>> {
    let fixture = Fixture::new(subject).await;
    if fixture.can(Capability::Inventory) {
        return Some(fixture);
    }
    let error = page(&fixture, ListHostsRequest::default()).await;
    match error.expect_err("hosts of a platform without inventory") {
        // A platform need not have the service at all.
        error if error.reason() == Reason::Unimplemented => {}
        error => {
            assert_eq!(error.reason(), Reason::CapabilityMissing, "{error}");
            let missing = error.metadata().get("capability");
            assert_eq!(missing.map(String::as_str), Some("INVENTORY"));
        }
    }
    None
}

async fn page(fixture: &Fixture<'_>, request: ListHostsRequest) -> Result<ListHostsResponse> {
    let mut client = InventoryServiceClient::new((fixture.subject.connect)());
    error(client.list_hosts(request).await).map(tonic::Response::into_inner)
}

/// All hosts that a request means, from pages of a size.
async fn listed(fixture: &Fixture<'_>, mut request: ListHostsRequest) -> Vec<Host> {
    let mut hosts = Vec::new();
    loop {
        let page = page(fixture, request.clone())
            .await
            .expect("ListHosts answers");
        assert!(page.observe_time.is_some(), "it is said when it was read");
        hosts.extend(page.hosts);
        if page.next_page_token.is_empty() {
            return hosts;
        }
        request.page_token = page.next_page_token;
    }
}

async fn all(fixture: &Fixture<'_>) -> Vec<Host> {
    listed(fixture, ListHostsRequest::default()).await
}

/// The hosts as they are, by id.
async fn states(fixture: &Fixture<'_>) -> BTreeMap<String, (HostState, String)> {
    let hosts = all(fixture).await;
    let state = |host: Host| (host.id.clone(), (host.state(), host.owner));
    hosts.into_iter().map(state).collect()
}

fn host_of(hosts: &[Host], node: &Node) -> Host {
    let id = node.host_id.as_deref().expect("every node is a host");
    let host = hosts.iter().find(|host| host.id == id);
    host.cloned().expect("the node's host is listed")
}

fn free(hosts: &[Host]) -> Vec<&Host> {
    let free = |host: &&Host| host.state() == HostState::Free;
    hosts.iter().filter(free).collect()
}

pub(super) async fn hosts_are_listed_in_order_whatever_the_page(subject: &Subject) {
    let Some(fixture) = begin(subject).await else {
        return;
    };
    let hosts = all(&fixture).await;
    let ids: Vec<&String> = hosts.iter().map(|host| &host.id).collect();
    assert!(!ids.is_empty(), "an inventory has hosts");
    assert!(ids.is_sorted(), "{ids:?}");
    let singly = ListHostsRequest {
        page_size: 1,
        ..ListHostsRequest::default()
    };
    assert_eq!(listed(&fixture, singly).await, hosts);
    for host in &hosts {
        let explained = host.state() == HostState::Free || host.state() == HostState::Claimed;
        assert!(explained || !host.message.is_empty(), "why? {host:?}");
    }
}

pub(super) async fn pages_of_hosts_are_from_one_read(subject: &Subject) {
    let Some(fixture) = begin(subject).await else {
        return;
    };
    let before = all(&fixture).await;
    let mut request = ListHostsRequest {
        page_size: 1,
        ..ListHostsRequest::default()
    };
    let first = page(&fixture, request.clone()).await.expect("a page");
    let (_, nodes) = fixture.make(1).await;
    let mut hosts = first.hosts;
    request.page_token = first.next_page_token;
    request.page_size = 0;
    hosts.extend(listed(&fixture, request.clone()).await);
    assert_eq!(hosts, before, "{:?} was claimed later", nodes[0].host_id);
    request.cluster_id.clone_from(&fixture.cluster);
    let error = refused(
        page(&fixture, request).await,
        Reason::Invalid,
        "another list",
    );
    assert_eq!(error.fields()[0].field, "page_token");
    fixture.clean().await;
}

pub(super) async fn hosts_are_selected_by_labels_and_by_cluster(subject: &Subject) {
    let Some(fixture) = begin(subject).await else {
        return;
    };
    let hosts = all(&fixture).await;
    let labelled = hosts.iter().find(|host| !host.labels.is_empty());
    if let Some((key, value)) = labelled.and_then(|host| host.labels.first_key_value()) {
        let requirement = |operator: LabelOperator, values: &[&String]| LabelRequirement {
            key: key.clone(),
            operator: operator.into(),
            values: values.iter().map(|value| (*value).clone()).collect(),
        };
        let select = |match_expressions| ListHostsRequest {
            selector: Some(LabelSelector {
                match_expressions,
                ..LabelSelector::default()
            }),
            ..ListHostsRequest::default()
        };
        let with = listed(
            &fixture,
            select(vec![requirement(LabelOperator::In, &[value])]),
        )
        .await;
        let without = listed(
            &fixture,
            select(vec![requirement(LabelOperator::NotIn, &[value])]),
        )
        .await;
        assert!(with.iter().all(|host| host.labels.get(key) == Some(value)));
        assert!(
            without
                .iter()
                .all(|host| host.labels.get(key) != Some(value))
        );
        assert_eq!(with.len() + without.len(), hosts.len());
    }
    let (_, nodes) = fixture.make(1).await;
    let of_cluster = ListHostsRequest {
        cluster_id: fixture.cluster.clone(),
        ..ListHostsRequest::default()
    };
    let own = listed(&fixture, of_cluster).await;
    let ids: Vec<_> = own.iter().map(|host| Some(host.id.as_str())).collect();
    assert_eq!(ids, [nodes[0].host_id.as_deref()]);
    fixture.clean().await;
}

pub(super) async fn a_claimed_host_says_whose_it_is_until_it_is_released(subject: &Subject) {
    let Some(fixture) = begin(subject).await else {
        return;
    };
    let (request, nodes) = fixture.make(2).await;
    let hosts = all(&fixture).await;
    for node in &nodes {
        let host = host_of(&hosts, node);
        assert_eq!(host.state(), HostState::Claimed);
        assert_eq!(host.cluster_id, fixture.cluster);
        assert_eq!(host.owner, fixture.owner.to_string());
        assert_eq!(host.node_id, node.node_id);
        assert_eq!(host.failure_domain, node.failure_domain);
        if !host.addresses.is_empty() {
            assert_eq!(host.addresses, node.addresses, "a node is its host");
        }
    }
    let answer = fixture
        .deprovision(&fixture.removal(&request, &nodes[0]))
        .await;
    answer.expect("an own node can be removed");
    until(subject, "the host is free again", || async {
        let hosts = all(&fixture).await;
        let host = host_of(&hosts, &nodes[0]);
        (host.state() == HostState::Free && host.cluster_id.is_empty() && host.owner.is_empty())
            .then_some(())
    })
    .await;
    let kept = host_of(&all(&fixture).await, &nodes[1]);
    assert_eq!(kept.owner, fixture.owner.to_string());
    fixture.clean().await;
}

pub(super) async fn a_request_for_more_hosts_than_fit_claims_none(subject: &Subject) {
    let Some(fixture) = begin(subject).await else {
        return;
    };
    let before = states(&fixture).await;
    let hosts = all(&fixture).await;
    let count = free(&hosts).len() + 1;
    if fixture.batch(count) < count {
        return;
    }
    let request = fixture.request(count);
    let reason = match fixture.provision(&request).await {
        Err(error) => error.reason(),
        Ok(answer) => {
            assert_eq!(answer.nodes, vec![], "all of them or none");
            assert_eq!(answer.unknown, vec![], "nothing was begun");
            let failure = answer.failures.first().and_then(|it| it.error.as_ref());
            drover_convert::error::from_rpc_status(failure.expect("why")).reason()
        }
    };
    assert_eq!(reason, Reason::NoCapacity);
    assert_eq!(states(&fixture).await, before, "no host was touched");
}

pub(super) async fn of_two_clusters_for_one_host_one_gets_it(subject: &Subject) {
    let Some(fixture) = begin(subject).await else {
        return;
    };
    if !fixture.can(Capability::NamedHosts) {
        return;
    }
    for _ in 0..10 {
        let (one, other) = (Fixture::new(subject).await, Fixture::new(subject).await);
        let hosts = all(&one).await;
        let id = free(&hosts).first().map(|host| host.id.clone());
        let id = id.expect("a host is free");
        let ask = |fixture: &Fixture<'_>| {
            let mut request = fixture.request(1);
            request.slots[0].host_id = Some(id.clone());
            request
        };
        let (first, second) = (ask(&one), ask(&other));
        let answers = tokio::join!(one.provision(&first), other.provision(&second));
        let made = |answer: Result<drover_proto::platform::v1::ProvisionResponse>| {
            answer.map_or(0, |answer| answer.nodes.len())
        };
        assert_eq!(made(answers.0) + made(answers.1), 1, "one of both has {id}");
        let hosts = all(&one).await;
        let host = hosts.iter().find(|host| host.id == id).expect("listed");
        let owners = [one.owner.to_string(), other.owner.to_string()];
        assert!(owners.contains(&host.owner), "{host:?}");
        tokio::join!(one.clean(), other.clean());
        until(subject, "the host is free again", || async {
            let (state, _) = states(&one).await.remove(&id)?;
            (state == HostState::Free).then_some(())
        })
        .await;
    }
}

pub(super) async fn a_host_that_was_taken_over_is_free_when_it_is_released(subject: &Subject) {
    let Some(fixture) = begin(subject).await else {
        return;
    };
    let Some(make) = &subject.make_foreign else {
        return;
    };
    let (_, node_id) = make().await;
    let node = until(subject, "the foreign node is listed", || async {
        let nodes = fixture.list("", 0).await;
        nodes.into_iter().find(|node| node.node_id == node_id)
    })
    .await;
    let Some(id) = node.host_id.clone() else {
        return;
    };
    let heir = (fixture.cluster.as_str(), fixture.owner);
    let adoption = requests::adoption(&fixture.platform.uid, fixture.fence(), &node, heir);
    let adopted = fixture.update(&adoption).await.expect("it can be adopted");
    assert_eq!(adopted.host_id.as_deref(), Some(id.as_str()));
    let removal = requests::removal(&fixture.platform.uid, fixture.fence(), &adopted);
    let removed = fixture.deprovision(&removal).await;
    removed.expect("an own node can be removed");
    until(subject, "the host is nobody's", || async {
        let (state, owner) = states(&fixture).await.remove(&id)?;
        (state == HostState::Free && owner.is_empty()).then_some(())
    })
    .await;
}

pub(super) async fn a_node_stays_on_its_host_when_its_request_is_repeated(subject: &Subject) {
    let Some(fixture) = begin(subject).await else {
        return;
    };
    let (request, nodes) = fixture.make(2).await;
    let again = fixture.provision(&request).await.expect("a repetition");
    let hosts = |nodes: &[Node]| {
        let hosts = nodes.iter().filter(|node| exists(node));
        let hosts = hosts.map(|node| (node.node_id.clone(), node.host_id.clone()));
        hosts.collect::<BTreeMap<_, _>>()
    };
    assert_eq!(hosts(&again.nodes), hosts(&nodes));
    assert_eq!(hosts(&fixture.nodes().await), hosts(&nodes));
    fixture.clean().await;
}

pub(super) async fn wrong_fields_of_a_list_of_hosts_are_named(subject: &Subject) {
    let Some(fixture) = begin(subject).await else {
        return;
    };
    let selector = |operator: i32, key: &str, values: &[&str]| {
        Some(LabelSelector {
            match_expressions: vec![LabelRequirement {
                key: key.to_owned(),
                operator,
                values: values.iter().map(|value| (*value).to_owned()).collect(),
            }],
            ..LabelSelector::default()
        })
    };
    let (is_in, exists) = (
        i32::from(LabelOperator::In),
        i32::from(LabelOperator::Exists),
    );
    let wrong = [
        ("page_size", None, -1, "", ""),
        ("cluster_id", None, 0, "No Cluster", ""),
        ("page_token", None, 0, "", "made up"),
        (
            "selector.match_expressions[0].values",
            selector(is_in, "rack", &[]),
            0,
            "",
            "",
        ),
        (
            "selector.match_expressions[0].values",
            selector(exists, "rack", &["r1"]),
            0,
            "",
            "",
        ),
        (
            "selector.match_expressions[0].operator",
            selector(0, "rack", &[]),
            0,
            "",
            "",
        ),
        (
            "selector.match_expressions[0].operator",
            selector(99, "rack", &[]),
            0,
            "",
            "",
        ),
        (
            "selector.match_expressions[0].key",
            selector(is_in, "", &["r1"]),
            0,
            "",
            "",
        ),
    ];
    for (field, selector, page_size, cluster_id, page_token) in wrong {
        let request = ListHostsRequest {
            selector,
            page_size,
            cluster_id: cluster_id.to_owned(),
            page_token: page_token.to_owned(),
            ..ListHostsRequest::default()
        };
        let error = refused(page(&fixture, request).await, Reason::Invalid, field);
        let named: Vec<_> = error.fields().iter().map(|it| it.field.as_str()).collect();
        assert_eq!(named, [field], "{error:?}");
    }
    let elsewhere = ListHostsRequest {
        expected_platform_uid: format!("{}-not", fixture.platform.uid),
        ..ListHostsRequest::default()
    };
    let answer = page(&fixture, elsewhere).await;
    refused(answer, Reason::PlatformMismatch, "another platform");
}
