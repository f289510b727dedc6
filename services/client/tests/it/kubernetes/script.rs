//! A server whose answers are written down beforehand.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use drover_convert::error::{from_status, to_status};
use drover_core::{Error, Reason};
use drover_proto::{
    common::v1::{Chunk, ProcessOutput, chunk::Content, process_output::Output},
    kubernetes::v1::{
        self as api, WaitProgress, exec_request::Input, pod_service_server::PodService,
    },
};
use futures::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use tonic::{Request, Response, Status, Streaming};

/// What a call does next.
#[derive(Clone, Debug)]
pub(super) enum Step<T> {
    Says(T),
    Fails(Error),
    Hangs,
}

use Step::{Fails, Hangs, Says};

#[derive(Default)]
struct State {
    waits: Mutex<VecDeque<Vec<Step<WaitProgress>>>>,
    asked: Mutex<Vec<api::WaitPodsRequest>>,
    file: Mutex<Vec<Step<api::ReadFileResponse>>>,
    failures: Mutex<VecDeque<Error>>,
    calls: AtomicU32,
}

#[derive(Clone, Default)]
pub(super) struct Script(Arc<State>);

impl Script {
    /// The steps of the next waits, one after the other.
    pub(super) fn waits<const N: usize>(&self, waits: [Vec<Step<WaitProgress>>; N]) {
        self.0.waits.lock().extend(waits);
    }

    pub(super) fn asked(&self) -> Vec<api::WaitPodsRequest> {
        self.0.asked.lock().clone()
    }

    pub(super) fn file(&self, steps: Vec<Step<api::ReadFileResponse>>) {
        *self.0.file.lock() = steps;
    }

    /// Makes the next calls with one answer fail.
    pub(super) fn fail(&self, reasons: impl IntoIterator<Item = Reason>) {
        let errors = reasons.into_iter().map(|reason| Error::new(reason, "x"));
        self.0.failures.lock().extend(errors);
    }

    pub(super) fn calls(&self) -> u32 {
        self.0.calls.load(Ordering::Relaxed)
    }

    fn call(&self) -> Result<(), Status> {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        match self.0.failures.lock().pop_front() {
            Some(error) => Err(to_status(&error)),
            None => Ok(()),
        }
    }
}

fn play<T, A>(steps: Vec<Step<T>>, wrap: fn(T) -> A) -> Messages<A>
where
    T: Send + 'static,
    A: Send + 'static,
{
    stream::iter(steps)
        .then(move |step| async move {
            match step {
                Says(it) => Ok(wrap(it)),
                Fails(error) => Err(to_status(&error)),
                Hangs => std::future::pending().await,
            }
        })
        .boxed()
}

fn stdout(text: impl Into<Vec<u8>>) -> Output {
    Output::Stdout(Chunk {
        content: Some(Content::Data(text.into())),
    })
}

fn output(output: Output) -> Option<ProcessOutput> {
    Some(ProcessOutput {
        output: Some(output),
    })
}

/// A command that writes what it reads, and at the end says how large the largest piece was.
async fn cat(mut input: Streaming<api::ExecRequest>, out: tokio::sync::mpsc::Sender<Output>) {
    let mut largest = 0;
    while let Ok(Some(message)) = input.message().await {
        match message.input {
            Some(Input::Stdin(Chunk {
                content: Some(Content::Data(data)),
            })) => {
                largest = largest.max(data.len());
                out.send(stdout(data)).await.unwrap();
            }
            Some(Input::Resize(size)) => {
                let text = format!("{}x{}", size.columns, size.rows);
                out.send(stdout(text)).await.unwrap();
            }
            Some(Input::StdinClosed(_)) => break,
            _ => {}
        }
    }
    out.send(Output::ExitCode(i32::try_from(largest).unwrap()))
        .await
        .unwrap();
}

type Messages<M> = Pin<Box<dyn Stream<Item = Result<M, Status>> + Send>>;
type Answer<M> = Result<Response<M>, Status>;

