//! Routes of pages and interfaces. Files of repositories, batches and event streams have their own in [`crate::route`].

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::Uri;
use axum::routing::get;

use crate::answer::{Answer, NOT_FOUND};
use crate::info;
use crate::site::Site;

/// Returns all routes.
pub(crate) fn all(site: Arc<Site>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/cvmfs", get(page))
        .route("/cvmfs/", get(page))
        .route("/dashboard", get(page))
        .route("/dashboard/", get(page))
        .route("/dashboard/{*rest}", get(page))
        .route("/cvmfs/info/v1/repositories.json", get(repositories))
        .route("/cvmfs/info/v1/meta.json", get(meta))
        .fallback(async || Answer::failure(NOT_FOUND))
        .with_state(site)
}

/// Returns a page of the dashboard.
async fn page(State(site): State<Arc<Site>>, uri: Uri) -> Answer {
    site.page(uri).await
}

async fn repositories(State(site): State<Arc<Site>>) -> Answer {
    site.listed(&site.names, info::repositories).await
}

async fn meta(State(site): State<Arc<Site>>) -> Answer {
    info::meta(&site.repositories)
}
