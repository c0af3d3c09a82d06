//! Verifies the head of a repository.
//!
//! ```text
//! master keys (the user's) ── sign ──► whitelist ── lists ──► certificate ── signs ──► manifest
//!                                      name, expiry          not blacklisted           name, root path,
//!                                                                                      not older than the last accepted
//! ```
//!
//! [`verify`] checks this chain and is the only function that creates a [`VerifiedHead`]. All other content is
//! verified by its hash.

use crate::blacklist::Blacklist;
use crate::canary::skipped;
use crate::certificate::{Certificate, CertificateError};
use crate::hash::{ContentHash, HashAlgorithm};
use crate::letter::{Letter, LetterError};
use crate::manifest::{Manifest, ManifestError, ROOT_PATH};
use crate::master_keys::MasterKeys;
use crate::name::RepositoryName;
use crate::object::{ObjectKind, ObjectName};
use crate::time::UnixTime;
use crate::whitelist::{Whitelist, WhitelistError};

/// Reasons why a head is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// The manifest can't be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The manifest is for another repository.
    #[error("the manifest is for repository `{found}`, not for `{expected}`")]
    ManifestName {
        /// Requested repository.
        expected: RepositoryName,
        /// Name in the manifest, empty if it has none.
        found: String,
    },
    /// The manifest is not for the root path.
    #[error("the manifest is for the path with MD5 `{0}`, not for the root of the repository")]
    RootPath(String),
    /// The manifest was signed before the last accepted one.
    #[error("the manifest was signed at {offered}, but one that was signed at {seen} has been seen already")]
    OlderTimestamp {
        /// Time of the offered manifest.
        offered: UnixTime,
        /// Time of the last accepted manifest.
        seen: UnixTime,
    },
    /// The manifest has an older revision than the last accepted one.
    #[error("the manifest is of revision {offered}, but revision {seen} has been seen already")]
    OlderRevision {
        /// Revision of the offered manifest.
        offered: u64,
        /// Revision of the last accepted manifest.
        seen: u64,
    },
    /// The manifest names another root catalog than the last accepted one of the same revision.
    #[error(
        "the manifest signs another root catalog for revision {revision} than the one seen before ({offered}, not {seen}): \
         two contents were published as one revision, which is a mistake of its publisher or an attack"
    )]
    TwoRoots {
        /// Number of the revision.
        revision: u64,
        /// Root catalog of the offered manifest.
        offered: ContentHash,
        /// Root catalog of the last accepted manifest.
        seen: ContentHash,
    },
    /// The revision is implausibly far from the last accepted one.
    #[error(
        "the manifest is of revision {offered}, which is implausibly far from the last accepted revision {seen}"
    )]
    RevisionJump {
        /// Revision of the offered manifest.
        offered: u64,
        /// Revision of the last accepted manifest; 0 if there is none.
        seen: u64,
    },
    /// The whitelist was signed before the last accepted one.
    #[error("the whitelist was signed at {offered}, but one that was signed at {seen} has been seen already")]
    OlderWhitelist {
        /// Time of the offered whitelist.
        offered: UnixTime,
        /// Time of the last accepted whitelist.
        seen: UnixTime,
    },
    /// The manifest names no certificate.
    #[error("the manifest names no certificate")]
    NoCertificate,
    /// The certificate can't be read.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The manifest is not signed.
    #[error("the manifest can't be verified: {0}")]
    ManifestLetter(LetterError),
    /// The text of the manifest doesn't match its signed hash.
    #[error(
        "the manifest was changed after it was signed: its text has hash {actual}, the signed one is {signed}"
    )]
    ManifestHash {
        /// Hash that the signature covers.
        signed: ContentHash,
        /// Actual hash of the text.
        actual: ContentHash,
    },
    /// The signature of the manifest was not made with the certificate's key.
    #[error("the signature of the manifest was not made by the certificate `{subject}` that it names")]
    ManifestSignature {
        /// Subject of the certificate.
        subject: String,
    },
    /// The whitelist can't be read.
    #[error(transparent)]
    Whitelist(#[from] WhitelistError),
    /// The whitelist has expired.
    #[error(
        "the whitelist expired at {expired} (now it is {now}); the owner of the repository has to sign a new one"
    )]
    WhitelistExpired {
        /// Expiry of the whitelist.
        expired: UnixTime,
        /// Time of the check.
        now: UnixTime,
    },
    /// The whitelist is for another repository.
    #[error("the whitelist is for repository `{found}`, not for `{expected}`")]
    WhitelistName {
        /// Requested repository.
        expected: RepositoryName,
        /// Name in the whitelist.
        found: String,
    },
    /// The whitelist requires verification by PKCS#7.
    #[error("the whitelist requires a verification with PKCS#7, which is not supported")]
    WhitelistPkcs7,
    /// The whitelist requires a check against certificate authorities, which is not supported.
    #[error("the whitelist requires a check against certificate authorities, which is not supported")]
    WhitelistCaChain,
    /// The whitelist is not signed.
    #[error("the whitelist can't be verified: {0}")]
    WhitelistLetter(LetterError),
    /// The text of the whitelist doesn't match its signed hash.
    #[error(
        "the whitelist was changed after it was signed: its text has hash {actual}, the signed one is {signed}"
    )]
    WhitelistHash {
        /// Hash that the signature covers.
        signed: ContentHash,
        /// Actual hash of the text.
        actual: ContentHash,
    },
    /// There is no master key to verify the whitelist with.
    #[error("there is no public key to verify the whitelist with")]
    NoMasterKey,
    /// The signature of the whitelist was not made with any master key.
    #[error(
        "the signature of the whitelist was not made by any of the {keys} public key(s) given for this repository"
    )]
    WhitelistSignature {
        /// Number of keys tried.
        keys: usize,
    },
    /// The certificate is on this client's blacklist.
    #[error("the certificate that signed the manifest is blacklisted here: {fingerprint}")]
    CertificateBlacklisted {
        /// Fingerprint of the certificate.
        fingerprint: String,
    },
    /// The certificate is not on the whitelist of the repository's owner.
    #[error("the certificate that signed the manifest is not on the whitelist: {fingerprint}")]
    CertificateNotListed {
        /// Fingerprint of the certificate.
        fingerprint: String,
    },
    /// The revision is on this client's blacklist.
    #[error("revision {revision} is blacklisted here, as all below {floor} are")]
    RevisionBlacklisted {
        /// Revision of the manifest.
        revision: u64,
        /// First revision that is not blacklisted.
        floor: u64,
    },
}

