//! Known defects of the metal-stack provider for Cluster API, numbered as in our study of it; none of them exists here.

use std::time::Duration;

use drover_core::Reason;
use drover_emulators::{Fault, Settings as Common, metal::MetalSettings};
use drover_proto::platform::v1::ResourcePhase;
use serde_json::json;

use super::bench::{Bench, NAMED_MACHINE, PROJECT, until, user_data, whole};

#[tokio::test]
async fn defect_1_one_failed_create_ends_neither_the_retries_nor_the_removal() {
    let bench = Bench::new().await;
    let request = bench.request(1);
    bench
        .metal
        .control()
        .fail_next("machine.allocate", Fault::refuse(500, "", "for a moment"));
    assert!(bench.provision(&request).await.is_err() || bench.living("machine").is_empty());
    let answer = bench.provision_until_known(&request).await;
    assert_eq!(answer.nodes.len(), 1, "it was tried again");
    let removal = bench.removal(&answer.nodes[0]);
    bench.deprovision(&removal).await.unwrap();
    bench.assert_nothing_leaked("defect 1").await;
}

#[tokio::test]
async fn defect_2_what_never_got_an_id_can_be_removed() {
    let bench = Bench::new().await;
    let request = bench.request(1);
    bench
        .metal
        .control()
        .fail_next("machine.allocate", Fault::refuse(500, "", "never made"));
    let _ = bench.provision(&request).await;
    let nodes = bench.discover(&bench.cluster).await.unwrap();
    assert!(
        nodes.is_empty(),
        "the slot is absent, so there is nothing to remove"
    );
    bench
        .metal
        .control()
        .fail_next("firewall.allocate", Fault::refuse(500, "", "never made"));
    assert!(bench.ensure(&whole()).await.is_err());
    bench.release_whole().await;
    bench.assert_all_gone("defect 2").await;
}

#[tokio::test]
async fn defect_3_a_crash_between_the_call_and_its_answer_leaks_no_machine() {
    let mut bench = Bench::new().await;
    let request = bench.request(1);
    bench
        .metal
        .control()
        .fail_next("machine.allocate", Fault::LoseAnswer);
    let _ = bench.provision(&request).await;
    bench.crash().await;
    let answer = bench.provision_until_known(&request).await;
    assert_eq!(answer.nodes.len(), 1);
    assert_eq!(bench.living("machine").len(), 1, "it was found by its tags");
    assert_eq!(bench.metal.control().count("machine.allocate"), 1);
    bench.assert_nothing_leaked("defect 3").await;
}

#[tokio::test]
async fn defect_4_addresses_and_networks_are_allocated_once_and_freed() {
    for operation in ["network.allocate", "ip.allocate-specific"] {
        let mut bench = Bench::new().await;
        let mut spec = whole();
        spec.endpoint.as_mut().unwrap().host = "100.255.254.1".to_owned();
        bench
            .metal
            .control()
            .fail_next(operation, Fault::LoseAnswer);
        assert!(bench.ensure(&spec).await.is_err());
        bench.crash().await;
        let state = bench.ensure_whole(&spec).await;
        assert_eq!(
            state.outputs.unwrap().endpoint.unwrap().host,
            "100.255.254.1"
        );
        bench.assert_nothing_doubled(operation);
        bench.release_whole().await;
        bench.assert_all_gone(operation).await;
        assert_eq!(
            bench.metal.control().count("ip.free"),
            1,
            "the address is freed, too"
        );
    }
}

#[tokio::test]
async fn defect_5_nothing_is_ever_searched_for_without_the_owner() {
    let bench = Bench::new().await;
    // The only private network of the project belongs to another owner.
    bench.release_whole().await;
    bench.ensure_whole(&whole()).await;
    bench.release_whole().await;
    bench.release_whole().await;
    let requests = bench.metal.control().requests();
    for request in requests
        .iter()
        .filter(|request| request.operation.ends_with(".find"))
    {
        let labels = request
            .parameter("labels")
            .or(request.parameter("tags"))
            .unwrap_or_default();
        assert!(
            labels.contains(&bench.owner.to_string()) || request.operation.starts_with("machine."),
            "{request:?}"
        );
        assert!(
            request
                .parameter("projectid")
                .or(request.parameter("allocation_project"))
                == Some(PROJECT)
        );
    }
    let theirs = bench.resources().await;
    assert!(
        theirs
            .iter()
            .any(|resource| resource.id == bench.settings.private_network),
        "it is still there"
    );
}

#[tokio::test]
async fn defect_6_a_firewall_can_be_freed_whatever_is_gone_already() {
    let bench = Bench::new().await;
    let state = bench.ensure_whole(&whole()).await;
    // The address was deleted by hand; the other resources are found without it.
    let endpoint = state
        .resources
        .iter()
        .find(|r| r.kind == "endpoint")
        .unwrap();
    let path = format!("{}/v1/ip/free/{}", bench.metal.url(), endpoint.id);
    let answer = reqwest::Client::new()
        .delete(path)
        .bearer_auth("emulator-token")
        .send()
        .await
        .unwrap();
    assert!(answer.status().is_success());
    bench.release_whole().await;
    bench.assert_all_gone("defect 6").await;
}

