//! An in-memory tree with scripted replies: the reference model of a tree for tests of mounts.
//!
//! It also checks the mount: holds and releases must alternate, and only nodes that are held or still in the
//! tree may be used. [`MemoryTree::violations`] returns what it found.

mod script;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use script::{Action, Call, Script};

use esker_vfs::{
    Attr, Change, Cookie, Data, Device, DirEntry, ErrorKind, FIRST_COOKIE, Ino, Kind, LAST_COOKIE, Listing,
    Node, NodeKey, NodeWithAttr, PAYLOAD_LEN, Payload, Reply, Segment, StatFs, Time, Tree, TreeError,
    Watcher,
};

/// An entry of the tree.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Type of the entry.
    pub kind: Kind,
    /// Content of a file in pieces, or target of a link as one piece.
    pub content: Data,
    /// Permission bits.
    pub permissions: u16,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Modification time.
    pub mtime: Time,
    /// Device number.
    pub rdev: Device,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Entry {
    fn new(kind: Kind, permissions: u16, content: Data) -> Self {
        Self {
            kind,
            content,
            permissions,
            owner: (0, 0),
            mtime: Time { secs: 1_600_000_000, nanos: 123_456_789 },
            rdev: Device::default(),
            xattrs: BTreeMap::new(),
        }
    }

    /// Creates a directory.
    pub fn directory() -> Self {
        Self::new(Kind::Directory, 0o755, Data::default())
    }

    /// Creates a regular file.
    pub fn file(content: &[u8]) -> Self {
        let piece = Segment::Bytes { bytes: content.into(), start: 0, len: content.len() };
        Self::new(Kind::File, 0o644, Data(vec![piece]))
    }

    /// Creates a regular file with several pieces.
    pub fn pieces(pieces: Vec<Segment>) -> Self {
        Self::new(Kind::File, 0o644, Data(pieces))
    }

    /// Creates a symbolic link.
    pub fn symlink(target: &[u8]) -> Self {
        Self { kind: Kind::Symlink, permissions: 0o777, ..Self::file(target) }
    }

    /// Creates a fifo, socket or device.
    pub fn special(kind: Kind, rdev: Device) -> Self {
        Self { rdev, ..Self::new(kind, 0o600, Data::default()) }
    }

    /// Sets the permission bits.
    pub fn mode(mut self, permissions: u16) -> Self {
        self.permissions = permissions;
        self
    }

    /// Adds an extended attribute.
    pub fn xattr(mut self, name: &str, value: &[u8]) -> Self {
        self.xattrs.insert(name.into(), value.into());
        self
    }
}

/// An entry that has or had an identity.
#[derive(Debug)]
struct KnownNode {
    path: String,
    node: Node,
    entry: Entry,
}

#[derive(Default)]
struct State {
    /// Entry at each path of the current revision; the root is "".
    paths: HashMap<String, Arc<KnownNode>>,
    /// Names in each directory of the current revision.
    children: HashMap<String, BTreeMap<Box<[u8]>, String>>,
    /// Every node ever returned, by key.
    known: HashMap<NodeKey, Arc<KnownNode>>,
    listings: HashMap<String, Arc<[DirEntry]>>,
    held: HashSet<NodeKey>,
    violations: Vec<String>,
    failures: Vec<(String, ErrorKind, Option<u32>)>,
    watcher: Option<Arc<dyn Watcher>>,
    /// Replacement content of files whose content could not be read.
    replacements: HashMap<String, Data>,
    version: u64,
}

/// In-memory tree with scripted replies.
pub struct MemoryTree {
    state: Mutex<State>,
    script: Script,
}

impl Default for MemoryTree {
    fn default() -> Self {
        Self::new()
    }
}

