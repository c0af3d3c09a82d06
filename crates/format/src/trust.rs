//! Why a head of a repository is believed.
//!
//! ```text
//! master keys (the user's) ── sign ──► whitelist ── lists ──► certificate ── signs ──► manifest
//!                                      name, expiry          not blacklisted           name, root path,
//!                                                                                      not older than seen
//! ```
//!
//! [`verify`] walks this chain and is the only thing that makes a [`VerifiedHead`]. From there on everything is
//! believed because of its hash.

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

/// Why a head is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// The manifest can't be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The manifest is another repository's.
    #[error("the manifest is for repository `{found}`, not for `{expected}`")]
    ManifestName {
        /// The repository that was asked for.
        expected: RepositoryName,
        /// The name in the manifest, empty if it has none.
        found: String,
    },
    /// The manifest does not start at the root.
    #[error("the manifest is for the path with MD5 `{0}`, not for the root of the repository")]
    RootPath(String),
    /// The manifest was signed before the last one that was accepted.
    #[error("the manifest was signed at {offered}, but one that was signed at {seen} has been seen already")]
    OlderTimestamp {
        /// The time of the offered manifest.
        offered: UnixTime,
        /// The time of the last accepted one.
        seen: UnixTime,
    },
    /// The manifest has an older revision than the last one that was accepted.
    #[error("the manifest is of revision {offered}, but revision {seen} has been seen already")]
    OlderRevision {
        /// The revision of the offered manifest.
        offered: u64,
        /// The revision of the last accepted one.
        seen: u64,
    },
    /// The manifest signs another root catalog for the revision that was accepted last.
    #[error(
        "the manifest signs another root catalog for revision {revision} than the one seen before ({offered}, not {seen}): \
         two contents were published as one revision, which is a mistake of its publisher or an attack"
    )]
    TwoRoots {
        /// The revision.
        revision: u64,
        /// The root catalog of the offered manifest.
        offered: ContentHash,
        /// The root catalog of the last accepted one.
        seen: ContentHash,
    },
    /// The revision is so far from the last accepted one that no publisher came there by publishing.
    #[error("the manifest is of revision {offered}, which is absurdly far from revision {seen}, seen before")]
    RevisionJump {
        /// The revision of the offered manifest.
        offered: u64,
        /// The revision of the last accepted one; 0 if there is none.
        seen: u64,
    },
    /// The whitelist was signed before the last one that was accepted.
    #[error("the whitelist was signed at {offered}, but one that was signed at {seen} has been seen already")]
    OlderWhitelist {
        /// The time of the offered whitelist.
        offered: UnixTime,
        /// The time of the last accepted one.
        seen: UnixTime,
    },
    /// The manifest does not say who signed it.
    #[error("the manifest names no certificate")]
    NoCertificate,
    /// The certificate can't be read.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The manifest is not signed.
    #[error("the manifest can't be verified: {0}")]
    ManifestLetter(LetterError),
    /// The text of the manifest is not what was signed.
    #[error(
        "the manifest was changed after it was signed: its text has hash {actual}, the signed one is {signed}"
    )]
    ManifestHash {
        /// The hash that the signature covers.
        signed: ContentHash,
        /// The hash of the text.
        actual: ContentHash,
    },
    /// The certificate's key did not make the signature of the manifest.
    #[error("the signature of the manifest was not made by the certificate `{subject}` that it names")]
    ManifestSignature {
        /// The owner of the certificate.
        subject: String,
    },
    /// The whitelist can't be read.
    #[error(transparent)]
    Whitelist(#[from] WhitelistError),
    /// The whitelist is too old.
    #[error(
        "the whitelist expired at {expired} (now it is {now}); the owner of the repository has to sign a new one"
    )]
    WhitelistExpired {
        /// When it expired.
        expired: UnixTime,
        /// The time that was compared.
        now: UnixTime,
    },
    /// The whitelist is another repository's.
    #[error("the whitelist is for repository `{found}`, not for `{expected}`")]
    WhitelistName {
        /// The repository that was asked for.
        expected: RepositoryName,
        /// The name in the whitelist.
        found: String,
    },
    /// The whitelist is to be verified with PKCS#7.
    #[error("the whitelist wants to be verified with PKCS#7, which is not supported")]
    WhitelistPkcs7,
    /// The whitelist wants more than is checked here.
    #[error(
        "the whitelist wants the certificate to be verified against certificate authorities, which is not supported"
    )]
    WhitelistCaChain,
    /// The whitelist is not signed.
    #[error("the whitelist can't be verified: {0}")]
    WhitelistLetter(LetterError),
    /// The text of the whitelist is not what was signed.
    #[error(
        "the whitelist was changed after it was signed: its text has hash {actual}, the signed one is {signed}"
    )]
    WhitelistHash {
        /// The hash that the signature covers.
        signed: ContentHash,
        /// The hash of the text.
        actual: ContentHash,
    },
    /// There is no key to verify the whitelist with.
    #[error("there is no public key to verify the whitelist with")]
    NoMasterKey,
    /// No master key made the signature of the whitelist.
    #[error(
        "the signature of the whitelist was not made by any of the {keys} public key(s) given for this repository"
    )]
    WhitelistSignature {
        /// How many keys were tried.
        keys: usize,
    },
    /// The administrator of this client refuses the certificate.
    #[error("the certificate that signed the manifest is blacklisted here: {fingerprint}")]
    CertificateBlacklisted {
        /// The fingerprint of the certificate.
        fingerprint: String,
    },
    /// The owner of the repository does not accept the certificate.
    #[error("the certificate that signed the manifest is not on the whitelist: {fingerprint}")]
    CertificateNotListed {
        /// The fingerprint of the certificate.
        fingerprint: String,
    },
    /// The administrator of this client refuses the revision.
    #[error("revision {revision} is blacklisted here, as all below {floor} are")]
    RevisionBlacklisted {
        /// The revision of the manifest.
        revision: u64,
        /// The first revision that is not refused.
        floor: u64,
    },
}

