//! `esker image diff`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use esker_vfs::{Kind as NodeKind, Node};

use super::list_and_cat::{Opened, Visited};
use crate::error::{Context as _, Failure, Kind};
use crate::output::{JsonArray, Output, lossy};
use crate::trees::compare::{Difference, stored_xattrs};
use crate::trees::entry::kind_name;

/// Compares two images, or an image and a folder.
///
/// Compares names, types, modes, sizes, times in seconds, link targets, extended attributes and contents. Exit code 1
/// reports a difference.
///
/// Example: esker image diff stack.sqfs /build/software
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// First image or folder
    #[arg(value_name = "A")]
    a: PathBuf,

    /// Second image or folder
    #[arg(value_name = "B")]
    b: PathBuf,

    /// Skip the comparison of contents of files with equal size
    #[arg(long)]
    no_content: bool,

    /// Compare owners and groups too
    #[arg(long)]
    owners: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One of the two compared trees.
enum Side {
    Image(Opened),
    Folder(PathBuf),
}

/// Facts of an entry that are compared besides its content.
struct Facts {
    kind: NodeKind,
    size: u64,
    /// Node of the entry, if the tree is an image.
    node: Option<Node>,
    /// Facts as text, by name, which equal entries have in common.
    texts: Vec<(&'static str, String)>,
}

const PIECE: usize = 1 << 20;

impl Side {
    fn open(path: &Path) -> Result<Self, Failure> {
        if path.is_dir() {
            return Ok(Side::Folder(path.to_owned()));
        }
        Opened::file(&path.to_string_lossy()).map(Side::Image)
    }

    fn at(folder: &Path, path: &[u8]) -> PathBuf {
        folder.join(std::ffi::OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)))
    }

    /// Returns the entries of a directory by name; the root's own under an empty name if `path` is `None`.
    fn list(
        &self,
        path: &[u8],
        node: Option<&Node>,
        owners: bool,
    ) -> Result<BTreeMap<Vec<u8>, Facts>, Failure> {
        match self {
            Side::Image(opened) => {
                let walk = opened.walk();
                let root = walk.resolve(b"/", false)?;
                let entries = walk.list(node.unwrap_or(&root.node), path)?;
                let facts = |entry: crate::trees::walk::Entry| {
                    let path = [path, b"/", &entry.name].concat();
                    let attr = &entry.attr;
                    let target = match attr.kind {
                        NodeKind::Symlink => lossy(&walk.link_target(&entry.node, &path)?),
                        _ => String::new(),
                    };
                    let xattrs: BTreeMap<String, String> = walk
                        .xattrs(&entry.node, &path)?
                        .into_iter()
                        .map(|(name, value)| (lossy(&name), value.escape_ascii().to_string()))
                        .collect();
                    let device = format!("{}:{}", attr.rdev.major, attr.rdev.minor);
                    let owner = (attr.uid, attr.gid);
                    let texts = texts(
                        attr.permissions.into(),
                        attr.mtime.secs,
                        target,
                        xattrs,
                        device,
                        owner,
                        owners,
                    );
                    let facts = Facts { kind: attr.kind, size: attr.size, node: Some(entry.node), texts };
                    Ok((entry.name, facts))
                };
                entries.into_iter().map(facts).collect()
            }
            Side::Folder(folder) => {
                let at = Self::at(folder, path);
                let cannot = || format!("can't read {}", at.display());
                let mut found = BTreeMap::new();
                for entry in fs::read_dir(&at).context(Kind::Failed, cannot())? {
                    let entry = entry.context(Kind::Failed, cannot())?;
                    let facts = folder_facts(&entry.path(), owners)?;
                    found.insert(entry.file_name().into_vec(), facts);
                }
                Ok(found)
            }
        }
    }

    /// Reads up to [`PIECE`] bytes of a file from `offset`.
    fn read(&self, path: &[u8], node: Option<&Node>, offset: u64) -> Result<Vec<u8>, Failure> {
        match (self, node) {
            (Side::Image(opened), Some(node)) => opened.walk().read(node, path, offset, PIECE),
            (Side::Image(opened), None) => {
                let found = opened.walk().resolve(path, false)?;
                opened.walk().read(&found.node, path, offset, PIECE)
            }
            (Side::Folder(folder), _) => {
                let at = Self::at(folder, path);
                let mut bytes = vec![0; PIECE];
                let read = File::open(&at).and_then(|file| file.read_at(&mut bytes, offset));
                bytes.truncate(read.context(Kind::Failed, format!("can't read {}", at.display()))?);
                Ok(bytes)
            }
        }
    }
}

fn folder_facts(at: &Path, owners: bool) -> Result<Facts, Failure> {
    let cannot = || format!("can't look at {}", at.display());
    let meta = fs::symlink_metadata(at).context(Kind::Failed, cannot())?;
    let kind = NodeKind::from_mode(meta.mode());
    let kind = kind.ok_or_else(|| Failure::failed(format!("{} is of an unknown type", at.display())))?;
    let target = match kind {
        NodeKind::Symlink => lossy(fs::read_link(at).context(Kind::Failed, cannot())?.as_os_str().as_bytes()),
        _ => String::new(),
    };
    let device = match kind {
        NodeKind::CharDevice | NodeKind::BlockDevice => {
            format!("{}:{}", rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()))
        }
        _ => "0:0".to_owned(),
    };
    let owner = (meta.uid(), meta.gid());
    let texts = texts(meta.mode() & 0o7777, meta.mtime(), target, stored_xattrs(at), device, owner, owners);
    Ok(Facts { kind, size: meta.len(), node: None, texts })
}

