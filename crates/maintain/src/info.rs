//! Describes a repository without changing it, as far as its files can be read.
//!
//! Nothing here requires that the repository is in order: each part that can't be read becomes a problem with the name
//! of the part, and the others are described all the same.

mod list;
mod report;

use esker_format::certificate::Certificate;
use esker_format::hash::ContentHash;
use esker_format::history::History;
use esker_format::manifest::{self, Manifest};
use esker_format::master_keys::MasterKeys;
use esker_format::metainfo::ServerStatus;
use esker_format::name::RepositoryName;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::reflog::{self, Reflog};
use esker_format::time::UnixTime;
use esker_format::trust::TrustError;
use esker_format::whitelist::{self, Whitelist};
use esker_repository::{
    MASTER_REPLICA, RepositoryError,
    settings::DAY,
    signed::{SMALL_FILE_MAX, SignedFiles, decoded_object, is_of},
};
use esker_store::StoredFiles;

pub use list::{ListedRepository, list_repositories};
pub use report::{CertificateInfo, Problem, ReplicaInfo, RepositoryInfo, WhitelistInfo};

/// Largest history and reflog that a description reads, in bytes.
const DATABASE_MAX: u64 = 256 << 20;
/// Seconds before the expiry of a whitelist or certificate from which a description warns.
const WARN_BEFORE: i64 = 7 * DAY;

/// Known facts about a repository besides its files.
#[derive(Clone, Debug)]
pub struct InfoContext {
    /// Place of the repository, for the reader of the description.
    pub place: String,
    /// Name under which clients use it; none takes the name in its manifest.
    pub name: Option<RepositoryName>,
    /// Public master keys; none leaves its signatures unverified.
    pub keys: Option<MasterKeys>,
    /// Certificate in the publisher's keys folder.
    pub own: Option<Certificate>,
    /// Current time.
    pub now: UnixTime,
}

/// Returns an error and its causes in one line.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        next = cause.source();
    }
    text
}

impl RepositoryInfo {
    /// Describes the repository with these files.
    pub fn read(files: &dyn StoredFiles, context: &InfoContext) -> Self {
        let mut reader = Reader { files, context, info: Self::new(context.place.clone()) };
        let manifest = reader.root_file("manifest", manifest::PATH);
        let parsed = manifest.as_deref().map(Manifest::parse);
        let head = match parsed {
            Some(Ok(head)) => Some(head),
            Some(Err(error)) => reader.problem("manifest", error.to_string()),
            None => None,
        };
        let whitelist = reader.whitelist();
        if let Some(head) = &head {
            reader.info.describe_head(head);
            let certificate = reader.certificate(head, whitelist.as_ref().map(|(_, parsed)| parsed));
            reader.verify(head, manifest.as_deref(), whitelist.as_ref(), certificate.as_deref());
            reader.history(head);
        }
        reader.reflog();
        reader.status();
        reader.master_replica();
        reader.own_certificate(whitelist.as_ref().map(|(_, parsed)| parsed));
        reader.info
    }
}

/// Collects a description, part by part.
struct Reader<'r> {
    files: &'r dyn StoredFiles,
    context: &'r InfoContext,
    info: RepositoryInfo,
}

