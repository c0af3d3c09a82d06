//! Libraries and executables in use: which of their chunks come ahead of their use.
//!
//! A small one comes whole. Of a large one its own headers tell what the dynamic loader will read ([`Layout`]), and its
//! relocations which functions it will call ([`Constructors`]): that comes at once. Other code runs here and there, but what
//! runs together was put together by the linker, so once several chunks near each other were missed, those around them come
//! too ([`Regions`]). All else that is mapped is the rest ([`RemainingChunks`](super::remaining::RemainingChunks)). Which libraries one needs it tells
//! as well ([`needed`](super::elf_needed)), so these come before the loader asks for them.
//!
//! One that is only expected is a guess: what tells more of it is paid for, and the rest waits until it is in use.
//! What is not to be had during an outage, or was evicted, comes once the file is read again.

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

/// A file of up to so many plain bytes comes whole at once.
const SMALL_MAX: u64 = 32 << 20;
/// Chunks around those that were missed, aligned, and how many of them must have been missed. Found by replaying what
/// `import tensorflow` misses in three libraries: 20 misses in place of 56 for 10 chunks in vain; the same a miss earlier
/// leaves 16 for 39, a miss later 23 for 7.
const REGIONS: [(usize, usize); 2] = [(4, 2), (16, 3)];
/// Most files that are known.
const PROGRAMS_MAX: usize = 4096;
/// Once so many chunks of a file are missed that had come before, it was evicted. Fewer may have come while somebody
/// asked.
pub const EVICTED: usize = 3;
/// Most misses that are remembered of one.
const MISSES_MAX: usize = 4096;

/// A library or executable.
#[derive(Clone, Debug)]
pub struct ElfFile {
    /// Path of the file.
    pub path: Box<[u8]>,
    /// One for all of it, if it is one object.
    pub chunks: Arc<[Chunk]>,
    compression: Compression,
    kind: ObjectKind,
}

impl ElfFile {
    /// One in chunks.
    pub fn chunked(path: &[u8], chunks: Arc<[Chunk]>, compression: Compression) -> Self {
        Self { path: path.into(), chunks, compression, kind: ObjectKind::Chunk }
    }

    /// One that is one object.
    pub fn whole(path: &[u8], content: CacheKey, size: u64) -> Self {
        let chunks = [Chunk { offset: 0, size, hash: content.hash }].into();
        Self { path: path.into(), chunks, compression: content.compression, kind: ObjectKind::File }
    }

    fn len(&self) -> u64 {
        self.chunks.last().map_or(0, |last| last.offset.saturating_add(last.size))
    }

    /// Whether the file is fetched whole.
    pub fn is_small(&self) -> bool {
        self.len() <= SMALL_MAX
    }

    /// The object of a chunk.
    pub fn wanted(&self, chunk: &Chunk) -> ObjectRequest {
        let object = ObjectName::new(chunk.hash, self.kind);
        ObjectRequest::new(object, self.compression, String::from_utf8_lossy(&self.path)).size(chunk.size)
    }

    /// Returns the candidate for a chunk.
    pub fn candidate(&self, chunk: &Chunk) -> Candidate {
        Candidate::new(self.wanted(chunk), chunk.size)
    }

    /// The number of the chunk in which a part of the file begins, if it is one of its chunks.
    fn number_of(&self, part: &Range<u64>) -> Option<usize> {
        Some(remaining::chunk_at(&self.chunks, part.start)).filter(|number| *number < self.chunks.len())
    }

    /// The numbers of the chunks with these bytes.
    fn numbers_of(&self, part: &Range<u64>) -> Range<usize> {
        let first = remaining::chunk_at(&self.chunks, part.start);
        let last = remaining::chunk_at(&self.chunks, part.end.saturating_sub(1));
        first..last.saturating_add(1).min(self.chunks.len())
    }

    /// The chunks with any of these bytes, each once, however often headers name it.
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

