//! Makes and compares catalog entries.

use esker_format::bundle;
use esker_format::catalog::{Flags, XattrList};
use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::time::UnixTime;
use esker_format::write::catalog::Entry;

use crate::settings::Settings;

/// Bits of an entry's flags that describe the stored form of its content.
pub const STORAGE_BITS: u64 = 7 << 8 | 7 << 11;

/// Name of the file that makes a directory the root of a nested catalog.
pub const MARKER: &[u8] = b".cvmfscatalog";
/// Name of the file that distinguishes automatic markers from those of users.
pub const AUTO_MARKER: &[u8] = b".cvmfsautocatalog";

/// Returns the entry of a directory that the source does not have, owned by the publisher.
pub fn new_directory(name: &[u8], now: UnixTime, settings: &Settings) -> Entry {
    Entry {
        name: name.to_vec(),
        size: 4096,
        mtime: now.0,
        mtime_ns: settings.nanoseconds.then_some(0),
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        link_count: 2,
        ..Entry::of_mode(0o040_755)
    }
}

/// Returns a marker file for a directory, hidden from listings. `empty` is where the content of empty files is stored.
pub fn marker(name: &[u8], mode: u32, directory: &Entry, empty: (ContentHash, Flags)) -> Entry {
    let (hash, storage) = empty;
    Entry {
        name: name.to_vec(),
        mode,
        size: 0,
        flags: Flags(storage.0 | Flags::HIDDEN),
        hash: Some(hash),
        xattrs: None,
        link_count: 1,
        hardlink_group: 0,
        chunks: Vec::new(),
        symlink: Vec::new(),
        ..directory.clone()
    }
}

/// Copies the reference to the stored content of a file.
pub fn take_content(entry: &mut Entry, from: &Entry) {
    entry.hash = from.hash;
    entry.chunks.clone_from(&from.chunks);
    let kept = STORAGE_BITS | Flags::EXTERNAL | Flags::DIRECT_IO;
    entry.flags = Flags(entry.flags.0 & !kept | from.flags.0 & kept);
}

/// Returns true if two entries are directories with the same mode, owner and attributes; their times may differ.
pub fn is_same_directory(a: &Entry, b: &Entry) -> bool {
    let (mtime, mtime_ns) = (b.mtime, b.mtime_ns);
    a.is_directory() && b.is_directory() && is_same(&Entry { mtime, mtime_ns, ..a.clone() }, b)
}

/// Returns true if two entries of the same path have the same attributes and content.
pub fn is_same(old: &Entry, new: &Entry) -> bool {
    shows_same(old, new) && is_same_content(old, new)
}

fn shows_same(old: &Entry, new: &Entry) -> bool {
    let about = |entry: &Entry| (entry.mode, entry.uid, entry.gid, entry.mtime, entry.mtime_ns);
    // The size of a directory differs between file systems and is not compared.
    let length = |entry: &Entry| {
        if entry.is_directory() { (0, 0, 0) } else { (entry.size, entry.hardlink_group, entry.link_count) }
    };
    about(old) == about(new)
        && length(old) == length(new)
        && old.symlink == new.symlink
        && XattrList::shows_same(old.xattrs.as_deref(), new.xattrs.as_deref())
        && old.flags.has(Flags::BUNDLE_TRIGGER) == new.flags.has(Flags::BUNDLE_TRIGGER)
}

/// Carries over what a published entry has and no source can show: a list of extended attributes that can't be decoded,
/// the form of one that is still the same, and unknown flags.
///
/// Unknown flags of a file may be about its content. A new content leaves them behind.
pub fn carry_unknown(before: &Entry, new: &mut Entry) {
    if before.kind() != new.kind() {
        return;
    }
    if XattrList::shows_same(before.xattrs.as_deref(), new.xattrs.as_deref()) {
        new.xattrs.clone_from(&before.xattrs);
    }
    if is_same_content(before, new) {
        new.flags.0 |= before.flags.0 & !Flags::KNOWN;
    }
}

/// Returns true if two entries have the same content, stored in the same form.
pub fn is_same_content(old: &Entry, new: &Entry) -> bool {
    let stored = |entry: &Entry| entry.flags.0 & (STORAGE_BITS | Flags::EXTERNAL | Flags::DIRECT_IO);
    !new.is_file() || old.hash == new.hash && old.chunks == new.chunks && stored(old) == stored(new)
}

/// Returns true if an entry is a bundle specification made from a profile.
pub fn is_profile_bundle(entry: &Entry) -> bool {
    entry.is_file() && entry.flags.has(Flags::HIDDEN) && bundle::trigger_of(&entry.name).is_some()
}

/// Returns the objects of an entry that are stored in the repository.
pub fn objects_of(entry: &Entry) -> impl Iterator<Item = ObjectName> {
    let stored = entry.is_file() && !entry.flags.has(Flags::EXTERNAL);
    let whole = entry.hash.map(|hash| ObjectName::new(hash, ObjectKind::File));
    let chunks = entry.chunks.iter().map(|chunk| ObjectName::new(chunk.hash, ObjectKind::Chunk));
    whole.into_iter().chain(chunks).filter(move |_| stored)
}
