//! `exec`: commands in a node through its platform, and how the output of nodes is written.

use std::{
    io::{IsTerminal, Read, Write, stderr, stdin, stdout},
    process::ExitCode,
};

use drover_proto::{
    common::v1::{Chunk, StdinClosed, TerminalSize, chunk, process_output::Output as Said},
    orchestrator::v1::{ExecNodeRequest, ExecNodeStart, exec_node_request::Input},
};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};

use super::target;
use crate::{
    cli::ExecArgs,
    client::{CALL_TIMEOUT, Client},
    failure::{Failure, Outcome},
    output::Visible,
};

/// Maximum size of a chunk, as the API defines it.
const CHUNK_BYTES: usize = 64 * 1024;
/// Maximum number of input chunks waiting to be sent.
const INPUT_QUEUE: usize = 4;

/// Writes the output of a node: unchanged to files and programs, without control sequences to a terminal.
pub(super) struct Output<W> {
    out: W,
    visible: Option<Visible>,
}

impl<W: Write> Output<W> {
    pub(super) fn new(out: W, shown: bool) -> Self {
        Self {
            out,
            visible: shown.then(Visible::default),
        }
    }

    /// Returns whether the output is still open.
    pub(super) fn write(&mut self, chunk: Chunk) -> Outcome<bool> {
        let bytes = content(chunk);
        match &mut self.visible {
            Some(visible) => {
                let text = visible.feed(&bytes);
                put(&mut self.out, text.as_bytes())
            }
            None => put(&mut self.out, &bytes),
        }
    }

    /// Writes the text that was held back because it might have been incomplete.
    pub(super) fn finish(&mut self) -> Outcome<bool> {
        let rest = self.visible.as_mut().map(Visible::finish);
        put(&mut self.out, rest.unwrap_or_default().as_bytes())
    }
}

pub(super) fn content(chunk: Chunk) -> Vec<u8> {
    match chunk.content {
        Some(chunk::Content::Data(data)) => data,
        Some(chunk::Content::Text(text)) => text.into_bytes(),
        None => Vec::new(),
    }
}

/// Writes a piece of endless output. Returns whether somebody still reads it.
pub(super) fn put(out: &mut impl Write, bytes: &[u8]) -> Outcome<bool> {
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Runs a command inside a node. Returns the exit code of the command.
pub(crate) async fn exec(client: &Client, args: ExecArgs) -> Result<ExitCode, Failure> {
    let (cluster, id) = target::node(&args.node)?;
    let tty = args.tty && stdin().is_terminal();
    if args.tty && !tty {
        complain!("standard input is not a terminal: -t is left out");
    }
    let start = ExecNodeStart {
        cluster,
        id,
        command: args.command.clone(),
        stdin: args.stdin,
        tty,
        terminal_size: tty.then(terminal_size).flatten(),
        as_text: false,
    };
    let (sender, receiver) = mpsc::channel(INPUT_QUEUE);
    let first = ExecNodeRequest {
        input: Some(Input::Start(start)),
    };
    if sender.send(first).await.is_err() {
        return Err(Failure::failed("the call ended before it began"));
    }
    let raw = if tty { RawTerminal::enter() } else { None };
    if args.stdin {
        let sender = sender.clone();
        std::thread::spawn(move || send_input(&sender));
    }
    // Without input the sender stays open, so that the server decides when the call ends.
    let result = receive(client, receiver, tty).await;
    drop(sender);
    drop(raw);
    result
}

async fn receive(
    client: &Client,
    receiver: mpsc::Receiver<ExecNodeRequest>,
    tty: bool,
) -> Result<ExitCode, Failure> {
    let mut stream = client
        .call(
            client
                .api
                .exec_node(ReceiverStream::new(receiver), CALL_TIMEOUT),
        )
        .await?;
    // With -t the control sequences of the program are passed on.
    let mut out = Output::new(stdout(), stdout().is_terminal() && !tty);
    let mut err = Output::new(stderr(), stderr().is_terminal() && !tty);
    while let Some(output) = stream.next().await {
        match output?.output {
            Some(Said::Stdout(chunk)) => {
                out.write(chunk)?;
            }
            Some(Said::Stderr(chunk)) => {
                err.write(chunk)?;
            }
            Some(Said::ExitCode(code)) => {
                out.finish()?;
                err.finish()?;
                return Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)));
            }
            None => {}
        }
    }
    Err(Failure::failed(
        "the call ended without an exit code; whether the command ran to its end is not known",
    ))
}

/// Sends standard input. Reading blocks, so it runs on a thread of its own, which the process does not wait for.
fn send_input(sender: &mpsc::Sender<ExecNodeRequest>) {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let message = match stdin().lock().read(&mut buffer) {
            Ok(0) | Err(_) => Input::StdinClosed(StdinClosed {}),
            Ok(read) => Input::Stdin(Chunk {
                content: Some(chunk::Content::Data(buffer[..read].to_vec())),
            }),
        };
        let last = matches!(message, Input::StdinClosed(_));
        if sender
            .blocking_send(ExecNodeRequest {
                input: Some(message),
            })
            .is_err()
            || last
        {
            return;
        }
    }
}

fn terminal_size() -> Option<TerminalSize> {
    let size = tcgetwinsize(stdout()).ok()?;
    Some(TerminalSize {
        columns: size.ws_col.into(),
        rows: size.ws_row.into(),
    })
}

/// A terminal in raw mode. Dropping it restores the previous mode.
struct RawTerminal(Termios);

impl RawTerminal {
    fn enter() -> Option<Self> {
        let before = tcgetattr(stdin()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Now, &raw).ok()?;
        Some(Self(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // Fails only if the terminal is gone.
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_bytes_for_programs_and_text_for_people() {
        let pieces: [&[u8]; 3] = [b"\x1b[31mred \xc3", b"\xa4\r", b"\n\xff\x07"];
        let print = |shown| {
            let mut out = Output::new(Vec::new(), shown);
            for piece in pieces {
                let content = Some(chunk::Content::Data(piece.to_vec()));
                assert!(out.write(Chunk { content }).unwrap());
            }
            out.finish().unwrap();
            out.out
        };
        assert_eq!(print(false), pieces.concat());
        let text = String::from_utf8(print(true)).unwrap();
        assert_eq!(text, "\\u001b[31mred ä\n\u{fffd}\\u0007");
    }
}
