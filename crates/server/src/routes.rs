//! Routes of pages and interfaces. Files of repositories, batches and event streams have their own in [`crate::route`].

use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, Path, State};
use axum::routing::get;
use esker_format::name::RepositoryName;
use hyper::header::HeaderName;
use hyper::{HeaderMap, Uri};

use crate::answer::{Answer, BROKEN, BUSY, NOT_FOUND};
use crate::dashboard::RepositoryState;
use crate::geo::{self, Requester};
use crate::servermon::Query;
use crate::site::Site;
use crate::transport::exchange::Exchange;
use crate::{date, info, metrics};

/// Path of the interface of servermon.
const SERVERMON: &str = "/cvmfsmon/api/v1.0/";
/// Seconds for which answers of servermon may be cached.
const SERVERMON_SECONDS: u32 = 120;
/// Name of the field that tells why servers are not sorted.
const GEO: HeaderName = HeaderName::from_static("esker-geo");

/// Returns all routes; those of metrics only if they have no socket of their own.
pub(crate) fn all(site: Arc<Site>, has_metrics: bool) -> Router {
    let mut router = Router::new()
        .route("/", get(page))
        .route("/cvmfs", get(page))
        .route("/cvmfs/", get(page))
        .route("/dashboard", get(page))
        .route("/dashboard/", get(page))
        .route("/dashboard/{*rest}", get(page))
        .route("/cvmfs/info/v1/repositories.json", get(repositories))
        .route("/cvmfs/info/v1/meta.json", get(meta))
        .route("/cvmfs/{repository}/api/{version}/geo/{named}/{servers}", get(places))
        .route("/cvmfsmon/api/v1.0/{tests}", get(servermon))
        .route("/healthz", get(alive))
        .route("/readyz", get(ready));
    if has_metrics {
        router = router.route("/metrics", get(measured));
    }
    router.fallback(unknown).with_state(site)
}

/// Returns the routes of the socket for metrics.
pub(crate) fn of_metrics(site: Arc<Site>) -> Router {
    let router = Router::new().route("/metrics", get(measured));
    router.route("/healthz", get(alive)).route("/readyz", get(ready)).fallback(unknown).with_state(site)
}

async fn unknown() -> Answer {
    Answer::failure(NOT_FOUND)
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

/// Answers as long as the process runs.
async fn alive() -> Answer {
    Answer::current("text/plain", "ok\n".into())
}

/// Answers whether the served folders can be read, object storage answers, a cache can be written to, and the server is not
/// stopping.
async fn ready(State(site): State<Arc<Site>>, Extension(exchange): Extension<Arc<Exchange>>) -> Answer {
    if exchange.transport.stops() {
        return Answer::explained(BUSY, "the server stops");
    }
    let (repositories, storages) = (site.repositories.clone(), site.storages.clone());
    let look = move || (repositories.unreadable(), storages.and_then(|storages| storages.trouble()));
    if let Some(storages) = &site.storages
        && storages.is_away().await
    {
        return Answer::explained(BUSY, "the object storage does not answer");
    }
    match tokio::task::spawn_blocking(look).await {
        Ok((_, Some(reason))) => Answer::explained(BUSY, &format!("the cache can't be written to: {reason}")),
        Ok((None, None)) => Answer::current("text/plain", "ready\n".into()),
        // The path is for the log: a client need not know it.
        Ok((Some((path, error)), None)) => {
            tracing::warn!("can't read the folder {}: {error}", path.display());
            Answer::explained(BUSY, "a served folder can't be read")
        }
        Err(_) => Answer::failure(BROKEN),
    }
}

/// Reads the state of all repositories, once for all requests that wait.
async fn state(site: &Site) -> Option<Vec<RepositoryState>> {
    let _one = site.monitoring.lock().await;
    let repositories = site.repositories.clone();
    tokio::task::spawn_blocking(move || RepositoryState::all(&repositories)).await.ok()
}

async fn measured(State(site): State<Arc<Site>>) -> Answer {
    let Some(state) = state(&site).await else { return Answer::failure(BROKEN) };
    let mut further = site.storages.as_ref().map(|storages| storages.metrics()).unwrap_or_default();
    let repositories = site.repositories.clone();
    let gone = tokio::task::spawn_blocking(move || repositories.gone()).await.unwrap_or_default();
    further += "# HELP esker_serve_folders_gone Served folders that can't be read.\n";
    further += &format!("# TYPE esker_serve_folders_gone gauge\nesker_serve_folders_gone {gone}\n");
    Answer::current(metrics::CONTENT_TYPE, metrics::write_with(&site.counters, state, &further))
}

async fn servermon(State(site): State<Arc<Site>>, uri: Uri) -> Answer {
    let text = uri.path_and_query().map_or("", |path| path.as_str());
    let query = match Query::parse(text.strip_prefix(SERVERMON).unwrap_or_default()) {
        Ok(query) => query,
        Err(reason) => return Answer::explained(400, &reason),
    };
    let Some(state) = state(&site).await else { return Answer::failure(BROKEN) };
    let (kind, text) = query.answer(&state, date::now().0);
    Answer::made(kind, SERVERMON_SECONDS, text)
}

/// Orders servers by their distance from the client.
async fn places(
    State(site): State<Arc<Site>>,
    Path((repository, version, named, servers)): Path<(String, String, String, String)>,
    Extension(exchange): Extension<Arc<Exchange>>,
    fields: HeaderMap,
) -> Answer {
    if RepositoryName::parse(&repository).is_err() || !version.starts_with('v') {
        return Answer::failure(NOT_FOUND);
    }
    let text = |name: &str| fields.get(name).and_then(|value| value.to_str().ok());
    let last = |list: &str| list.rsplit(',').next().and_then(|address| address.trim().parse().ok());
    let requester = Requester {
        named,
        cloudflare: text("cf-connecting-ip").and_then(|address| address.trim().parse().ok()),
        forwarded: text("x-forwarded-for").and_then(last),
        peer: Some(exchange.client.ip()),
    };
    let ordered = match site.geo.clone() {
        None => geo::as_given(&servers),
        Some(database) => {
            let order = move || database.order(&requester, &servers);
            let ordered = tokio::task::spawn_blocking(order).await;
            ordered.unwrap_or_else(|_| Err("the database can't be read".into()))
        }
    };
    match ordered {
        Ok(order) if site.geo.is_none() => {
            Answer::made("text/plain", 300, geo::text(&order)).with(GEO, "no database, order as given")
        }
        Ok(order) => Answer::made("text/plain", 3600, geo::text(&order)),
        Err(reason) => {
            let mut answer = Answer::made("text/plain", 300, format!("Bad Request: {reason}\n"));
            answer.status = 400;
            answer
        }
    }
}
