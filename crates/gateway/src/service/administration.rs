//! Requests of operators, and answers about the gateway itself.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use base64ct::{Base64, Encoding as _};
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_server::PageTable;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::handling::{Named, Service, authorization, blocking, done, parse, small};
use super::reply::Reply;
use crate::error::GatewayError;
use crate::gateway::Gateway;
use crate::lease::{Lease, State as LeaseState};
use crate::lease_path::LeasePath;
use crate::token::Token;
use crate::wire::{self, Answer};

/// Records of the audit log in an answer.
const RECORDS: usize = 1000;

/// Version of what this gateway has beside the interface of the reference.
const ADDITIONS: u32 = 1;

/// Names the gateway and its version, which tell Esker's publishers what it has beyond the common interface.
pub(super) async fn welcome() -> Reply {
    Answer::ok().with("welcome", "This is the gateway of Esker").with("esker", ADDITIONS).into()
}

/// Returns the repositories with their keys and directories.
pub(super) async fn repositories(State(service): State<Arc<Service>>) -> Reply {
    let keys = service.gateway.keys();
    let all: Map<String, Value> = keys
        .repositories()
        .iter()
        .map(|repository| (repository.to_string(), data(&service.gateway, repository)))
        .collect();
    Answer::ok().with("data", all).into()
}

/// Returns one repository.
pub(super) async fn repository(State(service): State<Arc<Service>>, Named(name): Named) -> Reply {
    match known(&service.gateway, &name) {
        Some(repository) => Answer::ok().with("data", data(&service.gateway, &repository)).into(),
        None => Answer::error("invalid_repo").into(),
    }
}

fn known(gateway: &Gateway, name: &str) -> Option<RepositoryName> {
    let keys = gateway.keys();
    keys.repositories().iter().find(|repository| repository.as_str() == name).cloned()
}

fn data(gateway: &Gateway, repository: &RepositoryName) -> Value {
    let keys = gateway.keys();
    let mut grants = Map::new();
    for (name, key) in keys.iter() {
        for grant in key.grants.iter().filter(|grant| grant.repository == *repository) {
            let directory = if grant.directory().is_empty() { "/" } else { grant.directory() };
            grants.insert(name.to_owned(), directory.into());
        }
    }
    json!({ "keys": grants, "enabled": !gateway.is_disabled(repository) })
}

/// Returns the public key and the certificate of a repository, in base64.
pub(super) async fn public_files(
    State(service): State<Arc<Service>>,
    uri: Uri,
    headers: HeaderMap,
    Named(name): Named,
) -> Result<Reply, Reply> {
    let signer = service.gateway.signer(authorization(&headers), uri.path().as_bytes())?;
    let Some(repository) = known(&service.gateway, &name) else {
        return Ok(Answer::error("invalid_repo").into());
    };
    let gateway = service.gateway.clone();
    let files = blocking(move || gateway.public_files(&signer, &repository)).await?;
    let text = |text: &str| Base64::encode_string(text.as_bytes());
    let data = json!({ "pub": text(&files.key), "crt": text(&files.certificate) });
    Ok(Answer::ok().with("data", data).into())
}

/// Request to collect a repository; the options of the reference are not used.
#[derive(Deserialize)]
struct Collect {
    #[serde(default)]
    repo: String,
}

