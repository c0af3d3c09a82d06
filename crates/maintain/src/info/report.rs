//! The description of a repository. The names of its JSON fields are stable.

use esker_format::manifest::Manifest;
use esker_repository::{KeyFile, ReplicaState, SettingValue, SkippedRevision};
use serde::Serialize;

/// Description of a repository. What can't be read is none, and a problem says why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RepositoryInfo {
    /// Folder or URL.
    pub place: String,
    /// Name in the manifest.
    pub repository: Option<String>,
    /// Number of the published revision.
    pub revision: Option<u64>,
    /// Hash of the root catalog.
    pub root_hash: Option<String>,
    /// Plain size of the root catalog in bytes.
    pub root_catalog_bytes: Option<u64>,
    /// Time of the head's signature, in seconds since 1970.
    pub published: Option<i64>,
    /// Seconds after which clients check for a newer revision.
    pub ttl: Option<u32>,
    /// Hash algorithm.
    pub hash_algorithm: Option<String>,
    /// True if old content may be collected.
    pub garbage_collectable: Option<bool>,
    /// True if the signatures of head and whitelist verify, apart from expiry.
    pub signatures_verified: Option<bool>,
    /// The certificate of the head.
    pub certificate: Option<CertificateInfo>,
    /// The whitelist.
    pub whitelist: Option<WhitelistInfo>,
    /// Number of tags.
    pub tags: Option<usize>,
    /// Number of branches, the default one among them.
    pub branches: Option<usize>,
    /// Number of objects that the reflog lists.
    pub reflog_entries: Option<usize>,
    /// Time of the last collection, as its program wrote it.
    pub last_gc: Option<String>,
    /// Time of the last replication, as its program wrote it.
    pub last_snapshot: Option<String>,
    /// Time of the last check, as its program wrote it.
    pub last_check: Option<String>,
    /// True if the last check found no fault.
    pub check_succeeded: Option<bool>,
    /// State of the servers that it copies, for a replica in a folder.
    pub replica: Option<ReplicaInfo>,
    /// True if replicas may copy the repository.
    pub master_replica: Option<bool>,
    /// Settings of the publisher; empty for a repository elsewhere.
    pub settings: Vec<SettingValue>,
    /// Key files of the publisher; empty for a repository elsewhere.
    pub keys: Vec<KeyFile>,
    /// Open and kept transactions: markers of CernVM-FS, and those of this user.
    pub transactions: Vec<String>,
    /// Parts that can't be read.
    pub problems: Vec<Problem>,
    /// Facts that need attention.
    pub warnings: Vec<String>,
}

/// A replica and its servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReplicaInfo {
    /// Servers that it is copied from.
    pub servers: String,
    /// Paths that it has; empty for all.
    pub paths: Vec<String>,
    /// Tagged revisions that it has beside the head; none for all.
    pub revisions: Option<u64>,
    /// Newest revision that the servers offered.
    pub upstream_revision: u64,
    /// True if the servers were asked just now.
    pub online: bool,
    /// Number of revisions that it is behind.
    pub behind: u64,
    /// Seconds between the signatures of its head and of the servers' head; none if they were not asked.
    pub lag_seconds: Option<i64>,
    /// Time of the last run, in seconds since 1970.
    pub attempted: i64,
    /// Time of the last successful run.
    pub succeeded: Option<i64>,
    /// Failure of the last run.
    pub failure: Option<String>,
    /// Revisions that the servers lacked in the last successful run.
    pub left_out: Vec<SkippedRevision>,
}

/// Certificate of a head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CertificateInfo {
    /// Subject.
    pub subject: String,
    /// Fingerprint as whitelists have it.
    pub fingerprint: String,
    /// End of its validity in seconds since 1970, which clients ignore.
    pub expires: i64,
    /// True if the whitelist lists it.
    pub listed: Option<bool>,
}

/// Whitelist of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WhitelistInfo {
    /// Time of its creation in seconds since 1970.
    pub created: Option<i64>,
    /// Time of its expiry in seconds since 1970.
    pub expires: i64,
    /// True if it has expired.
    pub expired: bool,
    /// Fingerprints of the accepted certificates.
    pub certificates: Vec<String>,
}

/// A part that can't be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Name of the part.
    pub part: &'static str,
    /// Reason why the part can't be read.
    pub text: String,
}

impl ReplicaInfo {
    /// Returns what the last run of a replica with a revision noted.
    pub(super) fn of(known: ReplicaState, here: u64) -> Self {
        Self {
            servers: known.servers,
            paths: known.paths,
            revisions: known.revisions,
            upstream_revision: known.upstream_revision,
            online: false,
            behind: known.upstream_revision.saturating_sub(here),
            lag_seconds: None,
            attempted: known.attempted,
            succeeded: known.succeeded,
            failure: known.failure,
            left_out: known.left_out.unwrap_or_default(),
        }
    }
}

impl RepositoryInfo {
    pub(super) fn new(place: String) -> Self {
        Self { place, ..Self::default() }
    }

    pub(super) fn describe_head(&mut self, head: &Manifest) {
        self.repository.clone_from(&head.name);
        self.revision = Some(head.revision);
        self.root_hash = Some(head.root_catalog.to_string());
        self.root_catalog_bytes = (head.root_catalog_size > 0).then_some(head.root_catalog_size);
        self.published = Some(head.timestamp.0);
        self.ttl = Some(head.ttl);
        self.hash_algorithm = Some(head.root_catalog.algorithm().to_string());
        self.garbage_collectable = Some(head.garbage_collectable);
    }

    /// Adds what a replica remembers of its servers, if this is one.
    pub fn add_replica(&mut self, root: &std::path::Path) {
        let known = match ReplicaState::read(root) {
            Ok(known) => known,
            Err(error) => {
                self.problems.push(Problem { part: "replica", text: super::causes(&error) });
                None
            }
        };
        let here = self.revision.unwrap_or(0);
        self.replica = known.map(|known| ReplicaInfo::of(known, here));
    }

    /// Adds the head that the servers of a replica have now.
    pub fn add_upstream(&mut self, head: &Manifest) {
        let (here, published) = (self.revision.unwrap_or(0), self.published.unwrap_or(head.timestamp.0));
        let Some(replica) = &mut self.replica else { return };
        replica.online = true;
        replica.upstream_revision = head.revision;
        replica.behind = head.revision.saturating_sub(here);
        replica.lag_seconds = Some(head.timestamp.0.saturating_sub(published).max(0));
    }

    /// Adds what only the publisher knows: settings and key files.
    pub fn add_publisher(&mut self, root: &std::path::Path, keys: Option<&esker_repository::KeyFolder>) {
        let disks = esker_repository::Disks::default();
        let path = esker_repository::Settings::path(&esker_repository::state::folder(root));
        let head = self.ttl.zip(self.garbage_collectable);
        match esker_repository::Settings::read(&*disks.private, &path) {
            Ok(settings) => {
                self.settings = esker_repository::settings::current(&settings.unwrap_or_default(), head)
            }
            Err(error) => self.problems.push(Problem { part: "settings", text: super::causes(&error) }),
        }
        let Some(keys) = keys else { return };
        self.keys = keys.inventory();
        let exposed = self.keys.iter().filter(|key| key.exposed);
        self.warnings.extend(
            exposed
                .map(|key| format!("other users can read or change the private key {}", key.path.display())),
        );
    }
}
