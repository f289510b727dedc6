//! A short fuzzing run as part of the tests.
#![allow(
    missing_docs,
    clippy::panic,
    reason = "a test that finds something fails"
)]

use std::time::Duration;

use drover_fuzz::{Plan, Surface, run};

async fn nothing_is_found(surface: Surface, inputs: u64) {
    // The test binary cannot act as the worker.
    drover_templates::worker::use_program(env!("CARGO_BIN_EXE_fuzz"));
    let plan = Plan {
        seed: drover_testing::seed::seed(),
        first: 0,
        inputs,
        surfaces: vec![surface],
        jobs: 4,
        longest: Duration::from_secs(120),
    };
    match run(plan).await {
        Ok(report) => {
            assert!(
                report.answers.len() > 1,
                "all were answered alike: {report:?}"
            );
            println!("{report:?}");
        }
        Err(finding) => panic!("{finding}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_is_answered_with_a_defect_or_a_secret() {
    nothing_is_found(Surface::Calls, 6_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_manifest_brings_its_reader_down_or_has_its_secrets_repeated() {
    nothing_is_found(Surface::Manifests, 300).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_user_data_brings_the_server_down_or_tells_a_secret() {
    nothing_is_found(Surface::Templates, 500).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_document_of_replicante_is_answered_with_a_defect() {
    nothing_is_found(Surface::Replicante, 2_000).await;
}
