//! Determines which chunks of libraries and executables in use are prefetched.
//!
//! A small file is fetched whole. The headers of a large file tell what the dynamic loader will read ([`Layout`]), and
//! its relocations tell which functions the loader will call ([`Constructors`]): those chunks are fetched at once.
//! Other code runs here and there, but the linker places code that runs together side by side, so once several chunks
//! near each other were missed, those around them are fetched too ([`Regions`]). All other mapped chunks are the
//! remaining ones ([`RemainingChunks`](super::remaining::RemainingChunks)). The file also names the libraries that it
//! needs ([`elf_needed`](super::elf_needed)), which are prefetched before the loader opens them.
//!
//! A file that is only expected to be used is a low-confidence candidate: the chunks that describe it are charged to
//! the budget, and the remaining chunks wait until the file is in use. Chunks that could not be fetched during an
//! outage, or were evicted, are fetched when the file is read again.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::mem;
use std::ops::Range;
use std::sync::Arc;

use esker_format::catalog::Chunk;
use esker_format::compress::Compression;
use esker_format::elf::{Constructors, Dynamic, HEAD, Layout};
use esker_format::object::{ObjectKind, ObjectName};
use esker_store::{CacheKey, Handle, ObjectRequest};
use esker_vfs::NodeKey;

use crate::candidate::Candidate;
use crate::elf_needed::{NeededLibraries, NeededNames};
use crate::{objects, remaining};

/// Maximum size in plain bytes of a file that is fetched whole.
const SMALL_MAX: u64 = 32 << 20;
/// Sizes of aligned regions in chunks, and how many misses in one cause its prefetch.
///
/// Found by replaying the misses of `import tensorflow` in three libraries: 20 misses in place of 56 for 10 unread
/// chunks; one miss fewer leaves 16 misses for 39 unread chunks, one more leaves 23 for 7.
const REGIONS: [(usize, usize); 2] = [(4, 2), (16, 3)];
/// Maximum number of tracked files.
const TRACKED_MAX: usize = 4096;
/// Number of repeated misses of one file after which it counts as evicted.
///
/// Fewer may be chunks that arrived between the miss and this check.
pub const EVICTED: usize = 3;
/// Maximum number of recorded misses of one file.
const MISSES_MAX: usize = 4096;

/// A library or executable.
#[derive(Clone, Debug)]
pub struct ElfFile {
    /// Path of the file.
    pub path: Box<[u8]>,
    /// Chunks of the file; a single one if the file is one object.
    pub chunks: Arc<[Chunk]>,
    compression: Compression,
    kind: ObjectKind,
}

impl ElfFile {
    /// Returns a file that consists of chunks.
    pub fn chunked(path: &[u8], chunks: Arc<[Chunk]>, compression: Compression) -> Self {
        Self { path: path.into(), chunks, compression, kind: ObjectKind::Chunk }
    }

    /// Returns a file that consists of one object.
    pub fn whole(path: &[u8], content: CacheKey, size: u64) -> Self {
        let chunks = [Chunk { offset: 0, size, hash: content.hash }].into();
        Self { path: path.into(), chunks, compression: content.compression, kind: ObjectKind::File }
    }

    fn len(&self) -> u64 {
        self.chunks.last().map_or(0, |last| last.offset.saturating_add(last.size))
    }

    /// Returns true if the file is fetched whole.
    pub fn is_small(&self) -> bool {
        self.len() <= SMALL_MAX
    }

    /// Returns the request for a chunk.
    pub fn wanted(&self, chunk: &Chunk) -> ObjectRequest {
        let object = ObjectName::new(chunk.hash, self.kind);
        ObjectRequest::new(object, self.compression, String::from_utf8_lossy(&self.path)).size(chunk.size)
    }

    /// Returns the candidate for a chunk.
    pub fn candidate(&self, chunk: &Chunk) -> Candidate {
        Candidate::new(self.wanted(chunk), chunk.size)
    }

    /// Returns the number of the chunk in which a range of the file begins, if there is such a chunk.
    fn number_of(&self, part: &Range<u64>) -> Option<usize> {
        Some(remaining::chunk_at(&self.chunks, part.start)).filter(|number| *number < self.chunks.len())
    }

