//! Libraries and executables in use: which of their chunks come ahead of their use.
//!
//! A small one comes whole. Of a large one its own headers tell what the dynamic loader will read ([`Layout`]), and its
//! relocations which functions it will call ([`Constructors`]): that comes at once. Other code runs here and there, but what
//! runs together was put together by the linker, so once several chunks near each other were missed, those around them come
//! too ([`Regions`]). All else that is mapped is the rest ([`Rests`](super::rest::Rests)).

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use esker_format::catalog::Chunk;
use esker_format::compress::Compression;
use esker_format::elf::{Constructors, Dynamic, HEAD, Layout};
use esker_store::{Handle, Wanted};
use esker_vfs::NodeKey;

use crate::core::Core;

use super::plan::{Guess, Planner};
use super::rest;
use super::{Event, objects};

/// A file of up to so many plain bytes comes whole at once.
const SMALL_MAX: u64 = 32 << 20;
/// Chunks around those that were missed, aligned, and how many of them must have been missed. Found by replaying what
/// `import tensorflow` misses in three libraries: 20 misses in place of 56 for 10 chunks in vain; the same a miss earlier
/// leaves 16 for 39, a miss later 23 for 7.
const REGIONS: [(usize, usize); 2] = [(4, 2), (16, 3)];
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

    /// The bytes of a part of the file, as far as the chunk that has come has them.
    fn read(&self, came: &Came<'_>, part: &Range<u64>) -> Vec<u8> {
        let (Some(chunk), Some(handle)) = (self.chunks.get(came.number), came.handle) else {
            return Vec::new();
        };
        let start = part.start.max(chunk.offset);
        let len = part.end.min(chunk.offset.saturating_add(chunk.size)).saturating_sub(start);
        objects::read(handle, start - chunk.offset, usize::try_from(len).unwrap_or(0))
    }
}

/// What is on its way of a file to tell what is read of it next.
enum Awaited {
    Head,
    Dynamic(Layout),
    Relocations(Layout, Constructors),
}

/// The chunk that was awaited, or that it is not to be had.
struct Came<'h> {
    number: usize,
    handle: Option<&'h Handle>,
}

/// The files, and what is awaited of them.
#[derive(Default)]
pub(super) struct Programs {
    known: HashMap<NodeKey, Known>,
}

#[derive(Default)]
struct Known {
    /// With the number of its chunk.
    awaited: Option<(Program, usize, Awaited)>,
    regions: Regions,
}

/// The chunks of a file that were missed.
#[derive(Default)]
struct Regions {
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
    fn missed(&mut self, chunk: usize, of: usize) -> Range<usize> {
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

/// What a part of a file told.
#[derive(Default)]
struct Told {
    /// What is read while it is loaded.
    soon: Vec<Chunk>,
    /// What else is mapped, and whether that is code.
    rest: Vec<(Chunk, bool)>,
    /// The number of the chunk that tells more, and what that is.
    next: Option<(usize, Awaited)>,
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
        let awaited = (program.len() > SMALL_MAX).then(|| (program.clone(), 0, Awaited::Head));
        self.known.insert(key, Known { awaited, ..Known::default() });
        true
    }

    /// The chunk that was awaited is there, or is not to be had.
    fn came(&mut self, key: &NodeKey, handle: Option<&Handle>) -> Option<(Program, Told)> {
        let known = self.known.get_mut(key)?;
        let (program, number, awaited) = known.awaited.take()?;
        let came = Came { number, handle };
        let mut told = match awaited {
            Awaited::Head => head_came(&program, &came),
            Awaited::Dynamic(layout) => dynamic_came(&program, layout, &came),
            Awaited::Relocations(layout, constructors) => {
                relocations_came(&program, layout, constructors, &came)
            }
        };
        let number_of = |chunk: &Chunk| rest::chunk_at(&program.chunks, chunk.offset);
        known.regions.loaded(told.soon.iter().map(number_of).chain([came.number]));
        known.awaited = told.next.take().map(|(number, awaited)| (program.clone(), number, awaited));
        Some((program, told))
    }

    /// The object that is awaited of a file.
    fn awaited(&self, key: &NodeKey) -> Option<Wanted> {
        let (program, number, _) = self.known.get(key)?.awaited.as_ref()?;
        Some(program.wanted(program.chunks.get(*number)?))
    }
}

fn head_came(program: &Program, came: &Came<'_>) -> Told {
    let Some(layout) = Layout::of(&program.read(came, &(0..HEAD as u64))) else {
        // Whatever it is, all of it may be read.
        let rest = program.chunks.iter().map(|chunk| (*chunk, true)).collect();
        return Told { rest, ..Told::default() };
    };
    let soon = program.chunks_of(layout.written());
    let number = layout.dynamic.as_ref().map(|dynamic| rest::chunk_at(&program.chunks, dynamic.start));
    match number.filter(|number| *number < program.chunks.len()) {
        Some(number) => Told { soon, next: Some((number, Awaited::Dynamic(layout))), ..Told::default() },
        None => Told { soon, rest: mapped(program, &layout), next: None },
    }
}

fn dynamic_came(program: &Program, layout: Layout, came: &Came<'_>) -> Told {
    let dynamic = Dynamic::of(&program.read(came, &layout.dynamic.clone().unwrap_or_default()));
    let mut parts = layout.tables(&dynamic);
    let rest = mapped(program, &layout);
    let mut next = None;
    if let Some(constructors) = layout.constructors(&dynamic) {
        let in_place = constructors.in_place(&layout, &program.read(came, &constructors.array));
        if in_place.is_empty()
            && let Some(table) = &constructors.relocations
        {
            let number = rest::chunk_at(&program.chunks, table.start);
            next = Some((number, Awaited::Relocations(layout, constructors)));
        }
        parts.extend(in_place);
    }
    Told { soon: program.chunks_of(parts), rest, next }
}

fn relocations_came(program: &Program, layout: Layout, constructors: Constructors, came: &Came<'_>) -> Told {
    let table = constructors.relocations.clone().unwrap_or_default();
    let start = program.chunks.get(came.number).map_or(0, |chunk| chunk.offset);
    let into = start.saturating_sub(table.start);
    let functions = constructors.relocated(&layout, &program.read(came, &table), into);
    let next = came.number.saturating_add(1);
    let goes_on = came.handle.is_some() && program.chunks.get(next).is_some_and(|it| it.offset < table.end);
    Told {
        soon: program.chunks_of(functions),
        next: goes_on.then_some((next, Awaited::Relocations(layout, constructors))),
        ..Told::default()
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
                self.rest.hurries(self.far);
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

    /// A part of such a file has come that tells what is read of it.
    pub(super) fn program_came(&mut self, core: &Arc<Core>, key: NodeKey, handle: Option<&Handle>) {
        let Some((program, told)) = self.programs.came(&key, handle) else { return };
        // A bundle that came meanwhile knows better.
        if self.rest.is_announced(&program.path) {
            return;
        }
        if let Some(wanted) = self.programs.awaited(&key) {
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

/// Has a chunk opened that tells what is read of its file.
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
