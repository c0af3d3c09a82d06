//! A server of nothing but metrics, which its owner writes at each request.

use std::net::TcpListener;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::routing::get;

use crate::answer::{Answer, BROKEN, NOT_FOUND};
use crate::server::{Options, ServeError, Server};
use crate::site::Pages;
use crate::transport::Limits;

/// Maximum number of open connections.
const CONNECTIONS_MAX: usize = 64;

/// Writes the metrics, and returns them with their content type; none if that fails. May block.
pub type WriteMetrics = Arc<dyn Fn() -> Option<(&'static str, String)> + Send + Sync>;

impl Server {
    /// Creates a server of metrics at `/metrics`.
    pub fn of_metrics(listeners: Vec<TcpListener>, write: WriteMetrics) -> Result<Self, ServeError> {
        let router = Router::new().route("/metrics", get(measured)).route("/healthz", get(alive));
        let pages = Arc::new(Pages(router.fallback(unknown).with_state(write)));
        let limits = Limits { connections: CONNECTIONS_MAX, ..Limits::default() };
        let options = Options { limits, ..Options::default() };
        Self::of(listeners, (pages.clone(), pages), Arc::default(), options)
    }
}

async fn measured(State(write): State<WriteMetrics>) -> Answer {
    match tokio::task::spawn_blocking(move || write()).await {
        Ok(Some((kind, text))) => Answer::current(kind, text),
        Ok(None) | Err(_) => Answer::failure(BROKEN),
    }
}

/// Answers as long as the process runs.
async fn alive() -> Answer {
    Answer::current("text/plain", "ok\n".into())
}

async fn unknown() -> Answer {
    Answer::failure(NOT_FOUND)
}
