//! Pieces of streams: at most as long as a chunk may be, as bytes or as text.

use drover_proto::common::v1::{Chunk, chunk::Content};

/// Largest chunk, in bytes.
pub const MAX_CHUNK: usize = 64 * 1024;

/// Splits bytes into chunks. Nothing becomes no chunk. As text, what is no UTF-8 becomes U+FFFD, and characters are never split.
#[derive(Debug, Default)]
pub struct Text {
    as_text: bool,
    /// Beginning of a character whose end has not come yet.
    begun: Vec<u8>,
}

impl Text {
    /// `as_text`: whether the chunks are text.
    #[must_use]
    pub fn new(as_text: bool) -> Self {
        Self {
            as_text,
            begun: Vec::new(),
        }
    }

    /// The chunks of what came next.
    pub fn chunks(&mut self, data: Vec<u8>) -> Vec<Chunk> {
        if !self.as_text {
            if (1..=MAX_CHUNK).contains(&data.len()) {
                return vec![of(Content::Data(data))];
            }
            let pieces = data.chunks(MAX_CHUNK);
            return pieces
                .map(|piece| of(Content::Data(piece.to_vec())))
                .collect();
        }
        let mut bytes = std::mem::take(&mut self.begun);
        bytes.extend(data);
        if let Some(last) = bytes.utf8_chunks().last()
            && is_begun(last.invalid())
        {
            self.begun = last.invalid().to_vec();
            bytes.truncate(bytes.len() - self.begun.len());
        }
        let text = String::from_utf8_lossy(&bytes);
        let mut rest = &*text;
        let mut chunks = Vec::new();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.floor_char_boundary(MAX_CHUNK));
            chunks.push(of(Content::Text(piece.to_owned())));
            rest = after;
        }
        chunks
    }

    /// What is left at the end.
    pub fn rest(&mut self) -> Option<Chunk> {
        let begun = std::mem::take(&mut self.begun);
        let text = || String::from_utf8_lossy(&begun).into_owned();
        (!begun.is_empty()).then(|| of(Content::Text(text())))
    }
}

/// The content of a chunk.
#[must_use]
pub fn bytes(chunk: Chunk) -> Vec<u8> {
    match chunk.content {
        Some(Content::Data(data)) => data,
        Some(Content::Text(text)) => text.into_bytes(),
        None => Vec::new(),
    }
}

fn is_begun(bytes: &[u8]) -> bool {
    !bytes.is_empty()
        && std::str::from_utf8(bytes)
            .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}

fn of(content: Content) -> Chunk {
    Chunk {
        content: Some(content),
    }
}

#[cfg(test)]
mod tests;
