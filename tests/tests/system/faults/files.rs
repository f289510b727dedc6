//! Unreadable files: the program that needs one names it, and changes nothing.

use std::fs;

use drover_proto::orchestrator::v1 as pb;
use drover_testing::processes::program;

use crate::faults::{CALL, allow, bind, bound_by_rights, put, scripted, start};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_file_that_may_not_be_read_is_named_at_the_start_and_costs_no_node() {
    let mut world = scripted();
    start(&mut world).await;
    put(&world, "door", "token", "hush-hush").await;
    world.apply("hello", "", 2).await.unwrap();
    world.ready("hello", 2).await;
    let processes = world.processes();
    let (store, keys) = (world.store(), world.store().with_file_name("keys"));
    world.orchestrator.kill();
    allow(&keys, false);
    let (at, file) = (store.display(), keys.display());
    let arguments = format!("--data-dir {at} --secrets-key-file {file}");
    let before = &world.orchestrator;
    world.orchestrator = bind(&world, before, "drover-orchestrator", &arguments);
    world.orchestrator.launch();
    let (well, said) = world.orchestrator.ended().await;
    assert!(!well && said.contains("Permission denied"), "{said}");
    assert!(said.contains(keys.to_str().unwrap()), "{said}");

    // Recovery.
    allow(&keys, true);
    world.orchestrator.start().await;
    world.ready("hello", 2).await;
    assert_eq!(world.processes(), processes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manifest_and_files_that_it_names_which_may_not_be_read_are_named_and_nothing_is_applied()
{
    let mut world = scripted();
    start(&mut world).await;
    let at = |name: &str| world.state().with_file_name(name);
    let cluster = "apiVersion: drover.dev/v1\nkind: Cluster\nmetadata: {name: hello}\nspec:\n  platforms: [{name: local}]\n  \
                   bootstrap: {userDataFrom: {file: join.sh}}\n  groups: {web: {size: 1}}\n";
    let secret = "apiVersion: drover.dev/v1\nkind: Secret\nmetadata: {name: join}\ndataFrom: {init: {file: init.sh}}\n";
    fs::write(at("hello.yaml"), format!("{secret}---\n{cluster}")).unwrap();
    for file in ["join.sh", "init.sh"] {
        fs::write(at(file), "hush-hush").unwrap();
    }
    let drover = bound_by_rights(&world, "drover");
    let apply = || {
        let mut command = program(drover);
        command.args(["--server", &world.orchestrator.endpoint(), "apply", "-f"]);
        command.arg(at("hello.yaml")).output().unwrap()
    };
    for file in ["hello.yaml", "join.sh", "init.sh"] {
        allow(&at(file), false);
        let output = apply();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{file}: {said}");
        assert!(
            said.contains(file) && said.contains("Permission denied"),
            "{said}"
        );
        assert!(world.cluster("hello").await.unwrap().is_none());
        let secrets = pb::ListSecretsRequest::default();
        let secrets = world.client().list_secrets(secrets, CALL).await.unwrap();
        assert!(secrets.secrets.is_empty(), "{secrets:?}");
        allow(&at(file), true);
    }
    let output = apply();
    assert!(output.status.success(), "{output:?}");
    world.ready("hello", 1).await;
}
