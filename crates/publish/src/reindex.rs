//! Rebuilds the content index from the objects of the published revision.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use esker_format::compress::{Compression, DecompressError, decompress};
use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::write::catalog::Entry;
use esker_repository::{Repository, RepositoryError, parallel, path, published::Published};
use esker_store::{Cause, Sink};

use crate::content_index::{ContentIndex, ContentKey};

/// Larger objects are left out: they would not fit the memory, and only publishers that never cut files make
/// them.
const OBJECT_MAX: u64 = 1 << 30;

/// Name of an object, and its compression.
type Stored = (ObjectName, Compression);

/// Counts of the objects that a reindex found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reindexed {
    /// Number of objects in the index.
    pub objects: u64,
    /// Number of objects omitted because of their size.
    pub left_out: u64,
}

/// Reads every file of the published revision and records the object of its content, so that no content is stored
/// twice.
pub fn reindex(
    repository: &Repository,
    threads: usize,
    stop: &AtomicBool,
) -> Result<Reindexed, RepositoryError> {
    let sink: Arc<dyn Sink> = repository.storage().sink().clone();
    let published = Published::new(sink, repository.head());
    let objects: Vec<Stored> = objects(&published)?.into_iter().collect();
    let index = ContentIndex::of(repository);
    let indexed =
        parallel::map(threads, stop, &objects, |object| index_object(repository.sink(), &index, object))?;
    index.write()?;
    let left_out = indexed.iter().filter(|is_indexed| !**is_indexed).count() as u64;
    Ok(Reindexed { objects: objects.len() as u64 - left_out, left_out })
}

/// Adds an object to the index; returns false if it is too large.
fn index_object(
    sink: &dyn Sink,
    index: &ContentIndex,
    (name, compression): &Stored,
) -> Result<bool, RepositoryError> {
    let object = || name.to_string();
    let what = || "a file of the published revision".to_owned();
    let stored = match sink.read(&name.path(), OBJECT_MAX) {
        Err(error) if matches!(error.cause(), Cause::TooLarge { .. }) => return Ok(false),
        other => other?,
    };
    let stored = stored.ok_or_else(|| RepositoryError::Missing { what: what(), object: object() })?;
    if ContentHash::of(name.hash.algorithm(), &stored) != name.hash {
        return Err(RepositoryError::Corrupt { what: what(), object: object() });
    }
    let plain = match decompress(&stored, *compression, None, OBJECT_MAX) {
        Err(DecompressError::TooLarge { .. }) => return Ok(false),
        other => {
            other.map_err(|source| RepositoryError::Compressed { what: format!("object {name}"), source })?
        }
    };
    index.insert(
        ContentKey::of(&plain, name.hash.algorithm(), *compression, name.kind),
        name,
        stored.len() as u64,
    );
    Ok(true)
}

/// Returns the objects of all files.
fn objects(published: &Published) -> Result<BTreeSet<Stored>, RepositoryError> {
    let mut found = BTreeSet::new();
    let mut waiting = vec![Vec::new()];
    while let Some(directory) = waiting.pop() {
        for entry in published.list(&directory)? {
            if entry.is_directory() {
                waiting.push(path::join(&directory, &entry.name));
            } else {
                found.extend(objects_of(&entry));
            }
        }
    }
    Ok(found)
}

fn objects_of(entry: &Entry) -> Vec<Stored> {
    // Content outside the repository, or stored in a way unknown here, is nothing to find again.
    let external = entry.flags.has(esker_format::catalog::Flags::EXTERNAL);
    let Some(compression) = entry.flags.compression().filter(|_| entry.is_file() && !external) else {
        return Vec::new();
    };
    let whole = entry.hash.map(|hash| ObjectName::new(hash, ObjectKind::File));
    let chunks = entry.chunks.iter().map(|chunk| ObjectName::new(chunk.hash, ObjectKind::Chunk));
    whole.into_iter().chain(chunks).map(|name| (name, compression)).collect()
}
