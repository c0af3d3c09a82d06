//! Reads an image as the kernel does, and compares it with its tree.

use std::collections::HashMap as Map;
use std::sync::Arc;

use esker_journal::Journal;
use esker_testkit::memory_tree::{Action, Call, Entry, MemoryTree};
use esker_vfs::{
    Attr, Cookie, Data, Device, DirEntry, ErrorKind, Kind, Listing, Node, NodeKey, NodeWithAttr, Reply,
    StatFs, Tree, TreeError, Watcher, whole_listing,
};
use proptest::prelude::*;

use crate::layout::BLOCK;
use crate::{ErofsTree, XattrPolicy};

/// Files whose name starts so are hard links of one file.
const TWIN: &str = "twin";

/// Entries of the root whose content is shorter than their size.
const SHORT: [&str; 2] = ["short-file", "short-link"];

/// In-memory tree with hard links.
struct HardLinkTree(Arc<MemoryTree>);

impl HardLinkTree {
    fn named(&self, name: &str) -> Option<NodeWithAttr> {
        Reply::wait(|reply| self.0.lookup(&self.0.root().node, name.as_bytes(), reply)).ok()
    }
}

impl Tree for HardLinkTree {
    fn root(&self) -> NodeWithAttr {
        self.0.root()
    }
    fn lookup(&self, dir: &Node, name: &[u8], reply: Reply<NodeWithAttr>) {
        self.0.lookup(dir, name, reply);
    }
    fn attributes(&self, node: &Node, reply: Reply<Attr>) {
        self.0.attributes(node, reply);
    }
    fn list(&self, dir: &Node, after: Cookie, reply: Reply<Listing>) {
        let origin = self.named(TWIN);
        self.0.list(
            dir,
            after,
            Reply::new(move |listing: Result<Listing, TreeError>| {
                reply.give(listing.map(|listing| {
                    let linked = |entry: &DirEntry| match &origin {
                        Some(NodeWithAttr { node, attr })
                            if entry.name.starts_with(TWIN.as_bytes()) && attr.kind == Kind::File =>
                        {
                            DirEntry { node: *node, attr: Attr { nlink: 7, ..*attr }, ..entry.clone() }
                        }
                        _ => entry.clone(),
                    };
                    Listing { entries: listing.entries.iter().map(linked).collect(), ..listing }
                }));
            }),
        );
    }
    fn read(&self, node: &Node, offset: u64, len: usize, reply: Reply<Data>) {
        let is_short = SHORT.iter().any(|name| self.named(name).is_some_and(|short| short.node == *node));
        self.0.read(node, offset, if is_short { len / 2 } else { len }, reply);
    }
    fn link_target(&self, node: &Node, reply: Reply<Vec<u8>>) {
        let is_short = SHORT.iter().any(|name| self.named(name).is_some_and(|short| short.node == *node));
        let short_reply = Reply::new(move |target: Result<Vec<u8>, TreeError>| {
            reply.give(target.map(|target| if is_short { target[1..].to_vec() } else { target }));
        });
        self.0.link_target(node, short_reply);
    }
    fn xattr(&self, node: &Node, name: &[u8], reply: Reply<Vec<u8>>) {
        self.0.xattr(node, name, reply);
    }
    fn xattr_names(&self, node: &Node, reply: Reply<Vec<Vec<u8>>>) {
        self.0.xattr_names(node, reply);
    }
    fn statfs(&self) -> StatFs {
        self.0.statfs()
    }
    fn hold(&self, node: &Node) {
        self.0.hold(node);
    }
    fn release(&self, node: &Node) {
        self.0.release(node);
    }
    fn watch(&self, watcher: Arc<dyn Watcher>) {
        self.0.watch(watcher);
    }
    fn failed(&self, node: &Node, error: &TreeError, caller: Option<u32>) {
        self.0.failed(node, error, caller);
    }
}

/// Reads an image block by block, and checks that no block ever changes.
struct Reader {
    tree: ErofsTree,
    image: Node,
    seen: Map<u64, Vec<u8>>,
    /// Offset of the last read.
    last: u64,
}

/// A decoded inode.
#[derive(Debug, PartialEq, Eq)]
struct Inode {
    format: u16,
    attributes: usize,
    mode: u32,
    size: u64,
    low: u32,
    high: u16,
    owner: (u32, u32),
    mtime: (i64, u32),
    nlink: u32,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("enough bytes")
}

