//! Names of the magic attributes, which describe the repository and its mount, and access to them.

use std::collections::BTreeSet;

use esker_format::object::ObjectName;
use esker_vfs::Kind;
use serde::{Deserialize, Serialize};

use crate::payload::NodeInfo;

/// Provides the values of magic attributes that a view does not know itself.
pub trait About: Send + Sync {
    /// Returns an attribute of the connections or of the mount. Must not block.
    fn attribute(&self, name: &str) -> Option<String>;

    /// Returns the metainfo object of the repository, if it has one.
    fn metainfo(&self) -> Option<ObjectName>;

    /// Returns the base URL of external data, if known.
    fn outside(&self) -> Option<String>;
}

/// Places where magic attributes are listed. They can be read by name everywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Visibility {
    /// Never lists them.
    Never,
    /// They are listed at the root only, so that copying a tree does not copy them.
    #[default]
    Root,
    /// At every file and directory that they describe.
    Everywhere,
}

/// Magic attributes that only members of some groups may read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Protected {
    /// Names of the attributes.
    pub names: BTreeSet<String>,
    /// Groups whose members may read them.
    pub groups: BTreeSet<u32>,
}

impl Protected {
    /// Returns true if members of this group may read the attribute, with or without a page. Group 0 always may.
    pub fn may_ask(&self, name: &[u8], group: u32) -> bool {
        let is_named = std::str::from_utf8(name).is_ok_and(|name| self.names.contains(split_page(name).0));
        !is_named || group == 0 || self.groups.contains(&group)
    }
}

/// Entries that have an attribute.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AppliesTo {
    Everything,
    /// All entries, once the mount provides values: see [`About`].
    Mounts,
    /// All entries, but reading the attribute may request an object from the server: not listed.
    Asking,
    /// Files whose hash is in a catalog.
    Content,
    Files,
    Outside,
    Links,
    /// No entries: a name of the reference client without a meaning in Esker.
    Nothing,
}

/// All names, in order.
const NAMES: [(&str, AppliesTo); 51] = [
    ("bundle_trigger", AppliesTo::Files),
    ("user.authz", AppliesTo::Nothing),
    ("user.bundle_trigger", AppliesTo::Files),
    ("user.catalog_counters", AppliesTo::Everything),
    ("user.chunk_list", AppliesTo::Files),
    ("user.chunks", AppliesTo::Files),
    ("user.compression", AppliesTo::Files),
    ("user.direct_io", AppliesTo::Files),
    ("user.esker.error", AppliesTo::Everything),
    ("user.expires", AppliesTo::Mounts),
    ("user.external_file", AppliesTo::Files),
    ("user.external_host", AppliesTo::Mounts),
    ("user.external_timeout", AppliesTo::Mounts),
    ("user.external_url", AppliesTo::Outside),
    ("user.fqrn", AppliesTo::Everything),
    ("user.hash", AppliesTo::Content),
    ("user.hitrate", AppliesTo::Mounts),
    ("user.host", AppliesTo::Mounts),
    ("user.host_list", AppliesTo::Mounts),
    ("user.inode_max", AppliesTo::Mounts),
    ("user.lhash", AppliesTo::Nothing),
    ("user.logbuffer", AppliesTo::Everything),
    ("user.maxfd", AppliesTo::Mounts),
    ("user.ncleanup24", AppliesTo::Mounts),
    ("user.nclg", AppliesTo::Everything),
    ("user.ndiropen", AppliesTo::Mounts),
    ("user.ndownload", AppliesTo::Mounts),
    ("user.nioerr", AppliesTo::Everything),
    ("user.nopen", AppliesTo::Mounts),
    ("user.pid", AppliesTo::Mounts),
    ("user.proxy", AppliesTo::Mounts),
    ("user.proxy_list", AppliesTo::Mounts),
    ("user.proxy_list_external", AppliesTo::Mounts),
    ("user.pubkeys", AppliesTo::Mounts),
    ("user.rawlink", AppliesTo::Links),
    ("user.repo_counters", AppliesTo::Everything),
    (METAINFO, AppliesTo::Asking),
    ("user.revision", AppliesTo::Everything),
    ("user.revision_timestamp", AppliesTo::Everything),
    ("user.root_hash", AppliesTo::Everything),
    ("user.rx", AppliesTo::Mounts),
    ("user.speed", AppliesTo::Mounts),
    ("user.tag", AppliesTo::Everything),
    ("user.timeout", AppliesTo::Mounts),
    ("user.timeout_direct", AppliesTo::Mounts),
    ("user.timestamp_last_ioerr", AppliesTo::Everything),
    ("user.uptime", AppliesTo::Mounts),
    ("user.useddirp", AppliesTo::Mounts),
    ("user.usedfd", AppliesTo::Mounts),
    ("user.version", AppliesTo::Everything),
    ("xfsroot.rawlink", AppliesTo::Links),
];

