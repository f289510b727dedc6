//! Targets and ports of addons.

use drover_core::Reason;
use drover_proto::{
    common::v1::{Address, AddressType},
    platform::v1::{
        AddonKind, AddonTarget, EnsureAddonRequest, NodeRole, ResourcePhase, addon_spec::Kind,
        port_ref::Port,
    },
};

use super::{super::Subject, Fixture, balancers, fixture, mapping, ports, refused, spec, until};

/// The n-th target, active, with an address on `oam` and a port `client`.
pub(super) fn target(n: usize) -> AddonTarget {
    let address = format!("10.{}.{}.{}", n >> 16, (n >> 8) & 255, n & 255);
    AddonTarget {
        node_id: format!("node-{n}"),
        name: format!("db-{n}"),
        group: "db".to_owned(),
        endpoints: [("client".to_owned(), format!("{address}:5432"))].into(),
        addresses: vec![Address {
            r#type: AddressType::InternalIp.into(),
            value: address,
            interface: "oam".to_owned(),
        }],
        draining: false,
        role: NodeRole::Active.into(),
        platform: String::new(),
    }
}

impl Fixture<'_> {
    /// Repeats a request until this number of targets is served.
    async fn serves(&self, request: &EnsureAddonRequest, count: u32) {
        let state = self.settle(request).await;
        if self.subject.addons_become_ready {
            assert_eq!(state.target_count, count, "{state:?}");
            let listed = self.listed_addons().await;
            let listed = listed.iter().find(|it| it.name == state.name);
            assert_eq!(listed.map(|it| it.target_count), Some(count));
        }
    }
}

pub(in super::super) async fn a_balancer_without_targets_stands_ready(subject: &Subject) {
    let Some(fixture) = balancers(subject).await else {
        return;
    };
    let mut request = fixture.addon(AddonKind::LoadBalancer, "lb");
    fixture.serves(&request, 0).await;
    request.targets = vec![target(1)];
    fixture.serves(&request, 1).await;
    request.targets.clear();
    fixture.serves(&request, 0).await;
    fixture.clean_addons().await;
}

pub(in super::super) async fn nodes_of_two_platforms_with_one_id_are_both_served(
    subject: &Subject,
) {
    let Some(fixture) = balancers(subject).await else {
        return;
    };
    let mut request = fixture.addon(AddonKind::LoadBalancer, "lb");
    let other = AddonTarget {
        platform: "other".to_owned(),
        node_id: target(1).node_id,
        ..target(2)
    };
    request.targets = vec![target(1), other];
    fixture.serves(&request, 2).await;
    fixture.clean_addons().await;
}

pub(in super::super) async fn a_balancer_serves_no_target_that_is_standby_or_drains(
    subject: &Subject,
) {
    let Some(fixture) = balancers(subject).await else {
        return;
    };
    let mut request = fixture.addon(AddonKind::LoadBalancer, "lb");
    request.targets = (0..4).map(target).collect();
    request.targets[3].role = NodeRole::Standby.into();
    fixture.serves(&request, 3).await;
    request.targets[0].draining = true;
    fixture.serves(&request, 2).await;
    request.targets[3].role = NodeRole::Active.into();
    fixture.serves(&request, 3).await;
    request.targets.remove(0);
    fixture.serves(&request, 3).await;
    request.targets[0].role = NodeRole::Unspecified.into();
    fixture.serves(&request, 3).await;
    fixture.clean_addons().await;
}

pub(in super::super) async fn a_jump_host_lists_every_target(subject: &Subject) {
    let Some(fixture) = fixture(subject).await else {
        return;
    };
    if !fixture.kinds().contains(&AddonKind::JumpHost) {
        return;
    }
    let mut request = fixture.addon(AddonKind::JumpHost, "jump");
    request.targets = (0..3).map(target).collect();
    request.targets[0].draining = true;
    request.targets[1].role = NodeRole::Standby.into();
    fixture.serves(&request, 3).await;
    fixture.clean_addons().await;
}

pub(in super::super) async fn a_target_without_an_address_on_the_interface_is_left_out_and_named(
    subject: &Subject,
) {
    let Some(fixture) = balancers(subject).await else {
        return;
    };
    let mut request = fixture.addon(AddonKind::LoadBalancer, "lb");
    spec(&mut request).interface = "oam".to_owned();
    request.targets = (0..3).map(target).collect();
    request.targets[1].addresses[0].interface = "pxe".to_owned();
    fixture.serves(&request, 2).await;
    let listed = fixture.listed_addons().await;
    assert!(listed[0].message.contains("db-1"), "{:?}", listed[0]);
    request.targets[1] = target(1);
    fixture.serves(&request, 3).await;
    fixture.clean_addons().await;
}

pub(in super::super) async fn a_named_port_is_the_one_of_each_target(subject: &Subject) {
    let Some(fixture) = balancers(subject).await else {
        return;
    };
    let client = || Port::Name("client".to_owned());
    let mut request = fixture.balancer("lb", vec![mapping(None, client(), 1)]);
    request.targets = (0..3).map(target).collect();
    request.targets[2].endpoints.clear();
    fixture.serves(&request, 2).await;
    fixture.clean_addons().await;
}

pub(in super::super) async fn two_thousand_targets_are_served_and_no_more_are_taken(
    subject: &Subject,
) {
    let Some(fixture) = balancers(subject).await else {
        return;
    };
    let mut request = fixture.addon(AddonKind::LoadBalancer, "lb");
    request.targets = (0..2_001).map(target).collect();
    let outcome = fixture.ensure_addon(&request).await;
    let error = refused(outcome, Reason::Invalid, "2,001 targets");
    assert_eq!(error.fields()[0].field, "targets");
    assert!(error.fields()[0].description.contains("2001"), "{error:?}");
    assert!(fixture.addon_names().await.is_empty());
    request.targets.pop();
    fixture.serves(&request, 2_000).await;
    fixture.clean_addons().await;
}

