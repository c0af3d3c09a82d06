//! Libraries and executables in use: which of their chunks come ahead of their use.
//!
//! A small one comes whole. Of a large one its own headers tell what the dynamic loader will read ([`Layout`]), and its
//! relocations which functions it will call ([`Constructors`]): that comes at once. Other code runs here and there, but what
//! runs together was put together by the linker, so once several chunks near each other were missed, those around them come
//! too ([`Regions`]). All else that is mapped is the rest ([`Rests`](super::rest::Rests)). Which libraries one needs it tells
//! as well ([`needed`](super::needed)), so these come before the loader asks for them.
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

use crate::core::Core;

use super::guess::Guess;
use super::needed::{Names, Need, Needs};
use super::plan::Planner;
use super::rest;
use super::{Event, objects};

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
const EVICTED: usize = 3;
/// Most misses that are remembered of one.
const MISSES_MAX: usize = 4096;

/// A library or executable.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) path: Box<[u8]>,
    /// One for all of it, if it is one object.
    chunks: Arc<[Chunk]>,
    compression: Compression,
    kind: ObjectKind,
}

impl Program {
    /// One in chunks.
    pub(super) fn chunked(path: &[u8], chunks: Arc<[Chunk]>, compression: Compression) -> Self {
        Self { path: path.into(), chunks, compression, kind: ObjectKind::Chunk }
    }

    /// One that is one object.
    pub(super) fn whole(path: &[u8], content: CacheKey, size: u64) -> Self {
        let chunks = [Chunk { offset: 0, size, hash: content.hash }].into();
        Self { path: path.into(), chunks, compression: content.compression, kind: ObjectKind::File }
    }

    fn len(&self) -> u64 {
        self.chunks.last().map_or(0, |last| last.offset.saturating_add(last.size))
    }

    fn is_small(&self) -> bool {
        self.len() <= SMALL_MAX
    }

    /// The object of a chunk.
    fn wanted(&self, chunk: &Chunk) -> ObjectRequest {
        let object = ObjectName::new(chunk.hash, self.kind);
        ObjectRequest::new(object, self.compression, String::from_utf8_lossy(&self.path)).size(chunk.size)
    }

    fn guess(&self, chunk: &Chunk) -> Guess {
        Guess::new(self.wanted(chunk), chunk.size)
    }

    /// The number of the chunk in which a part of the file begins, if it is one of its chunks.
    fn number_of(&self, part: &Range<u64>) -> Option<usize> {
        Some(rest::chunk_at(&self.chunks, part.start)).filter(|number| *number < self.chunks.len())
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
    Names(Names),
    Relocations(Layout, Constructors),
}

/// The chunk that was awaited.
struct Came<'h> {
    number: usize,
    handle: &'h Handle,
}

/// The files, and what is awaited of them.
#[derive(Default)]
pub(super) struct Programs {
    known: HashMap<NodeKey, Known>,
    /// Chunks that come as guesses, to tell more.
    guessed: HashMap<CacheKey, (NodeKey, usize)>,
    /// Files of which more is asked for once no bundle is on its way.
    held: Vec<NodeKey>,
}

struct Known {
    program: Program,
    /// A program reads it.
    in_use: bool,
    /// With the number of the chunk, and whether it was asked for.
    awaited: Vec<(usize, Awaited, bool)>,
    regions: Regions,
    /// The numbers of the chunks that were queued and not missed since, and how many were missed after that.
    queued: HashSet<usize>,
    missed_again: usize,
    /// What its parts told, as long as it isn't in use.
    told: Told,
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

/// What parts of a file told.
#[derive(Default)]
struct Told {
    /// What is read while it is loaded.
    soon: Vec<Chunk>,
    /// What else is mapped, and whether that is code.
    rest: Vec<(Chunk, bool)>,
    /// The numbers of the chunks that tell more, and what that is.
    next: Vec<(usize, Awaited)>,
    needs: Option<Needs>,
}

impl Programs {
    /// Takes note of a file, if it is new.
    fn know(&mut self, key: NodeKey, program: &Program) -> &mut Known {
        if self.known.len() >= PROGRAMS_MAX && !self.known.contains_key(&key) {
            self.clear();
        }
        self.known.entry(key).or_insert_with(|| Known {
            program: program.clone(),
            in_use: false,
            awaited: vec![(0, Awaited::Head, false)],
            regions: Regions::default(),
            queued: HashSet::new(),
            missed_again: 0,
            told: Told::default(),
        })
    }

    /// Notes that a chunk of a file is queued.
    fn queued(&mut self, key: &NodeKey, chunk: &Chunk) {
        if let Some(known) = self.known.get_mut(key) {
            known.queued.insert(rest::chunk_at(&known.program.chunks, chunk.offset));
        }
    }

    /// Forgets the files: what was queued of them is not queued any more, so each begins anew.
    pub(super) fn clear(&mut self) {
        self.known.clear();
        self.guessed.clear();
        self.held.clear();
    }
}

impl Known {
    /// A chunk that was awaited is not to be had now: whoever reads of the file next has it asked for again.
    fn is_lacking(&mut self, number: usize) {
        self.in_use = false;
        for (_, _, is_asked_for) in self.awaited.iter_mut().filter(|(awaited, ..)| *awaited == number) {
            *is_asked_for = false;
        }
    }