impl TrustError {
    /// Returns true if the head is older than the last accepted one. Another server may have a newer head, or this
    /// one may have it later.
    pub fn is_older(&self) -> bool {
        matches!(self, Self::OlderTimestamp { .. } | Self::OlderRevision { .. } | Self::OlderWhitelist { .. })
    }
}

/// The last accepted head; older ones are rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptedHead {
    /// Revision of the head.
    pub revision: u64,
    /// Time of the manifest's signature.
    pub timestamp: UnixTime,
    /// Root catalog of the head.
    pub root: ContentHash,
    /// Time of the whitelist's signature, if the whitelist records it.
    pub whitelist: Option<UnixTime>,
}

/// Maximum number of revisions between two consecutive heads of a client: one each minute for 30 years.
const REVISIONS_SKIPPED_MAX: u64 = 1 << 24;
/// Highest revision accepted without an earlier head: catalogs and histories store it as a signed number.
const REVISION_MAX: u64 = i64::MAX as u64 >> 1;

/// An unverified manifest; names the objects that its verification needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedHead {
    manifest: Manifest,
    certificate: ObjectName,
}

impl ClaimedHead {
    /// Parses a manifest.
    pub fn parse(manifest: &[u8]) -> Result<Self, TrustError> {
        let manifest = Manifest::parse(manifest)?;
        let certificate = manifest.certificate.ok_or(TrustError::NoCertificate)?;
        Ok(Self { manifest, certificate: ObjectName::new(certificate, ObjectKind::Certificate) })
    }

    /// Returns the certificate object that the manifest names.
    pub const fn certificate(&self) -> ObjectName {
        self.certificate
    }

    /// Returns the path of the certificate below the root of the repository.
    pub fn certificate_path(&self) -> String {
        path(&self.manifest, self.certificate)
    }

    /// Returns the manifest, none of whose fields is verified.
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }
}

