//! The conformance suite of `drover.kubernetes.v1`: what the six services promise, checked from outside, through gRPC
//! only. The same suite runs over every backend; a subject says what its backend lacks.
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
mod configurations;
mod fixture;
mod ingresses;
mod lists;
mod network_policies;
mod nodes;
mod pods;
mod refusals;
mod services;
mod waits;

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use drover_client::Channel;
use drover_proto::kubernetes::v1::IngressBackend;
use futures::{FutureExt, StreamExt, future::LocalBoxFuture, stream};

/// What a backend may lack. Checks that need it are left out there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// Pods become ready.
    Ready,
    /// Containers really run: commands, files, logs, and ends of containers.
    Containers,
    /// HTTPRoutes of the Gateway API.
    HttpRoute,
    /// VirtualServices of Gloo, and the upstreams that its discovery makes.
    VirtualService,
    /// Nodes that may be cordoned and drained without harm.
    Nodes,
}

/// The server under test.
#[derive(Clone)]
pub struct Subject {
    /// Opens a channel to it.
    pub connect: Arc<dyn Fn() -> Channel + Send + Sync>,
    /// A namespace that it serves, with the policy `baseline`, and without anything else in it.
    pub namespace: String,
    /// An image with a shell and the usual small programs.
    pub image: String,
    /// What the backend lacks.
    pub lacks: BTreeSet<Need>,
    /// Labels of the nodes that checks look at, and may cordon and drain unless the backend lacks that. Default: of all.
    pub nodes: BTreeMap<String, String>,
    /// Timeout for everything. Default 60 s.
    pub patience: Duration,
    names: Arc<AtomicU32>,
}

impl Subject {
    /// A server whose backend lacks nothing.
    pub fn new(
        namespace: impl Into<String>,
        connect: impl Fn() -> Channel + Send + Sync + 'static,
    ) -> Self {
        Self {
            connect: Arc::new(connect),
            namespace: namespace.into(),
            image: "busybox:1.36".to_owned(),
            lacks: BTreeSet::new(),
            nodes: BTreeMap::new(),
            patience: Duration::from_secs(60),
            names: Arc::default(),
        }
    }

    /// A name that nothing else has.
    fn name(&self, what: &str) -> String {
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        // Of one length, so that names are in the order of their making.
        format!("{what}-{number:05}")
    }

    /// The kinds of ingresses that the backend has.
    fn backends(&self) -> Vec<IngressBackend> {
        let mut all = vec![IngressBackend::Ingress];
        let others = [
            (Need::HttpRoute, IngressBackend::HttpRoute),
            (Need::VirtualService, IngressBackend::VirtualService),
        ];
        let has = |(need, _): &(Need, IngressBackend)| !self.lacks.contains(need);
        all.extend(others.into_iter().filter(has).map(|(_, backend)| backend));
        all
    }
}

type Check = for<'a> fn(&'a Subject) -> LocalBoxFuture<'a, ()>;

macro_rules! checks {
    ($($module:ident::$name:ident $([$($need:ident)*])?,)*) => {
        /// All checks with their names and what they need.
        const CHECKS: &[(&str, &[Need], Check)] = &[$((
            stringify!($name),
            &[$($(Need::$need),*)?],
            |subject| Box::pin($module::$name(subject)),
        )),*];
    };
}

