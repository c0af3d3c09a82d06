//! Whatever an image holds: opening it and looking at everything in it ends, with answers or with errors that name
//! the image, and never with a broken promise of the reader. Work is bounded, so that a hang is one of the reader's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_squashfs::{ImageTree, OpenError, Options};
use esker_vfs::{Cookie, ErrorKind, Kind, NodeWithAttr, Reply, Tree, TreeError};

/// Names that are looked at.
const NAMES_MAX: usize = 400;
/// How much of each file is read.
const READ_MAX: usize = 256 << 10;
/// No single question to an image of this size takes that long.
const LONGEST_ANSWER: Duration = Duration::from_secs(1);
/// Nor do all of them.
const LONGEST: Duration = Duration::from_secs(10);

/// Checks any bytes; returns how many names were found and how many questions failed.
pub fn check(bytes: &[u8]) -> Result<(usize, usize), OpenError> {
    let begun = Instant::now();
    let options =
        Options { block_bytes: 1 << 20, metadata_bytes: 1 << 20, threads: 1, owner: None, first_ids: (0, 0) };
    let opened = ImageTree::open(Arc::new(bytes.to_vec()), &options);
    let outcome = opened.map(|tree| look(&tree));
    assert!(begun.elapsed() < LONGEST, "{:?} for {} bytes", begun.elapsed(), bytes.len());
    outcome
}

/// Asks, and notes an error, which must be one that programs are told.
fn note<T>(ask: impl FnOnce() -> Result<T, TreeError>, failed: &mut usize) -> Option<T> {
    let begun = Instant::now();
    let answer = ask();
    assert!(begun.elapsed() < LONGEST_ANSWER, "{:?} for one answer", begun.elapsed());
    answer
        .inspect_err(|error| {
            assert!(error.kind != ErrorKind::Internal, "{error}: a thread broke its rules");
            if error.kind == ErrorKind::Damaged {
                let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
                assert!(cause.contains(", byte "), "{error}: {cause}");
                *failed += 1;
            }
        })
        .ok()
}

fn look(tree: &ImageTree) -> (usize, usize) {
    let (mut seen, mut failed) = (0, 0);
    let mut waiting = vec![tree.root()];
    while let Some(found) = waiting.pop() {
        let node = &found.node;
        for name in
            note(|| Reply::wait(|reply| tree.xattr_names(node, reply)), &mut failed).unwrap_or_default()
        {
            note(|| Reply::wait(|reply| tree.xattr(node, &name, reply)), &mut failed);
        }
        match found.attr.kind {
            Kind::Directory => {
                let names = list(tree, &found, &mut failed);
                for (name, listed) in names {
                    seen += 1;
                    note(|| Reply::wait(|reply| tree.lookup(node, &name, reply)), &mut failed);
                    if seen < NAMES_MAX {
                        waiting.push(listed);
                    }
                }
                note(|| Reply::wait(|reply| tree.lookup(node, b"..", reply)), &mut failed);
                note(|| Reply::wait(|reply| tree.lookup(node, b"m", reply)), &mut failed);
            }
            Kind::File => {
                let end = found.attr.size.saturating_sub(1000);
                for offset in [0, 4096, end] {
                    note(|| Reply::wait(|reply| tree.read(node, offset, READ_MAX, reply)), &mut failed);
                }
            }
            _ => drop(note(|| Reply::wait(|reply| tree.link_target(node, reply)), &mut failed)),
        }
    }
    (seen, failed)
}

fn list(tree: &ImageTree, dir: &NodeWithAttr, failed: &mut usize) -> Vec<(Box<[u8]>, NodeWithAttr)> {
    let mut names = Vec::new();
    let mut after = Cookie(0);
    while names.len() < NAMES_MAX {
        let Some(listing) = note(|| Reply::wait(|reply| tree.list(&dir.node, after, reply)), failed) else {
            break;
        };
        let part = &listing.entries[listing.start..];
        let Some(last) = part.last() else { break };
        assert!(last.cookie > after, "cookies ascend");
        after = last.cookie;
        names.extend(
            part.iter()
                .map(|entry| (entry.name.clone(), NodeWithAttr { node: entry.node, attr: entry.attr })),
        );
    }
    names.truncate(NAMES_MAX);
    names
}
