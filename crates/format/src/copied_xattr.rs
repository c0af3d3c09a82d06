//! Attributes of published entries that an overlay can't copy, and the attribute that replaces them.
//!
//! An overlay that an ordinary user mounts can set only attributes of the user namespace, and none has those with which
//! overlays mark entries. The lower layer of a transaction shows none of these. In their place an entry that has some shows
//! [`PUBLISHED_PATH`], which the overlay copies, as do `cp -a` and a rename. A publisher of the changes finds the
//! attributes at that path.

use serde::{Deserialize, Serialize};

/// Attribute whose value is the path at which an entry was published.
pub const PUBLISHED_PATH: &[u8] = b"user.esker.published";

const OF_USERS: &[u8] = b"user.";
const MARKS_OF_USERS: &[u8] = b"user.overlay.";
const MARKS_OF_ROOT: &[u8] = b"trusted.overlay.";

/// Owner of an overlay, which limits the attributes that it copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OverlayOwner {
    /// Root, with all privileges on the machine.
    Root,
    /// An ordinary user, with privileges in a namespace of its own.
    User,
}

impl OverlayOwner {
    /// Returns true if the overlay copies an attribute of this name.
    pub fn copies(self, name: &[u8]) -> bool {
        let is_possible = match self {
            Self::Root => !name.starts_with(MARKS_OF_ROOT),
            Self::User => name.starts_with(OF_USERS) && !name.starts_with(MARKS_OF_USERS),
        };
        is_possible && name != PUBLISHED_PATH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_copies_plain_user_attributes_only() {
        for (name, user, root) in [
            ("user.colour", true, true),
            ("user.overlay.opaque", false, true),
            ("trusted.overlay.opaque", false, false),
            ("trusted.x", false, true),
            ("security.capability", false, true),
            ("system.posix_acl_access", false, true),
            ("user.esker.published", false, false),
        ] {
            assert_eq!(OverlayOwner::User.copies(name.as_bytes()), user, "{name}");
            assert_eq!(OverlayOwner::Root.copies(name.as_bytes()), root, "{name}");
        }
    }
}
