//! Records the order of reads on this node, so that they are prefetched the next time.
//!
//! A part of a file that was never read before is appended to the open sequence, which ends when nothing new was read
//! for a while. Each part of a file is in one sequence. When it is read again, from the server or from the cache's
//! disk (reads that the kernel answers from memory are not seen here), the steps after it are predicted: a few at
//! first, one more for each step that the reader takes. So wrong predictions are never more than right ones and a few
//! steps, and a reader that leaves a sequence gets no more predictions from it.
//!
//! Steps are paths, not objects: after an update most of them exist with new content.
//!
//! Where a [replayer](crate::RecordingTree) was ahead, the kernel answers from memory, and the program behind it is
//! not seen. So a few steps are withheld from the replayer ([`Observation::Gaps`]): a program that takes one of those
//! is still in the sequence.

mod file;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::HashMap;

pub use self::file::SequenceStore;

/// Size in bytes of the parts in which reads are recorded: of large libraries only some parts are read.
pub const PART: u64 = 1 << 20;

/// Size in bytes of a replayer's parts: the size of the kernel's reads.
pub(crate) const UNIT: u64 = 128 << 10;

/// Marks a lookup, in place of a part: a lookup of the name, whether or not it exists.
pub const NAME: u32 = u32::MAX;
/// Marks a listing, in place of a part: a listing of the directory.
pub const NAMES: u32 = u32::MAX - 1;

/// Number of steps predicted for a reader that has just begun a sequence.
const HEAD: usize = 32;
/// Additional predicted steps for each step that the reader has passed, where only gaps are seen.
///
/// After `SURE` steps all are predicted: no other program does so many things in the same order.
const LEAD: usize = 3;
const SURE: usize = 192;
/// Time without new reads after which a sequence ends.
const PAUSE: Duration = Duration::from_secs(10);
/// Time after which a reader that returns to a sequence starts over.
const AWAY: Duration = Duration::from_secs(30);
/// Maximum number of steps of a sequence, and of all.
const SEQUENCE_MAX: usize = 1 << 14;
const STEPS_MAX: usize = 1 << 16;
/// Maximum bytes of all paths, and of one.
const PATHS_MAX: usize = 8 << 20;
const PATH_MAX: usize = 4096;
/// Length below which a sequence predicts less than the surrounding folders.
const SHORT: usize = 8;

/// Steps of a reader that are observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Observation {
    /// All steps: each one extends the prediction by one.
    #[default]
    All,
    /// Only steps that were not predicted, since the kernel answers the others.
    ///
    /// The prediction has three times as many steps as the reader has passed, except for some on the way, and in the
    /// end all.
    Gaps,
}

/// A part of a file, or a lookup or listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Step {
    file: u32,
    part: u32,
}

/// Parts that were read consecutively.
#[derive(Debug, Default)]
struct Sequence {
    steps: Vec<Step>,
    /// Time of the last read, on the clock of [`Sequences`].
    used: u64,
}

/// Position of a step.
#[derive(Clone, Copy, Debug)]
struct StepLocation {
    sequence: usize,
    at: usize,
}

/// Progress of a reader in a sequence.
#[derive(Clone, Debug)]
struct Reader {
    start: usize,
    /// Farthest step read, and total number of steps read.
    reached: usize,
    taken: usize,
    /// Steps before this one were predicted.
    handed: usize,
    /// Steps that were withheld from the prediction, where only gaps are seen.
    kept: Vec<usize>,
    last: Instant,
}

/// A step by path.
pub type NamedStep = (Arc<[u8]>, u32);

/// Prediction after a read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Prediction {
    /// True if the sequence predicts better than the folders around.
    pub guided: bool,
    /// Steps likely to be read next, in order; each one is predicted once to a reader.
    pub next: Vec<NamedStep>,
}