const PATH: &[u8] = b"esker+http://a/b";

impl Reader {
    fn new(tree: &Arc<MemoryTree>, policy: XattrPolicy, keep: usize) -> Self {
        let tree = ErofsTree::new(Arc::new(HardLinkTree(Arc::clone(tree))), PATH, policy);
        Self::of(tree.expect("an image").with_cache_bytes(keep))
    }

    /// Makes a reader of an image whose positions are in the journal.
    fn recorded(tree: &Arc<MemoryTree>, journal: &Journal) -> Self {
        let journal = Journal::attach(journal.descriptor().expect("a descriptor")).expect("a journal");
        let tree = Arc::new(HardLinkTree(Arc::clone(tree)));
        Self::of(ErofsTree::recorded(tree, PATH, XattrPolicy::All, Arc::new(journal)).expect("an image"))
    }

    fn of(tree: ErofsTree) -> Self {
        let mut image = tree.root();
        for name in [&b"esker+http:"[..], b"a", b"b"] {
            image = Reply::wait(|reply| tree.lookup(&image.node, name, reply)).expect("on the way");
        }
        assert_eq!((image.attr.kind, image.attr.permissions), (Kind::File, 0o400));
        Self { tree, image: image.node, seen: Map::new(), last: 0 }
    }

    fn try_block(&mut self, block: u64) -> Result<Vec<u8>, TreeError> {
        self.last = block;
        let read = Reply::wait(|reply| self.tree.read(&self.image, block * BLOCK, BLOCK as usize, reply));
        let bytes = read?.to_vec().expect("bytes");
        assert_eq!(bytes.len() as u64, BLOCK, "a short answer would be taken for zeros");
        let before = self.seen.entry(block).or_insert_with(|| bytes.clone());
        assert_eq!(*before, bytes, "block {block} has changed");
        Ok(bytes)
    }

    fn bytes(&mut self, from: u64, len: usize) -> Vec<u8> {
        let (first, last) = (from / BLOCK, (from + len as u64).div_ceil(BLOCK));
        let all: Vec<u8> = (first..last).flat_map(|block| self.try_block(block).expect("a block")).collect();
        all[(from % BLOCK) as usize..][..len].to_vec()
    }

    fn root(&mut self) -> u64 {
        let superblock = self.bytes(1024, 128);
        assert_eq!(u32::from_le_bytes(number(&superblock, 0)), 0xe0f5_e1e2);
        assert_eq!(1_u64 << superblock[12], BLOCK);
        u64::from_le_bytes(number(&superblock, 112))
    }

    fn inode(&mut self, inode: u64) -> Inode {
        let bytes = self.bytes(inode * 32, 64);
        let count = usize::from(u16::from_le_bytes(number(&bytes, 2)));
        Inode {
            format: u16::from_le_bytes(number(&bytes, 0)),
            attributes: if count == 0 { 0 } else { 12 + 4 * (count - 1) },
            mode: u16::from_le_bytes(number(&bytes, 4)).into(),
            size: u64::from_le_bytes(number(&bytes, 8)),
            low: u32::from_le_bytes(number(&bytes, 16)),
            high: u16::from_le_bytes(number(&bytes, 6)),
            owner: (u32::from_le_bytes(number(&bytes, 24)), u32::from_le_bytes(number(&bytes, 28))),
            mtime: (i64::from_le_bytes(number(&bytes, 32)), u32::from_le_bytes(number(&bytes, 40))),
            nlink: u32::from_le_bytes(number(&bytes, 44)),
        }
    }

    fn content(&mut self, at: u64, inode: &Inode) -> Vec<u8> {
        // Inline content must be within the block of its inode; otherwise the kernel reports corruption.
        if inode.format == 5 {
            let from = at * 32 + 64 + inode.attributes as u64;
            assert!(from % BLOCK + inode.size <= BLOCK && from / BLOCK == at * 32 / BLOCK);
            return self.bytes(from, inode.size as usize);
        }
        let block = u64::from(inode.low) | u64::from(inode.high) << 32;
        self.bytes(block * BLOCK, inode.size as usize)
    }

