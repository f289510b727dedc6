//! Transactions.

use std::time::Duration;

use drover_store::{
    Bytes, Lane, Revision,
    backend::{CommitError, Expect, LIMITS, Op, Txn},
    keys::Key,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tonic::{Code, Status};

use crate::{
    api::{
        self, Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
        TxnResponse, compare::TargetUnion, kv_client::KvClient, request_op::Request,
    },
    backend::Inner,
    lease, login,
    members::Connection,
    scan::{self, READ},
};

/// Transactions under way at once.
const IN_FLIGHT: usize = 256;
/// Those among them of [`Lane::Bulk`]: the rest is for urgent ones, which never wait behind them.
const BULK: usize = 192;
/// After this long the outcome of a transaction is unknown. Longer than an election takes.
const DEADLINE: Duration = Duration::from_secs(4);

/// Places for transactions.
#[derive(Debug)]
pub(crate) struct Lanes {
    all: std::sync::Arc<Semaphore>,
    bulk: std::sync::Arc<Semaphore>,
}

/// A place in a lane.
pub(crate) struct Place {
    _all: OwnedSemaphorePermit,
    _bulk: Option<OwnedSemaphorePermit>,
}

impl Default for Lanes {
    fn default() -> Self {
        Self {
            all: std::sync::Arc::new(Semaphore::new(IN_FLIGHT)),
            bulk: std::sync::Arc::new(Semaphore::new(BULK)),
        }
    }
}

impl Lanes {
    pub(crate) async fn place(
        &self,
        lane: Lane,
        max_wait: Option<Duration>,
    ) -> Result<Place, CommitError> {
        let closed = |_| CommitError::Unavailable("the store is closed".to_owned());
        let waited = async {
            let bulk = match lane {
                Lane::Urgent => None,
                Lane::Bulk => Some(self.bulk.clone().acquire_owned().await.map_err(closed)?),
            };
            let all = self.all.clone().acquire_owned().await.map_err(closed)?;
            Ok(Place {
                _all: all,
                _bulk: bulk,
            })
        };
        match max_wait {
            None => waited.await,
            Some(most) => tokio::time::timeout(most, waited)
                .await
                .unwrap_or(Err(CommitError::Overloaded)),
        }
    }
}

async fn send(connection: Connection, request: TxnRequest) -> Result<TxnResponse, Status> {
    let answer = KvClient::new(connection).txn(request).await;
    answer.map(tonic::Response::into_inner)
}

impl Inner {
    pub(crate) async fn commit(&self, txn: &Txn, lane: Lane) -> Result<Revision, CommitError> {
        let began = Instant::now();
        let request = self.request(txn);
        let outcome = self
            .commits
            .once(DEADLINE, |connection| send(connection, request.clone()))
            .await;
        metrics::histogram!("drover_store_transaction_duration_seconds", "lane" => lane.as_str())
            .record(began.elapsed().as_secs_f64());
        match outcome {
            Ok(answer) if answer.succeeded => Ok(revision(&answer)),
            Ok(_) => Err(self.refusal(txn).await),
            Err(status) => Err(failure(&status)),
        }
    }

    fn request(&self, txn: &Txn) -> TxnRequest {
        let fence = txn
            .fence
            .iter()
            .map(|fence| (&fence.key, Expect::Revision(fence.made_at)));
        let expected = txn.expect.iter().map(|(key, expect)| (key, *expect));
        let clock = Request::RequestPut(PutRequest {
            key: self.prefix.clock(),
            ..PutRequest::default()
        });
        TxnRequest {
            compare: fence
                .chain(expected)
                .map(|(key, expect)| self.compare(key, expect))
                .collect(),
            success: txn
                .ops
                .iter()
                .map(|op| self.operation(op))
                .chain([clock])
                .map(operation)
                .collect(),
            failure: Vec::new(),
        }
    }

    fn compare(&self, key: &Key, expect: Expect) -> Compare {
        // A key that does not exist has revision 0.
        let at = match expect {
            Expect::Absent => 0,
            Expect::Revision(revision) => scan::signed(revision),
        };
        Compare {
            result: api::compare::CompareResult::Equal.into(),
            target: api::compare::CompareTarget::Mod.into(),
            key: self.prefix.of(key),
            target_union: Some(TargetUnion::ModRevision(at)),
        }
    }

    fn operation(&self, op: &Op) -> Request {
        let put = |key: &Key, value: &Bytes, lease| {
            Request::RequestPut(PutRequest {
                key: self.prefix.of(key),
                value: value.clone(),
                lease,
            })
        };
        let delete = |from: &Key, below: Option<&Key>| {
            Request::RequestDeleteRange(DeleteRangeRequest {
                key: self.prefix.of(from),
                range_end: below.map(|below| self.prefix.of(below)).unwrap_or_default(),
            })
        };
        match op {
            Op::Put { key, value } => put(key, value, 0),
            Op::PutLeased { key, value, lease } => put(key, value, lease::number(*lease)),
            Op::Delete { key } => delete(key, None),
            Op::DeleteBelow { from, below } => delete(from, Some(below)),
        }
    }

    /// Which comparison of a refused transaction did not hold. The keys are read apart from the transaction: members of
    /// etcd can diverge over one that reads and writes (etcd issue 18667).
    async fn refusal(&self, txn: &Txn) -> CommitError {
        let keys = txn.fence.iter().map(|fence| &fence.key);
        let keys: Vec<&Key> = keys.chain(txn.expect.iter().map(|(key, _)| key)).collect();
        let request = TxnRequest {
            success: keys
                .iter()
                .map(|key| {
                    operation(Request::RequestRange(RangeRequest {
                        key: self.prefix.of(key),
                        keys_only: true,
                        ..RangeRequest::default()
                    }))
                })
                .collect(),
            ..TxnRequest::default()
        };
        let read = self
            .commits
            .repeated(READ, |connection| send(connection, request.clone()))
            .await;
        match read {
            Ok(answer) => which(txn, &found(&answer)),
            // Refused it was in any case.
            Err(status) => CommitError::Unavailable(said(&status)),
        }
    }
}

/// Revisions of the keys that a transaction of reads found, 0 for none.
fn found(answer: &TxnResponse) -> Vec<Revision> {
    let of = |op: &api::ResponseOp| match &op.response {
        Some(api::response_op::Response::ResponseRange(range)) => range
            .kvs
            .first()
            .map_or(0, |kv| scan::unsigned(kv.mod_revision)),
        _ => 0,
    };
    answer.responses.iter().map(of).collect()
}

fn which(txn: &Txn, found: &[Revision]) -> CommitError {
    let mut found = found.iter().copied();
    if let Some(fence) = &txn.fence
        && found.next() != Some(fence.made_at)
    {
        return CommitError::Fenced;
    }
    let differs = |(key, expect): &(Key, Expect), at: Revision| {
        (Expect::at(at) != *expect && !(at == 0 && *expect == Expect::Revision(0)))
            .then(|| key.clone())
    };
    let conflict = txn
        .expect
        .iter()
        .zip(found)
        .find_map(|(expected, at)| differs(expected, at));
    // All hold by now: a key that had to be absent was, only not then.
    let absent = || {
        let absent =
            |(key, expect): &(Key, Expect)| (*expect == Expect::Absent).then(|| key.clone());
        txn.expect.iter().find_map(absent)
    };
    conflict
        .or_else(absent)
        .map_or(CommitError::Fenced, CommitError::Conflict)
}

fn operation(request: Request) -> RequestOp {
    RequestOp {
        request: Some(request),
    }
}

fn revision(answer: &TxnResponse) -> Revision {
    let header = answer.header.as_ref();
    scan::unsigned(header.map_or(0, |header| header.revision))
}

/// What became of a transaction that etcd did not answer, or answered with an error.
fn failure(status: &Status) -> CommitError {
    let message = status.message();
    if message.contains("database space exceeded") {
        return CommitError::StorageFull;
    }
    if message.contains("requested lease not found") {
        return CommitError::Fenced;
    }
    if message.contains("request is too large") || message.contains("too many operations") {
        return CommitError::TooLarge(format!(
            "{message}: etcd must allow {} operations and {} bytes (--max-txn-ops, --max-request-bytes)",
            LIMITS.operations, LIMITS.bytes
        ));
    }
    match status.code() {
        // Said before anything is proposed to the members.
        Code::ResourceExhausted
        | Code::InvalidArgument
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::Unimplemented
        | Code::FailedPrecondition => CommitError::Unavailable(said(status)),
        _ => CommitError::Unknown,
    }
}

/// What etcd said, without what it was asked.
pub(crate) fn said(status: &Status) -> String {
    match login::refusal(status) {
        Some(error) => error.message().to_owned(),
        None => format!("etcd: {}", status.message()),
    }
}

#[cfg(test)]
mod tests {
    use drover_store::{backend::Fence, keys::Name};

    use super::*;

    fn key(name: &str) -> Key {
        Name::ClusterName(name.into()).into()
    }

    #[test]
    fn a_refusal_is_of_the_fence_first_then_of_the_first_key_that_differs() {
        let txn = Txn {
            fence: Some(Fence {
                key: key("o"),
                made_at: 5,
            }),
            ..Txn::default()
        }
        .expect(key("a"), Expect::Revision(3))
        .expect(key("b"), Expect::Absent);
        assert_eq!(which(&txn, &[6, 4, 1]), CommitError::Fenced);
        assert_eq!(which(&txn, &[0, 3, 0]), CommitError::Fenced);
        assert_eq!(which(&txn, &[5, 4, 1]), CommitError::Conflict(key("a")));
        assert_eq!(which(&txn, &[5, 0, 0]), CommitError::Conflict(key("a")));
        assert_eq!(which(&txn, &[5, 3, 1]), CommitError::Conflict(key("b")));
        assert_eq!(
            which(&txn, &[5, 3, 0]),
            CommitError::Conflict(key("b")),
            "it was there when the transaction was refused, and is gone by now"
        );
    }

    #[test]
    fn an_error_is_unknown_unless_etcd_says_before_the_proposal_that_it_refuses() {
        let of = |code, message: &str| failure(&Status::new(code, message));
        assert_eq!(
            of(Code::Unavailable, "etcdserver: request timed out"),
            CommitError::Unknown
        );
        assert_eq!(of(Code::DeadlineExceeded, ""), CommitError::Unknown);
        assert_eq!(of(Code::Unknown, "transport error"), CommitError::Unknown);
        assert_eq!(
            of(
                Code::ResourceExhausted,
                "etcdserver: mvcc: database space exceeded"
            ),
            CommitError::StorageFull
        );
        assert_eq!(
            of(Code::NotFound, "etcdserver: requested lease not found"),
            CommitError::Fenced
        );
        for (code, message) in [
            (Code::ResourceExhausted, "etcdserver: too many requests"),
            (Code::PermissionDenied, "etcdserver: permission denied"),
            (Code::InvalidArgument, "etcdserver: user name is empty"),
            (Code::Unauthenticated, "etcdserver: invalid auth token"),
        ] {
            assert!(
                matches!(of(code, message), CommitError::Unavailable(_)),
                "{message}"
            );
        }
    }
}