#[tokio::test]
async fn defect_7_an_error_of_any_call_is_an_error_and_no_panic() {
    let bench = Bench::new().await;
    bench.ensure_whole(&whole()).await;
    let node = bench.make(1).await.remove(0);
    for fault in [
        Fault::refuse(500, "", ""),
        Fault::refuse(404, "", ""),
        Fault::LoseAnswer,
        Fault::CutAnswer,
        Fault::refuse(418, "", ""),
    ] {
        bench
            .metal
            .control()
            .fail_always(drover_emulators::ANY, Some(fault.clone()));
        assert!(bench.ensure(&whole()).await.is_err(), "{fault:?}");
        assert!(bench.release().await.is_err(), "{fault:?}");
        let removed = bench.deprovision(&bench.removal(&node)).await;
        // Only the API's own 404 means that it is gone; any other 404 does not.
        assert!(
            removed.is_err() || fault == Fault::refuse(404, "", ""),
            "{fault:?}"
        );
        bench.metal.control().clear_faults();
    }
    assert_eq!(
        (
            bench.living("firewall").len(),
            bench.living("machine").len()
        ),
        (1, 1)
    );
    bench.release_whole().await;
    bench.assert_nothing_leaked("defect 7").await;
}

#[tokio::test]
async fn defect_8_a_named_machine_of_somebody_else_is_not_adopted() {
    let bench = Bench::new().await;
    let theirs = bench.metal.add_foreign(PROJECT, 300);
    assert!(theirs.contains(&NAMED_MACHINE.to_owned()));
    let error = bench.refusal(&bench.on_host(NAMED_MACHINE)).await;
    assert_eq!(error.reason(), Reason::HostClaimed);
    let nodes = bench.discover(&bench.cluster).await.unwrap();
    assert!(nodes.is_empty());
    assert_eq!(bench.metal.control().count("machine.allocate"), 0);
    assert_eq!(bench.metal.control().count("machine.free"), 0);
}

#[tokio::test]
async fn defect_9_an_empty_or_partial_id_matches_no_machine() {
    let bench = Bench::new().await;
    let node = bench.make(1).await.remove(0);
    for id in ["", &node.node_id[..8], "metalstack://", "../machine"] {
        let mut removal = bench.removal(&node);
        removal.node_id = id.to_owned();
        let _ = bench.deprovision(&removal).await;
        let error = bench.refusal(&bench.on_host(id)).await;
        assert_eq!(error.reason(), Reason::Invalid, "{id:?}: {error}");
    }
    assert_eq!(bench.living("machine").len(), 1);
    assert_eq!(bench.metal.control().count("machine.free"), 0);
}

#[tokio::test]
async fn defect_10_user_data_is_in_no_error_and_no_answer() {
    let bench = Bench::new().await;
    let mut request = bench.request(1);
    request.bootstrap = Some(user_data("token: hunter2-hunter2"));
    let encoded = "aHVudGVyMi1odW50ZXIy";
    for fault in [
        Fault::refuse(500, "", "no"),
        Fault::refuse(400, "", "no"),
        Fault::CutAnswer,
        Fault::LoseAnswer,
    ] {
        bench.metal.control().fail_next("machine.allocate", fault);
        let seen = format!("{:?}", bench.provision(&request).await);
        assert!(
            !seen.contains("hunter2") && !seen.contains(encoded),
            "{seen}"
        );
    }
    bench.provision_until_known(&request).await;
    let seen = format!(
        "{:?} {:?}",
        bench.discover("").await,
        bench.metal.control().requests()
    );
    assert!(!seen.contains("hunter2") && !seen.contains(encoded) && !seen.contains("dG9rZW46"));
}

#[tokio::test]
async fn defect_11_everything_is_labelled_with_the_same_identity() {
    let bench = Bench::with(MetalSettings {
        common: Common {
            pending_delay: Duration::from_millis(50),
            ..Common::default()
        },
        ..MetalSettings::default()
    })
    .await;
    let state = bench.ensure_whole(&whole()).await;
    assert_eq!(state.phase(), ResourcePhase::Ready);
    let mut request = bench.request_with("control-plane", 1, &json!({}));
    request.infrastructure = state.outputs.into_iter().collect();
    bench.made_by(&request).await;
    let made = bench.made();
    let named: Vec<_> = made.iter().filter(|made| !made.tags.is_empty()).collect();
    let kinds: Vec<&str> = named.iter().map(|made| made.kind.as_str()).collect();
    assert_eq!(kinds, ["network", "ip", "firewall", "machine"]);
    for made in named {
        assert_eq!(made.tags["drover.dev/cluster"], bench.cluster, "{made:?}");
        assert_eq!(
            made.tags["drover.dev/owner"],
            bench.owner.to_string(),
            "{made:?}"
        );
    }
    until("it is gone", || async {
        bench.assert_no_machine_leaked("defect 11").await;
        Some(())
    })
    .await;
    bench.release_whole().await;
    bench.assert_all_gone("defect 11").await;
}
