//! `NodeAccessService` over a [`Platform`]: passes bytes through without storing any.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use drover_convert::error::{from_status, to_status};
use drover_core::{Error, Result};
use drover_proto::{
    common::v1::{Chunk, ProcessOutput, chunk::Content, process_output::Output},
    platform::v1::{
        Capability, ExecRequest, ExecResponse, ExecStart, NodeTarget, StreamLogsRequest,
        StreamLogsResponse, exec_request::Input, node_access_service_server::NodeAccessService,
        stream_logs_request::Since,
    },
};
use drover_server::{CallRecord, Caller};
use futures::{
    Stream, StreamExt,
    stream::{self, BoxStream},
};
use tokio::sync::oneshot;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    check::{self, Checker},
    driver::{ExecInput, ExecOutput},
    limits::MAX_CHUNK,
    platform::Platform,
    service::{Answers, Service},
};

#[tonic::async_trait]
impl NodeAccessService for Service {
    type StreamLogsStream = Answers<StreamLogsResponse>;

    async fn stream_logs(
        &self,
        request: Request<StreamLogsRequest>,
    ) -> std::result::Result<Response<Self::StreamLogsStream>, Status> {
        about_node(&request, request.get_ref().node.as_ref());
        let logs = self
            .0
            .logs(request.into_inner())
            .await
            .map_err(|error| to_status(&error))?;
        let shutdown = self.0.shutdown.clone();
        let answers = logs.map(|item| {
            item.map(|chunk| StreamLogsResponse { chunk: Some(chunk) })
                .map_err(|error| to_status(&error))
        });
        Ok(Response::new(
            answers.take_until(shutdown.cancelled_owned()).boxed(),
        ))
    }

    type ExecStream = Answers<ExecResponse>;

    async fn exec(
        &self,
        request: Request<Streaming<ExecRequest>>,
    ) -> std::result::Result<Response<Self::ExecStream>, Status> {
        let record = CallRecord::of(&request);
        let caller = Caller::of(&request);
        let output = self
            .0
            .exec(request.into_inner(), &caller, &record)
            .await
            .map_err(|error| to_status(&error))?;
        let answers = output.map(|item| {
            item.map(|output| ExecResponse {
                output: Some(output),
            })
            .map_err(|error| to_status(&error))
        });
        Ok(Response::new(answers.boxed()))
    }
}

fn object(target: &NodeTarget) -> String {
    format!("{}/{}", target.cluster_id, target.node_id)
}

/// Records the node of a request in the audit log.
fn about_node<T>(request: &Request<T>, target: Option<&NodeTarget>) {
    if let Some(target) = target {
        Caller::of(request).about("node", &object(target));
    }
}

