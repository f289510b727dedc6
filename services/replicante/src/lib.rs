//! The Replicante Platform API (HTTP and JSON) over a platform: `GET /discover`, `POST /provision`,
//! `POST /deprovision`, on the same port as gRPC.
//!
//! It is just another client of the platform: its operations go through the same validation, templates, fences and
//! idempotency as gRPC, under an owner of its own ([`OWNER`]). Orchestrators see its nodes as foreign.
//!
//! Both the fields of the written specification and those of the Replicante SDK are supported:
//! - `version` or `store_version`, of the cluster and of a node group; `node_group_id` or `node_group`.
//! - `provision.count` is an upper limit (default 1), capped at the number of nodes that the platform creates per
//!   request (`Limits.max_batch`). The response contains the number of nodes and their ids.
//! - `attributes` (default none). Those of the group are merged into those of the cluster as a JSON merge patch; `null`
//!   deletes.
//! - `user_data` (a string) and `storage` (`size`, a quantity, and `class`) of a group, which neither has. The user data
//!   reaches its nodes as it is; the storage goes with its node.
//! - Other fields unknown to both are ignored.
//!
//! Each POST to `/provision` is a new request, because the specification has no idempotency key. A client that sends
//! the header `Idempotency-Key` (a UUID, which becomes the request id, or any other text) may retry: the same key
//! returns the nodes that it created. A different document with the same key is rejected; `user_data` is not compared.
//!
//! Discovery lists all nodes that have a cluster id, regardless of owner and health, except those that the backend
//! itself reports as terminated. Addresses of nodes that were made from templates are `http` or `https`, because clients
//! discard a cluster with any other; those of other nodes are passed on as they are. If anything could not be read, the
//! response is 503 rather than an incomplete list, because clients assume that a missing node is gone.
//!
//! Errors have the body of the SDK (`error`, `error_msg`, `error_cause`, `error_trail`):
//!
//! | status | meaning | |---|---|
//! | 400 | the document is not JSON, lacks a field or has an invalid one; each is reported with its path |
//! | 403 | the node was not created through this API, and `delete_any` is off |
//! | 405, 413, 415 | wrong method (with `Allow`), too large, not `application/json` |
//! | 409 | the node is in another cluster, or was changed concurrently |
//! | 422 | unknown node group (`defined_node_groups` lists them), store, version or class; reused key |
//! | 500, 502, 503, 504 | bug; platform credentials; no capacity or backend down (`Retry-After`); deadline passed |
//!
//! No response is 404, because clients would take that for a wrong address and drop the body.
//!
//! A platform server that is to have it adds a field `replicante: ReplicanteSettings` (with serde's default) to its
//! settings file, and serves [`ReplicanteApi::add_to`] the service of its platform.

mod answer;
mod deprovision;
mod discover;
mod document;
mod plans;
mod provision;

use std::sync::Arc;

use axum::{
    body::Bytes,
    extract::{DefaultBodyLimit, FromRequest, Request, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::Fence;
use drover_server::{CallContext, MAX_MESSAGE_BYTES, Service as Server};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;
use uuid::Uuid;

use self::{answer::Refusal, plans::Plans};
use drover_platform::Platform;

/// Owner of all nodes created through this API, on every platform; no cluster record of an orchestrator ever has it. It
/// is also the store id in the fences of its calls.
pub const OWNER: Uuid = Uuid::from_u128(0x7c1d_5a0e_93f4_4b62_8e17_52ac_d60b_3f98);

/// Header that makes a request repeatable.
const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Maximum key length: twice that of any sensible key.
const MAX_KEY: usize = 256;

/// What the Replicante Platform API of a server does: `replicante` in its settings file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReplicanteSettings {
    /// Whether it is served. Default true.
    pub enabled: bool,
    /// Whether it may remove any node. Default false: only those that were made through it.
    pub delete_any: bool,
}

impl Default for ReplicanteSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            delete_any: false,
        }
    }
}

/// The API of one platform.
pub struct ReplicanteApi {
    platform: Arc<Platform>,
    settings: ReplicanteSettings,
    plans: Plans,
}

impl ReplicanteApi {
    /// The API of a platform.
    #[must_use]
    pub fn new(platform: Arc<Platform>, settings: ReplicanteSettings) -> Arc<Self> {
        Arc::new(Self {
            platform,
            settings,
            plans: Plans::default(),
        })
    }

