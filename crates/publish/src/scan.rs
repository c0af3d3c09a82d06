//! Walks over the source with several threads and compares each directory with the published one.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use esker_repository::{RepositoryError, entry, path, published::Published};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::build_folder::{Relocation, leads_out};
use crate::error::PublishError;
use crate::graft::Grafts;
use crate::plan::{Comparison, DirectoryPlan, Plan};
use crate::private_files::PrivateFiles;
use crate::progress::{Counters, TICK};
use crate::remarks::{RemarkKind, Remarks};
use crate::source::{Facts, Source, SourceEntry, Time, pack_xattrs, read_xattr_pairs};
use crate::source_entry;

/// A walk over the source.
pub(crate) struct Scan<'r> {
    pub(crate) source: &'r Source,
    /// The directory of the repository that becomes equal to the source.
    pub(crate) target: &'r [u8],
    pub(crate) published: &'r Published,
    pub(crate) comparison: &'r Comparison<'r>,
    pub(crate) private: &'r PrivateFiles,
    /// Absolute path of the source.
    pub(crate) build_folder: &'r [u8],
    pub(crate) relocation: Option<&'r Relocation>,
    pub(crate) stop: &'r AtomicBool,
    pub(crate) counters: &'r Counters,
}

struct Step {
    relative: Vec<u8>,
    facts: Facts,
    /// True if there is a published directory to compare with.
    existed: bool,
}

#[derive(Default)]
struct Queue {
    steps: Vec<Step>,
    /// Number of steps queued or in progress; the scan ends when it is zero.
    open: usize,
    plan: Plan,
    error: Option<PublishError>,
}

impl Queue {
    fn is_over(&self) -> bool {
        self.open == 0 || self.error.is_some()
    }
}

