//! Guesses, and the lines in which they wait.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use esker_store::{CacheKey, ObjectRequest};

use super::credit::Credit;
use super::neighbours::{Folder, Leaf};

/// An object that may be read soon.
#[derive(Debug)]
pub(super) struct Guess {
    pub(super) wanted: ObjectRequest,
    pub(super) size: u64,
    /// Where it is, if that is a guess at where programs go.
    pub(super) folder: Option<Rc<Folder>>,
    /// Which of those it is that are only likely.
    pub(super) number: u64,
}

impl Guess {
    pub(super) fn new(wanted: ObjectRequest, size: u64) -> Self {
        Self { wanted, size, folder: None, number: 0 }
    }

    /// That this file and others around it are read.
    pub(super) fn of(leaf: &Leaf) -> Self {
        Self { folder: Some(leaf.folder()), ..Self::new(leaf.wanted(), leaf.size()) }
    }
}

/// Guesses in the order in which they are made.
pub(super) trait Line {
    fn first(&self) -> Option<&Guess>;
    fn take(&mut self) -> Option<Guess>;
}

impl Line for VecDeque<Guess> {
    fn first(&self) -> Option<&Guess> {
        self.front()
    }

    fn take(&mut self) -> Option<Guess> {
        self.pop_front()
    }
}

impl<K: Ord> Line for BTreeMap<K, Guess> {
    fn first(&self) -> Option<&Guess> {
        self.values().next()
    }

    fn take(&mut self) -> Option<Guess> {
        Some(self.pop_first()?.1)
    }
}

/// The next guess of a line that is still queued, paid for with its credit; none if that doesn't allow it.
pub(super) fn affordable(
    line: &mut impl Line,
    credit: &Credit,
    queued: &mut HashMap<CacheKey, Option<u64>>,
    starved: &AtomicBool,
) -> Option<Guess> {
    loop {
        if !credit.allows(line.first()?.size) {
            starved.store(true, Ordering::Relaxed);
            return None;
        }
        let guess = line.take()?;
        if queued.remove(&guess.wanted.key()).is_some() {
            credit.guess(guess.wanted.key(), guess.size);
            return Some(guess);
        }
    }
}