fn hash(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Returns the path of `name` in `dir`.
fn child(dir: &str, name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    if dir.is_empty() { name.into_owned() } else { format!("{dir}/{name}") }
}

fn cookie(name: &[u8]) -> Cookie {
    let span = LAST_COOKIE.0 - FIRST_COOKIE.0;
    Cookie(FIRST_COOKIE.0 + hash(name) % span)
}

impl MemoryTree {
    /// Creates an empty tree.
    pub fn new() -> Self {
        let tree = Self { state: Mutex::default(), script: Script::default() };
        tree.put("", Entry::directory());
        tree
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A scripted panic may poison the lock; the state stays consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an entry at `path` (relative, without leading slash) and replaces an existing one.
    ///
    /// The parent directory must exist. Files and links become new nodes; directories keep their identity.
    pub fn put(&self, path: &str, entry: Entry) {
        let mut state = self.state();
        state.version += 1;
        let version = if entry.kind == Kind::Directory { 0 } else { state.version };
        state.insert(path, entry, version);
    }

    /// Sets the content of the file at `path` after the mount reports it as unreadable.
    pub fn set_replacement(&self, path: &str, content: Data) {
        self.state().replacements.insert(path.into(), content);
    }

    /// Changes attributes of the node at `path`, which keeps its identity.
    pub fn change_attributes(&self, path: &str, change: impl FnOnce(&mut Entry)) {
        let mut state = self.state();
        let old = Arc::clone(&state.paths[path]);
        let mut entry = old.entry.clone();
        change(&mut entry);
        let new = Arc::new(KnownNode { path: path.into(), node: old.node, entry });
        state.known.insert(old.node.key, Arc::clone(&new));
        state.paths.insert(path.into(), new);
        state.listings.remove(split(path).0);
    }

    /// Removes the entry at `path`.
    pub fn remove(&self, path: &str) {
        let mut state = self.state();
        let (dir, name) = split(path);
        state.paths.remove(path);
        state.listings.remove(dir);
        if let Some(names) = state.children.get_mut(dir) {
            names.remove(name.as_bytes());
        }
    }

    /// Returns the key of the node at `path`.
    pub fn key(&self, path: &str) -> NodeKey {
        self.state().paths[path].node.key
    }

    /// Returns the change of the entry at `path`.
    pub fn name_change(&self, path: &str) -> Change {
        let (dir, name) = split(path);
        Change::Name { dir: self.key(dir), name: name.as_bytes().into() }
    }

    /// Returns the change of the listing at `path`.
    pub fn listing_change(&self, path: &str) -> Change {
        Change::Listing { dir: self.key(path) }
    }

    /// Reports changes to the mount.
    pub fn notify(&self, changes: &[Change]) {
        let watcher = self.state().watcher.clone();
        if let Some(watcher) = watcher {
            watcher.changed(changes);
        }
    }

    /// Returns true if the mount holds the node at `path`.
    pub fn is_held(&self, path: &str) -> bool {
        let state = self.state();
        state.paths.get(path).is_some_and(|known| state.held.contains(&known.node.key))
    }

    /// Returns the number of nodes that the mount holds.
    pub fn held(&self) -> usize {
        self.state().held.len()
    }

    /// Returns the violations of the rules by the mount.
    pub fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    /// Returns the failures that were reported to programs: path, kind, process id.
    pub fn failures(&self) -> Vec<(String, ErrorKind, Option<u32>)> {
        self.state().failures.clone()
    }

    /// Returns the script of replies.
    pub fn script(&self) -> &Script {
        &self.script
    }

    fn known(&self, node: &Node) -> Result<Arc<KnownNode>, TreeError> {
        let mut state = self.state();
        let known = state.known.get(&node.key).cloned().ok_or(ErrorKind::Stale)?;
        if !state.held.contains(&node.key) {
            let text = format!("{:?} was used but is not held", known.path);
            state.violations.push(text);
        }
        if node.payload != known.node.payload {
            let text = format!("{:?} came back with another payload", known.path);
            state.violations.push(text);
        }
        Ok(known)
    }

    fn found(&self, dir: &str, name: &[u8]) -> Result<NodeWithAttr, TreeError> {
        let state = self.state();
        let path = if name == b".." { split(dir).0.to_owned() } else { child(dir, name) };
        let known = state.paths.get(&path).ok_or(ErrorKind::NotFound)?;
        Ok(NodeWithAttr { node: known.node, attr: state.attr(known) })
    }

    fn listing(&self, dir: &KnownNode, after: Cookie) -> Result<Listing, TreeError> {
        let mut state = self.state();
        let entries = state.listing_of(&dir.path).ok_or(ErrorKind::NotADirectory)?;
        let start = entries.partition_point(|e| e.cookie <= after);
        let parent = state.paths.get(split(&dir.path).0).map_or(dir.node.ino, |known| known.node.ino);
        Ok(Listing { entries, start, parent })
    }

    /// Runs `answer` now, or when the script allows it.
    fn scripted<T: Send + 'static>(
        self: &MemoryTree,
        call: Call,
        path: String,
        reply: Reply<T>,
        answer: impl FnOnce() -> Result<T, TreeError> + Send + 'static,
    ) {
        self.script.follow_progress(reply.requester());
        self.script.run(
            call,
            path,
            Box::new(move |forced| match forced {
                Some(kind) => reply.err(kind),
                None => reply.give(answer()),
            }),
        );
    }
}

impl State {
    fn insert(&mut self, path: &str, entry: Entry, version: u64) {
        let (dir, name) = split(path);
        assert!(path.is_empty() || self.children.contains_key(dir), "{dir:?} is a directory");
        let (high, low) = (hash((path, version)), hash((version, path, 1)));
        let mut key = [0; 16];
        key[..8].copy_from_slice(&high.to_le_bytes());
        key[8..].copy_from_slice(&low.to_le_bytes());
        let mut payload = [0; PAYLOAD_LEN];
        payload.chunks_exact_mut(16).for_each(|chunk| chunk.copy_from_slice(&key));
        let node = Node { key: NodeKey(key), ino: Ino(high), payload: Payload(payload), kind: entry.kind };
        let known = Arc::new(KnownNode { path: path.into(), node, entry });
        if known.entry.kind == Kind::Directory {
            self.children.entry(path.into()).or_default();
        }
        if !path.is_empty() {
            self.children.entry(dir.into()).or_default().insert(name.as_bytes().into(), path.into());
        }
        self.listings.remove(dir);
        self.known.insert(node.key, Arc::clone(&known));
        self.paths.insert(path.into(), known);
    }

    fn attr(&self, known: &KnownNode) -> Attr {
        let entry = &known.entry;
        let directories = self.children.get(&known.path).into_iter().flat_map(BTreeMap::values);
        let directories = directories.filter(|path| self.children.contains_key(*path)).count() as u32;
        let directory = entry.kind == Kind::Directory;
        Attr {
            ino: known.node.ino,
            size: if directory { 4096 } else { entry.content.len() as u64 },
            mtime: entry.mtime,
            permissions: entry.permissions,
            kind: entry.kind,
            nlink: if directory { 2 + directories } else { 1 },
            uid: entry.owner.0,
            gid: entry.owner.1,
            rdev: entry.rdev,
        }
    }

    fn listing_of(&mut self, dir: &str) -> Option<Arc<[DirEntry]>> {
        if let Some(entries) = self.listings.get(dir) {
            return Some(Arc::clone(entries));
        }
        let names = self.children.get(dir)?.iter();
        let mut entries: Vec<DirEntry> = names
            .filter_map(|(name, path)| {
                let known = self.paths.get(path)?;
                let (node, attr) = (known.node, self.attr(known));
                Some(DirEntry { name: name.clone(), cookie: cookie(name), node, attr })
            })
            .collect();
        entries.sort_by_key(|e| e.cookie);
        assert!(entries.is_sorted_by(|a, b| a.cookie < b.cookie), "two names share a cookie");
        let entries: Arc<[DirEntry]> = entries.into();
        self.listings.insert(dir.into(), Arc::clone(&entries));
        Some(entries)
    }
}

/// Returns the pieces of `content` from `offset` on, at most `len` bytes.
fn cut(content: &Data, offset: u64, len: usize) -> Data {
    let mut skip = usize::try_from(offset).unwrap_or(usize::MAX);
    let mut left = len;
    let mut pieces = Vec::new();
    for piece in &content.0 {
        let from = skip.min(piece.len());
        let take = (piece.len() - from).min(left);
        skip -= from;
        left -= take;
        if take > 0 {
            pieces.push(match piece.clone() {
                Segment::File { file, offset, .. } => {
                    Segment::File { file, offset: offset + from as u64, len: take }
                }
                Segment::Bytes { bytes, start, .. } => {
                    Segment::Bytes { bytes, start: start + from, len: take }
                }
                Segment::Zeros(_) => Segment::Zeros(take),
            });
        }
    }
    Data(pieces)
}

impl Tree for MemoryTree {
    fn root(&self) -> NodeWithAttr {
        let state = self.state();
        let root = &state.paths[""];
        NodeWithAttr { node: root.node, attr: state.attr(root) }
    }

    fn lookup(&self, dir: &Node, name: &[u8], reply: Reply<NodeWithAttr>) {
        let known = match self.known(dir) {
            Ok(known) => known,
            Err(error) => return reply.err(error),
        };
        let path = child(&known.path, name);
        // A parked lookup answers with the state at the time of the request, as a slow fetch of an old
        // catalog would.
        let found = self.found(&known.path, name);
        self.scripted(Call::Lookup, path, reply, move || found);
    }

    fn attributes(&self, node: &Node, reply: Reply<Attr>) {
        let known = self.known(node);
        let path = known.as_ref().map_or_else(|_| String::new(), |k| k.path.clone());
        let attr = known.and_then(|known| {
            let state = self.state();
            let current = state.paths.get(&known.path).is_some_and(|k| k.node == known.node);
            if current { Ok(state.attr(&known)) } else { Err(ErrorKind::Stale.into()) }
        });
        self.scripted(Call::Attributes, path, reply, move || attr);
    }

    fn list(&self, dir: &Node, after: Cookie, reply: Reply<Listing>) {
        let known = self.known(dir);
        let path = known.as_ref().map_or_else(|_| String::new(), |k| k.path.clone());
        let listing = known.and_then(|known| self.listing(&known, after));
        self.scripted(Call::List, path, reply, move || listing);
    }

    fn read(&self, node: &Node, offset: u64, len: usize, reply: Reply<Data>) {
        let known = self.known(node);
        let path = known.as_ref().map_or_else(|_| String::new(), |k| k.path.clone());
        self.scripted(Call::Read, path, reply, move || Ok(cut(&known?.entry.content, offset, len)));
    }

    fn link_target(&self, node: &Node, reply: Reply<Vec<u8>>) {
        let known = self.known(node);
        let path = known.as_ref().map_or_else(|_| String::new(), |k| k.path.clone());
        self.scripted(Call::LinkTarget, path, reply, move || {
            let known = known?;
            if known.entry.kind != Kind::Symlink {
                return Err(ErrorKind::Invalid.into());
            }
            known.entry.content.to_vec().map_err(|e| TreeError::new(ErrorKind::Local).because(e))
        });
    }

    fn xattr(&self, node: &Node, name: &[u8], reply: Reply<Vec<u8>>) {
        let known = self.known(node);
        let path = known.as_ref().map_or_else(|_| String::new(), |k| k.path.clone());
        let value = known.and_then(|known| {
            known.entry.xattrs.get(name).cloned().ok_or(TreeError::new(ErrorKind::NoAttribute))
        });
        self.scripted(Call::Xattr, path, reply, move || value);
    }

    fn xattr_names(&self, node: &Node, reply: Reply<Vec<Vec<u8>>>) {
        let known = self.known(node);
        let path = known.as_ref().map_or_else(|_| String::new(), |k| k.path.clone());
        let names = known.map(|known| known.entry.xattrs.keys().cloned().collect());
        self.scripted(Call::XattrNames, path, reply, move || names);
    }

    fn statfs(&self) -> StatFs {
        let files = self.state().paths.len() as u64;
        StatFs { total_bytes: 1 << 30, free_bytes: 1 << 29, files, free_files: 3 }
    }

    fn hold(&self, node: &Node) {
        let mut state = self.state();
        if !state.held.insert(node.key) {
            state.violations.push(format!("{:?} was held twice", node.key));
        }
    }

    fn release(&self, node: &Node) {
        let mut state = self.state();
        if !state.held.remove(&node.key) {
            state.violations.push(format!("{:?} was released but not held", node.key));
        }
    }

    fn watch(&self, watcher: Arc<dyn Watcher>) {
        self.state().watcher = Some(watcher);
    }

    fn unreadable(&self, node: &Node, _: u64, _: usize) {
        let found = {
            let mut state = self.state();
            let path = state.known.get(&node.key).map_or_else(String::new, |known| known.path.clone());
            state.replacements.remove(&path).map(|content| (path, content))
        };
        if let Some((path, content)) = found {
            self.change_attributes(&path, |entry| entry.content = content);
        }
    }

    fn failed(&self, node: &Node, error: &TreeError, caller: Option<u32>) {
        let mut state = self.state();
        let path = state.known.get(&node.key).map_or_else(String::new, |known| known.path.clone());
        state.failures.push((path, error.kind, caller));
    }
}