impl Platform {
    async fn logs(&self, request: StreamLogsRequest) -> Result<BoxStream<'static, Result<Chunk>>> {
        let target = request.node.clone().unwrap_or_default();
        self.meant(
            &target.expected_platform_uid,
            false,
            &target.expected_instance_id,
        )?;
        let mut check = Checker::default();
        check::target(&mut check, "node", request.node.as_ref());
        if let Some(Since::SinceDuration(span)) = &request.since {
            check.grace("since_duration", Some(span));
        }
        check.finish()?;
        check::need(&self.description(), Capability::NodeLogs)?;
        let node = self.find(&target).await?;
        let logs = self.driver.logs(&node, &request).await?;
        let mut text = Text::new(request.as_text);
        let pieces = logs
            .map(Some)
            .chain(stream::once(async { None }))
            .flat_map(move |item| {
                stream::iter(match item {
                    Some(Ok(data)) => text.chunks(data).into_iter().map(Ok).collect(),
                    Some(Err(error)) => vec![Err(error)],
                    None => text.rest().into_iter().map(Ok).collect::<Vec<_>>(),
                })
            });
        Ok(pieces.boxed())
    }

    async fn exec(
        self: &Arc<Self>,
        mut input: Streaming<ExecRequest>,
        caller: &Caller,
        record: &CallRecord,
    ) -> Result<ExecOutput> {
        let first = input
            .message()
            .await
            .map_err(|status| from_status(&status))?;
        let Some(Input::Start(start)) = first.and_then(|first| first.input) else {
            return Err(Error::invalid("start", "must be the first message"));
        };
        let target = start.node.clone().unwrap_or_default();
        caller.about("node", &object(&target));
        self.meant(
            &target.expected_platform_uid,
            true,
            &target.expected_instance_id,
        )?;
        let mut check = Checker::default();
        check::target(&mut check, "start.node", start.node.as_ref());
        if start.command.is_empty() {
            check.wrong("start.command", "is required");
        }
        check.finish()?;
        check::need(&self.description(), Capability::NodeExec)?;
        let under_way = match &start.fence {
            Some(fence) => Some(self.fences.begin(&check::fence(Some(fence))?)?),
            None => None,
        };
        let node = self.find(&target).await?;
        let as_text = start.as_text;
        let (input, refused) = checked_input(input, &start);
        record.runs(&start.command).await?;
        let output = self.driver.exec(&node, start, input).await?;
        let (mut stdout, mut stderr) = (Text::new(as_text), Text::new(as_text));
        let output = output.flat_map(move |item| {
            // The command holds its fence until its stream is dropped.
            let _ = &under_way;
            stream::iter(match item {
                Ok(output) => pieces(output, &mut stdout, &mut stderr),
                Err(error) => vec![Err(error)],
            })
        });
        Ok(Refusable {
            output: output.boxed(),
            refused,
            ended: false,
        }
        .boxed())
    }
}

/// Passes valid input through. Invalid input ends the input, and via the receiver the call.
fn checked_input(
    input: Streaming<ExecRequest>,
    start: &ExecStart,
) -> (ExecInput, oneshot::Receiver<Error>) {
    let (refuse, refused) = oneshot::channel();
    let (mut open, tty) = (start.stdin, start.tty);
    let mut refuse = Some(refuse);
    let checked = input.map(move |item| {
        let item = item.map_err(|status| from_status(&status))?;
        let wrong = match &item.input {
            None => Some(("input", "is required")),
            Some(Input::Start(_)) => Some(("start", "may only be the first message")),
            Some(Input::Stdin(_)) if !open => {
                Some(("stdin", "was not asked for by start, or is closed"))
            }
            Some(Input::Resize(_)) if !tty => Some(("resize", "needs tty")),
            Some(Input::StdinClosed(_)) => {
                open = false;
                None
            }
            Some(Input::Stdin(_) | Input::Resize(_)) => None,
        };
        match wrong {
            None => Ok(item),
            Some((field, why)) => {
                let error = Error::invalid(field, why);
                if let Some(refuse) = refuse.take() {
                    // The call may have ended already.
                    let _ = refuse.send(error.clone());
                }
                Err(error)
            }
        }
    });
    (checked.boxed(), refused)
}

fn pieces(
    output: ProcessOutput,
    stdout: &mut Text,
    stderr: &mut Text,
) -> Vec<Result<ProcessOutput>> {
    let (text, wrap, chunk): (_, fn(Chunk) -> Output, _) = match output.output {
        Some(Output::Stdout(chunk)) => (stdout, Output::Stdout, chunk),
        Some(Output::Stderr(chunk)) => (stderr, Output::Stderr, chunk),
        Some(Output::ExitCode(code)) => {
            let rest = stdout
                .rest()
                .map(Output::Stdout)
                .into_iter()
                .chain(stderr.rest().map(Output::Stderr));
            let all = rest.chain([Output::ExitCode(code)]);
            return all
                .map(|output| {
                    Ok(ProcessOutput {
                        output: Some(output),
                    })
                })
                .collect();
        }
        None => return Vec::new(),
    };
    let data = match chunk.content {
        Some(Content::Data(data)) => data,
        Some(Content::Text(text)) => text.into_bytes(),
        None => Vec::new(),
    };
    text.chunks(data)
        .into_iter()
        .map(|chunk| {
            Ok(ProcessOutput {
                output: Some(wrap(chunk)),
            })
        })
        .collect()
}

/// Output that ends with an error if the input was rejected.
struct Refusable {
    output: ExecOutput,
    refused: oneshot::Receiver<Error>,
    ended: bool,
}

