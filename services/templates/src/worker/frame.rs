//! Wire format between the worker process and its client.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
};

use drover_core::{Error, Reason, Result};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::render::MAX_RENDERED;

/// Kinds of frames.
pub(super) const SESSION: u8 = 0;
pub(super) const QUESTION: u8 = 1;
const DONE: u8 = 2;
const FAILED: u8 = 3;

/// Maximum answer size: a text and its kind; errors are shorter.
pub const MAX_ANSWER: usize = MAX_RENDERED + 1;

/// Size of the length prefix.
const HEAD: usize = 4;

/// Result of a question.
pub type Answer = Result<String>;

/// An error in its wire format.
#[derive(Serialize, Deserialize)]
struct Failure {
    reason: String,
    message: String,
    metadata: BTreeMap<String, String>,
}

/// Serializes a frame.
pub(super) fn write(kind: u8, body: &impl Serialize) -> Result<Vec<u8>> {
    let mut frame = vec![0; HEAD];
    frame.push(kind);
    serde_json::to_writer(&mut frame, body).map_err(|_| Error::internal("a text: not JSON"))?;
    closed(frame).ok_or_else(|| Error::internal("a text: too large"))
}

/// Fills in the length prefix of a frame.
fn closed(mut frame: Vec<u8>) -> Option<Vec<u8>> {
    let length = u32::try_from(frame.len() - HEAD).ok()?;
    frame[..HEAD].copy_from_slice(&length.to_le_bytes());
    Some(frame)
}

pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    // The messages of serde repeat content.
    serde_json::from_slice(body).map_err(|_| Error::internal("a text cannot be read"))
}

/// Reads the next frame. `None` at the end of the input.
pub(super) fn read(input: &mut impl Read) -> io::Result<Option<(u8, Vec<u8>)>> {
    let mut head = [0; HEAD];
    match input.read_exact(&mut head) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let mut kind = [0];
    input.read_exact(&mut kind)?;
    let length = (u32::from_le_bytes(head) as usize).saturating_sub(1);
    let mut body = vec![0; length];
    input.read_exact(&mut body)?;
    Ok(Some((kind[0], body)))
}

/// Sends an answer.
pub(super) fn answer(output: &mut impl Write, answer: Answer) -> io::Result<()> {
    let mut frame = vec![0; HEAD];
    match answer {
        Ok(text) => {
            frame.push(DONE);
            frame.extend_from_slice(text.as_bytes());
        }
        Err(error) => {
            frame.push(FAILED);
            let failure = Failure {
                reason: match error.reason() {
                    Reason::Invalid => "invalid",
                    Reason::Precondition => "precondition",
                    Reason::Unavailable => "unavailable",
                    _ => "internal",
                }
                .to_owned(),
                message: error.message().to_owned(),
                metadata: error.metadata().clone(),
            };
            serde_json::to_writer(&mut frame, &failure)?;
        }
    }
    let frame = closed(frame).ok_or_else(|| io::Error::other("too large"))?;
    output.write_all(&frame)?;
    output.flush()
}

/// An answer that is still being received.
#[derive(Default)]
pub struct Incoming(Vec<u8>);

impl Incoming {
    /// Adds received bytes. Returns the answer once it is complete.
    ///
    /// # Errors
    ///
    /// `Internal` for data that no worker process sends.
    pub fn take(&mut self, bytes: &[u8]) -> Result<Option<Answer>> {
        self.0.extend_from_slice(bytes);
        let Some((head, frame)) = self.0.split_first_chunk::<HEAD>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*head) as usize;
        if length == 0 || length > MAX_ANSWER {
            return Err(foreign());
        }
        if frame.len() < length {
            return Ok(None);
        }
        let (kind, body) = (frame[0], &frame[1..length]);
        match kind {
            DONE => {
                let text = String::from_utf8(body.to_vec()).map_err(|_| foreign())?;
                Ok(Some(Ok(text)))
            }
            FAILED => {
                let failure: Failure = parse(body)?;
                let reason = match failure.reason.as_str() {
                    "invalid" => Reason::Invalid,
                    "precondition" => Reason::Precondition,
                    "unavailable" => Reason::Unavailable,
                    _ => Reason::Internal,
                };
                let error = Error::new(reason, failure.message);
                let with = |error: Error, (key, value)| error.with_metadata(key, value);
                Ok(Some(Err(failure.metadata.into_iter().fold(error, with))))
            }
            _ => Err(foreign()),
        }
    }
}

fn foreign() -> Error {
    Error::internal("the process that renders texts answers what it should not")
}
