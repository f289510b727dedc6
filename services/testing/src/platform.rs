//! The conformance suite of platforms: every promise of `drover.platform.v1`, checked from outside.
//!
//! It uses only the generated clients of a platform, so the same suite runs against a server in the same process, one
//! on the network, and one in another language:
//!
//! ```no_run
//! # async fn run(routes: tonic::service::Routes) {
//! use drover_testing::platform::{Subject, conformance};
//! conformance(&Subject::new(move || drover_client::in_process(routes.clone()))).await;
//! # }
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test suite fails by panicking"
)]
#![allow(
    clippy::semicolon_if_nothing_returned,
    clippy::type_complexity,
    reason = "tables of small changes to a request"
)]

mod access;
pub mod caller;
mod discover;
mod fence;
mod fixture;
mod fuzz;
mod handshake;
mod infrastructure;
mod inventory;
mod provision;
mod remove;
pub mod requests;
mod restart;
mod storage;
mod update;
mod watch;

use std::{fmt, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use drover_client::Channel;
use drover_proto::platform::v1::InfrastructureSpec;
use futures::{FutureExt, future::BoxFuture};
use prost_types::Struct;

/// Changes the backend itself, without the platform's knowledge.
pub type Hook<T> = Arc<dyn Fn() -> BoxFuture<'static, T> + Send + Sync>;

/// The platform under test, with the settings of a valid group.
#[derive(Clone)]
pub struct Subject {
    /// Opens a channel to the platform.
    pub connect: Arc<dyn Fn() -> Channel + Send + Sync>,
    /// Store software of a valid cluster. Empty (default) for the catalogue's default entry.
    pub store: String,
    /// Version of the store software.
    pub version: String,
    /// Node class. Empty (default) for the platform's default.
    pub node_class: String,
    /// Valid properties. `None` (default) for no properties.
    pub properties: Option<Struct>,
    /// A store for which the catalogue has no template. `None` (default) if there is none.
    pub unknown_store: Option<String>,
    /// Timeout for everything: for a node to run or to be gone, and for a change to be visible. Default 10 s.
    pub patience: Duration,
    /// Whether valid nodes become ready according to the platform. Default true.
    pub becomes_ready: bool,
    /// A command that exits with 0 inside a node. Default `true`.
    pub command: Vec<String>,
    /// Creates a node that no orchestrator requested, and returns its cluster id (or nothing) and node id. `None`
    /// (default) if that is not possible.
    pub make_foreign: Option<Hook<(String, String)>>,
    /// Whether a node can be adopted into a cluster with another id. Default true. If not, such an adoption must be
    /// refused with `Precondition`.
    pub moves: bool,
    /// Restarts the server over the same backend; `connect` leads to the new one afterwards. `None` (default) if that
    /// is not possible.
    pub restart: Option<Hook<()>>,
    /// Infrastructure that becomes ready within `patience`. `None` (default) to create none.
    pub infrastructure: Option<InfrastructureSpec>,
    /// Number of random requests. Default 300.
    pub fuzz_rounds: usize,
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("store", &self.store)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl Subject {
    /// A platform whose default template creates a valid node.
    pub fn new(connect: impl Fn() -> Channel + Send + Sync + 'static) -> Self {
        Self {
            connect: Arc::new(connect),
            store: String::new(),
            version: String::new(),
            node_class: String::new(),
            properties: None,
            unknown_store: None,
            patience: Duration::from_secs(10),
            becomes_ready: true,
            command: vec!["true".to_owned()],
            make_foreign: None,
            moves: true,
            restart: None,
            infrastructure: None,
            fuzz_rounds: 300,
        }
    }
}

type Check = for<'a> fn(&'a Subject) -> BoxFuture<'a, ()>;

macro_rules! checks {
    ($($module:ident::$name:ident,)*) => {
        /// All checks with their names.
        const CHECKS: &[(&str, Check)] = &[$((stringify!($name), |subject| Box::pin($module::$name(subject)))),*];
    };
}

checks! {
    handshake::the_handshake_is_complete_and_stable,
    handshake::calls_for_another_platform_are_refused,
    handshake::calls_for_an_earlier_start_are_refused,
    handshake::calls_that_change_something_need_the_uid,
    provision::every_slot_is_made_with_its_identity,
    provision::the_same_request_again_answers_the_same_nodes,
    provision::the_same_request_at_once_makes_one_set,
    provision::another_fingerprint_is_refused,
    provision::of_two_fingerprints_at_once_one_wins,
    provision::another_role_is_the_same_fingerprint,
    provision::validate_only_makes_nothing,
    provision::wrong_fields_are_named_and_nothing_is_made,
    provision::unknown_enum_values_are_refused,
    provision::inexact_numbers_are_refused_with_their_path,
    provision::what_needs_a_missing_capability_is_refused,
    provision::an_unknown_store_has_no_template,
    provision::after_the_deadline_nothing_more_is_made,
    provision::a_cancelled_call_leaves_one_set_at_most,
    remove::each_wrong_field_leaves_the_node_alone,
    remove::a_removed_node_goes_and_stays_gone,
    remove::an_absent_node_is_gone,
    remove::wrong_fields_of_a_removal_are_named,
    remove::foreign_nodes_are_listed_and_left_alone,
    storage::kept_storage_is_listed_and_attached_again,
    storage::storage_has_one_node_at_a_time,
    storage::kept_storage_is_deleted_only_as_it_is_meant,
    storage::storage_goes_with_an_adopted_node_to_the_one_that_follows,
    discover::pages_are_complete_and_from_one_read,
    discover::nodes_are_found_by_cluster_and_id,
    discover::wrong_pages_are_refused,
    discover::every_read_is_newer_than_the_last,
    watch::a_watch_begins_with_a_snapshot,
    watch::every_change_is_seen,
    watch::a_watch_of_a_cluster_shows_no_other,
    watch::heartbeats_come_and_are_fresh,
    fence::a_lower_epoch_is_refused,
    fence::shards_have_their_own_epochs,
    fence::a_fence_waits_for_older_calls,
    update::role_and_labels_are_changed,
    update::a_change_of_another_slot_is_refused,
    update::a_node_is_adopted_once,
    update::a_foreign_node_is_adopted_and_removed,
    access::logs_are_read,
    access::commands_are_run,
    access::wrong_targets_are_refused,
    infrastructure::infrastructure_is_made_once_and_released_whole,
    infrastructure::the_same_infrastructure_at_once_is_made_once,
    infrastructure::half_made_infrastructure_is_released_whole,
    infrastructure::infrastructure_of_another_owner_is_left_alone,
    infrastructure::infrastructure_is_checked_without_making_it,
    infrastructure::wrong_infrastructure_is_named_and_nothing_is_made,
    infrastructure::infrastructure_calls_are_fenced,
    inventory::hosts_are_listed_in_order_whatever_the_page,
    inventory::hosts_are_selected_by_labels_and_by_cluster,
    inventory::a_claimed_host_says_whose_it_is_until_it_is_released,
    inventory::a_request_for_more_hosts_than_fit_claims_none,
    inventory::of_two_clusters_for_one_host_one_gets_it,
    inventory::a_host_that_was_taken_over_is_free_when_it_is_released,
    inventory::a_node_stays_on_its_host_when_its_request_is_repeated,
    inventory::wrong_fields_of_a_list_of_hosts_are_named,
    fuzz::random_requests_get_documented_answers,
    fuzz::random_bytes_get_an_answer,
    restart::nodes_and_fingerprints_outlive_a_restart,
}

/// Runs all checks, and names those that fail.
///
/// # Panics
///
/// If any check fails.
pub async fn conformance(subject: &Subject) {
    let mut failed = Vec::new();
    for (name, check) in CHECKS {
        // Every wait inside has its own timeout; this one is for those that were forgotten.
        let limit = subject.patience * 20;
        let outcome =
            tokio::time::timeout(limit, AssertUnwindSafe(check(subject)).catch_unwind()).await;
        match outcome {
            Ok(Ok(())) => println!("{name} ... ok"),
            Ok(Err(_)) => {
                println!("{name} ... FAILED");
                failed.push(*name);
            }
            Err(_) => {
                println!("{name} ... TIMED OUT");
                failed.push(*name);
            }
        }
    }
    assert!(
        failed.is_empty(),
        "{} of {} checks failed: {}",
        failed.len(),
        CHECKS.len(),
        failed.join(", ")
    );
}