    /// Returns the decoded names with inode number and type.
    fn names(&mut self, directory: u64) -> Vec<(Vec<u8>, u64, u8)> {
        let inode = self.inode(directory);
        assert!(matches!(inode.format, 1 | 5) && Kind::from_mode(inode.mode) == Some(Kind::Directory));
        let content = self.content(directory, &inode);
        let mut names = Vec::new();
        for block in content.chunks(BLOCK as usize) {
            let count = usize::from(u16::from_le_bytes(number(block, 8))) / 12;
            assert!(count > 0 && count * 12 < block.len(), "the kernel calls that corrupted");
            let start = |entry: usize| usize::from(u16::from_le_bytes(number(block, entry * 12 + 8)));
            for entry in 0..count {
                let end = if entry + 1 < count { start(entry + 1) } else { block.len() };
                let name = &block[start(entry)..end];
                let name = name.split(|byte| *byte == 0).next().expect("a name");
                let inode = u64::from_le_bytes(number(block, entry * 12));
                names.push((name.to_vec(), inode, block[entry * 12 + 10]));
            }
        }
        assert!(names.is_sorted_by(|a, b| a.0 < b.0), "the kernel looks names up by halves");
        names
    }

    fn attributes(&mut self, at: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
        let len = self.inode(at).attributes;
        let body = self.bytes(at * 32 + 64, len);
        let mut rest = body.get(12..).unwrap_or_default();
        let mut found = Vec::new();
        while !rest.is_empty() {
            let (name, value) = (usize::from(rest[0]), usize::from(u16::from_le_bytes(number(rest, 2))));
            let prefix = match rest[1] {
                1 => "user.",
                4 => "trusted.",
                6 => "security.",
                other => panic!("prefix {other}"),
            };
            found
                .push(([prefix.as_bytes(), &rest[4..4 + name]].concat(), rest[4 + name..][..value].to_vec()));
            rest = &rest[(4 + name + value).next_multiple_of(4)..];
        }
        found
    }

    /// Compares a directory and everything below it with the tree; records the key of each inode number.
    fn compare(
        &mut self,
        at: u64,
        parent: u64,
        node: &Node,
        numbers: &mut Map<u64, NodeKey>,
        backwards: bool,
    ) {
        let twins = Arc::clone(self.tree.tree());
        let mut names = self.names(at);
        let mut wanted = whole_listing(&*twins, node).expect("the tree's own");
        wanted.sort_by(|a, b| a.name.cmp(&b.name));
        let dots: Vec<_> = names.extract_if(.., |(name, ..)| *name == b"." || *name == b"..").collect();
        assert_eq!(dots, [(b".".to_vec(), at, 2), (b"..".to_vec(), parent, 2)]);
        assert_eq!(names.len(), wanted.len());
        let mut pairs: Vec<_> = names.into_iter().zip(wanted).collect();
        if backwards {
            pairs.reverse();
        }
        for ((name, inode, kind), entry) in pairs {
            assert_eq!(*entry.name, *name);
            assert_eq!(kind, crate::layout::dirent_type(entry.attr.kind));
            let known = numbers.entry(inode).or_insert(entry.node.key);
            assert_eq!(*known, entry.node.key, "a number stands for one file");
            self.compare_inode(inode, &entry);
            if entry.attr.kind == Kind::Directory {
                self.compare(inode, at, &entry.node, numbers, backwards);
            }
        }
    }

    fn compare_inode(&mut self, at: u64, entry: &DirEntry) {
        let (twins, attr) = (Arc::clone(self.tree.tree()), entry.attr);
        let inode = self.inode(at);
        assert!(inode.format == 1 || inode.format == 5 && attr.kind == Kind::Directory, "{inode:?}");
        assert_eq!((inode.mode, inode.nlink), (attr.mode(), attr.nlink));
        assert_eq!(inode.owner, (attr.uid, attr.gid));
        assert_eq!(inode.mtime, (attr.mtime.secs, attr.mtime.nanos));
        let attributes = self.attributes(at);
        let holds = matches!(attr.kind, Kind::File | Kind::Symlink);
        let found = if holds { self.content(at, &inode) } else { Vec::new() };
        let names = Reply::wait(|reply| twins.xattr_names(&entry.node, reply)).expect("names");
        let mut wanted: Vec<_> = names
            .into_iter()
            .map(|name| {
                let value = Reply::wait(|reply| twins.xattr(&entry.node, &name, reply)).expect("a value");
                (name, value)
            })
            .collect();
        wanted.sort();
        assert_eq!(attributes, wanted);
        let content = match attr.kind {
            Kind::File => Reply::wait(|reply| twins.read(&entry.node, 0, attr.size as usize, reply))
                .expect("content")
                .to_vec()
                .expect("bytes"),
            Kind::Symlink => Reply::wait(|reply| twins.link_target(&entry.node, reply)).expect("a target"),
            Kind::Directory => return,
            _ => {
                let Device { major, minor } = attr.rdev;
                assert_eq!(inode.low, (minor & 0xff) | major << 8 | (minor & !0xff) << 12);
                return assert_eq!(inode.size, 0);
            }
        };
        assert_eq!(found, content);
    }

