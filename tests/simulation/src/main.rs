//! Runs seeds of the random operator, as many at once as there are processors.
#![allow(clippy::print_stdout, reason = "it is a program that reports")]

use std::{
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use clap::Parser;
use drover_simulation::random::{self, Failure, Summary};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Simulates a whole Drover under a random operator and random faults, and checks that nothing is lost.
#[derive(Parser)]
struct Arguments {
    /// How many seeds.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Steps of each.
    #[arg(long, default_value_t = 200)]
    steps: usize,
    /// Threads. Default: one a processor.
    #[arg(long)]
    jobs: Option<usize>,
    /// Prints what was done in each.
    #[arg(long)]
    trace: bool,
    /// Ends after so many failures.
    #[arg(long, default_value_t = 1)]
    failures: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let jobs = arguments
        .jobs
        .unwrap_or_else(|| thread::available_parallelism().map_or(1, Into::into));
    let (next, sum) = (AtomicU64::new(0), Mutex::new(Summary::default()));
    let failures = Mutex::new(Vec::<Failure>::new());
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while failures.lock().len() < arguments.failures {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= arguments.seeds {
                        return;
                    }
                    match random::run(arguments.first + at, arguments.steps) {
                        Ok(summary) => {
                            if arguments.trace {
                                println!(
                                    "seed {}\n{}",
                                    arguments.first + at,
                                    summary.trace.join("\n")
                                );
                            }
                            sum.lock().add(&summary);
                        }
                        Err(failure) => {
                            println!("{failure}");
                            failures.lock().push(*failure);
                        }
                    }
                }
            });
        }
    });
    report(&sum.into_inner(), began.elapsed());
    let failures = failures.into_inner();
    if failures.is_empty() {
        return ExitCode::SUCCESS;
    }
    for failure in &failures {
        println!(
            "seed {}, step {}: {}",
            failure.seed, failure.step, failure.what
        );
    }
    ExitCode::FAILURE
}

fn report(sum: &Summary, took: Duration) {
    println!("{:40} {:>9} {:>9}", "", "done", "refused");
    for (what, (done, refused)) in &sum.done {
        println!("{what:40} {done:>9} {refused:>9}");
    }
    println!(
        "{} steps, {} nodes made, {:.0} h of virtual time in {:.1} s",
        sum.steps,
        sum.made,
        sum.time.as_secs_f64() / 3600.0,
        took.as_secs_f64()
    );
}