impl Scan<'_> {
    /// Scans the source with this many threads; `tick` is called at intervals.
    pub(crate) fn run(
        &self,
        threads: usize,
        facts: Facts,
        existed: bool,
        tick: &mut dyn FnMut(),
    ) -> Result<Plan, PublishError> {
        let first = Step { relative: Vec::new(), facts, existed };
        let queue = Mutex::new(Queue { steps: vec![first], open: 1, ..Queue::default() });
        let (changed, over) = (Condvar::new(), Condvar::new());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    self.work(&queue, &changed);
                    over.notify_one();
                });
            }
            let mut state = queue.lock();
            while !state.is_over() {
                if over.wait_for(&mut state, TICK).timed_out() {
                    MutexGuard::unlocked(&mut state, &mut *tick);
                }
            }
        });
        let queue = queue.into_inner();
        match queue.error {
            Some(error) => Err(error),
            None => Ok(queue.plan),
        }
    }

    fn work(&self, queue: &Mutex<Queue>, changed: &Condvar) {
        let mut state = queue.lock();
        loop {
            if state.is_over() {
                changed.notify_all();
                return;
            }
            let Some(step) = state.steps.pop() else {
                changed.wait(&mut state);
                continue;
            };
            drop(state);
            let outcome = self.step(&step);
            state = queue.lock();
            state.open -= 1;
            match outcome {
                Ok((part, steps)) => {
                    state.open += steps.len();
                    state.steps.extend(steps);
                    state.plan.absorb(&step.relative, part);
                }
                Err(error) => state.error = state.error.take().or(Some(error)),
            }
            changed.notify_all();
        }
    }

    fn step(&self, step: &Step) -> Result<(DirectoryPlan, Vec<Step>), PublishError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(RepositoryError::Interrupted.into());
        }
        let directory = [self.target, &step.relative].concat();
        let folder = self.source.open_directory(&step.relative)?;
        let now = now();
        let mut entries = self.source.list(&folder, &step.relative)?;
        let filter = self.comparison.filter;
        entries.retain(|entry| {
            let path = path::join(&step.relative, &entry.name);
            !filter.ignores(&path, entry.facts.is_directory())
        });
        let mut remarks = Remarks::default();
        entries.retain(|entry| {
            let is_left_out = source_entry::is_left_out(entry.facts.mode, self.comparison.settings);
            if is_left_out {
                remarks.add(RemarkKind::SpecialFile, &path::join(&directory, &entry.name));
            }
            !is_left_out
        });
        let grafts = Grafts::take(self.source, &folder, &step.relative, &mut entries)?;
        self.refuse(&directory, step, &entries)?;
        self.counters.scanned.fetch_add(entries.len() as u64, Ordering::Relaxed);
        for link in entries.iter_mut().filter(|entry| entry.facts.is_symlink()) {
            if let Some(target) = self.relocation.and_then(|relocation| relocation.in_text(&link.target)) {
                link.target = target;
            }
            if leads_out(&link.target, &directory, self.build_folder) {
                remarks.add_with(RemarkKind::LeadsOut, &path::join(&directory, &link.name), &link.target);
            }
        }
        let mut old = if step.existed { self.published.list(&directory)? } else { Vec::new() };
        // Ignored paths stay as they are published.
        old.retain(|entry| !filter.ignores(&path::join(&step.relative, &entry.name), entry.is_directory()));
        let directories: Vec<(Vec<u8>, Facts)> = entries
            .iter()
            .filter(|entry| entry.facts.is_directory())
            .map(|entry| (entry.name.clone(), entry.facts))
            .collect();
        let found = self.add_xattrs(&folder, &step.relative, entries, &mut remarks)?;
        let mut part = self.comparison.compare(&directory, &step.facts, found, &grafts, old, now)?;
        part.remarks.absorb(remarks);
        for removed in std::mem::take(&mut part.removed_directories) {
            part.differences.add_removed_below(self.published, &removed)?;
        }
        let steps = part.subdirectories.iter().zip(directories).map(|((path, existed), (name, facts))| {
            debug_assert_eq!(path::split(path).map(|(_, name)| name), Some(name.as_slice()));
            Step { relative: path::join(&step.relative, &name), facts, existed: *existed }
        });
        let steps = steps.collect();
        Ok((part, steps))
    }

    /// Refuses private files, and entries whose names are reserved at this place.
    fn refuse(&self, directory: &[u8], step: &Step, entries: &[SourceEntry]) -> Result<(), PublishError> {
        for entry in entries {
            let shown = || self.source.shown(&path::join(&step.relative, &entry.name));
            self.private.check(&entry.facts, shown)?;
            let reason = match entry.name.as_slice() {
                b".cvmfs" if directory.is_empty() => "`/.cvmfs` belongs to the repository itself",
                entry::MARKER if directory.is_empty() => {
                    "the root of a repository always is the root of a catalog"
                }
                entry::MARKER if !entry.facts.is_file() => {
                    "a marker of a nested catalog must be a regular file"
                }
                _ => continue,
            };
            return Err(PublishError::Refused { path: shown(), reason: reason.to_owned() });
        }
        Ok(())
    }

    #[expect(clippy::type_complexity, reason = "a pair of things that only meet here")]
    fn add_xattrs(
        &self,
        folder: &OwnedFd,
        relative: &[u8],
        entries: Vec<SourceEntry>,
        remarks: &mut Remarks,
    ) -> Result<Vec<(SourceEntry, Option<Vec<u8>>)>, PublishError> {
        let mut found = Vec::with_capacity(entries.len());
        for entry in entries {
            let mut packed = None;
            if self.comparison.settings.xattrs {
                let at = path::join(relative, &entry.name);
                let failed = self.source.failed("reading the extended attributes of", &at);
                let pairs = read_xattr_pairs(folder, &entry.name).map_err(failed)?;
                let xattrs = pack_xattrs(pairs, &at, self.comparison.settings)?;
                remarks.add_xattrs(&[self.target, &at].concat(), xattrs.left_out);
                packed = xattrs.packed;
            }
            found.push((entry, packed));
        }
        Ok(found)
    }
}

fn now() -> Time {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Time { seconds: time.tv_sec, nanoseconds: u32::try_from(time.tv_nsec).unwrap_or(0) }
}
