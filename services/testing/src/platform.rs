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
mod addons;
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
    /// Whether valid addons become ready within `patience`. Default true. If not, neither endpoints nor numbers of targets
    /// are checked.
    pub addons_become_ready: bool,
    /// The first of 10 ports on which addons can listen and no other does. Default 30020, of those node ports that Kubernetes
    /// gives to nobody who does not ask for one
    /// (<https://kubernetes.io/docs/concepts/services-networking/service/#avoid-nodeport-collisions>).
    pub addon_port: u32,
    /// Name of an addon in the catalogue. `None` (default) to make no template addons.
    pub addon_template: Option<String>,
    /// Creates an addon that belongs to no cluster record, and returns its cluster id and name. `None` (default) if that
    /// is not possible.
    pub make_foreign_addon: Option<Hook<(String, String)>>,
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
            addons_become_ready: true,
            addon_port: 30_020,
            addon_template: None,
            make_foreign_addon: None,
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
    storage::storage_grows_under_its_node,
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
    inventory::pages_of_hosts_are_from_one_read,
    inventory::hosts_are_selected_by_labels_and_by_cluster,
    inventory::a_claimed_host_says_whose_it_is_until_it_is_released,
    inventory::a_request_for_more_hosts_than_fit_claims_none,
    inventory::of_two_clusters_for_one_host_one_gets_it,
    inventory::a_host_that_was_taken_over_is_free_when_it_is_released,
    inventory::a_node_stays_on_its_host_when_its_request_is_repeated,
    inventory::labels_of_a_group_are_on_its_hosts_and_follow_it,
    inventory::a_host_that_lacks_a_network_of_its_group_is_passed_over,
    inventory::labels_of_hosts_are_refused_where_there_are_none,
    inventory::wrong_fields_of_a_list_of_hosts_are_named,
    addons::addons_are_offered_as_kinds_or_not_at_all,
    addons::an_addon_of_every_kind_is_made_and_removed_whole,
    addons::an_addon_that_is_asked_for_again_is_the_same,
    addons::the_same_addon_at_once_is_made_once,
    addons::a_half_made_addon_is_removed_whole,
    addons::an_addon_that_is_absent_is_gone,
    addons::a_removed_addon_can_be_made_again,
    addons::an_addon_that_is_wanted_while_it_is_removed_is_there_in_the_end,
    addons::addons_of_one_cluster_stand_side_by_side,
    addons::addons_whose_names_are_alike_stay_apart,
    addons::the_same_name_in_two_clusters_is_two_addons,
    addons::another_kind_under_the_name_is_refused,
    addons::an_addon_of_another_owner_is_left_alone,
    addons::a_foreign_addon_is_listed_and_left_alone,
    addons::an_addon_is_checked_without_making_it,
    addons::an_addon_is_no_node,
    addons::a_secret_is_in_no_answer_and_its_change_is_taken,
    addons::addons_outlive_a_restart,
    addons::addon_calls_are_fenced,
    addons::addon_calls_for_another_platform_are_refused,
    addons::a_balancer_without_targets_stands_ready,
    addons::nodes_of_two_platforms_with_one_id_are_both_served,
    addons::a_balancer_serves_no_target_that_is_standby_or_drains,
    addons::a_jump_host_lists_every_target,
    addons::a_target_without_an_address_on_the_interface_is_left_out_and_named,
    addons::a_named_port_is_the_one_of_each_target,
    addons::two_thousand_targets_are_served_and_no_more_are_taken,
    addons::a_port_that_is_asked_for_is_where_it_listens,
    addons::a_port_that_is_not_asked_for_is_chosen_and_kept,
    addons::a_range_of_ports_is_listened_on_whole,
    addons::a_port_of_another_addon_is_refused_until_it_is_free,
    addons::a_changed_spec_is_brought_in,
    addons::an_addon_that_is_not_done_says_when_to_ask_again,
    addons::addons_are_listed_in_one_order_whatever_the_page,
    addons::a_list_of_one_cluster_shows_no_addon_of_another,
    addons::wrong_pages_of_addons_are_refused,
    addons::an_addon_is_in_the_list_until_it_is_gone,
    addons::each_wrong_field_of_an_addon_is_named,
    addons::each_wrong_port_of_a_balancer_is_named,
    addons::each_wrong_field_of_a_jump_host_is_named,
    addons::each_wrong_field_of_an_oidc_provider_is_named,
    addons::unknown_properties_of_an_addon_are_named,
    addons::an_unknown_template_of_an_addon_is_not_found,
    addons::a_kind_of_addon_that_is_not_offered_is_refused,
    addons::each_wrong_field_of_a_removal_of_an_addon_is_named,
    addons::random_addons_get_documented_answers,
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
