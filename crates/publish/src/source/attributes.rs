//! Extended attributes of the source.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use esker_archive::folder::{self, Xattr};
use esker_format::catalog::XattrList;
use esker_format::copied_xattr::PUBLISHED_PATH;
use esker_repository::{LongXattrs, Settings, path};
use rustix::io::Errno;

use crate::error::PublishError;

/// Extended attributes of an entry, encoded for catalogs.
#[derive(Debug, Default)]
pub(crate) struct Xattrs {
    /// Encoded attributes; none if the entry has no attributes.
    pub(crate) packed: Option<Vec<u8>>,
    /// Names of the attributes that catalogs can't represent.
    pub(crate) left_out: Vec<Vec<u8>>,
}

/// An attribute that describes the publisher's machine and not the file, beside those that [`folder::xattrs`] leaves out.
const NFS_ACL: &[u8] = b"system.nfs4_acl";

/// Returns names and values of the extended attributes of the entry `name` of a directory, except those of the machine.
pub(crate) fn read_xattr_pairs(directory: &OwnedFd, name: &[u8]) -> Result<Vec<Xattr>, Errno> {
    folder::xattrs(directory, name, &[NFS_ACL])
}

/// Encodes the extended attributes that catalogs can represent, as the settings say; `at` is the path for messages.
pub(crate) fn pack_xattrs(found: Vec<Xattr>, at: &[u8], settings: &Settings) -> Result<Xattrs, PublishError> {
    if !settings.xattrs {
        return Ok(Xattrs::default());
    }
    let mut left_out = Vec::new();
    // Archives may have names that no file system would take, and readers refuse whole lists for one of them.
    let is_name = |name: &[u8]| !name.is_empty() && name.len() <= XattrList::NAME_MAX && !name.contains(&0);
    let mut kept: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for (name, value) in found {
        let is_long = value.len() > XattrList::SHORT_VALUE_MAX;
        if is_long && settings.long_xattrs == LongXattrs::Refuse {
            let (path, name, size) = (path::shown(at), path::shown(&name), value.len());
            return Err(PublishError::LongXattr { path, name, size });
        }
        // It tells of a published tree, and copies of its files have it too.
        if name == PUBLISHED_PATH {
            continue;
        }
        let may_be =
            value.len() <= XattrList::VALUE_MAX && (!is_long || settings.long_xattrs == LongXattrs::Publish);
        if may_be && is_name(&name) && !kept.contains_key(&name) {
            kept.insert(name, value);
        } else {
            left_out.push(name);
        }
    }
    while kept.len() > XattrList::COUNT_MAX {
        left_out.extend(kept.pop_last().map(|(name, _)| name));
    }
    let list: XattrList = kept.into_iter().collect();
    Ok(Xattrs { left_out, packed: list.to_blob() })
}
