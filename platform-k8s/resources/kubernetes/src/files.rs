//! Files of containers, by `cat` in the container. What is read is neither stored nor logged.

use drover_core::{Error, Reason, Result};
use drover_proto::{
    common::v1::{Chunk, ProcessOutput, process_output::Output},
    kubernetes::v1 as api,
};
use drover_resources::parts::Answers;
use futures::{StreamExt as _, future::BoxFuture, stream};

use crate::{
    client::ApiClient,
    exec::{self, NOT_EXECUTABLE, NOT_FOUND},
};

/// What is read of the words of a command that failed.
const MAX_WORDS: usize = 4096;
/// Bits of a mode that tell the type of a file, and types.
const TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
/// Attempts in a row to go on with a file of which nothing more came.
const ATTEMPTS: u32 = 3;

/// A file, in pieces as they come.
pub(crate) async fn read(
    client: &ApiClient,
    request: api::ReadFileRequest,
) -> Result<Answers<api::ReadFileResponse>> {
    let file = look(client, &request).await?;
    let path = request.path.clone();
    let output = run(client, &request, &["cat", &path]).await?;
    let size = file.as_ref().map(|file| file.size);
    let rest: Rest = {
        let (client, request) = (client.clone(), request);
        Box::new(move |read| {
            Box::pin(rest(client.clone(), request.clone(), file.clone(), read)) as _
        })
    };
    let reading = Reading {
        output,
        rest,
        path,
        size,
        read: 0,
        barren: 0,
        pieced: false,
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

/// A regular file, by what changes with its content.
#[derive(Clone, PartialEq, Eq)]
struct File {
    size: u64,
    identity: String,
}

/// Looks at a regular file. `None` where its size is not known: the container has neither `stat` nor `wc`, or the file,
/// like those of /proc, is made when it is read.
async fn look(client: &ApiClient, request: &api::ReadFileRequest) -> Result<Option<File>> {
    let path = &request.path;
    let stat = ["stat", "-L", "-c", "%f %s %i %Y %Z", path];
    if let Some(said) = said(client, request, &stat).await? {
        return regular(path, &said);
    }
    let Some(said) = said(client, request, &["wc", "-c", path]).await? else {
        return Ok(None);
    };
    Ok(counted(&said))
}

/// What a command says. `None`: it failed, or is not there.
async fn said(
    client: &ApiClient,
    request: &api::ReadFileRequest,
    command: &[&str],
) -> Result<Option<String>> {
    for _ in 0..ATTEMPTS {
        let mut output = run(client, request, command).await?;
        let (mut said, mut succeeded) = (Vec::new(), false);
        while let Some(piece) = output.next().await {
            match piece?.output {
                Some(Output::Stdout(chunk)) => keep(&mut said, chunk),
                Some(Output::ExitCode(code)) => succeeded = code == 0,
                Some(Output::Stderr(_)) | None => {}
            }
        }
        if !succeeded {
            return Ok(None);
        }
        // What it has said may be lost, as may the end of a file.
        if said.ends_with(b"\n") {
            return Ok(Some(String::from_utf8_lossy(&said).into_owned()));
        }
    }
    let (command, path) = (command[0], &request.path);
    Err(Error::unavailable(format!(
        "nothing came of what {command} says of {path:?}, {ATTEMPTS} times"
    )))
}

/// A file as `stat` tells it.
fn regular(path: &str, said: &str) -> Result<Option<File>> {
    let mut words = said.split_whitespace();
    let mode = words
        .next()
        .and_then(|mode| u32::from_str_radix(mode, 16).ok());
    let size = words.next().and_then(|size| size.parse::<u64>().ok());
    match mode.zip(size) {
        // A pipe or device has no end.
        Some((mode, _)) if mode & TYPE != REGULAR => Err(not_a_file(path)),
        Some((_, size)) => Ok((size > 0).then(|| File {
            size,
            identity: words.collect::<Vec<_>>().join(" "),
        })),
        None => Ok(None),
    }
}

/// A file as `wc` tells it.
fn counted(said: &str) -> Option<File> {
    let size = said.split_whitespace().next()?.parse().ok()?;
    (size > 0).then(|| File {
        size,
        identity: String::new(),
    })
}

/// What comes after the first bytes of a file, if it is still the same: Kubernetes may close the connection of a command
/// that has ended before all of its output was delivered.
async fn rest(
    client: ApiClient,
    request: api::ReadFileRequest,
    file: Option<File>,
    read: u64,
) -> Result<Answers<ProcessOutput>> {
    if look(&client, &request).await? != file {
        return Err(cut_short(&request.path, read));
    }
    let from = format!("+{}", read + 1);
    run(&client, &request, &["tail", "-c", &from, &request.path]).await
}

/// Begins to read after so many bytes.
type Rest = Box<dyn Fn(u64) -> BoxFuture<'static, Result<Answers<ProcessOutput>>> + Send + Sync>;

struct Reading {
    output: Answers<ProcessOutput>,
    rest: Rest,
    path: String,
    size: Option<u64>,
    read: u64,
    /// Attempts to go on since the last piece.
    barren: u32,
    /// Whether it consists of several readings.
    pieced: bool,
    words: Vec<u8>,
    ended: bool,
}

impl Reading {
    async fn next(&mut self) -> Option<Result<api::ReadFileResponse>> {
        loop {
            let piece = match self.output.next().await? {
                Ok(piece) => piece.output,
                Err(error) if error.reason() == Reason::Unavailable && self.goes_on().await => {
                    continue;
                }
                Err(error) => return Some(Err(error)),
            };
            match piece {
                Some(Output::Stdout(chunk)) => {
                    let first = self.read == 0;
                    let data = drover_resources::bytes(chunk);
                    self.read += data.len() as u64;
                    self.barren = 0;
                    return Some(Ok(api::ReadFileResponse {
                        chunk: Some(exec::chunk(data)),
                        total_size: self.size.filter(|_| first),
                    }));
                }
                Some(Output::Stderr(chunk)) => keep(&mut self.words, chunk),
                Some(Output::ExitCode(0)) => {
                    if self.is_short() {
                        if self.goes_on().await {
                            continue;
                        }
                        return Some(Err(cut_short(&self.path, self.read)));
                    }
                    self.ended = true;
                    // It may have changed while the rest was read.
                    if self.pieced && (self.rest)(self.read).await.is_err() {
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

    fn is_short(&self) -> bool {
        self.size.is_some_and(|size| self.read < size)
    }

    /// Whether what is missing of a file follows now.
    async fn goes_on(&mut self) -> bool {
        while self.is_short() && self.barren < ATTEMPTS {
            self.barren += 1;
            match (self.rest)(self.read).await {
                Ok(output) => {
                    self.output = output;
                    self.pieced = true;
                    return true;
                }
                Err(error) if error.reason() == Reason::Unavailable => {}
                Err(_) => return false,
            }
        }
        false
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

    #[test]
    fn a_file_is_known_by_what_stat_or_wc_says() {
        let file = |size, identity: &str| {
            Some(File {
                size,
                identity: identity.to_owned(),
            })
        };
        assert!(regular("/f", "81a4 5 7 1 2\n").unwrap() == file(5, "7 1 2"));
        assert!(regular("/f", "81a4 0 7 1 2\n").unwrap().is_none());
        assert!(regular("/f", "unknown\n").unwrap().is_none());
        let error = regular("/f", "11a4 0 7 1 2\n").err().unwrap();
        assert_eq!(error.reason(), Reason::NotAFile);
        assert!(counted("  5 /f\n") == file(5, ""));
        assert!(counted("0 /f\n").is_none());
    }

    fn pieces(text: &[u8], code: i32) -> Answers<ProcessOutput> {
        let pieces = text
            .iter()
            .map(|byte| Output::Stdout(exec::chunk([*byte])))
            .chain([Output::ExitCode(code)])
            .map(|it| Ok(ProcessOutput { output: Some(it) }));
        stream::iter(pieces.collect::<Vec<_>>()).boxed()
    }

    /// A file of five bytes, of which each attempt brings these.
    async fn read_of(first: &[u8], rests: &'static [&'static [u8]]) -> Result<Vec<u8>> {
        let asked = std::sync::atomic::AtomicUsize::new(0);
        let rest: Rest = Box::new(move |read| {
            let at = asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let all = rests.get(at).map(|it| pieces(it, 0));
            Box::pin(async move { all.ok_or_else(|| cut_short("/f", read)) })
        });
        let mut reading = Reading {
            output: pieces(first, 0),
            rest,
            path: "/f".to_owned(),
            size: Some(5),
            read: 0,
            barren: 0,
            pieced: false,
            words: Vec::new(),
            ended: false,
        };
        let mut all = Vec::new();
        while let Some(piece) = reading.next().await {
            all.extend(drover_resources::bytes(piece?.chunk.unwrap()));
        }
        Ok(all)
    }

    #[tokio::test]
    async fn what_is_missing_at_the_end_of_a_command_is_read_from_there() {
        assert_eq!(read_of(b"12345", &[]).await.unwrap(), b"12345");
        assert_eq!(read_of(b"123", &[b"45", b""]).await.unwrap(), b"12345");
        let slowly: &[&[u8]] = &[b"", b"2", b"", b"", b"34", b"5", b""];
        assert_eq!(read_of(b"1", slowly).await.unwrap(), b"12345");
        // At the last look it is not the same file any more.
        assert!(read_of(b"123", &[b"45"]).await.is_err());
        let never: &[&[u8]] = &[b"2", b"", b"", b"", b"345"];
        let error = read_of(b"1", never).await.unwrap_err();
        assert!(
            error.message().contains("cut short after 2 bytes"),
            "{error}"
        );
    }
}