fn texts(
    permissions: u32,
    mtime: i64,
    target: String,
    xattrs: BTreeMap<String, String>,
    device: String,
    (uid, gid): (u32, u32),
    owners: bool,
) -> Vec<(&'static str, String)> {
    let held = |name: &str| ["user.", "trusted.", "security."].iter().any(|prefix| name.starts_with(prefix));
    let about_the_machine = ["security.selinux", "security.ima", "security.evm"];
    let xattrs = xattrs
        .iter()
        .filter(|(name, _)| held(name) && !about_the_machine.contains(&name.as_str()))
        .map(|(name, value)| format!("{name}={value}"));
    let mut texts = vec![
        ("mode", format!("{permissions:04o}")),
        // An image has times from 1970 to 2106.
        ("mtime", mtime.clamp(0, u32::MAX.into()).to_string()),
        ("target", target),
        ("xattrs", xattrs.collect::<Vec<_>>().join(" ")),
        ("device", device),
    ];
    if owners {
        texts.push(("owner", format!("{uid}:{gid}")));
    }
    texts
}

/// Two compared trees, and the output for differences.
struct Pair<'p> {
    a: Side,
    b: Side,
    args: &'p Args,
    found: &'p mut dyn FnMut(Difference) -> Result<(), Failure>,
    entries: u64,
}

impl Pair<'_> {
    fn differ(&mut self, path: &[u8], what: &'static str, a: &str, b: &str) -> Result<(), Failure> {
        (self.found)(Difference { path: lossy(path), what, a: a.to_owned(), b: b.to_owned() })
    }

    fn compare(&mut self) -> Result<(), Failure> {
        let mut visited = [Visited::default(), Visited::default()];
        let mut waiting: Vec<(Vec<u8>, Option<Node>, Option<Node>)> = vec![(Vec::new(), None, None)];
        while let Some((directory, node_a, node_b)) = waiting.pop() {
            let mut a = self.a.list(&directory, node_a.as_ref(), self.args.owners)?;
            let b = self.b.list(&directory, node_b.as_ref(), self.args.owners)?;
            for (name, facts_b) in &b {
                self.entries += 1;
                let path = [&directory, &b"/"[..], name].concat();
                match a.remove(name) {
                    None => self.differ(&path, "name", "missing", "there")?,
                    Some(facts_a) => {
                        self.entry(&path, &facts_a, facts_b)?;
                        if (facts_a.kind, facts_b.kind) == (NodeKind::Directory, NodeKind::Directory) {
                            for (visited, node) in visited.iter_mut().zip([&facts_a.node, &facts_b.node]) {
                                node.as_ref().map_or(Ok(()), |node| visited.enter(node, &path))?;
                            }
                            waiting.push((path, facts_a.node, facts_b.node));
                        }
                    }
                }
            }
            for name in a.keys() {
                self.entries += 1;
                let path = [&directory, &b"/"[..], name].concat();
                self.differ(&path, "name", "there", "missing")?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &[u8], a: &Facts, b: &Facts) -> Result<(), Failure> {
        if a.kind != b.kind {
            return self.differ(path, "type", kind_name(a.kind), kind_name(b.kind));
        }
        for ((what, a), (_, b)) in a.texts.iter().zip(&b.texts) {
            if a != b {
                self.differ(path, what, a, b)?;
            }
        }
        if a.kind != NodeKind::File {
            return Ok(());
        }
        if a.size != b.size {
            return self.differ(path, "size", &a.size.to_string(), &b.size.to_string());
        }
        let mut offset = 0;
        while !self.args.no_content && offset < a.size {
            let bytes_a = self.a.read(path, a.node.as_ref(), offset)?;
            let bytes_b = self.b.read(path, b.node.as_ref(), offset)?;
            let same = bytes_a.iter().zip(&bytes_b).take_while(|(a, b)| a == b).count();
            if same < PIECE && offset + (same as u64) < a.size {
                return self.differ(
                    path,
                    "content",
                    &format!("as is up to byte {}", offset + same as u64),
                    "other",
                );
            }
            offset += same as u64;
        }
        Ok(())
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let (a, b) = (Side::open(&args.a)?, Side::open(&args.b)?);
    let mut out = Output::new();
    let mut array = args.json.then(|| JsonArray::begin(&mut out)).transpose()?;
    let mut count = 0_u64;
    let mut found = |one: Difference| {
        count += 1;
        match &mut array {
            Some(array) => array.add(&mut out, &one),
            None => out.line(format!("{}: {}: {} / {}", one.path, one.what, one.a, one.b)),
        }
    };
    let mut pair = Pair { a, b, args, found: &mut found, entries: 0 };
    pair.compare()?;
    let entries = pair.entries;
    if let Some(array) = array {
        array.end(&mut out)?;
    } else if count == 0 {
        out.line(format!("{entries} entries are the same in both"))?;
    }
    out.finish()?;
    match count {
        0 => Ok(()),
        _ => Err(Failure::failed(format!(
            "{} and {} differ: {count} differences in {entries} entries",
            args.a.display(),
            args.b.display()
        ))),
    }
}
