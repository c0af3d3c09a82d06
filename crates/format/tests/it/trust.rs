//! Tests of the trust chain from the master key to a verified head: valid chains, and each kind of violation.

use std::sync::LazyLock;

use esker_format::blacklist::Blacklist;
use esker_format::certificate::{Certificate, CertificateError};
use esker_format::compress::{Compression, decompress};
use esker_format::hash::HashAlgorithm;
use esker_format::letter::LetterError;
use esker_format::manifest::ManifestError;
use esker_format::master_keys::{KeyError, MasterKeys};
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_format::trust::{AcceptedHead, ClaimedHead, Evidence, TrustError, VerifiedHead, verify};
use esker_format::whitelist::WhitelistError;
use esker_testkit::fixture::{self, Fixture};
use esker_testkit::object::Algorithm;
use esker_testkit::signing::{ManifestDraft, WhitelistDraft};

/// All inputs of a head's verification; each test breaks one of them.
#[derive(Clone)]
struct Case {
    manifest: Vec<u8>,
    whitelist: Vec<u8>,
    certificate: Vec<u8>,
    keys: MasterKeys,
    blacklist: Blacklist,
    name: RepositoryName,
    now: UnixTime,
    seen: Option<AcceptedHead>,
}

impl Case {
    /// Returns the head that the reference implementation published.
    fn published(fixture: Fixture) -> Self {
        let repository = fixture.unpack();
        let manifest = repository.read(".cvmfspublished");
        let claimed = ClaimedHead::parse(&manifest).unwrap();
        assert_eq!(claimed.certificate_path(), claimed.certificate().path());
        let stored = repository.read(&claimed.certificate_path());
        Self {
            whitelist: repository.read(".cvmfswhitelist"),
            certificate: decompress(&stored, Compression::Zlib, None, 1 << 20).unwrap(),
            keys: MasterKeys::parse(&std::fs::read(fixture.public_key()).unwrap()).unwrap(),
            blacklist: Blacklist::default(),
            name: RepositoryName::parse(fixture.name()).unwrap(),
            now: claimed.manifest().timestamp,
            seen: None,
            manifest,
        }
    }

    fn full() -> Self {
        // Unpacking is slow, and most tests start from the same head.
        static FULL: LazyLock<Case> = LazyLock::new(|| Case::published(fixture::FULL));
        FULL.clone()
    }

    fn verify(&self) -> Result<VerifiedHead, TrustError> {
        verify(&Evidence {
            manifest: &self.manifest,
            whitelist: &self.whitelist,
            certificate: &self.certificate,
            keys: &self.keys,
            blacklist: &self.blacklist,
            name: &self.name,
            now: self.now,
            seen: self.seen,
        })
    }

    /// Returns the reason why the head is rejected.
    fn error(&self) -> TrustError {
        self.verify().expect_err("this head must not be believed")
    }

    /// Changes the manifest and signs it again.
    fn resign(&mut self, change: impl FnOnce(&mut ManifestDraft)) {
        let mut draft = ManifestDraft::parse(&self.manifest);
        change(&mut draft);
        self.manifest = draft.sign(&fixture::FULL.keys());
    }

    /// Signs a whitelist of our own after a change.
    fn rewhitelist(&mut self, change: impl FnOnce(&mut WhitelistDraft)) {
        let keys = fixture::FULL.keys();
        let mut draft = WhitelistDraft::listing(&keys, "full.test", Algorithm::Sha1);
        change(&mut draft);
        self.whitelist = draft.sign(&keys);
    }
}

/// Replaces one occurrence of some bytes.
fn replace(bytes: &mut Vec<u8>, from: &[u8], to: &[u8]) {
    let at = bytes.windows(from.len()).position(|window| window == from).expect("the text is there");
    bytes.splice(at..at + from.len(), to.iter().copied());
}

#[test]
fn published_heads_are_accepted() {
    for fixture in fixture::ALL {
        let case = Case::published(fixture);
        let head = case.verify().unwrap();
        let manifest = ManifestDraft::parse(&case.manifest);
        assert_eq!(head.root_catalog().hash.to_string(), manifest.get('C').unwrap());
        assert_eq!(head.root_catalog_size().unwrap().to_string(), manifest.get('B').unwrap());
        assert_eq!(head.revision().to_string(), manifest.get('S').unwrap());
        assert_eq!(head.timestamp().0.to_string(), manifest.get('T').unwrap());
        assert_eq!(head.ttl().to_string(), manifest.get('D').unwrap());
        assert_eq!(head.history().unwrap().hash.to_string(), manifest.get('H').unwrap());
        assert_eq!(head.certificate().unwrap().hash.to_string(), manifest.get('X').unwrap());
        assert_eq!(head.name().as_str(), fixture.name());
        assert_eq!(head.garbage_collectable(), fixture != fixture::RMD);
        assert!(!head.alternative_paths());
        assert_eq!(head.path(head.root_catalog()), head.root_catalog().path());
    }
}

