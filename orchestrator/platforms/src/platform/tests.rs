//! Visibility of a platform, and the effects of call results.

use drover_core::Urgency;

use super::calls::{BREAKER_FAILURES, BREAKER_FIRST, CAPACITY_FIRST};
use super::*;

fn platform() -> Platform {
    let registration = Registration {
        uid: "u".into(),
        ..Registration::default()
    };
    let platform = Platform::new("p".into(), registration, 0);
    connect(&platform);
    platform
}

fn connect(platform: &Platform) {
    connect_with(platform, wire::Limits::default());
}

fn connect_with(platform: &Platform, limits: wire::Limits) {
    let routes = tonic::service::Routes::default();
    let client = PlatformClient::new(drover_client::in_process(routes));
    let handshake = wire::Platform {
        uid: "u".into(),
        limits: Some(limits),
        ..wire::Platform::default()
    };
    platform.connected(client, handshake);
}

#[tokio::test(start_paused = true)]
async fn an_urgent_call_does_not_wait_behind_those_in_bulk() {
    let platform = Arc::new(platform());
    let limits = wire::Limits {
        max_concurrent_calls: Some(8),
        ..wire::Limits::default()
    };
    connect_with(&platform, limits);
    let wait = |urgency| {
        let platform = platform.clone();
        tokio::spawn(async move { platform.permit(urgency, || 1).await })
    };
    let mut in_flight = Vec::new();
    for _ in 0..7 {
        in_flight.push(wait(Urgency::Bulk).await.unwrap().unwrap());
    }
    let first = wait(Urgency::Urgent).await.unwrap().unwrap();
    let waiting: Vec<_> = (0..100).map(|_| wait(Urgency::Bulk)).collect();
    tokio::task::yield_now().await;
    let next = wait(Urgency::Urgent);
    tokio::task::yield_now().await;
    drop(first);
    let soon = tokio::time::timeout(Duration::from_secs(1), next).await;
    assert!(soon.expect("it has its turn").unwrap().is_some());
    assert!(waiting.iter().all(|bulk| !bulk.is_finished()));
    // While none of those that are reserved is free, it takes its turn among the others.
    let _reserved = wait(Urgency::Urgent).await.unwrap().unwrap();
    drop((waiting, in_flight));
    assert!(wait(Urgency::Urgent).await.unwrap().is_some());
}

#[test]
fn a_platform_that_comes_again_and_again_with_other_nodes_fills_no_memory() {
    let platform = platform();
    let kept = || -> u32 { platform.foreign().values().flat_map(BTreeMap::values).sum() };
    for round in 0..5 {
        let mut shown = 0_usize;
        while platform.refuse_flood().is_ok() {
            platform.add_foreign("theirs", &format!("{round}-{shown}"), String::new());
            shown += 1;
            assert!(shown <= 2 * MAX_ITEMS);
        }
        assert!(kept() as usize <= 2 * MAX_ITEMS + 2, "{round}: {}", kept());
        // A platform that shows few nodes again is accepted again.
        connect(&platform);
        platform.refuse_flood().unwrap();
    }
}

#[test]
fn a_platform_that_reads_its_backend_less_often_from_now_on_is_believed_for_longer() {
    let platform = platform();
    platform.snapshot_complete(1_000, time(1));
    let interval = prost_types::Duration {
        seconds: 90,
        nanos: 0,
    };
    let refreshed = platform.refreshed(wire::Platform {
        uid: "u".into(),
        limits: Some(wire::Limits {
            min_poll_interval: Some(interval),
            ..wire::Limits::default()
        }),
        ..wire::Platform::default()
    });
    refreshed.unwrap();
    assert!(platform.is_visible(1_000 + 270_000) && !platform.is_visible(1_000 + 270_001));
}

fn time(seconds: i64) -> Option<prost_types::Timestamp> {
    Some(prost_types::Timestamp { seconds, nanos: 0 })
}

