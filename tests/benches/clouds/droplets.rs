//! Droplets by Drover and by Terraform, at emulators of the same settings in the same run: from the apply until all of
//! them are active, and from the deletion until all of them are gone.
//!
//! Neither is held back by a limit of calls, unless the row says so: then the emulator refuses what DigitalOcean would,
//! the driver keeps to its default rate, and Terraform repeats what is refused. The time of Terraform includes its start,
//! which an apply of nothing shows.

use std::{path::Path, time::Duration};

use drover_emulators::{
    ANY,
    digitalocean::{DigitalOcean, DigitalOceanSettings, TOKEN},
};
use drover_platform_cloud::{DriverSettings, drivers::digitalocean};

use super::{
    drover::{Drover, platform_alone},
    median,
    terraform::{Droplets, Terraform},
};

/// From created to active.
const PENDING: Duration = Duration::from_secs(2);
/// DigitalOcean's limit (<https://docs.digitalocean.com/reference/api/reference/#rate-limit>), which also allows 5,000 an
/// hour.
const CALLS_A_MINUTE: f64 = 250.0;
/// Of the driver, where the emulator has no limit.
const CALLS_PER_SECOND: f64 = 1000.0;
const DROPLETS: Droplets<'_> = Droplets {
    region: "fra1",
    size: "s-1vcpu-1gb",
    image: "debian-12-x64",
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Limit {
    None,
    /// That of DigitalOcean a minute.
    Minute,
}

/// A change of all droplets of one side.
#[derive(Clone, Copy)]
struct Took {
    time: Duration,
    calls: usize,
    /// Droplets beyond those that are wanted after it.
    left: usize,
}

/// The changes of one side in all runs.
#[derive(Default)]
struct Side {
    made: Vec<Took>,
    removed: Vec<Took>,
}

