//! Serves the files that change: fresh for a short time, then confirmed upstream, and stale while upstream is away.
//!
//! A manifest is handed out after these checks: its hash and name are right, it is not older than the last one, its
//! signature is right if the repository's key is known, and its root catalog is in the cache (unless it is the first).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use esker_format::blacklist::Blacklist;
use esker_format::compress::{Compression, decompress};
use esker_format::master_keys::MasterKeys;
use esker_format::name::RepositoryName;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::time::UnixTime;
use esker_format::trust::{self, AcceptedHead, ClaimedHead, Evidence};
use esker_format::{manifest, whitelist};
use esker_store::{Cause, Check, Fetch, Urgency};
use tokio::time::timeout;

use super::catalogs::Catalogs;
use super::failure::Failure;
use super::files::{Kept, head_of, is_signed};
use super::flights::Announcer;
use super::objects::Objects;
use super::place::Place;
use super::upstream::ObjectQuery;

/// Largest file that changes; reflogs of large repositories have some megabytes.
const FILE_MAX: u64 = 32 << 20;
/// Largest manifest, and largest whitelist.
const SIGNED_MAX: u64 = 256 << 10;
/// Largest certificate in PEM form.
const CERTIFICATE_MAX: u64 = 256 << 10;
/// Longest wait for upstream if there is a stale file. Clients give up after 5 s.
const STALE_WAIT: Duration = Duration::from_secs(2);
/// Time after a failure for which stale files are served without asking.
const PAUSE: Duration = Duration::from_secs(3);

/// Returns the keys of a repository; `None` if none are known.
pub type FindKeys = Arc<dyn Fn(&RepositoryName) -> Option<MasterKeys> + Send + Sync>;

/// Options of changing files.
#[derive(Clone)]
pub(crate) struct HeadOptions {
    /// Time for which a file is served without asking upstream.
    pub(crate) age: Duration,
    /// Time for which a file is served while upstream is away.
    pub(crate) stale_age: Duration,
    /// Time after its confirmation for which caches may keep a file; `None` for what is left of `age`.
    pub(crate) lifetime: Option<Duration>,
    pub(crate) keys: FindKeys,
}

/// Counters of changing files.
#[derive(Debug, Default)]
pub(crate) struct HeadCounters {
    pub(crate) hits: AtomicU64,
    pub(crate) confirmed: AtomicU64,
    pub(crate) stale: AtomicU64,
    pub(crate) refused: AtomicU64,
}

/// A file for a client.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    pub(crate) content: Bytes,
    pub(crate) age: Duration,
    /// True if upstream failed to confirm it.
    pub(crate) is_stale: bool,
    pub(crate) is_hit: bool,
}

type Serving = Pin<Box<dyn Future<Output = Result<Served, Failure>> + Send>>;

/// Server of changing files.
pub(crate) struct Heads {
    pub(crate) objects: Arc<Objects>,
    pub(crate) options: HeadOptions,
    pub(crate) counters: HeadCounters,
    pub(crate) catalogs: Arc<Catalogs>,
}

impl Heads {
    /// Returns a file; `fresh` if the client refuses cached answers.
    pub(crate) async fn get(
        self: &Arc<Self>,
        place: &Arc<Place>,
        path: &str,
        fresh: bool,
    ) -> Result<Served, Failure> {
        let kept = place.files.get(path);
        if let Some(kept) = kept.as_ref().filter(|kept| !fresh && kept.is_fresh(self.options.age)) {
            self.counters.hits.fetch_add(1, Ordering::Relaxed);
            return serve(kept, false, true);
        }
        let usable = kept.filter(|kept| kept.content.is_some() && kept.age() <= self.options.stale_age);
        let Some(stale) = usable else {
            return serve(&self.refresh(place, path, fresh).await?, false, false);
        };
        if stale.waits() && !fresh {
            return self.stale(&stale);
        }
        match timeout(STALE_WAIT, self.refresh(place, path, fresh)).await {
            Ok(Ok(kept)) => serve(&kept, false, false),
            Ok(Err(Failure::Missing)) if !is_signed(path) => Err(Failure::Missing),
            Ok(Err(_)) => self.stale(&stale),
            Err(_) => {
                place.files.failed(path, PAUSE);
                self.away(place, &stale, "it does not answer");
                self.stale(&stale)
            }
        }
    }

