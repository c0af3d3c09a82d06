//! Merges layers into one tree.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::sync::Arc;

use esker_archive::{Data, Entry as Member, Kind as MemberKind, PATH_MAX};

use crate::OciError;
use crate::image::Limits;

/// Prefix of a whiteout's name, which marks a removed entry.
const WHITEOUT_PREFIX: &[u8] = b".wh.";
/// Name of an opaque whiteout, which hides the directory's entries in lower layers.
const OPAQUE_WHITEOUT: &[u8] = b".wh..wh..opq";
/// Maximum number of symlinks that one path follows, as in Linux.
const LINKS: usize = 40;

/// Type of an entry.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file, whose content is in an unpacked layer.
    File {
        /// The unpacked layer that contains it.
        layer: Arc<File>,
        /// Length of the file, and positions of its content in the layer.
        data: Data,
    },
    /// A symbolic link with its target.
    Symlink(Vec<u8>),
    /// A character device, by major and minor number.
    CharDevice(u32, u32),
    /// A block device.
    BlockDevice(u32, u32),
    /// A named pipe.
    Fifo,
}

/// An entry of the merged tree; several paths may share one (hard links).
#[derive(Clone, Debug)]
pub struct Entry {
    /// Type of the entry.
    pub kind: Kind,
    /// Permission bits with setuid, setgid and sticky.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time in seconds since the epoch.
    pub mtime: i64,
    /// Extended attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Entry {
    fn is_directory(&self) -> bool {
        matches!(self.kind, Kind::Directory)
    }

    fn weight(&self, path: &[u8]) -> u64 {
        let target = if let Kind::Symlink(target) = &self.kind { target } else { &Vec::new() };
        weight(path, target, &self.xattrs)
    }
}

/// The merged tree by path, without leading slash; the root is not in it.
#[derive(Debug, Default)]
pub struct Merged {
    entries: BTreeMap<Vec<u8>, Arc<Entry>>,
    /// The root directory, if a layer describes it.
    root: Option<Entry>,
    /// Number of entries of unknown type.
    unknown_types: u64,
    /// Bytes of names, link targets and attributes.
    bytes: u64,
}

/// A layer to be merged. Its whiteouts are applied first, wherever they are in the archive.
#[derive(Default)]
pub(crate) struct Layer {
    gone: Vec<Vec<u8>>,
    opaque: Vec<Vec<u8>>,
    members: Vec<Member>,
    bytes: u64,
}

impl Layer {
    /// Adds a member of the layer.
    pub(crate) fn add(&mut self, member: Member) -> Result<(), OciError> {
        let target: &[u8] = match &member.kind {
            MemberKind::Hardlink(target) | MemberKind::Symlink(target) => target,
            _ => b"",
        };
        self.bytes = self.bytes.saturating_add(weight(&member.path, target, &member.xattrs));
        let (folder, name) = split(&member.path);
        if name == OPAQUE_WHITEOUT {
            self.opaque.push(folder.to_vec());
        } else if name.starts_with(b".wh..wh.") {
            // Metadata of aufs, an obsolete file system.
        } else if let Some(name) = name.strip_prefix(WHITEOUT_PREFIX) {
            if matches!(name, b"" | b"." | b"..") {
                let reason = "it is a whiteout without the name of an entry";
                return Err(OciError::refused(shown(&member.path), reason));
            }
            self.gone.push(joined(folder, name));
        } else {
            self.members.push(member);
        }
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.gone.len() + self.opaque.len() + self.members.len()
    }

    /// Returns true if the layer is within the limits.
    pub(crate) fn is_within(&self, limits: &Limits) -> bool {
        self.len() <= limits.entries && self.bytes <= limits.names
    }
}

/// Returns the memory that a path with its metadata takes, in bytes.
fn weight(path: &[u8], target: &[u8], xattrs: &[(Vec<u8>, Vec<u8>)]) -> u64 {
    let xattrs = xattrs.iter().map(|(name, value)| name.len() + value.len());
    (path.len() + target.len()) as u64 + xattrs.sum::<usize>() as u64
}