impl TrustError {
    /// Whether the head is older than one that was accepted: another server, or this one later, may have a newer one.
    pub fn is_older(&self) -> bool {
        matches!(self, Self::OlderTimestamp { .. } | Self::OlderRevision { .. } | Self::OlderWhitelist { .. })
    }
}

/// The newest head that was accepted before; older ones are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its revision.
    pub revision: u64,
    /// When it was signed.
    pub timestamp: UnixTime,
    /// Its root catalog.
    pub root: ContentHash,
    /// When its whitelist was signed, if the whitelist says so.
    pub whitelist: Option<UnixTime>,
}

/// Most revisions between two heads that a client sees one after the other: one each minute for 30 years.
const REVISIONS_SKIPPED_MAX: u64 = 1 << 24;
/// Highest revision that is believed at first sight: catalogs and histories hold it as a signed number.
const REVISION_MAX: u64 = i64::MAX as u64 >> 1;

/// A manifest that nobody has verified; it tells what is needed to do so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedHead {
    manifest: Manifest,
    certificate: ObjectName,
}

impl ClaimedHead {
    /// Reads a manifest.
    pub fn parse(manifest: &[u8]) -> Result<Self, TrustError> {
        let manifest = Manifest::parse(manifest)?;
        let certificate = manifest.certificate.ok_or(TrustError::NoCertificate)?;
        Ok(Self { manifest, certificate: ObjectName::new(certificate, ObjectKind::Certificate) })
    }

    /// The certificate object that the manifest names.
    pub const fn certificate(&self) -> ObjectName {
        self.certificate
    }

    /// Where the certificate lies below the root of the repository.
    pub fn certificate_path(&self) -> String {
        path(&self.manifest, self.certificate)
    }

    /// The fields, none of which is verified.
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }
}

fn path(manifest: &Manifest, object: ObjectName) -> String {
    if manifest.alternative_paths { object.alternative_path() } else { object.path() }
}

/// Everything that a head is judged by.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// The manifest as fetched.
    pub manifest: &'a [u8],
    /// The whitelist as fetched.
    pub whitelist: &'a [u8],
    /// The certificate object that the manifest names, plain: PEM text.
    pub certificate: &'a [u8],
    /// The master public keys.
    pub keys: &'a MasterKeys,
    /// What the administrator refuses.
    pub blacklist: &'a Blacklist,
    /// The repository that was asked for.
    pub name: &'a RepositoryName,
    /// When the head is (or was) accepted, for the expiry of the whitelist.
    pub now: UnixTime,
    /// The newest head accepted before, if any.
    pub seen: Option<Seen>,
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

