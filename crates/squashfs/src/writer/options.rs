//! Options of an image and its build.

use super::Compression;

/// Options of an image and its build.
#[derive(Clone, Debug)]
pub struct Options {
    /// Codec and level of all blocks.
    pub compression: Compression,
    /// Length of a block in bytes: a power of two from 4 KiB to 1 MiB.
    pub block_size: u32,
    /// True if small files share fragment blocks.
    pub fragments: bool,
    /// True if the tails of large files go into fragment blocks too.
    pub tail_ends: bool,
    /// True if files with equal content share it.
    pub duplicates: bool,
    /// True to store extended attributes.
    pub xattrs: bool,
    /// True to write an export table, which NFS servers need to find inodes by number.
    pub exportable: bool,
    /// Creation time of the image [default: the latest modification time of its entries].
    pub image_time: Option<u32>,
    /// Modification time that replaces that of every entry.
    pub entry_time: Option<u32>,
    /// Latest modification time of an entry; later times become this one.
    pub entry_time_max: Option<u32>,
    /// Mapping of owners and groups.
    pub owners: Owners,
    /// Paths of files whose content is stored first, in this order.
    pub order: Vec<Vec<u8>>,
    /// Number of compression threads.
    pub threads: usize,
}

impl Options {
    /// Returns the defaults of mksquashfs, with `threads` threads.
    pub fn new(compression: Compression, threads: usize) -> Self {
        Self {
            compression,
            block_size: 128 << 10,
            fragments: true,
            tail_ends: false,
            duplicates: true,
            xattrs: true,
            exportable: true,
            image_time: None,
            entry_time: None,
            entry_time_max: None,
            owners: Owners::default(),
            order: Vec::new(),
            threads,
        }
    }
}

/// Mapping of owners and groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// Owner of all entries.
    pub uid: Option<u32>,
    /// Group of all entries.
    pub gid: Option<u32>,
    /// Ranges of owners to map, unless `uid` is set.
    pub uids: Vec<IdRange>,
    /// Ranges of groups to map, unless `gid` is set.
    pub gids: Vec<IdRange>,
}

/// Maps a range of ids that starts at `from` to a range that starts at `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// First id of the range.
    pub from: u32,
    /// Id that replaces the first one in the range.
    pub to: u32,
    /// Number of ids in the range.
    pub count: u32,
}

impl Owners {
    pub(super) fn uid(&self, uid: u32) -> u32 {
        self.uid.unwrap_or_else(|| mapped(&self.uids, uid))
    }

    pub(super) fn gid(&self, gid: u32) -> u32 {
        self.gid.unwrap_or_else(|| mapped(&self.gids, gid))
    }
}

fn mapped(ranges: &[IdRange], id: u32) -> u32 {
    let hit = |range: &IdRange| {
        let place = id.checked_sub(range.from).filter(|place| *place < range.count)?;
        range.to.checked_add(place)
    };
    ranges.iter().find_map(hit).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_mapped_by_the_first_range_that_contains_them() {
        let uids = vec![IdRange { from: 10, to: 100, count: 2 }, IdRange { from: 0, to: 1000, count: 20 }];
        let owners = Owners { uids, gid: Some(7), ..Owners::default() };
        assert_eq!([9, 10, 11, 12, 20].map(|uid| owners.uid(uid)), [1009, 100, 101, 1012, 20]);
        assert_eq!(owners.gid(3), 7);
        let end = Owners { uids: vec![IdRange { from: 0, to: u32::MAX, count: 5 }], ..Owners::default() };
        assert_eq!((end.uid(0), end.uid(1)), (u32::MAX, 1));
    }
}
