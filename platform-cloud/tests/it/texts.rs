//! Rendered user data, as callers of the server see it and as the machine that the server runs on does.

use std::{
    collections::BTreeSet,
    fs,
    process::{Child, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
};

use drover_client::{Target, connect};
use drover_convert::error::from_status;
use drover_core::{Class, Reason, Result};
use drover_proto::platform::v1::{
    Bootstrap, Capability, Fence, GetPlatformRequest, Platform, ProvisionRequest,
    bootstrap::UserData, platform_service_client::PlatformServiceClient,
};
use drover_testing::{
    platform::{caller::until, requests},
    processes::{lives, program},
};
use futures::{StreamExt, stream};
use rustix::process::{Pid, Signal, kill_process};
use uuid::Uuid;

use crate::local_support::PROGRAM;

/// Additional memory that the server may use while templates try to exhaust it.
const ROOM: u64 = 64 << 20;

/// A server that simulates nodes.
struct Server {
    child: Child,
    client: PlatformServiceClient<drover_client::Channel>,
    platform: Platform,
}

impl Server {
    async fn start() -> Self {
        let address = drover_testing::ports::free_address().to_string();
        let child = program(PROGRAM)
            .args(["--driver", "simulated", "--listen", &address])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let target: Target = format!("http://{address}").parse().unwrap();
        let mut client = PlatformServiceClient::new(connect(&target));
        let platform = until("the server to answer", async || {
            let answer = client.get_platform(GetPlatformRequest {}).await.ok()?;
            answer.into_inner().platform
        })
        .await;
        Self {
            child,
            client,
            platform,
        }
    }

    fn request(&self, cluster: &str, text: &str) -> ProvisionRequest {
        let fence = Fence {
            store_id: Uuid::new_v4().to_string(),
            shard: 0,
            epoch: 1,
        };
        ProvisionRequest {
            bootstrap: Some(Bootstrap {
                user_data: Some(UserData::Text(text.to_owned())),
                render: true,
                ..Bootstrap::default()
            }),
            ..requests::provision(
                &self.platform.uid,
                fence,
                (cluster, Uuid::new_v4()),
                "db",
                0..3,
            )
        }
    }

    async fn ask(&self, request: ProvisionRequest) -> Result<usize> {
        let answer = self.client.clone().provision(request).await;
        let answer = answer.map_err(|status| from_status(&status))?;
        Ok(answer.into_inner().nodes.len())
    }

    async fn make(&self, cluster: &str, text: &str) -> Result<usize> {
        self.ask(self.request(cluster, text)).await
    }

    /// The pids of its renderer processes.
    fn renderers(&self) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|it| it.parse().ok()) else {
                continue;
            };
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
            let parent = fields.split_whitespace().nth(1);
            if parent == Some(&self.child.id().to_string()) && lives(id) {
                found.insert(id);
            }
        }
        found
    }

    /// Its peak memory usage.
    fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|it| it.starts_with("VmHWM")).unwrap();
        let kilobytes = line.split_whitespace().nth(1).unwrap();
        kilobytes.parse::<u64>().unwrap() << 10
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn kill(id: u32) {
    let id = Pid::from_raw(i32::try_from(id).unwrap()).unwrap();
    kill_process(id, Signal::KILL).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn user_data_that_takes_all_memory_is_refused_and_the_server_goes_on() {
    let server = Server::start().await;
    assert_eq!(server.make("orders", "{{ node.name }}").await.unwrap(), 3);
    let before = server.memory();
    for text in [
        r#"{{ "marker"|indent(10000000000000) }}"#,
        r#"{{ "%10000000000000d marker"|format(1) }}"#,
        r#"{% set ns = namespace(x="marker") %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"#,
        r#"{{ range(100000)|join("marker" * 100000) }}"#,
    ] {
        for validate_only in [true, false] {
            let request = ProvisionRequest {
                validate_only,
                ..server.request("greedy", text)
            };
            let error = server.ask(request).await.unwrap_err();
            assert_eq!(error.reason(), Reason::Precondition, "{text}: {error}");
            assert!(error.message().contains("template bootstrap"), "{error}");
            let all = format!("{error:?} {:?}", error.metadata());
            assert!(!all.contains("marker"), "{all}");
        }
        assert_eq!(server.make("orders", "{{ node.name }}").await.unwrap(), 3);
    }
    let taken = server.memory() - before;
    assert!(taken < ROOM, "{taken} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_clusters_get_their_nodes_while_one_waits_for_endless_texts() {
    let server = Server::start().await;
    let endless =
        r#"{% for i in range(100000) %}{% set x = ("a" * 100000)|upper|lower %}{% endfor %}"#;
    let given_up = AtomicUsize::new(0);
    let greedy = stream::repeat(())
        .map(|()| server.make("greedy", endless))
        .buffer_unordered(6)
        .for_each(async |answer| {
            assert_eq!(answer.unwrap_err().class(), Class::Cannot);
            given_up.fetch_add(1, Ordering::SeqCst);
        });
    let others = async {
        for _ in 0..4 {
            assert_eq!(server.make("orders", "{{ node.name }}").await.unwrap(), 3);
        }
    };
    tokio::select! {
        () = greedy => unreachable!("it never ends"),
        () = others => {}
    }
    // Each new request waits only for the greedy one's renderings in progress, not for all six in its queue.
    let given_up = given_up.into_inner();
    assert!(given_up < 16, "{given_up}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renderer_that_is_killed_is_replaced() {
    let server = Server::start().await;
    for _ in 0..3 {
        assert_eq!(server.make("orders", "{{ node.name }}").await.unwrap(), 3);
        let killed = server.renderers();
        assert!(!killed.is_empty());
        killed.iter().copied().for_each(kill);
        assert_eq!(server.make("orders", "{{ node.name }}").await.unwrap(), 3);
        assert!(server.renderers().is_disjoint(&killed));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn renderers_have_no_environment_and_end_when_the_server_is_killed() {
    let mut server = Server::start().await;
    server.make("orders", "{{ node.name }}").await.unwrap();
    let renderers = server.renderers();
    assert!(!renderers.is_empty());
    for id in &renderers {
        // Only the superuser may read it, and finds it empty.
        let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        assert!(environment.is_empty(), "{environment:?}");
        let command = fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap();
        assert_eq!(command, "/proc/self/exe\0render-texts\0");
    }
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    until("its renderers to end", async || {
        renderers.iter().all(|id| !lives(*id)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_is_only_parsed_is_not_run() {
    let server = Server::start().await;
    let parse = Capability::BootstrapParse.into();
    assert!(server.platform.capabilities.contains(&parse));
    let request = |text: &str, validate_only| {
        let mut request = server.request("orders", text);
        request.validate_only = validate_only;
        request.bootstrap.as_mut().unwrap().parse_only = true;
        request
    };
    let runs_into = "{{ refuse('it ran') }}";
    assert_eq!(server.ask(request(runs_into, true)).await.unwrap(), 0);
    let error = server.ask(request("{% for %}", true)).await.unwrap_err();
    assert!(
        error.message().contains("template bootstrap, line 1"),
        "{error}"
    );
    let error = server.ask(request(runs_into, false)).await.unwrap_err();
    assert_eq!(error.fields()[0].field, "bootstrap.parse_only");
}
