//! Plain HTTP requests, which are judged, limited and recorded like calls.

use std::sync::Arc;

use drover_core::{Error, Reason};
use drover_telemetry::Context as TraceContext;
use http::Request;
use tokio::time::Instant;
use tonic::transport::server::TcpConnectInfo;

use super::{CallContext, Calls, Permit, Shared, TraceId, methods::Kind};
use crate::{
    access::{Asked, Caller, Judgement, Permission, Terms, http_permission},
    audit::{CallRecord, Entry},
    connection_limiter::{Busy, ConnectionHandle},
    encryption::Shown,
};

impl Calls {
    /// Context for handlers of plain HTTP requests, which never have a deadline of their own.
    pub(crate) fn http_context(&self, trace: TraceContext) -> CallContext {
        CallContext {
            // `None` if the deadline cannot be represented.
            deadline: Instant::now().checked_add(self.0.default_deadline),
            shutdown: self.0.asked.clone(),
            trace_id: trace.into(),
        }
    }

    /// Authenticates and authorizes a plain HTTP request, and creates its audit entry.
    pub(crate) async fn judge_http<B>(
        &self,
        request: &Request<B>,
        known: bool,
        trace_id: TraceId,
    ) -> (
        Result<(Caller, CallRecord, Option<Terms>), Error>,
        Option<Entry>,
    )
    where
        B: Sync,
    {
        let path = request.uri().path();
        let permission = self.0.http_permission(path);
        let shown = request.extensions().get::<Arc<Shown>>().cloned();
        let asked = Asked {
            peer: shown.as_deref(),
            headers: request.headers(),
            forwarded: None,
            permission: Some(permission),
        };
        let Judgement {
            who,
            outcome,
            lease,
        } = self.0.access.judge(asked).await;
        let sums = path == "/metrics" && permission != Permission::Open;
        let outcome = outcome.and_then(|caller| {
            if sums && !caller.sees_all() {
                return Err(partial());
            }
            Ok(caller)
        });
        let peer = request.extensions().get::<TcpConnectInfo>();
        let peer = peer.and_then(TcpConnectInfo::remote_addr);
        let entry = self.0.audit.as_ref().map(|audit| {
            let path = if known { path } else { "(unknown path)" };
            let what = format!("{} {path}", request.method()).into();
            let caller = outcome
                .as_ref()
                .map_or_else(|_| Caller::nobody(), Clone::clone);
            audit.entry(who.clone(), peer, what, Some(permission), caller, trace_id)
        });
        let call = CallRecord::new(&who, peer, entry.clone());
        (outcome.map(|caller| (caller, call, lease)), entry)
    }

    /// Acquires the resources of an authorized plain HTTP request: a permit like that of a unary call, and its
    /// connection.
    pub(crate) fn occupy_http<B>(
        &self,
        request: &mut Request<B>,
        caller: &Arc<str>,
        exempt: bool,
    ) -> Result<(Permit, Option<Busy>), Error> {
        let handle = request.extensions_mut().remove::<ConnectionHandle>();
        let permission = self.0.http_permission(request.uri().path());
        if exempt {
            let working = handle.filter(|_| permission != Permission::Open);
            return Ok((None, working.map(ConnectionHandle::working)));
        }
        let permit = self.0.admit(Kind::Unary, caller)?;
        let busy = self.0.occupy(handle, Some(permission), caller)?;
        let ended = busy.as_ref().and_then(|busy| busy.ending().error());
        match ended {
            Some(error) => Err(error),
            None => Ok((permit, busy)),
        }
    }
}

impl Shared {
    /// The required permission of a plain HTTP request on this server.
    fn http_permission(&self, path: &str) -> Permission {
        match path {
            "/metrics" if self.open_metrics => Permission::Open,
            path => http_permission(path),
        }
    }
}

fn partial() -> Error {
    Error::new(
        Reason::PermissionDenied,
        "/metrics shows sums over all clusters; it is for those who see all of them",
    )
}
