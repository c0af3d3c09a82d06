//! Receives the entries of a tree that becomes an image.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::entry::{Head, Kind, Open, Reading};
use super::error::shown;
use super::pipeline::{Counters, Feed, FileNumber};
use super::tree::{Node, NodeId, NodeKind, Tree, names};
use super::xattrs::Xattrs;
use super::{Options, Progress, WriteError};

/// Exclusions, stop flag and progress callback of a build.
pub struct BuildControl<'w> {
    /// Filter that returns true for entries to omit, with everything below them.
    pub excludes: &'w dyn Fn(&[u8]) -> bool,
    /// Flag that stops the build when set.
    pub stop: &'w AtomicBool,
    /// Callback that receives the progress periodically.
    pub progress: &'w mut dyn FnMut(Progress),
}

/// Receiver of a tree's entries.
pub struct TreeBuilder<'r, 'w> {
    pub(super) options: &'r Options,
    pub(super) watch: &'r mut BuildControl<'w>,
    pub(super) counters: &'r Counters,
    pub(super) feed: Feed<'r>,
    pub(super) begun: Instant,
    pub(super) last_report: Instant,
    pub(super) collected: Collected,
    later: Vec<DeferredFile>,
    /// Number of files of each size in bytes.
    sizes: HashMap<u64, u32>,
}

/// Entries and content locations of the whole tree.
pub(super) struct Collected {
    pub(super) tree: Tree,
    pub(super) xattrs: Xattrs,
    /// Number of each file's content in the pipeline.
    pub(super) files: Vec<Option<FileNumber>>,
    /// Number of entries of unknown type.
    pub(super) unknown_types: u64,
}

/// A file whose content is read after all entries are known.
struct DeferredFile {
    path: Vec<u8>,
    node: NodeId,
    file: usize,
    size: u64,
    content: Box<dyn Open>,
}

/// Interval of progress reports.
const TICK: Duration = Duration::from_millis(200);

impl<'r, 'w> TreeBuilder<'r, 'w> {
    pub(super) fn new(
        options: &'r Options,
        watch: &'r mut BuildControl<'w>,
        counters: &'r Counters,
        feed: Feed<'r>,
    ) -> Self {
        let now = Instant::now();
        let collected = Collected {
            tree: Tree::new(options),
            xattrs: Xattrs::default(),
            files: Vec::new(),
            unknown_types: 0,
        };
        Self {
            options,
            watch,
            counters,
            feed,
            begun: now,
            last_report: now,
            collected,
            later: Vec::new(),
            sizes: HashMap::new(),
        }
    }

    /// Returns true if an entry is wanted. Unwanted entries, and the entries of unwanted directories, need
    /// not be passed on.
    pub fn wants(&self, path: &[u8]) -> bool {
        let Ok(names) = names(path) else { return true };
        let mut above = Vec::with_capacity(path.len());
        names.iter().all(|name| {
            if !above.is_empty() {
                above.push(b'/');
            }
            above.extend_from_slice(name);
            !(self.watch.excludes)(&above)
        })
    }

    /// Adds an entry that is not a regular file.
    pub fn add(&mut self, head: Head, kind: Kind) -> Result<(), WriteError> {
        if !self.wants(&head.path) {
            return Ok(());
        }
        let kind = match kind {
            Kind::Directory => NodeKind::Directory(BTreeMap::new()),
            other => NodeKind::Other(other),
        };
        self.put(head, kind)?;
        self.tick()
    }

    /// Adds another name of the entry `of`.
    pub fn link(&mut self, path: &[u8], of: &[u8]) -> Result<(), WriteError> {
        if !self.wants(path) {
            return Ok(());
        }
        let found = self.collected.tree.find(of)?;
        let tree = &self.collected.tree;
        let found = found.filter(|id| tree.nodes.get(*id).is_some_and(|node| !node.is_directory()));
        let Some(id) = found else {
            let reason = format!("it is another name of {}, which is not in the image", shown(of));
            return Err(WriteError::Refused { path: shown(path), reason });
        };
        self.collected.tree.add_name(path, id, self.options)?;
        self.tick()
    }

