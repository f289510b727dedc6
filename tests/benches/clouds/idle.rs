//! API calls an hour of a platform whose 10,000 nodes do not change, beside what the provider allows. Only the list of
//! nodes is read, which is what is done for a watch: an orchestrator adds no calls of its own to it. Hours pass in the
//! emulator's and the driver's clock alone, with the settings of a driver that somebody has not changed.

use std::{collections::BTreeMap, time::Duration};

use drover_emulators::{
    ANY, Api, Control, Emulator,
    digitalocean::{DigitalOcean, DigitalOceanSettings, HOURLY, TOKEN},
    ec2::{Ec2, Ec2Settings},
    gce::{Gce, GceSettings},
    metal::{Metal, MetalSettings},
};
use drover_platform_cloud::{
    DriverSettings, PlatformServer, Settings,
    drivers::{aws, digitalocean, gcp, metal},
};
use drover_proto::platform::v1::WatchNodesRequest;
use drover_testing::platform::caller::Caller;
use futures::StreamExt;
use tokio::time::{Instant, advance, pause, resume, sleep};

use super::{KEY, REGION, TYPE};

const NODES: usize = 10_000;
/// Calls have a rate limit of the driver's own, which delays them and does not change their number. Here it would make
/// hours of them.
const CALLS_PER_SECOND: f64 = 100_000.0;
const MINUTE: Duration = Duration::from_secs(60);

/// The time that is measured.
struct Span {
    /// Minutes in which the platform settles.
    before: u32,
    /// Minutes in which calls are counted.
    minutes: u32,
    /// How much of it passes at once: intervals between two lists are multiples of it.
    step: Duration,
}

impl Span {
    /// For drivers that list every ten seconds, but for the first minute, in which a new machine may not be listed yet.
    const STEADY: Self = Self {
        before: 2,
        minutes: 5,
        step: Duration::from_secs(1),
    };
    /// For one that divides what is left of the last hour by multiples of five seconds.
    const HOURLY: Self = Self {
        before: 90,
        minutes: 60,
        step: Duration::from_secs(5),
    };
}

/// What a provider allows.
struct Quota {
    cloud: &'static str,
    /// Calls an hour, of one operation or of all. `None`: the provider documents none.
    calls: Option<f64>,
    of: &'static str,
}

pub(super) async fn all() {
    println!("| idle, {NODES} nodes | calls an hour | of one operation | quota an hour | of it |");
    println!("|---|---|---|---|---|");
    let only = std::env::var("BENCH_CLOUD").unwrap_or_default();
    let wanted = |cloud: &str| only.is_empty() || only == cloud;
    if wanted("aws") {
        ec2().await;
    }
    if wanted("gcp") {
        compute_engine().await;
    }
    if wanted("digitalocean") {
        digital_ocean().await;
    }
    if wanted("metal") {
        metal_stack().await;
    }
}

async fn ec2() {
    let ec2 = Ec2::start(Ec2Settings::default()).await.unwrap();
    ec2.add_foreign(NODES - 1);
    let directory = tempfile::tempdir().unwrap();
    let credentials = directory.path().join("credentials");
    let text = format!("[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {KEY}\n");
    std::fs::write(&credentials, text).unwrap();
    let mut settings = aws::Settings {
        credentials_file: Some(credentials),
        region: REGION.to_owned(),
        endpoint: ec2.url(),
        image: "amazonlinux".to_owned(),
        instance_type: TYPE.to_owned(),
        ..aws::Settings::default()
    };
    settings.common.calls_per_second = CALLS_PER_SECOND;
    // "Non-mutating actions": buckets of 100 tokens, refilled by 20 a second, one for each action
    // (https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html).
    let quota = Quota {
        cloud: "EC2",
        calls: Some(20.0 * 3600.0),
        of: "each operation",
    };
    let driver = DriverSettings::from(settings);
    measure(&ec2, driver, &quota, &Span::STEADY).await;
}

async fn compute_engine() {
    let gce = Gce::start(GceSettings::default()).await.unwrap();
    // Over three zones of another region, too.
    gce.add_foreign(2 * (NODES - 1));
    let mut settings = gcp::Settings::emulated(gce.url());
    settings.common.calls_per_second = CALLS_PER_SECOND;
    settings.common.poll_interval_seconds = gcp::Settings::default().common.poll_interval_seconds;
    // "List requests", compute.googleapis.com/list_requests_per_region: 1,500 a minute for each region
    // (https://cloud.google.com/compute/api-quota).
    let quota = Quota {
        cloud: "Compute Engine",
        calls: Some(1_500.0 * 60.0),
        of: "lists in a region",
    };
    let driver = DriverSettings::from(settings);
    measure(&gce, driver, &quota, &Span::STEADY).await;
}

