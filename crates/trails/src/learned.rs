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
//! Where a [scout](crate::Scouted) has gone, everything is in the kernel's memory, and who follows is seen no more. So a
//! few steps of what it is told are kept back ([`Sight::Gaps`]): who comes to one of those is still on the trail.

mod file;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::HashMap;

pub use self::file::Keeper;

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
const TRAIL_MAX: usize = 1 << 14;
const STEPS_MAX: usize = 1 << 16;
/// Most bytes of all paths, and of one.
const PATHS_MAX: usize = 8 << 20;
const PATH_MAX: usize = 4096;
/// A shorter trail says less of what comes next than the folders around.
const SHORT: usize = 8;

/// Which steps of a reader are seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sight {
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
struct Trail {
    steps: Vec<Step>,
    /// When it was read last: on the clock of [`Learned`].
    used: u64,
}

/// Where a step is.
#[derive(Clone, Copy, Debug)]
struct Place {
    trail: usize,
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
pub struct Heard {
    /// Whether the trail says better what comes next than the folders around.
    pub guided: bool,
    /// What is likely to be read next, in order; each step is handed out once to a reader.
    pub next: Vec<NamedStep>,
}

/// The trails of a repository.
#[derive(Debug, Default)]
pub struct Learned {
    files: Vec<Arc<[u8]>>,
    numbers: HashMap<Arc<[u8]>, u32>,
    /// Bytes of all paths.
    paths_len: usize,
    trails: Vec<Trail>,
    places: HashMap<Step, Place>,
    /// The trail that new steps belong to, and when the last one came.
    open: Option<(usize, Instant)>,
    readers: HashMap<usize, Reader>,
    clock: u64,
    /// Whether there are steps that were not saved.
    changed: bool,
    sight: Sight,
}

impl Learned {
    /// Nothing yet, of readers who are seen as told.
    pub fn new(sight: Sight) -> Self {
        Self { sight, ..Self::default() }
    }

    /// Notes that a part of a file is read; tells what will follow.
    pub fn read(&mut self, path: &[u8], part: u32, now: Instant) -> Heard {
        if path.len() > PATH_MAX {
            return Heard::default();
        }
        match self.place(path, part) {
            Some(place) => self.follow(place, now),
            None => {
                self.note(path, part, now);
                Heard::default()
            }
        }
    }

    /// The same for a reader from whom nothing can be learned.
    pub fn pass(&mut self, path: &[u8], part: u32, now: Instant) -> Heard {
        self.place(path, part).map_or_else(Heard::default, |place| self.follow(place, now))
    }

    /// Whether a step was handed out lately.
    #[cfg(test)]
    pub(crate) fn was_handed(&self, path: &[u8], part: u32) -> bool {
        let handed = |place: Place| {
            self.readers.get(&place.trail).is_some_and(|reader| reader.was_handed(place.at, Instant::now()))
        };
        self.place(path, part).is_some_and(handed)
    }

    fn place(&self, path: &[u8], part: u32) -> Option<Place> {
        let file = *self.numbers.get(path)?;
        self.places.get(&Step { file, part }).copied()
    }

    /// A step that is known: hands out those after it.
    fn follow(&mut self, place: Place, now: Instant) -> Heard {
        self.clock += 1;
        let Some(trail) = self.trails.get_mut(place.trail) else { return Heard::default() };
        trail.used = self.clock;
        let reader = self.readers.entry(place.trail).or_insert_with(|| Reader::at(place.at, now));
        let gaps = self.sight == Sight::Gaps;
        if gaps && reader.was_handed(place.at, now) {
            // It is the scout.
            return Heard::default();
        }
        reader.read(place.at, now);
        let passed = place.at.saturating_sub(reader.start);
        let lead = match passed {
            _ if !gaps => reader.taken,
            SURE.. => trail.steps.len(),
            _ => LEAD * passed,
        };
        let end = (place.at + 1 + HEAD + lead).min(trail.steps.len());
        let from = reader.handed.max(place.at + 1);
        reader.handed = reader.handed.max(end);
        let goes_on = end > place.at + 1 || reader.taken > 0;
        let steps = trail.steps.get(from..end).unwrap_or_default();
        if gaps && end < trail.steps.len() {
            reader.keep_back(from, steps);
        }
        let named = |(at, step): (usize, &Step)| {
            let handed = !reader.kept.contains(&(from + at));
            handed.then(|| Some((Arc::clone(self.files.get(step.file as usize)?), step.part)))?
        };
        Heard {
            guided: goes_on && trail.steps.len() >= SHORT,
            next: steps.iter().enumerate().filter_map(named).collect(),
        }
    }

    /// A step that is new.
    fn note(&mut self, path: &[u8], part: u32, now: Instant) {
        if self.places.len() >= STEPS_MAX || self.paths_len + path.len() > PATHS_MAX {
            self.make_room();
        }
        let open = self.open.filter(|(_, last)| now.saturating_duration_since(*last) < PAUSE);
        let trail = match open {
            Some((trail, _)) if self.trails[trail].steps.len() < TRAIL_MAX => trail,
            _ => self.begin(),
        };
        self.push(trail, path, part);
        self.clock += 1;
        self.trails[trail].used = self.clock;
        self.open = Some((trail, now));
        self.changed = true;
    }

    fn begin(&mut self) -> usize {
        self.trails.push(Trail::default());
        self.trails.len() - 1
    }

    fn push(&mut self, trail: usize, path: &[u8], part: u32) {
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
        let steps = &mut self.trails[trail].steps;
        let step = Step { file, part };
        self.places.insert(step, Place { trail, at: steps.len() });
        steps.push(step);
    }

    /// Adds what somebody else has learned and is not known here, as far as there is room: a trail, older than those that
    /// were read here.
    fn add(&mut self, steps: &[NamedStep]) {
        let mut trail = None;
        for (path, part) in steps {
            let is_room = self.places.len() < STEPS_MAX && self.paths_len + path.len() <= PATHS_MAX;
            if is_room && self.place(path, *part).is_none() {
                let trail = *trail.get_or_insert_with(|| self.begin());
                self.push(trail, path, *part);
            }
        }
    }

    /// Every trail, the one that was read last first.
    fn named(&self) -> Vec<Vec<NamedStep>> {
        let mut trails: Vec<&Trail> = self.trails.iter().collect();
        trails.sort_by_key(|trail| std::cmp::Reverse(trail.used));
        let named = |step: &Step| Some((Arc::clone(self.files.get(step.file as usize)?), step.part));
        trails.into_iter().map(|trail| trail.steps.iter().filter_map(named).collect()).collect()
    }

    /// Forgets the trails that were read longest ago, until an eighth of the room is free.
    fn make_room(&mut self) {
        let mut kept = Self { clock: self.clock, ..Self::new(self.sight) };
        let trails = self.named();
        for steps in &trails {
            let is_room = kept.places.len() + steps.len() <= STEPS_MAX / 8 * 7
                && kept.paths_len + steps.iter().map(|(path, _)| path.len()).sum::<usize>()
                    <= PATHS_MAX / 8 * 7;
            if !is_room {
                break;
            }
            kept.add(steps);
        }
        let count = kept.trails.len();
        for (older, trail) in kept.trails.iter_mut().enumerate() {
            trail.used = kept.clock + (count - older) as u64;
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
