//! Converts entries of the source into catalog entries.

use esker_format::catalog::EntryKind;
use esker_format::write::catalog::Entry;
use esker_repository::{Settings, SpecialFiles};

use crate::filter;
use crate::source::{Facts, SourceEntry};

/// Returns the catalog entry of a source entry; a file has no content hash yet.
pub(crate) fn of_source(source: &SourceEntry, xattrs: Option<Vec<u8>>, settings: &Settings) -> Entry {
    let facts = &source.facts;
    Entry { name: source.name.clone(), symlink: source.target.clone(), xattrs, ..of_facts(facts, settings) }
}

/// Returns an entry with the metadata of a file, without name, extended attributes and link target.
pub(crate) fn of_facts(facts: &Facts, settings: &Settings) -> Entry {
    let size = match EntryKind::from_mode(facts.mode) {
        Some(EntryKind::File | EntryKind::Directory) => facts.size,
        _ if facts.is_device() => facts.special,
        _ => 0,
    };
    Entry {
        size,
        mtime: facts.mtime.seconds,
        mtime_ns: settings.nanoseconds.then_some(facts.mtime.nanoseconds),
        uid: facts.uid,
        gid: facts.gid,
        // Directories are counted when their catalog is written.
        link_count: if facts.is_directory() { 2 } else { 1 },
        ..Entry::of_mode(facts.mode)
    }
}

/// Returns true for files that publishers read from the repository. Their content is always stored.
pub(crate) fn is_control(name: &[u8]) -> bool {
    name.starts_with(b".cvmfs") || name == filter::NAME.as_bytes()
}

/// Returns true if the settings leave out a source entry of this mode: devices, sockets and pipes.
pub(crate) fn is_left_out(mode: u32, settings: &Settings) -> bool {
    let is_special = !matches!(
        EntryKind::from_mode(mode),
        Some(EntryKind::File | EntryKind::Directory | EntryKind::Symlink)
    );
    is_special && settings.special_files == SpecialFiles::Skip
}
