//! Addons with faults, drift and shortage, which only the simulated backend provides on demand.

use drover_client::PlatformClient;
use drover_core::{Error, Reason, Result};
use drover_platform_cloud::drivers::simulated::{AddonLedger, AddonSettings, AddonWord};
use drover_proto::{
    common::v1::{Address, AddressType},
    platform::v1::{
        AddonSecret, AddonSpec, AddonState, AddonTarget, EnsureAddonRequest, EnsureAddonResponse,
        JumpHost, ListAddonsRequest, LoadBalancer, PortMapping, PortRef, RemoveAddonRequest,
        ResourcePhase, addon_spec::Kind, port_ref::Port,
    },
};

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);

struct Owner<'a> {
    world: &'a World,
    client: PlatformClient,
    owner: String,
}

fn owner(world: &World) -> Owner<'_> {
    Owner {
        world,
        client: PlatformClient::new(drover_client::in_process(world.server.routes())),
        owner: Uuid::new_v4().to_string(),
    }
}

fn mapping(listen: Option<u32>, count: u32) -> PortMapping {
    PortMapping {
        listen,
        target: Some(PortRef {
            port: Some(Port::Number(6443)),
        }),
        count,
    }
}

fn target(n: u32) -> AddonTarget {
    AddonTarget {
        node_id: format!("sim-{n}"),
        name: format!("db-{n}"),
        addresses: vec![Address {
            r#type: AddressType::InternalIp.into(),
            value: format!("10.0.0.{n}"),
            interface: String::new(),
        }],
        ..AddonTarget::default()
    }
}

impl Owner<'_> {
    fn addon(&self, name: &str, kind: Kind) -> EnsureAddonRequest {
        EnsureAddonRequest {
            expected_platform_uid: self.world.uid.clone(),
            fence: Some(self.world.fence()),
            cluster_id: "c".to_owned(),
            owner: self.owner.clone(),
            sequence: 3,
            spec: Some(AddonSpec {
                name: name.to_owned(),
                kind: Some(kind),
                ..AddonSpec::default()
            }),
            ..EnsureAddonRequest::default()
        }
    }

    fn balancer(&self, name: &str, port: PortMapping) -> EnsureAddonRequest {
        let ports = vec![port];
        self.addon(name, Kind::LoadBalancer(LoadBalancer { ports }))
    }

    async fn ensure(&self, request: &EnsureAddonRequest) -> Result<EnsureAddonResponse> {
        self.client.ensure_addon(request.clone(), PATIENCE).await
    }

    async fn settle(&self, request: &EnsureAddonRequest) -> AddonState {
        for _ in 0..100 {
            let answer = self.ensure(request).await.unwrap();
            match answer.poll_after {
                Some(after) => tokio::time::sleep(after.try_into().unwrap()).await,
                None => return answer.state.unwrap(),
            }
        }
        panic!("it is never done");
    }

    async fn remove(&self, name: &str) -> Result<AddonState> {
        let request = RemoveAddonRequest {
            expected_platform_uid: self.world.uid.clone(),
            fence: Some(self.world.fence()),
            cluster_id: "c".to_owned(),
            owner: self.owner.clone(),
            name: name.to_owned(),
            ..RemoveAddonRequest::default()
        };
        let answer = self.client.remove_addon(request, PATIENCE).await?;
        Ok(answer.state.unwrap())
    }

    fn ledger(&self, name: &str) -> AddonLedger {
        let all = self.world.simulated().addon_ledger();
        all.get(&("c".to_owned(), name.to_owned()))
            .copied()
            .unwrap_or_default()
    }
}

fn with(addons: AddonSettings) -> SimulatedSettings {
    SimulatedSettings {
        addons,
        ..SimulatedSettings::default()
    }
}

