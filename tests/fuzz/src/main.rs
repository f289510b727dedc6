//! Fuzzes with the given number of inputs, and reports the throughput or the finding.
#![allow(clippy::print_stdout, reason = "it is a program that reports")]

use std::{process::ExitCode, time::Duration};

use clap::Parser;
use drover_fuzz::{Plan, Surface, run};

/// Sends hostile input to every door of Drover, and checks what may not come of it.
#[derive(Parser)]
struct Arguments {
    /// How many, of all surfaces together.
    #[arg(long, default_value_t = 100_000)]
    inputs: u64,
    /// Number of the first.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Which they are follows from it. Default: another one each time.
    #[arg(long)]
    seed: Option<u64>,
    /// Where they are sent to: calls, manifests, templates, replicante; can be repeated. Default: all.
    #[arg(long = "surface")]
    surfaces: Vec<Surface>,
    /// How many are sent at once.
    #[arg(long, default_value_t = 8)]
    jobs: usize,
    /// Longest that an answer may take, in seconds.
    #[arg(long, default_value_t = 20)]
    longest: u64,
}

fn main() -> ExitCode {
    // The fuzzer runs a platform server, which starts this program again as its worker.
    if let Some(code) = drover_templates::worker::enter() {
        return code;
    }
    let arguments = Arguments::parse();
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..));
    println!("seed {seed}");
    let surfaces = if arguments.surfaces.is_empty() {
        Surface::ALL.to_vec()
    } else {
        arguments.surfaces
    };
    let plan = Plan {
        seed,
        first: arguments.first,
        inputs: arguments.inputs,
        surfaces,
        jobs: arguments.jobs.max(1),
        longest: Duration::from_secs(arguments.longest),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(run(plan)),
        Err(error) => {
            println!("no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match outcome {
        Ok(report) => {
            for (surface, (inputs, took)) in &report.done {
                let rate = *inputs as f64 / took.as_secs_f64();
                println!(
                    "{surface:12} {inputs:>9} inputs in {:>7.1} s, {rate:>8.0} a second",
                    took.as_secs_f64()
                );
            }
            for (answer, count) in &report.answers {
                println!("{answer:32} {count:>9}");
            }
            let memory = report.memory.iter().map(|bytes| (bytes >> 20).to_string());
            println!(
                "memory after each epoch, MiB: {}",
                memory.collect::<Vec<_>>().join(" ")
            );
            let (took, which) = report.slowest;
            println!("slowest answer: {took:?}, {which}");
            ExitCode::SUCCESS
        }
        Err(finding) => {
            println!("{finding}");
            ExitCode::FAILURE
        }
    }
}