checks! {
    refusals::wrong_pods_are_refused_with_their_field,
    refusals::wrong_services_are_refused_with_their_field,
    refusals::wrong_network_policies_are_refused_with_their_field,
    refusals::wrong_configurations_are_refused_with_their_field,
    refusals::wrong_ingresses_are_refused_with_their_field,
    refusals::wrong_paths_are_refused_with_their_field,
    refusals::wrong_paths_to_remove_are_refused_with_their_field,
    refusals::wrong_waits_are_refused_with_their_field,
    refusals::wrong_requests_for_access_are_refused_with_their_field,
    refusals::wrong_names_are_refused_with_their_field,
    refusals::wrong_lists_are_refused_with_their_field,
    refusals::all_violations_are_named_at_once,
    refusals::unknown_objects_are_not_found,
    refusals::what_is_absent_is_deleted_without_an_error,
    refusals::names_that_are_taken_are_refused,
    refusals::pods_beyond_the_policy_are_refused_with_their_field,
    refusals::values_of_variables_and_scripts_are_in_no_error,
    lists::pages_are_complete_and_in_order,
    lists::a_page_token_belongs_to_its_query,
    lists::a_damaged_page_token_is_refused,
    lists::selectors_have_the_whole_language,
    lists::a_list_of_everything_shows_every_namespace_that_is_served,
    nodes::nodes_are_listed_and_found,
    nodes::a_node_has_what_schedulers_need,
    nodes::a_cordoned_node_is_unschedulable_until_it_is_uncordoned [Nodes],
    nodes::nodes_that_are_ready_are_waited_for_in_one_message,
    nodes::a_wait_for_a_node_that_does_not_exist_says_so_at_once,
    nodes::a_drain_without_force_evicts_nothing [Nodes Ready],
    nodes::a_drained_node_is_cordoned_and_empty [Nodes Ready],
    pods::a_pod_is_answered_as_it_was_created,
    pods::a_pod_keeps_everything_that_was_asked_for,
    pods::defaults_are_those_of_kubernetes,
    pods::fields_of_the_server_are_ignored_in_a_request,
    pods::an_empty_namespace_is_the_default_one,
    pods::a_pod_gets_an_address_and_a_node [Ready],
    pods::pods_are_listed_by_node [Ready],
    pods::a_deleted_pod_is_gone_when_it_was_waited_for,
    pods::a_pod_with_another_uid_is_not_deleted,
    pods::a_deletion_shows_its_time [Ready],
    waits::a_ready_pod_is_waited_for [Ready],
    waits::the_first_message_comes_at_once_and_says_what_is_missing,
    waits::a_pod_that_does_not_exist_yet_is_waited_for [Ready],
    waits::nothing_matches_is_an_error_only_if_asked_for,
    waits::a_pod_that_failed_is_never_ready_and_the_wait_ends [Containers],
    waits::a_pod_that_failed_is_what_was_waited_for [Containers],
    waits::a_pod_that_succeeded_is_never_failed_and_the_wait_ends [Containers],
    waits::any_of_several_conditions_is_enough [Containers],
    waits::an_address_is_waited_for [Ready],
    waits::gone_pods_are_waited_for,
    waits::pods_that_come_later_do_not_hold_up_a_wait_for_gone [Ready],
    waits::a_wait_for_gone_goes_on_with_uids_past_a_pod_made_anew_under_the_name [Ready],
    waits::enough_pods_must_match [Ready],
    waits::a_wait_can_be_cancelled_and_leaves_the_server_well,
    waits::a_wait_ends_with_its_deadline,
    access::a_command_answers_both_outputs_and_its_exit_code [Containers],
    access::a_command_that_does_not_exist_is_an_exit_code [Containers],
    access::standard_input_reaches_the_command_whole [Containers],
    access::a_command_without_input_sees_its_end [Containers],
    access::binary_output_survives [Containers],
    access::text_is_answered_as_text [Containers],
    access::a_script_gets_its_arguments [Containers],
    access::a_script_is_read_from_standard_input [Containers],
    access::the_failure_of_a_script_is_its_exit_code [Containers],
    access::messages_out_of_order_are_refused [Containers],
    access::a_file_is_read_whole_and_binary [Containers],
    access::an_empty_file_is_one_message [Containers],
    access::a_file_that_does_not_exist_is_named [Containers],
    access::a_directory_is_no_file [Containers],
    access::the_container_is_chosen_by_name_and_by_default [Containers],
    access::a_container_that_does_not_exist_is_named [Containers],
    access::a_container_that_ended_does_not_run_commands [Containers],
    access::logs_are_never_empty_where_something_was_written [Containers],
    access::only_the_last_lines_of_a_log [Containers],
    access::a_log_can_be_followed_until_the_container_ends [Containers],
    access::a_log_goes_on_in_the_container_that_is_started_again [Containers],
    access::a_container_that_never_restarted_has_no_previous_log [Containers],
    access::the_log_before_a_restart_is_kept [Containers],
    access::variables_have_their_values_from_everywhere [Containers],
    access::a_mounted_configuration_is_a_file [Containers],
    services::a_service_gets_an_address,
    services::target_ports_default_to_the_port,
    services::a_node_port_is_chosen_and_answered,
    services::a_headless_service_has_no_address,
    services::an_external_name_is_answered,
    services::several_ports_and_protocols_are_kept,
    services::an_allocated_node_port_is_refused,
    services::services_are_deleted,
    network_policies::peer_and_port_stay_in_one_rule,
    network_policies::ranges_keep_their_exceptions,
    network_policies::a_policy_without_rules_denies_both_directions,
    network_policies::one_empty_rule_allows_all_outbound_traffic,
    network_policies::selectors_of_peers_are_kept,
    network_policies::policies_are_deleted_by_their_labels_with_their_names,
    configurations::text_and_bytes_are_kept,
    configurations::an_update_replaces_everything,
    configurations::an_update_of_an_old_revision_is_refused,
    configurations::an_update_without_a_revision_always_wins,
    configurations::an_immutable_configuration_is_never_changed,
    configurations::an_update_without_a_change_keeps_the_revision,
    configurations::one_mebibyte_is_kept,
    configurations::an_unknown_configuration_cannot_be_updated,
    ingresses::an_ingress_is_answered_as_it_was_created,
    ingresses::paths_are_added_and_replaced_by_path_and_type,
    ingresses::a_path_with_a_name_is_moved,
    ingresses::a_path_without_a_name_has_that_of_its_service,
    ingresses::paths_are_removed_by_match_name_and_service,
    ingresses::the_last_path_can_be_removed_and_the_host_stays,
    ingresses::removing_what_is_absent_is_no_error,
    ingresses::a_new_host_is_added,
    ingresses::a_host_that_another_routes_is_refused_and_named,
    ingresses::unknown_hosts_and_ingresses_are_told_apart,
    ingresses::a_missing_service_is_an_error_or_waited_for,
    ingresses::a_refused_change_changes_nothing,
    ingresses::no_change_of_many_writers_is_lost,
    ingresses::what_a_backend_does_not_know_is_refused,
    ingresses::a_host_takes_a_thousand_paths_and_no_more,
}

