//! Commands, scripts, files and logs. Nothing that passes through is kept, logged or repeated in an error.

use drover_convert::{
    chunk::{MAX_CHUNK, Text, bytes},
    error::from_status,
};
use drover_core::{Error, Result};
use drover_proto::{
    common::v1::{Chunk, ProcessOutput, StdinClosed, chunk::Content, process_output::Output},
    kubernetes::v1::{self as api, exec_request},
};
use drover_server::{CallRecord, access::Permission};
use futures::{Stream, StreamExt, stream, stream::BoxStream};
use tokio::sync::mpsc;
use tonic::{Request, Status, Streaming};

use super::{Call, Resources};
use crate::{
    check,
    parts::{Answers, Input},
};

type Stated<T> = BoxStream<'static, Result<T, Status>>;

impl Resources {
    pub(super) async fn run_command(
        &self,
        request: Request<Streaming<api::ExecRequest>>,
    ) -> Result<Stated<api::ExecResponse>> {
        let call = self.call(&request, Permission::PodAccess);
        let record = CallRecord::of(&request);
        let mut input = request.into_inner();
        let first = input
            .message()
            .await
            .map_err(|status| from_status(&status))?;
        let Some(exec_request::Input::Start(start)) = first.and_then(|first| first.input) else {
            return Err(Error::invalid("start", "must be the first message"));
        };
        let start = check::exec(start, self.served())?;
        let (input, refused) = checked(input, &start);
        self.command(&call, &record, (start, input, Some(refused)), |output| {
            api::ExecResponse {
                output: Some(output),
            }
        })
        .await
    }

    pub(super) async fn run_text(
        &self,
        request: Request<api::RunScriptRequest>,
    ) -> Result<Stated<api::RunScriptResponse>> {
        let call = self.call(&request, Permission::PodAccess);
        let record = CallRecord::of(&request);
        let (start, script) = check::script(request.into_inner(), self.served())?;
        let pieces: Vec<_> = script
            .chunks(MAX_CHUNK)
            .map(|piece| {
                exec_request::Input::Stdin(Chunk {
                    content: Some(Content::Data(piece.to_vec())),
                })
            })
            .collect();
        let end = exec_request::Input::StdinClosed(StdinClosed {});
        let input = stream::iter(pieces.into_iter().chain([end]).map(Ok)).boxed();
        self.command(&call, &record, (start, input, None), |output| {
            api::RunScriptResponse {
                output: Some(output),
            }
        })
        .await
    }

    async fn command<A: 'static>(
        &self,
        call: &Call,
        record: &CallRecord,
        (mut start, input, refused): (api::ExecStart, Input, Option<BoxStream<'static, Error>>),
        wrap: fn(ProcessOutput) -> A,
    ) -> Result<Stated<A>> {
        call.inside("pod", &start.namespace, &start.pod)?;
        let pods = self.cluster().pods()?;
        let permit = call.stream_permit()?;
        record.runs(&start.command).await?;
        let as_text = std::mem::take(&mut start.as_text);
        let output = pods.exec(start, input).await?;
        let (mut stdout, mut stderr) = (Text::new(as_text), Text::new(as_text));
        let output = pieces(output, move |item| match item {
            Some(item) => spoken(item, &mut stdout, &mut stderr),
            None => Vec::new(),
        });
        let output = match refused {
            Some(refused) => refusable(output, refused),
            None => output,
        };
        Ok(call.stream(output, permit, wrap))
    }

    pub(super) async fn file(
        &self,
        request: Request<api::ReadFileRequest>,
    ) -> Result<Stated<api::ReadFileResponse>> {
        let call = self.call(&request, Permission::PodAccess);
        let mut request = check::read_file(request.into_inner(), self.served())?;
        call.inside("pod", &request.namespace, &request.pod)?;
        let pods = self.cluster().pods()?;
        let permit = call.stream_permit()?;
        let mut text = Text::new(std::mem::take(&mut request.as_text));
        let file = pods.read_file(request).await?;
        let file = pieces(file, move |item| pieces_of_file(&mut text, item));
        Ok(call.stream(file, permit, |answer| answer))
    }