fn path(manifest: &Manifest, object: ObjectName) -> String {
    if manifest.alternative_paths { object.alternative_path() } else { object.path() }
}

/// All inputs of a head's verification.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// The manifest as fetched.
    pub manifest: &'a [u8],
    /// The whitelist as fetched.
    pub whitelist: &'a [u8],
    /// The certificate object that the manifest names, decompressed: PEM text.
    pub certificate: &'a [u8],
    /// The master public keys.
    pub keys: &'a MasterKeys,
    /// Blacklist of this client.
    pub blacklist: &'a Blacklist,
    /// Requested repository.
    pub name: &'a RepositoryName,
    /// Time at which the head is (or was) accepted, for the expiry of the whitelist.
    pub now: UnixTime,
    /// The last accepted head, if any.
    pub seen: Option<AcceptedHead>,
}

/// The head of a repository, verified from the master key down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedHead {
    name: RepositoryName,
    manifest: Manifest,
    whitelist_expires: UnixTime,
    whitelist_created: Option<UnixTime>,
}

/// Verifies a head.
pub fn verify(evidence: &Evidence<'_>) -> Result<VerifiedHead, TrustError> {
    let manifest = Manifest::parse(evidence.manifest)?;
    check_claims(&manifest, evidence.name, evidence.seen)?;
    if manifest.certificate.is_none() {
        return Err(TrustError::NoCertificate);
    }
    let certificate = Certificate::parse(evidence.certificate)?;
    check_manifest_signature(evidence.manifest, &certificate)?;
    let whitelist = Whitelist::parse(evidence.whitelist)?;
    check_whitelist(&whitelist, evidence)?;
    check_certificate(&certificate, &whitelist, evidence.blacklist, manifest.root_catalog.algorithm())?;
    match evidence.blacklist.floor(evidence.name) {
        Some(floor) if manifest.revision < floor && !skipped("revision-blacklisted") => {
            Err(TrustError::RevisionBlacklisted { revision: manifest.revision, floor })
        }
        _ => Ok(VerifiedHead {
            name: evidence.name.clone(),
            manifest,
            whitelist_expires: whitelist.expires,
            whitelist_created: whitelist.created,
        }),
    }
}

/// Checks the fields of the manifest.
fn check_claims(
    manifest: &Manifest,
    expected: &RepositoryName,
    seen: Option<AcceptedHead>,
) -> Result<(), TrustError> {
    let name = manifest.name.as_deref().unwrap_or_default();
    if name != expected.as_str() && !skipped("manifest-name") {
        let (expected, found) = (expected.clone(), printable(name));
        return Err(TrustError::ManifestName { expected, found });
    }
    if manifest.root_path != ROOT_PATH && !skipped("root-path") {
        return Err(TrustError::RootPath(printable(&manifest.root_path)));
    }
    if let Some(seen) = seen {
        if manifest.timestamp < seen.timestamp && !skipped("older-timestamp") {
            return Err(TrustError::OlderTimestamp { offered: manifest.timestamp, seen: seen.timestamp });
        }
        if manifest.revision < seen.revision && !skipped("older-revision") {
            return Err(TrustError::OlderRevision { offered: manifest.revision, seen: seen.revision });
        }
        let is_other = manifest.root_catalog != seen.root;
        if manifest.revision == seen.revision && is_other && !skipped("two-roots") {
            let (revision, offered, seen) = (manifest.revision, manifest.root_catalog, seen.root);
            return Err(TrustError::TwoRoots { revision, offered, seen });
        }
    }
    let before = seen.map(|seen| seen.revision);
    let most =
        before.map_or(REVISION_MAX, |seen| seen.saturating_add(REVISIONS_SKIPPED_MAX).min(REVISION_MAX));
    if manifest.revision > most && !skipped("revision-jump") {
        return Err(TrustError::RevisionJump { offered: manifest.revision, seen: before.unwrap_or(0) });
    }
    Ok(())
}

/// Checks everything about a manifest that needs no certificate, to detect early that a proxy or server
/// returns garbage. A manifest that passes is not yet trusted.
pub fn check_offered_manifest(
    manifest: &[u8],
    name: &RepositoryName,
    seen: Option<AcceptedHead>,
) -> Result<(), TrustError> {
    check_claims(&Manifest::parse(manifest)?, name, seen)?;
    check_manifest_hash(manifest).map(drop)
}

