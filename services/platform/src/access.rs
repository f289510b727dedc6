//! `NodeAccessService` over a [`Platform`]: passes bytes through without storing any.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use drover_convert::{
    chunk::{Text, bytes},
    error::{from_status, to_status},
};
use drover_core::{Error, Result};
use drover_proto::{
    common::v1::{Chunk, ProcessOutput, process_output::Output},
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
    text.chunks(bytes(chunk))
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
