//! Probes by a command that the platform runs inside the node.

use std::time::Duration;

use drover_client::is_unreachable;
use drover_core::{Error, Reason};
use drover_proto::{
    common::v1::process_output::Output,
    platform::v1::{self as wire, exec_request::Input},
};
use futures::StreamExt;
use tokio::time::timeout;

use super::{Failed, Probes, Target};

/// Deadline for the platform to start the command, in addition to the timeout of the command itself.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

impl Probes {
    /// Runs a command; exit code 0 means healthy. The output is drained but never shown, because it may be secret.
    pub(super) async fn exec(
        &self,
        target: &Target,
        command: &[String],
        within: Duration,
    ) -> Result<(), Failed> {
        let way = |why: String| Failed::Way(format!("exec: {why}"));
        let Some(node) = target.inside.clone() else {
            return Err(way("the platform does not know it yet".to_owned()));
        };
        let client = self
            .platforms
            .get(&target.platform)
            .and_then(|registered| registered.platform.client())
            .ok_or_else(|| way(format!("platform {} does not answer", target.platform)))?;
        let start = wire::ExecStart {
            node: Some(node),
            fence: Some(self.platforms.fence(target.cluster)),
            command: command.to_vec(),
            ..wire::ExecStart::default()
        };
        let first = wire::ExecRequest {
            input: Some(Input::Start(start)),
        };
        let input = futures::stream::once(async move { first });
        let mut output = client
            .exec(input, OPEN_TIMEOUT)
            .await
            .map_err(|error| failed(&error))?;
        let ended = async {
            while let Some(message) = output.next().await {
                if let Some(Output::ExitCode(code)) =
                    message.map_err(|error| failed(&error))?.output
                {
                    return Ok(code);
                }
            }
            Err(way("it ended without an exit code".to_owned()))
        };
        match timeout(within, ended).await {
            Ok(Ok(0)) => Ok(()),
            Ok(Ok(127)) => Err(Failed::Node("exec: the command was not found".to_owned())),
            Ok(Ok(code)) => Err(Failed::Node(format!("exec: exit code {code}"))),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Failed::Node(format!("exec: not done within {within:?}"))),
        }
    }
}

/// Classifies a rejection: a failure of the node if it is not running, else of the way to it.
fn failed(error: &Error) -> Failed {
    let why = if is_unreachable(error) {
        "the platform cannot be reached".to_owned()
    } else {
        error.message().to_owned()
    };
    match error.reason() {
        Reason::NodeNotRunning => Failed::Node(format!("exec: {why}")),
        _ => Failed::Way(format!("exec: {why}")),
    }
}
