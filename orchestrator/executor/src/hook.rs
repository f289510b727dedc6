//! Hooks: commands run inside nodes, through their platforms. Neither commands nor output are kept or logged.

use std::time::Duration;

use drover_cluster::{Cluster, request};
use drover_core::{Error, Reason, Result, Sym, Urgency, error::KILLED, spec::Hook};
use drover_proto::{common::v1::process_output::Output, platform::v1 as wire};
use futures::StreamExt;

use super::envelope::{Envelope, Kind, Open};
use crate::{Executor, points::Point};

/// Deadline for a platform to open a stream.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs a hook in the node of a slot, limited by its timeout and by `most`. Dropping the call ends the command.
///
/// # Errors
/// The hook failed, timed out, or cannot be run; the message is for users and never contains the output.
/// `CapabilityMissing` if the platform cannot run commands in nodes, `NodeNotRunning` if the node does not run. After
/// `NotSent`, `Unavailable` and `PlatformRestarted` the hook may be retried.
pub(crate) async fn run(
    executor: &Executor,
    cluster: &Cluster,
    slot: u64,
    hook: &Hook,
    most: Duration,
) -> Result<()> {
    let (platform, uid, target) = {
        let inner = cluster.lock();
        let node = inner.state().node(slot);
        let gone = || Error::new(Reason::NodeNotRunning, "the node is not there");
        let node = node.ok_or_else(gone)?;
        let target = request::target(cluster, node).ok_or_else(gone)?;
        (node.platform.clone(), node.platform_uid.clone(), target)
    };
    let timeout = hook.timeout.min(most);
    let envelope = Envelope {
        executor,
        kind: Kind::Hook,
        platform: &platform,
        uid: &uid,
        owner: cluster.uid(),
        urgency: Urgency::Urgent,
        turn: None,
    };
    executor.hooks.reach(Point::BeforeHook).await;
    let ran = envelope.send(async |open| {
        let exec = exec(open, &platform, target, hook);
        let ran = tokio::time::timeout(timeout, exec).await;
        let ran = ran.unwrap_or_else(|_| Err(too_long(timeout)));
        executor.vault.hide(cluster, slot, ran).await
    });
    let ran = ran.await;
    executor.hooks.reach(Point::AfterHook).await;
    ran
}

fn too_long(timeout: Duration) -> Error {
    Error::new(
        Reason::DeadlineExceeded,
        format!("did not end within {timeout:?}"),
    )
}

async fn exec(
    open: Open<'_>,
    platform: &Sym,
    mut target: wire::NodeTarget,
    hook: &Hook,
) -> Result<()> {
    if !open.registered.platform.has(wire::Capability::NodeExec) {
        let message = format!("platform {platform} cannot run commands in nodes");
        return Err(Error::new(Reason::CapabilityMissing, message));
    }
    target.expected_instance_id.clone_from(&open.instance);
    let start = wire::ExecStart {
        node: Some(target),
        fence: Some(open.fence.clone()),
        command: hook.exec.clone(),
        ..wire::ExecStart::default()
    };
    let start = wire::ExecRequest {
        input: Some(wire::exec_request::Input::Start(start)),
    };
    let input = futures::stream::once(async move { start });
    let mut outputs = open
        .call(async |client| client.exec(input, OPEN_TIMEOUT).await)
        .await?;
    while let Some(output) = outputs.next().await {
        if let Some(Output::ExitCode(code)) = output?.output {
            return match code {
                0 => Ok(()),
                127 => Err(failed("was not found in the node".to_owned())),
                // It was ended from outside, perhaps with its node, and nobody can say how far it was.
                code if code > 128 => {
                    let error = failed(format!("was killed (exit code {code})"));
                    Err(error.with_metadata(KILLED, true))
                }
                code => Err(failed(format!("ended with exit code {code}"))),
            };
        }
    }
    Err(Error::unavailable("the platform did not say how it ended"))
}

fn failed(message: String) -> Error {
    Error::new(Reason::Precondition, message)
}