    pub(super) async fn log(
        &self,
        request: Request<api::StreamLogsRequest>,
    ) -> Result<Stated<api::StreamLogsResponse>> {
        let call = self.call(&request, Permission::PodAccess);
        let mut request = check::logs(request.into_inner(), self.served())?;
        call.inside("pod", &request.namespace, &request.pod)?;
        let pods = self.cluster().pods()?;
        let permit = call.stream_permit()?;
        let mut text = Text::new(std::mem::take(&mut request.as_text));
        let log = pods.logs(request).await?;
        let log = pieces(log, move |item| match item {
            Some(chunk) => text.chunks(bytes(chunk)),
            None => text.rest().into_iter().collect(),
        });
        Ok(call.stream(log, permit, |chunk| api::StreamLogsResponse {
            chunk: Some(chunk),
        }))
    }
}

/// A piece of a file, in pieces of text; what is left after the last one (`None`).
fn pieces_of_file(
    text: &mut Text,
    item: Option<api::ReadFileResponse>,
) -> Vec<api::ReadFileResponse> {
    let Some(api::ReadFileResponse { chunk, total_size }) = item else {
        return text.rest().into_iter().map(piece_of_file).collect();
    };
    let chunks = chunk.map(|chunk| text.chunks(bytes(chunk)));
    let mut answers: Vec<_> = chunks
        .unwrap_or_default()
        .into_iter()
        .map(piece_of_file)
        .collect();
    match answers.first_mut() {
        Some(first) => first.total_size = total_size,
        // An empty file, or a piece that is only the beginning of a character.
        None => answers.extend(total_size.map(|size| api::ReadFileResponse {
            chunk: None,
            total_size: Some(size),
        })),
    }
    answers
}

fn piece_of_file(chunk: Chunk) -> api::ReadFileResponse {
    api::ReadFileResponse {
        chunk: Some(chunk),
        total_size: None,
    }
}

/// Cuts each answer into pieces, and adds what is left after the last one (`None`).
fn pieces<T: Send + 'static>(
    answers: Answers<T>,
    mut cut: impl FnMut(Option<T>) -> Vec<T> + Send + 'static,
) -> Answers<T> {
    let all = answers
        .map(Some)
        .chain(stream::once(std::future::ready(None)));
    all.flat_map(move |item| {
        let pieces = match item {
            Some(Err(error)) => vec![Err(error)],
            Some(Ok(item)) => cut(Some(item)).into_iter().map(Ok).collect(),
            None => cut(None).into_iter().map(Ok).collect(),
        };
        stream::iter(pieces)
    })
    .boxed()
}

/// What a command writes, in pieces. What is left of both streams comes before the exit code.
fn spoken(item: ProcessOutput, stdout: &mut Text, stderr: &mut Text) -> Vec<ProcessOutput> {
    let all: Vec<Output> = match item.output {
        Some(Output::Stdout(chunk)) => {
            let chunks = stdout.chunks(bytes(chunk)).into_iter();
            chunks.map(Output::Stdout).collect()
        }
        Some(Output::Stderr(chunk)) => {
            let chunks = stderr.chunks(bytes(chunk)).into_iter();
            chunks.map(Output::Stderr).collect()
        }
        Some(Output::ExitCode(code)) => {
            let rest = stdout.rest().map(Output::Stdout).into_iter();
            let rest = rest.chain(stderr.rest().map(Output::Stderr));
            rest.chain([Output::ExitCode(code)]).collect()
        }
        None => Vec::new(),
    };
    let wrap = |output| ProcessOutput {
        output: Some(output),
    };
    all.into_iter().map(wrap).collect()
}

/// Pieces of input that wait for a command that does not read. Beyond them the client is slowed down.
const PENDING_INPUT: usize = 16;

