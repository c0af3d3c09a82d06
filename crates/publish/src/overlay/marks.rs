//! Marks that overlayfs leaves on the entries of an upper folder.
//!
//! They are extended attributes in `trusted.overlay.`, or in `user.overlay.` if the overlay was mounted with `userxattr`. A
//! name with the prefix twice is an attribute of the entry itself that starts with the prefix once: an overlay in an overlay
//! is kept that way.

use esker_archive::folder::Xattr;
use esker_format::copied_xattr::PUBLISHED_PATH;

/// Prefixes of the marks. An overlay uses one of them.
const PREFIXES: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];

/// The marks of one entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks {
    /// Nothing of the lower directory shows.
    pub(super) opaque: bool,
    /// The entry hides the lower one of its name. Counts only for empty files.
    pub(super) whiteout: bool,
    /// The lower directory has another name: the kernel renamed it and copied nothing.
    pub(super) redirect: bool,
    /// The content is in the lower layer, and only the attributes are here.
    pub(super) metacopy: bool,
}

/// Removes the published path, which the lower layer recorded, from the entry's attributes.
pub(super) fn take_published_path(own: &mut Vec<Xattr>) -> Option<Vec<u8>> {
    let at = own.iter().position(|(name, _)| name == PUBLISHED_PATH)?;
    Some(own.swap_remove(at).1)
}

/// Splits the extended attributes of an upper entry into marks and its own attributes.
pub(super) fn split(pairs: Vec<Xattr>) -> (Marks, Vec<Xattr>) {
    let mut marks = Marks::default();
    let mut own = Vec::with_capacity(pairs.len());
    for (name, value) in pairs {
        let Some((prefix, mark)) =
            PREFIXES.iter().find_map(|prefix| Some((*prefix, name.strip_prefix(*prefix)?)))
        else {
            own.push((name, value));
            continue;
        };
        match mark {
            // `x` says that whiteouts in the directory are attributes, and hides nothing.
            b"opaque" => marks.opaque |= value == b"y",
            b"whiteout" => marks.whiteout = true,
            b"redirect" => marks.redirect = true,
            b"metacopy" => marks.metacopy = true,
            _ => {
                if let Some(escaped) = mark.strip_prefix(b"overlay.") {
                    own.push(([prefix, escaped].concat(), value));
                }
            }
        }
    }
    (marks, own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str, value: &str) -> Xattr {
        (name.as_bytes().to_vec(), value.as_bytes().to_vec())
    }

    #[test]
    fn marks_of_overlayfs_are_taken_out_of_both_namespaces() {
        let given = vec![
            pair("user.overlay.opaque", "y"),
            pair("trusted.overlay.origin", "x"),
            pair("user.overlay.impure", "y"),
            pair("user.colour", "red"),
            pair("user.overlay.overlay.opaque", "y"),
        ];
        let (marks, own) = split(given);
        assert_eq!(marks, Marks { opaque: true, ..Marks::default() });
        assert_eq!(own, [pair("user.colour", "red"), pair("user.overlay.opaque", "y")]);
    }

    #[test]
    fn a_directory_with_whiteouts_as_attributes_is_not_opaque() {
        let (marks, _) =
            split(vec![pair("user.overlay.opaque", "x"), pair("trusted.overlay.redirect", "/a")]);
        assert_eq!(marks, Marks { redirect: true, ..Marks::default() });
        let (marks, _) = split(vec![pair("user.overlay.whiteout", ""), pair("user.overlay.metacopy", "")]);
        assert_eq!(marks, Marks { whiteout: true, metacopy: true, ..Marks::default() });
    }
}
