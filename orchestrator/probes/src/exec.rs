//! Probes by a command that the platform runs inside the node.

use std::time::Duration;

use drover_client::is_unreachable;
use drover_core::{Error, Reason, spec::Impairment};
use drover_proto::{
    common::v1::{chunk::Content, process_output::Output},
    platform::v1::{self as wire, exec_request::Input},
};
use futures::StreamExt;
use tokio::time::timeout;

use super::{Failed, Probes, Target};

/// How much of the output is looked at.
const MAX_OUTPUT: usize = 4 << 10;

/// Deadline for the platform to start the command, in addition to the timeout of the command itself.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

impl Probes {
    /// Runs a command; exit code 0 means healthy. Returns the declared impairments that its output names, a bit each. The
    /// output is never shown, because it may be secret.
    pub(super) async fn exec(
        &self,
        target: &Target,
        command: &[String],
        impairments: &[Impairment],
        within: Duration,
    ) -> Result<u16, Failed> {
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
            let mut said = Vec::new();
            while let Some(message) = output.next().await {
                match message.map_err(|error| failed(&error))?.output {
                    Some(Output::ExitCode(code)) => return Ok((code, said)),
                    Some(Output::Stdout(chunk)) => {
                        let part = match &chunk.content {
                            Some(Content::Data(data)) => data,
                            Some(Content::Text(_)) | None => continue,
                        };
                        let room = MAX_OUTPUT - said.len();
                        said.extend(part.iter().take(room));
                    }
                    Some(Output::Stderr(_)) | None => {}
                }
            }
            Err(way("it ended without an exit code".to_owned()))
        };
        match timeout(within, ended).await {
            Ok(Ok((0, said))) => Ok(named(&said, impairments)),
            Ok(Ok((127, _))) => Err(Failed::Node("exec: the command was not found".to_owned())),
            Ok(Ok((code, _))) => Err(Failed::Node(format!("exec: exit code {code}"))),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Failed::Node(format!("exec: not done within {within:?}"))),
        }
    }
}

/// Which impairments the lines of an output name, a bit each.
fn named(said: &[u8], impairments: &[Impairment]) -> u16 {
    let said = String::from_utf8_lossy(said);
    let reasons = said
        .lines()
        .filter_map(|line| line.trim_end().strip_prefix("impaired: "));
    reasons
        .filter_map(|reason| impairments.iter().position(|one| *one.reason == *reason))
        .fold(0, |all, at| all | 1 << at)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_with_declared_reasons_say_that_a_node_is_impaired() {
        let all = ["DiskFull", "Slow"].map(|reason| Impairment {
            reason: reason.into(),
            message: Box::default(),
        });
        let of = |said: &str| named(said.as_bytes(), &all);
        assert_eq!(of(""), 0);
        assert_eq!(of("Slow\nimpaired: Other\nnot impaired: Slow\n"), 0);
        assert_eq!(of("one\nimpaired: Slow\r\ntwo"), 0b10);
        assert_eq!(
            of("impaired: Slow\nimpaired: DiskFull\nimpaired: Slow"),
            0b11
        );
        assert_eq!(of("impaired: Slower"), 0);
        assert_eq!(named(b"\xff\nimpaired: DiskFull\n\xff", &all), 1);
    }
}
