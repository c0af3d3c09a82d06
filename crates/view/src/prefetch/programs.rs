//! Libraries and executables in use: which of their chunks come ahead of their use.
//!
//! A small one comes whole. Of a large one its own headers tell what the dynamic loader will read ([`Layout`]): that comes at
//! once. Code runs here and there, but what runs together was put together by the linker, so once several chunks near each
//! other were missed, those around them come too ([`Regions`]). All else that is mapped is the rest
//! ([`Rests`](super::rest::Rests)).

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use esker_format::catalog::Chunk;
use esker_format::compress::Compression;
use esker_store::{Handle, Wanted};
use esker_vfs::NodeKey;

use crate::core::Core;

use super::elf::{HEAD, Layout};
use super::plan::{Guess, Planner};
use super::rest;
use super::{Event, objects};

/// A file of up to so many plain bytes comes whole at once.
const SMALL_MAX: u64 = 32 << 20;
/// Chunks around those that were missed, aligned, and how many of them must have been missed. Found by replaying what
/// `import tensorflow` misses in three libraries: 20 misses in place of 56 for 10 chunks in vain; the same a miss earlier
/// leaves 16 for 39, a miss later 23 for 7.
const REGIONS: [(usize, usize); 2] = [(4, 2), (16, 3)];
/// The round trip from which on a miss costs more than what the rest of the code takes of the processors: then that
/// doesn't wait for a time when nothing else happens.
const FAR: Duration = Duration::from_millis(2);
/// Most files that are known.
const PROGRAMS_MAX: usize = 1024;
/// Most misses that are remembered of one.
const MISSES_MAX: usize = 4096;

/// A file of which a chunk was missed.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) path: Box<[u8]>,
    pub(super) chunks: Arc<[Chunk]>,
    pub(super) compression: Compression,
}

impl Program {
    fn len(&self) -> u64 {
        self.chunks.last().map_or(0, |last| last.offset.saturating_add(last.size))
    }

    /// The object of a chunk.
    fn wanted(&self, chunk: &Chunk) -> Wanted {
        objects::chunk(chunk, self.compression, &String::from_utf8_lossy(&self.path))
    }

    fn guess(&self, chunk: &Chunk) -> Guess {
        Guess::new(self.wanted(chunk), chunk.size)
    }

    /// The numbers of the chunks with these bytes.
    fn numbers_of(&self, part: &Range<u64>) -> Range<usize> {
        let first = rest::chunk_at(&self.chunks, part.start);
        let last = rest::chunk_at(&self.chunks, part.end.saturating_sub(1));
        first..last.saturating_add(1).min(self.chunks.len())
    }

    /// The chunks with any of these bytes, each once, however often headers name it.
    fn chunks_of(&self, parts: impl IntoIterator<Item = Range<u64>>) -> Vec<Chunk> {
        let mut is_taken = vec![false; self.chunks.len()];
        let mut taken = Vec::new();
        for number in parts.into_iter().flat_map(|part| self.numbers_of(&part)) {
            if !std::mem::replace(&mut is_taken[number], true) {
                taken.push(self.chunks[number]);
            }
        }
        taken
    }

    /// The chunk that the dynamic section begins in.
    fn chunk_with_dynamic(&self, layout: &Layout) -> Option<&Chunk> {
        self.chunks.get(rest::chunk_at(&self.chunks, layout.dynamic.as_ref()?.start))
    }
}

/// What is on its way of a file to tell what the loader reads.
enum Awaited {
    Head,
    Dynamic(Layout),
}

/// The files, and what is awaited of them.
#[derive(Default)]
pub(super) struct Programs {
    known: HashMap<NodeKey, Known>,
}

#[derive(Default)]
struct Known {
    awaited: Option<(Program, Awaited)>,
    regions: Regions,
}

/// The chunks of a file that were missed.
#[derive(Default)]
struct Regions(BTreeSet<usize>);

impl Regions {
    /// One more was missed of so many: those that will probably be read with it.
    fn missed(&mut self, chunk: usize, of: usize) -> Range<usize> {
        if self.0.len() < MISSES_MAX {
            self.0.insert(chunk);
        }
        let around = |size: usize| chunk / size * size..(chunk / size * size).saturating_add(size).min(of);
        let is_used = |(size, misses): &&(usize, usize)| self.0.range(around(*size)).count() >= *misses;
        REGIONS.iter().rfind(is_used).map_or(chunk..chunk, |(size, _)| around(*size))
    }
}

/// What a part of a file told.
#[derive(Default)]
struct Told {
    /// What is read while it is loaded.
    soon: Vec<Chunk>,
    /// What else is mapped, and whether that is code.
    rest: Vec<(Chunk, bool)>,
    /// The chunk that tells more.
    next: Option<Wanted>,
}