/// Attribute with the repository's description of itself.
pub(crate) const METAINFO: &str = "user.repo_metainfo";

/// Returns true if this is the name of a magic attribute, here or in the reference client.
pub fn is_magic(name: &str) -> bool {
    NAMES.binary_search_by_key(&name, |(known, _)| known).is_ok()
}

/// Returns the magic attributes that an entry lists.
pub(crate) fn listed(kind: Kind, info: &NodeInfo, is_told: bool) -> impl Iterator<Item = &'static str> {
    let has = move |on: AppliesTo| match on {
        AppliesTo::Everything => true,
        AppliesTo::Mounts => is_told,
        AppliesTo::Content => kind == Kind::File && info.content.is_some(),
        AppliesTo::Files => kind == Kind::File,
        AppliesTo::Outside => is_told && info.external,
        // Linux has no namespace for the other name.
        AppliesTo::Links => kind == Kind::Symlink,
        AppliesTo::Asking | AppliesTo::Nothing => false,
    };
    NAMES.iter().filter(move |(name, on)| has(*on) && name.starts_with("user.")).map(|(name, _)| *name)
}

/// Requested page of a value: `name@2`, `name~2`, `name~?`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    Number { page: usize, header: bool },
    Count,
}

/// Separates the page from a name.
pub(crate) fn split_page(name: &str) -> (&str, Page) {
    let whole = (name, Page::Number { page: 0, header: false });
    let Some((stem, page)) = name.rsplit_once(['@', '~']) else { return whole };
    if page == "?" {
        return (stem, Page::Count);
    }
    match page.parse() {
        Ok(page) => (stem, Page::Number { page, header: name.as_bytes().get(stem.len()) == Some(&b'@') }),
        Err(_) => whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_magic_name_is_found() {
        assert!(NAMES.is_sorted_by_key(|(name, _)| name));
        assert!(NAMES.iter().all(|(name, _)| is_magic(name)));
        assert!(!is_magic("user.other") && !is_magic("security.capability"));
    }

    #[test]
    fn protected_attributes_are_readable_by_their_groups_only() {
        let names = ["user.pubkeys", "user.host"].map(str::to_owned).into();
        let protected = Protected { names, groups: [100, 7].into() };
        for (name, group, may) in [
            ("user.pubkeys", 100, true),
            ("user.pubkeys", 7, true),
            ("user.pubkeys", 8, false),
            ("user.pubkeys", 0, true),
            ("user.pubkeys~0", 8, false),
            ("user.pubkeys@?", 8, false),
            ("user.host", 8, false),
            ("user.hosts", 8, true),
            ("user.fqrn", 8, true),
        ] {
            assert_eq!(protected.may_ask(name.as_bytes(), group), may, "{name} {group}");
        }
        assert!(protected.may_ask(b"user.\xff", 8) && Protected::default().may_ask(b"user.host", 8));
    }
}
