//! Coalesces all writes of a connection within one poll. HTTP/2 writes the end of a response separately from its body,
//! which would otherwise cost an additional system call, TLS record and packet per response.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Maximum number of buffered bytes: the size of a TLS record.
const MOST: usize = 16 * 1024;

/// A stream that buffers writes until [`Uncork::poll`].
pub(crate) struct Cork<S>(Arc<Mutex<Held<S>>>);

/// Flushes a [`Cork`].
pub(crate) struct Uncork<S>(Arc<Mutex<Held<S>>>);

struct Held<S> {
    stream: S,
    out: Vec<u8>,
    /// Number of bytes of `out` already written.
    gone: usize,
}

/// Wraps a stream. Returns the stream to write to, and the handle that must be polled after each poll of the writer.
pub(crate) fn cork<S>(stream: S) -> (Cork<S>, Uncork<S>) {
    let held = Arc::new(Mutex::new(Held {
        stream,
        out: Vec::new(),
        gone: 0,
    }));
    (Cork(held.clone()), Uncork(held))
}

impl<S: AsyncWrite + Unpin> Held<S> {
    /// Writes all buffered bytes.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.gone < self.out.len() {
            let stream = Pin::new(&mut self.stream);
            let written = ready!(stream.poll_write(cx, &self.out[self.gone..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.gone += written;
        }
        self.out.clear();
        self.gone = 0;
        // Idle connections should not keep a large buffer.
        self.out.shrink_to(MOST / 16);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> Uncork<S> {
    /// Writes the buffered bytes. The writer gets the same error at its next write.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut held = self.0.lock();
        if held.out.is_empty() {
            return Poll::Ready(Ok(()));
        }
        ready!(held.poll_drain(cx))?;
        Pin::new(&mut held.stream).poll_flush(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Cork<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Cork<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut held = self.0.lock();
        if held.out.len() >= MOST {
            ready!(held.poll_drain(cx))?;
        }
        let mut taken = 0;
        for buf in bufs {
            let room = MOST - held.out.len();
            let part = &buf[..buf.len().min(room)];
            held.out.extend_from_slice(part);
            taken += part.len();
            if part.len() < buf.len() {
                break;
            }
        }
        Poll::Ready(Ok(taken))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Deferred to the end of the poll.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut held = self.0.lock();
        ready!(held.poll_drain(cx))?;
        Pin::new(&mut held.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn what_is_written_goes_out_at_once_and_in_order() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let (mut cork, uncork) = cork(ours);
        cork.write_all(b"head").await.unwrap();
        cork.flush().await.unwrap();
        cork.write_all(b" and body").await.unwrap();
        let mut byte = [0; 1];
        let early = futures::poll!(std::pin::pin!(theirs.read(&mut byte)));
        assert!(early.is_pending());
        poll_fn(|cx| uncork.poll(cx)).await.unwrap();
        let mut all = [0; 13];
        theirs.read_exact(&mut all).await.unwrap();
        assert_eq!(&all, b"head and body");
    }

    #[tokio::test]
    async fn who_does_not_read_is_waited_for_and_nothing_is_lost() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let text: Vec<u8> = (0..200_000).map(|_| random.u8(..)).collect();
        let (ours, mut theirs) = tokio::io::duplex(1000);
        let (mut writer, uncork) = cork(ours);
        // Writes beyond the buffer size wait for the reader.
        let mut taken = 0;
        while let Poll::Ready(written) =
            futures::poll!(std::pin::pin!(writer.write(&text[taken..])))
        {
            taken += written.unwrap();
        }
        assert!(taken <= MOST + 1000, "{taken}");
        let (sent, mut received) = (text.clone(), Vec::new());
        let sending = async {
            writer.write_all(&sent[taken..]).await.unwrap();
            poll_fn(|cx| uncork.poll(cx)).await.unwrap();
            writer.shutdown().await.unwrap();
        };
        let (_, read) = tokio::join!(sending, theirs.read_to_end(&mut received));
        read.unwrap();
        assert!(received == text);
    }

    #[tokio::test]
    async fn a_reader_that_is_gone_is_an_error() {
        let (ours, theirs) = tokio::io::duplex(64);
        let (mut cork, uncork) = cork(ours);
        cork.write_all(b"x").await.unwrap();
        drop(theirs);
        poll_fn(|cx| uncork.poll(cx)).await.unwrap_err();
    }
}
