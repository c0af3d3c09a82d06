//! Routes of pages and interfaces. Files of repositories, batches and event streams have their own in [`crate::route`].

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::routing::get;

use crate::answer::{Answer, NOT_FOUND};
use crate::info;
use crate::page;
use crate::site::Site;

/// Returns all routes.
pub(crate) fn all(site: Arc<Site>) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/cvmfs", get(index))
        .route("/cvmfs/", get(index))
        .route("/cvmfs/info/v1/repositories.json", get(repositories))
        .route("/cvmfs/info/v1/meta.json", get(meta))
        .fallback(async || Answer::failure(NOT_FOUND))
        .with_state(site)
}

async fn index(State(site): State<Arc<Site>>) -> Answer {
    site.listed(&site.page, page::index).await
}

async fn repositories(State(site): State<Arc<Site>>) -> Answer {
    site.listed(&site.names, info::repositories).await
}

async fn meta(State(site): State<Arc<Site>>) -> Answer {
    info::meta(&site.repositories)
}