#[test]
fn heads_and_whitelists_signed_by_us_are_accepted() {
    let mut case = Case::full();
    case.rewhitelist(|_| {});
    case.resign(|draft| {
        draft.set('A', "yes").set('S', 99);
    });
    let head = case.verify().unwrap();
    assert_eq!(head.revision(), 99);
    assert!(head.path(head.root_catalog()).starts_with(".cvmfsalt-"));
    let claimed = ClaimedHead::parse(&case.manifest).unwrap();
    assert_eq!(claimed.certificate_path(), claimed.certificate().alternative_path());
}

#[test]
fn the_same_head_and_newer_heads_are_accepted() {
    let mut case = Case::full();
    let seen = case.verify().unwrap().seen();
    case.seen = Some(seen);
    assert!(case.verify().is_ok());
    case.seen =
        Some(AcceptedHead { revision: seen.revision - 1, timestamp: UnixTime(seen.timestamp.0 - 1), ..seen });
    assert!(case.verify().is_ok());
}

#[test]
fn an_incomplete_manifest_is_rejected() {
    let mut case = Case::full();
    case.resign(|draft| {
        draft.remove('S');
    });
    assert_eq!(case.error(), TrustError::Manifest(ManifestError::Missing('S')));
    assert_eq!(ClaimedHead::parse(b""), Err(TrustError::Manifest(ManifestError::Missing('C'))));
}

#[test]
fn a_manifest_of_another_repository_is_rejected() {
    let mut case = Case::full();
    case.resign(|draft| {
        draft.set('N', "other.test");
    });
    let (expected, found) = (case.name.clone(), "other.test".to_owned());
    assert_eq!(case.error(), TrustError::ManifestName { expected, found });
    case.resign(|draft| {
        draft.remove('N');
    });
    assert!(matches!(case.error(), TrustError::ManifestName { found, .. } if found.is_empty()));
}

#[test]
fn a_manifest_of_another_path_is_rejected() {
    let mut case = Case::full();
    case.resign(|draft| {
        draft.set('R', "00000000000000000000000000000000");
    });
    assert_eq!(case.error(), TrustError::RootPath("0".repeat(32)));
}

#[test]
fn older_heads_are_rejected_with_both_numbers() {
    let mut case = Case::full();
    let seen = case.verify().unwrap().seen();
    case.seen = Some(AcceptedHead { timestamp: UnixTime(seen.timestamp.0 + 1), ..seen });
    let newer = UnixTime(seen.timestamp.0 + 1);
    assert_eq!(case.error(), TrustError::OlderTimestamp { offered: seen.timestamp, seen: newer });
    let text = case.error().to_string();
    assert!(text.contains(&seen.timestamp.to_string()) && text.contains(&newer.to_string()), "{text}");

    let (offered, newer) = (seen.revision, seen.revision + 1000);
    case.seen = Some(AcceptedHead { revision: newer, ..seen });
    assert_eq!(case.error(), TrustError::OlderRevision { offered, seen: newer });
    let text = case.error().to_string();
    assert!(text.contains(&offered.to_string()) && text.contains(&newer.to_string()), "{text}");
}

#[test]
fn two_root_catalogs_of_one_revision_are_rejected() {
    let mut case = Case::full();
    let seen = case.verify().unwrap().seen();
    case.seen = Some(seen);
    let other = "ab".repeat(20);
    case.resign(|draft| {
        draft.set('C', &other).set('T', seen.timestamp.0 + 60);
    });
    let error = case.error();
    assert!(matches!(error, TrustError::TwoRoots { revision, .. } if revision == seen.revision), "{error}");
    let text = error.to_string();
    assert!(
        text.contains(&other) && text.contains(&seen.root.to_string()) && text.contains("attack"),
        "{text}"
    );
    case.resign(|draft| {
        draft.set('S', seen.revision + 1);
    });
    assert!(case.verify().is_ok(), "another root is another revision");
}

