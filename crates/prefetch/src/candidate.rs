//! Candidates for prefetching, and the queues in which they wait.

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
    /// Folder of the file, if the candidate was predicted from the folders of other reads.
    pub folder: Option<Rc<Folder>>,
    /// Sequence number among the low-confidence candidates.
    pub number: u64,
}

impl Candidate {
    /// Returns a candidate that is in no predicted folder.
    pub fn new(wanted: ObjectRequest, size: u64) -> Self {
        Self { wanted, size, folder: None, number: 0 }
    }

    /// Returns a candidate predicted from the reads in its folder.
    pub fn of(leaf: &Leaf) -> Self {
        Self { folder: Some(leaf.folder()), ..Self::new(leaf.wanted(), leaf.size()) }
    }
}

/// A queue of candidates.
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

/// Removes and returns the next candidate that is still queued and that the budget allows.
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
            budget.spend(candidate.wanted.key(), candidate.size);
            return Some(candidate);
        }
    }
}
