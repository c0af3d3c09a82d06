//! Faults of a repository, by kind, with what to do about each.

use std::collections::HashMap;
use std::fmt;

use esker_format::hash::ContentHash;
use esker_format::object::ObjectName;
use serde::{Serialize, Serializer};

/// Command or step that removes a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fix {
    /// Fetch the object from a mirror: `esker check NAME --repair FROM`.
    Fetch,
    /// Renew the signature of the whitelist: `esker repo resign NAME`.
    Resign,
    /// Rebuild the reflog: `esker check NAME --repair`.
    RebuildReflog,
    /// Publish the directory again, which writes new catalogs for it.
    Publish,
    /// Change or remove the tag.
    Tag,
    /// Remove the file, or collect it as left over: `esker collect NAME --orphans`.
    Remove,
    /// Only a backup, or the owner of the repository, can help.
    Owner,
}

impl Fix {
    /// Returns the next step as a sentence.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Fetch => "fetch it from a mirror with `esker check NAME --repair FROM`",
            Self::Resign => "sign the whitelist again with `esker repo resign NAME`",
            Self::RebuildReflog => "rebuild the reflog with `esker check NAME --repair-reflog`",
            Self::Publish => "publish the directory again, which writes a new catalog for it",
            Self::Tag => "remove the tag, or move it to a revision that is there",
            Self::Remove => "remove it with `esker collect NAME --orphans`, once it is a day old",
            Self::Owner => "restore it from a backup, or ask the owner of the repository",
        }
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal, $fix:ident;)*) => {
        /// Kind of a fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum FindingKind {
            $($(#[$doc])* $kind,)*
        }

        impl FindingKind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// Returns the name for programs.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name),* }
            }

            /// Returns what can be done.
            pub const fn fix(self) -> Fix {
                match self { $(Self::$kind => Fix::$fix),* }
            }
        }
    };
}