#[test]
fn implausible_revisions_are_rejected() {
    let mut case = Case::full();
    let seen = case.verify().unwrap().seen();
    for revision in [u64::MAX, i64::MAX as u64] {
        case.seen = None;
        case.resign(|draft| {
            draft.set('S', revision);
        });
        assert_eq!(case.error(), TrustError::RevisionJump { offered: revision, seen: 0 });
    }
    let later = |revision: u64, case: &mut Case| {
        case.seen = Some(seen);
        case.resign(|draft| {
            draft.set('S', revision).set('T', seen.timestamp.0 + 60);
        });
    };
    later(seen.revision + 10_000_000, &mut case);
    assert!(case.verify().is_ok(), "a client that was away for years");
    let far = seen.revision + 100_000_000;
    later(far, &mut case);
    assert_eq!(case.error(), TrustError::RevisionJump { offered: far, seen: seen.revision });
    case.seen = None;
    assert!(case.verify().is_ok(), "a repository that begins with a high number");
}

#[test]
fn an_older_whitelist_is_rejected() {
    let mut case = Case::full();
    case.rewhitelist(|draft| draft.created = "20260301000000".to_owned());
    let seen = case.verify().unwrap().seen();
    assert_eq!(seen.whitelist, UnixTime::parse_compact(b"20260301000000"));
    case.seen = Some(seen);
    assert!(case.verify().is_ok(), "the same again");
    case.rewhitelist(|draft| draft.created = "20260228235959".to_owned());
    let offered = UnixTime::parse_compact(b"20260228235959").unwrap();
    assert_eq!(case.error(), TrustError::OlderWhitelist { offered, seen: seen.whitelist.unwrap() });
    case.rewhitelist(|draft| draft.created = "20260302000000".to_owned());
    assert!(case.verify().is_ok());
}

#[test]
fn a_manifest_without_certificate_is_rejected() {
    let mut case = Case::full();
    case.resign(|draft| {
        draft.remove('X');
    });
    assert_eq!(case.error(), TrustError::NoCertificate);
    assert_eq!(ClaimedHead::parse(&case.manifest), Err(TrustError::NoCertificate));
}

#[test]
fn unreadable_certificates_are_rejected() {
    let mut case = Case::full();
    let pem = std::mem::replace(&mut case.certificate, b"no PEM".to_vec());
    assert_eq!(case.error(), TrustError::Certificate(CertificateError::NoPem));

    case.certificate = b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n".to_vec();
    assert!(matches!(case.error(), TrustError::Certificate(CertificateError::NotX509(_))));
    case.certificate = b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n".to_vec();
    assert!(matches!(case.error(), TrustError::Certificate(CertificateError::NotX509(_))));

    // Replaces the identifier of RSA keys by that of another kind of key.
    let mut der = der_of(&pem);
    replace(&mut der, b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01", b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x07");
    case.certificate = pem_of("CERTIFICATE", &der);
    assert!(matches!(case.error(), TrustError::Certificate(CertificateError::Key(_))));
}

fn der_of(pem: &[u8]) -> Vec<u8> {
    use x509_cert::der::{DecodePem as _, Encode as _};
    x509_cert::Certificate::from_pem(pem).unwrap().to_der().unwrap()
}

fn pem_of(label: &str, der: &[u8]) -> Vec<u8> {
    x509_cert::der::pem::encode_string(label, x509_cert::der::pem::LineEnding::LF, der).unwrap().into_bytes()
}

#[test]
fn certificates_with_openssl_trust_settings_are_read() {
    let mut case = Case::full();
    let plain = Certificate::parse(&case.certificate).unwrap();
    let mut der = der_of(&case.certificate);
    // An empty SEQUENCE of trust settings after the certificate.
    der.extend_from_slice(&[0x30, 0x00]);
    case.certificate = pem_of("TRUSTED CERTIFICATE", &der);
    let trusted = Certificate::parse(&case.certificate).unwrap();
    for algorithm in [HashAlgorithm::Sha1, HashAlgorithm::Rmd160, HashAlgorithm::Shake128] {
        assert_eq!(trusted.fingerprint(algorithm), plain.fingerprint(algorithm));
    }
    assert!(case.verify().is_ok());
}

#[test]
fn unsigned_manifests_are_rejected() {
    let mut case = Case::full();
    let published = case.manifest.clone();
    case.manifest = ManifestDraft::parse(&published).text();
    assert_eq!(case.error(), TrustError::ManifestLetter(LetterError::Unsigned));

    case.manifest = [&case.manifest[..], b"--\nnot a hash\nsignature"].concat();
    assert_eq!(case.error(), TrustError::ManifestLetter(LetterError::NoHash));

    let letter = esker_format::letter::Letter::split(&published).unwrap();
    case.manifest = published[..published.len() - letter.signature.len()].to_vec();
    assert_eq!(case.error(), TrustError::ManifestLetter(LetterError::NoSignature));
}