    /// The bytes of a part of the file, as far as the chunk that has come has them.
    fn read(&self, came: &Came<'_>, part: &Range<u64>) -> Vec<u8> {
        let Some(chunk) = self.chunks.get(came.number) else { return Vec::new() };
        let start = part.start.max(chunk.offset);
        let len = part.end.min(chunk.offset.saturating_add(chunk.size)).saturating_sub(start);
        objects::read(came.handle, start - chunk.offset, usize::try_from(len).unwrap_or(0))
    }
}

/// What is on its way of a file to tell what is read of it next.
enum Awaited {
    Head,
    Dynamic(Layout),
    NeededNames(NeededNames),
    Relocations(Layout, Constructors),
}

/// The chunk that was awaited.
struct Came<'h> {
    number: usize,
    handle: &'h Handle,
}

/// The files, and what is awaited of them.
#[derive(Default)]
pub struct ElfFiles {
    /// By file.
    pub known: HashMap<NodeKey, TrackedElf>,
    /// Chunks that come as guesses, to tell more.
    pub guessed: HashMap<CacheKey, (NodeKey, usize)>,
    /// Files of which more is asked for once no bundle is on its way.
    pub held: Vec<NodeKey>,
}

/// A file, and what is known of its use.
pub struct TrackedElf {
    /// The file.
    pub elf_file: ElfFile,
    /// A program reads it.
    pub in_use: bool,
    /// With the number of the chunk, and whether it was asked for.
    awaited: Vec<(usize, Awaited, bool)>,
    /// The chunks that were missed.
    pub regions: Regions,
    /// The numbers of the chunks that were queued and not missed since, and how many were missed after that.
    pub queued: HashSet<usize>,
    /// How many of the queued chunks were missed.
    pub missed_again: usize,
    /// What its parts told, as long as it isn't in use.
    pub findings: ElfFindings,
}

/// The chunks of a file that were missed.
#[derive(Default)]
pub struct Regions {
    /// But for those that the loader reads.
    missed: BTreeSet<usize>,
    /// Those that the loader reads, whatever runs. They say nothing of what lies around them.
    loaded: BTreeSet<usize>,
}

impl Regions {
    /// The loader reads these.
    fn loaded(&mut self, chunks: impl IntoIterator<Item = usize>) {
        for chunk in chunks {
            self.missed.remove(&chunk);
            self.loaded.insert(chunk);
        }
    }