fn shown(path: &[u8]) -> String {
    format!("/{}", String::from_utf8_lossy(path))
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (path.get(..at).unwrap_or_default(), path.get(at + 1..).unwrap_or_default()),
        None => (b"", path),
    }
}

fn joined(folder: &[u8], name: &[u8]) -> Vec<u8> {
    if folder.is_empty() { name.to_vec() } else { [folder, name].join(&b'/') }
}

impl Merged {
    /// Returns all entries in the order of their paths: a directory precedes its entries.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &Arc<Entry>)> {
        self.entries.iter().map(|(path, entry)| (path.as_slice(), entry))
    }

    /// Returns the root directory, if a layer describes it.
    pub fn root(&self) -> Option<&Entry> {
        self.root.as_ref()
    }

    /// Returns the number of entries of unknown type, which are regular files.
    pub fn unknown_types(&self) -> u64 {
        self.unknown_types
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if the tree has no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Merges a layer, whose contents are in `file`, on top; fails if the tree then exceeds `limits`.
    pub(crate) fn put(&mut self, layer: Layer, file: &Arc<File>, limits: &Limits) -> Result<(), OciError> {
        self.remove_replaced(&layer)?;
        for folder in &layer.opaque {
            let folder = self.resolved(folder)?;
            self.clear(&folder);
        }
        for path in &layer.gone {
            let path = self.resolved_parent(path)?;
            self.clear(&path);
            self.remove(&path);
        }
        let mut own = HashSet::new();
        for member in layer.members {
            let path = member.path.clone();
            self.place_member(member, file, &mut own)?;
            if self.entries.len() > limits.entries || self.bytes > limits.names {
                return Err(OciError::refused(shown(&path), "with it the image has too many entries"));
            }
        }
        Ok(())
    }

    /// Removes entries that directories of this layer replace. A symlink that stayed would redirect the
    /// layer's whiteouts in that directory.
    fn remove_replaced(&mut self, layer: &Layer) -> Result<(), OciError> {
        let mut folders: Vec<&[u8]> =
            layer.members.iter().filter(|it| it.kind == MemberKind::Directory).map(|it| &*it.path).collect();
        folders.sort_unstable_by_key(|path| path.len());
        for folder in folders {
            let path = self.resolved_parent(folder)?;
            if self.entries.get(&path).is_some_and(|entry| !entry.is_directory()) {
                self.remove(&path);
            }
        }
        Ok(())
    }

    fn insert(&mut self, path: Vec<u8>, entry: Arc<Entry>) {
        self.remove(&path);
        self.bytes = self.bytes.saturating_add(entry.weight(&path));
        self.entries.insert(path, entry);
    }

    fn remove(&mut self, path: &[u8]) {
        if let Some(entry) = self.entries.remove(path) {
            self.bytes = self.bytes.saturating_sub(entry.weight(path));
        }
    }

    /// Puts a member at its path. `own` has the paths that this layer has already added.
    fn place_member(
        &mut self,
        member: Member,
        file: &Arc<File>,
        own: &mut HashSet<Vec<u8>>,
    ) -> Result<(), OciError> {
        self.unknown_types += u64::from(member.unknown_type.is_some());
        let refused = |reason: &str| OciError::refused(shown(&member.path), reason);
        let path = self.resolved_parent(&member.path)?;
        let kind = match member.kind {
            MemberKind::File(data) => Kind::File { layer: file.clone(), data },
            MemberKind::Hardlink(target) => {
                let target = self.resolved_parent(&target)?;
                let same = self.entries.get(&target).filter(|entry| !entry.is_directory()).cloned();
                let same = same.ok_or_else(|| refused("it is a hard link to a missing file"))?;
                return self.replace(path, same, own);
            }
            MemberKind::Symlink(target) => Kind::Symlink(target),
            MemberKind::CharDevice(device) => Kind::CharDevice(device.major, device.minor),
            MemberKind::BlockDevice(device) => Kind::BlockDevice(device.major, device.minor),
            MemberKind::Directory => Kind::Directory,
            MemberKind::Fifo => Kind::Fifo,
        };
        let Member { mode, uid, gid, xattrs, .. } = member;
        let entry = Entry { kind, mode, uid, gid, mtime: member.mtime.seconds, xattrs };
        if path.is_empty() {
            self.root = Some(entry);
            return Ok(());
        }
        self.replace(path, Arc::new(entry), own)
    }

    /// Puts an entry at a path; a directory that replaces a directory keeps its entries.
    ///
    /// A directory may replace a file of a lower layer on the path, as with overlayfs and one folder per
    /// layer, but not a file of the same layer.
    fn replace(
        &mut self,
        path: Vec<u8>,
        entry: Arc<Entry>,
        own: &mut HashSet<Vec<u8>>,
    ) -> Result<(), OciError> {
        let mut folder = split(&path).0;
        let mut missing = Vec::new();
        while !folder.is_empty() {
            match self.entries.get(folder) {
                Some(there) if there.is_directory() => break,
                Some(_) if own.contains(folder) => {
                    return Err(OciError::refused(shown(&path), "its parent is not a directory"));
                }
                _ => missing.push(folder.to_vec()),
            }
            folder = split(folder).0;
        }
        for folder in missing {
            let usual =
                Entry { kind: Kind::Directory, mode: 0o755, uid: 0, gid: 0, mtime: 0, xattrs: Vec::new() };
            self.insert(folder, Arc::new(usual));
        }
        if entry.is_directory() {
            own.remove(&path);
        } else {
            self.clear(&path);
            own.insert(path.clone());
        }
        self.insert(path, entry);
        Ok(())
    }

    /// Removes all entries below a path.
    fn clear(&mut self, folder: &[u8]) {
        let start = if folder.is_empty() { Vec::new() } else { [folder, b"/"].concat() };
        let below: Vec<Vec<u8>> = self
            .entries
            .range(start.clone()..)
            .map(|(path, _)| path)
            .take_while(|path| path.starts_with(&start))
            .cloned()
            .collect();
        for path in below {
            self.remove(&path);
        }
    }

    /// Returns the path with all symlinks resolved except its last name.
    fn resolved_parent(&self, path: &[u8]) -> Result<Vec<u8>, OciError> {
        let (folder, name) = split(path);
        let found = joined(&self.resolved(folder)?, name);
        if found.len() > PATH_MAX {
            return Err(OciError::refused(shown(path), "its symlinks resolve to a path that is too long"));
        }
        Ok(found)
    }

    /// Returns the path with all symlinks resolved within the tree: absolute targets start at its root, and
    /// `..` stops there.
    fn resolved(&self, path: &[u8]) -> Result<Vec<u8>, OciError> {
        let mut found: Vec<Vec<u8>> = Vec::new();
        let mut left: Vec<Vec<u8>> = parts(path);
        let mut links = 0;
        while let Some(name) = left.pop() {
            if name == b".." {
                found.pop();
                continue;
            }
            found.push(name);
            let here = found.join(&b'/');
            let Some(Kind::Symlink(target)) = self.entries.get(&here).map(|entry| &entry.kind) else {
                continue;
            };
            links += 1;
            if links > LINKS || target.len() > PATH_MAX {
                return Err(OciError::refused(shown(path), "it follows too many symlinks"));
            }
            found.pop();
            if target.first() == Some(&b'/') {
                found.clear();
            }
            left.extend(parts(target));
        }
        Ok(found.join(&b'/'))
    }
}

