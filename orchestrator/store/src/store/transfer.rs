//! The portable export of a store, and the human-readable dump.

use bytes::Bytes;
use drover_core::{Error, Reason, Result};
use prost::Message;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{Store, mark_restored, read_meta};
use crate::{
    backend::{Backend, CommitError, Entry, Expect, Lane, PAGE, Range, Revision, Txn},
    keys::{Key, Name},
    value::{
        Chunk, Desired, Epoch, Head, Meta, NewEvent, Owner, PlatformRow, Replica, RevisionRow,
        Tombstone,
    },
};

/// Renders for people the values that only the orchestrator can read: the value of a node, request or resource, the
/// spec of a desired state or platform, the state of a head. If it returns `None`, only the length is shown.
pub type Decoder<'a> = &'a (dyn Fn(&Name, &[u8]) -> Option<Value> + Send + Sync);

/// Summary of an export, import or dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Number of keys.
    pub entries: u64,
    /// Revision of the store at which they were read.
    pub revision: Revision,
}

/// First bytes of an export, with the version of its format.
const MAGIC: &[u8; 16] = b"drover export 1\n";

/// Maximum length of a frame; nothing that a transaction may contain results in a longer one.
const MAX_FRAME: usize = 512 * 1024;

/// A frame of an export: the length of the message in 4 bytes, big endian, then the message.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
struct Frame {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
    /// Only in the last frame, which has no key.
    #[prost(message, optional, tag = "3")]
    end: Option<End>,
}

#[derive(Clone, PartialEq, Message)]
struct End {
    #[prost(uint64, tag = "1")]
    entries: u64,
    #[prost(fixed64, tag = "2")]
    checksum: u64,
    #[prost(uint64, tag = "3")]
    revision: u64,
}

/// FNV-1a over everything before the last frame: detects damage, not manipulation.
struct Checksum(u64);