#[test]
fn what_is_seen_is_believed_for_a_while_and_only_if_the_backend_was_read_since() {
    let platform = platform();
    assert!(!platform.is_visible(1_000), "nothing was shown yet");
    platform.snapshot_complete(1_000, time(1));
    assert!(
        platform.is_visible(1_000 + 30_000) && !platform.is_visible(1_000 + 30_001),
        "three poll intervals"
    );
    platform.heartbeat(20_000, time(1));
    assert!(
        !platform.is_visible(40_000),
        "a live stream does not make old data look fresh"
    );
    platform.heartbeat(20_000, time(2));
    assert!(platform.is_visible(40_000));
    assert_eq!(platform.view(40_000).visible_since, 1_000);
    platform.doubt();
    assert!(!platform.is_visible(40_000));
    platform.heartbeat(41_000, time(3));
    assert_eq!(platform.view(41_000).visible_since, 41_000, "seen anew");
    platform.lost(&Error::unavailable("gone"), "gone");
    assert!(!platform.is_visible(41_000));
    platform.heartbeat(42_000, time(4));
    assert!(
        !platform.is_visible(42_000),
        "without a snapshot nothing is known"
    );
}

#[test]
fn calls_are_suspended_after_failures_in_a_row_for_longer_each_time() {
    let platform = platform();
    platform.snapshot_complete(1_000, time(1));
    let failure = Error::unavailable("down");
    for _ in 1..BREAKER_FAILURES {
        platform.record_call_result(Some(&failure), 1_000);
        assert!(platform.view(1_000).callable);
    }
    platform.record_call_result(Some(&failure), 1_000);
    assert!(!platform.view(1_000).callable);
    assert!(!platform.end_suspension(1_000 + BREAKER_FIRST - 1));
    assert!(platform.end_suspension(1_000 + BREAKER_FIRST));
    assert!(platform.view(1_000 + BREAKER_FIRST).callable, "one may try");
    platform.record_call_result(Some(&failure), 3_000);
    assert!(
        !platform.end_suspension(3_000 + BREAKER_FIRST),
        "twice as long"
    );
    assert!(platform.end_suspension(3_000 + 2 * BREAKER_FIRST));
    // A rejection is a response, so the platform is available.
    platform.record_call_result(Some(&Error::invalid("a", "b")), 9_000);
    platform.record_call_result(Some(&failure), 9_000);
    assert!(platform.view(9_000).callable);
}

#[test]
fn capacity_is_asked_for_again_later_each_time_and_by_class() {
    let platform = platform();
    platform.snapshot_complete(1_000, time(1));
    let (small, large): (Sym, Sym) = ("small".into(), "large".into());
    assert_eq!(
        platform.out_of(&small, "", 1_000, None),
        1_000 + CAPACITY_FIRST
    );
    assert_eq!(
        platform.out_of(&small, "", 2_000, None),
        1_000 + CAPACITY_FIRST,
        "many say the same at once"
    );
    let without = |now| {
        platform
            .view(now)
            .no_capacity
            .into_iter()
            .map(|short| short.pool)
            .collect::<Vec<_>>()
    };
    assert!(without(2_000) == [&*small].map(Sym::from));
    assert_eq!(
        platform.out_of(&small, "", 10_000, None),
        10_000 + 2 * CAPACITY_FIRST
    );
    assert_eq!(
        platform.out_of(&large, "", 10_000, Some(Duration::from_secs(1))),
        11_000,
        "its own word counts"
    );
    assert!(without(11_000) == [&*small].map(Sym::from));
    assert!(platform.has_again(&small, []) && !platform.has_again(&small, []));
    assert_eq!(without(2_000), [large]);
}

#[test]
fn many_that_vanish_at_once_hide_the_platform_until_the_right_number_is_confirmed() {
    let platform = platform();
    platform.snapshot_complete(1_000, time(1));
    platform.count(20, 0, 1_000);
    assert!(!platform.vanished(4, 1_000), "a fifth may vanish");
    assert!(
        !platform.vanished(4, 1_000 + LOSS_WINDOW + 1),
        "not counted together with what was long ago"
    );
    assert!(platform.vanished(1, 1_000 + LOSS_WINDOW + 2));
    assert_eq!(platform.vanished_count(), 5);
    platform.snapshot_complete(70_000, time(2));
    assert!(!platform.is_visible(70_000));
    assert_eq!(
        platform.confirm_loss(4, 70_000).unwrap_err().reason(),
        Reason::LossChanged
    );
    platform.confirm_loss(5, 70_000).unwrap();
    assert!(platform.is_visible(70_000));
}