/// Lets valid input through, and checks it whether the command reads or not. The second stream has one item at most, the
/// error of invalid input, and must be read for anything to come through. The command sees no end of its input after an
/// error, because it might take that for a complete one.
fn checked(
    input: Streaming<api::ExecRequest>,
    start: &api::ExecStart,
) -> (Input, BoxStream<'static, Error>) {
    let (through, received) = mpsc::channel(PENDING_INPUT);
    let received = stream::unfold(received, |mut received| async move {
        let item = received.recv().await?;
        Some((Ok(item), received))
    });
    let tty = start.tty;
    let state = (input, through, start.stdin, false);
    let refused = stream::unfold(state, move |state| async move {
        let (mut input, through, mut open, over) = state;
        if over {
            std::future::pending::<()>().await;
        }
        while let Some(item) = input.next().await {
            let item = item
                .map_err(|status| from_status(&status))
                .and_then(|item| allowed(item.input, &mut open, tty));
            match item {
                // A command that has ended reads nothing.
                Ok(item) => drop(through.send(item).await),
                Err(error) => return Some((error, (input, through, open, true))),
            }
        }
        None
    });
    (received.boxed(), refused.boxed())
}

fn allowed(
    input: Option<exec_request::Input>,
    open: &mut bool,
    tty: bool,
) -> Result<exec_request::Input> {
    use exec_request::Input as It;
    let (field, why) = match input {
        None => ("input", "is required".to_owned()),
        Some(It::Start(_)) => ("start", "may only be the first message".to_owned()),
        Some(It::Stdin(_)) if !*open => (
            "stdin",
            "was not asked for by start, or has been closed".to_owned(),
        ),
        Some(It::Stdin(chunk)) if length(&chunk) > MAX_CHUNK => (
            "stdin",
            format!(
                "is {} bytes large; at most {MAX_CHUNK} are allowed",
                length(&chunk)
            ),
        ),
        Some(It::Resize(_)) if !tty => ("resize", "needs tty".to_owned()),
        Some(It::Resize(size)) => match check::wrong_size(&size) {
            Some(why) => ("resize", why),
            None => return Ok(It::Resize(size)),
        },
        Some(It::StdinClosed(closed)) => {
            *open = false;
            return Ok(It::StdinClosed(closed));
        }
        Some(input @ It::Stdin(_)) => return Ok(input),
    };
    Err(Error::invalid(field, why))
}

fn length(chunk: &Chunk) -> usize {
    match &chunk.content {
        Some(Content::Data(data)) => data.len(),
        Some(Content::Text(text)) => text.len(),
        None => 0,
    }
}

/// Output that ends with an error when the input is refused.
fn refusable(
    output: Answers<ProcessOutput>,
    refused: BoxStream<'static, Error>,
) -> Answers<ProcessOutput> {
    let output = output.map(Some).chain(stream::iter([None]));
    let refused = refused.map(|error| Some(Err(error)));
    ended(stream::select(refused, output)).boxed()
}

/// A stream up to its first `None`.
fn ended<T>(stream: impl Stream<Item = Option<T>>) -> impl Stream<Item = T> {
    stream
        .take_while(|item| std::future::ready(item.is_some()))
        .filter_map(std::future::ready)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_file_is_told_even_if_its_first_piece_is_no_whole_character() {
        let piece = |data: &[u8], total_size| {
            Some(api::ReadFileResponse {
                chunk: Some(Chunk {
                    content: Some(Content::Data(data.to_vec())),
                }),
                total_size,
            })
        };
        let euro = "\u{20ac}".as_bytes();
        let mut text = Text::new(true);
        let first = pieces_of_file(&mut text, piece(&euro[..1], Some(3)));
        let sizes: Vec<_> = first.iter().map(|it| (&it.chunk, it.total_size)).collect();
        assert_eq!(sizes, [(&None, Some(3))]);
        let rest = pieces_of_file(&mut text, piece(&euro[1..], None));
        let whole = Content::Text("\u{20ac}".to_owned());
        assert_eq!(rest[0].chunk.clone().unwrap().content, Some(whole));
        assert_eq!(rest[0].total_size, None);
        assert!(pieces_of_file(&mut text, None).is_empty());
    }
}