/// Checks a whitelist as [`check_offered_manifest`] checks a manifest, but for its name.
pub fn check_offered_whitelist(whitelist: &[u8]) -> Result<(), TrustError> {
    Whitelist::parse(whitelist)?;
    check_whitelist_hash(whitelist).map(drop)
}

fn check_manifest_hash(manifest: &[u8]) -> Result<Letter<'_>, TrustError> {
    let letter = Letter::split(manifest).map_err(TrustError::ManifestLetter)?;
    let actual = letter.actual_hash();
    if actual != letter.hash && !skipped("manifest-hash") {
        return Err(TrustError::ManifestHash { signed: letter.hash, actual });
    }
    Ok(letter)
}

fn check_whitelist_hash(whitelist: &[u8]) -> Result<Letter<'_>, TrustError> {
    let letter = Letter::split(whitelist).map_err(TrustError::WhitelistLetter)?;
    let actual = letter.actual_hash();
    if actual != letter.hash && !skipped("whitelist-hash") {
        return Err(TrustError::WhitelistHash { signed: letter.hash, actual });
    }
    Ok(letter)
}

fn check_manifest_signature(manifest: &[u8], certificate: &Certificate) -> Result<(), TrustError> {
    let letter = check_manifest_hash(manifest)?;
    if !certificate.signed(letter.printed, letter.signature) && !skipped("manifest-signature") {
        return Err(TrustError::ManifestSignature { subject: printable(certificate.subject()) });
    }
    Ok(())
}

/// Checks a whitelist as [`check_offered_whitelist`] does, and that it is for this repository. One that passes is not yet trusted.
pub fn check_whitelist_of(bytes: &[u8], name: &RepositoryName) -> Result<Whitelist, TrustError> {
    let whitelist = Whitelist::parse(bytes)?;
    check_whitelist_name(&whitelist, name)?;
    check_whitelist_hash(bytes)?;
    Ok(whitelist)
}

fn check_whitelist_name(whitelist: &Whitelist, name: &RepositoryName) -> Result<(), TrustError> {
    if whitelist.name != name.as_str() && !skipped("whitelist-name") {
        let (expected, found) = (name.clone(), printable(&whitelist.name));
        return Err(TrustError::WhitelistName { expected, found });
    }
    Ok(())
}

/// Verifies a whitelist without a manifest: its name, its signature, and that it is not older than the last accepted one, which
/// was signed at `seen`. An expired one passes; [`Whitelist::is_expired`] tells.
pub fn verify_whitelist(
    bytes: &[u8],
    name: &RepositoryName,
    keys: &MasterKeys,
    seen: Option<UnixTime>,
) -> Result<Whitelist, TrustError> {
    let whitelist = Whitelist::parse(bytes)?;
    check_signed_whitelist(&whitelist, bytes, (name, keys), seen)?;
    Ok(whitelist)
}

fn check_whitelist(whitelist: &Whitelist, evidence: &Evidence<'_>) -> Result<(), TrustError> {
    let now = evidence.now;
    if whitelist.is_expired(now) && !skipped("whitelist-expiry") {
        return Err(TrustError::WhitelistExpired { expired: whitelist.expires, now });
    }
    let seen = evidence.seen.and_then(|seen| seen.whitelist);
    check_signed_whitelist(whitelist, evidence.whitelist, (evidence.name, evidence.keys), seen)
}

fn check_signed_whitelist(
    whitelist: &Whitelist,
    bytes: &[u8],
    (name, keys): (&RepositoryName, &MasterKeys),
    seen: Option<UnixTime>,
) -> Result<(), TrustError> {
    check_whitelist_name(whitelist, name)?;
    if whitelist.pkcs7 {
        return Err(TrustError::WhitelistPkcs7);
    }
    if whitelist.ca_chain {
        return Err(TrustError::WhitelistCaChain);
    }
    if let (Some(offered), Some(seen)) = (whitelist.created, seen)
        && offered < seen
        && !skipped("older-whitelist")
    {
        return Err(TrustError::OlderWhitelist { offered, seen });
    }
    let letter = check_whitelist_hash(bytes)?;
    if keys.is_empty() {
        return Err(TrustError::NoMasterKey);
    }
    if !keys.signed(letter.printed, letter.signature) && !skipped("whitelist-signature") {
        return Err(TrustError::WhitelistSignature { keys: keys.len() });
    }
    Ok(())
}

