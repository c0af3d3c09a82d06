//! Single entries of a catalog, and groups of hard links.

use std::collections::BTreeMap;

use esker_format::catalog::{EntryKind, Flags, Row};

use super::finding::FindingKind;

/// Bits that say the type of an entry.
const TYPES: u64 = Flags::DIRECTORY | Flags::FILE | Flags::SYMLINK | Flags::SPECIAL;
/// Bits that only regular files have.
const OF_FILES: u64 = Flags::CHUNKED | Flags::EXTERNAL | Flags::DIRECT_IO;

/// Checks what an entry says of itself; `revision` is the one of the schema.
pub(super) fn check(row: &Row<'_>, revision: u32, fault: &mut impl FnMut(FindingKind, String)) {
    let flags = row.flags();
    let wanted = match row.kind() {
        EntryKind::Directory => Flags::DIRECTORY,
        EntryKind::File => Flags::FILE,
        EntryKind::Symlink => Flags::FILE | Flags::SYMLINK,
        _ => Flags::FILE | Flags::SPECIAL,
    };
    // The bit for special files had another meaning before revision 5.
    let seen = if revision < 5 { flags.0 & !Flags::SPECIAL } else { flags.0 };
    let wanted = if revision < 5 { wanted & !Flags::SPECIAL } else { wanted };
    if seen & TYPES != wanted {
        fault(FindingKind::Flags, format!("its flags are {:#x}, its mode is {:o}", flags.0, row.mode()));
    }
    if row.stored_hardlinks() & 0xffff_ffff == 0 {
        fault(FindingKind::LinkCountZero, "its link count is zero".to_owned());
    }
    match row.kind() {
        EntryKind::File => check_file(row, fault),
        kind => check_other(row, kind, fault),
    }
}

fn check_file(row: &Row<'_>, fault: &mut impl FnMut(FindingKind, String)) {
    let flags = row.flags();
    if !row.symlink().is_empty() {
        fault(FindingKind::SymlinkOfOther, "it is a file and has the target of a symlink".to_owned());
    }
    if flags.hash_algorithm().is_none() {
        fault(FindingKind::HashAlgorithm, format!("its flags {:#x} name no known hash algorithm", flags.0));
    }
    if flags.compression().is_none() {
        fault(FindingKind::Compression, format!("its flags {:#x} name no known compression", flags.0));
    }
    if !row.has_hash() && !flags.has(Flags::CHUNKED) {
        fault(FindingKind::FileHash, "it has neither a hash nor chunks".to_owned());
    }
}

fn check_other(row: &Row<'_>, kind: EntryKind, fault: &mut impl FnMut(FindingKind, String)) {
    let flags = row.flags();
    // A hash of a directory would be that of a micro catalog.
    let has_hash = row.has_hash() && kind != EntryKind::Directory;
    if has_hash || flags.0 & OF_FILES != 0 {
        let text = format!("it is no regular file, but has content: flags {:#x}", flags.0);
        fault(FindingKind::ContentOfOther, text);
    }
    let target = row.symlink().len() as u64;
    match kind {
        EntryKind::Symlink => {
            let size = row.stored_size();
            // Archives state no size for links.
            if target == 0 || ![0, target].contains(&size) {
                let text = format!("its size is {size}, its target has {target} bytes");
                fault(FindingKind::SymlinkSize, text);
            }
        }
        _ if target > 0 => {
            fault(FindingKind::SymlinkOfOther, "it is no symlink and has a target".to_owned());
        }
        EntryKind::Fifo | EntryKind::Socket if row.stored_size() != 0 => {
            fault(FindingKind::SpecialSize, format!("its size is {}", row.stored_size()));
        }
        _ => {}
    }
}

/// Checks the link counts of the entries of a directory that are no directories.
pub(super) fn check_groups(children: &[Row<'_>], mut fault: impl FnMut(&Row<'_>, FindingKind, String)) {
    let mut groups: BTreeMap<u32, Vec<&Row<'_>>> = BTreeMap::new();
    for child in children.iter().filter(|child| child.kind() != EntryKind::Directory) {
        match child.hardlink_group() {
            0 if child.link_count() > 1 => {
                let text = format!("it has {} links and belongs to no group", child.link_count());
                fault(child, FindingKind::HardlinkGroup, text);
            }
            0 => {}
            group => groups.entry(group).or_default().push(child),
        }
    }
    for members in groups.into_values() {
        let Some(first) = members.first() else { continue };
        if u64::from(first.link_count()) != members.len() as u64 {
            let text =
                format!("its link count is {}, its group has {} members", first.link_count(), members.len());
            fault(first, FindingKind::HardlinkGroup, text);
        }
        let about = |row: &Row<'_>| {
            let owner = (row.uid(), row.gid());
            (row.mode(), row.size(), row.mtime(), row.hash(), row.link_count(), owner)
        };
        for other in members.iter().filter(|other| about(other) != about(first)) {
            let text = "it differs from the other members of its group of hard links".to_owned();
            fault(other, FindingKind::HardlinkGroup, text);
        }
    }
}
