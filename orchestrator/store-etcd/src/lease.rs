//! Leases.

use std::time::Duration;

use drover_core::{Error, Result};
use drover_store::backend::{CommitError, Lease, LeaseId};
use tokio::time::Instant;
use tonic::Code;

use crate::{
    api::{
        LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, lease_client::LeaseClient,
    },
    backend::Inner,
    members::with_leader,
    scan::{READ, error},
};

/// One attempt to renew: two of them, at two members, fit between a renewal that failed and the end of a lease.
const RENEWAL: Duration = Duration::from_millis(400);

/// Etcd's numbers are positive.
pub(crate) fn number(lease: LeaseId) -> i64 {
    i64::try_from(lease.0).unwrap_or(0)
}

fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or(0))
}

impl Inner {
    pub(crate) async fn grant(&self, ttl: Duration) -> Result<Lease> {
        // Whole seconds, and not less than etcd allows.
        let wanted = i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
        let grant = self.leases.repeated(READ, |connection| async move {
            let sent = Instant::now();
            let request = LeaseGrantRequest { ttl: wanted, id: 0 };
            let answer = LeaseClient::new(connection).lease_grant(request).await?;
            Ok((answer.into_inner(), sent))
        });
        let (answer, sent) = grant.await.map_err(|status| error(&status))?;
        let id = u64::try_from(answer.id)
            .map_err(|_| Error::unavailable("etcd granted a lease without a number"))?;
        Ok(Lease {
            id: LeaseId(id),
            deadline: sent + seconds(answer.ttl),
        })
    }

    pub(crate) async fn renew(&self, lease: LeaseId) -> Result<Instant> {
        let sent = Instant::now();
        let request = LeaseKeepAliveRequest { id: number(lease) };
        let renewal = self.leases.once(RENEWAL, |connection| async move {
            let requests = with_leader(futures::stream::iter([request]));
            let mut answers = LeaseClient::new(connection)
                .lease_keep_alive(requests)
                .await?
                .into_inner();
            answers.message().await
        });
        match renewal.await {
            Ok(Some(answer)) if answer.ttl > 0 => Ok(sent + seconds(answer.ttl)),
            Ok(Some(_)) => Err(CommitError::Fenced.into()),
            Ok(None) => Err(Error::unavailable("etcd ended the renewal of a lease")),
            Err(status) => Err(error(&status)),
        }
    }

    pub(crate) async fn revoke(&self, lease: LeaseId) -> Result<()> {
        let request = LeaseRevokeRequest { id: number(lease) };
        let revoked = self.leases.repeated(READ, |connection| async move {
            LeaseClient::new(connection).lease_revoke(request).await
        });
        match revoked.await {
            Ok(_) => Ok(()),
            Err(status) if status.code() == Code::NotFound => Ok(()),
            Err(status) => Err(error(&status)),
        }
    }
}