impl Programs {
    /// Takes note of a file; whether it is new.
    fn begin(&mut self, key: NodeKey, program: &Program) -> bool {
        if self.known.contains_key(&key) {
            return false;
        }
        if self.known.len() >= PROGRAMS_MAX {
            self.known.clear();
        }
        let awaited = (program.len() > SMALL_MAX).then(|| (program.clone(), Awaited::Head));
        self.known.insert(key, Known { awaited, ..Known::default() });
        true
    }

    /// The chunk that was awaited is there, or is not to be had.
    fn came(&mut self, key: &NodeKey, handle: Option<&Handle>) -> Option<(Program, Told)> {
        let mut told = Told::default();
        let known = self.known.get_mut(key)?;
        let (program, awaited) = known.awaited.take()?;
        match awaited {
            Awaited::Head => match handle.and_then(|it| Layout::of(&objects::read(it, 0, HEAD))) {
                Some(layout) => {
                    told.soon = program.chunks_of(layout.written());
                    told.next = program.chunk_with_dynamic(&layout).map(|chunk| program.wanted(chunk));
                    if told.next.is_some() {
                        known.awaited = Some((program.clone(), Awaited::Dynamic(layout)));
                    } else {
                        told.rest = mapped(&program, &layout);
                    }
                }
                // Whatever it is, all of it may be read.
                None => told.rest = program.chunks.iter().map(|chunk| (*chunk, true)).collect(),
            },
            Awaited::Dynamic(layout) => {
                let part = layout.dynamic.clone().unwrap_or_default();
                let start = program.chunk_with_dynamic(&layout).map_or(0, |chunk| chunk.offset);
                let len = usize::try_from(part.end - part.start).unwrap_or(0);
                let dynamic = handle.map(|it| objects::read(it, part.start.saturating_sub(start), len));
                told.soon = program.chunks_of(layout.tables(&dynamic.unwrap_or_default()));
                told.rest = mapped(&program, &layout);
            }
        }
        Some((program, told))
    }
}

/// The chunks of which anything is mapped, and whether that is code, which comes first: it is what is read of it in the end.
fn mapped(program: &Program, layout: &Layout) -> Vec<(Chunk, bool)> {
    let part = |chunk: &Chunk| chunk.offset..chunk.offset.saturating_add(chunk.size);
    let mapped = program.chunks.iter().filter(|chunk| layout.is_mapped(&part(chunk)));
    let mut rest: Vec<_> = mapped.map(|chunk| (*chunk, layout.is_code(&part(chunk)))).collect();
    rest.sort_by_key(|(_, is_code)| !is_code);
    rest
}

impl Planner {
    /// A chunk of a library or executable was missed, whether it was `expected` or not.
    pub(super) fn program_missed(
        &mut self,
        core: &Arc<Core>,
        key: NodeKey,
        program: &Program,
        (missed, expected): (usize, bool),
    ) {
        let is_small = program.len() <= SMALL_MAX;
        if self.programs.begin(key, program) {
            if is_small {
                self.soon(program, rest::around(&program.chunks, missed));
            } else if let Some(first) = program.chunks.first() {
                let far = core.store.round_trip().is_some_and(|round_trip| round_trip >= FAR);
                self.rest.hurries(far);
                ask(core, key, program.wanted(first));
            }
        }
        if !is_small
            && !expected
            && let Some(known) = self.programs.known.get_mut(&key)
        {
            let region = known.regions.missed(missed, program.chunks.len());
            self.soon(program, &program.chunks[region]);
        }
    }

    /// A part of such a file has come that tells what the loader reads.
    pub(super) fn program_came(&mut self, core: &Arc<Core>, key: NodeKey, handle: Option<&Handle>) {
        let Some((program, told)) = self.programs.came(&key, handle) else { return };
        // A bundle that came meanwhile knows better.
        if self.rest.is_announced(&program.path) {
            return;
        }
        if let Some(wanted) = told.next {
            ask(core, key, wanted);
        }
        self.soon(&program, &told.soon);
        for (chunk, is_code) in &told.rest {
            self.rest.push(&program.path, program.guess(chunk), *is_code);
        }
    }

    /// Queues chunks that will be read soon.
    fn soon<'c>(&mut self, program: &Program, chunks: impl IntoIterator<Item = &'c Chunk>) {
        for chunk in chunks {
            let guess = program.guess(chunk);
            if self.admit(guess.wanted.key()) {
                self.rest.push_soon(&program.path, guess);
            }
        }
    }
}

/// Has a chunk opened that tells what the loader reads.
fn ask(core: &Arc<Core>, file: NodeKey, wanted: Wanted) {
    objects::open(core, wanted, move |handle| Event::Part { file, handle });
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
}