/// Checks the certificate against both lists, each fingerprint in its own algorithm.
fn check_certificate(
    certificate: &Certificate,
    whitelist: &Whitelist,
    blacklist: &Blacklist,
    algorithm: HashAlgorithm,
) -> Result<(), TrustError> {
    let own = [HashAlgorithm::Sha1, HashAlgorithm::Rmd160, HashAlgorithm::Shake128]
        .map(|algorithm| certificate.fingerprint(algorithm));
    let is_in = |list: &[ContentHash]| list.iter().find(|listed| own.contains(listed)).copied();
    if let Some(listed) = is_in(blacklist.fingerprints())
        && !skipped("certificate-blacklisted")
    {
        return Err(TrustError::CertificateBlacklisted { fingerprint: listed.to_fingerprint() });
    }
    if is_in(&whitelist.fingerprints).is_none() && !skipped("certificate-listed") {
        let fingerprint = certificate.fingerprint(algorithm).to_fingerprint();
        return Err(TrustError::CertificateNotListed { fingerprint });
    }
    Ok(())
}

/// Returns untrusted text for messages: truncated and without control characters.
fn printable(text: &str) -> String {
    text.chars().take(80).map(|c| if c.is_control() { '?' } else { c }).collect()
}

impl VerifiedHead {
    /// Returns the name of the repository.
    pub const fn name(&self) -> &RepositoryName {
        &self.name
    }

    /// Returns the verified manifest.
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the name of the root catalog.
    pub const fn root_catalog(&self) -> ObjectName {
        ObjectName::new(self.manifest.root_catalog, ObjectKind::Catalog)
    }

    /// Returns the uncompressed size of the root catalog in bytes, if the manifest records it.
    pub fn root_catalog_size(&self) -> Option<u64> {
        Some(self.manifest.root_catalog_size).filter(|size| *size > 0)
    }

    /// Returns the number of the revision.
    pub const fn revision(&self) -> u64 {
        self.manifest.revision
    }

    /// Returns the time of the manifest's signature.
    pub const fn timestamp(&self) -> UnixTime {
        self.manifest.timestamp
    }

    /// Returns the state with which later heads are compared.
    pub const fn seen(&self) -> AcceptedHead {
        let Manifest { revision, timestamp, root_catalog: root, .. } = self.manifest;
        AcceptedHead { revision, timestamp, root, whitelist: self.whitelist_created }
    }

    /// Returns the seconds after which clients ask for a newer head, as the manifest states.
    pub const fn ttl(&self) -> u32 {
        self.manifest.ttl
    }

    /// Returns the history database, if there is one.
    pub fn history(&self) -> Option<ObjectName> {
        self.manifest.history.map(|hash| ObjectName::new(hash, ObjectKind::History))
    }

    /// Returns the description of the repository, if there is one.
    pub fn metainfo(&self) -> Option<ObjectName> {
        self.manifest.metainfo.map(|hash| ObjectName::new(hash, ObjectKind::Metainfo))
    }

    /// Returns the certificate that signed the manifest.
    pub fn certificate(&self) -> Option<ObjectName> {
        self.manifest.certificate.map(|hash| ObjectName::new(hash, ObjectKind::Certificate))
    }

    /// Returns whether root catalog, certificate, history and metainfo exist at alternative paths.
    pub const fn alternative_paths(&self) -> bool {
        self.manifest.alternative_paths
    }

    /// Returns whether old content may be collected, so that an old revision may become incomplete.
    pub const fn garbage_collectable(&self) -> bool {
        self.manifest.garbage_collectable
    }

    /// Returns the hash algorithm of the repository.
    pub const fn hash_algorithm(&self) -> HashAlgorithm {
        self.manifest.root_catalog.algorithm()
    }

    /// Returns the expiry of the whitelist.
    pub const fn whitelist_expires(&self) -> UnixTime {
        self.whitelist_expires
    }

    /// Returns the path of an object that the manifest names, below the root of the repository.
    pub fn path(&self, object: ObjectName) -> String {
        path(&self.manifest, object)
    }
}
