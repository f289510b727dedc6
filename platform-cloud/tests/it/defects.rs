//! The conformance suite detects platforms that break a guarantee.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use async_trait::async_trait;
use drover_core::Result;
use drover_platform::{
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
use drover_proto::platform::v1::{Capability, DeprovisionState, Node};
use drover_testing::platform::{Subject, conformance};
use futures::FutureExt;

#[derive(Clone, Copy, PartialEq)]
enum Defect {
    ForgetsRequests,
    ListsShort,
    NeverRemoves,
    LosesIdentity,
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
        self.inner.check(batch).await
    }

    async fn list(&self) -> Result<Listing> {
        let mut listing = self.inner.list().await?;
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