#[tokio::test(start_paused = true)]
async fn an_addon_whose_answers_are_lost_is_made_once_and_removed_whole() {
    let world = World::new(with(AddonSettings {
        steps: true,
        ..AddonSettings::default()
    }))
    .await;
    let owner = owner(&world);
    let request = owner.balancer("lb", mapping(Some(30_001), 0));
    for fault in [Fault::LoseAnswer, Fault::Refuse(Error::unavailable("away"))] {
        world.simulated().fail_next(Operation::EnsureAddon, fault);
        let error = owner.ensure(&request).await.unwrap_err();
        assert_eq!(error.reason(), Reason::Unavailable);
    }
    let state = owner.settle(&request).await;
    assert_eq!(state.phase(), ResourcePhase::Ready);
    assert_eq!(owner.ledger("lb").created, 1);
    let kinds: Vec<_> = state.resources.iter().map(|it| it.kind.as_str()).collect();
    assert_eq!(kinds, ["deployment", "service"]);

    world
        .simulated()
        .fail_next(Operation::RemoveAddon, Fault::LoseAnswer);
    owner.remove("lb").await.unwrap_err();
    let mut phases = Vec::new();
    while phases.last() != Some(&ResourcePhase::Gone) {
        phases.push(owner.remove("lb").await.unwrap().phase());
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert!(phases.contains(&ResourcePhase::Releasing), "{phases:?}");
    assert_eq!(world.simulated().addons(), vec![]);
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_cannot_be_reached_has_an_unknown_list_of_addons_and_not_an_empty_one() {
    let world = World::new(SimulatedSettings::default()).await;
    let owner = owner(&world);
    owner.settle(&owner.balancer("lb", mapping(None, 0))).await;
    world.simulated().pause_backend(true);
    let list = ListAddonsRequest::default();
    let error = owner.client.list_addons(list.clone(), PATIENCE).await;
    assert_eq!(error.unwrap_err().reason(), Reason::Unavailable);
    let error = owner.remove("lb").await.unwrap_err();
    assert_eq!(error.reason(), Reason::Unavailable);
    world.simulated().pause_backend(false);
    let listed = owner.client.list_addons(list, PATIENCE).await.unwrap();
    assert_eq!(listed.addons.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_removed_by_hand_is_made_again() {
    let world = World::new(SimulatedSettings::default()).await;
    let owner = owner(&world);
    let request = owner.balancer("lb", mapping(Some(30_005), 0));
    let before = owner.settle(&request).await;
    assert!(world.simulated().remove_addon_object("c", "lb", "service"));
    let [drifted] = &world.simulated().addons()[..] else {
        panic!("one addon");
    };
    assert_eq!(drifted.phase(), ResourcePhase::Pending);
    let after = owner.settle(&request).await;
    assert_eq!(after.endpoints, before.endpoints);
    assert_eq!(
        after.resources[0], before.resources[0],
        "it was not touched"
    );
    assert_ne!(after.resources[1].id, before.resources[1].id);
    assert_eq!(owner.ledger("lb").created, 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_addon_says_why_until_it_works_again() {
    let world = World::new(SimulatedSettings::default()).await;
    let owner = owner(&world);
    let request = owner.balancer("lb", mapping(None, 0));
    owner.settle(&request).await;
    let why = "haproxy.cfg:12: unknown keyword";
    assert!(world.simulated().fail_addon("c", "lb", Some(why)));
    let answer = owner.ensure(&request).await.unwrap();
    assert!(answer.poll_after.is_some(), "it is to be tried again");
    let state = answer.state.unwrap();
    assert_eq!(state.phase(), ResourcePhase::Failed);
    assert_eq!(state.message, why);
    world.simulated().fail_addon("c", "lb", None);
    assert_eq!(owner.settle(&request).await.phase(), ResourcePhase::Ready);
}

#[tokio::test(start_paused = true)]
async fn addons_share_the_ports_of_the_backend() {
    let world = World::new(with(AddonSettings {
        first_port: 30_000,
        last_port: 30_002,
        ..AddonSettings::default()
    }))
    .await;
    let owner = owner(&world);
    let field = "spec.load_balancer.ports[0].listen";
    for (port, count) in [(29_999, 1), (30_003, 1), (30_001, 3)] {
        let request = owner.balancer("lb", mapping(Some(port), count));
        let error = owner.ensure(&request).await.unwrap_err();
        assert_eq!(error.reason(), Reason::Invalid);
        assert_eq!(error.fields()[0].field, field);
        let why = &error.fields()[0].description;
        assert!(why.contains("30000 to 30002"), "{why}");
    }
    owner.settle(&owner.balancer("a", mapping(None, 2))).await;
    owner.settle(&owner.balancer("b", mapping(None, 1))).await;
    let error = owner.ensure(&owner.balancer("c", mapping(None, 1))).await;
    assert_eq!(error.unwrap_err().reason(), Reason::NoCapacity);
    // What it has, an addon keeps.
    let kept = owner.settle(&owner.balancer("b", mapping(None, 1))).await;
    assert_eq!(kept.endpoints[0].port, 30_002);
    let names: Vec<_> = world.simulated().addons();
    assert_eq!(names.len(), 2, "nothing of the refused one is left");
}

#[tokio::test(start_paused = true)]
async fn a_change_of_membership_is_confirmed_when_it_is_in_use() {
    let world = World::new(with(AddonSettings {
        apply_delay: Duration::from_secs(2),
        ..AddonSettings::default()
    }))
    .await;
    let owner = owner(&world);
    let mut request = owner.balancer("lb", mapping(None, 0));
    request.targets = vec![target(1), target(2)];
    owner.settle(&request).await;
    request.targets[0].draining = true;
    let answer = owner.ensure(&request).await.unwrap();
    assert_eq!(answer.state.unwrap().target_count, 2, "not yet");
    let after: Duration = answer.poll_after.unwrap().try_into().unwrap();
    assert_eq!(after, Duration::from_secs(2));
    tokio::time::sleep(after).await;
    let answer = owner.ensure(&request).await.unwrap();
    assert_eq!(answer.poll_after, None);
    assert_eq!(answer.state.unwrap().target_count, 1);
    assert_eq!(owner.ledger("lb").changed, 2, "repetitions change nothing");
}

#[tokio::test(start_paused = true)]
async fn secrets_reach_the_addon_and_no_error() {
    let world = World::new(SimulatedSettings::default()).await;
    let owner = owner(&world);
    let needle = "Tr0ub4dor-Zebra-77-Quux";
    let host = JumpHost {
        private_keys_secret: "keys".to_owned(),
        ..JumpHost::default()
    };
    let mut request = owner.addon("jump", Kind::JumpHost(host));
    let data = [("id".to_owned(), needle.as_bytes().to_vec())].into();
    request
        .secrets
        .insert("keys".to_owned(), AddonSecret { data });
    // A backend that repeats what it was given.
    let telltale = Error::new(
        Reason::Precondition,
        format!("line 1: {needle} is not a key"),
    )
    .with_metadata("content", needle);
    world
        .simulated()
        .fail_next(Operation::EnsureAddon, Fault::Refuse(telltale));
    let error = owner.ensure(&request).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Precondition);
    assert!(error.message().contains("is not a key"), "{error:?}");
    assert!(!format!("{error:?}").contains(needle), "{error:?}");
    assert!(!format!("{request:?}").contains(needle));

    owner.settle(&request).await;
    let why = format!("cannot parse {needle}");
    world.simulated().fail_addon("c", "jump", Some(&why));
    let state = owner.ensure(&request).await.unwrap().state.unwrap();
    assert!(state.message.starts_with("cannot parse"), "{state:?}");
    assert!(!state.message.contains(needle), "{state:?}");
    let wanted = world.simulated().addon_wanted("c", "jump").unwrap();
    assert_eq!(wanted.secrets["keys"].data["id"], needle.as_bytes());
}

#[tokio::test(start_paused = true)]
async fn only_the_kinds_of_the_settings_are_offered() {
    let world = World::new(with(AddonSettings {
        kinds: vec![AddonWord::JumpHost],
        ..AddonSettings::default()
    }))
    .await;
    let owner = owner(&world);
    let error = owner.ensure(&owner.balancer("lb", mapping(None, 0))).await;
    let error = error.unwrap_err();
    assert_eq!(error.reason(), Reason::CapabilityMissing);
    assert!(error.message().contains("LOAD_BALANCER"), "{error}");
    owner
        .settle(&owner.addon("jump", Kind::JumpHost(JumpHost::default())))
        .await;
}
