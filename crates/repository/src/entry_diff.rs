//! The differences between two entries of one path.

use esker_format::catalog::{Flags, XattrList};
use esker_format::write::catalog::Entry;
use serde::{Serialize, Serializer};

/// Attributes in which two entries of a path differ, as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes(u16);

/// Flags that change how clients treat an entry.
const SHOWN_FLAGS: u64 = Flags::EXTERNAL | Flags::HIDDEN | Flags::DIRECT_IO | Flags::BUNDLE_TRIGGER;

impl Attributes {
    /// Objects with the content of a file.
    pub const CONTENT: Self = Self(1);
    /// Size of a file, number of a device.
    pub const SIZE: Self = Self(1 << 1);
    /// Permissions.
    pub const MODE: Self = Self(1 << 2);
    /// User or group.
    pub const OWNER: Self = Self(1 << 3);
    /// Modification time.
    pub const TIME: Self = Self(1 << 4);
    /// Target of a symlink.
    pub const TARGET: Self = Self(1 << 5);
    /// Extended attributes.
    pub const XATTRS: Self = Self(1 << 6);
    /// Places where a file is cut.
    pub const CHUNKS: Self = Self(1 << 7);
    /// The nested catalog of a directory, or the bound revision that it shows.
    pub const NESTED: Self = Self(1 << 8);
    /// Hard links.
    pub const LINKS: Self = Self(1 << 9);
    /// Other flags: external data, hidden, direct I/O, bundle.
    pub const FLAGS: Self = Self(1 << 10);

    const NAMED: [(Self, &'static str); 11] = [
        (Self::CONTENT, "content"),
        (Self::SIZE, "size"),
        (Self::MODE, "mode"),
        (Self::OWNER, "owner"),
        (Self::TIME, "time"),
        (Self::TARGET, "target"),
        (Self::XATTRS, "xattrs"),
        (Self::CHUNKS, "chunks"),
        (Self::NESTED, "nested"),
        (Self::LINKS, "links"),
        (Self::FLAGS, "flags"),
    ];

    /// Compares two entries of one path and type.
    pub fn between(old: &Entry, new: &Entry) -> Self {
        let mut found = Self::default();
        let is_directory = new.is_directory();
        let nested = |entry: &Entry| entry.flags.0 & (Flags::NESTED_MOUNTPOINT | Flags::BIND_MOUNTPOINT);
        let groups = |entry: &Entry| (entry.hardlink_group, entry.link_count);
        let cuts = |entry: &Entry| -> Vec<(u64, u64)> {
            entry.chunks.iter().map(|chunk| (chunk.offset, chunk.size)).collect()
        };
        let hashes = |entry: &Entry| -> Vec<_> { entry.chunks.iter().map(|chunk| chunk.hash).collect() };
        found.add_if(Self::CONTENT, new.is_file() && (old.hash, hashes(old)) != (new.hash, hashes(new)));
        // The size of a directory differs between file systems; its links follow from the directories in it.
        found.add_if(Self::SIZE, !is_directory && old.size != new.size);
        found.add_if(Self::MODE, old.mode != new.mode);
        found.add_if(Self::OWNER, (old.uid, old.gid) != (new.uid, new.gid));
        found.add_if(Self::TIME, (old.mtime, old.mtime_ns) != (new.mtime, new.mtime_ns));
        found.add_if(Self::TARGET, old.symlink != new.symlink);
        let shows_same = XattrList::shows_same(old.xattrs.as_deref(), new.xattrs.as_deref());
        found.add_if(Self::XATTRS, !shows_same);
        found.add_if(Self::CHUNKS, cuts(old) != cuts(new));
        found.add_if(Self::NESTED, nested(old) != nested(new));
        found.add_if(Self::LINKS, !is_directory && groups(old) != groups(new));
        found.add_if(Self::FLAGS, old.flags.0 & SHOWN_FLAGS != new.flags.0 & SHOWN_FLAGS);
        found
    }

    pub(crate) fn add_if(&mut self, attribute: Self, differs: bool) {
        if differs {
            self.0 |= attribute.0;
        }
    }

    /// Returns the set without some of the attributes.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns true if an attribute is in the set.
    pub const fn has(self, attribute: Self) -> bool {
        self.0 & attribute.0 == attribute.0
    }

    /// Returns true if the entries are the same.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the names of the attributes.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMED.into_iter().filter(move |(attribute, _)| self.has(*attribute)).map(|(_, name)| name)
    }
}

impl Serialize for Attributes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.names())
    }
}
