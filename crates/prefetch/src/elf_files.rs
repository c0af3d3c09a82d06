//! Determines which chunks of libraries and executables in use are prefetched.
//!
//! A small file is fetched whole. The headers of a large file tell what the dynamic loader will read ([`Layout`](esker_format::elf::Layout)), and
//! its relocations tell which functions the loader will call ([`Constructors`](esker_format::elf::Constructors)): those chunks are fetched at once.
//! Other code runs here and there, but the linker places code that runs together side by side, so once several chunks
//! near each other were missed, those around them are fetched too (`Regions`). All other mapped chunks are the
//! remaining ones ([`RemainingChunks`](super::remaining::RemainingChunks)). The file also names the libraries that it
//! needs ([`elf_needed`](super::elf_needed)), which are prefetched before the loader opens them.
//!
//! A file that is only expected to be used is a low-confidence candidate: the chunks that describe it are charged to
//! the budget, and the remaining chunks wait until the file is in use. Chunks that could not be fetched during an
//! outage, or were evicted, are fetched when the file is read again.

mod file;
mod tracked;

use std::collections::HashMap;
use std::mem;

use esker_format::catalog::{Chunk, is_name};
use esker_format::path::join;
use esker_store::{CacheKey, Handle};
use esker_vfs::NodeKey;

use crate::elf_needed::NeededSearch;
use crate::event::{Ended, Event, Outcome, Purpose, Read, Source};
use crate::predictor::{Context, Predictor, TRIES_MAX};
use crate::remaining;
pub use file::ElfFile;
use tracked::{ElfFindings, TrackedElf};

/// Maximum number of tracked files.
const TRACKED_MAX: usize = 4096;
/// Number of repeated misses of one file after which it counts as evicted.
///
/// Fewer may be chunks that arrived between the miss and this check.
const EVICTED: usize = 3;
/// Maximum size in bytes of a library or executable that is fetched whole because a part of it is used.
const WHOLE_MAX: u64 = 2 << 30;

/// Tracks the files, and the chunks that are awaited of them.
#[derive(Default)]
pub(crate) struct ElfFiles {
    /// Tracked files by node.
    known: HashMap<NodeKey, TrackedElf>,
    /// Chunks of expected files that are being prefetched because they describe the file.
    prefetching: HashMap<CacheKey, (NodeKey, usize)>,
    /// Files whose chunks are requested once no bundle is being fetched.
    waiting_for_bundle: Vec<NodeKey>,
}

impl ElfFiles {
    /// Returns the state of a file, new if the file is not tracked.
    fn track(&mut self, key: NodeKey, elf_file: &ElfFile) -> &mut TrackedElf {
        if self.known.len() >= TRACKED_MAX && !self.known.contains_key(&key) {
            self.start_over();
        }
        self.known.entry(key).or_insert_with(|| TrackedElf::new(elf_file.clone()))
    }

    /// Removes all files: their queued chunks were dropped.
    fn start_over(&mut self) {
        self.known.clear();
        self.prefetching.clear();
        self.waiting_for_bundle.clear();
    }

    /// Records that a chunk of a file is queued.
    fn queued(&mut self, key: &NodeKey, chunk: &Chunk) {
        if let Some(known) = self.known.get_mut(key) {
            known.queued(chunk);
        }
    }

    /// Handles a miss in a file that consists of chunks; returns it with the chunks if the file is no library or
    /// executable, or if a bundle names the chunks that programs read.
    fn chunk_missed<C>(&mut self, mut read: Read, context: &mut Context<'_, C>) -> Option<Read> {
        let (key, node) = (read.file.node.key, &read.file.node);
        let compression = read.file.compression?;
        let chunks = context.world.open_chunks(&key).or_else(|| context.world.chunks(node))?;
        let path = read.file.path.as_deref().unwrap_or_default();
        let is_program = read.file.size <= WHOLE_MAX && context.world.is_program(node);
        if !is_program || context.queue.remaining.is_announced(path) {
            read.chunks = Some((chunks, is_program));
            return Some(read);
        }
        let elf_file = ElfFile::chunked(path, chunks, compression);
        let missed = remaining::chunk_at(&elf_file.chunks, read.at);
        let is_expected = !read.is_surprise();
        if !is_expected && self.is_evicted(&key, missed, context) {
            self.known.remove(&key);
        }
        self.used(key, &elf_file, missed, context);
        if !elf_file.is_small()
            && !is_expected
            && let Some(known) = self.known.get_mut(&key)
        {
            let region = known.regions.missed(missed, elf_file.chunks.len());
            self.queue_soon(key, &elf_file, &elf_file.chunks[region], context);
        }
        None
    }

