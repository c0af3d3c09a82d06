//! Tracks one library or executable, and parses its chunks.

use std::collections::{BTreeSet, HashSet};
use std::mem;
use std::ops::Range;

use esker_format::catalog::Chunk;
use esker_format::elf::{Constructors, Dynamic, HEAD, Layout};
use esker_store::Handle;

use super::file::ElfFile;
use crate::elf_needed::{NeededLibraries, NeededNames};
use crate::{objects, remaining};

/// Sizes of aligned regions in chunks, and how many misses in one cause its prefetch.
///
/// Found by replaying the misses of `import tensorflow` in three libraries: 20 misses in place of 56 for 10 unread
/// chunks; one miss fewer leaves 16 misses for 39 unread chunks, one more leaves 23 for 7.
const REGIONS: [(usize, usize); 2] = [(4, 2), (16, 3)];
/// Maximum number of recorded misses of one file.
const MISSES_MAX: usize = 4096;

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

impl ArrivedChunk<'_> {
    /// Returns the bytes of a range of the file that are in the chunk.
    fn read(&self, elf_file: &ElfFile, part: &Range<u64>) -> Vec<u8> {
        let Some(chunk) = elf_file.chunks.get(self.number) else { return Vec::new() };
        let start = part.start.max(chunk.offset);
        let len = part.end.min(chunk.offset.saturating_add(chunk.size)).saturating_sub(start);
        objects::read(self.handle, start - chunk.offset, usize::try_from(len).unwrap_or(0))
    }
}

/// A file, and the state of its prefetch.
pub(super) struct TrackedElf {
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
pub(super) struct Regions {
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
    pub(super) fn missed(&mut self, chunk: usize, of: usize) -> Range<usize> {
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
pub(super) struct ElfFindings {
    /// Chunks that the loader reads.
    pub soon: Vec<Chunk>,
    /// All other mapped chunks, and whether each is code.
    pub rest: Vec<(Chunk, bool)>,
    /// Numbers of the chunks that describe the file further, and the kind of the part in each.
    next: Vec<(usize, Awaited)>,
    /// Libraries that the file needs, once their names were read.
    pub needs: Option<NeededLibraries>,
}

impl TrackedElf {
    /// Returns the state of a file that is not in use.
    pub(super) fn new(elf_file: ElfFile) -> Self {
        Self {
            elf_file,
            in_use: false,
            awaited: vec![(0, Awaited::Head, false)],
            regions: Regions::default(),
            queued: HashSet::new(),
            missed_again: 0,
            findings: ElfFindings::default(),
        }
    }

    /// Records that a chunk is queued.
    pub(super) fn queued(&mut self, chunk: &Chunk) {
        self.queued.insert(remaining::chunk_at(&self.elf_file.chunks, chunk.offset));
    }

    /// Returns the numbers of the chunks to request; those of a file in use are returned once.
    pub(super) fn chunks_to_request(&mut self) -> BTreeSet<usize> {
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
    pub(super) fn fetch_failed(&mut self, number: usize) {
        self.in_use = false;
        for (_, _, is_asked_for) in self.awaited.iter_mut().filter(|(awaited, ..)| *awaited == number) {
            *is_asked_for = false;
        }
    }

    /// Evaluates an awaited chunk that has arrived.
    pub(super) fn arrived(&mut self, number: usize, handle: &Handle) -> ElfFindings {
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
    let Some(layout) = Layout::of(&arrived.read(elf_file, &(0..HEAD as u64))) else {
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
    let dynamic = Dynamic::of(&arrived.read(elf_file, &layout.dynamic.clone().unwrap_or_default()));
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
        let in_place = constructors.in_place(&layout, &arrived.read(elf_file, &constructors.array));
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
    names.take(is_here, |part| arrived.read(elf_file, part));
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
    let functions = constructors.relocated(&layout, &arrived.read(elf_file, &table), into);
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
