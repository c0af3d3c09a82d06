//! Names of extended attributes that begin with `trusted.`.

/// Returns true if an attribute is in the namespace `trusted.`.
pub(crate) fn is_trusted(name: &[u8]) -> bool {
    name.starts_with(b"trusted.")
}

/// Returns true if an attribute is a mark of an overlay that root made.
pub(crate) fn is_of_overlay(name: &[u8]) -> bool {
    name.starts_with(b"trusted.overlay.")
}