#[test]
fn a_platform_is_gone_for_good_only_after_it_was_looked_for_for_longer_than_it_may_take_to_show_itself()
 {
    let platform = platform();
    let (unseen, wait) = platform.unseen(1_000);
    assert!(unseen == 1_000 && wait > 15_000, "{unseen} {wait}");
    platform.snapshot_complete(5_000, time(1));
    assert_eq!(platform.unseen(6_000).0, 1_000);
    platform.heartbeat(7_000, time(1));
    assert_eq!(
        platform.unseen(8_000).0,
        3_000,
        "its backend was not read since"
    );
    platform.heartbeat(9_000, time(2));
    platform.doubt();
    platform.lost(&Error::unavailable("away"), "away");
    assert_eq!(platform.unseen(9_000 + wait).0, wait);
}

#[test]
fn nobody_is_judged_by_what_was_seen_while_too_many_were_in_trouble() {
    let platform = platform();
    platform.count(100, 20, 1_000);
    assert_eq!(
        platform.view(2_000).calm_since,
        0,
        "a fifth is not too many"
    );
    platform.count(0, 1, 3_000);
    platform.count(0, -1, 4_000);
    assert_eq!(platform.view(5_000).calm_since, 4_000);
}

#[test]
fn a_list_is_as_old_as_what_showed_the_same_and_one_from_before_that_says_nothing() {
    let platform = platform();
    let as_of = |seconds, began| platform.as_of(time(seconds).as_ref(), began);
    assert_eq!(as_of(1, 500), Some(500), "nothing was shown yet");
    platform.snapshot_complete(1_000, time(10));
    assert_eq!(as_of(11, 5_000), Some(5_000));
    assert_eq!(as_of(10, 5_000), Some(1_000));
    assert_eq!(as_of(10, 900), Some(900));
    assert_eq!(as_of(9, 5_000), None);
    let silent = platform.as_of(None, 5_000);
    assert_eq!(silent, Some(5_000), "who does not say is believed");
}

#[test]
fn a_start_of_a_server_that_has_fenced_earlier_processes_off_has_so_until_its_end() {
    let connected = |platform: &Platform, uid: &str, instance: &str| {
        let handshake = wire::Platform {
            uid: uid.to_owned(),
            instance_id: instance.to_owned(),
            ..wire::Platform::default()
        };
        let routes = tonic::service::Routes::default();
        let client = PlatformClient::new(drover_client::in_process(routes));
        platform.connected(client, handshake);
        platform.is_fenced()
    };
    let platform = platform();
    assert!(!connected(&platform, "u", "first"), "nobody has asked yet");
    platform.fenced();
    assert!(connected(&platform, "u", "first"));
    platform.lost(&Error::unavailable("away"), "away");
    assert!(
        connected(&platform, "u", "first"),
        "only the connection ended"
    );
    assert!(
        !connected(&platform, "u", "second"),
        "it knows nothing of it"
    );
    platform.fenced();
    assert!(!connected(&platform, "other", "second"), "another backend");
    assert!(
        !connected(&platform, "u", ""),
        "who does not say is not believed"
    );
    platform.fenced();
    assert!(
        !connected(&platform, "u", ""),
        "who does not say is not believed"
    );
}

#[test]
fn a_platform_is_local_if_its_endpoint_is_loopback() {
    for (endpoint, local) in [
        ("http://127.0.0.1:7402", true),
        ("https://localhost:7402", true),
        ("http://[::1]:7402", true),
        ("http://[::ffff:127.0.0.1]:7402", true),
        ("https://platform-local:7402", false),
        ("http://10.0.0.1:7402", false),
        ("http://localhost.example.com:7402", false),
        ("no endpoint", false),
    ] {
        assert_eq!(is_local(endpoint), local, "{endpoint}");
    }
}