/// Checks with containers that run side by side: each of them mostly waits for its own pods.
const AT_ONCE: usize = 6;

/// Runs a check. The error is its name.
async fn passes(subject: &Subject, name: &'static str, check: Check) -> Result<(), &'static str> {
    // Every wait inside has its own timeout; this one is for those that were forgotten.
    let limit = subject.patience * 5;
    let outcome = AssertUnwindSafe(check(subject)).catch_unwind();
    let (word, outcome) = match tokio::time::timeout(limit, outcome).await {
        Ok(Ok(())) => ("ok", Ok(())),
        Ok(Err(_)) => ("FAILED", Err(name)),
        Err(_) => ("TIMED OUT", Err(name)),
    };
    println!("{name} ... {word}");
    outcome
}

/// Runs all checks that the backend can do, and names those that fail. Answers how many were run.
///
/// # Panics
///
/// If any check fails.
pub async fn conformance(subject: &Subject) -> usize {
    let mut failed = Vec::new();
    let mut run = 0;
    let mut beside = Vec::new();
    for (name, needs, check) in CHECKS {
        if needs.iter().any(|need| subject.lacks.contains(need)) {
            println!("{name} ... left out");
            continue;
        }
        run += 1;
        if needs.contains(&Need::Containers) {
            beside.push(passes(subject, name, *check));
        } else {
            failed.extend(passes(subject, name, *check).await.err());
        }
    }
    let mut beside = stream::iter(beside).buffer_unordered(AT_ONCE);
    while let Some(outcome) = beside.next().await {
        failed.extend(outcome.err());
    }
    assert!(
        failed.is_empty(),
        "{} of {run} checks failed: {}",
        failed.len(),
        failed.join(", ")
    );
    run + refusals::ROWS
}