async fn digital_ocean() {
    let cloud = DigitalOcean::start(DigitalOceanSettings {
        hourly_limit: Some(HOURLY),
        ..DigitalOceanSettings::default()
    });
    let cloud = cloud.await.unwrap();
    cloud.add_foreign(NODES - 1);
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, TOKEN).unwrap();
    let mut settings = digitalocean::Settings {
        endpoint: cloud.url(),
        token_file: Some(token),
        instance_type: "s-1vcpu-1gb".to_owned(),
        ..digitalocean::Settings::default()
    };
    settings.common.calls_per_second = CALLS_PER_SECOND;
    // 5,000 an hour for each token (https://docs.digitalocean.com/reference/api/reference/#rate-limit).
    let quota = Quota {
        cloud: "DigitalOcean",
        calls: Some(HOURLY as f64),
        of: "all",
    };
    let driver = DriverSettings::from(settings);
    measure(&cloud, driver, &quota, &Span::HOURLY).await;
}

async fn metal_stack() {
    let mut emulator = MetalSettings::default();
    let partition = &mut emulator.partitions[0];
    partition.machines = NODES;
    let (project, partition) = (emulator.projects[0].clone(), partition.id.clone());
    let (size, image) = (emulator.sizes[0].0.clone(), "ubuntu-24.4".to_owned());
    let metal = Metal::start(emulator).await.unwrap();
    let _ = metal.add_foreign(&project, NODES - 1);
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "emulator-token").unwrap();
    let mut settings = metal::Settings {
        url: metal.url(),
        private_network: metal.add_network(&project, &partition),
        partitions: vec![partition],
        project,
        image,
        node_class: size,
        token_file: Some(token),
        ..metal::Settings::default()
    };
    settings.common.calls_per_second = CALLS_PER_SECOND;
    let quota = Quota {
        cloud: "metal-stack",
        calls: None,
        of: "none documented",
    };
    let driver = DriverSettings::from(settings);
    measure(&metal, driver, &quota, &Span::STEADY).await;
}

/// Counts the calls of some minutes after others in which it has settled.
async fn measure<A: Api>(cloud: &Emulator<A>, driver: DriverSettings, quota: &Quota, span: &Span) {
    let settings = Settings {
        driver,
        templates: None,
    };
    let platform = PlatformServer::open(settings).await.unwrap();
    let caller = Caller::new(platform.routes()).await;
    let mut request = caller.request(1);
    if quota.cloud == "DigitalOcean" {
        let group = request.group.as_mut().unwrap();
        let region = prost_types::value::Kind::StringValue("fra1".to_owned());
        let region = prost_types::Value { kind: Some(region) };
        let properties = [("region".to_owned(), region)].into();
        group.properties = Some(prost_types::Struct { fields: properties });
    }
    let node = caller.made_by(&request).await.remove(0);
    furnish(cloud, &node.node_id);
    let mut client = caller.client();
    let watch = client.watch_nodes(WatchNodesRequest::default()).await;
    let mut watch = watch.unwrap().into_inner();
    let watching = tokio::spawn(async move { while watch.next().await.is_some() {} });
    let listed = caller.discover("").await.unwrap();
    let ours = listed.iter().filter(|node| node.slot.is_some()).count();
    assert_eq!(ours, NODES, "{}", quota.cloud);
    pass(cloud.control(), span.before * MINUTE, span.step).await;
    cloud.control().clear_requests();
    pass(cloud.control(), span.minutes * MINUTE, span.step).await;
    report(cloud.control(), quota, 60.0 / f64::from(span.minutes));
    watching.abort();
    platform.shutdown().await;
    cloud.shutdown().await;
}

/// Gives all machines the tags of one that the platform has made. It does not matter to a list that they are of one slot.
fn furnish<A: Api>(cloud: &Emulator<A>, id: &str) {
    let machines = cloud.machines();
    let made = machines.iter().find(|machine| machine.id == id).unwrap();
    let tags = made.tags.iter().filter(|(key, _)| *key != "Name");
    let tags: Vec<(&str, Option<&str>)> = tags
        .map(|(key, value)| (key.as_str(), Some(value.as_str())))
        .collect();
    for machine in machines.iter().filter(|machine| machine.id != id) {
        cloud.retag_by_hand(&machine.id, &tags);
    }
}

/// Lets time pass, and the calls that are due be made.
async fn pass(control: &Control, time: Duration, step: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        pause();
        advance(step).await;
        resume();
        let mut still = 0;
        let mut calls = control.count(ANY);
        while still < 4 {
            sleep(Duration::from_millis(1)).await;
            let now = control.count(ANY);
            still = if now == calls { still + 1 } else { 0 };
            calls = now;
        }
    }
}

fn report(control: &Control, quota: &Quota, to_hour: f64) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for request in control.requests() {
        *counts.entry(request.operation).or_default() += 1;
    }
    let (most, count) = counts.iter().max_by_key(|(_, count)| **count).unwrap();
    let all = control.count(ANY) as f64 * to_hour;
    let most_often = *count as f64 * to_hour;
    let (allowed, share) = match quota.calls {
        None => (quota.of.to_owned(), "–".to_owned()),
        Some(calls) => {
            let used = if quota.of == "all" { all } else { most_often };
            let share = format!("{:.1} %", 100.0 * used / calls);
            (format!("{calls:.0}, {}", quota.of), share)
        }
    };
    println!(
        "| {} | {all:.0} | {most} {most_often:.0} | {allowed} | {share} |",
        quota.cloud
    );
}
