//! Files of containers, by `cat` in the container. What is read is neither stored nor logged.

use drover_core::{Error, Reason, Result};
use drover_proto::{
    common::v1::{Chunk, ProcessOutput, process_output::Output},
    kubernetes::v1 as api,
};
use drover_resources::parts::Answers;
use futures::{StreamExt as _, stream};

use crate::{
    client::ApiClient,
    exec::{self, NOT_EXECUTABLE, NOT_FOUND},
};

/// What is read of the words of a command that failed.
const MAX_WORDS: usize = 4096;
/// Bits of a mode that tell the type of a file, and types.
const TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;

/// A file, in pieces as they come.
pub(crate) async fn read(
    client: &ApiClient,
    request: api::ReadFileRequest,
) -> Result<Answers<api::ReadFileResponse>> {
    let size = size(client, &request).await?;
    let path = request.path.clone();
    let output = run(client, &request, &["cat", &path]).await?;
    let reading = Reading {
        output,
        path,
        size,
        read: 0,
        words: Vec::new(),
        ended: false,
    };
    Ok(stream::unfold(reading, |mut reading| async {
        if reading.ended {
            return None;
        }
        let answer = reading.next().await;
        reading.ended |= answer.as_ref().is_none_or(Result::is_err);
        answer.map(|answer| (answer, reading))
    })
    .boxed())
}

async fn run(
    client: &ApiClient,
    request: &api::ReadFileRequest,
    command: &[&str],
) -> Result<Answers<ProcessOutput>> {
    let start = api::ExecStart {
        namespace: request.namespace.clone(),
        pod: request.pod.clone(),
        container: request.container.clone(),
        command: command.iter().map(|&it| it.to_owned()).collect(),
        ..api::ExecStart::default()
    };
    exec::exec(client, start, stream::empty().boxed()).await
}

/// The size of a regular file. `None` where it is not known: the container has no `stat`, or the file, like those of
/// /proc, is made when it is read.
async fn size(client: &ApiClient, request: &api::ReadFileRequest) -> Result<Option<u64>> {
    let command = ["stat", "-L", "-c", "%f %s", &request.path];
    let mut output = run(client, request, &command).await?;
    let (mut said, mut succeeded) = (Vec::new(), false);
    while let Some(piece) = output.next().await {
        match piece?.output {
            Some(Output::Stdout(chunk)) => keep(&mut said, chunk),
            Some(Output::ExitCode(code)) => succeeded = code == 0,
            Some(Output::Stderr(_)) | None => {}
        }
    }
    let said = String::from_utf8_lossy(&said);
    let told = said.trim().split_once(' ').and_then(|(mode, size)| {
        Some((
            u32::from_str_radix(mode, 16).ok()?,
            size.parse::<u64>().ok()?,
        ))
    });
    match told.filter(|_| succeeded) {
        // A pipe or device has no end.
        Some((mode, _)) if mode & TYPE != REGULAR => Err(not_a_file(&request.path)),
        Some((_, size)) => Ok((size > 0).then_some(size)),
        None => Ok(None),
    }
}

struct Reading {
    output: Answers<ProcessOutput>,
    path: String,
    size: Option<u64>,
    read: u64,
    words: Vec<u8>,
    ended: bool,
}

impl Reading {
    async fn next(&mut self) -> Option<Result<api::ReadFileResponse>> {
        loop {
            let piece = match self.output.next().await? {
                Ok(piece) => piece.output,
                Err(error) => return Some(Err(error)),
            };
            match piece {
                Some(Output::Stdout(chunk)) => {
                    let first = self.read == 0;
                    let data = drover_resources::bytes(chunk);
                    self.read += data.len() as u64;
                    return Some(Ok(api::ReadFileResponse {
                        chunk: Some(exec::chunk(data)),
                        total_size: self.size.filter(|_| first),
                    }));
                }
                Some(Output::Stderr(chunk)) => keep(&mut self.words, chunk),
                Some(Output::ExitCode(0)) => {
                    self.ended = true;
                    if self.size.is_some_and(|size| self.read < size) {
                        return Some(Err(cut_short(&self.path, self.read)));
                    }
                    let empty = api::ReadFileResponse {
                        chunk: None,
                        total_size: Some(0),
                    };
                    return (self.read == 0).then_some(Ok(empty));
                }
                Some(Output::ExitCode(code)) => {
                    let words = String::from_utf8_lossy(&self.words);
                    return Some(Err(failed(&self.path, code, &words, self.read)));
                }
                None => {}
            }
        }
    }
}

fn keep(words: &mut Vec<u8>, chunk: Chunk) {
    let data = drover_resources::bytes(chunk);
    let room = MAX_WORDS.saturating_sub(words.len());
    words.extend_from_slice(&data[..data.len().min(room)]);
}

/// Why `cat` failed. Its words are read, but not repeated.
fn failed(path: &str, code: i32, words: &str, read: u64) -> Error {
    if read > 0 {
        return cut_short(path, read);
    }
    if [NOT_FOUND, NOT_EXECUTABLE].contains(&code) {
        let message = "the container has no command `cat`, which reads files for this call";
        return Error::new(Reason::Precondition, message);
    }
    if words.contains("No such file or directory") || words.contains("Not a directory") {
        let message = format!("there is no file {path:?} in the container");
        return Error::new(Reason::FileNotFound, message).with_resource("file", path);
    }
    if words.contains("Is a directory") {
        return not_a_file(path);
    }
    if words.contains("Permission denied") {
        let message = format!("the user of the container may not read {path:?}");
        return Error::new(Reason::PermissionDenied, message).with_resource("file", path);
    }
    Error::unavailable(format!(
        "{path:?} could not be read: cat ended with exit code {code}"
    ))
}

fn cut_short(path: &str, read: u64) -> Error {
    Error::unavailable(format!(
        "the file {path:?} was cut short after {read} bytes"
    ))
}

fn not_a_file(path: &str) -> Error {
    let message = format!("{path:?} is a directory, a device or a pipe");
    Error::new(Reason::NotAFile, message).with_resource("file", path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cat_says_becomes_a_reason_and_is_not_repeated() {
        let reason = |code, words: &str, read| {
            let error = failed("/f", code, words, read);
            assert!(!error.message().contains("hunter2"), "{error}");
            error.reason()
        };
        let missing = "cat: can't open '/f': No such file or directory hunter2";
        assert_eq!(reason(1, missing, 0), Reason::FileNotFound);
        assert_eq!(reason(1, "cat: /f: Is a directory", 0), Reason::NotAFile);
        assert_eq!(
            reason(1, "cat: /f: Permission denied", 0),
            Reason::PermissionDenied
        );
        assert_eq!(reason(127, "", 0), Reason::Precondition);
        assert_eq!(reason(1, missing, 7), Reason::Unavailable);
    }

    #[tokio::test]
    async fn fewer_bytes_than_the_size_of_the_file_are_an_error_even_if_cat_ends_well() {
        for (size, cut) in [(Some(5), true), (Some(4), false), (None, false)] {
            let output = [Output::Stdout(exec::chunk(b"four")), Output::ExitCode(0)];
            let output = output.map(|it| Ok(ProcessOutput { output: Some(it) }));
            let mut reading = Reading {
                output: stream::iter(output).boxed(),
                path: "/f".to_owned(),
                size,
                read: 0,
                words: Vec::new(),
                ended: false,
            };
            assert!(reading.next().await.unwrap().is_ok());
            let last = reading.next().await;
            assert_eq!(last.is_some_and(|it| it.is_err()), cut, "{size:?}");
        }
    }
}
