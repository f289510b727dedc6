//! What is answered over plain HTTP.

use axum::{Router, http::StatusCode, routing::get};
use tokio::sync::watch;

use crate::{Readiness, telemetry};

/// What must answer when nothing else does.
pub(crate) const OWN_PATHS: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// The routes that every server has.
pub(crate) fn routes(
    liveness: Option<watch::Receiver<Readiness>>,
    readiness: watch::Receiver<Readiness>,
) -> Router {
    Router::new()
        .route("/healthz", get(async move || answer(liveness.as_ref())))
        .route("/readyz", get(async move || answer(Some(&readiness))))
        .route(
            "/metrics",
            get(async || {
                (
                    [("content-type", "text/plain; version=0.0.4; charset=utf-8")],
                    telemetry::metrics().render(),
                )
            }),
        )
}

fn answer(state: Option<&watch::Receiver<Readiness>>) -> (StatusCode, String) {
    match state.map(|state| state.borrow().clone()) {
        None | Some(Readiness::Ready) => (StatusCode::OK, "ok\n".to_owned()),
        Some(Readiness::NotReady(why)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}