pub(in super::super) async fn a_port_that_is_asked_for_is_where_it_listens(subject: &Subject) {
    let Some(fixture) = fixture(subject).await else {
        return;
    };
    let port = subject.addon_port;
    for kind in fixture.kinds() {
        let mut request = fixture.addon(kind, "one");
        match spec(&mut request).kind.as_mut().expect("a kind") {
            Kind::LoadBalancer(it) => it.ports[0].listen = Some(port),
            Kind::JumpHost(it) => it.port = Some(port),
            Kind::OidcProvider(it) => it.port = Some(port),
            Kind::Template(_) => continue,
        }
        let state = fixture.settle(&request).await;
        if subject.addons_become_ready {
            assert_eq!(ports(&state), [port], "{state:?}");
            assert!(state.endpoints.iter().all(|it| !it.host.is_empty()));
        }
        fixture.clean_addons().await;
    }
}

pub(in super::super) async fn a_port_that_is_not_asked_for_is_chosen_and_kept(subject: &Subject) {
    let Some(fixture) = balancers(subject).await else {
        return;
    };
    let mut request = fixture.addon(AddonKind::LoadBalancer, "lb");
    let state = fixture.settle(&request).await;
    if subject.addons_become_ready {
        assert_eq!(ports(&state).len(), 1, "{state:?}");
    }
    request.targets = vec![target(1)];
    // One that is not ready yet may not show all of them.
    let later = ports(&fixture.settle(&request).await);
    assert!(ports(&state).iter().all(|port| later.contains(port)));
    if subject.addons_become_ready {
        assert_eq!(later, ports(&state));
    }
    fixture.clean_addons().await;
}

pub(in super::super) async fn a_range_of_ports_is_listened_on_whole(subject: &Subject) {
    let Some(fixture) = balancers(subject).await else {
        return;
    };
    let first = subject.addon_port;
    let range = mapping(Some(first), Port::Number(9000), 5);
    let one = mapping(Some(first + 7), Port::Number(80), 0);
    let request = fixture.balancer("lb", vec![range, one]);
    let state = fixture.settle(&request).await;
    if subject.addons_become_ready {
        let mut expected: Vec<u32> = (first..first + 5).collect();
        expected.push(first + 7);
        assert_eq!(ports(&state), expected);
    }
    fixture.clean_addons().await;
}

pub(in super::super) async fn a_port_of_another_addon_is_refused_until_it_is_free(
    subject: &Subject,
) {
    let Some(fixture) = balancers(subject).await else {
        return;
    };
    let other = Fixture::new(subject).await;
    let first = subject.addon_port;
    let range = mapping(Some(first), Port::Number(9000), 3);
    fixture.settle(&fixture.balancer("lb", vec![range])).await;
    let free = mapping(Some(first + 3), Port::Number(80), 1);
    let taken = mapping(Some(first + 2), Port::Number(80), 1);
    let mut request = other.balancer("lb", vec![free, taken]);
    for validate_only in [true, false] {
        request.validate_only = validate_only;
        let outcome = other.ensure_addon(&request).await;
        let error = refused(outcome, Reason::Invalid, "a taken port");
        let field = "spec.load_balancer.ports[1].listen";
        assert_eq!(error.fields()[0].field, field, "{error:?}");
    }
    // What was made until then belongs to its owner, and is the same addon later.
    fixture.clean_addons().await;
    request.validate_only = false;
    other.settle(&request).await;
    other.clean_addons().await;
}

pub(in super::super) async fn a_changed_spec_is_brought_in(subject: &Subject) {
    let Some(fixture) = balancers(subject).await else {
        return;
    };
    let first = subject.addon_port;
    let ports_of = |ports: &[u32]| {
        let listen = ports.iter();
        let mappings = listen.map(|port| mapping(Some(*port), Port::Number(80), 0));
        fixture.balancer("lb", mappings.collect())
    };
    for wanted in [&[first][..], &[first, first + 1], &[first + 2]] {
        let state = fixture.settle(&ports_of(wanted)).await;
        if subject.addons_become_ready {
            assert_eq!(ports(&state), wanted);
        }
        assert_eq!(fixture.addon_names().await, ["lb"]);
    }
    // A change that is refused changes nothing.
    let before = fixture.listed_addons().await;
    let mut wrong = ports_of(&[first]);
    wrong.targets = vec![target(1), target(1)];
    refused(
        fixture.ensure_addon(&wrong).await,
        Reason::Invalid,
        "a target twice",
    );
    assert_eq!(ports(&fixture.listed_addons().await[0]), ports(&before[0]));
    fixture.clean_addons().await;
}

pub(in super::super) async fn an_addon_that_is_not_done_says_when_to_ask_again(subject: &Subject) {
    let Some(fixture) = balancers(subject).await else {
        return;
    };
    let mut request = fixture.addon(AddonKind::LoadBalancer, "lb");
    request.targets = vec![target(1)];
    until(subject, "the addon is ready, or stays as it is", || async {
        let answer = fixture
            .ensure_addon(&request)
            .await
            .expect("Ensure answers");
        let state = answer.state.expect("a state");
        let is_ready = state.phase() == ResourcePhase::Ready;
        assert!(is_ready || answer.poll_after.is_some(), "{state:?}");
        if let Some(after) = answer.poll_after {
            let after = std::time::Duration::try_from(after);
            assert!(after.is_ok_and(|after| !after.is_zero()));
        }
        (is_ready || !subject.addons_become_ready).then_some(())
    })
    .await;
    fixture.clean_addons().await;
}