    /// One more was missed of so many: those that will probably be read with it.
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

/// What parts of a file told.
#[derive(Default)]
pub struct ElfFindings {
    /// What is read while it is loaded.
    pub soon: Vec<Chunk>,
    /// What else is mapped, and whether that is code.
    pub rest: Vec<(Chunk, bool)>,
    /// The numbers of the chunks that tell more, and what that is.
    next: Vec<(usize, Awaited)>,
    /// The libraries that the file needs, once their names were read.
    pub needs: Option<NeededLibraries>,
}

impl ElfFiles {
    /// Takes note of a file, if it is new.
    pub fn track(&mut self, key: NodeKey, elf_file: &ElfFile) -> &mut TrackedElf {
        if self.known.len() >= PROGRAMS_MAX && !self.known.contains_key(&key) {
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

    /// Notes that a chunk of a file is queued.
    pub fn queued(&mut self, key: &NodeKey, chunk: &Chunk) {
        if let Some(known) = self.known.get_mut(key) {
            known.queued.insert(remaining::chunk_at(&known.elf_file.chunks, chunk.offset));
        }
    }

    /// Forgets the files: what was queued of them is not queued any more, so each begins anew.
    pub fn clear(&mut self) {
        self.known.clear();
        self.guessed.clear();
        self.held.clear();
    }
}

impl TrackedElf {
    /// Returns the numbers of the chunks to request; those of a file in use are returned once.
    pub fn chunks_to_request(&mut self) -> BTreeSet<usize> {
        let mut numbers = BTreeSet::new();
        for (number, _, is_requested) in &mut self.awaited {
            // A candidate is requested again once its file is in use.
            if !mem::replace(is_requested, self.in_use) {
                numbers.insert(*number);
            }
        }
        numbers
    }

    /// A chunk that was awaited is not to be had now: whoever reads of the file next has it asked for again.
    pub fn is_lacking(&mut self, number: usize) {
        self.in_use = false;
        for (_, _, is_asked_for) in self.awaited.iter_mut().filter(|(awaited, ..)| *awaited == number) {
            *is_asked_for = false;
        }
    }

    /// A chunk that was awaited is there: what it tells.
    pub fn came(&mut self, number: usize, handle: &Handle) -> ElfFindings {
        let Self { elf_file, awaited, regions, .. } = self;
        let came = Came { number, handle };
        let mut all = ElfFindings::default();
        // What a part tells may be that it tells more.
        while let Some(place) = awaited.iter().position(|(awaited, ..)| *awaited == number) {
            let findings = match awaited.swap_remove(place).1 {
                Awaited::Head => head_came(elf_file, &came),
                Awaited::Dynamic(layout) => dynamic_came(elf_file, layout, &came),
                Awaited::NeededNames(names) => names_came(elf_file, names, &came),
                Awaited::Relocations(layout, constructors) => {
                    relocations_came(elf_file, layout, constructors, &came)
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

fn head_came(elf_file: &ElfFile, came: &Came<'_>) -> ElfFindings {
    let Some(layout) = Layout::of(&elf_file.read(came, &(0..HEAD as u64))) else {
        // Whatever it is, all of it may be read.
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

fn dynamic_came(elf_file: &ElfFile, layout: Layout, came: &Came<'_>) -> ElfFindings {
    let dynamic = Dynamic::of(&elf_file.read(came, &layout.dynamic.clone().unwrap_or_default()));
    let mut parts = layout.tables(&dynamic);
    let rest = mapped(elf_file, &layout);
    let mut next = Vec::new();
    if let Some(names) = NeededNames::of(&layout, &dynamic)
        && let Some(number) = names.next().and_then(|part| elf_file.number_of(part))
    {
        next.push((number, Awaited::NeededNames(names)));
    }
    // Of a small one all comes anyway.
    if !elf_file.is_small()
        && let Some(constructors) = layout.constructors(&dynamic)
    {
        let in_place = constructors.in_place(&layout, &elf_file.read(came, &constructors.array));
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

fn names_came(elf_file: &ElfFile, mut names: NeededNames, came: &Came<'_>) -> ElfFindings {
    let is_here = |part: &Range<u64>| elf_file.number_of(part) == Some(came.number);
    names.take(is_here, |part| elf_file.read(came, part));
    match names.next().and_then(|part| elf_file.number_of(part)) {
        Some(number) => {
            ElfFindings { next: vec![(number, Awaited::NeededNames(names))], ..ElfFindings::default() }
        }
        None => ElfFindings { needs: Some(names.found), ..ElfFindings::default() },
    }
}

fn relocations_came(
    elf_file: &ElfFile,
    layout: Layout,
    constructors: Constructors,
    came: &Came<'_>,
) -> ElfFindings {
    let table = constructors.relocations.clone().unwrap_or_default();
    let start = elf_file.chunks.get(came.number).map_or(0, |chunk| chunk.offset);
    let into = start.saturating_sub(table.start);
    let functions = constructors.relocated(&layout, &elf_file.read(came, &table), into);
    let next = came.number.saturating_add(1);
    let goes_on = elf_file.chunks.get(next).is_some_and(|it| it.offset < table.end);
    let more = goes_on.then_some((next, Awaited::Relocations(layout, constructors)));
    ElfFindings { soon: elf_file.chunks_of(functions), next: Vec::from_iter(more), ..ElfFindings::default() }
}

/// The chunks of which anything is mapped, and whether that is code, which comes first: it is what is read of it in the end.
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
    fn what_lies_around_comes_once_several_were_missed() {
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
    fn what_the_loader_reads_says_nothing_of_what_lies_around() {
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
