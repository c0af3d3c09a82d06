//! Serves the files that change: fresh for a short time, then confirmed upstream, and stale while upstream is away.
//!
//! A manifest is handed out after these checks: its hash and name are right, its root catalog is in the cache (unless it is the
//! first), and if the repository's keys are known, its signature is right and it is not older than the last verified one. If no
//! key is known it is the one that the servers agree on now (docs/decisions/0169-heads-without-keys.md). A whitelist is of the
//! repository, and signed with its key if that is known.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use esker_format::blacklist::Blacklist;
use esker_format::compress::{Compression, decompress};
use esker_format::hash::{HashAlgorithm, Hasher};
use esker_format::master_keys::MasterKeys;
use esker_format::name::RepositoryName;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::time::UnixTime;
use esker_format::trust::{self, AcceptedHead, ClaimedHead, Evidence, TrustError};
use esker_format::{manifest, whitelist};
use esker_store::{Cause, Check, Expected, Fetch, StoreError, Urgency};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::agreement::agreed_manifest;
use super::catalogs::Catalogs;
use super::failure::Failure;
use super::files::{ConfirmedFile, KEPT_MAX, head_of, is_signed};
use super::flights::Announcer;
use super::objects::{Object, Objects};
use super::place::Place;
use super::spool::hand_out;
use super::upstream::ObjectQuery;

