//! The platform is killed with `kill -9` before and after each of its calls to the API server, while it makes, changes and
//! removes an addon. Another one finishes it: nothing is there twice, and nothing is left.

use std::collections::BTreeSet;

use drover_client::{Channel, PlatformClient};
use drover_platform::addons::{AddonWanted, Addons as _};
use drover_proto::platform::v1::{
    EnsureAddonRequest, Fence, GetPlatformRequest, JumpHost, RemoveAddonRequest, ResourcePhase,
    addon_spec::Kind, platform_service_client::PlatformServiceClient,
};
use drover_testing::{
    kubernetes::{Options, Rig},
    wait::PATIENCE,
};
use uuid::Uuid;

use super::{
    Bench,
    bench::balancer,
    mapping,
    others::{KEY, addon},
    target,
};
use crate::doomed::{Doomed, Point, points};

/// What a process is asked to do.
enum Work<'a> {
    Ensure(&'a AddonWanted),
    Remove(&'a str),
}

impl Bench {
    /// Lets a process work until it dies at a point.
    async fn dies(&self, point: &Point, work: Work<'_>) {
        let namespace = &self.namespace.name;
        let arguments = ["--addons-namespace", namespace];
        let doomed = Doomed::start(Rig::shared(Options::kwok(3)), namespace, &arguments).await;
        let channel = doomed.channel();
        doomed.dies(point, self.ask(channel, work)).await;
    }

    async fn ask(&self, channel: Channel, work: Work<'_>) {
        let mut platforms = PlatformServiceClient::new(channel.clone());
        let platform = platforms.get_platform(GetPlatformRequest {}).await.unwrap();
        let expected_platform_uid = platform.into_inner().platform.unwrap().uid;
        let fence = Some(Fence {
            store_id: Uuid::new_v4().to_string(),
            shard: 0,
            epoch: 1,
        });
        let (cluster_id, owner) = (self.owner.cluster_id.clone(), self.owner.owner.clone());
        let client = PlatformClient::new(channel);
        // How it ends is up to whoever dies.
        match work {
            Work::Ensure(wanted) => {
                let request = EnsureAddonRequest {
                    expected_platform_uid,
                    fence,
                    cluster_id,
                    owner,
                    sequence: 1,
                    spec: Some(wanted.spec.clone()),
                    targets: wanted.targets.clone(),
                    secrets: wanted.secrets.clone(),
                    ..EnsureAddonRequest::default()
                };
                drop(client.ensure_addon(request, PATIENCE).await);
            }
            Work::Remove(name) => {
                let request = RemoveAddonRequest {
                    expected_platform_uid,
                    fence,
                    cluster_id,
                    owner,
                    name: name.to_owned(),
                    ..RemoveAddonRequest::default()
                };
                drop(client.remove_addon(request, PATIENCE).await);
            }
        }
    }

    /// Kinds and names of all objects.
    async fn names(&self) -> BTreeSet<(String, String)> {
        let objects = self.objects().await.into_iter();
        objects.map(|it| (it.resource, it.name)).collect()
    }

    /// Lets a process die while it makes an addon, and another one finish or remove it.
    async fn whatever_befalls(&self, wanted: &AddonWanted, points: Vec<Point>) {
        let name = wanted.spec.name.as_str();
        self.ensure(wanted).await.unwrap();
        let whole = self.names().await;
        self.remove(name).await;
        assert_eq!(self.names().await, BTreeSet::new());
        for (at, point) in points.into_iter().enumerate() {
            self.dies(&point, Work::Ensure(wanted)).await;
            let half = self.names().await;
            assert!(half.is_subset(&whole), "{}: {half:?}", point.what);
            let listed = self.list().await.len();
            assert_eq!(listed, usize::from(!half.is_empty()), "{}", point.what);
            // What was begun is finished, or removed as it is.
            if at % 4 < 2 {
                self.ensure(wanted).await.unwrap();
                assert_eq!(self.names().await, whole, "{}", point.what);
            }
            self.remove(name).await;
            assert_eq!(self.names().await, BTreeSet::new(), "{}", point.what);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_balancer_that_is_half_made_is_finished_or_removed_by_the_next_platform() {
    let bench = Bench::start().await;
    let wanted = balancer(vec![mapping(None, 80, 1)], vec![target("a", "192.0.2.1")]);
    let calls = ["services", "configmaps", "deployments.apps"];
    let mut all = points("list", "secrets", 1);
    all.extend(
        calls
            .iter()
            .flat_map(|resource| points("patch", resource, 1)),
    );
    all.extend(points("patch", "poddisruptionbudgets.policy", 1));
    bench.whatever_befalls(&wanted, all).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_jump_host_that_is_half_made_is_finished_or_removed_by_the_next_platform() {
    let bench = Bench::start().await;
    let jump = JumpHost {
        authorized_keys: vec![KEY.to_owned()],
        ..JumpHost::default()
    };
    let wanted = addon(Kind::JumpHost(jump), vec![target("a", "192.0.2.1")]);
    let calls = ["services", "configmaps", "deployments.apps"];
    let mut all: Vec<Point> = calls
        .iter()
        .flat_map(|resource| points("patch", resource, 1))
        .collect();
    all.extend(points("patch", "secrets", 2));
    bench.whatever_befalls(&wanted, all).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_targets_that_dies_anywhere_reaches_the_pods_by_the_next_platform() {
    let bench = Bench::start().await;
    let with = |number: usize| {
        let address = format!("192.0.2.{}", number + 1);
        balancer(vec![mapping(None, 80, 1)], vec![target("a", &address)])
    };
    bench.ensure(&with(0)).await.unwrap();
    let whole = bench.names().await;
    let mut all = points("patch", "configmaps", 1);
    all.extend(points("list", "configmaps", 1));
    for (number, point) in (1..).zip(all) {
        bench.dies(&point, Work::Ensure(&with(number))).await;
        bench.ensure(&with(number)).await.unwrap();
        let address = format!("192.0.2.{}", number + 1);
        bench
            .until_told(&point.what, 2, |live| live.contains(&address))
            .await;
        assert_eq!(bench.names().await, whole, "{}", point.what);
    }
    bench.remove("api").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_that_dies_anywhere_is_finished_by_the_next_platform() {
    let bench = Bench::start().await;
    let wanted = balancer(vec![mapping(None, 80, 1)], vec![target("a", "192.0.2.1")]);
    let kinds = [
        "services",
        "configmaps",
        "deployments.apps",
        "poddisruptionbudgets.policy",
    ];
    let mut all = points("list", "services", 1);
    all.extend(
        kinds
            .iter()
            .flat_map(|resource| points("delete", resource, 1)),
    );
    for point in all {
        bench.ensure(&wanted).await.unwrap();
        bench.dies(&point, Work::Remove("api")).await;
        let state = bench
            .addons
            .remove(&bench.owner, "api")
            .await
            .unwrap()
            .state;
        assert!(
            matches!(
                state.phase(),
                ResourcePhase::Releasing | ResourcePhase::Gone
            ),
            "{}: {state:?}",
            point.what
        );
        bench.remove("api").await;
        assert_eq!(bench.names().await, BTreeSet::new(), "{}", point.what);
    }
}
