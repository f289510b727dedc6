//! A platform that shows another backend, and is bound to it.

use std::{collections::BTreeSet, fs};

use drover_proto::orchestrator::v1 as pb;
use rustix::process::{Pid, Signal, kill_process};

use super::{
    column, pids,
    shell::{asked, drover, json},
    shop,
};
use crate::real;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_platform_under_another_uid_is_bound_again_with_the_command_that_it_names() {
    let mut world = shop("").await;
    let (before, uid) = (pids(&world), world.platform_status("local").await.uid);
    world.platform.kill();
    let identity = world.state().join("uuid");
    let old = fs::read_to_string(&identity).unwrap();
    let new = "01234567-89ab-4def-8123-456789abcdef";
    fs::write(&identity, new).unwrap();
    world.platform.start().await;
    world
        .until("it is refused", async |world| {
            let said = drover(world, "describe platform local").expect(0, &[]);
            said.out.contains("Refused")
        })
        .await;
    let said = drover(&world, "status").expect(0, &["drover rebind local", "drover abandon"]);
    let command = said.out.split_once("drover rebind ").unwrap().1;
    let command = command.split_once(" if it is the same").unwrap().0;
    let command = format!("rebind {command}");
    let shown = uid.replace(old.trim(), new);
    assert_eq!(command, format!("rebind local {shown}"));

    drover(&world, "rebind local wrong -y").expect(1, &["wrong", &shown]);
    drover(&world, &format!("rebind nope {shown} -y")).expect(3, &["hint: drover get platforms"]);
    let question = async |text: &str| {
        for words in [&*uid, "with 2 nodes: shop/web-0, shop/web-1"] {
            assert!(text.contains(words), "{text}");
        }
    };
    asked(&world, &command, question, "n")
        .await
        .expect(1, &["nothing bound"]);
    let status = world.platform_status("local").await;
    assert_eq!(status.uid, uid, "nobody has said yes");
    assert_eq!(world.processes().len(), 2);

    drover(&world, &format!("{command} --wait")).expect(
        0,
        &[
            &format!("platform/local bound to {shown}"),
            "cluster/shop is ready: 2 of 2",
        ],
    );
    world.ready("shop", 2).await;
    assert_eq!(pids(&world), before, "all records are kept");
    let nodes = json(&world, "get nodes shop -o json");
    assert_eq!(
        column(&nodes["nodes"], "platformUid"),
        BTreeSet::from([shown])
    );
    drover(&world, "describe platform local").expect(0, &["Ready", new]);
    drover(&world, "scale shop web 3").expect(0, &["1 to create"]);
    world.ready("shop", 3).await;
    assert_eq!(world.processes().len(), 3);
    drover(&world, "delete cluster shop -y --wait").expect(0, &["cluster/shop gone"]);
    assert_eq!(world.processes().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_bound_backend_lacks_is_kept_while_its_agents_answer_and_is_replaced_then() {
    let mut world = shop("").await;
    let before = pids(&world);
    world.platform.kill();
    // Within the old one, so that the end of the world ends the processes of both.
    let empty = world.state().join("empty");
    let arguments = ["--driver", "local", "--state-dir", empty.to_str().unwrap()];
    let port = world.platform.address.port();
    let root = fs::canonicalize(world.directory.path()).unwrap();
    world.platform = real::Server::new("drover-platform-cloud", &root, port, &arguments);
    world.platform.start().await;
    world
        .until("it is refused", async |world| {
            world.platform_status("local").await.phase() == pb::PlatformPhase::Refused
        })
        .await;
    let said = world.platform_status("local").await.message;
    let uid = said.split_once("drover rebind local ").unwrap().1;
    let uid = uid.split_once(" if it is the same").unwrap().0;
    drover(&world, &format!("rebind local {uid} -y")).expect(0, &["bound to"]);
    world
        .until("it is said that they are not listed", async |world| {
            let cluster = world.cluster("shop").await.unwrap().unwrap();
            let group = cluster.status.unwrap().groups.remove(0);
            let mut conditions = group.conditions.iter();
            let ready = conditions.find(|one| one.r#type == "Ready").unwrap();
            ready.reason == "Unobserved" && ready.message.contains("is not listed by local")
        })
        .await;
    assert_eq!(
        pids(&world),
        before,
        "they run: nothing is made beside them"
    );
    for pid in world.processes().into_keys() {
        let pid = Pid::from_raw(pid.cast_signed()).unwrap();
        // One of them may end with another one.
        let _ = kill_process(pid, Signal::KILL);
    }
    world
        .until("all are replaced", async |world| {
            let old = |pid: &u32| before.values().any(|it| it == pid);
            world.is_ready("shop", 2).await && !pids(world).values().any(old)
        })
        .await;
    drover(&world, "delete cluster shop -y --wait").expect(0, &["cluster/shop gone"]);
}