impl Reader<'_> {
    fn problem<T>(&mut self, part: &'static str, text: String) -> Option<T> {
        self.info.problems.push(Problem { part, text });
        None
    }

    fn warn(&mut self, text: String) {
        self.info.warnings.push(text);
    }

    fn file(&mut self, part: &'static str, path: &str, limit: u64) -> Option<Vec<u8>> {
        match self.files.read(path, limit) {
            Ok(bytes) => bytes,
            Err(error) => self.problem(part, causes(&error)),
        }
    }

    /// Reads a file that every repository has.
    fn root_file(&mut self, part: &'static str, path: &str) -> Option<Vec<u8>> {
        match self.files.read(path, SMALL_FILE_MAX) {
            Ok(Some(bytes)) => Some(bytes),
            Ok(None) => self.problem(part, format!("`{path}` is missing")),
            Err(error) => self.problem(part, causes(&error)),
        }
    }

    fn object(&mut self, part: &'static str, object: ObjectName, limit: u64) -> Option<Vec<u8>> {
        let stored = match self.files.read(&object.path(), limit) {
            Ok(Some(stored)) => stored,
            Ok(None) => return self.problem(part, format!("object {object} is missing")),
            Err(error) => return self.problem(part, causes(&error)),
        };
        match decoded_object(&stored, &object, None, (limit, &std::env::temp_dir()), part) {
            Ok(plain) => Some(plain.into_vec()),
            Err(error) => self.problem(part, causes(&error)),
        }
    }

    fn whitelist(&mut self) -> Option<(Vec<u8>, Whitelist)> {
        let bytes = self.root_file("whitelist", whitelist::PATH)?;
        let parsed = match Whitelist::parse(&bytes) {
            Ok(parsed) => parsed,
            Err(error) => return self.problem("whitelist", error.to_string()),
        };
        let (now, expired) = (self.context.now, parsed.is_expired(self.context.now));
        if expired {
            self.warn(format!(
                "the whitelist expired at {}; clients refuse the repository until it is signed again",
                parsed.expires
            ));
        } else if parsed.expires.0.saturating_sub(now.0) < WARN_BEFORE {
            self.warn(format!(
                "the whitelist expires at {}; clients then refuse the repository until it is signed again",
                parsed.expires
            ));
        }
        self.info.whitelist = Some(WhitelistInfo {
            created: parsed.created.map(|created| created.0),
            expires: parsed.expires.0,
            expired,
            certificates: parsed.fingerprints.iter().map(ContentHash::to_fingerprint).collect(),
        });
        Some((bytes, parsed))
    }

    /// Describes the certificate that the head names, and returns its text.
    fn certificate(&mut self, head: &Manifest, whitelist: Option<&Whitelist>) -> Option<Vec<u8>> {
        let Some(hash) = head.certificate else {
            return self.problem("certificate", "the manifest names no certificate".to_owned());
        };
        let pem =
            self.object("certificate", ObjectName::new(hash, ObjectKind::Certificate), SMALL_FILE_MAX)?;
        let certificate = match Certificate::parse(&pem) {
            Ok(certificate) => certificate,
            Err(error) => return self.problem("certificate", error.to_string()),
        };
        let listed = whitelist.map(|list| list.fingerprints.iter().any(|listed| is_of(listed, &certificate)));
        if listed == Some(false) {
            self.warn(
                "the certificate of the head is not on the whitelist; clients refuse the head".to_owned(),
            );
        }
        let expires = certificate.expires();
        if expires.0.saturating_sub(self.context.now.0) < WARN_BEFORE {
            self.warn(format!(
                "the certificate of the head is valid until {expires}; clients ignore that date, other tools may not"
            ));
        }
        self.info.certificate = Some(CertificateInfo {
            subject: certificate.subject().to_owned(),
            fingerprint: certificate.fingerprint(head.root_catalog.algorithm()).to_fingerprint(),
            expires: expires.0,
            listed,
        });
        Some(pem)
    }

    /// Verifies the signatures, at a time before the expiry of the whitelist, which is reported on its own.
    fn verify(
        &mut self,
        head: &Manifest,
        manifest: Option<&[u8]>,
        whitelist: Option<&(Vec<u8>, Whitelist)>,
        certificate: Option<&[u8]>,
    ) {
        let (Some(manifest), Some((whitelist, parsed)), Some(certificate)) =
            (manifest, whitelist, certificate)
        else {
            return;
        };
        let Some(keys) = &self.context.keys else {
            self.problem::<()>("signatures", "they are not verified: there is no public key here".to_owned());
            return;
        };
        let claimed = head.name.as_deref().and_then(|name| RepositoryName::parse(name).ok());
        let Some(name) = self.context.name.clone().or(claimed) else {
            self.problem::<()>("signatures", "the manifest names no repository".to_owned());
            return;
        };
        let signed = SignedFiles {
            manifest: manifest.to_vec(),
            whitelist: whitelist.clone(),
            certificate: certificate.to_vec(),
        };
        let still_valid = UnixTime(parsed.expires.hour().0.saturating_sub(1)).min(self.context.now);
        match signed.verify(&name, keys, still_valid) {
            Ok(_) => self.info.signatures_verified = Some(true),
            Err(RepositoryError::Untrusted { source, .. }) => self.untrusted(&source),
            Err(error) => self.problem("signatures", causes(&error)).unwrap_or_default(),
        }
    }

    fn untrusted(&mut self, why: &TrustError) {
        self.info.signatures_verified = Some(false);
        self.problem::<()>("signatures", causes(why));
    }

    fn history(&mut self, head: &Manifest) {
        let Some(hash) = head.history else {
            self.info.tags = Some(0);
            return;
        };
        let Some(bytes) = self.object("history", ObjectName::new(hash, ObjectKind::History), DATABASE_MAX)
        else {
            return;
        };
        match History::parse(&bytes) {
            Ok(history) => {
                self.info.tags = Some(history.tags().len());
                self.info.branches = Some(history.branches().len());
            }
            Err(error) => self.problem("history", causes(&error)).unwrap_or_default(),
        }
    }

    fn reflog(&mut self) {
        match self.file("reflog", reflog::PATH, DATABASE_MAX) {
            Some(bytes) => match Reflog::parse(&bytes) {
                Ok(reflog) => self.info.reflog_entries = Some(reflog.references().len()),
                Err(error) => self.problem("reflog", causes(&error)).unwrap_or_default(),
            },
            None if self.info.garbage_collectable == Some(true) => {
                self.warn("there is no reflog; a collect rebuilds it".to_owned());
            }
            None => {}
        }
    }

    fn status(&mut self) {
        let Some(bytes) = self.file("status", ServerStatus::PATH, SMALL_FILE_MAX) else { return };
        match ServerStatus::parse(&bytes) {
            Ok(status) => {
                self.info.last_gc = status.last_gc;
                self.info.last_snapshot = status.last_snapshot;
                self.info.last_check = status.last_check;
                self.info.check_succeeded = status.check_succeeded;
            }
            Err(error) => self.problem("status", causes(&error)).unwrap_or_default(),
        }
    }

    fn master_replica(&mut self) {
        match self.files.read(MASTER_REPLICA, SMALL_FILE_MAX) {
            Ok(found) => self.info.master_replica = Some(found.is_some()),
            Err(error) => self.problem("replication", causes(&error)).unwrap_or_default(),
        }
    }

    fn own_certificate(&mut self, whitelist: Option<&Whitelist>) {
        let (Some(own), Some(whitelist)) = (&self.context.own, whitelist) else { return };
        if !whitelist.fingerprints.iter().any(|listed| is_of(listed, own)) {
            self.warn(
                "the certificate in the keys folder is not on the whitelist; a publish is refused".to_owned(),
            );
        }
    }
}
