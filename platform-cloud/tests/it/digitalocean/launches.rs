//! Launch requests and their results.

use std::{collections::BTreeMap, time::Duration};

use drover_emulators::{ANY, Settings as Common, digitalocean::DigitalOceanSettings};
use drover_platform_cloud::cloud::AddressSource;
use drover_proto::platform::v1::{NodePhase, WatchNodesRequest};
use serde_json::json;
use tokio::time::Instant;

use super::bench::{Bench, placed_in, until, user_data};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_droplets_are_made_by_one_call_and_each_knows_its_slot() {
    let bench = Bench::new().await;
    let request = bench.request(23);
    let nodes = bench.made_by(&request).await;
    let control = bench.cloud.control();
    assert_eq!(control.count("droplets.create"), 3);
    let names = bench.cloud.names();
    for (node, slot) in nodes.iter().zip(&request.slots) {
        assert_eq!((&node.id, &node.name), (&slot.id, &slot.name));
        assert_eq!(
            names[&node.node_id], slot.id,
            "the droplet is called like its slot"
        );
        assert_eq!(node.provider_id, format!("digitalocean://{}", node.node_id));
    }
    let listed = bench.discover(&bench.cluster).await.unwrap();
    assert_eq!(listed.len(), 23);
    for node in listed {
        let made = nodes
            .iter()
            .find(|made| made.node_id == node.node_id)
            .unwrap();
        assert_eq!((&node.slot, &node.labels), (&made.slot, &made.labels));
    }
    bench.assert_nothing_leaked("23").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_properties_of_kadende_are_understood() {
    let bench = Bench::new().await;
    let properties = json!({"instanceType": "standard", "memory": 1, "sshKey": "mwas"});
    let nodes = bench.made_by(&bench.request_with(3, &properties)).await;
    assert!(nodes.iter().all(|node| node.node_class == "s-1vcpu-1gb"));
    let request = &bench.cloud.control().requests_of("droplets.create")[0];
    let asked =
        ["size", "image", "ssh_keys", "region"].map(|name| request.parameter(name).unwrap());
    assert_eq!(asked, ["s-1vcpu-1gb", "debian-13-x64", "[289794]", "fra1"]);

    let properties = json!({"key": "mwas", "instanceType": "small", "image": "mine"});
    let bench = Bench::set(DigitalOceanSettings::default(), |settings| {
        let alias = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        settings.common.images = alias("mine", "63663980");
        settings.common.node_classes = alias("small", "s-2vcpu-2gb");
    })
    .await;
    bench.made_by(&bench.request_with(1, &properties)).await;
    let request = &bench.cloud.control().requests_of("droplets.create")[0];
    let asked = ["size", "image", "ssh_keys"].map(|name| request.parameter(name).unwrap());
    assert_eq!(asked, ["s-2vcpu-2gb", "63663980", "[289794]"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_are_found_by_slug_id_distribution_and_name() {
    let bench = Bench::new().await;
    for (image, expected) in [
        (json!("ubuntu-22-04-x64"), "ubuntu-22-04-x64"),
        (json!(63_663_980), "63663980"),
        (json!("Ubuntu"), "ubuntu-24-04-x64"),
        (json!("golden"), "63663980"),
    ] {
        bench.cloud.control().clear_requests();
        bench
            .made_by(&bench.request_with(1, &json!({"image": image})))
            .await;
        let request = &bench.cloud.control().requests_of("droplets.create")[0];
        assert_eq!(request.parameter("image"), Some(expected));
        // It is not looked up again.
        let looked_up = bench.cloud.control().count("images.get");
        bench
            .made_by(&bench.request_with(1, &json!({"image": image})))
            .await;
        assert_eq!(bench.cloud.control().count("images.get"), looked_up);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_spread_over_regions_and_go_on_where_there_is_room() {
    let bench = Bench::set(
        DigitalOceanSettings {
            common: Common {
                capacity: [("ams3".to_owned(), 2)].into(),
                ..Common::default()
            },
            ..DigitalOceanSettings::default()
        },
        |settings| settings.regions = ["fra1", "ams3", "lon1"].map(str::to_owned).to_vec(),
    )
    .await;
    let domains: Vec<_> = bench
        .platform
        .failure_domains
        .iter()
        .map(|domain| &domain.name)
        .collect();
    assert_eq!(domains, ["fra1", "ams3", "lon1"]);
    let count = |nodes: &[drover_proto::platform::v1::Node], region: &str| {
        nodes
            .iter()
            .filter(|node| node.failure_domain == region)
            .count()
    };
    let nodes = bench.make(6).await;
    assert_eq!(
        ["fra1", "ams3", "lon1"].map(|region| count(&nodes, region)),
        [2, 2, 2]
    );
    let nodes = bench.make(6).await;
    assert_eq!(
        ["fra1", "ams3", "lon1"].map(|region| count(&nodes, region)),
        [3, 0, 3]
    );
    let mut request = bench.request(2);
    placed_in(&mut request, &["lon1"]);
    let nodes = bench.made_by(&request).await;
    assert_eq!(count(&nodes, "lon1"), 2);
    assert!(
        bench.platform.uid.ends_with(":ams3,fra1,lon1"),
        "{}",
        bench.platform.uid
    );
    bench.assert_nothing_leaked("regions").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_address_is_that_which_the_settings_name() {
    for (address, prefix) in [
        (AddressSource::Private, "grpc://10."),
        (AddressSource::Public, "grpc://198."),
        (AddressSource::Ipv6, "grpc://[2001:db8::"),
    ] {
        let bench = Bench::set(DigitalOceanSettings::default(), |settings| {
            settings.common.agent.address = address;
            settings.common.agent.port = Some(7100);
        })
        .await;
        let made = bench
            .made_by(&bench.request_with(1, &json!({"ipv6": true})))
            .await;
        let node = until("it has its addresses", || async {
            let node = bench
                .until_phase(&made[0].node_id, NodePhase::Running)
                .await;
            node.agent_address.is_some().then_some(node)
        })
        .await;
        let agent = node.agent_address.unwrap();
        assert!(
            agent.starts_with(prefix) && agent.ends_with(":7100"),
            "{agent}"
        );
        assert_eq!(
            node.addresses.len(),
            4,
            "private, public, IPv6 and the host's name"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_happens_behind_our_back_is_seen() {
    let bench = Bench::new().await;
    let nodes = bench.make(4).await;
    let ids: Vec<&str> = nodes.iter().map(|node| node.node_id.as_str()).collect();
    assert!(bench.cloud.terminate_behind(ids[0]));
    assert!(bench.cloud.stop_by_hand(ids[1]));
    bench.until_gone(ids[0]).await;
    let stopped = bench.until_phase(ids[1], NodePhase::Stopped).await;
    assert_eq!(stopped.message, "the droplet is powered off");

    // Removing the cluster tag by hand makes it foreign, and it is left alone.
    let cluster = bench.cluster.to_lowercase().replacen('c', "_43", 1);
    let tag = format!("drover:cluster:{cluster}");
    assert!(bench.cloud.retag_by_hand(ids[2], &[(&tag, None)]));
    bench.until_gone(ids[2]).await;
    let error = bench
        .deprovision(&bench.removal(&nodes[2]))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), drover_core::Reason::NodeNotInCluster);
    assert_eq!(bench.cloud.machines().len(), 3, "nothing was deleted");
    // The tag is restored.
    assert!(bench.cloud.retag_by_hand(ids[2], &[(&tag, Some(""))]));
    bench.until_phase(ids[2], NodePhase::Running).await;
    bench.assert_nothing_leaked("by hand").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_data_and_plain_tags_reach_the_droplet_and_no_log() {
    let bench = Bench::new().await;
    let mut request = bench.request_with(2, &json!({"tags": ["web"]}));
    request.bootstrap = Some(user_data("#!/bin/sh\necho s3cret\n"));
    bench.made_by(&request).await;
    let requests = bench.cloud.control().requests();
    assert!(!format!("{requests:?}").contains("s3cret"));
    let machine = &bench.cloud.machines()[0];
    assert!(machine.tags.contains_key("web"), "{:?}", machine.tags);
    let listed = bench.discover(&bench.cluster).await.unwrap();
    assert!(listed.iter().all(|node| !node.labels.contains_key("web")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_droplet_of_a_template_is_reached_from_everywhere_by_ssh_only_unless_its_group_says_otherwise()
 {
    let mut bench = Bench::new().await;
    let open = |bench: &Bench, id: &str| -> Vec<u16> {
        let ports = [22, 80, 2379, 5432, 6379];
        ports
            .into_iter()
            .filter(|port| bench.cloud.lets_in(id, *port))
            .collect()
    };
    let mut store = bench.request(12);
    let cluster = store.cluster.as_mut().unwrap();
    (cluster.store, cluster.version) = ("redis".to_owned(), "7".to_owned());
    store.bootstrap = Some(user_data("password"));
    for node in bench.made_by(&store).await {
        assert_eq!(open(&bench, &node.node_id), [22]);
    }
    bench.crash().await;
    let with = bench.request_with(1, &json!({"firewall": true}));
    let node = bench.made_by(&with).await.remove(0);
    assert_eq!(open(&bench, &node.node_id), [22]);
    let asked = bench.cloud.control().requests_of("firewalls.create");
    let made = asked.iter().filter(|request| request.status == Some(202));
    assert_eq!(made.count(), 1, "two launches at once ask for it");
    // What a group without a template serves is its own business, and may be public.
    let node = bench.make(1).await.remove(0);
    assert_eq!(open(&bench, &node.node_id).len(), 5);
    let mut without = bench.request_with(1, &json!({"firewall": false}));
    (without.cluster, without.bootstrap) = (store.cluster, store.bootstrap);
    let node = bench.made_by(&without).await.remove(0);
    assert_eq!(open(&bench, &node.node_id).len(), 5);
    bench.assert_nothing_leaked("firewall").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn droplets_with_gpus_are_made_and_listed_only_if_the_settings_allow_them() {
    let gpu = json!({"instanceType": "gpu-h100x1-80gb"});
    let region = |settings: &mut drover_platform_cloud::drivers::digitalocean::Settings| {
        settings.regions = vec!["nyc3".to_owned()];
    };
    let bench = Bench::set(DigitalOceanSettings::default(), region).await;
    let error = bench.refusal(&bench.request_with(1, &gpu)).await;
    assert_eq!(error.reason(), drover_core::Reason::NodeClassNotFound);
    let bench = Bench::set(DigitalOceanSettings::default(), |settings| {
        region(settings);
        settings.gpus = true;
    })
    .await;
    let request = bench.request_with(2, &gpu);
    let nodes = bench.made_by(&request).await;
    bench
        .until_phase(&nodes[1].node_id, NodePhase::Running)
        .await;
    assert_eq!(bench.discover("").await.unwrap().len(), 2);
    assert_eq!(bench.made_by(&request).await.len(), 2);
    assert_eq!(bench.cloud.names().len(), 2, "found again, not made again");
    bench.assert_nothing_leaked("GPUs").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_do_not_change_cost_one_list_in_each_interval() {
    let bench = Bench::set(
        DigitalOceanSettings {
            common: Common {
                // 100 nodes on 4 pages.
                page_size: Some(25),
                ..Common::default()
            },
            ..DigitalOceanSettings::default()
        },
        |settings| settings.common.poll_interval_seconds = 0.5,
    )
    .await;
    let nodes = bench.make(100).await;
    bench
        .until_phase(&nodes[99].node_id, NodePhase::Running)
        .await;
    let request = WatchNodesRequest::default();
    let watch = bench
        .client()
        .watch_nodes(request)
        .await
        .unwrap()
        .into_inner();
    let control = bench.cloud.control();
    let settled = Instant::now() + Duration::from_secs(2);
    tokio::time::sleep_until(settled).await;
    control.clear_requests();
    let began = Instant::now();
    control.wait_for("droplets.list", 4 * 10).await;
    let took = began.elapsed();
    assert_eq!(control.count(ANY), control.count("droplets.list"));
    assert!(
        took >= Duration::from_millis(4400),
        "10 readings of 4 pages took {took:?}"
    );
    drop(watch);
}