    /// Compares the whole image; returns the key of each inode number.
    fn compare_all(&mut self, backwards: bool) -> Map<u64, NodeKey> {
        let (root, node) = (self.root(), self.tree.tree().root().node);
        let mut numbers = Map::new();
        self.compare(root, root, &node, &mut numbers, backwards);
        numbers
    }
}

fn entry() -> impl Strategy<Value = Entry> {
    let file = proptest::collection::vec(any::<u8>(), 0..9_000).prop_map(|content| Entry::file(&content));
    prop_oneof![
        4 => file,
        2 => Just(Entry::directory()),
        1 => "[a-z/.]{1,300}".prop_map(|target| Entry::symlink(target.as_bytes())),
        1 => (0..0xfff_u32, 0..0xf_ffff_u32)
            .prop_map(|(major, minor)| Entry::special(Kind::CharDevice, Device { major, minor })),
        1 => Just(Entry::special(Kind::Fifo, Device::default())),
    ]
}

fn name() -> impl Strategy<Value = String> {
    // Names sorted before and after `.` and `..`, some of them long.
    prop_oneof!["[!-.]{1,3}a", "[.]{1,3}[a-c]", "[a-d]{1,2}", "[a-b]{200,255}", "twin[a-d]?"]
}

fn tree(entries: Vec<(Vec<String>, Entry, Option<Vec<u8>>)>) -> Arc<MemoryTree> {
    let tree = MemoryTree::new();
    let mut kinds: Map<String, Kind> = Map::new();
    for (names, entry, attribute) in entries {
        let path = names.join("/");
        let mut above = path.match_indices('/').map(|(at, _)| &path[..at]);
        // Entries below a file, and duplicate paths, are left out.
        if kinds.contains_key(&path)
            || above.any(|above| kinds.get(above).is_some_and(|kind| *kind != Kind::Directory))
        {
            continue;
        }
        for (at, _) in path.match_indices('/') {
            if kinds.insert(path[..at].to_owned(), Kind::Directory).is_none() {
                tree.put(&path[..at], Entry::directory());
            }
        }
        kinds.insert(path.clone(), entry.kind);
        let entry = attribute
            .into_iter()
            .fold(entry, |entry, value| entry.xattr("user.a", &value).xattr("security.b", b""));
        tree.put(&path, entry);
    }
    Arc::new(tree)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_image_equals_its_tree(
        entries in proptest::collection::vec(
            (proptest::collection::vec(name(), 1..4), entry(),
             proptest::option::weighted(0.1, proptest::collection::vec(any::<u8>(), 0..6_000))),
            0..60,
        ),
        keep in prop_oneof![Just(0_usize), Just(1 << 20)],
        backwards in any::<bool>(),
    ) {
        let tree = tree(entries);
        let mut reader = Reader::new(&tree, XattrPolicy::All, keep);
        let numbers = reader.compare_all(backwards);
        prop_assert_eq!(&reader.compare_all(!backwards), &numbers);
        // A process that takes over finds every position where the kernel knows it, also those it gives itself.
        let journal = Journal::new().expect("memory");
        let mut first = Reader::recorded(&tree, &journal);
        let root = first.root();
        first.names(root);
        let mut second = Reader::recorded(&tree, &journal);
        second.seen = first.seen.clone();
        prop_assert_eq!(&second.compare_all(backwards), &numbers);
        let mut third = Reader::recorded(&tree, &journal);
        for (block, bytes) in &second.seen {
            prop_assert_eq!(&third.try_block(*block).expect("a block"), bytes);
        }
        // Another mount may read the entries in another order.
        prop_assert_eq!(Reader::new(&tree, XattrPolicy::All, keep).compare_all(!backwards), numbers);
    }
}

