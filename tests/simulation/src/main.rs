//! Runs seeds of the random operator, as many at once as there are processors.
#![allow(clippy::print_stdout, reason = "it is a program that reports")]

use std::{env, process::ExitCode, time::Duration};

use clap::Parser;
use drover_simulation::{
    random::Summary,
    runs::{Report, Runs, alone},
};
use tokio::time::Instant;
use tracing_subscriber::EnvFilter;

/// A sixth of a run's time would be spent in the C library's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
    /// Processes at a time. Default: one a processor.
    #[arg(long)]
    jobs: Option<usize>,
    /// Prints what was done in each.
    #[arg(long)]
    trace: bool,
    /// Ends after so many failures.
    #[arg(long, default_value_t = 1)]
    failures: usize,
    /// Ends after so many seconds; seeds under way end first.
    #[arg(long)]
    within: Option<u64>,
    /// Runs the first seed in this process, and answers as the process that runs many of them reads it. With RUST_LOG it logs.
    #[arg(long, hide = true)]
    alone: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.alone {
        listen();
        return exit_code(alone(arguments.first, arguments.steps));
    }
    let program = match env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            println!("where is this program? {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut runs = Runs::new(&program, arguments.first, arguments.seeds, arguments.steps);
    runs.jobs = arguments.jobs.unwrap_or(runs.jobs);
    runs.failures = arguments.failures;
    runs.within = arguments.within.map_or(runs.within, Duration::from_secs);
    let began = Instant::now();
    let report = runs.run(|seed, result| match result {
        Ok(summary) if arguments.trace => {
            println!("seed {seed}\n{}", summary.trace.join("\n"));
        }
        Ok(_) => {}
        Err(failure) => println!("{failure}"),
    });
    print(&report, began.elapsed());
    exit_code(report.failures.is_empty())
}

/// Logs according to RUST_LOG. Without timestamps, because reading the clock would shift the time for everything else
/// that reads it.
fn listen() {
    if env::var_os("RUST_LOG").is_some() {
        tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::from_default_env())
            .with_writer(std::io::stderr)
            .without_time()
            .init();
    }
}

fn exit_code(holds: bool) -> ExitCode {
    if holds {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn print(report: &Report, took: Duration) {
    let Summary {
        done,
        steps,
        made,
        time,
        ..
    } = &report.sum;
    println!("{:40} {:>9} {:>9}", "", "done", "refused");
    for (what, (done, refused)) in done {
        println!("{what:40} {done:>9} {refused:>9}");
    }
    println!(
        "{} seeds, {steps} steps, {made} nodes made, {:.0} h of virtual time in {:.1} s",
        report.seeds,
        time.as_secs_f64() / 3600.0,
        took.as_secs_f64()
    );
    for failure in &report.failures {
        println!(
            "seed {}, step {}: {}",
            failure.seed, failure.step, failure.what
        );
    }
}
