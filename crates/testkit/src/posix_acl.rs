//! Access control lists in the form of Linux's attributes (acl(5)).

/// Tag of the owner's entry.
pub const OWNER: u16 = 0x01;
/// Tag of an entry for a user.
pub const USER: u16 = 0x02;
/// Tag of the entry of the file's group.
pub const GROUP: u16 = 0x04;
/// Tag of the entry that limits those of users and groups.
pub const MASK: u16 = 0x10;
/// Tag of the entry for all other users.
pub const OTHERS: u16 = 0x20;
/// Id of an entry without a user or group.
pub const NO_ID: u32 = u32::MAX;

/// Returns a list of entries, each with its tag, its permissions and its id.
pub fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, may, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&may.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}