pub(super) async fn all(runs: usize) {
    let terraform = match Terraform::find(&DROPLETS).await {
        Ok(terraform) => Some(terraform),
        Err(why) => {
            eprintln!("\nLEFT OUT: the columns of Terraform.\n{why}.\n");
            None
        }
    };
    let name = terraform.as_ref().map_or_else(
        || "Terraform: LEFT OUT, see the error output".to_owned(),
        |terraform| format!("{}, -parallelism=200", terraform.version),
    );
    println!(
        "| droplets, emulator, 2 s pending | Drover | {name} | ratio | calls, Drover | Terraform | left over, Drover | \
         Terraform | Drover's platform alone |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let terraform = terraform.as_ref();
    compare("200", 200, runs, Limit::None, terraform).await;
    // Terraform makes and removes them in five turns of many seconds.
    compare("1,000", 1000, 1, Limit::None, terraform).await;
    compare("200, 250 calls a minute", 200, 1, Limit::Minute, terraform).await;
    if let Some(terraform) = terraform {
        let cloud = emulator(Limit::None).await;
        let nothing = terraform.apply(&cloud.url(), TOKEN, 0).await;
        cloud.shutdown().await;
        println!(
            "\nTerraform applies nothing in {:.2} s.",
            nothing.as_secs_f64()
        );
    }
}

async fn compare(name: &str, count: u32, runs: usize, limit: Limit, terraform: Option<&Terraform>) {
    let (mut ours, mut theirs, mut alone) = (Side::default(), Side::default(), Vec::new());
    for run in 0..runs {
        // Interleaved, so that no side has a quieter machine.
        for side in 0..3 {
            match ((run + side) % 3, terraform) {
                (0, _) => by_drover(&mut ours, count, limit).await,
                (1, Some(terraform)) => by_terraform(&mut theirs, terraform, count, limit).await,
                (1, None) => {}
                _ => {
                    let cloud = emulator(limit).await;
                    let data = tempfile::tempdir().unwrap();
                    let driver = driver(&cloud, data.path(), limit);
                    alone.push(platform_alone(driver, count).await);
                    cloud.shutdown().await;
                }
            }
        }
    }
    let alone = format!("{:.2} s", median(alone).as_secs_f64());
    report(&format!("{name}, made"), &ours.made, &theirs.made, &alone);
    report(
        &format!("{name}, removed"),
        &ours.removed,
        &theirs.removed,
        "",
    );
}

async fn by_drover(side: &mut Side, count: u32, limit: Limit) {
    let cloud = emulator(limit).await;
    let data = tempfile::tempdir().unwrap();
    let driver = driver(&cloud, data.path(), limit);
    let drover = Drover::start(driver, data).await;
    let made = drover.make(count).await;
    side.made.push(took(&cloud, made, count));
    cloud.control().clear_requests();
    let removed = drover.remove().await;
    side.removed.push(took(&cloud, removed, 0));
    drover.end().await;
    cloud.shutdown().await;
}

async fn by_terraform(side: &mut Side, terraform: &Terraform, count: u32, limit: Limit) {
    let cloud = emulator(limit).await;
    let made = terraform.apply(&cloud.url(), TOKEN, count).await;
    side.made.push(took(&cloud, made, count));
    cloud.control().clear_requests();
    let removed = terraform.destroy(&cloud.url(), TOKEN, count).await;
    side.removed.push(took(&cloud, removed, 0));
    cloud.shutdown().await;
}

async fn emulator(limit: Limit) -> DigitalOcean {
    let mut settings = DigitalOceanSettings::default();
    settings.common.pending_delay = PENDING;
    if limit == Limit::Minute {
        settings.common.rate = Some(CALLS_A_MINUTE / 60.0);
        settings.common.burst = Some(CALLS_A_MINUTE);
    }
    DigitalOcean::start(settings).await.unwrap()
}

/// With the settings that a driver has by default, but for the limit of calls if the emulator has none.
fn driver(cloud: &DigitalOcean, data: &Path, limit: Limit) -> DriverSettings {
    let token = data.join("token");
    std::fs::write(&token, TOKEN).unwrap();
    let mut settings = digitalocean::Settings {
        endpoint: cloud.url(),
        token_file: Some(token),
        regions: vec![DROPLETS.region.to_owned()],
        image: DROPLETS.image.to_owned(),
        instance_type: DROPLETS.size.to_owned(),
        ..digitalocean::Settings::default()
    };
    if limit == Limit::None {
        settings.common.calls_per_second = CALLS_PER_SECOND;
    }
    DriverSettings::from(settings)
}

fn took(cloud: &DigitalOcean, time: Duration, wanted: u32) -> Took {
    let there = cloud.machines();
    let active = there.iter().filter(|machine| machine.state == "active");
    let active = active.count();
    assert!(active >= wanted as usize, "{active} droplets are active");
    Took {
        time,
        calls: cloud.control().count(ANY),
        left: there.len() - wanted as usize,
    }
}

fn report(name: &str, ours: &[Took], theirs: &[Took], alone: &str) {
    let time = |side: &[Took]| median(side.iter().map(|took| took.time).collect()).as_secs_f64();
    let most = |side: &[Took], of: fn(&Took) -> usize| side.iter().map(of).max().unwrap_or(0);
    let left = |side: &[Took]| most(side, |took| took.left);
    let calls = |side: &[Took]| most(side, |took| took.calls);
    let (our_time, our_calls, our_left) = (time(ours), calls(ours), left(ours));
    if theirs.is_empty() {
        println!(
            "| {name} | {our_time:.2} s | – | – | {our_calls} | – | {our_left} | – | {alone} |"
        );
        return;
    }
    let their_time = time(theirs);
    println!(
        "| {name} | {our_time:.2} s | {their_time:.2} s | {:.2} | {our_calls} | {} | {our_left} | {} | {alone} |",
        our_time / their_time,
        calls(theirs),
        left(theirs),
    );
}
