//! Pods.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use async_trait::async_trait;
use drover_core::Result;
use drover_proto::{
    common::v1::{Chunk, ProcessOutput},
    kubernetes::v1::{self as api, exec_request},
};
use futures::{Stream, StreamExt, stream, stream::BoxStream};

use super::{Remote, answer::given};
use crate::parts::{Answers, Input, Pods};

#[async_trait]
impl Pods for Remote {
    async fn create(&self, pod: api::Pod) -> Result<api::Pod> {
        let request = api::CreatePodRequest { pod: Some(pod) };
        given(self.message(self.pods().create_pod(request).await)?.pod)
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<api::Pod> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let request = api::GetPodRequest { namespace, name };
        given(self.message(self.pods().get_pod(request).await)?.pod)
    }

    async fn list(&self, request: api::ListPodsRequest) -> Result<api::ListPodsResponse> {
        self.message(self.pods().list_pods(request).await)
    }

    async fn delete(&self, request: api::DeletePodRequest) -> Result<bool> {
        Ok(self.message(self.pods().delete_pod(request).await)?.existed)
    }

    async fn wait(&self, request: api::WaitPodsRequest) -> Result<Answers<api::WaitProgress>> {
        let stream = self.pods().wait_pods(request).await;
        self.answers(stream, |answer| answer.progress)
    }

    async fn exec(&self, start: api::ExecStart, input: Input) -> Result<Answers<ProcessOutput>> {
        let stream = self.pods().exec(requests(start, input)).await;
        self.answers(stream, |answer| answer.output)
    }

    async fn read_file(
        &self,
        request: api::ReadFileRequest,
    ) -> Result<Answers<api::ReadFileResponse>> {
        self.answers(self.pods().read_file(request).await, Some)
    }

    async fn logs(&self, request: api::StreamLogsRequest) -> Result<Answers<Chunk>> {
        let stream = self.pods().stream_logs(request).await;
        self.answers(stream, |answer| answer.chunk)
    }
}

/// A stream of a type of its own: the compiler does not see that a call of a boxed one may go to another thread.
struct Requests(BoxStream<'static, api::ExecRequest>);

impl Stream for Requests {
    type Item = api::ExecRequest;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(context)
    }
}

fn requests(start: api::ExecStart, input: Input) -> Requests {
    let start = api::ExecRequest {
        input: Some(exec_request::Input::Start(start)),
    };
    let rest = stream::unfold(input, forward);
    Requests(stream::iter([start]).chain(rest).boxed())
}

/// The next message. After an error there is none and no end either: the input is not complete, and its end must not
/// reach the command. Dropping the stream cancels the call.
async fn forward(mut input: Input) -> Option<(api::ExecRequest, Input)> {
    match input.next().await? {
        Ok(item) => {
            let request = api::ExecRequest { input: Some(item) };
            Some((request, input))
        }
        Err(_) => std::future::pending().await,
    }
}
