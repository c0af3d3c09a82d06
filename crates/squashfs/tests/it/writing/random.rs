//! Random trees survive writing and reading.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use esker_squashfs::layout::CodecId;
use esker_squashfs::writer::{
    BuildControl, Device, Head, Input, Kind, Open, Options, Plain, Reading, Target, TreeBuilder, WriteError,
    build,
};
use esker_squashfs::{ImageTree, Options as ReadOptions};
use esker_vfs::{Attr, Cookie, Kind as NodeKind, Node, Reply, Tree};
use proptest::prelude::*;

use super::options;

/// Type and content of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ItemKind {
    Directory,
    File(Vec<u8>),
    Symlink(Vec<u8>),
    Device(u32, u32),
    Fifo,
}

/// An entry with its attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    kind: ItemKind,
    permissions: u16,
    uid: u32,
    gid: u32,
    mtime: i64,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

type Model = BTreeMap<Vec<u8>, Item>;

/// Generates contents with repetitions, holes and noise, so that duplicates, fragments and all kinds of
/// blocks occur.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let piece = (0u8..4, 0usize..9000).prop_map(|(kind, len)| match kind {
        0 => vec![0; len],
        1 => vec![b'a'; len],
        2 => super::fixture::noise(len as u64, len),
        _ => (0..len).map(|at| (at / 100) as u8).collect(),
    });
    prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat())
}

fn kind() -> impl Strategy<Value = ItemKind> {
    prop_oneof![
        2 => Just(ItemKind::Directory),
        6 => content().prop_map(ItemKind::File),
        1 => prop::collection::vec(1u8..255, 1..300).prop_map(ItemKind::Symlink),
        1 => (0u32..4096, 0u32..(1 << 20)).prop_map(|(major, minor)| ItemKind::Device(major, minor)),
        1 => Just(ItemKind::Fifo),
    ]
}

fn item() -> impl Strategy<Value = Item> {
    let name = prop_oneof![Just("user."), Just("trusted."), Just("security.")]
        .prop_flat_map(|prefix| "[a-c]{1,3}".prop_map(move |rest| format!("{prefix}{rest}").into_bytes()));
    let xattrs = prop::collection::btree_map(name, prop::collection::vec(any::<u8>(), 0..50), 0..3);
    (kind(), 0u16..0o10000, 0u32..5, any::<u32>(), 0i64..=u32::MAX.into(), xattrs).prop_map(
        |(kind, permissions, uid, gid, mtime, xattrs)| Item { kind, permissions, uid, gid, mtime, xattrs },
    )
}

/// Generates a tree: random names one or two directories deep, with their parent directories.
fn model() -> impl Strategy<Value = Model> {
    let place = ("[a-e]{1,2}", prop::option::of("[a-zé]{1,40}"));
    prop::collection::vec((place, item()), 0..60).prop_map(|entries| {
        let plain = |path: &[u8]| Item {
            kind: ItemKind::Directory,
            permissions: 0o755,
            uid: 0,
            gid: 0,
            mtime: path.len() as i64,
            xattrs: BTreeMap::new(),
        };
        let mut model = Model::from([(Vec::new(), plain(b""))]);
        for ((above, below), item) in entries {
            let above = above.into_bytes();
            match below {
                None => _ = model.entry(above).or_insert(item),
                Some(below) => {
                    let directory = model.entry(above.clone()).or_insert_with(|| plain(&above));
                    if directory.kind == ItemKind::Directory {
                        model.insert([&above[..], b"/", below.as_bytes()].concat(), item);
                    }
                }
            }
        }
        model
    })
}

struct Given<'m> {
    model: &'m Model,
    now: bool,
}

struct Bytes(Vec<u8>);

impl Open for Bytes {
    fn open(&self) -> io::Result<Box<dyn Reading + '_>> {
        Ok(Box::new(Plain(self.0.as_slice())))
    }
}

