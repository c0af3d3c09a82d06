//! POSIX access control lists as extended attributes hold them.
//!
//! ```text
//! u32 2; for each entry: u16 tag, u16 permissions, u32 user or group      (little-endian)
//! ```
//!
//! Source: `include/uapi/linux/posix_acl_xattr.h` of Linux.

/// Attribute with the list of an entry.
pub const ACCESS: &[u8] = b"system.posix_acl_access";

/// Attribute of a directory with the list that new entries get.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const HEADER: [u8; 4] = 2_u32.to_le_bytes();
const ENTRY_LEN: usize = 8;
const OWNER: u16 = 0x01;
const GROUP: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

/// Changes a list as `chmod` does: the owner, others, and the mask (or the group, if there is no mask) get the
/// permissions of a mode. Bytes that are no list stay as they are.
pub fn set_mode(list: &[u8], mode: u32) -> Vec<u8> {
    let mut changed = list.to_vec();
    let entries = match changed.split_first_chunk_mut() {
        Some((&mut HEADER, entries)) if entries.len().is_multiple_of(ENTRY_LEN) => entries,
        _ => return list.to_vec(),
    };
    let tag_of = |entry: &[u8]| entry.first_chunk().map_or(0, |tag| u16::from_le_bytes(*tag));
    let class = if entries.chunks_exact(ENTRY_LEN).any(|entry| tag_of(entry) == MASK) { MASK } else { GROUP };
    for entry in entries.chunks_exact_mut(ENTRY_LEN) {
        let shift = match tag_of(entry) {
            OWNER => 6,
            OTHERS => 0,
            tag if tag == class => 3,
            _ => continue,
        };
        if let Some(permissions) = entry.get_mut(2) {
            *permissions = (mode >> shift & 7) as u8;
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use esker_testkit::posix_acl::list;

    use super::*;

    #[test]
    fn a_mode_changes_owner_mask_and_others() {
        let no_id = u32::MAX;
        let before = list(&[(1, 6, no_id), (2, 6, 4711), (4, 4, no_id), (0x10, 6, no_id), (0x20, 0, no_id)]);
        let after = list(&[(1, 7, no_id), (2, 6, 4711), (4, 4, no_id), (0x10, 1, no_id), (0x20, 2, no_id)]);
        assert_eq!(set_mode(&before, 0o100_712), after);
        let minimal = list(&[(1, 6, no_id), (4, 4, no_id), (0x20, 0, no_id)]);
        assert_eq!(set_mode(&minimal, 0o640), list(&[(1, 6, no_id), (4, 4, no_id), (0x20, 0, no_id)]));
        assert_eq!(set_mode(&minimal, 0o715), list(&[(1, 7, no_id), (4, 1, no_id), (0x20, 5, no_id)]));
        for other in [&b""[..], b"\x02\0\0\0\x01", b"\x03\0\0\0"] {
            assert_eq!(set_mode(other, 0o777), other);
        }
    }
}
