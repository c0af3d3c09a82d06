//! Derives the attributes and identity of an entry from its catalog row.

use std::borrow::Cow;
use std::collections::BTreeMap;

use esker_format::catalog::{EntryKind, Flags, Row, symlink};
use esker_format::copied_xattr::OverlayOwner;
use esker_vfs::{Attr, Device, Ino, Kind, Node, NodeKey, NodeWithAttr, Time, TreeError};

use crate::identity::{self, EntryContent, EntryLocation};
use crate::magic::Visibility;
use crate::nested::CatalogMount;
use crate::options::{IdMap, Ownership, ViewOptions};
use crate::payload::NodeInfo;

/// Options that change the attributes of entries.
#[derive(Debug)]
pub(crate) struct AttributeRules {
    ownership: Ownership,
    uids: IdMap,
    gids: IdMap,
    world_readable: bool,
    /// Listings that show magic attributes.
    pub(crate) magic: Visibility,
    variables: BTreeMap<Vec<u8>, Vec<u8>>,
    raw_targets: bool,
    pub(crate) overlay: Option<OverlayOwner>,
}

/// A row and its location.
#[derive(Clone, Copy)]
pub(crate) struct RowRef<'a> {
    pub(crate) mount: &'a CatalogMount,
    /// Visible path of the entry.
    pub(crate) path: &'a [u8],
    pub(crate) row: &'a Row<'a>,
}

impl AttributeRules {
    pub(crate) fn new(options: &ViewOptions) -> Self {
        let bytes = |text: &String| text.clone().into_bytes();
        let variables = options.variables.iter().map(|(name, value)| (bytes(name), bytes(value))).collect();
        Self {
            ownership: options.ownership,
            uids: options.uids.clone(),
            gids: options.gids.clone(),
            world_readable: options.world_readable,
            magic: options.magic,
            variables,
            raw_targets: options.raw_targets,
            overlay: options.overlay,
        }
    }

    /// Returns the node and attributes of an entry.
    pub(crate) fn found(&self, row_ref: RowRef<'_>) -> Result<NodeWithAttr, TreeError> {
        let kind = kind(row_ref.row);
        let key = self.identity(row_ref, kind)?;
        let ino = identity::number(&key, row_ref.path.is_empty());
        let payload = info(row_ref, kind).encode();
        let attr = self.attr(row_ref.row, kind, ino);
        Ok(NodeWithAttr { node: Node { key, ino, payload, kind }, attr })
    }

    /// Returns the attributes of an entry with this kind and inode number.
    pub(crate) fn attr(&self, row: &Row<'_>, kind: Kind, ino: Ino) -> Attr {
        let published = || (self.uids.shown(row.uid().unwrap_or(0)), self.gids.shown(row.gid().unwrap_or(0)));
        let (uid, gid) = match self.ownership {
            Ownership::AsPublished => published(),
            Ownership::Claim { uid, gid } => (uid, gid),
            Ownership::From { uid, gid } => {
                let (published_uid, published_gid) = published();
                (uid.saturating_add(published_uid), gid.saturating_add(published_gid))
            }
        };
        let more = match (self.world_readable, kind) {
            (false, _) => 0,
            (true, Kind::Directory) => 0o555,
            (true, _) => 0o444,
        };
        let size = if kind == Kind::Symlink { self.target(row).len() as u64 } else { row.size() };
        Attr {
            ino,
            size,
            mtime: Time { secs: row.mtime(), nanos: row.mtime_ns().unwrap_or(0) },
            permissions: (row.mode() & 0o7777 | more) as u16,
            kind,
            nlink: row.link_count(),
            uid,
            gid,
            rdev: device(row),
        }
    }

    /// Returns the target of a symbolic link as it is shown: with its variables replaced, unless the view is raw.
    pub(crate) fn target<'r>(&self, row: &'r Row<'_>) -> Cow<'r, [u8]> {
        if self.raw_targets { Cow::Borrowed(row.symlink()) } else { self.expand(row.symlink()) }
    }

