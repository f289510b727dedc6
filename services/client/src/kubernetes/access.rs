//! Commands, scripts, files and logs: one attempt each. Nothing that passes through is in a `Debug` or an error.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use drover_core::{Error, Reason, Result};
use drover_proto::{
    common::v1::{Chunk, ProcessOutput, StdinClosed, TerminalSize, chunk, process_output},
    kubernetes::v1::{self as api, exec_request},
};
use futures::{
    Stream, StreamExt, TryStreamExt, future,
    stream::{self, BoxStream},
};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::mpsc,
};
use tonic::Status;

use super::KubernetesClient;
use crate::call::{request, silent, to_error, within};

/// Largest piece of input, as the protos define it.
const MAX_CHUNK: usize = 64 << 10;
/// Pieces of input under way. A command that does not read holds back its writer.
const BUFFER: usize = 16;

impl KubernetesClient {
    /// Runs a command in a container; `deadline` applies to its start.
    pub async fn exec(&self, start: api::ExecStart, deadline: Duration) -> Result<(Input, Output)> {
        let (sender, receiver) = mpsc::channel(BUFFER);
        let first = message(exec_request::Input::Start(start));
        let more = stream::unfold(receiver, |mut receiver| async move {
            let input = receiver.recv().await?;
            Some((message(input), receiver))
        });
        let messages = stream::once(future::ready(first)).chain(more);
        let mut client = self.pods.clone();
        let answers = within(deadline, client.exec(messages)).await?;
        Ok((
            Input(sender),
            Output::of(answers.map_ok(|answer| answer.output)),
        ))
    }

    /// Runs a script in a container; `deadline` applies to its start.
    pub async fn run_script(
        &self,
        message: api::RunScriptRequest,
        deadline: Duration,
    ) -> Result<Output> {
        let mut client = self.pods.clone();
        let answers = within(deadline, client.run_script(message)).await?;
        Ok(Output::of(answers.map_ok(|answer| answer.output)))
    }

    /// Reads a file; `deadline` applies to its first piece.
    pub async fn read_file(
        &self,
        message: api::ReadFileRequest,
        deadline: Duration,
    ) -> Result<File> {
        let mut client = self.pods.clone();
        let opened = async {
            let mut answers = client.read_file(message).await?.into_inner();
            let first = answers.message().await?;
            Ok::<_, Status>((first, answers))
        };
        let (first, rest) = tokio::time::timeout(deadline, opened)
            .await
            .map_err(|_| silent(deadline))?
            .map_err(|status| to_error(&status))?;
        let total_size = first.as_ref().and_then(|first| first.total_size);
        let pieces = stream::iter(first.map(Ok))
            .chain(rest)
            .filter_map(async |answer| content(answer.map(|answer| answer.chunk)));
        Ok(File {
            total_size,
            pieces: pieces.boxed(),
        })
    }

    /// Reads a file of any size into `writer` and returns its size in bytes; `deadline` applies to all of it. After an
    /// error `writer` has an unknown part of the file.
    pub async fn read_file_into(
        &self,
        message: api::ReadFileRequest,
        writer: &mut (impl AsyncWrite + Unpin + Send),
        deadline: Duration,
    ) -> Result<u64> {
        let copied = async {
            let mut client = self.pods.clone();
            let answers = client.read_file(request(message, deadline)).await;
            let mut answers = answers.map_err(|status| to_error(&status))?.into_inner();
            let mut size = 0;
            while let Some(answer) = answers
                .message()
                .await
                .map_err(|status| to_error(&status))?
            {
                let piece = answer.chunk.map(bytes).unwrap_or_default();
                writer.write_all(&piece).await.map_err(not_written)?;
                size += piece.len() as u64;
            }
            writer.flush().await.map_err(not_written)?;
            Ok(size)
        };
        tokio::time::timeout(deadline, copied)
            .await
            .unwrap_or_else(|_| Err(silent(deadline)))
    }

    /// Reads the log of a container in pieces, whole lines where they fit; `deadline` applies to opening the stream.
    pub async fn stream_logs(
        &self,
        message: api::StreamLogsRequest,
        deadline: Duration,
    ) -> Result<BoxStream<'static, Result<Bytes>>> {
        let mut client = self.pods.clone();
        let answers = within(deadline, client.stream_logs(message)).await?;
        let pieces = answers.filter_map(async |answer| content(answer.map(|answer| answer.chunk)));
        Ok(pieces.boxed())
    }
}

fn message(input: exec_request::Input) -> api::ExecRequest {
    api::ExecRequest { input: Some(input) }
}

fn not_written(error: std::io::Error) -> Error {
    Error::internal(format!("cannot write what was read: {}", error.kind()))
}

fn content(chunk: Result<Option<Chunk>, Status>) -> Option<Result<Bytes>> {
    chunk
        .map(|chunk| chunk.map(|chunk| Bytes::from(bytes(chunk))))
        .map_err(|status| to_error(&status))
        .transpose()
}

