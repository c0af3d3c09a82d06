//! Attributes of published entries that the overlay did not copy, and that the entries of the upper folder keep.

use esker_format::catalog::{EntryKind, XattrList};
use esker_format::copied_xattr::OverlayOwner;
use esker_format::posix_acl;
use esker_format::write::catalog::Entry;

/// Attribute with the privileges of a program, which the kernel removes when the file is written to.
const CAPABILITIES: &[u8] = b"security.capability";

/// Adds the attributes of the published entry that an overlay can't copy, unless the upper entry has its own.
///
/// An access control list follows a changed mode as with `chmod`. Capabilities are for the content that they were given
/// to, so they are added only if `is_same_content`; returns true if they were left out for that reason.
pub(super) fn add(new: &mut Entry, published: &Entry, overlay: OverlayOwner, is_same_content: bool) -> bool {
    if new.kind() != published.kind() {
        return false;
    }
    let parse = |blob: &Option<Vec<u8>>| blob.as_deref().map(XattrList::parse).transpose();
    let (Ok(Some(before)), Ok(own)) = (parse(&published.xattrs), parse(&new.xattrs)) else { return false };
    let own = own.unwrap_or_default();
    let is_missing = |name: &[u8]| !overlay.copies(name) && own.get(name).is_none();
    let is_lost =
        |name: &[u8]| name == CAPABILITIES && new.kind() == Some(EntryKind::File) && !is_same_content;
    let carried =
        before.iter().filter(|(name, _)| is_missing(name) && !is_lost(name)).map(|(name, value)| {
            let value = match name == posix_acl::ACCESS && new.mode != published.mode {
                true => posix_acl::set_mode(value, new.mode),
                false => value.to_vec(),
            };
            (name.to_vec(), value)
        });
    let kept = own.iter().map(|(name, value)| (name.to_vec(), value.to_vec()));
    let all: XattrList = carried.chain(kept).collect();
    let was_lost = before.iter().any(|(name, _)| is_missing(name) && is_lost(name));
    // Where both together are too many, the upper entry's own go first.
    if let Some(blob) = all.to_blob() {
        new.xattrs = Some(blob);
    }
    was_lost
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(mode: u32, pairs: &[(&str, &[u8])]) -> Entry {
        let list: XattrList = pairs.iter().map(|(name, value)| (name.as_bytes(), *value)).collect();
        Entry { xattrs: list.to_blob(), ..Entry::of_mode(mode) }
    }

    fn names(entry: &Entry) -> Vec<String> {
        let list = XattrList::parse(entry.xattrs.as_deref().unwrap_or(b"\x01\0")).unwrap();
        list.iter().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect()
    }

    const PUBLISHED: [(&str, &[u8]); 5] = [
        ("security.capability", b"caps"),
        ("system.posix_acl_access", b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff"),
        ("trusted.kept", b"t"),
        ("user.gone", b"u"),
        ("user.overlay.opaque", b"y"),
    ];

    #[test]
    fn what_a_user_cannot_copy_is_kept_and_what_the_user_removed_is_gone() {
        let published = file(0o100_644, &PUBLISHED);
        let mut new = file(0o100_744, &[("user.new", b"n"), ("trusted.kept", b"own")]);
        assert!(!add(&mut new, &published, OverlayOwner::User, true));
        assert_eq!(
            names(&new),
            [
                "security.capability",
                "system.posix_acl_access",
                "trusted.kept",
                "user.new",
                "user.overlay.opaque"
            ]
        );
        let list = XattrList::parse(new.xattrs.as_deref().unwrap()).unwrap();
        assert_eq!(list.get(b"trusted.kept"), Some(&b"own"[..]));
        assert_eq!(list.get(posix_acl::ACCESS).unwrap()[6], 7, "the list follows the mode");
    }

    #[test]
    fn capabilities_go_with_the_content() {
        let published = file(0o100_755, &PUBLISHED);
        let mut new = file(0o100_755, &[]);
        assert!(add(&mut new, &published, OverlayOwner::User, false));
        assert!(!names(&new).contains(&"security.capability".to_owned()));
        assert!(names(&new).contains(&"trusted.kept".to_owned()));
    }

    #[test]
    fn the_overlay_of_root_copies_all_but_its_own_marks() {
        let published = file(0o100_755, &[("trusted.overlay.x", b"m"), ("trusted.gone", b"t")]);
        let mut new = file(0o100_755, &[]);
        add(&mut new, &published, OverlayOwner::Root, true);
        assert_eq!(names(&new), ["trusted.overlay.x"]);
    }
}