impl Checksum {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// A claim belongs to a process, not to the store.
fn portable(key: &Key) -> bool {
    !key.is_leased()
}

/// Writes all keys at one revision.
pub(super) async fn export(
    backend: &dyn Backend,
    out: &mut (dyn AsyncWrite + Unpin + Send),
) -> Result<Summary> {
    let failed = |e: std::io::Error| Error::unavailable(format!("cannot write the export: {e}"));
    let mut scan = backend.scan(Range::all(), PAGE).await?;
    let mut end = End {
        entries: 0,
        checksum: 0,
        revision: scan.revision(),
    };
    let mut checksum = Checksum::new();
    out.write_all(MAGIC).await.map_err(failed)?;
    let mut buffer = Vec::new();
    while let Some(page) = scan.next().await {
        buffer.clear();
        for Entry { key, value, .. } in page?.into_iter().filter(|entry| portable(&entry.key)) {
            frame(
                &mut buffer,
                &Frame {
                    key: key.into_bytes(),
                    value,
                    end: None,
                },
            );
            end.entries += 1;
        }
        checksum.add(&buffer);
        out.write_all(&buffer).await.map_err(failed)?;
    }
    end.checksum = checksum.0;
    let summary = Summary {
        entries: end.entries,
        revision: end.revision,
    };
    buffer.clear();
    frame(
        &mut buffer,
        &Frame {
            key: Vec::new(),
            value: Bytes::new(),
            end: Some(end),
        },
    );
    out.write_all(&buffer).await.map_err(failed)?;
    out.flush().await.map_err(failed)?;
    Ok(summary)
}

fn frame(buffer: &mut Vec<u8>, frame: &Frame) {
    let bytes = frame.encode_to_vec();
    buffer.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    buffer.extend_from_slice(&bytes);
}

/// Writes an export into an empty backend. The metadata that identifies the store comes last, so that a partial import
/// is never opened. The store is held, as after [`super::restore`].
pub async fn import(
    backend: &dyn Backend,
    from: &mut (dyn AsyncRead + Unpin + Send),
) -> Result<Summary> {
    let there = backend
        .scan(
            Range {
                limit: Some(1),
                ..Range::all()
            },
            1,
        )
        .await?
        .collect()
        .await?;
    if !there.is_empty() {
        return Err(Error::new(
            Reason::AlreadyExists,
            "the store is not empty; import into a new one",
        ));
    }
    let failed = |e: std::io::Error| {
        Error::invalid("", format!("the export cannot be read to its end: {e}"))
    };
    let mut magic = [0; MAGIC.len()];
    from.read_exact(&mut magic).await.map_err(failed)?;
    if magic != *MAGIC {
        return Err(Error::invalid(
            "",
            "this is not an export of drover that this version can read",
        ));
    }
    let limits = backend.info().limits;
    let (mut txn, mut bytes, mut meta) = (Txn::default(), 0, None);
    let (mut entries, mut checksum) = (0, Checksum::new());
    let end = loop {
        let mut length = [0; 4];
        from.read_exact(&mut length).await.map_err(failed)?;
        let len = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if len > MAX_FRAME {
            return Err(damaged());
        }
        let mut message = vec![0; len];
        from.read_exact(&mut message).await.map_err(failed)?;
        let frame = Frame::decode(message.as_slice()).map_err(|_| damaged())?;
        if let Some(end) = frame.end {
            break end;
        }
        checksum.add(&length);
        checksum.add(&message);
        entries += 1;
        let key = Key::from_bytes(frame.key);
        if key.parse() == Some(Name::Meta) {
            meta = Some((key, frame.value));
            continue;
        }
        let more = key.len() + frame.value.len();
        if txn.ops.len() == limits.operations || bytes + more > limits.bytes {
            write(backend, std::mem::take(&mut txn)).await?;
            bytes = 0;
        }
        bytes += more;
        txn = txn.put(key, frame.value);
    };
    if end.entries != entries || end.checksum != checksum.0 {
        return Err(damaged());
    }
    if !txn.ops.is_empty() {
        write(backend, txn).await?;
    }
    let (key, value) = meta.ok_or_else(damaged)?;
    let held = Meta {
        held: true,
        ..Meta::decode(value).map_err(|_| damaged())?
    };
    // Nobody has made a store there meanwhile.
    let last = Txn::default()
        .expect(key.clone(), Expect::Absent)
        .put(key, held.encode_to_vec());
    match backend.commit(last, Lane::Bulk).await {
        Ok(_) | Err(CommitError::Unknown) => {}
        Err(error) => return Err(error.into()),
    }
    read_meta(backend).await?;
    mark_restored(backend).await?;
    Ok(Summary {
        entries,
        revision: end.revision,
    })
}

fn damaged() -> Error {
    Error::invalid("", "the export is damaged; make it again")
}

/// There is no other writer, so the same values may be written twice.
async fn write(backend: &dyn Backend, txn: Txn) -> Result<()> {
    match backend.commit(txn.clone(), Lane::Bulk).await {
        Err(CommitError::Unknown) => backend.commit(txn, Lane::Bulk).await?,
        outcome => outcome?,
    };
    Ok(())
}

impl Store {
    /// Writes the portable export of the store, all at one revision. [`crate::import`] reads it into any backend.
    pub async fn export(&self, out: &mut (dyn AsyncWrite + Unpin + Send)) -> Result<Summary> {
        export(&*self.backend, out).await
    }