    /// A chunk that was awaited is there: what it tells.
    fn came(&mut self, number: usize, handle: &Handle) -> Told {
        let Self { program, awaited, regions, .. } = self;
        let came = Came { number, handle };
        let mut all = Told::default();
        // What a part tells may be that it tells more.
        while let Some(place) = awaited.iter().position(|(awaited, ..)| *awaited == number) {
            let told = match awaited.swap_remove(place).1 {
                Awaited::Head => head_came(program, &came),
                Awaited::Dynamic(layout) => dynamic_came(program, layout, &came),
                Awaited::Names(names) => names_came(program, names, &came),
                Awaited::Relocations(layout, constructors) => {
                    relocations_came(program, layout, constructors, &came)
                }
            };
            awaited.extend(told.next.into_iter().map(|(number, what)| (number, what, false)));
            if !program.is_small() {
                all.soon.extend(told.soon);
                all.rest.extend(told.rest);
            }
            all.needs = told.needs.or(all.needs);
        }
        let number_of = |chunk: &Chunk| rest::chunk_at(&program.chunks, chunk.offset);
        regions.loaded(all.soon.iter().map(number_of).chain([number]));
        all
    }
}

fn head_came(program: &Program, came: &Came<'_>) -> Told {
    let Some(layout) = Layout::of(&program.read(came, &(0..HEAD as u64))) else {
        // Whatever it is, all of it may be read.
        let rest = program.chunks.iter().map(|chunk| (*chunk, true)).collect();
        return Told { rest, ..Told::default() };
    };
    let soon = program.chunks_of(layout.written());
    match layout.dynamic.as_ref().and_then(|dynamic| program.number_of(dynamic)) {
        Some(number) => Told { soon, next: vec![(number, Awaited::Dynamic(layout))], ..Told::default() },
        None => Told { soon, rest: mapped(program, &layout), ..Told::default() },
    }
}

fn dynamic_came(program: &Program, layout: Layout, came: &Came<'_>) -> Told {
    let dynamic = Dynamic::of(&program.read(came, &layout.dynamic.clone().unwrap_or_default()));
    let mut parts = layout.tables(&dynamic);
    let rest = mapped(program, &layout);
    let mut next = Vec::new();
    if let Some(names) = Names::of(&layout, &dynamic)
        && let Some(number) = names.next().and_then(|part| program.number_of(part))
    {
        next.push((number, Awaited::Names(names)));
    }
    // Of a small one all comes anyway.
    if !program.is_small()
        && let Some(constructors) = layout.constructors(&dynamic)
    {
        let in_place = constructors.in_place(&layout, &program.read(came, &constructors.array));
        if in_place.is_empty()
            && let Some(number) = constructors.relocations.as_ref().and_then(|table| program.number_of(table))
        {
            next.push((number, Awaited::Relocations(layout, constructors)));
        }
        parts.extend(in_place);
    }
    Told { soon: program.chunks_of(parts), rest, next, needs: None }
}

fn names_came(program: &Program, mut names: Names, came: &Came<'_>) -> Told {
    let is_here = |part: &Range<u64>| program.number_of(part) == Some(came.number);
    names.take(is_here, |part| program.read(came, part));
    match names.next().and_then(|part| program.number_of(part)) {
        Some(number) => Told { next: vec![(number, Awaited::Names(names))], ..Told::default() },
        None => Told { needs: Some(names.found), ..Told::default() },
    }
}

fn relocations_came(program: &Program, layout: Layout, constructors: Constructors, came: &Came<'_>) -> Told {
    let table = constructors.relocations.clone().unwrap_or_default();
    let start = program.chunks.get(came.number).map_or(0, |chunk| chunk.offset);
    let into = start.saturating_sub(table.start);
    let functions = constructors.relocated(&layout, &program.read(came, &table), into);
    let next = came.number.saturating_add(1);
    let goes_on = program.chunks.get(next).is_some_and(|it| it.offset < table.end);
    let more = goes_on.then_some((next, Awaited::Relocations(layout, constructors)));
    Told { soon: program.chunks_of(functions), next: Vec::from_iter(more), ..Told::default() }
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
        if !expected && self.is_evicted(&key, missed) {
            self.programs.known.remove(&key);
        }
        self.program_used(core, key, program, missed);
        if !program.is_small()
            && !expected
            && let Some(known) = self.programs.known.get_mut(&key)
        {
            let region = known.regions.missed(missed, program.chunks.len());
            self.soon(key, program, &program.chunks[region]);
        }
    }

    /// A chunk is missed that nothing is about to bring. Whether so many are that had come before that the file was
    /// probably evicted.
    fn is_evicted(&mut self, key: &NodeKey, missed: usize) -> bool {
        let Some(known) = self.programs.known.get_mut(key) else { return false };
        let is_left = |chunk| self.rest.is_queued(&known.program.wanted(chunk).key());
        if !known.program.chunks.get(missed).is_some_and(is_left) && known.queued.remove(&missed) {
            known.missed_again += 1;
        }
        known.missed_again >= EVICTED
    }

