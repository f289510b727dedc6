//! Logs of nodes: a current file and one rotated file.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::StreamLogsRequest;
use futures::stream;
use tokio::time::sleep;

use super::{
    node::{Node, blocking},
    state::{LOG, OLD_LOG},
};
use drover_platform::driver::LogStream;

/// Size in bytes above which a log is rotated. At most twice as much is kept per node.
const MAX_LOG: u64 = 16 * 1024 * 1024;

/// Maximum chunk that is sent at once: the largest chunk of the API.
const PIECE: usize = 64 * 1024;

/// Poll interval of a followed log, short enough for interactive use.
const FOLLOW: Duration = Duration::from_millis(100);

/// Rotates a large log. The process keeps its file open, so the log is copied and truncated; output written between the
/// two is lost.
pub(super) fn rotate(directory: &Path) -> io::Result<()> {
    rotate_above(directory, MAX_LOG)
}

fn rotate_above(directory: &Path, limit: u64) -> io::Result<()> {
    let log = directory.join(LOG);
    match fs::metadata(&log) {
        Ok(meta) if meta.len() > limit => {
            fs::copy(&log, directory.join(OLD_LOG))?;
            File::options().write(true).open(&log)?.set_len(0)
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Streams the log of a node as requested.
pub(super) fn stream(node: Arc<Node>, request: &StreamLogsRequest) -> Result<LogStream> {
    if request.previous {
        return Err(Error::new(
            Reason::NodeNotRunning,
            "processes are never restarted in place, so there is no previous log",
        ));
    }
    if request.since.is_some() {
        return Err(Error::new(
            Reason::Unimplemented,
            "the lines of a process carry no times, so they cannot be chosen by age; ask for the last lines by their number",
        ));
    }
    if !request.follow && node.is_pending() {
        return Err(Error::new(
            Reason::NodeNotRunning,
            "the process of the node has not started",
        ));
    }
    let reader = Reader {
        directory: node.directory.clone(),
        node,
        parts: Vec::new(),
        position: 0,
        follow: request.follow,
        begun: false,
        tail: request.tail_lines,
    };
    Ok(Box::pin(stream::try_unfold(reader, Reader::next)))
}

struct Reader {
    node: Arc<Node>,
    directory: PathBuf,
    /// The retained lines before the position, in reverse order.
    parts: Vec<Vec<u8>>,
    /// How far the current log was read.
    position: u64,
    follow: bool,
    begun: bool,
    tail: Option<u32>,
}

impl Reader {
    async fn next(mut self) -> Result<Option<(Vec<u8>, Self)>> {
        loop {
            if !self.begun {
                self.begin()
                    .await
                    .map_err(|error| self.unreadable(&error))?;
            }
            if let Some(part) = self.parts.pop() {
                return Ok(Some((part, self)));
            }
            // Checked before reading, so that the last output is not missed.
            let ended = self.node.process().is_none() && !self.node.is_pending();
            let (path, position) = (self.directory.join(LOG), self.position);
            let piece = match blocking(move || read_at(&path, position)).await {
                Ok(piece) => piece,
                // The node was deleted.
                Err(error) if error.kind() == io::ErrorKind::NotFound => (Vec::new(), position),
                Err(error) => return Err(self.unreadable(&error)),
            };
            let (bytes, position) = piece;
            self.position = position + bytes.len() as u64;
            if !bytes.is_empty() {
                return Ok(Some((bytes, self)));
            }
            if !self.follow || ended {
                return Ok(None);
            }
            sleep(FOLLOW).await;
        }
    }

    /// Reads the existing log once.
    async fn begin(&mut self) -> io::Result<()> {
        self.begun = true;
        let (directory, tail) = (self.directory.clone(), self.tail);
        let (kept, position) = blocking(move || {
            let old = if_there(fs::read(directory.join(OLD_LOG)))?;
            let log = if_there(fs::read(directory.join(LOG)))?;
            let position = log.len() as u64;
            let mut kept = old;
            kept.extend_from_slice(&log);
            Ok((last_lines(kept, tail), position))
        })
        .await?;
        self.position = position;
        self.parts = kept.chunks(PIECE).rev().map(<[u8]>::to_vec).collect();
        Ok(())
    }

    fn unreadable(&self, error: &io::Error) -> Error {
        Error::internal(format!(
            "the log in {} cannot be read: {error}",
            self.directory.display()
        ))
    }
}

fn if_there(content: io::Result<Vec<u8>>) -> io::Result<Vec<u8>> {
    match content {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        content => content,
    }
}

/// Reads up to one chunk from a position, or from the start if the log was truncated. Returns the position that it was
/// read from.
fn read_at(path: &Path, position: u64) -> io::Result<(Vec<u8>, u64)> {
    let mut file = File::open(path)?;
    let position = if file.metadata()?.len() < position {
        0
    } else {
        position
    };
    file.seek(SeekFrom::Start(position))?;
    let mut piece = Vec::new();
    file.take(PIECE as u64).read_to_end(&mut piece)?;
    Ok((piece, position))
}

/// The last lines, including an unfinished one.
fn last_lines(mut text: Vec<u8>, lines: Option<u32>) -> Vec<u8> {
    let Some(lines) = lines else { return text };
    let end = text.len() - usize::from(text.ends_with(b"\n"));
    let mut left = lines;
    let mut start = text.len();
    if left > 0 && !text.is_empty() {
        start = end;
        while start > 0 {
            if text[start - 1] == b'\n' {
                left -= 1;
                if left == 0 {
                    break;
                }
            }
            start -= 1;
        }
    }
    text.drain(..start);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_counted_from_the_end() {
        for (text, lines, expected) in [
            ("a\nb\nc\n", Some(2), "b\nc\n"),
            ("a\nb\nc", Some(2), "b\nc"),
            ("a\nb\nc\n", Some(9), "a\nb\nc\n"),
            ("a\nb\nc\n", Some(0), ""),
            ("a\n\n\n", Some(2), "\n\n"),
            ("", Some(3), ""),
            ("a\nb", None, "a\nb"),
        ] {
            let got = last_lines(text.as_bytes().to_vec(), lines);
            assert_eq!(
                String::from_utf8(got).unwrap(),
                expected,
                "{lines:?} of {text:?}"
            );
        }
    }

    #[test]
    fn a_large_log_is_moved_aside_once_and_the_writer_goes_on() {
        use std::io::Write;

        let directory = tempfile::tempdir().unwrap();
        let mut log = File::options()
            .create(true)
            .append(true)
            .open(directory.path().join(LOG))
            .unwrap();
        log.write_all(b"first\n").unwrap();
        rotate_above(directory.path(), 100).unwrap();
        assert!(!directory.path().join(OLD_LOG).exists());
        rotate_above(directory.path(), 3).unwrap();
        log.write_all(b"next\n").unwrap();
        assert_eq!(
            fs::read(directory.path().join(OLD_LOG)).unwrap(),
            b"first\n"
        );
        assert_eq!(fs::read(directory.path().join(LOG)).unwrap(), b"next\n");
    }
}