    /// Writes a human-readable dump: one line of JSON per key. Secrets are never shown.
    pub async fn dump(
        &self,
        out: &mut (dyn AsyncWrite + Unpin + Send),
        decoder: Decoder<'_>,
    ) -> Result<Summary> {
        let failed = |e: std::io::Error| Error::unavailable(format!("cannot write the dump: {e}"));
        let mut scan = self.backend.scan(Range::all(), PAGE).await?;
        let mut summary = Summary {
            entries: 0,
            revision: scan.revision(),
        };
        while let Some(page) = scan.next().await {
            let mut lines = Vec::new();
            for entry in page? {
                let value = entry
                    .key
                    .parse()
                    .and_then(|name| show(&name, &entry.value, decoder));
                let value = value.unwrap_or_else(|| length(&entry.value));
                let line = json!({"key": entry.key.to_string(), "revision": entry.revision, "value": value});
                lines.extend_from_slice(line.to_string().as_bytes());
                lines.push(b'\n');
                summary.entries += 1;
            }
            out.write_all(&lines).await.map_err(failed)?;
        }
        out.flush().await.map_err(failed)?;
        Ok(summary)
    }
}

fn length(bytes: &[u8]) -> Value {
    json!({"bytes": bytes.len()})
}

fn show(name: &Name, bytes: &[u8], decoder: Decoder<'_>) -> Option<Value> {
    let opaque = |bytes: &[u8]| decoder(name, bytes).unwrap_or_else(|| length(bytes));
    Some(match name {
        Name::Desired(_) => {
            let d = Desired::decode(bytes).ok()?;
            json!({
                "name": d.name, "labels": d.labels, "generation": d.generation, "author": d.author,
                "applyTimeMs": d.apply_time_ms, "createTimeMs": d.create_time_ms, "deleteTimeMs": d.delete_time_ms,
                "paused": d.paused.map(|p| json!({"reason": p.reason, "timeMs": p.time_ms})), "marks": d.marks, "scaledAway": d.scaled_away,
                "extra": d.extra.iter().map(|(k, v)| (k.clone(), length(v))).collect::<serde_json::Map<_, _>>(),
                "spec": opaque(&d.spec),
            })
        }
        Name::Head(_) => {
            let h = Head::decode(bytes).ok()?;
            json!({
                "firstSeq": h.first_seq(), "lastSeq": h.last_seq, "nextSlot": h.next_slot,
                "nextSequence": h.next_sequence, "skipped": h.skipped, "observedGeneration": h.observed_generation, "state": opaque(&h.state),
            })
        }
        Name::Node(..) | Name::Request(..) | Name::Resource(..) => opaque(bytes),
        Name::Epoch(_) => json!({"epoch": Epoch::decode(bytes).ok()?.epoch}),
        Name::Owner(_) => {
            let owner = Owner::decode(bytes).ok()?;
            json!({"replica": owner.replica, "epoch": owner.epoch})
        }
        Name::Doubt(_) => json!({}),
        Name::Replica(_) => {
            let replica = Replica::decode(bytes).ok()?;
            json!({"reads": replica.reads, "writes": replica.writes})
        }
        Name::Meta => {
            let m = Meta::decode(bytes).ok()?;
            let id = uuid::Uuid::from_slice(&m.id).ok()?;
            json!({"id": id.to_string(), "format": m.format, "incarnation": m.incarnation, "held": m.held})
        }
        Name::ClusterName(_) => json!(uuid::Uuid::from_slice(bytes).ok()?.to_string()),
        Name::Platform(_) => {
            let p = PlatformRow::decode(bytes).ok()?;
            json!({
                "name": p.name, "generation": p.generation, "uid": p.uid, "createTimeMs": p.create_time_ms,
                "spec": opaque(&p.spec), "state": length(&p.state),
            })
        }
        Name::Secret(_) | Name::UserData(..) => length(bytes),
        Name::Revision(..) => {
            let r = RevisionRow::decode(bytes).ok()?;
            json!({"applyTimeMs": r.apply_time_ms, "spec": opaque(&r.spec)})
        }
        Name::Tombstone(_) => {
            let t = Tombstone::decode(bytes).ok()?;
            json!({
                "name": t.name, "deleteTimeMs": t.delete_time_ms, "nextSequence": t.next_sequence,
                "firstSeq": t.first_seq.max(1), "lastSeq": t.last_seq, "platforms": length(&t.platforms),
            })
        }
        Name::Events(..) => Value::Array(
            Chunk::decode(bytes)
                .ok()?
                .events
                .iter()
                .map(show_event)
                .collect(),
        ),
    })
}

fn show_event(event: &NewEvent) -> Value {
    json!({
        "timeMs": event.time_ms, "severity": event.severity, "reason": event.reason, "message": event.message,
        "group": event.group, "node": event.node, "platform": event.platform, "step": event.step,
        "traceId": event.trace_id, "count": event.count, "series": event.series,
    })
}
