//! Overhead of rendering callers' user data in worker processes: nodes with rendered user data through the platform
//! server, compared to the same with user data that is rendered in this process and sent as is.
//!
//! The backend is simulated and responds immediately, so only the server's own work per node remains. Both are measured
//! in turns in this process. `BENCH_SMALL=1`: ten times fewer nodes.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use drover_platform_cloud::{PlatformServer, Settings, drivers::simulated::SimulatedSettings};
use drover_proto::platform::v1::{
    Bootstrap, Fence, GetPlatformRequest, ProvisionRequest, bootstrap::UserData,
    platform_service_client::PlatformServiceClient,
};
use drover_templates::{
    ClusterContext, Context, GroupContext, NodeContext, NodeScope, Scope, render_text, worker,
};
use drover_testing::platform::requests;
use futures::StreamExt;
use tokio::time::Instant;
use uuid::Uuid;

/// Nodes per request.
const BATCH: u32 = 20;
/// Concurrent requests.
const CALLERS: usize = 16;
/// Rounds of each.
const TURNS: usize = 5;

/// A small cloud-config.
const TEXT: &str = "#cloud-config
# {{ cluster.id }}/{{ group.path }}/{{ node.name }} {{ node.id }}
hostname: {{ node.name }}
write_files:
{% for part in ['data', 'log', 'run', 'tmp'] %}
  - path: /etc/store/{{ part }}.conf
    content: |
      cluster={{ cluster.id }}
      group={{ group.path }}
      ordinal={{ node.ordinal }}
      size={{ group.size }}
      dir=/var/lib/store/{{ node.name }}/{{ part }}
{% endfor %}
runcmd:
{% for at in range(group.size) %}
  - store join {{ cluster.id }} {{ at }} {% if at == node.ordinal %}--self{% endif %}
{% endfor %}
";

#[derive(Clone, Copy, PartialEq)]
enum How {
    Apart,
    Here,
}

fn main() {
    // This program also acts as the worker, if started with the worker's argument.
    if worker::enter().is_some() {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let nodes = if std::env::var_os("BENCH_SMALL").is_some() { 1_000 } else { 10_000 };
        let (mut apart, mut here) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            here.push(made(nodes, How::Here).await);
            apart.push(made(nodes, How::Apart).await);
        }
        let median = |all: &mut Vec<Duration>| {
            all.sort();
            all[all.len() / 2].as_secs_f64()
        };
        let (apart, here) = (median(&mut apart), median(&mut here));
        println!("| {nodes} nodes with rendered user data, apart | in the same process | ratio | target |");
        println!("|---|---|---|---|");
        println!("| {apart:.2} s | {here:.2} s | {:.2} | 1.1 |", apart / here);
    });
}

/// Time to create the nodes.
async fn made(nodes: u32, how: How) -> Duration {
    let settings = Settings::from(SimulatedSettings::default());
    let server = PlatformServer::open(settings).await.unwrap();
    let client = PlatformServiceClient::new(drover_client::in_process(server.routes()));
    let answer = client.clone().get_platform(GetPlatformRequest {}).await;
    let uid = answer.unwrap().into_inner().platform.unwrap().uid;
    let began = Instant::now();
    let requests = (0..nodes / BATCH).map(|at| {
        let (mut client, uid) = (client.clone(), uid.clone());
        tokio::spawn(async move {
            let fence = Fence {
                store_id: Uuid::from_u128(1).to_string(),
                shard: 0,
                epoch: 1,
            };
            let cluster = format!("c-{}", at % 100);
            let of = (cluster.as_str(), Uuid::from_u128(u128::from(at % 100) + 1));
            let ordinals = (at / 100) * BATCH..(at / 100 + 1) * BATCH;
            let mut request = requests::provision(&uid, fence, of, "db", ordinals);
            request.bootstrap = Some(Bootstrap {
                user_data: Some(UserData::Text(TEXT.to_owned())),
                render: how == How::Apart,
                ..Bootstrap::default()
            });
            if how == How::Here {
                render_here(&request);
            }
            let answer = client.provision(request).await.unwrap().into_inner();
            assert_eq!(answer.nodes.len(), BATCH as usize);
        })
    });
    futures::stream::iter(requests)
        .buffer_unordered(CALLERS)
        .for_each(async |done| done.unwrap())
        .await;
    let took = began.elapsed();
    server.shutdown().await;
    took
}

/// Renders the first slot twice, as a server does that validates before it creates.
fn render_here(request: &ProvisionRequest) {
    let (cluster, group) = (request.cluster.clone(), request.group.clone());
    let (cluster, group) = (cluster.unwrap(), group.unwrap());
    let scope = Scope::from(Context {
        cluster: ClusterContext {
            id: cluster.id,
            ..ClusterContext::default()
        },
        group: GroupContext {
            path: group.path,
            size: group.size,
            ..GroupContext::default()
        },
        ..Context::default()
    });
    for slot in request.slots.iter().take(1).chain(&request.slots) {
        let own = NodeScope {
            node: NodeContext {
                id: slot.id.clone(),
                name: slot.name.clone(),
                ordinal: slot.ordinal.unwrap(),
                ..NodeContext::default()
            },
            ..NodeScope::default()
        };
        render_text("bootstrap", TEXT, &scope.clone().of_node(&own)).unwrap();
    }
}