/// Refuses to collect: that is done beside the gateway, whose commits go on.
pub(super) async fn collect(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Reply, Reply> {
    let body = small(body).await?;
    service.gateway.check_operator(authorization(&headers), &body)?;
    let Collect { repo } = parse(&body)?;
    Ok(match known(&service.gateway, &repo) {
        Some(name) => {
            Answer::error(format!("run `esker collect {name}` on a machine with the keys of the repository"))
        }
        None => Answer::error("invalid_repo"),
    }
    .into())
}

/// Refuses notifications, which the web server of a repository sends by itself.
pub(super) async fn no_notifications() -> Reply {
    Answer::error("notifications are not passed on: `esker serve` tells clients of new revisions").into()
}

/// Request to enable or disable a repository.
#[derive(Deserialize)]
struct Enable {
    enable: bool,
}

/// Enables or disables a repository.
pub(super) async fn enable(
    State(service): State<Arc<Service>>,
    Named(name): Named,
    headers: HeaderMap,
    body: Body,
) -> Result<Reply, Reply> {
    let body = small(body).await?;
    service.gateway.check_operator(authorization(&headers), &body)?;
    let Enable { enable } = parse(&body)?;
    let Some(repository) = known(&service.gateway, &name) else {
        return Ok(Answer::error("invalid_repo").into());
    };
    let gateway = service.gateway.clone();
    blocking(move || gateway.set_enabled(&repository, enable)).await?;
    Ok(done())
}

/// Ends the leases of a directory and below it.
pub(super) async fn end_leases(
    State(service): State<Arc<Service>>,
    uri: Uri,
    headers: HeaderMap,
    Named(path): Named,
) -> Result<Reply, Reply> {
    service.gateway.check_operator(authorization(&headers), uri.path().as_bytes())?;
    let path = LeasePath::parse(&with_root(&path)).map_err(GatewayError::from)?;
    let gateway = service.gateway.clone();
    let ended = blocking(move || gateway.end_below(&path)).await?;
    Ok(Answer::ok().with("ended", ended).into())
}

/// A repository without a slash means all of it.
fn with_root(path: &str) -> String {
    if path.contains('/') { path.to_owned() } else { format!("{path}/") }
}

/// Returns the leases with what an operator needs to know of them.
pub(super) async fn leases(State(service): State<Arc<Service>>, headers: HeaderMap) -> Result<Reply, Reply> {
    service.gateway.check_operator(authorization(&headers), b"/api/esker/v1/leases")?;
    let all: Vec<Value> = service
        .gateway
        .leases()
        .iter()
        .map(|(token, lease)| {
            let mut data = wire::lease_data(lease);
            data["lease"] = token.short().into();
            data["state"] = use_of(lease).into();
            data
        })
        .collect();
    Ok(Answer::ok().with("leases", all).with("waiting", service.gateway.waiting()).into())
}

/// Returns the newest records of the audit log.
pub(super) async fn records(State(service): State<Arc<Service>>, headers: HeaderMap) -> Result<Reply, Reply> {
    service.gateway.check_operator(authorization(&headers), b"/api/esker/v1/records")?;
    let gateway = service.gateway.clone();
    let records = blocking(move || gateway.records(RECORDS)).await?;
    Ok(Answer::ok().with("records", json!(records)).into())
}

fn use_of(lease: &Lease) -> &'static str {
    match lease.state {
        LeaseState::Open => "open",
        LeaseState::Committing { .. } => "committing",
        LeaseState::Ended { .. } => "ended",
    }
}

/// Returns the maker of the tables of the gateway's page: what the interface tells without a signature.
pub(super) fn tables(gateway: Arc<Gateway>) -> Arc<dyn Fn() -> Vec<PageTable> + Send + Sync> {
    Arc::new(move || {
        let (leases, counts) = (gateway.leases(), gateway.counts());
        let row = |(_, lease): &(Token, Lease)| {
            let expires = UnixTime(lease.expires.0.div_euclid(1000)).to_string();
            vec![
                lease.path.to_string(),
                lease.key.clone(),
                lease.hostname.clone(),
                use_of(lease).into(),
                expires,
            ]
        };
        let leases = PageTable {
            caption: "Leases".to_owned(),
            columns: vec!["Directory", "Key", "Host", "Use", "End"],
            rows: leases.iter().map(row).collect(),
        };
        let counts = [
            ("Publishers that wait for a directory", gateway.waiting() as u64),
            ("Commits that wait for another one", gateway.waiting_commits() as u64),
            ("Commits that published a revision", counts.published),
            ("Commits that published nothing", counts.failed),
            ("Objects received", counts.objects),
            ("Bytes of these objects", counts.bytes),
        ];
        let counts = PageTable {
            caption: "Since the start".to_owned(),
            columns: vec!["What", "Number"],
            rows: counts.map(|(what, count)| vec![what.to_owned(), count.to_string()]).to_vec(),
        };
        vec![leases, counts]
    })
}

/// Returns the writer of the gateway's metrics.
pub(super) fn metrics(gateway: Arc<Gateway>) -> Arc<dyn Fn() -> String + Send + Sync> {
    Arc::new(move || {
        let leases = gateway.leases();
        let committing =
            leases.iter().filter(|(_, lease)| matches!(lease.state, LeaseState::Committing { .. })).count();
        let counts = gateway.counts();
        let mut text = String::new();
        let mut family = |name: &str, kind: &str, help: &str, value: u64| {
            let end = if kind == "counter" { "_total" } else { "" };
            // Writing to a string succeeds.
            let _ = writeln!(
                text,
                "# HELP esker_gateway_{name} {help}.\n# TYPE esker_gateway_{name} {kind}\nesker_gateway_{name}{end} {value}"
            );
        };
        family("leases", "gauge", "Leases that are held", leases.len() as u64);
        family("waiting", "gauge", "Publishers that wait for a directory", gateway.waiting() as u64);
        family("committing", "gauge", "Commits under way", committing as u64);
        family("commits", "counter", "Commits that published a revision", counts.published);
        family("failed_commits", "counter", "Commits that published nothing", counts.failed);
        family("received_objects", "counter", "Objects that were received and stored", counts.objects);
        family("received_bytes", "counter", "Bytes of these objects", counts.bytes);
        text
    })
}