    /// Records a miss of a chunk that is not being fetched; returns true if the file was probably evicted.
    fn is_evicted<C>(&mut self, key: &NodeKey, missed: usize, context: &Context<'_, C>) -> bool {
        let Some(known) = self.known.get_mut(key) else { return false };
        let is_left = |chunk| context.queue.remaining.is_queued(&known.elf_file.wanted(chunk).key());
        if !known.elf_file.chunks.get(missed).is_some_and(is_left) && known.queued.remove(&missed) {
            known.missed_again += 1;
        }
        known.missed_again >= EVICTED
    }

    /// Handles a read of a prefetched chunk.
    fn chunk_read<C>(&mut self, key: NodeKey, at: u64, context: &mut Context<'_, C>) {
        if let Some(known) = self.known.get(&key).filter(|known| !known.in_use) {
            let elf_file = known.elf_file.clone();
            let read = remaining::chunk_at(&elf_file.chunks, at);
            self.used(key, &elf_file, read, context);
        }
    }

    /// Handles a read of a small file.
    fn small_read<C>(&mut self, read: &Read, context: &mut Context<'_, C>) {
        if let (Some(path), Some(content)) = (read.small_file(), read.file.content)
            && context.world.is_program(&read.file.node)
        {
            let elf_file = ElfFile::whole(path, content, read.file.size);
            self.used(read.file.node.key, &elf_file, 0, context);
        }
    }

    /// Handles the first read of a library or executable, in the chunk `read`.
    fn used<C>(&mut self, key: NodeKey, elf_file: &ElfFile, read: usize, context: &mut Context<'_, C>) {
        let known = self.track(key, elf_file);
        if mem::replace(&mut known.in_use, true) {
            return;
        }
        let findings = mem::take(&mut known.findings);
        if elf_file.is_small() {
            self.queue_soon(key, elf_file, remaining::around(&elf_file.chunks, read), context);
        } else {
            context.queue.remaining.hurries(context.world.is_far());
            self.queue_findings(key, elf_file, &findings, context);
        }
        self.await_parts(key, context);
    }

    /// Handles libraries that will probably be used.
    fn expected<C>(&mut self, expected: &[(NodeKey, ElfFile)], context: &mut Context<'_, C>) {
        for (key, elf_file) in expected.iter().rev() {
            self.track(*key, elf_file);
            self.await_parts(*key, context);
        }
    }

    /// Requests the chunks that describe a file, unless a bundle names the file.
    fn await_parts<C>(&mut self, key: NodeKey, context: &mut Context<'_, C>) {
        let Some(known) = self.known.get_mut(&key) else { return };
        if context.queue.remaining.is_announced(&known.elf_file.path) {
            return;
        }
        if context.queue.remaining.awaits_spec() {
            return self.waiting_for_bundle.push(key);
        }
        let (elf_file, in_use) = (known.elf_file.clone(), known.in_use);
        for number in known.chunks_to_request() {
            let Some(chunk) = elf_file.chunks.get(number) else { continue };
            let candidate = elf_file.candidate(chunk);
            if in_use {
                context.open(candidate.wanted, Purpose::ElfPart(key, number));
            } else if self.prefetching.insert(candidate.wanted.key(), (key, number)).is_none() {
                context.queue.push_first(candidate);
            }
        }
    }

    /// Handles the end of a prefetch; opens the object if its chunk describes a file.
    fn prefetched<C>(&mut self, ended: &Ended, context: &mut Context<'_, C>) {
        if let Some((file, number)) = self.prefetching.remove(&ended.key)
            && ended.outcome != Outcome::Failed
            && let Some(known) = self.known.get(&file)
            && let Some(chunk) = known.elf_file.chunks.get(number)
        {
            context.open(known.elf_file.wanted(chunk), Purpose::ElfPart(file, number));
        }
    }

