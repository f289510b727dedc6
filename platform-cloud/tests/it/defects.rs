//! The conformance suite detects platforms that break a guarantee.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use async_trait::async_trait;
use drover_core::Result;
use drover_platform::{
    addons::{AddonProgress, AddonWanted, Addons, Owner},
    clock::Clock,
    driver::{
        Batch, Change, Deleted, Deletion, Description, Driver, Found, Listing, Outcome, Target,
    },
    templates::Templates,
};
use drover_platform_cloud::{
    PlatformServer,
    drivers::simulated::{Simulated, SimulatedSettings},
};
use drover_proto::platform::v1::{
    AddonKind, AddonState, Capability, DeprovisionState, Node, NodeRole, ResourcePhase, Warning,
};
use drover_testing::platform::{Subject, conformance};
use futures::FutureExt;

#[derive(Clone, Copy, PartialEq)]
enum Defect {
    ForgetsRequests,
    ListsShort,
    NeverRemoves,
    LosesIdentity,
    TakesAddonsOver,
    ServesStandby,
    SaysAddonsAreGone,
    ListsAddonsShort,
}

impl Defect {
    fn is_of_addons(self) -> bool {
        matches!(
            self,
            Self::TakesAddonsOver
                | Self::ServesStandby
                | Self::SaysAddonsAreGone
                | Self::ListsAddonsShort
        )
    }
}

struct Defective {
    inner: Arc<Simulated>,
    defect: Defect,
}

#[async_trait]
impl Driver for Defective {
    fn description(&self) -> Description {
        let mut description = self.inner.description();
        let not_here = [Capability::NodeLogs, Capability::NodeExec];
        description
            .capabilities
            .retain(|capability| !not_here.contains(capability));
        description
    }

    async fn check(&self, batch: &Batch) -> Result<()> {
        Driver::check(&*self.inner, batch).await
    }

    async fn list(&self) -> Result<Listing> {
        let mut listing = Driver::list(&*self.inner).await?;
        if self.defect == Defect::ListsShort {
            listing.nodes.retain(|found| {
                found
                    .node
                    .slot
                    .as_ref()
                    .is_none_or(|slot| slot.index != Some(1))
            });
        }
        if self.defect == Defect::LosesIdentity {
            listing
                .nodes
                .iter_mut()
                .for_each(|found| found.node.spec_hash.clear());
        }
        Ok(listing)
    }

    async fn of_request(&self, request_id: &str) -> Result<Vec<Found>> {
        if self.defect == Defect::ForgetsRequests {
            Ok(Vec::new())
        } else {
            self.inner.of_request(request_id).await
        }
    }

    async fn by_node_id(&self, node_id: &str) -> Result<Vec<Found>> {
        self.inner.by_node_id(node_id).await
    }

    async fn create(&self, batch: &Batch) -> Vec<Outcome> {
        self.inner.create(batch).await
    }

    async fn delete(&self, target: &Target, options: &Deletion) -> Result<Deleted> {
        if self.defect == Defect::NeverRemoves {
            return Ok(Deleted {
                state: DeprovisionState::Deprovisioning,
                retained_storage: Vec::new(),
            });
        }
        self.inner.delete(target, options).await
    }

    async fn update(&self, target: &Target, change: &Change) -> Result<Node> {
        self.inner.update(target, change).await
    }

    fn addons(&self) -> Option<&dyn Addons> {
        self.defect.is_of_addons().then_some(self as &dyn Addons)
    }
}

#[async_trait]
impl Addons for Defective {
    fn kinds(&self) -> Vec<AddonKind> {
        vec![AddonKind::LoadBalancer]
    }

    async fn check(&self, owner: &Owner, wanted: &AddonWanted) -> Result<()> {
        Addons::check(&*self.inner, owner, wanted).await
    }

    async fn ensure(
        &self,
        owner: &Owner,
        sequence: u64,
        wanted: &AddonWanted,
    ) -> Result<AddonProgress> {
        let mut wanted = wanted.clone();
        if self.defect == Defect::ServesStandby {
            let targets = wanted.targets.iter_mut();
            targets.for_each(|target| target.role = NodeRole::Active.into());
        }
        self.inner.ensure(owner, sequence, &wanted).await
    }

