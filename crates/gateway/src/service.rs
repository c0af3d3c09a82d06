//! The HTTP service of a gateway, for publishers of the reference and for Esker's.
//!
//! ```text
//! /api/v1/…                                    the interface of the reference's gateway
//! POST /api/esker/v1/leases                    the same request, which may have `wait_seconds`
//! POST /api/esker/v1/leases/TOKEN/missing      one name of an object a line; the objects that the storage lacks
//! POST /api/esker/v1/leases/TOKEN/uploads      name and length of an object a line; signed URLs to store some of them
//! GET  /api/esker/v1/leases/TOKEN/settings     the settings of the repository
//! GET  /api/esker/v1/leases, …/records         for operators: leases, and the newest records of the audit log
//! ```
//!
//! Requests are signed as those of the reference: a question for objects over token and body, one without a body over its path.
//!
//! Every answer is one JSON object with its length, whatever went wrong: the reference's publisher reads nothing else. Work
//! that blocks runs on threads of the server, as many as [`BLOCKING_THREADS`]: uploads and commits are counted, so that
//! neither kind takes all of them.

mod administration;
mod commits;
mod handling;
mod leases;
mod payloads;
mod reply;
mod slots;

use std::sync::Arc;

use axum::Router;
use axum::routing::{delete, get, post};
use esker_server::RoutedService;
use tokio::sync::Semaphore;

use self::handling::Service;
use self::reply::Reply;
use self::slots::Slots;
use crate::gateway::Gateway;

/// Uploads at once: each has at most 64 MiB in memory.
const UPLOADS: usize = 16;
/// Commits at once, those that wait for another one of their repository included.
const COMMITS: usize = 64;
/// Threads for work that blocks: uploads, commits, and short work.
pub const BLOCKING_THREADS: usize = UPLOADS + COMMITS + 16;
/// Largest payload: the packs of the reference have 200 MB, or one larger object.
const BODY_MAX: u64 = 5 << 30;

/// Returns the HTTP service of a gateway.
pub fn service(gateway: Arc<Gateway>) -> RoutedService {
    let (metrics, tables) =
        (administration::metrics(gateway.clone()), administration::tables(gateway.clone()));
    let service = Arc::new(Service {
        gateway,
        uploads: Slots::new(UPLOADS),
        commits: Arc::new(Semaphore::new(COMMITS)),
    });
    RoutedService {
        router: router(service),
        body_max: BODY_MAX,
        failure: reply::failure,
        title: "Gateway",
        tables,
        metrics,
    }
}

fn router(service: Arc<Service>) -> Router {
    let lease = get(leases::show).post(commits::commit).delete(leases::give_up).patch(leases::renew);
    Router::new()
        .route("/api/v1", get(administration::welcome))
        .route("/api/v1/", get(administration::welcome))
        .route("/api/v1/repos", get(administration::repositories))
        .route("/api/v1/repos/{repository}", get(administration::repository).post(administration::enable))
        .route("/api/v1/repos/{repository}/keys", get(administration::public_files))
        .route("/api/v1/gc", post(administration::collect))
        .route("/api/v1/notifications/publish", post(administration::no_notifications))
        .route("/api/v1/notifications/subscribe", get(administration::no_notifications))
        .route("/api/v1/leases", get(leases::list).post(leases::acquire))
        .route("/api/v1/leases/{token}", lease)
        .route("/api/v1/leases-by-path/{*path}", delete(administration::end_leases))
        .route("/api/v1/payloads", post(payloads::with_token_in_body))
        .route("/api/v1/payloads/{token}", post(payloads::with_token_in_path))
        .route("/api/esker/v1/leases", get(administration::leases).post(leases::acquire_or_wait))
        .route("/api/esker/v1/leases/{token}/missing", post(payloads::missing))
        .route("/api/esker/v1/leases/{token}/uploads", post(payloads::signed_puts))
        .route("/api/esker/v1/leases/{token}/settings", get(leases::settings))
        .route("/api/esker/v1/records", get(administration::records))
        .fallback(async || Reply::of_status(404, "there is no such resource"))
        .method_not_allowed_fallback(async || Reply::of_status(405, "the resource has no such method"))
        .with_state(service)
}