/// Largest file that changes; reflogs of large repositories have some megabytes.
const FILE_MAX: u64 = 32 << 20;
/// Largest manifest, and largest whitelist.
pub(crate) const SIGNED_MAX: u64 = 256 << 10;
/// Largest answer of the Geo-API.
const GEO_MAX: u64 = 16 << 10;
/// Largest certificate in PEM form.
const CERTIFICATE_MAX: u64 = 256 << 10;
/// Maximum number of servers that are asked for a manifest that verifies.
const DETOURS_MAX: usize = 8;
/// Time that the confirmation of a manifest may take once it is due.
const CONFIRMATION_MAX: Duration = Duration::from_secs(5);
/// Time after which all servers are asked again, although the first one still has the manifest that they agreed on.
const AGREED_AGE: Duration = Duration::from_secs(60);
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
    /// Time for which a file is served while upstream is unreachable.
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
    pub(crate) content: Object,
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
        let usable = kept.filter(|kept| {
            kept.content.is_some()
                && kept.age() <= self.options.stale_age
                && self.may_serve(place, path, kept)
        });
        let Some(stale) = usable else {
            return match (self.refresh(place, path, fresh).await, place.files.older(path)) {
                (Ok(kept), _) => serve(&kept, false, false),
                (Err(_), Some(older)) => self.stale(&older),
                (Err(failure), None) => Err(failure),
            };
        };
        // While the servers of the newest revision are away, clients get one that the others have.
        let older = || place.files.older(path).unwrap_or_else(|| stale.clone());
        if stale.waits() && !fresh {
            return self.stale(&older());
        }
        match timeout(STALE_WAIT, self.refresh(place, path, fresh)).await {
            Ok(Ok(kept)) => serve(&kept, false, false),
            Ok(Err(Failure::Missing)) if !is_signed(path) => Err(Failure::Missing),
            Ok(Err(_)) => self.stale(&older()),
            Err(_) => {
                place.files.failed(path, PAUSE);
                self.unreachable(place, &stale, "it does not answer");
                self.stale(&older())
            }
        }
    }

    /// Returns true unless the file could be verified, and wasn't: it is from a time when no key was known.
    fn may_serve(&self, place: &Place, path: &str, kept: &ConfirmedFile) -> bool {
        let has_keys = || place.name.as_ref().is_some_and(|name| (self.options.keys)(name).is_some());
        kept.is_verified || !is_signed(path) || !has_keys()
    }

    fn stale(&self, kept: &ConfirmedFile) -> Result<Served, Failure> {
        self.counters.stale.fetch_add(1, Ordering::Relaxed);
        serve(kept, true, true)
    }

    /// Asks upstream for a file, once for all requests.
    async fn refresh(
        self: &Arc<Self>,
        place: &Arc<Place>,
        path: &str,
        fresh: bool,
    ) -> Result<ConfirmedFile, Failure> {
        let (heads, flown, key) = (self.clone(), place.clone(), (path.to_owned(), fresh));
        let file = path.to_owned();
        let start = |announcer: Announcer<_, ConfirmedFile>| async move {
            // One failure may pass. Other files may come from servers that lack the newest head.
            let had_failed = flown.files.get(&file).is_some_and(|kept| kept.has_failed());
            let outcome = heads.ask(&flown, &file, fresh).await;
            heads.note(&flown, &file, &outcome);
            if file == manifest::PATH {
                let is_away = had_failed && outcome.is_err();
                flown.files.set_older(if is_away { heads.older_head(&flown).await } else { None });
            }
            // A request that comes later may know of a newer file.
            announcer.finish(outcome);
        };
        place.files.flights.join(key, start).await
    }

    fn note(&self, place: &Place, path: &str, outcome: &Result<ConfirmedFile, Failure>) {
        match outcome {
            Ok(_) => {
                self.counters.confirmed.fetch_add(1, Ordering::Relaxed);
                if place.files.set_unreachable(false) {
                    tracing::info!("{}: an upstream server answers again", place.title());
                }
            }
            Err(failure) => {
                place.files.failed(path, PAUSE);
                match place.files.get(path).filter(|kept| kept.content.is_some()) {
                    Some(kept) => self.unreachable(place, &kept, &failure.to_string()),
                    None if matches!(failure, Failure::Missing) => {}
                    None => {
                        place.files.set_unreachable(path == manifest::PATH || place.files.is_unreachable());
                        tracing::warn!("{}/{path}: {failure}", place.title());
                    }
                }
            }
        }
    }

    fn unreachable(&self, place: &Place, kept: &ConfirmedFile, why: &str) {
        if place.files.set_unreachable(true) {
            let since = kept.confirmed.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let (since, most) = (unix(since), self.options.stale_age.as_secs());
            tracing::warn!(
                "{}: upstream fails, and what it confirmed at {since} is served for {most} s at most: {why}",
                place.title()
            );
        }
    }

    async fn ask(
        self: &Arc<Self>,
        place: &Arc<Place>,
        path: &str,
        fresh: bool,
    ) -> Result<ConfirmedFile, Failure> {
        match (path, &place.name) {
            (manifest::PATH, Some(name)) => match (self.options.keys)(name) {
                Some(keys) => self.verified_head(place, (name, &keys), fresh).await,
                None => self.agreed_head(place, fresh).await,
            },
            (whitelist::PATH, Some(name)) => self.checked_whitelist(place, name, fresh).await,
            _ => self.other_file(place, path, fresh).await,
        }
    }

    /// Fetches a manifest or whitelist: from the first server whose file passes the check.
    async fn offered(&self, place: &Arc<Place>, fetch: Fetch) -> Result<Bytes, Failure> {
        let stored = self.objects.upstream.file(place, fetch).await.map_err(|error| {
            if matches!(error.cause(), Cause::Untrusted(_)) {
                self.refuse();
            }
            Failure::from(error)
        })?;
        Ok(stored.into_bytes()?.into())
    }

    fn refuse(&self) {
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Fetches a manifest that the repository's keys verify; one server after the other is asked for it.
    async fn verified_head(
        self: &Arc<Self>,
        place: &Arc<Place>,
        signed: (&RepositoryName, &MasterKeys),
        fresh: bool,
    ) -> Result<ConfirmedFile, Failure> {
        let mut first_failure = None;
        for detour in 0..place.source.routes().clamp(1, DETOURS_MAX) {
            let seen = place.files.floor(true, Duration::ZERO);
            let mut fetch = request(place, manifest::PATH, fresh || detour > 0);
            fetch.expected = Expected::Checked(manifest_check(signed.0.clone(), seen));
            fetch.attempt.detour = detour;
            let bytes = match self.offered(place, fetch).await {
                Ok(bytes) => bytes,
                Err(failure) => return Err(first_failure.unwrap_or(failure)),
            };
            match self.accept(place, bytes, Some(signed)).await {
                Ok(kept) => return Ok(kept),
                Err(failure @ (Failure::Incomplete { .. } | Failure::Disk(_))) => return Err(failure),
                // The certificate, too, may be one that only this server's manifest names.
                Err(failure) => {
                    self.refuse();
                    first_failure.get_or_insert(failure);
                }
            }
        }
        Err(first_failure.unwrap_or(Failure::Ended))
    }

    /// Fetches a manifest that no key verifies: the one that the servers agree on.
    async fn agreed_head(
        self: &Arc<Self>,
        place: &Arc<Place>,
        fresh: bool,
    ) -> Result<ConfirmedFile, Failure> {
        let mut fetch = request(place, manifest::PATH, fresh);
        let seen = place.files.floor(false, self.lasting());
        fetch.expected = place.name.clone().map(|name| manifest_check(name, seen)).into();
        let mut bytes = self.offered(place, fetch).await?;
        let is_new = place.files.get(manifest::PATH).is_none_or(|kept| kept.bytes() != Some(&bytes));
        if place.urls.len() > 1 && (is_new || place.agreed.lock().is_none_or(|at| at.elapsed() > AGREED_AGE))
        {
            bytes = agreed_manifest(&self.objects.upstream, place).await.unwrap_or(bytes);
            *place.agreed.lock() = Some(Instant::now());
        }
        self.accept(place, bytes, None).await
    }

    /// Returns the time for which no head older than an unverified one is handed on: until its next confirmation is due.
    fn lasting(&self) -> Duration {
        self.options.age.saturating_add(CONFIRMATION_MAX)
    }

    /// Fetches a whitelist: of this repository, signed with its key if that is known, and not expired if a server has such
    /// a one. Clients refuse an expired one, and say so.
    async fn checked_whitelist(
        self: &Arc<Self>,
        place: &Arc<Place>,
        name: &RepositoryName,
        fresh: bool,
    ) -> Result<ConfirmedFile, Failure> {
        let keys = (self.options.keys)(name).map(Arc::new);
        let seen = keys.as_ref().and_then(|_| place.files.whitelist_time());
        let ask = async |may_be_expired| {
            let mut fetch = request(place, whitelist::PATH, fresh);
            fetch.expected =
                Expected::Checked(whitelist_check(name.clone(), keys.clone(), seen, may_be_expired));
            self.offered(place, fetch).await
        };
        let bytes = match ask(false).await {
            Err(Failure::Upstream(error)) if is_expired(&error) => ask(true).await,
            other => other,
        }?;
        Ok(place.files.keep(whitelist::PATH, Some(Object::Bytes(bytes)), keys.is_some()))
    }

    /// Fetches a file that is not signed.
    async fn other_file(
        &self,
        place: &Arc<Place>,
        path: &str,
        fresh: bool,
    ) -> Result<ConfirmedFile, Failure> {
        let mut fetch = request(place, path, fresh);
        fetch.expected = Expected::Checked(Arc::new(|bytes: &[u8]| {
            if bytes.trim_ascii_start().starts_with(b"<") {
                return Err(Cause::Broken("a web page came in place of the file".to_owned()));
            }
            Ok(())
        }));
        let stored = self.objects.upstream.file(place, fetch).await.map_err(|error| {
            let failure = Failure::from(error);
            if matches!(failure, Failure::Missing) {
                place.files.keep(path, None, false);
            }
            failure
        })?;
        if stored.len() <= KEPT_MAX {
            let bytes = Bytes::from(stored.into_bytes()?);
            return Ok(place.files.keep(path, Some(Object::Bytes(bytes)), false));
        }
        // A slow client needs it for long, so that it is not held in memory.
        let cache = self.objects.cache.clone();
        let writing = spawn_blocking(move || {
            let mut hasher = Hasher::new(HashAlgorithm::Sha1);
            let handed_out = hand_out(&cache, stored, |piece| hasher.update(piece));
            handed_out.map(|(file, len)| (file, len, hasher.finish()))
        });
        let (file, len, hash) = writing.await.map_err(|_| Failure::Ended)??;
        let file = place.files.share(path, hash, file);
        Ok(place.files.keep(path, Some(Object::File(file, len)), false))
    }

    /// Checks a manifest, keeps it, and announces it if it is new.
    async fn accept(
        self: &Arc<Self>,
        place: &Arc<Place>,
        bytes: Bytes,
        signed: Option<(&RepositoryName, &MasterKeys)>,
    ) -> Result<ConfirmedFile, Failure> {
        let _turn = place.accepting.lock().await;
        let kept = place.files.get(manifest::PATH).filter(|kept| signed.is_none() || kept.is_verified);
        if kept.as_ref().is_some_and(|kept| kept.bytes() == Some(&bytes)) {
            return Ok(place.files.keep(manifest::PATH, Some(Object::Bytes(bytes)), signed.is_some()));
        }
        // Another request may have brought a newer one meanwhile.
        let seen = place.files.floor(signed.is_some(), self.lasting());
        if let Some(name) = &place.name {
            trust::check_offered_manifest(&bytes, name, seen).map_err(Failure::Untrusted)?;
        }
        let claimed = ClaimedHead::parse(&bytes).map_err(Failure::Untrusted)?;
        if let Some(signed) = signed {
            let verify = |fresh| self.verify(place, signed, (&bytes, &claimed), seen, fresh);
            // The whitelist may be the old one, because only the manifest is new here.
            match verify(false).await {
                Err(Failure::Untrusted(_)) => verify(true).await,
                other => other,
            }?;
        }
        let before = kept.as_ref().and_then(|kept| head_of(kept.bytes()?)).map(|head| head.root);
        let head = claimed.manifest();
        let root = ObjectName::new(head.root_catalog, ObjectKind::Catalog);
        let path = if head.alternative_paths { root.alternative_path() } else { root.path() };
        let mut query = ObjectQuery::ahead(root, path);
        query.urgency = Urgency::Demand;
        if before.is_some_and(|before| before != root.hash) {
            // Servers were seen to publish a head before its root catalog.
            let outcome = self.objects.get(place, query.clone()).await;
            let revision = head.revision;
            match outcome {
                // A root catalog that the cache has no room for is there all the same.
                Err(reason) if !reason.is_passed_on() => {
                    return Err(Failure::Incomplete { revision, reason: Arc::new(reason) });
                }
                _ => {}
            }
        }
        let kept = place.files.keep(manifest::PATH, Some(Object::Bytes(bytes)), signed.is_some());
        place.forget_missing();
        place.revision.send_replace(place.files.revision());
        let (catalogs, objects, place) = (self.catalogs.clone(), self.objects.clone(), place.clone());
        tokio::spawn(async move { catalogs.follow(&objects, &place, before, query).await });
        Ok(kept)
    }

    /// Returns the whitelist. Boxed, because a manifest that is being fetched needs it.
    fn whitelist(self: &Arc<Self>, place: &Arc<Place>, fresh: bool) -> Serving {
        let (heads, place) = (self.clone(), place.clone());
        Box::pin(async move { heads.get(&place, whitelist::PATH, fresh).await })
    }

    /// Verifies a manifest, its certificate and the whitelist with the keys of the repository.
    pub(super) async fn verify(
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
        let whitelist = self.whitelist(place, fresh).await?.content.read(SIGNED_MAX)?;
        let evidence = Evidence {
            manifest,
            whitelist: &whitelist,
            certificate: &certificate,
            keys,
            blacklist: &Blacklist::default(),
            name,
            now: now(),
            seen,
        };
        trust::verify(&evidence).map(drop).map_err(Failure::Untrusted)
    }
}

