//! What followed what on this node, so that it is fetched ahead the next time.
//!
//! Reads are noted as they come: what was never read before is a further step of a trail, which ends when nothing new
//! was read for a while. Each part of a file is on one trail. When it is read again, from the server or from the
//! cache's disk (reads that the kernel answers from memory are not seen here), the steps after it are handed out, to be
//! fetched ahead: a few at first, one more for each step that the reader takes. So what is fetched in vain is never more
//! than what was right and a few steps, and a reader that leaves a trail gets nothing more of it.
//!
//! Steps are paths, not objects: after an update most of them are there again, with new content.
//!
//! Where a [replayer](crate::RecordingTree) has gone, everything is in the kernel's memory, and who follows is seen no more. So a
//! few steps of what it is told are kept back ([`Observation::Gaps`]): who comes to one of those is still on the trail.

mod file;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::HashMap;

pub use self::file::SequenceStore;

/// Files are noted in parts of this size: of large libraries only some are read.
pub const PART: u64 = 1 << 20;

/// A scout's parts are of this size: what the kernel asks for at once.
pub(crate) const UNIT: u64 = 128 << 10;

/// In place of a part: that a name was looked for, whether or not it is there.
pub const NAME: u32 = u32::MAX;
/// In place of a part: that the names of a directory were listed.
pub const NAMES: u32 = u32::MAX - 1;

/// Steps that are handed out to a reader who has just come to a trail.
const HEAD: usize = 32;
/// Where only gaps are seen, as many more for each step that the reader has passed, and all once it is this far: no other
/// program does so many things in the same order.
const LEAD: usize = 3;
const SURE: usize = 192;
/// A trail ends when nothing new was read for so long.
const PAUSE: Duration = Duration::from_secs(10);
/// A reader who comes back to a trail after this begins anew.
const AWAY: Duration = Duration::from_secs(30);
/// Most steps of a trail, and of all.
const SEQUENCE_MAX: usize = 1 << 14;
const STEPS_MAX: usize = 1 << 16;
/// Most bytes of all paths, and of one.
const PATHS_MAX: usize = 8 << 20;
const PATH_MAX: usize = 4096;
/// A shorter trail says less of what comes next than the folders around.
const SHORT: usize = 8;

/// Which steps of a reader are seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Observation {
    /// All: for each of them one more is handed out.
    #[default]
    All,
    /// None that was handed out, for then the kernel answers it. Three times as many are handed out as the reader has passed,
    /// but for some on the way, and in the end all.
    Gaps,
}

/// A part of a file, or what stands for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Step {
    file: u32,
    part: u32,
}

/// Parts that were read one after the other.
#[derive(Debug, Default)]
struct Sequence {
    steps: Vec<Step>,
    /// When it was read last: on the clock of [`Sequences`].
    used: u64,
}

/// Where a step is.
#[derive(Clone, Copy, Debug)]
struct StepLocation {
    sequence: usize,
    at: usize,
}

/// How far somebody has come on a trail.
#[derive(Clone, Debug)]
struct Reader {
    start: usize,
    /// The farthest step read, and how many in all.
    reached: usize,
    taken: usize,
    /// The steps before this one were handed out.
    handed: usize,
    /// Those of them that were kept back, where only gaps are seen.
    kept: Vec<usize>,
    last: Instant,
}

/// A step by name.
pub type NamedStep = (Arc<[u8]>, u32);

/// What is known of a step that was read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Prediction {
    /// Whether the trail says better what comes next than the folders around.
    pub guided: bool,
    /// What is likely to be read next, in order; each step is handed out once to a reader.
    pub next: Vec<NamedStep>,
}

/// The trails of a repository.
#[derive(Debug, Default)]
pub struct Sequences {
    files: Vec<Arc<[u8]>>,
    numbers: HashMap<Arc<[u8]>, u32>,
    /// Bytes of all paths.
    paths_len: usize,
    sequences: Vec<Sequence>,
    locations: HashMap<Step, StepLocation>,
    /// The trail that new steps belong to, and when the last one came.
    open: Option<(usize, Instant)>,
    readers: HashMap<usize, Reader>,
    clock: u64,
    /// Whether there are steps that were not saved.
    changed: bool,
    observation: Observation,
}

impl Sequences {
    /// Nothing yet, of readers who are seen as told.
    pub fn new(observation: Observation) -> Self {
        Self { observation, ..Self::default() }
    }

    /// Notes that a part of a file is read; tells what will follow.
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

    /// The same for a reader from whom nothing can be learned.
    pub fn pass(&mut self, path: &[u8], part: u32, now: Instant) -> Prediction {
        self.location(path, part).map_or_else(Prediction::default, |location| self.follow(location, now))
    }

    /// Whether a step was handed out lately.
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

    /// A step that is known: hands out those after it.
    fn follow(&mut self, location: StepLocation, now: Instant) -> Prediction {
        self.clock += 1;
        let Some(sequence) = self.sequences.get_mut(location.sequence) else { return Prediction::default() };
        sequence.used = self.clock;
        let reader = self.readers.entry(location.sequence).or_insert_with(|| Reader::at(location.at, now));
        let gaps = self.observation == Observation::Gaps;
        if gaps && reader.was_handed(location.at, now) {
            // It is the scout.
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

    /// A step that is new.
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

    /// Adds what somebody else has learned and is not known here, as far as there is room: a trail, older than those that
    /// were read here.
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

    /// Every trail, the one that was read last first.
    fn named(&self) -> Vec<Vec<NamedStep>> {
        let mut sequences: Vec<&Sequence> = self.sequences.iter().collect();
        sequences.sort_by_key(|sequence| std::cmp::Reverse(sequence.used));
        let named = |step: &Step| Some((Arc::clone(self.files.get(step.file as usize)?), step.part));
        sequences.into_iter().map(|sequence| sequence.steps.iter().filter_map(named).collect()).collect()
    }

    /// Forgets the trails that were read longest ago, until an eighth of the room is free.
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

    /// Whether a step was handed out lately.
    fn was_handed(&self, at: usize, now: Instant) -> bool {
        let is_back = now.saturating_duration_since(self.last) >= AWAY;
        !is_back && (self.start..self.handed).contains(&at) && !self.kept.contains(&at)
    }

    /// Keeps back a step in each quarter of what is handed out from `from` on but the first: one that is not seen, for
    /// whatever reason, must not end it. Beginnings of files, if there are any: to come by a name all those above it are
    /// looked for, and the kernel reads on in files by itself.
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

    /// Reads a step: takes it, or begins anew there if this is not where it was to be expected.
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
