//! A registry of container images, asked through the transport of repositories: proxies, deadlines, further tries, TLS.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use esker_node::repository::engine;
use esker_oci::{Challenge, Image, Reference, Registry, token};
use esker_store::{
    Cause, Disk as _, Done, Engine, Fetch, RealDisk, Servers, Source, Spool, StoreError, Stored, connect,
};

use super::from::{Opening, of_oci};
use crate::args::{RepositoryArgs, servers};
use crate::exit::{Failure, chain, of_store};
use crate::log;

/// What a manifest may be: those of OCI, and of Docker before.
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
                         application/vnd.docker.distribution.manifest.list.v2+json, \
                         application/vnd.docker.distribution.manifest.v2+json";
/// The longest answer of a server for tokens.
const TOKEN_MAX: u64 = 256 << 10;
/// How often it is looked whether somebody wants the end.
const TICK: Duration = Duration::from_millis(100);

/// Opens the image that is named by what follows `docker://`.
pub(super) fn open(name: &str, insecure: bool, opening: &Opening<'_>) -> Result<Image, Failure> {
    let what = format!("docker://{name}");
    let reference = Reference::parse(name).map_err(|error| Failure::usage(chain(&error)))?;
    let failed = |error: StoreError| of_store(&format!("can't ask the registry for {what}"), &error);
    let engine = engine(opening.repository.deadline, log::of_store()).map_err(failed)?;
    let scheme = if insecure { "http" } else { "https" };
    let base = format!("{scheme}://{}/v2", reference.host);
    let web = Web {
        source: source(&engine, &base, opening.repository)?,
        engine,
        name: reference.name.clone(),
        repository: opening.repository.clone(),
        insecure,
        stop: opening.stop.clone(),
        spool: Arc::new(Beside { folder: opening.beside.to_owned(), count: AtomicU64::new(0) }),
        token: Mutex::default(),
    };
    Image::in_registry(&what, &reference.reference, Box::new(web)).map_err(of_oci)
}

fn source(engine: &Engine, base: &str, args: &RepositoryArgs) -> Result<Arc<dyn Source>, Failure> {
    let mut servers = Servers { redirects: true, ..servers(base, args)? };
    args.deadline.into_iter().for_each(|deadline| servers.within(deadline));
    connect(engine, servers).map_err(|error| of_store(&format!("can't ask {base}"), &error))
}

/// A registry on the web.
struct Web {
    source: Arc<dyn Source>,
    engine: Engine,
    name: String,
    repository: RepositoryArgs,
    insecure: bool,
    stop: Arc<AtomicBool>,
    spool: Arc<Beside>,
    token: Mutex<Option<String>>,
}

impl Web {
    /// Asks for something of the image; once more with a token if the registry wants one.
    fn ask(&self, path: &str, accept: &str, limit: u64) -> io::Result<Stored> {
        let path = format!("{}/{path}", self.name);
        let what: Arc<str> = format!("{}/{path}", self.source.describe()).into();
        let fetch = |token: Option<&str>| {
            let token = token.map(|token| ("Authorization".to_owned(), format!("Bearer {token}")));
            let accept = ("Accept".to_owned(), accept.to_owned());
            let fields = Some([accept].into_iter().chain(token).collect());
            let spool: Arc<dyn Spool> = self.spool.clone();
            Fetch { fields, spool: Some(spool), ..Fetch::new(&*path, what.clone(), limit) }
        };
        let known = self.token.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let refused = match self.wait(&*self.source, fetch(known.as_deref())) {
            Err(Problem::Store(error)) => match error.cause() {
                Cause::Unauthorized { challenge } => {
                    Challenge::parse(challenge).ok_or_else(|| io::Error::other(error.clone()))?
                }
                _ => return Err(io::Error::other(error)),
            },
            other => return other.map_err(Problem::into_io),
        };
        let token = self.new_token(&refused)?;
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.clone());
        self.wait(&*self.source, fetch(Some(&token))).map_err(Problem::into_io)
    }

    fn new_token(&self, challenge: &Challenge) -> io::Result<String> {
        let realm = &challenge.realm;
        let is_private = realm.starts_with("https://") || self.insecure && realm.starts_with("http://");
        if !is_private {
            return Err(io::Error::other(format!(
                "the registry wants a token from {realm}, which is no https URL"
            )));
        }
        let parts =
            realm.rsplit_once('/').filter(|(base, file)| base.len() > "https://".len() && !file.is_empty());
        let (base, file) = parts.ok_or_else(|| io::Error::other(format!("{realm} can't have tokens")))?;
        let source =
            source(&self.engine, base, &self.repository).map_err(|error| io::Error::other(error.message))?;
        let separator = if file.contains('?') { '&' } else { '?' };
        let path = format!("{file}{separator}{}", challenge.query());
        let answer = self.wait(&*source, Fetch::new(path, format!("a token from {realm}"), TOKEN_MAX));
        token(&answer.map_err(Problem::into_io)?.into_bytes()?).map_err(io::Error::other)
    }

    /// Waits for an answer, or until somebody wants the end.
    fn wait(&self, source: &dyn Source, fetch: Fetch) -> Result<Stored, Problem> {
        let (sender, receiver) = sync_channel(1);
        source.fetch(
            fetch,
            Done::new(move |outcome| {
                // Nobody listens any more if the end was wanted.
                let _ = sender.send(outcome);
            }),
        );
        loop {
            match receiver.recv_timeout(TICK) {
                Ok(outcome) => return outcome.map_err(Problem::Store),
                Err(RecvTimeoutError::Timeout) if !self.stop.load(Ordering::Relaxed) => {}
                Err(_) => return Err(Problem::Stopped),
            }
        }
    }
}

enum Problem {
    Store(StoreError),
    Stopped,
}

impl Problem {
    fn into_io(self) -> io::Error {
        match self {
            Self::Store(error) => io::Error::other(error),
            Self::Stopped => io::Error::other("interrupted"),
        }
    }
}

impl Registry for Web {
    fn manifest(&self, reference: &str, limit: u64) -> io::Result<Vec<u8>> {
        self.ask(&format!("manifests/{reference}"), MANIFESTS, limit)?.into_bytes()
    }

    fn blob(&self, digest: &str, limit: u64) -> io::Result<Box<dyn Read + Send>> {
        Ok(self.ask(&format!("blobs/{digest}"), "*/*", limit)?.into_reader())
    }
}

/// Files without a name beside the image.
struct Beside {
    folder: PathBuf,
    count: AtomicU64,
}

impl Spool for Beside {
    fn file(&self) -> io::Result<File> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(format!(".esker-blob-{}-{number}", std::process::id()));
        let file = RealDisk::PRIVATE.create_spool(&path)?;
        RealDisk::PRIVATE.remove(&path)?;
        Ok(file)
    }

    fn append(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        RealDisk::PRIVATE.write(file, bytes)
    }
}
