//! Check of a server's head: manifest, then certificate, then whitelist, then the verifier.

use std::sync::Arc;

use esker_format::compress::Compression;
use esker_format::trust::{self, AcceptedHead, ClaimedHead};
use esker_format::{manifest, whitelist};

use super::{Current, Evidence, HeadStore, Saved};
use crate::callback::Callback;
use crate::error::{Cause, StoreError};
use crate::objects::handle::Handle;
use crate::objects::request::ObjectRequest;
use crate::priority::Urgency;
use crate::transport::source::{Expected, Fetch, Stored};

/// Maximum size of a manifest, which has some 20 short lines and a signature.
const MANIFEST_MAX: u64 = 64 << 10;
/// Maximum size of a whitelist, which has a line for each publisher's certificate.
const WHITELIST_MAX: u64 = 1 << 20;
/// Maximum size of a certificate in PEM.
const CERTIFICATE_MAX: u64 = 256 << 10;

/// Maximum number of routes tried for a head that verifies.
const DETOURS_MAX: usize = 8;

/// Result of checking a server's head.
pub(super) enum Checked {
    /// The manifest is identical to the known one.
    Same,
    /// A verified head.
    New(Current),
}

/// A check for a new head.
pub(super) struct Check {
    keeper: Arc<HeadStore>,
    known: Option<Vec<u8>>,
    seen: Option<AcceptedHead>,
    /// True if caches on the route are bypassed, as in the second attempt.
    fresh: bool,
    /// Number of routes to skip.
    detour: usize,
    done: Callback<Checked>,
}

impl Check {
    /// Requests the head. If the manifest is the `known` one, nothing more is requested.
    pub(super) fn begin(
        keeper: Arc<HeadStore>,
        known: Option<Vec<u8>>,
        seen: Option<AcceptedHead>,
        done: Callback<Checked>,
    ) {
        Self { keeper, known, seen, fresh: false, detour: 0, done }.ask_manifest();
    }

    fn fail(self, cause: Cause) {
        let place = self.keeper.source.describe();
        let error = StoreError::new(self.keeper.what(), cause).from_place(place);
        if matches!(error.cause(), Cause::Untrusted(_)) && !self.fresh {
            // A proxy may hold a damaged or an outdated file; ask the server itself before giving up.
            return Self { fresh: true, ..self }.ask_manifest();
        }
        let detour = self.detour + 1;
        if matches!(error.cause(), Cause::Untrusted(_))
            && detour < self.keeper.source.routes().min(DETOURS_MAX)
        {
            // The damage may happen on this route only.
            return Self { detour, ..self }.ask_manifest();
        }
        self.done.err(error);
    }

    fn what(&self, file: &str) -> String {
        format!("the {file} of {}", self.keeper.options.name)
    }

    fn fetch(self, mut fetch: Fetch, then: impl FnOnce(Self, Vec<u8>) + Send + 'static) {
        fetch.http.fresh = self.fresh;
        fetch.attempt.detour = self.detour;
        let source = self.keeper.source.clone();
        source.fetch(
            fetch,
            Callback::new(move |outcome: Result<Stored, StoreError>| match outcome.map(Stored::into_bytes) {
                Ok(Ok(bytes)) => then(self, bytes),
                Ok(Err(source)) => {
                    self.fail(Cause::Disk { doing: "reading back", path: "spooled bytes".into(), source });
                }
                Err(error) => self.done.err(error),
            }),
        );
    }

    fn ask_manifest(self) {
        let (keeper, seen) = (self.keeper.clone(), self.seen);
        let mut fetch = Fetch::new(manifest::PATH, self.what("manifest"), MANIFEST_MAX);
        // So that fail-over tries another server if this one has an old manifest, and another proxy if this one has a
        // login page.
        fetch.expected = Expected::Checked(Arc::new(move |manifest| {
            trust::check_offered_manifest(manifest, &keeper.options.name, seen).map_err(Cause::Untrusted)
        }));
        self.fetch(fetch, |check, manifest| {
            if check.known.as_ref() == Some(&manifest) {
                return check.done.ok(Checked::Same);
            }
            match ClaimedHead::parse(&manifest) {
                Ok(claimed) => check.ask_certificate(manifest, &claimed),
                Err(error) => check.fail(Cause::Untrusted(error)),
            }
        });
    }

    fn ask_certificate(self, manifest: Vec<u8>, claimed: &ClaimedHead) {
        let what = format!("the certificate of {}", self.keeper.options.name);
        let mut wanted =
            ObjectRequest::new(claimed.certificate(), Compression::Zlib, what).limit(CERTIFICATE_MAX);
        wanted.alternative_path = claimed.manifest().alternative_paths;
        let store = self.keeper.store.clone();
        store.get(
            wanted,
            Callback::new(move |outcome: Result<Handle, StoreError>| {
                match outcome.map(|handle| handle.read_all()) {
                    Ok(Ok(certificate)) => self.ask_whitelist(manifest, certificate),
                    Ok(Err(source)) => {
                        self.fail(Cause::Disk {
                            doing: "reading",
                            path: "the certificate in the cache".into(),
                            source,
                        });
                    }
                    Err(error) => self.done.err(error),
                }
            }),
        );
    }

    fn ask_whitelist(self, manifest: Vec<u8>, certificate: Vec<u8>) {
        let mut fetch = Fetch::new(whitelist::PATH, self.what("whitelist"), WHITELIST_MAX);
        let check = |bytes: &[u8]| trust::check_offered_whitelist(bytes).map_err(Cause::Untrusted);
        fetch.expected = Expected::Checked(Arc::new(check));
        self.fetch(fetch, |check, whitelist| {
            let pool = check.keeper.pool.clone();
            let evidence = Evidence { manifest, whitelist, certificate };
            pool.run(Urgency::Demand, move || check.verify(evidence));
        });
    }

    /// Verifies the evidence on the pool, which also delivers the result: accepting it writes to the disk.
    fn verify(self, evidence: Evidence) {
        let now = self.keeper.now();
        match self.keeper.verify(&evidence, now, self.seen) {
            Ok(head) => {
                let saved = Saved { accepted: now, confirmed: now, evidence };
                self.done.ok(Checked::New(Current { head: Arc::new(head), saved }));
            }
            Err(error) => self.fail(Cause::Untrusted(error)),
        }
    }
}
