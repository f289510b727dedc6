//! The stored record of a cluster: our own messages, independent of the wire format.

use bytes::Bytes;
use drover_core::{
    Error, Result,
    node::{Request, RequestInFlight},
};
use prost::Message;
use uuid::Uuid;

mod head;
mod interner;
mod node;
mod rows;

use rows::RequestRow;

pub use self::{
    head::decode_head,
    interner::Interner,
    node::decode_node,
    rows::{Used, UsedList},
};
pub(crate) use self::{head::encode_head, node::encode_node};

fn number<T: PartialEq>(list: &[T], item: &T) -> u32 {
    // Numbers begin at 1, because 0 is an absent field.
    list.iter()
        .position(|one| one == item)
        .map_or(0, |at| at as u32 + 1)
}

fn item<T: Copy>(list: &[T], number: u32) -> Option<T> {
    list.get((number as usize).checked_sub(1)?).copied()
}

fn damaged(what: &str) -> Error {
    Error::internal(format!(
        "the stored {what} cannot be read: it is damaged, or of a newer version"
    ))
}

fn uuid(bytes: &[u8], what: &str) -> Result<Uuid> {
    Uuid::from_slice(bytes).map_err(|_| damaged(what))
}

/// Encodes the record of an open request.
pub(crate) fn encode_request(request: &Request, body: &Bytes) -> Bytes {
    RequestRow {
        id: Bytes::copy_from_slice(request.id.as_bytes()),
        sequence: request.sequence,
        group: request.group.to_string(),
        platform: request.platform.to_string(),
        platform_uid: request.platform_uid.to_string(),
        class: request.class.to_string(),
        spec_hash: request.spec_hash.to_string(),
        first_sent: request.first_sent,
        deadline: request.deadline,
        attempts: request.attempts,
        made_nothing: request.made_nothing,
        body: body.clone(),
    }
    .encode_to_vec()
    .into()
}

/// Decodes the record of an open request, and the request as it was sent.
///
/// # Errors
/// `Internal` if it is damaged, or of a newer version.
pub fn decode_request(bytes: &Bytes, interner: &Interner) -> Result<(Request, Bytes)> {
    let row = RequestRow::decode(bytes.clone()).map_err(|_| damaged("request"))?;
    let request = Request {
        id: uuid(&row.id, "request")?,
        sequence: row.sequence,
        group: interner.get(&row.group),
        platform: interner.get(&row.platform),
        platform_uid: interner.get(&row.platform_uid),
        class: interner.get(&row.class),
        spec_hash: interner.get(&row.spec_hash),
        first_sent: row.first_sent,
        deadline: row.deadline,
        attempts: row.attempts,
        made_nothing: row.made_nothing,
        in_flight: RequestInFlight::default(),
    };
    Ok((request, row.body))
}

#[cfg(test)]
mod tests;