kinds! {
    /// There is no manifest.
    ManifestMissing = "manifest-missing", Fetch;
    /// The manifest can't be read.
    ManifestUnreadable = "manifest-unreadable", Fetch;
    /// The signature of the manifest is wrong.
    ManifestSignature = "manifest-signature", Fetch;
    /// The manifest is of another repository or path.
    ManifestName = "manifest-name", Owner;
    /// There is no whitelist.
    WhitelistMissing = "whitelist-missing", Fetch;
    /// The whitelist can't be read.
    WhitelistUnreadable = "whitelist-unreadable", Fetch;
    /// The signature of the whitelist is wrong.
    WhitelistSignature = "whitelist-signature", Resign;
    /// The whitelist is of another repository.
    WhitelistName = "whitelist-name", Resign;
    /// Clients refuse the whitelist since it expired.
    WhitelistExpired = "whitelist-expired", Resign;
    /// The certificate is not in the storage.
    CertificateMissing = "certificate-missing", Fetch;
    /// The certificate has other bytes than its name says, or can't be read.
    CertificateDamaged = "certificate-damaged", Fetch;
    /// The certificate is not on the whitelist.
    CertificateNotListed = "certificate-not-listed", Resign;
    /// The object of the description is missing, damaged or no JSON.
    Metainfo = "metainfo", Fetch;
    /// An object lacks the alternative name that the manifest announces.
    AlternativeName = "alternative-name", Publish;
    /// The history is missing.
    HistoryMissing = "history-missing", Fetch;
    /// The history has other bytes than its name says.
    HistoryDamaged = "history-damaged", Fetch;
    /// The history can't be read.
    HistoryUnreadable = "history-unreadable", Fetch;
    /// The history is of another repository.
    HistoryName = "history-name", Owner;
    /// Two tags have the same name, or a tag has none.
    TagName = "tag-name", Tag;
    /// A tag is on a branch that the history does not list.
    TagBranch = "tag-branch", Tag;
    /// A tag names another revision than its root catalog.
    TagRevision = "tag-revision", Tag;
    /// A tag names another size than its root catalog has.
    TagSize = "tag-size", Tag;
    /// The root catalog of a tag is missing or damaged.
    TagCatalog = "tag-catalog", Fetch;
    /// A branch has no usable name, or is listed twice.
    BranchName = "branch-name", Tag;
    /// A branch starts from a branch that the history does not list.
    BranchParent = "branch-parent", Tag;
    /// A branch has no tag.
    BranchUnused = "branch-unused", Tag;
    /// There is no reflog.
    ReflogMissing = "reflog-missing", RebuildReflog;
    /// The reflog can't be read.
    ReflogUnreadable = "reflog-unreadable", RebuildReflog;
    /// The reflog is of another repository.
    ReflogName = "reflog-name", RebuildReflog;
    /// The stored checksum of the reflog is missing or of another reflog.
    ReflogChecksum = "reflog-checksum", RebuildReflog;
    /// The manifest names another reflog.
    ReflogHead = "reflog-head", RebuildReflog;
    /// The reflog does not list an object of the head.
    ReflogIncomplete = "reflog-incomplete", RebuildReflog;
    /// A catalog is missing.
    CatalogMissing = "catalog-missing", Fetch;
    /// A catalog has other bytes than its name says.
    CatalogDamaged = "catalog-damaged", Fetch;
    /// A catalog can't be read although its bytes are right.
    CatalogUnreadable = "catalog-unreadable", Publish;
    /// A catalog has another size than its parent or the manifest says.
    CatalogSize = "catalog-size", Publish;
    /// A catalog is for another directory than the one that it is mounted at.
    CatalogPrefix = "catalog-prefix", Publish;
    /// The root catalog has another revision than the manifest.
    CatalogRevision = "catalog-revision", Publish;
    /// A catalog has no entry for its own directory.
    RootMissing = "root-missing", Publish;
    /// The entry of a catalog's own directory is no directory.
    RootKind = "root-kind", Publish;
    /// The entry of a catalog's own directory has the wrong flags for a root.
    RootFlags = "root-flags", Publish;
    /// The entry of a directory in its own catalog differs from the one in the parent.
    RootDiffers = "root-differs", Publish;
    /// A row can't be read.
    RowUnreadable = "row-unreadable", Publish;
    /// An index does not fit its table.
    IndexDamaged = "index-damaged", Publish;
    /// Rows can't be reached from the root.
    RowsUnreachable = "rows-unreachable", Publish;
    /// Two entries of a directory have the same name.
    NameTwice = "name-twice", Publish;
    /// An entry has no name.
    NameEmpty = "name-empty", Publish;
    /// An entry has the key of another path.
    Key = "key", Publish;
    /// Flags say another type than the mode.
    Flags = "flags", Publish;
    /// A link count is zero.
    LinkCountZero = "link-count-zero", Publish;
    /// A directory is in a group of hard links.
    DirectoryGroup = "directory-group", Publish;
    /// The link count of a directory does not fit its subdirectories.
    DirectoryLinks = "directory-links", Publish;
    /// The members of a group of hard links differ, or are not as many as their link count says.
    HardlinkGroup = "hardlink-group", Publish;
    /// A file has neither a hash nor chunks.
    FileHash = "file-hash", Publish;
    /// The algorithm of an entry's hash is unknown.
    HashAlgorithm = "hash-algorithm", Publish;
    /// The compression of a file is unknown.
    Compression = "compression", Publish;
    /// The chunks of a file don't cover it.
    Chunks = "chunks", Publish;
    /// Chunks belong to no chunked file.
    ChunksUnowned = "chunks-unowned", Publish;
    /// An entry that is no regular file has a hash, chunks, or flags of a file.
    ContentOfOther = "content-of-other", Publish;
    /// A symlink has no target, or another size than its target.
    SymlinkSize = "symlink-size", Publish;
    /// An entry that is no symlink has a target.
    SymlinkOfOther = "symlink-of-other", Publish;
    /// A pipe or socket has a size.
    SpecialSize = "special-size", Publish;
    /// A mountpoint has no row in the table of nested catalogs.
    NestedUnlisted = "nested-unlisted", Publish;
    /// A row of a nested catalog has no mountpoint.
    NestedDangling = "nested-dangling", Publish;
    /// A row of a nested catalog has no hash.
    NestedHash = "nested-hash", Publish;
    /// A directory is listed as a nested catalog twice, or as a bind mountpoint too.
    NestedTwice = "nested-twice", Publish;
    /// A mountpoint has entries in the parent's catalog.
    NestedChildren = "nested-children", Publish;
    /// The directory of a nested catalog has no marker.
    MarkerMissing = "marker-missing", Publish;
    /// A marker is in a directory that is not the root of a catalog.
    MarkerAbandoned = "marker-abandoned", Publish;
    /// A bind mountpoint has no row, or a row has no bind mountpoint.
    Bind = "bind", Publish;
    /// A counter of a catalog's own rows is wrong.
    CountersOwn = "counters-own", Publish;
    /// A counter of the catalogs below a catalog is wrong.
    CountersSubtree = "counters-subtree", Publish;
    /// An object is missing.
    ObjectMissing = "object-missing", Fetch;
    /// An object has other bytes than its name says.
    ObjectDamaged = "object-damaged", Fetch;
    /// The name of an object is taken by something that is no file.
    ObjectKind = "object-kind", Owner;
    /// An object that no checked revision names has other bytes than its name says.
    UnusedDamaged = "unused-damaged", Remove;
    /// A file in the storage has no name of an object.
    StrangeFile = "strange-file", Remove;
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for FindingKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A fault of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Kind of the fault.
    pub kind: FindingKind,
    /// Description of the fault.
    pub detail: String,
    /// Name of the object with the fault, if an object has it.
    pub object: Option<String>,
    /// Path in the repository.
    pub path: Option<String>,
    /// Revisions concerned: their numbers and tags, the first few.
    pub revisions: Vec<String>,
    /// Command or step that removes the fault.
    pub fix: Fix,
    /// The object, for repair.
    #[serde(skip)]
    pub(crate) name: Option<ObjectName>,
    /// The catalogs that have the fault, or lead to the object.
    #[serde(skip)]
    pub(crate) catalogs: Vec<ContentHash>,
}