    /// Returns the numbers of the chunks with these bytes.
    fn numbers_of(&self, part: &Range<u64>) -> Range<usize> {
        let first = remaining::chunk_at(&self.chunks, part.start);
        let last = remaining::chunk_at(&self.chunks, part.end.saturating_sub(1));
        first..last.saturating_add(1).min(self.chunks.len())
    }

    /// Returns the chunks with any of these bytes, each once, however often the headers name it.
    fn chunks_of(&self, parts: impl IntoIterator<Item = Range<u64>>) -> Vec<Chunk> {
        let mut is_taken = vec![false; self.chunks.len()];
        let mut taken = Vec::new();
        for number in parts.into_iter().flat_map(|part| self.numbers_of(&part)) {
            if !mem::replace(&mut is_taken[number], true) {
                taken.push(self.chunks[number]);
            }
        }
        taken
    }

    /// Returns the bytes of a range of the file that are in the chunk that has arrived.
    fn read(&self, arrived: &ArrivedChunk<'_>, part: &Range<u64>) -> Vec<u8> {
        let Some(chunk) = self.chunks.get(arrived.number) else { return Vec::new() };
        let start = part.start.max(chunk.offset);
        let len = part.end.min(chunk.offset.saturating_add(chunk.size)).saturating_sub(start);
        objects::read(arrived.handle, start - chunk.offset, usize::try_from(len).unwrap_or(0))
    }
}

/// Part of a file in flight whose content determines the next reads.
enum Awaited {
    Head,
    Dynamic(Layout),
    NeededNames(NeededNames),
    Relocations(Layout, Constructors),
}

/// A chunk that has arrived.
struct ArrivedChunk<'h> {
    number: usize,
    handle: &'h Handle,
}

/// Tracks the files, and the chunks that are awaited of them.
#[derive(Default)]
pub struct ElfFiles {
    /// Tracked files by node.
    pub known: HashMap<NodeKey, TrackedElf>,
    /// Chunks of expected files that are being prefetched because they describe the file.
    pub prefetching: HashMap<CacheKey, (NodeKey, usize)>,
    /// Files whose chunks are requested once no bundle is being fetched.
    pub waiting_for_bundle: Vec<NodeKey>,
}

/// A file, and the state of its prefetch.
pub struct TrackedElf {
    /// Path of the file.
    pub elf_file: ElfFile,
    /// True if a program reads the file.
    pub in_use: bool,
    /// Awaited parts: number of the chunk, kind of the part, and whether the chunk was requested.
    awaited: Vec<(usize, Awaited, bool)>,
    /// Chunks that were missed.
    pub regions: Regions,
    /// Numbers of the chunks that were queued and not missed since.
    pub queued: HashSet<usize>,
    /// Number of chunks that were missed although they had been queued.
    pub missed_again: usize,
    /// Findings in the chunks of a file that is not in use yet.
    pub findings: ElfFindings,
}

/// Numbers of the chunks of a file that were missed.
#[derive(Default)]
pub struct Regions {
    /// Missed chunks, except those that the loader reads.
    missed: BTreeSet<usize>,
    /// Chunks that the loader reads whatever code runs; they do not predict reads around them.
    loaded: BTreeSet<usize>,
}

impl Regions {
    /// Records chunks that the loader reads.
    fn loaded(&mut self, chunks: impl IntoIterator<Item = usize>) {
        for chunk in chunks {
            self.missed.remove(&chunk);
            self.loaded.insert(chunk);
        }
    }

    /// Records a miss in a file of `of` chunks; returns the chunks that will probably be read with it.
    pub fn missed(&mut self, chunk: usize, of: usize) -> Range<usize> {
        if self.loaded.contains(&chunk) {
            return chunk..chunk;
        }
        if self.missed.len() < MISSES_MAX {
            self.missed.insert(chunk);
        }
        let around = |size: usize| chunk / size * size..(chunk / size * size).saturating_add(size).min(of);
        let is_used = |(size, misses): &&(usize, usize)| self.missed.range(around(*size)).count() >= *misses;
        REGIONS.iter().rfind(is_used).map_or(chunk..chunk, |(size, _)| around(*size))
    }
}

/// Evidence that chunks of a file give about its use.
#[derive(Default)]
pub struct ElfFindings {
    /// Chunks that the loader reads.
    pub soon: Vec<Chunk>,
    /// All other mapped chunks, and whether each is code.
    pub rest: Vec<(Chunk, bool)>,
    /// Numbers of the chunks that describe the file further, and the kind of the part in each.
    next: Vec<(usize, Awaited)>,
    /// Libraries that the file needs, once their names were read.
    pub needs: Option<NeededLibraries>,
}