    async fn list(&self, cluster_id: Option<&str>) -> Result<(Vec<AddonState>, Vec<Warning>)> {
        let (mut addons, warnings) = Addons::list(&*self.inner, cluster_id).await?;
        if self.defect == Defect::ListsAddonsShort {
            addons.retain(|addon| addon.phase() == ResourcePhase::Ready);
        }
        Ok((addons, warnings))
    }

    async fn remove(&self, owner: &Owner, name: &str) -> Result<AddonProgress> {
        let mut owner = owner.clone();
        if self.defect == Defect::TakesAddonsOver {
            let (addons, _) = Addons::list(&*self.inner, None).await?;
            let of_name = |it: &AddonState| it.cluster_id == owner.cluster_id && it.name == name;
            if let Some(addon) = addons.into_iter().find(of_name) {
                owner.owner = addon.owner;
            }
        }
        let mut progress = self.inner.remove(&owner, name).await?;
        if self.defect == Defect::SaysAddonsAreGone {
            progress.state.phase = ResourcePhase::Gone.into();
            progress.poll_after = None;
        }
        Ok(progress)
    }
}

/// The checks that fail for a platform with this defect.
async fn failed_checks(defect: Defect) -> String {
    let inner = Simulated::open(SimulatedSettings::default(), Clock::start()).unwrap();
    let driver = Arc::new(Defective { inner, defect });
    let server = PlatformServer::with_driver(driver, Templates::Anything).unwrap();
    let routes = server.routes();
    let mut subject = Subject::new(move || drover_client::in_process(routes.clone()));
    subject.fuzz_rounds = 1;
    subject.patience = Duration::from_secs(2);
    let outcome = AssertUnwindSafe(conformance(&subject)).catch_unwind().await;
    let panic = outcome.expect_err("the suite finds the defect");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_platform_that_forgets_its_requests_fails() {
    let failed = failed_checks(Defect::ForgetsRequests).await;
    assert!(
        failed.contains("the_same_request_again_answers_the_same_nodes"),
        "{failed}"
    );
    assert!(
        failed.contains("another_fingerprint_is_refused"),
        "{failed}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_platform_with_a_short_list_fails() {
    let failed = failed_checks(Defect::ListsShort).await;
    assert!(
        failed.contains("pages_are_complete_and_from_one_read"),
        "{failed}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_platform_that_does_not_remove_fails() {
    let failed = failed_checks(Defect::NeverRemoves).await;
    assert!(
        failed.contains("a_removed_node_goes_and_stays_gone"),
        "{failed}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_platform_that_loses_identities_fails() {
    let failed = failed_checks(Defect::LosesIdentity).await;
    assert!(
        failed.contains("every_slot_is_made_with_its_identity"),
        "{failed}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_platform_that_removes_addons_of_others_fails() {
    let failed = failed_checks(Defect::TakesAddonsOver).await;
    assert!(
        failed.contains("an_addon_of_another_owner_is_left_alone"),
        "{failed}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_platform_whose_balancers_serve_standbys_fails() {
    let failed = failed_checks(Defect::ServesStandby).await;
    let check = "a_balancer_serves_no_target_that_is_standby_or_drains";
    assert!(failed.contains(check), "{failed}");
}

#[tokio::test(start_paused = true)]
async fn a_platform_that_says_too_soon_that_an_addon_is_gone_fails() {
    let failed = failed_checks(Defect::SaysAddonsAreGone).await;
    for check in [
        "a_half_made_addon_is_removed_whole",
        "an_addon_is_in_the_list_until_it_is_gone",
    ] {
        assert!(failed.contains(check), "{failed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_platform_that_does_not_list_half_made_addons_fails() {
    let failed = failed_checks(Defect::ListsAddonsShort).await;
    assert!(
        failed.contains("a_half_made_addon_is_removed_whole"),
        "{failed}"
    );
}
