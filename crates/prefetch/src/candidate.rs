//! Guesses, and the lines in which they wait.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use esker_store::{CacheKey, ObjectRequest};

use crate::budget::Budget;
use crate::neighbours::{Folder, Leaf};

/// An object that may be read soon.
#[derive(Debug)]
pub struct Candidate {
    /// Request for the object.
    pub wanted: ObjectRequest,
    /// Plain bytes of the object.
    pub size: u64,
    /// Where it is, if that is a guess at where programs go.
    pub folder: Option<Rc<Folder>>,
    /// Which of those it is that are only likely.
    pub number: u64,
}

impl Candidate {
    /// Returns a candidate that is in no predicted folder.
    pub fn new(wanted: ObjectRequest, size: u64) -> Self {
        Self { wanted, size, folder: None, number: 0 }
    }

    /// That this file and others around it are read.
    pub fn of(leaf: &Leaf) -> Self {
        Self { folder: Some(leaf.folder()), ..Self::new(leaf.wanted(), leaf.size()) }
    }
}

/// Guesses in the order in which they are made.
pub trait Line {
    /// Returns the first candidate without removing it.
    fn first(&self) -> Option<&Candidate>;
    /// Removes the first candidate.
    fn take(&mut self) -> Option<Candidate>;
}

impl Line for VecDeque<Candidate> {
    fn first(&self) -> Option<&Candidate> {
        self.front()
    }

    fn take(&mut self) -> Option<Candidate> {
        self.pop_front()
    }
}

impl<K: Ord> Line for BTreeMap<K, Candidate> {
    fn first(&self) -> Option<&Candidate> {
        self.values().next()
    }

    fn take(&mut self) -> Option<Candidate> {
        Some(self.pop_first()?.1)
    }
}

/// The next guess of a line that is still queued, paid for with its credit; none if that doesn't allow it.
pub fn affordable(
    line: &mut impl Line,
    budget: &Budget,
    queued: &mut HashMap<CacheKey, Option<u64>>,
    starved: &AtomicBool,
) -> Option<Candidate> {
    loop {
        if !budget.allows(line.first()?.size) {
            starved.store(true, Ordering::Relaxed);
            return None;
        }
        let candidate = line.take()?;
        if queued.remove(&candidate.wanted.key()).is_some() {
            budget.candidate(candidate.wanted.key(), candidate.size);
            return Some(candidate);
        }
    }
}