#[test]
fn a_directory_may_have_many_names() {
    let tree = MemoryTree::new();
    for number in 0..5_000 {
        tree.put(&format!("file-{}", number * 7), Entry::file(&[b'#'; 5]));
    }
    let mut reader = Reader::new(&Arc::new(tree), XattrPolicy::All, 0);
    let root = reader.root();
    let size = reader.inode(root).size;
    assert!(size > 20 * BLOCK, "{size} bytes are many blocks");
    assert_eq!(reader.names(root).len(), 5_002);
    // A single name only: each read encodes the whole directory again.
    let (name, inode, _) = reader.names(root).swap_remove(4_000);
    let found = reader.inode(inode);
    assert!(name.starts_with(b"file-"));
    assert_eq!(reader.content(inode, &found), b"#####");
}

/// Reading a small directory and its inodes takes one request.
#[test]
fn names_follow_their_directory_while_they_have_room_there() {
    let of = |count: usize| {
        let tree = MemoryTree::new();
        (0..count).for_each(|number| tree.put(&format!("{number:0200}"), Entry::file(b"")));
        let mut reader = Reader::new(&Arc::new(tree), XattrPolicy::All, 0);
        let root = reader.root();
        assert_eq!(reader.names(root).len(), count + 2);
        let inodes: Vec<u64> = reader.names(root).into_iter().map(|(_, inode, _)| inode).collect();
        inodes.into_iter().for_each(|inode| _ = reader.inode(inode));
        // Except the read of the superblock.
        reader.seen.len() - 1
    };
    // 64 bytes of the directory's inode, 27 of `.` and `..`, and 212 and 64 of each file.
    assert_eq!(of(14), 1);
    assert_eq!(of(15), 2, "inodes of files go on in the next block");
    assert_eq!(of(18), 2);
    assert_eq!(of(19), 3, "the inode, names, and inodes of files");
}

/// The adjacent regions belong to other directories.
#[test]
fn a_directory_with_large_attributes_gets_a_large_region() {
    let tree = MemoryTree::new();
    let value = vec![b'v'; 60_000];
    for number in 100..400 {
        tree.put(&number.to_string(), Entry::file(b"").xattr("user.a", &value));
    }
    let mut reader = Reader::new(&Arc::new(tree), XattrPolicy::All, 1 << 30);
    let root = reader.root();
    let names = reader.names(root);
    let (first, last) = (names[2].1, names[301].1);
    assert!((last - first) * 32 / BLOCK > 4096, "its place has so many blocks");
    assert_eq!(reader.attributes(last), [(b"user.a".to_vec(), value)]);
}

/// A failed read can be repeated, and blocks read before stay the same.
#[test]
fn a_failed_read_is_reported_and_can_be_repeated() {
    let tree = Arc::new(MemoryTree::new());
    tree.put("dir", Entry::directory());
    tree.put("dir/file", Entry::file(b"content"));
    tree.put("dir/link", Entry::symlink(b"file"));
    let mut calls =
        vec![(Call::List, ""), (Call::List, "dir"), (Call::Read, "dir/file"), (Call::LinkTarget, "dir/link")];
    calls.extend([(Call::XattrNames, "dir"), (Call::XattrNames, "dir/file")]);
    for (call, path) in calls {
        let mut reader = Reader::new(&tree, XattrPolicy::All, 0);
        let before = (tree.script().calls(call, path), tree.failures().len());
        tree.script().set(call, path, Action::Fail(ErrorKind::Unavailable));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| reader.compare_all(false)));
        assert!(outcome.is_err(), "{call:?} {path} is needed");
        // A failure reported for the image is passed on to the tree's own node.
        let error = reader.try_block(reader.last).map(drop).expect_err("it still fails");
        reader.tree.failed(&reader.image, &error, Some(7));
        let reported = tree.failures().split_off(before.1);
        let of = if matches!(call, Call::XattrNames) { "" } else { path };
        let of = if path == "dir/file" && call == Call::XattrNames { "dir" } else { of };
        assert_eq!(reported, [(of.to_owned(), ErrorKind::Unavailable, Some(7))]);
        assert!(tree.script().calls(call, path) > before.0, "the fault was met");
        tree.script().clear(call, path);
        reader.compare_all(false);
    }
}