/// The sequences of a repository.
#[derive(Debug, Default)]
pub struct Sequences {
    files: Vec<Arc<[u8]>>,
    numbers: HashMap<Arc<[u8]>, u32>,
    /// Bytes of all paths.
    paths_len: usize,
    sequences: Vec<Sequence>,
    locations: HashMap<Step, StepLocation>,
    /// Sequence that new steps are appended to, and time of its last step.
    open: Option<(usize, Instant)>,
    readers: HashMap<usize, Reader>,
    clock: u64,
    /// True if there are unsaved steps.
    changed: bool,
    observation: Observation,
}

impl Sequences {
    /// Returns an empty record for this kind of observation.
    pub fn new(observation: Observation) -> Self {
        Self { observation, ..Self::default() }
    }

    /// Records a read of a part of a file; returns the prediction.
    pub fn read(&mut self, path: &[u8], part: u32, now: Instant) -> Prediction {
        if path.len() > PATH_MAX {
            return Prediction::default();
        }
        match self.location(path, part) {
            Some(location) => self.follow(location, now),
            None => {
                self.note(path, part, now);
                Prediction::default()
            }
        }
    }

    /// Returns the prediction without recording the read.
    pub fn pass(&mut self, path: &[u8], part: u32, now: Instant) -> Prediction {
        self.location(path, part).map_or_else(Prediction::default, |location| self.follow(location, now))
    }

    /// Returns true if a step was predicted lately.
    #[cfg(test)]
    pub(crate) fn was_handed(&self, path: &[u8], part: u32) -> bool {
        let handed = |location: StepLocation| {
            self.readers
                .get(&location.sequence)
                .is_some_and(|reader| reader.was_handed(location.at, Instant::now()))
        };
        self.location(path, part).is_some_and(handed)
    }

    fn location(&self, path: &[u8], part: u32) -> Option<StepLocation> {
        let file = *self.numbers.get(path)?;
        self.locations.get(&Step { file, part }).copied()
    }

    /// Returns the steps after a known step.
    fn follow(&mut self, location: StepLocation, now: Instant) -> Prediction {
        self.clock += 1;
        let Some(sequence) = self.sequences.get_mut(location.sequence) else { return Prediction::default() };
        sequence.used = self.clock;
        let reader = self.readers.entry(location.sequence).or_insert_with(|| Reader::at(location.at, now));
        let gaps = self.observation == Observation::Gaps;
        if gaps && reader.was_handed(location.at, now) {
            // This is the replayer.
            return Prediction::default();
        }
        reader.read(location.at, now);
        let passed = location.at.saturating_sub(reader.start);
        let lead = match passed {
            _ if !gaps => reader.taken,
            SURE.. => sequence.steps.len(),
            _ => LEAD * passed,
        };
        let end = (location.at + 1 + HEAD + lead).min(sequence.steps.len());
        let from = reader.handed.max(location.at + 1);
        reader.handed = reader.handed.max(end);
        let goes_on = end > location.at + 1 || reader.taken > 0;
        let steps = sequence.steps.get(from..end).unwrap_or_default();
        if gaps && end < sequence.steps.len() {
            reader.keep_back(from, steps);
        }
        let named = |(at, step): (usize, &Step)| {
            let handed = !reader.kept.contains(&(from + at));
            handed.then(|| Some((Arc::clone(self.files.get(step.file as usize)?), step.part)))?
        };
        Prediction {
            guided: goes_on && sequence.steps.len() >= SHORT,
            next: steps.iter().enumerate().filter_map(named).collect(),
        }
    }

    /// Appends a new step.
    fn note(&mut self, path: &[u8], part: u32, now: Instant) {
        if self.locations.len() >= STEPS_MAX || self.paths_len + path.len() > PATHS_MAX {
            self.make_room();
        }
        let open = self.open.filter(|(_, last)| now.saturating_duration_since(*last) < PAUSE);
        let sequence = match open {
            Some((sequence, _)) if self.sequences[sequence].steps.len() < SEQUENCE_MAX => sequence,
            _ => self.begin(),
        };
        self.push(sequence, path, part);
        self.clock += 1;
        self.sequences[sequence].used = self.clock;
        self.open = Some((sequence, now));
        self.changed = true;
    }

    fn begin(&mut self) -> usize {
        self.sequences.push(Sequence::default());
        self.sequences.len() - 1
    }