impl ElfFiles {
    /// Returns the state of a file, new if the file is not tracked.
    pub fn track(&mut self, key: NodeKey, elf_file: &ElfFile) -> &mut TrackedElf {
        if self.known.len() >= TRACKED_MAX && !self.known.contains_key(&key) {
            self.clear();
        }
        self.known.entry(key).or_insert_with(|| TrackedElf {
            elf_file: elf_file.clone(),
            in_use: false,
            awaited: vec![(0, Awaited::Head, false)],
            regions: Regions::default(),
            queued: HashSet::new(),
            missed_again: 0,
            findings: ElfFindings::default(),
        })
    }

    /// Records that a chunk of a file is queued.
    pub fn queued(&mut self, key: &NodeKey, chunk: &Chunk) {
        if let Some(known) = self.known.get_mut(key) {
            known.queued.insert(remaining::chunk_at(&known.elf_file.chunks, chunk.offset));
        }
    }

    /// Removes all files. Their queued chunks were dropped, so each file starts over.
    pub fn clear(&mut self) {
        self.known.clear();
        self.prefetching.clear();
        self.waiting_for_bundle.clear();
    }
}

impl TrackedElf {
    /// Returns the numbers of the chunks to request; those of a file in use are returned once.
    pub fn chunks_to_request(&mut self) -> BTreeSet<usize> {
        let mut numbers = BTreeSet::new();
        for (number, _, is_requested) in &mut self.awaited {
            // The chunks of an expected file are requested again once the file is in use.
            if !mem::replace(is_requested, self.in_use) {
                numbers.insert(*number);
            }
        }
        numbers
    }

    /// Records that an awaited chunk could not be fetched; the next read of the file requests it again.
    pub fn fetch_failed(&mut self, number: usize) {
        self.in_use = false;
        for (_, _, is_asked_for) in self.awaited.iter_mut().filter(|(awaited, ..)| *awaited == number) {
            *is_asked_for = false;
        }
    }

    /// Evaluates an awaited chunk that has arrived.
    pub fn arrived(&mut self, number: usize, handle: &Handle) -> ElfFindings {
        let Self { elf_file, awaited, regions, .. } = self;
        let arrived = ArrivedChunk { number, handle };
        let mut all = ElfFindings::default();
        // A part may point to another part in the same chunk.
        while let Some(place) = awaited.iter().position(|(awaited, ..)| *awaited == number) {
            let findings = match awaited.swap_remove(place).1 {
                Awaited::Head => evaluate_head(elf_file, &arrived),
                Awaited::Dynamic(layout) => evaluate_dynamic(elf_file, layout, &arrived),
                Awaited::NeededNames(names) => evaluate_names(elf_file, names, &arrived),
                Awaited::Relocations(layout, constructors) => {
                    evaluate_relocations(elf_file, layout, constructors, &arrived)
                }
            };
            awaited.extend(findings.next.into_iter().map(|(number, what)| (number, what, false)));
            if !elf_file.is_small() {
                all.soon.extend(findings.soon);
                all.rest.extend(findings.rest);
            }
            all.needs = findings.needs.or(all.needs);
        }
        let number_of = |chunk: &Chunk| remaining::chunk_at(&elf_file.chunks, chunk.offset);
        regions.loaded(all.soon.iter().map(number_of).chain([number]));
        all
    }
}

fn evaluate_head(elf_file: &ElfFile, arrived: &ArrivedChunk<'_>) -> ElfFindings {
    let Some(layout) = Layout::of(&elf_file.read(arrived, &(0..HEAD as u64))) else {
        // The format is unknown, so any part may be read.
        let rest = elf_file.chunks.iter().map(|chunk| (*chunk, true)).collect();
        return ElfFindings { rest, ..ElfFindings::default() };
    };
    let soon = elf_file.chunks_of(layout.written());
    match layout.dynamic.as_ref().and_then(|dynamic| elf_file.number_of(dynamic)) {
        Some(number) => {
            ElfFindings { soon, next: vec![(number, Awaited::Dynamic(layout))], ..ElfFindings::default() }
        }
        None => ElfFindings { soon, rest: mapped(elf_file, &layout), ..ElfFindings::default() },
    }
}