impl Input for Given<'_> {
    fn feed(&mut self, intake: &mut TreeBuilder<'_, '_>) -> Result<(), WriteError> {
        for (path, item) in self.model {
            let head = Head {
                path: path.clone(),
                permissions: item.permissions,
                uid: item.uid,
                gid: item.gid,
                mtime: item.mtime,
                xattrs: item.xattrs.clone().into_iter().collect(),
            };
            match &item.kind {
                ItemKind::Directory => intake.add(head, Kind::Directory)?,
                ItemKind::Symlink(target) => intake.add(head, Kind::Symlink(target.clone()))?,
                ItemKind::Device(major, minor) => {
                    intake.add(head, Kind::BlockDevice(Device { major: *major, minor: *minor }))?;
                }
                ItemKind::Fifo => intake.add(head, Kind::Fifo)?,
                ItemKind::File(bytes) if self.now => {
                    intake.file_now(head, bytes.len() as u64, &mut Plain(bytes.as_slice()))?;
                }
                ItemKind::File(bytes) => {
                    intake.file(head, bytes.len() as u64, Box::new(Bytes(bytes.clone())))?;
                }
            }
        }
        Ok(())
    }
}

/// An image in memory.
#[derive(Default)]
struct Memory(Vec<u8>);

impl Target for Memory {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let start = usize::try_from(offset).expect("a small image");
        let end = start + bytes.len();
        self.0.resize(self.0.len().max(end), 0);
        self.0[start..end].copy_from_slice(bytes);
        Ok(())
    }

    fn finish(&mut self, len: u64) -> io::Result<()> {
        self.0.resize(usize::try_from(len).expect("a small image"), 0);
        Ok(())
    }
}

fn image(model: &Model, options: &Options, now: bool) -> Vec<u8> {
    let stop = AtomicBool::new(false);
    let mut watch = BuildControl { excludes: &|_| false, stop: &stop, progress: &mut |_| {} };
    let mut memory = Memory::default();
    build(&mut Given { model, now }, options, &mut watch, &mut memory).expect("an image");
    memory.0
}

fn read(tree: &ImageTree, node: &Node, attr: &Attr) -> Item {
    let kind = match attr.kind {
        NodeKind::Directory => ItemKind::Directory,
        NodeKind::File => {
            let len = usize::try_from(attr.size).expect("a small file") + 1;
            let data = Reply::wait(|reply| tree.read(node, 0, len, reply)).expect("content");
            ItemKind::File(data.to_vec().expect("bytes"))
        }
        NodeKind::Symlink => {
            ItemKind::Symlink(Reply::wait(|reply| tree.link_target(node, reply)).expect("a target"))
        }
        NodeKind::BlockDevice => ItemKind::Device(attr.rdev.major, attr.rdev.minor),
        NodeKind::Fifo => ItemKind::Fifo,
        kind => panic!("{kind:?} was not written"),
    };
    let names = crate::walk::xattr_names(tree, node).expect("names");
    let value = |name: Vec<u8>| {
        let value = Reply::wait(|reply| tree.xattr(node, &name, reply)).expect("a value");
        (name, value)
    };
    Item {
        kind,
        permissions: attr.permissions,
        uid: attr.uid,
        gid: attr.gid,
        mtime: attr.mtime.secs,
        xattrs: names.into_iter().map(value).collect(),
    }
}

fn read_all(image: Vec<u8>) -> Model {
    let tree = ImageTree::open(Arc::new(image), &ReadOptions::default()).expect("an image");
    let root = tree.root();
    let mut found = Model::from([(Vec::new(), read(&tree, &root.node, &root.attr))]);
    let mut waiting = vec![(root.node, Vec::new())];
    while let Some((node, above)) = waiting.pop() {
        let listing = Reply::wait(|reply| tree.list(&node, Cookie(0), reply)).expect("a listing");
        for entry in listing.entries.iter().skip(listing.start) {
            let slash: &[u8] = if above.is_empty() { b"" } else { b"/" };
            let path = [&above, slash, &entry.name].concat();
            let looked = Reply::wait(|reply| tree.lookup(&node, &entry.name, reply)).expect("what is listed");
            assert_eq!(looked.attr, entry.attr);
            found.insert(path.clone(), read(&tree, &entry.node, &entry.attr));
            if entry.attr.kind == NodeKind::Directory {
                waiting.push((entry.node, path));
            }
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_random_tree_survives_writing_and_reading(
        model in model(),
        block_log in 12u32..=17,
        codec in 0usize..4,
        (fragments, tail_ends, duplicates, now) in any::<(bool, bool, bool, bool)>(),
    ) {
        let codec = [CodecId::Zstd, CodecId::Lz4, CodecId::Gzip, CodecId::Xz][codec];
        let level = (codec != CodecId::Lz4).then_some(1);
        let block_size = 1 << block_log;
        let options = Options { block_size, fragments, tail_ends, duplicates, ..options(codec, level) };
        prop_assert_eq!(read_all(image(&model, &options, now)), model);
    }
}
