//! `esker image verify`.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use esker_squashfs::digest::{Digest, DigestList};
use esker_vfs::{Kind as NodeKind, Node};
use serde_json::json;

use super::list_and_cat::{NamedArgs, Opened, Visited};
use crate::error::{Context as _, Failure, Kind};
use crate::image::digest;
use crate::output::{QuietArgs, show, size};
use crate::process::limits::JobsArgs;
use crate::publisher::Interrupt;
use crate::settings::Settings;

/// Reads all metadata and contents of an image, and reports what is damaged.
///
/// Squashfs has no checksums: a block that decompresses to the right length passes. With a list from `esker image
/// digest` every byte is checked. Exit code 4 reports damage.
///
/// Example: esker image verify stack.sqfs
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    image: NamedArgs,

    /// List from `esker image digest` to check the image with
    #[arg(long, value_name = "LIST")]
    digests: Option<PathBuf>,

    /// Digest that the list must have
    #[arg(long, value_name = "ROOT", requires = "digests", value_parser = digest)]
    root: Option<Digest>,

    #[command(flatten)]
    jobs: JobsArgs,

    #[command(flatten)]
    _quiet: QuietArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Number of bytes in one read.
const PIECE: usize = 1 << 20;

#[derive(Default)]
struct Findings {
    entries: AtomicU64,
    bytes: AtomicU64,
    faults: Mutex<Vec<String>>,
}

impl Findings {
    fn add(&self, fault: String) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
    }
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let stop = Interrupt::on_signals()?.flag();
    let threads = args.jobs.count();
    let findings = Findings::default();
    let blocks = args
        .digests
        .is_some()
        .then(|| check_digests(args, settings, (threads, &stop), &findings))
        .transpose()?;
    let opened = args.image.open(settings)?;
    let files = look_at_all(&opened, &stop, &findings);
    read_all(&opened, &files, threads, &stop, &findings);
    if stop.load(Ordering::Relaxed) {
        return Err(Failure::new(
            Kind::Interrupted,
            format!("{} was not read whole: interrupted", opened.name),
        ));
    }
    let mut faults = findings.faults.into_inner().unwrap_or_else(PoisonError::into_inner);
    faults.sort_unstable();
    let (entries, bytes) = (findings.entries.into_inner(), findings.bytes.into_inner());
    let value = json!({"entries": entries, "bytes": bytes, "digests": blocks, "faults": faults});
    show(args.json, &value, |out| {
        for fault in &faults {
            out.fault(fault)?;
        }
        let digests = blocks.map(|blocks| format!(", {blocks} digests")).unwrap_or_default();
        out.line(format!("{entries} entries, {} read{digests}: {} faults", size(bytes), faults.len()))
    })?;
    if faults.is_empty() {
        return Ok(());
    }
    Err(Failure::new(Kind::Damaged, format!("{} is damaged", opened.name)).hint("copy or build it again"))
}

/// Compares the image with the list; returns how many digests that has.
fn check_digests(
    args: &Args,
    settings: &Settings,
    (threads, stop): (usize, &AtomicBool),
    findings: &Findings,
) -> Result<usize, Failure> {
    let list = args.digests.as_deref().unwrap_or(std::path::Path::new(""));
    let shown = list.display();
    let bytes = std::fs::read(list).context(Kind::Usage, format!("can't read {shown}"))?;
    if args.root.is_some_and(|root| root != Digest::of(&bytes)) {
        let found = Digest::of(&bytes);
        return Err(Failure::new(
            Kind::Damaged,
            format!("{shown} has the digest {found}, not that of --root"),
        ));
    }
    let list = DigestList::decode(&bytes).context(Kind::Damaged, format!("can't use {shown}"))?;
    let image = args.image.bytes(settings)?;
    let cannot = || format!("can't read {}", args.image.image);
    for block in list.check(&*image, threads, stop).context(Kind::Failed, cannot())? {
        findings.add(format!(
            "bytes {} to {} are not those of the list",
            block.offset,
            block.offset + block.len
        ));
    }
    Ok(list.blocks())
}

/// Reads all metadata; returns each file once.
fn look_at_all(opened: &Opened, stop: &AtomicBool, findings: &Findings) -> Vec<(Node, u64, Vec<u8>)> {
    let walk = opened.walk();
    let mut files = Vec::new();
    let mut linked = std::collections::HashSet::new();
    let root = match walk.resolve(b"/", false) {
        Ok(root) => root,
        Err(failure) => {
            findings.add(failure.message);
            return files;
        }
    };
    let mut visited = Visited::at(&root.node);
    let mut waiting = vec![(root.node, b"".to_vec())];
    while let Some((node, path)) = waiting.pop().filter(|_| !stop.load(Ordering::Relaxed)) {
        findings.entries.fetch_add(1, Ordering::Relaxed);
        let entries = match walk.list(&node, &path) {
            Ok(entries) => entries,
            Err(failure) => {
                findings.add(failure.message);
                continue;
            }
        };
        for entry in entries {
            let path = [&path, &b"/"[..], &entry.name].concat();
            let looked = match entry.attr.kind {
                NodeKind::Symlink => walk.link_target(&entry.node, &path).err(),
                _ => None,
            };
            let looked = looked.or_else(|| walk.xattrs(&entry.node, &path).err());
            if let Some(failure) = looked {
                findings.add(failure.message);
            }
            match entry.attr.kind {
                NodeKind::Directory => match visited.enter(&entry.node, &path) {
                    Ok(()) => waiting.push((entry.node, path)),
                    Err(failure) => findings.add(failure.message),
                },
                kind => {
                    findings.entries.fetch_add(1, Ordering::Relaxed);
                    let is_first = entry.attr.nlink < 2 || linked.insert(entry.attr.ino);
                    if kind == NodeKind::File && is_first {
                        files.push((entry.node, entry.attr.size, path));
                    }
                }
            }
        }
    }
    files
}

/// Reads the content of all files.
fn read_all(
    opened: &Opened,
    files: &[(Node, u64, Vec<u8>)],
    threads: usize,
    stop: &AtomicBool,
    findings: &Findings,
) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let walk = opened.walk();
                while let Some((node, file_size, path)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut offset = 0;
                    while offset < *file_size && !stop.load(Ordering::Relaxed) {
                        match walk.read(node, path, offset, PIECE) {
                            Ok(bytes) if !bytes.is_empty() => {
                                offset += bytes.len() as u64;
                                findings.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                            }
                            Ok(_) => {
                                let path = String::from_utf8_lossy(path);
                                findings.add(format!("{path} ends at {offset} of {file_size} bytes"));
                                break;
                            }
                            Err(failure) => {
                                findings.add(failure.message);
                                break;
                            }
                        }
                    }
                }
            });
        }
    });
}