fn evaluate_dynamic(elf_file: &ElfFile, layout: Layout, arrived: &ArrivedChunk<'_>) -> ElfFindings {
    let dynamic = Dynamic::of(&elf_file.read(arrived, &layout.dynamic.clone().unwrap_or_default()));
    let mut parts = layout.tables(&dynamic);
    let rest = mapped(elf_file, &layout);
    let mut next = Vec::new();
    if let Some(names) = NeededNames::of(&layout, &dynamic)
        && let Some(number) = names.next().and_then(|part| elf_file.number_of(part))
    {
        next.push((number, Awaited::NeededNames(names)));
    }
    // A small file is fetched whole anyway.
    if !elf_file.is_small()
        && let Some(constructors) = layout.constructors(&dynamic)
    {
        let in_place = constructors.in_place(&layout, &elf_file.read(arrived, &constructors.array));
        if in_place.is_empty()
            && let Some(number) =
                constructors.relocations.as_ref().and_then(|table| elf_file.number_of(table))
        {
            next.push((number, Awaited::Relocations(layout, constructors)));
        }
        parts.extend(in_place);
    }
    ElfFindings { soon: elf_file.chunks_of(parts), rest, next, needs: None }
}

fn evaluate_names(elf_file: &ElfFile, mut names: NeededNames, arrived: &ArrivedChunk<'_>) -> ElfFindings {
    let is_here = |part: &Range<u64>| elf_file.number_of(part) == Some(arrived.number);
    names.take(is_here, |part| elf_file.read(arrived, part));
    match names.next().and_then(|part| elf_file.number_of(part)) {
        Some(number) => {
            ElfFindings { next: vec![(number, Awaited::NeededNames(names))], ..ElfFindings::default() }
        }
        None => ElfFindings { needs: Some(names.found), ..ElfFindings::default() },
    }
}

fn evaluate_relocations(
    elf_file: &ElfFile,
    layout: Layout,
    constructors: Constructors,
    arrived: &ArrivedChunk<'_>,
) -> ElfFindings {
    let table = constructors.relocations.clone().unwrap_or_default();
    let start = elf_file.chunks.get(arrived.number).map_or(0, |chunk| chunk.offset);
    let into = start.saturating_sub(table.start);
    let functions = constructors.relocated(&layout, &elf_file.read(arrived, &table), into);
    let next = arrived.number.saturating_add(1);
    let goes_on = elf_file.chunks.get(next).is_some_and(|it| it.offset < table.end);
    let more = goes_on.then_some((next, Awaited::Relocations(layout, constructors)));
    ElfFindings { soon: elf_file.chunks_of(functions), next: Vec::from_iter(more), ..ElfFindings::default() }
}

/// Returns the mapped chunks and whether each is code. Code comes first, since programs read it most.
fn mapped(elf_file: &ElfFile, layout: &Layout) -> Vec<(Chunk, bool)> {
    let part = |chunk: &Chunk| chunk.offset..chunk.offset.saturating_add(chunk.size);
    let mapped = elf_file.chunks.iter().filter(|chunk| layout.is_mapped(&part(chunk)));
    let mut rest: Vec<_> = mapped.map(|chunk| (*chunk, layout.is_code(&part(chunk)))).collect();
    rest.sort_by_key(|(_, is_code)| !is_code);
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_prefetched_after_several_misses() {
        let mut regions = Regions::default();
        let mut missed = |chunk| regions.missed(chunk, 40);
        assert!(missed(17).is_empty());
        assert!(missed(17).is_empty(), "the same again tells nothing");
        assert_eq!(missed(18), 16..20, "two of four");
        assert_eq!(missed(30), 16..32, "three of sixteen");
        assert!(missed(2).is_empty());
        assert!(missed(32).is_empty());
        assert_eq!(missed(33), 32..36);
        assert_eq!(missed(39), 32..40, "up to the end of the file");
    }

    #[test]
    fn chunks_read_by_the_loader_do_not_count_as_misses_of_a_region() {
        let mut regions = Regions::default();
        assert!(regions.missed(0, 40).is_empty());
        regions.loaded([0, 1, 2]);
        for chunk in [1, 3, 2] {
            assert!(regions.missed(chunk, 40).is_empty(), "{chunk}");
        }
        assert_eq!(regions.missed(5, 40), 5..5);
        assert_eq!(regions.missed(6, 40), 0..16, "three that others read");
    }
}
