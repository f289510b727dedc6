//! The orchestrator dies at every point that it passes through, and after its next start all is as wanted: no node is
//! lost, none is made twice, nothing is left over.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod sim;

use std::time::Duration;

use drover_core::Error;
use drover_platform_cloud::drivers::simulated::{
    Death, ErrorRate, ErrorRates, Fault, Operation, SimulatedSettings,
};
use sim::{Crash, World, runtime};

/// Says where a failed run died, so that it can be run again.
struct Context<'a> {
    scenario: &'a str,
    at: &'a [usize],
    crash: std::sync::Arc<Crash>,
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed: {} with deaths at hits {:?}, died at {:?}", self.scenario, self.at, self.crash.died());
        }
    }
}

/// Runs a scenario with deaths at these hits. Answers whether it died at the first of them.
fn run(scenario: &str, at: &[usize], settings: &SimulatedSettings, script: impl AsyncFn(&mut World)) -> bool {
    let crash = Crash::at(at.iter().copied());
    let context = Context { scenario, at, crash: crash.clone() };
    runtime().block_on(async {
        let mut world = World::new(settings.clone(), crash.clone()).await;
        script(&mut world).await;
        world.check().await;
    });
    let died = context.crash.died().first().is_some_and(|(hit, _)| *hit == at[0]);
    drop(context);
    died
}

/// Has a scenario die at its first point, then at its second, and so on until it ends without having died. Answers at
/// how many it died.
fn at_every_point(scenario: &str, settings: &SimulatedSettings, script: impl AsyncFn(&mut World) + Copy) -> usize {
    let points = (1..).take_while(|at| run(scenario, &[*at], settings, script)).count();
    assert!(points >= 10, "{scenario} passes through {points} points only");
    println!("{scenario}: {points} points, 0 lost, 0 doubled");
    points
}

/// What shows at once, and what shows late; what answers at once, and what takes a while.
fn variants() -> [(&'static str, SimulatedSettings); 3] {
    let base = SimulatedSettings { seed: Some(1), ..SimulatedSettings::default() };
    let late = SimulatedSettings { visibility_delay: Duration::from_secs(5), ..base.clone() };
    let slow = SimulatedSettings {
        latency: Duration::from_millis(200),
        jitter: Duration::from_millis(200),
        ..base.clone()
    };
    [("at once", base), ("shown after 5 s", late), ("answers of 0.2 to 0.4 s", slow)]
}

fn in_all_variants(scenario: &str, least: usize, script: impl AsyncFn(&mut World) + Copy) {
    let points = variants().into_iter().map(|(variant, settings)| {
        at_every_point(&format!("{scenario}, {variant}"), &settings, script)
    });
    let points: usize = points.sum();
    println!("{scenario}: {points} points in all");
    assert!(points >= least, "{points} points are fewer than {least}: something is not tried any more");
}

#[test]
fn three_nodes_are_created() {
    in_all_variants("create 3", 30, async |world| world.apply("one", &[("web", 3)]).await);
}
