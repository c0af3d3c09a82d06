//! Paths of entries: names in front of each of which a slash stands; the path of the root is empty.

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