#[test]
fn a_manifest_changed_after_signing_is_rejected() {
    let mut case = Case::full();
    replace(&mut case.manifest, b"D240\n", b"D241\n");
    assert!(matches!(case.error(), TrustError::ManifestHash { signed, actual } if signed != actual));
}

#[test]
fn a_manifest_signed_with_another_key_is_rejected() {
    let mut case = Case::full();
    let draft = ManifestDraft::parse(&case.manifest);
    case.manifest = draft.sign(&fixture::RMD.keys());
    assert!(
        matches!(case.error(), TrustError::ManifestSignature { subject } if subject.contains("full.test"))
    );

    // A single flipped bit invalidates the right signature.
    let mut case = Case::full();
    *case.manifest.last_mut().unwrap() ^= 1;
    assert!(matches!(case.error(), TrustError::ManifestSignature { .. }));
    // So does the signature of the original manifest, with the hash of the changed one.
    let mut case = Case::full();
    let published = case.manifest.clone();
    let old = esker_format::letter::Letter::split(&published).unwrap();
    case.resign(|draft| {
        draft.set('S', 99);
    });
    let kept =
        case.manifest.len() - esker_format::letter::Letter::split(&case.manifest).unwrap().signature.len();
    case.manifest.truncate(kept);
    case.manifest.extend_from_slice(old.signature);
    assert!(matches!(case.error(), TrustError::ManifestSignature { .. }));
}

#[test]
fn malformed_whitelists_are_rejected() {
    let mut case = Case::full();
    case.whitelist.clear();
    assert_eq!(case.error(), TrustError::Whitelist(WhitelistError::Empty));
    case.rewhitelist(|draft| draft.created = "20260101".to_owned());
    assert_eq!(case.error(), TrustError::Whitelist(WhitelistError::Created));
    case.rewhitelist(|draft| draft.expires = "2099".to_owned());
    assert_eq!(case.error(), TrustError::Whitelist(WhitelistError::Expires));
    case.whitelist = b"20260101000000\nE20991231000000\nfull.test\n--\n".to_vec();
    assert_eq!(case.error(), TrustError::Whitelist(WhitelistError::Name));
}

#[test]
fn an_expired_whitelist_is_rejected() {
    let mut case = Case::full();
    case.rewhitelist(|draft| draft.expires = "20270101120000".to_owned());
    let expired = UnixTime::parse_compact(b"20270101120000").unwrap();
    case.now = UnixTime(expired.0 - 1);
    assert!(case.verify().is_ok());
    case.now = expired;
    assert_eq!(case.error(), TrustError::WhitelistExpired { expired, now: expired });
    // A head that was accepted earlier is verified again as of that time.
    case.now = UnixTime(expired.0 - 86_400);
    assert!(case.verify().is_ok());
}

#[test]
fn a_whitelist_of_another_repository_is_rejected() {
    let mut case = Case::full();
    case.rewhitelist(|draft| draft.name = "rmd.test".to_owned());
    assert!(matches!(case.error(), TrustError::WhitelistName { found, .. } if found == "rmd.test"));
}

#[test]
fn whitelists_with_unsupported_requirements_are_rejected() {
    let mut case = Case::full();
    case.rewhitelist(|draft| draft.lines.insert(0, "Vpkcs7".to_owned()));
    assert_eq!(case.error(), TrustError::WhitelistPkcs7);
    case.rewhitelist(|draft| draft.lines.insert(0, "Wcachain".to_owned()));
    assert_eq!(case.error(), TrustError::WhitelistCaChain);
}

#[test]
fn unsigned_whitelists_are_rejected() {
    let mut case = Case::full();
    let keys = fixture::FULL.keys();
    case.whitelist = WhitelistDraft::listing(&keys, "full.test", Algorithm::Sha1).text();
    assert_eq!(case.error(), TrustError::WhitelistLetter(LetterError::Unsigned));
    case.whitelist.extend_from_slice(b"--\n123\n456");
    assert_eq!(case.error(), TrustError::WhitelistLetter(LetterError::NoHash));
}

#[test]
fn a_whitelist_changed_after_signing_is_rejected() {
    let mut case = Case::full();
    case.rewhitelist(|_| {});
    replace(&mut case.whitelist, b"20260101", b"20260102");
    assert!(matches!(case.error(), TrustError::WhitelistHash { .. }));
}

#[test]
fn a_whitelist_signed_with_another_key_is_rejected() {
    let mut case = Case::full();
    let draft = WhitelistDraft::listing(&fixture::FULL.keys(), "full.test", Algorithm::Sha1);
    case.whitelist = draft.sign(&fixture::SHAKE.keys());
    assert_eq!(case.error(), TrustError::WhitelistSignature { keys: 1 });
    *case.whitelist.last_mut().unwrap() ^= 1;
    assert_eq!(case.error(), TrustError::WhitelistSignature { keys: 1 });
}

