//! Reads.

use std::time::Duration;

use drover_core::{Error, Reason, Result};
use drover_store::{
    Bytes, Revision,
    backend::{Entry, Range, Scan},
};
use prost::Message;
use tokio::sync::mpsc;
use tonic::{Code, Status};

use crate::{
    api::{RangeRequest, RangeResponse, kv_client::KvClient},
    backend::Inner,
    commit::said,
    login,
};

/// How long a read may take, with all its repetitions. Longer than an election takes.
pub(crate) const READ: Duration = Duration::from_secs(5);
/// Keys that etcd is asked for at once: it walks the rest of the range for each answer, however small (etcd issue
/// 11057), so that few and large ones are quicker.
const MOST: usize = 8192;
/// Answers above this are halved, those below an eighth of it doubled.
const LARGE: usize = 8 * 1024 * 1024;
/// No answer is larger: [`MOST`] of the largest values.
const MAX_ANSWER: usize = 1024 * 1024 * 1024;
/// Pages that wait for their reader.
const AHEAD: usize = 2;

pub(crate) fn signed(revision: Revision) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned(revision: i64) -> Revision {
    u64::try_from(revision).unwrap_or(0)
}

/// Where a scan stands.
struct Position {
    from: Bytes,
    below: Bytes,
    revision: Revision,
    left: Option<usize>,
    batch: usize,
    page: usize,
}

impl Inner {
    pub(crate) async fn scan(
        self: std::sync::Arc<Self>,
        range: Range,
        page: usize,
    ) -> Result<Scan> {
        let page = page.max(1);
        let bounds = self.prefix.bounds(&range);
        let (Some((from, below)), false) = (bounds, range.limit == Some(0)) else {
            let (_, pages) = mpsc::channel(1);
            return Ok(Scan::new(self.newest().await?, pages));
        };
        let mut position = Position {
            from,
            below,
            revision: 0,
            left: range.limit,
            batch: page.min(MOST),
            page,
        };
        // Of the first answer all others take the revision.
        let (entries, more) = self.read(&mut position).await?;
        let (sender, pages) = mpsc::channel(AHEAD);
        let revision = position.revision;
        tokio::spawn(async move {
            let mut next = Ok((entries, more));
            loop {
                let sent = match next {
                    Ok((entries, more)) => {
                        send(&sender, entries, position.page).await.map(|()| more)
                    }
                    Err(error) => sender.send(Err(error)).await.ok().map(|()| false),
                };
                match sent {
                    Some(true) => next = self.read(&mut position).await,
                    Some(false) | None => return,
                }
            }
        });
        Ok(Scan::new(revision, pages))
    }

    /// The newest revision of etcd.
    pub(crate) async fn newest(&self) -> Result<Revision> {
        let answer = self
            .range(RangeRequest {
                key: self.prefix.clock(),
                keys_only: true,
                ..RangeRequest::default()
            })
            .await?;
        Ok(unsigned(answer.header.map_or(0, |header| header.revision)))
    }

    /// Reads the next entries, and whether there are more.
    async fn read(&self, position: &mut Position) -> Result<(Vec<Entry>, bool)> {
        let wanted = position
            .left
            .map_or(position.batch, |left| position.batch.min(left));
        let answer = self
            .range(RangeRequest {
                key: position.from.clone(),
                range_end: position.below.clone(),
                limit: i64::try_from(wanted).unwrap_or(i64::MAX),
                revision: signed(position.revision),
                ..RangeRequest::default()
            })
            .await?;
        if position.revision == 0 {
            position.revision =
                unsigned(answer.header.as_ref().map_or(0, |header| header.revision));
        }
        position.adapt(answer.encoded_len());
        let mut more = answer.more;
        if let Some(last) = answer.kvs.last() {
            position.from = [&last.key[..], &[0]].concat().into();
        }
        let entries: Vec<Entry> = answer
            .kvs
            .into_iter()
            .filter_map(|kv| {
                Some(Entry {
                    key: self.prefix.strip(&kv.key)?,
                    value: kv.value,
                    revision: unsigned(kv.mod_revision),
                })
            })
            .collect();
        if let Some(left) = &mut position.left {
            *left = left.saturating_sub(entries.len());
            more &= *left > 0;
        }
        Ok((entries, more))
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse> {
        let answer = self.commits.repeated(READ, |connection| {
            let request = request.clone();
            async move {
                KvClient::new(connection)
                    .max_decoding_message_size(MAX_ANSWER)
                    .range(request)
                    .await
                    .map(tonic::Response::into_inner)
            }
        });
        answer.await.map_err(|status| error(&status))
    }
}

impl Position {
    fn adapt(&mut self, bytes: usize) {
        if bytes > LARGE {
            self.batch = (self.batch / 2).max(1);
        } else if bytes < LARGE / 8 {
            self.batch = (self.batch * 2).min(MOST);
        }
    }
}

/// `None` if nobody reads any more.
async fn send(
    sender: &mpsc::Sender<Result<Vec<Entry>>>,
    mut entries: Vec<Entry>,
    page: usize,
) -> Option<()> {
    while entries.len() > page {
        let rest = entries.split_off(page);
        sender.send(Ok(entries)).await.ok()?;
        entries = rest;
    }
    if !entries.is_empty() {
        sender.send(Ok(entries)).await.ok()?;
    }
    Some(())
}

/// The error of a read.
pub(crate) fn error(status: &Status) -> Error {
    if let Some(error) = login::refusal(status) {
        return error.clone();
    }
    let message = said(status);
    if is_refused(status) {
        return Error::new(
            Reason::Precondition,
            format!(
                "{message}; the user there (etcd.user, or the common name of etcd.cert) needs to read and write etcd.prefix"
            ),
        );
    }
    match status.code() {
        Code::OutOfRange => Error::new(Reason::PageTokenExpired, message),
        _ => Error::unavailable(message).with_retry_after(drover_store::backend::RETRY_AFTER),
    }
}

/// Whether whoever called may not do that in etcd. Of maintenance etcd 3.4 says so without a code.
pub(crate) fn is_refused(status: &Status) -> bool {
    let said = status.message();
    matches!(
        status.code(),
        Code::PermissionDenied | Code::Unauthenticated
    ) || said.contains("permission denied")
        || said.contains("user name is empty")
}
