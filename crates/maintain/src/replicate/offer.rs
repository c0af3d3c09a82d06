//! The head that the servers offer, verified.

use std::sync::Arc;

use esker_format::blacklist::Blacklist;
use esker_format::manifest::{self, Manifest};
use esker_format::master_keys::MasterKeys;
use esker_format::object::ObjectName;
use esker_format::time::UnixTime;
use esker_format::trust::{self, AcceptedHead, ClaimedHead, Evidence, TrustError, VerifiedHead};
use esker_format::whitelist::{self, Whitelist};
use esker_repository::{
    RepositoryError,
    signed::{SMALL_FILE_MAX, decoded_object},
};
use esker_store::{Cause, Check, LargeBytes};

use super::error::ReplicateError;
use super::options::Replicate;
use super::origin::Origin;
use super::replica::Replica;

/// A head with its files.
pub(super) struct Offer {
    pub(super) head: VerifiedHead,
    pub(super) manifest: Vec<u8>,
    pub(super) whitelist: Vec<u8>,
    /// The certificate with its stored bytes.
    pub(super) certificate: (ObjectName, LargeBytes),
}

impl Offer {
    /// Fetches and verifies the head; one that is older than the replica's is refused.
    pub(super) fn fetch(
        origin: &Origin,
        replica: &Replica,
        replicate: &Replicate<'_>,
        keys: &MasterKeys,
        now: UnixTime,
    ) -> Result<Self, ReplicateError> {
        let name = &replicate.name;
        let untrusted = |source: TrustError| RepositoryError::Untrusted {
            name: name.to_string(),
            source: Box::new(source),
        };
        let missing = |what: &str, object: String| RepositoryError::Missing {
            what: format!("{what} on {}", origin.source.describe()),
            object,
        };
        let seen = if replicate.forget_history { None } else { seen(replica)? };
        let expected = name.clone();
        let check: Check = Arc::new(move |bytes| {
            trust::check_offered_manifest(bytes, &expected, seen).map_err(Cause::Untrusted)
        });
        let manifest = origin.root_file(manifest::PATH, SMALL_FILE_MAX, Some(check))?.ok_or_else(|| {
            ReplicateError::NoRepository { server: origin.source.describe(), name: name.to_string() }
        })?;
        let claimed = ClaimedHead::parse(&manifest).map_err(untrusted)?;
        let check: Check = Arc::new(|bytes| trust::check_offered_whitelist(bytes).map_err(Cause::Untrusted));
        let whitelist = origin
            .root_file(whitelist::PATH, SMALL_FILE_MAX, Some(check))?
            .ok_or_else(|| missing("the whitelist", whitelist::PATH.to_owned()))?;
        let object = claimed.certificate();
        let what = "the publisher's certificate";
        let here = replica.stored(&object, SMALL_FILE_MAX)?;
        let certificate = match here {
            Some(stored) => stored,
            None => origin
                .object(&object, claimed.certificate_path(), SMALL_FILE_MAX)?
                .ok_or_else(|| missing(what, object.to_string()))?,
        };
        let pem = decoded_object(&certificate, &object, None, (SMALL_FILE_MAX, &origin.spool), what)?;
        let evidence = Evidence {
            manifest: &manifest,
            whitelist: &whitelist,
            certificate: &pem,
            keys,
            blacklist: &Blacklist::default(),
            name,
            now,
            seen,
        };
        let head = trust::verify(&evidence).map_err(untrusted)?;
        Ok(Self { head, manifest, whitelist, certificate: (object, certificate) })
    }
}

/// Returns the head of the replica; none if there is none that can be read.
fn seen(replica: &Replica) -> Result<Option<AcceptedHead>, RepositoryError> {
    let Some(head) = replica.manifest()?.and_then(|bytes| Manifest::parse(&bytes).ok()) else {
        return Ok(None);
    };
    let whitelist = replica.root_file(whitelist::PATH)?;
    let whitelist = whitelist.and_then(|bytes| Whitelist::parse(&bytes).ok()).and_then(|list| list.created);
    Ok(Some(AcceptedHead {
        revision: head.revision,
        timestamp: head.timestamp,
        root: head.root_catalog,
        whitelist,
    }))
}
