//! How much room etcd has.

use std::time::Duration;

use drover_core::{Error, Result};
use drover_store::Bytes;
use futures::future::join_all;
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::{
    EtcdBackend,
    api::{
        RangeRequest, StatusRequest, StatusResponse, kv_client::KvClient,
        maintenance_client::MaintenanceClient,
    },
    members::Way,
    scan::{error, unsigned},
};

/// How long a member may take to say how it is.
const HELLO: Duration = Duration::from_secs(3);

/// The room that the members of etcd have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes of the largest database file.
    pub used: u64,
    /// Bytes of it that hold something.
    pub in_use: u64,
    /// Bytes that a file may have, the least of what members say. `None` before etcd 3.6, or without a limit.
    pub quota: Option<u64>,
    /// Whether a member has no room: then all writes are refused.
    pub alarmed: bool,
}

impl EtcdBackend {
    /// Asks all members how much room they have. Those that do not answer are left out.
    ///
    /// # Errors
    /// No member answers.
    pub async fn space(&self) -> Result<Space> {
        let answers = join_all(self.inner.commits.all().map(status)).await;
        let answering = || answers.iter().flatten();
        let Some(largest) = answering().max_by_key(|answer| answer.db_size) else {
            let why = answers.iter().find_map(|answer| answer.as_ref().err());
            return Err(why.map_or_else(|| Error::unavailable("no members"), error));
        };
        Ok(Space {
            used: unsigned(largest.db_size),
            in_use: unsigned(largest.db_size_in_use),
            quota: answering().filter_map(quota).min(),
            alarmed: answering().any(|answer| has_alarm(answer, "NOSPACE")),
        })
    }
}

/// Asks a member how it is.
pub(crate) async fn status(way: Way) -> Result<StatusResponse, Status> {
    let hello = way.call(|connection| async move {
        MaintenanceClient::new(connection)
            .status(StatusRequest {})
            .await
            .map(tonic::Response::into_inner)
    });
    let late = || Err(Status::deadline_exceeded("no answer"));
    timeout(HELLO, hello).await.unwrap_or_else(|_| late())
}

/// Asks a member who it is. Some releases say how they are to the role `root` only (3.4.42 to .45, 3.5.28 to .31, 3.6.0 to
/// .11): to others they say at least to which etcd they belong, with any answer, such as one about this key.
pub(crate) async fn identity(way: Way, key: Bytes) -> Result<StatusResponse, Status> {
    match status(way.clone()).await {
        Err(status) if status.code() == Code::PermissionDenied => {}
        answer => return answer,
    }
    let request = RangeRequest {
        key,
        keys_only: true,
        ..RangeRequest::default()
    };
    let read = way.call(|connection| {
        let request = request.clone();
        async move { KvClient::new(connection).range(request).await }
    });
    let late = || Err(Status::deadline_exceeded("no answer"));
    let answer = timeout(HELLO, read).await.unwrap_or_else(|_| late())?;
    Ok(StatusResponse {
        header: answer.into_inner().header,
        ..StatusResponse::default()
    })
}

/// The etcd that a member belongs to.
pub(crate) fn cluster(status: &StatusResponse) -> u64 {
    status.header.as_ref().map_or(0, |header| header.cluster_id)
}

/// The error for members that do not belong together.
pub(crate) fn different(endpoints: &str) -> Error {
    Error::invalid(
        "etcd.endpoints",
        format!("these are members of different etcds: {endpoints}"),
    )
}

/// Bytes that the file of a member may have.
pub(crate) fn quota(status: &StatusResponse) -> Option<u64> {
    match status.db_size_quota {
        0 => None,
        quota => Some(u64::try_from(quota).unwrap_or(u64::MAX)),
    }
}

/// Whether etcd has an alarm, of any of its members. Unlike a question for alarms, this costs the others nothing.
pub(crate) fn has_alarm(status: &StatusResponse, name: &str) -> bool {
    status.errors.iter().any(|said| said.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_what_a_member_says_unless_it_has_none() {
        let said = |db_size_quota| StatusResponse {
            db_size_quota,
            ..StatusResponse::default()
        };
        assert_eq!(quota(&said(8)), Some(8));
        assert_eq!(quota(&said(0)), None, "a release that does not say");
        assert_eq!(quota(&said(-1)), Some(u64::MAX), "without a limit");
    }

    #[test]
    fn an_alarm_is_among_the_errors_of_a_status() {
        let status = StatusResponse {
            errors: vec![
                "etcdserver: no leader".to_owned(),
                "memberID:10276657743932975437 alarm:NOSPACE ".to_owned(),
            ],
            ..StatusResponse::default()
        };
        assert!(has_alarm(&status, "NOSPACE"));
        assert!(!has_alarm(&status, "CORRUPT"));
    }
}