    fn stale(&self, kept: &Kept) -> Result<Served, Failure> {
        self.counters.stale.fetch_add(1, Ordering::Relaxed);
        serve(kept, true, true)
    }

    /// Asks upstream for a file, once for all requests.
    async fn refresh(self: &Arc<Self>, place: &Arc<Place>, path: &str, fresh: bool) -> Result<Kept, Failure> {
        let (heads, flown, key) = (self.clone(), place.clone(), (path.to_owned(), fresh));
        let file = path.to_owned();
        let start = |announcer: Announcer<_, Kept>| async move {
            let outcome = heads.ask(&flown, &file, fresh).await;
            heads.note(&flown, &file, &outcome);
            // A request that comes later may know of a newer file.
            announcer.finish(outcome);
        };
        place.files.flights.join(key, start).await
    }

    fn note(&self, place: &Place, path: &str, outcome: &Result<Kept, Failure>) {
        match outcome {
            Ok(_) => {
                self.counters.confirmed.fetch_add(1, Ordering::Relaxed);
                if place.files.set_away(false) {
                    tracing::info!("{}: an upstream server answers again", place.title());
                }
            }
            Err(failure) => {
                place.files.failed(path, PAUSE);
                match place.files.get(path).filter(|kept| kept.content.is_some()) {
                    Some(kept) => self.away(place, &kept, &failure.to_string()),
                    None if matches!(failure, Failure::Missing) => {}
                    None => tracing::warn!("{}/{path}: {failure}", place.title()),
                }
            }
        }
    }

    fn away(&self, place: &Place, kept: &Kept, why: &str) {
        if place.files.set_away(true) {
            let since = kept.confirmed.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let (since, most) = (unix(since), self.options.stale_age.as_secs());
            tracing::warn!(
                "{}: upstream fails, and what it confirmed at {since} is served for {most} s at most: {why}",
                place.title()
            );
        }
    }

    async fn ask(self: &Arc<Self>, place: &Arc<Place>, path: &str, fresh: bool) -> Result<Kept, Failure> {
        let seen = place.files.head();
        let limit = if is_signed(path) { SIGNED_MAX } else { FILE_MAX };
        let mut fetch = Fetch::new(path, format!("{}/{path}", place.title()), limit);
        fetch.fresh = fresh;
        fetch.check = check_of(path, place.name.clone(), seen);
        let bytes = match self.objects.upstream.file(place, fetch).await {
            Ok(stored) => Bytes::from(stored.into_bytes()?),
            Err(error) => {
                if matches!(error.cause(), Cause::Untrusted(_)) {
                    self.counters.refused.fetch_add(1, Ordering::Relaxed);
                }
                let failure = Failure::from(error);
                if matches!(failure, Failure::Missing) && !is_signed(path) {
                    place.files.keep(path, None);
                }
                return Err(failure);
            }
        };
        let is_new = place.files.get(path).is_none_or(|kept| kept.content.as_ref() != Some(&bytes));
        if path != manifest::PATH || !is_new {
            return Ok(place.files.keep(path, Some(bytes)));
        }
        self.accept(place, bytes).await
    }

