//! Sockets: the process that holds a port, and a timeout for the connection preface.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    path::Path,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

/// Describes the process that listens on a port: pid, program and directory. Linux only, and limited to what this user
/// may see.
pub(crate) fn holder(address: SocketAddr) -> Option<String> {
    let inodes = listening(address.port());
    for process in std::fs::read_dir("/proc").ok()?.flatten() {
        let name = process.file_name();
        let Some(pid) = name
            .to_str()
            .filter(|pid| pid.bytes().all(|b| b.is_ascii_digit()))
        else {
            continue;
        };
        if holds(&process.path(), &inodes) {
            let command = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            // Without arguments, which may be secret.
            let program = command
                .split(|b| *b == 0)
                .next()
                .map(String::from_utf8_lossy)
                .unwrap_or_default();
            let directory = std::fs::read_link(process.path().join("cwd"));
            let directory = directory
                .map(|path| format!(" in {}", path.display()))
                .unwrap_or_default();
            return Some(format!("pid {pid} ({program}){directory}"));
        }
    }
    None
}

/// Returns the inodes of the sockets that listen on a port.
fn listening(port: u16) -> Vec<String> {
    /// State of listening sockets in `/proc/net/tcp`.
    const LISTEN: &str = "0A";
    let mut inodes = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        for line in std::fs::read_to_string(table)
            .unwrap_or_default()
            .lines()
            .skip(1)
        {
            let fields: Vec<_> = line.split_ascii_whitespace().collect();
            let (Some(local), Some(state), Some(inode)) =
                (fields.get(1), fields.get(3), fields.get(9))
            else {
                continue;
            };
            let held = local
                .rsplit(':')
                .next()
                .and_then(|hex| u16::from_str_radix(hex, 16).ok());
            if *state == LISTEN && held == Some(port) {
                inodes.push(format!("socket:[{inode}]"));
            }
        }
    }
    inodes
}

fn holds(process: &Path, inodes: &[String]) -> bool {
    let Ok(files) = std::fs::read_dir(process.join("fd")) else {
        return false;
    };
    files
        .flatten()
        .filter_map(|file| std::fs::read_link(file.path()).ok())
        .any(|target| {
            target
                .to_str()
                .is_some_and(|target| inodes.iter().any(|inode| inode == target))
        })
}

/// Connection preface of HTTP/2 with prior knowledge.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Closes a connection whose protocol is not known in time: the timeouts of hyper only apply after that.
pub(crate) struct PrefaceTimeout<S> {
    stream: S,
    seen: usize,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl<S> PrefaceTimeout<S> {
    pub(crate) fn new(stream: S, timeout: Duration) -> Self {
        Self {
            stream,
            seen: 0,
            sleep: Some(Box::pin(tokio::time::sleep(timeout))),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PrefaceTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let outcome = Pin::new(&mut this.stream).poll_read(cx, buf);
        let Some(sleep) = &mut this.sleep else {
            return outcome;
        };
        if outcome.is_pending() {
            return sleep
                .as_mut()
                .poll(cx)
                .map(|()| Err(io::ErrorKind::TimedOut.into()));
        }
        let new = &buf.filled()[before..];
        let expected = &PREFACE[this.seen..];
        let same = new.iter().zip(expected).take_while(|(a, b)| a == b).count();
        this.seen += same;
        // Either it is HTTP/1, or the preface is complete.
        if same < new.len().min(expected.len()) || this.seen == PREFACE.len() {
            this.sleep = None;
        }
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PrefaceTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
