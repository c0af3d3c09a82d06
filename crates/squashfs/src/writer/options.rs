//! What an image is to be like.

use super::Compression;

/// What an image is to be like, and how it is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// How blocks are compressed.
    pub compression: Compression,
    /// Length of a block: a power of two from 4 KiB to 1 MiB.
    pub block_size: u32,
    /// Whether small files share blocks.
    pub fragments: bool,
    /// Whether the ends of large files go into shared blocks too.
    pub tail_ends: bool,
    /// Whether files with equal content share it.
    pub duplicates: bool,
    /// Whether extended attributes are taken over.
    pub xattrs: bool,
    /// Whether inodes can be found by number, which servers of file handles need.
    pub exportable: bool,
    /// The time of the image [default: the latest of its entries].
    pub image_time: Option<u32>,
    /// The time that every entry gets.
    pub entry_time: Option<u32>,
    /// The latest time that an entry keeps; later ones become this.
    pub entry_time_max: Option<u32>,
    /// Who owns what.
    pub owners: Owners,
    /// Paths of files whose content comes first, in this order.
    pub order: Vec<Vec<u8>>,
    /// Number of threads that compress.
    pub threads: usize,
}

impl Options {
    /// The usual ones: what mksquashfs does, with as many threads as it is told.
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

/// Which owners entries get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// The owner of everything.
    pub uid: Option<u32>,
    /// The group of everything.
    pub gid: Option<u32>,
    /// Owners that become others, where not all have the same.
    pub uids: Vec<IdRange>,
    /// Groups that become others, where not all have the same.
    pub gids: Vec<IdRange>,
}

/// Numbers from `from` on that become those from `to` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// The first number as it is.
    pub from: u32,
    /// What it becomes.
    pub to: u32,
    /// How many there are.
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
    fn numbers_are_mapped_by_the_first_range_that_has_them() {
        let uids = vec![IdRange { from: 10, to: 100, count: 2 }, IdRange { from: 0, to: 1000, count: 20 }];
        let owners = Owners { uids, gid: Some(7), ..Owners::default() };
        assert_eq!([9, 10, 11, 12, 20].map(|uid| owners.uid(uid)), [1009, 100, 101, 1012, 20]);
        assert_eq!(owners.gid(3), 7);
        let end = Owners { uids: vec![IdRange { from: 0, to: u32::MAX, count: 5 }], ..Owners::default() };
        assert_eq!((end.uid(0), end.uid(1)), (u32::MAX, 1));
    }
}