    /// Checks a new manifest, keeps it, and announces it.
    async fn accept(self: &Arc<Self>, place: &Arc<Place>, bytes: Bytes) -> Result<Kept, Failure> {
        let refused = |error| {
            self.counters.refused.fetch_add(1, Ordering::Relaxed);
            Failure::Untrusted(error)
        };
        let _turn = place.accepting.lock().await;
        // Another request may have brought a newer one meanwhile.
        let seen = place.files.head();
        if let Some(name) = &place.name {
            trust::check_offered_manifest(&bytes, name, seen).map_err(refused)?;
        }
        let claimed = ClaimedHead::parse(&bytes).map_err(refused)?;
        if let Some(name) = &place.name
            && let Some(keys) = (self.options.keys)(name)
        {
            let verify = |fresh| self.verify(place, (name, &keys), (&bytes, &claimed), seen, fresh);
            // The whitelist may be the old one, because only the manifest is new here.
            let verified = match verify(false).await {
                Err(Failure::Untrusted(_)) => verify(true).await,
                other => other,
            };
            verified.inspect_err(|failure| {
                if matches!(failure, Failure::Untrusted(_)) {
                    self.counters.refused.fetch_add(1, Ordering::Relaxed);
                }
            })?;
        }
        let head = claimed.manifest();
        let root = ObjectName::new(head.root_catalog, ObjectKind::Catalog);
        let path = if head.alternative_paths { root.alternative_path() } else { root.path() };
        let mut query = ObjectQuery::ahead(root, path);
        query.urgency = Urgency::Demand;
        if seen.is_some_and(|seen| seen.root != root.hash) {
            // Servers were seen to publish a head before its root catalog.
            let outcome = self.objects.get(place, query.clone()).await;
            let revision = head.revision;
            outcome.map_err(|reason| Failure::Incomplete { revision, reason: Arc::new(reason) })?;
        }
        let kept = place.files.keep(manifest::PATH, Some(bytes));
        place.forget_missing();
        place.revision.send_replace(place.files.revision());
        let (catalogs, objects, place) = (self.catalogs.clone(), self.objects.clone(), place.clone());
        tokio::spawn(
            async move { catalogs.follow(&objects, &place, seen.map(|seen| seen.root), query).await },
        );
        Ok(kept)
    }

    /// Returns the whitelist. Boxed, because a manifest that is being fetched needs it.
    fn whitelist(self: &Arc<Self>, place: &Arc<Place>, fresh: bool) -> Serving {
        let (heads, place) = (self.clone(), place.clone());
        Box::pin(async move { heads.get(&place, whitelist::PATH, fresh).await })
    }

    async fn verify(
        self: &Arc<Self>,
        place: &Arc<Place>,
        (name, keys): (&RepositoryName, &MasterKeys),
        (manifest, claimed): (&Bytes, &ClaimedHead),
        seen: Option<AcceptedHead>,
        fresh: bool,
    ) -> Result<(), Failure> {
        let query = ObjectQuery {
            urgency: Urgency::Demand,
            ..ObjectQuery::ahead(claimed.certificate(), claimed.certificate_path())
        };
        let (certificate, _) = self.objects.get(place, query).await?;
        let stored = certificate.read(CERTIFICATE_MAX)?;
        let certificate = decompress(&stored, Compression::Zlib, None, CERTIFICATE_MAX)
            .map_err(|error| std::io::Error::other(format!("the certificate: {error}")))?;
        let whitelist = self.whitelist(place, fresh).await?.content;
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let evidence = Evidence {
            manifest,
            whitelist: &whitelist,
            certificate: &certificate,
            keys,
            blacklist: &Blacklist::default(),
            name,
            now: unix(seconds),
            seen,
        };
        trust::verify(&evidence).map(drop).map_err(Failure::Untrusted)
    }
}

fn unix(seconds: u64) -> UnixTime {
    UnixTime(i64::try_from(seconds).unwrap_or(i64::MAX))
}

fn serve(kept: &Kept, is_stale: bool, is_hit: bool) -> Result<Served, Failure> {
    let content = kept.content.clone().ok_or(Failure::Missing)?;
    Ok(Served { content, age: kept.age(), is_stale, is_hit })
}

/// Returns the check of a file as it arrives, so that fail-over tries another server if it is wrong.
fn check_of(path: &str, name: Option<RepositoryName>, seen: Option<AcceptedHead>) -> Option<Check> {
    match (path, name) {
        (manifest::PATH, Some(name)) => Some(Arc::new(move |bytes: &[u8]| {
            trust::check_offered_manifest(bytes, &name, seen).map_err(Cause::Untrusted)?;
            // A field that only the proxy's own bookkeeping needs.
            head_of(bytes).map(drop).ok_or_else(|| Cause::Broken("the manifest is malformed".to_owned()))
        })),
        (whitelist::PATH, _) => {
            Some(Arc::new(|bytes: &[u8]| trust::check_offered_whitelist(bytes).map_err(Cause::Untrusted)))
        }
        _ => Some(Arc::new(|bytes: &[u8]| {
            if bytes.trim_ascii_start().starts_with(b"<") {
                return Err(Cause::Broken("a web page came in place of the file".to_owned()));
            }
            Ok(())
        })),
    }
}
