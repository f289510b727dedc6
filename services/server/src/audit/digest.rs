//! Keyed digests of requests. A short command, or a secret in a request, could be guessed from an unkeyed digest by
//! everyone who can read the log.

use std::{
    fmt::Write as _,
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use ring::{
    hmac,
    rand::{SecureRandom, SystemRandom},
};
use serde::Serialize;

/// Key length in bytes.
const KEY: usize = 32;
/// File mode: only the owner can read a key.
const MODE: u32 = 0o600;
/// Mode bits that give access to everyone.
const OTHERS: u32 = 0o007;
/// Maximum length of a recorded program name, in bytes.
const LONGEST_PROGRAM: usize = 64;

/// HMAC-SHA-256 of some content, and the length of the content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Digest {
    /// Hexadecimal.
    hmac: String,
    bytes: u64,
}

/// The audit record of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Command {
    /// Name of the program, without its directory.
    program: String,
    #[serde(flatten)]
    digest: Digest,
}

/// Key of the digests of a log.
#[derive(Clone)]
pub struct DigestKey(hmac::Key);

impl std::fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DigestKey")
    }
}

impl DigestKey {
    /// Creates a random key, which cannot be recovered later.
    pub(super) fn random() -> io::Result<Self> {
        Ok(Self::of(&random()?))
    }

    /// Reads a key file. Fails if it cannot be read, does not contain a key, or is readable by everyone.
    pub fn read(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        if file.metadata()?.permissions().mode() & OTHERS != 0 {
            let why = "everybody may read it; give it mode 0600";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let mut text = String::new();
        Read::by_ref(&mut file)
            .take(1024)
            .read_to_string(&mut text)?;
        let text = text.trim_end();
        let digits = text.len() == 2 * KEY && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
        let key: Option<Vec<u8>> = (0..KEY).map(|at| byte(2 * at)).collect();
        key.filter(|_| digits)
            .map(|key| Self::of(&key))
            .ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("expected {} hexadecimal digits", 2 * KEY),
                )
            })
    }

    /// Reads a key file, creating it if it does not exist.
    pub(super) fn read_or_make(path: &Path) -> io::Result<Self> {
        match Self::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            read => return read,
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(MODE)
            .open(path)?;
        let key = random()?;
        writeln!(file, "{}", hex(&key))?;
        file.sync_all()?;
        Ok(Self::of(&key))
    }

    fn of(key: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, key))
    }

    /// Digests a command. Each argument is length-prefixed, so that different commands never have the same input.
    #[must_use]
    pub fn command(&self, arguments: &[String]) -> Command {
        let mut sum = Sum::new(self);
        for argument in arguments {
            sum.hmac.update(&(argument.len() as u64).to_be_bytes());
            sum.update(argument.as_bytes());
        }
        let first = arguments.first().map_or("", String::as_str);
        let name = first.rsplit('/').next().unwrap_or_default();
        Command {
            program: name[..name.floor_char_boundary(LONGEST_PROGRAM)].to_owned(),
            digest: sum.digest(),
        }
    }
}

fn random() -> io::Result<[u8; KEY]> {
    let mut key = [0; KEY];
    let filled = SystemRandom::new().fill(&mut key);
    filled.map_err(|_| io::Error::other("the system has no random numbers"))?;
    Ok(key)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Cannot fail for a string.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Incremental digest.
#[derive(Clone)]
pub(crate) struct Sum {
    hmac: hmac::Context,
    bytes: u64,
}

impl std::fmt::Debug for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sum({} bytes)", self.bytes)
    }
}

impl Sum {
    pub(super) fn new(key: &DigestKey) -> Self {
        Self {
            hmac: hmac::Context::with_key(&key.0),
            bytes: 0,
        }
    }

    fn update(&mut self, piece: &[u8]) {
        self.hmac.update(piece);
        self.bytes += piece.len() as u64;
    }

    fn digest(&self) -> Digest {
        Digest {
            hmac: hex(self.hmac.clone().sign().as_ref()),
            bytes: self.bytes,
        }
    }

    /// The digest so far. `None` if there was no content.
    pub(super) fn so_far(&self) -> Option<Digest> {
        (self.bytes > 0).then(|| self.digest())
    }
}

pin_project_lite::pin_project! {
    /// A request body that is digested while it is read.
    pub(crate) struct Digested<B> {
        #[pin]
        inner: B,
        sum: Option<Arc<Mutex<Sum>>>,
        // Bytes to skip before the content: the gRPC message header has five.
        skip: usize,
    }
}

impl<B> Digested<B> {
    pub(crate) fn new(inner: B, sum: Option<Arc<Mutex<Sum>>>, skip: usize) -> Self {
        Self { inner, sum, skip }
    }
}

impl<B: Body<Data = Bytes>> Body for Digested<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let frame = this.inner.poll_frame(cx);
        if let (Poll::Ready(Some(Ok(frame))), Some(sum)) = (&frame, &this.sum)
            && let Some(data) = frame.data_ref()
        {
            let skipped = data.len().min(*this.skip);
            *this.skip -= skipped;
            sum.lock().update(&data[skipped..]);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
