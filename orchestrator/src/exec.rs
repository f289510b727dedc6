//! Hooks: commands that are run inside nodes, through their platforms. Neither command nor output is kept or logged.

use std::{sync::Arc, time::Duration};

use drover_core::{Error, Node, Reason, Result, Sym, spec::Hook};
use drover_proto::{common::v1::process_output::Output, platform::v1 as wire};
use drover_telemetry::span;
use futures::StreamExt;

use crate::{
    calls::{judged, reach},
    cluster::Cluster,
    hooks::Point,
    secrets,
    shared::Shared,
    trace,
};

/// How long a platform may take to open a stream.
pub(crate) const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// A node as its platform knows it. None: the platform has not said under which id it has the node.
pub(crate) fn target(cluster: &Cluster, node: &Node) -> Option<wire::NodeTarget> {
    Some(wire::NodeTarget {
        expected_platform_uid: node.platform_uid.to_string(),
        expected_instance_id: String::new(),
        cluster_id: cluster.name.to_string(),
        node_id: node.node_id.as_ref()?.to_string(),
        expected_slot: Some(wire::SlotKey {
            owner: cluster.uid.to_string(),
            request_id: node.request.to_string(),
            index: Some(node.index),
        }),
    })
}

/// Runs a hook in the node of a slot, within its timeout and `most`. It is ended with the call.
///
/// # Errors
/// The hook failed, took too long, or cannot be run: in words for people, without what it wrote. `CapabilityMissing` if
/// the platform runs nothing in nodes, `NodeNotRunning` if there is nothing to run it in; `Unavailable` and
/// `PlatformRestarted` say nothing about the hook, which may be run again.
pub(crate) async fn run_hook(
    shared: &Arc<Shared>,
    cluster: &Arc<Cluster>,
    slot: u64,
    hook: &Hook,
    most: Duration,
) -> Result<()> {
    let (platform, uid, mut target) = {
        let inner = cluster.inner.lock();
        let node = inner.state.node(slot);
        let gone = || Error::new(Reason::NodeNotRunning, "the node is not there");
        let node = node.ok_or_else(gone)?;
        let target = target(cluster, node).ok_or_else(gone)?;
        (node.platform.clone(), node.platform_uid.clone(), target)
    };
    let timeout = hook.timeout.min(most);
    let traced = trace::call("exec", &platform);
    let ran = span::within(traced.as_ref(), async {
        shared.hooks.reach(Point::BeforeHook).await;
        let ran = tokio::time::timeout(
            timeout,
            exec(shared, cluster, (&platform, &uid), &mut target, hook),
        )
        .await
        .unwrap_or_else(|_| Err(too_long(timeout)));
        let ran = secrets::hide(shared, cluster, slot, ran).await;
        shared.hooks.reach(Point::AfterHook).await;
        ran
    })
    .await;
    trace::called(traced, ran.as_ref().err());
    ran
}

fn too_long(timeout: Duration) -> Error {
    Error::new(
        Reason::DeadlineExceeded,
        format!("did not end within {timeout:?}"),
    )
}

async fn exec(
    shared: &Arc<Shared>,
    cluster: &Cluster,
    (platform, uid): (&Sym, &Sym),
    target: &mut wire::NodeTarget,
    hook: &Hook,
) -> Result<()> {
    let (registered, client) = reach(shared, platform, uid)?;
    if !registered.platform.has(wire::Capability::NodeExec) {
        let message = format!("platform {platform} cannot run commands in nodes");
        return Err(Error::new(Reason::CapabilityMissing, message));
    }
    target.expected_instance_id = registered.platform.identity().1;
    let start = wire::ExecStart {
        node: Some(target.clone()),
        fence: Some(shared.fence(cluster.uid)),
        command: hook.exec.clone(),
        ..wire::ExecStart::default()
    };
    let start = wire::ExecRequest {
        input: Some(wire::exec_request::Input::Start(start)),
    };
    // Not among the calls that change the backend: a hook may take as long as it is allowed to, and holds no place there.
    let input = futures::stream::once(async move { start });
    let opened = client.exec(input, OPEN_TIMEOUT).await;
    judged(shared, &registered, opened.as_ref().err());
    let mut outputs = opened?;
    while let Some(output) = outputs.next().await {
        if let Some(Output::ExitCode(code)) = output?.output {
            return match code {
                0 => Ok(()),
                127 => Err(failed("was not found in the node".to_owned())),
                code => Err(failed(format!("ended with exit code {code}"))),
            };
        }
    }
    Err(Error::unavailable("the platform did not say how it ended"))
}

fn failed(message: String) -> Error {
    Error::new(Reason::Precondition, message)
}

/// Whether a hook that ended like this may be run again: nothing says that it ran, and nothing that it never will.
pub(crate) fn is_open(error: &Error) -> bool {
    matches!(
        error.reason(),
        Reason::Unavailable
            | Reason::PlatformRestarted
            | Reason::RateLimited
            | Reason::Fenced
            | Reason::Overloaded
    )
}