#[tonic::async_trait]
impl PodService for Script {
    type WaitPodsStream = Messages<api::WaitPodsResponse>;
    type ExecStream = Messages<api::ExecResponse>;
    type RunScriptStream = Messages<api::RunScriptResponse>;
    type ReadFileStream = Messages<api::ReadFileResponse>;
    type StreamLogsStream = Messages<api::StreamLogsResponse>;

    async fn create_pod(
        &self,
        request: Request<api::CreatePodRequest>,
    ) -> Answer<api::CreatePodResponse> {
        self.call()?;
        let pod = request.into_inner().pod;
        Ok(Response::new(api::CreatePodResponse { pod }))
    }

    async fn get_pod(&self, _: Request<api::GetPodRequest>) -> Answer<api::GetPodResponse> {
        self.call()?;
        Ok(Response::new(api::GetPodResponse {
            pod: Some(api::Pod::default()),
        }))
    }

    /// Three pages of one pod.
    async fn list_pods(
        &self,
        request: Request<api::ListPodsRequest>,
    ) -> Answer<api::ListPodsResponse> {
        self.call()?;
        let page: u32 = request.into_inner().page_token.parse().unwrap_or(0);
        let metadata = api::Metadata {
            name: format!("pod-{page}"),
            ..Default::default()
        };
        let next = (page < 2).then(|| (page + 1).to_string());
        Ok(Response::new(api::ListPodsResponse {
            pods: vec![api::Pod {
                metadata: Some(metadata),
                ..Default::default()
            }],
            next_page_token: next.unwrap_or_default(),
        }))
    }

    async fn delete_pod(
        &self,
        _: Request<api::DeletePodRequest>,
    ) -> Answer<api::DeletePodResponse> {
        self.call()?;
        Ok(Response::new(api::DeletePodResponse { existed: true }))
    }

    async fn wait_pods(
        &self,
        request: Request<api::WaitPodsRequest>,
    ) -> Answer<Self::WaitPodsStream> {
        self.0.asked.lock().push(request.into_inner());
        let steps = self.0.waits.lock().pop_front();
        let steps =
            steps.ok_or_else(|| to_status(&Error::internal("nobody expected this call")))?;
        Ok(Response::new(play(steps, |progress| {
            api::WaitPodsResponse {
                progress: Some(progress),
            }
        })))
    }

    async fn exec(
        &self,
        request: Request<Streaming<api::ExecRequest>>,
    ) -> Answer<Self::ExecStream> {
        let mut input = request.into_inner();
        let first = input
            .message()
            .await
            .map_err(|status| to_status(&from_status(&status)))?;
        let Some(Input::Start(start)) = first.and_then(|first| first.input) else {
            let error = Error::invalid("start", "must be the first message");
            return Err(to_status(&error));
        };
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        if start.command == ["cat"] {
            tokio::spawn(cat(input, sender));
        } else {
            sender.send(stdout("half")).await.unwrap();
        }
        let answers = stream::unfold(receiver, |mut receiver| async move {
            let message = api::ExecResponse {
                output: output(receiver.recv().await?),
            };
            Some((Ok(message), receiver))
        });
        Ok(Response::new(answers.boxed()))
    }

    async fn run_script(
        &self,
        request: Request<api::RunScriptRequest>,
    ) -> Answer<Self::RunScriptStream> {
        let script = request.into_inner().script;
        let steps = vec![
            Says(stdout(script)),
            Says(Output::Stderr(Chunk {
                content: Some(Content::Text("bad".to_owned())),
            })),
            Says(Output::ExitCode(3)),
        ];
        Ok(Response::new(play(steps, |it| api::RunScriptResponse {
            output: output(it),
        })))
    }

    async fn read_file(&self, _: Request<api::ReadFileRequest>) -> Answer<Self::ReadFileStream> {
        let steps = self.0.file.lock().clone();
        Ok(Response::new(play(steps, |it| it)))
    }

    async fn stream_logs(
        &self,
        _: Request<api::StreamLogsRequest>,
    ) -> Answer<Self::StreamLogsStream> {
        let steps = ["one\n", "two\n"].map(Says).into();
        Ok(Response::new(play(steps, |line: &str| {
            api::StreamLogsResponse {
                chunk: Some(Chunk {
                    content: Some(Content::Text(line.to_owned())),
                }),
            }
        })))
    }
}