#[test]
fn one_of_several_master_keys_suffices_and_is_required() {
    let mut case = Case::full();
    let own = case.keys.clone();
    case.keys = MasterKeys::default();
    assert_eq!(case.error(), TrustError::NoMasterKey);
    case.keys.add(&std::fs::read(fixture::RMD.public_key()).unwrap()).unwrap();
    case.keys.add(&std::fs::read(fixture::SHAKE.public_key()).unwrap()).unwrap();
    assert_eq!(case.error(), TrustError::WhitelistSignature { keys: 2 });
    case.keys.add(&std::fs::read(fixture::FULL.public_key()).unwrap()).unwrap();
    assert!(case.verify().is_ok());
    assert_ne!(case.keys.id(), own.id());

    let mut reordered = own;
    for fixture in [fixture::SHAKE, fixture::RMD, fixture::FULL] {
        reordered.add(&std::fs::read(fixture.public_key()).unwrap()).unwrap();
    }
    assert_eq!((reordered.len(), reordered.id()), (3, case.keys.id()));
}

#[test]
fn unreadable_public_keys_are_rejected() {
    assert_eq!(MasterKeys::parse(b"not a key"), Err(KeyError::NoPem));
    let pem = b"-----BEGIN PUBLIC KEY-----\nMAA=\n-----END PUBLIC KEY-----\n";
    assert!(matches!(MasterKeys::parse(pem), Err(KeyError::Key(_))));
}

#[test]
fn blacklisted_certificates_are_rejected() {
    for algorithm in [Algorithm::Sha1, Algorithm::Rmd160, Algorithm::Shake128] {
        let mut case = Case::full();
        let fingerprint = fixture::FULL.keys().fingerprint(algorithm);
        case.blacklist = Blacklist::parse(format!("{fingerprint} # stolen\n").as_bytes());
        assert_eq!(case.error(), TrustError::CertificateBlacklisted { fingerprint });
    }
    let mut case = Case::full();
    case.blacklist = Blacklist::parse(fixture::RMD.keys().fingerprint(Algorithm::Sha1).as_bytes());
    assert!(case.verify().is_ok());
}

#[test]
fn certificates_not_on_the_whitelist_are_rejected() {
    let mut case = Case::full();
    case.rewhitelist(|draft| draft.lines = vec![fixture::RMD.keys().fingerprint(Algorithm::Sha1)]);
    let fingerprint = fixture::FULL.keys().fingerprint(Algorithm::Sha1);
    assert_eq!(case.error(), TrustError::CertificateNotListed { fingerprint });
    // A listed fingerprint may be of any algorithm.
    case.rewhitelist(|draft| {
        draft.lines = vec!["# comment".to_owned(), fixture::FULL.keys().fingerprint(Algorithm::Rmd160)];
    });
    assert!(case.verify().is_ok());
}

#[test]
fn blacklisted_revisions_are_rejected() {
    let mut case = Case::full();
    let revision = case.verify().unwrap().revision();
    let floor = revision + 1;
    case.blacklist = Blacklist::parse(format!("<full.test {floor}\n").as_bytes());
    assert_eq!(case.error(), TrustError::RevisionBlacklisted { revision, floor });
    case.blacklist = Blacklist::parse(format!("<full.test {revision}\n<rmd.test 1000\n").as_bytes());
    assert!(case.verify().is_ok());
}

/// Checks run in the order of the reference implementation, so that a head with several faults is reported in
/// the same way.
#[test]
fn the_first_fault_in_reference_order_is_reported() {
    let mut case = Case::full();
    case.whitelist.clear();
    case.certificate.clear();
    case.resign(|draft| {
        draft.set('N', "other.test");
    });
    assert!(matches!(case.error(), TrustError::ManifestName { .. }));

    let mut case = Case::full();
    case.certificate.clear();
    case.whitelist.clear();
    assert!(matches!(case.error(), TrustError::Certificate(_)));

    let mut case = Case::full();
    *case.manifest.last_mut().unwrap() ^= 1;
    case.whitelist.clear();
    assert!(matches!(case.error(), TrustError::ManifestSignature { .. }));

    let mut case = Case::full();
    *case.whitelist.last_mut().unwrap() ^= 1;
    case.now = UnixTime(i64::MAX);
    assert!(matches!(case.error(), TrustError::WhitelistExpired { .. }));
}