impl Stream for Refusable {
    type Item = Result<ProcessOutput>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if !self.refused_is_over()
            && let Poll::Ready(Ok(error)) = Pin::new(&mut self.refused).poll(context)
        {
            self.ended = true;
            return Poll::Ready(Some(Err(error)));
        }
        let item = self.output.poll_next_unpin(context);
        if let Poll::Ready(None) = item {
            self.ended = true;
        }
        item
    }
}

impl Refusable {
    fn refused_is_over(&self) -> bool {
        self.refused.is_terminated()
    }
}

/// Splits bytes into chunks. In text mode, invalid UTF-8 is replaced by U+FFFD, and characters are never split.
struct Text {
    as_text: bool,
    /// Start of a character that is still incomplete.
    begun: Vec<u8>,
}

impl Text {
    fn new(as_text: bool) -> Self {
        Self {
            as_text,
            begun: Vec::new(),
        }
    }

    fn chunks(&mut self, data: Vec<u8>) -> Vec<Chunk> {
        if !self.as_text {
            return data
                .chunks(MAX_CHUNK)
                .map(|piece| chunk(Content::Data(piece.to_vec())))
                .collect();
        }
        let mut bytes = std::mem::take(&mut self.begun);
        bytes.extend(data);
        if let Some(invalid) = bytes.utf8_chunks().last()
            && is_begun(invalid.invalid())
        {
            self.begun = invalid.invalid().to_vec();
            bytes.truncate(bytes.len() - self.begun.len());
        }
        let text = String::from_utf8_lossy(&bytes);
        let mut rest = &*text;
        let mut chunks = Vec::new();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.floor_char_boundary(MAX_CHUNK));
            chunks.push(chunk(Content::Text(piece.to_owned())));
            rest = after;
        }
        chunks
    }

    fn rest(&mut self) -> Option<Chunk> {
        let begun = std::mem::take(&mut self.begun);
        (!begun.is_empty())
            .then(|| chunk(Content::Text(String::from_utf8_lossy(&begun).into_owned())))
    }
}

/// Whether these bytes may be the start of a character.
fn is_begun(bytes: &[u8]) -> bool {
    !bytes.is_empty()
        && std::str::from_utf8(bytes)
            .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}

fn chunk(content: Content) -> Chunk {
    Chunk {
        content: Some(content),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(pieces: &[&[u8]]) -> String {
        let mut text = Text::new(true);
        let mut chunks: Vec<Chunk> = pieces
            .iter()
            .flat_map(|piece| text.chunks(piece.to_vec()))
            .collect();
        chunks.extend(text.rest());
        let text = |chunk: Chunk| match chunk.content {
            Some(Content::Text(text)) => text,
            Some(Content::Data(_)) | None => "no text".to_owned(),
        };
        chunks.into_iter().map(text).collect()
    }

    #[test]
    fn characters_that_come_in_pieces_are_put_together() {
        let euro = "x€y".as_bytes();
        for at in 0..=euro.len() {
            assert_eq!(joined(&[&euro[..at], &euro[at..]]), "x€y");
        }
        let bytes: Vec<&[u8]> = euro.chunks(1).collect();
        assert_eq!(joined(&bytes), "x€y");
    }

    #[test]
    fn what_is_no_text_is_replaced() {
        assert_eq!(joined(&[b"a\xffb", b"\xe2\x82"]), "a\u{fffd}b\u{fffd}");
    }

    #[test]
    fn chunks_have_at_most_64_kibibytes() {
        for as_text in [true, false] {
            let chunks = Text::new(as_text).chunks("€".repeat(100_000).into_bytes());
            let size = |chunk: &Chunk| match &chunk.content {
                Some(Content::Text(text)) => text.len(),
                Some(Content::Data(data)) => data.len(),
                None => 0,
            };
            assert_eq!(chunks.iter().map(size).sum::<usize>(), 300_000);
            assert!(
                chunks
                    .iter()
                    .all(|chunk| (1..=MAX_CHUNK).contains(&size(chunk)))
            );
        }
    }
}