    /// Adds a regular file whose content can be read at any time.
    pub fn file(&mut self, head: Head, size: u64, content: Box<dyn Open>) -> Result<(), WriteError> {
        if !self.wants(&head.path) {
            return Ok(());
        }
        let path = head.path.clone();
        let (node, file) = self.put_file(head)?;
        *self.sizes.entry(size).or_default() += 1;
        self.later.push(DeferredFile { path, node, file, size, content });
        self.tick()
    }

    /// Adds a regular file whose content must be read now.
    pub fn file_now(&mut self, head: Head, size: u64, content: &mut dyn Reading) -> Result<(), WriteError> {
        if !self.wants(&head.path) {
            return Ok(());
        }
        let path = head.path.clone();
        let (_, file) = self.put_file(head)?;
        // Later files are unknown, so each may have a duplicate.
        let number = self.feed.stream(&path, size, content, self.options.duplicates, false)?;
        *self.sizes.entry(size).or_default() += 2;
        self.place(file, number);
        self.tick()
    }

    /// Counts entries of unknown type, which were added as regular files.
    pub fn note_unknown_types(&mut self, count: u64) {
        self.collected.unknown_types += count;
    }

    /// Feeds the deferred contents to the pipeline, in the order of [`Options::order`].
    pub(super) fn finish(mut self) -> Result<Collected, WriteError> {
        let mut later = std::mem::take(&mut self.later);
        let clean = |path: &[u8]| names(path).map(|names| names.join(&b'/')).unwrap_or_default();
        let order = self.options.order.iter().enumerate();
        let order: HashMap<Vec<u8>, usize> = order.rev().map(|(place, path)| (clean(path), place)).collect();
        if !order.is_empty() {
            // The sort is stable: files without a position of their own keep their order.
            later.sort_by_key(|later| order.get(&clean(&later.path)).copied().unwrap_or(usize::MAX));
        }
        for DeferredFile { path, node, file, size, content } in later {
            let is_gone = self.collected.tree.nodes.get(node).is_none_or(|node| node.names == 0);
            if is_gone {
                continue;
            }
            let digest = self.options.duplicates && self.sizes.get(&size).is_some_and(|count| *count > 1);
            let number = self.feed.later(path, size, content, digest)?;
            self.place(file, number);
            self.tick()?;
        }
        Ok(self.collected)
    }

    fn put_file(&mut self, head: Head) -> Result<(NodeId, usize), WriteError> {
        let file = self.collected.files.len();
        let node = self.put(head, NodeKind::File(file))?;
        self.collected.files.push(None);
        Ok((node, file))
    }

    fn place(&mut self, file: usize, number: FileNumber) {
        if let Some(slot) = self.collected.files.get_mut(file) {
            *slot = Some(number);
        }
    }

    fn put(&mut self, head: Head, kind: NodeKind) -> Result<NodeId, WriteError> {
        let xattrs = match self.options.xattrs {
            true => self.collected.xattrs.add(&head)?,
            false => None,
        };
        let node = Node::new(&head, kind, self.options, xattrs);
        self.collected.tree.put(&head.path, node, self.options)
    }

    fn tick(&mut self) -> Result<(), WriteError> {
        if self.watch.stop.load(Ordering::Relaxed) {
            return Err(WriteError::Interrupted);
        }
        if self.last_report.elapsed() >= TICK {
            self.last_report = Instant::now();
            let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
            (self.watch.progress)(Progress {
                entries: self.collected.tree.nodes.len() as u64,
                files: load(&self.counters.files),
                bytes: load(&self.counters.bytes),
                elapsed: self.begun.elapsed(),
            });
        }
        Ok(())
    }
}
