//! Signed files of a repository, and reading of objects by hash.

use std::path::Path;

use esker_format::blacklist::Blacklist;
use esker_format::certificate::Certificate;
use esker_format::compress::Compression;
use esker_format::hash::ContentHash;
use esker_format::manifest;
use esker_format::master_keys::MasterKeys;
use esker_format::name::RepositoryName;
use esker_format::object::ObjectName;
use esker_format::time::UnixTime;
use esker_format::trust::{self, ClaimedHead, Evidence, TrustError, VerifiedHead};
use esker_format::whitelist::{self, Whitelist};
use esker_store::{LargeBytes, LargeWriter, StoredFiles, inflated};

use crate::error::RepositoryError;
use crate::object_source::WantedObject;
use crate::temporary::temporary_folder;

/// Maximum size in bytes of a manifest, whitelist or certificate.
pub const SMALL_FILE_MAX: u64 = 1 << 20;

/// Signed files of a head: manifest, whitelist and certificate.
pub struct SignedFiles {
    /// The signed manifest.
    pub manifest: Vec<u8>,
    /// The signed whitelist.
    pub whitelist: Vec<u8>,
    /// The certificate that signed the manifest.
    pub certificate: Vec<u8>,
}

fn untrusted<E: Into<TrustError>>(name: &RepositoryName) -> impl FnOnce(E) -> RepositoryError {
    let name = name.to_string();
    move |source| RepositoryError::Untrusted { name, source: Box::new(source.into()) }
}

impl SignedFiles {
    /// Reads the signed files of a repository.
    pub fn read(sink: &dyn StoredFiles, name: &RepositoryName) -> Result<Self, RepositoryError> {
        let root_file = |path: &str, what: &str| -> Result<Vec<u8>, RepositoryError> {
            let missing = || RepositoryError::Missing { what: what.to_owned(), object: path.to_owned() };
            sink.read(path, SMALL_FILE_MAX)?.ok_or_else(missing)
        };
        let manifest = root_file(manifest::PATH, "the manifest")?;
        let whitelist = root_file(whitelist::PATH, "the whitelist")?;
        let certificate = ClaimedHead::parse(&manifest).map_err(untrusted(name))?.certificate();
        let what = "the publisher's certificate";
        let certificate = read_object(sink, &certificate, None, SMALL_FILE_MAX, what)?.into_vec();
        Ok(Self { manifest, whitelist, certificate })
    }

    /// Verifies the files against the master keys.
    pub fn verify(
        &self,
        name: &RepositoryName,
        keys: &MasterKeys,
        now: UnixTime,
    ) -> Result<VerifiedHead, RepositoryError> {
        let evidence = Evidence {
            manifest: &self.manifest,
            whitelist: &self.whitelist,
            certificate: &self.certificate,
            keys,
            blacklist: &Blacklist::default(),
            name,
            now,
            seen: None,
        };
        trust::verify(&evidence).map_err(untrusted(name))
    }

    /// Returns `now`, or the last time before it at which the whitelist was valid. Verified as of that time, an expired whitelist
    /// passes: it keeps clients away, and no command that reads the storage itself.
    pub fn valid_at(&self, name: &RepositoryName, now: UnixTime) -> Result<UnixTime, RepositoryError> {
        let expires = self.whitelist(name)?.expires;
        Ok(now.min(UnixTime(expires.hour().0.saturating_sub(1))))
    }

    /// Returns the whitelist.
    pub fn whitelist(&self, name: &RepositoryName) -> Result<Whitelist, RepositoryError> {
        Whitelist::parse(&self.whitelist).map_err(untrusted(name))
    }

    /// Returns the certificate that signed the head.
    pub fn signer(&self, name: &RepositoryName) -> Result<Certificate, RepositoryError> {
        Certificate::parse(&self.certificate).map_err(untrusted(name))
    }

    /// Returns true if clients would accept signatures of a certificate.
    pub fn lists(&self, name: &RepositoryName, certificate: &Certificate) -> Result<bool, RepositoryError> {
        Ok(self.whitelist(name)?.fingerprints.iter().any(|listed| is_of(listed, certificate)))
    }
}

/// Returns true if a fingerprint is that of a certificate.
pub fn is_of(fingerprint: &ContentHash, certificate: &Certificate) -> bool {
    certificate.fingerprint(fingerprint.algorithm()) == *fingerprint
}

/// Reads and verifies an object that is always compressed, such as a catalog or certificate.
pub fn read_object(
    sink: &dyn StoredFiles,
    name: &ObjectName,
    size: Option<u64>,
    limit: u64,
    what: &str,
) -> Result<LargeBytes, RepositoryError> {
    read_wanted(sink, &WantedObject { name: *name, compression: None, size, limit, what })
}

/// Reads and verifies an object. No more than a few megabytes of it are in memory ([`LargeBytes`]).
pub(crate) fn read_wanted(
    sink: &dyn StoredFiles,
    wanted: &WantedObject<'_>,
) -> Result<LargeBytes, RepositoryError> {
    let WantedObject { name, limit, what, .. } = wanted;
    let missing = || RepositoryError::Missing { what: (*what).to_owned(), object: name.to_string() };
    let (path, folder) = (name.path(), temporary_folder());
    let stored: LargeBytes = if *limit <= SMALL_FILE_MAX {
        sink.read(&path, *limit)?.ok_or_else(missing)?.into()
    } else {
        let mut stored = LargeWriter::new(&folder, *limit);
        sink.read_to(&path, &mut stored)?.ok_or_else(missing)?;
        stored.finish().map_err(RepositoryError::file("reading", path.as_ref()))?
    };
    decoded(&stored, wanted, &folder)
}

/// Returns the plain bytes of an object that is always compressed, checked against its name; `folder` is for many of them.
pub fn decoded_object(
    stored: &[u8],
    name: &ObjectName,
    size: Option<u64>,
    (limit, folder): (u64, &Path),
    what: &str,
) -> Result<LargeBytes, RepositoryError> {
    decoded(stored, &WantedObject { name: *name, compression: None, size, limit, what }, folder)
}

fn decoded(stored: &[u8], wanted: &WantedObject<'_>, folder: &Path) -> Result<LargeBytes, RepositoryError> {
    let WantedObject { name, compression, size, limit, what } = *wanted;
    if ContentHash::of(name.hash.algorithm(), stored) != name.hash {
        return Err(RepositoryError::Corrupt { what: what.to_owned(), object: name.to_string() });
    }
    let recognised = || Compression::recognise(stored).unwrap_or(Compression::Zlib);
    inflated(stored, compression.unwrap_or_else(recognised), size, limit, folder)
        .map_err(|source| RepositoryError::Compressed { what: what.to_owned(), source })
}