/// Checks what the manifest says about itself.
fn check_claims(
    manifest: &Manifest,
    expected: &RepositoryName,
    seen: Option<Seen>,
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

/// Checks what can be checked of a manifest before its certificate is there, to tell early that a proxy or a server
/// offers something useless. A manifest that passes is as little believed as any other.
pub fn check_offered_manifest(
    manifest: &[u8],
    name: &RepositoryName,
    seen: Option<Seen>,
) -> Result<(), TrustError> {
    check_claims(&Manifest::parse(manifest)?, name, seen)?;
    check_manifest_hash(manifest).map(drop)
}

/// The same for a whitelist.
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

fn check_whitelist(whitelist: &Whitelist, evidence: &Evidence<'_>) -> Result<(), TrustError> {
    let (now, keys) = (evidence.now, evidence.keys);
    if whitelist.is_expired(now) && !skipped("whitelist-expiry") {
        return Err(TrustError::WhitelistExpired { expired: whitelist.expires, now });
    }
    if whitelist.name != evidence.name.as_str() && !skipped("whitelist-name") {
        let (expected, found) = (evidence.name.clone(), printable(&whitelist.name));
        return Err(TrustError::WhitelistName { expected, found });
    }
    if whitelist.pkcs7 {
        return Err(TrustError::WhitelistPkcs7);
    }
    if whitelist.ca_chain {
        return Err(TrustError::WhitelistCaChain);
    }
    if let (Some(offered), Some(seen)) = (whitelist.created, evidence.seen.and_then(|seen| seen.whitelist))
        && offered < seen
        && !skipped("older-whitelist")
    {
        return Err(TrustError::OlderWhitelist { offered, seen });
    }
    let letter = check_whitelist_hash(evidence.whitelist)?;
    if keys.is_empty() {
        return Err(TrustError::NoMasterKey);
    }
    if !keys.signed(letter.printed, letter.signature) && !skipped("whitelist-signature") {
        return Err(TrustError::WhitelistSignature { keys: keys.len() });
    }
    Ok(())
}

/// Compares the certificate to both lists, each fingerprint in its own algorithm.
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

/// Text from outside, cut and without control characters, for messages.
fn printable(text: &str) -> String {
    text.chars().take(80).map(|c| if c.is_control() { '?' } else { c }).collect()
}

impl VerifiedHead {
    /// The repository.
    pub const fn name(&self) -> &RepositoryName {
        &self.name
    }

    /// All fields of the manifest.
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The root catalog.
    pub const fn root_catalog(&self) -> ObjectName {
        ObjectName::new(self.manifest.root_catalog, ObjectKind::Catalog)
    }

    /// The size of the root catalog, uncompressed, if the manifest tells.
    pub fn root_catalog_size(&self) -> Option<u64> {
        Some(self.manifest.root_catalog_size).filter(|size| *size > 0)
    }

    /// The number of the revision.
    pub const fn revision(&self) -> u64 {
        self.manifest.revision
    }

    /// When the manifest was signed.
    pub const fn timestamp(&self) -> UnixTime {
        self.manifest.timestamp
    }

    /// What to refuse older heads by from now on.
    pub const fn seen(&self) -> Seen {
        let Manifest { revision, timestamp, root_catalog: root, .. } = self.manifest;
        Seen { revision, timestamp, root, whitelist: self.whitelist_created }
    }

    /// How long to wait before looking for a newer head, in seconds, as the manifest says.
    pub const fn ttl(&self) -> u32 {
        self.manifest.ttl
    }

    /// The history database, if there is one.
    pub fn history(&self) -> Option<ObjectName> {
        self.manifest.history.map(|hash| ObjectName::new(hash, ObjectKind::History))
    }

    /// The description of the repository, if there is one.
    pub fn metainfo(&self) -> Option<ObjectName> {
        self.manifest.metainfo.map(|hash| ObjectName::new(hash, ObjectKind::Metainfo))
    }

    /// The certificate that signed the manifest.
    pub fn certificate(&self) -> Option<ObjectName> {
        self.manifest.certificate.map(|hash| ObjectName::new(hash, ObjectKind::Certificate))
    }

    /// Whether root catalog, certificate, history and metainfo lie at alternative paths.
    pub const fn alternative_paths(&self) -> bool {
        self.manifest.alternative_paths
    }

    /// Whether old content may be collected, so that an old revision may become incomplete.
    pub const fn garbage_collectable(&self) -> bool {
        self.manifest.garbage_collectable
    }

    /// The algorithm of the repository.
    pub const fn hash_algorithm(&self) -> HashAlgorithm {
        self.manifest.root_catalog.algorithm()
    }

    /// When the whitelist expires.
    pub const fn whitelist_expires(&self) -> UnixTime {
        self.whitelist_expires
    }

    /// Where an object that the manifest names lies below the root of the repository.
    pub fn path(&self, object: ObjectName) -> String {
        path(&self.manifest, object)
    }
}
