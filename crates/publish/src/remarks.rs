//! Names entries that readers see otherwise than their source shows them: without attributes, hard links or themselves.

use std::collections::HashMap;
use std::fmt;

use esker_repository::path;
use serde::Serialize;

use crate::error::listed;
use crate::plan::Differences;
use crate::source::Facts;

/// Maximum number of remarks of one kind that a warning names.
const NAMED_MAX: usize = 10;

/// An entry that readers see otherwise than its source shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Remark {
    /// Kind of the difference.
    pub what: RemarkKind,
    /// Path of the entry in the repository.
    pub path: String,
    /// Name of the extended attribute, folder that a script names, or target of a symlink.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// Difference of a published entry from its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RemarkKind {
    /// An extended attribute that catalogs can't represent.
    Xattr,
    /// The link to names of the same file elsewhere: catalogs know links within a directory only.
    HardLink,
    /// The whole entry: a device, socket or pipe that the settings leave out.
    SpecialFile,
    /// The capabilities of a file whose content a transaction changed.
    Capabilities,
    /// The default access control list of its directory, which a user's overlay lacks.
    DefaultAcl,
    /// A script that starts an interpreter of the folder in which it was built.
    BuildFolder,
    /// A symlink that leads out of the repository, or into the folder from which it is published.
    LeadsOut,
}

impl RemarkKind {
    const ALL: [Self; 7] = [
        Self::Xattr,
        Self::HardLink,
        Self::SpecialFile,
        Self::Capabilities,
        Self::DefaultAcl,
        Self::BuildFolder,
        Self::LeadsOut,
    ];

    fn text(self) -> &'static str {
        match self {
            Self::Xattr => {
                "extended attributes were left out: their names or values are too long for catalogs or for the setting \
                 long_xattrs, they are more than 255, or they have no proper name"
            }
            Self::HardLink => {
                "hard links became files of their own, since catalogs link names within one directory only"
            }
            Self::SpecialFile => "devices, sockets and pipes were left out (setting special_files)",
            Self::Capabilities => "files with new content lost their capabilities, as at any write to them",
            Self::DefaultAcl => {
                "new entries don't have the default access control list of their directory, which only a transaction of \
                 root gives them; set their lists, or change them as root"
            }
            Self::BuildFolder => {
                "scripts start an interpreter in the folder where they were built, and not where they are published; build \
                 them there, as in `esker transaction`, or use `esker publish --relocate=FOLDER`"
            }
            Self::LeadsOut => "symlinks lead out of the repository, or into the folder that is published",
        }
    }

    fn count(self, differences: &mut Differences) -> Option<&mut u64> {
        Some(match self {
            Self::Xattr => &mut differences.xattrs_left_out,
            Self::HardLink => &mut differences.hard_links_split,
            Self::SpecialFile => &mut differences.special_left_out,
            Self::Capabilities => &mut differences.capabilities_left_out,
            Self::DefaultAcl => &mut differences.default_acls_left_out,
            Self::BuildFolder | Self::LeadsOut => return None,
        })
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.path)?;
        self.detail.as_ref().map_or(Ok(()), |detail| write!(f, " ({detail})"))
    }
}

/// Remarks of a publish, while they are collected.
#[derive(Debug, Default)]
pub(crate) struct Remarks {
    list: Vec<Remark>,
    /// Paths of files that have further names in other directories, by device and inode.
    linked: HashMap<(u64, u64), Vec<Vec<u8>>>,
}

impl Remarks {
    pub(crate) fn add(&mut self, what: RemarkKind, path: &[u8]) {
        self.list.push(Remark { what, path: path::shown(path), detail: None });
    }

    pub(crate) fn add_with(&mut self, what: RemarkKind, path: &[u8], detail: &[u8]) {
        let detail = Some(String::from_utf8_lossy(detail).into_owned());
        self.list.push(Remark { what, path: path::shown(path), detail });
    }

    /// Adds attributes of one entry.
    pub(crate) fn add_xattrs(&mut self, path: &[u8], names: Vec<Vec<u8>>) {
        names.iter().for_each(|name| self.add_with(RemarkKind::Xattr, path, name));
    }

    /// Notes a file of whose names only `names` are in its directory.
    pub(crate) fn add_linked(&mut self, facts: &Facts, names: u64, path: impl FnOnce() -> Vec<u8>) {
        if facts.links > names && !facts.is_directory() {
            self.linked.entry((facts.device, facts.inode)).or_default().push(path());
        }
    }

    pub(crate) fn absorb(&mut self, other: Self) {
        self.list.extend(other.list);
        for (inode, paths) in other.linked {
            self.linked.entry(inode).or_default().extend(paths);
        }
    }

    /// Returns the remarks by kind and path. A file whose other names are outside of the source has lost no link.
    pub(crate) fn finish(mut self) -> Vec<Remark> {
        let directory = |path: &Vec<u8>| path::split(path).map(|(directory, _)| directory.to_vec());
        for paths in std::mem::take(&mut self.linked).into_values() {
            if paths.iter().any(|path| directory(path) != directory(&paths[0])) {
                paths.iter().for_each(|path| self.add(RemarkKind::HardLink, path));
            }
        }
        self.list.sort_unstable();
        self.list
    }
}

/// Counts remarks, and returns a warning for each kind.
pub(crate) fn warnings(remarks: &[Remark], differences: &mut Differences) -> Vec<String> {
    let mut warnings = Vec::new();
    for what in RemarkKind::ALL {
        let all = remarks.iter().filter(|remark| remark.what == what);
        let count = all.clone().count() as u64;
        what.count(differences).into_iter().for_each(|counted| *counted = count);
        if count > 0 {
            let named: Vec<String> = all.take(NAMED_MAX).map(Remark::to_string).collect();
            warnings.push(format!("{count} {}: {}", what.text(), listed(&named, count)));
        }
    }
    warnings
}