/// Returns the names of a path, the last one first.
fn parts(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    let mut names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
    names.reverse();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(kind: u8, path: &str, link: &str) -> Member {
        let kind = match kind {
            b'1' => MemberKind::Hardlink(link.into()),
            b'2' => MemberKind::Symlink(link.into()),
            b'5' => MemberKind::Directory,
            _ => MemberKind::File(Data::default()),
        };
        Member {
            name: path.into(),
            path: esker_archive::normalised(path.as_bytes()).expect("a path"),
            kind,
            mode: 0o644,
            uid: 0,
            gid: 0,
            mtime: esker_archive::Time::default(),
            xattrs: Vec::new(),
            unknown_type: None,
            offset: 0,
        }
    }

    fn put(merged: &mut Merged, members: &[(u8, &str, &str)]) -> Result<(), OciError> {
        let mut layer = Layer::default();
        for (kind, path, link) in members {
            layer.add(member(*kind, path, link))?;
        }
        merged.put(layer, &Arc::new(tempfile::tempfile().expect("a file")), &Limits::default())
    }

    fn paths(merged: &Merged) -> Vec<String> {
        merged.iter().map(|(path, _)| String::from_utf8_lossy(path).into_owned()).collect()
    }

    #[test]
    fn upper_layers_replace_and_remove_entries() {
        let mut merged = Merged::default();
        let lower =
            [(b'5', "./a/", ""), (b'0', "a/x", ""), (b'0', "a/y", ""), (b'0', "b/c/d", ""), (b'0', "e", "")];
        put(&mut merged, &lower).expect("a layer");
        assert_eq!(paths(&merged), ["a", "a/x", "a/y", "b", "b/c", "b/c/d", "e"]);
        // An entry that a layer adds stays, although the same layer removes the lower one; order doesn't
        // matter.
        let upper =
            [(b'0', "b/new", ""), (b'0', "b/.wh..wh..opq", ""), (b'0', "a/.wh.x", ""), (b'5', "e", "")];
        put(&mut merged, &upper).expect("a layer");
        assert_eq!(paths(&merged), ["a", "a/y", "b", "b/new", "e"]);
        put(&mut merged, &[(b'0', "a", "")]).expect("a file in place of a folder");
        assert_eq!(paths(&merged), ["a", "b", "b/new", "e"]);
        put(&mut merged, &[(b'0', ".wh.b", ""), (b'0', ".wh.none", "")]).expect("a layer");
        assert_eq!(paths(&merged), ["a", "e"]);
    }

    #[test]
    fn whiteouts_do_not_follow_a_replaced_symlink() {
        let mut merged = Merged::default();
        put(&mut merged, &[(b'0', "t/x", ""), (b'2', "a", "t"), (b'2', "b", "t")]).expect("a layer");
        let upper = [
            (b'0', "a/.wh..wh..opq", ""),
            (b'5', "a", ""),
            (b'0', "a/new", ""),
            (b'0', "b/deep/.wh.x", ""),
            (b'5', "b/deep", ""),
            (b'5', "b", ""),
        ];
        put(&mut merged, &upper).expect("a layer");
        assert_eq!(paths(&merged), ["a", "a/new", "b", "b/deep", "t", "t/x"]);
    }

    #[test]
    fn implied_directories_and_their_names_count_towards_the_limits() {
        let deep = format!("{}f", "d/".repeat(1000));
        let put = |limits: &Limits, path: &str, xattr: usize| {
            let mut layer = Layer::default();
            let xattrs = vec![(b"user.x".to_vec(), vec![0; xattr])];
            layer.add(Member { xattrs, ..member(b'0', path, "") }).expect("a member");
            let is_within = layer.is_within(limits);
            let file = Arc::new(tempfile::tempfile().expect("a file"));
            (is_within, Merged::default().put(layer, &file, limits).is_ok())
        };
        let limits = Limits { bytes: 0, entries: 10, names: 10_000 };
        assert_eq!(put(&limits, "a", 100), (true, true));
        assert_eq!(put(&limits, &deep, 100), (true, false), "1001 entries");
        assert_eq!(
            put(&Limits { entries: 2000, ..limits }, &deep, 100),
            (true, false),
            "a megabyte of names"
        );
        assert_eq!(put(&Limits { entries: 2000, names: 2 << 20, ..limits }, &deep, 100), (true, true));
        assert!(!put(&limits, "a", 20_000).0);
    }

    #[test]
    fn removed_entries_no_longer_count_towards_the_limits() {
        let mut merged = Merged::default();
        put(&mut merged, &[(b'0', "a/b/c", ""), (b'2', "l", "a/b"), (b'1', "again", "a/b/c")])
            .expect("a layer");
        assert_eq!(merged.bytes, 1 + 3 + 5 + (1 + 3) + 5);
        put(&mut merged, &[(b'0', ".wh.a", ""), (b'0', "l", "")]).expect("a layer");
        assert_eq!((merged.bytes, paths(&merged)), (6, vec!["again".to_owned(), "l".to_owned()]));
    }

    #[test]
    fn symlinks_are_resolved_only_within_the_tree() {
        let mut merged = Merged::default();
        let usr = [
            (b'5', "usr/lib", ""),
            (b'2', "lib", "usr/lib"),
            (b'2', "up", "../../../../../etc"),
            (b'2', "abs", "/usr"),
        ];
        put(&mut merged, &usr).expect("a layer");
        put(&mut merged, &[(b'0', "lib/x", ""), (b'0', "up/passwd", ""), (b'0', "abs/lib/y", "")])
            .expect("a layer");
        assert_eq!(
            paths(&merged),
            ["abs", "etc", "etc/passwd", "lib", "up", "usr", "usr/lib", "usr/lib/x", "usr/lib/y"]
        );
        put(&mut merged, &[(b'0', "lib/.wh.x", "")]).expect("a layer");
        assert!(!paths(&merged).contains(&"usr/lib/x".to_owned()));
        put(&mut merged, &[(b'2', "l", "l")]).expect("a loop by itself");
        put(&mut merged, &[(b'0', "l/x", "")]).expect_err("through a loop");
    }

    #[test]
    fn hard_links_share_an_entry() {
        let mut merged = Merged::default();
        put(&mut merged, &[(b'0', "a", ""), (b'1', "b", "a")]).expect("a layer");
        put(&mut merged, &[(b'0', ".wh.a", "")]).expect("a layer");
        assert_eq!(paths(&merged), ["b"]);
        put(&mut merged, &[(b'1', "c", "b")]).expect("a layer");
        let entries: Vec<_> = merged.iter().map(|(_, entry)| entry).collect();
        assert!(Arc::ptr_eq(entries[0], entries[1]));
    }

    #[test]
    fn hostile_layers_are_rejected() {
        for (kind, path, link) in [
            (b'1', "a", "none"),
            (b'0', ".wh.", ""),
            (b'0', "a/.wh.", ""),
            (b'0', "a/.wh..", ""),
            (b'0', "a/.wh...", ""),
        ] {
            let mut merged = Merged::default();
            put(&mut merged, &[(b'0', "lower", "")]).expect("a layer");
            put(&mut merged, &[(kind, path, link)]).expect_err(path);
        }
        let mut merged = Merged::default();
        put(&mut merged, &[(b'0', "/etc/passwd", "")]).expect("an absolute path is one of the image");
        assert_eq!(paths(&merged), ["etc", "etc/passwd"]);
    }

    #[test]
    fn a_file_is_replaced_by_a_directory_of_an_upper_layer() {
        let mut merged = Merged::default();
        put(&mut merged, &[(b'0', "etc/passwd", ""), (b'0', "f", "")]).expect("a layer");
        put(&mut merged, &[(b'0', "etc/passwd/deep/x", "")]).expect("below a file of a lower layer");
        assert_eq!(paths(&merged), ["etc", "etc/passwd", "etc/passwd/deep", "etc/passwd/deep/x", "f"]);
        let error =
            put(&mut merged, &[(b'0', "f", ""), (b'0', "f/x", "")]).expect_err("a file of the same layer");
        assert!(error.to_string().contains("/f/x: its parent is not a directory"), "{error}");
        put(&mut merged, &[(b'0', "f", ""), (b'5', "f", ""), (b'0', "f/x", "")])
            .expect("a directory came later");
    }

    #[test]
    fn the_root_has_the_attributes_of_the_last_layer() {
        let mut merged = Merged::default();
        put(&mut merged, &[(b'0', "a", "")]).expect("a layer");
        assert!(merged.root().is_none());
        let mut layer = Layer::default();
        layer.add(Member { mode: 0o700, uid: 5, ..member(b'5', "./", "") }).expect("the root");
        merged
            .put(layer, &Arc::new(tempfile::tempfile().expect("a file")), &Limits::default())
            .expect("a layer");
        put(&mut merged, &[(b'0', "b", "")]).expect("a layer");
        let root = merged.root().expect("a root");
        assert_eq!((root.mode, root.uid), (0o700, 5));
        assert_eq!(paths(&merged), ["a", "b"]);
    }
}