    /// A guess at a part of a library or executable is read.
    pub(super) fn program_touched(&mut self, core: &Arc<Core>, key: NodeKey, at: u64) {
        if let Some(known) = self.programs.known.get(&key).filter(|known| !known.in_use) {
            let program = known.program.clone();
            let read = rest::chunk_at(&program.chunks, at);
            self.program_used(core, key, &program, read);
        }
    }

    /// A library or executable is in use: of it a chunk is being read.
    pub(super) fn program_used(&mut self, core: &Arc<Core>, key: NodeKey, program: &Program, read: usize) {
        let known = self.programs.know(key, program);
        if mem::replace(&mut known.in_use, true) {
            return;
        }
        let told = mem::take(&mut known.told);
        if program.is_small() {
            self.soon(key, program, rest::around(&program.chunks, read));
        } else {
            self.rest.hurries(self.far);
            self.queue_told(key, program, &told);
        }
        self.await_parts(core, key);
    }

    /// Libraries will probably be used: a module imports them, or another one needs them.
    pub(super) fn programs_expected(&mut self, core: &Arc<Core>, expected: &[(NodeKey, Program)]) {
        for (key, program) in expected.iter().rev() {
            self.programs.know(*key, program);
            self.await_parts(core, *key);
        }
    }

    /// No bundle is on its way any more, or one less: what waited for them goes on.
    pub(super) fn programs_go_on(&mut self, core: &Arc<Core>) {
        for key in mem::take(&mut self.programs.held) {
            self.await_parts(core, key);
        }
    }

    /// Has the chunks of a file come that tell more of it, unless a bundle tells.
    fn await_parts(&mut self, core: &Arc<Core>, key: NodeKey) {
        let Some(known) = self.programs.known.get_mut(&key) else { return };
        if self.rest.is_announced(&known.program.path) {
            return;
        }
        if self.rest.awaits_spec() {
            return self.programs.held.push(key);
        }
        let (program, in_use) = (known.program.clone(), known.in_use);
        let mut numbers = BTreeSet::new();
        for (number, _, is_asked_for) in &mut known.awaited {
            // What was only guessed at is asked for once it is in use.
            if !mem::replace(is_asked_for, in_use) {
                numbers.insert(*number);
            }
        }
        for number in numbers {
            let Some(chunk) = program.chunks.get(number) else { continue };
            let guess = program.guess(chunk);
            if in_use {
                ask(core, key, number, guess.wanted);
            } else if self.programs.guessed.insert(guess.wanted.key(), (key, number)).is_none() {
                self.queue_first(guess);
            }
        }
    }

    /// An object has come that was guessed, or is not to be had; it may be one that tells more of a file.
    pub(super) fn program_arrived(&mut self, core: &Arc<Core>, key: &CacheKey, is_here: bool) {
        if let Some((file, number)) = self.programs.guessed.remove(key)
            && is_here
            && let Some(known) = self.programs.known.get(&file)
            && let Some(chunk) = known.program.chunks.get(number)
        {
            ask(core, file, number, known.program.wanted(chunk));
        }
    }

    /// A part of a file has come that tells what is read of it.
    pub(super) fn program_came(
        &mut self,
        core: &Arc<Core>,
        key: NodeKey,
        number: usize,
        handle: Option<&Handle>,
    ) {
        let Some(known) = self.programs.known.get_mut(&key) else { return };
        let Some(handle) = handle else { return known.is_lacking(number) };
        let mut told = known.came(number, handle);
        let program = known.program.clone();
        // A bundle that came meanwhile knows better.
        if self.rest.is_announced(&program.path) {
            return;
        }
        let needs = told.needs.take();
        if known.in_use {
            self.queue_told(key, &program, &told);
        } else {
            known.told.soon.extend(told.soon);
            known.told.rest.extend(told.rest);
        }
        self.await_parts(core, key);
        if let Some(needs) = needs {
            self.find_needed(core, Need { path: program.path, needs, tries: 0 });
        }
    }

    fn queue_told(&mut self, key: NodeKey, program: &Program, told: &Told) {
        self.soon(key, program, &told.soon);
        for (chunk, is_code) in &told.rest {
            if self.rest.push(&program.path, program.guess(chunk), *is_code) {
                self.programs.queued(&key, chunk);
            }
        }
    }

    /// Queues chunks that will be read soon.
    fn soon<'c>(&mut self, key: NodeKey, program: &Program, chunks: impl IntoIterator<Item = &'c Chunk>) {
        for chunk in chunks {
            let guess = program.guess(chunk);
            if self.admit(guess.wanted.key()) {
                self.rest.push_soon(&program.path, guess);
                self.programs.queued(&key, chunk);
            }
        }
    }
}

/// Has a chunk opened that tells what is read of its file.
fn ask(core: &Arc<Core>, file: NodeKey, number: usize, wanted: ObjectRequest) {
    objects::open(core, wanted, move |handle| Event::Part { file, number, handle });
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