fn bytes(chunk: Chunk) -> Vec<u8> {
    match chunk.content {
        Some(chunk::Content::Data(data)) => data,
        Some(chunk::Content::Text(text)) => text.into_bytes(),
        None => Vec::new(),
    }
}

/// What is sent to a running command. Dropping it ends standard input and terminal changes, not the command.
#[derive(Clone, Debug)]
pub struct Input(mpsc::Sender<exec_request::Input>);

impl Input {
    /// Writes to standard input, of a command that was started with `stdin`. Waits while the command does not read.
    ///
    /// # Errors
    /// `Precondition` once the call has ended; [`Output`] says how.
    pub async fn write(&self, data: &[u8]) -> Result<()> {
        for piece in data.chunks(MAX_CHUNK) {
            let content = Some(chunk::Content::Data(piece.to_vec()));
            self.send(exec_request::Input::Stdin(Chunk { content }))
                .await?;
        }
        Ok(())
    }

    /// Ends standard input.
    ///
    /// # Errors
    /// `Precondition` once the call has ended.
    pub async fn close(&self) -> Result<()> {
        self.send(exec_request::Input::StdinClosed(StdinClosed {}))
            .await
    }

    /// Changes the size of the terminal, of a command that was started with `tty`.
    ///
    /// # Errors
    /// `Precondition` once the call has ended.
    pub async fn resize(&self, columns: u32, rows: u32) -> Result<()> {
        let size = TerminalSize { columns, rows };
        self.send(exec_request::Input::Resize(size)).await
    }

    async fn send(&self, input: exec_request::Input) -> Result<()> {
        self.0.send(input).await.map_err(|_| {
            let message = "the call has ended; its output says how";
            Error::new(Reason::Precondition, message)
        })
    }
}

/// What a command or script writes; its exit code is the last item. Dropping it cancels the call.
///
/// An exit code other than 0 is no error. `Unavailable` at the end: there was no exit code, so the outcome is unknown.
pub struct Output(BoxStream<'static, Result<process_output::Output>>);

impl Output {
    fn of(
        answers: impl Stream<Item = Result<Option<ProcessOutput>, Status>> + Send + 'static,
    ) -> Self {
        let items = stream::unfold(Some(answers.boxed()), |answers| async move {
            let mut answers = answers?;
            loop {
                let item = match answers.next().await {
                    Some(Ok(answer)) => match answer.and_then(|answer| answer.output) {
                        Some(output) => Ok(output),
                        None => continue,
                    },
                    Some(Err(status)) => Err(to_error(&status)),
                    None => Err(Error::unavailable(
                        "the call ended without an exit code; the outcome is unknown",
                    )),
                };
                let over = !matches!(
                    item,
                    Ok(process_output::Output::Stdout(_) | process_output::Output::Stderr(_))
                );
                return Some((item, (!over).then_some(answers)));
            }
        });
        Self(items.boxed())
    }

    /// Waits for the end, and returns all that was written.
    ///
    /// # Errors
    /// `OutOfRange` if it is more than `most` bytes.
    pub async fn finish(mut self, most: usize) -> Result<Finished> {
        let mut finished = Finished::default();
        while let Some(output) = self.0.try_next().await? {
            match output {
                process_output::Output::Stdout(chunk) => finished.stdout.extend(bytes(chunk)),
                process_output::Output::Stderr(chunk) => finished.stderr.extend(bytes(chunk)),
                process_output::Output::ExitCode(code) => finished.exit_code = code,
            }
            if finished.stdout.len() + finished.stderr.len() > most {
                let message = format!("the command wrote more than {most} bytes");
                return Err(Error::new(Reason::OutOfRange, message));
            }
        }
        Ok(finished)
    }
}

impl Stream for Output {
    type Item = Result<process_output::Output>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx)
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").finish_non_exhaustive()
    }
}

/// A command that has ended.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Finished {
    /// What it wrote to standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to standard error.
    pub stderr: Vec<u8>,
    /// Its exit code.
    pub exit_code: i32,
}

impl fmt::Debug for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finished")
            .field("exit_code", &self.exit_code)
            .finish_non_exhaustive()
    }
}

/// The content of a file, in pieces. The end of the stream is the end of the file; one that was cut short ends with an
/// error. Dropping it cancels the call.
pub struct File {
    total_size: Option<u64>,
    pieces: BoxStream<'static, Result<Bytes>>,
}

impl File {
    /// Size in bytes when the call began, where it is known.
    #[must_use]
    pub fn total_size(&self) -> Option<u64> {
        self.total_size
    }
}

impl Stream for File {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.pieces.poll_next_unpin(cx)
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("total_size", &self.total_size)
            .finish_non_exhaustive()
    }
}
