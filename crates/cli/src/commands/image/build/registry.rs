//! Client of a container registry, over the transport of repositories: proxies, deadlines, retries, TLS.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use esker_node::repository::engine;
use esker_oci::{Challenge, Image, Reference, Registry, TokenServer, escaped, token};
use esker_store::{
    Callback, Cause, Engine, Fetch, FolderSpool, HttpRequest, KeptAuthorities, Source, Spool, StoreError,
    Stored, connect,
};

use super::credentials::{self, Found, Login};
use super::from::{Opening, of_oci};
use crate::error::{Failure, chain, of_store};
use crate::settings::SourceSettings;

/// Accepted types of a manifest: those of OCI, and older ones of Docker.
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
                         application/vnd.docker.distribution.manifest.list.v2+json, \
                         application/vnd.docker.distribution.manifest.v2+json";
/// Maximum length of a token server's reply.
const TOKEN_MAX: u64 = 256 << 10;
/// Client id in requests that exchange a token for another.
const CLIENT: &str = "esker";
/// Interval of checks for an interruption.
const TICK: Duration = Duration::from_millis(100);

/// Opens the image named by the text behind `docker://`.
pub(super) fn open(name: &str, insecure: bool, opening: &Opening<'_>) -> Result<Image, Failure> {
    let what = format!("docker://{name}");
    let reference = Reference::parse(name).map_err(|error| Failure::usage(chain(&error)))?;
    let failed = |error: StoreError| of_store(&format!("can't ask the registry for {what}"), &error);
    let engine = engine(opening.sources.deadline(), KeptAuthorities::default()).map_err(failed)?;
    let scheme = if insecure { "http" } else { "https" };
    let base = format!("{scheme}://{}/v2", reference.server());
    let web = Web {
        source: source(&engine, &base, &opening.sources)?,
        engine,
        sources: opening.sources.clone(),
        reference: reference.clone(),
        insecure,
        stop: opening.stop.clone(),
        spool: Arc::new(FolderSpool(opening.beside.to_owned())),
        authorization: Mutex::default(),
    };
    Image::in_registry(&what, &reference.reference, Box::new(web)).map_err(of_oci)
}

/// Returns the properties of a request with these fields.
fn with_fields(fields: Option<Arc<[(String, String)]>>) -> HttpRequest {
    HttpRequest { fields, ..HttpRequest::default() }
}

fn source(engine: &Engine, base: &str, sources: &SourceSettings) -> Result<Arc<dyn Source>, Failure> {
    connect(engine, sources.web_server(base)?).map_err(|error| of_store(&format!("can't ask {base}"), &error))
}

/// A registry on the web.
struct Web {
    source: Arc<dyn Source>,
    engine: Engine,
    sources: SourceSettings,
    reference: Reference,
    insecure: bool,
    stop: Arc<AtomicBool>,
    spool: Arc<FolderSpool>,
    /// Authorization that the registry accepted.
    authorization: Mutex<Option<String>>,
}

impl Web {
    /// Requests a file of the image; repeats it with a token or a password, if the registry requires one.
    fn ask(&self, path: &str, accept: &str, limit: u64) -> io::Result<Stored> {
        let path = format!("{}/{path}", self.reference.name);
        let what: Arc<str> = format!("{}/{path}", self.source.describe()).into();
        let fetch = |authorization: Option<&str>| {
            let shown = authorization.map(|value| ("Authorization".to_owned(), value.to_owned()));
            let accept = ("Accept".to_owned(), accept.to_owned());
            let fields = Some([accept].into_iter().chain(shown).collect());
            let spool: Arc<dyn Spool> = self.spool.clone();
            Fetch { http: with_fields(fields), spool: Some(spool), ..Fetch::new(&*path, what.clone(), limit) }
        };
        let known = self.authorization.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let challenge = match self.wait(&*self.source, fetch(known.as_deref())) {
            Err(Problem::Store(error)) => match error.cause() {
                Cause::Unauthorized { challenge } => {
                    Challenge::parse(challenge).ok_or_else(|| io::Error::other(error.clone()))?
                }
                _ => return Err(self.explained(error, None)),
            },
            other => return other.map_err(Problem::into_io),
        };
        let registry = &self.reference.registry;
        let login = credentials::find(
            &self.reference,
            &credentials::usual_files(|name| self.sources.user().environment.get(name).map(OsStr::to_owned)),
        )
        .map_err(io::Error::other)?;
        let authorization = match &challenge {
            Challenge::Basic => {
                let shown = login.as_ref().and_then(|found| found.login.basic());
                shown.ok_or_else(|| {
                    Refused::error(format!("{registry} wants a user and a password"), registry)
                })?
            }
            Challenge::Bearer(server) => format!("Bearer {}", self.new_token(server, login.as_ref())?),
        };
        *self.authorization.lock().unwrap_or_else(PoisonError::into_inner) = Some(authorization.clone());
        self.wait(&*self.source, fetch(Some(&authorization))).map_err(|problem| match problem {
            Problem::Store(error) => self.explained(error, login.as_ref()),
            stopped => stopped.into_io(),
        })
    }

