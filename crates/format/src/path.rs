//! Operates on paths of entries: each name has a slash before it, and the root is the empty path.

/// Returns the path of an entry from that of its directory and its name.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(dir.len() + 1 + name.len());
    path.extend_from_slice(dir);
    path.push(b'/');
    path.extend_from_slice(name);
    path
}

/// Returns the parent and the name of a path; `None` for the root.
pub fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = path.iter().rposition(|byte| *byte == b'/')?;
    let (parent, name) = path.split_at_checked(at)?;
    Some((parent, name.get(1..)?))
}
