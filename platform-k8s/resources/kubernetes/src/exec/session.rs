//! The conversation with a command over a websocket. Input and output go on independently of each other: a command that
//! reads nothing still writes, and one that has ended has a status whatever becomes of its input.

use std::time::Duration;

use bytes::Bytes;
use drover_core::Result;
use drover_proto::{
    common::v1::{Chunk, ProcessOutput, TerminalSize, process_output::Output},
    kubernetes::v1::exec_request,
};
use drover_resources::parts::Input;
use futures::{Sink, SinkExt as _, Stream, StreamExt as _};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use tokio::time::{Instant, MissedTickBehavior};

use super::{Sender, chunk};

/// First bytes of frames: whose data they hold.
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;
/// Nothing more follows of what the second byte names.
const CLOSE: u8 = 255;

/// Bytes of input in one frame.
const MAX_FRAME: usize = 32 * 1024;
/// Pause after which something is sent, so that nothing between here and the API server takes the connection for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// What the client of a command has.
pub(super) struct Client {
    pub(super) input: Input,
    pub(super) output: Sender,
    /// Whether the command has a stdin.
    pub(super) stdin: bool,
    /// Size of its terminal, if it has one.
    pub(super) terminal: Option<TerminalSize>,
    /// Whether the end of stdin can be told without that of the connection.
    pub(super) closes: bool,
}

/// Talks until the command has ended. `None`: the connection was cut before.
pub(super) async fn talk<E>(
    frames: impl Stream<Item = std::result::Result<Bytes, E>>,
    to: impl Sink<Vec<u8>>,
    client: Client,
) -> Result<Option<Status>> {
    let output = client.output.clone();
    let read = read(frames, &output);
    let write = write(to, client);
    tokio::pin!(read, write);
    tokio::select! {
        status = &mut read => Ok(status),
        written = &mut write => {
            written?;
            Ok(read.await)
        }
    }
}

async fn read<E>(
    frames: impl Stream<Item = std::result::Result<Bytes, E>>,
    output: &Sender,
) -> Option<Status> {
    tokio::pin!(frames);
    while let Some(Ok(frame)) = frames.next().await {
        let Some((&kind, data)) = frame.split_first() else {
            continue;
        };
        // The API server opens each kind with a frame without data.
        if data.is_empty() {
            continue;
        }
        let kind: fn(Chunk) -> Output = match kind {
            STDOUT => Output::Stdout,
            STDERR => Output::Stderr,
            STATUS => return serde_json::from_slice(data).ok(),
            _ => continue,
        };
        let piece = ProcessOutput {
            output: Some(kind(chunk(data))),
        };
        if output.send(Ok(piece)).await.is_err() {
            return None;
        }
    }
    None
}

/// Forwards input and terminal sizes until the input ends, and keeps the connection alive from then on. Returns if nothing
/// can be sent any more, or with the error of the input.
async fn write(to: impl Sink<Vec<u8>>, client: Client) -> Result<()> {
    tokio::pin!(to);
    let Client {
        mut input,
        mut stdin,
        terminal,
        closes,
        ..
    } = client;
    if let Some(size) = &terminal
        && to.send(resize(size)).await.is_err()
    {
        return Ok(());
    }
    let mut alive = tokio::time::interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
    alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut open = true;
    loop {
        let message = tokio::select! {
            message = input.next(), if open => message.transpose()?,
            _ = alive.tick() => {
                // Servers skip an empty frame.
                if to.send(Vec::new()).await.is_err() {
                    return Ok(());
                }
                continue;
            }
        };
        open = message.is_some();
        let sent = match message {
            Some(exec_request::Input::Stdin(chunk)) if stdin => {
                let data = drover_resources::bytes(chunk);
                let mut sent = Ok(());
                for piece in data.chunks(MAX_FRAME) {
                    sent = to.send(framed(STDIN, piece)).await;
                    if sent.is_err() {
                        break;
                    }
                }
                sent
            }
            Some(exec_request::Input::Resize(size)) if terminal.is_some() => {
                to.send(resize(&size)).await
            }
            Some(exec_request::Input::StdinClosed(_)) | None if stdin => {
                stdin = false;
                if closes {
                    to.send(vec![CLOSE, STDIN]).await
                } else {
                    to.close().await
                }
            }
            _ => Ok(()),
        };
        if sent.is_err() {
            return Ok(());
        }
    }
}