    /// Adds an explanation to a refusal in spite of a token or a password.
    fn explained(&self, error: StoreError, login: Option<&Found>) -> io::Error {
        let Reference { registry, name, .. } = &self.reference;
        if !matches!(error.cause(), Cause::Unauthorized { .. } | Cause::Status(401 | 403)) {
            return io::Error::other(error);
        }
        let told = match login {
            Some(found) => {
                format!("{registry} doesn't let the user of the credentials in {} read {name}", found.from)
            }
            None => format!("{registry} has no public image {name}"),
        };
        Refused::error(told, registry)
    }

    fn new_token(&self, server: &TokenServer, login: Option<&Found>) -> io::Result<String> {
        let realm = &server.realm;
        let is_private = realm.starts_with("https://") || self.insecure && realm.starts_with("http://");
        if !is_private {
            return Err(io::Error::other(format!(
                "the registry wants a token from {realm}, which is not an https URL"
            )));
        }
        let parts =
            realm.rsplit_once('/').filter(|(base, file)| base.len() > "https://".len() && !file.is_empty());
        let (base, file) = parts.ok_or_else(|| io::Error::other(format!("{realm} can't have tokens")))?;
        let source =
            source(&self.engine, base, &self.sources).map_err(|error| io::Error::other(error.message))?;
        let query = server.query(&self.reference.name);
        let what = format!("a token from {realm}");
        let fetch = match login.map(|found| &found.login) {
            Some(Login::Identity(identity)) => {
                let form = format!(
                    "grant_type=refresh_token&client_id={CLIENT}&refresh_token={}&{query}",
                    escaped(identity)
                );
                let http = HttpRequest { form: Some(form.into()), ..HttpRequest::default() };
                Fetch { http, ..Fetch::new(file, what, TOKEN_MAX) }
            }
            password => {
                let separator = if file.contains('?') { '&' } else { '?' };
                let shown = password.and_then(Login::basic);
                let fields = shown.map(|value| [("Authorization".to_owned(), value)].into_iter().collect());
                let path = format!("{file}{separator}{query}");
                Fetch { http: with_fields(fields), ..Fetch::new(path, what, TOKEN_MAX) }
            }
        };
        let answer = match (self.wait(&*source, fetch), login) {
            (Err(Problem::Store(error)), Some(found))
                if matches!(error.cause(), Cause::Unauthorized { .. } | Cause::Status(400 | 401 | 403)) =>
            {
                let registry = &self.reference.registry;
                let told = format!("{realm} refuses the credentials in {} for {registry}", found.from);
                return Err(Refused::error(told, registry));
            }
            (answer, _) => answer.map_err(Problem::into_io)?,
        };
        token(&answer.into_bytes()?).map_err(io::Error::other)
    }

    /// Waits for a reply or an interruption.
    fn wait(&self, source: &dyn Source, fetch: Fetch) -> Result<Stored, Problem> {
        let (sender, receiver) = sync_channel(1);
        source.fetch(
            fetch,
            Callback::new(move |outcome| {
                // After an interruption the receiver is gone.
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

/// Error of a registry that requires a login.
#[derive(Debug)]
pub(super) struct Refused {
    message: String,
    /// Hint that the message ends with.
    pub(super) hint: String,
}

impl Refused {
    /// Returns the refusal as an error of a stream, with a hint to log in.
    fn error(message: String, registry: &str) -> io::Error {
        let hint = format!(
            "log in with `docker login {registry}` or `podman login {registry}`, which keep credentials"
        );
        io::Error::other(Self { message, hint })
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refused {}

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
