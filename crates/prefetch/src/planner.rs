//! Passes events to the predictors, and hands out what they have queued.

use std::sync::Arc;
use std::time::Duration;

use crate::budgets::Budgets;
use crate::bundles::Bundles;
use crate::cached_reads::CachedReads;
use crate::candidate::Candidate;
use crate::cluster::CatalogRequest;
use crate::elf_files::ElfFiles;
use crate::event::{Action, Event, Outcome, Read, Source};
use crate::learned_reads::LearnedReads;
use crate::neighbours::Neighbours;
use crate::pending::PrefetchEvent;
use crate::predictor::{Context, Predictor};
use crate::python_imports::PythonModules;
use crate::queue::Queue;
use crate::sequences::Sequences;
use crate::sequential_readers::SequentialReaders;
use crate::world::World;

/// The predictors of a mount, in the order in which they handle an event, and the queue that they fill.
///
/// The caller performs the actions that [`Self::handle`] returns, and fetches what [`Self::next`] returns.
pub struct Planner {
    learned: LearnedReads,
    bundles: Bundles,
    cached: CachedReads,
    modules: PythonModules,
    elf_files: ElfFiles,
    readers: SequentialReaders,
    neighbours: Neighbours,
    queue: Queue,
    budgets: Arc<Budgets>,
}

impl Planner {
    /// Returns the planner of a mount with these sequences.
    pub fn new(learned: Sequences, budgets: Arc<Budgets>) -> Self {
        Self {
            learned: LearnedReads(learned),
            bundles: Bundles::default(),
            cached: CachedReads::default(),
            modules: PythonModules::default(),
            elf_files: ElfFiles::default(),
            readers: SequentialReaders::default(),
            neighbours: Neighbours::default(),
            queue: Queue::default(),
            budgets,
        }
    }

    /// Returns the recorded sequences.
    pub fn sequences(&mut self) -> &mut Sequences {
        &mut self.learned.0
    }

    /// Records a read, though nothing is prefetched any more.
    pub fn record(&mut self, read: &Read) {
        self.learned.record(read);
    }

    /// Handles an event; returns what the caller has to do.
    pub fn handle<C: CatalogRequest>(
        &mut self,
        mut event: Event<C>,
        world: &mut dyn World<Catalog = C>,
    ) -> Vec<Action<C>> {
        let mut stops = false;
        match &mut event {
            Event::Read(Read { key, source, .. }) => {
                self.queue.hold_back();
                if let Source::Server { expected } = source {
                    *expected |= self.queue.missed(key);
                }
            }
            Event::Ended(ended) => {
                stops = self.queue.ended(*ended, world);
                if ended.outcome != Outcome::Fetched {
                    self.budgets.forget(&ended.key);
                }
            }
            _ => {}
        }
        let Self { learned, bundles, cached, modules, elf_files, readers, neighbours, queue, .. } = self;
        let predictors: &mut [&mut dyn Predictor<C>] =
            &mut [learned, bundles, cached, modules, elf_files, readers, neighbours];
        let mut context = Context::new(world, queue);
        let mut waiting = vec![(event, 0)];
        while let Some((event, at)) = waiting.pop() {
            let Some(predictor) = predictors.get_mut(at) else { continue };
            let passed = predictor.on(event, &mut context);
            waiting.extend(passed.map(|event| (event, at + 1)));
            waiting.extend(context.take_raised().map(|event| (event, 0)));
        }
        let actions = context.actions;
        if stops {
            queue.clear();
            predictors.iter_mut().for_each(|predictor| predictor.clear());
        }
        actions
    }

    /// Removes and returns the next candidate that may be requested now; the caller handles its end as an event.
    pub fn next(&mut self, announce: impl FnOnce(PrefetchEvent<'_>)) -> Option<Candidate> {
        let mut candidate = self.queue.next(&self.budgets)?;
        self.queue.announce_folder(&mut candidate, announce);
        Some(candidate)
    }

    /// Returns the idle time after which [`Self::idle`] is to be called; `None` if nothing waits for one.
    pub fn quiet_period(&self) -> Option<Duration> {
        self.queue.quiet_period()
    }

    /// Begins with what waits for idle time; returns false if there is nothing.
    pub fn idle(&mut self) -> bool {
        self.queue.begin_idle()
    }
}