fn framed(kind: u8, data: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(data.len() + 1);
    frame.push(kind);
    frame.extend_from_slice(data);
    frame
}

fn resize(size: &TerminalSize) -> Vec<u8> {
    let number = |it| u16::try_from(it).unwrap_or(u16::MAX);
    let (width, height) = (number(size.columns), number(size.rows));
    let size = format!(r#"{{"Width":{width},"Height":{height}}}"#);
    framed(RESIZE, size.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use drover_proto::common::v1::StdinClosed;
    use futures::{channel::mpsc, stream};

    use super::*;

    type Received = tokio::sync::mpsc::Receiver<Result<ProcessOutput>>;

    fn client(input: Vec<exec_request::Input>) -> (Client, Received) {
        let (output, received) = tokio::sync::mpsc::channel(4);
        let client = Client {
            input: stream::iter(input.into_iter().map(Ok)).boxed(),
            output,
            stdin: true,
            terminal: None,
            closes: true,
        };
        (client, received)
    }

    fn stdin(data: &[u8]) -> exec_request::Input {
        exec_request::Input::Stdin(chunk(data))
    }

    fn frames(all: &[&[u8]]) -> impl Stream<Item = std::result::Result<Bytes, Infallible>> + use<> {
        let all: Vec<_> = all
            .iter()
            .map(|it| Ok(Bytes::copy_from_slice(it)))
            .collect();
        stream::iter(all)
    }

    const ENDED: &[u8] = b"\x03{\"status\":\"Failure\",\"message\":\"exit 3\"}";

    #[tokio::test(start_paused = true)]
    async fn the_status_of_a_command_that_closed_its_stdin_is_not_lost() {
        let refusing = futures::sink::unfold((), |(), _: Vec<u8>| async { Err::<(), _>(()) });
        let late = stream::once(tokio::time::sleep(Duration::from_secs(1)))
            .filter_map(|()| async { None })
            .chain(frames(&[ENDED]));
        let (client, _received) = client(vec![stdin(b"unread")]);
        let status = talk(late, refusing, client).await.unwrap();
        assert_eq!(status.unwrap().message.as_deref(), Some("exit 3"));
    }

    #[tokio::test(start_paused = true)]
    async fn output_is_read_while_the_command_reads_nothing() {
        let full = futures::sink::unfold((), |(), _: Vec<u8>| {
            std::future::pending::<std::result::Result<(), ()>>()
        });
        let (client, mut received) = client(vec![stdin(&[0; 3 * MAX_FRAME])]);
        let talked = talk(
            frames(&[b"\x01", b"\x01out", b"\x02err", ENDED]),
            full,
            client,
        );
        let (status, outputs) = futures::join!(talked, async {
            let mut outputs = Vec::new();
            while let Some(piece) = received.recv().await {
                outputs.push(piece.unwrap().output.unwrap());
            }
            outputs
        });
        assert!(status.unwrap().is_some());
        let expected = [Output::Stdout(chunk(b"out")), Output::Stderr(chunk(b"err"))];
        assert_eq!(outputs, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn input_is_sent_in_order_and_its_end_is_told_once() {
        let (to, sent) = mpsc::unbounded();
        let resized = exec_request::Input::Resize(TerminalSize {
            columns: 100,
            rows: 70_000,
        });
        let closed = exec_request::Input::StdinClosed(StdinClosed::default());
        let (mut client, _received) = client(vec![stdin(b"a"), resized, closed, stdin(b"b")]);
        client.terminal = Some(TerminalSize {
            columns: 80,
            rows: 24,
        });
        let open = stream::pending::<std::result::Result<Bytes, Infallible>>();
        let talked = tokio::time::timeout(Duration::from_secs(1), talk(open, to, client));
        assert!(talked.await.is_err(), "the command has not ended");
        let sent: Vec<Vec<u8>> = sent.collect().await;
        let resized = |text: &str| framed(RESIZE, text.as_bytes());
        let expected = [
            resized(r#"{"Width":80,"Height":24}"#),
            framed(STDIN, b"a"),
            resized(r#"{"Width":100,"Height":65535}"#),
            vec![CLOSE, STDIN],
        ];
        assert_eq!(sent, expected);
    }

    #[tokio::test]
    async fn a_connection_that_ends_without_a_status_is_cut() {
        let (client, _received) = client(Vec::new());
        let talked = talk(frames(&[b"\x01out"]), futures::sink::drain(), client).await;
        assert!(talked.unwrap().is_none());
    }
}