#[test]
fn attributes_may_be_left_out_except_some_of_the_root() {
    let tree = Arc::new(MemoryTree::new());
    tree.change_attributes("", |root| {
        *root = root.clone().xattr("user.listed", b"1").xattr("user.unlisted", b"2")
    });
    tree.put("file", Entry::file(b"").xattr("user.a", b"b"));
    let policy = XattrPolicy::Some { of_root: &["user.listed", "user.none"], of_others: false };
    let mut reader = Reader::new(&tree, policy, 0);
    let root = reader.root();
    assert_eq!(reader.attributes(root), [(b"user.listed".to_vec(), b"1".to_vec())]);
    let names = reader.names(root);
    let (_, file, _) = names.iter().find(|(name, ..)| name == b"file").expect("there");
    assert_eq!(reader.attributes(*file), []);
    assert_eq!(tree.script().calls(Call::XattrNames, "file"), 0, "no request was made");
}

#[test]
fn an_unallocated_block_can_not_be_read() {
    let mut reader = Reader::new(&Arc::new(MemoryTree::new()), XattrPolicy::All, 0);
    for block in [1, 1 << 30, 1 << 40, 1 << 45, 1 << 46, (1 << 48) - 1] {
        assert_eq!(reader.try_block(block).expect_err("nothing").kind, ErrorKind::Damaged);
    }
}

/// Only a content without an address, and a link longer than any path, are unreadable.
#[test]
fn no_address_is_allocated_twice() {
    let tree = Arc::new(MemoryTree::new());
    tree.put("a", Entry::file(&[1; 5_000]));
    tree.put("b", Entry::file(&[2; 9_000]));
    tree.put("c", Entry::file(&[3; 4_000]));
    tree.put("d", Entry::symlink(&[b'd'; 4_095]));
    tree.put("e", Entry::symlink(&[b'e'; 4_096]));
    let mut reader = Reader::new(&tree, XattrPolicy::All, 0);
    reader.tree.limit_data_blocks(4);
    let root = reader.root();
    let formats: Vec<u16> =
        reader.names(root)[2..].to_vec().iter().map(|name| reader.inode(name.1).format).collect();
    assert_eq!(formats, [1, 15, 1, 1, 15], "the kernel knows no layout 7");
    let numbers: Vec<u64> = reader.names(root)[2..].iter().map(|name| name.1).collect();
    let inodes = [reader.inode(numbers[0]), reader.inode(numbers[2])];
    assert_eq!(reader.content(numbers[0], &inodes[0]), [1; 5_000]);
    assert_eq!(reader.content(numbers[2], &inodes[1]), [3; 4_000]);
}

/// Missing bytes must not be read as zeros.
#[test]
fn a_short_content_is_an_error() {
    let tree = Arc::new(MemoryTree::new());
    tree.put(SHORT[0], Entry::file(&[1; 9_000]));
    tree.put(SHORT[1], Entry::symlink(b"target"));
    let mut reader = Reader::new(&tree, XattrPolicy::All, 0);
    let root = reader.root();
    for (name, at, _) in reader.names(root).split_off(2) {
        let inode = reader.inode(at);
        let block = u64::from(inode.low) | u64::from(inode.high) << 32;
        let error = reader.try_block(block).map(drop).expect_err("it is short");
        assert_eq!(error.kind, ErrorKind::Damaged, "{}", name.escape_ascii());
    }
}

/// The kernel assumes that an image never changes.
#[test]
fn a_changed_tree_is_an_error() {
    let tree = Arc::new(MemoryTree::new());
    tree.put("dir", Entry::directory());
    tree.put("dir/file", Entry::file(&[1; 5_000]));
    for change in ["dir/another", "dir/file"] {
        let mut reader = Reader::new(&tree, XattrPolicy::All, 0);
        reader.compare_all(false);
        tree.put(change, Entry::file(&[2; 50_000]));
        // Blocks encoded before are not read again.
        let Reader { tree, image, seen, last } = reader;
        let mut reader = Reader { tree: tree.with_cache_bytes(0), image, seen, last };
        let refused: Vec<u64> = reader
            .seen
            .clone()
            .into_keys()
            .filter(|block| reader.try_block(*block).is_err_and(|error| error.kind == ErrorKind::Damaged))
            .collect();
        assert!(!refused.is_empty(), "{change}");
    }
}