fn now() -> UnixTime {
    unix(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}

fn unix(seconds: u64) -> UnixTime {
    UnixTime(i64::try_from(seconds).unwrap_or(i64::MAX))
}

fn serve(kept: &ConfirmedFile, is_stale: bool, is_hit: bool) -> Result<Served, Failure> {
    let content = kept.content.clone().ok_or(Failure::Missing)?;
    Ok(Served { content, age: kept.age(), is_stale, is_hit })
}

/// Returns the request for a file; its check, if it has one, is made as the file arrives, so that fail-over tries another server.
fn request(place: &Place, path: &str, fresh: bool) -> Fetch {
    let limit = match path {
        manifest::PATH | whitelist::PATH => SIGNED_MAX,
        _ if path.starts_with("api/") => GEO_MAX,
        _ => FILE_MAX,
    };
    let mut fetch = Fetch::new(path, format!("{}/{path}", place.title()), limit);
    fetch.http.fresh = fresh;
    fetch
}

fn manifest_check(name: RepositoryName, seen: Option<AcceptedHead>) -> Check {
    Arc::new(move |bytes: &[u8]| {
        trust::check_offered_manifest(bytes, &name, seen).map_err(Cause::Untrusted)?;
        // A field that only the proxy's own bookkeeping needs.
        head_of(bytes).map(drop).ok_or_else(|| Cause::Broken("the manifest is malformed".to_owned()))
    })
}

fn whitelist_check(
    name: RepositoryName,
    keys: Option<Arc<MasterKeys>>,
    seen: Option<UnixTime>,
    may_be_expired: bool,
) -> Check {
    Arc::new(move |bytes: &[u8]| {
        let checked = match &keys {
            Some(keys) => trust::verify_whitelist(bytes, &name, keys, seen),
            None => trust::check_whitelist_of(bytes, &name),
        };
        let whitelist = checked.map_err(Cause::Untrusted)?;
        if !may_be_expired && whitelist.is_expired(now()) {
            let expired = whitelist.expires;
            return Err(Cause::Untrusted(TrustError::WhitelistExpired { expired, now: now() }));
        }
        Ok(())
    })
}

fn is_expired(error: &StoreError) -> bool {
    matches!(error.cause(), Cause::Untrusted(TrustError::WhitelistExpired { .. }))
}