    /// Evaluates a chunk that describes a file; `None` if it could not be fetched.
    fn part_opened<C>(
        &mut self,
        key: NodeKey,
        number: usize,
        handle: Option<&Handle>,
        context: &mut Context<'_, C>,
    ) {
        let Some(known) = self.known.get_mut(&key) else { return };
        let Some(handle) = handle else { return known.fetch_failed(number) };
        let mut findings = known.arrived(number, handle);
        let elf_file = known.elf_file.clone();
        // A bundle that has arrived meanwhile is more precise.
        if context.queue.remaining.is_announced(&elf_file.path) {
            return;
        }
        let needs = findings.needs.take();
        if known.in_use {
            self.queue_findings(key, &elf_file, &findings, context);
        } else {
            known.findings.soon.extend(findings.soon);
            known.findings.rest.extend(findings.rest);
        }
        self.await_parts(key, context);
        if let Some(needs) = needs {
            self.find_needed(NeededSearch { path: elf_file.path, needs, tries: 0 }, context);
        }
    }

    /// Finds the libraries that a file needs.
    fn find_needed<C>(&mut self, search: NeededSearch, context: &mut Context<'_, C>) {
        let folders = search.folders(context.world.repository());
        let mut find =
            |library: &[u8]| folders.iter().find_map(|folder| context.world.elf_file(&join(folder, library)));
        let libraries = search.needs.libraries.iter().filter(|name| !name.is_empty() && is_name(name));
        let found: Vec<_> = libraries.filter_map(|name| find(name)).collect();
        self.expected(&found, context);
        let tries = search.tries + 1;
        context.attach_missing(|| {
            (tries <= TRIES_MAX).then(|| Event::LibrariesNeeded(NeededSearch { tries, ..search }))
        });
    }

    fn queue_findings<C>(
        &mut self,
        key: NodeKey,
        elf_file: &ElfFile,
        findings: &ElfFindings,
        context: &mut Context<'_, C>,
    ) {
        self.queue_soon(key, elf_file, &findings.soon, context);
        for (chunk, is_code) in &findings.rest {
            if context.queue.remaining.push(&elf_file.path, elf_file.candidate(chunk), *is_code) {
                self.queued(&key, chunk);
            }
        }
    }

    /// Queues chunks that will be read soon.
    fn queue_soon<'f, C>(
        &mut self,
        key: NodeKey,
        elf_file: &ElfFile,
        chunks: impl IntoIterator<Item = &'f Chunk>,
        context: &mut Context<'_, C>,
    ) {
        for chunk in chunks {
            let candidate = elf_file.candidate(chunk);
            if context.queue.admit(candidate.wanted.key()) {
                context.queue.remaining.push_soon(&elf_file.path, candidate);
                self.queued(&key, chunk);
            }
        }
    }
}

impl<C> Predictor<C> for ElfFiles {
    fn on(&mut self, event: Event<C>, context: &mut Context<'_, C>) -> Option<Event<C>> {
        match event {
            Event::Read(read) if !read.file.is_chunked => {
                self.small_read(&read, context);
                return Some(Event::Read(read));
            }
            Event::Read(read) if matches!(read.source, Source::Server { .. }) => {
                return self.chunk_missed(read, context).map(Event::Read);
            }
            Event::Read(read) => self.chunk_read(read.file.node.key, read.at, context),
            Event::Ended(ended) => {
                self.prefetched(&ended, context);
                return Some(event);
            }
            Event::Opened(Purpose::ElfPart(file, number), handle) => {
                self.part_opened(file, number, handle.as_ref(), context);
            }
            Event::LibrariesExpected(libraries) => self.expected(&libraries, context),
            Event::LibrariesNeeded(search) => self.find_needed(search, context),
            Event::BundleArrived => {
                for key in mem::take(&mut self.waiting_for_bundle) {
                    self.await_parts(key, context);
                }
            }
            other => return Some(other),
        }
        None
    }

    fn clear(&mut self) {
        self.start_over();
    }
}
