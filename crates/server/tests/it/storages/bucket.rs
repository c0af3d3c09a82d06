//! A bucket with the fixture, and servers in front of it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use esker_format::name::RepositoryName;
use esker_format::object::ObjectName;
use esker_object_storage::{StorageSettings, StorageUrl};
use esker_server::proxy::{CacheError, RepositoryStorage, StorageOptions};
use esker_server::{Options, Repositories, ServeError, Server};
use esker_testkit::fixture::{FULL, Repository};
use esker_testkit::object;
use esker_testkit::s3::{BUCKET, S3Fault, S3Rule, S3Server};
use esker_testkit::waiting::until_some;
use tempfile::TempDir;

use crate::client::{PATIENCE, Running};

pub(super) const MANIFEST: &str = "/cvmfs/full.test/.cvmfspublished";
/// Prefix of the repository's keys.
pub(super) const KEY: &str = "cvmfs/full.test";
/// Path of the repository on a server.
const BASE: &str = "/cvmfs/full.test/";

/// A bucket with the fixture, and the cache folder of its servers.
pub(super) struct Stored {
    pub(super) server: S3Server,
    pub(super) repository: Repository,
    pub(super) cache: TempDir,
    is_away: Arc<AtomicBool>,
}

impl Stored {
    pub(super) fn start() -> Self {
        let (server, repository) = (S3Server::start(), FULL.unpack());
        let cache = tempfile::tempdir().expect("a folder");
        let stored = Self { server, repository, cache, is_away: Arc::default() };
        stored.upload();
        stored
    }

    /// Stores all files of the repository in the bucket.
    pub(super) fn upload(&self) {
        for path in self.paths() {
            self.server.put(BUCKET, &self.key_of(&path), self.bytes(&path));
        }
    }

    pub(super) fn options(&self) -> Options {
        let environment =
            [("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")].into_iter().collect();
        let settings = StorageSettings {
            endpoint: Some(self.server.endpoint()),
            environment,
            retries: Some(2),
            ..StorageSettings::default()
        };
        let url = StorageUrl::parse(&format!("s3://{BUCKET}/{KEY}")).expect("an address");
        let bucket = url.bucket().expect("a bucket").clone();
        let name = RepositoryName::parse("full.test").expect("a name");
        let storages = StorageOptions {
            repositories: vec![RepositoryStorage { name, bucket, settings }],
            cache: self.cache.path().to_owned(),
            cache_size: 1 << 30,
            head_age: Duration::ZERO,
        };
        Options { storages: Some(storages), ..Options::default() }
    }

    /// Starts a server that asks for each manifest.
    pub(super) fn serve(&self) -> Running {
        let address = "127.0.0.1:0".parse().expect("an address");
        // A server that was stopped in this process may still end the last of its tasks, which hold the cache.
        let server = until_some(PATIENCE, || {
            let listener = Server::listen(address).expect("listening");
            let repositories = Repositories::open(&[]).expect("no folder");
            match Server::new(vec![listener], repositories, self.options()) {
                Err(ServeError::Cache(CacheError::Busy { .. })) => None,
                other => Some(other.expect("a server")),
            }
        });
        Running::on(server.expect("the cache is free"))
    }

    /// Makes the storage close every connection without an answer.
    pub(super) fn leave(&self) -> S3Rule {
        self.is_away.store(true, Ordering::SeqCst);
        let is_away = self.is_away.clone();
        self.server.fault(move |_| is_away.load(Ordering::SeqCst), S3Fault::Drop)
    }

    pub(super) fn come_back(&self) {
        self.is_away.store(false, Ordering::SeqCst);
    }

    /// Returns the paths of all files of the repository on a server, in order.
    pub(super) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        walk(&self.repository.path(), &mut |path| {
            let path = path.strip_prefix(self.repository.path()).expect("a path below").to_str();
            let path = path.expect("a text");
            let is_object = path.starts_with("data/") && !path.contains("txn");
            if is_object || path.starts_with(".cvmfs") {
                paths.push(format!("{BASE}{path}"));
            }
        });
        paths.sort();
        paths
    }

    /// Returns the path of some object.
    pub(super) fn object_path(&self) -> String {
        self.paths().into_iter().find(|path| path.contains("/data/")).expect("an object")
    }

    /// Adds an object to the bucket; returns its path and its bytes.
    pub(super) fn add(&self, plain: &[u8]) -> (String, Vec<u8>) {
        let hash = self.repository.store(plain, "");
        let path = format!("{BASE}{}", object::path(&hash, ""));
        let bytes = self.bytes(&path);
        self.server.put(BUCKET, &self.key_of(&path), bytes.clone());
        (path, bytes)
    }

    /// Returns the bytes of a file by its path on a server.
    pub(super) fn bytes(&self, path: &str) -> Vec<u8> {
        self.repository.read(path.strip_prefix(BASE).expect("a path of the repository"))
    }

    /// Returns the key of a file by its path on a server.
    pub(super) fn key_of(&self, path: &str) -> String {
        format!("{KEY}/{}", path.strip_prefix(BASE).expect("a path of the repository"))
    }

    /// Returns the number of requests for a key.
    pub(super) fn asked(&self, key: &str) -> usize {
        self.server.requests().iter().filter(|request| request.key == key).count()
    }
}

/// Returns the name of an object from its path.
pub(super) fn name_of(path: &str) -> ObjectName {
    let (_, rest) = path.split_once("/data/").expect("an object");
    ObjectName::parse(&rest.replacen('/', "", 1)).expect("an object")
}

/// Returns bytes that no compression makes smaller.
pub(super) fn noise(len: usize) -> Vec<u8> {
    let mut state = 7_u32;
    let step = std::iter::repeat_with(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_le_bytes()[3]
    });
    step.take(len).collect()
}

fn walk(folder: &Path, visit: &mut dyn FnMut(&Path)) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        if entry.file_type().expect("a type").is_dir() {
            walk(&entry.path(), visit);
        } else {
            visit(&entry.path());
        }
    }
}