    fn push(&mut self, sequence: usize, path: &[u8], part: u32) {
        let file = match self.numbers.get(path) {
            Some(file) => *file,
            None => {
                let (path, file) = (Arc::<[u8]>::from(path), self.files.len() as u32);
                self.paths_len += path.len();
                self.files.push(Arc::clone(&path));
                self.numbers.insert(path, file);
                file
            }
        };
        let steps = &mut self.sequences[sequence].steps;
        let step = Step { file, part };
        self.locations.insert(step, StepLocation { sequence, at: steps.len() });
        steps.push(step);
    }

    /// Adds the unknown steps of another record as a sequence older than those read here, as far as there is room.
    fn add(&mut self, steps: &[NamedStep]) {
        let mut sequence = None;
        for (path, part) in steps {
            let is_room = self.locations.len() < STEPS_MAX && self.paths_len + path.len() <= PATHS_MAX;
            if is_room && self.location(path, *part).is_none() {
                let sequence = *sequence.get_or_insert_with(|| self.begin());
                self.push(sequence, path, *part);
            }
        }
    }

    /// Returns all sequences, the one that was read last first.
    fn named(&self) -> Vec<Vec<NamedStep>> {
        let mut sequences: Vec<&Sequence> = self.sequences.iter().collect();
        sequences.sort_by_key(|sequence| std::cmp::Reverse(sequence.used));
        let named = |step: &Step| Some((Arc::clone(self.files.get(step.file as usize)?), step.part));
        sequences.into_iter().map(|sequence| sequence.steps.iter().filter_map(named).collect()).collect()
    }

    /// Removes the sequences that were read longest ago, until an eighth of the room is free.
    fn make_room(&mut self) {
        let mut kept = Self { clock: self.clock, ..Self::new(self.observation) };
        let sequences = self.named();
        for steps in &sequences {
            let is_room = kept.locations.len() + steps.len() <= STEPS_MAX / 8 * 7
                && kept.paths_len + steps.iter().map(|(path, _)| path.len()).sum::<usize>()
                    <= PATHS_MAX / 8 * 7;
            if !is_room {
                break;
            }
            kept.add(steps);
        }
        let count = kept.sequences.len();
        for (older, sequence) in kept.sequences.iter_mut().enumerate() {
            sequence.used = kept.clock + (count - older) as u64;
        }
        kept.clock += count as u64;
        *self = kept;
    }
}

impl Reader {
    fn at(at: usize, now: Instant) -> Self {
        Self { start: at, reached: at, taken: 0, handed: at + 1, kept: Vec::new(), last: now }
    }

    /// Returns true if a step was predicted lately.
    fn was_handed(&self, at: usize, now: Instant) -> bool {
        let is_back = now.saturating_duration_since(self.last) >= AWAY;
        !is_back && (self.start..self.handed).contains(&at) && !self.kept.contains(&at)
    }

    /// Withholds one step in each quarter of the prediction but the first.
    ///
    /// One that is not seen, for whatever reason, must not end the prediction. Starts of files are preferred: to reach
    /// a name all those above it are looked up, and the kernel reads ahead in files by itself.
    fn keep_back(&mut self, from: usize, steps: &[Step]) {
        self.kept.retain(|at| *at > self.reached);
        for quarter in 1..4 {
            let at = steps.len() * quarter / 4..steps.len() * (quarter + 1) / 4;
            let among = steps.get(at.clone()).unwrap_or_default();
            let first = |is: fn(u32) -> bool| among.iter().position(|step| is(step.part));
            let first = first(|part| part == 0).or_else(|| first(|part| part < NAMES));
            self.kept.extend(first.map(|first| from + at.start + first));
        }
    }

    /// Records a step, and repositions the reader if it is not one of the next steps.
    fn read(&mut self, at: usize, now: Instant) {
        let is_back = now.saturating_duration_since(self.last) >= AWAY;
        if is_back || at < self.start || at > self.handed + HEAD {
            *self = Self::at(at, now);
        } else if at > self.reached {
            self.reached = at;
            self.taken += 1;
        }
        self.last = now;
    }
}
