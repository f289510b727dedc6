//! The gRPC services over the parts of a cluster.

mod access;
mod configurations;
mod ingresses;
mod limits;
mod list;
mod network_policies;
mod nodes;
mod pods;
mod services;

use std::sync::Arc;

use drover_convert::error::to_status;
use drover_core::{Error, Reason, Result};
use drover_proto::kubernetes::v1::{
    configuration_service_server::ConfigurationServiceServer,
    ingress_service_server::IngressServiceServer,
    network_policy_service_server::NetworkPolicyServiceServer,
    node_service_server::NodeServiceServer, pod_service_server::PodServiceServer,
    service_service_server::ServiceServiceServer,
};
use drover_server::{CallRecord, Caller, Service as Server, Shutdown, access::Permission};
use futures::{StreamExt, stream, stream::BoxStream};
use tonic::{Request, Response, Status};

use self::limits::{Limit, Permit};
use crate::{Cluster, Served, page::Tokens, parts::Answers};

/// The services of `drover.kubernetes.v1` over a cluster.
#[derive(Clone)]
pub struct Resources(Arc<Inner>);

struct Inner {
    cluster: Cluster,
    served: Served,
    tokens: Tokens,
    waits: Limit,
    streams: Limit,
}

impl Resources {
    /// Serves a cluster within limits.
    ///
    /// # Errors
    /// `Internal` if the system has no random numbers.
    pub fn new(cluster: Cluster, served: Served) -> Result<Self> {
        let waits = Limit::new("max_waits", served.max_waits, served.max_waits_per_caller);
        let streams = Limit::new(
            "max_streams",
            served.max_streams,
            served.max_streams_per_caller,
        );
        Ok(Self(Arc::new(Inner {
            cluster,
            served,
            tokens: Tokens::new()?,
            waits,
            streams,
        })))
    }

    /// Adds the services to a server.
    #[must_use]
    pub fn add_to(&self, server: Server) -> Server {
        server
            .add(NodeServiceServer::new(self.clone()))
            .add(PodServiceServer::new(self.clone()))
            .add(ServiceServiceServer::new(self.clone()))
            .add(IngressServiceServer::new(self.clone()))
            .add(NetworkPolicyServiceServer::new(self.clone()))
            .add(ConfigurationServiceServer::new(self.clone()))
    }

    fn cluster(&self) -> &Cluster {
        &self.0.cluster
    }

    fn served(&self) -> &Served {
        &self.0.served
    }

    fn tokens(&self) -> &Tokens {
        &self.0.tokens
    }

    fn call<T>(&self, request: &Request<T>, permission: Permission) -> Call {
        Call {
            resources: self.clone(),
            caller: Caller::of(request),
            payer: CallRecord::of(request).payer().clone(),
            permission,
            shutdown: drover_server::shutdown(request),
        }
    }
}

/// What a handler knows of its call besides the message.
#[derive(Clone)]
struct Call {
    resources: Resources,
    caller: Caller,
    /// Whose share a wait or a stream is.
    payer: Arc<str>,
    permission: Permission,
    shutdown: Shutdown,
}

impl Call {
    fn wait_permit(&self) -> Result<Permit> {
        self.resources.0.waits.take(&self.payer)
    }

    fn stream_permit(&self) -> Result<Permit> {
        self.resources.0.streams.take(&self.payer)
    }

    /// Says in the audit log what the call is about, and refuses a namespace that is not the caller's or not served.
    fn inside(&self, kind: &str, namespace: &str, name: &str) -> Result<()> {
        self.caller.about(kind, &format!("{namespace}/{name}"));
        self.may(Some(namespace))?;
        self.resources.served().check(namespace)
    }

    /// The same for something without a namespace.
    fn about(&self, kind: &str, name: &str) -> Result<()> {
        self.caller.about(kind, name);
        self.may(None)
    }

    fn may(&self, namespace: Option<&str>) -> Result<()> {
        if self.caller.reaches(self.permission, namespace) {
            return Ok(());
        }
        let message = match namespace {
            Some(namespace) => {
                format!("the namespace {namespace:?} is outside of what the caller may use")
            }
            None => "the caller may only use what is in some namespaces, and nodes are in none"
                .to_owned(),
        };
        Err(Error::new(Reason::PermissionDenied, message))
    }

    /// The outcome of work that may wait for long, unless the server stops before.
    async fn until_stop<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            outcome = work => outcome,
            () = self.shutdown.cancelled() => Err(Error::unavailable("the server is stopping")),
        }
    }

    /// The error without the object that routes a host, if the caller may not see that.
    fn host_taken(&self, error: Error) -> Error {
        let Some((kind, name)) = error.resource() else {
            return error;
        };
        let namespace = name.split_once('/').map_or("", |(namespace, _)| namespace);
        let reads = |namespace| {
            self.caller
                .reaches(Permission::ResourceRead, Some(namespace))
        };
        if error.reason() != Reason::IngressHostTaken || reads(namespace) {
            return error;
        }
        let host = error.metadata().get("host").cloned().unwrap_or_default();
        let message = format!("a {kind} in another namespace routes the host {host:?}");
        Error::new(Reason::IngressHostTaken, message).with_metadata("host", host)
    }

    /// Whether a list may show what is in this namespace.
    fn sees(&self, namespace: &str) -> bool {
        self.caller.reaches(self.permission, Some(namespace))
            && self.resources.served().serves(namespace)
    }

    /// Answers of a stream, which ends when the server stops, with an error: it is not complete then.
    fn stream<T: Send + 'static, A: 'static>(
        &self,
        answers: Answers<T>,
        permit: Permit,
        wrap: fn(T) -> A,
    ) -> BoxStream<'static, Result<A, Status>> {
        let state = (Some(answers), self.shutdown.clone(), permit);
        stream::unfold(state, move |(answers, shutdown, permit)| async move {
            let mut answers = answers?;
            let item = tokio::select! {
                biased;
                item = answers.next() => item?,
                () = shutdown.cancelled() => Err(Error::unavailable("the server is stopping")),
            };
            let goes_on = item.is_ok().then_some(answers);
            let item = item.map(wrap).map_err(|error| to_status(&error));
            Some((item, (goes_on, shutdown, permit)))
        })
        .boxed()
    }
}

/// Converts a result to a gRPC response.
fn answer<T>(outcome: Result<T>) -> Result<Response<T>, Status> {
    outcome
        .map(Response::new)
        .map_err(|error| to_status(&error))
}