    /// Returns where a shown target leads: with its variables replaced.
    pub(crate) fn followed<'r>(&self, shown: &'r [u8]) -> Cow<'r, [u8]> {
        if self.raw_targets { self.expand(shown) } else { Cow::Borrowed(shown) }
    }

    fn expand<'r>(&self, target: &'r [u8]) -> Cow<'r, [u8]> {
        symlink::expand(target, |name| self.variables.get(name).cloned())
    }

    /// Returns the key that identifies the entry's node.
    pub(crate) fn identity(&self, row_ref: RowRef<'_>, kind: Kind) -> Result<NodeKey, TreeError> {
        let RowRef { mount, path, row } = row_ref;
        if kind == Kind::Directory {
            return Ok(identity::directory(path));
        }
        let place = match hardlink_group(row) {
            Some(group) => EntryLocation::Group { mount: &mount.key, group },
            None => EntryLocation::Path(path),
        };
        let target;
        let content = match kind {
            Kind::Symlink => {
                target = self.target(row);
                EntryContent::Target(&target)
            }
            Kind::CharDevice | Kind::BlockDevice => EntryContent::Device(device(row)),
            Kind::File => match row.hash() {
                Some(hash) => EntryContent::Object(hash),
                None if row.flags().has(Flags::CHUNKED) => EntryContent::Chunks(mount.chunks_digest(row)?),
                None => EntryContent::Size(row.size()),
            },
            _ => EntryContent::Size(0),
        };
        Ok(identity::entry(place, kind, content))
    }
}

/// Returns the number of the entry's hardlink group in its catalog; `None` if it has no other names.
pub(crate) fn hardlink_group(row: &Row<'_>) -> Option<u32> {
    (row.link_count() > 1 && row.hardlink_group() != 0).then_some(row.hardlink_group())
}

/// Returns the kind of an entry.
pub(crate) fn kind(row: &Row<'_>) -> Kind {
    match row.kind() {
        EntryKind::Directory => Kind::Directory,
        EntryKind::File => Kind::File,
        EntryKind::Symlink => Kind::Symlink,
        EntryKind::Fifo => Kind::Fifo,
        EntryKind::Socket => Kind::Socket,
        EntryKind::CharDevice => Kind::CharDevice,
        EntryKind::BlockDevice => Kind::BlockDevice,
    }
}

fn info(row_ref: RowRef<'_>, kind: Kind) -> NodeInfo {
    let RowRef { mount, path, row } = row_ref;
    let file = kind == Kind::File;
    NodeInfo {
        key: row.key(),
        mount: mount.key,
        catalog: mount.attached.hash,
        content: row.hash().filter(|_| file),
        // An unknown compression is an error of reads only; the entry itself stays usable.
        compression: row.compression().filter(|_| file),
        size: if file { row.size() } else { 0 },
        chunked: file && row.flags().has(Flags::CHUNKED),
        external: file && row.flags().has(Flags::EXTERNAL),
        direct_io: file && row.flags().has(Flags::DIRECT_IO),
        xattrs: row.has_xattrs(),
        bundle: row.flags().has(Flags::BUNDLE_TRIGGER),
        root: path.is_empty(),
    }
}

fn device(row: &Row<'_>) -> Device {
    row.device().map(unpack_device).unwrap_or_default()
}

/// Splits a device number as Linux's `makedev` packs it.
fn unpack_device(number: u64) -> Device {
    let low = |shift: u32, mask: u64| ((number >> shift) & mask) as u32;
    Device { major: low(8, 0xfff) | low(32, 0xffff_f000), minor: low(0, 0xff) | low(12, 0xffff_ff00) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_those_of_linux() {
        for (number, major, minor) in [
            (0, 0, 0),
            (0x501, 5, 1),
            (286_327_664, 259, 70_000),
            (0x0000_1000_0012_34ab, 0x1234, 0x1ab),
            (u64::MAX, u32::MAX, u32::MAX),
        ] {
            let device = unpack_device(number);
            assert_eq!((device.major, device.minor), (major, minor), "{number:#x}");
        }
    }
}
