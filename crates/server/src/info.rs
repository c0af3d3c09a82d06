//! Implements the info API, which monitoring of CernVM-FS servers queries.

use serde_json::{Value, json};

use crate::answer::Answer;
use crate::dashboard::RepositoryState;
use crate::repositories::Repositories;

/// Version of the documents' schema.
const SCHEMA: u32 = 1;
/// Path of the administrator's description of the server, below a folder of repositories.
const META: &str = "info/v1/meta.json";
/// Maximum size of the description in bytes.
const META_MAX: u64 = 1 << 20;

/// Returns `repositories.json`: the repositories published here, and the replicas.
pub(crate) fn repositories(entries: &[RepositoryState]) -> Answer {
    let of = |replica: bool| -> Vec<Value> {
        entries.iter().filter(|entry| entry.replica == replica).map(element).collect()
    };
    Answer::json(&json!({ "schema": SCHEMA, "repositories": of(false), "replicas": of(true) }))
}

fn element(entry: &RepositoryState) -> Value {
    let name = entry.head.as_ref().map_or(&entry.folder, |head| &head.name);
    let mut element = json!({ "name": name, "url": format!("/cvmfs/{}", entry.folder) });
    if *name != entry.folder {
        element["alias"] = entry.folder.as_str().into();
    }
    element
}

/// Returns `meta.json`: the administrator's file, or its empty form.
pub(crate) fn meta(repositories: &Repositories) -> Answer {
    let written = repositories.folders().find_map(|folder| {
        let bytes = folder.read(META, META_MAX).ok()?;
        serde_json::from_slice::<Value>(&bytes).ok()
    });
    let empty = || json!({ "administrator": "", "email": "", "organisation": "", "custom": {} });
    Answer::json(&written.unwrap_or_else(empty))
}