    /// The server with the routes of this API, unless it is switched off.
    pub fn add_to(self: &Arc<Self>, server: Server) -> Server {
        if !self.settings.enabled {
            return server;
        }
        let complete = |methods: MethodRouter<Arc<Self>>, allow: &'static str| {
            methods
                .fallback(async move || answer::wrong_method(allow))
                .layer(DefaultBodyLimit::max(MAX_MESSAGE_BYTES))
                .with_state(Arc::clone(self))
        };
        server
            .route("/discover", complete(get(discover), "GET, HEAD"))
            .route("/provision", complete(post(provision), "POST"))
            .route("/deprovision", complete(post(deprovision), "POST"))
    }

    /// The platform uid that calls carry.
    fn uid(&self) -> String {
        self.platform.driver().description().uid
    }
}

/// The fence of every call. No other client uses this store id, so the epoch never changes.
fn fence() -> Option<Fence> {
    Some(Fence {
        store_id: OWNER.to_string(),
        shard: 0,
        epoch: 1,
    })
}

async fn discover(State(api): State<Arc<ReplicanteApi>>, request: Request) -> Response {
    let work = api.discover();
    match within(deadline(&request), work).await {
        Ok(found) => answer::json(StatusCode::OK, &found),
        Err(error) => Refusal::of("the discovery failed", error).into_response(),
    }
}

async fn provision(State(api): State<Arc<ReplicanteApi>>, request: Request) -> Response {
    const WHAT: &str = "no node was provisioned";
    let until = deadline(&request);
    let key = idempotency_key(request.headers());
    let document = match read(WHAT, request).await {
        Ok(document) => document,
        Err(refusal) => return refusal.into_response(),
    };
    let work = async { api.provision(&document, key?, until).await };
    match within(until, work).await {
        Ok(answer) => answer::json(StatusCode::OK, &answer),
        Err(error) => Refusal::of(WHAT, error)
            .or_groups(&document)
            .into_response(),
    }
}

async fn deprovision(State(api): State<Arc<ReplicanteApi>>, request: Request) -> Response {
    const WHAT: &str = "the node was not deprovisioned";
    let until = deadline(&request);
    let document = match read(WHAT, request).await {
        Ok(document) => document,
        Err(refusal) => return refusal.into_response(),
    };
    match within(until, api.deprovision(&document)).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => Refusal::of(WHAT, error).into_response(),
    }
}

fn deadline(request: &Request) -> Option<Instant> {
    request
        .extensions()
        .get::<CallContext>()
        .and_then(|context| context.deadline)
}

/// Limits the work to the server's deadline, with an error body that says so.
async fn within<T>(deadline: Option<Instant>, work: impl Future<Output = Result<T>>) -> Result<T> {
    let Some(at) = deadline else {
        return work.await;
    };
    tokio::time::timeout_at(at, work).await.unwrap_or_else(|_| {
        Err(Error::new(
            Reason::DeadlineExceeded,
            "the deadline passed before the answer",
        ))
    })
}

/// Reads the JSON document of a request.
async fn read(what: &'static str, request: Request) -> Result<Value, Refusal> {
    // Rejecting other content types prevents cross-site requests: browsers send any other type without a preflight.
    if !is_json(request.headers()) {
        return Err(Refusal::plain(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            what,
            "the content type is not application/json",
        ));
    }
    let body = Bytes::from_request(request, &()).await.map_err(|error| {
        let why = match error.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                format!("the document is larger than {MAX_MESSAGE_BYTES} bytes")
            }
            _ => "the document did not arrive whole".to_owned(),
        };
        Refusal::plain(error.status(), what, why)
    })?;
    serde_json::from_slice(&body).map_err(|error| {
        let why = format!("the document is not JSON: {error}");
        Refusal::plain(StatusCode::BAD_REQUEST, what, why)
    })
}

fn is_json(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>> {
    let Some(key) = headers.get(IDEMPOTENCY_KEY) else {
        return Ok(None);
    };
    match key.to_str() {
        Ok(key) if !key.is_empty() && key.len() <= MAX_KEY => Ok(Some(key.to_owned())),
        _ => Err(Error::invalid(
            "Idempotency-Key",
            format!("expected 1 to {MAX_KEY} printable characters of ASCII"),
        )),
    }
}