impl Finding {
    pub(crate) fn new(kind: FindingKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            object: None,
            path: None,
            revisions: Vec::new(),
            fix: kind.fix(),
            name: None,
            catalogs: Vec::new(),
        }
    }

    pub(crate) fn object(mut self, name: ObjectName) -> Self {
        self.object = Some(name.to_string());
        self.name = Some(name);
        self
    }

    pub(crate) fn path(mut self, path: &[u8]) -> Self {
        self.path = Some(esker_repository::path::shown(path));
        self
    }

    pub(crate) fn catalog(mut self, catalog: ContentHash) -> Self {
        self.catalogs.push(catalog);
        self
    }
}

/// Key by which equal findings of different catalogs are merged.
type Identity = (FindingKind, Option<String>, Option<String>, String);

/// Findings of a check so far.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) list: Vec<Finding>,
    seen: HashMap<Identity, usize>,
    more: u64,
}

impl Findings {
    /// Maximum number of listed findings; limits the report on a repository that is damaged everywhere.
    pub(crate) const MAX: usize = 100_000;

    /// Adds a finding; that of another catalog, such as the one of the next revision, is joined to it.
    pub(crate) fn add(&mut self, finding: Finding) {
        let identity = (finding.kind, finding.object.clone(), finding.path.clone(), finding.detail.clone());
        if let Some(known) = self.seen.get(&identity).and_then(|at| self.list.get_mut(*at)) {
            known.catalogs.extend(finding.catalogs);
        } else if self.list.len() >= Self::MAX {
            self.more += 1;
        } else {
            self.seen.insert(identity, self.list.len());
            self.list.push(finding);
        }
    }

    /// Returns the findings, those of the head first, and the number of further ones.
    pub(crate) fn finish(mut self) -> (Vec<Finding>, u64) {
        self.list.sort_by(|a, b| (a.kind, &a.path, &a.object).cmp(&(b.kind, &b.path, &b.object)));
        (self.list, self.more)
    }
}
